"""The record log: offsets, its index in memory, fences, conflicts, and its columns in Spark."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sparklog.errors import CommitConflictError, FencedError, StorageError
from sparklog.model import BATCH_INDEX, LOG, RECORD_COLUMNS, Batch, TopicIdPartition, new_batch_path
from sparklog.storage.batch_actions import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from sparklog.storage.batch_files import BatchFileWriter, records_table
from sparklog.storage.commits import BROKER_EPOCH, read_commit
from sparklog.storage.control_table import create_table
from sparklog.storage.delta_checkpoints import await_checkpoints
from sparklog.storage.delta_snapshots import open_delta_table
from sparklog.storage.fence import Fence
from sparklog.storage.location import Location
from sparklog.storage.record_log import REMEMBERED_BATCHES, RecordLog, index_table
from tests.storage.batches import FENCE, P0, P1, TOPIC_ID, batch, batch_of_file, chain, write_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AfterNext = Callable[[str, Callable[[], object]], None]


@pytest.fixture
def root(tmp_path: Path) -> Location:
    """A root whose files are not synced: most batches of these tests have no file."""
    return Location.of(str(tmp_path / "root"), {"/": {"sync": "false"}})


@pytest.fixture
def log(root: Location) -> RecordLog:
    create_table(root, LOG)
    return RecordLog(root, FENCE)


def index(log: RecordLog) -> dict[TopicIdPartition, list[Batch]]:
    """Return the complete index of `log`."""
    return {key: list(log.batches(key)) for key in sorted(log.partitions())}


def everything(log: RecordLog) -> tuple[Any, ...]:
    """Return the results of all queries of the index of `log`, for comparison with another
    log's.
    """
    batches = [one for of in index(log).values() for one in of]
    ends = {key: log.log_end_offset(key) for key in log.partitions()}
    found = log.find(one.batch_id for one in batches)
    producers = {(one.topic_id_partition, one.producer_id) for one in batches}
    remembered = {of: log.producer_batches(*of) for of in producers}
    live = [one for one in batches if log.was_committed(one.path)]
    return log.version, batches, ends, found, remembered, live


def clean_up(log: RecordLog, below: int) -> None:
    await_checkpoints()
    for version in range(below):
        Path(log.location.uri, "_delta_log", f"{version:020}.json").unlink()


class TestIndex:
    def test_a_new_log_is_empty(self, log: RecordLog) -> None:
        """A new log has no partitions and no batches."""
        assert (log.partitions(), log.log_end_offset(P0), list(log.batches(P0))) == ([], 0, [])
        assert log.log_end_offset(P0, log_start_offset=7) == 7
        assert log.batch_index({P0: 0}).equals(BATCH_INDEX.empty_table())
        assert log.producer_batches(P0, 1) == []

    def test_one_commit_appends_to_many_replicas(self, root: Location, log: RecordLog) -> None:
        """One commit can append to several replicas."""
        first, second = chain(0, 10, 5)
        third, fourth = chain(40, 1, 2, partition=1)
        log.commit([first, third])
        log.commit([second, fourth])
        assert index(log) == {P0: [first, second], P1: [third, fourth]}
        assert (log.log_end_offset(P0), log.log_end_offset(P1)) == (15, 43)
        assert log.commits == 2
        assert index(RecordLog(root)) == index(log)

    def test_batches_from_an_offset_begin_with_the_one_that_holds_it(self, log: RecordLog) -> None:
        """The batches from an offset begin with the batch that contains it."""
        first, second, third = chain(100, 10, 10, 10)
        log.commit([first, second, third])
        for offset in (0, 100, 109):
            assert list(log.batches(P0, offset)) == [first, second, third]
        assert list(log.batches(P0, 110)) == [second, third]
        assert list(log.batches(P0, 129)) == [third]
        assert list(log.batches(P0, 130)) == []
        assert list(log.batches(P1, 0)) == []

    def test_the_first_batch_of_each_epoch_is_found(self, root: Location, log: RecordLog) -> None:
        """A start derives the epochs from these batches, and not from all of them."""
        epochs = [0, 0, 0, 2, 3, 3, 7]
        batches = [batch(n, 1, leader_epoch=epoch) for n, epoch in enumerate(epochs)]
        other = batch(40, 1, leader_epoch=5, partition=1)
        log.commit([*batches, other])
        wanted = index_table([batches[0], batches[3], batches[4], batches[6], other])
        for one in (log, RecordLog(root)):
            assert one.epoch_starts([P0, P1]).equals(wanted)
            assert one.epoch_starts([TopicIdPartition("unknown", 0)]).num_rows == 0

    def test_only_the_process_that_asks_has_the_batches_by_id_and_by_producer(
        self, root: Location, log: RecordLog
    ) -> None:
        """They are a third of the memory of a batch, and brokers read each other's logs."""
        first, second, third = (batch(n, 1, producer_id=7) for n in range(3))
        log.commit([first, second])
        reader = RecordLog(root)
        log.commit([third])
        reader.refresh()
        assert (reader._by_batch_id, reader._by_producer) == (None, None)
        assert reader.find([first.batch_id, "unknown"]) == [first]
        assert reader.producer_batches(P0, 7) == [first, second, third]
        log.commit(removed=[third])
        reader.refresh()
        assert reader.find([third.batch_id]) == []
        assert reader.producer_batches(P0, 7) == [first, second]

    def test_loaded_batches_share_equal_values(self, root: Location, log: RecordLog) -> None:
        """A topic id takes 85 bytes: once for a log, and not once for each batch."""
        log.commit([batch(n, 1, size_bytes=1_000_000) for n in range(3)])
        loaded = RecordLog(root).batches(P0)
        assert len({id(one.topic_id) for one in loaded}) == 1
        assert len({id(one.size_bytes) for one in loaded}) == 1

    def test_a_batch_whose_last_records_were_compacted_keeps_its_range(
        self, root: Location, log: RecordLog
    ) -> None:
        """A batch whose last records were compacted keeps its offset range."""
        kept = batch(0, 100, record_count=3, last_offset_delta=99)
        log.commit([kept, batch(100)])
        for one in (log, RecordLog(root)):
            assert one.log_end_offset(P0) == 110
            assert one.batches(P0, 99)[0] == kept

    def test_the_batch_index_has_the_batch_before_the_position_too(self, log: RecordLog) -> None:
        """The batch index includes the batch before the position, whose epoch shows a divergence
        (rule 6.4).
        """
        first, second, third = chain(0, 10, 10, 10)
        other = batch(0, partition=1)
        log.commit([first, second, third, other])
        assert log.batch_index({P0: 20}).equals(index_table([second, third]))
        assert log.batch_index({P0: 21}).equals(index_table([third]))
        assert log.batch_index({P0: 0, P1: 10}).equals(index_table([first, second, third, other]))
        assert log.batch_index({P0: 31}).num_rows == 0

    def test_a_retry_is_found_by_its_batch_id(self, root: Location, log: RecordLog) -> None:
        """A retry is found by its batch id, under any path."""
        first, second = chain(0, 10, 10)
        log.commit([first, second])
        retried = new_batch_path(second.batch_id)
        for one in (log, RecordLog(root)):
            assert one.find([first.batch_id, "unknown"]) == [first]
            assert one.find([batch(0, path=retried).batch_id]) == [second]
            assert not one.was_committed(retried)
            assert one.was_committed(second.path)

    def test_the_last_batches_of_a_producer_are_remembered(
        self, root: Location, log: RecordLog
    ) -> None:
        """The last `REMEMBERED_BATCHES` batches of each producer and partition can be queried."""
        batches = chain(0, *[1] * 8, producer_id=3)
        log.commit(batches)
        log.commit([batch(8, producer_id=4), batch(0, partition=1, producer_id=3)])
        for one in (log, RecordLog(root)):
            assert one.producer_batches(P0, 3) == batches[-REMEMBERED_BATCHES:]
            assert one.producer_batches(P0, 5) == []
        log.commit(removed=[batches[-1], *log.batches(P0, 8)])
        assert log.producer_batches(P0, 3) == batches[-REMEMBERED_BATCHES - 1 : -1]
        assert log.producer_batches(P0, 4) == []

    def test_when_a_producers_batch_was_committed_is_known_to_all_who_read(
        self, root: Location, log: RecordLog
    ) -> None:
        """All readers know when a producer's batch was committed, by the broker's clock."""
        reader = RecordLog(root)
        first, second = chain(0, 1, 1, producer_id=3)
        log.commit([first], now_ms=5)
        log.commit([second], now_ms=7)
        reader.refresh()
        for one in (log, reader, RecordLog(root)):
            assert [one.appended_at_ms(batch) for batch in (first, second)] == [5, 7]


