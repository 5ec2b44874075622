"""A scrub reads everything once, in slices, keeps its rate, and continues where it has ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparklog.cluster.repairs import repairs_of
from sparklog.errors import StorageError
from sparklog.maintenance.scrub import ScrubProgress, ScrubReport, scrub
from sparklog.storage import execution, file_states
from sparklog.storage.file_states import FileState, NamedFile
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster, ManualClock
from tests.broker.damaging import batch_file, flip_byte, log_folder
from tests.broker.states import check_at_rest, report, rows
from tests.faulty_files import FaultyFiles

Start = Callable[..., LocalCluster]
BATCHES = 4


class Killed(BaseException):
    """The end of a process."""


@pytest.fixture
def cluster(start: Start) -> LocalCluster:
    """A cluster with four batches on three replicas, whose brokers do not scrub themselves."""
    cluster = start(0, 1, 2, log_scrub_bytes_per_second=0)
    for number in range(BATCHES):
        cluster.produce("t", 0, [b"%d" % number])
    cluster.tick_until_idle()
    return cluster


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the batch files that were read, in order."""
    paths: list[str] = []

    def noted(files: Any) -> list[FileState]:
        paths.extend(f"{one.log.uri}/{one.path}" for one in files)
        return file_states.read_files(files)

    monkeypatch.setattr(execution, "read_files", noted)
    return paths


def row(cluster: LocalCluster) -> dict[str, Any]:
    cluster.connection.root.scrubs.refresh()
    found: list[dict[str, Any]] = cluster.connection.root.scrubs.rows().to_pylist()
    return max(found, key=lambda one: one["started_at_ms"])


def in_small_slices(cluster: LocalCluster, **options: Any) -> ScrubReport:
    """Scrub in slices of one batch file, on a clock of its own that waiting moves."""
    clock = ManualClock()
    return scrub(
        cluster.connection,
        bytes_per_second=1,
        clock=clock,
        sleep=lambda seconds: clock.advance(int(seconds * 1000) + 1),
        **options,
    )


class TestPosition:
    def test_each_file_is_read_once(self, cluster: LocalCluster, read: list[str]) -> None:
        """A complete scrub reads each batch file of each replica once."""
        done = scrub(cluster.connection)
        assert done.is_complete
        assert len(read) == len(set(read)) == 3 * BATCHES
        assert row(cluster)["state"] == "done"
        assert row(cluster)["files"] == done.files

    def test_a_run_that_is_limited_is_continued_by_the_next(
        self, cluster: LocalCluster, read: list[str]
    ) -> None:
        """Each run goes on at the stored position, until all is read once, and reports how far it
        is: a bar without a total said nothing of the hours that were left.
        """
        runs = 0
        steps: dict[str, list[int]] = {}
        totals: dict[str, set[int]] = {}

        def note(progress: ScrubProgress) -> None:
            steps.setdefault(progress.phase, []).append(progress.done)
            totals.setdefault(progress.phase, set()).add(progress.total)

        while True:
            done = in_small_slices(cluster, max_bytes=2_000, on_progress=note)
            runs += 1
            if done.is_complete:
                break
            assert row(cluster)["state"] == "paused"
        assert runs > 3
        assert len(read) == len(set(read)) == 3 * BATCHES
        assert done.progress.files > done.files
        assert steps["files"] == [*range(1, 3 * BATCHES + 1)]
        assert steps["tables"] == sorted(steps["tables"])
        assert {phase: {numbers[-1]} for phase, numbers in steps.items()} == totals

    @pytest.mark.parametrize("point", ["findings", "position"])
    def test_a_scrub_that_is_killed_is_continued(
        self, cluster: LocalCluster, read: list[str], point: str
    ) -> None:
        """A killed run costs the slices since its last position, and loses no finding."""
        damaged = batch_file(cluster, 1, 2)
        flip_byte(damaged)
        flip_byte(batch_file(cluster, 2, 3))
        left = [1]

        def die(effect: str) -> None:
            is_there = bool(read) and f"{log_folder(cluster, 1)}/_inbox/" in read[-1]
            if effect == point and left and is_there:
                left.clear()
                raise Killed

        def run() -> ScrubReport:
            return in_small_slices(cluster, done=die)

        with pytest.raises(Killed):
            run()
        assert row(cluster)["state"] == "running"
        before = set(read)
        read.clear()
        done = run()
        assert done.is_complete
        assert {one.broker_id for one in done.findings} == {1, 2}
        assert len(read) < 3 * BATCHES
        assert before | set(read) >= {str(damaged)}
        assert len(before | set(read)) == 3 * BATCHES

    def test_batches_that_come_and_go_meanwhile_do_not_matter(
        self, cluster: LocalCluster, read: list[str]
    ) -> None:
        """A position stays valid although batches are appended between two runs."""
        while in_small_slices(cluster, max_bytes=500).progress.phase != "files":
            pass
        cluster.produce("t", 0, [b"new"])
        cluster.tick_until_idle()
        while not in_small_slices(cluster, max_bytes=500).is_complete:
            pass
        assert len(read) == len(set(read))

    def test_a_run_that_was_taken_over_ends(self, cluster: LocalCluster) -> None:
        """Of two runs at a time the earlier one is refused when it stores its position."""

        def rival(_: ScrubProgress) -> None:
            scrub(cluster.connection)

        with pytest.raises(StorageError, match="another run has taken over"):
            scrub(cluster.connection, on_progress=rival)

    def test_a_restart_begins_a_new_scrub(self, cluster: LocalCluster) -> None:
        """A scrub that was not completed may be given up."""
        first = in_small_slices(cluster, max_bytes=1)
        again = scrub(cluster.connection, restart=True)
        assert again.is_complete
        assert again.scrub_id != first.scrub_id

    def test_a_run_ends_at_its_time(self, cluster: LocalCluster) -> None:
        """A run ends after the slice during which its time has come."""
        clock = ManualClock()
        done = scrub(
            cluster.connection,
            clock=clock,
            until_ms=clock.now_ms() + 10,
            on_progress=lambda _: clock.advance(5),
        )
        assert not done.is_complete


