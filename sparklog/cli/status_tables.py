"""The tables and sentences that the screen and the page of a status share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sparklog.maintenance.losses import Loss, Outcome
from sparklog.maintenance.status import BrokerStatus, ClusterStatus, PartitionStatus, Severity

LOSSES_QUERY = "select * from truncations where records_lost > 0"
"""The SQL text that shows what each replica has lost."""

UNCLEAN_QUERY = "select * from elections where is_unclean"
"""The SQL text that shows all unclean elections."""


class Column(NamedTuple):
    """A column of a table: its head, which may be broken at spaces, and the text of a row."""

    head: str
    is_number: bool
    text: Callable[[BrokerStatus, ClusterStatus], str]


BROKER_COLUMNS: Sequence[Column] = (
    Column(
        "broker",
        True,
        lambda one, _: (
            f"{one.description.broker.broker_id}{'*' if one.description.is_controller else ''}"
        ),
    ),
    Column("state", False, lambda one, status: one.shown_state(status.session_timeout_ms)),
    Column("leads", True, lambda one, _: str(one.description.leads)),
    Column("in sync", True, lambda one, _: f"{one.description.in_sync}/{one.description.replicas}"),
    Column("rack", False, lambda one, _: one.description.broker.rack or ""),
    Column(
        "last commit",
        True,
        lambda one, _: "" if one.silent_ms is None else f"{duration(one.silent_ms)} ago",
    ),
    Column(
        "last tick",
        True,
        lambda one, _: "" if one.activity is None else f"{one.activity.tick_ms} ms",
    ),
    Column(
        "requests a minute per process",
        True,
        lambda one, _: "" if one.activity is None else str(one.activity.requests_per_minute),
    ),
)
"""The columns of the table of brokers; the controller's broker is marked with a star."""


def state_severity(one: BrokerStatus, status: ClusterStatus) -> Severity:
    """Return the severity of the state that is shown of a broker."""
    if one.is_silent(status.session_timeout_ms):
        return Severity.CRITICAL
    return Severity.WARNING if one.description.broker.state == "fenced" else Severity.OK


def conditions(partition: PartitionStatus) -> list[str]:
    """Return what is wrong with a partition, in the words of Kafka's tools."""
    named = {
        "offline": partition.is_offline,
        "under min ISR": partition.is_under_min_isr and not partition.is_offline,
        "under-replicated": partition.is_under_replicated,
    }
    return [name for name, holds in named.items() if holds]


def loss_text(loss: Loss, now_ms: int) -> str:
    """Return a past loss as a sentence.

    It is "records were lost" only if a replica has removed some: an unclean election loses none if
    the elected replica had all.
    """
    ago = f"{duration(max(now_ms - loss.at_ms, 0))} ago"
    by = "" if loss.leader is None else f"unclean election of broker {loss.leader}"
    if not loss.records:
        return f"{by}: {loss.name}, {ago}; {_outcome_text(loss)}"
    return f"records were lost: {loss.name}, {_records(loss.records)}, {ago} ({by})"


def _outcome_text(loss: Loss) -> str:
    """Return the outcome of an unclean election by which no record is known to be lost."""
    is_one = len(loss.isr_before) == 1
    of = f"broker{'' if is_one else 's'} {', '.join(map(str, loss.isr_before))}"
    back = f"{of}, in sync before it, {'is' if is_one else 'are'} in sync again"
    texts: dict[Outcome, str] = {
        "none": f"no records were lost: {back} and removed nothing",
        "uncommitted": (
            f"no committed records are known to be lost: {back} and removed "
            f"{_records(loss.removed)} above the high watermark"
        ),
        "unknown": (
            f"it is not known whether records were lost: the log of {of} may not be the one of then"
            if loss.isr_before
            else "it is not known whether records were lost: the ISR before it is not known"
        ),
    }
    return texts.get(loss.outcome, "no replica has shown a lost record so far")


def _records(count: int) -> str:
    return f"{count} record{'' if count == 1 else 's'}"


def duration(ms: int) -> str:
    """Return a time in ms in the unit that fits, as in `1.2 s` or `3 h`."""
    for unit, of_unit in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= 2 * of_unit:
            return f"{ms / of_unit:.0f} {unit}"
    return f"{ms / 1000:.1f} s"
