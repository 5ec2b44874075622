"""What the controller does, and what happens to brokers."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.decisions import (
    elected,
    isr_fence,
    recovered_epochs,
    recovered_high_watermark,
    united_epochs,
)
from tests.model.follower import checkpointed
from tests.model.leader import Step, eligible_after, published, put
from tests.model.state import (
    IDLE,
    NO_ROW,
    NOT_LEADING,
    WRITTEN,
    Setting,
    State,
    members,
)

NOBODY = -1


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
    """7.2, 7.5: take fenced and lost replicas out, and elect where the leader is not valid.

    Any order of assignment is possible, so whoever could be the first to be found is elected:
    this keeps brokers interchangeable.
    """
    found_lost = state.lost & state.alive  # it shows when the broker registers
    unfit = state.fenced | found_lost
    leaving = isr_fence(
        tuple(
            (bool(state.isr >> broker & 1), not unfit >> broker & 1)
            for broker in range(setting.replicas)
        )
    )
    isr = state.isr & ~leaving
    elr = eligible_after(setting, state, isr) if leaving else state.elr & ~found_lost
    lost = state.lost & (isr | elr | ~state.alive)
    cleaned = state._replace(isr=isr, elr=elr, lost=lost)
    if leaving:
        cleaned = published(cleaned, NOBODY)
    if _is_valid(state):
        if cleaned != state:
            yield ("ControllerTakesOut", *members(leaving)), cleaned
        return
    if state.leader_epoch + 1 >= setting.epochs:
        return
    found = False
    for broker in range(setting.replicas):
        after = _elects(setting, cleaned, broker, found_lost)
        if after is not None:
            found = True
            yield after
    if not found and state.leader >= 0:
        offline = cleaned._replace(
            leader=NOBODY, leader_broker_epoch=-1, leader_epoch=state.leader_epoch + 1
        )
        yield ("ControllerFindsNoLeader",), published(offline, NOBODY)


def _is_valid(state: State) -> bool:
    leader = state.leader
    return (
        leader >= 0
        and not (state.fenced | state.lost & state.alive) >> leader & 1
        and state.replicas[leader].broker_epoch == state.leader_broker_epoch
    )


def _elects(setting: Setting, state: State, broker: int, found_lost: int) -> Step | None:
    """Elect this broker if it would be found under an order of assignment that it begins."""
    order = (broker, *(other for other in range(setting.replicas) if other != broker))
    standing = tuple(
        (
            bool((state.isr & ~found_lost) >> other & 1),
            bool((state.elr & ~found_lost) >> other & 1),
            not state.fenced >> other & 1,
        )
        for other in order
    )
    allows_unclean = state.spent.uncleans < setting.uncleans
    if elected(standing, allows_unclean) != 0:
        return None
    in_isr, in_elr, _ = standing[0]
    after = _leads(state, broker)
    if in_isr:
        return ("ControllerElects", broker), published(after, NOBODY)
    after = after._replace(isr=1 << broker, elr=eligible_after(setting, state, 1 << broker))
    if in_elr:
        return ("ControllerElectsEligible", broker), published(after, NOBODY)
    log = state.replicas[broker].log
    agreed = next(
        (at for at, record in enumerate(state.shown) if log[at : at + 1] != (record,)),
        len(state.shown),
    )
    after = after._replace(
        elr=0,
        lost=after.lost & ~(1 << broker),
        shown=state.shown[:agreed],
        shown_since=after.leader_epoch,
        spent=state.spent._replace(uncleans=state.spent.uncleans + 1),
    )
    return ("ControllerElectsUncleanly", broker), published(after, NOBODY)


def _leads(state: State, broker: int) -> State:
    return state._replace(
        leader=broker,
        leader_epoch=state.leader_epoch + 1,
        leader_broker_epoch=state.replicas[broker].broker_epoch,
    )


def controller_elects_by_hand(setting: Setting, state: State) -> Iterator[Step]:
    """7.6, 7.2: a preferred election or a planned stop moves leadership within the ISR."""
    if state.leader_epoch + 1 >= setting.epochs or not _is_valid(state):
        return
    for broker in members(state.isr & state.alive & ~state.fenced & ~state.lost):
        if broker != state.leader:
            yield ("ControllerElectsByHand", broker), published(_leads(state, broker), NOBODY)


def broker_crashes(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """Memory is gone; with a lost tail so are the last batches of its log (7.2)."""
    if state.spent.crashes >= setting.crashes:
        return
    replica = state.replicas[broker]
    spent = state.spent._replace(crashes=state.spent.crashes + 1)
    alive = state.alive & ~(1 << broker)
    zombie_row = NO_ROW
    if setting.mutation.zombie_rewrites_its_row and replica.tick.step == WRITTEN:
        zombie_row = checkpointed(setting, replica).row
    stopped = replica._replace(
        high_watermark=0, leading=NOT_LEADING, tick=IDLE, zombie_row=zombie_row
    )
    crashed = state._replace(alive=alive, spent=spent)
    yield ("BrokerCrashes", broker), put(crashed, broker, stopped)
    if spent.lost_tails < setting.lost_tails:
        lossy = crashed._replace(
            spent=spent._replace(lost_tails=spent.lost_tails + 1),
            lost=state.lost | 1 << broker,
        )
        for end in range(len(replica.log)):
            cut = stopped._replace(log=replica.log[:end])
            yield ("BrokerCrashesAndLosesTail", broker, end), put(lossy, broker, cut)


def broker_restarts(setting: Setting, state: State, broker: int) -> Iterator[Step]:
    """7.0, 7.2: a higher broker epoch, and its state from the tables. No session is waited for.

    An older process that still runs is fenced by the broker epoch at each write, so stopping it
    at the restart loses no run.
    """
    replica = state.replicas[broker]
    epochs = recovered_epochs(replica.kept_entries, replica.log)
    if setting.mutation.unites_histories_on_start:
        epochs = united_epochs(replica.kept_entries, replica.log)
    known = replica.row.high_watermark if replica.row.leader_epoch >= 0 else -1
    restarted = replica._replace(
        entries=epochs,
        high_watermark=recovered_high_watermark(known, len(replica.log)),
        broker_epoch=replica.broker_epoch + 1,
    )
    bit = 1 << broker
    state = put(state, broker, restarted)
    for other, leader in enumerate(state.replicas):
        if leader.leading.epoch >= 0 and leader.leading.ends[broker] >= 0:
            leading = leader.leading._replace(outdated=leader.leading.outdated | bit)
            state = put(state, other, leader._replace(leading=leading))
    in_question = state.isr | state.elr
    yield (
        ("BrokerRestarts", broker),
        state._replace(
            alive=state.alive | bit,
            fenced=state.fenced & ~bit,
            lost=state.lost if in_question & bit else state.lost & ~bit,
        ),
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
