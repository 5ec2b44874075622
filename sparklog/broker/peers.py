"""The journals of other brokers' roots, each opened once and followed for all roles of a broker."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from sparklog.storage.location import Location
from sparklog.storage.replica_rows import ReplicaRows


class Peer(NamedTuple):
    """A root of another broker, by its number, and the process that owns it.

    A broker that was started anew may have new tables under the old names.
    """

    broker_id: int
    root: int
    broker_epoch: int


class Peers:
    """The peers whose journals are open; `locate` returns where a root lies."""

    def __init__(self, locate: Callable[[int, int], Location]) -> None:
        self._locate = locate
        self._open: dict[Peer, ReplicaRows] = {}

    def rows(self, of: Peer) -> ReplicaRows:
        """Return the rows of a peer, opened where they are not; raises what opening it raises."""
        if of not in self._open:
            self._open[of] = ReplicaRows(self._locate(of.broker_id, of.root))
        return self._open[of]

    def opened(self, of: Peer) -> ReplicaRows | None:
        """Return the rows of a peer whose journal is open."""
        return self._open.get(of)

    def keep(self, registered: Collection[tuple[int, int]]) -> None:
        """Let go of all processes but these: the ids of brokers and their broker epochs."""
        self._open = {
            of: rows
            for of, rows in self._open.items()
            if (of.broker_id, of.broker_epoch) in registered
        }

    def let_go(self, of: Peer) -> None:
        """Open a peer's journal anew when it is read again."""
        self._open.pop(of, None)

    def look_ahead(self, *, to_end: bool, least: int = 1) -> None:
        """Ask object stores for the next commits of all journals, beside the caller.

        `least`: the number of commits of each that are asked for at least.
        """
        for rows in self._open.values():
            rows.journal.look_ahead(to_end=to_end, least=least)

    def have_news(self) -> bool:
        """Say whether a peer has certainly committed something; only told of roots in folders."""
        return any(rows.has_news() for rows in list(self._open.values()))
