"""The export of metrics: an HTTP endpoint for Prometheus, and a textfile for node_exporter.

Both need the package prometheus-client, the extra `metrics`. Brokers that are configured to export
metrics without it refuse to start.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparklog.broker.broker import Broker
from sparklog.broker.metrics import METRICS, Sample, samples, with_earlier
from sparklog.config import Settings
from sparklog.counts import HistogramState
from sparklog.errors import ConfigError
from sparklog.logger import RepeatedFailures, get_logger

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family

_log = get_logger(__name__)

TEXTFILE_INTERVAL_S = 15
"""Seconds between two writes of the textfile by a resident process."""


class MetricsExport:
    """The metrics of the brokers of one process, as its configuration asks for them.

    Parameters: `settings`, with the keys metrics.*; `brokers`, a function that returns the brokers
    that run.
    """

    def __init__(self, settings: Settings, brokers: Callable[[], Sequence[Broker]]) -> None:
        self._settings = settings
        self._brokers = brokers
        self._failures = RepeatedFailures(_log)
        self._server: Any = None
        self._textfile: _Textfile | None = None
        self._ended = threading.Event()
        self._writer = threading.Thread(target=self._write, name="metrics", daemon=True)

    def open(self) -> None:
        """Serve the endpoint, and begin to write the textfile, as far as they are asked for.

        Raises `ConfigError` as `check_export` does, which is called before.
        """
        port, path = self._settings.metrics_http_port, self._settings.metrics_textfile
        if path is not None:
            self._textfile = _Textfile(Path(path))
        if port is not None:
            self._serve(self._settings.metrics_http_host, port)
        if self._textfile is not None:
            self._writer.start()

    def _serve(self, host: str, port: int) -> None:
        from prometheus_client import start_http_server

        with _serving_at(host, port):
            self._server, _ = start_http_server(port, host, _registry(self.samples))
        _log.info("metrics served", host=host, port=self._server.server_port)

    def samples(self) -> list[Sample]:
        """Return the metrics now."""
        return samples(self._brokers())

    def last_samples(self) -> Sequence[Sample]:
        """Return the metrics for `close`, before the brokers end; empty without a textfile."""
        if self._textfile is None:
            return []
        try:
            return self.samples()
        except Exception as error:  # noqa: BLE001 - brokers must end cleanly without metrics, too
            _log.error("metrics not written", error=str(error), exc_info=error)
            return []

    def close(self, last: Sequence[Sample], *, has_failed: bool) -> None:
        """End the endpoint and write the textfile for the last time.

        Parameters: `last`, the metrics before the brokers ended; `has_failed`, whether the process
        ends with a failure.
        """
        self._ended.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        if self._writer.is_alive():
            self._writer.join()
        self._write_textfile(last, has_failed=has_failed)

    def _write(self) -> None:
        while not self._ended.wait(TEXTFILE_INTERVAL_S):
            self._write_textfile(self.samples(), has_failed=False)

    def _write_textfile(self, found: Sequence[Sample], *, has_failed: bool) -> None:
        """Write the textfile; a failure is only logged, since brokers go on without metrics.

        A process without a broker writes nothing: the process that plays the brokers may write the
        same file.
        """
        if self._textfile is None or not any("broker" in one.metric.labels for one in found):
            return
        try:
            self._textfile.write(found, has_failed=has_failed)
        except OSError as error:
            path = str(self._textfile.path)
            self._failures.error(path, "metrics not written", path=path, error=str(error))
        else:
            self._failures.over(str(self._textfile.path))


def check_export(settings: Settings) -> None:
    """Raise `ConfigError` if metrics cannot be exported as the keys metrics.* ask for.

    prometheus-client is missing, the address cannot be bound to, or the folder of the textfile
    cannot be written to. The port is bound for a moment; nothing is written.
    """
    host, port, path = (
        settings.metrics_http_host,
        settings.metrics_http_port,
        settings.metrics_textfile,
    )
    if port is None and path is None:
        return
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        key = "metrics.textfile" if port is None else "metrics.http.port"
        raise ConfigError(
            f"{key} needs the package prometheus-client: install sparklog[metrics], or remove "
            "the key"
        ) from None
    if path is not None:
        _check_folder(Path(path))
    if port is not None:
        with _serving_at(host, port):
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            socket.create_server(address[:2], family=family).close()


@contextmanager
def _serving_at(host: str, port: int) -> Iterator[None]:
    """Turn a failure to bind to an address into a `ConfigError` that names its keys."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(
            f"metrics.http.port: cannot serve metrics at {host}:{port} ({reason}): name "
            "another metrics.http.port or metrics.http.host"
        ) from None


