"""The journals: commits, their outcomes, and the checkpoints that are written after them.

A commit changes a replica's log, epoch history and row at once, and gives the answers that its high
watermark allows. Its process may not learn the outcome (10.6): it has landed, or the put is still
in flight and lands later if its version is still free. A later commit of the journal therefore
excludes it. A put that finds its version freed by clean-up is withdrawn (10.7), which has no effect
either, and a put is forgotten at the next commit. Only the mutant of 10.7 goes on with it.

Checkpoints are explored for one root of a configuration. `Past` begins when both tables describe
its journal, and other roots are opened as if theirs did. This excludes no run: a process reads
checkpoints only to replay the commits after them, and `replay_is_state` states that the result is
the journal's state. A table that is written from an older state than the journal's, as on an object
store, is equivalent to one that was written when that state was the newest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from tests.model.decisions import Entries, Log, recovered_epochs, united_epochs
from tests.model.state import (
    IDLE,
    NOT_LEADING,
    Commit,
    Journal,
    Past,
    Put,
    Replica,
    Row,
    Setting,
    State,
)

Label: TypeAlias = "tuple[str | int, ...]"
"""The label of a step: (action, actor, ...)."""
Step: TypeAlias = "tuple[Label, State]"
"""A step: its label, and the state after it."""


def put(state: State, broker: int, replica: Replica) -> State:
    """Return the state with another replica of this broker."""
    replicas = state.replicas
    others = (*replicas[:broker], replica, *replicas[broker + 1 :])
    return State._make((*state[:-1], others))


def journal_of(replica: Replica) -> Journal:
    """Return the durable state of a replica."""
    return Journal(replica.log, replica.entries, replica.row)


# -- The memory of a process ----------------------------------------------------------------------


def is_fresh(replica: Replica) -> bool:
    """Whether the process has committed nothing yet: the journal is an earlier process's."""
    return replica.row.broker_epoch != replica.broker_epoch


def known_entries(setting: Setting, replica: Replica) -> Entries:
    """7.0: the history in memory; at the start an entry at the log end is dropped."""
    if not is_fresh(replica):
        return replica.entries
    if setting.mutation.unites_histories_on_start and replica.past:
        return united_epochs(replica.past[0].entries, replica.log)
    return recovered_epochs(replica.entries, replica.log)


def own_row(replica: Replica) -> Row:
    """The row of a follower that has not been reconciled with another leader; empty at the
    start.
    """
    row = replica.row
    epoch = -1 if is_fresh(replica) else row.leader_epoch
    return Row(epoch, replica.broker_epoch, row.high_watermark, 0)


# -- Commits ---------------------------------------------------------------------------------------


def committed(
    setting: Setting, state: State, broker: int, replica: Replica, answered: Log = ()
) -> State:
    """Return the state after one commit of this broker's journal, with the answers in it."""
    before = state.replicas[broker]
    row = replica.row
    if journal_of(before) == journal_of(replica):
        return put(state, broker, replica)
    if before.put and not _outlives_commits(setting, before):
        replica = replica._replace(put=())
    state = put(state, broker, _with_commit(before, replica))
    if row.leads and row.leader_epoch >= state.shown_since:
        if row.high_watermark > len(state.shown):
            state = state._replace(shown=replica.log[: row.high_watermark])
        if state.shown[: len(answered)] != answered:
            state = state._replace(answered=answered)
    return state


def _outlives_commits(setting: Setting, replica: Replica) -> bool:
    """Mutations only: an older process's put is not forgotten."""
    if not setting.mutation.fork_after_clean_up or not replica.past:
        return setting.mutation.zombie_rewrites_its_row
    return any(late.journal.row.broker_epoch < replica.broker_epoch for late in replica.put)


def _with_commit(before: Replica, replica: Replica) -> Replica:
    if not before.past:
        return replica
    past = before.past[0]
    commit = Commit(
        (replica.row,) if replica.row != before.row else (),
        (replica.entries,) if replica.entries != before.entries else (),
    )
    return replica._replace(past=(past._replace(tail=(*past.tail, commit)),))


def outcomes(
    setting: Setting,
    state: State,
    broker: int,
    replica: Replica,
    label: Label,
    answered: Log = (),
    inbox: tuple[tuple[int, int], ...] | None = None,
) -> Iterator[Step]:
    """Yield a commit that landed, and one whose process does not know the outcome (10.6).

    `inbox` is the inbox after the requests that the commit takes.

    If the outcome is unknown the tick ends, and the next one begins with the journal's state.
    Staged changes are discarded, so that a put which does not land leaves the previous state.
    """
    taken = state if inbox is None else state._replace(inbox=inbox)
    landed = committed(setting, taken, broker, replica, answered)
    yield label, landed
    before = state.replicas[broker]
    is_change = journal_of(before) != journal_of(replica)
    if not is_change or state.spent.lost_answers >= setting.lost_answers:
        return
    spent = state.spent._replace(lost_answers=state.spent.lost_answers + 1)
    forgetful = replica._replace(leading=before.leading, tick=IDLE)
    if setting.mutation.lost_answers_are_not_derived:
        forgetful = forgetful._replace(entries=before.entries, row=before.row)
    if forgetful != landed.replicas[broker]:
        found = committed(setting, taken._replace(spent=spent), broker, forgetful, answered)
        yield (*label, "unsure; it landed"), found
    at = len(before.past[0].tail) if before.past else 0
    under_way = Put(journal_of(replica), answered, at)
    waiting = before._replace(tick=IDLE, put=(under_way,))
    yield (*label, "unsure; it is under way"), put(state._replace(spent=spent), broker, waiting)


