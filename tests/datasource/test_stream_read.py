"""Streams without Spark: the ends of micro-batches, failovers and losses."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from sparklog.datasource.data_loss import DataLossError
from sparklog.datasource.micro_batch_limits import within_limit
from sparklog.datasource.stream_read import StreamRead
from sparklog.errors import ProtocolError
from sparklog.model import TopicPartition
from tests.datasource.conftest import Readable, offsets, rows

Offset = dict[str, Any]


def through_checkpoint(offset: Offset) -> Offset:
    """Return an offset as Spark returns it after a restart."""
    result: Offset = json.loads(json.dumps(offset))
    return result


def places(offset: Offset) -> dict[str, dict[str, int]]:
    return {topic: found for topic, found in offset.items() if topic != "@sparklog"}


@pytest.fixture
def filled(readable: Readable) -> Readable:
    readable.create_topic("t", partitions=2)
    readable.cluster.produce("t", 0, [b"a0", b"a1", b"a2", b"a3"])
    readable.produce("t", b"b0", partition=1)
    return readable


class TestMicroBatches:
    def test_go_from_where_the_last_one_ended_to_the_high_watermark(self, filled: Readable) -> None:
        """A micro-batch goes from the end of the last one to the high watermark."""
        stream = filled.stream(subscribe="t", startingOffsets="earliest")
        start = stream.initial_offset()
        assert places(start) == {"t": {"0": 0, "1": 0}}
        first = stream.latest_offset(start, is_limited=True)
        assert places(first) == {"t": {"0": 4, "1": 1}}
        assert offsets(stream.plan(start, first)) == [0, 1, 2, 3, 0]
        assert stream.latest_offset(first, is_limited=True) == first
        assert stream.plan(first, first) == []
        filled.cluster.produce("t", 0, [b"a4"])
        filled.cluster.leader_tick(0)
        assert stream.latest_offset(first, is_limited=True) == first, "it is not committed"
        filled.cluster.tick_until_idle()
        second = stream.latest_offset(through_checkpoint(first), is_limited=True)
        assert rows(stream.plan(first, second)) == [("t", 0, 4, b"a4")]
        again = filled.stream(subscribe="t")
        planned = again.plan(through_checkpoint(first), through_checkpoint(second))
        assert rows(planned) == [("t", 0, 4, b"a4")]
        assert stream.report_latest_offset()["t"] == {"0": 5, "1": 1}

    def test_begin_at_the_latest_offset_where_nothing_is_said(self, filled: Readable) -> None:
        """Without options a stream begins at the latest offset."""
        stream = filled.stream(subscribe="t")
        start = stream.initial_offset()
        assert places(start) == {"t": {"0": 4, "1": 1}}
        assert stream.latest_offset(start, is_limited=True) == start

    def test_a_first_one_that_was_not_finished_is_read_again_from_its_own_start(
        self, filled: Readable
    ) -> None:
        """Spark does not store the start of the first micro-batch, and the latest offset is higher
        later.
        """
        stream = filled.stream(subscribe="t")
        start = stream.initial_offset()
        filled.produce("t", b"a4", b"a5")
        end = stream.latest_offset(start, is_limited=True)
        assert offsets(stream.plan(start, end)) == [4, 5]
        filled.produce("t", b"a6")
        again = filled.stream(subscribe="t")
        late = again.initial_offset()
        assert late["t"]["0"] == 7
        assert offsets(again.plan(late, through_checkpoint(end))) == [4, 5]
        following = again.latest_offset(through_checkpoint(end), is_limited=True)
        assert offsets(again.plan(through_checkpoint(end), following)) == [6]

    def test_new_partitions_are_read_from_their_start(self, filled: Readable) -> None:
        """New partitions are read from their first record."""
        stream = filled.stream(subscribePattern="t|new")
        start = stream.initial_offset()
        filled.create_topic("new")
        filled.produce("new", b"n0", b"n1")
        end = stream.latest_offset(start, is_limited=True)
        assert rows(stream.plan(start, end)) == [("new", 0, 0, b"n0"), ("new", 0, 1, b"n1")]

    def test_partitions_that_a_topic_gets_are_read_from_their_start(self, filled: Readable) -> None:
        """Without a restart, as by Spark's Kafka connector; and after one, from the checkpoint."""
        stream = filled.stream(subscribe="t", startingOffsets="latest")
        start = stream.initial_offset()
        filled.cluster.create_partitions("t", 3)
        filled.cluster.tick_until_idle()
        filled.produce("t", b"c0", partition=2)
        for reader in (stream, filled.stream(subscribe="t", startingOffsets="latest")):
            end = reader.latest_offset(start, is_limited=True)
            assert places(end) == {"t": {"0": 4, "1": 1, "2": 1}}
            assert rows(reader.plan(start, end)) == [("t", 2, 0, b"c0")]

    def test_an_older_spark_gets_the_high_watermarks_and_no_more(self, filled: Readable) -> None:
        """An older Spark requests the latest offset before the initial one, and gets the high
        watermarks.
        """
        stream = filled.stream(subscribe="t")
        filled.produce("t", b"a4")
        end = stream.latest_offset_of_all()
        filled.produce("t", b"a5")
        assert places(end) == places(stream.initial_offset()) == {"t": {"0": 5, "1": 1}}
        assert stream.plan(stream.initial_offset(), end) == []
        following = stream.latest_offset_of_all()
        assert offsets(stream.plan(through_checkpoint(end), following)) == [5]