class TestRemoval:
    def test_truncation_removes_batches_and_adds_the_remainder_of_one(
        self, root: Location, log: RecordLog
    ) -> None:
        """A truncation removes batches and adds the remainder of the straddling batch."""
        batches = chain(0, 10, 10, 10)
        log.commit([*batches, batch(0, partition=1)])
        remainder = batches[1]._replace(
            path=new_batch_path(batches[1].batch_id), record_count=4, last_offset_delta=3
        )
        log.commit([remainder], batches[1:])
        assert log.log_end_offset(P0) == 14
        assert log.log_end_offset(P1) == 10
        assert log.find([batches[1].batch_id]) == [remainder]
        assert log.was_committed(batches[2].path)
        assert index(RecordLog(root)) == index(log)
        log.commit([batch(14)])
        assert log.log_end_offset(P0) == 24

    def test_retention_removes_from_the_start(self, root: Location, log: RecordLog) -> None:
        """Retention removes batches from the start of a replica."""
        batches = chain(0, 10, 10, 10)
        log.commit(batches)
        log.commit(removed=batches[:2])
        for one in (log, RecordLog(root)):
            assert list(one.batches(P0)) == batches[2:]
            assert one.log_end_offset(P0, 20) == 30

    def test_an_emptied_replica_may_begin_anywhere_again(
        self, root: Location, log: RecordLog
    ) -> None:
        """An emptied replica may begin again at any offset."""
        first, later = batch(0), batch(500)
        log.commit([first])
        log.commit(removed=[first])
        assert log.partitions() == []
        assert log.log_end_offset(P0, log_start_offset=500) == 500
        log.commit([later])
        assert index(RecordLog(root)) == index(log) == {P0: [later]}

    def test_everything_may_be_replaced_in_one_commit(self, root: Location, log: RecordLog) -> None:
        """One commit may replace all batches of a replica."""
        batches = chain(0, 10, 10)
        log.commit(batches)
        later = batch(500)
        log.commit([later], batches)
        assert index(RecordLog(root)) == index(log) == {P0: [later]}

    def test_batches_in_the_middle_may_be_merged(self, root: Location, log: RecordLog) -> None:
        """Batches in the middle of a replica may be replaced by a merged one."""
        batches = chain(0, 1, 2, 3, 4)
        log.commit(batches)
        merged = batch(1, 5)
        log.commit([merged], batches[1:3])
        assert list(log.batches(P0)) == [batches[0], merged, batches[3]]
        assert index(RecordLog(root)) == index(log)


