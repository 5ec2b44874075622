"""One request table of an inbox: its pending requests, and those that are dealt with.

A request is dealt with when the journal says so, in the commit that has its effects; it stays in
the table a while longer. The position in the journal is a version of the request table, and the
requests after that version that are dealt with. So each request is dealt with once.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import NamedTuple

from sparklog.clock import Clock, Interval
from sparklog.cluster.roots import BrokerRoot
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.storage.commit_retries import ATTEMPTS
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.journal import InboxPosition, inbox_transaction
from sparklog.storage.request_files import ProduceRequest
from sparklog.storage.request_table import Added, RequestTable

_log = get_logger(__name__)

_TRIM_INTERVAL_MS, _STORE_TRIM_INTERVAL_MS = 5_000, 30_000
"""Time in ms that taken requests stay in the table: on a local file system, on an object store."""

_MOST_TAKEN = 500
"""Number of taken requests from which on they are removed at once."""

_ATTEMPTS_IN_A_TICK = 5
"""Attempts to commit a removal within a tick; the waits between them add up to 15 ms at most."""


class Found(NamedTuple):
    """The times in ms, on the broker's clock, at which a request was found.

    It was not there at `unseen_since_ms`, the time of the read before; `None` if there was none.
    """

    at_ms: int
    unseen_since_ms: int | None


class InboxTable:
    """The requests of one request table of a root.

    Parameters: `polled_at_ms`, the wall-clock time of this process's last read of the inbox, if
    any; `beside`, the executor that removes requests in parallel to ticks, or `None` if ticks wait
    for the removal.
    """

    def __init__(
        self,
        root: BrokerRoot,
        table: RequestTable,
        polled_at_ms: int | None,
        beside: Executor | None,
        clock: Clock,
    ) -> None:
        self._root = root
        self._table = table
        self._failures = RepeatedFailures(_log)
        self._generation = table.generation
        self._polled_at_ms = polled_at_ms
        self._polled_version = -1
        self.waiting: dict[Added, ProduceRequest] = {}
        """The pending requests."""
        self.found: dict[Added, Found] = {}
        """For each of them, when it was found."""
        self.loaded: set[Added] = set()
        """Those of them that are being dealt with."""
        self._taken: set[Added] = set()
        self._interval = Interval(clock)
        self._beside = beside
        self._removing: Future[frozenset[Added]] | None = None
        # The next read finds the requests that an earlier process has taken.
        self._known = self._recovered()

    @property
    def table_id(self) -> str:
        """The id of the table; a table that replaces it has another id."""
        return self._table.table_id

    def poll(self, now_ms: int) -> None:
        """Read the table, and note since when each request may have been there (rule 10.1)."""
        self._table.refresh()
        if self._table.generation != self._generation:
            # The requests of the replaced table are gone; their clients send them again.
            self._generation = self._table.generation
            self._polled_version = -1
            for of in (self.waiting, self.found, self.loaded, self._taken):
                of.clear()
        recorded = self._root.log.inbox_positions.get(self._table.table_id)
        known, self._known = self._known, recorded or self._known
        is_taken_elsewhere = self._known != known
        if self._table.version != self._polled_version or is_taken_elsewhere:
            since = -1 if is_taken_elsewhere else self._polled_version
            for at, request in self._table.requests_after(since).items():
                if self._was_taken(at):
                    self._taken.add(at)
                    self.waiting.pop(at, None)
                elif at not in self._taken:
                    self.waiting[at] = request
                    self.found.setdefault(at, Found(now_ms, self._polled_at_ms))
            self._polled_version = self._table.version
        self._polled_at_ms = now_ms

    def _recovered(self) -> InboxPosition | None:
        """Return the position of the table at the time of the checkpoint."""
        checkpoint = self._root.high_watermark_checkpoint
        version = checkpoint.transaction(inbox_transaction(self._table.table_id))
        return InboxPosition(self._table.table_id, version) if version is not None else None

    def _was_taken(self, at: Added) -> bool:
        """Return whether a request is taken by the journal."""
        known = self._known
        if known is None or known.table_id != self._table.table_id:
            return False
        return at.version <= known.version or at in known.beyond

    def position(self) -> InboxPosition | None:
        """Return the position of the table once all loaded requests are dealt with.

        `None` if no request is loaded.
        """
        if not self.loaded:
            return None
        left = [at.version - 1 for at in self.waiting.keys() - self.loaded]
        version = min([self._polled_version, *left])
        beyond = sorted(at for at in self.loaded | self._taken if at.version > version)
        return InboxPosition(self._table.table_id, version, tuple(beyond))

    def note_committed(self, position: InboxPosition | None) -> None:
        """Note that all loaded requests are dealt with durably; `position`, as it was committed."""
        self._taken |= self.loaded
        for at in self.loaded:
            self.waiting.pop(at, None)
            self.found.pop(at, None)
        self.loaded.clear()
        self._known = position or self._known

    def trim(self) -> None:
        """Remove taken requests if that is due; a failure is only logged."""
        if self._removing is not None:
            if not self._removing.done():
                return
            self._taken -= self._removing.result()
            self._removing = None
        is_due = self._interval.is_over or len(self._taken) >= _MOST_TAKEN
        if not self._taken or not is_due:
            return
        self._interval.begin(_TRIM_INTERVAL_MS if self._beside is None else _STORE_TRIM_INTERVAL_MS)
        taken = frozenset(self._taken)
        if self._beside is None:
            self._taken -= self._remove(taken)
        else:
            self._removing = self._beside.submit(self._remove, taken)

    def _remove(self, taken: frozenset[Added]) -> frozenset[Added]:
        """Remove requests from the table; return those that were removed."""
        try:
            # Under continuous appends a tick gives up early, and a later one removes the requests.
            self._table.remove(taken, _ATTEMPTS_IN_A_TICK if self._beside is None else ATTEMPTS)
        except UNREADABLE as error:
            self._failures.warning(
                "remove",
                "requests not removed",
                table=self._table.location.uri,
                error=str(error),
            )
            return frozenset()
        self._failures.over("remove")
        return taken
