"""What a leader does. Its steps may come at any time and in any order that its memory allows, so
every pause inside a leader tick, and every zombie, is among the runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from tests.model.decisions import (
    DIVERGED,
    Entries,
    believed_log_end_offset,
    completed,
    duplicate_offset,
    eligible_replicas,
    epoch_entries,
    fetched_end,
    high_watermark,
    isr_expand,
    isr_shrink,
    recovered_epochs,
    recovered_high_watermark,
    request_error,
)
from tests.model.state import (
    IDLE,
    NOT_LEADING,
    SIZE,
    Leading,
    Replica,
    Row,
    Setting,
    State,
    members,
)

Step: TypeAlias = "tuple[tuple[str | int, ...], State]"
"""What happened, (action, actor, ...), and the state after it."""

NOBODY = -1


def put(state: State, broker: int, replica: Replica) -> State:
    """The state with another replica of this broker."""
    replicas = state.replicas
    others = (*replicas[:broker], replica, *replicas[broker + 1 :])
    return State._make((*state[:-1], others))


def published(state: State, by: int) -> State:
    """After a compare-and-set on partition_state: what others have read of it is old now."""
    for broker, replica in enumerate(state.replicas):
        if broker != by and replica.leading.is_current:
            state = put(
                state, broker, replica._replace(leading=replica.leading._replace(is_current=0))
            )
    return state


def epoch_start(replica: Replica) -> int:
    """Where the leader's epoch begins in its log."""
    epoch = replica.leading.epoch
    if replica.entries and replica.entries[-1][0] == epoch:
        return replica.entries[-1][1]
    return next(
        (at for at, record in enumerate(replica.log) if record[0] == epoch), len(replica.log)
    )


def eligible_after(setting: Setting, before: State, isr: int, is_unclean: bool = False) -> int:
    """7.5: who may lead although it is not in sync, after a change of the ISR."""
    standing = tuple(
        (bool(before.isr >> broker & 1), bool(isr >> broker & 1), bool(before.elr >> broker & 1))
        for broker in range(setting.replicas)
    )
    eligible = eligible_replicas(standing, is_unclean, setting.min_isr)
    if setting.mutation.eligible_replicas_stay:
        eligible |= before.elr & ~isr
    return eligible


def leader_advances_high_watermark(
    setting: Setting, state: State, broker: int, replica: Replica
) -> tuple[Replica, ...]:
    """2.1-2.4: the attempt that follows on becoming leader, ISR changes, appends and reports.

    A replica about to join counts surely where it is at the log end; whether it was caught up
    lately otherwise is a matter of time, so both outcomes are given (`slow_high_watermark`).
    """
    leading = replica.leading
    end = len(replica.log)
    marks = set()
    for counts_the_slow in (False, True) if setting.slow_high_watermark else (False,):
        followers = []
        for follower in range(setting.replicas):
            if follower == broker:
                continue
            known = leading.ends[follower]
            is_alive = not state.fenced >> follower & 1
            joins = is_alive and (known == end or (counts_the_slow and known >= 0))
            in_isr, in_proposed = leading.isr >> follower & 1, leading.proposed_isr >> follower & 1
            followers.append((bool(in_isr), bool(in_proposed), joins, known))
        itself = (
            bool(leading.isr >> broker & 1),
            bool(leading.proposed_isr >> broker & 1),
            True,
            end,
        )
        marks.add(
            high_watermark(
                replica.high_watermark,
                setting.min_isr,
                setting.lag_max_messages,
                (itself, *sorted(followers)),
            )
        )
    return tuple(replica._replace(high_watermark=mark) for mark in sorted(marks))


