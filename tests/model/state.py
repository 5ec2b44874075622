"""The state of the modelled cluster: a partition, its replicas, the controller's decisions.

All values are tuples of small integers, sets of brokers are bit masks, and -1 stands for "none", so
that states are cheap to compare and to hash. A broker's id is its index in `replicas`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise, permutations, product
from typing import NamedTuple

from tests.model.decisions import Entries, Log


@dataclass(frozen=True)
class Mutation:
    """Mistakes that the explorer must find; the first four are refuted variants of Kafka."""

    # Before KIP-101: a follower begins a leader epoch by truncating to its own high watermark.
    truncates_to_high_watermark: bool = False
    # KIP-101 only: one request, and the own high watermark if the leader does not know the answer.
    falls_back_to_high_watermark: bool = False
    # KIP-279 only: the search is right, but fetches name no epoch, so neither side can fence them.
    fetches_by_offset_alone: bool = False
    # The first version of KIP-320: fetches name the last fetched epoch, but not the leader's.
    fetches_without_leader_epoch: bool = False
    # Against 6.4: the leader's log is read in its current state, between check and commit.
    reads_the_log_as_it_is: bool = False
    # Against 5.2: the row counts for joining the ISR, at whatever time it was written.
    joins_without_a_report: bool = False
    # Against 1.3 and 6.4.
    believes_other_leader_epochs: bool = False
    # Against 1.3 (KIP-903).
    believes_other_broker_epochs: bool = False
    # Against 6.1: (epoch, log end offset) is written once the epoch has records.
    enters_epoch_after_append: bool = False
    # Against 3.1.
    appends_what_named_another_epoch: bool = False
    # Against 3.7.
    commits_a_path_twice: bool = False
    # Against the fencing of a broker's root by its broker epoch.
    zombie_rewrites_its_row: bool = False
    # Against 3.2: a commit answers the requests that it appends, for any high watermark.
    answers_without_high_watermark: bool = False
    # Against 3.2: the high watermark that allows the answers of a commit is in a later one.
    answers_before_high_watermark: bool = False
    # Against 7.0: a checkpoint names the version after the one that it describes.
    checkpoint_ahead_of_the_journal: bool = False
    # Against 7.0: commits are removed once one of the checkpoint tables describes them.
    cleans_up_before_checkpoints: bool = False
    # Against 10.7: a put into a version that clean-up has freed is not withdrawn.
    fork_after_clean_up: bool = False
    # 5.2 and 7.2 literally: a broker that lost its log leaves only the sets in which it is, and
    # otherwise the partition epoch does not show that its earlier reports are void.
    lost_log_leaves_partition_epoch: bool = False
    # The registrations, and with them the valid reports, are those before the partition state.
    reads_registrations_first: bool = False
    # Against 7.2: the registered version is older than commits that were acknowledged since.
    lost_tail_goes_unnoticed: bool = False
    # Against 7.5: a broker that lost its log stays eligible.
    lost_log_stays_eligible: bool = False
    # Against 7.5: reaching min ISR clears no eligible replica.
    eligible_replicas_stay: bool = False
    # Against 5.2: a joining follower may be further behind than one that leaves.
    joins_beyond_lag_max_messages: bool = False
    # 2.5 literally: a follower's high watermark is its leader's, even if a new leader does not know
    # yet how high the old one's was.
    follower_high_watermark_falls: bool = False
    # Against 7.0: checkpoint and log are united directly, without the commits in between.
    unites_histories_on_start: bool = False
    # Against 10.5 and 7.2: a broker whose log has lost its tail while it was parked resumes.
    resumes_an_older_log: bool = False
    # Against 10.6: of a commit whose answer was lost only the batches are found.
    lost_answers_are_not_derived: bool = False
    # Against 10.6: a leader changes the ISR while a put of its own may still land.
    changes_isr_beside_a_put: bool = False


@dataclass(frozen=True)
class Setting:
    """The bounds of an exploration, and the mistake that is built in."""

    replicas: int = 3
    records: int = 2
    epochs: int = 2
    min_isr: int = 1
    pauses: int = 1  # follower ticks in progress at the same time; further ones run without pauses
    crashes: int = 0
    fences: int = 0
    lost_tails: int = 0
    uncleans: int = 0
    stops: int = 0  # planned ones
    parks: int = 0  # ends of scheduled runs
    isr_changes: bool = True  # by the leader; the controller's always happen
    retries: bool = False  # a record may be sent again when its leader's epoch has passed
    requests: bool = False  # requests are in an inbox, where they may be found late
    partial_fetches: bool = False
    unknown_outcomes: bool = False  # of an ISR change, which landed or did not
    lost_answers: int = 0  # of commits of a journal: each landed, or lands later, or never
    checkpoints: int = 0  # writes of checkpoint tables; the first covers both tables of a root
    slow_high_watermark: bool = False  # replicas about to join hold it back as well
    lag_max_messages: int = -1  # replica.lag.max.messages; -1: not set
    reduces: bool = True  # leave out states between two steps that no process can distinguish
    mutation: Mutation = field(default_factory=Mutation)

    @cached_property
    def writes_are_one_step(self) -> bool:
        """Whether no process can observe when a follower's tick truncated its log."""
        is_never_cut_off = self.crashes == self.stops == self.parks == self.lost_answers == 0
        return self.reduces and is_never_cut_off and self.mutation == Mutation()


