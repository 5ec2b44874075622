"""What one query of a process has opened serves the next, and never shows another cluster."""

from __future__ import annotations

import shutil
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable

from sparklog.clients.committed_logs import CommittedLogs
from sparklog.clients.connection import Connection
from sparklog.datasource import kept_logs
from sparklog.datasource.kept_logs import with_logs
from sparklog.errors import ProtocolError, StorageError
from sparklog.storage import delta_log
from sparklog.storage.location import Location
from tests.datasource.conftest import Readable, rows


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_logs, "_kept", OrderedDict())


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that were opened, in their order."""
    found: list[str] = []
    plain = delta_log.open_delta_table

    def noting(table: Location, version: int | None = None) -> DeltaTable:
        found.append(table.uri)
        return plain(table, version)

    monkeypatch.setattr(delta_log, "open_delta_table", noting)
    return found


def values(readable: Readable, topic: str = "t") -> list[bytes | None]:
    return [row[3] for row in rows(readable.batch(subscribe=topic))]


def test_a_second_query_opens_no_table(readable: Readable, opened: list[str]) -> None:
    readable.create_topic("t", partitions=3)
    readable.produce("t", b"a")
    assert values(readable) == [b"a"]
    opened.clear()
    assert values(readable) == [b"a"]
    assert opened == []


def test_a_second_query_sees_what_was_committed_since(readable: Readable) -> None:
    readable.create_topic("t")
    readable.produce("t", b"a")
    assert values(readable) == [b"a"]
    readable.produce("t", b"b")
    readable.create_topic("u")
    readable.produce("u", b"c")
    assert values(readable) == [b"a", b"b"]
    assert values(readable, "u") == [b"c"]


def test_a_second_query_follows_a_new_leader(readable: Readable) -> None:
    readable.create_topic("t")
    readable.produce("t", b"a")
    assert values(readable) == [b"a"]
    readable.cluster.crash(0)
    readable.cluster.fence(0)
    readable.cluster.tick_until_idle()
    readable.produce("t", b"b")
    assert values(readable) == [b"a", b"b"]


def test_another_cluster_at_the_same_place_is_read_as_such(readable: Readable) -> None:
    """Its tables may have the versions, and its topics the names, of those before."""
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
    readable.create_topic("t")
    assert values(readable) == []
    shutil.rmtree(readable.root)
    with pytest.raises(StorageError, match="there is no cluster root"):
        values(readable)


def test_an_error_is_that_of_logs_opened_anew(readable: Readable, opened: list[str]) -> None:
    readable.create_topic("t")
    assert values(readable) == []
    opened.clear()
    with pytest.raises(ProtocolError, match="there is no topic 'u'"):
        values(readable, "u")
    assert opened


def test_what_fails_with_kept_logs_is_done_again(readable: Readable) -> None:
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
    """Logs are one thread's; the next query finds one of the two."""
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


def test_a_path_and_a_configuration_file_with_options_are_told_apart(
    readable: Readable, tmp_path: Path
) -> None:
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
    root = Connection(readable.root).root
    assert root.is_in_place()
    moved = tmp_path / "moved"
    shutil.move(readable.root, moved)
    assert not root.is_in_place()
    shutil.move(moved, readable.root)
    assert root.is_in_place()
