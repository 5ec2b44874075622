"""Log directories that fail while their broker runs (rule 1.5, KIP-112, KIP-858).

An operation that fails makes its directory suspected. A suspected directory is probed: it has
failed at once if the probe reports a lasting error, and after broker.session.timeout.ms of other
errors, which is as long as a silent broker keeps its place. The broker then takes the directory
offline and announces that in its row of `brokers`: the controller removes the replicas from the
ISRs and elects other leaders. The directory stays offline until the broker is started again.

The last directory is not taken offline: its ticks fail and are retried, and the broker falls
silent. An application whose brokers have no other directory ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa

from sparklog.broker.registration import check_registered
from sparklog.broker.tick import Effects
from sparklog.cluster.observations import is_silent
from sparklog.cluster.roots import BrokerRoot
from sparklog.logger import get_logger
from sparklog.model import BROKERS
from sparklog.storage.commits import Cause
from sparklog.storage.control_table import ControlTable
from sparklog.storage.directory_probe import ProbeError, probe

_log = get_logger(__name__)


class _Suspicion(NamedTuple):
    """The newest error of a directory's operations; its probes have failed since `since_ms`."""

    error: Exception
    since_ms: int | None = None


class FailedDirectories:
    """Finds the directories of one broker that have failed, and announces them.

    `suspect` may be called from any thread, the other methods only between or in ticks.

    Parameters: `roots`, the broker's online roots by number, from which `take_offline` removes
    them.
    """

    def __init__(
        self,
        broker_id: int,
        broker_epoch: int,
        roots: Mapping[int, BrokerRoot],
        timeout_ms: int,
        take_offline: Callable[[int], None],
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._roots = roots
        self._timeout_ms = timeout_ms
        self._take_offline = take_offline
        self._suspected: dict[int, _Suspicion] = {}
        self._announced: set[str] = set()
        self._unannounced: set[str] = set()

    def suspect(self, number: int, error: Exception) -> None:
        """Note that an operation in a directory has failed; it is probed by the next `settle`."""
        known = self._suspected.get(number)
        self._suspected[number] = _Suspicion(error, known.since_ms if known else None)

    def trust(self, number: int) -> None:
        """Note that an operation in a directory has succeeded."""
        self._suspected.pop(number, None)

    def settle(self, registration: ControlTable, now_ms: int, effects: Effects) -> bool:
        """Probe the suspected directories, and take offline and announce those that have failed.

        Returns whether a directory was taken offline or announced. Without a suspicion this costs
        nothing. Parameters: `registration`, the table `brokers`; `now_ms`, the monotonic clock.
        Raises the errors of the announcement, which the next call repeats.
        """
        is_changed = False
        for number, suspicion in list(self._suspected.items()):
            if number not in self._roots:
                self.trust(number)
            elif len(self._roots) > 1 and self._has_failed(number, suspicion, now_ms):
                root = self._roots[number]
                _log.error(
                    "log directory failed",
                    broker=self._broker_id,
                    root=root.location.uri,
                    number=number,
                    error=str(suspicion.error),
                )
                self.trust(number)
                self._unannounced.add(root.log.table_id)
                self._take_offline(number)
                is_changed = True
        if self._unannounced:
            announced = self._announced | self._unannounced
            _announce(registration, self._broker_id, self._broker_epoch, announced)
            self._announced, self._unannounced = announced, set()
            is_changed = True
            effects.done("log_dir_offline")
        return is_changed

    def _has_failed(self, number: int, suspicion: _Suspicion, now_ms: int) -> bool:
        try:
            probe(self._roots[number].location)
        except ProbeError as error:
            since_ms = now_ms if suspicion.since_ms is None else suspicion.since_ms
            self._suspected[number] = _Suspicion(error, since_ms)
            return error.is_lasting or is_silent(
                now_ms, since_ms=since_ms, timeout_ms=self._timeout_ms
            )
        # The fault is elsewhere: in another table, or over.
        self.trust(number)
        return False

    def last_failure(self) -> str | None:
        """Probe the last directory; return the reason if it has failed, otherwise `None`."""
        [*roots] = self._roots.values()
        if len(roots) != 1:
            return None
        try:
            probe(roots[0].location)
        except ProbeError as error:
            return f"{roots[0].location.uri} ({error})" if error.is_lasting else None
        return None


def _announce(
    registration: ControlTable, broker_id: int, broker_epoch: int, failed: Iterable[str]
) -> None:
    """Set the failed directories in a broker's row; raises `FencedError` in an older process."""
    offline = json.dumps(sorted(failed))

    def change(rows: pa.Table) -> tuple[pa.Table | None, None]:
        result = rows.to_pylist()
        mine = next((row for row in result if row["broker_id"] == broker_id), None)
        check_registered(mine["broker_epoch"] if mine else None, broker_id, broker_epoch)
        if mine is None or mine["offline_log_dirs"] == offline:
            return None, None
        mine |= {"heartbeat": mine["heartbeat"] + 1, "offline_log_dirs": offline}
        return BROKERS.rows(result), None

    registration.update(change, cause=Cause("FAIL LOG DIRECTORIES", {"brokerId": str(broker_id)}))
