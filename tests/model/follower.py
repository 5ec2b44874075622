"""What a follower does: one tick, step by step, with pauses that tables allow and RPCs hide.

    reads partition_state -> reads the leader's row -> reads partition_state again
        -> truncates, or copies and commits -> writes its row

Its leader's log is read at the version that the row names, so it does not matter when.
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
from tests.model.leader import Step, put
from tests.model.state import (
    CHECKED,
    IDLE,
    NOT_LEADING,
    READ_ROW,
    READ_STATE,
    WRITTEN,
    Replica,
    Row,
    Setting,
    State,
    Tick,
)


def follower_reads_state(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """6.4: who leads, in which epoch. The tick goes on in steps while pauses are left."""
    replica = state.replicas[broker]
    if (
        replica.tick is not IDLE
        or replica.leading is not NOT_LEADING
        or state.leader in {-1, broker}
    ):
        return
    tick = Tick(READ_STATE, state.leader, state.leader_epoch, (), (), 0)
    begun = put(state, broker, replica._replace(tick=tick))
    under_way = sum(other.tick is not IDLE for other in state.replicas)
    if under_way < setting.pauses:
        yield ("FollowerReadsState", broker), begun
    yield from _whole_tick(setting, begun, broker, ())


def _whole_tick(
    setting: Setting, state: State, broker: int, done: tuple[str, ...]
) -> Iterator[Step]:
    """The rest of a tick, without a pause."""
    if state.replicas[broker].tick is IDLE:
        if done[-1] not in {"DropsTick", "DropsDivergedFetch"} or len(done) > 1:
            yield ("FollowerTicks", broker, " ".join(done)), state
        return
    for label, after in follower_continues(setting, state, broker):
        name = str(label[0]).removeprefix("Follower")
        yield from _whole_tick(setting, after, broker, (*done, name))


def follower_continues(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """The next step of the tick under way."""
    step = state.replicas[broker].tick.step
    if step == READ_STATE:
        yield follower_reads_leader_row(setting, state, broker)
    elif step == READ_ROW:
        yield follower_rereads_state(setting, state, broker)
    elif step == CHECKED:
        yield from follower_truncates_or_commits(setting, state, broker)
    elif step == WRITTEN:
        yield follower_checkpoints(setting, state, broker)


def follower_reads_leader_row(setting: Setting, state: State, broker: int) -> Step:
    """6.4: the tick goes on only under the epoch that the row bears; 6.3: check, then plan."""
    replica = state.replicas[broker]
    tick = replica.tick
    row = state.replicas[tick.leader].row
    mutation = setting.mutation
    if row.leader_epoch != tick.epoch and (begins(replica) or not mutation.fetches_by_offset_alone):
        return ("FollowerDropsTick", broker), put(state, broker, replica._replace(tick=IDLE))
    read = Tick(READ_ROW, -1, tick.epoch, row.log, row.entries, row.high_watermark)
    if mutation.reads_the_log_as_it_is or mutation.fetches_by_offset_alone:
        leader = state.replicas[tick.leader]
        read = read._replace(leader=tick.leader, log=leader.log, entries=leader.entries)
    return planned(setting, state, broker, replica._replace(tick=read), "FollowerReadsLeaderRow")


def planned(setting: Setting, state: State, broker: int, replica: Replica, action: str) -> Step:
    """What is left of a tick: a commit, the row only, or nothing."""
    tick = replica.tick
    point, waits = agreed(setting, replica)
    end = fetch_end(setting, replica)
    if waits or (point == NOTHING and end == DIVERGED):
        action = "FollowerDropsTick" if waits else "FollowerDropsDivergedFetch"
        return (action, broker), put(state, broker, replica._replace(tick=IDLE))
    if point == NOTHING and end <= len(replica.log):
        replica = replica._replace(tick=written(tick))
        if checkpointed(setting, replica).row == replica.row:
            replica = replica._replace(tick=IDLE)
    return (action, broker), put(state, broker, replica)


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


def follower_rereads_state(setting: Setting, state: State, broker: int) -> Step:
    """6.4: before a commit; the tick is dropped if the epoch moved."""
    replica = state.replicas[broker]
    mutation = setting.mutation
    is_unfenced = (
        mutation.reads_the_log_as_it_is
        or mutation.fetches_without_leader_epoch
        or mutation.fetches_by_offset_alone
    )
    if state.leader_epoch != replica.tick.epoch and not is_unfenced:
        return ("FollowerDropsTick", broker), put(state, broker, replica._replace(tick=IDLE))
    checked = replica.tick._replace(step=CHECKED)
    return ("FollowerRereadsState", broker), put(state, broker, replica._replace(tick=checked))


def follower_truncates_or_commits(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """6.5: a truncation is a commit of its own, the copy follows after another look."""
    replica = state.replicas[broker]
    tick = replica.tick
    point, _ = agreed(setting, replica)
    if point != NOTHING:
        log, entries = truncated(replica.log, replica.entries, point)
        cut = replica._replace(
            log=log,
            entries=entries,
            high_watermark=min(replica.high_watermark, len(log)),
            tick=tick._replace(step=READ_ROW),
        )
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
    tick = replica.tick
    mark = follower_high_watermark(tick.high_watermark, len(replica.log))
    if setting.follower_high_watermark_only_rises:
        mark = max(mark, min(replica.high_watermark, len(replica.log)))
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
