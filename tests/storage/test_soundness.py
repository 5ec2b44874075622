"""A log offers only the batches of a damaged replica before the first fault (rule 9.5)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparklog.model import LOG, Batch, TopicIdPartition, new_batch_path
from sparklog.storage.batch_actions import added_file, header_checksum, removed_file
from sparklog.storage.control_table import create_table
from sparklog.storage.delta_snapshots import open_delta_table
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog
from tests.broker.damaging import change_add
from tests.storage.batches import FENCE, P0, P1, batch, chain

Reader = Callable[[], RecordLog]


@pytest.fixture
def root(tmp_path: Path) -> Location:
    """A root whose files are not synced: the batches of these tests have no file."""
    location = Location.of(str(tmp_path / "root"), {"/": {"sync": "false"}})
    create_table(location, LOG)
    return location


@pytest.fixture
def log(root: Location) -> RecordLog:
    return RecordLog(root, FENCE)


@pytest.fixture(params=["opened", "followed", "opened from a checkpoint"])
def read(request: pytest.FixtureRequest, root: Location, log: RecordLog) -> Reader:
    """Open or follow the log after it was damaged, in each way that a log is loaded."""
    early = RecordLog(root)

    def reader() -> RecordLog:
        if request.param == "followed":
            early.refresh()
            return early
        if request.param == "opened from a checkpoint":
            open_delta_table(root.child("log")).create_checkpoint()
        return RecordLog(root)

    return reader


def folder(root: Location) -> Path:
    return Path(root.uri, "log")


def change_header(root: Location, one: Batch, **values: object) -> None:
    def change(add: dict[str, Any]) -> None:
        statistics = json.loads(add["stats"])
        for name, value in values.items():
            if name == "size":
                add["size"] = value
            elif name in statistics:
                statistics[name] = value
            elif name in statistics["maxValues"]:
                statistics["maxValues"][name] = value
            else:
                assert name in add["partitionValues"]
                add["partitionValues"][name] = None if value is None else str(value)
        add["stats"] = json.dumps(statistics)

    change_add(folder(root), one.path, change)


def change_behind_its_back(
    log: RecordLog, added: list[Batch], removed: list[Batch] | None = None
) -> None:
    """Commit without the checks of `RecordLog`."""
    assert log._log.commit(
        "WRITE",
        [added_file(one, 0) for one in added],
        [removed_file(one, 0) for one in removed or []],
    )


class TestHeaders:
    @pytest.mark.parametrize(
        "change",
        [
            {"base_offset": 18},
            {"leader_epoch": 1},
            {"producer_id": 3},
            {"base_sequence": 0},
            {"checksum": "00000000deadbeee"},
            {"topic": "u"},
            {"header_checksum": "0000000000000000"},
            {"header_checksum": None},
            {"leader_epoch": None},
            {"numRecords": 9},
            {"offset_delta": 8},
            {"size": 1001},
        ],
    )
    def test_a_changed_value_ends_what_is_offered(
        self, root: Location, log: RecordLog, read: Reader, change: dict[str, Any]
    ) -> None:
        """A batch with a changed header value, and all batches after it, are not offered."""
        there = chain(0, 10, 10, 10)
        log.commit(there)
        log.commit([batch(0, partition=1)])
        change_header(root, there[1], **change)
        found = read()
        assert list(found.batches(P0)) == there[:1]
        assert found.log_end_offset(P0) == 10
        assert {one.path for one in found.unsound_batches(P0)} == {one.path for one in there[1:]}
        assert there[1].path in str(found.damaged[P0])
        assert found.damaged[P0].path == log.location.uri
        assert found.log_end_offset(P1) == 10
        assert P1 not in found.damaged

    def test_a_copy_of_a_batch_has_its_checksum(self) -> None:
        """A copy of a batch has the same header checksum, and another batch has a different one."""
        one = batch(5)
        copy = one._replace(path=new_batch_path(one.batch_id))
        other = one._replace(path=new_batch_path())
        assert header_checksum(copy) == header_checksum(one) != header_checksum(other)

    def test_a_changed_first_base_offset_leaves_nothing_that_is_offered(
        self, root: Location, log: RecordLog, read: Reader
    ) -> None:
        """A log whose first batch has a changed base offset offers nothing: it could be mistaken
        for the last.
        """
        there = chain(0, 10, 10, 10)
        log.commit(there)
        change_header(root, there[0], base_offset=30)
        found = read()
        assert list(found.batches(P0)) == []
        assert found.log_end_offset(P0) == 0
        assert len(found.unsound_batches(P0)) == 3

    def test_a_changed_last_base_offset_costs_only_the_last_batch(
        self, root: Location, log: RecordLog, read: Reader
    ) -> None:
        """A changed base offset of the last batch affects only that batch."""
        there = chain(0, 10, 10, 10)
        log.commit(there)
        change_header(root, there[2], base_offset=0)
        assert list(read().batches(P0)) == there[:2]

    @pytest.mark.parametrize("change", [{"partition": 1}, {"topic_id": "another-topic"}])
    def test_a_changed_partition_damages_the_replica_that_lost_the_batch(
        self, root: Location, log: RecordLog, read: Reader, change: dict[str, Any]
    ) -> None:
        """A changed partition damages the replica that lost the batch, and no other."""
        there = chain(0, 10, 10)
        other = TopicIdPartition("another-topic", 0)
        log.commit([*there, batch(0, partition=1), batch(0, topic_id=other.topic_id)])
        change_header(root, there[1], **change)
        found = read()
        assert found.damaged.keys() == {P0}
        assert list(found.batches(P0)) == there[:1]
        assert (found.log_end_offset(P1), found.log_end_offset(other)) == (10, 10)


class TestOrder:
    @pytest.mark.parametrize(
        ("batches", "sound_count"),
        [
            ([batch(0), batch(10), batch(21)], 2),
            ([batch(0), batch(10), batch(19)], 1),
            ([batch(0), batch(10), batch(10, 5)], 1),
            ([batch(0), batch(0, 5), batch(10)], 0),
            ([batch(0, 20), batch(5), batch(20)], 0),
            ([batch(0), batch(10, leader_epoch=2), batch(20, leader_epoch=1)], 1),
        ],
    )
    def test_gaps_overlaps_and_decreasing_epochs_end_what_is_offered(
        self, log: RecordLog, read: Reader, batches: list[Batch], sound_count: int
    ) -> None:
        """Gaps, overlaps and decreasing epochs end the offered batches."""
        for one in batches:
            change_behind_its_back(log, [one])
        found = read()
        assert list(found.batches(P0)) == batches[:sound_count]
        assert len(found.unsound_batches(P0)) == len(batches) - sound_count
        assert found.log_end_offset(P0) == (
            batches[sound_count - 1].next_offset if sound_count else 0
        )

    def test_a_log_may_begin_anywhere(self, log: RecordLog, read: Reader) -> None:
        """A log may begin at any offset."""
        there = chain(1000, 10, 10)
        log.commit(there)
        found = read()
        assert list(found.batches(P0)) == there
        assert not found.damaged


class TestRepair:
    def test_the_owner_removes_what_is_damaged_and_goes_on(
        self, root: Location, log: RecordLog, read: Reader
    ) -> None:
        """The owner removes damaged batches, and appends sound ones again."""
        there = chain(0, 10, 10, 10)
        log.commit(there)
        change_header(root, there[1], base_offset=11)
        found = read()
        assert P0 in found.damaged
        owner = RecordLog(root, FENCE)
        owner.commit([], owner.unsound_batches(P0))
        assert not owner.damaged
        again = [one._replace(path=new_batch_path(one.batch_id)) for one in there[1:]]
        owner.commit(again)
        found.refresh()
        for one in (owner, found, RecordLog(root)):
            assert not one.damaged
            assert list(one.batches(P0)) == [there[0], *again]
            assert list(one.unsound_batches(P0)) == []

    def test_damage_that_grows_is_followed(self, log: RecordLog, read: Reader) -> None:
        """A reader follows a log while its damage grows and is repaired."""
        there = [batch(0), batch(10), batch(30), batch(40)]
        for one in there:
            change_behind_its_back(log, [one])
        found = read()
        change_behind_its_back(log, [batch(50)], [there[1]])
        found.refresh()
        assert list(found.batches(P0)) == there[:1]
        change_behind_its_back(log, chain(10, 10, 10), [])
        found.refresh()
        assert not found.damaged
        assert found.log_end_offset(P0) == 60

    def test_a_producers_batches_that_are_not_offered_are_not_known_again(
        self, root: Location, log: RecordLog, read: Reader
    ) -> None:
        """Batches that are not offered do not count as a producer's batches."""
        there = chain(0, 10, 10, producer_id=5)
        log.commit(there)
        change_header(root, there[1], leader_epoch=3)
        found = read()
        assert found.producer_batches(P0, 5) == there[:1]
        assert found.find([there[1].batch_id]) == []
        assert found.was_committed(there[1].path)
