"""The status of a cluster as a screen of a terminal, and as JSON."""

from __future__ import annotations

import sys
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
from sparklog.cli.times import time_text
from sparklog.errors import SparklogError
from sparklog.maintenance.status import (
    BrokerStatus,
    ClusterStatus,
    PartitionStatus,
    Severity,
)

_STYLES = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.CRITICAL: "bold red"}

_MOST_ROWS = 12
"""The number of partitions in trouble, and of groups, that the screen lists."""


def screen(status: ClusterStatus, *, utc: bool) -> list[RenderableType]:
    """Return the parts of the screen, from top to bottom; it is readable at 80 columns."""
    parts: list[RenderableType] = [
        Text(f"cluster {status.root}"),
        Text(f"{status.cluster_id}, {time_text(status.read_at_ms, utc=utc)}\n", "dim"),
        *_judgement(status),
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


def conditions(partition: PartitionStatus) -> list[str]:
    """Return what is wrong with a partition, in the words of Kafka's tools."""
    named = {
        "offline": partition.is_offline,
        "under min ISR": partition.is_under_min_isr and not partition.is_offline,
        "under-replicated": partition.is_under_replicated,
    }
    return [name for name, holds in named.items() if holds]


def _judgement(status: ClusterStatus) -> Iterator[Text]:
    problems = status.problems()
    if not problems:
        yield Text("OK  nothing is wrong", _STYLES[Severity.OK])
    for one in problems:
        yield Text(f"{one.severity.name:<9}", _STYLES[one.severity]) + Text(one.text, "default")


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
    grid.add_row(Text("replica lag"), Text(f"{replica_lag} offsets at most{of}"))
    grid.add_row(
        Text("group lag"),
        Text(f"{sum(one.lag for one in status.groups)} offsets in {len(status.groups)} groups"),
    )
    return grid


def _brokers(status: ClusterStatus) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("broker", "state", "leads", "in sync", "rack", "last\ncommit", "last\ntick"):
        table.add_column(name, justify="left" if name in ("state", "rack") else "right")
    table.add_column("requests\na minute", justify="right")
    for one in status.brokers:
        broker = one.description.broker
        shown = one.shown_state(status.session_timeout_ms)
        table.add_row(
            f"{broker.broker_id}{'*' if one.description.is_controller else ''}",
            Text(shown, "default" if shown in ("alive", "parked") else _STYLES[Severity.CRITICAL]),
            str(one.description.leads),
            f"{one.description.in_sync}/{one.description.replicas}",
            Text(broker.rack or ""),
            "" if one.silent_ms is None else f"{duration(one.silent_ms)} ago",
            "" if one.activity is None else f"{one.activity.tick_ms:.0f} ms",
            "" if one.activity is None else f"{one.activity.requests_per_minute:.0f}",
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
            str(one.lag),
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


def duration(ms: int) -> str:
    """Return a time in ms in the unit that fits, as in `1.2 s` or `3 h`."""
    for unit, of_unit, digits in (("d", 86_400_000, 0), ("h", 3_600_000, 0), ("min", 60_000, 0)):
        if ms >= 2 * of_unit:
            return f"{ms / of_unit:.{digits}f} {unit}"
    return f"{ms / 1000:.1f} s"


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
        "clock_ahead_ms": one.ahead_ms,
        "last_tick_ms": None if one.activity is None else one.activity.tick_ms,
        "storage_requests_per_minute": None
        if one.activity is None
        else one.activity.requests_per_minute,
        "offline_log_dirs": list(one.description.broker.offline_log_dirs),
        "unreadable": dict(one.unreadable),
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
