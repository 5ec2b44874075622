"""A simulated cluster: brokers, clients and an administrator, played by a script."""

from __future__ import annotations

import atexit
import functools
import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

from deltalake.exceptions import DeltaError

from sparklog.broker.broker import Broker
from sparklog.broker.cleaner import CleanReport
from sparklog.broker.engines import execution_of, rules_of
from sparklog.broker.tick import StoppedError
from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.cluster.repairs import repairs_of
from sparklog.cluster.roots import BrokerRoot, ClusterRoot
from sparklog.config import Settings, parse
from sparklog.errors import (
    CommitConflictError,
    FencedError,
    SparklogError,
    StorageError,
)
from sparklog.maintenance.audit import audit
from sparklog.maintenance.repair import repair
from sparklog.maintenance.scrub import scrub
from sparklog.maintenance.table_restoration import restore_cluster_root
from sparklog.model import DELAYED_OPERATIONS, LOG, TopicPartition
from sparklog.producer.produce_requests import Acks
from sparklog.storage.file_copies import FOLDER as COPIES
from sparklog.storage.location import Location
from sparklog.testing import History, check
from tests.faults.bit_flips import flip_bit
from tests.faults.simulation.clients import (
    TOPIC,
    SimulatedConsumer,
    SimulatedProducer,
    is_refused,
    key_of,
)
from tests.faults.simulation.public_clients import PublicConsumer, PublicProducer
from tests.faults.simulation.scheduler import KilledError, Process, Scheduler
from tests.faults.simulation.script import Step
from tests.faults.simulation.simulated_store import ROOT as STORE
from tests.faults.simulation.table_damage import (
    TABLES_OF_BROKERS,
    TABLES_OF_CLUSTERS,
    TableDamage,
    damage_a_table,
)
from tests.faulty_files import Kept
from tests.state_machine.invariants import Invariants
from tests.state_machine.roots import clean_up, has_damaged_file

BROKERS = 3
ROLES = ("controller_tick", "leader_tick", "follower_tick", "heartbeat", "poll", "merge", "clean")
IDEMPOTENT, PLAIN = "producer-0", "producer-1"
PRODUCERS = (IDEMPOTENT, PLAIN)
READER = "consumer-1"
"""The `Consumer` of a cluster with public clients, which remembers its positions."""
ACKS: tuple[Acks, ...] = ("all", 1, 0)
_OF_LOST_DATA = {"CORRUPT_MESSAGE", "OUT_OF_ORDER_SEQUENCE_NUMBER"}
"""The answers that an idempotent producer may get after unsynced data is lost."""
_FORESEEN = (CommitConflictError, StorageError, OSError, DeltaError, StoppedError)
"""The errors after which a process goes on."""

_Producer = SimulatedProducer | PublicProducer
_Client = _Producer | SimulatedConsumer | PublicConsumer

_WRITE_BACK_MS = 30_000
"""The time after which the kernel has written unsynced data to the disk, in ms."""
_QUIET_ROUNDS = 90
_UNCLEAN_ROUND = 30
"""The round without faults after which a partition that nobody may lead has lost its records."""
_ROUND_MS = 1_000
_KEPT: tuple[Kept, ...] = ("none", "half", "all")
_MEMORY = "/dev/shm"
_KEPT_COMMITS_MS = 600_000
"""The time for which clean-up keeps commits. In folders, which are checked for this at each commit,
it may come at any time.
"""
_CONFIG = {
    "replica.lag.time.max.ms": 6_000,
    "broker.session.timeout.ms": 9_000,
    "log.merger.min.lag.ms": 60_000,
    "log.merger.min.batches": 2,
    "log.retention.check.interval.ms": 10_000,
    "log.vacuum.interval.ms": 60_000,
    "file.delete.delay.ms": 60_000,
}


_DELAYED = f"/{DELAYED_OPERATIONS.name}"
_ONLY_COPY = "may be the only one with the records"
"""Part of the outcome of a repair that leaves a journal to an operator."""
_COSTLY_CHECKS = 8
"""The number of changes to the tables between two audits: half of a seed's time with each one."""


