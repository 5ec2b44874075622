"""Necessary conditions in Python: if one is False, its rule has no new result and need not run."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.model import Batch
from sparklog.protocol.controller.completed_reassignments import may_allow_completion
from sparklog.protocol.controller.eligible_replicas import may_be_eligible
from sparklog.protocol.controller.isr_fence import may_be_fenced
from sparklog.protocol.controller.silent_brokers import may_be_silent
from sparklog.protocol.produce.completed_operations import may_be_complete
from sparklog.protocol.produce.expired_operations import may_have_expired
from sparklog.protocol.replication.fetch import may_return_batches
from sparklog.protocol.replication.high_watermark import may_advance
from sparklog.protocol.replication.isr_expand import may_expand, may_join
from sparklog.protocol.replication.isr_shrink import may_have_fallen_behind, may_leave
from sparklog.protocol.replication.mergeable_batches import (
    first_open_offset,
    may_be_merged,
    may_have_run,
)
from sparklog.protocol.replication.truncation_point import may_disagree
from sparklog.protocol.rules import Rules

PROPERTY = settings(max_examples=150, deadline=None)
SMALL = st.integers(0, 8)


@PROPERTY
@given(deadlines=st.lists(SMALL, min_size=1, max_size=4), now_ms=SMALL)
def test_no_operation_expires_before_the_first_deadline(
    rules: Rules, deadlines: list[int], now_ms: int
) -> None:
    """`may_have_expired` and rule 4.2."""
    operations = [
        {"operation_id": str(number), "deadline_ms": deadline_ms, "now_ms": now_ms}
        for number, deadline_ms in enumerate(deadlines)
    ]
    expired = rules.run("expired_operations", operations=operations)
    assert may_have_expired(min(deadlines), now_ms) or not expired


@PROPERTY
@given(
    required_offset=SMALL,
    is_leader=st.booleans(),
    is_topic_deleted=st.booleans(),
    of_leader=st.none() | st.tuples(SMALL, *[st.integers(1, 3)] * 3),
)
def test_an_operation_completes_only_at_its_offset_or_without_a_leader(
    rules: Rules,
    required_offset: int,
    is_leader: bool,
    is_topic_deleted: bool,
    of_leader: tuple[int, int, int, int] | None,
) -> None:
    """`may_be_complete` and rules 3.2, 4.4."""
    names = "high_watermark", "isr_size", "min_isr", "replica_count"
    progress = dict(zip(names, of_leader or [None] * 4, strict=True))
    of = {"operation_id": "o", "required_offset": required_offset, "is_leader": is_leader}
    of["is_topic_deleted"] = is_topic_deleted
    completed = rules.run("completed_operations", operations=[of | progress])
    assert may_be_complete(is_leader, progress["high_watermark"], required_offset) or not completed


@PROPERTY
@given(fetch_offset=SMALL, ends=st.lists(st.integers(1, 3), max_size=4))
def test_a_follower_at_the_end_of_the_leaders_log_fetches_nothing(
    rules: Rules, fetch_offset: int, ends: list[int]
) -> None:
    """`may_return_batches` and rule 6.3."""
    batches, offset = [], 0
    for count in ends:
        of = {"topic_id": "t", "partition": 0, "path": str(offset), "leader_epoch": 0}
        batches.append(
            of | {"base_offset": offset, "last_offset_delta": count - 1, "size_bytes": 1}
        )
        offset += count
    position = {
        "topic_id": "t",
        "partition": 0,
        "fetch_offset": fetch_offset,
        "last_fetched_epoch": None,
        "leader_epoch": 0,
        "max_bytes": 100,
        "max_total_bytes": 100,
        "last_served": 0,
    }
    found = rules.run("fetch", positions=[position], batches=batches)
    assert may_return_batches(fetch_offset, offset) or not found


@settings(PROPERTY, max_examples=300)
@given(
    leads=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    known=st.integers(0, 5),
    ends=st.tuples(SMALL, SMALL),
    later_ends=st.tuples(SMALL, SMALL),
    leader_start=SMALL,
)
def test_logs_that_have_agreed_agree_while_the_end_of_one_is_in_the_other(
    rules: Rules,
    leads: list[int],
    known: int,
    ends: tuple[int, int],
    later_ends: tuple[int, int],
    leader_start: int,
) -> None:
    """`may_disagree` and rule 6.3: without new epochs, other offsets change nothing.

    `leads` are the numbers of records of the leader's epochs, of which the follower knows the first
    ones. A log that goes on into a further epoch knows that epoch.
    """
    of_partition = {"topic_id": "t", "partition": 0}
    starts = list(accumulate(leads, initial=0))
    entries = [
        of_partition | {"epoch": epoch, "start_offset": start} for epoch, start in enumerate(starts)
    ]
    known = min(known, len(entries))
    own = entries[:known]

    def point(log_end_offset: int, leader_log_end_offset: int, start: int) -> list[dict[str, Any]]:
        followed = of_partition | {
            "leader_epoch": len(entries) - 1,
            "log_start_offset": 0,
            "log_end_offset": log_end_offset,
            "leader_log_start_offset": start,
            "leader_log_end_offset": leader_log_end_offset,
        }
        return rules.run(
            "truncation_point", followed=[followed], own_entries=own, leader_entries=entries
        )

    def bounded(end: int, leader_end: int) -> tuple[int, int]:
        """Return ends that logs with these histories may have."""
        most = starts[known] if known < len(starts) else starts[-1] + end
        least = starts[known - 1] if known else 0
        return min(max(end, least), most), starts[-1] + leader_end

    agreed = [of_partition | {"truncate_to": None, "restart_at": None, "waits": False}]
    before, after = bounded(*ends), bounded(*later_ends)
    if point(*before, 0) == agreed and not may_disagree(
        after[0], leader_start, after[1], has_new_epochs=False
    ):
        assert point(*after, leader_start) == agreed


PARTITION = st.fixed_dictionaries(
    {
        "leader_log_end_offset": SMALL,
        "high_watermark": SMALL,
        "epoch_start_offset": SMALL,
        "min_isr": st.integers(1, 3),
        "lag_time_max_ms": SMALL,
        "lag_max_messages": st.none() | SMALL,
    }
)
FOLLOWER = st.fixed_dictionaries(
    {
        "in_isr": st.booleans(),
        "in_proposed_isr": st.booleans(),
        "is_alive": st.booleans(),
        "log_end_offset": st.none() | SMALL,
        "last_caught_up_ms": st.none() | SMALL,
        "previous_report_ms": st.none() | SMALL,
    }
)


def replica_rows(
    partition: dict[str, Any], followers: list[dict[str, Any]], now_ms: int
) -> list[dict[str, Any]]:
    """Return rows of a leader, in sync and at its own log end, and of its followers."""
    leader = {
        "in_isr": True,
        "in_proposed_isr": False,
        "is_alive": True,
        "log_end_offset": partition["leader_log_end_offset"],
        "last_caught_up_ms": now_ms,
        "previous_report_ms": None,
    }
    of_partition = {"topic_id": "t", "partition": 0, "now_ms": now_ms, **partition}
    return [
        of_partition | {"broker_id": number, "is_leader": number == 0, **one}
        for number, one in enumerate([leader, *followers])
    ]


@PROPERTY
@given(
    partition=PARTITION,
    followers=st.lists(FOLLOWER, max_size=3),
    now_ms=SMALL,
    all_in=st.booleans(),
)
def test_nobody_joins_where_all_are_in_sync_or_below_the_high_watermark(
    rules: Rules,
    partition: dict[str, Any],
    followers: list[dict[str, Any]],
    now_ms: int,
    all_in: bool,
) -> None:
    """`may_expand`, `may_join` and rule 5.2."""
    followers = [one | {"in_isr": one["in_isr"] or all_in} for one in followers]
    rows = replica_rows(partition, followers, now_ms)
    joining = rules.run("isr_expand", replicas=rows)
    assert may_expand(sum(row["in_isr"] for row in rows), len(rows)) or not joining
    may = {
        row["broker_id"] for row in rows if may_join(row["log_end_offset"], row["high_watermark"])
    }
    assert {row["broker_id"] for row in joining} <= may


@PROPERTY
@given(
    partition=PARTITION,
    followers=st.lists(FOLLOWER, max_size=3),
    polled_at_ms=SMALL,
    passed_ms=SMALL,
)
def test_time_alone_changes_nothing_before_a_lag_has_run_out(
    rules: Rules,
    partition: dict[str, Any],
    followers: list[dict[str, Any]],
    polled_at_ms: int,
    passed_ms: int,
) -> None:
    """`may_have_fallen_behind` and rules 2.1, 5.1; time alone lets no follower join (rule 5.2)."""
    now_ms = polled_at_ms + passed_ms
    before = replica_rows(partition, followers, polled_at_ms)
    after = replica_rows(partition, followers, now_ms)
    joined, joining = (rules.run("isr_expand", replicas=rows) for rows in (before, after))
    assert {row["broker_id"] for row in joining} <= {row["broker_id"] for row in joined}
    if any(
        may_have_fallen_behind(
            one["log_end_offset"],
            partition["leader_log_end_offset"],
            one["last_caught_up_ms"],
            polled_at_ms,
            now_ms,
            partition["lag_time_max_ms"],
        )
        for one in followers
    ):
        return
    for rule in ("isr_shrink", "high_watermark"):
        assert rules.run(rule, replicas=before) == rules.run(rule, replicas=after)


@PROPERTY
@given(partition=PARTITION, followers=st.lists(FOLLOWER, max_size=3), now_ms=SMALL)
def test_a_high_watermark_moves_only_past_ends_above_it(
    rules: Rules, partition: dict[str, Any], followers: list[dict[str, Any]], now_ms: int
) -> None:
    """`may_advance` and rules 2.1, 2.3."""
    rows = replica_rows(partition, followers, now_ms)
    [found] = rules.run("high_watermark", replicas=rows)
    ends = [row["log_end_offset"] for row in rows if row["in_isr"]]
    before = partition["high_watermark"]
    assert may_advance(before, ends) or found["high_watermark"] == before


@PROPERTY
@given(partition=PARTITION, followers=st.lists(FOLLOWER, max_size=3), now_ms=SMALL)
def test_a_follower_leaves_only_when_its_time_has_run_out(
    rules: Rules, partition: dict[str, Any], followers: list[dict[str, Any]], now_ms: int
) -> None:
    """`may_leave` and rule 5.1."""
    rows = replica_rows(partition, followers, now_ms)
    leaving = {row["broker_id"] for row in rules.run("isr_shrink", replicas=rows)}
    for row in rows:
        limits = row["lag_time_max_ms"], row["lag_max_messages"]
        if row["broker_id"] in leaving:
            assert may_leave(row["last_caught_up_ms"], now_ms, *limits)


REPLICA = st.fixed_dictionaries(
    {name: st.booleans() for name in ("was_in_isr", "in_isr", "in_elr", "is_alive", "is_unclean")}
)


@PROPERTY
@given(replicas=st.lists(REPLICA, min_size=1, max_size=4), min_isr=st.integers(1, 3))
def test_members_that_are_fenced_or_eligible_may_be(
    rules: Rules, replicas: list[dict[str, bool]], min_isr: int
) -> None:
    """`may_be_fenced`, `may_be_eligible` and rules 7.2, 7.5: else the sets are as they were."""
    rows = [
        {"topic_id": "t", "partition": 0, "broker_id": number, "min_isr": min_isr, **one}
        for number, one in enumerate(replicas)
    ]
    for row in rules.run("isr_fence", replicas=rows):
        one = replicas[row["broker_id"]]
        assert may_be_fenced(one["in_isr"], one["is_alive"])
    for row in rules.run("eligible_replicas", replicas=rows):
        one = replicas[row["broker_id"]]
        may = may_be_eligible(one["was_in_isr"], one["in_isr"], one["in_elr"])
        assert may or row["in_elr"] == one["in_elr"]


MOVING = st.fixed_dictionaries(
    {name: st.booleans() for name in ("in_isr", "is_alive", "adding", "removing")}
)


@PROPERTY
@given(replicas=st.lists(MOVING, min_size=1, max_size=4))
def test_each_replica_allows_a_complete_reassignment(
    rules: Rules, replicas: list[dict[str, bool]]
) -> None:
    """`may_allow_completion` and rule 7.8."""
    rows = [
        {"topic_id": "t", "partition": 0, "broker_id": number, **one}
        for number, one in enumerate(replicas)
    ]
    if rules.run("completed_reassignments", replicas=rows):
        assert all(may_allow_completion(one["in_isr"], one["removing"]) for one in replicas)


@PROPERTY
@given(
    state=st.sampled_from(["alive", "fenced", "parked", "stopping", "stopped"]),
    times=st.fixed_dictionaries(
        {
            "last_changed_ms": SMALL,
            "now_ms": SMALL,
            "session_timeout_ms": SMALL,
            "parked_at_ms": st.none() | SMALL,
            "wall_clock_ms": SMALL,
            "parked_session_timeout_ms": SMALL,
        }
    ),
)
def test_a_broker_that_is_fenced_may_be_silent(
    rules: Rules, state: str, times: dict[str, Any]
) -> None:
    """`may_be_silent` and rules 7.1, 7.2."""
    row = {"broker_id": 0, "state": state, **times}
    found = rules.run("silent_brokers", brokers=[row])
    assert may_be_silent(state, **times) or not found


@st.composite
def logs(draw: st.DrawFn) -> list[Batch]:
    """Return the adjacent batches of a log, in one or two leader epochs."""
    # Sizes around the limits of the tiers, if a merged batch has at most 160 bytes.
    sizes = st.sampled_from([0, 5, 9, 10, 20, 36, 38, 39, 40])
    drawn = draw(st.lists(st.tuples(st.integers(1, 3), sizes), min_size=1, max_size=12))
    turn = draw(st.sampled_from([0, 0, 0, *range(1, 12)]))
    batches, offset = [], 0
    for number, (count, size_bytes) in enumerate(drawn):
        batches.append(batch(offset, count, size_bytes, int(number >= turn)))
        offset += count
    return batches


def batch(base_offset: int, count: int, size_bytes: int, leader_epoch: int) -> Batch:
    return Batch(
        path=f"_inbox/{base_offset}.0.parquet",
        size_bytes=size_bytes,
        topic_id="t",
        topic="t",
        partition=0,
        leader_epoch=leader_epoch,
        base_offset=base_offset,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        checksum="",
        record_count=count,
        last_offset_delta=count - 1,
        min_timestamp_ms=0,
        max_timestamp_ms=0,
    )


def runs(
    rules: Rules, batches: list[Batch], times: list[int], **columns: int
) -> list[dict[str, Any]]:
    rows = [
        {
            "topic_id": one.topic_id,
            "partition": one.partition,
            "base_offset": one.base_offset,
            "last_offset_delta": one.last_offset_delta,
            "leader_epoch": one.leader_epoch,
            "size_bytes": one.size_bytes,
            "appended_at_ms": at_ms,
            "is_settled": True,
            **columns,
        }
        for one, at_ms in zip(batches, times, strict=True)
    ]
    return rules.run("mergeable_batches", batches=rows)


@PROPERTY
@given(
    log=logs(),
    ages=st.lists(SMALL, min_size=12, max_size=12),
    high_watermark=st.integers(0, 30),
    min_lag_ms=SMALL,
    min_batches=st.integers(1, 4),
)
def test_a_batch_that_is_merged_may_be_merged(
    rules: Rules,
    log: list[Batch],
    ages: list[int],
    high_watermark: int,
    min_lag_ms: int,
    min_batches: int,
) -> None:
    """`may_be_merged`, `may_have_run` and rule 8.4."""
    now_ms = 100
    times = [now_ms - age for age in ages[: len(log)]]
    found = runs(
        rules,
        log,
        times,
        high_watermark=high_watermark,
        now_ms=now_ms,
        min_lag_ms=min_lag_ms,
        min_batches=min_batches,
        max_batch_bytes=160,
    )
    for run in found:
        assert may_have_run(len(log), min_batches)
        for one, at_ms in zip(log, times, strict=True):
            if run["base_offset"] <= one.base_offset < run["end_offset"]:
                assert may_be_merged(one.next_offset, high_watermark, at_ms, now_ms, min_lag_ms)


@settings(PROPERTY, max_examples=500)
@given(log=logs(), polled_at=st.integers(1, 12), min_batches=st.integers(2, 4))
def test_no_later_run_begins_before_the_first_open_offset(
    rules: Rules, log: list[Batch], polled_at: int, min_batches: int
) -> None:
    """`first_open_offset` and rule 8.4: for a window without a run, before any other batches."""
    at_any_time = {
        "high_watermark": 100,
        "now_ms": 0,
        "min_lag_ms": 0,
        "min_batches": min_batches,
        "max_batch_bytes": 160,
    }
    window = log[:polled_at]
    if runs(rules, window, [0] * len(window), **at_any_time):
        return
    first = first_open_offset(window, 160)
    for run in runs(rules, log, [0] * len(log), **at_any_time):
        assert run["base_offset"] >= first
