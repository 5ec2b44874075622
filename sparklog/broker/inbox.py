"""The inbox of one broker root: the requests that wait in its request tables, as one list.

Whoever may reach the root may append anything to its request table, so nothing that is read here
is believed: what cannot be a request is marked so, and refused like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from sparklog.broker.inbox_table import InboxTable
from sparklog.broker.leader_roots import UNREADABLE
from sparklog.logger import get_logger
from sparklog.model import REQUEST_INDEX, batch_id
from sparklog.storage.batch_actions import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from sparklog.storage.journal import Taken
from sparklog.storage.location import one_line
from sparklog.storage.request_files import Request
from sparklog.storage.request_table import RequestTable
from sparklog.storage.request_tables import RequestTables
from sparklog.storage.roots import BrokerRoot

_log = get_logger(__name__)

_NO_ACKS = -99
_DEFAULTS: dict[str, Any] = {
    "request_id": "",
    "topic_id": "",
    "topic": "",
    "partition": -1,
    "leader_epoch": -1,
    "path": "",
    "record_count": 0,
    "byte_size": 0,
    "checksum": "",
    "min_timestamp_ms": 0,
    "max_timestamp_ms": 0,
    "producer_id": -1,
    "producer_epoch": -1,
    "base_sequence": -1,
    "acks": _NO_ACKS,
    "timeout_ms": 0,
}
"""What a column counts as that a request leaves out; each is refused where it matters."""

_MOST_RECORDS = (1 << 31) - 1

Group = tuple[str, str, int]
"""What is answered once: a partition of a request, by its request id, topic id and number."""


class Inbox:
    """The requests that wait in one root.

    Parameters: `looked_at_ms`, when an earlier process of the broker looked last, as far as it is
    known.
    """

    def __init__(self, root: BrokerRoot, looked_at_ms: int) -> None:
        self._root = root
        self._looked_at_ms = looked_at_ms
        # On an object store a tick does not wait for what keeps the tables.
        self._beside: ThreadPoolExecutor | None = None
        if not root.location.is_local:
            self._beside = ThreadPoolExecutor(1, thread_name_prefix="requests")
        self._tables: list[InboxTable] = []
        self._spreading: Future[list[RequestTable]] | None = None
        self._take_over(root.request_tables)

    @property
    def waiting(self) -> bool:
        """Whether the inbox has requests."""
        return any(table.waiting for table in self._tables)

    def look(self, now_ms: int) -> None:
        """Note which requests are there, and since when they may have been (rule 3.1)."""
        request_tables = self._root.request_tables
        self._spread(request_tables)
        self._take_over(request_tables)
        for number, inbox_table in enumerate(self._tables):
            if request_tables.is_asked(number):
                inbox_table.look(now_ms)
        self._looked_at_ms = now_ms

    def _take_over(self, request_tables: RequestTables) -> None:
        """Look into tables that were opened since the last look."""
        self._tables += [
            InboxTable(self._root, table, self._looked_at_ms, self._beside)
            for table in request_tables.tables[len(self._tables) :]
        ]

    def _spread(self, request_tables: RequestTables) -> None:
        """Have further tables created beside the ticks, and take them over when they are there."""
        if self._spreading is not None and self._spreading.done():
            spreading, self._spreading = self._spreading, None
            try:
                request_tables.add(spreading.result())
            except UNREADABLE as error:
                root = self._root.location.uri
                _log.warning("requests not spread", root=root, error=one_line(error))
        elif self._beside is not None and self._spreading is None and request_tables.is_to_spread:
            # Where that fails, it is tried again when producers compete again.
            request_tables.tables[0].is_contended = False
            self._spreading = self._beside.submit(request_tables.further)

    def load(self, now_ms: int) -> list[Request]:
        """Return the waiting requests, in order of arrival in each table.

        Beside its columns each has: `position`, its number; `added`, the number of its table, and
        where it was added there; `waited_ms`, how long it may have lain there unseen; `batch_id`;
        `claim_fault`, what no batch can be, or `None`; `repeats`, the position of an earlier one
        that names the same batch, or `None`.
        """
        rows: list[Request] = []
        for number, table in enumerate(self._tables):
            for at, waiting in table.waiting.items():
                table.loaded.add(at)
                given = {name: value for name, value in waiting.items() if value is not None}
                request = dict.fromkeys(REQUEST_INDEX.names) | _DEFAULTS | given
                request["added"] = number, at
                request["waited_ms"] = now_ms - table.unseen_since_ms[at]
                request["position"] = len(rows)
                request["batch_id"] = batch_id(request["path"])
                request["claim_fault"] = _claim_fault(request)
                rows.append(request)
        _mark_repetitions(rows)
        return rows

    def leave(self, requests: Iterable[Request]) -> None:
        """Leave some of what was loaded in the inbox: the next tick loads it again."""
        for request in requests:
            number, at = request["added"]
            self._tables[number].loaded.discard(at)

    def taken(self) -> list[Taken]:
        """Return how far the requests are taken when all that was loaded is dealt with.

        Of each table from which something was loaded.
        """
        return [taken for table in self._tables if (taken := table.taken()) is not None]

    def take(self, taken: Iterable[Taken]) -> None:
        """Note that all that was loaded has been dealt with, durably; `taken` is what was said."""
        told = {one.table_id: one for one in taken}
        for table in self._tables:
            table.take(told.get(table.table_id))

    def trim(self, now_ms: int) -> None:
        """Remove the requests that were taken, where it is time; a failure is only logged."""
        for table in self._tables:
            table.trim(now_ms)


def group(row: Mapping[str, Any]) -> Group:
    """Return which partition of which request a row belongs to."""
    return row["request_id"], row["topic_id"], row["partition"]


def _claim_fault(request: Request) -> str | None:
    """Say what no batch can be; numbers that run over are set to what is refused anyway."""
    if not request["request_id"]:
        return "nobody could be told what became of it"
    if not 0 < request["record_count"] <= _MOST_RECORDS:
        fault = f"it cannot hold {request['record_count']} records"
        request["record_count"] = 0
        return fault
    first_ms, last_ms = request["min_timestamp_ms"], request["max_timestamp_ms"]
    if not MIN_TIMESTAMP_MS <= first_ms <= last_ms <= MAX_TIMESTAMP_MS:
        return "its timestamps are none"
    producer = (request["producer_id"], request["producer_epoch"], request["base_sequence"])
    if producer != (-1, -1, -1) and min(producer) < 0:
        return "its producer is none"
    return None


def _mark_repetitions(requests: list[Request]) -> None:
    """Mark what names the batch of an earlier request: it shares what becomes of that one.

    A batch is known by its id, and that of an idempotent producer by its sequence as well; a file
    can be of one partition only (rules 3.6, 3.7).
    """
    first: dict[tuple[Any, ...], int] = {}
    partition_of: dict[str, tuple[str, int]] = {}
    for request in requests:
        partition = (request["topic_id"], request["partition"])
        if partition_of.setdefault(request["path"], partition) != partition:
            request["claim_fault"] = "its file is named for another partition, too"
        identities: list[tuple[Any, ...]] = [(*partition, request["batch_id"])]
        if request["producer_id"] >= 0:
            names = ("producer_id", "producer_epoch", "base_sequence", "record_count")
            identities.append((*partition, *(request[name] for name in names)))
        found = [first[identity] for identity in identities if identity in first]
        request["repeats"] = found[0] if found else None
        origin = found[0] if found else request["position"]
        for identity in identities:
            first.setdefault(identity, origin)
