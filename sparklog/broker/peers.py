"""The journals of other brokers' roots, each opened once and read for all roles of a broker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from sparklog.cluster.replica_rows import ReplicaRows
from sparklog.storage.location import Location
from sparklog.storage.seen_versions import JournalOf


class Peer(NamedTuple):
    """A root of another broker, by its number, and the process that owns it.

    A restarted broker may have new tables under the old names.
    """

    broker_id: int
    root: int
    broker_epoch: int


class Peers:
    """The peers whose journals are open; `locate` returns the location of a root."""

    def __init__(self, locate: Callable[[int, int], Location]) -> None:
        self._locate = locate
        self._open: dict[Peer, ReplicaRows] = {}

    def rows(self, of: Peer) -> ReplicaRows:
        """Return the rows of a peer, opening its journal if necessary; raises errors of opening."""
        if of not in self._open:
            self._open[of] = ReplicaRows(self._locate(of.broker_id, of.root))
        return self._open[of]

    def opened(self, of: Peer) -> ReplicaRows | None:
        """Return the rows of a peer whose journal is open, otherwise `None`."""
        return self._open.get(of)

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._open)

    def versions(self) -> dict[JournalOf, int]:
        """Return the versions of the open journals. May be called from any thread."""
        return {JournalOf(*of): rows.journal.version for of, rows in list(self._open.items())}

    def keep(self, registered: Collection[tuple[int, int]]) -> None:
        """Close the journals of all processes but these, given by broker id and broker epoch."""
        self._open = {
            of: rows
            for of, rows in self._open.items()
            if (of.broker_id, of.broker_epoch) in registered
        }

    def release(self, of: Peer) -> None:
        """Close a peer's journal; it is opened again when it is read again."""
        self._open.pop(of, None)

    def poll_ahead(
        self,
        *,
        to_end: bool,
        least: int = 1,
        is_due: Callable[[Peer, int], bool] = lambda _, __: True,
    ) -> None:
        """Poll object stores for the next commits of the journals, without blocking the caller.

        `least`: the minimum number of commits of each journal that are requested; `is_due`, whether
        to poll a journal of which a version was read.
        """
        for of, rows in self._open.items():
            if is_due(of, rows.journal.version) or to_end:
                rows.journal.poll_ahead(to_end=to_end, least=least)

    def have_news(self) -> bool:
        """Return True if a peer has certainly committed; always False for object stores."""
        return any(rows.has_news() for rows in list(self._open.values()))
