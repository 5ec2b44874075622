"""Positions whose records were replaced by others: divergence (rule 8.2, KIP-320)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.model import EpochEntry, TopicIdPartition
from sparklog.protocol.consume.divergence import (
    Divergence,
    ReadPosition,
    divergences,
    may_have_diverged,
)
from sparklog.protocol.rules import Rules

KEY = TopicIdPartition("t", 0)
HISTORY = (EpochEntry(2, 10), EpochEntry(4, 13), EpochEntry(7, 17))


def position(
    fetch_offset: int,
    leader_epoch: int,
    epoch_start_offset: int | None = None,
    log_end_offset: int | None = 20,
    epochs: Sequence[EpochEntry] = HISTORY,
) -> ReadPosition:
    return ReadPosition(fetch_offset, leader_epoch, epoch_start_offset, log_end_offset, epochs)


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        pytest.param(position(20, 7), None, id="the log's end"),
        pytest.param(position(17, 4), None, id="the end of an earlier epoch"),
        pytest.param(position(10, 1), None, id="the log's start, after an epoch before it"),
        pytest.param(position(21, 7), Divergence(7, 20, 20), id="beyond the log's end"),
        pytest.param(position(21, 7, None, None), None, id="beyond an end that is not known"),
        pytest.param(position(15, 2), Divergence(2, 13, 13), id="beyond the end of its epoch"),
        pytest.param(position(11, 1), Divergence(1, 10, 10), id="an older epoch than the log's"),
        pytest.param(position(18, 5), Divergence(4, 17, 17), id="an epoch that the log never had"),
        pytest.param(position(15, 5), Divergence(4, None, 15), id="one within an older epoch"),
        pytest.param(position(15, 5, 14), Divergence(4, 14, 14), id="one whose start is known"),
        pytest.param(position(15, 8), Divergence(-1, None, 0), id="a newer epoch than the log's"),
        pytest.param(
            position(15, 8, 14), Divergence(-1, None, 0), id="one whose start is known, too"
        ),
        pytest.param(position(1, 0, epochs=()), Divergence(-1, None, 0), id="an empty history"),
        pytest.param(position(30, -1), None, id="no known epoch"),
    ],
)
def test_a_position_diverges_where_its_records_are_others(
    rules: Rules, read: ReadPosition, expected: Divergence | None
) -> None:
    """Rule 8.2, applied to the leader's answer by rule 6.2."""
    assert divergences(rules, {KEY: read}).get(KEY) == expected


def test_each_partition_is_compared_with_its_own_history(rules: Rules) -> None:
    """The same position has diverged in one partition and not in the others."""
    others = TopicIdPartition("t", 1), TopicIdPartition("u", 0)
    cut = (EpochEntry(2, 10), EpochEntry(4, 12))
    positions = {KEY: position(13, 2, epochs=cut), **dict.fromkeys(others, position(13, 2))}
    assert divergences(rules, positions) == {KEY: Divergence(2, 12, 12)}


def history_of(epochs: Sequence[int]) -> tuple[EpochEntry, ...]:
    """Return the history of a log whose record at each offset has this epoch."""
    starts = groupby(range(len(epochs)), key=lambda offset: epochs[offset])
    return tuple(EpochEntry(epoch, next(offsets)) for epoch, offsets in starts)


LOG = st.lists(st.integers(0, 4), max_size=6).map(sorted)
"""A log as the leader epochs of its records, in ascending order."""


@st.composite
def two_logs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Return the log that was read and the leader's, which share no epoch after a common part."""
    read, leaders = draw(LOG), draw(LOG)
    common = next(
        (offset for offset, (a, b) in enumerate(zip(read, leaders, strict=False)) if a != b),
        min(len(read), len(leaders)),
    )
    own = set(read[common:])
    # One leader appends all records of an epoch, so logs that differ have different epochs.
    return read, leaders[:common] + [one for one in leaders[common:] if one not in own]


@settings(max_examples=100, deadline=None)
@given(logs=two_logs(), knows_start=st.booleans(), knows_end=st.booleans())
def test_logs_that_diverge_are_found_wherever_they_do(
    rules: Rules, logs: tuple[list[int], list[int]], knows_start: bool, knows_end: bool
) -> None:
    """Check every position in the log that was read against a comparison record by record."""
    read, leaders = logs
    for offset in range(1, len(read) + 1):
        epoch = read[offset - 1]
        one = position(
            offset,
            epoch,
            read.index(epoch) if knows_start else None,
            len(leaders) if knows_end else None,
            history_of(leaders),
        )
        found = divergences(rules, {KEY: one}).get(KEY)
        is_same = leaders[:offset] == read[:offset]
        ends_early = leaders == read[: len(leaders)] and len(leaders) < offset
        if is_same:
            assert found is None
        elif knows_end or not ends_early:
            assert found is not None
        if found is not None and found.divergent_offset is not None:
            # It need not be the first diverging offset: a position has one epoch only.
            assert found.divergent_offset < offset
            assert found.divergent_offset == found.replaced_offset
            assert leaders[: found.divergent_offset + 1] != read[: found.divergent_offset + 1]


POSITIONS = st.builds(
    position,
    st.integers(0, 8),
    st.integers(-1, 5),
    st.none() | st.integers(0, 8),
    st.none() | st.integers(0, 8),
    LOG.map(history_of),
)


@settings(max_examples=200, deadline=None)
@given(read=POSITIONS)
def test_a_position_that_is_not_asked_about_has_not_diverged(
    rules: Rules, read: ReadPosition
) -> None:
    """`may_have_diverged` is a necessary condition of the rules' divergences."""
    if may_have_diverged(read):
        return
    end = max(read.fetch_offset, read.log_end_offset or 0)
    [found] = rules.run(
        "end_offset_for_epoch",
        asked=[KEY._asdict() | {"asked_epoch": read.leader_epoch, "log_end_offset": end}],
        entries=[KEY._asdict() | entry._asdict() for entry in read.epochs],
    )
    columns = {
        "fetch_offset": read.fetch_offset,
        "leader_epoch": read.leader_epoch,
        "epoch_start_offset": read.epoch_start_offset,
        "found_epoch": found["epoch"],
        "end_offset": found["end_offset"],
    }
    assert rules.run("divergence", positions=[KEY._asdict() | columns]) == []
