"""What the controller does, and what happens to brokers."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.decisions import (
    elected,
    gets_leadership_back,
    isr_fence,
    recovered_epochs,
    recovered_high_watermark,
    united_epochs,
)
from tests.model.follower import checkpointed
from tests.model.leader import NOBODY, Step, eligible_after, published, put
from tests.model.state import (
    IDLE,
    NO_ROW,
    NOT_LEADING,
    WRITTEN,
    Replica,
    Setting,
    State,
    members,
)


def controller_fences(setting: Setting, state: State) -> Iterator[Step]:
    """7.2: a session expires: of a crashed broker, or of one that is only slow."""
    if state.spent.fences >= setting.fences:
        return
    spent = state.spent._replace(fences=state.spent.fences + 1)
    for broker in range(setting.replicas):
        if not state.fenced >> broker & 1:
            yield (
                ("ControllerFences", broker),
                state._replace(fenced=state.fenced | 1 << broker, spent=spent),
            )


def controller_acts(setting: Setting, state: State) -> Iterator[Step]:
    """7.2, 7.5: take fenced brokers out, and elect where the leader is not valid, or stopping.

    Any order of assignment is possible, so whoever could be the first to be found is elected:
    this keeps brokers interchangeable. A broker that has crashed counts until it is fenced.
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
        bool(state.stopping >> broker & 1),
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
    log = state.replicas[broker].log
    agreed = next(
        (at for at, record in enumerate(state.shown) if log[at : at + 1] != (record,)),
        len(state.shown),
    )
    after = after._replace(
        shown=state.shown[:agreed],
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
    """7.6: a preferred election; whoever is in the ISR could be the preferred replica."""
    if state.leader_epoch + 1 >= setting.epochs:
        return
    for broker in members(state.isr):
        in_isr, _, is_alive, is_stopping = _standing(state, broker)
        if gets_leadership_back(in_isr, is_alive, is_stopping, state.leader == broker):
            yield ("ControllerElectsByHand", broker), published(_leads(state, broker), NOBODY)


def broker_announces_stop(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """7.2: a planned stop hands leadership over first."""
    if state.spent.stops < setting.stops and not state.stopping >> broker & 1:
        spent = state.spent._replace(stops=state.spent.stops + 1)
        yield (
            ("BrokerAnnouncesStop", broker),
            state._replace(stopping=state.stopping | 1 << broker, spent=spent),
        )


def broker_stops(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """7.2: the end of a planned stop: memory is gone, and no session has to expire."""
    bit = 1 << broker
    if state.stopping & bit:
        stopped = state._replace(
            stopping=state.stopping & ~bit, alive=state.alive & ~bit, fenced=state.fenced | bit
        )
        yield ("BrokerStops", broker), put(stopped, broker, _without_memory(state, broker))


def _without_memory(state: State, broker: int) -> Replica:
    return state.replicas[broker]._replace(high_watermark=0, leading=NOT_LEADING, tick=IDLE)


def broker_crashes(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """Memory is gone; with a lost tail so are the last batches of its log (7.2)."""
    if state.spent.crashes >= setting.crashes:
        return
    replica = state.replicas[broker]
    stopped = _without_memory(state, broker)
    if setting.mutation.zombie_rewrites_its_row and replica.tick.step == WRITTEN:
        stopped = stopped._replace(zombie_row=checkpointed(setting, replica).row)
    spent = state.spent._replace(crashes=state.spent.crashes + 1)
    bit = 1 << broker
    crashed = state._replace(alive=state.alive & ~bit, stopping=state.stopping & ~bit, spent=spent)
    yield ("BrokerCrashes", broker), put(crashed, broker, stopped)
    if spent.lost_tails < setting.lost_tails:
        lossy = crashed._replace(
            spent=spent._replace(lost_tails=spent.lost_tails + 1), lost=state.lost | bit
        )
        for end in range(len(replica.log)):
            cut = stopped._replace(log=replica.log[:end])
            yield ("BrokerCrashesAndLosesTail", broker, end), put(lossy, broker, cut)


def broker_restarts(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """7.0, 7.2: a higher broker epoch, and its state from the tables. No session is waited for.

    A broker that lost its log registers as one that is not alive, and leaves all sets before it
    counts as alive. An older process that still runs is fenced by the broker epoch at each write,
    so stopping it at the restart loses no run.
    """
    replica, bit = state.replicas[broker], 1 << broker
    if state.registering & bit:
        yield _leaves_all_sets(setting, state, broker)
        return
    registered = replica._replace(broker_epoch=replica.broker_epoch + 1)
    if setting.mutation.lost_tail_goes_unnoticed:
        state = state._replace(lost=state.lost & ~bit)
    if state.lost & bit:
        found_out = state._replace(fenced=state.fenced | bit, registering=state.registering | bit)
        yield ("BrokerRegistersWithLostLog", broker), put(found_out, broker, registered)
    else:
        yield ("BrokerRestarts", broker), _started(setting, state, broker, registered)


def _leaves_all_sets(setting: Setting, state: State, broker: int) -> Step:
    """7.2, 7.5, 5.2: whatever a leader was about to do by an earlier report fails (5.3)."""
    bit = 1 << broker
    elr = state.elr if setting.mutation.lost_log_stays_eligible else state.elr & ~bit
    left = state._replace(
        isr=state.isr & ~bit,
        elr=elr,
        lost=state.lost & ~bit,
        registering=state.registering & ~bit,
    )
    was_member = (state.isr | state.elr) & bit
    if was_member or not setting.mutation.lost_log_leaves_partition_epoch:
        left = published(left, NOBODY)
    return (
        ("BrokerLeavesAllSets", broker),
        _started(setting, left, broker, state.replicas[broker]),
    )


def _started(setting: Setting, state: State, broker: int, replica: Replica) -> State:
    epochs = recovered_epochs(replica.kept_entries, replica.log)
    if setting.mutation.unites_histories_on_start:
        epochs = united_epochs(replica.kept_entries, replica.log)
    known = replica.row.high_watermark if replica.row.broker_epoch >= 0 else -1
    mark = recovered_high_watermark(known, len(replica.log))
    bit = 1 << broker
    return put(
        state._replace(alive=state.alive | bit, fenced=state.fenced & ~bit),
        broker,
        replica._replace(entries=epochs, high_watermark=mark, is_uncertain=0),
    )


def broker_heartbeats(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """7.2: a broker that was only slow is heard of again."""
    if state.fenced >> broker & 1:
        yield ("BrokerHeartbeats", broker), state._replace(fenced=state.fenced & ~(1 << broker))


def zombie_rewrites_row(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """Mutation only: an older process of this broker goes on where it was paused."""
    replica = state.replicas[broker]
    if replica.zombie_row is not NO_ROW and replica.zombie_row != NO_ROW:
        rewritten = replica._replace(row=replica.zombie_row, zombie_row=NO_ROW)
        yield ("ZombieRewritesRow", broker), put(state, broker, rewritten)


def client_sends(setting: Setting, state: State) -> Iterator[Step]:
    """3.1: a request goes to the leader's inbox and names the epoch in which it leads."""
    if setting.requests and state.issued < setting.records and state.leader >= 0:
        inbox = (*state.inbox, (state.leader_epoch, state.leader))
        yield (
            ("ClientSends", state.issued, state.leader),
            state._replace(issued=state.issued + 1, inbox=inbox),
        )