def leader_becomes(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """6.1, 2.2: the first tick of an epoch writes the epoch entry and tries the high watermark.

    Nothing distinguishes a pause between reading the state and writing the entry from one after
    it, since no one else writes this log: the two are one step.
    """
    replica = state.replicas[broker]
    if (
        state.leader != broker
        or replica.broker_epoch != state.leader_broker_epoch
        or replica.leading.epoch >= state.leader_epoch
        or replica.tick is not IDLE
    ):
        return
    entries = replica.entries
    if not setting.mutation.enters_epoch_after_append:
        entries = epoch_entries(entries, state.leader_epoch, len(replica.log))
    leading = Leading(state.leader_epoch, state.isr, 0, 1, (-1,) * setting.replicas)
    began = replica._replace(entries=entries, kept_entries=entries, leading=leading)
    for after in leader_advances_high_watermark(setting, state, broker, began):
        yield ("LeaderBecomes", broker), put(state, broker, after)


def leader_enters_epoch(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """Mutation only: (epoch, its log end offset) is written once the epoch has records."""
    replica = state.replicas[broker]
    epoch = replica.leading.epoch
    if not setting.mutation.enters_epoch_after_append or not replica.log:
        return
    if replica.log[-1][0] == epoch and (not replica.entries or replica.entries[-1][0] != epoch):
        entries = epoch_entries(replica.entries, epoch, len(replica.log))
        entered = replica._replace(entries=entries, kept_entries=entries)
        yield ("LeaderEntersEpoch", broker), put(state, broker, entered)


def leader_reads_state(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """5.3: partition_state has moved: take up its ISR, or stop leading.

    Who is registered is read after it, and every report is judged by that: one that was taken
    before tells nothing under the new partition epoch (5.2).
    """
    replica = state.replicas[broker]
    leading = replica.leading
    if leading is NOT_LEADING or leading.is_current:
        return
    if (
        state.leader == broker
        and state.leader_epoch == leading.epoch
        and state.leader_broker_epoch == replica.broker_epoch
    ):
        ends = (-1,) * setting.replicas
        if setting.mutation.reads_registrations_first:
            ends = leading.ends
        leading = Leading(leading.epoch, state.isr, 0, 1, ends)
        read = replica._replace(leading=leading)
        for after in leader_advances_high_watermark(setting, state, broker, read):
            yield ("LeaderReadsState", broker), put(state, broker, after)
    else:
        yield (
            ("LeaderResigns", broker),
            put(state, broker, replica._replace(leading=NOT_LEADING)),
        )


def leader_appends(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """3.1, 3.6: append one record; the request names the epoch of the leader that takes it."""
    replica = state.replicas[broker]
    epoch = replica.leading.epoch
    for record in _requested(setting, state, broker):
        known = duplicate_offset(record, replica.log)
        if known >= 0 and not setting.mutation.commits_a_path_twice:
            continue
        if len(replica.log) > setting.records:
            continue
        appended = replica._replace(log=(*replica.log, (epoch, record)))
        after = state
        if setting.requests:
            inbox = list(state.inbox)
            inbox[record] = (inbox[record][0], -1)
            after = state._replace(inbox=tuple(inbox))
        elif not setting.retries:
            after = state._replace(issued=state.issued + 1)
        elif record == state.issued:
            after = state._replace(issued=record + 1)
        for advanced in leader_advances_high_watermark(setting, after, broker, appended):
            yield ("LeaderAppends", broker, record), put(after, broker, advanced)
        # The request stays in its inbox.
        unknown = state._replace(issued=after.issued)
        if setting.lost_answers > state.spent.lost_answers:
            label = "LeaderAppends", broker, record, "unsure; it landed"
            yield label, unsure(setting, unknown, broker, appended)


def unsure(setting: Setting, state: State, broker: int, replica: Replica) -> State:
    """10.6: the log of this replica was committed, and its broker does not know.

    The tick ends there. Until it has settled the broker decides nothing.
    """
    if not setting.mutation.lost_answers_are_not_derived:
        replica = replica._replace(is_uncertain=1)
    spent = state.spent._replace(lost_answers=state.spent.lost_answers + 1)
    return put(state._replace(spent=spent), broker, replica._replace(tick=IDLE))


def broker_settles(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """10.6: the next tick begins with the log; what it implies is derived as at a start (7.0)."""
    replica = state.replicas[broker]
    epochs: Entries = recovered_epochs(replica.entries, replica.log)
    last = replica.entries[-1:]
    if last == ((replica.leading.epoch, len(replica.log)),):
        # No record tells of the epoch that it leads in.
        epochs += last
    mark = recovered_high_watermark(replica.high_watermark, len(replica.log))
    settled = replica._replace(
        entries=epochs, kept_entries=epochs, high_watermark=mark, is_uncertain=0
    )
    if replica.leading is NOT_LEADING:
        yield ("BrokerSettles", broker), put(state, broker, settled)
        return
    for after in leader_advances_high_watermark(setting, state, broker, settled):
        yield ("BrokerSettles", broker), put(state, broker, after)


def _requested(setting: Setting, state: State, broker: int) -> Iterator[int]:
    """What may be appended next, by the record's name.

    One that nobody sends again is known by where its leader appended it: in one epoch there is one
    leader, which appends once at an offset. So it needs no other name, and what differs only in the
    order in which two leaders appended is one state.
    """
    epoch = state.replicas[broker].leading.epoch
    if setting.requests:
        for record, (named, at) in enumerate(state.inbox):
            error = request_error(
                named,
                epoch,
                1,
                SIZE[state.replicas[broker].leading.isr],
                setting.min_isr,
                setting.replicas,
            )
            late = setting.mutation.appends_what_named_another_epoch and named < epoch
            if at == broker and (not error or late):
                yield record
        return
    if state.issued < setting.records:
        yield state.issued if setting.retries else len(state.replicas[broker].log)
    if setting.retries:
        yield from range(state.issued)


def leader_refuses(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """3.1: a request that named another epoch is answered, and gone."""
    epoch = state.replicas[broker].leading.epoch
    for record, (named, at) in enumerate(state.inbox):
        if at == broker and named != epoch:
            inbox = list(state.inbox)
            inbox[record] = (named, -1)
            yield ("LeaderRefuses", broker, record), state._replace(inbox=tuple(inbox))


def leader_takes_reports(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """1.3, 6.4: read one follower's row; what it says counts or not."""
    replica = state.replicas[broker]
    leading = replica.leading
    for follower, other in enumerate(state.replicas):
        if follower == broker:
            continue
        end = _believed(setting, replica, other)
        if end == leading.ends[follower]:
            continue
        ends = (*leading.ends[:follower], end, *leading.ends[follower + 1 :])
        told = replica._replace(leading=leading._replace(ends=ends))
        for advanced in leader_advances_high_watermark(setting, state, broker, told):
            yield ("LeaderTakesReports", broker, follower), put(state, broker, advanced)


def _believed(setting: Setting, leader: Replica, follower: Replica) -> int:
    """1.3, 6.4, or a mistaken belief."""
    mutation, row, epoch = setting.mutation, follower.row, leader.leading.epoch
    believes_any_epoch = mutation.believes_other_leader_epochs or mutation.fetches_by_offset_alone
    if mutation.fetches_without_leader_epoch:
        last_epoch = row.entries[-1][0] if row.entries else -1
        agreed = fetched_end(row.log_end_offset, last_epoch, epoch, leader.log)
        believes_any_epoch = agreed != DIVERGED
    return believed_log_end_offset(
        epoch,
        follower.broker_epoch,
        epoch if believes_any_epoch else row.leader_epoch,
        follower.broker_epoch if mutation.believes_other_broker_epochs else row.broker_epoch,
        row.log_end_offset,
    )


def leader_shrinks_isr(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """5.1: time is abstracted, so any follower that is not at the log end may be lagging.

    Those beyond replica.lag.max.messages leave with it, or without any that lags by time.
    """
    leading = state.replicas[broker].leading
    if not leading.is_current or not setting.isr_changes:
        return
    end = len(state.replicas[broker].log)
    followers = tuple(other for other in range(setting.replicas) if other != broker)
    seen = set()
    for lagging in (-1, *members(leading.isr & ~(1 << broker))):
        standing = tuple(
            (bool(leading.isr >> other & 1), leading.ends[other], other == lagging)
            for other in followers
        )
        leaving = members(isr_shrink(end, setting.lag_max_messages, standing))
        isr = leading.isr & ~sum(1 << followers[place] for place in leaving)
        if leaving and isr not in seen:
            seen.add(isr)
            label = ("LeaderShrinksIsr", followers[leaving[0]])
            yield from _alters_isr(setting, state, broker, isr, label)


def leader_expands_isr(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """5.2: who has reported in this epoch, under its registration, and has caught up joins.

    What it reported may be old by now, as may its registration: the compare-and-set fails if it
    has lost its log since.
    """
    replica = state.replicas[broker]
    leading = replica.leading
    if not leading.is_current or not setting.isr_changes:
        return
    ends = leading.ends
    if setting.mutation.joins_without_a_report:
        ends = tuple(other.row.log_end_offset for other in state.replicas)
    followers = tuple(other for other in range(setting.replicas) if other != broker)
    joining = isr_expand(
        replica.high_watermark,
        epoch_start(replica),
        len(replica.log),
        -1 if setting.mutation.joins_beyond_lag_max_messages else setting.lag_max_messages,
        tuple(
            (
                bool(leading.isr >> other & 1),
                not state.fenced >> other & 1,
                ends[other],
            )
            for other in followers
        ),
    )
    for place in members(joining):
        isr = leading.isr | 1 << followers[place]
        label = ("LeaderExpandsIsr", followers[place])
        yield from _alters_isr(setting, state, broker, isr, label)


def _alters_isr(
    setting: Setting, state: State, broker: int, isr: int, label: tuple[str, int]
) -> Iterator[Step]:
    """One compare-and-set on the partition epoch (5.3), its outcome perhaps unknown (2.4)."""
    replica = state.replicas[broker]
    elr = eligible_after(setting, state, isr)
    landed = published(state._replace(isr=isr, elr=elr), broker)
    known = replica._replace(leading=replica.leading._replace(isr=isr))
    for after in leader_advances_high_watermark(setting, landed, broker, known):
        yield (label[0], broker, label[1]), put(landed, broker, after)
    if setting.unknown_outcomes:
        leading = replica.leading._replace(proposed_isr=isr, is_current=0)
        unsure = replica._replace(leading=leading)
        for name, world in (("landed", landed), ("did not land", state)):
            for after in leader_advances_high_watermark(setting, world, broker, unsure):
                yield (label[0], broker, label[1], f"unsure; it {name}"), put(world, broker, after)


def leader_checkpoints(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """1.5: the row that consumers, followers and the next process read. Answers follow it."""
    replica = state.replicas[broker]
    row = Row(
        replica.leading.epoch,
        replica.broker_epoch,
        len(replica.log),
        replica.high_watermark,
        1,
        replica.log,
        replica.entries,
    )
    if row == replica.row:
        return
    state = put(state, broker, replica._replace(row=row))
    if row.leader_epoch >= state.shown_since and row.high_watermark > len(state.shown):
        state = state._replace(shown=replica.log[: row.high_watermark])
    isr_size = SIZE[replica.leading.isr]
    answers = [
        completed(at + 1, True, row.high_watermark, isr_size, setting.min_isr, setting.replicas)
        for at in range(len(replica.log))
    ]
    told = " ".join(f"{at}:{answer}" for at, answer in enumerate(answers) if answer)
    yield ("LeaderCheckpoints", broker, told), state


LEADER_ACTIONS = (
    leader_appends,
    leader_takes_reports,
    leader_shrinks_isr,
    leader_expands_isr,
    leader_checkpoints,
    leader_reads_state,
    leader_enters_epoch,
    leader_refuses,
)
