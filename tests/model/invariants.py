"""The invariants of docs/protocol.md, section 9, each as a small function of a state.

Each returns whether it holds, and is marked with the invariants that it checks; the others are
the basis of rules of other sections. Conditions on single logs are shared with the state machine
(`tests/log_conditions.py`). The rules of `sparklog audit` are not run here: a run takes 0.1 ms or
more, and an exploration checks a million states.

`shown` has all records that any consumer can have seen. Records acknowledged with acks=all are part
of it: a commit that answers them makes them visible (3.2).
"""

from __future__ import annotations

from collections.abc import Callable

from sparklog.protocol.invariants import Invariant, checks
from tests.log_conditions import (
    agree_below,
    epochs_never_decrease,
    has_each_value_once,
    history_has_epochs,
    history_increases,
)
from tests.model.decisions import UNAVAILABLE, fetchable_end, visible_end
from tests.model.journal import replayed
from tests.model.state import Replica, Setting, State, members


@checks(Invariant.ACKNOWLEDGED_RECORDS_SURVIVE)
def acknowledged_records_survive(setting: Setting, state: State) -> bool:
    """9.1: every replica that can be elected cleanly, and lost nothing, has all visible records and
    all acknowledged ones.
    """
    for records in (state.shown, state.answered):
        if records:
            end = len(records)
            for broker in members((state.isr | state.elr) & ~state.lost):
                if not agree_below(state.replicas[broker].log, records, end):
                    return False
    return True


@checks(Invariant.ACKNOWLEDGED_RECORDS_SURVIVE)
def acknowledged_records_are_shown(setting: Setting, state: State) -> bool:
    """9.1, 3.2: a commit that acknowledges records has a high watermark beyond them."""
    return not state.answered


@checks(Invariant.ACKNOWLEDGED_RECORDS_SURVIVE)
def nothing_is_written_twice(setting: Setting, state: State) -> bool:
    """9.1, 3.7: no log holds a record twice."""
    return all(has_each_value_once(replica.log) for replica in state.replicas)


@checks(Invariant.IN_SYNC_REPLICAS_AGREE)
def in_sync_replicas_agree_below_high_watermark(setting: Setting, state: State) -> bool:
    """9.2: below the high watermark of each broker that considers itself the leader."""
    in_sync = members(state.isr & ~state.lost)
    for leader in state.replicas:
        mark = leader.row.high_watermark
        if mark and leader.leading.epoch >= state.shown_since:
            for broker in in_sync:
                if not agree_below(state.replicas[broker].log, leader.log, mark):
                    return False
    return True


@checks(Invariant.HIGH_WATERMARK_NEVER_GOES_BACK)
def high_watermark_never_goes_back(setting: Setting, state: State) -> bool:
    """9.3: a fetch returns only visible records, in their order. The latest offset is never lower
    than before, or it is "not available".
    """
    for replica in state.replicas:
        row = replica.row
        if row.leads and row.leader_epoch >= state.shown_since and row.high_watermark:
            visible = replica.log[: row.high_watermark]
            end = fetchable_end(0, row.leader_epoch, True, row.leader_epoch, row.high_watermark)
            if end != UNAVAILABLE and state.shown[: len(visible)] != visible:
                return False
    if not state.shown or state.leader < 0 or state.lost >> state.leader & 1:
        return True
    leader = state.replicas[state.leader]
    row = leader.row
    is_as_elected = row.leads and row.broker_epoch == state.leader_broker_epoch
    end = visible_end(
        state.leader,
        state.leader_epoch,
        leader.broker_epoch == state.leader_broker_epoch,
        row.leader_epoch if is_as_elected else -1,
        row.high_watermark,
        _start(leader),
    )
    return end == UNAVAILABLE or end >= len(state.shown)


def _start(leader: Replica) -> int:
    """Return the start of the epoch in a leader's row; beyond the log if its entry is missing."""
    epoch, start = leader.entries[-1] if leader.entries else (-1, 0)
    return start if epoch == leader.row.leader_epoch else len(leader.log) + 1


@checks(Invariant.ONE_LEADER_PER_EPOCH)
def one_leader_per_epoch(setting: Setting, state: State) -> bool:
    """9.4: no two brokers consider themselves the leader of one epoch.

    This is the memory of the processes; tables have what they commit and what was published.
    """
    epochs = [r.leading.epoch for r in state.replicas if r.leading.epoch >= 0]
    return len(set(epochs)) == len(epochs)


