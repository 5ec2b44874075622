"""The log cleaner: a log with 20 records for each key, in the driver and in Spark's tasks."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.bench import Bench, seconds
from benchmarks.figures import Figures
from benchmarks.s3_store import running_store
from benchmarks.work import Work
from sparklog import Admin
from sparklog.broker.application import Application
from sparklog.broker.cleaner import CleanReport
from sparklog.cluster.connection import Connection
from sparklog.config import ClusterConfig, parse
from sparklog.errors import SparklogError
from sparklog.model import new_batch_path
from sparklog.producer.produce_requests import ProduceClient, RequestedBatch
from sparklog.storage.batch_files import BatchFileWriter, records_table
from sparklog.storage.location import StorageOptions

DRIVER, SPARK = "driver", "Spark tasks"
LOCAL, STORE = "local folder", "S3 API server, 30 ms a request"

_RECORDS = 2_000_000
_RECORDS_OF_BATCH = 2_000
_RECORDS_PER_KEY = 20
_VALUE_BYTES = 100
_BATCHES_AT_ONCE = 50
_LATENCY_MS = 30


class _Root(NamedTuple):
    """A folder or a bucket for a cluster, and the options of its store."""

    uri: str
    options: StorageOptions


def run(bench: Bench, figures: Figures) -> None:
    """Clean a log of the same records in each place and way, each time in a new cluster."""
    for one in range(bench.runs):
        for place in (LOCAL, STORE):
            for way in (DRIVER, SPARK):
                with _root(bench, place) as root:
                    _measure(bench, figures, root, place, way, one)


@contextmanager
def _root(bench: Bench, place: str) -> Iterator[_Root]:
    with bench.temporary("cleaning") as folder:
        if place == LOCAL:
            yield _Root(str(folder), {})
            return
        with running_store(folder / "store.log") as store:
            yield _Root(store.bucket("cleaning"), store.options())


def _measure(bench: Bench, figures: Figures, root: _Root, place: str, way: str, one: int) -> None:
    values = {
        "cluster.root": f"{root.uri}/cluster",
        "brokers": [{"broker.id": 0, "log.dirs": [f"{root.uri}/broker-0"]}],
        "storage.options": root.options,
        "log.merger.enable": False,
        "log.cleaner.enable": False,
        "log.vacuum.enable": False,
        "log.merger.min.lag.ms": 0,
        # Without executors, only the pass of the cleaner is a job.
        "execution": "driver" if way == DRIVER else "auto",
        "execution.spark.bytes.per.task": bench.scaled(8 << 20),
    }
    config = parse(ClusterConfig, values, "the benchmark's configuration")
    application = Application(config, None if way == DRIVER else bench.spark)
    application.start()
    connection = Connection(f"{root.uri}/cluster", storage_options=root.options)
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    Admin(connection).create_topic("c", 1, 1, configs=configs)
    count = bench.scaled(_RECORDS, least=2 * _RECORDS_OF_BATCH)
    size_bytes = _produce(application, connection, count)
    reports: list[CleanReport] = []
    if root.options:
        _set_latency(root, _LATENCY_MS)
    with application.between_rounds() as brokers:
        _forget_peak()
        before = _peak_mib()
        taken = seconds(lambda: reports.append(brokers[0].clean()))
        peak = _peak_mib() - before
        while (report := brokers[0].clean()).partitions:
            reports.append(report)
    if root.options:
        _set_latency(root, 0)
    retained = reports[-1].retained
    if len(reports) != 1 or retained > count // _RECORDS_PER_KEY:
        raise SparklogError(f"the log was not cleaned in one pass: {reports}")
    for what, unit, value in (
        ("time", "s", taken),
        ("records", "thousand/s", count / taken / 1e3),
        ("bytes", "MB/s", size_bytes / taken / 1e6),
        ("memory peak of the process", "MiB", peak),
    ):
        figures.add(f"{place}, {what}", way, unit, value)
    bench.say(
        f"  run {one + 1}: {place}, {way}: {count} records to {retained} in {taken:.1f} s, "
        f"{count / taken:,.0f} records/s, {size_bytes / taken / 1e6:.1f} MB/s, {peak:.0f} MiB more"
    )
    application.stop()
    application.run_until_idle()


def _produce(application: Application, connection: Connection, count: int) -> int:
    """Store records in batches; return the size of their files in bytes."""
    chance = random.Random(1)
    client = ProduceClient(connection, client_id="benchmark")
    state = connection.metadata().partition("c", 0)
    log = connection.leader_location(state).child("log")
    keys = [f"key-{number:08}".encode() for number in range(max(1, count // _RECORDS_PER_KEY))]
    now_ms = time.time_ns() // 1_000_000
    files, size_bytes = [], 0
    for _ in range(count // _RECORDS_OF_BATCH):
        # Hex digits compress about 2:1, as real values do.
        values = [
            chance.randbytes(_VALUE_BYTES // 2).hex().encode() for _ in range(_RECORDS_OF_BATCH)
        ]
        writer = BatchFileWriter(log, new_batch_path())
        writer.write(records_table(values, chance.choices(keys, k=_RECORDS_OF_BATCH), now_ms))
        files.append(RequestedBatch(state, writer.close()))
        size_bytes += files[-1].file.size_bytes
        if len(files) == _BATCHES_AT_ONCE:
            _store(application, client, files)
            files = []
    if files:
        _store(application, client, files)
    return size_bytes


def _store(application: Application, client: ProduceClient, files: list[RequestedBatch]) -> None:
    pending = client.send(files, "all", timeout_ms=600_000)
    while not pending.is_done:
        application.round()


def _set_latency(root: _Root, milliseconds: float) -> None:
    from benchmarks.s3_store import Store

    [options] = root.options.values()
    Store(int(options["AWS_ENDPOINT_URL"].rsplit(":", 1)[1])).set_latency(milliseconds)


def _forget_peak() -> None:
    """Let Linux measure the memory peak from now on."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak_mib() -> float:
    """Return the peak of this process's resident memory in MiB."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    [line] = [one for one in status.splitlines() if one.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


WORK = Work(
    "cleaning",
    "The log cleaner: a log of 20 records for each key",
    "One pass over a log of 2,000,000 records of 100 B with 100,000 keys, in 1,000 batches of one "
    "partition, by `Broker.clean`; in the driver, or as one Spark job on `local[2]`. The memory "
    "peak is that of the broker's Python process above its memory before the pass; the workers of "
    "the tasks are other processes.",
    run,
    is_by_hand=True,
)
