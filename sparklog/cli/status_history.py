"""The last hours of a cluster for its status page, by SQL over the views of the past."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from sparklog.cli.cluster import Cluster
from sparklog.cli.sql import query
from sparklog.cli.times import time_text
from sparklog.maintenance.status import Severity

_Row = dict[str, Any]


class Incident(NamedTuple):
    """Something that has happened, at a time in ms since 1970.

    `records_lost` is the number of acknowledged records that it took from a replica.
    """

    at_ms: int
    severity: Severity
    kind: str
    text: str
    records_lost: int = 0


class InSync(NamedTuple):
    """A span of time in which a replica was in sync or not, and led or not."""

    partition: str
    broker_id: int
    from_ms: int
    until_ms: int
    is_in_sync: bool
    leads: bool

    def told(self, *, utc: bool) -> str:
        """Return the span as a sentence."""
        state = "led" if self.leads else "was in sync" if self.is_in_sync else "was not in sync"
        between = (time_text(at_ms, utc=utc) for at_ms in (self.from_ms, self.until_ms))
        return f"broker {self.broker_id} {state} from {' to '.join(between)}"


class LagSample(NamedTuple):
    """The lag of all replicas of a broker in one minute, in offsets."""

    at_ms: int
    broker_id: int
    lag: int


class PastStatus(NamedTuple):
    """The past on a page: the time between `since_ms` and `until_ms`."""

    since_ms: int
    until_ms: int
    in_sync: list[InSync]
    lag: list[LagSample]
    incidents: list[Incident]


def read_past(cluster: Cluster, since_ms: int, until_ms: int) -> PastStatus:
    """Return the past of a cluster between two times in ms since 1970.

    Raises `StorageError` if the cluster root cannot be read; broker roots that cannot be read are
    left out, as the status says.
    """

    def rows(statement: str) -> list[_Row]:
        found: list[_Row] = query(statement, cluster).rows.to_pylist()
        return found

    return PastStatus(
        since_ms,
        until_ms,
        _in_sync(rows, since_ms, until_ms),
        _lags(rows, since_ms, until_ms),
        sorted(_incidents(rows, since_ms, until_ms)),
    )


_Read = Callable[[str], list[_Row]]


def _in_sync(read: _Read, since_ms: int, until_ms: int) -> list[InSync]:
    """Return the spans of the replicas of partitions that have changed in that time."""
    changes: dict[tuple[str, str, int], list[_Row]] = defaultdict(list)
    for row in read(
        "select topic_id, topic, partition, at_ms, isr, replicas, leader from partition_history "
        f"where at_ms <= {until_ms} order by topic_id, partition, partition_epoch"
    ):
        changes[row["topic_id"], row["topic"], row["partition"]].append(row)
    spans = []
    for (_, topic, partition), rows in changes.items():
        # The first row is the creation: nothing has changed by it.
        if not any(row["at_ms"] > since_ms for row in rows[1:]):
            continue
        ends = [*(row["at_ms"] for row in rows[1:]), until_ms]
        for row, end_ms in zip(rows, ends, strict=True):
            if end_ms <= since_ms:
                continue
            isr = json.loads(row["isr"])
            spans += [
                InSync(
                    f"{topic}-{partition}",
                    broker_id,
                    max(row["at_ms"], since_ms),
                    end_ms,
                    broker_id in isr,
                    broker_id == row["leader"],
                )
                for broker_id in json.loads(row["replicas"] or row["isr"])
            ]
    return list(_joined(sorted(spans)))


def _joined(spans: Iterable[InSync]) -> Iterator[InSync]:
    """Yield sorted spans, with equal ones that follow each other as one."""
    last: InSync | None = None
    for one in spans:
        if last is not None and last[:2] == one[:2] and last[4:] == one[4:]:
            last = last._replace(until_ms=one.until_ms)
            continue
        if last is not None:
            yield last
        last = one
    if last is not None:
        yield last


def _lags(read: _Read, since_ms: int, until_ms: int) -> list[LagSample]:
    """Return each broker's lag after each minute in which one of its replicas has changed."""
    ends: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    leaders: dict[tuple[str, int], tuple[int, int]] = {}
    lags: dict[int, dict[tuple[str, int], int]] = defaultdict(dict)
    by_minute: dict[int, list[_Row]] = defaultdict(list)
    for row in read(
        "select at_ms, broker_id, topic_id, partition, role, leader_epoch, log_end_offset "
        f"from high_watermark_history where at_ms <= {until_ms}"
    ):
        by_minute[row["at_ms"] // 60_000].append(row)
    samples = []
    for _, rows in sorted(by_minute.items()):
        moved = set()
        for row in sorted(rows, key=lambda one: one["at_ms"]):
            key = row["topic_id"], row["partition"]
            moved.add(key)
            ends[key][row["broker_id"]] = row["log_end_offset"]
            leads = row["leader_epoch"], row["broker_id"]
            if row["role"] == "leader" and leads > leaders.get(key, (-1, -1)):
                leaders[key] = leads
        for key in moved & leaders.keys():
            leader_end = ends[key][leaders[key][1]]
            for broker_id, end in ends[key].items():
                lags[broker_id][key] = max(leader_end - end, 0)
        at_ms = max(row["at_ms"] for row in rows)
        if at_ms >= since_ms:
            samples += [
                LagSample(at_ms, broker_id, sum(of.values())) for broker_id, of in lags.items()
            ]
    return samples


def _incidents(read: _Read, since_ms: int, until_ms: int) -> Iterator[Incident]:
    during = f"at_ms > {since_ms} and at_ms <= {until_ms}"
    for row in read(f"select * from partition_history where {during}"):
        yield from _of_partition(row)
    for row in read(f"select * from truncations where {during}"):
        lost = row["records_lost"] or 0
        text = (
            f"{_name(row)}: broker {row['broker_id']} removed the offsets {row['to_offset']} to "
            f"{row['from_offset'] - 1}, {row['records_removed']} records, {lost} of them "
            f"acknowledged: {row['cause']}"
        )
        severity = Severity.CRITICAL if lost else Severity.WARNING
        yield Incident(row["at_ms"], severity, "truncation", text, lost)
    for row in read(f"select * from controller_history where {during}"):
        text = f"broker {row['broker_id']} is the controller, epoch {row['controller_epoch']}"
        because = f": {row['cause']}" if row["cause"] else ""
        yield Incident(row["at_ms"], Severity.OK, "controller", text + because)


def _of_partition(row: _Row) -> Iterator[Incident]:
    because = f": {row['cause']}" if row["cause"] else ""
    because += f", {row['detail']}" if row["detail"] else ""
    if row["leader"] is None and row["leader_before"] is not None:
        text = f"{_name(row)}: no leader in place of broker {row['leader_before']}{because}"
        yield Incident(row["at_ms"], Severity.CRITICAL, "offline", text)
    elif row["is_elected"] and row["leader_epoch"]:
        before = row["leader_before"]
        place = f" in place of broker {before}" if before not in (None, row["leader"]) else ""
        text = (
            f"{_name(row)}: broker {row['leader']} leads{place}, leader epoch "
            f"{row['leader_epoch']}{because}"
        )
        if row["is_unclean"]:
            yield Incident(row["at_ms"], Severity.CRITICAL, "unclean election", text)
        else:
            yield Incident(row["at_ms"], Severity.OK, "election", text)
    for broker_id in json.loads(row["left_isr"] or "[]"):
        text = f"{_name(row)}: broker {broker_id} left the in-sync set{because}"
        yield Incident(row["at_ms"], Severity.WARNING, "ISR shrinks", text)
    for broker_id in json.loads(row["joined_isr"] or "[]") if row["partition_epoch"] else ():
        if not (row["is_elected"] and broker_id == row["leader"]):
            text = f"{_name(row)}: broker {broker_id} is in sync again"
            yield Incident(row["at_ms"], Severity.OK, "ISR expands", text)


def _name(row: _Row) -> str:
    return f"{row['topic']}-{row['partition']}"
