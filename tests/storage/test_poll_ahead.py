"""Polling tables ahead on an object store: the commits that a poll finds, and its validity."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from sparklog import clock
from sparklog.broker.application import Application
from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.config import ClusterConfig, parse
from sparklog.model import CONTROLLER
from sparklog.producer.plain import Producer
from sparklog.storage import commits
from sparklog.storage.control_table import ControlTable, create_table
from sparklog.storage.location import Location
from sparklog.storage.request_files import read_requests
from tests.jobs.processes import wait_for
from tests.storage.test_s3 import Store, at, lease, pytestmark, store

__all__ = ["at", "pytestmark", "store"]

At = Callable[[str], Location]


@pytest.fixture
def tables(at: At) -> tuple[ControlTable, ControlTable]:
    """A writer and a reader of a table."""
    create_table(at(""), CONTROLLER)
    return ControlTable(at(""), CONTROLLER), ControlTable(at(""), CONTROLLER)


def write(writer: ControlTable, count: int) -> None:
    for sequence in range(count):
        writer.compare_and_set(lease(sequence))


def test_a_part_is_seen_and_twice_as_much_by_the_next_poll(
    tables: tuple[ControlTable, ControlTable],
) -> None:
    """A poll finds some of the new commits, and each following poll twice as many."""
    writer, reader = tables
    write(writer, 7)
    seen = []
    for _ in range(4):
        reader.poll_ahead()
        reader.refresh()
        seen.append(reader.version)
    assert seen == [1, 3, 7, 7]


def test_to_its_end_all_is_seen(tables: tuple[ControlTable, ControlTable]) -> None:
    """A poll with `to_end` finds all new commits."""
    writer, reader = tables
    write(writer, 7)
    reader.poll_ahead(to_end=True)
    reader.refresh()
    assert reader.version == 7


def test_what_was_seen_counts_until_the_next_poll_or_a_commit(
    tables: tuple[ControlTable, ControlTable],
) -> None:
    """A poll's result is valid until the next poll or a commit."""
    writer, reader = tables
    reader.poll_ahead()
    reader.refresh()
    write(writer, 1)
    reader.refresh()
    assert reader.version == 0
    reader.poll_ahead()
    reader.refresh()
    assert reader.version == 1
    write(writer, 1)
    reader.update(lambda _: (lease(9), None))
    assert reader.version == 3


def test_commits_that_were_asked_for_in_parallel_need_not_count_as_the_newest(
    tables: tuple[ControlTable, ControlTable],
) -> None:
    """A poll with counts=False has no validity: the next refresh reads newer commits.

    For example before a further attempt to commit, whose decision may be to change nothing.
    """
    writer, reader = tables
    write(writer, 3)
    reader._log.poll_ahead(to_end=True, least=2, counts=False)
    reader.refresh()
    assert reader.version == 3
    write(writer, 1)
    reader.refresh()
    assert reader.version == 4


def test_a_suspended_process_polls_again(
    tables: tuple[ControlTable, ControlTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monotonic clock may not include the suspension; the system's clock does."""
    writer, reader = tables
    reader.poll_ahead()
    reader.refresh()
    write(writer, 1)
    system, monotonic = clock.clocks()
    monkeypatch.setattr(clock, "clocks", lambda: (system + 6, monotonic))
    reader.refresh()
    assert reader.version == 1


def test_a_poll_of_long_ago_is_made_again(
    tables: tuple[ControlTable, ControlTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old poll is repeated, for example one from before copies that took minutes."""
    writer, reader = tables
    reader.poll_ahead()
    for ahead in reader._log._ahead._requested.values():
        ahead.result()
    write(writer, 1)
    system, monotonic = clock.clocks()
    monkeypatch.setattr(clock, "clocks", lambda: (system + 6, monotonic + 6))
    reader.refresh()
    assert reader.version == 1


def test_a_poll_that_failed_counts_for_nothing(
    tables: tuple[ControlTable, ControlTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result of a failed poll is discarded."""
    writer, reader = tables
    write(writer, 1)

    def away(*_: object) -> bytes:
        raise OSError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(commits, "commit_content", away)
        reader.poll_ahead()
        with pytest.raises(OSError, match="away"):
            reader.refresh()
    reader.refresh()
    assert reader.version == 1


def test_a_scheduled_run_ends_when_all_is_done(store: Store) -> None:
    """A scheduled run ends with a round without changes, because its rounds read all commits."""
    bucket = store.bucket()
    config = {
        "cluster.root": f"{bucket}/cluster",
        "brokers": [{"broker.id": one, "log.dirs": [f"{bucket}/broker-{one}"]} for one in range(3)],
        "storage.options": store.options(),
    }
    # At most one for each partition: a second batch may wait until the first one is answered.
    for records in ([], [b"a", b"b"], [b"c"]):
        application = Application(parse(ClusterConfig, config, "the test's configuration"))
        application.start()
        connection = Connection(f"{bucket}/cluster", storage_options=store.options())
        if not records:
            Admin(connection).create_topic("t", 2, 3, configs={"min.insync.replicas": "2"})
            application.run_until_idle()
            continue
        application.round(to_end=True)
        before = _requests(connection)
        with Producer(connection) as producer:
            sent = [producer.send("t", value, partition=n) for n, value in enumerate(records)]
            _await_requests(connection, before, len(records))
            application.run_until_idle()
            offsets = [one.result(60).offset for one in sent]
        assert len(offsets) == len(records)


def _await_requests(connection: Connection, before: Collection[str], records: int) -> None:
    """Wait until requests with so many records have joined those of `before` in the inboxes."""

    def arrived() -> bool:
        found = _requests(connection)
        return sum(count for path, count in found.items() if path not in before) >= records

    wait_for(arrived, "requests")


def _requests(connection: Connection) -> dict[str, int]:
    """The number of records of each request in the inboxes, taken ones included, by path."""
    found: dict[str, int] = {}
    for broker in connection.metadata().brokers.values():
        for uri in broker.online_roots.values():
            requests = read_requests(Location.of(uri, connection.storage_options))
            counts = zip(requests["path"], requests["record_count"], strict=True)
            found |= {path.as_py(): count.as_py() for path, count in counts}
    return found
