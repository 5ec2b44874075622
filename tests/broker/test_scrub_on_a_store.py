"""A scrub and a repair of a cluster on an S3 API: whole-file GETs, one for each batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from benchmarks.s3_store import Store, running_store
from sparklog import Admin, Producer
from sparklog.broker.application import Application
from sparklog.cluster.connection import Connection
from sparklog.config import ClusterConfig, parse
from sparklog.errors import DamagedError
from sparklog.maintenance.repair import repair
from sparklog.maintenance.scrub import scrub
from sparklog.maintenance.table_restoration import restore_cluster_root
from sparklog.model import (
    CLUSTER_TABLES,
    CONSUMER_GROUP_HEARTBEATS,
    FORMAT,
    PARTITION_STATE,
    STREAM_WRITES,
    TableSchema,
)
from sparklog.producer.stream_writes import MicroBatch, StreamWrites
from sparklog.storage.control_table import ControlTable
from sparklog.storage.control_table_damage import checkpoint_fault
from sparklog.storage.delta_checkpoints import write_checkpoint
from sparklog.storage.delta_log_check import check_log
from sparklog.storage.delta_log_files import (
    CHECKPOINT_HINT,
    LOG_FOLDER,
    commit_path,
    newest_checkpoint,
    newest_version,
)
from sparklog.storage.file_copies import FOLDER, await_copies, copy_path, remove_all_copies
from sparklog.storage.location import Location
from sparklog.storage.parquet import ParquetContent
from sparklog.storage.record_log import RecordLog
from sparklog.storage.vacuum import read_table_files

RECORDS = 12


class OnStore(NamedTuple):
    """A store, and the configuration of a cluster with three brokers there."""

    store: Store
    config: ClusterConfig

    def connect(self) -> Connection:
        return Connection("s3://scrubbed/cluster", storage_options=self.store.options())

    @property
    def root_of_cluster(self) -> Location:
        return Location.of("s3://scrubbed/cluster", self.store.options())

    def root(self, broker: int) -> Location:
        return Location.of(f"s3://scrubbed/broker-{broker}", self.store.options())


@pytest.fixture(scope="module")
def on_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnStore]:
    """Brokers that have replicated some batches, and are stopped."""
    with running_store(tmp_path_factory.mktemp("store") / "log") as store:
        store.bucket("scrubbed")
        values = {
            "cluster.root": "s3://scrubbed/cluster",
            "brokers": [
                {"broker.id": one, "log.dirs": [f"s3://scrubbed/broker-{one}"]} for one in range(3)
            ],
            "storage.options": store.options(),
            "log.merger.enable": False,
        }
        on_store = OnStore(store, parse(ClusterConfig, values, "the test's configuration"))
        application = Application(on_store.config)
        application.start()
        connection = on_store.connect()
        Admin(connection).create_topic("t", 1, 3, configs={"min.insync.replicas": "2"})
        with Producer(connection, batch_size=0) as producer:
            for number in range(RECORDS):
                sent = producer.send("t", b"%d" % number, partition=0)
                while not sent.done():
                    application.round()
        application.stop()
        application.run_until_idle()
        await_copies()
        yield on_store


def test_each_batch_is_one_request(on_store: OnStore) -> None:
    """A complete scrub reads each batch of each replica by one GET, and repairs nothing."""
    batches = {
        f"scrubbed/broker-{broker}/log/{batch.path}"
        for broker in range(3)
        for log in [RecordLog(on_store.root(broker))]
        for key in log.partitions()
        for batch in log.batches(key)
    }
    assert len(batches) >= 3
    connection = on_store.connect()
    with on_store.store.logged() as requests:
        done = scrub(connection)
    assert (done.is_complete, done.findings, done.unreadable) == (True, [], [])
    of_files = [one for one in requests if "/_inbox/" in one.key]
    assert {one.key.lstrip("/") for one in of_files} == batches
    assert len(of_files) == len(batches)


@pytest.mark.parametrize("kind", ["damaged_file", "missing_file", "foreign_file"])
def test_damage_is_found_and_restored(on_store: OnStore, kind: str) -> None:
    """An object with other bytes is replaced by those of another replica, under its name."""
    root = on_store.root(1)
    log = RecordLog(root)
    [key] = log.partitions()
    first, second = log.batches(key)[:2]
    content = log.location.read_bytes(first.path)
    if kind == "damaged_file":
        flipped = bytearray(content)
        flipped[len(flipped) // 2] ^= 0xFF
        log.location.replace(first.path, bytes(flipped))
    elif kind == "missing_file":
        log.location.remove(first.path)
    else:
        log.location.replace(first.path, log.location.read_bytes(second.path))
    [found] = scrub(on_store.connect()).findings
    assert (found.fault, found.broker_id, found.path) == (kind, 1, first.path)
    [repaired] = repair(on_store.connect())
    assert repaired.state == "repaired"
    assert log.location.read_bytes(first.path) == content
    assert scrub(on_store.connect()).findings == []


def test_a_commit_that_was_changed_is_found_on_a_store_too(on_store: OnStore) -> None:
    """Brokers verify commits of local folders only; a scrub verifies those of stores as well."""
    log = on_store.root(2).child("log")
    path = f"_delta_log/{RecordLog(on_store.root(2)).version:020}.json"
    content = log.read_bytes(path)
    log.replace(path, content[: len(content) // 2])
    [found] = scrub(on_store.connect()).findings
    assert (found.fault, found.path) == ("damaged_commit", path)
    # It was requested from its broker, which could not be started with that commit.
    [left] = repair(on_store.connect())
    assert left.state == "unrepairable"
    assert "an earlier version of the file" in left.outcome
    log.replace(path, content)
    assert scrub(on_store.connect()).findings == []


@pytest.mark.parametrize("table_name", ["topics", "partition_state"])
def test_a_newest_commit_that_is_gone_is_found_by_the_journals(
    on_store: OnStore, table_name: str
) -> None:
    """Without its newest commit a table is a sound one of the version before.

    Brokers refused to start with such a cluster root, but `sparklog scrub` found nothing, so that
    nobody named the file that had to be restored. The journals carry the version that was seen. The
    commit has no second copy here, as in a cluster of an earlier release.
    """
    table = on_store.root_of_cluster.child(table_name)
    path = f"_delta_log/{newest_version(table):020}.json"
    table.remove(copy_path(path))
    content = table.read_bytes(path)
    table.remove(path)
    [found] = scrub(on_store.connect()).findings
    assert (found.fault, found.table_name, found.path) == ("missing_commit", table_name, path)
    assert "has seen version" in found.detail
    [left] = repair(on_store.connect())
    assert left.state == "unrepairable"
    assert "an earlier version of the file" in left.outcome
    table.replace(path, content)
    assert scrub(on_store.connect()).findings == []


def test_a_checkpoint_that_only_arrow_reads_is_found(on_store: OnStore) -> None:
    """delta-rs refused a checkpoint with a flipped bit in its footer, which pyarrow could read.

    `sparklog scrub` then could not read the table, named no file and found nothing.
    """
    table = on_store.root_of_cluster.child("stream_writes")
    StreamWrites(on_store.connect()).begin(MicroBatch("query", 0, "a topic"), {})
    await_copies()
    version = newest_version(table)
    write_checkpoint(table)
    # As in a cluster of an earlier release.
    remove_all_copies(table)
    path = f"_delta_log/{version:020}.checkpoint.parquet"
    content = table.read_bytes(path)
    table.replace(path, _refused_by_delta_rs(content))
    with pytest.raises(DamagedError, match=rf"{path} is damaged: delta-rs cannot read it"):
        ControlTable(on_store.root_of_cluster, STREAM_WRITES)
    assert [(one.fault, one.path) for one in scrub(on_store.connect()).findings] == [
        ("damaged_checkpoint", path)
    ]
    # All commits are there, so another checkpoint is written.
    assert [one.state for one in repair(on_store.connect())] == ["repaired"]
    remove_all_copies(table)
    for number in range(version):
        table.remove(f"_delta_log/{number:020}.json")
    table.replace(path, _refused_by_delta_rs(content))
    assert {(one.fault, one.path) for one in scrub(on_store.connect()).findings} == {
        ("damaged_checkpoint", path),
        ("missing_commit", f"_delta_log/{0:020}.json"),
    }
    assert {one.state for one in repair(on_store.connect())} == {"unrepairable"}
    table.replace(path, content)
    assert scrub(on_store.connect()).findings == []


@pytest.mark.parametrize("other", ["the first commit", "the commit before"])
def test_a_commit_in_the_place_of_another_one_is_refused_at_opening(
    on_store: OnStore, other: str
) -> None:
    """Opening a table on a store did not verify its commits, since a store verifies its objects.

    With an older commit in the place of the newest one, brokers started with the rows of two
    versions of `partition_state`, and their ticks failed with a `ValueError`. The first commit is
    delta-rs's own and names no version, so that nothing found it in another place.
    """
    table = on_store.root_of_cluster.child("partition_state")
    version = newest_version(table)
    path = f"_delta_log/{version:020}.json"
    content = table.read_bytes(path)
    before = 0 if other == "the first commit" else version - 1
    table.replace(path, table.read_bytes(f"_delta_log/{before:020}.json"))
    with pytest.raises(DamagedError, match=f"{path} is damaged: it is another commit"):
        ControlTable(on_store.root_of_cluster, PARTITION_STATE)
    table.replace(path, content)
    ControlTable(on_store.root_of_cluster, PARTITION_STATE)


def test_a_checkpoint_of_another_table_is_found_by_the_commit_of_its_version(
    on_store: OnStore,
) -> None:
    """With another broker's checkpoint of the same columns a table had that broker's rows."""
    own, others = (on_store.root(one).child("log") for one in (0, 1))
    version = min(newest_version(one) for one in (own, others))
    path = f"_delta_log/{version:020}.checkpoint.parquet"
    for log in (own, others):
        DeltaTable(log.uri, version, log.store_options).create_checkpoint()
    own.replace(path, others.read_bytes(path))
    with pytest.raises(DamagedError, match=f"{path} is damaged: it is of the table with id"):
        RecordLog(on_store.root(0))
    assert ("damaged_checkpoint", path) in {(one.kind, one.path) for one in check_log(own).damaged}
    for log in (own, others):
        log.remove(path)
        log.remove(f"_delta_log/{CHECKPOINT_HINT}")
    assert check_log(own).damaged == []


def test_a_changed_schema_in_the_first_commit_is_found(on_store: OnStore) -> None:
    """The broker could not start, and a scrub found nothing: the commit is without a checksum."""
    log = on_store.root(2).child("log")
    path = f"_delta_log/{0:020}.json"
    content = log.read_bytes(path)
    log.replace(path, content.replace(b'"integer', b'"inteoer'))
    with pytest.raises(DamagedError, match=f"{path} is damaged: delta-rs cannot read it"):
        RecordLog(on_store.root(2))
    [found] = scrub(on_store.connect()).findings
    assert (found.fault, found.path) == ("damaged_commit", path)
    log.replace(path, content)
    assert scrub(on_store.connect()).findings == []


@pytest.mark.parametrize("schema", [FORMAT, *CLUSTER_TABLES], ids=lambda one: str(one.name))
def test_each_table_of_the_cluster_root_is_restored(on_store: OnStore, schema: TableSchema) -> None:
    """The newest commit and a live file are removed; one repair restores both.

    It needs no connection. `consumer_group_heartbeats` is without copies, and not used here.
    """
    root = on_store.root_of_cluster
    # Other tests have removed copies, which a repair writes again.
    assert restore_cluster_root(root) == []
    table = root.child(schema.name)
    newest = newest_version(table)
    paths = sorted(read_table_files(table).live)[:1]
    if newest > newest_checkpoint(table.names(LOG_FOLDER)):
        paths.append(commit_path(newest))
    contents = [table.read_bytes(path) for path in paths]
    if schema is CONSUMER_GROUP_HEARTBEATS:
        assert table.names(FOLDER) == []
        return
    table.remove_all(paths)
    assert {one.path for one in restore_cluster_root(root)} == set(paths)
    assert [table.read_bytes(path) for path in paths] == contents
    assert scrub(on_store.connect()).findings == []


def _refused_by_delta_rs(content: bytes) -> bytes:
    """Return a checkpoint with one changed bit that pyarrow reads, and delta-rs does not."""
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    for bit in range(footer * 8, len(content) * 8):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        with suppress(OSError, pa.ArrowException):
            ParquetContent(bytes(changed)).read()
            if checkpoint_fault({f"{0:020}.checkpoint.parquet": bytes(changed)}) is not None:
                return bytes(changed)
    raise AssertionError("no bit of the footer matters to delta-rs alone")
