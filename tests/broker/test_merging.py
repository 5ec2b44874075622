"""Small batches are merged into one by each replica on its own, without a visible effect (rule
8.4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import pyarrow.parquet as pq
import pytest

from sparklog.errors import FencedError
from sparklog.maintenance.audit import audit
from sparklog.model import Batch, Record, TopicIdPartition, new_batch_path
from sparklog.producer.stream_writes import MicroBatch, SentFile, StreamWrites
from sparklog.protocol.driver_rules import DriverRules
from sparklog.storage.batch_files import BatchFile, BatchFileWriter, read_records, records_table
from sparklog.storage.batch_merging import Merge
from sparklog.storage.execution import DriverExecution
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog
from sparklog.testing import LocalCluster
from tests.broker.states import check_at_rest, journal, report, take_out, values

Start = Callable[..., LocalCluster]
LAG_MS = 120_000
POINTS = ("files", "producer_state", "log_commit", "checkpoint")


@pytest.fixture
def cluster(start: Start) -> LocalCluster:
    """Two brokers that merge runs of two batches or more."""
    return start(0, 1, log_merger_min_batches=2)


def write(cluster: LocalCluster, *texts: str) -> list[str]:
    """Store each text in a batch of its own; return the texts."""
    for text in texts:
        cluster.produce("t", 0, [text.encode()])
    cluster.tick_until_idle()
    return list(texts)


def pass_the_lag(cluster: LocalCluster) -> None:
    cluster.clock.advance(LAG_MS)
    cluster.tick_until_idle()


def batches(
    cluster: LocalCluster, broker: int, topic: str = "t", number: int = 0
) -> Sequence[Batch]:
    """Return the batches of a replica, as its table has them."""
    key = cluster.connection.metadata().partition(topic, number).key
    return RecordLog(Location.of(str(cluster.root / f"broker-{broker}"))).batches(key)


def sizes(cluster: LocalCluster, broker: int) -> list[int]:
    """Return the number of records of each batch of a replica."""
    return [batch.record_count for batch in batches(cluster, broker)]


def everything(cluster: LocalCluster, broker: int) -> list[Record]:
    return cluster.log(broker, "t", 0)


class TestAMergedBatch:
    def test_holds_the_records_of_those_it_was_merged_of(self, cluster: LocalCluster) -> None:
        """Offsets, epochs, times, keys and values are equal; the other replica is unchanged."""
        for number in range(5):
            cluster.clock.advance(7)
            keys = [b"k%d" % number, None]
            cluster.produce("t", 0, [b"v%d" % number, None], keys=keys)
            cluster.tick_until_idle()
        pass_the_lag(cluster)
        before = everything(cluster, 0)
        old = batches(cluster, 0)
        assert cluster.merge(0) == (5, 1)
        [merged] = batches(cluster, 0)
        assert everything(cluster, 0) == before
        assert [one.record_count for one in batches(cluster, 1)] == [2] * 5
        assert merged[:2] != old[0][:2]
        assert (merged.base_offset, merged.next_offset, merged.leader_epoch) == (0, 10, 0)
        assert (merged.producer_id, merged.producer_epoch, merged.base_sequence) == (-1, -1, -1)
        times = old[0].min_timestamp_ms, old[-1].max_timestamp_ms
        assert (merged.min_timestamp_ms, merged.max_timestamp_ms) == times

    def test_is_one_row_group(self, cluster: LocalCluster) -> None:
        """A merged batch is one row group."""
        write(cluster, *map(str, range(9)))
        pass_the_lag(cluster)
        cluster.merge(0)
        [merged] = batches(cluster, 0)
        file = cluster.root / "broker-0" / "log" / merged.path
        assert pq.ParquetFile(file).metadata.num_row_groups == 1

    def test_is_named_by_its_brokers_row_at_once(self, cluster: LocalCluster) -> None:
        """Readers go on from the new version; an older version can be read as long as its commits
        exist.
        """
        write(cluster, "a", "b")
        pass_the_lag(cluster)
        before = report(cluster, 0)
        old = RecordLog(Location.of(str(cluster.root / "broker-0")))
        cluster.merge(0)
        after = report(cluster, 0)
        assert after == before | {"log_version": before["log_version"] + 1}
        assert values(cluster.consume("t", 0)) == ["a", "b"]
        old_files = [cluster.root / "broker-0" / "log" / one.path for one in old._live.values()]
        assert all(file.exists() for file in old_files)

    def test_is_merged_again_with_what_follows(self, cluster: LocalCluster) -> None:
        """A merged batch is as old as its sources, counts as one batch, and can be merged again."""
        write(cluster, "a", "b", "c")
        pass_the_lag(cluster)
        write(cluster, "d", "e")
        assert cluster.merge(0) == (3, 1)
        assert cluster.merge(0) == (0, 0)
        pass_the_lag(cluster)
        assert cluster.merge(0) == (3, 1)
        assert sizes(cluster, 0) == [5]


class TestWhatIsMerged:
    def test_is_old_enough_to_be_asked_for_by_no_retry(self, cluster: LocalCluster) -> None:
        """Batches are merged once they are older than log.merger.min.lag.ms, when no retry can
        come.
        """
        write(cluster, "a", "b")
        cluster.clock.advance(LAG_MS - 1)
        assert cluster.merge(0) == (0, 0)
        cluster.clock.advance(1)
        assert cluster.merge(0) == (2, 1)

    def test_is_below_the_high_watermark(self, start: Start) -> None:
        """Only batches below the high watermark are merged."""
        cluster = start(0, 1, min_isr=2, log_merger_min_batches=2)
        write(cluster, "a", "b")
        cluster.crash(1)
        for text in (b"c", b"d"):
            cluster.produce("t", 0, [text], acks=1)
            cluster.leader_tick(0)
        cluster.clock.advance(LAG_MS)
        assert cluster.merge(0) == (2, 1)
        assert sizes(cluster, 0) == [2, 1, 1]

    def test_is_of_one_leader_epoch(self, cluster: LocalCluster) -> None:
        """Batches of different leader epochs are not merged with each other."""
        write(cluster, "a", "b")
        cluster.crash(0)
        cluster.fence(0)
        write(cluster, "c", "d")
        cluster.restart(0)
        cluster.tick_until_idle()
        pass_the_lag(cluster)
        assert cluster.merge(0) == (4, 2)
        assert cluster.merge(1) == (4, 2)
        epochs = [(one.leader_epoch, one.record_count) for one in batches(cluster, 0)]
        assert epochs == [(0, 2), (1, 2)]
        check_at_rest(cluster, "a", "b", "c", "d")

    def test_of_several_partitions_is_one_commit(self, start: Start) -> None:
        """The merged batches of several partitions are one commit."""
        cluster = start(0, assignment={0: [0], 1: [0]}, log_merger_min_batches=2)
        for _ in range(3):
            for partition in (0, 1):
                cluster.produce("t", partition, [b"x"])
            cluster.tick_until_idle()
        pass_the_lag(cluster)
        before = report_version(cluster, 0)
        assert cluster.merge(0) == (6, 2)
        assert report_version(cluster, 0) == before + 1

    def test_is_not_awaited_by_a_micro_batch_that_may_run_again(
        self, cluster: LocalCluster
    ) -> None:
        """A batch of an unfinished micro-batch is not merged, because a rerun may send it again
        under its id at any time (decision 8).
        """
        write(cluster, "a", "b", "c", "d")
        pass_the_lag(cluster)
        topic_id = cluster.connection.metadata().topic("t").topic_id
        key = cluster.connection.metadata().partition("t", 0).key
        sent = batches(cluster, 0)[2]
        file = BatchFile(sent.path, sent.size_bytes, sent.checksum, 1, 0, 0)
        location = Location.of(str(cluster.root / "broker-0" / "log"))
        writes = StreamWrites(cluster.connection)
        once = MicroBatch("query", 0, topic_id)
        writes.begin(once, {key: [SentFile(location, file)]})
        for broker in (0, 1):
            assert cluster.merge(broker) == (2, 1)
            assert sizes(cluster, broker) == [2, 1, 1]
        writes.finish(once)
        write(cluster, "e")
        pass_the_lag(cluster)
        assert cluster.merge(0) == (4, 1)

    def test_goes_on_after_a_tick_that_has_failed(
        self, cluster: LocalCluster, fail_once: Callable[[str, str], None]
    ) -> None:
        """A merge goes on after a failed tick of the same broker."""
        write(cluster, "a", "b")
        cluster.clock.advance(LAG_MS)
        cluster.produce("t", 0, [b"c"], acks=1)
        fail_once("write", "/log")
        with pytest.raises(OSError, match="away"):
            cluster.leader_tick(0)
        assert cluster.merge(0) == (2, 1)
        cluster.tick_until_idle()
        assert values(cluster.consume("t", 0)) == ["a", "b", "c"]


def report_version(cluster: LocalCluster, broker: int) -> int:
    return journal(cluster, broker).version


class TestAPollThatFindsNothing:
    def test_reads_nothing_again(self, cluster: LocalCluster, rules_run: list[str]) -> None:
        """After a merge that finds nothing, the rule runs again only if there are new batches."""
        write(cluster, "a", "b", "c")
        pass_the_lag(cluster)
        cluster.merge(0)
        cluster.merge(0)
        rules_run.clear()
        assert cluster.merge(0) == (0, 0)
        assert rules_run == []

    def test_does_not_read_what_is_far_back(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Batches that no later run can include are skipped; otherwise the cost would grow with the
        log.
        """
        config = {"log_merger_min_batches": 2, "log_merger_max_batch_bytes": 12_000}
        cluster = start(0, **config)
        polled_at: list[int] = []
        run = DriverRules.run

        def noted(self: DriverRules, name: str, **inputs: Any) -> list[dict[str, Any]]:
            if name == "mergeable_batches":
                polled_at.append(len(inputs["batches"]))
            return run(self, name, **inputs)

        monkeypatch.setattr(DriverRules, "run", noted)
        for _ in range(10):
            write(cluster, *"abcdefghij")
            pass_the_lag(cluster)
            while cluster.merge(0).batches:
                pass
        assert max(polled_at) <= 30
        assert len(batches(cluster, 0)) <= 20
        assert [record.offset for record in everything(cluster, 0)] == list(range(100))


