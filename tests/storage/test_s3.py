"""The same contract over an S3 API: moto's server, accessed like any store."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest
from deltalake.transaction import AddAction

from benchmarks.s3_store import await_port
from sparklog import clock
from sparklog.cluster.root_format import check_empty
from sparklog.cluster.roots import BrokerRoot, ClusterRoot
from sparklog.errors import CommitConflictError, FencedError, StorageError
from sparklog.model import (
    BROKER_TABLES,
    CLUSTER_TABLES,
    CONTROLLER,
    LOG,
    PARTITION_STATE,
    PRODUCE_REQUESTS,
    Batch,
    new_batch_path,
)
from sparklog.storage import delta_log, shard_rewrites
from sparklog.storage.batch_files import (
    BatchFileWriter,
    file_checksum,
    file_fault,
    files_faults,
    read_records,
    records_table,
    rewrite_slice,
)
from sparklog.storage.batch_merging import Merge
from sparklog.storage.commits import AddedFile
from sparklog.storage.control_table import ControlTable, create_table
from sparklog.storage.control_table_damage import set_aside
from sparklog.storage.copying import Copied, Copy, copy_files
from sparklog.storage.delta_log import DeltaLog
from sparklog.storage.delta_log_files import commit_path, newest_after
from sparklog.storage.delta_snapshots import open_delta_table, table_identity
from sparklog.storage.execution import BatchSlice, SparkExecution
from sparklog.storage.file_copies import await_copies
from sparklog.storage.location import Location, StorageOptions
from sparklog.storage.object_store import ObjectStore
from sparklog.storage.record_log import RecordLog
from sparklog.storage.request_appends import RequestAppends
from sparklog.storage.request_files import read_requests, request_file
from sparklog.storage.request_table import RequestTable
from sparklog.storage.shard_rewrites import RowChanges
from sparklog.storage.sharded_table import ShardedTable
from tests.jobs.processes import wait_for
from tests.storage.batches import FENCE, P0, batch_of_file, write_file
from tests.storage.broker_roots import taken_over
from tests.storage.losing_proxy import LosingProxy, Way, losing_proxy
from tests.storage.requests import ALL, appending, ids_in, request, row_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.skipif(
    find_spec("moto") is None or find_spec("flask_cors") is None,
    reason="moto's server is not installed: it plays S3",
)


class Store:
    """A running S3 API: a process of its own, because a server within this one would be starved."""

    def __init__(self, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._count = 0
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
                stdout=output,
                stderr=output,
            )
        await_port(port, self._process, log)

    def bucket(self) -> str:
        """Create a new bucket; return its URI."""
        self._count += 1
        name = f"bucket-{self._count}"
        urlopen(Request(f"{self.url}/{name}", method="PUT")).close()
        return f"s3://{name}"

    def options(self, url: str | None = None) -> StorageOptions:
        """Return the options of the store, with delta-rs's keys."""
        return {
            "s3://": {
                "AWS_ENDPOINT_URL": url or self.url,
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "an-id",
                "AWS_SECRET_ACCESS_KEY": "a-secret",
                "max_retries": "0",
            }
        }

    def suspend(self) -> None:
        """Let requests wait for their answers until `resume`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Answer the requests again."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    running = Store(tmp_path_factory.mktemp("moto") / "log")
    yield running
    running.close()


@pytest.fixture
def at(store: Store) -> Callable[[str], Location]:
    """Return locations in a bucket of the test's own."""
    bucket = store.bucket()
    return lambda path: Location.of(f"{bucket}/{path}", store.options())


At = Callable[[str], Location]


def names(location: Location, folder: str = "") -> list[str]:
    """Return the paths of all objects below a location."""
    found = []
    for name in location.names(folder):
        path = f"{folder}/{name}".lstrip("/")
        found += names(location, path) or [path]
    return sorted(found)


def lease(sequence: int) -> object:
    row = {"broker_id": 0, "controller_epoch": 1, "lease_sequence": sequence}
    return CONTROLLER.rows([row])


