"""A month's requests of a cluster on an object store, projected from a minute, at S3's prices."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.bench import Bench
from benchmarks.clusters import StoreCluster, on_store
from benchmarks.figures import Figures, Target
from benchmarks.prices import MONTH_SECONDS, PRICES, STORED_GB_MONTH, dollars
from benchmarks.s3_server import KINDS
from benchmarks.s3_store import CLIENT, Store, running_store
from benchmarks.work import Work
from benchmarks.works.store_record import PROCESSES
from sparklog import Producer
from sparklog.config import Settings

AT_REST, WITH_REQUESTS = "at rest", "a request every tick"
EVERY_SECOND = "a request every second"
DOLLARS = "$ a month"
OF_CLIENT = "of this the producer's"
PUTS = "of this PUT"

_INTERVALS_SECONDS = (1, 5)
_DEFAULT_SECONDS = Settings.model_fields["tick_interval_ms"].default / 1000
_LATENCY_MS = 30
_MINUTE_SECONDS = 60
_WARM_REQUESTS = 3
_REST_SECONDS = 10
"""Seconds from the last request until a cluster counts as idle. The checkpoints that follow the
requests are counted with the minute of requests. Later its batches would be merged.
"""

_PARTITIONS = 4
_REPLICAS = 3
_VALUE = b"x" * 100


def month_of(load: str, interval: float) -> str:
    """Return the name of the cost figure of a load, with ticks every `interval` seconds."""
    return f"{load}, ticks every {interval:g} s"


def run(bench: Bench, figures: Figures) -> None:
    """Count the requests of a minute with a produce request per tick, and of an idle minute."""
    for one in range(bench.runs):
        for interval in _INTERVALS_SECONDS:
            with (
                bench.temporary("store-month") as folder,
                running_store(folder / "store.log") as store,
                on_store(store, folder, tick_interval_ms=interval * 1000) as cluster,
            ):
                _measure(bench, figures, store, cluster, interval, WITH_REQUESTS, interval)
            _say(bench, figures, one, interval, WITH_REQUESTS)


def run_with_defaults(bench: Bench, figures: Figures) -> None:
    """Count the requests of a minute with a produce request per second, and of an idle minute."""
    for one in range(bench.runs):
        with (
            bench.temporary("store-default-tick") as folder,
            running_store(folder / "store.log") as store,
            on_store(store, folder) as cluster,
        ):
            _measure(bench, figures, store, cluster, _DEFAULT_SECONDS, EVERY_SECOND, 1)
        _say(bench, figures, one, _DEFAULT_SECONDS, EVERY_SECOND)


def _say(bench: Bench, figures: Figures, run_number: int, interval: float, load: str) -> None:
    found = [figures.get(month_of(of, interval), PROCESSES) for of in (AT_REST, load)]
    costs = ", ".join(f"{each.values[-1]:.0f}" for each in found if each is not None)
    bench.say(f"  run {run_number + 1}: ticks every {interval:g} s: $ {costs} a month")


def _measure(
    bench: Bench,
    figures: Figures,
    store: Store,
    cluster: StoreCluster,
    interval: float,
    load: str,
    period: float,
) -> None:
    """Measure the named load, a request every `period` seconds, and then the cluster at rest."""
    cluster.create_topic("records", _PARTITIONS)
    duration = bench.scaled(_MINUTE_SECONDS, least=2)
    with Producer(cluster.config_file) as producer:

        def send(duration: float) -> None:
            """Send a request with one record to each partition every `period` seconds."""
            began, number = time.monotonic(), 0
            while number * period < duration:
                for partition in range(_PARTITIONS):
                    producer.send("records", _VALUE, partition=partition)
                number += 1
                time.sleep(max(began + number * period - time.monotonic(), 0))

        store.set_latency(_LATENCY_MS)
        send(_WARM_REQUESTS * period)
        _add(figures, store, month_of(load, interval), lambda: send(duration))
        producer.flush()
    time.sleep(_REST_SECONDS)
    _add(figures, store, month_of(AT_REST, interval), lambda: time.sleep(duration))


def _add(figures: Figures, store: Store, what: str, action: Callable[[], None]) -> None:
    """Add the monthly cost of requests at the rate during `action`."""
    before, before_client = store.counts(), store.counts(CLIENT)
    began = time.monotonic()
    action()
    share = MONTH_SECONDS / (time.monotonic() - began)
    after, after_client = store.counts(), store.counts(CLIENT)
    asked = {kind: after[kind] - before[kind] for kind in KINDS}
    of_client = {kind: after_client[kind] - before_client[kind] for kind in KINDS}
    figures.add(what, PROCESSES, DOLLARS, dollars(asked) * share)
    figures.add(f"{what}, {PUTS}", PROCESSES, DOLLARS, dollars({"PUT": asked["PUT"]}) * share)
    figures.add(f"{what}, {OF_CLIENT}", PROCESSES, DOLLARS, dollars(of_client) * share)


WORK = Work(
    "store_month",
    "A month's requests to an object store",
    "Three brokers in a process each without Spark, on the S3 API server of the benchmarks with 30 "
    "ms a request, defaults but for tick.interval.ms. A plain producer sends a record to each of 4 "
    "partitions every tick, acks=all, RF 3. All requests of a minute are counted and multiplied to "
    f"a month of 30.44 days at S3's prices: ${PRICES['PUT'] * 1000:g} for 1,000 PUT or LIST, "
    f"${PRICES['GET'] * 1000:g} for 1,000 GET or HEAD, DELETE for nothing. A stored GB costs "
    f"${STORED_GB_MONTH:g} a month, ${STORED_GB_MONTH * _REPLICAS:g} on three replicas.",
    run,
    (
        Target(month_of(AT_REST, 1), PROCESSES, 60, 30),
        Target(month_of(WITH_REQUESTS, 1), PROCESSES, 600, 400),
        Target(month_of(WITH_REQUESTS, 5), PROCESSES, 120),
    ),
    is_plotted=False,
    most_runs=2,
)

DEFAULT_TICKS = Work(
    "store_default_ticks",
    "A month's requests to an object store with the default tick.interval.ms",
    "As the work before, with all defaults: a tick.interval.ms of "
    f"{_DEFAULT_SECONDS * 1000:g} ms, which is for local folders. The producer sends a record to "
    "each of the 4 partitions every second: a round takes longer than a tick.",
    run_with_defaults,
    (),
    is_plotted=False,
    most_runs=2,
)
