"""Batch reads without Spark: topics, offsets, replicas and failures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparklog.datasource.data_loss import DataLossError
from sparklog.errors import ConfigError, ProtocolError, SparklogError, StorageError
from tests.datasource.conftest import Readable, Row, offsets, rows


def fill(readable: Readable) -> Readable:
    """Create topic t with 6 committed records in partition 0, 2 in partition 1, and one
    uncommitted.

    Batches have two records each and are one second apart. Topic tt is empty.
    """
    readable.create_topic("t", partitions=2)
    readable.create_topic("tt")
    for values in ([b"a0", b"a1"], [b"a2", b"a3"], [b"a4", b"a5"]):
        readable.cluster.produce("t", 0, values)
        readable.cluster.clock.advance(1000)
    readable.produce("t", b"b0", b"b1", partition=1)
    readable.cluster.produce("t", 0, [b"not committed"])
    readable.cluster.leader_tick(0)
    return readable


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Readable:
    """The cluster of the tests that do not change it."""
    return fill(Readable(tmp_path_factory.mktemp("filled")))


def first_ms(readable: Readable) -> int:
    return readable.cluster.log(0, "t", 0)[0].timestamp


class TestWhatIsRead:
    def test_all_that_is_committed_where_nothing_is_said(self, filled: Readable) -> None:
        """Without offsets in the options all committed records are read."""
        expected: list[Row] = [("t", 0, one, f"a{one}".encode()) for one in range(6)]
        expected += [("t", 1, one, f"b{one}".encode()) for one in range(2)]
        assert rows(filled.batch(subscribe="t")) == expected
        assert rows(filled.batch(subscribePattern="[st]")) == expected
        assert rows(filled.batch(assign='{"t":[0,1]}')) == expected

    def test_one_task_a_partition(self, filled: Readable) -> None:
        """Each partition is read by one task."""
        assert [task.range.size for task in filled.batch(subscribe="t")] == [6, 2]

    def test_a_partition_that_was_assigned_alone(self, filled: Readable) -> None:
        """With `assign` only the assigned partitions are read."""
        assert [row[1] for row in rows(filled.batch(assign='{"t":[1]}'))] == [1, 1]

    def test_a_pattern_must_match_the_whole_name(self, filled: Readable) -> None:
        """A pattern must match the complete name of a topic."""
        assert {task.range.partition.topic for task in filled.batch(subscribePattern="t")} == {"t"}
        assert len(rows(filled.batch(subscribePattern=".*"))) == 8
        assert filled.batch(subscribePattern="nothing.*") == []

    def test_offsets_in_the_middle_of_batches(self, filled: Readable) -> None:
        """A read may begin and end in the middle of batches."""
        tasks = filled.batch(
            subscribe="t",
            startingOffsets='{"t":{"0":1,"1":-2}}',
            endingOffsets='{"t":{"0":5,"1":-1}}',
        )
        assert offsets(tasks) == [1, 2, 3, 4, 0, 1]

    def test_nothing_where_start_and_end_meet(self, filled: Readable) -> None:
        """A read with equal starting and ending offsets has no tasks."""
        tasks = filled.batch(
            assign='{"t":[0]}', startingOffsets='{"t":{"0":3}}', endingOffsets='{"t":{"0":3}}'
        )
        assert tasks == []

    def test_times_mean_the_first_record_that_is_not_older(self, filled: Readable) -> None:
        """A time stands for the first record that is not older."""
        start = first_ms(filled)
        first = {"assign": '{"t":[0]}'}
        found = filled.batch(**first, startingTimestamp=str(start + 1))
        assert offsets(found) == [2, 3, 4, 5]
        found = filled.batch(**first, endingTimestamp=str(start + 1000))
        assert offsets(found) == [0, 1]
        found = filled.batch(
            **first,
            startingOffsetsByTimestamp=json.dumps({"t": {"0": start + 1000}}),
            endingOffsetsByTimestamp=json.dumps({"t": {"0": start + 2000}}),
        )
        assert offsets(found) == [2, 3]

    def test_a_time_after_all_records_is_an_error_to_start_at_and_the_end_to_end_at(
        self, filled: Readable
    ) -> None:
        """A starting time after all records is an error, and an ending time after them is the log's
        end.
        """
        late = {"assign": '{"t":[0]}', "startingTimestamp": str(first_ms(filled) + 10_000)}
        with pytest.raises(SparklogError, match="no record of t-0 is at or after"):
            filled.batch(**late)
        assert filled.batch(**late, startingOffsetsByTimestampStrategy="latest") == []
        ending = {"endingTimestamp": str(first_ms(filled) + 10_000)}
        assert len(rows(filled.batch(subscribe="t", **ending))) == 8

    def test_headers_only_where_they_are_asked_for(self, filled: Readable) -> None:
        """The column `headers` exists only with includeHeaders=true."""
        from sparklog.datasource.read_task import read_task

        [task, _] = filled.batch(subscribe="t", includeHeaders="true")
        batch = next(read_task(task))
        assert batch.schema.names[-1] == "headers"
        assert batch.column("headers").to_pylist() == [None, None]
        [task, _] = filled.batch(subscribe="t")
        assert "headers" not in next(read_task(task)).schema.names


def test_a_read_that_ends_below_the_high_watermark_needs_no_latest_offset(
    readable: Readable,
) -> None:
    """Rule 10.2: the new leader's high watermark has not reached the visible records, and below
    min.insync.replicas it never will. The records that it offers are committed.
    """
    cluster = readable.cluster
    readable.create_topic("t", min_insync_replicas=2)
    readable.produce("t", b"0", b"1", b"2")
    stream = readable.stream(subscribe="t", startingOffsets="earliest")
    start = stream.initial_offset()
    three = stream.latest_offset(start, is_limited=True)
    cluster.produce("t", 0, [b"3", b"4"])
    cluster.leader_tick(0)
    cluster.follower_tick(1)
    cluster.follower_tick(2)
    cluster.leader_tick(0)
    five = stream.latest_offset(three, is_limited=True)
    for broker in (0, 2):
        cluster.crash(broker)
        cluster.fence(broker)
    cluster.tick_until_idle()
    assert cluster.replica(1, "t", 0).high_watermark == 3
    assert offsets(stream.plan(start, three)) == [0, 1, 2]
    assert offsets(readable.batch(subscribe="t", endingOffsets='{"t":{"0":3}}')) == [0, 1, 2]
    for ending in ('{"t":{"0":4}}', '{"t":{"0":-1}}', "latest"):
        with pytest.raises(ProtocolError, match="OFFSET_NOT_AVAILABLE"):
            readable.batch(subscribe="t", endingOffsets=ending)
    with pytest.raises(ProtocolError, match="OFFSET_NOT_AVAILABLE"):
        stream.plan(three, five)
    cluster.restart(2)
    cluster.tick_until_idle()
    assert offsets(stream.plan(three, five)) == [3, 4]


class TestWhatIsRefused:
    def test_a_topic_or_partition_that_does_not_exist(self, filled: Readable) -> None:
        """An unknown topic or partition is refused."""
        with pytest.raises(ProtocolError, match="there is no topic 'nowhere'"):
            filled.batch(subscribe="t,nowhere")
        with pytest.raises(ProtocolError, match="partitions 0 to 1, not 2"):
            filled.batch(assign='{"t":[2]}')

    @pytest.mark.parametrize("option", ["startingOffsets", "startingOffsetsByTimestamp"])
    def test_offsets_that_do_not_name_just_the_partitions_that_are_read(
        self, filled: Readable, option: str
    ) -> None:
        """Offsets that do not name exactly the partitions of the read are refused."""
        for given in ('{"t":{"0":1}}', '{"t":{"0":1,"1":1,"2":1}}', '{"u":{"0":1}}'):
            with pytest.raises(ConfigError, match=f"{option} must name exactly the partitions"):
                filled.batch(subscribe="t", **{option: given})

    def test_a_start_beyond_the_end(self, filled: Readable) -> None:
        """A start beyond the end is refused."""
        with pytest.raises(ConfigError, match="start 7 of t-0 is beyond its end 6"):
            filled.batch(assign='{"t":[0]}', startingOffsets='{"t":{"0":7}}')

    def test_an_end_beyond_the_high_watermark_unless_loss_is_tolerated(
        self, filled: Readable
    ) -> None:
        """An end beyond the high watermark is refused unless failOnDataLoss=false."""
        asked = {"assign": '{"t":[0]}', "endingOffsets": '{"t":{"0":7}}'}
        with pytest.raises(DataLossError, match=r"up to 6 of t-0 .* high watermark is 6"):
            filled.batch(**asked)
        with pytest.warns(UserWarning, match="high watermark is 6"):
            assert len(rows(filled.batch(**asked, failOnDataLoss="false"))) == 6

    def test_a_cluster_that_is_not_there(self, tmp_path: Path, filled: Readable) -> None:
        """A missing cluster root or configuration file is refused."""
        with pytest.raises(StorageError, match="there is no cluster root"):
            filled.batch(subscribe="t", cluster=str(tmp_path / "nowhere"))
        with pytest.raises(ConfigError, match="cannot be read"):
            filled.batch(subscribe="t", cluster=str(tmp_path / "nowhere.yaml"))


def test_a_configuration_file_names_the_cluster(filled: Readable, tmp_path: Path) -> None:
    """The option `cluster` may be a configuration file of a cluster or a broker."""
    for file, text in {
        "cluster.yaml": f"cluster.root: {filled.root}\nbrokers:\n- {{broker.id: 0, log.dirs: b}}\n",
        "broker.yaml": f"cluster.root: {filled.root}\nbroker.id: 0\nlog.dirs: b\n",
    }.items():
        (tmp_path / file).write_text(text)
        assert len(rows(filled.batch(subscribe="t", cluster=str(tmp_path / file)))) == 8


class TestReplicas:
    def test_a_follower_shows_what_is_below_its_own_high_watermark(
        self, readable: Readable
    ) -> None:
        """A follower offers records below its own high watermark, which follows with its next fetch
        (2.5).
        """
        filled = fill(readable)
        filled.cluster.follower_tick(1)
        filled.cluster.follower_tick(2)
        filled.cluster.leader_tick(0)
        behind = filled.cluster.replica(1, "t", 0)
        assert behind.high_watermark == 6
        assert filled.cluster.replica(0, "t", 0).high_watermark == 7
        one = {"assign": '{"t":[0]}'}
        assert len(offsets(filled.batch(**one))) == 7
        tasks = filled.batch(**one, replica="1")
        assert len(offsets(tasks)) == 6
        assert {task.log.uri for task in tasks} == {str(filled.folder / "broker-1" / "log")}
        filled.cluster.follower_tick(1)
        assert len(offsets(filled.batch(**one, replica="1"))) == 7

    def test_the_leader_may_be_named_by_its_id(self, filled: Readable) -> None:
        """The option `replica` may be the leader's id."""
        [task] = filled.batch(assign='{"t":[0]}', replica="0")
        assert task.log.uri == str(filled.folder / "broker-0" / "log")

    @pytest.mark.parametrize(("rack", "broker"), [("a", 0), ("b", 1), ("c", 2), ("z", 0)])
    def test_nearest_is_who_has_the_clients_rack_or_else_the_leader(
        self, filled: Readable, rack: str, broker: int
    ) -> None:
        """replica=nearest reads the replica in the client's rack, and otherwise the leader."""
        [task] = filled.batch(assign='{"t":[0]}', replica="nearest", clientRack=rack)
        assert task.log.uri == str(filled.folder / f"broker-{broker}" / "log")

    def test_a_broker_without_a_replica_is_refused(self, filled: Readable) -> None:
        """A broker without a replica of the partition is refused."""
        with pytest.raises(ProtocolError, match=r"REPLICA_NOT_AVAILABLE.* broker 7"):
            filled.batch(subscribe="t", replica="7")

    def test_a_follower_of_an_older_epoch_is_not_read(self, readable: Readable) -> None:
        """A follower that has not reported in the leader's epoch is not read."""
        filled = fill(readable)
        filled.cluster.crash(0)
        filled.cluster.fence(0)
        with pytest.raises(ProtocolError, match="OFFSET_NOT_AVAILABLE"):
            filled.batch(assign='{"t":[0]}')
        filled.cluster.leader_tick(1)
        one = {"assign": '{"t":[0]}', "replica": "2"}
        with pytest.raises(ProtocolError, match="NOT_AVAILABLE"):
            filled.batch(**one)
        filled.cluster.tick_until_idle()
        assert len(offsets(filled.batch(**one))) == 6


