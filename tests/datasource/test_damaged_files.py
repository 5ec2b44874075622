"""Tasks that read a damaged file read another in-sync replica's copy, or fail (rule 10.8)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sparklog.datasource.read_task import ReadTask
from sparklog.errors import ProtocolError, StorageError
from tests.broker.damaging import batch_file, change_header, cut, flip_byte
from tests.datasource.conftest import Readable, rows

VALUES = [b"a", b"b", b"c", b"d"]

Damage = Callable[[Path], object]


@pytest.fixture
def filled(readable: Readable) -> Readable:
    """Four batches of one record in topic t."""
    readable.create_topic("t")
    for value in VALUES:
        readable.produce("t", value)
    return readable


def values(tasks: list[ReadTask]) -> list[bytes | None]:
    return [value for _, _, _, value in rows(tasks)]


@pytest.mark.parametrize("damage", [flip_byte, cut, Path.unlink])
class TestDamagedFile:
    def test_its_records_come_from_another_replica_in_sync(
        self, filled: Readable, damage: Damage
    ) -> None:
        """The records of a damaged file are read from another in-sync replica."""
        damage(batch_file(filled.cluster, 0, 1))
        damage(batch_file(filled.cluster, 1, 1))
        assert values(filled.batch(subscribe="t")) == VALUES

    def test_merged_batches_of_another_replica_give_just_the_offsets(
        self, filled: Readable, damage: Damage
    ) -> None:
        """Only the records of the damaged file are read from another replica's merged batch."""
        cluster = filled.cluster
        later = [b"%d" % number for number in range(36)]
        for value in later:
            cluster.produce("t", 0, [value])
        cluster.tick_until_idle()
        cluster.clock.advance(cluster.settings.log_merger_min_lag_ms)
        cluster.tick_until_idle()
        assert cluster.merge(1) == (40, 1)
        cluster.tick_until_idle()
        damage(batch_file(cluster, 0, 1))
        assert values(filled.batch(subscribe="t")) == [*VALUES, *later]

    def test_no_record_of_it_is_returned_where_no_replica_has_a_copy(
        self, filled: Readable, damage: Damage
    ) -> None:
        """If all copies of a file are damaged, the read fails, and names the file."""
        tasks = filled.batch(subscribe="t")
        for broker in range(3):
            damage(batch_file(filled.cluster, broker, 1))
        with pytest.raises(StorageError) as failure:
            values(tasks)
        assert tasks[0].files[1].path in str(failure.value)
        later = '{"t":{"0":2}}'
        assert values(filled.batch(subscribe="t", startingOffsets=later)) == VALUES[2:]

    def test_a_replica_out_of_sync_is_not_read(self, filled: Readable, damage: Damage) -> None:
        """A replica that is out of sync is not read in place of a damaged one."""
        for broker in (1, 2):
            filled.cluster.crash(broker)
            filled.cluster.fence(broker)
        damage(batch_file(filled.cluster, 0, 1))
        with pytest.raises(StorageError):
            values(filled.batch(subscribe="t"))


def test_a_flipped_value_that_can_be_decoded_is_found_by_the_checksum(filled: Readable) -> None:
    """Parquet itself does not detect it: the file is valid and has other records."""
    file = batch_file(filled.cluster, 0, 1)
    table = pq.read_table(file, partitioning=None)
    changed = table.set_column(3, "value", [[b"X"]])
    pq.write_table(changed.cast(table.schema), file)
    assert values(filled.batch(subscribe="t")) == VALUES


class TestDamagedLog:
    def test_its_records_come_from_another_replica_in_sync(self, filled: Readable) -> None:
        """The records after a damaged header are read from another in-sync replica."""
        change_header(filled.cluster, 0, 1, "base_offset", 9)
        assert values(filled.batch(subscribe="t")) == VALUES

    def test_a_query_is_refused_where_no_replica_is_sound(self, filled: Readable) -> None:
        """A query is refused if all replicas have a damaged header in its range."""
        for broker in range(3):
            change_header(filled.cluster, broker, 1, "base_offset", 9)
        with pytest.raises(ProtocolError, match=r"KAFKA_STORAGE_ERROR: offsets 0 to 3 of t-0"):
            filled.batch(subscribe="t")
        sound = '{"t":{"0":1}}'
        assert values(filled.batch(subscribe="t", endingOffsets=sound)) == VALUES[:1]
