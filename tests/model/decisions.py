"""The protocol's decisions, each a small pure function written from docs/protocol.md alone.

Every function stores its distinct inputs with its decisions (`Decision.cases`), for a later
comparison with the shipped SQL rules. Offsets are exclusive ends; -1 stands for "none".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeAlias, TypeVar

Record: TypeAlias = "tuple[int, int]"
"""(leader epoch, record id); a record's offset is its index in the log."""
Log: TypeAlias = "tuple[Record, ...]"
Entries: TypeAlias = "tuple[tuple[int, int], ...]"
"""A leader-epoch history: (epoch, start offset)."""

P = ParamSpec("P")
T = TypeVar("T")

NOTHING = -1
DIVERGED = -1
UNAVAILABLE = -1


class Decision(Generic[P, T]):
    """A pure function that stores each distinct input and its decision."""

    def __init__(self, function: Callable[P, T]) -> None:
        self.name = function.__name__
        self.cases: dict[tuple[object, ...], T] = {}
        self._function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return self.cases[args]
        except KeyError:
            decided = self.cases[args] = self._function(*args, **kwargs)
            return decided


# -- Leader epochs ---------------------------------------------------------------------------------


@Decision
def epoch_entries(entries: Entries, epoch: int, start_offset: int) -> Entries:
    """6.1: a history after one new entry."""
    if entries and entries[-1][0] == epoch and start_offset >= entries[-1][1]:
        return entries
    kept = (entry for entry in entries if entry[0] < epoch and entry[1] < start_offset)
    return (*kept, (epoch, start_offset))


@Decision
def end_offset_for(asked: int, entries: Entries, log_end_offset: int) -> tuple[int, int]:
    """6.2: the five cases."""
    if not entries or asked > entries[-1][0]:
        return -1, -1
    if asked == entries[-1][0]:
        return asked, log_end_offset
    if asked < entries[0][0]:
        return asked, entries[0][1]
    known = [place for place, (epoch, _) in enumerate(entries) if epoch <= asked][-1]
    return entries[known][0], entries[known + 1][1]


@Decision
def truncation_point(
    leader_epoch: int, own: Entries, own_end: int, leader: Entries, leader_end: int
) -> tuple[int, bool]:
    """6.3, as KIP-279 iterates: (the truncation point or -1 for no truncation, whether to wait)."""
    if not any(epoch == leader_epoch for epoch, _ in leader):
        return NOTHING, True
    if not own:
        return NOTHING, False
    if own[-1][0] == leader_epoch and own_end > max(own[-1][1], leader_end):
        return NOTHING, True  # 10.4: the leader has lost records of its own epoch
    asked: int | None = own[-1][0]
    while asked is not None:
        answered, leaders_end = end_offset_for(asked, leader, leader_end)
        if answered < 0:
            asked = None
        elif answered == asked and any(epoch == asked for epoch, _ in leader):
            agreed = min(leaders_end, end_offset_for(asked, own, own_end)[1])
            is_cut = agreed < own_end or own[-1][0] > asked
            return (agreed if is_cut else NOTHING), False
        else:
            smaller = [e for e, _ in own if e <= answered and e < asked]
            asked = smaller[-1] if smaller else None
    return own[0][1], False


def truncated(log: Log, entries: Entries, offset: int) -> tuple[Log, Entries]:
    """6.5: the records and the epoch entries beyond the point are removed."""
    return log[:offset], tuple(entry for entry in entries if entry[1] < offset)


@Decision
def recovered_epochs(kept: Entries, log: Log) -> Entries:
    """7.0: the checkpointed history and the epochs of the log, with the log taking precedence.

    Logs begin at offset 0 here, so each entry before the log's end has a record, and the checkpoint
    cannot add further entries.
    """
    first = 0 if log else -1
    before = tuple(entry for entry in kept if entry[1] < first)
    starts = (at for at in range(len(log)) if at == 0 or log[at - 1][0] != log[at][0])
    return before + tuple((log[at][0], at) for at in starts)


def united_epochs(kept: Entries, log: Log) -> Entries:
    """7.0 literally: both, without the entries that start at or after the log's end."""
    told = recovered_epochs((), log)
    return tuple(sorted({entry for entry in kept if entry[1] < len(log)} | set(told)))


# -- Fetching --------------------------------------------------------------------------------------


