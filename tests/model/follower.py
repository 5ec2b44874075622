"""A follower's tick, step by step, with the pauses that tables allow and RPCs hide.

    reads partition_state -> reads the leader's journal -> reads partition_state again
        -> commits a truncation -> commits the copies, their epoch entries and its report

Before a truncation below its own high watermark the follower commits a withdrawn report and leaves
the ISR (10.4). The leader's row, history and batches are read at one version of its journal. The
three reads are one step here, because their duration does not matter:

- While the state is still the one read first, a tick that is at its second read is equivalent to
  one that begins now. If it has moved, the row that was read is that of a deposed leader. A tick
  may begin as such, but commits no copy (`_may_copy`).
- The third read only forbids a copy: if it came with the second, the copy would be allowed, and a
  tick may always copy nothing (its reads of the files may fail, too).

If no process ends and every outcome is known, the time of a truncation's commit after these reads
does not matter either: only a leader of an earlier epoch reads it, and that one may read at any
time. Then a truncation is part of the first step.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.decisions import (
    DIVERGED,
    NOTHING,
    Entries,
    Log,
    end_offset_for,
    epoch_entries,
    fetched_end,
    follower_high_watermark,
    truncated,
    truncation_point,
)
from tests.model.journal import Step, committed, known_entries, outcomes, own_row, put
from tests.model.leader import NOBODY, published
from tests.model.state import (
    CHECKED,
    IDLE,
    LEFT,
    NOT_LEADING,
    REPORTING,
    WITHDRAWN,
    Replica,
    Row,
    Setting,
    State,
    Tick,
)


def follower_reads(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """6.4: the leader and its epoch, the leader's journal, and whether the epoch is the same.

    The tick goes on in steps while pauses are left; otherwise the rest of it happens at once.
    """
    replica = state.replicas[broker]
    if replica.tick is not IDLE or replica.leading is not NOT_LEADING:
        return
    is_paused = sum(other.tick is not IDLE for other in state.replicas) < setting.pauses
    for leader, epoch in _read_before(state, broker) if is_paused else _current(state, broker):
        step = _reads_row(setting, state, broker, leader, epoch)
        if step is None:
            continue
        _, begun = step
        if setting.writes_are_one_step:
            begun = _with_truncation(setting, begun, broker)
        if begun == state:
            continue
        if is_paused:
            yield ("FollowerReads", broker), begun
        if epoch == state.leader_epoch:
            yield from _whole_tick(setting, begun, broker, ())


def _current(state: State, broker: int) -> Iterator[tuple[int, int]]:
    if state.leader not in {-1, broker}:
        yield state.leader, state.leader_epoch


def _read_before(state: State, broker: int) -> Iterator[tuple[int, int]]:
    """The leaders that a tick may have read before the state moved, and the current one."""
    replica = state.replicas[broker]
    newest = max(replica.row.leader_epoch, replica.entries[-1][0] if replica.entries else 0)
    for leader, other in enumerate(state.replicas):
        row = other.row
        if row.leads and leader != broker and newest <= row.leader_epoch < state.leader_epoch:
            yield leader, row.leader_epoch
    yield from _current(state, broker)


def _whole_tick(
    setting: Setting, state: State, broker: int, done: tuple[str, ...]
) -> Iterator[Step]:
    """The rest of a tick, without a pause."""
    if state.replicas[broker].tick is IDLE:
        yield ("FollowerTicks", broker, " ".join(done)), state
        return
    for (action, *_), after in follower_commits(setting, state, broker):
        name = str(action).removeprefix("Follower")
        yield from _whole_tick(setting, after, broker, (*done, name))


def follower_continues(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """The next step of the tick in progress."""
    if setting.writes_are_one_step:
        yield from _whole_tick(setting, state, broker, ())
    else:
        yield from follower_commits(setting, state, broker)


def _with_truncation(setting: Setting, state: State, broker: int) -> State:
    while True:
        replica = state.replicas[broker]
        if replica.tick.step in {IDLE.step, REPORTING}:
            return state
        if replica.tick.step == CHECKED and agreed(setting, replica)[0] == NOTHING:
            return state
        [(_, state)] = follower_commits(setting, state, broker)


def _reads_row(setting: Setting, state: State, broker: int, leader: int, epoch: int) -> Step | None:
    """6.4: the tick goes on only under the epoch of the row; 6.3: check, then plan."""
    mutation, read = setting.mutation, state.replicas[leader]
    tick = Tick(CHECKED, -1, epoch, read.log, read.entries, read.row.high_watermark)
    replica = state.replicas[broker]._replace(tick=tick)
    if read.row.leader_epoch != epoch and (begins(replica) or not mutation.fetches_by_offset_alone):
        return None
    if mutation.reads_the_log_as_it_is or mutation.fetches_by_offset_alone:
        replica = replica._replace(tick=tick._replace(leader=leader))
    return planned(setting, state, broker, replica, "FollowerReads")


def planned(setting: Setting, state: State, broker: int, replica: Replica, action: str) -> Step:
    """The rest of a tick: commits, the report only, or nothing.

    A tick that waits for its leader's epoch entry commits that the broker is no longer the leader.
    """
    tick = replica.tick
    point, waits = agreed(setting, replica)
    end = fetch_end(setting, replica)
    if waits:
        entries = known_entries(setting, replica)
        waiting = replica._replace(row=own_row(replica), entries=entries, tick=IDLE)
        return ("FollowerDropsTick", broker), committed(setting, state, broker, waiting)
    if point == NOTHING and end == DIVERGED:
        return ("FollowerDropsDivergedFetch", broker), put(
            state, broker, replica._replace(tick=IDLE)
        )
    has_copies = end > len(replica.log) and _may_copy(setting, state, tick)
    if point == NOTHING and not has_copies:
        replica = replica._replace(tick=reporting(tick))
        if reported(setting, replica).row == replica.row:
            replica = replica._replace(tick=IDLE)
    return (action, broker), committed(setting, state, broker, replica)


def _may_copy(setting: Setting, state: State, tick: Tick) -> bool:
    """6.4: before a commit the state is read again, and the copies are dropped if it has moved."""
    mutation = setting.mutation
    return (
        state.leader_epoch == tick.epoch
        or mutation.reads_the_log_as_it_is
        or mutation.fetches_without_leader_epoch
        or mutation.fetches_by_offset_alone
    )


def reporting(tick: Tick) -> Tick:
    """The tick of a follower without anything to copy."""
    return Tick(REPORTING, -1, tick.epoch, (), (), tick.high_watermark)


def begins(replica: Replica) -> bool:
    """6.3: whether the follower begins to fetch from this leader: a new epoch, or a restart."""
    row, epoch = replica.row, replica.tick.epoch
    return (row.leader_epoch, row.broker_epoch) != (epoch, replica.broker_epoch)


def agreed(setting: Setting, replica: Replica) -> tuple[int, bool]:
    """6.3, or a refuted algorithm that finds where two logs diverge."""
    tick, mutation = replica.tick, setting.mutation
    own, log, mark = known_entries(setting, replica), replica.log, replica.row.high_watermark
    if mutation.truncates_to_high_watermark:
        is_cut = begins(replica) and mark < len(log)
        return (mark if is_cut else NOTHING), False
    if mutation.falls_back_to_high_watermark:
        if not begins(replica) or not own:
            return NOTHING, False
        _, end = end_offset_for(own[-1][0], tick.entries, len(tick.log))
        point = min(end, len(log)) if end >= 0 else mark
        return (point if point < len(log) else NOTHING), False
    if mutation.fetches_by_offset_alone and not begins(replica):
        return NOTHING, False
    return truncation_point(tick.epoch, own, len(log), tick.entries, len(tick.log))


def fetch_end(setting: Setting, replica: Replica) -> int:
    """6.4: the end of the offsets that the tick may copy, or -1 if the logs have diverged."""
    tick, mutation = replica.tick, setting.mutation
    own = known_entries(setting, replica)
    last_epoch = own[-1][0] if own else -1
    is_unchecked = (
        mutation.truncates_to_high_watermark
        or mutation.falls_back_to_high_watermark
        or mutation.fetches_by_offset_alone
        or mutation.reads_the_log_as_it_is
    )
    if is_unchecked:
        return max(len(tick.log), len(replica.log))
    return fetched_end(len(replica.log), last_epoch, tick.epoch, tick.log)


def follower_commits(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """6.5: a truncation is a separate commit; the copies follow, with the report."""
    replica = state.replicas[broker]
    tick, entries = replica.tick, known_entries(setting, replica)
    if tick.step == REPORTING:
        yield from _reports(setting, state, broker, replica)
        return
    point, _ = agreed(setting, replica)
    if point != NOTHING:
        if point < replica.row.high_watermark and tick.step != LEFT:
            yield from _leaves_isr(setting, state, broker)
            return
        log, entries = truncated(replica.log, entries, point)
        row = own_row(replica)
        row = row._replace(high_watermark=min(row.high_watermark, len(log)))
        cut = replica._replace(log=log, entries=entries, row=row, tick=tick._replace(step=CHECKED))
        for label, after in outcomes(setting, state, broker, cut, ("FollowerTruncates", broker)):
            if after.replicas[broker].tick is IDLE:
                yield label, after
            else:
                yield planned(setting, after, broker, after.replicas[broker], "FollowerTruncates")
        return
    source: Log = tick.log
    end = fetch_end(setting, replica)
    if tick.leader >= 0:
        source = state.replicas[tick.leader].log
        end = max(len(source), len(replica.log))
    first = len(replica.log) + 1
    for to in range(first, end + 1) if setting.partial_fetches else (end,):
        log, told = copied(replica.log, entries, source, to)
        fetched = reported(setting, replica._replace(log=log, entries=told))
        yield from outcomes(setting, state, broker, fetched, ("FollowerCommits", broker))
    yield from _reports(setting, state, broker, replica)


def _reports(setting: Setting, state: State, broker: int, replica: Replica) -> Iterator[Step]:
    after = reported(setting, replica)
    yield from outcomes(setting, state, broker, after, ("FollowerReports", broker))


def _leaves_isr(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """10.4: withdraw the report, then leave the ISR and ELR, before a cut below the high watermark.

    This holds for a broker that is no member as well: a leader may be about to add it by its last
    report. A broker that was elected meanwhile does not lead: the controller elects again.
    """
    replica = state.replicas[broker]
    tick = replica.tick
    if tick.step != WITHDRAWN:
        withdrawn = replica._replace(
            row=own_row(replica)._replace(leader_epoch=-1),
            entries=known_entries(setting, replica),
            tick=tick._replace(step=WITHDRAWN),
        )
        yield from outcomes(setting, state, broker, withdrawn, ("FollowerWithdraws", broker))
        return
    left = put(state, broker, replica._replace(tick=tick._replace(step=LEFT)))
    yield ("FollowerLeavesIsr", broker), left_sets(left, broker)


def left_sets(state: State, broker: int) -> State:
    """7.2, 10.4, 5.2: the partition epoch increases in any case, so a leader's change that is based
    on an earlier report fails (5.3).
    """
    bit = 1 << broker
    left = state._replace(isr=state.isr & ~bit, elr=state.elr & ~bit)
    if left.leader == broker:
        left = left._replace(leader_broker_epoch=NOBODY)
    return published(left, NOBODY)


def copied(log: Log, entries: Entries, source: Log, to: int) -> tuple[Log, Entries]:
    """6.1: records with the entry of each epoch that begins among them."""
    for offset in range(len(log), to):
        epoch = source[offset][0]
        if not entries or entries[-1][0] != epoch:
            entries = epoch_entries(entries, epoch, offset)
    return log + source[len(log) : to], entries


def reported(setting: Setting, replica: Replica) -> Replica:
    """1.5, 2.5: the row under the leader's epoch, which is the report that the leader reads."""
    tick, end = replica.tick, len(replica.log)
    mark = follower_high_watermark(replica.row.high_watermark, tick.high_watermark, end)
    if setting.mutation.follower_high_watermark_falls:
        mark = min(tick.high_watermark, end)
    row = Row(tick.epoch, replica.broker_epoch, mark, 0)
    return replica._replace(entries=known_entries(setting, replica), row=row, tick=IDLE)
