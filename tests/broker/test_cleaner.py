"""The log cleaner keeps what Kafka's cleaner keeps, and no crash or failure loses a record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog import Consumer
from sparklog.broker import cleaner
from sparklog.broker.cleaner import CleanReport
from sparklog.errors import FencedError
from sparklog.maintenance.audit import audit
from sparklog.maintenance.scrub import scrub
from sparklog.model import CLEANER_OFFSET_CHECKPOINT, Batch
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog
from sparklog.testing import LocalCluster
from tests.broker.states import log, rows, table
from tests.kafka_comparison.cleaning import (
    DELETE_RETENTION_MS,
    ROLL,
    Kept,
    KeyValue,
    cases,
    outcomes,
    without_rolls,
)

Start = Callable[..., LocalCluster]
LAG_MS = 120_000
POINTS = ("files", "producer_state", "log_commit", "cleaner_checkpoint")
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}


@pytest.fixture
def cluster(start: Start) -> LocalCluster:
    """Two brokers, and a compacted topic c of one partition."""
    return compacted(start(0, 1))


def compacted(cluster: LocalCluster, **configs: str) -> LocalCluster:
    keys = COMPACT | {name.replace("_", "."): value for name, value in configs.items()}
    cluster.create_topic("c", assignment={0: [0, 1]}, configs=keys)
    cluster.tick_until_idle()
    return cluster


def write(cluster: LocalCluster, *records: tuple[str, str | None]) -> None:
    """Store each record in a batch of its own."""
    for key, value in records:
        cluster.produce("c", 0, [None if value is None else value.encode()], keys=[key.encode()])
        cluster.tick_until_idle()


def pass_the_lag(cluster: LocalCluster, ms: int = LAG_MS) -> None:
    cluster.clock.advance(ms)
    cluster.tick_until_idle()


def kept(cluster: LocalCluster, broker: int) -> list[Kept]:
    return [
        Kept(
            one.offset, (one.key or b"").decode(), None if one.value is None else one.value.decode()
        )
        for one in cluster.log(broker, "c", 0)
    ]


def batches(cluster: LocalCluster, broker: int) -> list[Batch]:
    key = cluster.connection.metadata().partition("c", 0).key
    return list(RecordLog(Location.of(str(cluster.root / f"broker-{broker}"))).batches(key))


class TestAsKafka:
    @pytest.mark.parametrize("case", sorted(cases()))
    def test_it_keeps_the_records_that_kafka_keeps(self, start: Start, case: str) -> None:
        """The outcomes are those of Kafka 4.3, recorded by `record_cleaner`."""
        cluster = compacted(start(0, 1), delete_retention_ms=str(DELETE_RETENTION_MS))
        for number, phase in enumerate(cases()[case]):
            for part in (phase, [KeyValue(ROLL, str(number))]):
                values = [None if one.value is None else one.value.encode() for one in part]
                cluster.produce("c", 0, values, keys=[one.key.encode() for one in part])
                cluster.tick_until_idle()
            pass_the_lag(cluster)
            for broker in (0, 1):
                assert cluster.clean(broker).partitions == 1
                assert cluster.clean(broker) == CleanReport()
        expected = outcomes()[case]
        assert kept(cluster, 0) == kept(cluster, 1)
        assert without_rolls(kept(cluster, 0)) == expected
        assert audit(cluster.connection) == []


class TestACleanedLog:
    def test_keeps_offsets_and_the_range_of_every_epoch(self, cluster: LocalCluster) -> None:
        """Batches stay dense; a batch without a record left keeps its range of offsets."""
        write(cluster, ("a", "1"), ("b", "1"))
        cluster.crash(0)
        cluster.fence(0)
        cluster.tick_until_idle()
        write(cluster, ("a", "2"), ("b", "2"))
        cluster.restart(0)
        cluster.tick_until_idle()
        pass_the_lag(cluster)
        cluster.clean(0)
        assert kept(cluster, 0) == [Kept(2, "a", "2"), Kept(3, "b", "2")]
        first, second = batches(cluster, 0)
        assert (first.base_offset, first.next_offset, first.record_count) == (0, 2, 0)
        assert (second.base_offset, second.next_offset, second.record_count) == (2, 4, 2)
        assert first.leader_epoch < second.leader_epoch
        cluster.crash(0)
        cluster.restart(0)
        cluster.tick_until_idle()
        write(cluster, ("c", "1"))
        assert kept(cluster, 0)[-1] == Kept(4, "c", "1")
        assert audit(cluster.connection) == []

    def test_is_read_from_its_start_and_from_any_offset(self, cluster: LocalCluster) -> None:
        """A position inside a gap goes on at the next record."""
        write(cluster, *((f"k{n % 3}", str(n)) for n in range(9)))
        pass_the_lag(cluster)
        for broker in (0, 1):
            cluster.clean(broker)
        for position in (0, 3, 7):
            with Consumer(cluster.connection, auto_offset_reset="earliest") as consumer:
                consumer.assign([("c", 0)])
                consumer.seek(("c", 0), position)
                found: list[int] = []
                while not found or found[-1] < 8:
                    found += [one.offset for some in consumer.poll(1_000).values() for one in some]
            assert found == [offset for offset in (6, 7, 8) if offset >= position]

    def test_is_copied_by_a_follower_that_was_away(self, cluster: LocalCluster) -> None:
        """A follower copies cleaned batches, also one that begins before its position."""
        write(cluster, ("a", "1"), ("b", "1"))
        cluster.crash(1)
        cluster.fence(1)
        cluster.tick_until_idle()
        write(cluster, ("a", "2"), ("c", "1"), ("a", "3"))
        pass_the_lag(cluster)
        cluster.clean(0)
        cluster.restart(1)
        cluster.tick_until_idle()
        assert kept(cluster, 0) == [Kept(1, "b", "1"), Kept(3, "c", "1"), Kept(4, "a", "3")]
        assert kept(cluster, 1) == [Kept(0, "a", "1"), *kept(cluster, 0)]
        assert audit(cluster.connection) == []
        pass_the_lag(cluster)
        cluster.clean(1)
        assert kept(cluster, 1) == kept(cluster, 0)

    def test_differs_from_a_replica_that_is_not_clean_yet_without_a_finding(
        self, cluster: LocalCluster
    ) -> None:
        """Brokers clean independently; a record that is lost otherwise is still found."""
        write(cluster, *((f"k{n % 3}", str(n)) for n in range(9)))
        pass_the_lag(cluster)
        cluster.clean(0)
        assert len(kept(cluster, 0)) == 3
        assert len(kept(cluster, 1)) == 9
        assert audit(cluster.connection) == []

    def test_a_scrub_finds_a_later_record_of_a_key_in_another_batch(
        self, cluster: LocalCluster
    ) -> None:
        """Broker 0 lacks a@0. What replaced it is in a batch that both replicas have, so it is not
        among the batches that are compared.
        """
        write(cluster, ("a", "1"), ("b", "1"))
        cluster.crash(0)
        cluster.fence(0)
        cluster.tick_until_idle()
        # Batches of two leader epochs are never merged.
        write(cluster, ("a", "2"))
        cluster.restart(0)
        cluster.tick_until_idle()
        pass_the_lag(cluster)
        cluster.clean(0)
        assert batches(cluster, 0)[-1].base_offset == batches(cluster, 1)[-1].base_offset == 2
        assert kept(cluster, 0) != kept(cluster, 1)
        assert scrub(cluster.connection).findings == []
        assert audit(cluster.connection) == []

    def test_may_have_lost_a_tombstone_and_what_it_replaced(self, start: Start) -> None:
        """Broker 1 is not cleaned before broker 0 has removed the tombstone as well."""
        cluster = compacted(start(0, 1), delete_retention_ms=str(DELETE_RETENTION_MS))
        write(cluster, ("a", "1"), ("b", "1"), ("a", None), ("b", "2"))
        for _ in range(2):
            pass_the_lag(cluster, LAG_MS + DELETE_RETENTION_MS)
            cluster.clean(0)
            write(cluster, ("b", "3"))
        assert [one.key for one in kept(cluster, 0)].count("a") == 0
        assert [one.key for one in kept(cluster, 1)].count("a") == 2
        assert scrub(cluster.connection).findings == []
        assert audit(cluster.connection) == []

    def test_remembers_the_producers_of_removed_batches(self, cluster: LocalCluster) -> None:
        """An idempotent producer goes on, and a repeated batch is recognised (3.6)."""
        producer = cluster.idempotent_producer()
        for number in range(4):
            cluster.produce("c", 0, [b"%d" % number], keys=[b"k"], producer=producer)
            cluster.tick_until_idle()
        pass_the_lag(cluster)
        cluster.clean(0)
        assert len(batches(cluster, 0)) == 1
        pending = cluster.produce("c", 0, [b"4"], keys=[b"k"], producer=producer)
        cluster.tick_until_idle()
        assert pending.response is not None
        assert pending.response.error == "NONE"
        assert kept(cluster, 0) == [Kept(3, "k", "3"), Kept(4, "k", "4")]


class TestKeys:
    def test_a_batch_with_a_record_without_a_key_is_refused(self, cluster: LocalCluster) -> None:
        """The cleaner would remove the record; Kafka refuses it with the same code."""
        pending = cluster.produce("c", 0, [b"a", b"b"], keys=[b"k", None])
        cluster.tick_until_idle()
        assert pending.response is not None
        assert pending.response.error == "INVALID_RECORD"
        assert kept(cluster, 0) == []
        pending = cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        assert pending.response is not None
        assert pending.response.error == "NONE"


class TestRetention:
    @pytest.mark.parametrize(
        ("policy", "expected"), [("compact", [0, 2, 3]), ("compact,delete", [3])]
    )
    def test_old_records_go_if_the_policy_deletes_as_well(
        self, start: Start, policy: str, expected: list[int]
    ) -> None:
        """A log that is only compacted keeps the last record of a key for ever."""
        cluster = compacted(
            start(0, 1, log_retention_check_interval_ms=1),
            cleanup_policy=policy,
            retention_ms="3600000",
        )
        write(cluster, ("a", "1"), ("b", "1"), ("b", "2"))
        pass_the_lag(cluster)
        for broker in (0, 1):
            cluster.clean(broker)
        pass_the_lag(cluster, 3_600_000)
        write(cluster, ("c", "1"))
        pass_the_lag(cluster)
        for broker in (0, 1):
            cluster.clean(broker)
            assert [one.offset for one in kept(cluster, broker)] == expected
        assert audit(cluster.connection) == []


class TestSelection:
    def test_other_topics_are_left_alone(self, cluster: LocalCluster) -> None:
        cluster.produce("t", 0, [b"a", b"b"], keys=[b"k", b"k"])
        cluster.tick_until_idle()
        pass_the_lag(cluster)
        assert cluster.clean(0) == CleanReport()
        assert log(cluster, 0) == ["a", "b"]

    def test_a_log_is_cleaned_once_its_dirty_part_is_large_enough(self, start: Start) -> None:
        """Otherwise every new record would rewrite the whole log."""
        cluster = compacted(start(0, 1), min_cleanable_dirty_ratio="0.5")
        write(cluster, *((f"k{n}", str(n)) for n in range(10)))
        pass_the_lag(cluster)
        assert cluster.clean(0).partitions == 1
        write(cluster, ("k0", "new"))
        pass_the_lag(cluster)
        assert cluster.clean(0) == CleanReport()
        write(cluster, *((f"k{n}", "new") for n in range(10)))
        pass_the_lag(cluster)
        assert cluster.clean(0).partitions == 1
        assert len(kept(cluster, 0)) == 10

    def test_a_dirty_record_is_cleaned_in_time_whatever_the_ratio(self, start: Start) -> None:
        """max.compaction.lag.ms bounds how long a superseded record stays."""
        cluster = compacted(
            start(0, 1), min_cleanable_dirty_ratio="1", max_compaction_lag_ms="600000"
        )
        write(cluster, ("k", "1"), ("k", "2"))
        pass_the_lag(cluster)
        assert cluster.clean(0) == CleanReport()
        pass_the_lag(cluster, 600_000)
        assert cluster.clean(0).partitions == 1
        assert kept(cluster, 0) == [Kept(1, "k", "2")]

    def test_young_records_are_not_cleaned(self, start: Start) -> None:
        """min.compaction.lag.ms lets a reader at the head see every record."""
        cluster = compacted(start(0, 1), min_compaction_lag_ms="600000")
        write(cluster, ("k", "1"), ("k", "2"))
        pass_the_lag(cluster, 599_000)
        assert cluster.clean(0) == CleanReport()
        pass_the_lag(cluster, 2_000)
        assert cluster.clean(0).partitions == 1

    def test_a_log_with_more_keys_than_the_buffer_holds_is_cleaned_in_passes(
        self, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Memory does not grow with the log; after the last pass each key is there once."""
        monkeypatch.setattr(cleaner, "_BYTES_PER_KEY", 1 << 25)
        write(cluster, *((f"k{n % 5}", str(n)) for n in range(12)))
        pass_the_lag(cluster)
        counts = []
        while (report := cluster.clean(0)).partitions:
            counts.append(report.retained)
        assert len(counts) == 3
        assert [one.offset for one in kept(cluster, 0)] == [7, 8, 9, 10, 11]


