"""The point at which two logs diverge: truncation_point (6.3, KIP-101, KIP-279)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.protocol.rules import Rules, rule

PARTITION = {"topic_id": "t", "partition": 0}

Entries = Sequence[tuple[int, int]]


class Point(NamedTuple):
    truncate_to: int | None
    waits: bool = False
    restart_at: int | None = None


def truncation_point(
    rules: Rules,
    own: Entries,
    own_end: int,
    leader: Entries,
    leader_end: int,
    *,
    leader_epoch: int | None = None,
    log_start_offset: int = 0,
    leader_start: int = 0,
) -> Point:
    followed = PARTITION | {
        "leader_epoch": leader[-1][0] if leader_epoch is None else leader_epoch,
        "log_start_offset": log_start_offset,
        "log_end_offset": own_end,
        "leader_log_start_offset": leader_start,
        "leader_log_end_offset": leader_end,
    }
    [row] = rules.run(
        "truncation_point",
        followed=[followed],
        own_entries=rows(own),
        leader_entries=rows(leader),
    )
    return Point(row["truncate_to"], row["waits"], row["restart_at"])


def rows(entries: Entries) -> list[dict[str, Any]]:
    return [PARTITION | {"epoch": epoch, "start_offset": start} for epoch, start in entries]


def test_the_own_high_watermark_plays_no_part() -> None:
    """KIP-101: the high watermark is not an input of the rule."""
    columns = [name for table in rule("truncation_point").takes.values() for name in table.names]
    assert not [name for name in columns if "high_watermark" in name]


@pytest.mark.parametrize(
    ("own", "own_end", "leader_start", "expected"),
    [
        pytest.param([(0, 0)], 2, 2, Point(None), id="the leader's log begins at the own end"),
        pytest.param([(0, 0)], 2, 3, Point(None, restart_at=3), id="it begins later"),
        pytest.param([], 0, 3, Point(None, restart_at=3), id="an empty log begins there, too"),
        pytest.param([(0, 0)], 7, 6, Point(5, restart_at=6), id="later than where they agree"),
    ],
)
def test_a_follower_below_the_leaders_log_start_begins_again_there(
    rules: Rules, own: Entries, own_end: int, leader_start: int, expected: Point
) -> None:
    """The records in between exist nowhere, and a log has no gap (6.7, 9.5)."""
    found = truncation_point(rules, own, own_end, [(0, 0), (1, 5)], 9, leader_start=leader_start)
    assert found == expected


@pytest.mark.parametrize(
    ("own", "own_end", "leader", "leader_end", "expected"),
    [
        pytest.param([(0, 0)], 2, [(0, 0)], 2, None, id="equal logs: nothing is cut"),
        pytest.param([(0, 0)], 1, [(0, 0), (1, 2)], 3, None, id="a log that is behind is not cut"),
        pytest.param(
            [(0, 0)],
            2,
            [(0, 0), (1, 2)],
            2,
            None,
            id="a restarted follower keeps records above its high watermark",
        ),
        pytest.param(
            [(0, 0)], 2, [(0, 0), (1, 1)], 2, 1, id="what the old leader had alone is cut"
        ),
        pytest.param(
            [(3, 0)], 8, [(3, 0), (4, 6)], 6, 6, id="a log is cut to the end of its leader's epoch"
        ),
        pytest.param(
            [(0, 0), (2, 4)],
            6,
            [(0, 0), (3, 4)],
            7,
            4,
            id="fast failovers: the leader never saw the follower's latest epoch",
        ),
        pytest.param(
            [(0, 0), (2, 5), (4, 8)],
            9,
            [(0, 0), (1, 3), (3, 6), (5, 7)],
            8,
            3,
            id="fast failovers: neither knows the other's epochs, back to the largest common one",
        ),
        pytest.param(
            [(0, 0), (2, 3), (4, 6)],
            9,
            [(0, 0), (5, 7)],
            8,
            3,
            id="the follower itself led twice in vain: the common epoch ended before the first",
        ),
        pytest.param(
            [(0, 0), (1, 2)],
            4,
            [(0, 0), (1, 2), (2, 6)],
            8,
            None,
            id="the own end bounds the common epoch as well",
        ),
        pytest.param(
            [(0, 0), (1, 3)],
            3,
            [(0, 0), (2, 4)],
            5,
            3,
            id="an epoch led without a record goes, and no record does",
        ),
        pytest.param(
            [(0, 0), (2, 1), (4, 2)],
            3,
            [(1, 0), (3, 1), (5, 2)],
            3,
            0,
            id="no common epoch: all own epochs go",
        ),
        pytest.param([(2, 5)], 9, [(3, 0)], 9, 5, id="to the start of the first own epoch"),
        pytest.param([], 0, [(0, 0)], 3, None, id="an empty log has nothing to cut"),
    ],
)
def test_where_the_own_log_is_cut(
    rules: Rules,
    own: Entries,
    own_end: int,
    leader: Entries,
    leader_end: int,
    expected: int | None,
) -> None:
    """Rule 6.3: the largest epoch in both histories, up to the lower of its two end offsets."""
    assert truncation_point(rules, own, own_end, leader, leader_end) == Point(expected)


def test_a_follower_waits_while_the_leader_has_not_announced_its_epoch(rules: Rules) -> None:
    """Rule 6.3: without the leader's entry of its own epoch nothing is truncated, even with common
    epochs.
    """
    for leader in ([], [(3, 0)], [(0, 0)]):
        point = truncation_point(rules, [(0, 0)], 5, leader, 2, leader_epoch=4)
        assert point == Point(None, waits=True)


def test_a_follower_with_more_of_the_leaders_own_epoch_than_the_leader_waits(rules: Rules) -> None:
    """Rule 10.4: the leader has lost records of its own epoch, so nothing is truncated to its
    end.
    """
    for leader_end in (0, 3, 7):
        point = truncation_point(rules, [(0, 0), (3, 2)], 8, [(0, 0), (3, 2)], leader_end)
        assert point == Point(None, waits=True)
    assert truncation_point(rules, [(0, 0), (3, 2)], 8, [(0, 0), (3, 2)], 8) == Point(None)
    ended = [(0, 0), (3, 2), (4, 7)]
    assert truncation_point(rules, [(0, 0), (3, 2)], 8, ended, 7) == Point(7)


def test_nothing_is_cut_below_the_log_start(rules: Rules) -> None:
    """Rule 1.2: without a common epoch, the remaining records of the first own epoch are
    removed.
    """
    own, leaders = [(1, 0)], [(2, 0)]
    point = truncation_point(rules, own, 9, leaders, 9, log_start_offset=4, leader_start=4)
    assert point == Point(4)


@pytest.mark.parametrize("own", [[(1, 0)], []], ids=["another history", "no history"])
def test_a_log_that_starts_later_than_another_history_restarts_where_that_starts(
    rules: Rules, own: Entries
) -> None:
    """Only an unclean election leads to it. The records that the follower has deleted were not the
    leader's: without a restart it would be in sync and lack them (6.7, 9.1).
    """
    point = truncation_point(rules, own, 9, [(2, 0)], 20, log_start_offset=9, leader_start=3)
    assert point == Point(9 if own else None, restart_at=3)
    point = truncation_point(rules, own, 9, [(2, 0)], 5, log_start_offset=9, leader_start=3)
    assert point.restart_at == 3
    known = truncation_point(rules, [(2, 0)], 9, [(2, 0)], 20, log_start_offset=9, leader_start=3)
    assert known == Point(None)


def test_what_the_leader_cannot_vouch_for_goes(rules: Rules) -> None:
    """If retention removed the leader's history after the follower's last epoch, there is no common
    epoch.

    Kafka's exchange would stop at the leader's first start offset here, since the leader answers an
    epoch older than all that it knows. The records below that point are missing from the leader's
    log as well, so the follower restarts at the leader's log start offset either way (6.7).
    """
    assert truncation_point(rules, [(1, 0)], 20, [(3, 15)], 30) == Point(0)


def test_partitions_do_not_mix(rules: Rules) -> None:
    """Equal epochs of another partition or topic are not common epochs."""
    keys = [("t", 0), ("t", 1), ("u", 0)]

    def entries(starts: list[list[tuple[int, int]]]) -> list[dict[str, Any]]:
        return [
            {"topic_id": topic, "partition": partition, "epoch": epoch, "start_offset": start}
            for (topic, partition), of in zip(keys, starts, strict=True)
            for epoch, start in of
        ]

    found = rules.run(
        "truncation_point",
        followed=[
            {
                "topic_id": topic,
                "partition": partition,
                "leader_epoch": 5,
                "log_start_offset": 0,
                "log_end_offset": 9,
                "leader_log_start_offset": 0,
                "leader_log_end_offset": 9,
            }
            for topic, partition in keys
        ],
        own_entries=entries([[(1, 0)], [(2, 0)], [(3, 0)]]),
        leader_entries=entries([[(1, 0), (5, 4)], [(1, 0), (5, 5)], [(3, 0), (5, 6)]]),
    )
    points = {(row["topic_id"], row["partition"]): row["truncate_to"] for row in found}
    assert points == {("t", 0): 4, ("t", 1): 0, ("u", 0): 6}


class Replica:
    """A log as the epochs of its records, and its history, changed according to rules 6.1 and
    6.3.
    """

    def __init__(self) -> None:
        self.log: list[int] = []
        self.entries: list[tuple[int, int]] = []

    def lead(self, epoch: int, records: int) -> None:
        self.entries = [entry for entry in self.entries if entry[1] < len(self.log)]
        self.entries.append((epoch, len(self.log)))
        self.log += [epoch] * records

    def follow(self, leader: Replica, records: int) -> None:
        end = agreement(self, leader)
        self.entries = [entry for entry in self.entries if entry[1] < end]
        del self.log[end:]
        for epoch in leader.log[end : end + records]:
            if not self.entries or self.entries[-1][0] < epoch:
                self.entries.append((epoch, len(self.log)))
            self.log.append(epoch)


def agreement(one: Replica, other: Replica) -> int:
    """Return the offset at which two logs diverge: an epoch and an offset identify one record."""
    for offset, (a, b) in enumerate(zip(one.log, other.log, strict=False)):
        if a != b:
            return offset
    return min(len(one.log), len(other.log))


def end_offset_for(entries: Entries, log_end_offset: int, asked: int) -> tuple[int, int]:
    """Rule 6.2, as a leader answers it."""
    if not entries or asked > entries[-1][0]:
        return -1, -1
    if asked < entries[0][0]:
        return asked, entries[0][1]
    later = [start for epoch, start in entries if epoch > asked]
    known = max(epoch for epoch, _ in entries if epoch <= asked)
    return known, later[0] if later else log_end_offset


def exchanged(own: Entries, own_end: int, leader: Entries, leader_end: int) -> int:
    """Follow KIP-279 as in rule 6.3: request an epoch, then the own largest epoch not above the
    answer.
    """
    if not own:
        return own_end
    asked = own[-1][0]
    while True:
        epoch, end = end_offset_for(leader, leader_end, asked)
        if epoch == -1:
            return own[0][1]
        if epoch == asked:
            return min(end, end_offset_for(own, own_end, asked)[1])
        smaller = [known for known, _ in own if known <= epoch]
        if not smaller:
            return own[0][1]
        asked = smaller[-1]


TERMS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 3),
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=2),
    ),
    min_size=1,
    max_size=8,
)
"""Leadership terms: the leader, the number of its records, the followers and their positions."""


def grown(terms: list[tuple[int, int, list[tuple[int, int]]]]) -> tuple[list[Replica], int]:
    """Let three replicas go through the terms; return them and the last leader."""
    replicas = [Replica(), Replica(), Replica()]
    leader = 0
    for epoch, (leader, records, followers) in enumerate(terms):
        replicas[leader].lead(epoch, records)
        for follower, fetched in followers:
            if follower != leader:
                replicas[follower].follow(replicas[leader], fetched)
    return replicas, leader


@settings(max_examples=100, deadline=None)
@given(terms=TERMS)
def test_one_join_equals_the_exchange_of_kip_279(
    rules: Rules,
    terms: list[tuple[int, int, list[tuple[int, int]]]],
) -> None:
    """Rule 6.3: the join, the exchange and the records themselves give the same offset."""
    replicas, last = grown(terms)
    leader = replicas[last]
    for follower in replicas[:last] + replicas[last + 1 :]:
        own, own_end = follower.entries, len(follower.log)
        point = truncation_point(
            rules, own, own_end, leader.entries, len(leader.log), leader_epoch=len(terms) - 1
        )
        asked = exchanged(own, own_end, leader.entries, len(leader.log))
        assert asked == agreement(follower, leader)
        assert not point.waits
        if point.truncate_to is None:
            assert asked == own_end
            assert {epoch for epoch, _ in own} <= {epoch for epoch, _ in leader.entries}
        else:
            assert point.truncate_to == asked


@settings(max_examples=50, deadline=None)
@given(terms=TERMS, log_start=st.integers(0, 8))
def test_with_the_leaders_log_cut_the_join_never_keeps_more(
    rules: Rules, terms: list[tuple[int, int, list[tuple[int, int]]]], log_start: int
) -> None:
    """Rule 8.3: a history that is cut at the log start, with its boundary entry, confirms less."""
    replicas, last = grown(terms)
    leader = replicas[last]
    start = min(log_start, len(leader.log))
    before = [entry for entry in leader.entries if entry[1] <= start]
    after = [entry for entry in leader.entries if entry[1] > start]
    cut = [(before[-1][0], start), *after] if before else after
    for follower in replicas[:last] + replicas[last + 1 :]:
        own, own_end = follower.entries, len(follower.log)
        point = truncation_point(
            rules, own, own_end, cut, len(leader.log), leader_epoch=len(terms) - 1
        )
        kept = own_end if point.truncate_to is None else point.truncate_to
        asked = exchanged(own, own_end, cut, len(leader.log))
        if {epoch for epoch, _ in own} & {epoch for epoch, _ in cut}:
            assert kept == asked == agreement(follower, leader)
        else:
            assert kept <= asked <= max(start, kept)