class TestLimits:
    @pytest.mark.parametrize(
        ("limit", "ends"),
        [(None, (90, 10)), (100, (90, 10)), (50, (45, 5)), (10, (9, 1)), (4, (3, 1)), (1, (1, 1))],
    )
    def test_are_shared_in_proportion_and_starve_no_partition(
        self, limit: int | None, ends: tuple[int, int]
    ) -> None:
        """A limit is shared among partitions in proportion to their records, and each gets some."""
        keys = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 2)
        starts, latest = dict.fromkeys(keys, 0), dict(zip(keys, (90, 10, 0), strict=True))
        assert tuple(within_limit(starts, latest, limit).values()) == (*ends, 0)

    def test_max_offsets_per_trigger_bounds_each_micro_batch(self, filled: Readable) -> None:
        """maxOffsetsPerTrigger limits each micro-batch."""
        stream = filled.stream(subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="2")
        here = stream.initial_offset()
        read = []
        for _ in range(4):
            end = stream.latest_offset(here, is_limited=True)
            read.append(rows(stream.plan(here, end)))
            here = end
        assert [len(one) for one in read] == [2, 2, 1, 0]
        assert sorted(row for one in read for row in one) == sorted(
            rows(filled.batch(subscribe="t"))
        )
        assert places(stream.latest_offset(stream.initial_offset(), is_limited=False)) == places(
            here
        )

    def test_min_offsets_per_trigger_waits_until_there_are_as_many_or_it_took_too_long(
        self, filled: Readable
    ) -> None:
        """minOffsetsPerTrigger delays a micro-batch, for at most maxTriggerDelay."""
        stream = filled.stream(
            subscribe="t",
            startingOffsets="earliest",
            minOffsetsPerTrigger="3",
            maxTriggerDelay="10m",
        )
        here = stream.latest_offset(stream.initial_offset(), is_limited=True)
        assert places(here) == {"t": {"0": 4, "1": 1}}, "the first micro-batch does not wait"
        filled.produce("t", b"a4", b"a5")
        assert stream.latest_offset(here, is_limited=True) == here
        filled.produce("t", b"b1", partition=1)
        here = stream.latest_offset(here, is_limited=True)
        assert places(here) == {"t": {"0": 6, "1": 2}}
        filled.produce("t", b"a6")
        assert stream.latest_offset(here, is_limited=True) == here
        filled.cluster.clock.advance(600_000)
        assert places(stream.latest_offset(here, is_limited=True)) == {"t": {"0": 7, "1": 2}}

    def test_available_now_stops_where_the_log_ended_at_first(self, filled: Readable) -> None:
        """With availableNow a stream ends at the log ends of its start."""
        stream = filled.stream(
            subscribePattern="t|new",
            startingOffsets="earliest",
            maxOffsetsPerTrigger="2",
            minOffsetsPerTrigger="2",
        )
        here = stream.initial_offset()
        stream.prepare_for_trigger_available_now()
        filled.produce("t", b"too late")
        filled.create_topic("new")
        filled.produce("new", b"too late, too")
        read = []
        while (end := stream.latest_offset(here, is_limited=True)) != here:
            read += rows(stream.plan(here, end))
            here = end
        assert len(read) == 5
        assert b"too late" not in {row[3] for row in read}
        assert places(here) == {"t": {"0": 4, "1": 1}}