class Shape(NamedTuple):
    """The fixed part of a simulation.

    Clocks drift by `drifts_ppm` parts per million. `is_synced`, whether files are synced before
    they count. `retention_ms`, the age at which records are deleted, -1 for never. `is_compacted`,
    whether the cleaner keeps the last record of each key only. `has_bit_flips`, whether bits of
    batch files flip, one file at a time until it is repaired. `longest_pause_ms`, the longest time
    for which processes are suspended or all is silent. `is_on_store`, whether all roots are on an
    object store, whose requests may be carried out late; `outdated_lists`, the share of its lists
    that lag behind.
    `has_replaced_processes`, whether processes are replaced between two of their reads.
    `has_damaged_tables`, whether commits and checkpoints of brokers' tables are damaged, one file
    at a time until it is repaired.
    `has_public_clients`, whether the clients are `Producer` and `Consumer`.
    `has_cut_leaders`, whether leaders cut their damaged logs while a `Consumer` reads.
    """

    partitions: int
    replication_factor: int
    drifts_ppm: tuple[int, ...]
    min_isr: int = 1
    is_synced: bool = True
    retention_ms: int = -1
    is_compacted: bool = False
    has_bit_flips: bool = False
    longest_pause_ms: int = 600_000
    is_on_store: bool = False
    outdated_lists: float = 0.0
    has_replaced_processes: bool = False
    has_public_clients: bool = False
    has_damaged_tables: bool = False
    has_cut_leaders: bool = False


class Outcome(NamedTuple):
    """The result of a simulation; `problems` is empty if it is clean."""

    problems: list[str]
    digest: str
    counts: Counter[str]


