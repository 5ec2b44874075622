"""The status of a cluster as a screen of a terminal, and as JSON."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sparklog.cli.output import console_of
from sparklog.cli.status_tables import (
    BROKER_COLUMNS,
    LOSSES_QUERY,
    UNCLEAN_QUERY,
    conditions,
    loss_text,
    state_severity,
)
from sparklog.cli.times import time_text
from sparklog.errors import SparklogError
from sparklog.maintenance.losses import Loss
from sparklog.maintenance.status import (
    BrokerStatus,
    ClusterStatus,
    PartitionStatus,
    Severity,
)

_STYLES = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.CRITICAL: "bold red"}

_LISTED_MS = 7 * 86_400_000
"""The age in ms up to which the screen lists a past loss; earlier ones are counted."""

_MOST_LOSSES = 5

_HEAD_WIDTH = 10
"""The width in columns to which the heads of numbers are wrapped."""

_KIND_WIDTH = 9
"""The width in columns of the words before problems and losses, such as `CRITICAL`."""

_MOST_ROWS = 12
"""The number of partitions in trouble, and of groups, that the screen lists."""


def screen(status: ClusterStatus, *, utc: bool) -> list[RenderableType]:
    """Return the parts of the screen, from top to bottom; it is readable at 80 columns."""
    parts: list[RenderableType] = [
        Text(f"cluster {status.root}"),
        Text(f"{status.cluster_id}, {time_text(status.read_at_ms, utc=utc)}\n", "dim"),
        *_judgement(status),
        *_losses(status, utc=utc),
        Text(),
        _summary(status, utc=utc),
        _brokers(status),
    ]
    troubled = [one for one in status.partitions if conditions(one)]
    if troubled:
        parts.append(_partitions(troubled))
    if status.groups:
        parts.append(_groups(status))
    return parts


def watch(read: Callable[[], ClusterStatus], seconds: float, *, utc: bool) -> int:
    """Refresh the screen each `seconds` until Ctrl-C; return the exit code of the last status.

    The error of a failed reading is shown in place of the screen, and the next one is tried. Output
    to a file or another program has one screen after the other.
    """
    console = console_of(sys.stdout)
    severity = Severity.OK
    live = Live(console=console, screen=True, auto_refresh=False) if console.is_terminal else None
    with live or nullcontext():
        try:
            while True:
                try:
                    found = read()
                    severity = found.severity
                    shown: RenderableType = Group(*screen(found, utc=utc))
                except SparklogError as error:
                    severity = Severity.CRITICAL
                    shown = Text(f"sparklog: {error}", "bold red")
                if live is None:
                    console.print(shown)
                    console.file.flush()
                else:
                    live.update(shown, refresh=True)
                time.sleep(seconds)
        except KeyboardInterrupt:
            return int(severity)


def _judgement(status: ClusterStatus) -> Iterator[RenderableType]:
    problems = status.problems()
    if not problems:
        yield Text("OK  nothing is wrong", _STYLES[Severity.OK])
    for one in problems:
        yield _hanging(Text(one.severity.name, _STYLES[one.severity]), Text(one.text))


def _hanging(kind: Text, text: Text) -> Table:
    """Return a line of the judgement; further lines of its text are indented as the first one."""
    # A grid of its own: the lines of a common one would all be padded to the longest.
    grid = Table.grid()
    grid.add_column(width=_KIND_WIDTH)
    grid.add_column(overflow="fold")
    grid.add_row(kind, text)
    return grid


def _summary(status: ClusterStatus, *, utc: bool) -> Table:
    found = status.partitions
    counts = {
        "offline": sum(one.is_offline for one in found),
        "under-replicated": sum(one.is_under_replicated for one in found),
        "under min ISR": sum(one.is_under_min_isr for one in found),
        "at min ISR": sum(one.is_at_min_isr for one in found),
    }
    controller = status.controller
    lagging = max(found, key=lambda one: one.lag, default=None)
    replica_lag = lagging.lag if lagging is not None else 0
    group_lag = sum(one.lag for one in status.groups)
    of = f" ({lagging.name})" if lagging is not None and replica_lag else ""
    grid = Table.grid(padding=(0, 2))
    grid.add_row(
        Text("controller"),
        Text("none")
        if controller is None
        else Text(
            f"broker {controller.broker.broker_id}"
            + (
                ""
                if controller.controller_since_ms is None
                else f" since {time_text(controller.controller_since_ms, utc=utc)}"
            )
        ),
    )
    grid.add_row(
        Text("partitions"),
        Text(f"{len(found)}: " + ", ".join(f"{count} {name}" for name, count in counts.items())),
    )
    grid.add_row(Text("replica lag"), Text(f"{_number(replica_lag, 'offset')} at most{of}"))
    grid.add_row(
        Text("group lag"),
        Text(f"{_number(group_lag, 'offset')} in {_number(len(status.groups), 'group')}"),
    )
    return grid


def _number(count: int, of: str) -> str:
    return f"{count} {of}" if count == 1 else f"{count} {of}s"


def _losses(status: ClusterStatus, *, utc: bool) -> Iterator[RenderableType]:
    """Yield the newest losses of the last days, the number of earlier ones, and the query."""
    recent = [one for one in status.losses if status.read_at_ms - one.at_ms <= _LISTED_MS]
    for one in recent[:_MOST_LOSSES]:
        kind, style = ("LOST", "bold red") if one.records else ("UNCLEAN", "yellow")
        yield _hanging(Text(kind, style), Text(loss_text(one, status.read_at_ms)))
    left = status.losses[len(recent[:_MOST_LOSSES]) :]
    if left:
        before = time_text(left[0].at_ms, utc=utc)
        text = f"{len(left)} earlier unclean elections or losses, the last at {before}"
        yield _hanging(Text("EARLIER"), Text(text))
    if status.losses:
        has_records = any(one.records for one in status.losses)
        statement = LOSSES_QUERY if has_records else UNCLEAN_QUERY
        yield _hanging(Text(), Text(f'sparklog query "{statement}"', "dim"))


def _brokers(status: ClusterStatus) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in BROKER_COLUMNS:
        head = textwrap.fill(column.head, _HEAD_WIDTH) if column.is_number else column.head
        table.add_column(head, justify="right" if column.is_number else "left")
    for one in status.brokers:
        severity = state_severity(one, status)
        table.add_row(
            *(
                Text(
                    column.text(one, status),
                    _STYLES[severity] if column.head == "state" and severity else "default",
                )
                for column in BROKER_COLUMNS
            )
        )
    return table


def _partitions(troubled: list[PartitionStatus]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("partition", overflow="fold")
    for name in ("leader", "in sync", "of", "lag"):
        table.add_column(name, justify="right")
    table.add_column("condition")
    for one in troubled[:_MOST_ROWS]:
        leader = "none" if one.state.leader is None else str(one.state.leader)
        replicas = [replica.broker_id for replica in one.state.replicas]
        table.add_row(
            Text(one.name),
            leader,
            ",".join(map(str, one.state.isr)),
            ",".join(map(str, replicas)),
            "-" if one.is_offline else str(one.lag),
            ", ".join(conditions(one)),
        )
    if len(troubled) > _MOST_ROWS:
        table.add_row(Text(f"and {len(troubled) - _MOST_ROWS} more"))
    return table


def _groups(status: ClusterStatus) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("group", overflow="fold")
    table.add_column("state")
    for name in ("members", "partitions", "lag"):
        table.add_column(name, justify="right")
    found = sorted(status.groups, key=lambda one: (-one.lag, one.group_id))
    for one in found[:_MOST_ROWS]:
        table.add_row(
            Text(one.group_id), one.state, str(one.members), str(one.partitions), str(one.lag)
        )
    if len(found) > _MOST_ROWS:
        table.add_row(Text(f"and {len(found) - _MOST_ROWS} more"))
    return table


def as_json(status: ClusterStatus) -> dict[str, Any]:
    """Return a status as a JSON object; its names are those of the tables."""
    return {
        "cluster_id": status.cluster_id,
        "root": status.root,
        "read_at_ms": status.read_at_ms,
        "severity": status.severity.name,
        "problems": [
            {"severity": one.severity.name, "text": one.text} for one in status.problems()
        ],
        "controller": None
        if status.controller is None
        else {
            "broker_id": status.controller.broker.broker_id,
            "since_ms": status.controller.controller_since_ms,
        },
        "brokers": [_broker_json(one, status.session_timeout_ms) for one in status.brokers],
        "partitions": [_partition_json(one) for one in status.partitions],
        "groups": [one._asdict() for one in status.groups],
        "losses": [_loss_json(one) for one in status.losses],
    }


def _broker_json(one: BrokerStatus, timeout_ms: int) -> dict[str, Any]:
    return {
        "broker_id": one.description.broker.broker_id,
        "state": one.description.broker.state,
        "rack": one.description.broker.rack,
        "leads": one.description.leads,
        "in_sync": one.description.in_sync,
        "replicas": one.description.replicas,
        "is_silent": one.is_silent(timeout_ms),
        "silent_ms": one.silent_ms,
        "clock_ahead_ms": max(one.clock_offset_ms, 0),
        "clock_behind_ms": max(-one.clock_offset_ms, 0),
        "last_tick_ms": None if one.activity is None else one.activity.tick_ms,
        "storage_requests_per_minute": None
        if one.activity is None
        else one.activity.requests_per_minute,
        "offline_log_dirs": list(one.description.broker.offline_log_dirs),
        "unreadable": dict(one.unreadable),
    }


def _loss_json(one: Loss) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "at_ms": one.at_ms,
        "leader": one.leader,
        "leader_epoch": one.leader_epoch,
        "records_lost": one.records,
        "brokers": list(one.brokers),
        "outcome": one.outcome,
        "isr_before": list(one.isr_before),
    }


def _partition_json(one: PartitionStatus) -> dict[str, Any]:
    return {
        "topic": one.state.topic,
        "partition": one.state.partition,
        "leader": one.state.leader,
        "leader_epoch": one.state.leader_epoch,
        "isr": one.state.isr,
        "min_isr": one.min_isr,
        "high_watermark": one.high_watermark,
        "replicas": [
            {
                "broker_id": replica.assigned.broker_id,
                "in_isr": replica.assigned.in_isr,
                "log_end_offset": replica.log_end_offset,
                "lag": replica.lag,
            }
            for replica in one.replicas
        ],
        "conditions": conditions(one),
    }
