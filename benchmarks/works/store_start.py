"""Durations of brokers' starts on an object store, and of a whole scheduled run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from benchmarks.bench import Bench
from benchmarks.figures import Figures, Target
from benchmarks.s3_server import KINDS
from benchmarks.s3_store import Store, running_store
from benchmarks.work import Work
from sparklog import Producer
from sparklog.broker.application import Application
from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.config import BrokerConfig, ClusterConfig, parse

STORE = "object store, 30 ms a request"
NEW_CLUSTER = "a new cluster of three brokers starts"
BROKER = "a broker starts again"
CLUSTER = "three brokers of one process start again"
RUN = "a run until idle of three brokers, nothing to do"

_BROKERS = (0, 1, 2)
_LATENCY_MS = 30
_RECORDS = 200
_PARTITIONS = 100
_TOPIC = "t"

_Result = TypeVar("_Result")


def run(bench: Bench, figures: Figures) -> None:
    """Start a cluster, replicate some records, and start it again."""
    for one in range(bench.runs):
        with bench.temporary("start") as folder, running_store(folder / "store.log") as store:
            _starts(bench, figures, store)
        taken = [figure for figure in figures if figure.unit == "s"]
        found = ", ".join(f"{figure.what} {figure.values[-1]:.3g} s" for figure in taken)
        bench.say(f"  run {one + 1}: {found}")


def _starts(bench: Bench, figures: Figures, store: Store) -> None:
    uri = store.bucket(f"starts-{time.time_ns()}")
    common = {"cluster.root": f"{uri}/cluster", "storage.options": store.options()}
    entries = [{"broker.id": one, "log.dirs": f"{uri}/broker-{one}"} for one in _BROKERS]
    cluster = parse(ClusterConfig, {**common, "brokers": entries}, "the benchmark")

    store.set_latency(_LATENCY_MS)
    application = _noted(figures, store, NEW_CLUSTER, lambda: _started(cluster))
    store.set_latency(0)
    running = threading.Thread(target=application.run, name="brokers")
    running.start()
    try:
        _fill(bench, Connection(f"{uri}/cluster", storage_options=store.options()))
    finally:
        application.stop()
        running.join()

    store.set_latency(_LATENCY_MS)
    application = _noted(figures, store, CLUSTER, lambda: _started(cluster))
    _ended(application)
    _noted(figures, store, RUN, lambda: _started(cluster).run_until_idle())
    given: dict[str, Any] = {**common, **entries[0]}
    broker = parse(BrokerConfig, given, "the benchmark")
    application = _noted(figures, store, BROKER, lambda: _started(broker))
    _ended(application)
    store.set_latency(0)


def _fill(bench: Bench, connection: Connection) -> None:
    """Replicate records, so that journals, checkpoints and the control tables have content."""
    partitions = bench.scaled(_PARTITIONS, least=4)
    Admin(connection).create_topic(_TOPIC, partitions, len(_BROKERS))
    with Producer(connection) as producer:
        for number in range(bench.scaled(_RECORDS, least=4)):
            producer.send(_TOPIC, b"a record", partition=number % partitions).result(60)


def _started(config: ClusterConfig | BrokerConfig) -> Application:
    application = Application(config, None)
    application.start()
    return application


def _ended(application: Application) -> None:
    """Stop an application cleanly, without a round of ticks."""
    application.stop()
    application.run()


def _noted(figures: Figures, store: Store, what: str, action: Callable[[], _Result]) -> _Result:
    """Add the duration of an action, and its requests."""
    with store.logged() as log:
        began = time.perf_counter()
        result = action()
        taken = time.perf_counter() - began
    figures.add(what, STORE, "s", taken)
    for kind in KINDS:
        count = sum(one.kind == kind for one in log)
        figures.add(f"{kind} while {what}", STORE, "requests", count)
    return result


WORK = Work(
    "store_start",
    "Starts on an object store",
    "The S3 API server of the benchmarks with 30 ms a request; brokers without Spark, in this "
    "process, so that the start of Python and its modules is left out. A cluster is created and "
    "started, replicates 200 records of a topic of 100 partitions, and is stopped. Then its "
    "brokers are started again: all in one application, in one that runs until there is nothing "
    "to do and parks the brokers, as a scheduled run does, and one broker alone.",
    run,
    (
        Target(BROKER, STORE, 2),
        Target(CLUSTER, STORE, 4, aim=2.5),
        Target(RUN, STORE, 8, aim=6),
    ),
    is_plotted=False,
)
