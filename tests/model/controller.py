"""The steps of the controller, and the failures of brokers."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.decisions import (
    Log,
    elected,
    gets_leadership_back,
    isr_fence,
    recovered_high_watermark,
)
from tests.model.follower import left_sets, reported
from tests.model.journal import Step, fenced_by, journal_of, put, without_memory
from tests.model.leader import NOBODY, eligible_after, published
from tests.model.state import REPORTING, Put, Replica, Setting, State, members


def controller_fences(setting: Setting, state: State) -> Iterator[Step]:
    """7.2: the session of a crashed or a slow broker expires."""
    if state.spent.fences >= setting.fences:
        return
    spent = state.spent._replace(fences=state.spent.fences + 1)
    for broker in range(setting.replicas):
        if not state.fenced >> broker & 1:
            yield (
                ("ControllerFences", broker),
                state._replace(
                    fenced=state.fenced | 1 << broker,
                    parked=state.parked & ~(1 << broker),
                    spent=spent,
                ),
            )


def controller_acts(setting: Setting, state: State) -> Iterator[Step]:
    """7.2, 7.5: remove fenced brokers, and elect if the leader is invalid or stopping.

    Any order of assignment is possible, so every replica that could be the first one is elected.
    This keeps brokers interchangeable. A crashed broker counts as alive until it is fenced.
    """
    leaving = isr_fence(
        tuple(
            (bool(state.isr >> broker & 1), not state.fenced >> broker & 1)
            for broker in range(setting.replicas)
        )
    )
    cleaned = state._replace(isr=state.isr & ~leaving)
    for broker in range(setting.replicas):
        order = (broker, *(other for other in range(setting.replicas) if other != broker))
        place, is_changed, is_unclean, isr = elected(
            tuple(_standing(cleaned, other) for other in order),
            order.index(state.leader) if state.leader >= 0 else NOBODY,
            _is_valid(state),
            state.spent.uncleans < setting.uncleans,
        )
        if not is_changed:
            after = cleaned._replace(elr=eligible_after(setting, state, cleaned.isr))
            if after != state:
                yield ("ControllerTakesOut", *members(leaving)), published(after, NOBODY)
            return
        if state.leader_epoch + 1 >= setting.epochs:
            return
        if place == NOBODY:
            after = _leads(cleaned, NOBODY)
            after = after._replace(elr=eligible_after(setting, state, after.isr))
            yield ("ControllerFindsNoLeader",), published(after, NOBODY)
            return
        if place == 0:
            isr = sum(1 << order[other] for other in members(isr))
            yield _elects(setting, state, cleaned._replace(isr=isr), broker, is_unclean)


def _standing(state: State, broker: int) -> tuple[bool, bool, bool, bool]:
    return (
        bool(state.isr >> broker & 1),
        bool(state.elr >> broker & 1),
        not state.fenced >> broker & 1,
        # A parked broker counts as stopping where it does not lead (7.5).
        bool(
            (state.stopping | state.parked & ~(1 << state.leader if state.leader >= 0 else 0))
            >> broker
            & 1
        ),
    )


def _is_valid(state: State) -> bool:
    leader = state.leader
    return (
        leader >= 0
        and not state.fenced >> leader & 1
        and state.replicas[leader].broker_epoch == state.leader_broker_epoch
    )


def _elects(setting: Setting, before: State, state: State, broker: int, is_unclean: bool) -> Step:
    was_in_sync = before.isr >> broker & 1
    after = _leads(state, broker)
    after = after._replace(elr=eligible_after(setting, before, after.isr, is_unclean))
    if not is_unclean:
        action = "ControllerElects" if was_in_sync else "ControllerElectsEligible"
        return (action, broker), published(after, NOBODY)
    after = after._replace(
        shown=_agreed(state.shown, state.replicas[broker].log),
        answered=(),
        shown_since=after.leader_epoch,
        spent=state.spent._replace(uncleans=state.spent.uncleans + 1),
    )
    return ("ControllerElectsUncleanly", broker), published(after, NOBODY)


def _leads(state: State, broker: int) -> State:
    return state._replace(
        leader=broker,
        leader_epoch=state.leader_epoch + 1,
        leader_broker_epoch=state.replicas[broker].broker_epoch if broker >= 0 else -1,
    )


def controller_elects_by_hand(setting: Setting, state: State) -> Iterator[Step]:
    """7.6: a preferred election; any ISR member could be the preferred replica."""
    if state.leader_epoch + 1 >= setting.epochs:
        return
    for broker in members(state.isr):
        in_isr, _, is_alive, is_stopping = _standing(state, broker)
        if gets_leadership_back(in_isr, is_alive, is_stopping, state.leader == broker):
            yield ("ControllerElectsByHand", broker), published(_leads(state, broker), NOBODY)


def broker_announces_stop(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """7.2: a planned stop first hands over leadership."""
    if state.spent.stops < setting.stops and not state.stopping >> broker & 1:
        spent = state.spent._replace(stops=state.spent.stops + 1)
        yield (
            ("BrokerAnnouncesStop", broker),
            state._replace(stopping=state.stopping | 1 << broker, spent=spent),
        )


def broker_stops(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """7.2: the end of a planned stop: memory is lost, and no session has to expire."""
    bit = 1 << broker
    if state.stopping & bit:
        stopped = state._replace(
            stopping=state.stopping & ~bit, alive=state.alive & ~bit, fenced=state.fenced | bit
        )
        yield ("BrokerStops", broker), put(stopped, broker, without_memory(state.replicas[broker]))


def broker_parks(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """10.5: the end of a scheduled run between two ticks. Only memory is lost.

    Its row has a digest of the journal, so a put in flight that lands later makes the next start a
    start in doubt. Here a broker is not parked while a put of it is in flight.
    """
    replica, bit = state.replicas[broker], 1 << broker
    if state.spent.parks >= setting.parks or (state.fenced | state.stopping) & bit or replica.put:
        return
    spent = state.spent._replace(parks=state.spent.parks + 1)
    parked = state._replace(alive=state.alive & ~bit, parked=state.parked | bit, spent=spent)
    yield ("BrokerParks", broker), put(parked, broker, without_memory(replica)._replace(synced=()))


def broker_resumes(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """10.5: the next run under the same registration, with the journal as it was left."""
    bit = 1 << broker
    resumed = state._replace(
        alive=state.alive | bit,
        parked=state.parked & ~bit,
        lost=state.lost & ~bit if setting.mutation.resumes_an_older_log else state.lost,
    )
    yield ("BrokerResumes", broker), resumed


def parked_log_is_restored(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """7.2: the disk of a parked broker is restored to an older state: its start is in doubt.

    It lacks the last record at least.
    """
    replica, bit = state.replicas[broker], 1 << broker
    if state.spent.lost_tails >= setting.lost_tails or not replica.log:
        return
    spent = state.spent._replace(lost_tails=state.spent.lost_tails + 1)
    log = replica.log[:-1]
    row = replica.row._replace(high_watermark=min(replica.row.high_watermark, len(log)))
    entries = tuple(entry for entry in replica.entries if entry[1] < len(log))
    older = replica._replace(log=log, entries=entries, row=row)
    is_noticed = not setting.mutation.resumes_an_older_log
    restored = state._replace(
        spent=spent,
        lost=state.lost | bit,
        unclean=state.unclean | bit * is_noticed,
        shortened=state.shortened | bit * is_noticed,
        parked=state.parked & ~bit if is_noticed else state.parked,
    )
    yield ("ParkedLogIsRestored", broker), put(restored, broker, older)


def broker_crashes(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """Memory is lost; a power failure also loses the commits of the journal that were not
    synced.
    """
    if state.spent.crashes >= setting.crashes:
        return
    replica = state.replicas[broker]
    stopped = without_memory(replica)
    if setting.mutation.zombie_rewrites_its_row and replica.tick.step == REPORTING:
        paused = Put(journal_of(reported(setting, replica)), (), 0)
        stopped = stopped._replace(put=(paused,))
    spent = state.spent._replace(crashes=state.spent.crashes + 1)
    bit = 1 << broker
    crashed = state._replace(alive=state.alive & ~bit, stopping=state.stopping & ~bit, spent=spent)
    yield ("BrokerCrashes", broker), put(crashed, broker, stopped)
    if spent.lost_tails < setting.lost_tails:
        without_power = crashed._replace(
            unclean=state.unclean | bit, spent=spent._replace(lost_tails=spent.lost_tails + 1)
        )
        yield ("PowerFails", broker), put(without_power, broker, stopped._replace(put=()))
    for log, entries, row in replica.synced:
        left = stopped._replace(log=log, entries=entries, row=row, put=(), synced=())
        without_power = crashed._replace(unclean=state.unclean | bit)
        if journal_of(left) != journal_of(replica):
            without_power = without_power._replace(lost=state.lost | bit)
        yield ("PowerFails", broker), put(without_power, broker, left)


def syncing_stops(setting: Setting, before: State, step: Step) -> Iterator[Step]:
    """From this commit on nothing is synced, so a power failure restores the journal before it.

    The choice is made at the commit, so that a state need not contain every version that may
    remain.
    """
    label, after = step
    spent = after.spent
    if spent.lost_tails >= setting.lost_tails or spent.crashes >= setting.crashes:
        return
    state = after._replace(spent=spent._replace(lost_tails=spent.lost_tails + 1))
    for broker, (old, new) in enumerate(zip(before.replicas, after.replicas, strict=True)):
        if not old.synced and journal_of(old) != journal_of(new):
            unsynced = new._replace(synced=(journal_of(old),))
            yield (*label, "not synced"), put(state, broker, unsynced)


def broker_restarts(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """7.0, 7.2, 10.4: a higher broker epoch, committed to the journal before it reads its state.

    It waits for no session. A broker in doubt registers as not alive, and leaves the ISR and ELR
    before it counts as alive: a power failure may have lost the tail of its journal, and others may
    know records that it has lost.
    """
    replica, bit = state.replicas[broker], 1 << broker
    if state.registering & bit:
        yield _leaves_sets(setting, state, broker)
        return
    registered = fenced_by(setting, replica, replica.broker_epoch + 1)
    is_shortened = _is_shortened(setting, state, broker)
    if setting.mutation.lost_tail_goes_unnoticed:
        state = state._replace(lost=state.lost & ~bit, unclean=state.unclean & ~bit)
        is_shortened = False
    if is_shortened or state.unclean & bit:
        in_doubt = state._replace(
            fenced=state.fenced | bit,
            registering=state.registering | bit,
            shortened=state.shortened | bit * is_shortened,
        )
        yield ("BrokerRegistersInDoubt", broker), put(in_doubt, broker, registered)
    else:
        yield ("BrokerRestarts", broker), _started(state, broker, registered)


def _is_shortened(setting: Setting, state: State, broker: int) -> bool:
    """10.4: whether a member has lost records that other replicas know.

    Only rows of the newest leader epoch that it knows, or of later ones, count.
    """
    replica = state.replicas[broker]
    if not (state.isr | state.elr) >> broker & 1:
        return False
    end, entries = len(replica.log), replica.entries
    last_epoch = max(replica.log[-1][0] if end else -1, entries[-1][0] if entries else -1)
    for at, other in enumerate(state.replicas):
        row = other.row
        if at != broker and row.leader_epoch >= max(last_epoch, 0):
            is_own_epoch = state.leader == broker and row.leader_epoch == state.leader_epoch
            if row.high_watermark > end or (is_own_epoch and len(other.log) > end):
                return True
    return False


def _leaves_sets(setting: Setting, state: State, broker: int) -> Step:
    """7.2, 10.4: a broker that has lost records leaves the ISR and ELR, also as the last member.
    One that may have lost some leaves them if another member remains.

    If it stays and has lost the tail of its journal, its log is authoritative from then on, as
    after an unclean election: no eligible replica has more.
    """
    bit, mutation = 1 << broker, setting.mutation
    others = (state.isr | state.elr) & ~bit
    stays = bool(state.isr & bit and not others and not state.shortened & bit)
    left = state._replace(
        lost=state.lost & ~bit,
        unclean=state.unclean & ~bit,
        registering=state.registering & ~bit,
        shortened=state.shortened & ~bit,
    )
    replica = state.replicas[broker]
    if stays and state.lost & bit:
        left = left._replace(
            shown=_agreed(state.shown, replica.log[: replica.row.high_watermark]),
            answered=(),
            shown_since=state.leader_epoch + 1,
        )
    elif not stays:
        was_member = (state.isr | state.elr) & bit
        if was_member or not mutation.lost_log_leaves_partition_epoch:
            left = left_sets(left, broker)
        if mutation.lost_log_stays_eligible:
            left = left._replace(elr=state.elr)
    return ("BrokerLeavesSets", broker), _started(left, broker, replica)


def _agreed(shown: Log, log: Log) -> Log:
    """The visible records, as far as a log has them."""
    end = next((at for at, one in enumerate(shown) if log[at : at + 1] != (one,)), len(shown))
    return shown[:end]


def _started(state: State, broker: int, replica: Replica) -> State:
    """7.0: the process's state is that of its journal: see `known_entries`."""
    known = replica.row.high_watermark if replica.row.broker_epoch >= 0 else -1
    assert recovered_high_watermark(known, len(replica.log)) == replica.row.high_watermark
    bit = 1 << broker
    return put(state._replace(alive=state.alive | bit, fenced=state.fenced & ~bit), broker, replica)


def broker_heartbeats(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """7.2: a broker that was only slow sends heartbeats again."""
    if state.fenced >> broker & 1:
        yield ("BrokerHeartbeats", broker), state._replace(fenced=state.fenced & ~(1 << broker))


def client_sends(setting: Setting, state: State) -> Iterator[Step]:
    """3.1: a request goes to the leader's inbox and names the leader's epoch."""
    if setting.requests and state.issued < setting.records and state.leader >= 0:
        inbox = (*state.inbox, (state.leader_epoch, state.leader))
        yield (
            ("ClientSends", state.issued, state.leader),
            state._replace(issued=state.issued + 1, inbox=inbox),
        )
