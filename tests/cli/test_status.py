"""`sparklog status`: the verdict and exit code, the screen, JSON, and the page in a browser."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from rich.console import Console

from sparklog.cli import status_history
from sparklog.cli.status_screen import screen
from sparklog.cli.status_tables import loss_text
from sparklog.clock import SystemClock
from sparklog.cluster.connection import Connection
from sparklog.maintenance.losses import LossReader
from sparklog.maintenance.status import Severity
from sparklog.maintenance.status_reader import StatusReader
from sparklog.storage.journal_tail import JournalTail
from sparklog.storage.location import Location
from sparklog.storage.parallel import map_in_parallel
from sparklog.testing import LocalCluster
from tests.cli.command_line import files_in, run
from tests.cli.terminal import run_in_terminal

BROWSER = next(
    (
        one
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (one := shutil.which(name))
    ),
    None,
)


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    """Three brokers, each leading one partition of `orders`."""
    cluster = LocalCluster(tmp_path / "data", [0, 1, 2], racks={1: "east"})
    # Rows have times of the brokers' clock, commits those of the system's.
    cluster.clock.advance(SystemClock().now_ms() - 3_600_000 - cluster.clock.now_ms())
    cluster.create_topic("orders", assignment={0: [0, 1, 2], 1: [1, 2, 0], 2: [2, 0, 1]})
    for partition in range(3):
        cluster.produce("orders", partition, [b"a", b"b"])
    cluster.tick_until_idle()
    return cluster


def root(cluster: LocalCluster) -> Path:
    return Path(cluster.root) / "cluster"


def lose(cluster: LocalCluster, broker_id: int) -> None:
    """Let a broker's session time out."""
    cluster.crash(broker_id)
    for _ in range(10):
        cluster.clock.advance(3_000)
        cluster.tick_until_idle()


def store_later(cluster: LocalCluster, seconds: int) -> None:
    """Let the file system have stored all commits so much later than the brokers made them."""
    for file in Path(cluster.root).glob("broker-*/log/_delta_log/*.json"):
        stored_at_ns = file.stat().st_mtime_ns + seconds * 1_000_000_000
        os.utime(file, ns=(stored_at_ns, stored_at_ns))


class LaterClock(SystemClock):
    """A clock that is an hour ahead of the brokers'."""

    def now_ms(self) -> int:
        return super().now_ms() + 3_600_000


class EarlierClock(SystemClock):
    """A clock that is an hour behind the brokers'."""

    def now_ms(self) -> int:
        return super().now_ms() - 3_600_000


