"""Files that no table names any more are removed, and none that somebody still needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog import Consumer
from sparklog.broker.vacuum import VACUUMED_AT
from sparklog.cluster.roots import BrokerRoot, ClusterRoot
from sparklog.errors import StorageError
from sparklog.maintenance.audit import audit
from sparklog.model import (
    HIGH_WATERMARK_CHECKPOINT,
    LEADERSHIP_HISTORY,
    LOG,
    PARTITION_STATE,
    PRODUCE_REQUESTS,
    TOPICS,
    TopicIdPartition,
    new_batch_path,
)
from sparklog.producer.stream_writes import MicroBatch, SentFile, StreamWrites
from sparklog.storage import local_files, record_log
from sparklog.storage.batch_files import BatchFile
from sparklog.storage.delta_checkpoints import write_checkpoint
from sparklog.storage.delta_log_files import commit_path
from sparklog.storage.delta_snapshots import open_delta_table
from sparklog.storage.local_files import LocalFiles
from sparklog.storage.location import Location
from sparklog.storage.vacuum import COMMIT_RETENTION, FILE_RETENTION, read_table_files
from sparklog.testing import LocalCluster
from tests.broker.states import log, rows, table

Start = Callable[..., LocalCluster]
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MONTH_MS = 30 * DAY_MS
POINTS = (
    *("replica_history", "retention", "files"),
    *("history", "past", "cluster_retention", "cluster_files"),
)


@pytest.fixture
def cluster(start: Start) -> LocalCluster:
    """Two brokers that merge runs of two batches or more."""
    return start(0, 1, log_merger_min_batches=2)


def inbox(cluster: LocalCluster, broker: int) -> set[str]:
    folder = cluster.root / f"broker-{broker}" / "log" / "_inbox"
    folder.mkdir(exist_ok=True)
    return {f"_inbox/{one.name}" for one in folder.iterdir()}


def live(cluster: LocalCluster, broker: int) -> set[str]:
    root = Location.of(str(cluster.root / f"broker-{broker}"))
    return set(read_table_files(root.child(LOG.name)).live)


def data_files(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.glob("*.parquet"))


def merge_ten(cluster: LocalCluster) -> list[str]:
    """Write ten batches, merge them at both brokers, and return their values."""
    texts = [f"v{number}" for number in range(10)]
    for text in texts:
        cluster.produce("t", 0, [text.encode()])
        cluster.tick_until_idle()
    cluster.clock.advance(200_000)
    cluster.tick_until_idle()
    for broker in (0, 1):
        assert cluster.merge(broker) == (10, 1)
    return texts


def unknown_file(cluster: LocalCluster, broker: int = 0) -> str:
    """Store a batch file that no commit names, and return its path in the log."""
    path = new_batch_path()
    inbox(cluster, broker)
    (cluster.root / f"broker-{broker}" / "log" / path).write_bytes(b"never committed")
    return path


class TestRemoved:
    def test_files_of_merged_batches_go_after_their_delay_and_all_records_stay(
        self, cluster: LocalCluster
    ) -> None:
        """Before file.delete.delay.ms has passed every file stays; then the live one does."""
        texts = merge_ten(cluster)
        before = inbox(cluster, 0)
        assert len(before) == 11
        cluster.vacuum(0, after_ms=HOUR_MS - 60_000)
        assert inbox(cluster, 0) == before
        removed = cluster.vacuum(0, after_ms=HOUR_MS)
        assert removed.files >= 10
        assert inbox(cluster, 0) == live(cluster, 0)
        assert len(inbox(cluster, 0)) == 1
        assert len(inbox(cluster, 1)) == 11, "every broker cleans its own roots"
        assert log(cluster, 0) == log(cluster, 1) == texts
        assert audit(cluster.connection) == []
        cluster.crash(0)
        cluster.restart(0)
        cluster.tick_until_idle()
        cluster.produce("t", 0, [b"later"])
        cluster.tick_until_idle()
        assert log(cluster, 0) == log(cluster, 1) == [*texts, "later"]

    def test_removals_are_known_by_a_checkpoint_whose_commits_are_gone(
        self, cluster: LocalCluster
    ) -> None:
        """Delta's clean-up removes commits; the checkpoint names what they removed, and when."""
        merge_ten(cluster)
        folder = Location.of(str(cluster.root / "broker-0")).child(LOG.name)
        write_checkpoint(folder)
        for version in range(open_delta_table(folder).version()):
            folder.remove(commit_path(version))
        cluster.vacuum(0, after_ms=HOUR_MS - 60_000)
        assert len(inbox(cluster, 0)) == 11
        cluster.vacuum(0, after_ms=HOUR_MS)
        assert len(inbox(cluster, 0)) == 1

    def test_replaced_files_of_every_control_table_go(self, cluster: LocalCluster) -> None:
        """After the vacuum of both brokers each table of a busy cluster has its live files only."""
        merge_ten(cluster)
        for broker in (0, 1):
            cluster.crash(broker)
            cluster.restart(broker)
            cluster.tick_until_idle()
        no_data = {LOG.name, PRODUCE_REQUESTS.name}
        folders = [one.parent for one in cluster.root.glob("*/*/_delta_log")]
        folders = [one for one in folders if one.name not in no_data]
        dead = {one for one in folders if len(data_files(one)) > _live_count(one)}
        assert {one.name for one in dead} >= {HIGH_WATERMARK_CHECKPOINT.name, "brokers"}
        for broker in (0, 1):
            cluster.vacuum(broker, after_ms=DAY_MS)
        history = {TOPICS.name, PARTITION_STATE.name}
        for folder in folders:
            if folder.name not in history:
                assert len(data_files(folder)) == _live_count(folder), folder
        for broker in (0, 1):
            cluster.vacuum(broker, after_ms=MONTH_MS)
        for folder in folders:
            assert len(data_files(folder)) == _live_count(folder), folder

    def test_uploads_whose_request_was_never_made_go_after_a_week(
        self, cluster: LocalCluster
    ) -> None:
        path = unknown_file(cluster)
        cluster.vacuum(0, after_ms=7 * DAY_MS - HOUR_MS)
        assert path in inbox(cluster, 0)
        cluster.vacuum(0, after_ms=7 * DAY_MS + HOUR_MS)
        assert path not in inbox(cluster, 0)

    def test_unfinished_commits_go_after_a_day_and_files_of_others_never(
        self, cluster: LocalCluster
    ) -> None:
        """A process that is killed between writing a commit and linking it leaves such a file."""
        folder = cluster.root / "broker-0" / "log"
        unfinished = [
            folder / "_delta_log" / ".0123.tmp",
            folder / "_delta_log" / "_commit_0123.json.tmp",
            cluster.root / "cluster" / "brokers" / "_delta_log" / ".4567.tmp",
        ]
        foreign = [folder / "README.txt", folder / "_delta_log" / "notes.parquet.bak"]
        for one in (*unfinished, *foreign):
            one.write_bytes(b"?")
        cluster.vacuum(0, after_ms=DAY_MS - HOUR_MS)
        assert all(one.exists() for one in unfinished)
        cluster.vacuum(0, after_ms=MONTH_MS)
        assert not any(one.exists() for one in unfinished)
        assert all(one.exists() for one in foreign)