class World:
    """A cluster whose processes do one step of a script after the other."""

    def __init__(self, shape: Shape) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="sparklog-", dir=_in_memory())
        self.root = Path(self._folder.name)
        self.shape = shape
        self.scheduler = Scheduler(self.root, has_store=shape.is_on_store)
        self.counts = self.scheduler.counts
        self.history = History()
        self.problems: list[str] = []
        config = {**_CONFIG, "min.insync.replicas": shape.min_isr}
        self._settings = parse(Settings, config, "simulation")
        self._options = None if shape.is_synced else {str(self.root): {"sync": "false"}}
        self._rules = rules_of(self._settings, None)
        self._execution = execution_of(self._settings, None, None)
        self._cluster = self._uri("cluster")
        for name in _roots():
            shutil.copytree(_empty_roots() / name, self.root / name)
            if shape.is_on_store:
                # It was created in a folder, where `log` has copies.
                shutil.rmtree(self.root / name / LOG.name / COPIES, ignore_errors=True)
        self._actors = list(range(BROKERS))
        """The broker that plays each actor of a disturbance."""
        self._boots = Counter[int]()
        self._unsound: set[int] = set()
        """The machines that have lost unsynced data, and whose broker has not started since."""
        self._processes = {
            name: Process(
                name,
                self.scheduler,
                shape.drifts_ppm[number % len(shape.drifts_ppm)],
                self.root / f"boot_id-{_machine(name)}",
            )
            for number, name in enumerate(process_names())
        }
        self._processes[READER] = Process(
            READER, self.scheduler, 0, self.root / f"boot_id-{_machine(READER)}"
        )
        for one in range(BROKERS + 1):
            (self.root / f"boot_id-{one}").write_text("0")
        self.brokers: dict[str, Broker] = {}
        self._clients: dict[str, _Client] = {}
        self._incarnations = Counter[str]()
        self._past_producers: list[_Producer] = []
        self._invariants: Invariants | None = None
        self._is_damaged = False
        """Whether a file was damaged that has not been repaired yet."""
        self._damaged_tables: int | None = None
        """The broker with the damaged file, if it is one of a table's log, or `BROKERS` for the
        cluster root.
        """
        self._table_damage: TableDamage | None = None
        self._may_lack_answers = False
        """Whether a journal was damaged, which may begin again at an earlier version, or the table
        of the requests that wait for followers, which begins again empty.
        """
        self._latest_ms = 0
        """The latest time that a clock of any process has shown."""
        self._effects: dict[str, Callable[[Step], None]] = {
            "advance": lambda step: self._advance(*step.arguments),
            "clean up": lambda _: self._clean_up(),
            "rest": lambda _: self._come_to_rest(),
            "cast": lambda step: self._cast(*step.arguments),
            "power": lambda step: self._lose_power(_machine(step.process), *step.arguments),
            "jump": lambda step: self._jump(step.process, *step.arguments),
            "kill": lambda step: self._kill(step.process),
            "flip": lambda step: self._flip(_machine(step.process), *step.arguments),
            "damage": lambda step: self._damage(_machine(step.process), *step.arguments),
        }
        """The steps that are not actions of a process."""

    # --- a simulation ---------------------------------------------------------------------------

    def play(self, steps: Iterable[Step]) -> Outcome:
        """Play a script, then let the cluster come to rest and check the history."""
        with self.scheduler.installed():
            try:
                self._open()
                for step in steps:
                    self.do(step)
                    if self.problems:
                        break
                if not self.problems:
                    self._come_to_rest()
                if not self.problems:
                    self._judge()
            except (AssertionError, SparklogError, KeyError) as error:
                self.problems.append(f"{type(error).__name__}: {error}")
            finally:
                self._close()
        self.counts["acknowledged"] = sum(one.is_acknowledgement for one in self.history.answers)
        return Outcome(self.problems, self.scheduler.digest, self.counts)

    def do(self, step: Step) -> None:
        """Do one step, if it makes sense."""
        self.scheduler.note(str(step))
        if step.process.startswith("actor-"):
            actor, slot = int(step.process[6:-1]), step.process[-1]
            step = step._replace(process=f"broker-{self._actors[actor]}{slot}")
        effect = self._effects.get(step.what)
        if effect is not None:
            effect(step)
            return
        process = self._processes[step.process]
        if (step.what == "resume") != process.is_busy:
            return
        if not process.is_busy:
            action = self._action(step)
            if action is None:
                return
            self.counts[step.what] += 1
            process.begin(action)
        self._run(process, step)

    def _advance(self, ms: int) -> None:
        self.scheduler.now_ms += ms
        if ms > _WRITE_BACK_MS and not self.shape.is_synced:
            self.scheduler.files.write_back(str(self.root))

    def _jump(self, name: str, offset_ms: int) -> None:
        self._processes[name].clock.offset_ms = offset_ms

    def _cast(self, partition: int) -> None:
        """Make the leader of a partition actor 0."""
        leader = self._invariants.leader(partition) if self._invariants is not None else None
        first = self._actors[0] if leader is None else leader
        self._actors = [first, *(one for one in range(BROKERS) if one != first)]

    def _run(self, process: Process, step: Step) -> None:
        unread, late = self.counts["unread"], self.counts["put late"]
        self.scheduler.run(process, step.events)
        if self._invariants is not None and self.counts["unread"] > unread:
            # It may take what it cannot read for damaged, cut it and copy it again.
            self._invariants.fail_reads(_machine(process.name))
        has_landed_late = self.counts["put late"] > late
        if self._invariants is not None and (process.name.startswith("broker") or has_landed_late):
            # A commit may have landed that its broker had given up, and that answers a client.
            self._expect_retention(self._invariants)
            # Opening a damaged table of the cluster root again is refused.
            with suppress(*(StorageError,) if self._damaged_tables == BROKERS else ()):
                self._invariants.check()
        if process.name.startswith("producer") and self._invariants is not None:
            self._check_answers(process.name, self._invariants)
        if process.is_busy:
            return
        if process.is_killed or isinstance(process.error, KilledError | FencedError):
            self._end(process.name)
        elif process.error is not None:
            self.scheduler.note(type(process.error).__name__)
            if not isinstance(process.error, _FORESEEN) and not is_refused(process.error):
                error = process.error
                self.problems.append(f"{step}: {type(error).__name__}: {error}")

    def _expect_retention(self, invariants: Invariants) -> None:
        """Expect that any broker deletes what is old enough on the clock that is ahead."""
        if self.shape.retention_ms < 0:
            return
        clocks = [one.clock.now_ms() for one in self._processes.values()]
        self._latest_ms = max(self._latest_ms, *clocks)
        for partition in range(self.shape.partitions):
            committed = invariants.committed(partition)
            offset = 0
            # Records that an administrator has deleted may be younger than those behind them.
            while offset < len(committed) and (
                self._is_expired(committed[offset]) or invariants.may_be_deleted(partition, offset)
            ):
                offset += 1
            invariants.expect_deletion(partition, offset)

    def _is_expired(self, value: bytes) -> bool:
        """Whether a record may be deleted, or is already."""
        stamped = (one.timestamps_ms.get(value) for one in self._past_producers)
        sent_ms = next((one for one in stamped if one is not None), 0)
        return self._latest_ms - sent_ms > self.shape.retention_ms

    def _check_answers(self, name: str, invariants: Invariants) -> None:
        """3.2: the records of each positive answer are, or were, at their offsets in some log."""
        producer = self._clients.get(name)
        if isinstance(producer, _Producer):
            # The log of a broker with damaged tables is not read.
            stored = producer.stored if self._damaged_tables is None else []
            for partition, base_offset, values in stored:
                invariants.check_appended(partition, base_offset, values)
            producer.stored.clear()

    def _action(self, step: Step) -> Callable[[], None] | None:
        name, what, arguments = step.process, step.what, step.arguments
        if name.startswith("broker"):
            broker = self.brokers.get(name)
            if what == "start":
                return (lambda: self._start(name)) if broker is None else None
            if broker is None:
                return None
            if what in {"stop", "park"}:
                return lambda: self._stop(name, parks=what == "park")
            return lambda: self._play_role(broker, what)
        if name.startswith("producer"):
            if what == "send":
                partition, count, number = arguments
                acks = ACKS[number]
                return lambda: self._producer(name, acks).send(partition, count, acks)
            return lambda: self._producer(name).poll()
        if name == READER:
            return self._read_on
        if name.startswith("consumer"):
            return lambda: self._read(name, arguments[0])
        return lambda: self._administer(what, arguments[0], arguments[1:])

    def _play_role(self, broker: Broker, what: str) -> None:
        if self.shape.is_on_store and what in {"controller_tick", "leader_tick", "follower_tick"}:
            # As in each round of an application.
            broker.poll_ahead()
            if what == "leader_tick":
                broker.copy_ahead()
        report = getattr(broker, what)()
        if isinstance(report, CleanReport):
            self.counts["cleaned records"] += report.records - report.retained

    # --- processes ------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        number = _machine(name)
        root = self.root / f"broker-{number}"
        is_unsound = number in self._unsound and has_damaged_file(root)
        try:
            self.brokers[name] = self._open_broker(name)
        except (StorageError, DeltaError):
            if number not in self._unsound:
                raise
            is_unsound = True
        if is_unsound:
            # The documented remedy for an unsynced root that a power loss has damaged. The
            # invariants read every batch, before a scrub has found the damaged ones.
            self.brokers.pop(name, None)
            self._replace_root(number)
            self.brokers[name] = self._open_broker(name)
        self._unsound.discard(number)
        if self._invariants is not None and number != self._damaged_tables:
            self._invariants.regain(number, was_damaged=self.shape.has_damaged_tables)

    def _open_broker(self, name: str) -> Broker:
        number = _machine(name)
        return Broker(
            number,
            self._cluster_root(),
            [Location.of(self._uri(f"broker-{number}"), self._options)],
            rules=self._rules,
            execution=self._execution,
            clock=self._processes[name].clock,
            settings=self._settings,
            storage_options=self._options,
        )

    def _uri(self, root: str) -> str:
        """Return the URI of a root as the processes see it."""
        return f"{STORE}/{root}" if self.shape.is_on_store else str(self.root / root)

    def _replace_root(self, number: int) -> None:
        root = self.root / f"broker-{number}"
        shutil.rmtree(root)
        shutil.copytree(_empty_roots() / root.name, root)
        self.counts["replaced roots"] += 1
        if self._invariants is not None:
            self._invariants.lose(number)

    def _cluster_root(self) -> Location:
        return Location.of(self._cluster, self._options)

    def _connection(self) -> Connection:
        return Connection(self._cluster, storage_options=self._options, rules=self._rules)

    def _stop(self, name: str, *, parks: bool) -> None:
        broker = self.brokers[name]
        try:
            if parks:
                broker.park()
            else:
                broker.prepare_to_stop()
                broker.stop()
        finally:
            # An application ends, too, when a broker of it cannot be stopped.
            self.brokers.pop(name, None)

    def _producer(self, name: str, acks: Acks = "all") -> _Producer:
        found = self._clients.get(name)
        if found is None:
            self._incarnations[name] += 1
            numbered = f"{name}.{self._incarnations[name]}"
            clock, is_idempotent = self._processes[name].clock, name == IDEMPOTENT
            given = numbered, self._connection(), clock, self.history
            if self.shape.has_public_clients:
                found = PublicProducer(*given, acks, is_idempotent=is_idempotent)
            else:
                found = SimulatedProducer(*given, is_idempotent=is_idempotent)
            self._clients[name] = found
            self._past_producers.append(found)
        assert isinstance(found, _Producer)
        return found

    def _read_on(self) -> None:
        """Let the consumer that remembers its positions read."""
        invariants = self._invariants
        assert invariants is not None
        found = self._clients.get(READER)
        partitions = range(self.shape.partitions)
        if found is None:
            found = PublicConsumer(
                self._connection(),
                self.history,
                partitions,
                invariants.may_be_removed,
                self._has_lost_records,
            )
            self._clients[READER] = found
        assert isinstance(found, PublicConsumer)
        superseded = {one: invariants.superseded(one) for one in partitions}
        self.counts["read on"] += found.poll(superseded)

    def _read(self, name: str, partition: int) -> None:
        found = self._clients.get(name)
        if found is None:
            found = SimulatedConsumer(self._connection(), self.history)
            self._clients[name] = found
        assert isinstance(found, SimulatedConsumer)
        superseded: dict[int, bytes] = {}
        if self._invariants is not None:
            superseded = self._invariants.superseded(partition)
        self.counts["read"] += found.read(partition, superseded)

    def _flip(self, number: int, partition: int, drawn: int) -> None:
        """Flip a bit of a batch file of a broker, whose records the other replicas have."""
        if self._invariants is None or self._is_damaged:
            return
        paths = self._invariants.settled_files(number, partition)
        if not paths:
            return
        file = self.root / f"broker-{number}" / "log" / paths[drawn % len(paths)]
        flip_bit(file, Random(drawn))
        self._is_damaged = True
        self._invariants.fail_reads(number)
        self.counts["flipped"] += 1

    def _damage(self, number: int, drawn: int) -> None:
        """Damage a file of the log of a table in a broker's root, or in the cluster root.

        The other replicas have what a broker's log has. It is not checked from then on: only when
        it runs, or has started, after a repair has found everything sound.
        """
        if self._invariants is None or self._is_damaged:
            return
        is_of_broker = number < BROKERS
        if is_of_broker and not self._invariants.is_settled(number):
            return
        name = f"broker-{number}" if is_of_broker else "cluster"
        tables = TABLES_OF_BROKERS if is_of_broker else TABLES_OF_CLUSTERS
        is_on_store = self.shape.is_on_store
        root = Location.of(str(self.root / name))
        done = damage_a_table(root, tables, Random(drawn), is_on_store=is_on_store)
        if done is None:
            return
        self.scheduler.note(str(done))
        self._set_times()
        self._is_damaged, self._damaged_tables, self._table_damage = True, number, done
        self._may_lack_answers |= done.table.uri.endswith((f"/{LOG.name}", _DELAYED))
        if is_of_broker:
            self._invariants.lose(number)
            # A flipped bit of a header is damage of a batch.
            self._invariants.fail_reads(number)
        self.counts["damaged tables"] += 1

    def _repair(self) -> None:
        """Verify all files and repair what is found, as `sparklog scrub` and `repair` do."""
        clock = self._processes["admin"].clock
        if self._damaged_tables == BROKERS:
            restore_cluster_root(self._cluster_root())
        report = scrub(self._connection(), restart=True, clock=clock)
        done = repair(self._connection(), clock=clock)
        if self._table_damage is not None and any(_ONLY_COPY in one.outcome for one in done):
            self._table_damage.restore()
            self._set_times()
            self.counts["restored by hand"] += 1
        is_open = any(one.is_open for one in repairs_of(self._connection().root))
        # By an outdated list a scrub does not see the newest files.
        sees_all = not self.scheduler.outdated_lists
        if sees_all and not (is_open or report.findings or report.unreadable):
            self._is_damaged = False
            self.counts["found sound"] += 1
            number, self._damaged_tables = self._damaged_tables, None
            if number is not None and any(_machine(one) == number for one in self.brokers):
                assert self._invariants is not None
                self._invariants.regain(number, was_damaged=True)

    def _administer(self, what: str, partition: int, asked: tuple[int, ...]) -> None:
        """Repair, elect a preferred leader, delete the oldest records, or move a partition."""
        if what == "repair":
            self._repair()
            return
        clock = self._processes["admin"].clock
        admin = Admin(self._connection(), settings=self._settings, clock=clock)
        key = TopicPartition(TOPIC, partition)
        if what == "elect":
            admin.elect_leaders("preferred", [key])
        elif what == "reassign":
            if self._is_damaged and len(asked) == 1:
                # Its damaged file may be the only copy left: a reassignment does not verify the
                # files of the replica that stays (seed 23248).
                return
            # A target with a broker twice or more than once is refused, as is nothing to cancel.
            admin.alter_partition_reassignments({key: list(asked) or None})
        elif self._invariants is not None:
            committed = len(self._invariants.committed(partition))
            offset = max(committed - asked[0], 0)
            self._invariants.expect_deletion(partition, offset)
            admin.delete_records({key: offset}, timeout_ms=0)

    def _kill(self, name: str) -> None:
        process = self._processes[name]
        if process.is_busy:
            self.scheduler.kill(process)
        self._end(name)

    def _end(self, name: str) -> None:
        """Forget the memory of a process that has ended."""
        self.brokers.pop(name, None)
        self._clients.pop(name, None)

    def _lose_power(self, machine: int, names: int, content: int) -> None:
        """Cut the power of a broker's machine.

        Not while another process is suspended: it could hold an open file of the machine, which the
        file system would refuse after the restart, and here would not.
        """
        own = {name for name in self._processes if _machine(name) == machine}
        if any(one.is_busy for name, one in self._processes.items() if name not in own):
            return
        self.counts["power cuts"] += 1
        for name in sorted(own):
            self._kill(name)
        if self.shape.is_on_store:
            return
        folder = str(self.root / f"broker-{machine}")
        self.scheduler.files.lose_power(folder, _KEPT[names], _KEPT[content])
        if self._invariants is not None:
            self._invariants.lose_power(machine, syncs=self.shape.is_synced)
            if not self.shape.is_synced:
                self._unsound.add(machine)
        self._boots[machine] += 1
        (self.root / f"boot_id-{machine}").write_text(str(self._boots[machine]))

    def _clean_up(self) -> None:
        """Remove the commits before Delta's checkpoints, as the brokers' clean-up would in time."""
        self.counts["clean-ups"] += 1
        for producer in self._past_producers:
            # In a real cluster answers stay for 10 minutes.
            with suppress(*_FORESEEN, SparklogError):
                producer.poll_late()
        for name, broker in self.brokers.items():
            if not self._processes[name].is_busy:
                with suppress(*_FORESEEN, SparklogError):
                    broker._write_checkpoints()
        until_ms = self.scheduler.now_ms - _KEPT_COMMITS_MS if self.shape.is_on_store else math.inf
        for one in _roots():
            if one == f"broker-{self._damaged_tables}" or self._damaged_tables == BROKERS:
                # The clean-up of brokers verifies what it replaces by a checkpoint.
                continue
            with suppress(*_FORESEEN):
                clean_up(self.root / one, until_ms)
                if self._invariants is not None:
                    self._invariants.clean_up(self.root / one)
        self._set_times()

    def _set_times(self) -> None:
        """Give the objects that delta-rs has written, or that were there before, a time."""
        if not self.shape.is_on_store:
            return
        now_ns = self.scheduler.now_ms * 1_000_000
        for name in _roots():
            for file in (self.root / name).rglob("*"):
                if file.stat().st_mtime_ns > now_ns:
                    os.utime(file, ns=(now_ns, now_ns))

    # --- begin and end --------------------------------------------------------------------------

    def _open(self) -> None:
        """Start the brokers and create the topic, without faults."""
        self._set_times()
        for one in range(BROKERS):
            self.do(Step(f"broker-{one}a", "start"))
        connection = self._connection()
        assignment = {
            one: [(one + other) % BROKERS for other in range(self.shape.replication_factor)]
            for one in range(self.shape.partitions)
        }
        configs: dict[str, str | int] = {"retention.ms": self.shape.retention_ms}
        if self.shape.is_compacted:
            configs |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        Admin(connection, settings=self._settings).create_topic(
            TOPIC, assignment=assignment, configs=configs
        )
        for _ in range(3):
            self._round()
        self.scheduler.files.write_back(str(self.root))
        self.scheduler.outdated_lists = self.shape.outdated_lists
        self._invariants = Invariants(
            self.root,
            range(BROKERS),
            allows_unclean=False,
            costly_every=_COSTLY_CHECKS,
            key_of=key_of if self.shape.is_compacted else None,
            may_repeat=self._may_repeat,
        )
        self._invariants.check()

    def _round(self) -> None:
        self.scheduler.now_ms += _ROUND_MS
        for what in ("heartbeat", "controller_tick", "leader_tick", "follower_tick"):
            for name in sorted(self.brokers):
                self.do(Step(name, what))

    def _come_to_rest(self) -> None:
        """End all faults and let the cluster converge; all requests are answered by then."""
        self.counts["rests"] += 1
        self.scheduler.outdated_lists = 0.0
        for name, process in self._processes.items():
            while process.is_busy:
                self.do(Step(name, "resume"))
            process.clock.offset_ms = 0
        for name in [name for name in self.brokers if name.endswith("b")]:
            self._kill(name)
        for number in range(_QUIET_ROUNDS):
            for one in range(BROKERS):
                # Those that run keep their memory. One whose second process has run is fenced, and
                # ends at its next tick.
                self.do(Step(f"broker-{one}a", "start"))
            self._round()
            if number == _UNCLEAN_ROUND and not self.shape.is_synced:
                self._elect_uncleanly()
            self._poll_and_repair()
            if self.problems or (self._is_at_rest() and self._read_all()):
                break
        else:
            self.problems.append(f"no convergence within {_QUIET_ROUNDS} rounds: {self._states()}")
        self.scheduler.outdated_lists = self.shape.outdated_lists
        if self.shape.is_synced and not (self.problems or self._may_lack_answers):
            # A request that was not synced may be lost with its commit. A client that has read a
            # journal beyond its new end reads none of the answers that take their place.
            for producer in self._past_producers:
                self.problems += [f"{producer.name}: {one}" for one in producer.unanswered()]

    def _poll_and_repair(self) -> None:
        """Poll the answers of requests, and repair a damaged file."""
        for name in PRODUCERS:
            if name in self._clients:
                self.do(Step(name, "poll"))
        if self._is_damaged:
            self.do(Step("admin", "repair", (0,)))

    def _judge(self) -> None:
        """Check the clients' history, their answers and the audit of a cluster at rest."""
        if not any(map(self._has_lost_records, range(self.shape.partitions))):
            plain = [one.name for one in self._past_producers if one.name.startswith(PLAIN)]
            repeating = plain if self.shape.has_public_clients else []
            found = check(self.history, at_least_once=repeating)
            self.problems += [f"{one.kind}: {one.sentence}" for one in found]
        for producer in self._past_producers:
            self.problems += [
                f"{producer.name} got {error}"
                for error in producer.errors
                if self.shape.is_synced or error not in _OF_LOST_DATA
            ]
        connection = self._connection()
        self.problems += [f"audit: {one}" for one in audit(connection, self._rules)]

    def _may_repeat(self, value: bytes) -> bool:
        """Whether a record is of a `Producer` that sends batches again without idempotence."""
        return self.shape.has_public_clients and value.startswith(PLAIN.encode())

    def _has_lost_records(self, partition: int) -> bool:
        """Whether a power loss has taken unsynced records of the last replica that had them."""
        assert self._invariants is not None
        return self._invariants.unclean_epoch(partition) >= 0

    def _elect_uncleanly(self) -> None:
        connection = self._connection()
        partitions = connection.metadata().partitions.values()
        offline = [(TOPIC, one.partition) for one in partitions if one.leader is None]
        if offline:
            Admin(connection, settings=self._settings).elect_leaders("unclean", offline)
            if self._invariants is not None:
                self._invariants.check(unclean_was_asked=True)

    def _read_all(self) -> bool:
        """Read all partitions; return whether all of them can be read."""
        if READER in self._clients:
            self.do(Step(READER, "poll"))
            reader = self._clients.get(READER)
            if not isinstance(reader, PublicConsumer) or not self._has_read_all(reader):
                return False
        reads = len(self.history.reads)
        for one in range(self.shape.partitions):
            self.do(Step("consumer-0", "read", (one,)))
        return len(self.history.reads) == reads + self.shape.partitions

    def _has_read_all(self, reader: PublicConsumer) -> bool:
        """Whether a consumer has read all committed records, or all that are not removed."""
        invariants = self._invariants
        assert invariants is not None
        return all(
            invariants.may_be_removed(partition, offset)
            for partition, position in reader.positions.items()
            for offset in range(position, len(invariants.committed(partition)))
        )

    def _is_at_rest(self) -> bool:
        if self._is_damaged:
            return False
        for name in PRODUCERS:
            client = self._clients.get(name)
            if isinstance(client, _Producer) and not client.is_done:
                return False
        partitions = self._connection().metadata().partitions.values()
        assert self._invariants is not None
        return all(
            len(one.isr) == len(one.replicas)
            and one.leader is not None
            and not one.is_reassigning
            and self._invariants.has_committed_all(one.partition)
            for one in partitions
        )

    def _states(self) -> str:
        partitions = self._connection().metadata().partitions.values()
        waiting = [
            name
            for name, one in self._clients.items()
            if isinstance(one, _Producer) and not one.is_done
        ]
        states = [f"{one.partition}: leader {one.leader}, ISR {one.isr}" for one in partitions]
        return "; ".join([*states, f"unanswered {waiting}", f"brokers {sorted(self.brokers)}"])

    def _close(self) -> None:
        for process in self._processes.values():
            if process.is_busy:
                self.scheduler.kill(process)
            if not process.is_busy:
                process.end()
        self._folder.cleanup()


def process_names() -> list[str]:
    """The names of all processes; a broker's processes a and b may run at once."""
    brokers = [f"broker-{one}{slot}" for one in range(BROKERS) for slot in "ab"]
    return [*brokers, *PRODUCERS, "consumer-0", "admin"]


def _machine(process: str) -> int:
    """The number of the machine of a process; all clients share the last one."""
    return int(process[7:-1]) if process.startswith("broker-") else BROKERS


def _roots() -> list[str]:
    return ["cluster", *(f"broker-{one}" for one in range(BROKERS))]


def _in_memory() -> str | None:
    return _MEMORY if os.access(_MEMORY, os.W_OK) else None


@functools.cache
def _empty_roots() -> Path:
    """The roots of a new cluster; copying them is faster than creating them."""
    folder = Path(tempfile.mkdtemp(prefix="sparklog-", dir=_in_memory()))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with Scheduler(folder).installed():
        cluster = ClusterRoot.create(Location.of(str(folder / "cluster")))
        for broker in range(BROKERS):
            root = Location.of(str(folder / f"broker-{broker}"))
            BrokerRoot.create(root, cluster.cluster_id, broker)
    return folder