@pytest.mark.filterwarnings("ignore:.* is skipped")
class TestFailover:
    def test_the_latest_offset_never_goes_back_nor_fails(self, readable: Readable) -> None:
        """The latest offset never goes back and never fails during a failover (KIP-207)."""
        readable.create_topic("t")
        readable.produce("t", b"a0", b"a1")
        stream = readable.stream(subscribe="t", startingOffsets="earliest")
        start = stream.initial_offset()
        here = stream.latest_offset(start, is_limited=True)
        readable.cluster.crash(0)
        assert stream.latest_offset(here, is_limited=True) == here
        readable.cluster.fence(0)
        with pytest.raises(ProtocolError, match="OFFSET_NOT_AVAILABLE"):
            readable.batch(subscribe="t")
        assert stream.latest_offset(here, is_limited=True) == here
        readable.cluster.leader_tick(1)
        assert stream.latest_offset(here, is_limited=True)["t"]["0"] >= 2
        readable.produce("t", b"a2")
        end = stream.latest_offset(here, is_limited=True)
        assert rows(stream.plan(here, end)) == [("t", 0, 2, b"a2")]
        assert end["@sparklog"]["leader_epochs"] == {"t": {"0": 1}}
        assert offsets(stream.plan(start, here)) == [0, 1], "the same from the new leader"

    def test_other_partitions_go_on_meanwhile(self, filled: Readable) -> None:
        """The partitions of other leaders are read during an election."""
        stream = filled.stream(subscribe="t")
        here = stream.initial_offset()
        filled.cluster.produce("t", 1, [b"b1"])
        filled.cluster.tick_until_idle()
        filled.cluster.crash(0)
        filled.cluster.fence(0)
        end = stream.latest_offset(here, is_limited=True)
        assert places(end) == {"t": {"0": 4, "1": 2}}

    def test_a_leader_whose_disk_is_gone_is_waited_for_until_another_leads(
        self, readable: Readable
    ) -> None:
        """A leader whose disk is lost is waited for, with a warning, until another leads."""
        readable.create_topic("t")
        readable.produce("t", b"a0")
        stream = readable.stream(subscribe="t")
        here = stream.initial_offset()
        readable.produce("t", b"a1")
        readable.cluster.crash(0)
        shutil.rmtree(readable.folder / "broker-0")
        assert stream.latest_offset(here, is_limited=True) == here
        again = readable.stream(subscribe="t")
        with pytest.warns(UserWarning, match=r"t-0 is skipped .*: .* cannot be read"):
            assert again.latest_offset(here, is_limited=True) == here
        readable.cluster.fence(0)
        readable.cluster.tick_until_idle()
        end = stream.latest_offset(here, is_limited=True)
        assert rows(stream.plan(here, end)) == [("t", 0, 1, b"a1")]


