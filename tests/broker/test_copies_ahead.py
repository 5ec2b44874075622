"""Copies that a follower on an object store makes of batches whose requests are still pending."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparklog.broker.application import Application
from sparklog.broker.following import copies_ahead
from sparklog.broker.following.copies_ahead import CopiesAhead
from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.config import ClusterConfig, parse
from sparklog.model import (
    LOG,
    PRODUCE_REQUESTS,
    REQUEST_TABLES,
    Batch,
    TopicIdPartition,
    new_batch_path,
)
from sparklog.producer.plain import Producer
from sparklog.storage.batch_files import BatchFile, BatchFileWriter, records_table
from sparklog.storage.control_table import create_table
from sparklog.storage.delta_log import DeltaLog
from sparklog.storage.location import Location
from sparklog.storage.request_appends import RequestAppends
from sparklog.storage.request_commits import told_refusals
from sparklog.storage.request_files import ProduceRequest, request_file
from tests.jobs.processes import wait_for
from tests.storage.requests import request
from tests.storage.test_s3 import Store, at, pytestmark, store

__all__ = ["at", "pytestmark", "store"]

At = Callable[[str], Location]
KEY = TopicIdPartition("id", 0)


class Leader:
    """A leader's root with an inbox, and a follower that scans it."""

    def __init__(self, at: At) -> None:
        self.root, self.log = at("leader"), at("leader").child(LOG.name)
        self.target = at("follower").child(LOG.name)
        create_table(self.root, PRODUCE_REQUESTS)
        self.inbox = RequestAppends(self.root)
        self.ahead = CopiesAhead(self.target)
        self.poll()

    def poll(self) -> None:
        """Scan the inbox, and wait until the scan is done."""
        self.ahead.poll({self.root: [KEY]})
        scan = self.ahead._inboxes[self.root.uri].scan
        assert scan is not None
        scan.result()

    def writer(self, value: bytes = b"a") -> BatchFileWriter:
        writer = BatchFileWriter(self.log, new_batch_path())
        writer.write(records_table([value], None, 0))
        return writer

    def file(self, value: bytes = b"a") -> BatchFile:
        return self.writer(value).close()

    def request(self, file: BatchFile, partition: int = 0, **claims: Any) -> None:
        self.inbox.append([requested(file, partition)._replace(**claims)])

    def copies(self) -> list[str]:
        return self.target.names("_inbox")


def requested(file: BatchFile, partition: int) -> ProduceRequest:
    return request(
        "r",
        topic_id=KEY.topic_id,
        partition=partition,
        named_leader_epoch=0,
        path=file.path,
        record_count=file.record_count,
        byte_size=file.size_bytes,
        checksum=file.checksum,
        min_timestamp_ms=file.min_timestamp_ms,
        max_timestamp_ms=file.max_timestamp_ms,
    )


def batch(file: BatchFile, **changes: object) -> Batch:
    made = Batch(
        path=file.path,
        size_bytes=file.size_bytes,
        topic_id=KEY.topic_id,
        topic="t",
        partition=0,
        leader_epoch=0,
        base_offset=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        checksum=file.checksum,
        record_count=1,
        last_offset_delta=0,
        min_timestamp_ms=0,
        max_timestamp_ms=0,
    )
    return made._replace(**changes)  # type: ignore[arg-type]


@pytest.fixture
def leader(at: At) -> Leader:
    return Leader(at)


def test_a_batch_that_waits_is_copied_and_taken_once(leader: Leader) -> None:
    """A pending batch is copied ahead, and its copy can be taken once."""
    file = leader.file()
    leader.request(file)
    leader.poll()
    path = leader.ahead.pop(leader.root, batch(file))
    assert path is not None
    assert leader.target.read_bytes(path) == leader.log.read_bytes(file.path)
    assert leader.ahead.pop(leader.root, batch(file)) is None


def test_a_file_that_comes_after_its_request_is_waited_for(leader: Leader) -> None:
    """A file that is uploaded after its request was appended is copied all the same."""
    writer = leader.writer()
    file = writer.finish()
    leader.request(file)
    leader.poll()
    writer.upload()
    path = leader.ahead.pop(leader.root, batch(file))
    assert path is not None
    assert leader.target.read_bytes(path) == leader.log.read_bytes(file.path)


@pytest.mark.parametrize(
    ("partition", "claims"),
    [
        pytest.param(1, {}, id="of a partition that is not followed"),
        pytest.param(0, {"byte_size": (1 << 20) + 1}, id="large"),
        pytest.param(0, {"path": "../../elsewhere.parquet"}, id="outside the inbox"),
        pytest.param(0, {"checksum": ""}, id="without a checksum"),
    ],
)
def test_no_copy_is_made_of_what_is(
    leader: Leader, partition: int, claims: dict[str, object]
) -> None:
    """A request for another partition, a large file, another folder or without a checksum causes no
    copy.
    """
    file = leader.file()
    leader.request(file, partition, **claims)
    leader.poll()
    assert leader.ahead.pop(leader.root, batch(file)) is None
    assert leader.copies() == []


def test_a_copy_that_is_not_what_the_journal_names_is_removed(leader: Leader) -> None:
    """A copy whose checksum differs from the journal's is removed."""
    file = leader.file()
    leader.request(file)
    leader.poll()
    assert leader.ahead.pop(leader.root, batch(file, checksum="another")) is None
    assert leader.copies() == []