class TestRefresh:
    def test_a_reader_of_a_log_that_was_created_again_has_the_new_one(
        self, root: Location, log: RecordLog
    ) -> None:
        """The new log has more commits than the reader had read. Its next commit was taken for one
        of the log before.
        """
        log.commit([batch(0)])
        reader = RecordLog(root)
        shutil.rmtree(log.location.uri)
        create_table(root, LOG)
        again = RecordLog(root, FENCE)
        for one in chain(0, 3, 3, 3):
            again.commit([one])
        reader.refresh()
        assert index(reader) == index(again)

    def test_a_reader_follows_commit_by_commit(self, root: Location, log: RecordLog) -> None:
        """A reader follows a log commit by commit."""
        reader = RecordLog(root)
        log.commit(chain(0, 10, 10))
        log.commit([batch(0, partition=1)], [log.batches(P0)[1]])
        log.commit([batch(10)])
        assert reader.partitions() == []
        reader.refresh()
        assert everything(reader) == everything(log)

    def test_a_reader_goes_to_an_exact_version_and_back(
        self, root: Location, log: RecordLog
    ) -> None:
        """A reader can load an exact version, newer or older."""
        states = {log.version: index(log)}
        for base_offset in range(0, 50, 10):
            log.commit([batch(base_offset)])
            states[log.version] = index(log)
        reader = RecordLog(root)
        for version in (3, 1, 2, 6, 1, 6, 5):
            reader.refresh(version)
            assert (reader.version, index(reader)) == (version, states[version])
        reader.refresh()
        assert index(reader) == index(log)

    def test_a_version_that_was_never_there_says_so(self, root: Location, log: RecordLog) -> None:
        """A version that never existed is reported as a lost or restored root."""
        log.commit([batch(0)])
        reader = RecordLog(root)
        with pytest.raises(StorageError, match=r"no version 9 .* the root was lost or restored"):
            reader.refresh(9)
        assert everything(reader) == everything(log)

    def test_a_fence_is_a_version_without_batches(self, root: Location, log: RecordLog) -> None:
        """A fence is a version without batches."""
        reader = RecordLog(root)
        RecordLog(root, Fence(BROKER_EPOCH, 2))
        reader.refresh()
        assert reader.version == log.version + 1

    def test_a_reader_that_was_left_behind_by_the_clean_up_catches_up(
        self, root: Location, log: RecordLog
    ) -> None:
        """The next commits of the reader's version are removed after thirty days."""
        reader = RecordLog(root)
        for base_offset in range(0, 1050, 10):
            log.commit([batch(base_offset)])
        clean_up(log, below=100)
        reader.refresh()
        assert everything(reader) == everything(log)
        exact = RecordLog(root)
        with pytest.raises(StorageError, match="no version 50"):
            exact.refresh(50)

    def test_a_root_that_was_lost_and_recreated_is_reloaded(
        self, root: Location, log: RecordLog
    ) -> None:
        """A reader reloads a log that was lost and created again."""
        log.commit([batch(0)])
        log.commit([batch(10)])
        reader = RecordLog(root)
        Path(root.uri).rename(root.uri + "-lost")
        create_table(root, LOG)
        new = RecordLog(root, Fence(BROKER_EPOCH, 2))
        reader.refresh()
        assert everything(reader) == everything(new)

    @pytest.mark.parametrize("seed", range(2))
    def test_following_gives_what_opening_gives(
        self, root: Location, log: RecordLog, seed: int
    ) -> None:
        """Over random appends, truncations, merges and retention, with a checkpoint in between."""
        chance = random.Random(seed)
        reader, lazy = RecordLog(root), RecordLog(root)
        states = {}
        for number in range(110):
            log.commit(*random_change(chance, log, number))
            reader.refresh()
            states[log.version] = everything(log)
            assert everything(reader) == states[log.version]
            if number % 10 == 0:
                assert everything(RecordLog(root)) == states[log.version]
            if chance.random() < 0.05:
                lazy.refresh()
                assert everything(lazy) == states[log.version]
        await_checkpoints()
        assert list(Path(log.location.uri, "_delta_log").glob("*.checkpoint.parquet"))
        for version in chance.sample(sorted(states), 10):
            lazy.refresh(version)
            assert everything(lazy) == states[version]


