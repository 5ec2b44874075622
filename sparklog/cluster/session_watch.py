"""Liveness of one broker, watched from outside the cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from sparklog.logger import get_logger
from sparklog.model import Row
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.journal_watch import JournalWatch
from sparklog.storage.location import Location

_log = get_logger(__name__)


class SessionWatch:
    """Watches for a sign of life of one broker from outside the cluster.

    Parameters: `row`, its row in `brokers`; `locate`, a function that returns the location of a
    URI.
    """

    def __init__(self, row: Row, locate: Callable[[str], Location]) -> None:
        self._watches = [*self._opened(online_roots(row).values(), locate)]

    def has_moved(self) -> bool:
        """Return whether one of the broker's journals has new commits since the watch began."""
        return any(self._has_moved(watch, since) for watch, since in self._watches)

    @staticmethod
    def _opened(
        uris: Iterable[str], locate: Callable[[str], Location]
    ) -> Iterable[tuple[JournalWatch, int]]:
        for uri in uris:
            try:
                watch = JournalWatch(locate(uri))
            except UNREADABLE as error:
                # A journal that cannot be read shows no sign of life.
                _log.warning("journal not readable", root=uri, error=str(error))
                continue
            yield watch, watch.version

    @staticmethod
    def _has_moved(watch: JournalWatch, since: int) -> bool:
        try:
            watch.refresh()
        except UNREADABLE:
            return False
        return watch.version > since


def online_roots(row: Row) -> dict[int, str]:
    """Return the URIs of a broker's online log directories by number, from its row in `brokers`.

    Directories that have failed, or that log.dirs does not have now, are left out.
    """
    failed = json.loads(row.get("offline_log_dirs") or "[]")
    ids = json.loads(row["log_table_id"] or "[]") if failed else []
    return {
        number: uri
        for number, uri in enumerate(json.loads(row["roots"]))
        if uri is not None and not (failed and ids[number] in failed)
    }