def decides(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """10.6: an empty commit takes the version of a put in flight, which can no longer land."""
    replica = state.replicas[broker]
    for past in replica.past:
        empty = past._replace(tail=(*past.tail, Commit((), ())))
        replica = replica._replace(past=(empty,))
    if not _outlives_commits(setting, replica):
        replica = replica._replace(put=())
    if replica != state.replicas[broker]:
        yield ("LeaderCommits", broker, "nothing"), put(state, broker, replica)


def put_arrives(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """10.6: a put that was given up lands later if its version is free."""
    replica = state.replicas[broker]
    if not replica.put:
        return
    late, at_end = replica.put[0], len(replica.past[0].tail) if replica.past else 0
    gone = replica._replace(put=())
    if setting.mutation.zombie_rewrites_its_row:
        rewritten = gone._replace(row=late.journal.row)
        yield ("ZombieRewritesRow", broker), committed(setting, state, broker, rewritten)
    elif late.at == at_end:
        log, entries, row = late.journal
        landed = gone._replace(log=log, entries=entries, row=row, tick=IDLE)
        after = committed(setting, state, broker, landed, late.answered)
        yield ("PutArrives", broker), after
    elif late.at < 0 and late.answered:
        after = put(state, broker, gone)
        yield ("PutArrivesInAFreedVersion", broker), after._replace(answered=late.answered)


# -- Checkpoints -----------------------------------------------------------------------------------


def broker_checkpoints(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """1.5, 7.0: one checkpoint table after another, each at a version of its own."""
    if state.spent.checkpoints >= setting.checkpoints:
        return
    replica = state.replicas[broker]
    spent = state.spent._replace(checkpoints=state.spent.checkpoints + 1)
    state = state._replace(spent=spent)
    if spent.checkpoints == 1:
        first = Past((), replica.row, 0, replica.entries, 0)
        yield ("BrokerCheckpoints", broker), put(state, broker, replica._replace(past=(first,)))
        return
    for past in replica.past:
        at = len(past.tail) + setting.mutation.checkpoint_ahead_of_the_journal
        if past.rows_at < at:
            rows = past._replace(row=replica.row, rows_at=at)
            after = replica._replace(past=(rows,))
            yield ("BrokerCheckpointsRows", broker), put(state, broker, after)
        if past.entries_at < at:
            histories = past._replace(entries=replica.entries, entries_at=at)
            after = replica._replace(past=(histories,))
            yield ("BrokerCheckpointsEpochs", broker), put(state, broker, after)


def journal_is_cleaned_up(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """7.0: the commits that all checkpoint tables describe are removed."""
    replica = state.replicas[broker]
    for past in replica.past:
        described = min(past.rows_at, past.entries_at)
        if setting.mutation.cleans_up_before_checkpoints:
            described = max(past.rows_at, past.entries_at)
        removed = min(described, len(past.tail))
        if removed <= 0:
            continue
        left = past._replace(
            tail=past.tail[removed:],
            rows_at=past.rows_at - removed,
            entries_at=past.entries_at - removed,
        )
        late = tuple(one._replace(at=one.at - removed) for one in replica.put)
        after = replica._replace(past=(left,), put=late)
        yield ("JournalIsCleanedUp", broker), put(state, broker, after)


def replayed(past: Past) -> tuple[Row, Entries] | None:
    """7.0: the state of a process that opens the root; `None` if a commit is missing."""
    if past.rows_at < 0 or past.entries_at < 0:
        return None
    row, entries = past.row, past.entries
    for at, commit in enumerate(past.tail):
        if at >= past.rows_at and commit.rows:
            row = commit.rows[0]
        if at >= past.entries_at and commit.histories:
            entries = commit.histories[0]
    return row, entries


# -- Ends of processes -----------------------------------------------------------------------------


def without_memory(replica: Replica) -> Replica:
    """Return a replica whose process has ended. A put in flight may still arrive."""
    return replica._replace(leading=NOT_LEADING, tick=IDLE)


def fenced_by(setting: Setting, replica: Replica, broker_epoch: int) -> Replica:
    """7.2: a new process commits its broker epoch to the journal before it reads any state."""
    replica = replica._replace(broker_epoch=broker_epoch)
    if not _outlives_commits(setting, replica):
        replica = replica._replace(put=())
    for past in replica.past:
        fence = past._replace(tail=(*past.tail, Commit((), ())))
        replica = replica._replace(past=(fence,))
    return replica