def random_change(
    chance: random.Random, log: RecordLog, epoch: int
) -> tuple[list[Batch], list[Batch]]:
    """Return batches to add and to remove: one of the changes that the protocol makes."""
    added: list[Batch] = []
    removed: list[Batch] = []
    for key in (P0, P1, TopicIdPartition("another-topic", 0)):
        batches = log.batches(key)
        header = {"topic_id": key.topic_id, "partition": key.partition, "leader_epoch": epoch}
        change = chance.choice(
            ["append", "append", "append", "truncate", "retain", "merge", "none"]
        )
        if change == "append" or not batches:
            counts = [chance.randint(1, 20) for _ in range(chance.randint(1, 3))]
            header["producer_id"] = chance.choice([-1, 5, 6])
            added += chain(log.log_end_offset(key), *counts, **header)
        elif change == "truncate":
            offset = chance.randint(batches[0].base_offset, batches[-1].next_offset)
            for one in log.batches(key, offset):
                removed.append(one)
                if one.base_offset < offset:
                    rest = offset - one.base_offset
                    path = new_batch_path(one.batch_id)
                    rest_of = one._replace(record_count=rest, last_offset_delta=rest - 1)
                    added.append(rest_of._replace(path=path))
        elif change == "retain":
            removed += batches[: chance.randint(0, len(batches))]
        elif change == "merge":
            first = chance.randrange(len(batches))
            epoch_of_run = batches[first].leader_epoch
            merged = [one for one in batches[first : first + 3] if one.leader_epoch == epoch_of_run]
            removed += merged
            count = merged[-1].next_offset - merged[0].base_offset
            merged_header = header | {"leader_epoch": epoch_of_run}
            added.append(batch(merged[0].base_offset, count, **merged_header))
    return added, removed


