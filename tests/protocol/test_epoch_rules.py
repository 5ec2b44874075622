"""Leader-epoch histories: end_offset_for_epoch, epoch_entries, recovered_epochs (6.1, 6.2, 7.0)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.protocol.rules import Rules

CASES = Path(__file__).parents[1] / "scenarios" / "leader_epoch.yaml"
PARTITION = {"topic_id": "t", "partition": 0}

Entries = Sequence[tuple[int, int]]


def rows(entries: Entries) -> list[dict[str, Any]]:
    return [PARTITION | {"epoch": epoch, "start_offset": start} for epoch, start in entries]


def history(found: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return sorted((row["epoch"], row["start_offset"]) for row in found)


def assign(rules: Rules, entries: Entries, new: tuple[int, int]) -> list[tuple[int, int]]:
    return history(rules.run("epoch_entries", entries=rows(entries), assigned=rows([new])))


def end_offsets(
    rules: Rules, entries: Entries, log_end_offset: int, epochs: Sequence[int]
) -> dict[int, tuple[int, int]]:
    asked = [
        PARTITION | {"asked_epoch": epoch, "log_end_offset": log_end_offset} for epoch in epochs
    ]
    found = rules.run("end_offset_for_epoch", asked=asked, entries=rows(entries))
    return {row["asked_epoch"]: (row["epoch"], row["end_offset"]) for row in found}


def end_offset_for(
    rules: Rules, entries: Entries, log_end_offset: int, epoch: int
) -> tuple[int, int]:
    return end_offsets(rules, entries, log_end_offset, [epoch])[epoch]


@pytest.mark.parametrize(
    "case",
    yaml.safe_load(CASES.read_text(encoding="utf-8")),
    ids=lambda case: case["name"],
)
def test_the_table_of_leader_epoch_cases(rules: Rules, case: dict[str, Any]) -> None:
    """Rules 6.1 and 6.2, with the cases of the table."""
    entries: list[tuple[int, int]] = []
    for epoch, start in case["assign"]:
        entries = assign(rules, entries, (epoch, start))
    assert entries == [tuple(entry) for entry in case["entries"]]
    for asked, expected in case["end_offset_for"].items():
        assert end_offset_for(rules, entries, case["leo"], asked) == tuple(expected)


KNOWN = [(2, 10), (4, 13), (7, 17)]


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        pytest.param(7, (7, 20), id="the latest epoch ends at the log's end"),
        pytest.param(4, (4, 17), id="a known earlier one ends where the next begins"),
        pytest.param(2, (2, 13), id="so does the first"),
        pytest.param(5, (4, 17), id="one unknown in between is answered by the largest smaller"),
        pytest.param(6, (4, 17), id="wherever in between it lies"),
        pytest.param(1, (1, 10), id="one older than all ends at the first start"),
        pytest.param(8, (-1, -1), id="one newer than all is unknown"),
        pytest.param(-1, (-1, -1), id="no epoch has no end"),
    ],
)
def test_where_an_epoch_ends(rules: Rules, asked: int, answer: tuple[int, int]) -> None:
    """Rule 6.2: the five cases."""
    assert end_offset_for(rules, KNOWN, 20, asked) == answer


def test_with_an_empty_history_every_epoch_is_unknown(rules: Rules) -> None:
    """Rule 6.2: an empty history answers (-1, -1)."""
    assert end_offset_for(rules, [], 20, 0) == (-1, -1)


def test_the_latest_epoch_may_have_no_record_yet(rules: Rules) -> None:
    """Rule 6.2: a leader that wrote nothing answers its epoch with its log's end."""
    assert end_offset_for(rules, [(0, 0), (3, 20)], 20, 3) == (3, 20)
    assert end_offset_for(rules, [(0, 0), (3, 20)], 20, 0) == (0, 20)


def test_each_partition_is_asked_its_own_history(rules: Rules) -> None:
    """The same epoch may end at another offset in another partition, or in a topic with another
    id.
    """
    others = [("t", 0, 4), ("t", 1, 5), ("u", 0, 6)]
    found = rules.run(
        "end_offset_for_epoch",
        asked=[
            {"topic_id": topic, "partition": partition, "asked_epoch": 0, "log_end_offset": 9}
            for topic, partition, _ in others
        ],
        entries=[
            {"topic_id": topic, "partition": partition, "epoch": epoch, "start_offset": start}
            for topic, partition, end in others
            for epoch, start in ((0, 0), (1, end))
        ],
    )
    ends = {(row["topic_id"], row["partition"]): row["end_offset"] for row in found}
    assert ends == {(topic, partition): end for topic, partition, end in others}


@pytest.mark.parametrize(
    ("entries", "new", "expected"),
    [
        pytest.param([], (0, 0), [(0, 0)], id="a new topic's leader starts with (0, 0)"),
        pytest.param([(0, 0)], (1, 5), [(0, 0), (1, 5)], id="a later epoch is added"),
        pytest.param([(2, 6)], (2, 7), [(2, 6)], id="the same epoch with a later start is ignored"),
        pytest.param([(2, 6)], (2, 6), [(2, 6)], id="the same entry changes nothing"),
        pytest.param([(2, 6)], (2, 5), [(2, 5)], id="the same epoch may turn out to start earlier"),
        pytest.param([(0, 0), (1, 0)], (2, 0), [(2, 0)], id="epochs without a record give way"),
        pytest.param([(2, 6)], (3, 5), [(3, 5)], id="entries that start beyond the new one go"),
        pytest.param(
            [(5, 11), (6, 12), (7, 13)], (7, 12), [(5, 11), (7, 12)], id="a conflicting tail goes"
        ),
        pytest.param(
            [(1, 5), (2, 6)], (1, 7), [(1, 7)], id="an epoch of the past ends the history, too"
        ),
    ],
)
def test_a_new_entry(
    rules: Rules, entries: Entries, new: tuple[int, int], expected: list[tuple[int, int]]
) -> None:
    """Rule 6.1, with Kafka's choice where the rule leaves one."""
    assert assign(rules, entries, new) == expected