class TestTheVerdict:
    def test_is_ok_for_a_sound_cluster(self, cluster: LocalCluster) -> None:
        before = files_in(Path(cluster.root))
        found = run("status", cluster=root(cluster))
        assert (found.exit_code, found.stderr) == (0, "")
        assert "OK  nothing is wrong" in found.stdout
        assert "partitions   3: 0 offline, 0 under-replicated, 0 under min ISR" in found.stdout
        assert files_in(Path(cluster.root)) == before

    def test_is_a_warning_for_a_replica_that_is_not_in_sync(self, cluster: LocalCluster) -> None:
        lose(cluster, 2)
        found = run("status", cluster=root(cluster))
        assert found.exit_code == Severity.WARNING
        assert (
            "WARNING  3 partitions under-replicated: orders-0, orders-1, orders-2" in found.stdout
        )
        assert "WARNING  broker 2 is fenced: start it again" in found.stdout

    def test_is_critical_for_a_partition_without_a_leader(self, cluster: LocalCluster) -> None:
        cluster.create_topic("alone", assignment={0: [2]})
        cluster.tick_until_idle()
        lose(cluster, 2)
        found = run("status", cluster=root(cluster))
        assert found.exit_code == Severity.CRITICAL
        assert "CRITICAL 1 partition offline: alone-0" in found.stdout

    def test_is_critical_under_min_isr(self, cluster: LocalCluster) -> None:
        """Requests with acks=all are refused there, so it is no mere warning."""
        cluster.create_topic("strict", assignment={0: [0, 2]}, configs={"min.insync.replicas": "2"})
        cluster.tick_until_idle()
        lose(cluster, 2)
        found = run("status", cluster=root(cluster))
        assert found.exit_code == Severity.CRITICAL
        assert "1 partition under min.insync.replicas: strict-0" in found.stdout

    def test_is_critical_if_all_brokers_have_died(self, cluster: LocalCluster) -> None:
        """Nobody fences them: they count as alive, and only their silence shows it."""
        status = StatusReader(Connection(root(cluster)), clock=LaterClock()).read()
        [first, *others] = [one.text for one in status.problems()]
        assert status.severity is Severity.CRITICAL
        assert first.startswith("no broker runs")
        names = [text.partition(" counts as alive")[0] for text in others]
        assert names == ["broker 0", "broker 1", "broker 2"]
        assert {one.shown_state(9_000) for one in status.brokers} == {"silent"}

    @pytest.mark.parametrize("is_behind", [True, False], ids=["behind", "ahead"])
    def test_is_a_warning_if_the_clock_of_a_broker_is_wrong(
        self, cluster: LocalCluster, is_behind: bool
    ) -> None:
        """The store's time of a commit distinguishes a clock that is behind from silence.

        By the broker's own times, one with a clock that is behind would be shown as silent, and one
        that has died as alive until this machine's clock is as far.
        """
        seconds = 3_600 if is_behind else -3_600
        clock = LaterClock() if is_behind else EarlierClock()
        store_later(cluster, seconds)
        status = StatusReader(Connection(root(cluster)), clock=clock).read()
        assert [one.shown_state(9_000) for one in status.brokers] == ["alive"] * 3
        assert status.severity is Severity.WARNING
        words = "behind" if is_behind else "ahead of"
        for number, problem in enumerate(status.problems()):
            start, _, rest = problem.text.partition(" s ")
            assert start.startswith(f"the clock of broker {number} is 3")
            assert rest.startswith(f"{words} its store's: set it by NTP")
        # Nobody needs the clock of a broker that was stopped in order.
        cluster.brokers[1].park()
        store_later(cluster, seconds)
        texts = [one.text for one in StatusReader(Connection(root(cluster))).read().problems()]
        assert not any("the clock of broker 1" in text for text in texts)

    def test_is_a_warning_if_the_clock_of_this_machine_is_behind(
        self, cluster: LocalCluster
    ) -> None:
        """It would notice later by as much that a broker is silent."""
        status = StatusReader(Connection(root(cluster)), clock=EarlierClock()).read()
        assert status.severity is Severity.WARNING
        [text] = [one.text for one in status.problems()]
        assert text.startswith("the clock of this machine is at least 3")
        assert 0 < status.reader_behind_ms <= 3_600_000

    def test_is_ok_between_two_scheduled_runs(self, cluster: LocalCluster) -> None:
        """Parked brokers are silent, and no controller leads, as it should be."""
        for broker in cluster.brokers.values():
            broker.park()
        status = StatusReader(Connection(root(cluster)), clock=LaterClock()).read()
        assert (status.is_parked, status.problems()) == (True, [])
        assert {one.shown_state(9_000) for one in status.brokers} == {"parked"}

    def test_is_a_failure_if_no_scheduled_run_has_come(self, cluster: LocalCluster) -> None:
        """A stopped service was OK without an end: its brokers are parked, too."""
        for broker in cluster.brokers.values():
            broker.park()
        connection = Connection(root(cluster))
        late = StatusReader(connection, clock=LaterClock(), max_parked_ms=3_000_000).read()
        assert late.severity is Severity.CRITICAL
        [problem] = late.problems()
        assert problem.text.startswith("all brokers are parked, and none has run for 36")
        found = run("status", "--max-parked", "PT0.001S", cluster=root(cluster))
        assert (found.exit_code, "none has run" in found.stdout) == (2, True)
        assert run("status", "--max-parked", "PT1H", cluster=root(cluster)).exit_code == 0
        refused = run("status", "--max-parked", "soon", cluster=root(cluster))
        assert "--max-parked 'soon' is not a duration" in refused.stderr

    def test_names_a_root_that_cannot_be_read_here(self, cluster: LocalCluster) -> None:
        shutil.rmtree(Path(cluster.root) / "broker-1" / "log" / "_delta_log")
        found = json.loads(run("status", "--json", cluster=root(cluster)).stdout)
        [problem] = [one for one in found["problems"] if "cannot be read here" in one["text"]]
        assert problem["severity"] == "WARNING"
        assert problem["text"].startswith(f"broker 1: {cluster.root}/broker-1 cannot be read here")
        # Its own partition's end is unknown, not 0.
        assert found["partitions"][1]["high_watermark"] is None

    def test_is_unknown_if_there_is_no_cluster(self, tmp_path: Path) -> None:
        found = run("status", cluster=tmp_path / "nothing")
        assert (found.exit_code, found.stdout) == (3, "")
        [line] = found.stderr.splitlines()
        assert line.startswith("sparklog: ")