class TestFenceAndConflict:
    def test_the_older_process_of_a_broker_can_never_write_again(
        self, root: Location, log: RecordLog
    ) -> None:
        """After a newer process has taken the fence, the older one can never write again."""
        log.commit([batch(0)])
        newer = RecordLog(root, Fence(BROKER_EPOCH, 2))
        for _ in range(2):
            with pytest.raises(FencedError, match="held by broker_epoch 2, this process has 1"):
                log.commit([batch(10)])
        newer.commit([batch(10)])
        with pytest.raises(FencedError):
            log.commit([batch(10)])
        assert index(RecordLog(root)) == index(newer)
        assert newer.log_end_offset(P0) == 20

    def test_a_fence_that_falls_just_after_the_check_holds(
        self, root: Location, log: RecordLog, after_next: AfterNext
    ) -> None:
        """A fence that is taken just after the fence check holds."""
        after_next(
            "sparklog.storage.record_log.check_fence",
            lambda: RecordLog(root, Fence(BROKER_EPOCH, 2)),
        )
        with pytest.raises(FencedError):
            log.commit([batch(0)])
        assert RecordLog(root).partitions() == []

    @pytest.mark.usefixtures("log")
    def test_an_older_epoch_does_not_even_open_the_log(self, root: Location) -> None:
        """A process with an older epoch cannot open the log for writing."""
        RecordLog(root, Fence(BROKER_EPOCH, 3))
        with pytest.raises(FencedError, match="held by broker_epoch 3, newer than 2"):
            RecordLog(root, Fence(BROKER_EPOCH, 2))

    def test_a_parked_broker_resumes_under_its_epoch_without_a_commit(
        self, root: Location, log: RecordLog
    ) -> None:
        """A parked broker resumes under its epoch without a commit."""
        assert RecordLog(root, FENCE).version == log.version

    @pytest.mark.parametrize("is_in_between", [True, False], ids=["in between", "before"])
    def test_maintenance_of_the_same_broker_makes_a_commit_read_again(
        self, root: Location, log: RecordLog, after_next: AfterNext, is_in_between: bool
    ) -> None:
        """After a merge by the same broker, a commit is refused until it is based on the new
        version.
        """
        first = batch(0)
        log.commit([first])
        log = RecordLog(root, FENCE)
        maintenance = RecordLog(root, FENCE)
        merged = batch(0)

        def merge() -> None:
            maintenance.commit([merged], [first])

        if is_in_between:
            after_next("sparklog.storage.record_log.check_fence", merge)
        else:
            merge()
        appended = batch(10)
        with pytest.raises(CommitConflictError, match="log moved: another writer has committed"):
            log.commit([appended])
        assert everything(log) == everything(maintenance)
        assert log.commits == 0
        log.commit([appended])
        assert index(RecordLog(root)) == {P0: [merged, appended]}