def test_a_new_entry_leaves_other_partitions_alone(rules: Rules) -> None:
    """Histories of partitions without a new entry are unchanged."""
    other = {"topic_id": "t", "partition": 1, "epoch": 9, "start_offset": 90}
    found = rules.run("epoch_entries", entries=[*rows([(0, 0)]), other], assigned=rows([(1, 0)]))
    assert other in found
    assert [row for row in found if row["partition"] == 0] == rows([(1, 0)])


def modelled_assign(entries: list[tuple[int, int]], new: tuple[int, int]) -> list[tuple[int, int]]:
    if entries and entries[-1][0] == new[0] and entries[-1][1] <= new[1]:
        return entries
    return [entry for entry in entries if entry[0] < new[0] and entry[1] < new[1]] + [new]


def modelled_end_offset(entries: Entries, log_end_offset: int, asked: int) -> tuple[int, int]:
    if not entries or asked > entries[-1][0] or asked < 0:
        return -1, -1
    if asked == entries[-1][0]:
        return asked, log_end_offset
    if asked < entries[0][0]:
        return asked, entries[0][1]
    epoch = max(epoch for epoch, _ in entries if epoch <= asked)
    return epoch, min(start for epoch, start in entries if epoch > asked)


SMALL = st.integers(0, 6)


@settings(max_examples=40, deadline=None)
@given(new=st.lists(st.tuples(SMALL, SMALL), max_size=6))
def test_histories_grow_in_both_columns(rules: Rules, new: list[tuple[int, int]]) -> None:
    """Rule 9.6: for any assignments; the result equals that of rule 6.1 in plain Python."""
    entries: list[tuple[int, int]] = []
    for entry in new:
        expected = modelled_assign(entries, entry)
        entries = assign(rules, entries, entry)
        assert entries == expected
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries))
    asked = range(-1, 8)
    assert end_offsets(rules, entries, 7, asked) == {
        epoch: modelled_end_offset(entries, 7, epoch) for epoch in asked
    }


def recovered(
    rules: Rules, entries: Entries, batches: Entries, log_end_offset: int
) -> list[tuple[int, int]]:
    found = rules.run(
        "recovered_epochs",
        entries=rows(entries),
        batches=[
            PARTITION | {"leader_epoch": epoch, "base_offset": base} for epoch, base in batches
        ],
        replicas=[PARTITION | {"log_end_offset": log_end_offset}],
    )
    return history(found)


@pytest.mark.parametrize(
    ("entries", "batches", "end", "expected"),
    [
        pytest.param(
            [(0, 0), (2, 4)],
            [(0, 0), (0, 2), (2, 4)],
            6,
            [(0, 0), (2, 4)],
            id="checkpoint and log agree",
        ),
        pytest.param(
            [(0, 0)],
            [(0, 0), (2, 4), (2, 5)],
            6,
            [(0, 0), (2, 4)],
            id="an epoch that only the log shows starts at its first batch",
        ),
        pytest.param([], [(1, 0), (3, 2)], 4, [(1, 0), (3, 2)], id="there may be no checkpoint"),
        pytest.param(
            [(0, 0), (1, 4)], [(0, 0)], 4, [(0, 0)], id="an epoch led without a record goes"
        ),
        pytest.param(
            [(0, 0), (1, 3), (2, 9)],
            [(0, 0)],
            2,
            [(0, 0)],
            id="what an interrupted truncation left goes",
        ),
        pytest.param(
            [(0, 0), (3, 10)],
            [(0, 0), (2, 8), (4, 12)],
            14,
            [(0, 0), (2, 8), (4, 12)],
            id="also after other epochs were copied over it",
        ),
        pytest.param(
            [(0, 0), (5, 3)],
            [(1, 4)],
            9,
            [(0, 0), (1, 4)],
            id="also before the first batch that is left",
        ),
        pytest.param(
            [(0, 0), (1, 3), (2, 6)],
            [(1, 4), (2, 6)],
            9,
            [(0, 0), (1, 3), (2, 6)],
            id="what retention removed is told by the checkpoint",
        ),
        pytest.param([(1, 3), (2, 9)], [], 9, [(1, 3)], id="also where it removed every batch"),
        pytest.param(
            [(0, 4)], [(1, 4), (2, 8)], 9, [(1, 4), (2, 8)], id="a batch's epoch beats an entry's"
        ),
        pytest.param(
            [(0, 5)], [(1, 4), (2, 8)], 9, [(1, 4), (2, 8)], id="also between two batches"
        ),
        pytest.param(
            [(2, 3)],
            [(1, 4), (3, 8)],
            9,
            [(1, 4), (3, 8)],
            id="no epoch before the first batch is above that batch's",
        ),
    ],
)
def test_the_history_a_broker_starts_with(
    rules: Rules,
    entries: Entries,
    batches: Entries,
    end: int,
    expected: list[tuple[int, int]],
) -> None:
    """Rule 7.0: the checkpoint and the log together, below the log's end."""
    assert recovered(rules, entries, batches, end) == expected
