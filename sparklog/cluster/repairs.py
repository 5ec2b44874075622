"""Findings of scrubs and their repair: the rows of the table `repairs`, and requests to brokers.

A scrub records its findings. `sparklog repair` restores files, and requests from a broker what only
that broker may do: commits to its own log. A request is durable: the row has the state `requested`,
and the broker's row in `brokers` counts the requests. A broker reads `brokers` anyway, so an idle
broker pays nothing for the table.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import xxhash

from sparklog.cluster.roots import ClusterRoot
from sparklog.model import BROKERS, REPAIRS, TopicIdPartition
from sparklog.storage.commits import Cause
from sparklog.storage.control_table import ControlTable
from sparklog.storage.delta_log_check import LogFileFault
from sparklog.storage.file_states import FileFault

Fault = (
    FileFault
    | LogFileFault
    | Literal["damaged_header", "damaged_table_file", "missing_table", "records_differ"]
)
"""The kinds of findings: see `FileFault` and `LogFileFault`.

damaged_header: a header of a replica's log was changed, or the log has a gap or an overlap.
damaged_table_file: a file of a control table is missing or was changed.
damaged_copy: the second copy of a file of a table was changed; the file itself is sound.
missing_table: a table is missing from a root that is in place.
records_differ: an in-sync replica has other committed records than the leader (rule 9.2).
"""

RepairState = Literal["found", "requested", "refilling", "unrepairable", "repaired", "gone"]
"""The states of a finding.

