"""The nemesis of processes: kills, suspensions, second starts and stores that are away, by seed."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sparklog.clock import wait_until
from sparklog.cluster.admin import Admin
from sparklog.errors import ProtocolError, StorageError
from sparklog.model import TopicPartition
from tests.faults.broker_processes import PARTITIONS, TOPIC, BrokerProcesses
from tests.faults.client_logs import now_ms
from tests.faults.client_processes import ClientProcesses
from tests.faults.damaged_replicas import flip_a_bit, request_repair
from tests.faults.faulty_store import FaultyStore
from tests.jobs.processes import Process, wait_for

ACTIONS = {
    "kill leader": 6,
    "kill any broker": 2,
    "kill controller": 2,
    "kill two brokers": 1,
    "kill all brokers": 1,
    "suspend leader": 2,
    "suspend controller": 1,
    "start twice": 1,
    "replace suspended leader": 2,
    "stop cleanly": 1,
    "reassign": 1,
    "elect preferred leaders": 1,
    "damage file": 2,
    "kill repair": 2,
    "kill producer": 4,
    "kill consumer": 4,
    "suspend producer": 1,
    "suspend consumer": 2,
    "bucket away": 2,
    "kill JVM": 2,
    "kill executor": 4,
    "suspend JVM": 2,
    "suspend executor": 3,
    "kill stream": 4,
}
"""The actions and their weights."""

OF_CLIENTS = (
    "kill producer",
    "kill consumer",
    "suspend producer",
    "suspend consumer",
    "kill stream",
)
"""The actions on clients, which are carried out beside those on brokers and storage."""

_JVM = "org.apache.spark.deploy.SparkSubmit"
_EXECUTOR = "CoarseGrainedExecutorBackend"

_TAKEOVER_SECONDS = 60
_IN_SYNC_SECONDS = 60
_END_SECONDS = 120
_REPAIR_SECONDS = 300
_KILL_COMMAND_SECONDS = 0.5, 3.0
"""The time after which a scrub or a repair is killed: in its start, in its work, or after it."""


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
        self._client_random = random.Random(f"clients {seed}")
        self.deeds: list[Deed] = []
        self._acts: dict[str, Callable[[], None]] = {
            "kill leader": lambda: self._kill([self._leader()]),
            "kill any broker": lambda: self._kill([self._any()]),
            "kill controller": lambda: self._kill([self._controller()]),
            "kill two brokers": lambda: self._kill(self._random.sample(brokers.ids, 2)),
            "kill all brokers": lambda: self._kill(list(brokers.ids)),
            "suspend leader": lambda: self._suspend(self._leader()),
            "suspend controller": lambda: self._suspend(self._controller()),
            "start twice": self._start_twice,
            "replace suspended leader": self._replace_suspended,
            "stop cleanly": self._stop,
            "reassign": self._reassign,
            "elect preferred leaders": self._elect,
            "kill producer": self._kill_producer,
            "kill consumer": self._kill_consumer,
            "suspend producer": self._suspend_producer,
            "suspend consumer": self._suspend_consumer,
        }
        if store is None:
            self._acts["damage file"] = self._damage
            self._acts["kill repair"] = lambda: self._damage(kills_repair=True)
        if buckets:
            self._acts["bucket away"] = self._bucket_away
        if brokers.with_spark:
            self._acts["kill JVM"] = self._kill_jvm
            self._acts["suspend JVM"] = lambda: self._suspend_children("suspend JVM", _JVM)
        if brokers.executors:
            self._acts["kill executor"] = self._kill_executor
            self._acts["suspend executor"] = lambda: self._suspend_children(
                "suspend executor", _EXECUTOR
            )
        if clients.streams:
            self._acts["kill stream"] = self._kill_stream

    def run(self, seconds: float, pause_seconds: float) -> None:
        """Carry out actions for `seconds`, on brokers and storage, and at the same time on clients.

        Each of the former begins when all replicas are in sync, or after a minute in which they
        were not.
        """
        end = time.monotonic() + seconds
        with ThreadPoolExecutor(1) as beside:
            on_clients = beside.submit(self._attack_clients, end, pause_seconds)
            possible = [one for one in self._acts if one not in OF_CLIENTS]
            while time.monotonic() < end and not on_clients.done():
                [action] = self._random.choices(possible, [ACTIONS[one] for one in possible])
                self.act(action)
                wait_until(self._brokers.is_in_sync, _IN_SYNC_SECONDS * 1000, pause_ms=200)
                time.sleep(self._random.uniform(0, 2 * pause_seconds))
            on_clients.result()

    def _attack_clients(self, end: float, pause_seconds: float) -> None:
        possible = [one for one in self._acts if one in OF_CLIENTS]
        while time.monotonic() < end:
            time.sleep(self._client_random.uniform(0, 4 * pause_seconds))
            self._clients.check()
            [action] = self._client_random.choices(possible, [ACTIONS[one] for one in possible])
            self.act(action)

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

    def _controller(self) -> int:
        """Return the broker with the controller's lease, or any."""
        found = self._brokers.controller()
        return self._any() if found is None else found

    def _any(self) -> int:
        return self._random.choice(list(self._brokers.ids))

    def _kill(self, broker_ids: Sequence[int]) -> None:
        # The time without a leader is measured where the other brokers run.
        action = "kill broker" if len(broker_ids) == 1 else "kill brokers"
        for one in broker_ids:
            self._note(action, one)
            self._brokers.brokers[one].kill()
        if len(broker_ids) == 1 and self._random.random() < 0.7:
            self._await_takeover(broker_ids[0])
        for one in broker_ids:
            self._brokers.start_broker(one)

    def _await_takeover(self, broker_id: int) -> None:
        wait_until(lambda: not self._led(broker_id), _TAKEOVER_SECONDS * 1000, pause_ms=100)

    def _suspend(self, broker_id: int) -> None:
        process = self._brokers.brokers[broker_id]
        self._note("suspend broker", broker_id)
        process.send(signal.SIGSTOP)
        self._await_takeover(broker_id)
        process.send(signal.SIGCONT)

    def _replace_suspended(self) -> None:
        """Suspend a leader, start its broker again, and continue the first process: it must end,
        because the second one has registered under a new broker epoch.
        """
        broker_id = self._leader()
        first = self._brokers.brokers[broker_id]
        self._note("replace suspended broker", broker_id)
        epoch = self._brokers.broker_epoch(broker_id)
        first.send(signal.SIGSTOP)
        self._await_takeover(broker_id)
        self._brokers.start_broker(broker_id)
        second = self._brokers.brokers[broker_id]
        replaced = wait_until(
            lambda: self._brokers.broker_epoch(broker_id) not in (None, epoch),
            _END_SECONDS * 1000,
            pause_ms=100,
        )
        first.send(signal.SIGCONT)
        if not replaced:
            # The second process has ended, or will: the first one has kept its registration.
            second.kill()
            self._brokers.brokers[broker_id] = first
            return
        self._note("broker replaced")
        if not wait_until(
            lambda: first.popen.poll() is not None, _END_SECONDS * 1000, pause_ms=100
        ):
            raise AssertionError(
                f"broker {broker_id} goes on after another process has registered: {first.stderr}"
            )

    def _start_twice(self) -> None:
        """Start a second process of a broker; the later registration fences the earlier one."""
        broker_id = self._leader()
        first = self._brokers.brokers[broker_id]
        self._note("start twice", broker_id)
        self._brokers.start_broker(broker_id)
        second = self._brokers.brokers[broker_id]
        ended = wait_until(
            lambda: _has_ended(first) or _has_ended(second),
            _TAKEOVER_SECONDS * 1000,
            pause_ms=100,
        )
        if _has_ended(second):
            self._brokers.brokers[broker_id] = first
        elif not ended:
            first.kill()

    def _stop(self) -> None:
        broker_id = self._any()
        self._note("stop broker", broker_id)
        process = self._brokers.brokers[broker_id]
        process.send(signal.SIGTERM)
        if not wait_until(lambda: _has_ended(process), _END_SECONDS * 1000, pause_ms=50):
            process.kill()
        self._brokers.start_broker(broker_id)

    def _reassign(self) -> None:
        """Give a partition three random brokers, in a random order."""
        partition = self._random.randrange(PARTITIONS)
        target = self._random.sample(self._brokers.ids, 3)
        self._note("reassign")
        with suppress(ProtocolError, StorageError):
            admin = Admin(self._brokers.connection)
            admin.alter_partition_reassignments({TopicPartition(TOPIC, partition): target})

    def _elect(self) -> None:
        """Have the first assigned replica of each partition lead it."""
        self._note("elect preferred leaders")
        with suppress(ProtocolError, StorageError):
            partitions = [TopicPartition(TOPIC, one) for one in range(PARTITIONS)]
            Admin(self._brokers.connection).elect_leaders("preferred", partitions)

    def _damage(self, *, kills_repair: bool = False) -> None:
        """Flip a bit in a file of a broker that runs, and have it repaired before the next action.

        All replicas are in sync, so the others have the records. With `kills_repair`, scrub, repair
        and the broker are killed before that.
        """
        broker_id = self._any()
        root = Path(self._brokers.roots[broker_id + 1])
        flipped = wait_until(
            lambda: self._brokers.is_in_sync() and flip_a_bit(root, self._random),
            _IN_SYNC_SECONDS * 1000,
            pause_ms=500,
        )
        if flipped:
            self._note("damage file")
            if kills_repair:
                self._kill_repair(broker_id)
            wait_for(
                lambda: request_repair(self._brokers.connection),
                "repaired file",
                patience=_REPAIR_SECONDS,
            )

    def _kill_repair(self, broker_id: int) -> None:
        """Kill a scrub, a repair, and the broker of the damaged file, each at a random time."""
        for command in ("scrub", "repair", "scrub", "repair"):
            process = self._brokers.run_command(command, "--cluster", self._brokers.cluster)
            time.sleep(self._random.uniform(*_KILL_COMMAND_SECONDS))
            self._note("kill repair")
            process.kill()
        self._kill([broker_id])

    def _kill_producer(self) -> None:
        self._note("kill producer")
        self._clients.replace_producer(self._client_random.choice(self._attackable()))

    def _kill_consumer(self) -> None:
        self._note("kill consumer")
        self._clients.replace_consumer(self._client_random.randrange(len(self._clients.consumers)))

    def _suspend_producer(self) -> None:
        place = self._client_random.choice(self._attackable())
        self._suspend_client("producer", self._clients.producers[place])

    def _suspend_consumer(self) -> None:
        self._suspend_client("consumer", self._client_random.choice(self._clients.consumers))

    def _suspend_client(self, kind: str, process: Process) -> None:
        """Suspend a client for up to three sessions: a member of a group loses its place."""
        self._note(f"suspend {kind}")
        process.send(signal.SIGSTOP)
        self._wait_for_sessions(self._client_random)
        process.send(signal.SIGCONT)

    def _wait_for_sessions(self, chance: random.Random) -> None:
        """Leave a process suspended for up to three sessions."""
        time.sleep(chance.uniform(0, 3) * self._brokers.session_ms / 1000)

    def _attackable(self) -> range:
        """The places of the producers that are attacked: the first of several shows what the
        brokers acknowledge, and when.
        """
        count = len(self._clients.producers)
        return range(min(1, count - 1), count)

    def _kill_stream(self) -> None:
        self._note("kill stream")
        self._clients.replace_stream(self._client_random.randrange(len(self._clients.streams)))

    def _kill_jvm(self) -> None:
        """Kill the JVM of a broker's Spark; its process may go on without it, or end."""
        broker_id = self._any()
        self._note("kill JVM", broker_id)
        process = self._brokers.brokers[broker_id]
        process.send_to_children(_JVM, signal.SIGKILL)
        wait_until(lambda: _has_ended(process), _END_SECONDS * 1000, pause_ms=100)
        ensure_running(self._brokers)

    def _kill_executor(self) -> None:
        broker_id = self._any()
        self._note("kill executor")
        self._brokers.brokers[broker_id].send_to_children(_EXECUTOR, signal.SIGKILL)

    def _suspend_children(self, action: str, command: str) -> None:
        """Suspend a broker's JVM or executor for up to three sessions: its Python process goes on
        to wait for it, and its session expires.
        """
        broker_id = self._any()
        process = self._brokers.brokers[broker_id]
        self._note(action, broker_id)
        process.send_to_children(command, signal.SIGSTOP)
        self._wait_for_sessions(self._random)
        process.send_to_children(command, signal.SIGCONT)
        ensure_running(self._brokers)

    def _bucket_away(self) -> None:
        assert self._store is not None
        self._note("bucket away")
        self._store.set_away(self._random.choice(self._buckets))
        time.sleep(self._random.uniform(15, 90))
        self._store.set_away("")


def ensure_running(brokers: BrokerProcesses) -> None:
    """Start each broker whose process has ended."""
    for broker_id in brokers.ids:
        if _has_ended(brokers.brokers[broker_id]):
            brokers.start_broker(broker_id)


def _has_ended(process: Process) -> bool:
    return process.popen.poll() is not None
