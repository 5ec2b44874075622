"""Many plain producers on one broker of a cluster on an object store: throughput, contention."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator, MutableSequence
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.bench import Bench
from benchmarks.clusters import StoreCluster, await_true, on_store
from benchmarks.figures import Figures, Target
from benchmarks.s3_server import KINDS, REFUSED
from benchmarks.s3_store import CLIENT, Store, running_store
from benchmarks.work import Work
from benchmarks.works.store_record import PROCESSES
from sparklog import Producer
from sparklog.errors import SparklogError
from sparklog.producer.accumulator import RecordMetadata

if TYPE_CHECKING:
    from typing_extensions import Self

COMMITTED = "committed on three replicas, 8 producers"
SERVER_CPU = "CPU time of the S3 server"
ACKNOWLEDGED = "50 producers, send to acks=all"
UNACKNOWLEDGED = "records without an acknowledgement after 30 s"
CONFLICTS = "conflicts (412) of a record's producer"
ALL_CONFLICTS = "conflicts (412) of a record, with the brokers'"

_LATENCY_MS = 30
_TOPIC = "records"
_PATIENCE_SECONDS = 120

_THROUGHPUT_PRODUCERS = 8
_THROUGHPUT_PARTITIONS = 8
_VALUE_BYTES = 1024
_BUFFER_BYTES = 8 << 20
_MEASURED_SECONDS = 10
_END_SECONDS = 10

_CONTENTION_PRODUCERS = 50
_CONTENTION_SECONDS = 8
_CONTENTION_WARM_SECONDS = 2
_DRAIN_SECONDS = 30


def throughput(bench: Bench, figures: Figures) -> None:
    """Measure acknowledged records while producers send without pauses."""
    for one in range(bench.runs):
        with _cluster(bench, _THROUGHPUT_PARTITIONS) as (store, cluster):
            megabytes = _throughput(bench, figures, store, cluster)
        bench.say(f"  run {one + 1}: {megabytes:.1f} MiB/s")


def _throughput(bench: Bench, figures: Figures, store: Store, cluster: StoreCluster) -> float:
    """Add and return the acknowledged MiB per second."""
    with _Load(cluster, _THROUGHPUT_PRODUCERS) as load:
        load.await_acknowledged(_THROUGHPUT_PRODUCERS)
        store.set_latency(_LATENCY_MS)
        # Wait until more records are acknowledged than were buffered before the latency was set.
        buffered = _THROUGHPUT_PRODUCERS * _BUFFER_BYTES // _VALUE_BYTES
        load.await_acknowledged(load.acknowledged() + buffered)
        before, began = load.acknowledged(), time.perf_counter()
        cpu_before = store.cpu_seconds()
        time.sleep(bench.scaled(_MEASURED_SECONDS, least=2))
        records, taken = load.acknowledged() - before, time.perf_counter() - began
        cpu_seconds = store.cpu_seconds() - cpu_before
        store.set_latency(0)
    megabytes = records * _VALUE_BYTES / (1 << 20) / taken
    figures.add(COMMITTED, PROCESSES, "MiB/s", megabytes)
    figures.add(SERVER_CPU, PROCESSES, "% of a core", 100 * cpu_seconds / taken)
    return megabytes


class _Load:
    """Producers that send without pauses within a `with` block, one process each."""

    def __init__(self, cluster: StoreCluster, number: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._stopping = context.Event()
        self._acknowledged = context.Array("q", number, lock=False)
        self._processes = [
            context.Process(
                target=_produce,
                args=(str(cluster.config_file), one, self._acknowledged, self._stopping),
                daemon=True,
            )
            for one in range(number)
        ]

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._stopping.set()
        for process in self._processes:
            process.join(_END_SECONDS)
            process.kill()
            process.join()

    def acknowledged(self) -> int:
        """Return the number of records acknowledged so far.

        Raises `SparklogError` if a producer's process has ended.
        """
        ended = [process for process in self._processes if not process.is_alive()]
        if ended:
            raise SparklogError(
                f"a producer's process has ended with {ended[0].exitcode}: its error is above"
            )
        return sum(self._acknowledged)

    def await_acknowledged(self, records: int) -> None:
        """Wait until `records` records are acknowledged, at least one of each producer."""

        def is_warm() -> bool:
            return self.acknowledged() >= records and min(self._acknowledged) > 0

        await_true(is_warm, "acknowledgements", every_seconds=0.1)


def _produce(config_file: str, number: int, acknowledged: MutableSequence[int], stop: Any) -> None:
    """Send records until `stop` is set or the parent has ended; count them at index `number`."""
    failures: list[BaseException] = []

    def note(future: Future[RecordMetadata]) -> None:
        error = future.exception()
        if error is None:
            acknowledged[number] += 1
        else:
            failures.append(error)

    parent = os.getppid()
    producer = Producer(config_file, buffer_memory=_BUFFER_BYTES)
    while not failures and not stop.is_set() and os.getppid() == parent:
        for _ in range(100):
            # Hex digits compress 2:1.
            value = os.urandom(_VALUE_BYTES // 2).hex().encode()
            producer.send(_TOPIC, value).add_done_callback(note)
    if failures:
        raise failures[0]
    producer.close(timeout_ms=1)


def contention(bench: Bench, figures: Figures) -> None:
    """Measure many producers, each of which sends one record per second to one partition."""
    for one in range(bench.runs):
        with (
            _cluster(bench, 1) as (store, cluster),
            _producers(cluster, _CONTENTION_PRODUCERS) as producers,
        ):
            store.set_latency(_LATENCY_MS)
            _paced(producers, _CONTENTION_WARM_SECONDS)
            before, before_all = store.counts(CLIENT), store.counts()
            sent, done = _paced(producers, bench.scaled(_CONTENTION_SECONDS, least=2))
            after, after_all = store.counts(CLIENT), store.counts()
            store.set_latency(0)
        taken = [done.get(each, began + _DRAIN_SECONDS) - began for each, began in sent.items()]
        figures.add_latencies(ACKNOWLEDGED, PROCESSES, taken, 99)
        figures.add(UNACKNOWLEDGED, PROCESSES, "records", len(sent) - len(done))
        conflicts = (after[REFUSED] - before[REFUSED]) / len(sent)
        figures.add(CONFLICTS, PROCESSES, "requests", conflicts)
        both = (after_all[REFUSED] - before_all[REFUSED]) / len(sent)
        figures.add(ALL_CONFLICTS, PROCESSES, "requests", both)
        for kind in KINDS:
            asked = (after[kind] - before[kind]) / len(sent)
            figures.add(f"{kind} of a record's producer", PROCESSES, "requests", asked)
        middle = sorted(taken)[len(taken) // 2] * 1000
        bench.say(f"  run {one + 1}: {middle:.0f} ms, {conflicts:.2f} conflicts a record")


_Sent = dict[Future[RecordMetadata], float]


def _paced(producers: list[Producer], duration_seconds: float) -> tuple[_Sent, _Sent]:
    """Make each producer send one record per second, one producer after the other.

    Returns the time of sending of each record, and the time of acknowledgement of those
    acknowledged within `_DRAIN_SECONDS` of the last one. Raises `SparklogError` if a record has
    failed.
    """
    sent: _Sent = {}
    done: _Sent = {}

    def note(future: Future[RecordMetadata]) -> None:
        if future.exception() is None:
            done[future] = time.perf_counter()

    began = time.perf_counter()
    for number in range(round(duration_seconds * len(producers))):
        time.sleep(max(began + number / len(producers) - time.perf_counter(), 0))
        now = time.perf_counter()
        future = producers[number % len(producers)].send(_TOPIC, b"x" * 100, partition=0)
        sent[future] = now
        future.add_done_callback(note)
    finished = wait(sent, _DRAIN_SECONDS).done
    for future in finished:
        error = future.exception()
        if error is not None:
            raise SparklogError(f"a record of {len(producers)} producers failed: {error}")
    return sent, {each: done[each] for each in finished if each in done}


@contextmanager
def _cluster(bench: Bench, partitions: int) -> Iterator[tuple[Store, StoreCluster]]:
    """Run a cluster on a store, with a topic whose partitions are all led by one broker."""
    with (
        bench.temporary("store-clients") as folder,
        running_store(folder / "store.log") as store,
        on_store(store, folder) as cluster,
    ):
        cluster.create_topic(_TOPIC, partitions, leader=0)
        yield store, cluster


@contextmanager
def _producers(cluster: StoreCluster, number: int) -> Iterator[list[Producer]]:
    """Yield producers that have sent one record each; they are closed without a flush."""
    producers = [Producer(cluster.connection) for _ in range(number)]
    try:
        futures = [producer.send(_TOPIC, b"warm", partition=0) for producer in producers]
        for future in futures:
            try:
                future.result(_PATIENCE_SECONDS)
            except FutureTimeoutError:
                raise SparklogError(
                    f"the first records of {number} producers were not acknowledged within "
                    f"{_PATIENCE_SECONDS} s: run the work alone, on a machine that is idle"
                ) from None
        yield producers
    finally:
        for producer in producers:
            producer.close(timeout_ms=1)


_MEASURED = (
    "A cluster on the S3 API server of the benchmarks, three brokers in a process each without "
    "Spark, 30 ms a request, RF 3, acks=all, defaults throughout. "
)
THROUGHPUT = Work(
    "store_throughput",
    "Throughput of one broker on an object store",
    f"{_MEASURED}One broker leads all 8 partitions and the others follow, as with one broker's "
    "share of a larger cluster. 8 plain producers in a process each send records of 1 KiB, which "
    "compress 2:1, as fast as buffer.memory (8 MiB) lets them. Records that are acknowledged "
    "within 10 s count, after the buffers have been sent once. All processes share the "
    "cores.",
    throughput,
    (Target(COMMITTED, PROCESSES, 20, is_floor=True),),
    is_plotted=False,
    most_runs=2,
)
CONTENTION = Work(
    "store_contention",
    "Contention for one inbox on an object store",
    f"{_MEASURED}50 plain producers in one process send a record of 100 B a second each, evenly "
    "spread over the second, to one partition for 8 s; the 2 s before are not measured. Each "
    "record is a request, unless a producer's record before it is still under way. A record "
    "without an acknowledgement after 30 s counts with 30 s.",
    contention,
    is_plotted=False,
    most_runs=2,
)