class TestFollowers:
    def test_are_read_as_far_as_they_are_and_a_stream_never_goes_back(
        self, readable: Readable
    ) -> None:
        """A follower is read up to its own high watermark, and a stream never goes back."""
        readable.create_topic("t")
        readable.produce("t", b"a0")
        far = readable.stream(subscribe="t", replica="1")
        start = far.initial_offset()
        readable.cluster.produce("t", 0, [b"a1"])
        readable.cluster.leader_tick(0)
        for follower in (1, 2):
            readable.cluster.follower_tick(follower)
        readable.cluster.leader_tick(0)
        assert far.latest_offset(start, is_limited=True) == start
        near = readable.stream(subscribe="t")
        here = near.latest_offset(start, is_limited=True)
        assert places(here) == {"t": {"0": 2}}
        assert far.latest_offset(here, is_limited=True) == here, "it lags, and nothing is lost"
        with pytest.raises(ProtocolError, match=r"REPLICA_NOT_AVAILABLE.* has reached offset 2"):
            far.plan(start, here)
        nearest = readable.stream(subscribe="t", replica="nearest", clientRack="b")
        [task] = nearest.plan(start, here)
        assert task.log.uri.endswith("broker-0/log"), "the leader, who has all of it"
        readable.cluster.follower_tick(1)
        [task] = far.plan(start, far.latest_offset(start, is_limited=True))
        assert task.log.uri.endswith("broker-1/log")
        assert offsets([task]) == [1]

    def test_one_that_died_is_waited_for_and_not_taken_for_an_idle_one(
        self, readable: Readable
    ) -> None:
        """A dead follower is waited for, with a warning."""
        readable.create_topic("t")
        stream = readable.stream(subscribe="t", replica="1")
        here = stream.initial_offset()
        readable.cluster.crash(1)
        readable.cluster.fence(1)
        with pytest.warns(UserWarning, match=r"t-0 is skipped .*: REPLICA_NOT_AVAILABLE"):
            assert stream.latest_offset(here, is_limited=True) == here


