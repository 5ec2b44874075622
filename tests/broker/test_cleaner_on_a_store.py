"""The log cleaner on an S3 API: the number of its requests, and the files that it replaces."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from benchmarks.s3_server import Logged
from benchmarks.s3_store import Store
from sparklog import Admin, Producer
from sparklog.broker.application import Application
from sparklog.broker.broker import Broker
from sparklog.cluster.connection import Connection
from sparklog.config import ClusterConfig, parse
from sparklog.maintenance.audit import audit
from sparklog.model import Batch, Record
from sparklog.storage.batch_files import read_records
from sparklog.storage.file_copies import await_copies
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
DAY_MS = 86_400_000


class OnStore:
    """A broker on a bucket of its own, with a compacted topic c and another topic."""

    def __init__(
        self, store: Store, bucket: str, spark: SparkSession | None = None, **config: Any
    ) -> None:
        store.bucket(bucket)
        self.store = store
        self.bucket = bucket
        self.options = store.options()
        values = {
            "cluster.root": f"s3://{bucket}/cluster",
            "brokers": [{"broker.id": 0, "log.dirs": [f"s3://{bucket}/broker-0"]}],
            "storage.options": self.options,
            "log.merger.enable": False,
            "log.cleaner.enable": False,
            "log.vacuum.enable": False,
            # A batch may be cleaned at once.
            "log.merger.min.lag.ms": 0,
            **config,
        }
        config_of = parse(ClusterConfig, values, "the test's configuration")
        self.application = Application(config_of, spark)
        self.application.start()
        self.connection = Connection(f"s3://{bucket}/cluster", storage_options=self.options)
        for topic, configs in (("c", COMPACT), ("t", {})):
            Admin(self.connection).create_topic(topic, 1, 1, configs=configs)

    @property
    def broker(self) -> Broker:
        with self.application.between_rounds() as brokers:
            return brokers[0]

    def write(self, topic: str, *records: tuple[bytes, bytes]) -> None:
        """Store each record in a batch of its own."""
        with Producer(self.connection, batch_size=0) as producer:
            for key, value in records:
                sent = producer.send(topic, value, key=key, partition=0)
                while not sent.done():
                    self.application.round()

    def batches(self) -> list[Batch]:
        key = self.connection.metadata().partition("c", 0).key
        return list(self.log.batches(key))

    @property
    def log(self) -> RecordLog:
        return RecordLog(Location.of(f"s3://{self.bucket}/broker-0", self.options))

    def records(self) -> list[Record]:
        return list(read_records(self.log.location, self.batches(), 0, 1 << 62))

    def end(self) -> None:
        self.application.stop()
        self.application.run_until_idle()


def of_files(requests: list[Logged]) -> Counter[tuple[str, str]]:
    """Return the number of requests for each batch file, by method."""
    return Counter((one.kind, one.key.lstrip("/")) for one in requests if "/_inbox/" in one.key)


def of_tables(requests: list[Logged]) -> Counter[tuple[str, str]]:
    """Return the number of requests to each table, by method, without those of heartbeats.

    On a slow machine one may be due: it polls the lease, and is a commit of the journal.
    """
    others = (one for one in requests if "/_inbox/" not in one.key)
    found = Counter((one.kind, one.key.lstrip("/").split("/")[2]) for one in others)
    heartbeats = found.pop(("GET", "controller"), 0)
    found[("PUT", "log")] -= heartbeats
    return +found


def numbered(count: int, first: int = 0) -> list[tuple[bytes, bytes]]:
    return [(b"k%d" % (n % 3), b"%d" % n) for n in range(first, first + count)]


def test_the_requests_of_a_cleaned_log(store: Store) -> None:
    """A dirty batch is read twice, a clean one once; a cleaner without work makes no request."""
    on = OnStore(store, "cleaned")
    on.write("t", *numbered(2))
    on.write("c", *numbered(8))
    dirty = [f"cleaned/broker-0/log/{batch.path}" for batch in on.batches()]
    await_copies()
    with store.logged() as requests:
        report = on.broker.clean()
        await_copies()
    assert (report.partitions, report.records, report.retained) == (1, 8, 3)
    [clean] = [f"cleaned/broker-0/log/{batch.path}" for batch in on.batches()]
    expected = Counter({("GET", path): 2 for path in dirty}) + Counter({("PUT", clean): 1})
    assert of_files(requests) == expected
    # Both tables are opened, and cleaner_offset_checkpoint is created; its rows are a file and a
    # commit, as those of producer_state are. Each of these files has a copy; the files of rows are
    # read for it.
    opened = {("LIST", table): 1 for table in ("cleaner_offset_checkpoint", "stream_writes")}
    opened |= {("GET", "cleaner_offset_checkpoint"): 4, ("GET", "stream_writes"): 3}
    opened |= {("GET", "producer_state"): 1}
    put = {("PUT", "log"): 1, ("PUT", "producer_state"): 4, ("PUT", "cleaner_offset_checkpoint"): 6}
    assert of_tables(requests) == Counter(opened | put)
    with store.logged() as requests:
        assert on.broker.clean().partitions == 0
        on.application.round()
        assert on.broker.clean().partitions == 0
    assert [one for one in requests if "stream_writes" in one.key or "cleaner" in one.key] == []

    on.write("c", (b"k0", b"new"))
    [_, added] = [f"cleaned/broker-0/log/{batch.path}" for batch in on.batches()]
    with store.logged() as requests:
        assert on.broker.clean().partitions == 1
        await_copies()
    [clean_again] = [f"cleaned/broker-0/log/{batch.path}" for batch in on.batches()]
    assert of_files(requests) == Counter(
        {("GET", clean): 1, ("GET", added): 2, ("PUT", clean_again): 1}
    )
    # The file and the commit with their copies. The copy of the file before is removed.
    put[("PUT", "cleaner_offset_checkpoint")] = 4
    rewritten = ("cleaner_offset_checkpoint", "producer_state")
    copied = {(method, table): 1 for method in ("GET", "DELETE") for table in rewritten}
    assert of_tables(requests) == Counter(put | copied | {("GET", "stream_writes"): 1})
    on.application.round()
    with store.logged() as requests:
        assert on.broker.clean().partitions == 0
    assert requests == []

    found = [(one.offset, one.key, one.value) for one in on.records()]
    assert found == [(5, b"k2", b"5"), (7, b"k1", b"7"), (8, b"k0", b"new")]
    on.broker.vacuum(after_ms=DAY_MS)
    bucket = Location.of("s3://cleaned", on.options)
    paths = (path.removeprefix("cleaned/") for path in (*dirty, clean, added, clean_again))
    assert [path for path in paths if bucket.exists(path)] == [clean_again.removeprefix("cleaned/")]
    assert audit(on.connection) == []
    on.end()


def test_the_requests_of_a_log_that_is_cleaned_in_tasks(store: Store, spark: SparkSession) -> None:
    """A batch is read twice, whatever part it is of, and once if it stays as it is."""
    config = {"execution": "spark", "execution.spark.bytes.per.task": 1}
    on = OnStore(store, "in-tasks", spark, **config, **{"log.merger.max.batch.bytes": 1})
    on.write("c", *numbered(6))
    before = [f"in-tasks/broker-0/log/{batch.path}" for batch in on.batches()]
    with store.logged() as requests:
        report = on.broker.clean()
    assert (report.partitions, report.records, report.retained) == (1, 3, 0)
    after = [f"in-tasks/broker-0/log/{batch.path}" for batch in on.batches()]
    assert after[3:] == before[3:]
    read = Counter({("GET", path): 1 for path in before})
    written = Counter({("PUT", path): 1 for path in after[:3]})
    assert of_files(requests) == read + written
    on.end()
