"""The nemesis of processes: kills, suspensions, second starts and stores that are away, by seed."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from sparklog.clock import wait_until
from sparklog.errors import ProtocolError, StorageError
from tests.faults.broker_processes import BrokerProcesses
from tests.faults.client_logs import now_ms
from tests.faults.client_processes import ClientProcesses
from tests.faults.faulty_store import FaultyStore

ACTIONS = {
    "kill leader": 6,
    "kill any broker": 2,
    "suspend leader": 2,
    "start twice": 1,
    "stop cleanly": 1,
    "kill producer": 2,
    "kill consumer": 2,
    "bucket away": 2,
}
"""The actions and their weights; the last one only on a store with a bucket for each root."""

_TAKEOVER_SECONDS = 60
_IN_SYNC_SECONDS = 60


class Deed(NamedTuple):
    """An action that was carried out: its name, its time, and the partitions that it cost."""

    action: str
    at_ms: int
    partitions: tuple[int, ...]


class Nemesis:
    """Carries out one action after the other; `deeds` has those that were carried out."""

    def __init__(
        self,
        brokers: BrokerProcesses,
        clients: ClientProcesses,
        seed: int,
        store: FaultyStore | None = None,
        buckets: tuple[str, ...] = (),
    ) -> None:
        self._brokers, self._clients = brokers, clients
        self._store, self._buckets = store, buckets
        self._random = random.Random(seed)
        self.deeds: list[Deed] = []
        self._acts: dict[str, Callable[[], None]] = {
            "kill leader": lambda: self._kill(self._leader()),
            "kill any broker": lambda: self._kill(self._random.choice(list(brokers.ids))),
            "suspend leader": self._suspend,
            "start twice": self._start_twice,
            "stop cleanly": self._stop,
            "kill producer": self._kill_producer,
            "kill consumer": self._kill_consumer,
            "bucket away": self._bucket_away,
        }

    def run(self, seconds: float, pause_seconds: float) -> None:
        """Carry out actions for `seconds`; each begins when all replicas are in sync, or after a
        minute in which they were not.
        """
        end = time.monotonic() + seconds
        possible = [one for one in ACTIONS if one != "bucket away" or self._buckets]
        while time.monotonic() < end:
            self._clients.check()
            [action] = self._random.choices(possible, [ACTIONS[one] for one in possible])
            self.act(action)
            wait_until(self._brokers.is_in_sync, _IN_SYNC_SECONDS * 1000, pause_ms=200)
            time.sleep(self._random.uniform(0, 2 * pause_seconds))

    def act(self, action: str) -> None:
        """Carry out one action."""
        self._acts[action]()

    def _note(self, action: str, broker_id: int | None = None) -> None:
        led = () if broker_id is None else self._led(broker_id)
        self.deeds.append(Deed(action, now_ms(), led))

    def _led(self, broker_id: int) -> tuple[int, ...]:
        try:
            leaders = self._brokers.leaders()
        except (ProtocolError, StorageError):
            return ()
        return tuple(one for one, leader in leaders.items() if leader == broker_id)

    def _leader(self) -> int:
        try:
            leaders = [one for one in self._brokers.leaders().values() if one is not None]
        except (ProtocolError, StorageError):
            leaders = []
        return self._random.choice(leaders or list(self._brokers.ids))

    def _kill(self, broker_id: int) -> None:
        self._note("kill broker", broker_id)
        self._brokers.brokers[broker_id].kill()
        if self._random.random() < 0.7:
            self._await_takeover(broker_id)
        self._brokers.start_broker(broker_id)

    def _await_takeover(self, broker_id: int) -> None:
        wait_until(lambda: not self._led(broker_id), _TAKEOVER_SECONDS * 1000, pause_ms=100)

    def _suspend(self) -> None:
        broker_id = self._leader()
        process = self._brokers.brokers[broker_id]
        self._note("suspend broker", broker_id)
        process.send(signal.SIGSTOP)
        self._await_takeover(broker_id)
        process.send(signal.SIGCONT)

    def _start_twice(self) -> None:
        """Start a second process of a broker; the later registration fences the earlier one."""
        broker_id = self._leader()
        first = self._brokers.brokers[broker_id]
        self._note("start twice", broker_id)
        self._brokers.start_broker(broker_id)
        second = self._brokers.brokers[broker_id]
        ended = wait_until(
            lambda: first.popen.poll() is not None or second.popen.poll() is not None,
            _TAKEOVER_SECONDS * 1000,
            pause_ms=100,
        )
        if second.popen.poll() is not None:
            self._brokers.brokers[broker_id] = first
        elif not ended:
            first.kill()

    def _stop(self) -> None:
        broker_id = self._random.choice(list(self._brokers.ids))
        self._note("stop broker", broker_id)
        process = self._brokers.brokers[broker_id]
        process.send(signal.SIGTERM)
        if not wait_until(lambda: process.popen.poll() is not None, 120_000, pause_ms=50):
            process.kill()
        self._brokers.start_broker(broker_id)

    def _kill_producer(self) -> None:
        self._note("kill producer")
        self._clients.replace_producer(self._random.randrange(len(self._clients.producers)))

    def _kill_consumer(self) -> None:
        self._note("kill consumer")
        self._clients.replace_consumer(self._random.randrange(len(self._clients.consumers)))

    def _bucket_away(self) -> None:
        assert self._store is not None
        self._note("bucket away")
        self._store.set_away(self._random.choice(self._buckets))
        time.sleep(self._random.uniform(15, 90))
        self._store.set_away("")


def ensure_running(brokers: BrokerProcesses) -> None:
    """Start each broker whose process has ended."""
    for broker_id in brokers.ids:
        if brokers.brokers[broker_id].popen.poll() is not None:
            brokers.start_broker(broker_id)