class TestProgrammersFaults:
    """delta-rs accepts all of these without an error, and some make the table permanently
    unreadable.
    """

    @pytest.fixture
    def there(self, log: RecordLog) -> list[Batch]:
        removed, *batches = chain(0, 10, 10, 10)
        log.commit([removed, *batches])
        log.commit(removed=[removed])
        return [*batches, removed]

    @pytest.fixture
    def refused(
        self, root: Location, log: RecordLog
    ) -> Callable[[str, Sequence[Batch], Sequence[Batch]], None]:
        def check(why: str, added: Sequence[Batch], removed: Sequence[Batch]) -> None:
            before = everything(log)
            with pytest.raises((AssertionError, ValueError, OverflowError), match=why):
                log.commit(added, removed)
            assert everything(log) == before
            fresh = RecordLog(root)
            assert (fresh.version, index(fresh)) == (log.version, index(log))

        return check

    @pytest.mark.usefixtures("there")
    def test_gaps_and_overlaps(self, refused: Any) -> None:
        """A batch that leaves a gap or an overlap is refused."""
        refused("does not begin at 30", [batch(31)], [])
        refused("does not begin at 30", [batch(29)], [])
        refused("does not begin at 30", [batch(0)], [])
        refused("does not begin at 40", [batch(30), batch(41)], [])
        refused("does not begin at 10", [batch(0, partition=1), batch(5, partition=1)], [])

    def test_a_hole_that_a_removal_leaves(self, log: RecordLog, refused: Any) -> None:
        """A removal that leaves a gap is refused."""
        first, second, third = chain(0, 10, 10, 10)
        log.commit([first, second, third])
        refused("does not begin at 10", [], [second])
        refused("does not begin at 10", [batch(30)], [second])
        refused("does not begin at 19", [batch(10, 9)], [second])

    def test_a_path_twice(self, there: list[Batch], refused: Any) -> None:
        """A path that is or was in the log is refused, and so is a path twice in one commit."""
        live, _, removed = there
        refused("was committed before", [batch(30, path=live.path)], [])
        refused("was committed before", [batch(30, path=removed.path)], [])
        refused("was committed before", [live], [live])
        one, other = chain(30, 1, 1)
        refused("a path is added twice", [one, other._replace(path=one.path)], [])

    def test_a_commit_by_somebody_who_only_reads(self, root: Location, log: RecordLog) -> None:
        """A commit by a handle without a fence raises `AssertionError`."""
        with pytest.raises(AssertionError, match="only the broker that owns a log commits to it"):
            RecordLog(root).commit([batch(0)])
        assert RecordLog(root).version == log.version

    def test_a_removal_of_what_is_not_there(self, there: list[Batch], refused: Any) -> None:
        """The removal of a batch that is not in the log is refused."""
        live, last, removed = there
        refused("is not in the log", [], [batch(10)])
        refused("is not in the log", [], [removed])
        refused("is not in the log", [], [live._replace(base_offset=0)])
        refused("a batch is removed twice", [], [last, last])

    @pytest.mark.parametrize(
        "header",
        [
            {"partition": 2**31},
            {"leader_epoch": -(2**31) - 1},
            {"base_sequence": 2**31},
            {"producer_epoch": 2**31},
            {"producer_id": 2**63},
            {"last_offset_delta": 2**31, "record_count": 2**31 + 1},
        ],
        ids=lambda header: next(iter(header)),
    )
    @pytest.mark.usefixtures("there")
    def test_numbers_beyond_their_columns(self, refused: Any, header: dict[str, int]) -> None:
        """Numbers out of the range of their columns are refused."""
        refused("too large|out of bounds|not in range", [batch(30, **header)], [])

    @pytest.mark.parametrize("time_ms", [MIN_TIMESTAMP_MS - 1, MAX_TIMESTAMP_MS + 1, 2**62])
    @pytest.mark.usefixtures("there")
    def test_times_that_delta_cannot_name(self, refused: Any, time_ms: int) -> None:
        """Times out of Delta's range are refused."""
        refused("range|large", [batch(30, max_timestamp_ms=time_ms)], [])