def test_the_rate_is_kept(cluster: LocalCluster) -> None:
    """Waiting between slices keeps the bytes within the rate."""
    clock, waited = ManualClock(), []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        clock.advance(round(seconds * 1000))

    done = scrub(cluster.connection, bytes_per_second=10_000, clock=clock, sleep=sleep)
    assert done.is_complete
    assert sum(waited) == pytest.approx(done.bytes / 10_000, rel=0.05)


class TestFailures:
    def test_a_file_that_cannot_be_read_is_no_finding(
        self, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A store that does not answer is reported as unreadable, and the scrub goes on."""
        name = batch_file(cluster, 1, 1).name
        open_ = Location.open

        def failing(location: Location, path: str) -> Any:
            if path.endswith(name):
                raise OSError("the store is away")
            return open_(location, path)

        monkeypatch.setattr(Location, "open", failing)
        done = scrub(cluster.connection)
        assert done.is_complete
        assert done.findings == []
        [(what, reason)] = done.unreadable
        assert what.endswith(name)
        assert reason == "the store is away"

    def test_a_file_that_the_disk_cannot_read_is_a_finding(
        self, cluster: LocalCluster, tmp_path: Path
    ) -> None:
        """EIO of one file is damage to the file."""
        files = FaultyFiles(tmp_path / "stash")
        with files.installed():
            files.fail(str(log_folder(cluster, 2) / "_inbox"), "unread")
            done = scrub(cluster.connection)
        assert [(one.fault, one.broker_id) for one in done.findings] == [("damaged_file", 2)]

    def test_a_root_that_is_gone_is_no_finding(self, cluster: LocalCluster) -> None:
        """The files of a root that is not mounted are not missing."""
        root = log_folder(cluster, 1).parent
        root.rename(root.parent / "away")
        done = scrub(cluster.connection)
        assert done.findings == []
        assert [what for what, _ in done.unreadable] == [str(root)]

    def test_a_position_that_cannot_be_stored_ends_the_run(
        self, cluster: LocalCluster, tmp_path: Path
    ) -> None:
        """A full disk of the cluster root ends the run with an error; the next run continues."""
        files = FaultyFiles(tmp_path / "stash")
        with files.installed():
            files.fail(str(cluster.root / "cluster" / "scrubs" / "_delta_log"), "full", skip=1)
            with pytest.raises(OSError, match="create failed"):
                scrub(cluster.connection)
        assert row(cluster)["state"] == "running"
        assert scrub(cluster.connection).is_complete


class TestFindings:
    def test_are_closed_by_the_next_scrub_that_finds_the_file_sound(
        self, cluster: LocalCluster
    ) -> None:
        """A file that was restored by hand closes its finding; its row stays."""
        file = batch_file(cluster, 1, 1)
        content = file.read_bytes()
        flip_byte(file)
        assert len(scrub(cluster.connection).findings) == 1
        assert len(scrub(cluster.connection).findings) == 1
        file.write_bytes(content)
        assert scrub(cluster.connection).findings == []
        assert [one.state for one in repairs_of(cluster.connection.root)] == ["gone"]

    def test_of_batches_that_are_gone_are_closed(self, start: Start) -> None:
        """A finding about a batch that was merged or truncated is closed at the scrub's end."""
        cluster = start(0, 1, log_merger_min_lag_ms=1)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        flip_byte(batch_file(cluster, 1, 0))
        assert len(scrub(cluster.connection).findings) == 1
        cluster.clock.advance(1_000)
        # The broker's own scrub: the replica is refilled.
        check_at_rest(cluster, "a")
        assert scrub(cluster.connection).findings == []
        assert [one.outcome for one in repairs_of(cluster.connection.root)] == [
            "the batch is no longer part of its log"
        ]


class TestTheBrokersOwnScrub:
    """On an object store a broker verifies files in another thread, if a rate is configured."""

    def test_reads_no_object_store_unless_it_is_configured(self, start: Start) -> None:
        """Each file is a request there."""
        settings = start(0).settings
        assert settings.scrub_bytes_per_second(is_local=True) > 0
        assert settings.scrub_bytes_per_second(is_local=False) == 0
        changed = settings.model_validate({"log.scrub.bytes.per.second": 1 << 20})
        assert changed.scrub_bytes_per_second(is_local=False) == 1 << 20

    def test_beside_the_ticks_finds_damage(self, start: Start) -> None:
        """The findings of the other thread are noted by the next tick."""
        from sparklog.storage.parallel import background_thread

        cluster = start(0, 1, 2)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        repairs = cluster.brokers[1]._repairs[0]
        repairs._beside = background_thread("scrub")
        flip_byte(batch_file(cluster, 1, 0))
        cluster.clock.advance(1_000)
        cluster.leader_tick(1)
        assert repairs._reading is not None
        repairs._reading.result()
        cluster.leader_tick(1)
        assert report(cluster, 1)["damaged_offset"] == 0
        check_at_rest(cluster, "a")


def test_findings_are_kept_within_bounds(cluster: LocalCluster) -> None:
    """Of closed findings the last 1,000 are kept, and of scrubs the last 20."""
    from sparklog.cluster.repairs import finding, record

    table = cluster.connection.root.repairs
    found = [
        finding("missing_file", "x", "r", "log", broker_id=0, path=str(n), remedy="", now_ms=n)
        for n in range(1_100)
    ]
    record(table, found, {}, 0)
    record(table, [], {one.repair_id: "gone" for one in found[:1_050]}, 1)
    kept = repairs_of(cluster.connection.root)
    assert len(kept) == 1_050
    assert sum(one.is_open for one in kept) == 50
    for _ in range(22):
        scrub(cluster.connection, max_bytes=1, restart=True)
    cluster.connection.root.scrubs.refresh()
    assert cluster.connection.root.scrubs.rows().num_rows == 20
    assert rows(cluster, None, cluster.connection.root.scrubs.schema)


def test_named_files_are_picklable(cluster: LocalCluster) -> None:
    """The work and its results go to Spark tasks and back."""
    import pickle

    log = Location.of(str(log_folder(cluster, 1)))
    file = batch_file(cluster, 1, 0)
    named = NamedFile(log, f"_inbox/{file.name}", file.stat().st_size)
    state = file_states.file_state(pickle.loads(pickle.dumps(named)))
    assert pickle.loads(pickle.dumps(state)) == state
    assert (state.head, state.tail) == (b"PAR1", b"PAR1")