def _live_count(folder: Path) -> int:
    return len(open_delta_table(Location.of(str(folder))).file_uris())


class TestKept:
    def test_a_batch_that_waits_in_the_inbox_is_appended_after_a_month(
        self, cluster: LocalCluster
    ) -> None:
        """Brokers of scheduled runs may be away for long; the requests name their files."""
        pending = cluster.produce("t", 0, [b"waits"])
        cluster.vacuum(0, after_ms=MONTH_MS)
        cluster.tick_until_idle()
        assert pending.response is not None
        assert log(cluster, 0) == ["waits"]

    def test_the_noted_files_of_a_micro_batch_stay_until_it_is_done(
        self, cluster: LocalCluster
    ) -> None:
        """Another run of the micro-batch sends the same files, whatever time has passed."""
        path = unknown_file(cluster)
        key = cluster.connection.metadata().partition("t", 0).key
        of_log = Location.of(str(cluster.root / "broker-0" / "log"))
        noted = {TopicIdPartition(*key): [SentFile(of_log, BatchFile(path, 1, "", 1, 0, 0))]}
        writes, once = StreamWrites(cluster.connection), MicroBatch("q", 3)
        writes.begin(once, noted)
        cluster.vacuum(0, after_ms=MONTH_MS)
        assert path in inbox(cluster, 0)
        writes.finish(once)
        cluster.vacuum(0, after_ms=MONTH_MS)
        assert path not in inbox(cluster, 0)

    def test_a_file_that_is_committed_while_the_log_is_searched_stays(
        self, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The files are listed first, so the log that is read then names each file of the list."""
        cluster.produce("t", 0, [b"first"])
        files = Location.files

        def and_then_append(location: Location) -> object:
            found = list(files(location))
            if location.uri.endswith("broker-0/log"):
                cluster.leader_tick(0)
            return iter(found)

        cluster.produce("t", 0, [b"second"])
        with monkeypatch.context() as context:
            context.setattr(Location, "files", and_then_append)
            cluster.vacuum(0, after_ms=MONTH_MS)
        cluster.tick_until_idle()
        assert log(cluster, 0) == ["first", "second"]

    def test_a_dry_run_removes_nothing(self, cluster: LocalCluster) -> None:
        from sparklog.config import Settings
        from sparklog.maintenance.vacuum import total, vacuum_cluster

        merge_ten(cluster)
        before = inbox(cluster, 0)
        settings = Settings(**{"file.delete.delay.ms": 0})
        found = total(vacuum_cluster(cluster.connection, settings, is_dry_run=True))
        assert found.files >= 20
        assert inbox(cluster, 0) == before
        assert total(vacuum_cluster(cluster.connection, settings)).files == found.files
        assert inbox(cluster, 0) == live(cluster, 0)


class TestReaders:
    def test_a_consumer_that_was_paused_reads_on_in_the_merged_batches(
        self, cluster: LocalCluster
    ) -> None:
        """Its list of batches is older than their removal: it reads the log again."""
        texts = merge_ten_of(cluster, 6)
        with Consumer(cluster.connection, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            found = [one for some in consumer.poll(1_000, 1).values() for one in some]
            assert len(found) == 1
            cluster.clock.advance(200_000)
            cluster.tick_until_idle()
            for broker in (0, 1):
                assert cluster.merge(broker).batches == 6
                cluster.vacuum(broker, after_ms=DAY_MS)
            while len(found) < 6:
                found += [one for some in consumer.poll(1_000).values() for one in some]
        assert [one.value.decode() for one in found if one.value] == texts

    def test_a_table_that_was_opened_before_is_read_at_its_newest_version(
        self, cluster: LocalCluster
    ) -> None:
        """The files of the version that a paused process has loaded may be gone."""
        opened = table(cluster, 0, HIGH_WATERMARK_CHECKPOINT)
        states = ClusterRoot(Location.of(str(cluster.root / "cluster"))).partition_state
        for broker in (0, 1):
            cluster.crash(broker)
            cluster.fence(broker)
            cluster.restart(broker)
            cluster.tick_until_idle()
        for broker in (0, 1):
            cluster.vacuum(broker, after_ms=MONTH_MS)
        assert opened.rows().num_rows == 1
        assert {row["leader_epoch"] for row in states.rows().to_pylist()} == {
            cluster.partition("t", 0).leader_epoch
        }


def merge_ten_of(cluster: LocalCluster, count: int) -> list[str]:
    texts = [f"v{number}" for number in range(count)]
    for text in texts:
        cluster.produce("t", 0, [text.encode()])
        cluster.tick_until_idle()
    return texts


class TestLeadershipHistory:
    def history(self, cluster: LocalCluster) -> list[tuple[int, int | None]]:
        found = rows(cluster, None, LEADERSHIP_HISTORY)
        return sorted((row["leader_epoch"], row["leader"]) for row in found)

    def controller(self, cluster: LocalCluster) -> int:
        return next(one for one, broker in cluster.brokers.items() if broker.is_controller)

    def elect_each(self, cluster: LocalCluster) -> list[tuple[int, int | None]]:
        """Let each broker lead in turn; return the epochs and leaders as they were seen."""
        seen = [(0, cluster.partition("t", 0).leader)]
        for broker in (0, 1, 0):
            cluster.crash(broker)
            cluster.fence(broker)
            cluster.tick_until_idle()
            state = cluster.partition("t", 0)
            seen.append((state.leader_epoch, state.leader))
            cluster.restart(broker)
            cluster.tick_until_idle()
        return sorted(set(seen))

    def test_has_every_leader_epoch_after_the_versions_are_gone(
        self, cluster: LocalCluster
    ) -> None:
        """The controller adds them before their history is cleaned up, each once."""
        seen = self.elect_each(cluster)
        assert len(seen) == 4
        cluster.vacuum(self.controller(cluster), after_ms=HOUR_MS)
        assert self.history(cluster) == seen
        cluster.vacuum(self.controller(cluster), after_ms=MONTH_MS)
        assert self.history(cluster) == seen
        [state] = {row["leader_epoch"] for row in rows(cluster, None, PARTITION_STATE)}
        assert state == seen[-1][0]
        versions = [row["version"] for row in rows(cluster, None, LEADERSHIP_HISTORY)]
        assert versions == sorted(versions)

    def test_begins_again_at_the_current_leaders_if_commits_are_gone(
        self, cluster: LocalCluster
    ) -> None:
        """No vacuum ran for longer than metadata.history.retention.ms: the gap is logged."""
        cluster.vacuum(self.controller(cluster), after_ms=0)
        seen = self.elect_each(cluster)
        states = Location.of(str(cluster.root / "cluster")).child(PARTITION_STATE.name)
        write_checkpoint(states)
        for version in range(open_delta_table(states).version()):
            states.remove(commit_path(version))
        cluster.vacuum(self.controller(cluster), after_ms=HOUR_MS)
        assert self.history(cluster) == [seen[0], seen[-1]]

    def test_is_extended_by_the_controller_alone(self, cluster: LocalCluster) -> None:
        """A controller that was replaced without noticing is fenced, and removes nothing."""
        old = self.controller(cluster)
        cluster.pause(old)
        cluster.fence(old)
        cluster.tick_until_idle()
        assert self.controller_besides(cluster, old) != old
        cluster.vacuum(self.controller_besides(cluster, old), after_ms=HOUR_MS)
        before = rows(cluster, None, LEADERSHIP_HISTORY)
        cluster.brokers[old].vacuum(after_ms=MONTH_MS)
        assert rows(cluster, None, LEADERSHIP_HISTORY) == before

    def controller_besides(self, cluster: LocalCluster, old: int) -> int:
        others = {one: of for one, of in cluster.brokers.items() if one != old}
        return next(one for one, broker in others.items() if broker.is_controller)


class TestFailures:
    @pytest.mark.parametrize("point", POINTS)
    def test_a_crash_leaves_what_the_next_run_completes(
        self, cluster: LocalCluster, point: str
    ) -> None:
        texts = merge_ten(cluster)
        controller = next(one for one, of in cluster.brokers.items() if of.is_controller)
        cluster.vacuum(controller, stop_after=point, after_ms=MONTH_MS)
        assert controller not in cluster.brokers
        cluster.restart(controller)
        cluster.tick_until_idle()
        for broker in (0, 1):
            cluster.vacuum(broker, after_ms=MONTH_MS)
            assert inbox(cluster, broker) == live(cluster, broker)
            assert log(cluster, broker) == texts
        assert audit(cluster.connection) == []

    def test_a_table_whose_files_cannot_be_removed_leaves_the_others(
        self, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A read-only folder is logged; ticks go on, and the next run removes the rest."""
        texts = merge_ten(cluster)

        class ReadOnly(LocalFiles):
            def remove(self, path: str) -> None:
                if "/log/_inbox/" in path:
                    raise OSError(30, "Read-only file system")
                super().remove(path)

        checkpoints = cluster.root / "broker-0" / HIGH_WATERMARK_CHECKPOINT.name
        with monkeypatch.context() as context:
            context.setattr(local_files, "FILES", ReadOnly())
            cluster.vacuum(0, after_ms=MONTH_MS)
        assert len(inbox(cluster, 0)) == 11
        assert len(data_files(checkpoints)) == 1
        cluster.tick_until_idle()
        cluster.vacuum(0, after_ms=MONTH_MS)
        assert len(inbox(cluster, 0)) == 1
        assert log(cluster, 0) == texts

    def test_a_malformed_request_table_keeps_every_file_of_the_inbox_without_a_known_removal(
        self, cluster: LocalCluster
    ) -> None:
        """A table that cannot be read may name any file: nothing unknown is removed."""
        path = unknown_file(cluster)
        requests = cluster.root / "broker-0" / PRODUCE_REQUESTS.name / "_delta_log"
        newest = max(requests.glob("*.json"))
        following = requests / f"{int(newest.stem) + 1:020}.json"
        following.write_bytes(b'{"add": 7')
        cluster.vacuum(0, after_ms=MONTH_MS)
        assert path in inbox(cluster, 0)
        cluster.leader_tick(0)
        cluster.vacuum(0, after_ms=MONTH_MS)
        assert path not in inbox(cluster, 0)

    def test_a_copy_that_a_suspended_process_commits_too_late_is_not_committed(
        self, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The file was removed as one that no commit names; the tick fails, and the next copies."""
        cluster.produce("t", 0, [b"a"])
        cluster.leader_tick(0)
        before = inbox(cluster, 1)

        def suspended(since: tuple[float, float], seconds: float) -> bool:
            for path in inbox(cluster, 1) - before:
                (cluster.root / "broker-1" / "log" / path).unlink()
            return True

        with monkeypatch.context() as context:
            context.setattr("sparklog.storage.new_file.is_ago", suspended)
            with pytest.raises((StorageError, FileNotFoundError)):
                cluster.follower_tick(1)
        cluster.tick_until_idle()
        assert log(cluster, 1) == ["a"]


class TestDue:
    def test_a_root_is_searched_once_an_interval_whatever_process_runs_its_broker(
        self, cluster: LocalCluster
    ) -> None:
        """The time of the last run is an app transaction, so short processes share an interval."""
        merge_ten(cluster)
        broker = cluster.brokers[0]
        broker.vacuum()
        noted = BrokerRoot(Location.of(str(cluster.root / "broker-0"))).producer_state
        first = noted.transaction(VACUUMED_AT)
        assert first is not None
        cluster.crash(0)
        cluster.restart(0)
        cluster.brokers[0].vacuum()
        noted.refresh()
        assert noted.transaction(VACUUMED_AT) == first

    def test_retentions_of_an_older_root_are_extended_to_the_delays(self, start: Start) -> None:
        """Checkpoints name removed files for longer than they stay; history is kept as asked."""
        cluster = start(0, metadata_history_retention_ms=14 * DAY_MS, file_delete_delay_ms=DAY_MS)
        cluster.vacuum(0, after_ms=0)

        def properties(root: str, name: str) -> dict[str, str]:
            found = Location.of(str(cluster.root / root / name))
            return dict(open_delta_table(found).metadata().configuration)

        topics = properties("cluster", TOPICS.name)
        assert topics[COMMIT_RETENTION] == f"interval {14 * DAY_MS} milliseconds"
        assert topics[FILE_RETENTION] == f"interval {15 * DAY_MS} milliseconds"
        of_log = properties("broker-0", LOG.name)
        assert of_log[FILE_RETENTION] == f"interval {2 * DAY_MS} milliseconds"
        assert of_log[COMMIT_RETENTION] == "interval 1 hours"
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        cluster.crash(0)
        cluster.restart(0)
        cluster.tick_until_idle()
        assert log(cluster, 0) == ["a"]


def test_the_paths_of_removed_batches_are_forgotten_after_two_hours(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory for repeated requests does not grow for ever (3.7)."""
    merge_ten(cluster)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    [replicas] = cluster.brokers[0]._replicas
    held = replicas.root.log._removed
    assert len(held) == 10
    monkeypatch.setattr(record_log, "REMOVED_S", -1)
    for _ in range(2):
        cluster.produce("t", 0, [b"b"])
        cluster.tick_until_idle()
    cluster.clock.advance(200_000)
    cluster.tick_until_idle()
    assert cluster.merge(0).batches
    assert len(held) == 1