def noted(name: str, calls: list[str]) -> Callable[..., object]:
    """Return a method of `ObjectStore` that adds its name to `calls`."""
    original = getattr(ObjectStore, name)

    def call(of: ObjectStore, *arguments: object) -> object:
        calls.append(name)
        return original(of, *arguments)

    return call


class TestRoots:
    def test_both_kinds_are_created_once(self, at: At) -> None:
        """Creating an existing cluster root or broker root changes nothing."""
        cluster = ClusterRoot.create(at("a cluster"))
        BrokerRoot.create(at("broker-0"), cluster.cluster_id, 0)
        await_copies()
        before = names(at("a cluster")), names(at("broker-0"))
        assert ClusterRoot.create(at("a cluster")).cluster_id == cluster.cluster_id
        BrokerRoot.create(at("broker-0"), cluster.cluster_id, 0)
        assert (names(at("a cluster")), names(at("broker-0"))) == before
        versions = {table_identity(at("a cluster").child(one.name))[1] for one in CLUSTER_TABLES}
        assert versions == {0}

        # A creation that was interrupted is completed.
        for folder in ("_delta_log", "_second_copies"):
            at("a cluster").remove(f"format/{folder}/{1:020}.json")
        at("a cluster").remove(f"topics/_delta_log/{0:020}.json")
        again = ClusterRoot.create(at("a cluster"))
        await_copies()
        assert again.cluster_id != cluster.cluster_id
        assert names(at("a cluster").child("topics")) == [
            name.removeprefix("topics/") for name in before[0] if name.startswith("topics/")
        ]

    def test_a_table_is_created_by_one_conditional_put(
        self, at: At, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After a listing. Where another process is faster, its table stays."""
        calls: list[str] = []
        with monkeypatch.context() as patch:
            for name in ("get", "size_bytes", "put", "put_new", "names", "pages", "remove"):
                patch.setattr(ObjectStore, name, noted(name, calls))
            create_table(at("cluster"), CONTROLLER)
        assert calls == ["names", "put_new"]
        first = at("cluster").child(CONTROLLER.name).read_bytes(commit_path(0))
        monkeypatch.setattr(ObjectStore, "names", lambda *_: [])
        create_table(at("cluster"), CONTROLLER)
        assert at("cluster").child(CONTROLLER.name).read_bytes(commit_path(0)) == first
        table = ControlTable(at("cluster"), CONTROLLER)
        delta = open_delta_table(table.location)
        assert delta.metadata().configuration == CONTROLLER.properties
        table.compare_and_set(lease(1))
        assert open_delta_table(table.location).version() == 1

    def test_a_broker_root_is_fenced(self, at: At) -> None:
        """A broker root refuses another role, another broker and an older process."""
        BrokerRoot.create(at("broker-0"), "a-cluster", 0)
        with pytest.raises(StorageError, match="is a broker root: name the cluster root"):
            ClusterRoot.create(at("broker-0"))
        with pytest.raises(StorageError, match="belongs to broker 0 of cluster a-cluster"):
            BrokerRoot.create(at("broker-0"), "a-cluster", 8)
        opened = taken_over(at("broker-0"), 1)
        # All tables except the requests, to which clients write, and the log, whose fence is not
        # counted.
        assert opened.commits() == len(BROKER_TABLES) - 5
        newer = taken_over(at("broker-0"), 2)
        with pytest.raises(FencedError):
            opened.log.commit([])
        newer.log.commit([])

    def test_what_is_foreign_is_refused_and_left_alone(self, at: At) -> None:
        """A folder with foreign files is refused as a root and not changed."""
        with at("foreign").create("letter.txt") as file:
            file.write(b"Dear")
        for create in (ClusterRoot.create, check_empty):
            with pytest.raises(StorageError, match=r"s3://.*/foreign .* holds 'letter\.txt'"):
                create(at("foreign"))
        assert names(at("foreign")) == ["letter.txt"]

    def test_what_is_not_there_is_not_made_by_opening_it(self, at: At) -> None:
        """Opening a missing root or table raises `StorageError` and creates nothing."""
        with pytest.raises(StorageError, match="there is no cluster root at s3://"):
            ClusterRoot(at("nothing"))
        with pytest.raises(StorageError, match="there is no table at s3://"):
            ControlTable(at("nothing"), CONTROLLER)
        assert names(at("nothing")) == []

    def test_a_store_that_does_not_answer_is_not_taken_for_an_empty_one(self, store: Store) -> None:
        """An unreachable store raises `StorageError`, and is not treated as empty."""
        nowhere = Location.of("s3://no-such-bucket/x", store.options())
        silent = Location.of("s3://bucket/x", store.options("http://127.0.0.1:9"))
        for root in (nowhere, silent):
            for act in (ClusterRoot.create, ClusterRoot, check_empty):
                with pytest.raises(StorageError, match="/x cannot be reached: check") as refused:
                    act(root)
                assert "\n" not in str(refused.value)
                assert "a-secret" not in str(refused.value)


class TestControlTables:
    def test_the_second_of_two_compare_and_sets_is_refused(self, at: At) -> None:
        """The second of two compare-and-sets of one version is refused."""
        create_table(at("cluster"), CONTROLLER)
        first, second = (ControlTable(at("cluster"), CONTROLLER) for _ in range(2))
        first.compare_and_set(lease(1))
        with pytest.raises(CommitConflictError, match="moved past version 0"):
            second.compare_and_set(lease(2))
        assert ControlTable(at("cluster"), CONTROLLER).rows().equals(lease(1))
        second.refresh()
        second.compare_and_set(lease(2))
        assert first.refresh()
        assert first.rows().equals(lease(2))
        assert first.rows_at(1).equals(lease(1))

    def test_a_change_of_one_row_is_two_puts_and_read_by_three_gets(
        self, at: At, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The file and the commit are written with PUT. The commit, the file and the next commit,
        which does not exist, are read. Nothing is listed.
        """
        # Copies are requests beside these.
        monkeypatch.setattr(delta_log, "beside", lambda *_: None)
        monkeypatch.setattr(shard_rewrites, "ROWS_PER_FILE", 4)
        root = at("cluster")
        create_table(root, PARTITION_STATE)
        writer = ShardedTable(root, PARTITION_STATE)
        rows = [{"topic_id": "t", "partition": n, "broker_id": 0} for n in range(40)]
        writer.compare_and_set(PARTITION_STATE.rows(rows))
        reader = ShardedTable(root, PARTITION_STATE)
        assert len(reader.sharded_rows().shards) == 10
        requests: list[str] = []
        for name in ("get", "size_bytes", "put", "put_new", "names", "pages"):
            monkeypatch.setattr(ObjectStore, name, noted(name, requests))
        change = RowChanges(PARTITION_STATE.rows([rows[7] | {"leader": 1}]))
        writer.change_rows(lambda _: change, [("t", 7)])
        # The first GET finds no newer commit.
        assert requests == ["get", "put_new", "put_new"]
        requests.clear()
        assert reader.refresh()
        assert reader.rows_of([("t", 7)])["leader"].to_pylist() == [1]
        assert requests == ["get", "get", "get"]

    def test_a_change_that_lost_a_race_asks_for_the_newer_commits_in_parallel(
        self, at: At, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Others commit in each round trip: an election of 5,000 partitions during 10 commits per
        second landed after 21 s. A file that is not used is removed after the commit.
        """
        # Copies are requests beside these.
        monkeypatch.setattr(delta_log, "beside", lambda *_: None)
        monkeypatch.setattr(shard_rewrites, "ROWS_PER_FILE", 4)
        root = at("cluster")
        create_table(root, PARTITION_STATE)
        writer, other = (ShardedTable(root, PARTITION_STATE) for _ in range(2))
        rows = [{"topic_id": "t", "partition": n, "broker_id": 0} for n in range(40)]
        writer.compare_and_set(PARTITION_STATE.rows(rows))
        other.sharded_rows()
        requests: list[str] = []

        def to(number: int, leader: int) -> Callable[[pa.Table], RowChanges]:
            changed = PARTITION_STATE.rows([rows[number] | {"leader": leader}])
            return lambda _: RowChanges(changed)

        def decide(found: pa.Table) -> RowChanges:
            for leader in (1, 2):
                other.change_rows(to(6, leader), [("t", 6)])
            for name in ("get", "put", "put_new", "remove"):
                patch.setattr(ObjectStore, name, noted(name, requests))
            return to(7, 3)(found)

        with monkeypatch.context() as patch:
            writer.change_rows(decide, [("t", 7)])
        # The file, the commit, which is refused, and a GET of the winning commit; the commits after
        # the loaded one and the file of the newest; the file and the commit again.
        first, second = requests[:3], requests[3:6]
        assert first == ["put_new", "put_new", "get"]
        assert second == ["get", "get", "get"]
        assert requests[6:] == ["get", "put_new", "put_new", "remove"]
        other.refresh()
        leaders = other.rows_of([("t", 6), ("t", 7)])["leader"].to_pylist()
        assert sorted(leaders) == [2, 3]


class TestRequests:
    def test_requests_are_appended_read_and_removed(self, at: At) -> None:
        """Requests are appended, read and removed by several handles."""
        appends, other = appending(at("broker")), RequestAppends(at("broker"))
        owner = RequestTable(at("broker"))
        requests = [request(one) for one in "abc"]
        for one, by in zip(requests, (appends, other, appends), strict=True):
            by.append([one])
        owner.refresh()
        assert list(owner.requests_after(ALL).values()) == requests
        assert RequestTable(at("broker")).requests_after(ALL) == owner.requests_after(ALL)
        owner.remove(list(owner.requests_after(ALL))[:2])
        assert ids_in(owner) == ids_in(RequestTable(at("broker"))) == ["c"]
        assert read_requests(at("broker")).to_pylist() == [row_of(one) for one in requests[2:]]
        other.append([request("d")])
        owner.refresh()
        assert ids_in(owner) == ["c", "d"]

    def test_an_append_is_one_put(self, at: At, monkeypatch: pytest.MonkeyPatch) -> None:
        """A commit of another producer in between costs a refusal, a GET of it, and HEADs of the
        next.
        """
        appends, other = appending(at("broker")), RequestAppends(at("broker"))
        calls: list[str] = []
        for name in ("get", "size_bytes", "put", "put_new", "names", "pages"):
            monkeypatch.setattr(ObjectStore, name, noted(name, calls))
        appends.append([request("a")])
        assert calls == ["put_new"]
        with monkeypatch.context() as patch:
            patch.undo()
            for one in "bcd":
                other.append([request(one)])
        calls.clear()
        appends.append([request("e")])
        assert Counter(calls) == {"put_new": 2, "get": 1, "size_bytes": 8}
        assert ids_in(RequestTable(at("broker"))) == list("abcde")

    def test_a_table_that_was_recreated_is_appended_to_after_a_minute(
        self, at: At, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A log that was not polled for 60 s detects the clean-up and recreation of its table."""
        appends = appending(at("broker"))
        for one in "ab":
            appends.append([request(one)])
        set_aside(at("broker").child(PRODUCE_REQUESTS.name))
        appending(at("broker"))
        system, monotonic = time.time(), time.monotonic()
        monkeypatch.setattr(clock, "clocks", lambda: (system + 61, monotonic))
        appends.append([request("c")])
        owner = RequestTable(at("broker"))
        assert (ids_in(owner), owner.version) == (["c"], 1)
        assert not owner.location.exists(commit_path(3))

    def test_a_table_that_was_recreated_is_appended_to_after_five_seconds(self, at: At) -> None:
        """An active producer checks its table in parallel with a commit; a commit after a gap is
        removed.
        """
        appends = appending(at("broker"))
        for one in "ab":
            appends.append([request(one)])
        set_aside(at("broker").child(PRODUCE_REQUESTS.name))
        appending(at("broker"))
        appends._tables[0]._checked_at -= 5
        appends.append([request("c")])
        owner = RequestTable(at("broker"))
        assert (ids_in(owner), owner.version) == (["c"], 1)
        assert not owner.location.exists(commit_path(3))

    def test_the_newest_version_is_found_by_few_rounds_of_questions(
        self, at: At, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Eight HEADs per round, in parallel; no commit is read, and nothing is listed."""
        create_table(at("broker"), PRODUCE_REQUESTS)
        table = at("broker").child(PRODUCE_REQUESTS.name)
        log = DeltaLog(table)
        calls: list[str] = []
        rounds = {0: 1, 1: 1, 7: 1, 8: 3, 17: 3, 300: 5}
        there = 0
        for ahead, most in rounds.items():
            with ThreadPoolExecutor(8) as pool:
                new = range(there + 1, ahead + 1)
                list(pool.map(lambda one: table.put_new(commit_path(one), b"unread"), new))
            there = ahead
            with monkeypatch.context() as patch:
                for name in ("get", "size_bytes", "names", "pages"):
                    patch.setattr(ObjectStore, name, noted(name, calls))
                log.version = 0
                log.skip()
            assert (log.version, log.is_lost) == (ahead, False)
            assert set(calls) == {"size_bytes"}
            assert len(calls) <= 8 * most
            calls.clear()
        for likely, most in {300: 1, 298: 1, 304: 1, 297: 2, 280: 4, 400: 6}.items():
            with monkeypatch.context() as patch:
                patch.setattr(ObjectStore, "size_bytes", noted("size_bytes", calls))
                assert newest_after(table, 0, likely) == 300
            assert len(calls) <= 8 * most
            calls.clear()

    def test_a_clients_append_is_left_as_it_is_and_a_damaged_one_is_mended(self, at: At) -> None:
        """delta-rs writes the unset fields of an action as null."""
        BrokerRoot.create(at("broker"), "a-cluster", 0)
        owner = RequestTable(at("broker"))
        sent = request("a")
        add_by_delta_rs(owner.location, request_file(sent, 1))
        commit = commit_path(1)
        written = owner.location.read_bytes(commit)
        assert b'"tags":null' in written
        owner.refresh()
        assert owner.location.read_bytes(commit) == written
        assert list(owner.requests_after(ALL).values()) == [sent]
        owner.location.overwrite_object(commit, written + b"\nnonsense")
        again = RequestTable(at("broker"))
        assert again.requests_after(ALL) == owner.requests_after(ALL)
        assert b"nonsense" not in owner.location.read_bytes(commit)


def add_by_delta_rs(table: Location, file: AddedFile) -> None:
    """Commit a file as any engine may."""
    delta = open_delta_table(table)
    add = AddAction(
        file.path,
        file.size_bytes,
        dict(file.partition_values),
        file.modified_at_ms,
        True,
        json.dumps(file.statistics),
    )
    partition_by = delta.metadata().partition_columns
    delta.create_write_transaction([add], "append", delta.schema(), partition_by)


class TestBatches:
    def test_a_file_is_written_once_and_checked(self, at: At) -> None:
        """A file is written once, and each wrong statement of a request about it is a fault."""
        log = at("broker").child(LOG.name)
        file = write_file(log, [b"a", None], [None, b"k"])
        assert file_fault(log, file) is None
        assert file_checksum(log, file.path) == file.checksum
        other = BatchFileWriter(log, file.path)
        other.write(records_table([b"other"], None, 0))
        with pytest.raises(FileExistsError):
            other.close()
        assert file_fault(log, file) is None
        lies = [
            file,
            file._replace(path=new_batch_path()),
            file._replace(path="_inbox/../secret.parquet"),
            file._replace(size_bytes=file.size_bytes + 1),
            file._replace(checksum="0" * 16),
            file._replace(record_count=1),
        ]
        assert files_faults(log, lies) == [
            None,
            "there is no such file",
            "its path is not one of the inbox",
            f"it has {file.size_bytes} bytes, not {file.size_bytes + 1}",
            "its bytes do not match the checksum",
            "it holds 2 records, not 1",
        ]

    def test_files_are_copied_between_stores_and_folders(self, at: At, root: Location) -> None:
        """Files of any size are copied between stores and local folders."""
        remote, other, local = at("a").child(LOG.name), at("b").child(LOG.name), root.child("log")
        for size in (0, 100, 9 << 20):
            file = write_file(local, [os.urandom(size)])
            path = file.path
            for source, target in ((local, remote), (remote, other), (other, local)):
                copy = Copy(source, path, target, new_batch_path(), file.size_bytes, file.checksum)
                assert copy_files([copy]) == [Copied(copy.target_path, None)]
                assert file_fault(target, file._replace(path=copy.target_path)) is None
                path = copy.target_path
            assert local.read_bytes(path) == local.read_bytes(file.path)

    def test_a_damaged_or_missing_source_is_reported(self, at: At) -> None:
        """A damaged or missing source is reported, and the other files are copied."""
        remote, other = at("a").child(LOG.name), at("b").child(LOG.name)
        good, damaged = write_file(remote, [b"v"]), write_file(remote, [b"w"])
        remote.overwrite_object(damaged.path, b"damaged")
        missing = new_batch_path()
        copied = copy_files(
            [
                Copy(remote, path, other, new_batch_path(), good.size_bytes, good.checksum)
                for path in (damaged.path, missing, good.path)
            ]
        )
        found = [one.fault for one in copied]
        assert found[0] == f"{remote.uri}/{damaged.path} does not have its checksum {good.checksum}"
        assert found[1] is not None
        assert found[1].startswith(f"{remote.uri}/{missing} was not copied: ")
        assert found[2] is None
        with pytest.raises(StorageError, match="is damaged"):
            rewrite_slice(remote, batch_of_file(damaged), 0, 1, other)

    def test_spark_tasks_work_with_the_stores_options(
        self, at: At, root: Location, spark: SparkSession
    ) -> None:
        """Spark's tasks check, copy, cut and merge files with the store's options."""
        remote, other, local = at("a").child(LOG.name), at("b").child(LOG.name), root.child("log")
        execution = SparkExecution(spark, 0, 1 << 20)
        files = [write_file(where, [b"v", b"w"]) for where in (local, remote)]
        copies = [
            Copy(where, file.path, other, new_batch_path(), 2 << 20, file.checksum)
            for where, file in zip((local, remote), files, strict=True)
        ]
        for copied, file in zip(execution.copy(copies), files, strict=True):
            assert copied.fault is None
            assert file_checksum(other, copied.path) == file.checksum
        assert execution.check(remote, [files[1]]) == [None]
        batch = batch_of_file(files[1])
        [part] = execution.cut([BatchSlice(remote, batch, 1, 2, other)])
        assert isinstance(part, Batch)
        assert [record.value for record in read_records(other, [part], 0, 9)] == [b"w"]
        [merged] = execution.merge([Merge(remote, (batch,), new_batch_path())])
        assert isinstance(merged, Batch)
        assert merged.record_count == 2

    def test_a_log_is_committed_to_and_followed(self, at: At) -> None:
        """A log can be committed to, followed, and read at an earlier version."""
        create_table(at("broker"), LOG)
        log, reader = RecordLog(at("broker"), FENCE), RecordLog(at("broker"))
        first = batch_of_file(write_file(log.location, [b"a", b"b", b"c"]))
        second = batch_of_file(write_file(log.location, [b"d"]), 3)
        log.commit([first])
        log.commit([second])
        reader.refresh()
        assert (reader.version, list(reader.batches(P0))) == (log.version, [first, second])

        cut = rewrite_slice(log.location, first, 0, 2, log.location)
        log.commit([cut], [first, second])
        reader.refresh()
        for one in (reader, RecordLog(at("broker"))):
            assert list(one.batches(P0)) == [cut]
            found = list(read_records(one.location, one.batches(P0), 0, 9))
            assert [(record.offset, record.value) for record in found] == [(0, b"a"), (1, b"b")]
        reader.refresh(log.version - 1)
        assert list(reader.batches(P0)) == [first, second]
        with pytest.raises(StorageError, match="no version 99"):
            reader.refresh(99)

    def test_a_second_writer_of_a_log_is_refused(self, at: At) -> None:
        """A second writer of a log with an older version is refused."""
        create_table(at("broker"), LOG)
        log, same = RecordLog(at("broker"), FENCE), RecordLog(at("broker"), FENCE)
        file = write_file(log.location, [b"a"])
        same.commit([batch_of_file(file)])
        with pytest.raises(CommitConflictError, match="log moved: another writer has committed"):
            log.commit([batch_of_file(write_file(log.location, [b"b"]))])
        assert list(RecordLog(at("broker")).batches(P0)) == list(log.batches(P0))
        assert list(log.batches(P0)) == [batch_of_file(file)]
        protocol = open_delta_table(log.location).protocol()
        assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)


def test_a_writer_that_did_not_poll_for_a_minute_commits_into_no_removed_version(
    at: At, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was suspended until the commits after its version were cleaned up."""
    root = at("broker")
    create_table(root, CONTROLLER)
    suspended, other = ControlTable(root, CONTROLLER), ControlTable(root, CONTROLLER)
    other.compare_and_set(lease(1))
    other.compare_and_set(lease(2))
    open_delta_table(other.location).create_checkpoint()
    for version in (0, 1):
        other.location.remove(f"_delta_log/{version:020}.json")
    system, monotonic = time.time(), time.monotonic()
    monkeypatch.setattr(clock, "clocks", lambda: (system + 61, monotonic))
    with pytest.raises(CommitConflictError):
        suspended.compare_and_set(lease(7))
    assert not other.location.exists(f"_delta_log/{1:020}.json")
    suspended.refresh()
    assert suspended.rows().equals(lease(2))


@pytest.fixture(params=["0", "3"], ids=["no retries", "retries"])
def losing(store: Store, request: pytest.FixtureRequest) -> Iterator[tuple[LosingProxy, Location]]:
    """A proxy before the store, and a root behind it; with retries a lost answer becomes a 412."""
    with losing_proxy(store.url) as proxy:
        options = {"s3://": {**store.options(proxy.url)["s3://"], "max_retries": request.param}}
        yield proxy, Location.of(f"{store.bucket()}/root", options)


def test_a_small_request_that_is_never_answered_is_given_up_within_a_session(
    losing: tuple[LosingProxy, Location],
) -> None:
    """The client's 30 s cost a broker its session of 9 s; the commit has landed and is found."""
    proxy, root = losing
    create_table(root, CONTROLLER)
    table = ControlTable(root, CONTROLLER)
    proxy.lose_next("hang")
    table.compare_and_set(lease(1))
    assert (proxy.lost, proxy.given_up, table.version) == (1, 1, 1)
    assert ControlTable(root, CONTROLLER).rows().equals(lease(1))


def test_a_file_of_which_the_upload_had_no_answer_stays(
    losing: tuple[LosingProxy, Location],
) -> None:
    """The request that is sent beside the upload names it, and its leader may have appended it: the
    producer removed the file of an acknowledged batch from its leader's log.
    """
    proxy, root = losing
    writer = BatchFileWriter(root, new_batch_path())
    writer.write(records_table([b"a record"], None, 1))
    file = writer.finish()
    proxy.lose_next("hang", "_inbox")
    with suppress(OSError):
        writer.upload()
    wait_for(lambda: proxy.given_up == 1, "closed connection")
    assert root.exists(file.path)


@pytest.mark.parametrize(
    "read",
    [Location.read_bytes, lambda root, path: root.open_with_size(path)[0].read()],
    ids=["whole", "in pieces"],
)
def test_a_read_of_any_size_that_is_never_answered_is_given_up_within_a_session(
    losing: tuple[LosingProxy, Location], read: Callable[[Location, str], bytes]
) -> None:
    """A follower that copies a batch, and a client that loads a table, waited for the client's 30 s
    as well.
    """
    proxy, root = losing
    content = bytes(2 << 20)
    with root.create("large/file") as file:
        file.write(content)
    proxy.lose_next("hang", "large", "GET")
    # Without retries the read fails, and is repeated by whatever needs it.
    with suppress(OSError):
        assert read(root, "large/file") == content
    wait_for(lambda: proxy.given_up == 1, "closed connection")
    assert root.read_bytes("large/file") == content


@pytest.mark.parametrize("way", ["500", "reset"])
class TestLostAnswers:
    """A conditional PUT is executed, and its answer is lost: the commit is read back."""

    def test_a_compare_and_set_lands_once(
        self, losing: tuple[LosingProxy, Location], way: Way
    ) -> None:
        """A compare-and-set whose answer was lost lands once."""
        proxy, root = losing
        create_table(root, CONTROLLER)
        table = ControlTable(root, CONTROLLER)
        proxy.lose_next(way)
        table.compare_and_set(lease(1))
        assert (proxy.lost, table.version) == (1, 1)
        assert ControlTable(root, CONTROLLER).rows().equals(lease(1))

    def test_a_change_of_rows_lands_once(
        self, losing: tuple[LosingProxy, Location], way: Way
    ) -> None:
        """A change of rows whose answer was lost lands once."""
        proxy, root = losing
        create_table(root, PARTITION_STATE)
        table = ShardedTable(root, PARTITION_STATE)
        rows = PARTITION_STATE.rows([{"topic_id": "t", "partition": 0, "broker_id": 0}])
        proxy.lose_next(way)
        table.change_rows(lambda _: RowChanges(rows), [("t", 0)])
        assert (proxy.lost, table.version, table.commits) == (1, 1, 1)
        assert ShardedTable(root, PARTITION_STATE).rows().equals(rows)

    def test_an_append_lands_once(self, losing: tuple[LosingProxy, Location], way: Way) -> None:
        """An append whose answer was lost lands once."""
        proxy, root = losing
        appends = appending(root)
        proxy.lose_next(way)
        appends.append([request("a")])
        assert proxy.lost == 1
        appends.append([request("b")])
        assert ids_in(RequestTable(root)) == ["a", "b"]

    def test_a_removal_lands_once(self, losing: tuple[LosingProxy, Location], way: Way) -> None:
        """A removal whose answer was lost lands once."""
        proxy, root = losing
        appending(root).append([request("a")])
        owner = RequestTable(root)
        proxy.lose_next(way)
        owner.remove(owner.requests_after(ALL).keys())
        assert (proxy.lost, owner.version, owner.commits) == (1, 2, 1)
        assert ids_in(RequestTable(root)) == []

    def test_a_commit_to_a_log_is_not_taken_for_somebody_elses(
        self, losing: tuple[LosingProxy, Location], way: Way
    ) -> None:
        """A log's commit whose answer was lost is not taken for another process's commit."""
        proxy, root = losing
        create_table(root, LOG)
        log = RecordLog(root, FENCE)
        first, second = (batch_of_file(write_file(log.location, [b"a"]), at) for at in (0, 1))
        proxy.lose_next(way)
        log.commit([first])
        assert proxy.lost == 1
        log.commit([second])
        assert list(log.batches(P0)) == list(RecordLog(root).batches(P0)) == [first, second]
        assert not log.pop_moved()

    def test_a_file_that_is_put_twice_is_there_once(
        self, losing: tuple[LosingProxy, Location], way: Way
    ) -> None:
        """A batch file whose PUT was repeated exists once; without retries the write fails."""
        proxy, root = losing
        log = root.child(LOG.name)
        proxy.lose_next(way, "_inbox")
        if root.options["max_retries"] == "0":
            with pytest.raises(OSError, match="PUT"):
                write_file(log, [b"a"])
            assert log.names("_inbox") == []
        else:
            assert file_fault(log, write_file(log, [b"a"])) is None
        assert proxy.lost == 1