@Decision
def fetched_end(position: int, last_epoch: int, leader_epoch: int, leader_log: Log) -> int:
    """6.3, 6.4: the end of the offsets that a follower may copy, or -1 if the logs have
    diverged.
    """
    if position > len(leader_log):
        return DIVERGED
    if position > 0 and leader_log[position - 1][0] != last_epoch:
        return DIVERGED
    end = position
    while end < len(leader_log) and leader_log[end][0] <= leader_epoch:
        end += 1
    return end


@Decision
def follower_high_watermark(current: int, leader_high_watermark: int, log_end_offset: int) -> int:
    """2.5, 9.3 and 2.7: it only increases; a truncation has lowered it before."""
    return max(current, min(leader_high_watermark, log_end_offset))


@Decision
def recovered_high_watermark(checkpointed: int, log_end_offset: int) -> int:
    """1.4, 7.0: -1 stands for a replica that was never checkpointed."""
    return min(max(checkpointed, 0), log_end_offset)


# -- A leader's knowledge
# ----------------------------------------------------------------------------


@Decision
def believed_log_end_offset(
    leader_epoch: int, broker_epoch: int, row_leader_epoch: int, row_broker_epoch: int, row_end: int
) -> int:
    """1.3, 6.4: a follower's position counts under the leader's epoch and its own broker epoch."""
    if (row_leader_epoch, row_broker_epoch) == (leader_epoch, broker_epoch):
        return row_end
    return -1


@Decision
def high_watermark(
    current: int,
    min_isr: int,
    lag_max_messages: int,
    replicas: tuple[tuple[bool, bool, bool, int], ...],
) -> int:
    """2.1, 2.3, 2.4 over (in ISR, in proposed ISR, caught up lately, log end offset) per replica.

    The first replica is the leader; the end is -1 if it has not reported in this epoch, and the
    limit is -1 if it is not set.
    """
    if sum(in_isr for in_isr, _, _, _ in replicas) < min(min_isr, len(replicas)):
        return current
    leader_end = replicas[0][3]
    counted = [
        end
        for in_isr, proposed, joins, end in replicas
        if in_isr or proposed or (joins and not _is_beyond(lag_max_messages, leader_end, end))
    ]
    return max(current, min(counted))


def _is_beyond(lag_max_messages: int, leader_end: int, end: int) -> bool:
    """5.1: further behind than replica.lag.max.messages; an unknown end is not."""
    return lag_max_messages >= 0 and 0 <= end < leader_end - lag_max_messages


@Decision
def isr_shrink(
    log_end_offset: int, lag_max_messages: int, followers: tuple[tuple[bool, int, bool], ...]
) -> int:
    """5.1 over (in ISR, log end offset, lags by time) per follower: the mask of those that
    leave.
    """
    return sum(
        1 << place
        for place, (in_isr, end, lags) in enumerate(followers)
        if in_isr
        and end != log_end_offset
        and (lags or _is_beyond(lag_max_messages, log_end_offset, end))
    )


@Decision
def isr_expand(
    current_high_watermark: int,
    epoch_start: int,
    log_end_offset: int,
    lag_max_messages: int,
    followers: tuple[tuple[bool, bool, int], ...],
) -> int:
    """5.2 over (in ISR, alive, log end offset that counts) per follower: the mask of those that
    join.
    """
    return sum(
        1 << place
        for place, (in_isr, is_alive, end) in enumerate(followers)
        if not in_isr
        and is_alive
        and end >= 0
        and end >= max(current_high_watermark, epoch_start)
        and not _is_beyond(lag_max_messages, log_end_offset, end)
    )


# -- The controller --------------------------------------------------------------------------------


@Decision
def isr_fence(replicas: tuple[tuple[bool, bool], ...]) -> int:
    """7.2 over (in ISR, alive): the mask of the removed brokers, empty if none would remain."""
    if not any(in_isr and is_alive for in_isr, is_alive in replicas):
        return 0
    return sum(
        1 << place for place, (in_isr, is_alive) in enumerate(replicas) if in_isr and not is_alive
    )


