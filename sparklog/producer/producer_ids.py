"""Ids of idempotent producers, and epochs that fence older producers of the same id (3.8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.clock import Clock, SystemClock
from sparklog.cluster.connection import Connection
from sparklog.errors import DamagedError, ProtocolError
from sparklog.model import PRODUCER_IDS
from sparklog.storage.commits import Cause
from sparklog.storage.control_table import ControlTable
from sparklog.storage.control_table_damage import remedy

BLOCK_SIZE = 1000
"""The number of ids that a client takes at once, as Kafka's brokers do."""

_MAX_ID, _MAX_EPOCH = (1 << 63) - 1, (1 << 31) - 1

RENEWAL_MS = 3_600_000
"""The interval in ms at which a producer renews its transactional id: half of the shortest
expiration."""


class ProducerId(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    producer_epoch: int


class ProducerIds:
    """Allots producer ids to the producers of this process; takes them in blocks."""

    def __init__(self, connection: Connection, clock: Clock | None = None) -> None:
        self._root = connection.root
        self._clock = clock or SystemClock()
        self._free: list[int] = []

    @property
    def _table(self) -> ControlTable:
        # Opened when an id is needed first: a producer that is not idempotent may not read it.
        return self._root.producer_ids

    def allot(self, transactional_id: str | None = None) -> ProducerId:
        """Return a producer id.

        A `transactional_id` keeps its producer id until it expires, and gets a higher epoch at each
        call. Older producers under it are refused from then on (INVALID_PRODUCER_EPOCH).
        """
        if transactional_id is not None:
            now_ms = self._clock.now_ms()
            return self._table.update(
                lambda rows: _fencing(rows, transactional_id, now_ms),
                cause=Cause("ALLOT PRODUCER IDS", {"transactionalId": transactional_id}),
            )
        if not self._free:
            first = self._table.update(
                lambda rows: _block(rows, BLOCK_SIZE), cause=Cause("ALLOT PRODUCER IDS")
            )
            self._free = list(range(first, first + BLOCK_SIZE))
        return ProducerId(self._free.pop(0), 0)

    def renew(self, transactional_id: str, held: ProducerId) -> None:
        """Keep a transactional id from expiring; the producer that holds it calls this.

        If it has expired and no other producer has begun under it since, it is registered again.
        Raises INVALID_PRODUCER_EPOCH if another producer has begun under it.
        """
        now_ms = self._clock.now_ms()
        self._table.update(
            lambda rows: (_renewed(rows, transactional_id, held, now_ms), None),
            cause=Cause("RENEW TRANSACTIONAL ID", {"transactionalId": transactional_id}),
        )


def _block(table: pa.Table, size: int) -> tuple[pa.Table, int]:
    """Take `size` ids. The row without a transactional id has the next free id.

    A client may have appended further rows without one: the highest next id counts, and the other
    rows are dropped. Raises `DamagedError` if none of them has a usable id.
    """
    rows: list[dict[str, Any]] = table.to_pylist()
    counters = [row for row in rows if row["transactional_id"] is None]
    usable = [one for row in counters if 0 <= (one := _number(row)) <= _MAX_ID - size]
    if counters and not usable:
        path = f"the table {PRODUCER_IDS.name}"
        raise DamagedError(path, "it has no usable next id", remedy(PRODUCER_IDS.name))
    first = max(usable, default=0)
    counter = dict.fromkeys(PRODUCER_IDS.columns.names) | {"next_producer_id": first + size}
    others = [row for row in rows if row["transactional_id"] is not None]
    return PRODUCER_IDS.rows([*others, counter]), first


def _number(row: Mapping[str, Any]) -> int:
    """Return the next id of a row, -1 if it is null."""
    found = row["next_producer_id"]
    return -1 if found is None else int(found)


def _is_usable(row: Mapping[str, Any]) -> bool:
    """Return whether a transactional id's row has a producer id and an epoch that can rise."""
    numbers = row["producer_id"], row["producer_epoch"]
    return None not in numbers and numbers[0] >= 0 and -1 <= numbers[1] < _MAX_EPOCH


def _renewed(table: pa.Table, transactional_id: str, held: ProducerId, now_ms: int) -> pa.Table:
    rows: list[dict[str, Any]] = table.to_pylist()
    mine = next((row for row in rows if row["transactional_id"] == transactional_id), None)
    if mine is None:
        mine = {"transactional_id": transactional_id, **held._asdict()}
        rows.append(mine)
    if (mine["producer_id"], mine["producer_epoch"]) != held:
        raise ProtocolError(
            "INVALID_PRODUCER_EPOCH",
            f"another producer has begun under transactional.id {transactional_id!r}: this one "
            "is fenced, so close it",
        )
    mine["used_at_ms"] = now_ms
    return PRODUCER_IDS.rows(rows)


def _fencing(table: pa.Table, transactional_id: str, now_ms: int) -> tuple[pa.Table, ProducerId]:
    rows: list[dict[str, Any]] = table.to_pylist()
    mine = next((row for row in rows if row["transactional_id"] == transactional_id), None)
    if mine is not None and not _is_usable(mine):
        # The epochs are used up, or the row is not one of a producer: it gets another id.
        rows.remove(mine)
        table, mine = PRODUCER_IDS.rows(rows), None
    if mine is None:
        table, first = _block(table, 1)
        rows = table.to_pylist()
        mine = {
            "next_producer_id": None,
            "transactional_id": transactional_id,
            "producer_id": first,
            "producer_epoch": -1,
        }
        rows.append(mine)
    mine["producer_epoch"] += 1
    mine["used_at_ms"] = now_ms
    return PRODUCER_IDS.rows(rows), ProducerId(mine["producer_id"], mine["producer_epoch"])
