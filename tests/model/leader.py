"""The steps of a leader, in the order of their effects:

    becomes leader (a commit of its journal: epoch entry and role)
        -> reads reports (memory) -> commits (records, high watermark, answers, taken requests)
        -> changes the ISR in partition_state -> commits the high watermark that this moves

Each step may come at any time that the leader's memory allows, so every pause within a leader's
tick is explored. A high watermark that a step moves is staged. It is computed when it is committed,
since its inputs are in memory. The ISR shrinks after the commit of the high watermark that the
reports allow; it may expand by one that is staged (5.3).
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.decisions import (
    DIVERGED,
    Log,
    believed_log_end_offset,
    completed,
    duplicate_offset,
    eligible_replicas,
    epoch_entries,
    fetched_end,
    high_watermark,
    isr_expand,
    isr_shrink,
    request_error,
)
from tests.model.journal import Step, committed, decides, known_entries, outcomes, put
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

NOBODY = -1
NO_RECORD = -1


def published(state: State, by: int) -> State:
    """After a compare-and-set on partition_state, the copy that others have read is outdated."""
    for broker, replica in enumerate(state.replicas):
        if broker != by and replica.leading.is_current:
            state = put(
                state, broker, replica._replace(leading=replica.leading._replace(is_current=0))
            )
    return state


def epoch_start(replica: Replica) -> int:
    """Return the start offset of the leader's epoch in its log."""
    epoch = replica.leading.epoch
    if replica.entries and replica.entries[-1][0] == epoch:
        return replica.entries[-1][1]
    return next(
        (at for at, record in enumerate(replica.log) if record[0] == epoch), len(replica.log)
    )


def eligible_after(setting: Setting, before: State, isr: int, is_unclean: bool = False) -> int:
    """7.5: the eligible replicas after a change of the ISR."""
    standing = tuple(
        (bool(before.isr >> broker & 1), bool(isr >> broker & 1), bool(before.elr >> broker & 1))
        for broker in range(setting.replicas)
    )
    eligible = eligible_replicas(standing, is_unclean, setting.min_isr)
    if setting.mutation.eligible_replicas_stay:
        eligible |= before.elr & ~isr
    return eligible


def attempted_high_watermarks(
    setting: Setting, state: State, broker: int, replica: Replica
) -> tuple[int, ...]:
    """2.1-2.4: the high watermark after becoming leader, ISR changes, appends and reports.

    A replica that is about to join counts if it is at the log end. Otherwise time decides whether
    it was caught up lately, so both outcomes are given (`slow_high_watermark`).
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
                replica.row.high_watermark,
                setting.min_isr,
                setting.lag_max_messages,
                (itself, *sorted(followers)),
            )
        )
    return tuple(sorted(marks))


def leader_becomes(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """6.1: the first tick of an epoch commits the epoch entry and the role before it appends.

    A pause between reading the state and this commit is equivalent to one after it, since no other
    process writes this journal: the two are one step.
    """
    replica = state.replicas[broker]
    if (
        state.leader != broker
        or replica.broker_epoch != state.leader_broker_epoch
        or replica.leading.epoch >= state.leader_epoch
        or replica.tick is not IDLE
    ):
        return
    entries = known_entries(setting, replica)
    if not setting.mutation.enters_epoch_after_append:
        entries = epoch_entries(entries, state.leader_epoch, len(replica.log))
    leading = Leading(state.leader_epoch, state.isr, 0, 1, (-1,) * setting.replicas)
    row = Row(state.leader_epoch, replica.broker_epoch, replica.row.high_watermark, 1)
    began = replica._replace(entries=entries, row=row, leading=leading)
    # A tick takes its roles first: one that fails there leads no partition that it led before.
    undecided = put(state, broker, replica._replace(leading=NOT_LEADING))
    yield from outcomes(setting, undecided, broker, began, ("LeaderBecomes", broker))


def leader_enters_epoch(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """Mutation only: (epoch, its log end offset) is written once the epoch has records."""
    replica = state.replicas[broker]
    epoch = replica.leading.epoch
    if not setting.mutation.enters_epoch_after_append or not replica.log:
        return
    if replica.log[-1][0] == epoch and (not replica.entries or replica.entries[-1][0] != epoch):
        entries = epoch_entries(replica.entries, epoch, len(replica.log))
        entered = replica._replace(entries=entries)
        yield ("LeaderEntersEpoch", broker), committed(setting, state, broker, entered)


def leader_reads_state(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """5.3: partition_state has moved: take its ISR, or stop leading.

    Registrations are read after it, and every report is judged by them: a report that was read
    before is invalid under the new partition epoch (5.2).
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
        yield ("LeaderReadsState", broker), put(state, broker, replica._replace(leading=leading))
    else:
        yield (
            ("LeaderResigns", broker),
            put(state, broker, replica._replace(leading=NOT_LEADING)),
        )


