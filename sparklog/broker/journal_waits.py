"""Fetches that wait at a broker of the same process for its next commit (rule 4.1).

Reading another broker's journal on an object store costs a request, even if nothing follows. The
brokers of one application know each other's versions, so an idle follower waits, as a fetch in
Kafka's purgatory, and costs no request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias

from sparklog.broker.peers import Peer
from sparklog.config import Settings

NewestVersion: TypeAlias = Callable[[Peer], int | None]
"""Returns the newest version of a broker's journal, or `None` if its process is another one."""


class JournalWaits:
    """The waits of one broker, by peer, on its monotonic clock.

    Invariant: a journal is polled once its broker has committed, and otherwise at least every
    replica.fetch.wait.max.ms. So a commit by a newer process of the broker is found, too.

    >>> waits = JournalWaits(lambda of: 7, Settings())
    >>> peer = Peer(1, 0, 4)
    >>> [waits.is_over(peer, version, ms) for version, ms in ((7, 0), (7, 499), (6, 499), (7, 999))]
    [True, False, True, True]
    """

    def __init__(self, newest_version: NewestVersion, settings: Settings) -> None:
        self._newest_version = newest_version
        self._settings = settings
        self._began_ms: dict[Peer, int] = {}

    def is_over(self, of: Peer, version: int, now_ms: int) -> bool:
        """Return whether to poll a journal of which `version` was read; a new wait begins then.

        With replica.fetch.min.bytes = 0 a fetch does not wait. Nor does one at another process,
        whose commits are known only by polling.
        """
        newest = self._newest_version(of)
        began_ms = self._began_ms.get(of)
        wait_ms = self._settings.replica_fetch_wait_max_ms
        if (
            newest is not None
            and newest <= version
            and began_ms is not None
            and now_ms - began_ms < wait_ms
            and self._settings.replica_fetch_min_bytes > 0
        ):
            return False
        self._began_ms[of] = now_ms
        return True

    def keep(self, peers: Collection[Peer]) -> None:
        """Forget all peers but these."""
        self._began_ms = {of: ms for of, ms in self._began_ms.items() if of in peers}
