"""The status of a cluster as one self-contained HTML page: no script, nothing is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from sparklog.cli.status_charts import in_sync_chart, lag_chart
from sparklog.cli.status_history import Change, Incident, PastStatus
from sparklog.cli.status_tables import (
    BROKER_COLUMNS,
    LOSSES_QUERY,
    UNCLEAN_QUERY,
    conditions,
    loss_text,
    state_severity,
)
from sparklog.cli.times import short_time, zone_name
from sparklog.errors import ConfigError
from sparklog.maintenance.status import ClusterStatus, PartitionStatus, ReplicaStatus, Severity

_MOST_PARTITIONS = 300
"""The number of rows of the replica map; partitions in trouble come first."""

_MOST_INCIDENTS = 200
_MOST_LOSSES = 20


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
        at=escape(short_time(status.read_at_ms, utc=utc)),
        zone=escape(zone_name(status.read_at_ms, utc=utc)),
        problems=_problems(status),
        losses=_losses(status, utc=utc),
        tiles=_tiles(status, utc=utc),
        brokers=_brokers(status),
        replicas=_replica_map(status),
        groups=_groups(status),
        asked_since=escape(short_time(past.asked_since_ms, utc=utc)),
        since=escape(short_time(past.since_ms, utc=utc)),
        in_sync=in_sync_chart(past, utc=utc),
        lag=lag_chart(past, utc=utc),
        incidents=_incidents(past, utc=utc),
    )


def _losses(status: ClusterStatus, *, utc: bool) -> str:
    """Return the past losses, which a reader must not miss, and the statements that show more."""
    if not status.losses:
        return ""
    lines = "".join(
        f'<li class="{"critical" if one.records else "warning"}">'
        f"<b>{'LOST' if one.records else 'UNCLEAN'}</b> "
        f"{escape(loss_text(one, status.read_at_ms))} "
        f"<time>{escape(short_time(one.at_ms, utc=utc))}</time></li>"
        for one in status.losses[:_MOST_LOSSES]
    )
    left = len(status.losses) - _MOST_LOSSES
    more = f"<li>{left} earlier ones are not shown.</li>" if left > 0 else ""
    queries = "".join(
        f'<code>sparklog query "{escape(one)}"</code> ' for one in (LOSSES_QUERY, UNCLEAN_QUERY)
    )
    return f'<h2>Past losses</h2><ul class="problems">{lines}{more}</ul><p>More by {queries}</p>'


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
        else f"since {short_time(controller.controller_since_ms, utc=utc)}"
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
    classes = [
        f' class="{"number" if column.is_number else column.head}"' for column in BROKER_COLUMNS
    ]
    heads = "".join(
        f"<th{of}>{escape(column.head)}</th>"
        for of, column in zip(classes, BROKER_COLUMNS, strict=True)
    )
    rows = "".join(
        f'<tr class="{state_severity(one, status).name.lower()}">'
        + "".join(
            f"<td{of}>{escape(column.text(one, status))}</td>"
            for of, column in zip(classes, BROKER_COLUMNS, strict=True)
        )
        + "</tr>"
        for one in status.brokers
    )
    return (
        f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        "<p>* is the controller</p>"
    )


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
        if one.runs(status.session_timeout_ms) or one.description.broker.is_parked
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


def _incidents(past: PastStatus, *, utc: bool) -> str:
    """Return the incidents, the newest first; one with several changes unfolds."""
    if not past.incidents:
        return "<p>There was none.</p>"
    shown = past.incidents[:_MOST_INCIDENTS]
    rows = "".join(_incident(one, past, utc=utc) for one in shown)
    left = len(past.incidents) - len(shown)
    more = f"<p>{left} earlier ones are not shown: see the view elections.</p>" if left else ""
    return f'<div class="incidents">{rows}</div>{more}'


def _incident(one: Incident, past: PastStatus, *, utc: bool) -> str:
    at = short_time(one.at_ms, utc=utc, since_ms=past.asked_since_ms)
    head = f"<time>{escape(at)}</time><b>{escape(one.kinds)}</b><span>{escape(one.summary)}</span>"
    kind = one.severity.name.lower()
    if len(one.changes) == 1:
        return f'<div class="incident {kind}">{head}</div>'
    changes = "".join(map(_change, sorted(one.changes, key=lambda change: -change.severity)))
    return f'<details class="incident {kind}"><summary>{head}</summary><ul>{changes}</ul></details>'


def _change(one: Change) -> str:
    return f'<li class="{one.severity.name.lower()}">{escape(one.sentence)}</li>'
