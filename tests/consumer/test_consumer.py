"""The consumer without Spark, with assigned partitions: records and positions."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sparklog.cluster import committed_logs
from sparklog.cluster.connection import Connection
from sparklog.cluster.offsets import beginning_offsets, end_offsets, offsets_for_times
from sparklog.consumer.assigned_partition import ConsumerRecord
from sparklog.consumer.consumer import Consumer
from sparklog.errors import (
    ConfigError,
    LogTruncationError,
    NoOffsetForPartitionError,
    ProtocolError,
    SparklogError,
)
from sparklog.groups.committed_offsets import CommittedOffsets, OffsetAndMetadata
from sparklog.model import Batch, TopicPartition
from sparklog.producer.plain import Producer
from sparklog.protocol.driver_rules import DriverRules
from sparklog.storage import batch_files
from sparklog.storage.control_table import ControlTable
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog
from sparklog.testing import LocalCluster
from tests.running_cluster import RunningCluster

T0 = TopicPartition("t", 0)


def values(polled: dict[TopicPartition, list[ConsumerRecord]]) -> list[bytes | None]:
    return [record.value for records in polled.values() for record in records]


def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """Poll until `count` records have been returned, or 30 s have passed."""
    found: list[ConsumerRecord] = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        for records in consumer.poll(1_000).values():
            found += records
    assert len(found) == count
    return found


@pytest.fixture
def local(tmp_path: Path) -> LocalCluster:
    """A cluster without background activity, with an empty topic t on brokers 0, 1 and 2."""
    cluster = LocalCluster(tmp_path, [0, 1, 2], config={"unclean.leader.election.enable": "false"})
    cluster.create_topic("t", assignment={0: [0, 1, 2]}, configs={"min.insync.replicas": 1})
    return cluster


@pytest.fixture
def connection(local: LocalCluster, tmp_path: Path) -> Connection:
    return Connection(str(tmp_path / "cluster"))


def consumer_of(connection: Connection, group_id: str | None = None, **config: Any) -> Consumer:
    """Return a consumer of t-0 that begins at the earliest offset."""
    consumer = Consumer(connection, group_id, **({"auto_offset_reset": "earliest"} | config))
    consumer.assign([T0])
    return consumer


def produced(cluster: LocalCluster, *batches: list[bytes]) -> None:
    for batch in batches:
        cluster.produce("t", 0, batch)
    cluster.tick_until_idle()


class TestWhatMayBeSeen:
    def test_nothing_above_the_high_watermark(
        self, local: LocalCluster, connection: Connection
    ) -> None:
        """A batch in the leader's log is not visible before the followers have reported it."""
        produced(local, [b"a", b"b"])
        consumer = consumer_of(connection)
        assert values(consumer.poll()) == [b"a", b"b"]
        local.produce("t", 0, [b"c"])
        local.leader_tick(0)
        assert local.replica(0, "t", 0).log_end_offset == 3
        assert consumer.poll() == {}
        assert consumer.end_offsets([T0]) == {T0: 2}
        local.tick_until_idle()
        assert values(consumer.poll()) == [b"c"]

    def test_a_new_leader_that_has_yet_to_catch_up_is_waited_for(
        self, local: LocalCluster, connection: Connection
    ) -> None:
        """A consumer keeps its position until a new leader has reached it."""
        produced(local, [b"a", b"b"])
        consumer = consumer_of(connection)
        consumer.poll()
        local.crash(0)
        local.fence(0)
        assert local.partition("t", 0).leader == 1
        assert consumer.poll(10) == {}
        assert consumer.position(T0) == 2
        local.produce("t", 0, [b"c"])
        local.tick_until_idle()
        [record] = consumer.poll(1_000)[T0]
        assert (record.offset, record.value, record.leader_epoch) == (2, b"c", 1)

    def test_a_fetch_is_served_up_to_the_high_watermark_while_the_latest_offset_is_unknown(
        self, local: LocalCluster, connection: Connection
    ) -> None:
        """Rule 10.2: KIP-207 applies to requests for the latest offset, not to fetches. The new
        leader does not know yet that the last records are committed. Its ISR is smaller than
        min.insync.replicas, so its high watermark stays below the start of its epoch.
        """
        local.create_topic("two", assignment={0: [0, 1, 2]}, configs={"min.insync.replicas": 2})
        two = TopicPartition("two", 0)
        local.produce("two", 0, [b"%d" % number for number in range(5)])
        local.tick_until_idle()
        local.produce("two", 0, [b"5", b"6", b"7"])
        local.leader_tick(0)
        local.follower_tick(1)
        local.follower_tick(2)
        local.leader_tick(0)
        first = Consumer(connection, auto_offset_reset="earliest", default_api_timeout_ms=20)
        first.assign([two])
        assert len(values(first.poll())) == 8
        for broker in (0, 2):
            local.crash(broker)
            local.fence(broker)
        local.tick_until_idle()
        assert local.partition("two", 0).leader == 1
        assert (local.replica(1, "two", 0).high_watermark, local.leader_epochs(1, "two", 0)) == (
            5,
            [(0, 0), (1, 8)],
        )
        late = Consumer(connection, auto_offset_reset="earliest", default_api_timeout_ms=20)
        late.assign([two])
        assert values(late.poll()) == [b"0", b"1", b"2", b"3", b"4"]
        assert (late.poll(), first.poll()) == ({}, {})
        assert (late.position(two), first.position(two)) == (5, 8)
        with pytest.raises(ProtocolError, match="OFFSET_NOT_AVAILABLE"):
            late.end_offsets([two])
        assert late.beginning_offsets([two]) == {two: 0}
        [found] = late.offsets_for_times({two: 0}).values()
        assert found is not None
        assert found.offset == 0
        with pytest.raises(ProtocolError, match="OFFSET_NOT_AVAILABLE"):
            late.offsets_for_times({two: 10**15})
        at_end = Consumer(connection, auto_offset_reset="latest", default_api_timeout_ms=20)
        at_end.assign([two])
        assert at_end.poll() == {}
        with pytest.raises(ProtocolError, match="REQUEST_TIMED_OUT: the position of two-0"):
            at_end.position(two)
        with pytest.raises(ProtocolError, match="OFFSET_NOT_AVAILABLE"):
            local.consume("two", 0)
        local.restart(2)
        local.tick_until_idle()
        assert values(late.poll()) == [b"5", b"6", b"7"]
        assert first.poll() == {}
        assert at_end.position(two) == 8

    def test_a_partition_that_is_offline_hides_no_other(
        self, local: LocalCluster, connection: Connection
    ) -> None:
        """An offline partition does not prevent reads of the others."""
        local.create_topic("gone", assignment={0: [2]})
        produced(local, [b"a"])
        local.produce("gone", 0, [b"x"])
        local.tick_until_idle()
        local.crash(2)
        local.fence(2)
        local.tick_until_idle()
        consumer = Consumer(connection, auto_offset_reset="earliest", default_api_timeout_ms=20)
        consumer.assign([("gone", 0), T0])
        assert values(consumer.poll(1_000)) == [b"a"]
        with pytest.raises(ProtocolError, match="REQUEST_TIMED_OUT: the position of gone-0"):
            consumer.position(("gone", 0))
        with pytest.raises(ProtocolError, match="LEADER_NOT_AVAILABLE"):
            consumer.end_offsets([("gone", 0)])
        local.restart(2)
        local.tick_until_idle()
        assert values(consumer.poll(1_000)) == [b"x"]

    def test_a_poll_that_finds_nothing_new_loads_nothing(
        self, local: LocalCluster, connection: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A poll without new records costs version checks only: it reads no rows and no log, and
        runs no rule.
        """
        produced(local, [b"a"])
        consumer = consumer_of(connection)
        consumer.poll()
        touched: list[str] = []
        for of, name in (
            (ControlTable, "_read"),
            (DeltaTable, "update_incremental"),
            (RecordLog, "_load"),
            (Connection, "visible"),
            (DriverRules, "run"),
        ):
            original = getattr(of, name)

            def noting(*given: Any, original: Any = original, name: str = name, **more: Any) -> Any:
                touched.append(name)
                return original(*given, **more)

            monkeypatch.setattr(of, name, noting)
        for _ in range(5):
            assert consumer.poll(5) == {}
        assert touched == []
        produced(local, [b"b"])
        touched.clear()
        assert values(consumer.poll(1_000)) == [b"b"]
        assert "run" in touched

    def test_only_the_file_of_the_position_is_read(
        self, local: LocalCluster, connection: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A poll reads only the file that contains the position."""
        produced(local, *[[b"%d" % one] * 10 for one in range(20)])
        consumer = consumer_of(connection, max_poll_records=5)
        consumer.seek(T0, 105)
        files: list[str] = []
        original = consumer._logs.read

        def noting(location: Location, batch: Batch) -> pa.Table:
            files.append(batch.path)
            return original(location, batch)

        monkeypatch.setattr(consumer._logs, "read", noting)
        [records] = consumer.poll().values()
        assert [record.offset for record in records] == list(range(105, 110))
        assert len(files) == 1


class TestNearestReplica:
    @pytest.fixture
    def racks(self, tmp_path: Path) -> LocalCluster:
        """A cluster whose brokers are in different racks; broker 0 leads t-0."""
        cluster = LocalCluster(tmp_path, [0, 1, 2], racks={0: "a", 1: "b", 2: "c"})
        cluster.create_topic("t", assignment={0: [0, 1, 2]})
        produced(cluster, [b"a"], [b"b"])
        return cluster

    @pytest.mark.parametrize(("rack", "broker"), [("a", 0), ("b", 1), ("c", 2), ("d", 0), ("", 0)])
    def test_is_the_one_in_the_consumers_rack_and_else_the_leader(
        self,
        racks: LocalCluster,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        rack: str,
        broker: int,
    ) -> None:
        """A consumer reads the replica in its rack, and otherwise the leader."""
        assert racks.replica(1, "t", 0).high_watermark == 2
        consumer = consumer_of(Connection(str(tmp_path / "cluster")), client_rack=rack)
        read_from = set()
        read = consumer._logs.read

        def noting(location: Location, batch: Batch) -> pa.Table:
            read_from.add(location.uri)
            return read(location, batch)

        monkeypatch.setattr(consumer._logs, "read", noting)
        assert values(consumer.poll(1_000)) == [b"a", b"b"]
        assert read_from == {str(tmp_path / f"broker-{broker}")}

    def test_reads_no_batch_file_of_the_leader(
        self, racks: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A leader in another region is read for offsets only (KIP-392)."""
        read: list[str] = []
        read_batch = batch_files.read_batch

        def noted(log: Location, batch: Batch) -> pa.Table:
            read.append(Path(log.uri).parent.name)
            return read_batch(log, batch)

        monkeypatch.setattr(committed_logs, "read_batch", noted)
        near = consumer_of(Connection(str(tmp_path / "cluster")), client_rack="b")
        assert values(near.poll(1_000)) == [b"a", b"b"]
        produced(racks, [b"c"])
        assert values(near.poll(1_000)) == [b"c"]
        assert set(read) == {"broker-1"}

    def test_shows_nothing_above_its_own_high_watermark(
        self, racks: LocalCluster, tmp_path: Path
    ) -> None:
        """A consumer of a follower reads no record above the follower's high watermark."""
        near = consumer_of(Connection(str(tmp_path / "cluster")), client_rack="b")
        far = consumer_of(Connection(str(tmp_path / "cluster")))
        assert len(values(near.poll())) == len(values(far.poll())) == 2
        racks.produce("t", 0, [b"c"])
        racks.leader_tick(0)
        racks.follower_tick(1)
        racks.follower_tick(2)
        racks.leader_tick(0)
        assert (racks.replica(0, "t", 0).high_watermark, racks.replica(1, "t", 0)[2]) == (3, 2)
        assert near.poll(5) == {}
        assert values(far.poll()) == [b"c"]
        racks.tick_until_idle()
        assert values(near.poll(1_000)) == [b"c"]

    def test_that_has_left_the_in_sync_set_is_not_read(
        self, racks: LocalCluster, tmp_path: Path
    ) -> None:
        """Broker 1 is alive but no longer follows, so its log is outdated."""
        near = consumer_of(Connection(str(tmp_path / "cluster")), client_rack="b")
        racks.clock.advance(racks.settings.replica_lag_time_max_ms + 1)
        racks.follower_tick(2)
        racks.produce("t", 0, [b"c"])
        for _ in range(3):
            racks.leader_tick(0)
            racks.follower_tick(2)
            racks.clock.advance(racks.settings.replica_lag_time_max_ms // 2 + 1)
        racks.leader_tick(0)
        assert racks.partition("t", 0).isr == [0, 2]
        read = values(near.poll(1_000))
        if len(read) < 3:
            # With metadata up to 100 ms old, broker 1 is still in sync.
            assert read == [b"a", b"b"]
            read += values(near.poll(1_000))
        assert read == [b"a", b"b", b"c"]

    def test_that_has_yet_to_follow_the_new_leader_is_not_read(
        self, racks: LocalCluster, tmp_path: Path
    ) -> None:
        """A replica that has not followed the new leader is not read: its high watermark is not
        valid.
        """
        near = consumer_of(Connection(str(tmp_path / "cluster")), client_rack="c")
        racks.crash(0)
        racks.fence(0)
        racks.leader_tick(1)
        assert (racks.partition("t", 0).leader, racks.partition("t", 0).isr) == (1, [1, 2])
        shutil.rmtree(tmp_path / "broker-2" / "log" / "_inbox")
        found = values(near.poll(1_000))
        while len(found) < 2:
            # With metadata from before the election, an unreadable replica is read once.
            found += values(near.poll(1_000))
        assert found == [b"a", b"b"]


class TestUncleanElections:
    """Broker 1 becomes the leader with a log that lacks visible records (rule 8.2, KIP-320)."""

    @pytest.fixture
    def truncated(self, local: LocalCluster) -> Any:
        """Return a function that truncates the records from offset 2 on, which a consumer has
        read.
        """

        def truncate() -> None:
            local.crash(0)
            local.restart(1)
            local.restart(2)
            local.fence(0)
            assert local.elect_leaders("unclean", [("t", 0)]) == {("t", 0): "NONE"}
            local.tick_until_idle()
            produced(local, [b"C"])

        produced(local, [b"a", b"b"])
        local.crash(1)
        local.crash(2)
        local.clock.advance(local.settings.replica_lag_time_max_ms + 1)
        local.tick_until_idle()
        produced(local, [b"c", b"d"])
        assert local.partition("t", 0).isr == [0]
        return truncate

    def test_are_raised_where_nothing_is_reset(
        self, truncated: Any, connection: Connection
    ) -> None:
        """With auto.offset.reset=none a truncation raises `LogTruncationError` with the divergent
        offset.
        """
        consumer = consumer_of(connection, auto_offset_reset="none")
        consumer.seek(T0, 0)
        assert values(consumer.poll()) == [b"a", b"b", b"c", b"d"]
        truncated()
        with pytest.raises(LogTruncationError, match="OFFSET_OUT_OF_RANGE: t-0 was trunc") as told:
            consumer.poll(5_000)
        assert told.value.divergent_offset == 2
        consumer.seek(T0, 2)
        assert values(consumer.poll(1_000)) == [b"C"]

    @pytest.mark.parametrize("policy", ["earliest", "latest"])
    def test_take_the_consumer_back_to_where_the_logs_differ(
        self, truncated: Any, connection: Connection, policy: str
    ) -> None:
        """With another auto.offset.reset a truncation moves the consumer back to the divergent
        offset.
        """
        consumer = consumer_of(connection, auto_offset_reset=policy)
        consumer.seek(T0, 0)
        assert values(consumer.poll()) == [b"a", b"b", b"c", b"d"]
        truncated()
        assert values(consumer.poll(5_000)) == [b"C"]

    def test_are_noticed_by_a_committed_offset_too(
        self, truncated: Any, connection: Connection
    ) -> None:
        """A consumer that was away finds the leader epoch in the offset that it committed."""
        first = consumer_of(connection, "g", enable_auto_commit=False)
        first.poll()
        first.commit()
        assert first.committed(T0) == OffsetAndMetadata(4, "", 0)
        truncated()
        later = consumer_of(connection, "g", auto_offset_reset="none")
        with pytest.raises(LogTruncationError):
            later.poll(5_000)

    def test_are_noticed_where_the_new_leader_never_knew_the_epoch(
        self, truncated: Any, local: LocalCluster, connection: Connection
    ) -> None:
        """A truncation is detected although the new leader's log is longer than the position."""
        truncated()
        consumer = consumer_of(connection, auto_offset_reset="none")
        consumer.seek(T0, 0)
        assert values(consumer.poll()) == [b"a", b"b", b"C"]
        local.crash(1)
        local.crash(2)
        local.restart(0)
        local.fence(1)
        assert local.elect_leaders("unclean", [("t", 0)]) == {("t", 0): "NONE"}
        local.tick_until_idle()
        assert [record.value for record in local.log(0, "t", 0)] == [b"a", b"b", b"c", b"d"]
        with pytest.raises(LogTruncationError, match="t-0 was truncated below") as told:
            consumer.poll(5_000)
        assert told.value.divergent_offset is None


class TestPositions:
    @pytest.fixture
    def ten(self, local: LocalCluster, connection: Connection) -> Connection:
        """A connection to a cluster with the values 0 to 9 in t-0, in three batches."""
        produced(local, *[[b"%d" % n for n in range(*some)] for some in ((0, 3), (3, 7), (7, 10))])
        return connection

    def test_begin_where_auto_offset_reset_says(self, ten: Connection, local: LocalCluster) -> None:
        """A consumer without a committed offset begins where auto.offset.reset determines."""
        assert consumer_of(ten).position(T0) == 0
        latest = consumer_of(ten, auto_offset_reset="latest")
        assert latest.position(T0) == 10
        produced(local, [b"new"])
        assert values(latest.poll(1_000)) == [b"new"]
        with pytest.raises(NoOffsetForPartitionError, match="t-0 has no committed offset"):
            consumer_of(ten, auto_offset_reset="none").poll()

    def test_seek_goes_anywhere_inside_the_log(self, ten: Connection) -> None:
        """`seek` moves the position to any offset of the log; a negative offset is refused."""
        consumer = consumer_of(ten, max_poll_records=100)
        assert len(values(consumer.poll())) == 10
        for offset in (4, 0, 9, 3):
            consumer.seek(T0, offset)
            assert consumer.position(T0) == offset
            assert values(consumer.poll()) == [b"%d" % n for n in range(offset, 10)]
        consumer.seek_to_beginning(T0)
        assert (consumer.position(T0), consumer.lag(T0)) == (0, 10)
        consumer.seek_to_end()
        assert (consumer.position(T0), consumer.lag(T0)) == (10, 0)
        with pytest.raises(ProtocolError, match="OFFSET_OUT_OF_RANGE: the offset -1 for"):
            consumer.seek(T0, -1)
        assert consumer.position(T0) == 10

    def test_outside_the_log_are_reset_or_refused(self, ten: Connection) -> None:
        """A position outside the log is reset, or refused with auto.offset.reset=none."""
        strict = consumer_of(ten, auto_offset_reset="none")
        strict.seek(T0, 11)
        with pytest.raises(ProtocolError, match="OFFSET_OUT_OF_RANGE: the position 11 of t-0"):
            strict.poll()
        strict.seek(T0, 10)
        assert strict.poll() == {}
        lenient = consumer_of(ten)
        lenient.seek(T0, 11)
        assert len(values(lenient.poll())) == 10

    def test_before_the_log_start_are_reset_or_refused(
        self, ten: Connection, local: LocalCluster
    ) -> None:
        """Records were deleted up to an offset within a batch: none of them is read."""
        resets = ("none", "earliest", "latest")
        consumers = [consumer_of(ten, auto_offset_reset=one, max_poll_records=2) for one in resets]
        for consumer in consumers:
            consumer.seek(T0, 0)
            assert values(consumer.poll()) == [b"0", b"1"]

        def first_by_time() -> int | None:
            found = consumers[0].offsets_for_times({T0: 0})[T0]
            return found.offset if found else None

        assert first_by_time() == 0
        local.delete_records({T0: 5})
        local.tick_until_idle()
        strict, earliest, latest = consumers
        for consumer in consumers:
            consumer.seek(T0, 4)
        with pytest.raises(ProtocolError, match="OFFSET_OUT_OF_RANGE: the position 4 of t-0"):
            strict.poll()
        assert values(earliest.poll()) == [b"5", b"6"]
        assert values(latest.poll()) == []
        produced(local, [b"new"])
        assert values(latest.poll(1_000)) == [b"new"]
        assert strict.beginning_offsets([T0]) == {T0: 5}
        assert first_by_time() == 5
        strict.seek_to_beginning(T0)
        assert values(strict.poll()) == [b"5", b"6"]

    def test_a_seek_drops_what_was_fetched(self, ten: Connection) -> None:
        """A seek drops fetched records."""
        consumer = consumer_of(ten, max_poll_records=2)
        assert values(consumer.poll()) == [b"0", b"1"]
        consumer.seek(T0, 8)
        assert values(consumer.poll()) == [b"8", b"9"]

    def test_a_paused_partition_keeps_its_place(self, ten: Connection, local: LocalCluster) -> None:
        """A paused partition keeps its position, and its fetched records are not returned."""
        local.create_topic("u", assignment={0: [1]})
        local.produce("u", 0, [b"x", b"y"])
        local.tick_until_idle()
        consumer = Consumer(ten, auto_offset_reset="earliest", max_poll_records=3)
        consumer.assign([T0, ("u", 0)])
        consumer.pause(T0)
        assert consumer.paused() == [T0]
        assert values(consumer.poll()) == [b"x", b"y"]
        assert consumer.poll() == {}
        consumer.resume(T0)
        assert values(consumer.poll()) == [b"0", b"1", b"2"]
        consumer.pause(T0)
        assert consumer.poll() == {}, "not even what was fetched before"
        consumer.resume(T0)
        assert values(consumer.poll()) == [b"3", b"4", b"5"]
        with pytest.raises(SparklogError, match="u-1 is not assigned"):
            consumer.pause(("u", 1))

    def test_assigning_again_keeps_the_partitions_that_stay(self, ten: Connection) -> None:
        """Assigning a partition again keeps its position."""
        consumer = consumer_of(ten, max_poll_records=4)
        consumer.poll()
        consumer.assign([T0])
        assert (consumer.assignment(), consumer.position(T0)) == ([T0], 4)
        consumer.unsubscribe()
        assert consumer.assignment() == []
        with pytest.raises(SparklogError, match="nothing is read"):
            consumer.poll()

    def test_a_committed_offset_is_gone_on_from(self, ten: Connection) -> None:
        """A consumer continues at its group's committed offset."""
        first = consumer_of(ten, "g", max_poll_records=4, enable_auto_commit=False)
        assert first.committed(T0) is None
        first.poll()
        first.poll()
        first.commit({T0: OffsetAndMetadata(4, "noted", 0)})
        first.close()
        second = consumer_of(ten, "g")
        assert second.committed(T0) == OffsetAndMetadata(4, "noted", 0)
        assert second.position(T0) == 4
        assert values(second.poll()) == [b"%d" % n for n in range(4, 10)]
        assert consumer_of(ten, "another").position(T0) == 0

    def test_nothing_is_returned_before_the_committed_offset_is_known(
        self, ten: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An unavailable store must not make the consumer begin at another offset."""
        consumer_of(ten, "g").commit({T0: 8})
        consumer = consumer_of(ten, "g")
        original = CommittedOffsets.fetch

        def fail(*_: object) -> None:
            raise OSError("the store is away")

        monkeypatch.setattr(CommittedOffsets, "fetch", fail)
        assert consumer.poll(20) == {}
        monkeypatch.setattr(CommittedOffsets, "fetch", original)
        assert values(consumer.poll(1_000)) == [b"8", b"9"]

    def test_auto_commit_counts_what_earlier_polls_returned(self, ten: Connection) -> None:
        """Auto-commit commits the records of earlier polls, and not those of the last one."""
        consumer = consumer_of(ten, "g", max_poll_records=4, auto_commit_interval_ms=0)
        consumer.poll()
        assert consumer.committed(T0) is None, "it may not be processed yet"
        consumer.poll()
        assert consumer.committed(T0) == OffsetAndMetadata(4, "", 0)
        consumer.close()
        assert consumer_of(ten, "g").position(T0) == 8

    def test_an_auto_commit_that_changes_nothing_writes_nothing(self, ten: Connection) -> None:
        """An auto-commit without a change makes no commit."""
        consumer = consumer_of(ten, "g", auto_commit_interval_ms=0)
        consumer.poll()
        consumer.poll()
        version = ControlTable(ten.root.location, ten.root.consumer_offsets.schema).version
        consumer.poll(20)
        consumer.close()
        ten.root.consumer_offsets.refresh()
        assert ten.root.consumer_offsets.version == version

    @pytest.mark.parametrize(
        ("offset", "said"),
        [
            (OffsetAndMetadata(1, "x" * 4097), "OFFSET_METADATA_TOO_LARGE: the metadata for t-0"),
            (-1, "OFFSET_OUT_OF_RANGE: the offset -1 to commit for t-0 is out of range"),
        ],
    )
    def test_a_commit_that_makes_no_sense_changes_nothing(
        self, ten: Connection, offset: OffsetAndMetadata | int, said: str
    ) -> None:
        """An invalid commit is refused and changes nothing."""
        consumer = consumer_of(ten, "g")
        with pytest.raises(ProtocolError, match=said):
            consumer.commit({T0: offset})
        assert consumer.committed(T0) is None


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("config", "said"),
        [
            ({"auto_offset_reset": "by_duration:PT1H"}, r"auto\.offset\.reset .* has the value"),
            ({"isolation_level": "read_committed"}, r"isolation\.level .* has the value"),
            ({"group": "g"}, "unknown configuration key group in"),
            ({"heartbeat_interval_ms": 45_000}, r"must be below session\.timeout\.ms"),
            (
                {"partition_assignment_strategy": "cooperative-sticky"},
                "has the value 'cooperative-sticky': .*'range', 'roundrobin' or 'sticky'",
            ),
        ],
    )
    def test_a_configuration_that_makes_no_sense(
        self, connection: Connection, config: dict[str, Any], said: str
    ) -> None:
        """An invalid configuration raises `ConfigError`."""
        with pytest.raises(ConfigError, match=said):
            Consumer(connection, **config)

    def test_what_needs_a_group_without_one(self, connection: Connection) -> None:
        """Subscriptions and commits without a group id are refused with INVALID_GROUP_ID."""
        consumer = consumer_of(connection)
        for action in (
            lambda: consumer.subscribe(["t"]),
            consumer.commit,
            lambda: consumer.committed(T0),
            lambda: Consumer(connection, ""),
        ):
            with pytest.raises(ProtocolError, match="INVALID_GROUP_ID"):
                action()

    def test_partitions_that_are_not_there(self, connection: Connection) -> None:
        """Unknown partitions are refused with UNKNOWN_TOPIC_OR_PARTITION."""
        consumer = consumer_of(connection)
        with pytest.raises(ProtocolError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            consumer.assign([("t", 1)])
        assert consumer.assignment() == [T0]
        with pytest.raises(ProtocolError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            consumer.partitions_for_topic("u")

    def test_both_ways_to_be_assigned_at_once(self, connection: Connection) -> None:
        """A subscription and an assignment at the same time are refused."""
        consumer = Consumer(connection, "g")
        with pytest.raises(SparklogError, match="topics or to a pattern"):
            consumer.subscribe(["t"], pattern="t")
        with pytest.raises(SparklogError, match="not a regular expression"):
            consumer.subscribe(pattern="(")
        consumer.subscribe(["t"])
        with pytest.raises(SparklogError, match="unsubscribe first"):
            consumer.assign([T0])
        consumer.unsubscribe()
        consumer.assign([T0])
        with pytest.raises(SparklogError, match="unsubscribe first"):
            consumer.subscribe(["t"])


class TestOffsetsByTime:
    def test_search_committed_records_alone(
        self, local: LocalCluster, connection: Connection
    ) -> None:
        """`offsets_for_times` finds only committed records, and refuses negative timestamps."""
        produced(local, [b"a"])
        stamp = local.clock.now_ms()
        local.clock.advance(10)
        local.produce("t", 0, [b"b"])
        local.leader_tick(0)
        found = offsets_for_times(connection, {T0: stamp + 1})
        assert found == {T0: None}
        local.tick_until_idle()
        [later] = offsets_for_times(connection, {T0: stamp + 1}).values()
        assert later == (1, stamp + 10, 0)
        with pytest.raises(SparklogError, match="timestamp -1 for t-0 is negative"):
            offsets_for_times(connection, {T0: -1})


class TestWithBrokersThatRun:
    def test_a_record_comes_back_with_all_that_it_had(
        self, running_cluster: RunningCluster
    ) -> None:
        """A record is read with all its fields."""
        running_cluster.create_topic("all")
        headers = [("trace", b"\x00\x01"), ("none", None)]
        with Producer(running_cluster.connection) as producer:
            producer.send("all", b"v", key=b"\xff", headers=headers, timestamp_ms=1234)
            producer.send("all", None, timestamp_ms=1235)
        with Consumer(running_cluster.connection, auto_offset_reset="earliest") as consumer:
            consumer.assign([("all", 0)])
            assert read(consumer, 2) == [
                ConsumerRecord("all", 0, 0, 0, 1234, b"\xff", b"v", tuple(headers)),
                ConsumerRecord("all", 0, 1, 0, 1235, None, None, ()),
            ]

    def test_all_partitions_are_read_in_order_while_they_are_written(
        self, running_cluster: RunningCluster
    ) -> None:
        """All partitions are read in order while they are written."""
        running_cluster.create_topic("order", partitions=3)
        consumer = Consumer(running_cluster.connection, max_poll_records=7)
        consumer.assign(consumer.partitions_for_topic("order"))
        consumer.seek_to_beginning()
        found: dict[int, list[ConsumerRecord]] = {0: [], 1: [], 2: []}
        with Producer(running_cluster.connection, batch_size=500, linger_ms=1) as producer:
            for number in range(300):
                producer.send("order", b"%d" % number, partition=number % 3)
                if number % 10 == 0:
                    polled = consumer.poll()
                    assert sum(map(len, polled.values())) <= 7
                    for name, records in polled.items():
                        found[name.partition] += records
        for record in read(consumer, 300 - sum(map(len, found.values()))):
            found[record.partition].append(record)
        consumer.close()
        for partition, records in found.items():
            assert [record.offset for record in records] == list(range(100))
            expected = [b"%d" % number for number in range(partition, 300, 3)]
            assert [record.value for record in records] == expected

    def test_a_poll_waits_for_a_record_and_no_longer_than_it_may(
        self, running_cluster: RunningCluster
    ) -> None:
        """A poll waits for a record, for at most its timeout."""
        running_cluster.create_topic("waiting")
        with (
            Consumer(running_cluster.connection) as consumer,
            Producer(running_cluster.connection, linger_ms=0) as producer,
        ):
            consumer.assign([("waiting", 0)])
            began = time.monotonic()
            assert consumer.poll(100) == {}
            # Clocks have a resolution of 1 ms.
            assert time.monotonic() - began >= 0.098
            producer.send("waiting", b"a")
            assert values(consumer.poll(30_000)) == [b"a"]

    def test_a_failover_loses_doubles_and_reorders_nothing(self, tmp_path: Path) -> None:
        """The leader of a partition vanishes while records are written and read."""
        cluster = RunningCluster(tmp_path)
        try:
            cluster.create_topic("t", partitions=2, min_insync_replicas=2)
            consumer = Consumer(cluster.connection, auto_offset_reset="earliest")
            consumer.assign([("t", 0), ("t", 1)])
            found: list[ConsumerRecord] = []
            with Producer(cluster.connection, linger_ms=1, batch_size=400) as producer:
                for number in range(200):
                    sent = producer.send("t", b"%d" % number, partition=number % 2)
                    if number % 20 == 0:
                        found += [one for some in consumer.poll().values() for one in some]
                    if number == 100:
                        sent.result(60)
                        with cluster.application.between_rounds():
                            cluster.application.drop_broker(0)
            found += read(consumer, 200 - len(found))
            consumer.close()
        finally:
            cluster.stop()
        for partition in (0, 1):
            of_partition = [record for record in found if record.partition == partition]
            assert [record.offset for record in of_partition] == list(range(100))
            expected = [b"%d" % number for number in range(partition, 200, 2)]
            assert [record.value for record in of_partition] == expected
        assert len({record.leader_epoch for record in found}) > 1, "there was a failover"

    def test_iterating_moves_the_position_record_by_record(
        self, running_cluster: RunningCluster
    ) -> None:
        """Iterating advances the position record by record."""
        running_cluster.create_topic("iterated")
        with Producer(running_cluster.connection) as producer:
            for number in range(5):
                producer.send("iterated", b"%d" % number)
        consumer = Consumer(running_cluster.connection, "iterating", auto_offset_reset="earliest")
        consumer.assign([("iterated", 0)])
        for record in consumer:
            assert consumer.position(("iterated", 0)) == record.offset + 1
            consumer.commit()
            if record.offset == 2:
                break
        committed = consumer.committed(("iterated", 0))
        assert committed == OffsetAndMetadata(3, "", 0)
        assert consumer.lag(("iterated", 0)) == 2
        for record in consumer:
            if record.offset == 4:
                consumer.close()
        with pytest.raises(SparklogError, match="the consumer is closed"):
            consumer.poll()

    def test_fetch_min_bytes_are_waited_for_but_not_for_ever(
        self, running_cluster: RunningCluster
    ) -> None:
        """A poll waits for fetch.min.bytes, for at most fetch.max.wait.ms."""
        running_cluster.create_topic("bytes")
        with Producer(running_cluster.connection) as producer:
            producer.send("bytes", b"a").result(30)
        greedy: dict[str, Any] = {"fetch_min_bytes": 1 << 20, "auto_offset_reset": "earliest"}
        with Consumer(running_cluster.connection, fetch_max_wait_ms=60_000, **greedy) as consumer:
            consumer.assign([("bytes", 0)])
            assert consumer.poll(100) == {}
        with Consumer(running_cluster.connection, fetch_max_wait_ms=20, **greedy) as consumer:
            consumer.assign([("bytes", 0)])
            assert values(consumer.poll(30_000)) == [b"a"]

    def test_offsets_for_times_agree_with_a_search_through_all_records(
        self, running_cluster: RunningCluster
    ) -> None:
        """Timestamps are not in order, within batches and between them, and one partition is
        empty.
        """
        running_cluster.create_topic("times", partitions=3)
        chance = random.Random(6)
        stored: dict[int, list[int]] = {0: [], 1: [], 2: []}
        with Producer(running_cluster.connection, batch_size=300) as producer:
            for number in range(80):
                time_ms = chance.randrange(40) + number // 2
                producer.send("times", b"", partition=number % 2, timestamp_ms=time_ms)
                stored[number % 2].append(time_ms)
        consumer = Consumer(running_cluster.connection)
        names = consumer.partitions_for_topic("times")
        for asked in range(85):
            found = consumer.offsets_for_times(dict.fromkeys(names, asked))
            for name, times in zip(names, stored.values(), strict=True):
                fits = ((offset, time) for offset, time in enumerate(times) if time >= asked)
                at = found[name]
                assert (at and (at.offset, at.timestamp_ms)) == next(fits, None)
        assert beginning_offsets(running_cluster.connection, names) == dict.fromkeys(names, 0)
        ends = end_offsets(running_cluster.connection, names)
        assert list(ends.values()) == [40, 40, 0]