class TestFailures:
    def test_offsets_of_a_checkpoint_show_that_what_they_follow_was_truncated(
        self, readable: Readable
    ) -> None:
        """Starting offsets with leader epochs, from a checkpoint, show a truncation before them."""
        readable.create_topic("t")
        readable.store_unevenly("t", kept=3, lost=4)
        here = json.dumps(readable.stream(subscribe="t").initial_offset())
        readable.go_offline()
        with pytest.raises(ProtocolError, match=r"LEADER_NOT_AVAILABLE: partition 0 .* is offline"):
            readable.batch(subscribe="t")
        readable.elect_unclean("t")
        readable.produce("t", *(b"new",) * 6)
        with pytest.raises(DataLossError, match="records 3 to 6, which were read"):
            readable.batch(subscribe="t", startingOffsets=here)
        with pytest.warns(UserWarning, match="records 3 to 6"):
            found = readable.batch(subscribe="t", startingOffsets=here, failOnDataLoss="false")
        assert offsets(found) == [3, 4, 5, 6, 7, 8]

    def test_a_file_that_is_gone_since_the_query_was_planned(self, readable: Readable) -> None:
        """A file that was removed after the planning of the query raises `StorageError`."""
        readable.create_topic("t")
        readable.produce("t", b"a")
        tasks = readable.batch(subscribe="t")
        [planned] = tasks[0].files
        file = Path(tasks[0].log.uri, planned.path)
        for root in Path(tasks[0].log.uri).parents[1].glob("broker-*"):
            for copy in (root / "log" / "_inbox").iterdir():
                copy.unlink()
        with pytest.raises(StorageError, match="was removed since this query was planned"):
            rows(tasks)
        file.write_bytes(b"no parquet")
        with pytest.raises(StorageError, match="of t-0 cannot be read"):
            rows(tasks)
