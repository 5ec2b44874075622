"""A broker's row in `brokers`: registering, heartbeats, parking and stopping (rule 7.2)."""

from __future__ import annotations

import json
import time
from typing import Any

import pyarrow as pa

from sparklog.clock import Clock
from sparklog.errors import FencedError, ProtocolError
from sparklog.model import BROKERS, BrokerState
from sparklog.storage.control_table import ControlTable
from sparklog.storage.delta_log import table_identity
from sparklog.storage.location import Location

_WATCH_SECONDS = 0.2


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
    brokers: ControlTable, broker_id: int, roots: list[Location], rack: str | None, now_ms: int
) -> int:
    """Register a broker and return its broker epoch, which is higher than any before.

    The caller knows the broker's last process to be gone (`await_session`); if it is not, the
    new epoch fences it. A parked broker with the same roots resumes under the epoch it had. The
    log's id and version go along, so that a lost or restored root shows.
    """
    table_id, log_version = table_identity(roots[0].child("log"))
    uris = json.dumps([root.uri for root in roots])

    def change(rows: pa.Table) -> tuple[pa.Table, int]:
        others = [row for row in rows.to_pylist() if row["broker_id"] != broker_id]
        mine = next((row for row in rows.to_pylist() if row["broker_id"] == broker_id), None)
        is_resumed = mine is not None and mine["state"] == "parked" and mine["roots"] == uris
        if mine is not None and is_resumed:
            epoch = int(mine["broker_epoch"])
        else:
            epoch = max((row["broker_epoch"] for row in rows.to_pylist()), default=0) + 1
        row = {
            "broker_id": broker_id,
            "broker_epoch": epoch,
            "roots": uris,
            "rack": rack,
            "log_table_id": table_id,
            "log_version": log_version,
            "state": "alive",
            "registered_at_ms": now_ms,
            "heartbeat": mine["heartbeat"] + 1 if mine else 0,
        }
        return BROKERS.rows(_sorted([*others, row])), epoch

    return brokers.update(change)


def heartbeat(
    brokers: ControlTable, broker_id: int, broker_epoch: int, state: BrokerState = "alive"
) -> None:
    """Say that the broker lives (or is parked, or stopped), by changing its row.

    Raises `FencedError` where a newer process has registered as this broker.
    """

    def change(rows: pa.Table) -> tuple[pa.Table, None]:
        result: list[dict[str, Any]] = rows.to_pylist()
        mine = next((row for row in result if row["broker_id"] == broker_id), None)
        if mine is None or mine["broker_epoch"] != broker_epoch:
            raise FencedError(
                f"another process has registered as broker {broker_id}: this one must stop"
            )
        mine["heartbeat"] += 1
        mine["state"] = state
        return BROKERS.rows(result), None

    brokers.update(change)


def _row(brokers: ControlTable, broker_id: int) -> dict[str, Any] | None:
    brokers.refresh()
    return next((row for row in brokers.rows().to_pylist() if row["broker_id"] == broker_id), None)


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: int(row["broker_id"]))
