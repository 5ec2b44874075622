"""Tables that one query of a process has opened are used by the next, for the same cluster only."""

from __future__ import annotations

import shutil
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparklog.cluster.committed_logs import CommittedLogs
from sparklog.cluster.connection import Connection
from sparklog.datasource import kept_logs
from sparklog.datasource.kept_logs import with_logs
from sparklog.errors import ProtocolError, StorageError
from sparklog.storage import delta_log
from sparklog.storage.delta_snapshots import OpenedTable, open_table
from sparklog.storage.location import Location
from tests.datasource.conftest import Readable, rows


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_logs, "_kept", OrderedDict())


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that were opened, in their order."""
    found: list[str] = []
    plain = open_table

    def noting(table: Location, version: int | None = None) -> OpenedTable:
        found.append(table.uri)
        return plain(table, version)

    monkeypatch.setattr(delta_log, "open_table", noting)
    return found


def values(readable: Readable, topic: str = "t") -> list[bytes | None]:
    return [row[3] for row in rows(readable.batch(subscribe=topic))]


def test_a_second_query_opens_no_table(readable: Readable, opened: list[str]) -> None:
    """A second query opens no table."""
    readable.create_topic("t", partitions=3)
    readable.produce("t", b"a")
    assert values(readable) == [b"a"]
    opened.clear()
    assert values(readable) == [b"a"]
    assert opened == []


def test_a_second_query_sees_what_was_committed_since(readable: Readable) -> None:
    """A second query reads records and topics that were committed after the first one."""
    readable.create_topic("t")
    readable.produce("t", b"a")
    assert values(readable) == [b"a"]
    readable.produce("t", b"b")
    readable.create_topic("u")
    readable.produce("u", b"c")
    assert values(readable) == [b"a", b"b"]
    assert values(readable, "u") == [b"c"]


def test_a_second_query_follows_a_new_leader(readable: Readable) -> None:
    """A second query reads from a new leader."""
    readable.create_topic("t")
    readable.produce("t", b"a")
    assert values(readable) == [b"a"]
    readable.cluster.crash(0)
    readable.cluster.fence(0)
    readable.cluster.tick_until_idle()
    readable.produce("t", b"b")
    assert values(readable) == [b"a", b"b"]


def test_another_cluster_at_the_same_place_is_read_as_such(readable: Readable) -> None:
    """A new cluster at the same path is detected, even with the same versions and names of
    topics.
    """
    readable.create_topic("t")
    readable.produce("t", b"of the first")
    assert values(readable) == [b"of the first"]
    readable.cluster.close()
    shutil.rmtree(readable.folder)
    readable.folder.mkdir()
    second = Readable(readable.folder)
    second.create_topic("t")
    second.produce("t", b"of the second")
    assert values(second) == [b"of the second"]
    second.cluster.close()


def test_a_cluster_that_is_gone_is_an_error(readable: Readable) -> None:
    """A query of a cluster whose root was removed raises `StorageError`."""
    readable.create_topic("t")
    assert values(readable) == []
    shutil.rmtree(readable.root)
    with pytest.raises(StorageError, match="there is no cluster root"):
        values(readable)


def test_an_error_is_that_of_reopened_logs(readable: Readable, opened: list[str]) -> None:
    """A query that fails with kept logs is repeated with newly opened ones before its error is
    raised.
    """
    readable.create_topic("t")
    assert values(readable) == []
    opened.clear()
    with pytest.raises(ProtocolError, match="there is no topic 'u'"):
        values(readable, "u")
    assert opened


def test_what_fails_with_kept_logs_is_done_again(readable: Readable) -> None:
    """A query that fails with kept logs only succeeds, and the new logs are kept."""
    with_logs(readable.root, CommittedLogs.metadata)
    used: list[CommittedLogs] = []

    def use(logs: CommittedLogs) -> str:
        used.append(logs)
        if len(used) == 1:
            raise RuntimeError("only with these")
        return "done"

    assert with_logs(readable.root, use) == "done"
    assert used[0] is not used[1]
    assert with_logs(readable.root, lambda logs: logs is used[1])


def test_queries_at_the_same_time_do_not_share(readable: Readable) -> None:
    """Logs belong to one thread; the next query gets those of one of the two."""
    with_logs(readable.root, CommittedLogs.metadata)
    both = threading.Barrier(2, timeout=30)
    used: list[CommittedLogs] = []

    def use(logs: CommittedLogs) -> None:
        both.wait()
        used.append(logs)

    threads = [threading.Thread(target=with_logs, args=(readable.root, use)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert used[0] is not used[1]
    assert with_logs(readable.root, lambda logs: logs in used)


def test_a_path_and_a_configuration_file_with_options_are_distinguished(
    readable: Readable, tmp_path: Path
) -> None:
    """A path and a configuration file share kept logs only if their storage options are equal."""
    by_path = with_logs(readable.root, lambda logs: logs)
    broker = {"broker.id": 0, "log.dirs": [str(tmp_path / "broker-0")]}
    config: dict[str, Any] = {"cluster.root": readable.root, "brokers": [broker]}
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(config))
    assert with_logs(str(file), lambda logs: logs) is by_path
    config["storage.options"] = {"s3://bucket": {"AWS_REGION": "eu-central-1"}}
    file.write_text(yaml.safe_dump(config))
    by_file = with_logs(str(file), lambda logs: logs)
    assert by_file is not by_path
    assert with_logs(str(file), lambda logs: logs) is by_file


def test_of_many_clusters_those_read_last_are_kept(
    readable: Readable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If there are too many clusters, the most recently read ones are kept."""
    monkeypatch.setattr(kept_logs, "_MOST", 1)
    other = tmp_path / "other"
    shutil.copytree(readable.root, other)
    first = with_logs(readable.root, lambda logs: logs)
    second = with_logs(str(other), lambda logs: logs)
    assert with_logs(str(other), lambda logs: logs) is second
    assert with_logs(readable.root, lambda logs: logs) is not first


def test_a_root_notices_that_it_is_no_longer_in_its_place(
    readable: Readable, tmp_path: Path
) -> None:
    """`is_in_place` returns whether a cluster root still exists at its path."""
    root = Connection(readable.root).root
    assert root.is_in_place()
    moved = tmp_path / "moved"
    shutil.move(readable.root, moved)
    assert not root.is_in_place()
    shutil.move(moved, readable.root)
    assert root.is_in_place()
