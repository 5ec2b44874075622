"""The status of a cluster as one self-contained HTML page: no script, nothing is loaded."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from sparklog.cli.status_history import Incident, InSync, LagSample, PastStatus
from sparklog.cli.status_screen import conditions, duration
from sparklog.cli.times import time_text
from sparklog.errors import ConfigError
from sparklog.maintenance.status import ClusterStatus, PartitionStatus, ReplicaStatus, Severity

_MOST_PARTITIONS = 300
"""The number of rows of the replica map; partitions in trouble come first."""

_MOST_TIMELINES = 60
_MOST_INCIDENTS = 200

_WIDTH, _ROW, _LABEL = 900, 18, 190
"""In pixels: the width of a timeline with its labels, the height of its rows, their labels."""

_LINES = ("var(--line-0)", "var(--line-1)", "var(--line-2)", "var(--line-3)", "var(--line-4)")


def write(
    file: Path, status: ClusterStatus, past: PastStatus, refresh_s: float | None, *, utc: bool
) -> None:
    """Write the page, in place of an earlier one; readers see the old one or the new one.

    Parameters: `refresh_s`, the seconds after which a browser loads the page again. Raises
    `ConfigError` if the file cannot be written.
    """
    text = page(status, past, refresh_s, utc=utc)
    new = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(file)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise ConfigError(f"--html {file} cannot be written: {error.strerror}") from None


def page(status: ClusterStatus, past: PastStatus, refresh_s: float | None, *, utc: bool) -> str:
    """Return the page as HTML."""
    template = Template(files("sparklog.cli").joinpath("status_page.html").read_text("utf-8"))
    name = status.severity.name
    return template.substitute(
        refresh="" if refresh_s is None else f'<meta http-equiv="refresh" content="{refresh_s:g}">',
        verdict=name,
        verdict_class=name.lower(),
        root=escape(status.root),
        cluster_id=escape(status.cluster_id),
        at=escape(time_text(status.read_at_ms, utc=utc)),
        problems=_problems(status),
        tiles=_tiles(status, utc=utc),
        brokers=_brokers(status),
        replicas=_replica_map(status),
        groups=_groups(status),
        since=escape(time_text(past.since_ms, utc=utc)),
        in_sync=_in_sync(past, utc=utc),
        lag=_lag(past, utc=utc),
        summary=_summary(past),
        incidents=_incidents(past.incidents, utc=utc),
    )


def _problems(status: ClusterStatus) -> str:
    found = status.problems()
    if not found:
        return '<p class="ok">Nothing is wrong.</p>'
    lines = (
        f'<li class="{name.lower()}"><b>{name}</b> {escape(one.text)}</li>'
        for one in found
        if (name := one.severity.name)
    )
    return f'<ul class="problems">{"".join(lines)}</ul>'


def _tiles(status: ClusterStatus, *, utc: bool) -> str:
    found = status.partitions
    controller = status.controller
    since = (
        ""
        if controller is None or controller.controller_since_ms is None
        else f"since {time_text(controller.controller_since_ms, utc=utc)}"
    )
    offline = sum(one.is_offline for one in found)
    under = sum(one.is_under_replicated for one in found)
    below = sum(one.is_under_min_isr for one in found)
    tiles = (
        (
            "controller",
            "none" if controller is None else f"broker {controller.broker.broker_id}",
            since,
            Severity.OK if controller or status.is_parked else Severity.CRITICAL,
        ),
        ("partitions", str(len(found)), f"{sum(one.is_at_min_isr for one in found)} at min ISR", 0),
        ("offline", str(offline), "without a leader", 2 if offline else 0),
        ("under min ISR", str(below), "acks=all is refused", 2 if below else 0),
        ("under-replicated", str(under), "a replica is not in sync", 1 if under else 0),
        ("replica lag", str(max((one.lag for one in found), default=0)), "offsets at most", 0),
        ("group lag", str(sum(one.lag for one in status.groups)), "offsets in all", 0),
    )
    return "".join(
        f'<div class="tile {Severity(severity).name.lower()}"><span>{escape(name)}</span>'
        f"<b>{escape(value)}</b><small>{escape(remark)}</small></div>"
        for name, value, remark, severity in tiles
    )


def _brokers(status: ClusterStatus) -> str:
    rows = []
    for one in status.brokers:
        broker = one.description.broker
        rows.append(
            (
                f"{broker.broker_id}{' (controller)' if one.description.is_controller else ''}",
                one.shown_state(status.session_timeout_ms),
                str(one.description.leads),
                f"{one.description.in_sync} of {one.description.replicas}",
                broker.rack or "",
                "" if one.silent_ms is None else f"{duration(one.silent_ms)} ago",
                "" if one.activity is None else f"{one.activity.tick_ms} ms",
                "" if one.activity is None else str(one.activity.requests_per_minute),
            )
        )
    heads = (
        "broker",
        "state",
        "leads",
        "in sync",
        "rack",
        "last commit",
        "last tick",
        "storage requests/min",
    )
    return _table(heads, rows)


def _groups(status: ClusterStatus) -> str:
    if not status.groups:
        return "<p>No consumer group has committed an offset.</p>"
    rows = [
        (one.group_id, one.state, str(one.members), str(one.partitions), str(one.lag))
        for one in sorted(status.groups, key=lambda one: (-one.lag, one.group_id))
    ]
    return _table(("group", "state", "members", "partitions", "lag"), rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


# --- the replica map ----------------------------------------------------------------------------


def _replica_map(status: ClusterStatus) -> str:
    ids = sorted(
        {one.broker_id for each in status.partitions for one in each.state.replicas}
        | {one.description.broker.broker_id for one in status.brokers}
    )
    if not status.partitions:
        return "<p>There is no topic.</p>"
    alive = {
        one.description.broker.broker_id
        for one in status.brokers
        if one.description.broker.is_alive
    }
    shown = sorted(status.partitions, key=lambda one: not conditions(one))[:_MOST_PARTITIONS]
    heads = "".join(f"<th>{one}</th>" for one in ids)
    rows = "".join(_map_row(one, ids, alive) for one in shown)
    left = len(status.partitions) - len(shown)
    more = f"<p>{left} more partitions have no problem and are not shown.</p>" if left else ""
    return (
        f'<table class="map"><thead><tr><th>partition</th>{heads}<th>high watermark</th>'
        f"<th>condition</th></tr></thead><tbody>{rows}</tbody></table>{more}"
    )


def _map_row(one: PartitionStatus, ids: Sequence[int], alive: set[int]) -> str:
    of = {replica.assigned.broker_id: replica for replica in one.replicas}
    cells = "".join(_map_cell(one, of.get(broker_id), broker_id in alive) for broker_id in ids)
    end = "" if one.high_watermark is None else str(one.high_watermark)
    return (
        f"<tr><td>{escape(one.name)}</td>{cells}<td class=number>{end}</td>"
        f"<td>{escape(', '.join(conditions(one)))}</td></tr>"
    )


def _map_cell(one: PartitionStatus, replica: ReplicaStatus | None, is_alive: bool) -> str:
    if replica is None:
        return '<td class="none"></td>'
    if one.state.leader == replica.assigned.broker_id:
        kind, told = "leader", "leads"
    elif replica.assigned.in_isr:
        kind, told = "in-sync", "is in sync"
    else:
        kind, told = "behind", "is not in sync"
    if not is_alive:
        kind, told = f"{kind} dead", f"{told}, its broker is not alive"
    if replica.assigned.adding:
        told += ", is being added"
    if replica.assigned.removing:
        told += ", is being removed"
    lag = "" if not replica.lag else str(replica.lag)
    end = "" if replica.log_end_offset is None else f", log end offset {replica.log_end_offset}"
    title = f"broker {replica.assigned.broker_id} {told}{end}"
    return f'<td class="{kind}" title="{escape(title)}">{lag}</td>'


# --- the past -----------------------------------------------------------------------------------


class _Scale:
    """The x positions of times on a timeline."""

    def __init__(self, since_ms: int, until_ms: int) -> None:
        self.since_ms, self.until_ms = since_ms, max(until_ms, since_ms + 1)

    def x(self, at_ms: float) -> float:
        share = (at_ms - self.since_ms) / (self.until_ms - self.since_ms)
        return _LABEL + min(max(share, 0.0), 1.0) * (_WIDTH - _LABEL)

    def axis(self, height: float, *, utc: bool) -> str:
        """Return lines and times at fifths of the width."""
        parts = []
        for fifth in range(6):
            at_ms = self.since_ms + (self.until_ms - self.since_ms) * fifth // 5
            x = self.x(at_ms)
            anchor = "end" if fifth == 5 else "start" if fifth == 0 else "middle"
            clock = time_text(at_ms, utc=utc)[11:19]
            parts.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}" class="axis"/>'
                f'<text x="{x:.1f}" y="{height + 14}" text-anchor="{anchor}">{clock}</text>'
            )
        return "".join(parts)


def _in_sync(past: PastStatus, *, utc: bool) -> str:
    """Return the timeline of in-sync sets: a row for each replica of a partition that changed."""
    if not past.in_sync:
        return "<p>No in-sync set has changed.</p>"
    scale = _Scale(past.since_ms, past.until_ms)
    by_replica: dict[tuple[str, int], list[InSync]] = defaultdict(list)
    for one in past.in_sync:
        by_replica[one.partition, one.broker_id].append(one)
    shown = sorted(by_replica)[:_MOST_TIMELINES]
    parts = []
    for number, key in enumerate(shown):
        y = number * _ROW
        parts.append(f'<text x="0" y="{y + 13}">{escape(key[0])}, broker {key[1]}</text>')
        for span in by_replica[key]:
            x, end = scale.x(span.from_ms), scale.x(span.until_ms)
            kind = "leader" if span.leads else "in-sync" if span.is_in_sync else "behind"
            parts.append(
                f'<rect x="{x:.1f}" y="{y + 2}" width="{max(end - x, 1):.1f}" height="{_ROW - 4}" '
                f'class="{kind}"><title>{escape(span.told(utc=utc))}</title></rect>'
            )
    height = len(shown) * _ROW
    left = len(by_replica) - len(shown)
    more = f"<p>{left} more replicas changed and are not shown.</p>" if left else ""
    return _svg(height, scale.axis(height, utc=utc) + "".join(parts)) + more


def _lag(past: PastStatus, *, utc: bool) -> str:
    """Return the curves of the lag of each broker's replicas, in offsets, summed."""
    if not any(one.lag for one in past.lag):
        return "<p>No replica was behind when checkpoints were written.</p>"
    scale, height = _Scale(past.since_ms, past.until_ms), 120
    by_broker: Mapping[int, list[LagSample]] = defaultdict(list)
    for one in past.lag:
        by_broker[one.broker_id].append(one)
    most = max(one.lag for one in past.lag)
    parts = [f'<text x="{_LABEL - 6}" y="12" text-anchor="end">{most}</text>']
    for number, (broker_id, samples) in enumerate(sorted(by_broker.items())):
        points: list[str] = []
        for one in sorted(samples):
            # A lag holds until the next sample.
            y = height - one.lag / most * (height - 4)
            if points:
                points.append(f"{scale.x(one.at_ms):.1f},{points[-1].split(',')[1]}")
            points.append(f"{scale.x(one.at_ms):.1f},{y:.1f}")
        points.append(f"{scale.x(past.until_ms):.1f},{points[-1].split(',')[1]}")
        colour = _LINES[number % len(_LINES)]
        parts.append(
            f'<polyline points="{" ".join(points)}" style="stroke:{colour}"/>'
            f'<text x="0" y="{30 + number * _ROW}" style="fill:{colour}">broker {broker_id}</text>'
        )
    height = max(height, 30 + len(by_broker) * _ROW)
    return _svg(height, scale.axis(height, utc=utc) + "".join(parts))


def _svg(height: float, content: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height + 20}" role="img">{content}</svg>'


def _summary(past: PastStatus) -> str:
    """Return a sentence on unclean elections and lost records, which a reader must not miss."""
    unclean = sum(one.kind == "unclean election" for one in past.incidents)
    lost = sum(one.records_lost for one in past.incidents)
    if not (unclean or lost):
        return ""
    return (
        f'<p class="loss">{unclean} unclean elections; {lost} acknowledged records were cut from '
        "replicas.</p>"
    )


def _incidents(incidents: Sequence[Incident], *, utc: bool) -> str:
    if not incidents:
        return "<p>There was none.</p>"
    newest = sorted(incidents, reverse=True)[:_MOST_INCIDENTS]
    rows = "".join(
        f'<tr class="{one.severity.name.lower()}"><td>{escape(time_text(one.at_ms, utc=utc))}</td>'
        f"<td>{escape(one.kind)}</td><td>{escape(one.text)}</td></tr>"
        for one in newest
    )
    left = len(incidents) - len(newest)
    more = f"<p>{left} earlier ones are not shown: see the view elections.</p>" if left else ""
    head = "<tr><th>time</th><th>kind</th><th>what happened</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>{more}"
