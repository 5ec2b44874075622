"""What a follower does: one tick, step by step, with pauses that tables allow and RPCs hide.

    reads partition_state -> reads the leader's row -> reads partition_state again
        -> truncates, or copies and commits -> writes its row

Its leader's log is read at the version that the row names, so it does not matter when. Nor does it
matter how long the three reads take, which are one step here:

- While the state is still the one read first, a tick that is at its second read is one that begins
  just now. If it has moved, the row read is one of a deposed leader. A tick may begin as such, but
  commits no copy (`_may_copy`).
- The third read forbids a copy, and nothing else: had it come with the second, the copy would be
  allowed, and a tick may always copy nothing (its reads of the files may fail, too).

Where nothing crashes or stops, it does not matter either when after these reads the own log is
written: nobody sees it until the row is there or the broker leads, which is after the tick. Then a
truncation is part of the first step, and copy, commit and row are the second one.
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
from tests.model.leader import NOBODY, Step, published, put, unsure
from tests.model.state import (
    CHECKED,
    IDLE,
    NOT_LEADING,
    WRITTEN,
    Replica,
    Row,
    Setting,
    State,
    Tick,
)


def follower_reads(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """6.4: who leads in which epoch, that broker's row, and again whether the epoch is the same.

    The tick goes on in steps while pauses are left; else the rest of it happens at once.
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
    """What a tick may have read before the state moved, and what it reads now."""
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
    is_written = state.replicas[broker].tick.step == WRITTEN
    following = follower_continues if is_written else follower_truncates_or_commits
    for (action, *_), after in following(setting, state, broker):
        name = str(action).removeprefix("Follower")
        yield from _whole_tick(setting, after, broker, (*done, name))


