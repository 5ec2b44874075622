"""The last hours of a cluster for its status page: spans, lags and incidents."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sparklog.cli.status_tables import duration
from sparklog.maintenance.cluster_past import GRAIN_MS, PastRows
from sparklog.maintenance.status import Severity

_Row = dict[str, Any]

_MARGIN = 0.04
"""The share of the shown time before its first change."""

_IN_MS = re.compile(r"\b(\d+) ms\b")
"""A duration in the detail of a change."""

_LEAST_MS = 1_000
"""The least time in ms that is shown."""


class InSync(NamedTuple):
    """A span of time in which a replica was in sync or not, and led or not."""

    partition: str
    broker_id: int
    from_ms: int
    until_ms: int
    is_in_sync: bool
    leads: bool


class LagSample(NamedTuple):
    """The lag of all replicas of a broker at a time in ms since 1970, in offsets."""

    at_ms: int
    broker_id: int
    lag: int


class Change(NamedTuple):
    """One thing that a commit has changed in a partition.

    `cause` is "" if it is not known; `detail` is what the commit says beyond it, or "".
    """

    severity: Severity
    kind: str
    partition: str | None
    text: str
    cause: str
    detail: str = ""

    @property
    def sentence(self) -> str:
        """The change with its cause."""
        because = ", ".join(filter(None, [self.cause, self.detail]))
        return f"{self.text}: {because}" if because else self.text


class Incident(NamedTuple):
    """The changes of one commit, at a time in ms since 1970, in the order of partitions."""

    at_ms: int
    changes: tuple[Change, ...]

    @property
    def severity(self) -> Severity:
        """That of the worst change."""
        return max(one.severity for one in self.changes)

    @property
    def kinds(self) -> str:
        """The kinds of its changes, the worst first."""
        return ", ".join(self._counts())

    @property
    def summary(self) -> str:
        """The partitions, the causes, and the number of changes of each kind, the worst first."""
        if len(self.changes) == 1:
            return self.changes[0].sentence
        partitions = {one.partition: None for one in self.changes}
        of = (
            str(next(iter(partitions))) if len(partitions) == 1 else f"{len(partitions)} partitions"
        )
        known = dict.fromkeys(one.cause for one in self.changes if one.cause)
        causes = ", ".join(sorted(known, key=lambda one: not one.startswith("leader")))
        counts = (
            f"{count} {_SEVERAL[kind] if count > 1 else _ONE[kind]}"
            for kind, count in self._counts().items()
        )
        return ": ".join(filter(None, [of, causes, ", ".join(counts)]))

    def _counts(self) -> dict[str, int]:
        worst = sorted(self.changes, key=lambda one: -one.severity)
        return dict(Counter(one.kind for one in worst))


_ONE = {
    "offline": "without a leader",
    "unclean election": "unclean election",
    "election": "election",
    "ISR shrinks": "left the in-sync set",
    "ISR expands": "joined the in-sync set",
    "truncation": "truncation",
    "controller": "controller",
}
"""The kinds of changes, and the words by which one of them is counted."""

_SEVERAL = _ONE | {
    "unclean election": "unclean elections",
    "election": "elections",
    "truncation": "truncations",
}


class PastStatus(NamedTuple):
    """The past on a page; spans and lags are shown from `since_ms` to `until_ms`.

    `asked_since_ms` is the beginning of the time whose incidents are shown.
    """

    asked_since_ms: int
    since_ms: int
    until_ms: int
    in_sync: list[InSync]
    lag: list[LagSample]
    incidents: list[Incident]


def past_status(rows: PastRows) -> PastStatus:
    """Return the past of a cluster as it is shown; the newest incident is the first one."""
    incidents = sorted(_incidents(rows), key=lambda one: -one.at_ms)
    since_ms = _shown_since(rows)
    return PastStatus(
        rows.since_ms,
        since_ms,
        rows.until_ms,
        _in_sync(rows, since_ms),
        [one for one in _lags(rows) if one.at_ms >= since_ms],
        incidents,
    )


def _shown_since(rows: PastRows) -> int:
    """Return the time from which on something is shown: a short history fills the width.

    Nothing is missed before the first change of the last hours; the state then is known.
    """
    changed = [row["at_ms"] for row in rows.changes]
    moved = [one.at_ms for found in rows.positions.values() for one in found]
    earliest = min(changed or moved, default=rows.since_ms)
    shown_ms = max(rows.until_ms - earliest, _LEAST_MS)
    return max(rows.since_ms, rows.until_ms - round(shown_ms * (1 + _MARGIN)))


def _in_sync(rows: PastRows, since_ms: int) -> list[InSync]:
    """Return the spans of the replicas of partitions that have changed after their creation."""
    changes: dict[tuple[str, int], list[_Row]] = defaultdict(list)
    for row in (*rows.changes_before, *rows.changes):
        changes[row["topic_id"], row["partition"]].append(row)
    spans = []
    for of_partition in changes.values():
        if len(of_partition) < 2:
            continue
        ends = [*(row["at_ms"] for row in of_partition[1:]), rows.until_ms]
        for row, end_ms in zip(of_partition, ends, strict=True):
            isr = json.loads(row["isr"])
            spans += [
                InSync(
                    _name(row),
                    broker_id,
                    max(row["at_ms"], since_ms),
                    end_ms,
                    broker_id in isr,
                    broker_id == row["leader"],
                )
                for broker_id in json.loads(row["replicas"] or row["isr"])
                if end_ms > since_ms
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


def _lags(rows: PastRows) -> list[LagSample]:
    """Return each broker's lag after each time in which one of its replicas has changed."""
    ends: dict[object, dict[int, int]] = defaultdict(dict)
    leaders: dict[object, tuple[int, int]] = {}
    lags: dict[int, dict[object, int]] = defaultdict(dict)
    moved = defaultdict(list)
    for key, found in rows.positions.items():
        for one in found:
            moved[one.at_ms // GRAIN_MS].append((one.at_ms, key, one))
    samples = []
    for _, positions in sorted(moved.items()):
        for _, key, one in sorted(positions):
            ends[key][one.broker_id] = one.log_end_offset
            leads = one.leader_epoch, one.broker_id
            if one.leads and leads > leaders.get(key, (-1, -1)):
                leaders[key] = leads
        for key in {key for _, key, _ in positions} & leaders.keys():
            leader_end = ends[key].get(leaders[key][1], 0)
            for broker_id, end in ends[key].items():
                lags[broker_id][key] = max(leader_end - end, 0)
        at_ms = max(at_ms for at_ms, _, _ in positions)
        samples += [LagSample(at_ms, broker_id, sum(of.values())) for broker_id, of in lags.items()]
    return samples


# --- incidents ----------------------------------------------------------------------------------


def _incidents(rows: PastRows) -> Iterator[Incident]:
    """Yield the incidents: all changes of one commit are one."""
    of_commits: dict[int, list[_Row]] = defaultdict(list)
    for row in rows.changes:
        of_commits[row["version"]].append(row)
    for changed in of_commits.values():
        changes = [change for row in changed for change in _of_partition(row)]
        if changes:
            yield Incident(changed[0]["at_ms"], tuple(changes))
    truncated: dict[tuple[int, int], list[_Row]] = defaultdict(list)
    for row in rows.truncations:
        truncated[row["broker_id"], row["version"]].append(row)
    for cut in truncated.values():
        yield Incident(cut[0]["at_ms"], tuple(map(_of_truncation, cut)))
    for row in rows.controllers:
        text = f"broker {row['broker_id']} is the controller, epoch {row['controller_epoch']}"
        change = Change(Severity.OK, "controller", None, text, _words(row["cause"]))
        yield Incident(row["at_ms"], (change,))


def _of_truncation(row: _Row) -> Change:
    lost = row["records_lost"] or 0
    text = (
        f"{_name(row)}: broker {row['broker_id']} removed the offsets {row['to_offset']} to "
        f"{row['from_offset'] - 1}, {row['records_removed']} records, {lost} of them committed"
    )
    severity = Severity.CRITICAL if lost else Severity.WARNING
    return Change(severity, "truncation", _name(row), text, _words(row["cause"]))


def _of_partition(row: _Row) -> Iterator[Change]:
    name, before = _name(row), row["leader_before"]
    left, joined = json.loads(row["left_isr"] or "[]"), json.loads(row["joined_isr"] or "[]")

    def change(severity: Severity, kind: str, text: str, followers: Sequence[int]) -> Change:
        detail = _IN_MS.sub(lambda found: duration(int(found[1])), row["detail"] or "")
        return Change(severity, kind, name, f"{name}: {text}", _cause(row, followers), detail)

    if row["leader"] is None and before is not None:
        text = f"no leader in place of broker {before}"
        yield change(Severity.CRITICAL, "offline", text, left)
    elif row["is_elected"] and row["leader_epoch"]:
        place = f" in place of broker {before}" if before not in (None, row["leader"]) else ""
        text = f"broker {row['leader']} leads{place}, leader epoch {row['leader_epoch']}"
        if row["is_unclean"]:
            yield change(Severity.CRITICAL, "unclean election", text, left)
        else:
            yield change(Severity.OK, "election", text, left)
    for broker_id in left:
        text = f"broker {broker_id} left the in-sync set"
        yield change(Severity.WARNING, "ISR shrinks", text, [broker_id])
    for broker_id in joined if row["partition_epoch"] else ():
        if not (row["is_elected"] and broker_id == row["leader"]):
            text = f"broker {broker_id} is in sync again"
            yield change(Severity.OK, "ISR expands", text, [broker_id])


def _cause(row: _Row, followers: Sequence[int]) -> str:
    """Return the cause of a change with the ids of the brokers that it is about."""
    role, _, rest = _words(row["cause"]).partition(" ")
    ids = followers if role == "follower" else [row["leader_before"]] if role == "leader" else []
    of = [", ".join(str(one) for one in ids if one is not None)]
    return " ".join(filter(None, [role, *of, rest]))


def _name(row: _Row) -> str:
    return f"{row['topic']}-{row['partition']}"


def _words(cause: str | None) -> str:
    return (cause or "").replace("_", " ")
