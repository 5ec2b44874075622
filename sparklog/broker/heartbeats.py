"""A broker's signs of life: the commits of its journals, including empty ones.

All readers of one of the journals see them. A heartbeat reads and writes nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sparklog.cluster.roots import BrokerRoot
from sparklog.config import Settings
from sparklog.storage.errors import UNREADABLE


class Heartbeats:
    """Makes the heartbeats of one broker; may run during its ticks.

    On an object store, where a commit is a request, a heartbeat is due only when the newest commit
    stops counting as a sign of life (`is_due`).

    Parameters: `roots`, the broker's online roots by number, which may become fewer; `suspect` is
    called with the number of a root whose journal cannot be written to.
    """

    def __init__(
        self,
        roots: Mapping[int, BrokerRoot],
        settings: Settings,
        suspect: Callable[[int, Exception], None],
    ) -> None:
        self._roots = roots
        self._suspect = suspect
        self._turn = 0
        # The commits of each journal at its last turn.
        self._at_turn: dict[int, int] = {}
        # A commit just after one heartbeat must count until the second heartbeat after it.
        interval_ms = settings.broker_heartbeat_interval_ms
        self._counts_commits = 3 * interval_ms <= settings.broker_session_timeout_ms
        self._silence_ms = 2 * interval_ms if self._counts_commits else interval_ms
        self._counted = 0
        # On the monotonic clock: the time of the last check, a time at which the newest commit was
        # not there yet, and the time of the newest renewal of the lease.
        self._checked_at_ms = self._silent_since_ms = self._renewed_at_ms = -self._silence_ms

    def note(self) -> None:
        """Note the commits so far: they are no sign of life after this."""
        self._counted = self._commits()

    def is_due(self, now_ms: int, *, holds_lease: bool) -> bool:
        """Return whether a heartbeat is due; always True for a root on a local file system.

        It is due when the broker has committed nothing for two intervals, or `holds_lease` and has
        not renewed it for two intervals. One interval suffices if a session is shorter than
        three. Parameters: `now_ms`, the monotonic clock.
        """
        if any(root.location.is_local for root in list(self._roots.values())):
            return True
        commits = self._commits()
        if commits != self._counted:
            self._counted = commits
            self._silent_since_ms = self._checked_at_ms
        self._checked_at_ms = now_ms
        since_ms = self._silent_since_ms
        if holds_lease:
            since_ms = min(since_ms, self._renewed_at_ms)
        return now_ms - since_ms >= self._silence_ms

    def beat(self, controller_epoch: int | None, now_ms: int) -> None:
        """Make an empty commit if nothing was committed since the last heartbeat.

        It is made in any case if it renews the controller's lease of `controller_epoch`. It goes to
        the journals in turn, so that a directory that has failed is found although nothing is
        written there, and to the next one if a journal cannot be written to. Raises `FencedError`
        if a newer process plays this broker, and the last failure if no journal can be written to.
        """
        is_busy = self._counts_commits and self._commits() != self._counted
        if controller_epoch is not None or not is_busy:
            self._commit(controller_epoch)
        else:
            self._check_quiet_root()
        self.note()
        self._silent_since_ms = now_ms
        if controller_epoch is not None:
            self._renewed_at_ms = now_ms

    def _commit(self, controller_epoch: int | None) -> None:
        failure: Exception | None = None
        roots = list(self._roots.items())
        turn = self._turn % max(len(roots), 1)
        self._turn += 1
        for number, root in roots[turn:] + roots[:turn]:
            try:
                if root.log.heartbeat(controller_epoch):
                    return
            except UNREADABLE as error:
                self._suspect(number, error)
                failure = error
        if failure is not None:
            raise failure

    def _check_quiet_root(self) -> None:
        """Make an empty commit to the journal whose turn it is, if it had none since its last turn.

        The broker is busy in other roots, so heartbeats do not show whether this one has failed.
        """
        roots = list(self._roots.items())
        if len(roots) == 1:
            return
        number, root = roots[self._turn % len(roots)]
        self._turn += 1
        if self._at_turn.get(number) == root.log.commits:
            try:
                root.log.heartbeat()
            except UNREADABLE as error:
                self._suspect(number, error)
        self._at_turn[number] = root.log.commits

    def _commits(self) -> int:
        """Return the number of commits of this process to its journals, empty ones included."""
        return sum(root.log.commits + root.log.heartbeats for root in list(self._roots.values()))
