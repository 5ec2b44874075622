"""One case played to its end: damage, brokers, clients, audit, scrub, repair, and all of it again.

Nothing is judged here: the trial notes what each process did and said.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from deltalake.exceptions import DeltaError

from sparklog.broker.broker import Broker
from sparklog.broker.engines import execution_of, rules_of
from sparklog.cluster.connection import Connection
from sparklog.cluster.observations import Observations
from sparklog.config import Settings, parse
from sparklog.consumer.consumer import Consumer
from sparklog.errors import FencedError, SparklogError
from sparklog.groups.committed_offsets import CommittedOffsets
from sparklog.logger import event_of
from sparklog.maintenance.audit import audit
from sparklog.maintenance.repair import repair
from sparklog.maintenance.scrub import scrub
from sparklog.maintenance.table_restoration import restore_cluster_root
from sparklog.model import TopicIdPartition, TopicPartition, new_batch_path
from sparklog.producer.produce_requests import PendingProduce, ProduceClient, RequestedBatch
from sparklog.storage.batch_files import BatchFileWriter, records_table
from sparklog.storage.commits_ahead import FRESH_S
from sparklog.storage.delta_checkpoints import await_checkpoints
from sparklog.storage.file_copies import await_copies
from sparklog.storage.location import Location, one_line
from sparklog.testing import ManualClock
from tests.faults.damage.cases import (
    Case,
    FileOfTable,
    all_files,
    inflict,
    is_needed,
)
from tests.faults.damage.sound_cluster import (
    BROKERS,
    COMMITTED_OFFSET,
    DAMAGED_AT_MS,
    GROUP,
    PARTITIONS,
    SETTINGS,
    Place,
)
from tests.faults.damage.storage import Storage, StorageKind

KNOWN_ERRORS = (SparklogError, DeltaError, OSError)
"""The exceptions that processes report in one line. Any other one is a traceback."""

_ROUNDS = 40
"""The rounds of ticks after which brokers that are not idle are left alone."""

_ROUND_MS = 4_000
"""The time between two of the periods in which brokers verify their tables."""

_FINDING = re.compile(r"[a-z_]+ (?:/|s3://)")
"""A finding of a scrub, as `Processes.scrub` prints it."""

_Result = TypeVar("_Result")
_Values = dict[TopicPartition, list[bytes | None]]


@dataclass
class Observed:
    """The state of a cluster as its processes see it, and what they said meanwhile."""

    running: list[int] = field(default_factory=list)
    """The brokers that run."""
    errors: dict[str, str] = field(default_factory=dict)
    """The first error of each action by its name: start 0, tick 0, produce, consume, group."""
    tracebacks: list[str] = field(default_factory=list)
    """Exceptions that no process expects."""
    log: list[str] = field(default_factory=list)
    """The warnings and errors that the brokers logged."""
    out_of_sync: set[tuple[TopicPartition, int]] = field(default_factory=set)
    """The replicas that were outside of the ISR at any time."""
    produced: _Values = field(default_factory=dict)
    """The values that were acknowledged, by partition."""
    consumed: _Values = field(default_factory=dict)
    """The values that a consumer read from the start on."""
    committed: int | None = None
    """The committed offset of the group."""

    @property
    def texts(self) -> list[str]:
        """All that was said."""
        return [*self.errors.values(), *self.log]


@dataclass
class Trial:
    """The course of a case."""

    case: Case
    storage: StorageKind
    file: FileOfTable
    is_read: bool
    """Whether the damaged file belonged to the newest version of its table at the scrub."""
    before: _Values
    """The values of the sound cluster."""
    damaged: Observed
    audit: list[str]
    scrub: list[str]
    repair: list[str]
    repaired: Observed
    audit_after: list[str]
    scrub_after: list[str]
    restarted: Observed
    """After a further start of all brokers; as `repaired` if they were started after the damage."""


class Processes:
    """Three brokers and their clients in this process, each of which may fail by itself."""

    def __init__(self, storage: Storage, start_ms: int = DAMAGED_AT_MS) -> None:
        self._options = storage.options
        self._place = storage.place
        self._settings = parse(Settings, SETTINGS, "the cluster")
        self._rules = rules_of(self._settings, None)
        self._execution = execution_of(self._settings, None, self._options)
        self._observations = Observations()
        self.brokers: dict[int, Broker] = {}
        self.clock = ManualClock(start_ms, self._poll, self._heartbeat)
        self.observed = Observed()

    @property
    def root(self) -> Location:
        """The cluster root."""
        return self._place.child("cluster")

    def _connect(self) -> Connection:
        return Connection(self.root.uri, storage_options=self._options)

    def attempt(self, name: str, action: Callable[[], _Result]) -> _Result | None:
        """Call an action; note its error, or its traceback."""
        try:
            return action()
        except KNOWN_ERRORS as error:
            self.observed.errors.setdefault(name, f"{type(error).__name__}: {one_line(error)}")
            if isinstance(error, FencedError) and name.startswith("tick"):
                self.brokers.pop(int(name.split()[1]), None)
        except Exception as error:  # noqa: BLE001 - a finding of the trial
            told = f"{name}: {type(error).__name__}: {one_line(error)}"
            if told not in self.observed.tracebacks:
                self.observed.tracebacks.append(told)
        return None

    def start(self) -> None:
        """Start the brokers that do not run."""
        for broker_id in BROKERS:
            if broker_id not in self.brokers:
                broker = self.attempt(f"start {broker_id}", partial(self._broker, broker_id))
                if broker is not None:
                    self.brokers[broker_id] = broker

    def restart(self) -> None:
        """Kill all brokers and start them."""
        self.brokers.clear()
        self.start()

    def _broker(self, broker_id: int) -> Broker:
        return Broker(
            broker_id,
            self.root,
            [self._place.child(f"broker-{broker_id}")],
            rules=self._rules,
            execution=self._execution,
            clock=self.clock,
            settings=self._settings,
            storage_options=self._options,
            observations=self._observations,
        )

    def tick(self) -> None:
        """Tick all brokers until a round changes nothing, or for a number of rounds."""
        for _ in range(_ROUNDS):
            is_changed = False
            for role in ("controller_tick", "leader_tick", "follower_tick"):
                for broker_id, broker in list(self.brokers.items()):
                    report = self.attempt(f"tick {broker_id}", getattr(broker, role))
                    is_changed |= report is not None and report.changed
            self._note_isr()
            if not is_changed:
                return

    def pass_time(self, rounds: int = 3) -> None:
        """Let time pass in which running brokers verify their tables."""
        self.tick()
        for _ in range(rounds):
            self.clock.advance(_ROUND_MS)
            self.tick()

    def await_in_sync(self) -> None:
        """Let time pass until all replicas are in sync; note only replicas that leave later.

        A replica that was refilled joins within the time in which followers count as lagging. On
        object stores some work is done by threads beside the ticks, and a broker takes what it has
        read for the newest for `FRESH_S` of the system's time.
        """
        rounds = self._settings.replica_lag_time_max_ms // _ROUND_MS
        for _ in range(rounds):
            self.observed.out_of_sync.clear()
            self._note_isr()
            if not self.observed.out_of_sync:
                return
            if not self.root.is_local:
                time.sleep(2 * FRESH_S / rounds)
            self.clock.advance(_ROUND_MS)
            self.tick()
        self.observed.out_of_sync.clear()

    def _poll(self) -> None:
        for broker_id, broker in list(self.brokers.items()):
            self.attempt(f"tick {broker_id}", broker.poll)

    def _heartbeat(self) -> None:
        for broker_id, broker in list(self.brokers.items()):
            self.attempt(f"tick {broker_id}", broker.heartbeat)
            self.attempt(f"tick {broker_id}", broker.poll)

    def _note_isr(self) -> None:
        for broker in self.brokers.values():
            try:
                partitions = broker._reader.load().partitions.values()
            except KNOWN_ERRORS:
                continue
            for state in partitions:
                of = TopicPartition(state.topic, state.partition)
                out = {one.broker_id for one in state.replicas} - set(state.isr)
                self.observed.out_of_sync |= {(of, one) for one in out}
            return

    # --- clients --------------------------------------------------------------------------------

    def use(self, label: str) -> None:
        """Produce a record to each partition, read all records, and read the group's offset."""
        self._produce(label)
        self.attempt("consume", self._consume)
        self.attempt("group", self._read_offset)
        self.observed.running = sorted(self.brokers)

    def _produce(self, label: str) -> None:
        pending: dict[TopicPartition, tuple[bytes, PendingProduce]] = {}
        connection = self.attempt("produce", self._connect)
        if connection is None:
            return
        for of in PARTITIONS:
            value = f"{label} {of.topic}-{of.partition}".encode()
            sent = self.attempt("produce", partial(self._send, connection, of, value))
            if sent is not None:
                pending[of] = value, sent
        self.pass_time(1)
        for of, (value, sent) in pending.items():
            response = self.attempt("produce", partial(getattr, sent, "response"))
            if response is None:
                # As producers do: a leader that has left the ISR answers nothing more.
                again = self.attempt("produce", partial(self._send, connection, of, value))
                self.pass_time(1)
                if again is not None:
                    response = self.attempt("produce", partial(getattr, again, "response"))
            if response is None or response.error != "NONE":
                code = "no answer" if response is None else response.error
                self.observed.errors.setdefault("produce", code)
            else:
                self.observed.produced.setdefault(of, []).append(value)

    def _send(self, connection: Connection, to: TopicPartition, value: bytes) -> PendingProduce:
        state = connection.metadata().partition(to.topic, to.partition)
        log = connection.leader_location(state).child("log")
        writer = BatchFileWriter(log, new_batch_path())
        writer.write(records_table([value], [b"key of " + value], self.clock.now_ms()))
        client = ProduceClient(connection, client_id="trial", clock=self.clock)
        return client.send([RequestedBatch(state, writer.close())], "all", 30_000)

    def _consume(self) -> None:
        with Consumer(self._connect(), auto_offset_reset="earliest") as consumer:
            consumer.assign(list(PARTITIONS))
            idle = 0
            while idle < 3:
                polled = consumer.poll(timeout_ms=0)
                idle = 0 if polled else idle + 1
                for of, records in polled.items():
                    values = self.observed.consumed.setdefault(of, [])
                    values += [one.value for one in records]

    def _read_offset(self) -> None:
        connection = self._connect()
        key = TopicIdPartition(connection.metadata().topic("plain").topic_id, 0)
        committed = CommittedOffsets(connection.root.consumer_offsets, self.clock).fetch(GROUP)
        self.observed.committed = committed[key].offset if key in committed else None

    # --- commands -------------------------------------------------------------------------------

    def audit(self) -> list[str]:
        """Run the audit; return its lines."""
        return self._command("audit", lambda: [str(one) for one in audit(self._connect())])

    def scrub(self) -> list[str]:
        """Run a scrub; return its findings."""

        def lines() -> list[str]:
            report = scrub(self._connect(), restart=True, clock=self.clock)
            found = [
                f"{one.fault} {one.root}/{one.table_name} {one.path}" for one in report.findings
            ]
            return found + [f"unreadable {what}: {why}" for what, why in report.unreadable]

        return self._command("scrub", lines)

    def repair(self) -> list[str]:
        """Run the command repair; return the outcomes of its findings."""

        def lines() -> list[str]:
            done = restore_cluster_root(self.root)
            done += repair(self._connect(), clock=self.clock)
            return [
                f"{one.state} {one.fault} {one.root}/{one.table_name} {one.path}: {one.outcome}"
                for one in done
            ]

        return self._command("repair", lines)

    def _command(self, name: str, lines: Callable[[], list[str]]) -> list[str]:
        try:
            return lines()
        except KNOWN_ERRORS as error:
            return [f"{type(error).__name__}: {one_line(error)}"]
        except Exception as error:  # noqa: BLE001 - a finding of the trial
            self.observed.tracebacks.append(f"{name}: {type(error).__name__}: {one_line(error)}")
            return [f"traceback: {type(error).__name__}: {one_line(error)}"]