def follower_continues(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """The next step of the tick under way."""
    if state.replicas[broker].tick.step == WRITTEN:
        yield follower_checkpoints(setting, state, broker)
    elif setting.writes_are_one_step:
        yield from _whole_tick(setting, state, broker, ())
    else:
        yield from follower_truncates_or_commits(setting, state, broker)


def _with_truncation(setting: Setting, state: State, broker: int) -> State:
    replica = state.replicas[broker]
    if replica.tick.step == CHECKED and agreed(setting, replica)[0] != NOTHING:
        [(_, state)] = follower_truncates_or_commits(setting, state, broker)
    return state


def _reads_row(setting: Setting, state: State, broker: int, leader: int, epoch: int) -> Step | None:
    """6.4: the tick goes on only under the epoch that the row bears; 6.3: check, then plan."""
    mutation, row = setting.mutation, state.replicas[leader].row
    tick = Tick(CHECKED, -1, epoch, row.log, row.entries, row.high_watermark)
    replica = state.replicas[broker]._replace(tick=tick)
    if row.leader_epoch != epoch and (begins(replica) or not mutation.fetches_by_offset_alone):
        return None
    if mutation.reads_the_log_as_it_is or mutation.fetches_by_offset_alone:
        read = state.replicas[leader]
        tick = tick._replace(leader=leader, log=read.log, entries=read.entries)
        replica = replica._replace(tick=tick)
    return planned(setting, state, broker, replica, "FollowerReads")


def planned(setting: Setting, state: State, broker: int, replica: Replica, action: str) -> Step:
    """What is left of a tick: a commit, the row only, or nothing."""
    tick = replica.tick
    point, waits = agreed(setting, replica)
    end = fetch_end(setting, replica)
    if waits or (point == NOTHING and end == DIVERGED):
        action = "FollowerDropsTick" if waits else "FollowerDropsDivergedFetch"
        return (action, broker), put(state, broker, replica._replace(tick=IDLE))
    has_copies = end > len(replica.log) and _may_copy(setting, state, tick)
    if point == NOTHING and not has_copies:
        replica = replica._replace(tick=written(tick))
        if checkpointed(setting, replica).row == replica.row:
            replica = replica._replace(tick=IDLE)
    return (action, broker), put(state, broker, replica)


def _may_copy(setting: Setting, state: State, tick: Tick) -> bool:
    """6.4: before a commit the state is read again, and the copies are dropped if it moved."""
    mutation = setting.mutation
    return (
        state.leader_epoch == tick.epoch
        or mutation.reads_the_log_as_it_is
        or mutation.fetches_without_leader_epoch
        or mutation.fetches_by_offset_alone
    )


def written(tick: Tick) -> Tick:
    """What a tick still needs once its log is committed."""
    return Tick(WRITTEN, -1, tick.epoch, (), (), tick.high_watermark)


def begins(replica: Replica) -> bool:
    """6.3: whether the follower begins to fetch from this leader: a new epoch, or a restart."""
    row, epoch = replica.row, replica.tick.epoch
    return (row.leader_epoch, row.broker_epoch) != (epoch, replica.broker_epoch)


def agreed(setting: Setting, replica: Replica) -> tuple[int, bool]:
    """6.3, or a refuted way to find where two logs agree."""
    tick, mutation = replica.tick, setting.mutation
    own, log = replica.entries, replica.log
    if mutation.truncates_to_high_watermark:
        is_cut = begins(replica) and replica.high_watermark < len(log)
        return (replica.high_watermark if is_cut else NOTHING), False
    if mutation.falls_back_to_high_watermark:
        if not begins(replica) or not own:
            return NOTHING, False
        _, end = end_offset_for(own[-1][0], tick.entries, len(tick.log))
        point = min(end, len(log)) if end >= 0 else replica.high_watermark
        return (point if point < len(log) else NOTHING), False
    if mutation.fetches_by_offset_alone and not begins(replica):
        return NOTHING, False
    return truncation_point(tick.epoch, own, len(log), tick.entries, len(tick.log))


def fetch_end(setting: Setting, replica: Replica) -> int:
    """6.4: up to where the tick may copy, or -1 where the logs have diverged."""
    tick, mutation = replica.tick, setting.mutation
    last_epoch = replica.entries[-1][0] if replica.entries else -1
    is_unchecked = (
        mutation.truncates_to_high_watermark
        or mutation.falls_back_to_high_watermark
        or mutation.fetches_by_offset_alone
        or mutation.reads_the_log_as_it_is
    )
    if is_unchecked:
        return max(len(tick.log), len(replica.log))
    return fetched_end(len(replica.log), last_epoch, tick.epoch, tick.log)


def follower_truncates_or_commits(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """6.5: a truncation is a commit of its own, the copy follows after another look."""
    replica = state.replicas[broker]
    tick = replica.tick
    point, _ = agreed(setting, replica)
    if point != NOTHING:
        log, entries = truncated(replica.log, replica.entries, point)
        if point < replica.high_watermark:
            state, replica = _left_isr(state, broker)
        if setting.lost_answers > state.spent.lost_answers and log != replica.log:
            found = unsure(setting, state, broker, replica._replace(log=log))
            yield ("FollowerTruncates", broker, "unsure; it landed"), found
        mark = min(replica.high_watermark, len(log))
        cut = replica._replace(log=log, entries=entries, high_watermark=mark)
        yield planned(setting, state, broker, cut, "FollowerTruncates")
        return
    source: Log = tick.log
    end = fetch_end(setting, replica)
    if tick.leader >= 0:
        source = state.replicas[tick.leader].log
        end = max(len(source), len(replica.log))
    first = len(replica.log) + 1
    for to in range(first, end + 1) if setting.partial_fetches else (end,):
        log, entries = copied(replica.log, replica.entries, source, to)
        committed = replica._replace(log=log, entries=entries, tick=written(tick))
        yield ("FollowerCommits", broker), put(state, broker, committed)
        if setting.lost_answers > state.spent.lost_answers:
            found = unsure(setting, state, broker, replica._replace(log=log))
            yield ("FollowerCommits", broker, "unsure; it landed"), found
    nothing = replica._replace(tick=written(tick))
    yield ("FollowerCopiesNothing", broker), put(state, broker, nothing)


def _left_isr(state: State, broker: int) -> tuple[State, Replica]:
    """10.4: withdraw the report, and leave the ISR and ELR, before a cut below the high watermark.

    Also where the broker is no member: a leader may be about to add it by its last report.
    """
    replica = state.replicas[broker]
    replica = replica._replace(row=replica.row._replace(leader_epoch=-1))
    bit = 1 << broker
    left = state._replace(isr=state.isr & ~bit, elr=state.elr & ~bit)
    return put(published(left, NOBODY), broker, replica), replica


def copied(log: Log, entries: Entries, source: Log, to: int) -> tuple[Log, Entries]:
    """6.1: records with the entry of each epoch that begins among them."""
    for offset in range(len(log), to):
        epoch = source[offset][0]
        if not entries or entries[-1][0] != epoch:
            entries = epoch_entries(entries, epoch, offset)
    return log + source[len(log) : to], entries


def follower_checkpoints(setting: Setting, state: State, broker: int) -> Step:
    """1.5: the row, under the leader's epoch: the report that the leader reads."""
    after = checkpointed(setting, state.replicas[broker])
    return ("FollowerCheckpoints", broker), put(state, broker, after)


def checkpointed(setting: Setting, replica: Replica) -> Replica:
    """2.5: the row of a follower, and its memory of the high watermark."""
    tick, end = replica.tick, len(replica.log)
    mark = follower_high_watermark(replica.high_watermark, tick.high_watermark, end)
    if setting.mutation.follower_high_watermark_falls:
        mark = min(tick.high_watermark, end)
    keeps_log = setting.mutation.fetches_without_leader_epoch
    row = Row(
        tick.epoch,
        replica.broker_epoch,
        len(replica.log),
        mark,
        0,
        replica.log if keeps_log else (),
        replica.entries if keeps_log else (),
    )
    return replica._replace(kept_entries=replica.entries, high_watermark=mark, row=row, tick=IDLE)