def test_json_has_the_lags_and_the_activity(cluster: LocalCluster) -> None:
    """A follower that stands still is behind by the offsets that the leader has appended."""
    cluster.pause(2)
    cluster.produce("orders", 0, [b"c", b"d", b"e"], acks=1)
    cluster.leader_tick(0)
    found = json.loads(run("status", "--json", cluster=root(cluster)).stdout)
    lags = {one["broker_id"]: one["lag"] for one in found["partitions"][0]["replicas"]}
    assert lags == {0: 0, 1: 3, 2: 3}
    assert [one["storage_requests_per_minute"] for one in found["brokers"]] == [0, 0, 0]
    assert all(one["last_tick_ms"] >= 0 for one in found["brokers"])


def test_journals_on_an_object_store_are_read_in_parallel(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each journal is opened only when the others are being opened too."""
    all_opening = Barrier(3)

    class Awaited(JournalTail):
        def __init__(self, location: Location) -> None:
            all_opening.wait(60)
            super().__init__(location)

    monkeypatch.setattr("sparklog.maintenance.status_reader.JournalTail", Awaited)
    reader = StatusReader(Connection(str(root(cluster))))
    as_remote = partial(map_in_parallel, is_local=False)
    monkeypatch.setattr(
        "sparklog.maintenance.status_reader.map_in_parallel",
        lambda action, of, size_bytes, **_: as_remote(action, of, size_bytes),
    )
    found = reader.read()
    assert [one.silent_ms is not None for one in found.brokers] == [True] * 3
    assert found.severity == Severity.OK


def test_groups_are_sorted_by_lag(cluster: LocalCluster) -> None:
    from sparklog.consumer.consumer import Consumer

    for group, polls in (("fast", 1), ("slow <b>&", 0)):
        with Consumer(root(cluster), group_id=group, auto_offset_reset="earliest") as consumer:
            partitions = consumer.partitions_for_topic("orders")
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, 2 if polls else 0)
                consumer.position(partition)
            consumer.commit()
    found = json.loads(run("status", "--json", cluster=root(cluster)).stdout)
    assert {one["group_id"]: one["lag"] for one in found["groups"]} == {"fast": 0, "slow <b>&": 6}
    printed = run("status", cluster=root(cluster)).stdout
    assert printed.index("slow <b>&") < printed.index("fast")


def test_fits_in_80_columns(cluster: LocalCluster) -> None:
    """In a terminal, with colours, and with all columns."""
    printed = run_in_terminal("status", cluster=root(cluster), NO_COLOR="1")
    [head, *lines] = printed.splitlines()
    # A URI is not cut, however long.
    assert head.startswith("cluster /")
    assert max(len(line) for line in lines) <= 80
    assert "process" in printed


def test_problems_are_indented_at_80_columns(cluster: LocalCluster) -> None:
    """A problem's further lines began below CRITICAL, so that its end was hard to find."""
    cluster.create_topic("p" * 100, assignment={0: [2]})
    cluster.tick_until_idle()
    lose(cluster, 2)
    status = StatusReader(Connection(root(cluster)), clock=LaterClock()).read()
    console = Console(file=io.StringIO(), width=80)
    console.print(*screen(status, utc=True), sep="\n")
    printed = console.file
    assert isinstance(printed, io.StringIO)
    lines = [one.rstrip() for one in printed.getvalue().splitlines()]
    assert max(map(len, lines[1:])) <= 80
    first = lines.index("") + 1
    judged = lines[first : lines.index("", first)]
    assert {one[:9].strip() for one in judged} == {"CRITICAL", "WARNING", ""}
    text = "".join(one[9:] for one in judged)
    for problem in status.problems():
        assert problem.text.replace(" ", "") in text.replace(" ", "")
    assert len(judged) > len(status.problems())


def test_watch_refreshes_until_ctrl_c(cluster: LocalCluster) -> None:
    """The exit code is that of the last status; --json with --watch is refused.

    The brokers are parked, since silent ones would be CRITICAL on a slow machine.
    """
    for broker in cluster.brokers.values():
        broker.park()
    assert (
        "exclude each other"
        in run("status", "--watch", "1", "--json", cluster=root(cluster)).stderr
    )
    # A process in the background of a shell has inherited that it ignores SIGINT.
    command = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from sparklog.cli import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", command, "status", "--watch", "0.05"],
        env={**os.environ, "SPARKLOG_CLUSTER": str(root(cluster))},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    seen = 0
    for line in process.stdout:
        seen += "nothing is wrong" in line
        if seen == 2:
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.fixture
def lost(cluster: LocalCluster) -> LocalCluster:
    """A cluster after an unclean election, by which three records were lost, and a truncation."""
    cluster.create_topic(
        "clicks",
        assignment={0: [0, 1]},
        configs={"unclean.leader.election.enable": "true", "min.insync.replicas": "1"},
    )
    cluster.tick_until_idle()
    lose(cluster, 1)
    cluster.produce("clicks", 0, [b"a"] * 3, acks="all")
    cluster.tick_until_idle()
    cluster.crash(0)
    cluster.restart(1)
    # Before broker 1 has copied what it lacks.
    cluster.fence(0)
    cluster.tick_until_idle()
    cluster.produce("clicks", 0, [b"b"])
    cluster.tick_until_idle()
    cluster.restart(0)
    cluster.tick_until_idle()
    return cluster


@pytest.fixture
def unclean(cluster: LocalCluster) -> LocalCluster:
    """A cluster after an unclean election of a replica that had all records; broker 0 is away."""
    cluster.create_topic(
        "clicks",
        assignment={0: [0, 1]},
        configs={"unclean.leader.election.enable": "true", "min.insync.replicas": "1"},
    )
    cluster.produce("clicks", 0, [b"a"])
    cluster.tick_until_idle()
    lose(cluster, 1)
    cluster.crash(0)
    cluster.restart(1)
    cluster.fence(0)
    cluster.tick_until_idle()
    return cluster


class TestPastLosses:
    def test_are_on_the_screen_and_in_json(self, lost: LocalCluster) -> None:
        """They are past: the exit code is that of the present state, and it names the query."""
        for broker in lost.brokers.values():
            broker.park()
        found = run("status", cluster=root(lost))
        assert found.exit_code == 0
        assert "OK  nothing is wrong" in found.stdout
        [line] = [one for one in found.stdout.splitlines() if one.startswith("LOST")]
        assert line.startswith("LOST     records were lost: clicks-0, 3 records, ")
        assert line.endswith(" ago (unclean election of broker 1)")
        [query] = [one for one in found.stdout.splitlines() if "sparklog query" in one]
        statement = query.strip().removeprefix('sparklog query "').removesuffix('"')
        assert "(1 row)" in run("query", statement, cluster=root(lost)).stdout
        [loss] = json.loads(run("status", "--json", cluster=root(lost)).stdout)["losses"]
        assert (loss["topic"], loss["partition"], loss["records_lost"]) == ("clicks", 0, 3)
        assert (loss["leader"], loss["brokers"]) == (1, [0])

    def test_are_read_once(self, lost: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        """A further reading has them without reading a commit or a table again."""
        reader = StatusReader(Connection(root(lost)))
        first = reader.read()
        assert [one.records for one in first.losses] == [3]
        requested: list[str] = []
        for name in ("read_bytes", "read_with_time"):
            read = getattr(Location, name)

            def noted(location: Location, path: str, read: Any = read) -> Any:
                try:
                    return read(location, path)
                finally:
                    requested.append(f"{location.uri}/{path}")

            monkeypatch.setattr(Location, name, noted)
        assert reader.read().losses == first.losses
        # Of each journal the next commit, which is not there yet.
        others = [path for path in requested if "/log/_delta_log/" not in path]
        assert all(path.endswith(".json") for path in others)
        assert len({*requested}) == len(requested)
        assert not any(Path(path).exists() for path in requested)

    def test_are_open_until_the_former_isr_is_in_sync_again(self, unclean: LocalCluster) -> None:
        """It said for seven days that no replica had shown a lost record so far."""
        reader = StatusReader(Connection(root(unclean)))
        [loss] = reader.read().losses
        assert (loss.outcome, loss.isr_before) == ("pending", (0,))
        assert loss_text(loss, loss.at_ms).endswith("; no replica has shown a lost record so far")
        unclean.restart(0)
        unclean.tick_until_idle()
        for one in (reader, StatusReader(Connection(root(unclean)))):
            [loss] = one.read().losses
            assert (loss.outcome, loss.records) == ("none", 0)
            assert loss_text(loss, loss.at_ms).endswith(
                "; no records were lost: broker 0, in sync before it, is in sync again and removed "
                "nothing"
            )
        for broker in unclean.brokers.values():
            broker.park()
        assert "no records were lost" in " ".join(
            run("status", cluster=root(unclean)).stdout.split()
        )

    def test_are_unknown_if_the_log_of_the_former_isr_is_gone(self, unclean: LocalCluster) -> None:
        """An empty log directory removes nothing, and is no proof that nothing was lost."""
        shutil.rmtree(unclean.root / "broker-0")
        unclean.restart(0)
        unclean.tick_until_idle()
        [loss] = StatusReader(Connection(root(unclean))).read().losses
        assert loss.outcome == "unknown"
        assert loss_text(loss, loss.at_ms).endswith(
            "; it is not known whether records were lost: the log of broker 0 may not be the one "
            "of then"
        )

    @pytest.mark.parametrize(
        ("removed_in", "returned_in", "is_kept", "isr_before", "expected"),
        [
            (None, None, True, [0, 2], "pending"),
            (None, 6, True, [0, 2], "none"),
            (5, 6, True, [0, 2], "uncommitted"),
            # It was in sync before, and has removed the end of its log after a later election.
            (7, 6, True, [0, 2], "none"),
            # Before the election.
            (4, 6, True, [0, 2], "none"),
            (None, 6, False, [0, 2], "unknown"),
            (None, 6, True, None, "unknown"),
        ],
    )
    def test_have_the_outcome_that_the_former_isr_shows(
        self,
        removed_in: int | None,
        returned_in: int | None,
        is_kept: bool,
        isr_before: list[int] | None,
        expected: str,
    ) -> None:
        def change(partition_epoch: int, leader_epoch: int, isr: list[int]) -> dict[str, Any]:
            return {
                "topic_id": "t",
                "topic": "t",
                "partition": 0,
                "at_ms": 9,
                "leader": 1,
                "partition_epoch": partition_epoch,
                "leader_epoch": leader_epoch,
                "is_unclean": False,
                "isr": json.dumps(isr),
                "replicas": "[0, 1, 2]",
            }

        left = None if isr_before is None else json.dumps(isr_before)
        election = change(7, 5, [1]) | {"is_unclean": True, "joined_isr": "[1]", "left_isr": left}
        losses = LossReader()
        losses.add_elections([election])
        changes = [change(6, 4, [0, 2]), election, change(8, 5, [1, 2])]
        if returned_in is not None:
            changes.append(change(9, returned_in, [0, 1, 2]))
        losses.add_changes(changes)
        if removed_in is not None:
            row = {"leader_epoch": removed_in, "version": 3, "at_ms": 9, "topic": "t", "leader": 1}
            row |= {"topic_id": "t", "partition": 0, "records_lost": 0, "records_removed": 2}
            losses.add_truncations(0, [row])
        [loss] = losses.losses(lambda *_: is_kept)
        assert (loss.outcome, loss.records) == (expected, 0)
        assert loss.removed == (2 if expected == "uncommitted" else 0)
        assert ("above the high watermark" in loss_text(loss, 9)) == (expected == "uncommitted")

    def test_of_a_replica_that_was_moved_are_unknown(self) -> None:
        election = {
            "topic_id": "t",
            "topic": "t",
            "partition": 0,
            "at_ms": 9,
            "leader": 1,
            "partition_epoch": 7,
            "leader_epoch": 5,
            "is_unclean": True,
            "isr": "[1]",
            "joined_isr": "[1]",
            "left_isr": "[0]",
            "replicas": "[0, 1]",
        }
        losses = LossReader()
        losses.add_elections([election])
        moved = election | {"partition_epoch": 8, "is_unclean": False, "replicas": "[1, 2]"}
        losses.add_changes([election, moved])
        assert [one.outcome for one in losses.losses(lambda *_: True)] == ["unknown"]

    def test_are_found_while_they_happen(self, cluster: LocalCluster) -> None:
        """--watch shows the election first, and how many records it lost once a replica is back."""
        cluster.create_topic(
            "clicks",
            assignment={0: [0, 1]},
            configs={"unclean.leader.election.enable": "true", "min.insync.replicas": "1"},
        )
        cluster.tick_until_idle()
        reader = StatusReader(Connection(root(cluster)))
        assert reader.read().losses == ()
        lose(cluster, 1)
        cluster.produce("clicks", 0, [b"a"] * 3, acks="all")
        cluster.tick_until_idle()
        cluster.crash(0)
        cluster.restart(1)
        cluster.fence(0)
        cluster.tick_until_idle()
        [loss] = reader.read().losses
        assert (loss.name, loss.leader, loss.records) == ("clicks-0", 1, 0)
        text = loss_text(loss, loss.at_ms + 7_200_000)
        assert text == (
            "unclean election of broker 1: clicks-0, 2 h ago; no replica has shown a lost record "
            "so far"
        )
        cluster.restart(0)
        cluster.tick_until_idle()
        [loss] = reader.read().losses
        assert (loss.name, loss.leader, loss.records, loss.brokers) == ("clicks-0", 1, 3, (0,))


class TestThePage:
    @pytest.fixture
    def page(self, lost: LocalCluster, tmp_path: Path) -> Path:
        """The page of a cluster that has lost records."""
        file = tmp_path / "status.html"
        found = run("status", "--html", file, "--utc", cluster=root(lost))
        assert found.stdout == f"{file}: open it in a browser\n"
        return file

    def test_shows_the_incidents(self, page: Path) -> None:
        text = page.read_text(encoding="utf-8")
        assert "<b>LOST</b> records were lost: clicks-0, 3 records" in text
        assert "clicks-0: broker 1 leads in place of broker 0, leader epoch 1" in text
        assert "broker 0 removed the offsets 0 to 2, 3 records, 3 of them committed" in text
        assert "<b>controller</b>" in text

    def test_shows_the_changes_of_a_commit_as_one_that_unfolds(self, page: Path) -> None:
        """A broker's end is one line, however many partitions it concerns."""
        text = page.read_text(encoding="utf-8")
        folded = re.findall(r"<summary>.*?<span>(.*?)</span></summary><ul>(.*?)</ul>", text)
        [(_, inner)] = [one for one in folded if "4 partitions: leader 1 fenced" in one[0]]
        assert inner.count("<li") == 5
        assert "orders-1: broker 2 leads in place of broker 1" in inner
        [unclean] = [head for head, _ in folded if "unclean" in head]
        assert "1 unclean election, " in unclean

    def test_has_no_number_of_ms(self, page: Path) -> None:
        """Times are of the calendar, without the seven digits of ms since 1970 that begin all."""
        text = page.read_text(encoding="utf-8")
        now_ms = SystemClock().now_ms()
        assert str(now_ms)[:5] not in text
        assert not re.search(r"\d{4,} ms", text)
        assert "all times in UTC" in text

    def test_fits_its_axis_to_a_short_history(
        self, lost: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A history of minutes is not a sliver in an axis of six hours.

        The test's own history may be shorter than the least time that is shown.
        """
        monkeypatch.setattr(status_history, "_LEAST_MS", 1)
        file = tmp_path / "status.html"
        run("status", "--html", file, cluster=root(lost))
        text = file.read_text(encoding="utf-8")
        begins = re.findall(r'<i class="[\w-]+" style="left:([\d.]+)%;width:', text)
        assert min(map(float, begins)) < 10

    def test_loads_nothing_and_runs_nothing(self, page: Path) -> None:
        text = page.read_text(encoding="utf-8")
        assert "<script" not in text
        assert "http://" not in text
        assert "https://" not in text
        assert "http-equiv" not in text

    @pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
    def test_is_drawn_by_a_browser(self, page: Path, tmp_path: Path) -> None:
        """The browser keeps the document as it is, reports no error, and paints it."""
        picture = tmp_path / "page.png"
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/b"]
        drawn = subprocess.run(
            [str(BROWSER), *options, f"--screenshot={picture}", "--dump-dom", page.as_uri()],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert "CONSOLE" not in drawn.stderr
        for part in ('class="tiles"', 'class="map"', "chart spans", "unclean election"):
            assert part in drawn.stdout
        assert picture.read_bytes().startswith(b"\x89PNG")

    def test_that_cannot_be_written_is_refused(self, cluster: LocalCluster, tmp_path: Path) -> None:
        refusal = run(
            "status", "--html", tmp_path / "none" / "a.html", cluster=root(cluster)
        ).refusal
        assert refusal.endswith("a.html cannot be written: No such file or directory")