def is_finding(line: str) -> bool:
    """Return whether a line of a scrub is a finding, and not an error or an unreadable object."""
    return _FINDING.match(line) is not None


def play(place: Place, case: Case, seed: int, second: Case | None = None) -> Trial | None:
    """Play a case; return its course, or `None` if the cluster has no file to be damaged.

    `second` damages another file at the same time; scrub and repair run twice then.
    """
    cluster = place.restore(case.age)
    processes = Processes(place.storage)
    with _logged(processes):
        if case.state == "at work":
            processes.start()
            processes.tick()
            processes.use("sound")
            await_checkpoints()
            await_copies()
            before = processes.observed.consumed
            assert not processes.observed.errors, processes.observed.errors
            processes.observed = Observed()
        else:
            before = place.values(case.age)
        files = all_files(cluster)
        damaged_file = inflict(cluster, case, seed, files)
        if damaged_file is None:
            return None
        if second is not None:
            # A listed file may be the one that the first damage has removed.
            left = [one for one in files if one != damaged_file]
            inflict(cluster, second, seed, left)
        processes.start()
        processes.pass_time()
        processes.use("damaged")
        is_read = is_needed(cluster, damaged_file)
        damaged, audited, scrubbed = processes.observed, processes.audit(), processes.scrub()
        processes.observed = Observed()
        outcome = processes.repair()
        if second is not None:
            processes.scrub()
            outcome += processes.repair()
        # Whatever supervises the brokers starts those that have ended.
        processes.start()
        processes.pass_time()
        processes.await_in_sync()
        processes.use("repaired")
        repaired, audit_after, scrub_after = (
            processes.observed,
            processes.audit(),
            processes.scrub(),
        )
        restarted = repaired
        if case.state == "at work":
            # What only a start reads shows now.
            processes.observed = restarted = Observed()
            processes.restart()
            processes.pass_time(1)
            processes.await_in_sync()
            processes.use("restarted")
        await_checkpoints()
        await_copies()
        return Trial(
            case,
            place.storage.kind,
            damaged_file,
            is_read,
            before,
            damaged,
            audited,
            scrubbed,
            outcome,
            repaired,
            audit_after,
            scrub_after,
            restarted,
        )


@contextmanager
def _logged(processes: Processes) -> Iterator[None]:
    """Note the warnings and errors that are logged meanwhile."""

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = " ".join(f"{name}={value}" for name, value in event_of(record).items())
            if text not in processes.observed.log:
                processes.observed.log.append(text)

    logger = logging.getLogger("sparklog")
    handler = Notes(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


__all__ = ["COMMITTED_OFFSET", "Observed", "Processes", "Trial", "play"]