class Row(NamedTuple):
    """A replica's row in the journal. Its log end offset is that of the log beside it."""

    leader_epoch: int
    broker_epoch: int
    high_watermark: int
    leads: int


class Journal(NamedTuple):
    """The state of one replica at a version of its root's journal: everything that a commit can
    change.
    """

    log: Log
    entries: Entries
    row: Row


class Commit(NamedTuple):
    """The members of a commit except its batches, each missing if it did not change."""

    rows: tuple[Row, ...]
    histories: tuple[Entries, ...]


class Past(NamedTuple):
    """The checkpoint tables of a root, and the commits of its journal that were not cleaned up.

    `rows_at` and `entries_at` are the versions that the tables name, counted from the first commit
    of `tail`. Invariant: 0 <= rows_at, entries_at <= len(tail).
    """

    tail: tuple[Commit, ...]
    row: Row
    rows_at: int
    entries: Entries
    entries_at: int


class Put(NamedTuple):
    """A commit in flight with an unknown outcome: the journal and the answers if it lands.

    `at` is its version, counted as in `Past`.
    """

    journal: Journal
    answered: Log
    at: int


class Leading(NamedTuple):
    """A leader's memory; `epoch` is -1 for a broker that does not lead."""

    epoch: int
    isr: int
    proposed_isr: int
    is_current: int  # partition_state has not moved since it was read
    ends: tuple[int, ...]  # the remote log end offsets


class Tick(NamedTuple):
    """A follower's tick in progress, with the leader's journal as it read it; `step` 0 means no
    tick.
    """

    step: int
    leader: int  # mutations only: the leader whose current log is read
    epoch: int
    log: Log
    entries: Entries
    high_watermark: int


class Replica(NamedTuple):
    """A broker's replica: its journal, its process's memory, and its root's files.

    The memory of the log, the history and the row equals the journal: a tick stages its changes,
    and they are visible once its commit has landed.
    """

    log: Log
    entries: Entries
    row: Row
    broker_epoch: int
    leading: Leading
    tick: Tick
    put: tuple[Put, ...]  # none, or one
    synced: tuple[Journal, ...]  # the journal that a power failure leaves, if it is an older one
    past: tuple[Past, ...]  # only for a root whose checkpoints are explored


class Spent(NamedTuple):
    """The used part of each bound."""

    crashes: int
    fences: int
    lost_tails: int
    uncleans: int
    stops: int
    parks: int
    lost_answers: int
    checkpoints: int


class State(NamedTuple):
    """The whole cluster. `shown` has all records that any consumer can have seen.

    `answered` are acknowledged records if they are not part of it.
    """

    leader: int
    leader_epoch: int
    leader_broker_epoch: int
    isr: int
    elr: int
    alive: int
    fenced: int
    stopping: int
    parked: int  # brokers between two runs, which keep their places and registrations
    lost: int  # brokers whose journal has lost its tail, until they have left the sets for it
    unclean: int  # brokers whose machine has lost its power, until their start was handled (10.4)
    registering: int  # brokers in doubt (7.2, 10.4) that have registered, and not left yet
    shortened: int  # the ones of them whose loss is known from other replicas
    issued: int
    spent: Spent
    shown: Log
    answered: Log
    shown_since: int  # the first leader epoch after the last loss that is allowed
    inbox: tuple[tuple[int, int], ...]  # per request (named epoch, the inbox's broker or -1)
    replicas: tuple[Replica, ...]


NOT_LEADING = Leading(-1, 0, 0, 0, ())
IDLE = Tick(0, -1, -1, (), (), 0)
NO_ROW = Row(-1, -1, 0, 0)
CHECKED, REPORTING, WITHDRAWN, LEFT = 1, 2, 3, 4
"""Steps of a follower's tick: it may truncate and copy; it may only report; it withdrew its report
before a truncation below its own high watermark; it left the ISR after that.
"""