@Decision
def elected(
    replicas: tuple[tuple[bool, bool, bool, bool], ...],
    leader: int,
    leader_is_valid: bool,
    allows_unclean: bool,
) -> tuple[int, bool, bool, int]:
    """7.2, 7.5 over (in ISR, eligible, alive, stopping) in the order of assignment.

    Returns (the leader's index or -1, whether there was an election, whether it was an unclean one,
    the mask of the ISR afterwards). A valid leader is replaced only if it is stopping.
    """
    isr = sum(1 << place for place, standing in enumerate(replicas) if standing[0])
    in_sync = [place for place, (in_isr, _, alive, _) in enumerate(replicas) if in_isr and alive]
    staying = [place for place in in_sync if not replicas[place][3]]
    if leader_is_valid:
        if replicas[leader][3] and staying:
            return staying[0], True, False, isr
        return leader, False, False, isr
    for place in (*staying, *in_sync):
        return place, True, False, isr
    for place, (_, in_elr, is_alive, _) in enumerate(replicas):
        if in_elr and is_alive:
            return place, True, False, 1 << place
    for place, (_, _, is_alive, _) in enumerate(replicas):
        if is_alive and allows_unclean:
            return place, True, True, 1 << place
    return NOTHING, leader != NOTHING, False, isr


@Decision
def eligible_replicas(
    replicas: tuple[tuple[bool, bool, bool], ...], is_unclean: bool, min_isr: int
) -> int:
    """7.5, KIP-966 over (was in ISR, in ISR, was eligible): the mask of the eligible replicas.

    While the ISR is below min ISR nothing is committed, so replicas that leave it, or were
    eligible, have all committed records. An unclean election makes another log authoritative.
    """
    isr_size = sum(in_isr for _, in_isr, _ in replicas)
    if is_unclean or isr_size >= min(min_isr, len(replicas)):
        return 0
    return sum(
        1 << place
        for place, (was_in_isr, in_isr, was_eligible) in enumerate(replicas)
        if (was_in_isr or was_eligible) and not in_isr
    )


@Decision
def gets_leadership_back(in_isr: bool, is_alive: bool, is_stopping: bool, leads: bool) -> bool:
    """7.6: whether a preferred replica may be elected by an administrator."""
    return in_isr and is_alive and not is_stopping and not leads


# -- Clients ---------------------------------------------------------------------------------------


@Decision
def request_error(
    named_epoch: int, leader_epoch: int, acks: int, isr_size: int, min_isr: int, replicas: int
) -> str:
    """3.1, 3.3: the error with which a leader refuses a request; empty if it appends."""
    if named_epoch < leader_epoch:
        return "FENCED_LEADER_EPOCH"
    if named_epoch > leader_epoch:
        return "UNKNOWN_LEADER_EPOCH"
    if acks == -1 and isr_size < min(min_isr, replicas):
        return "NOT_ENOUGH_REPLICAS"
    return ""


@Decision
def duplicate_offset(record: int, log: Log) -> int:
    """3.6, 3.7: the offset of a record's batch that is already in the log, or -1."""
    for offset, (_, known) in enumerate(log):
        if known == record:
            return offset
    return NOTHING


@Decision
def completed(
    required_offset: int, is_leader: bool, mark: int, isr_size: int, min_isr: int, replicas: int
) -> str:
    """3.2, 3.3, 4.4: the result of a delayed acks=all request; empty while it is delayed."""
    if not is_leader:
        return "NOT_LEADER_OR_FOLLOWER"
    if mark < required_offset:
        return ""
    return "NOT_ENOUGH_REPLICAS_AFTER_APPEND" if isr_size < min(min_isr, replicas) else "NONE"


@Decision
def fetchable_end(
    leader: int, leader_epoch: int, is_as_elected: bool, row_leader_epoch: int, mark: int
) -> int:
    """2.6, 10.2: the end offset of fetches, or -1 for "not available".

    A topic's first leader has no records yet, unless it has restarted since.
    """
    if leader < 0:
        return UNAVAILABLE
    if row_leader_epoch < 0 and leader_epoch == 0 and is_as_elected:
        return 0
    return mark if row_leader_epoch == leader_epoch else UNAVAILABLE


@Decision
def visible_end(
    leader: int,
    leader_epoch: int,
    is_as_elected: bool,
    row_leader_epoch: int,
    mark: int,
    epoch_start: int,
) -> int:
    """2.6, KIP-207: the latest offset, or -1 for "not available"."""
    end = fetchable_end(leader, leader_epoch, is_as_elected, row_leader_epoch, mark)
    return UNAVAILABLE if row_leader_epoch >= 0 and mark < epoch_start else end


DECISIONS = (
    epoch_entries,
    end_offset_for,
    truncation_point,
    recovered_epochs,
    fetched_end,
    follower_high_watermark,
    recovered_high_watermark,
    believed_log_end_offset,
    high_watermark,
    isr_shrink,
    isr_expand,
    isr_fence,
    elected,
    eligible_replicas,
    gets_leadership_back,
    request_error,
    duplicate_offset,
    completed,
    fetchable_end,
    visible_end,
)
