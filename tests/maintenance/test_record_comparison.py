"""Two replicas are compared by their records, for any division into batches (rule 9.2)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparklog.errors import StorageError
from sparklog.maintenance.record_comparison import Slice, first_difference
from sparklog.model import new_batch_path
from sparklog.storage.batch_files import BatchFileWriter, records_table
from sparklog.storage.location import Location
from tests.storage.batches import batch_of_file, write_file

COUNT = 8

cuts = st.sets(st.integers(1, COUNT - 1))


def replica(log: Location, values: list[bytes], at: set[int], epoch: int = 0) -> Slice:
    """Write records 0 to 7 in batches that begin at 0 and at each of `at`."""
    bounds = [0, *sorted(at), COUNT]
    batches = [
        batch_of_file(write_file(log, values[first:end]), first, leader_epoch=epoch)
        for first, end in pairwise(bounds)
    ]
    return Slice(log, batches)


@given(
    own_cuts=cuts,
    other_cuts=cuts,
    changed=st.none() | st.integers(0, COUNT - 1),
    bounds=st.tuples(st.integers(0, COUNT), st.integers(0, COUNT)),
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_first_record_that_differs_is_found_whatever_the_batches(
    tmp_path: Path,
    own_cuts: set[int],
    other_cuts: set[int],
    changed: int | None,
    bounds: tuple[int, int],
) -> None:
    """The first differing record is found, for any division into batches."""
    log = Location.of(str(tmp_path / "log"))
    values = [f"record {number}".encode() for number in range(COUNT)]
    other_values = list(values)
    if changed is not None:
        other_values[changed] = b"other"
    first, below = sorted(bounds)
    found = first_difference(
        replica(log, values, own_cuts), replica(log, other_values, other_cuts), first, below
    )
    if changed is None or not first <= changed < below:
        assert found is None
    else:
        assert found is not None
        assert found.offset == changed
        assert found.digest != found.other_digest


def test_a_record_that_one_of_them_lacks_is_a_difference(tmp_path: Path) -> None:
    """A record that only one of them has is a difference."""
    log = Location.of(str(tmp_path / "log"))
    whole = replica(log, [b"x"] * COUNT, {4})
    half = Slice(log, whole.batches[:1])
    for one, other in ((whole, half), (half, whole)):
        difference = first_difference(one, other, 0, COUNT)
        assert difference is not None
        assert difference.offset == 4
        assert first_difference(one, other, 0, 4) is None


def test_the_epoch_of_a_record_counts(tmp_path: Path) -> None:
    """A different leader epoch of a record is a difference."""
    log = Location.of(str(tmp_path / "log"))
    one, other = (replica(log, [b"x"] * COUNT, set(), epoch) for epoch in (0, 1))
    difference = first_difference(one, other, 2, COUNT)
    assert difference is not None
    assert difference.offset == 2


def test_equal_batches_are_not_read_and_a_file_that_cannot_be_is_named(tmp_path: Path) -> None:
    """Equal batches are not read, and an unreadable file is named."""
    log = Location.of(str(tmp_path / "log"))
    one = replica(log, [b"x"] * COUNT, {4})
    for batch in one.batches:
        (tmp_path / "log" / batch.path).unlink()
    assert first_difference(one, one, 0, COUNT) is None
    other = replica(log, [b"x"] * COUNT, {4, 6})
    with pytest.raises(StorageError, match="cannot be read"):
        first_difference(one, other, 0, COUNT)


def compacted(log: Location, records: Mapping[int, tuple[bytes, bytes | None]], end: int) -> Slice:
    """Write records of a compacted log as one batch that ends at `end`."""
    writer = BatchFileWriter(log, new_batch_path())
    keys, values = zip(*records.values(), strict=True)
    writer.write(records_table(values, keys, 0), pa.array(records, pa.int32()))
    batch = batch_of_file(writer.close(), 0)
    return Slice(log, [batch._replace(last_offset_delta=end - 1)])


def test_a_key_whose_tombstone_has_gone_in_one_of_them_is_no_difference(tmp_path: Path) -> None:
    """The replica that was cleaned twice has neither the record nor the tombstone after it."""
    log = Location.of(str(tmp_path / "log"))
    before = {0: (b"k", b"1"), 1: (b"k", None), 2: (b"l", b"1")}
    whole, twice = compacted(log, before, 3), compacted(log, {2: before[2]}, 3)
    for one, other in ((whole, twice), (twice, whole)):
        assert first_difference(one, other, 0, 3) is None


def test_a_record_without_its_successor_is_a_difference(tmp_path: Path) -> None:
    """Neither replica has a later record of the key that is compared: the record was lost."""
    log = Location.of(str(tmp_path / "log"))
    before = {0: (b"k", b"1"), 1: (b"l", b"1"), 2: (b"k", b"2")}
    whole, lost = compacted(log, before, 3), compacted(log, {1: before[1]}, 3)
    for one, other in ((whole, lost), (lost, whole)):
        found = first_difference(one, other, 0, 3)
        assert found is not None
        assert found.offset == 2
        found = first_difference(one, other, 0, 2)
        assert found is not None
        assert found.offset == 0
