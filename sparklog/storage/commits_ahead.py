"""Commits of a table on an object store that are requested before a reader applies them.

Polling many tables thus takes as long as one request.
"""

from __future__ import annotations

from concurrent.futures import Future

from sparklog.clock import clocks, is_ago
from sparklog.storage.commits import request_commits
from sparklog.storage.location import Location
from sparklog.storage.parallel import MOST_AHEAD

FRESH_S = 5.0
"""Seconds for which requested commits can be applied, and then count as the newest, at most."""


class CommitsAhead:
    """The requested commits of one table, and how long the last ones count as the newest."""

    def __init__(self) -> None:
        self._requested: dict[int, Future[bytes | None]] = {}
        self._reach = 1
        self._requested_at = clocks()
        self._to_end = False
        self._counts = True
        self._newest_at: tuple[float, float] | None = None

    def request(
        self, table: Location, first: int, *, to_end: bool, least: int, counts: bool
    ) -> None:
        """Request commits from version `first` on; the parameters are those of `poll_ahead`."""
        self._newest_at = None
        self._to_end, self._counts = to_end, counts
        self._requested_at = clocks()
        self._requested = request_commits(table, first, max(self._reach, least))

    def take(self) -> dict[int, Future[bytes | None]]:
        """Return the requested commits by version, once; none if they were requested long ago."""
        taken, self._requested = self._requested, {}
        return {} if taken and is_ago(self._requested_at, FRESH_S) else taken

    def drop(self) -> None:
        """Forget the requested commits and that any count as the newest."""
        self._requested, self._newest_at = {}, None

    def continues(self) -> bool:
        """Return whether a reader that has applied all requested commits reads on.

        There may be more commits: the next `request` requests twice as many.
        """
        self._reach = min(2 * self._reach, MOST_AHEAD)
        return self._to_end

    def end_was_found(self) -> None:
        """Note that the table ends within the requested commits."""
        self._reach = 1

    def were_applied(self) -> None:
        """Note that the requested commits, which exist, were applied."""
        if self._counts:
            self._newest_at = self._requested_at

    @property
    def are_newest(self) -> bool:
        """Whether the commits applied last still count as the newest."""
        return self._newest_at is not None and not is_ago(self._newest_at, FRESH_S)
