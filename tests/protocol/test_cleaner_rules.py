"""The rules of the log cleaner: cleanable_logs, latest_keys, retained_records (8.3)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.protocol.driver_rules import DriverRules

Record = tuple[str | None, bool]
"""A key, and whether the record is a tombstone."""

KEYS = st.sampled_from(["a", "b", "c", None])
RECORDS = st.lists(st.tuples(KEYS, st.booleans()), max_size=30)


def cleaned(
    records: list[tuple[int, Record]], clean_below: int, tombstones_below: int
) -> list[tuple[int, Record]]:
    """Return what a pass over a log keeps, by the rules."""
    rules = DriverRules()
    dirty = [
        {"key_digest": key, "record_offset": offset}
        for offset, (key, _) in records
        if offset >= clean_below
    ]
    latest = rules.run("latest_keys", records=dirty)
    rows = [
        {
            "base_offset": 0,
            "record_offset": offset,
            "key_digest": key,
            "is_tombstone": is_tombstone,
            "tombstones_below": tombstones_below,
        }
        for offset, (key, is_tombstone) in records
    ]
    found = rules.run("retained_records", records=rows, latest=latest)
    by_offset = dict(records)
    return [(row["record_offset"], by_offset[row["record_offset"]]) for row in found]


def last_of_each_key(records: list[tuple[int, Record]]) -> dict[str, tuple[int, bool]]:
    return {key: (offset, dead) for offset, (key, dead) in records if key is not None}


@given(RECORDS, st.lists(st.integers(0, 30), max_size=4))
@settings(deadline=None, max_examples=150)
def test_passes_in_any_steps_keep_the_last_record_of_each_key_and_nothing_else(
    records: list[Record], ends: list[int]
) -> None:
    """Each pass reads the keys after the last one's end; the final one reads to the log's end."""
    log = list(enumerate(records))
    expected = last_of_each_key(log)
    left, clean_below = log, 0
    for end in (*sorted(ends), len(log)):
        passed = cleaned([one for one in left if one[0] < end], clean_below, 0)
        left = [*passed, *(one for one in left if one[0] >= end)]
        clean_below = max(clean_below, end)
        assert last_of_each_key(left) == expected, "a pass loses no last record"
    assert [offset for offset, _ in left] == sorted(offset for offset, _ in expected.values())


@given(RECORDS, st.integers(0, 31))
@settings(deadline=None, max_examples=100)
def test_tombstones_go_below_the_horizon_only_and_no_older_record_comes_back(
    records: list[Record], horizon: int
) -> None:
    """Without its tombstone a key must not show an older value."""
    log = list(enumerate(records))
    expected = {
        key: at for key, at in last_of_each_key(log).items() if not (at[1] and at[0] < horizon)
    }
    assert last_of_each_key(cleaned(log, 0, horizon)) == expected
