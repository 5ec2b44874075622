"""Progress bars of long work: in terminals only, and not part of the output."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import pytest

from sparklog.cli.spark_records import await_end
from sparklog.cluster.connection import Connection
from sparklog.maintenance.audit import audit
from sparklog.maintenance.backup import backup, restore
from sparklog.maintenance.table_checkpoints import checkpoint_tables
from sparklog.storage.location import Location
from sparklog.storage.progress import counted
from sparklog.testing import LocalCluster
from tests.cli.command_line import run
from tests.cli.terminal import run_in_terminal
from tests.maintenance.releases import earlier_cluster_root
from tests.running_cluster import RunningCluster

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("progress")
    cluster = LocalCluster(folder, [0, 1])
    cluster.create_topic("t", assignment={0: [0, 1]})
    for value in (b"a", b"b", b"c"):
        cluster.produce("t", 0, [value])
        cluster.tick_until_idle()
    return folder / "cluster"


def test_each_step_is_reported_after_it() -> None:
    reported: list[tuple[str, int, int | None]] = []
    steps = counted("ab", "letters", lambda *step: reported.append(step))
    next(steps)
    assert reported == []
    assert [*steps] == ["b"]
    assert reported == [("letters", 1, 2), ("letters", 2, 2)]
    assert [*counted("ab", "letters", None)] == ["a", "b"]


def test_long_work_reports_all_of_its_steps(root: Path, tmp_path: Path) -> None:
    """The last step of each work is its number of steps; a log's are its batch files."""
    reported: dict[str, list[tuple[int, int | None]]] = {}

    def note(name: str, done: int, total: int | None) -> None:
        reported.setdefault(name, []).append((done, total))

    assert audit(Connection(str(root)), verify_files=True, on_progress=note) == []
    copy = Location.of(str(tmp_path / "copy"))
    backup(Location.of(str(root)), copy, on_progress=note)
    of_backup = reported["broker-0/log"]
    restore(copy, target=Location.of(str(tmp_path / "new")), on_progress=note)
    checkpoint_tables(Connection(str(root)), note)
    assert [one for one, _ in reported["files"]] == [1, 2, 3, 4, 5, 6]
    assert of_backup[:3] == [(1, 3), (2, 3), (3, 3)]
    assert {"broker-0-0/log", "checkpoints"} < reported.keys()
    assert all(steps[-1][0] == steps[-1][1] for steps in reported.values())


def test_bars_are_shown_in_a_terminal_and_removed(root: Path) -> None:
    """A file and a program get the output alone."""
    shown = run_in_terminal("audit", "--verify-files", cluster=root)
    assert "6/6" in shown
    assert shown.endswith("No inconsistencies found: 1 partition.\n")
    assert "\x1b[2K" in shown.split("6/6")[-1], "the bar's line is cleared"
    found = run("audit", "--verify-files", "--json", cluster=root)
    assert json.loads(found.printed) == {"partitions": 1, "findings": []}
    without = run_in_terminal("scrub", cluster=root, NO_COLOR="1")
    assert "6/6" in without
    assert not re.search(r"\x1b\[[0-9;]*m", without)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    cluster = RunningCluster(tmp_path_factory.mktemp("running"))
    yield cluster
    cluster.stop()


def test_the_lines_of_a_file_are_produced_and_consumed_with_a_bar(
    running: RunningCluster, tmp_path: Path
) -> None:
    """The bytes that were read, and the records in the other file, which has nothing else."""
    running.create_topic("lines")
    root = running.folder / "cluster"
    lines, copy = tmp_path / "lines", tmp_path / "copy"
    lines.write_bytes(b"".join(b"%06d\n" % number for number in range(1_000)))
    shown = run_in_terminal("produce", "lines", cluster=root, stdin=lines)
    assert "bytes read" in shown
    assert "7000/7000" in shown
    assert shown.endswith("Produced 1000 records to topic lines.\n")
    options = ("--from-beginning", "--max-messages", "1000")
    shown = run_in_terminal("consume", "lines", *options, cluster=root, stdout=copy)
    assert "1000/1000" in shown
    assert shown.endswith("Processed a total of 1000 messages.\n")
    assert copy.read_bytes() == lines.read_bytes()
    # Records in the terminal are progress enough.
    shown = run_in_terminal("consume", "lines", *options, cluster=root)
    assert "1000/1000" not in shown
    assert "000999\n" in shown


def test_an_upgrade_shows_its_steps_after_the_bar(tmp_path: Path) -> None:
    earlier_cluster_root(Location.of(str(tmp_path / "cluster")))
    expected = run("upgrade", "--dry-run", cluster=tmp_path / "cluster").printed.splitlines()
    copy = tmp_path / "copy"
    shown = run_in_terminal("upgrade", cluster=tmp_path / "cluster", stdout=copy)
    assert f"{len(expected)}/{len(expected)}" in shown
    assert copy.read_text().splitlines() == [*expected, "Upgraded the cluster to format 3."]


@pytest.mark.parametrize("ends_after", [0, 3])
def test_the_records_of_a_query_are_counted_after_each_micro_batch(ends_after: int) -> None:
    reported: list[tuple[str, int, int | None]] = []
    query = _Query(ends_after)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        await_end(cast("StreamingQuery", query), lambda *one: reported.append(one))
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert reported[-1] == ("records", 10 * (ends_after + 1), None)
    assert len(reported) == ends_after + 1


class _MicroBatch(NamedTuple):
    batchId: int  # noqa: N815
    numInputRows: int  # noqa: N815


class _Query:
    """A streaming query that ends after a number of micro-batches of 10 records."""

    def __init__(self, ends_after: int) -> None:
        self._ends_after = ends_after
        self._waits = 0

    def awaitTermination(self, timeout: int) -> bool:  # noqa: N802
        assert timeout > 0
        self._waits += 1
        return self._waits > self._ends_after

    @property
    def recentProgress(self) -> list[_MicroBatch]:  # noqa: N802
        # Spark keeps the newest ones.
        return [_MicroBatch(number, 10) for number in range(self._waits)][-2:]


def test_outcomes_are_json_on_request(root: Path, tmp_path: Path) -> None:
    copied = json.loads(run("backup", "--to", tmp_path / "b", "--json", cluster=root).printed)
    assert sorted(copied["roots"]) == ["broker-0-0", "broker-1-0", "cluster"]
    restored = run("restore", "--from", tmp_path / "b", "--to", tmp_path / "r", "--json").printed
    assert json.loads(restored)["roots"]["cluster"] == str(tmp_path / "r" / "cluster")
    maintained = json.loads(run("maintain", "--dry-run", "--json", cluster=root).printed)
    assert (maintained["dry_run"], maintained["checkpoints"]) == (True, [])
    assert all(one["error"] == "" for one in maintained["vacuums"])
    upgraded = json.loads(run("upgrade", "--dry-run", "--json", cluster=root).printed)
    assert (upgraded["dry_run"], upgraded["steps"]) == (True, [])
    listed = json.loads(run("log-dirs", "--describe", "--json", cluster=root).printed)
    assert [one["broker"] for one in listed["brokers"]] == [0, 1]
    moving = run("reassign-partitions", "--list", "--json", cluster=root).printed
    assert json.loads(moving) == []
    made = json.loads(run("format", "--json", cluster=root).printed)
    assert (made["root"], made["created"]) == (str(root), False)
