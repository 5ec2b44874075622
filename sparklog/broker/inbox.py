"""The inbox of one broker root: which requests wait, and which of them are dealt with.

A request is dealt with when the journal says so, in the commit that has its effects; it stays in
the table a while longer. The position in the journal is a version of the request table, and the
requests beyond it that are dealt with, so each is dealt with once.

Whoever may reach the root may append anything to its request table, so nothing that is read here
is believed: what cannot be a request is marked so, and refused like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from sparklog.broker.leader_roots import UNREADABLE
from sparklog.logger import get_logger
from sparklog.model import REQUEST_INDEX, batch_id
from sparklog.storage.batch_actions import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from sparklog.storage.journal import Taken, taken_transaction
from sparklog.storage.request_files import Request
from sparklog.storage.request_table import Added
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

_TRIM_INTERVAL_MS, _STORE_TRIM_INTERVAL_MS = 5_000, 30_000
"""How long requests that were taken stay in the table, in a folder and on an object store, and how
many at most."""

_MOST_TAKEN = 500

Group = tuple[str, str, int]
"""What is answered once: a partition of a request, by its request id, topic id and number."""


class Inbox:
    """The requests that wait in one root.

    Parameters: `looked_at_ms`, when an earlier process of the broker looked last, as far as it is
    known.
    """

    def __init__(self, root: BrokerRoot, looked_at_ms: int) -> None:
        self._root = root
        self._table = root.produce_requests
        self._generation = self._table.generation
        self._looked_at_ms = looked_at_ms
        self._looked_version = -1
        self._waiting: dict[Added, Request] = {}
        self._unseen_since_ms: dict[Added, int] = {}
        self._loaded: set[Added] = set()
        self._taken: set[Added] = set()
        self._trim_at_ms = 0
        # On an object store a tick does not wait for it.
        self._beside: ThreadPoolExecutor | None = None
        if not self._table.location.is_local:
            self._beside = ThreadPoolExecutor(1, thread_name_prefix="requests")
        self._removing: Future[frozenset[Added]] | None = None
        # What an earlier process has taken is found by the next look.
        self._known = self._recovered()

    @property
    def waiting(self) -> bool:
        """Whether the inbox has requests."""
        return bool(self._waiting)

    def look(self, now_ms: int) -> None:
        """Note which requests are there, and since when they may have been (rule 3.1)."""
        self._table.refresh()
        if self._table.generation != self._generation:
            # The requests of the table that was replaced are gone; their clients send them again.
            self._generation = self._table.generation
            self._looked_version = -1
            for of in (self._waiting, self._unseen_since_ms, self._loaded, self._taken):
                of.clear()
        known, self._known = self._known, self._root.log.taken or self._known
        is_taken_elsewhere = self._known != known
        if self._table.version != self._looked_version or is_taken_elsewhere:
            since = -1 if is_taken_elsewhere else self._looked_version
            for at, request in self._table.requests_after(since).items():
                if self._was_taken(at):
                    self._taken.add(at)
                    self._waiting.pop(at, None)
                elif at not in self._taken:
                    self._waiting[at] = request
                    self._unseen_since_ms.setdefault(at, self._looked_at_ms)
            self._looked_version = self._table.version
        self._looked_at_ms = now_ms

    def _recovered(self) -> Taken | None:
        """Return how far the requests were taken when the checkpoint was written."""
        checkpoint = self._root.high_watermark_checkpoint
        version = checkpoint.transaction(taken_transaction(self._table.table_id))
        return Taken(self._table.table_id, version) if version is not None else None

    def _was_taken(self, at: Added) -> bool:
        """Say whether the journal says of a request that it is taken."""
        known = self._known
        if known is None or known.table_id != self._table.table_id:
            return False
        return at.version <= known.version or at in known.beyond

    def load(self, now_ms: int) -> list[Request]:
        """Return the waiting requests, in order of arrival.

        Beside its columns each has: `position`, its number; `added`, where it was added;
        `waited_ms`, how long it may have lain there unseen; `batch_id`; `claim_fault`, what no
        batch can be, or `None`; `repeats`, the position of an earlier one that names the same
        batch, or `None`.
        """
        rows: list[Request] = []
        for at, waiting in self._waiting.items():
            self._loaded.add(at)
            given = {name: value for name, value in waiting.items() if value is not None}
            request = dict.fromkeys(REQUEST_INDEX.names) | _DEFAULTS | given
            request["added"] = at
            request["waited_ms"] = now_ms - self._unseen_since_ms[at]
            request["position"] = len(rows)
            request["batch_id"] = batch_id(request["path"])
            request["claim_fault"] = _claim_fault(request)
            rows.append(request)
        _mark_repetitions(rows)
        return rows

    def leave(self, requests: Iterable[Request]) -> None:
        """Leave some of what was loaded in the inbox: the next tick loads it again."""
        self._loaded -= {request["added"] for request in requests}

    def taken(self) -> Taken | None:
        """Return how far the requests are taken when all that was loaded is dealt with.

        `None` where nothing was loaded.
        """
        if not self._loaded:
            return None
        left = [at.version - 1 for at in self._waiting.keys() - self._loaded]
        version = min([self._looked_version, *left])
        beyond = sorted(at for at in self._loaded | self._taken if at.version > version)
        return Taken(self._table.table_id, version, tuple(beyond))

    def take(self, taken: Taken | None) -> None:
        """Note that all that was loaded has been dealt with, durably; `taken` is what was said."""
        self._taken |= self._loaded
        for at in self._loaded:
            self._waiting.pop(at, None)
            self._unseen_since_ms.pop(at, None)
        self._loaded.clear()
        self._known = taken or self._known

    def trim(self, now_ms: int) -> None:
        """Remove the requests that were taken, where it is time; a failure is only logged."""
        if self._removing is not None:
            if not self._removing.done():
                return
            self._taken -= self._removing.result()
            self._removing = None
        is_due = now_ms >= self._trim_at_ms or len(self._taken) >= _MOST_TAKEN
        if not self._taken or not is_due:
            return
        interval_ms = _TRIM_INTERVAL_MS if self._beside is None else _STORE_TRIM_INTERVAL_MS
        self._trim_at_ms = now_ms + interval_ms
        taken = frozenset(self._taken)
        if self._beside is None:
            self._taken -= self._remove(taken)
        else:
            self._removing = self._beside.submit(self._remove, taken)

    def _remove(self, taken: frozenset[Added]) -> frozenset[Added]:
        """Remove requests from the table; return those that are gone."""
        try:
            self._table.remove(taken)
        except UNREADABLE as error:
            _log.warning("requests not removed", table=self._table.location.uri, error=str(error))
            return frozenset()
        return taken


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
