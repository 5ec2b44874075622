"""A broker's row in `brokers`: registering, heartbeats, parking and stopping (rule 7.2)."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from sparklog.clock import Clock
from sparklog.errors import FencedError, ProtocolError
from sparklog.logger import get_logger
from sparklog.model import BROKERS, HIGH_WATERMARK_CHECKPOINT, PARTITION_STATE, BrokerState
from sparklog.storage.control_table import ControlTable
from sparklog.storage.delta_log import table_identity
from sparklog.storage.location import Location
from sparklog.storage.roots import ClusterRoot

_log = get_logger(__name__)

_WATCH_SECONDS = 0.2

Row = dict[str, Any]


def await_session(
    brokers: ControlTable, broker_id: int, session_timeout_ms: int, clock: Clock
) -> None:
    """Wait until the last process of this broker is known to be gone.

    It is gone where its row says so, or where its heartbeat does not change for the session
    timeout. Raises DUPLICATE_BROKER_REGISTRATION as soon as the heartbeat does change: another
    process plays this broker.
    """
    since_ms = clock.monotonic_ms()
    first = _row(brokers, broker_id)
    while first is not None and first["state"] == "alive":
        if clock.monotonic_ms() - since_ms > session_timeout_ms:
            return
        time.sleep(_WATCH_SECONDS)
        now = _row(brokers, broker_id)
        if now is None or now["state"] != "alive":
            return
        if now["heartbeat"] != first["heartbeat"] or now["broker_epoch"] != first["broker_epoch"]:
            raise ProtocolError(
                "DUPLICATE_BROKER_REGISTRATION",
                f"broker {broker_id} is registered and alive: stop that process first, or give "
                "this one another broker.id",
            )


def register(
    cluster: ClusterRoot, broker_id: int, roots: list[Location], rack: str | None, now_ms: int
) -> int:
    """Register a broker and return its broker epoch, which is higher than any before.

    The caller knows the broker's last process to be gone (`await_session`); if it is not, the
    new epoch fences it. A parked broker with the same roots resumes under the epoch it had. The
    logs' ids and versions go along, and again with every heartbeat: a broker that has lost a root,
    or comes back with an older copy of it or of its log alone, leaves the in-sync sets of what it
    had there before it counts as alive, and is not eligible to lead.
    """
    uris = json.dumps([root.uri for root in roots])
    identities = [table_identity(root.child("log")) for root in roots]
    identity = {
        "log_table_id": json.dumps([table_id for table_id, _ in identities]),
        "log_version": json.dumps([version for _, version in identities]),
    }
    described = [_described_log_version(root) for root in roots]

    def change(rows: pa.Table) -> tuple[pa.Table, tuple[int, set[int]]]:
        others = [row for row in rows.to_pylist() if row["broker_id"] != broker_id]
        mine = next((row for row in rows.to_pylist() if row["broker_id"] == broker_id), None)
        lost = _lost_roots(mine, identity, described) if mine is not None else set()
        if mine is not None and not lost and mine["state"] == "parked" and mine["roots"] == uris:
            epoch = int(mine["broker_epoch"])
        else:
            epoch = max((row["broker_epoch"] for row in rows.to_pylist()), default=0) + 1
        row = {
            "broker_id": broker_id,
            "broker_epoch": epoch,
            "roots": uris,
            "rack": rack,
            **identity,
            "state": "alive",
            "registered_at_ms": now_ms,
            "heartbeat": mine["heartbeat"] + 1 if mine else 0,
        }
        if mine is not None and lost:
            # Until it has left the in-sync sets; a start that ends before that finds it again.
            row |= {"state": "fenced", **{name: mine[name] for name in identity}}
        return BROKERS.rows(_sorted([*others, row])), (epoch, lost)

    epoch, lost = cluster.brokers.update(change)
    if lost:
        _log.warning("roots lost or restored", broker=broker_id, roots=[*map(str, sorted(lost))])
        _leave_all_sets(cluster.partition_state, broker_id, lost)
        heartbeat(cluster.brokers, broker_id, epoch, changes=identity)
    return epoch


def heartbeat(
    brokers: ControlTable,
    broker_id: int,
    broker_epoch: int,
    state: BrokerState = "alive",
    changes: Mapping[str, Any] | None = None,
) -> None:
    """Say that the broker lives (or is parked, or stopped), by changing its row.

    `changes` are further columns to set. Raises `FencedError` where a newer process has
    registered as this broker.
    """

    def change(rows: pa.Table) -> tuple[pa.Table, None]:
        result: list[Row] = rows.to_pylist()
        mine = next((row for row in result if row["broker_id"] == broker_id), None)
        check_registered(mine["broker_epoch"] if mine else None, broker_id, broker_epoch)
        for row in result:
            if row["broker_id"] == broker_id:
                row |= {"heartbeat": row["heartbeat"] + 1, "state": state, **(changes or {})}
        return BROKERS.rows(result), None

    brokers.update(change)


def check_registered(registered_epoch: int | None, broker_id: int, broker_epoch: int) -> None:
    """Raise `FencedError` where a newer process has registered as this broker."""
    if registered_epoch != broker_epoch:
        raise FencedError(
            f"another process has registered as broker {broker_id}: this one must stop"
        )


def _described_log_version(root: Location) -> int:
    """Return the newest version of a root's log that the checkpoint beside it speaks of."""
    rows = ControlTable(root, HIGH_WATERMARK_CHECKPOINT).rows().to_pylist()
    return max((row["log_version"] for row in rows), default=0)


def _lost_roots(before: Row, now: Row, described: Sequence[int]) -> set[int]:
    """Return which roots are not what the broker had last, by their number."""
    ids, ids_now = json.loads(before["log_table_id"]), json.loads(now["log_table_id"])
    versions, versions_now = json.loads(before["log_version"]), json.loads(now["log_version"])
    return {
        index
        for index, (table_id, version) in enumerate(zip(ids, versions, strict=True))
        if ids_now[index : index + 1] != [table_id]
        or versions_now[index] < max(version, described[index])
    }


def _leave_all_sets(partition_state: ControlTable, broker_id: int, roots: set[int]) -> None:
    """Be in sync and eligible nowhere in these roots, even as the last one (7.2, 7.5).

    The partition epoch rises also where the broker was in neither set: a leader may be about to
    let it join by what it has reported before (5.2).
    """

    def change(rows: pa.Table) -> tuple[pa.Table | None, None]:
        result: list[Row] = rows.to_pylist()
        left = {
            (row["topic_id"], row["partition"])
            for row in result
            if row["broker_id"] == broker_id and row["root"] in roots
        }
        for row in result:
            if (row["topic_id"], row["partition"]) in left:
                row["in_isr"] &= row["broker_id"] != broker_id
                row["in_elr"] &= row["broker_id"] != broker_id
                row["partition_epoch"] += 1
        return (PARTITION_STATE.rows(result) if left else None), None

    partition_state.update(change)


def _row(brokers: ControlTable, broker_id: int) -> Row | None:
    brokers.refresh()
    return next((row for row in brokers.rows().to_pylist() if row["broker_id"] == broker_id), None)


def _sorted(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: int(row["broker_id"]))