class TestFailures:
    @pytest.mark.parametrize("point", POINTS)
    def test_a_crash_leaves_the_old_log_or_the_new(self, cluster: LocalCluster, point: str) -> None:
        """The next run completes it; the audit is clean at each point."""
        write(cluster, *((f"k{n % 3}", str(n)) for n in range(9)))
        pass_the_lag(cluster)
        before = kept(cluster, 0)
        cluster.clean(0, stop_after=point)
        cluster.restart(0)
        cluster.tick_until_idle()
        after = [Kept(offset, f"k{offset % 3}", str(offset)) for offset in (6, 7, 8)]
        assert kept(cluster, 0) == (before if point in POINTS[:2] else after)
        assert audit(cluster.connection) == []
        pass_the_lag(cluster)
        cluster.clean(0)
        assert kept(cluster, 0) == after
        assert len(rows(cluster, 0, CLEANER_OFFSET_CHECKPOINT)) == 1

    def test_a_file_that_cannot_be_read_leaves_its_log_and_cleans_others(
        self, cluster: LocalCluster
    ) -> None:
        """The damaged replica is repaired by the next ticks, and cleaned later."""
        write(cluster, ("a", "1"), ("a", "2"))
        cluster.create_topic("d", assignment={0: [0, 1]}, configs=COMPACT)
        cluster.tick_until_idle()
        cluster.produce("d", 0, [b"1", b"2"], keys=[b"k", b"k"])
        cluster.tick_until_idle()
        pass_the_lag(cluster)
        damaged = cluster.root / "broker-0" / "log" / batches(cluster, 0)[0].path
        damaged.write_bytes(b"?")
        report = cluster.clean(0)
        assert report.partitions == 1
        assert [one.value for one in cluster.log(0, "d", 0)] == [b"2"]
        for _ in range(3):
            cluster.clock.advance(10_000)
            cluster.tick_until_idle()
        assert [one.key for one in kept(cluster, 1)] == ["a", "a"]

    def test_a_log_that_changes_meanwhile_is_cleaned_by_the_next_run(
        self, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A merge takes the place of the chosen batches: nothing is committed over it."""
        write(cluster, *((f"k{n % 3}", str(n)) for n in range(40)))
        pass_the_lag(cluster)
        replace = cleaner.Cleaner._replace

        def and_merge(self: cleaner.Cleaner, *arguments: object) -> object:
            assert cluster.merge(0).batches == 40
            return replace(self, *arguments)  # type: ignore[arg-type]

        with monkeypatch.context() as context:
            context.setattr(cleaner.Cleaner, "_replace", and_merge)
            assert cluster.clean(0).retained == 0
        assert len(kept(cluster, 0)) == 40
        pass_the_lag(cluster)
        cluster.clean(0)
        assert [one.offset for one in kept(cluster, 0)] == [37, 38, 39]

    def test_a_lost_checkpoint_costs_one_pass_over_the_log(self, cluster: LocalCluster) -> None:
        """A damaged table is recreated without rows."""
        write(cluster, ("a", "1"), ("a", "2"))
        pass_the_lag(cluster)
        cluster.clean(0)
        folder = cluster.root / "broker-0" / CLEANER_OFFSET_CHECKPOINT.name
        for one in folder.glob("*.parquet"):
            one.write_bytes(b"?")
        cluster.crash(0)
        cluster.restart(0)
        pass_the_lag(cluster)
        assert cluster.clean(0).partitions == 1
        assert kept(cluster, 0) == [Kept(1, "a", "2")]
        assert table(cluster, 0, CLEANER_OFFSET_CHECKPOINT).rows().num_rows == 1

    def test_a_broker_that_was_replaced_cleans_nothing(self, cluster: LocalCluster) -> None:
        """The commit of the journal is fenced."""
        write(cluster, ("a", "1"), ("a", "2"))
        pass_the_lag(cluster)
        old = cluster.brokers[0]
        cluster.crash(0)
        cluster.restart(0)
        cluster.tick_until_idle()
        with pytest.raises(FencedError):
            old.clean()
        assert len(kept(cluster, 0)) == 2


def test_a_full_disk_leaves_the_log_and_no_files(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that were written before the failure are removed."""
    write(cluster, *((f"k{n % 3}", str(n)) for n in range(9)))
    pass_the_lag(cluster)
    inbox = Path(cluster.root) / "broker-0" / "log" / "_inbox"
    before = sorted(inbox.iterdir())

    def full(*_: object) -> object:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr("sparklog.storage.compaction.BatchFileWriter.write", full)
        assert cluster.clean(0) == CleanReport()
    assert sorted(inbox.iterdir()) == before
    assert len(kept(cluster, 0)) == 9
