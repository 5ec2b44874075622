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

    Parameters: `roots`, the broker's roots by number.
    """

    def __init__(self, roots: Mapping[int, BrokerRoot], settings: Settings) -> None:
        self._roots = roots
        # A commit just after one heartbeat has to count until the second one after it.
        interval_ms = settings.broker_heartbeat_interval_ms
        self._counts_commits = 3 * interval_ms <= settings.broker_session_timeout_ms
        self._counted = 0

    def note(self) -> None:
        """Note the commits so far: they show no life after this."""
        self._counted = self._commits()

    def beat(self, controller_epoch: int | None) -> None:
        """Make an empty commit if nothing was committed since the last heartbeat.

        In any case where it renews the controller's lease of `controller_epoch`. It is made to the
        first journal that can be written to. Raises `FencedError` where a newer process plays this
        broker, and the last failure where no journal can be written to.
        """
        is_busy = self._counts_commits and self._commits() != self._counted
        if controller_epoch is not None or not is_busy:
            self._commit(controller_epoch)
        self.note()

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
