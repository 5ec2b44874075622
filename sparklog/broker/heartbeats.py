"""A broker's signs of life: the commits of its journals, empty ones where there are no others.

Everybody who follows one of the journals sees them. A heartbeat reads and writes nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparklog.broker.leader_roots import UNREADABLE
from sparklog.config import Settings
from sparklog.storage.roots import BrokerRoot


class Heartbeats:
    """Makes the heartbeats of one broker; may run beside its ticks.

    On an object store, where a commit is a request, heartbeats are `is_due` only as long after the
    newest commit as a commit counts.

    Parameters: `roots`, the broker's roots by number.
    """

    def __init__(self, roots: Mapping[int, BrokerRoot], settings: Settings) -> None:
        self._roots = roots
        # A commit just after one heartbeat has to count until the second one after it.
        interval_ms = settings.broker_heartbeat_interval_ms
        self._counts_commits = 3 * interval_ms <= settings.broker_session_timeout_ms
        self._silence_ms = 2 * interval_ms if self._counts_commits else interval_ms
        self._counted = 0
        # On the monotonic clock: the time of the last check, the time before which the newest
        # commit was not there yet, and that of the newest renewal of the lease.
        self._checked_at_ms = self._silent_since_ms = self._renewed_at_ms = -self._silence_ms

    def note(self) -> None:
        """Note the commits so far: they show no life after this."""
        self._counted = self._commits()

    def is_due(self, now_ms: int, *, holds_lease: bool) -> bool:
        """Return whether a heartbeat is due; in a local folder it is whenever this is called.

        It is due when the broker has committed nothing for two intervals, or when it `holds_lease`
        and has not renewed it for so long. Parameters: `now_ms`, the monotonic clock.
        """
        if any(root.location.is_local for root in self._roots.values()):
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

        In any case where it renews the controller's lease of `controller_epoch`. It is made to the
        first journal that can be written to. Raises `FencedError` where a newer process plays this
        broker, and the last failure where no journal can be written to.
        """
        is_busy = self._counts_commits and self._commits() != self._counted
        if controller_epoch is not None or not is_busy:
            self._commit(controller_epoch)
        self.note()
        self._silent_since_ms = now_ms
        if controller_epoch is not None:
            self._renewed_at_ms = now_ms

    def _commit(self, controller_epoch: int | None) -> None:
        failure: Exception | None = None
        for root in self._roots.values():
            try:
                if root.log.heartbeat(controller_epoch):
                    return
            except UNREADABLE as error:
                failure = error
        if failure is not None:
            raise failure

    def _commits(self) -> int:
        """Return how many commits this process has made to its journals, empty ones included."""
        return sum(root.log.commits + root.log.heartbeats for root in self._roots.values())