def test_a_file_without_its_checksum_is_no_copy(leader: Leader) -> None:
    """A file that does not match the checksum in its request is not kept as a copy."""
    file = leader.file()
    leader.request(file, checksum="0" * 16)
    leader.poll()
    assert leader.ahead.pop(leader.root, batch(file, checksum="0" * 16)) is None
    assert leader.copies() == []


def test_a_copy_that_is_not_taken_is_removed(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that nobody takes is removed after a while."""
    file = leader.file()
    leader.request(file)
    leader.poll()
    wait_for(lambda: len(leader.copies()) == 1, "the copy")
    monkeypatch.setattr(copies_ahead, "_KEPT_SECONDS", -1.0)
    leader.poll()
    wait_for(lambda: leader.copies() == [], "the removal")
    assert leader.ahead.pop(leader.root, batch(file)) is None


def test_a_full_inbox_causes_few_copies(leader: Leader) -> None:
    """A scan of many requests starts at most `_MOST_COPIES` copies."""
    file = leader.file()
    requests = [requested(file, 0)._replace(path=new_batch_path()) for _ in range(100)]
    leader.inbox.append(requests)
    leader.poll()
    assert len(leader.ahead._inboxes[leader.root.uri].copies) == copies_ahead._MOST_COPIES


def test_an_invalid_commit_stops_nobody(leader: Leader) -> None:
    """The leader repairs its request table; a follower skips the damaged commit."""
    table = leader.root.child(PRODUCE_REQUESTS.name)
    for version, content in enumerate((b"no commit", b'{"add":{"path":7}}', b""), start=1):
        table.put_new(f"_delta_log/{version:020}.json", content)
    leader.inbox = RequestAppends(leader.root)
    file = leader.file()
    leader.request(file)
    leader.poll()
    assert leader.ahead.pop(leader.root, batch(file)) is not None


def test_further_tables_are_read_while_producers_compete(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Further tables are read once a producer was refused twice, and for some time after the last
    commit there.
    """
    for schema in REQUEST_TABLES[1:]:
        create_table(leader.root, schema)
    first, fifth = (DeltaLog(leader.root.child(REQUEST_TABLES[one].name)) for one in (0, 5))

    def request(log: DeltaLog, refused: int = 0) -> BatchFile:
        file = leader.file()
        added = [request_file(requested(file, 0), 1)]
        log.commit("WRITE", added, user_metadata=told_refusals(refused), syncs_files=False)
        leader.poll()
        return file

    def is_ahead(file: BatchFile) -> bool:
        return leader.ahead.pop(leader.root, batch(file)) is not None

    assert not is_ahead(request(fifth))
    assert is_ahead(request(first, refused=1))
    assert not is_ahead(request(fifth))
    # Requests that were in the table before are skipped.
    assert is_ahead(request(first, refused=2))
    leader.poll()
    assert is_ahead(request(fifth))
    assert is_ahead(request(fifth))
    monkeypatch.setattr(copies_ahead, "_FURTHER_SECONDS", -1.0)
    request(fifth)
    assert not is_ahead(request(fifth))
    assert is_ahead(request(first))


def test_in_folders_nothing_is_read(tmp_path_factory: pytest.TempPathFactory) -> None:
    """On a local file system the inbox is not scanned."""
    root = Location.of(str(tmp_path_factory.mktemp("root")))
    ahead = CopiesAhead(root.child(LOG.name))
    ahead.poll({root: [KEY]})
    assert ahead._inboxes == {}


@pytest.fixture
def application(store: Store) -> Iterator[tuple[Application, Connection]]:
    """Three brokers that run in parallel with the test."""
    bucket = store.bucket()
    config = {
        "cluster.root": f"{bucket}/cluster",
        "brokers": [{"broker.id": one, "log.dirs": [f"{bucket}/broker-{one}"]} for one in range(3)],
        "storage.options": store.options(),
    }
    running = Application(parse(ClusterConfig, config, "the test's configuration"))
    running.start()
    thread = threading.Thread(target=running.run)
    thread.start()
    yield running, Connection(f"{bucket}/cluster", storage_options=store.options())
    running.stop()
    thread.join()


def test_records_that_are_copied_ahead_are_those_of_the_leader(
    application: tuple[Application, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With records that are sent one after the other, most copies exist when the leader's commit is
    read.
    """
    were_found: list[bool] = []
    pop = CopiesAhead.pop

    def noted(self: CopiesAhead, root: Location, of: Batch) -> str | None:
        path = pop(self, root, of)
        were_found.append(path is not None)
        return path

    monkeypatch.setattr(CopiesAhead, "pop", noted)
    running, connection = application
    Admin(connection).create_topic("t", 1, 3, configs={"min.insync.replicas": "2"})
    with Producer(connection) as producer:
        offsets = [producer.send("t", b"%d" % one).result(60).offset for one in range(12)]
    assert offsets == list(range(12))
    assert any(were_found)
    with running.between_rounds() as brokers:
        logs = [next(iter(broker._roots.values())).log for broker in brokers.values()]
        [key] = {key for log in logs for key in log.partitions()}
        found = {
            tuple((one.base_offset, one.batch_id, one.checksum) for one in log.batches(key)[:12])
            for log in logs
        }
        assert len(found) == 1
        for log in logs:
            for one in log.batches(key):
                assert log.location.exists(one.path)
