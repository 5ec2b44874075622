"""One request table of an inbox: which of its requests wait, and which of them are dealt with.

A request is dealt with when the journal says so, in the commit that has its effects; it stays in
the table a while longer. The position in the journal is a version of the request table, and the
requests beyond it that are dealt with, so each is dealt with once.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future

from sparklog.broker.leader_roots import UNREADABLE
from sparklog.logger import get_logger
from sparklog.storage.journal import Taken, taken_transaction
from sparklog.storage.request_files import Request
from sparklog.storage.request_table import Added, RequestTable
from sparklog.storage.roots import BrokerRoot

_log = get_logger(__name__)

_TRIM_INTERVAL_MS, _STORE_TRIM_INTERVAL_MS = 5_000, 30_000
"""How long requests that were taken stay in the table, in a folder and on an object store, and how
many at most."""

_MOST_TAKEN = 500


class InboxTable:
    """The requests of one request table of a root.

    Parameters: `looked_at_ms`, when the table was looked at last, as far as it is known; `beside`,
    what removes requests while ticks go on, `None` where they wait for it.
    """

    def __init__(
        self, root: BrokerRoot, table: RequestTable, looked_at_ms: int, beside: Executor | None
    ) -> None:
        self._root = root
        self._table = table
        self._generation = table.generation
        self._looked_at_ms = looked_at_ms
        self._looked_version = -1
        self.waiting: dict[Added, Request] = {}
        """The requests that are not dealt with yet."""
        self.unseen_since_ms: dict[Added, int] = {}
        """Since when each of them may have been there."""
        self.loaded: set[Added] = set()
        """Those of them that are being dealt with."""
        self._taken: set[Added] = set()
        self._trim_at_ms = 0
        self._beside = beside
        self._removing: Future[frozenset[Added]] | None = None
        # What an earlier process has taken is found by the next look.
        self._known = self._recovered()

    @property
    def table_id(self) -> str:
        """The id of the table, which is another one where it was replaced."""
        return self._table.table_id

    def look(self, now_ms: int) -> None:
        """Note which requests are there, and since when they may have been (rule 3.1)."""
        self._table.refresh()
        if self._table.generation != self._generation:
            # The requests of the table that was replaced are gone; their clients send them again.
            self._generation = self._table.generation
            self._looked_version = -1
            for of in (self.waiting, self.unseen_since_ms, self.loaded, self._taken):
                of.clear()
        told = self._root.log.taken.get(self._table.table_id)
        known, self._known = self._known, told or self._known
        is_taken_elsewhere = self._known != known
        if self._table.version != self._looked_version or is_taken_elsewhere:
            since = -1 if is_taken_elsewhere else self._looked_version
            for at, request in self._table.requests_after(since).items():
                if self._was_taken(at):
                    self._taken.add(at)
                    self.waiting.pop(at, None)
                elif at not in self._taken:
                    self.waiting[at] = request
                    self.unseen_since_ms.setdefault(at, self._looked_at_ms)
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

    def taken(self) -> Taken | None:
        """Return how far the requests are taken when all that was loaded is dealt with.

        `None` where nothing was loaded.
        """
        if not self.loaded:
            return None
        left = [at.version - 1 for at in self.waiting.keys() - self.loaded]
        version = min([self._looked_version, *left])
        beyond = sorted(at for at in self.loaded | self._taken if at.version > version)
        return Taken(self._table.table_id, version, tuple(beyond))

    def take(self, taken: Taken | None) -> None:
        """Note that all that was loaded has been dealt with, durably; `taken` is what was said."""
        self._taken |= self.loaded
        for at in self.loaded:
            self.waiting.pop(at, None)
            self.unseen_since_ms.pop(at, None)
        self.loaded.clear()
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
