"""The newest journal versions of all running brokers, which show that the brokers are alive."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from sparklog.broker.peers import Peer, Peers
from sparklog.cluster.roots import BrokerRoot
from sparklog.cluster.session_watch import online_roots
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.model import Row
from sparklog.states import RUNNING_STATES
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.journal import Renewal
from sparklog.storage.journal_watch import JournalWatch
from sparklog.storage.location import Location
from sparklog.storage.parallel import map_in_parallel
from sparklog.storage.seen_versions import JournalOf

_log = get_logger(__name__)

_RETRY_MS = 1_000
"""Time in ms before a root that could not be read is tried again."""


class Sign(NamedTuple):
    """The newest version of a journal that was seen, and the newest renewal of a lease in it."""

    version: int
    renewal: Renewal | None


NO_SIGN = Sign(-1, None)
"""The sign of a journal that has not been read yet."""


class SignsOfLife:
    """Follows the journals of the brokers, as one of them.

    A journal that is open for another role is read there. Of the other journals only versions and
    leases are followed. A root that cannot be read shows no sign of life.

    Parameters: `broker_id`, the observer; `own`, its own roots by number; `locate`, returns the
    location of a URI.
    """

    def __init__(
        self,
        broker_id: int,
        own: Mapping[int, BrokerRoot],
        peers: Peers,
        locate: Callable[[str], Location],
    ) -> None:
        self._broker_id = broker_id
        self._own = own
        self._peers = peers
        self._locate = locate
        self._watches: dict[Peer, JournalWatch] = {}
        self._seen: dict[Peer, Sign] = {}
        self._retry_at_ms: dict[Peer, int] = {}
        self._failures = RepeatedFailures(_log)

    def of(self, row: Row) -> dict[Peer, Sign]:
        """Return the newest sign in each journal of the process that a row of `brokers` names."""
        return {of: self._seen.get(of, NO_SIGN) for of in _journals(row)}

    def versions(self) -> dict[JournalOf, int]:
        """Return the newest version that was seen of each other broker's journal.

        May be called from any thread.
        """
        return {
            JournalOf(*of): sign.version
            for of, sign in list(self._seen.items())
            if of.broker_id != self._broker_id and sign.version >= 0
        }

    def poll_ahead(self) -> None:
        """Poll object stores for the next commits of the journals that no other role reads."""
        for watch in self._watches.values():
            watch.poll_ahead()

    def read(self, rows: Collection[Row], lease_holder: int | None, now_ms: int) -> None:
        """Read the journals of the brokers that are alive or stopping, and of `lease_holder`.

        `now_ms` is the observer's monotonic clock.
        """
        of_rows = {of: uri for row in rows for of, uri in _journals(row).items()}
        running = {
            of: uri
            for row in rows
            if row["state"] in RUNNING_STATES or row["broker_id"] == lease_holder
            for of, uri in _journals(row).items()
        }
        self._seen = {of: sign for of, sign in self._seen.items() if of in of_rows}
        self._retry_at_ms = {
            of: at_ms for of, at_ms in self._retry_at_ms.items() if now_ms < at_ms and of in running
        }
        watched = []
        for of in running:
            if of.broker_id == self._broker_id:
                if of.root in self._own:
                    log = self._own[of.root].log
                    self._note(of, log.version, log.renewal)
            elif not self._read_open(of) and of not in self._retry_at_ms:
                watched.append(of)
        self._watches = {of: watch for of, watch in self._watches.items() if of in watched}
        self._open_watches({of: running[of] for of in watched if of not in self._watches}, now_ms)
        for of, watch in list(self._watches.items()):
            try:
                watch.refresh()
            except UNREADABLE as error:
                self._note_failure(of, error, now_ms)
            else:
                self._failures.over(of)
                self._note(of, watch.version, watch.renewal)

    def _read_open(self, of: Peer) -> bool:
        """Read a journal that another role has opened; return whether that was possible."""
        rows = self._peers.opened(of)
        if rows is None:
            return False
        try:
            rows.refresh()
        except UNREADABLE:
            # The role that needs its content reports the error. The version may still be readable.
            return False
        self._note(of, rows.journal.version, rows.journal.renewal)
        return True

    def _open_watches(self, uris: Mapping[Peer, str], now_ms: int) -> None:
        """Open watches, in parallel where that saves time."""

        def opened(uri: str) -> JournalWatch | Exception:
            try:
                return JournalWatch(self._locate(uri))
            except UNREADABLE as error:
                return error

        is_local = all(self._locate(uri).is_local for uri in uris.values())
        found = map_in_parallel(opened, list(uris.values()), 0, is_local=is_local)
        for of, watch in zip(uris, found, strict=True):
            if isinstance(watch, JournalWatch):
                self._watches[of] = watch
            else:
                self._note_failure(of, watch, now_ms)

    def _note(self, of: Peer, version: int, renewal: Renewal | None) -> None:
        seen = self._seen.get(of)
        if seen is not None:
            version = max(version, seen.version)
            renewal = max(filter(None, (renewal, seen.renewal)), default=None)
        self._seen[of] = Sign(version, renewal)

    def _note_failure(self, of: Peer, error: Exception, now_ms: int) -> None:
        self._watches.pop(of, None)
        self._retry_at_ms[of] = now_ms + _RETRY_MS
        self._failures.warning(
            of, "journal not readable", broker=of.broker_id, root=of.root, error=str(error)
        )


def _journals(row: Row) -> dict[Peer, str]:
    """Return the online log directories of a broker, and their URIs."""
    return {
        Peer(row["broker_id"], number, row["broker_epoch"]): uri
        for number, uri in online_roots(row).items()
    }