def _check_folder(path: Path) -> None:
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(
            f"metrics.textfile: {path} cannot be written: create the folder {path.parent}, and "
            "let the brokers write to it"
        )


class _Textfile:
    """A textfile whose counters are the totals of all processes that have written it.

    Otherwise each scheduled run would start at 0, and Prometheus, which sees the end of runs only,
    would take a run with more records than the run before for a continuation of it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._earlier = list(_read(path))

    def write(self, found: Sequence[Sample], *, has_failed: bool) -> None:
        """Replace the file atomically."""
        from prometheus_client import write_to_textfile

        process = [
            Sample(METRICS["sparklog_last_run_timestamp_seconds"], (), time.time()),
            Sample(METRICS["sparklog_last_run_success"], (), int(not has_failed)),
        ]
        written = [*with_earlier(found, self._earlier), *process]
        # A temporary file in the same folder, which node_exporter ignores, and a rename.
        write_to_textfile(str(self.path), _registry(lambda: written))


def _read(path: Path) -> Iterator[Sample]:
    """Yield the counters and histograms in a textfile; nothing if it is missing or damaged."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        text = path.read_text(encoding="utf-8")
        families = list(text_string_to_metric_families(text))
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        _log.warning("totals of earlier runs not readable", path=str(path), error=str(error))
        return
    for family in families:
        if family.type == "counter":
            for one in family.samples:
                metric = METRICS.get(one.name)
                if metric is not None and set(one.labels) == set(metric.labels):
                    yield Sample(metric, tuple(one.labels[of] for of in metric.labels), one.value)
        elif family.type == "histogram" and family.name in METRICS:
            yield from _histograms(family)


def _histograms(family: Family) -> Iterator[Sample]:
    """Yield the series of a histogram in a textfile."""
    metric = METRICS[family.name]
    buckets: dict[tuple[str, ...], dict[float, int]] = {}
    sums: dict[tuple[str, ...], float] = {}
    for one in family.samples:
        labels = tuple(one.labels.get(of, "") for of in metric.labels)
        if one.name.endswith("_bucket"):
            buckets.setdefault(labels, {})[float(one.labels["le"])] = int(one.value)
        elif one.name.endswith("_sum"):
            sums[labels] = one.value
    for labels, of in buckets.items():
        bounds = tuple(bound for bound in sorted(of) if bound < math.inf)
        numbers = [of[bound] for bound in sorted(of)]
        yield Sample(metric, labels, HistogramState(bounds, numbers, sums.get(labels, 0.0)))


class _Collector:
    """Metrics in the form of prometheus-client, made at each scrape."""

    def __init__(self, found: Callable[[], Iterable[Sample]]) -> None:
        self._found = found

    def collect(self) -> Iterator[Family]:
        """Yield each metric with its series."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        by_name: dict[str, list[Sample]] = {}
        for one in self._found():
            by_name.setdefault(one.metric.name, []).append(one)
        for name, of_metric in by_name.items():
            metric = METRICS[name]
            if metric.kind == "histogram":
                histogram = HistogramMetricFamily(name, metric.description, labels=metric.labels)
                for one in of_metric:
                    if isinstance(one.value, HistogramState):
                        histogram.add_metric(one.labels, _buckets(one.value), one.value.total)
                yield histogram
                continue
            family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            simple = family(name, metric.description, labels=metric.labels)
            for one in of_metric:
                if not isinstance(one.value, HistogramState):
                    simple.add_metric(one.labels, one.value)
            yield simple


def _buckets(state: HistogramState) -> list[tuple[str, float]]:
    bounds = [*(str(float(bound)) for bound in state.bounds), "+Inf"]
    return list(zip(bounds, map(float, state.cumulative), strict=True))


def _registry(found: Callable[[], Iterable[Sample]]) -> CollectorRegistry:
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(found))
    return registry