def logs_match(setting: Setting, state: State) -> bool:
    """The basis of 6.3: two logs with the same epoch at an offset are equal up to it."""
    logs = [replica.log for replica in state.replicas]
    for at, left in enumerate(logs):
        for right in logs[at + 1 :]:
            if left == right:
                continue
            for end in range(min(len(left), len(right)), 0, -1):
                if left[end - 1][0] == right[end - 1][0]:
                    if left[:end] != right[:end]:
                        return False
                    break
    return True


@checks(Invariant.OFFSETS_ARE_DENSE)
def offsets_are_dense(setting: Setting, state: State) -> bool:
    """9.5: here an offset is an index in a tuple, so only the order of epochs can be wrong."""
    return all(epochs_never_decrease(replica.log) for replica in state.replicas)


@checks(Invariant.EPOCH_HISTORIES_INCREASE)
def epoch_histories_increase(setting: Setting, state: State) -> bool:
    """9.6: strictly, in both columns."""
    return all(history_increases(replica.entries) for replica in state.replicas)


@checks(Invariant.EPOCH_HISTORIES_INCREASE)
def epoch_histories_tell_the_log(setting: Setting, state: State) -> bool:
    """6.1, 9.6: the epoch of every record is the one that the history has for its offset."""
    return all(history_has_epochs(replica.entries, replica.log) for replica in state.replicas)


@checks(Invariant.HIGH_WATERMARK_IS_BELOW_KNOWN_ENDS)
def high_watermark_is_below_every_known_end(setting: Setting, state: State) -> bool:
    """9.7, 1.2: of ISR members as the leader knows them, and in each replica.

    The ends are in the leader's memory; tables have what the members have reported. A deposed
    leader may consider a replica in sync that has lost its log and joined its successor
    since.
    """
    for replica in state.replicas:
        mark = replica.row.high_watermark
        if mark > len(replica.log):
            return False
        leading = replica.leading
        if mark and leading.epoch == state.leader_epoch:
            for broker in members(leading.isr & state.isr & ~state.lost):
                if 0 <= leading.ends[broker] < mark:
                    return False
    return True


def requests_are_appended_in_the_epoch_they_named(setting: Setting, state: State) -> bool:
    """3.1: no request that was left in an inbox is appended without the client's knowledge."""
    if not state.inbox:
        return True
    return all(
        state.inbox[record][0] == epoch
        for replica in state.replicas
        for epoch, record in replica.log
    )


def replay_is_state(setting: Setting, state: State) -> bool:
    """7.0: the checkpoints and the commits after each of them give the process's state."""
    for replica in state.replicas:
        for past in replica.past:
            if replayed(past) != (replica.row, replica.entries):
                return False
    return True


Condition = Callable[[Setting, State], bool]

INVARIANTS: tuple[Condition, ...] = (
    acknowledged_records_survive,
    acknowledged_records_are_shown,
    nothing_is_written_twice,
    in_sync_replicas_agree_below_high_watermark,
    high_watermark_never_goes_back,
    one_leader_per_epoch,
    logs_match,
    offsets_are_dense,
    epoch_histories_increase,
    epoch_histories_tell_the_log,
    high_watermark_is_below_every_known_end,
    requests_are_appended_in_the_epoch_they_named,
    replay_is_state,
)


@checks(Invariant.HIGH_WATERMARK_NEVER_GOES_BACK)
def follower_readers_never_go_back(setting: Setting, before: State, after: State) -> bool:
    """9.3, 2.7: nor does a consumer that reads from a follower, through clean elections."""
    for old, new in zip(before.replicas, after.replicas, strict=True):
        if (
            new.row is not old.row
            and new.row.high_watermark < old.row.high_watermark
            and not after.spent.uncleans
            and not after.spent.lost_tails
        ):
            return False
    return True


@checks(Invariant.ACKNOWLEDGED_RECORDS_SURVIVE, Invariant.HIGH_WATERMARK_NEVER_GOES_BACK)
def what_was_shown_stays(setting: Setting, before: State, after: State) -> bool:
    """9.1, 9.3: a row that makes more records visible adds them after the visible ones.

    Records are lost by unclean elections, and with min ISR 1 if a single replica has them.
    """
    if agree_below(after.shown, before.shown, len(before.shown)):
        return True
    may_lose = after.spent.uncleans > before.spent.uncleans or setting.min_isr < 2
    return may_lose and after.shown_since > before.shown_since


Relation = Callable[[Setting, State, State], bool]

TRANSITION_INVARIANTS: tuple[Relation, ...] = (follower_readers_never_go_back, what_was_shown_stays)
