"""The invariants of docs/protocol.md, section 9, each one small function of a state.

Each returns whether it holds. `shown` is all that any consumer can have seen. Records acknowledged
with acks=all are part of it: a commit that answers them shows them (3.2).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tests.model.decisions import UNAVAILABLE, fetchable_end, visible_end
from tests.model.journal import replayed
from tests.model.state import Replica, Setting, State, members


def acknowledged_records_survive(setting: Setting, state: State) -> bool:
    """9.1: every replica that can be elected cleanly, and lost nothing, has all that was shown, and
    all that was acknowledged.
    """
    for records in (state.shown, state.answered):
        if records:
            end = len(records)
            for broker in members((state.isr | state.elr) & ~state.lost):
                if state.replicas[broker].log[:end] != records:
                    return False
    return True


def acknowledged_records_are_shown(setting: Setting, state: State) -> bool:
    """3.2: a commit that acknowledges records has a high watermark beyond them."""
    return not state.answered


def nothing_is_written_twice(setting: Setting, state: State) -> bool:
    """9.1, 3.7: no log holds a record twice."""
    for replica in state.replicas:
        log = replica.log
        if len(log) > 1 and len({record for _, record in log}) < len(log):
            return False
    return True


def in_sync_replicas_agree_below_high_watermark(setting: Setting, state: State) -> bool:
    """9.2: below the high watermark of whoever takes itself for the leader."""
    in_sync = members(state.isr & ~state.lost)
    for leader in state.replicas:
        mark = leader.row.high_watermark
        if mark and leader.leading.epoch >= state.shown_since:
            committed = leader.log[:mark]
            for broker in in_sync:
                if state.replicas[broker].log[:mark] != committed:
                    return False
    return True


def high_watermark_never_goes_back(setting: Setting, state: State) -> bool:
    """9.3: a fetch returns nothing but what was shown, in its order; the latest offset is never
    below what was shown, or "not available".
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
    """Where the epoch of a leader's row begins; never reached where its entry is not there."""
    epoch, start = leader.entries[-1] if leader.entries else (-1, 0)
    return start if epoch == leader.row.leader_epoch else len(leader.log) + 1


def one_leader_per_epoch(setting: Setting, state: State) -> bool:
    """9.4: no two brokers take themselves for the leader of one epoch."""
    epochs = [r.leading.epoch for r in state.replicas if r.leading.epoch >= 0]
    return len(set(epochs)) == len(epochs)


def logs_match(setting: Setting, state: State) -> bool:
    """What 6.3 rests on: two logs that agree on the epoch at an offset agree on all before it."""
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


def offsets_are_dense(setting: Setting, state: State) -> bool:
    """9.5: here an offset is a place in a tuple; what can go wrong is the order of epochs."""
    for replica in state.replicas:
        log = replica.log
        if len(log) > 1 and any(a[0] > b[0] for a, b in itertools.pairwise(log)):
            return False
    return True


def epoch_histories_increase(setting: Setting, state: State) -> bool:
    """9.6: strictly, in both columns."""
    for replica in state.replicas:
        entries = replica.entries
        for a, b in itertools.pairwise(entries):
            if a[0] >= b[0] or a[1] >= b[1]:
                return False
    return True


def epoch_histories_tell_the_log(setting: Setting, state: State) -> bool:
    """6.1, 9.6: the epoch of every record is the one that the history has for its offset."""
    for replica in state.replicas:
        entries, at = replica.entries, -1
        for offset, (epoch, _) in enumerate(replica.log):
            while at + 1 < len(entries) and entries[at + 1][1] <= offset:
                at += 1
            if at < 0 or entries[at][0] != epoch:
                return False
    return True


def high_watermark_is_below_every_known_end(setting: Setting, state: State) -> bool:
    """9.7, 1.2: of ISR members as the leader knows them, and in each replica.

    A deposed leader may take for in sync who has lost its log and joined its successor since.
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
    """3.1: nothing that was left in an inbox is appended behind the client's back."""
    if not state.inbox:
        return True
    return all(
        state.inbox[record][0] == epoch
        for replica in state.replicas
        for epoch, record in replica.log
    )


def replay_is_state(setting: Setting, state: State) -> bool:
    """7.0: the checkpoints, and the commits after each of them, are what the process knows."""
    for replica in state.replicas:
        for past in replica.past:
            if replayed(past) != (replica.row, replica.entries):
                return False
    return True


Invariant = Callable[[Setting, State], bool]

INVARIANTS: tuple[Invariant, ...] = (
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


def follower_readers_never_go_back(setting: Setting, before: State, after: State) -> bool:
    """9.3, 2.7: nor does whoever reads from a follower, through clean elections."""
    for old, new in zip(before.replicas, after.replicas, strict=True):
        if (
            new.row is not old.row
            and new.row.high_watermark < old.row.high_watermark
            and not after.spent.uncleans
            and not after.spent.lost_tails
        ):
            return False
    return True


def what_was_shown_stays(setting: Setting, before: State, after: State) -> bool:
    """9.1, 9.3: a row that shows more shows it after what was shown before.

    Records are lost by unclean elections, and where min ISR 1 leaves a single replica with them.
    """
    if after.shown[: len(before.shown)] == before.shown:
        return True
    may_lose = after.spent.uncleans > before.spent.uncleans or setting.min_isr < 2
    return may_lose and after.shown_since > before.shown_since


Relation = Callable[[Setting, State, State], bool]

TRANSITION_INVARIANTS: tuple[Relation, ...] = (follower_readers_never_go_back, what_was_shown_stays)