@pytest.mark.filterwarnings("ignore:.* is skipped")
class TestLoss:
    @pytest.fixture
    def lossy(self, readable: Readable) -> tuple[Readable, Offset, Offset]:
        """Of topic t, records 0 to 2 are replicated; 3 to 6 were read and are truncated later."""
        readable.create_topic("t")
        stream = readable.stream(subscribe="t")
        start = stream.initial_offset()
        readable.store_unevenly("t", kept=3, lost=4)
        end = stream.latest_offset(start, is_limited=True)
        assert offsets(stream.plan(start, end)) == [*range(7)]
        readable.go_offline()
        assert stream.latest_offset(end, is_limited=True) == end, "offline: the stream waits"
        readable.elect_unclean("t")
        return readable, start, end

    def tolerant(self, readable: Readable) -> StreamRead:
        return readable.stream(subscribe="t", failOnDataLoss="false")

    def test_a_truncation_below_what_was_read_is_an_error(
        self, lossy: tuple[Readable, Offset, Offset]
    ) -> None:
        """A truncation below the stream's position raises `DataLossError`."""
        readable, start, end = lossy
        stream = readable.stream(subscribe="t")
        for produced in (0, 4, 4):
            if produced:
                readable.produce("t", *[b"new"] * produced)
            with pytest.raises(DataLossError, match="records 3 to 6, which were read"):
                stream.latest_offset(through_checkpoint(end), is_limited=True)
        with pytest.raises(DataLossError, match=r"truncated .*: records 3 to 6"):
            stream.plan(start, end)

    def test_or_where_that_is_tolerated_the_new_records_follow_with_a_warning(
        self, lossy: tuple[Readable, Offset, Offset]
    ) -> None:
        """With failOnDataLoss=false the new records are read, with a warning."""
        readable, _, end = lossy
        readable.produce("t", b"n3", b"n4")
        stream = self.tolerant(readable)
        with pytest.warns(UserWarning, match="records 3 to 6, which were read"):
            here = stream.latest_offset(end, is_limited=True)
        assert places(here) == {"t": {"0": 5}}
        with pytest.warns(UserWarning, match="records 3 to 6"):
            assert rows(stream.plan(end, here)) == [("t", 0, 3, b"n3"), ("t", 0, 4, b"n4")]
        readable.produce("t", b"n5")
        following = stream.latest_offset(here, is_limited=True)
        assert rows(stream.plan(here, following)) == [("t", 0, 5, b"n5")]

    def test_a_micro_batch_whose_end_was_truncated_is_read_as_far_as_it_goes(
        self, lossy: tuple[Readable, Offset, Offset]
    ) -> None:
        """A micro-batch whose end was truncated is read up to the truncation, with a warning."""
        readable, start, end = lossy
        with pytest.warns(UserWarning, match=r"truncated .*: records 3 to 6"):
            planned = self.tolerant(readable).plan(start, end)
        assert offsets(planned) == [0, 1, 2]

    @pytest.fixture
    def replaced(self, readable: Readable) -> tuple[Readable, Offset, Offset]:
        """The stream has read records 0 to 2 of topic t, and then 3 and 4, which have another
        leader epoch. An unclean election then elected a log without this epoch, which is longer: 0
        to 6.
        """
        readable.create_topic("t")
        start = readable.stream(subscribe="t").initial_offset()
        readable.store_unevenly("t", kept=3, lost=4)
        readable.go_offline()
        readable.elect_unclean("t")
        readable.produce("t", b"read 3", b"read 4")
        stream = readable.stream(subscribe="t")
        end = stream.latest_offset(start, is_limited=True)
        assert [row[3] for row in rows(stream.plan(start, end))][3:] == [b"read 3", b"read 4"]
        readable.cluster.crash(1)
        readable.cluster.restart(0)
        readable.cluster.fence(1)
        readable.elect_unclean("t")
        assert len(readable.cluster.consume("t", 0)) == 7
        return readable, start, end

    def test_a_longer_log_without_the_epoch_that_was_read_is_an_error(
        self, replaced: tuple[Readable, Offset, Offset]
    ) -> None:
        """Offsets alone show no loss: the high watermark is above the stream's position."""
        readable, start, end = replaced
        stream = readable.stream(subscribe="t")
        with pytest.raises(DataLossError, match="records 3 to 4, which were read, are replaced"):
            stream.latest_offset(through_checkpoint(end), is_limited=True)
        with pytest.raises(DataLossError, match="records 3 to 4, which were read, are replaced"):
            stream.plan(start, through_checkpoint(end))

    def test_or_where_that_is_tolerated_its_records_are_read_from_where_the_logs_differ(
        self, replaced: tuple[Readable, Offset, Offset]
    ) -> None:
        """With failOnDataLoss=false the new records are read from the divergent offset."""
        readable, _, end = replaced
        stream = self.tolerant(readable)
        with pytest.warns(UserWarning, match="records 3 to 4, which were read, are replaced"):
            here = stream.latest_offset(through_checkpoint(end), is_limited=True)
        with pytest.warns(UserWarning, match="records 3 to 4"):
            planned = stream.plan(end, here)
        assert [row[2:] for row in rows(planned)] == [
            (3 + one, f"lost {one}".encode()) for one in range(4)
        ]
        assert stream.latest_offset(here, is_limited=True) == here

    def test_a_checkpoint_that_does_not_say_where_the_epoch_began_shows_the_loss_as_well(
        self, replaced: tuple[Readable, Offset, Offset]
    ) -> None:
        """Checkpoints of earlier versions have leader epochs without their start offsets."""
        readable, _, end = replaced
        older = through_checkpoint(end)
        del older["@sparklog"]["epoch_starts"]
        with pytest.raises(DataLossError, match="records below 5, which were read, are replaced"):
            readable.stream(subscribe="t").latest_offset(older, is_limited=True)
        with pytest.warns(UserWarning, match="records below 5"):
            here = self.tolerant(readable).latest_offset(older, is_limited=True)
        with pytest.warns(UserWarning, match="records below 5"):
            assert offsets(self.tolerant(readable).plan(older, here)) == [5, 6]

    def test_a_batch_between_such_offsets_is_an_error(
        self, replaced: tuple[Readable, Offset, Offset]
    ) -> None:
        """A batch read with such an offset as start or end raises `DataLossError`."""
        readable, _, end = replaced
        text = json.dumps(end)
        for given in ({"startingOffsets": text}, {"endingOffsets": text}):
            with pytest.raises(DataLossError, match="records 3 to 4, which were read"):
                readable.batch(subscribe="t", **given)
        with pytest.warns(UserWarning, match="records 3 to 4"):
            found = readable.batch(subscribe="t", startingOffsets=text, failOnDataLoss="false")
        assert offsets(found) == [3, 4, 5, 6]
        with pytest.warns(UserWarning, match="records 3 to 4"):
            found = readable.batch(subscribe="t", endingOffsets=text, failOnDataLoss="false")
        assert offsets(found) == [0, 1, 2, 3, 4]

    def test_a_topic_of_the_same_name_with_another_id_is_not_taken_for_the_old_one(
        self, filled: Readable
    ) -> None:
        """A topic that was deleted and created again is reported, or read from its start."""
        end = filled.stream(subscribe="t").initial_offset()
        end["@sparklog"]["topic_ids"]["t"] = "the id before it was deleted"
        with pytest.raises(DataLossError, match="topic t was deleted and created again"):
            filled.stream(subscribe="t").latest_offset(end, is_limited=True)
        tolerant = self.tolerant(filled)
        with pytest.warns(UserWarning, match="created again"):
            here = tolerant.latest_offset(end, is_limited=True)
        with pytest.warns(UserWarning, match="created again"):
            assert len(rows(tolerant.plan(end, here))) == 5
        assert tolerant.latest_offset(here, is_limited=True) == here

    def test_a_topic_that_was_deleted_is_reported_also_under_its_name(
        self, filled: Readable
    ) -> None:
        """Its checkpoint has the topic's id, so nothing of the new topic is skipped silently."""
        stream = filled.stream(subscribe="t")
        end = stream.initial_offset()
        filled.cluster.delete_topic("t")
        filled.cluster.tick_until_idle()
        with pytest.raises(DataLossError, match="partition t-0 no longer exists"):
            stream.latest_offset(end, is_limited=True)
        filled.create_topic("t", partitions=2)
        filled.produce("t", *(b"new" for _ in range(9)))
        for reader in (stream, filled.stream(subscribe="t")):
            with pytest.raises(DataLossError, match="topic t was deleted and created again"):
                reader.latest_offset(end, is_limited=True)
        tolerant = self.tolerant(filled)
        with pytest.warns(UserWarning, match="created again"):
            here = tolerant.latest_offset(end, is_limited=True)
        with pytest.warns(UserWarning, match="created again"):
            assert {row[3] for row in rows(tolerant.plan(end, here))} == {b"new"}

    def test_a_partition_that_is_gone_is_reported(self, filled: Readable) -> None:
        """A partition that no longer exists is reported."""
        end = filled.stream(subscribe="t").initial_offset()
        end["gone"] = {"0": 7}
        with pytest.raises(DataLossError, match="partition gone-0 no longer exists"):
            filled.stream(subscribe="t").latest_offset(end, is_limited=True)
        with pytest.warns(UserWarning, match="gone-0 no longer exists"):
            here = self.tolerant(filled).latest_offset(end, is_limited=True)
        assert places(here) == {"t": {"0": 4, "1": 1}}
