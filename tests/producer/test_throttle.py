"""Producers whose answers carry a throttle time send nothing to that leader meanwhile (3.9)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparklog.cluster.admin import Admin
from sparklog.producer.plain import Producer
from sparklog.producer.throttle import Throttle
from tests.running_cluster import RunningCluster


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningCluster]:
    cluster = RunningCluster(tmp_path)
    cluster.create_topic("t", partitions=1)
    yield cluster
    cluster.stop()


def test_a_producer_waits_and_loses_nothing(
    running: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request of it is refused: it sends the next batch after the throttle time."""
    noted: list[int] = []
    original = Throttle.note

    def note(of: Throttle, leaders: list[int | None], time_ms: int, now_ms: int) -> None:
        if time_ms:
            noted.append(time_ms)
        # The wait that is named here takes some seconds; a part of it shows the same.
        original(of, leaders, min(time_ms, 300), now_ms)

    admin = Admin(running.connection)
    admin.alter_client_quotas("app", {"producer_byte_rate": 100_000_000})
    with Producer(running.connection, client_id="app") as producer:
        assert producer.send("t", b"a" * 100).result(60).offset == 0
        monkeypatch.setattr(Throttle, "note", note)
        admin.alter_client_quotas("app", {"producer_byte_rate": 90})
        offsets = []
        while not noted:
            offsets.append(producer.send("t", b"b" * 100).result(60).offset)
        assert producer._sender._throttle.left_ms(range(3), time.monotonic_ns() // 10**6) >= 0
        admin.alter_client_quotas("app", delete=["producer_byte_rate"])
        last = producer.send("t", b"c").result(60).offset
    assert last == len(offsets) + 1