def initial_state(setting: Setting) -> State:
    """A new topic: all replicas in sync and empty, broker 0 elected in epoch 0."""
    everyone = (1 << setting.replicas) - 1
    empty = Replica((), (), NO_ROW, 0, NOT_LEADING, IDLE, (), (), ())
    return State(
        leader=0,
        leader_epoch=0,
        leader_broker_epoch=0,
        isr=everyone,
        elr=0,
        alive=everyone,
        fenced=0,
        stopping=0,
        parked=0,
        lost=0,
        unclean=0,
        registering=0,
        shortened=0,
        issued=0,
        spent=Spent(0, 0, 0, 0, 0, 0, 0, 0),
        shown=(),
        answered=(),
        shown_since=0,
        inbox=(),
        replicas=(empty,) * setting.replicas,
    )


def members(mask: int) -> tuple[int, ...]:
    """The brokers of a mask, ascending."""
    return _MEMBERS[mask]


_MEMBERS = tuple(tuple(b for b in range(5) if mask >> b & 1) for mask in range(32))
SIZE = tuple(len(brokers) for brokers in _MEMBERS)


# -- Symmetry --------------------------------------------------------------------------------------


def canonical(state: State) -> State:
    """Return the representative of all states that differ from this one only in the brokers' names.

    Brokers are ordered by name-independent properties; in case of a tie, the least of the remaining
    states is taken.
    """
    replicas = state.replicas
    keys = [_nameless(state, broker) for broker in range(len(replicas))]
    is_ordered = True
    for left, right in pairwise(keys):
        if left >= right:
            is_ordered = False
            break
    if is_ordered:
        return state
    order = sorted(range(len(replicas)), key=keys.__getitem__)
    ties: list[list[int]] = [[order[0]]]
    for broker in order[1:]:
        if keys[broker] == keys[ties[-1][0]]:
            ties[-1].append(broker)
        else:
            ties.append([broker])
    if len(ties) == len(order):
        return renamed(state, tuple(order))
    return min(
        renamed(state, tuple(broker for tie in choice for broker in tie))
        for choice in product(*(tuple(permutations(tie)) for tie in ties))
    )


def _nameless(state: State, broker: int) -> tuple[object, ...]:
    replica = state.replicas[broker]
    leading, tick = replica.leading, replica.tick
    standing = (
        (state.leader == broker)
        | (state.isr >> broker & 1) << 1
        | (state.elr >> broker & 1) << 2
        | (state.alive >> broker & 1) << 3
        | (state.fenced >> broker & 1) << 4
        | (state.lost >> broker & 1) << 5
        | (state.registering >> broker & 1) << 6
        | (state.stopping >> broker & 1) << 7
        | (state.unclean >> broker & 1) << 8
        | (state.shortened >> broker & 1) << 9
        | (state.parked >> broker & 1) << 10
    )
    return (
        standing,
        replica.row,
        replica.log,
        leading.epoch,
        leading.is_current,
        tick.step,
        tick.epoch,
        tick.log,
        tick.high_watermark,
        replica.broker_epoch,
        replica.entries,
        tick.entries,
        replica.put,
        replica.synced,
        replica.past,
    )


def renamed(state: State, order: tuple[int, ...]) -> State:
    """The same state, with the broker `order[n]` called n."""
    names, masks = _renaming(order)
    replicas = []
    for broker in order:
        replica = state.replicas[broker]
        leading, tick = replica.leading, replica.tick
        if leading is not NOT_LEADING:
            ends = leading.ends
            replica = replica._replace(
                leading=Leading(
                    leading.epoch,
                    masks[leading.isr],
                    masks[leading.proposed_isr],
                    leading.is_current,
                    tuple([ends[old] for old in order]),
                )
            )
        if tick.leader >= 0:
            replica = replica._replace(
                tick=Tick(
                    tick.step,
                    names[tick.leader],
                    tick.epoch,
                    tick.log,
                    tick.entries,
                    tick.high_watermark,
                )
            )
        replicas.append(replica)
    return State(
        names[state.leader],
        state.leader_epoch,
        state.leader_broker_epoch,
        masks[state.isr],
        masks[state.elr],
        masks[state.alive],
        masks[state.fenced],
        masks[state.stopping],
        masks[state.parked],
        masks[state.lost],
        masks[state.unclean],
        masks[state.registering],
        masks[state.shortened],
        state.issued,
        state.spent,
        state.shown,
        state.answered,
        state.shown_since,
        tuple([(epoch, names[broker]) for epoch, broker in state.inbox]),
        tuple(replicas),
    )


@cache
def _renaming(order: tuple[int, ...]) -> tuple[dict[int, int], tuple[int, ...]]:
    names = {old: new for new, old in enumerate(order)} | {-1: -1}
    masks = tuple(sum(1 << names[old] for old in members(mask)) for mask in range(1 << len(order)))
    return names, masks
