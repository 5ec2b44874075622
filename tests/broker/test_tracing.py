"""Spans of ticks, as OpenTelemetry's SDK receives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from sparklog.testing import LocalCluster

Start = Callable[..., LocalCluster]


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """The exporter of this process: a provider can be set once."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Iterator[InMemorySpanExporter]:
    exporter.clear()
    yield exporter
    exporter.clear()


def test_a_tick_that_changes_something_is_a_span_with_its_counts(
    start: Start, spans: InMemorySpanExporter
) -> None:
    cluster = start(0, 1, tracing_enable=True)
    cluster.produce("t", 0, [b"a"])
    spans.clear()
    leader, follower = cluster.leader_tick(0), cluster.follower_tick(1)
    first, second = spans.get_finished_spans()
    assert (first.name, second.name) == ("leader tick", "follower tick")
    assert first.attributes == {
        "sparklog.broker": 0,
        "sparklog.role": "leader",
        "sparklog.commits": leader.commits,
        "sparklog.spark_jobs": 0,
        "sparklog.files_copied": 0,
        "sparklog.bytes_copied": 0,
    }
    assert second.attributes is not None
    assert second.attributes["sparklog.files_copied"] == 1
    assert second.attributes["sparklog.bytes_copied"] == follower.bytes_copied > 0
    assert first.start_time is not None
    assert first.end_time is not None
    assert first.start_time <= first.end_time
    cluster.tick_until_idle()
    spans.clear()
    cluster.controller_tick()
    cluster.leader_tick(0)
    cluster.follower_tick(1)
    assert spans.get_finished_spans() == ()


def test_a_tick_that_fails_is_a_span_with_its_error(
    start: Start, spans: InMemorySpanExporter, fail_once: Callable[[str, str], None]
) -> None:
    cluster = start(0, tracing_enable=True)
    cluster.produce("t", 0, [b"a"])
    spans.clear()
    fail_once("write", "broker-0/log")
    with pytest.raises(OSError, match="is away"):
        cluster.leader_tick(0)
    [span] = spans.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert [event.name for event in span.events] == ["exception"]


def test_by_default_there_are_no_spans(start: Start, spans: InMemorySpanExporter) -> None:
    cluster = start(0)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    assert spans.get_finished_spans() == ()