class TestFollowers:
    def test_that_were_away_copy_merged_batches(self, start: Start) -> None:
        """A follower that was away copies merged batches from its leader."""
        cluster = start(0, 1, 2, log_merger_min_batches=2)
        cluster.crash(2)
        cluster.fence(2)
        write(cluster, "a", "b", "c")
        pass_the_lag(cluster)
        cluster.merge(0)
        cluster.restart(2)
        check_at_rest(cluster, "a", "b", "c")
        assert sizes(cluster, 2) == [3]
        assert sizes(cluster, 1) == [1, 1, 1]

    def test_that_stand_inside_a_merged_batch_take_what_follows(self, start: Start) -> None:
        """A follower whose log ends inside a merged batch copies the rest of that batch."""
        cluster = start(0, 1, 2, log_merger_min_batches=2)
        write(cluster, "a", "b")
        cluster.crash(2)
        cluster.fence(2)
        write(cluster, "c", "d")
        pass_the_lag(cluster)
        assert cluster.merge(0) == (4, 1)
        cluster.restart(2)
        check_at_rest(cluster, "a", "b", "c", "d")
        assert sizes(cluster, 2) == [1, 1, 2]

    def test_merge_what_they_have_and_lead_with_it(self, cluster: LocalCluster) -> None:
        """A follower merges its own batches and keeps them when it becomes the leader."""
        write(cluster, "a", "b", "c")
        pass_the_lag(cluster)
        assert cluster.merge(1) == (3, 1)
        cluster.crash(0)
        cluster.fence(0)
        write(cluster, "d")
        cluster.restart(0)
        check_at_rest(cluster, "a", "b", "c", "d")
        assert (sizes(cluster, 0), sizes(cluster, 1)) == ([1, 1, 1, 1], [3, 1])

    def test_read_on_at_the_version_that_their_leaders_row_names(
        self, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The follower does not open the leader's log again."""
        write(cluster, "a", "b")
        pass_the_lag(cluster)
        opened: list[object] = []
        reopen = RecordLog._reopen

        def noted(of: RecordLog, version: int | None = None) -> None:
            opened.append(of)
            reopen(of, version)

        monkeypatch.setattr(RecordLog, "_reopen", noted)
        cluster.merge(0)
        write(cluster, "c", "d")
        pass_the_lag(cluster)
        cluster.merge(0)
        write(cluster, "e")
        check_at_rest(cluster, *"abcde")
        assert opened == []


class TestReaders:
    def test_find_the_same_whichever_replica_they_read(self, cluster: LocalCluster) -> None:
        """A merge changes nothing that a consumer reads, at any offset and of any replica."""
        write(cluster, *"abcdef")
        pass_the_lag(cluster)
        reading = cluster.consume("t", 0, from_offset=2)
        cluster.merge(0)
        for offset in range(7):
            assert cluster.consume("t", 0, from_offset=offset) == everything(cluster, 1)[offset:]
        assert cluster.consume("t", 0, from_offset=2) == reading

    def test_an_audit_finds_that_replicas_agree_however_they_are_cut(self, start: Start) -> None:
        """An audit reports no difference between replicas that have merged differently."""
        cluster = start(0, 1, 2, log_merger_min_batches=2)
        write(cluster, *"abc")
        pass_the_lag(cluster)
        cluster.merge(1)
        write(cluster, *"def")
        pass_the_lag(cluster)
        cluster.merge(0)
        assert (sizes(cluster, 0), sizes(cluster, 1)) == ([6], [3, 1, 1, 1])
        assert audit(cluster.connection) == []

    def test_that_hold_a_merged_files_name_read_it(self, cluster: LocalCluster) -> None:
        """A reader that has planned with an older version still finds its files."""
        write(cluster, *"abc")
        pass_the_lag(cluster)
        planned = batches(cluster, 0)
        cluster.merge(0)
        location = Location.of(str(cluster.root / "broker-0" / "log"))
        assert values(list(read_records(location, planned, 0, 3))) == ["a", "b", "c"]


class TestATickInBetween:
    @pytest.fixture
    def meanwhile(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
        """Run an action once, between the write of a merged file and its commit."""

        def arrange(action: Callable[[], object]) -> None:
            merge = DriverExecution.merge
            waiting = [action]

            def interposed(of: DriverExecution, merges: Sequence[Merge]) -> list[Batch | str]:
                found = merge(of, merges)
                if waiting:
                    waiting.pop()()
                return found

            monkeypatch.setattr(DriverExecution, "merge", interposed)

        return arrange

    def test_appends_and_the_merge_goes_on(
        self, cluster: LocalCluster, meanwhile: Callable[[Callable[[], object]], None]
    ) -> None:
        """A tick that appends during a merge does not stop it."""
        write(cluster, "a", "b")
        pass_the_lag(cluster)
        meanwhile(lambda: write(cluster, "c"))
        assert cluster.merge(0) == (2, 1)
        check_at_rest(cluster, "a", "b", "c")
        assert sizes(cluster, 0) == [2, 1]

    def test_truncates_and_what_it_cut_is_not_merged(
        self, start: Start, meanwhile: Callable[[Callable[[], object]], None]
    ) -> None:
        """The truncation is below the high watermark, which only an unclean election causes."""
        cluster = start(0, 1, log_merger_min_batches=2)
        write(cluster, "a")
        cluster.crash(1)
        cluster.fence(1)
        write(cluster, "b", "c")
        pass_the_lag(cluster)
        assert sizes(cluster, 0) == [1, 1, 1]
        old = cluster.brokers[0]
        cluster.pause(0)
        cluster.restart(1)
        cluster.fence(0)
        cluster.elect_leaders("unclean", [("t", 0)])
        write_by(cluster, 1, "x")

        def truncate() -> None:
            cluster.resume(0)
            cluster.tick_until_idle()

        meanwhile(truncate)
        assert old.merge() == (0, 0)
        check_at_rest(cluster, "a", "x")
        assert sizes(cluster, 0) == [1, 1]

    def test_of_a_newer_process_leaves_a_zombie_nothing_to_write(
        self, cluster: LocalCluster
    ) -> None:
        """A process that was replaced cannot commit a merge."""
        write(cluster, "a", "b")
        pass_the_lag(cluster)
        old = take_out(cluster, 0)
        cluster.restart(0)
        with pytest.raises(FencedError):
            old.merge()
        assert sizes(cluster, 0) == [1, 1]
        check_at_rest(cluster, "a", "b")


def write_by(cluster: LocalCluster, leader: int, text: str) -> None:
    cluster.leader_tick(leader)
    cluster.produce("t", 0, [text.encode()], acks=1)
    cluster.leader_tick(leader)


class TestACrash:
    @pytest.mark.parametrize("point", POINTS)
    def test_between_two_effects_leaves_a_whole_log(
        self, cluster: LocalCluster, point: str
    ) -> None:
        """A crash between two effects of a merge leaves a complete log, and retries are
        recognised.
        """
        producer = cluster.idempotent_producer()
        sent = [cluster.produce("t", 0, [b"%d" % n], producer=producer) for n in range(4)]
        cluster.tick_until_idle()
        pass_the_lag(cluster)
        cluster.merge(0, stop_after=point)
        assert 0 not in cluster.brokers
        cluster.restart(0)
        cluster.tick_until_idle()
        is_merged = point in ("log_commit", "checkpoint")
        assert sizes(cluster, 0) == ([4] if is_merged else [1] * 4)
        for offset, pending in enumerate(sent):
            again = producer.retry(pending)
            cluster.tick_until_idle()
            assert again.response is not None
            assert (again.response.error, again.response.base_offset) == ("NONE", offset)
        assert cluster.merge(0) == ((0, 0) if is_merged else (4, 1))
        check_at_rest(cluster, "0", "1", "2", "3")


class TestAnUnreadableBatch:
    def test_leaves_its_partition_alone_for_a_while_and_no_other(self, start: Start) -> None:
        """An unreadable batch delays the merges of its own partition by 5 minutes, and of no
        other.
        """
        cluster = start(0, assignment={0: [0], 1: [0]}, log_merger_min_batches=2)
        for _ in range(3):
            for partition in (0, 1):
                cluster.produce("t", partition, [b"x"])
            cluster.tick_until_idle()
        pass_the_lag(cluster)
        file = cluster.root / "broker-0" / "log" / batches(cluster, 0)[1].path
        content = file.read_bytes()
        file.write_bytes(content[:-1] + b"?")
        there = set(file.parent.iterdir())
        assert cluster.merge(0) == (3, 1)
        assert [one.record_count for one in batches(cluster, 0, number=1)] == [3]
        assert len(set(file.parent.iterdir()) - there) == 1, "a file for what was merged"
        assert cluster.merge(0) == (0, 0)
        file.write_bytes(content)
        assert cluster.merge(0) == (0, 0)
        cluster.clock.advance(300_000)
        cluster.tick_until_idle()
        assert cluster.merge(0) == (3, 1)


def test_ten_thousand_small_batches_become_few(start: Start) -> None:
    """The number of live batches stays low, and so does the number of batches that a merge
    reads.
    """
    cluster = start(0)
    replicas = cluster.brokers[0]._leaders[0]._replicas
    key = cluster.connection.metadata().partition("t", 0).key
    for first in range(0, 10_000, 500):
        append(cluster, key, range(first, first + 500))
    replicas.put(key, "t", high_watermark=10_000)
    replicas.commit(0)
    pass_the_lag(cluster)
    merged = 0
    while found := cluster.merge(0).batches:
        merged += found
    assert merged < 11_000, "hardly anything is rewritten twice"
    live = batches(cluster, 0)
    assert len(live) < 150
    assert all(one.next_offset == other.base_offset for one, other in pairwise(live))
    assert values(cluster.consume("t", 0)) == [str(n) for n in range(10_000)]


def append(cluster: LocalCluster, key: TopicIdPartition, numbers: Iterable[int]) -> None:
    """Append a batch for each number to a log, as a leader's commit does."""
    log = cluster.brokers[0]._leaders[0]._root.log
    added = []
    for number in numbers:
        writer = BatchFileWriter(log.location, new_batch_path())
        writer.write(records_table([b"%d" % number], None, cluster.clock.now_ms()))
        file = writer.close()
        header = (*key[:1], "t", *key[1:], 0, number, -1, -1, -1)
        times = file.min_timestamp_ms, file.max_timestamp_ms
        added.append(Batch(file.path, file.size_bytes, *header, file.checksum, 1, 0, *times))
    log.commit(added, now_ms=cluster.clock.now_ms())