def leader_commits(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """3.1, 3.2, 3.6, 2.1: one commit with at most one record, the high watermark, the answers that
    it allows, and the position up to which requests are taken.
    """
    replica, mutation = state.replicas[broker], setting.mutation
    epoch = replica.leading.epoch
    for record in (NO_RECORD, *_requested(setting, state, broker)):
        appended, taken, word = replica, state, ""
        if record != NO_RECORD:
            known = duplicate_offset(record, replica.log)
            if known >= 0 and not mutation.commits_a_path_twice:
                continue
            if len(replica.log) > setting.records:
                continue
            appended = replica._replace(log=(*replica.log, (epoch, record)))
            taken, word = _taken(setting, state, record), f"record {record}"
        for mark in attempted_high_watermarks(setting, taken, broker, appended):
            row = Row(epoch, replica.broker_epoch, mark, 1)
            if record == NO_RECORD and row == replica.row:
                if replica.put:
                    yield from decides(setting, state, broker)
                continue
            ready = mark
            if mutation.answers_without_high_watermark:
                ready = len(appended.log)
            answers, answered = _answers(setting, appended, ready)
            label = "LeaderCommits", broker, word, answers
            if mutation.answers_before_high_watermark and mark > replica.row.high_watermark:
                early = appended._replace(row=replica.row)
                if early != replica:
                    yield label, committed(setting, taken, broker, early, answered)
                else:
                    yield label, taken._replace(answered=answered)
            after = appended._replace(row=row)
            unlanded = state._replace(issued=taken.issued)
            yield from outcomes(setting, unlanded, broker, after, label, answered, taken.inbox)


def _taken(setting: Setting, state: State, record: int) -> State:
    """The state in which a record's request is taken."""
    if setting.requests:
        inbox = list(state.inbox)
        inbox[record] = (inbox[record][0], -1)
        return state._replace(inbox=tuple(inbox))
    if not setting.retries:
        return state._replace(issued=state.issued + 1)
    return state._replace(issued=record + 1) if record == state.issued else state


def _answers(setting: Setting, replica: Replica, mark: int) -> tuple[str, Log]:
    """3.2, 3.3: the answers that a high watermark allows, and the records that they acknowledge."""
    isr_size = SIZE[replica.leading.isr]
    answers = [
        completed(at + 1, True, mark, isr_size, setting.min_isr, setting.replicas)
        for at in range(len(replica.log))
    ]
    told = " ".join(f"{at}:{answer}" for at, answer in enumerate(answers) if answer)
    return told, replica.log[: answers.count("NONE")]


def _requested(setting: Setting, state: State, broker: int) -> Iterator[int]:
    """Yield the names of the records that may be appended next.

    A record that nobody sends again is identified by its offset and the leader epoch: each epoch
    has one leader, which appends once per offset. It needs no other name, so states that differ
    only in the order in which two leaders appended are one state.
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
    """3.1: a request that named another epoch is answered and removed."""
    epoch = state.replicas[broker].leading.epoch
    for record, (named, at) in enumerate(state.inbox):
        if at == broker and named != epoch:
            inbox = list(state.inbox)
            inbox[record] = (named, -1)
            yield ("LeaderRefuses", broker, record), state._replace(inbox=tuple(inbox))


def leader_takes_reports(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """1.3, 6.4: read one follower's row, whose report counts or not."""
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
        yield ("LeaderTakesReports", broker, follower), put(state, broker, told)


def _believed(setting: Setting, leader: Replica, follower: Replica) -> int:
    """1.3, 6.4, or a mutated check."""
    mutation, row, epoch = setting.mutation, follower.row, leader.leading.epoch
    believes_any_epoch = mutation.believes_other_leader_epochs or mutation.fetches_by_offset_alone
    end = len(follower.log)
    if mutation.fetches_without_leader_epoch:
        last_epoch = follower.entries[-1][0] if follower.entries else -1
        believes_any_epoch = fetched_end(end, last_epoch, epoch, leader.log) != DIVERGED
    return believed_log_end_offset(
        epoch,
        follower.broker_epoch,
        epoch if believes_any_epoch else row.leader_epoch,
        follower.broker_epoch if mutation.believes_other_broker_epochs else row.broker_epoch,
        end,
    )


def leader_shrinks_isr(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """5.1: time is abstracted, so any follower that is not at the log end may be lagging.

    The high watermark that was computed before is committed first.

    Followers beyond replica.lag.max.messages leave as well, with or without one that lags by time.
    """
    replica = state.replicas[broker]
    leading = replica.leading
    if not leading.is_current or not setting.isr_changes:
        return
    if replica.row.high_watermark not in attempted_high_watermarks(setting, state, broker, replica):
        return
    end = len(replica.log)
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
    """5.2: followers that have reported in this epoch, under their registration, and caught up
    join.

    Their reports and registrations may be outdated: the compare-and-set fails if one has lost its
    log since.
    """
    replica = state.replicas[broker]
    leading = replica.leading
    if not leading.is_current or not setting.isr_changes:
        return
    ends = leading.ends
    if setting.mutation.joins_without_a_report:
        ends = tuple(len(other.log) for other in state.replicas)
    followers = tuple(other for other in range(setting.replicas) if other != broker)
    standing = tuple(
        (bool(leading.isr >> other & 1), not state.fenced >> other & 1, ends[other])
        for other in followers
    )
    joining = 0
    for mark in attempted_high_watermarks(setting, state, broker, replica):
        joining |= isr_expand(
            mark,
            epoch_start(replica),
            len(replica.log),
            -1 if setting.mutation.joins_beyond_lag_max_messages else setting.lag_max_messages,
            standing,
        )
    for place in members(joining):
        isr = leading.isr | 1 << followers[place]
        label = ("LeaderExpandsIsr", followers[place])
        yield from _alters_isr(setting, state, broker, isr, label)


def _alters_isr(
    setting: Setting, state: State, broker: int, isr: int, label: tuple[str, int]
) -> Iterator[Step]:
    """One compare-and-set on the partition epoch (5.3), possibly with an unknown outcome (2.4).

    It is not made while a put is in flight, whose high watermark was computed for the previous ISR
    (10.6).
    """
    replica = state.replicas[broker]
    if replica.put and not setting.mutation.changes_isr_beside_a_put:
        return
    elr = eligible_after(setting, state, isr)
    landed = published(state._replace(isr=isr, elr=elr), broker)
    known = replica._replace(leading=replica.leading._replace(isr=isr))
    yield (label[0], broker, label[1]), put(landed, broker, known)
    if setting.unknown_outcomes:
        leading = replica.leading._replace(proposed_isr=isr, is_current=0)
        unsure = replica._replace(leading=leading)
        for name, world in (("landed", landed), ("did not land", state)):
            yield (label[0], broker, label[1], f"unsure; it {name}"), put(world, broker, unsure)


LEADER_ACTIONS = (
    leader_commits,
    leader_takes_reports,
    leader_shrinks_isr,
    leader_expands_isr,
    leader_reads_state,
    leader_enters_epoch,
    leader_refuses,
)