LEGAL_HEADERS: list[dict[str, Any]] = [
    {"topic": "x" * 249},
    {"topic": "__HIVE_DEFAULT_PARTITION__"},
    {"topic": "null"},
    {"topic": "..."},
    {"topic": "-_.aZ09"},
    {"topic": "1e5"},
    {"topic": "true", "topic_id": "_-_"},
    {"partition": 2**31 - 1, "leader_epoch": 2**31 - 1},
    {"base_offset": 2**62, "producer_id": 2**63 - 1, "producer_epoch": 32767},
    {"base_sequence": 2**31 - 1},
    {"record_count": 2**31, "last_offset_delta": 2**31 - 1, "size_bytes": 2**40},
    {"record_count": 0},
    {"min_timestamp_ms": -1, "max_timestamp_ms": -1},
    {"min_timestamp_ms": -1001, "max_timestamp_ms": -1},
    {"min_timestamp_ms": -12_219_292_800_001, "max_timestamp_ms": 4_102_444_800_001},
    {"min_timestamp_ms": MIN_TIMESTAMP_MS, "max_timestamp_ms": MAX_TIMESTAMP_MS},
]


class TestHeaders:
    @pytest.mark.parametrize("header", LEGAL_HEADERS, ids=str)
    def test_every_legal_header_comes_back_by_each_way_in(
        self, root: Location, log: RecordLog, header: dict[str, Any]
    ) -> None:
        """Opening reads it through delta-rs, following reads the commit itself."""
        reader = RecordLog(root)
        written = batch(0)._replace(**header)
        log.commit([written])
        reader.refresh()
        for one in (log, reader, RecordLog(root)):
            assert list(index(one).values()) == [[written]]

    def test_headers_survive_a_checkpoint(self, root: Location, log: RecordLog) -> None:
        """All legal headers are read back after a checkpoint."""
        written = [
            batch(0)._replace(**header | {"topic_id": f"id-{number}"})
            for number, header in enumerate(LEGAL_HEADERS)
        ]
        log.commit(written)
        open_delta_table(log.location).create_checkpoint()
        fresh = RecordLog(root)
        for one in written:
            assert list(fresh.batches(one.topic_id_partition)) == [one]

    def test_the_statistics_hold_times_between_two_milliseconds(
        self, root: Location, log: RecordLog
    ) -> None:
        """Engines skip files by them: a bound below a record's time would hide the record."""
        moment = datetime(2026, 1, 1, 12, 0, 0, 123_999, timezone.utc)
        table = records_table([b"v"], None, 0).set_column(
            0, "timestamp", pa.array([moment], RECORD_COLUMNS.field("timestamp").type)
        )
        writer = BatchFileWriter(log.location, new_batch_path())
        writer.write(table)
        written = batch_of_file(writer.close())
        log.commit([written])
        assert list(RecordLog(root).batches(P0)) == [written]
        actions = pa.table(open_delta_table(log.location).get_add_actions(flatten=True))
        [lowest], [highest] = (actions[f"{end}.timestamp"].to_pylist() for end in ("min", "max"))
        assert lowest <= moment <= highest
        assert highest - lowest < timedelta(milliseconds=1)

    def test_a_commit_names_its_batch_as_delta_asks(self, log: RecordLog) -> None:
        """The partition values and null counts of a batch's add action conform to Delta."""
        log.commit([batch(5, topic="a.b-c_d")])
        commit = read_commit(log.location, log.version)
        assert commit is not None
        [added] = commit.added
        assert added.partition_values["topic"] == "a.b-c_d"
        assert added.partition_values["base_offset"] == "5"
        assert set(added.partition_values) == set(LOG.partition_by)
        assert added.statistics["nullCount"] == {"offset_delta": 0, "timestamp": 0}