found: recorded by a scrub. requested: its broker is to repair it. refilling: its replica has left,
or is about to leave, the ISR and is refilled from the leader. unrepairable: no replica has the
records, or only an operator can restore the file. repaired: restored, rebuilt or refilled. gone:
the damaged object is no longer part of the cluster, or was found sound.
"""

OPEN_STATES: frozenset[RepairState] = frozenset({"found", "requested", "refilling", "unrepairable"})
"""The states of findings that are not repaired yet."""

_KEPT = 1_000
"""The number of repaired and gone findings that are kept."""


class Repair(NamedTuple):
    """A finding: a row of the table `repairs`.

    Attributes
    ----------
    repair_id : str
        Its id, which is the same in each scrub that finds the same damage.
    state : str
        found, requested, refilling, unrepairable, repaired or gone.
    fault : str
        The kind of damage.
    detail : str
        The damage in words.
    broker_id : int or None
        The broker whose root is damaged; `None` for the cluster root.
    root : str
        The URI of the root.
    table_name : str
        The table in the root.
    path : str or None
        The damaged file, relative to its table; `None` if the replica or the table is damaged as a
        whole.
    topic_id : str or None
        The topic's id; `None` if no replica is concerned.
    topic : str or None
        The topic's name.
    partition : int or None
        The partition's number.
    first_offset : int or None
        The first offset that is concerned.
    last_offset : int or None
        The last one.
    source_broker_id : int or None
        The broker from whose replica it can be, or was, repaired.
    remedy : str
        What to do.
    outcome : str
        What was done, or an empty text.
    found_at_ms : int
        The time of the first finding, in ms since 1970.
    changed_at_ms : int
        The time of the last change of the row, in ms since 1970.

    Examples
    --------
    >>> from sparklog import Connection
    >>> from sparklog.cluster.repairs import repairs_of
    >>> repairs_of(Connection("sparklog-data/cluster").root)
    []
    """

    repair_id: str
    state: RepairState
    fault: Fault
    detail: str
    broker_id: int | None
    root: str
    table_name: str
    path: str | None
    topic_id: str | None
    topic: str | None
    partition: int | None
    first_offset: int | None
    last_offset: int | None
    source_broker_id: int | None
    remedy: str
    outcome: str
    found_at_ms: int
    changed_at_ms: int

    @property
    def is_open(self) -> bool:
        """Whether the damage is not repaired yet."""
        return self.state in OPEN_STATES

    @property
    def key(self) -> TopicIdPartition | None:
        """The partition whose replica is damaged, or `None`."""
        if self.topic_id is None or self.partition is None:
            return None
        return TopicIdPartition(self.topic_id, self.partition)

    @property
    def place(self) -> tuple[str, str, str]:
        """The damaged object: root, table, and file or partition; `place_of` makes such a key."""
        return place_of(self.root, self.table_name, self.path, self.key)


def place_of(
    root: str, table_name: str, path: str | None, key: TopicIdPartition | None = None
) -> tuple[str, str, str]:
    """Return the key of an object that can be damaged: a file, a replica or a whole table."""
    whole = "" if key is None else f"{key.topic_id}-{key.partition}"
    return root, table_name, path or whole


def finding(
    fault: Fault,
    detail: str,
    root: str,
    table_name: str,
    *,
    broker_id: int | None,
    path: str | None = None,
    key: TopicIdPartition | None = None,
    topic: str | None = None,
    offsets: tuple[int, int] | None = None,
    source_broker_id: int | None = None,
    remedy: str,
    now_ms: int,
) -> Repair:
    """Return a new finding; its id depends on the damaged object and the kind of damage."""
    first, last = offsets if offsets is not None else (None, None)
    identity = "\0".join([*place_of(root, table_name, path, key), fault])
    digest = xxhash.xxh3_64_hexdigest(identity.encode())
    return Repair(
        digest,
        "found",
        fault,
        detail,
        broker_id,
        root,
        table_name,
        path,
        key.topic_id if key else None,
        topic,
        key.partition if key else None,
        first,
        last,
        source_broker_id,
        remedy,
        "",
        now_ms,
        now_ms,
    )


def repairs_of(root: ClusterRoot) -> list[Repair]:
    """Return all findings in a cluster's table, sorted by the time of the finding.

    Parameters
    ----------
    root : ClusterRoot
        The root of the cluster.

    Returns
    -------
    list of Repair
        Open, repaired and gone findings.

    Examples
    --------
    >>> from sparklog import Connection
    >>> from sparklog.cluster.repairs import repairs_of
    >>> repairs_of(Connection("sparklog-data/cluster").root)
    []
    """
    root.repairs.refresh()
    return sorted(_repairs(root.repairs.rows()), key=_order)


def record(
    table: ControlTable, found: Sequence[Repair], gone: Mapping[str, str], now_ms: int
) -> None:
    """Record findings, and close those that are gone.

    Parameters: `gone`, the reasons by the ids of findings. A finding that is not repaired yet keeps
    its state. A repaired one that is found again is a new finding.
    """
    if not found and not gone:
        return

    def change(rows: pa.Table) -> tuple[pa.Table | None, None]:
        before = {one.repair_id: one for one in _repairs(rows)}
        after = dict(before)
        for one in found:
            known = before.get(one.repair_id)
            if known is None or not known.is_open:
                after[one.repair_id] = one
            elif known.state in ("found", "unrepairable") or _is_wider(one, known):
                [both] = merged([known, one]) if one.fault == "records_differ" else [one]
                after[one.repair_id] = both._replace(
                    state=known.state, outcome=known.outcome, found_at_ms=known.found_at_ms
                )
        for repair_id, reason in gone.items():
            known = before.get(repair_id)
            if known is not None and known.is_open:
                is_refilled = known.state == "refilling"
                state: RepairState = "repaired" if is_refilled else "gone"
                after[repair_id] = known._replace(state=state, outcome=reason, changed_at_ms=now_ms)
        return (None if after == before else _table(after.values())), None

    table.update(change, cause=Cause("NOTE FINDINGS"))


def merged(found: Iterable[Repair]) -> Iterable[Repair]:
    """Return one finding for those of one id: with the offsets of all, and the text of the first.

    A replica that differs is refilled from its first differing record on.
    """
    by_id: dict[str, Repair] = {}
    for one in sorted(found, key=lambda one: one.first_offset or 0):
        known = by_id.setdefault(one.repair_id, one)
        last = max(known.last_offset or 0, one.last_offset or 0)
        by_id[one.repair_id] = known._replace(last_offset=last)
    return by_id.values()


def _is_wider(one: Repair, known: Repair) -> bool:
    """Return whether a finding has other offsets than one that its broker has not acted on yet."""
    if one.fault != "records_differ" or known.state != "requested":
        return False
    return (one.first_offset or 0) < (known.first_offset or 0) or (
        (one.last_offset or 0) > (known.last_offset or 0)
    )


def set_outcomes(table: ControlTable, outcomes: Mapping[str, Mapping[str, Any]]) -> None:
    """Change rows that are still open: new values of columns by the ids of findings."""

    def change(rows: pa.Table) -> tuple[pa.Table | None, None]:
        before = _repairs(rows)
        after = [
            one._replace(**outcomes[one.repair_id])
            if one.is_open and one.repair_id in outcomes
            else one
            for one in before
        ]
        return (None if after == before else _table(after)), None

    if outcomes:
        table.update(change, cause=Cause("NOTE OUTCOMES"))


def request_repairs(brokers: ControlTable, broker_ids: Collection[int]) -> None:
    """Count a request in the rows of these brokers; called after their rows in `repairs`.

    A running broker reads `repairs` when its count has changed, and a starting one if it has a
    count at all.
    """

    def change(rows: pa.Table) -> tuple[pa.Table | None, None]:
        after = rows.to_pylist()
        for row in after:
            if row["broker_id"] in broker_ids:
                row["repair_requests"] = (row["repair_requests"] or 0) + 1
        return BROKERS.rows(after), None

    if broker_ids:
        ids = {"brokerIds": json.dumps(sorted(broker_ids))}
        brokers.update(change, cause=Cause("REQUEST REPAIRS", ids))


def _repairs(rows: pa.Table) -> list[Repair]:
    return [Repair(*row.values()) for row in rows.select(list(Repair._fields)).to_pylist()]


def _order(one: Repair) -> tuple[int, str, str, str]:
    return one.found_at_ms, *one.place


def _table(repairs: Collection[Repair]) -> pa.Table:
    """Return the rows of the table, without the oldest closed findings."""
    closed = sorted((one for one in repairs if not one.is_open), key=lambda one: -one.changed_at_ms)
    kept = [one for one in repairs if one.is_open] + closed[:_KEPT]
    return REPAIRS.rows([one._asdict() for one in sorted(kept, key=_order)])