class TestProtocol:
    def test_every_engine_can_read_and_write_the_table(self, log: RecordLog) -> None:
        """The table needs only reader version 1 and writer version 2."""
        log.commit([batch(0)])
        protocol = open_delta_table(log.location).protocol()
        assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
        first = Path(log.location.uri, "_delta_log", f"{0:020}.json").read_text().splitlines()
        [said] = [line["protocol"] for line in map(json.loads, first) if "protocol" in line]
        assert said == {"minReaderVersion": 1, "minWriterVersion": 2}

    def test_spark_reads_what_was_committed_by_reference(
        self, log: RecordLog, spark: SparkSession
    ) -> None:
        """Spark reads from the inbox, with offsets, after a checkpoint, and without removed
        batches.
        """
        topic = "__HIVE_DEFAULT_PARTITION__"
        first = write_file(log.location, [b"a", None, b""], [b"k", None, b""], 1_000)
        second = write_file(log.location, [b"d"], None, -1)
        gone = write_file(log.location, [b"x"])
        header = {"topic": topic, "partition": 2**31 - 1}
        log.commit([batch_of_file(gone, topic=topic)])
        log.commit([batch_of_file(first, 2**40, **header)], log.batches(P0))
        open_delta_table(log.location).create_checkpoint()
        log.commit([batch_of_file(second, 2**40 + 3, **header, leader_epoch=7)])

        records = spark.read.format("delta").load(log.location.uri)
        assert records.schema.names == LOG.columns.names
        rows = (
            records.where(f"topic_id = '{TOPIC_ID}' and topic = '{topic}'")
            .selectExpr(
                "base_offset + offset_delta as offset",
                "leader_epoch",
                "key",
                "value",
                "unix_millis(timestamp) as ms",
                "regexp_extract(_metadata.file_path, '.*/log/(.*)', 1) as path",
            )
            .orderBy("offset")
            .collect()
        )
        found = [tuple(bytes(x) if isinstance(x, bytearray) else x for x in row) for row in rows]
        assert found == [
            (2**40, 0, b"k", b"a", 1000, first.path),
            (2**40 + 1, 0, None, None, 1000, first.path),
            (2**40 + 2, 0, b"", b"", 1000, first.path),
            (2**40 + 3, 7, None, b"d", -1, second.path),
        ]
        earlier = spark.read.format("delta").option("versionAsOf", log.version - 1)
        assert earlier.load(log.location.uri).count() == 3
        detail = spark.sql(f"describe detail delta.`{log.location.uri}`").collect()[0]
        assert (detail.minReaderVersion, detail.minWriterVersion, detail.numFiles) == (1, 2, 2)

    def test_spark_finds_records_by_time_between_two_milliseconds(
        self, log: RecordLog, spark: SparkSession
    ) -> None:
        """Spark finds a record by a timestamp with microseconds."""
        moments = [datetime(2026, 1, 1, 0, 0, second, 999, timezone.utc) for second in (1, 2)]
        for number, moment in enumerate(moments):
            times = pa.array([moment], RECORD_COLUMNS.field("timestamp").type)
            writer = BatchFileWriter(log.location, new_batch_path())
            writer.write(records_table([b"v"], None, 0).set_column(0, "timestamp", times))
            log.commit([batch_of_file(writer.close(), number)])
        records = spark.read.format("delta").load(log.location.uri)
        exact = records.where("timestamp = timestamp'2026-01-01T00:00:02.000999Z'")
        assert exact.count() == 1
        assert pc.max(pa.array(moments)).as_py() == moments[1]
