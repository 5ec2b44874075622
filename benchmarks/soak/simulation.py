"""A soak on a manual clock: three brokers in this process, tick by tick, with real tables.

Producers, consumers, failovers, retention, compaction, merging, vacuum, scrubs, deleted topics and
administrators' requests at once. A round is a second of the cluster's clock and three ticks of each
broker that runs. Files are dated by the system's clock, so their retention is in real time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.soak.retention import keep_for
from benchmarks.soak.samples import Sample, append, disk, median, memory_mib
from benchmarks.soak.workload import Reader, ViolationError, Writer, check_retained
from sparklog.cluster.connection import Connection
from sparklog.maintenance.audit import audit
from sparklog.maintenance.scrub import scrub
from sparklog.model import TopicPartition
from sparklog.testing import LocalCluster

BROKERS = (0, 1, 2)
ROLES = 3

CONFIG = {
    "unclean.leader.election.enable": "false",
    "log.retention.check.interval.ms": 30_000,
    "log.merger.min.lag.ms": 30_000,
    "log.cleaner.backoff.ms": 1,
    "producer.id.expiration.ms": 300_000,
    # Of the system's clock, as `_KEPT_MS`.
    "file.delete.delay.ms": 60_000,
    "metadata.history.retention.ms": 60_000,
}
TOPICS: Mapping[str, dict[str, str | int]] = {
    "by-time": {"retention.ms": 300_000},
    "by-size": {"retention.bytes": 100_000},
    "compacted": {"cleanup.policy": "compact", "delete.retention.ms": 60_000},
    "both": {"cleanup.policy": "compact,delete", "retention.ms": 300_000},
}
READ = ["by-time", "by-size"]
"""The topics whose records the consumers must see once, in order."""
PARTITIONS = 2


def has_keys(partition: TopicPartition) -> bool:
    """Return whether the records of a partition have keys, so that it is compacted."""
    return "compact" in str(TOPICS[partition.topic].get("cleanup.policy"))


_KEPT_MS = 60_000
"""Retention of commits and removed files, in place of an hour and more."""

_DOWN_ROUNDS = 25
_STOP_AFTER = (None, "log_commit", "checkpoint", "responses")
"""The last effect of a leader before it crashes."""


class Simulation:
    """A cluster, what happens to it, and what it must contain.

    Parameters: `folder`, which is empty or missing; `seed`, of all random choices; `samples`, the
    file to which samples are appended; `say`, called with a line about each check.
    """

    def __init__(
        self, folder: Path, seed: int, samples: Path, say: Callable[[str], object] = print
    ) -> None:
        self.folder, self._samples, self._say = folder, samples, say
        self._random = random.Random(seed)
        options = {"/": {"sync": "false"}}
        self.cluster = LocalCluster(folder, BROKERS, config=CONFIG, storage_options=options)
        self._root = folder / "cluster"
        self._shorten_retention()
        self._writers: dict[TopicPartition, Writer] = {}
        self._create_topics(seed)
        self._reader = Reader(self._root, READ, members=2)
        self._returns_at: dict[int, int] = {}
        self._paused: set[int] = set()
        self.round = self.ticks = 0
        self.counts: dict[str, int] = {}
        self._tick_ms: list[float] = []
        self._start_ms: list[float] = []
        # Rounds between two events, and the event. Numbers without a common factor, so that each
        # event meets every other.
        self._events: Sequence[tuple[int, Callable[[], None]]] = (
            (1, self._write),
            (3, self._read),
            (7, self._merge),
            (11, self._clean),
            (61, self._vacuum),
            (89, self._change_producers),
            (127, self._fail_over),
            (149, self._change_member),
            (211, self._delete_records),
            (307, self._temporary_topic),
            (401, self._scrub),
            (997, self.check),
        )

    def _shorten_retention(self) -> None:
        """Keep commits and files for a minute, and restart the brokers with that."""
        keep_for(self.folder, _KEPT_MS)
        # Users may not set less than an hour.
        shorter = {"log_vacuum_unknown_file_retention_ms": _KEPT_MS}
        self.cluster.settings = self.cluster.settings.model_copy(update=shorter)
        for broker in BROKERS:
            self.cluster.crash(broker)
            self.cluster.restart(broker)

    def _create_topics(self, seed: int) -> None:
        for topic, configs in TOPICS.items():
            assignment = {
                number: [(number + other) % len(BROKERS) for other in BROKERS]
                for number in range(PARTITIONS)
            }
            self.cluster.create_topic(
                topic, assignment=assignment, configs={"min.insync.replicas": 2, **configs}
            )
            for number in range(PARTITIONS):
                name = TopicPartition(topic, number)
                self._writers[name] = Writer(
                    self.cluster, name, seed + len(self._writers), has_keys=has_keys(name)
                )
        self.cluster.tick_until_idle()

    # --- time -----------------------------------------------------------------------------------

    def run(self, ticks: int, sample_rounds: int = 100) -> None:
        """Run rounds until there were `ticks` ticks, and check at the end.

        Raises
        ------
        ViolationError
            A record is lost, repeated, moved or changed, or an audit or a scrub found something.
        """
        while self.ticks < ticks:
            self.step()
            if self.round % sample_rounds == 0:
                self.sample()
        self.check()

    def step(self) -> None:
        """Let a second pass: what is due, then a tick of each role of each broker that runs."""
        self.round += 1
        for broker in [one for one, at in self._returns_at.items() if at <= self.round]:
            self._return(broker)
        for rounds, event in self._events:
            if self.round % rounds == 0:
                event()
        self.cluster.clock.advance(1_000)
        begun = time.process_time()
        count = self._round_of_ticks()
        self._tick_ms.append((time.process_time() - begun) * 1000 / max(count, 1))
        self.ticks += count

    def _round_of_ticks(self) -> int:
        self.cluster.controller_tick()
        for broker in self._running:
            self.cluster.leader_tick(broker)
        for broker in self._running:
            self.cluster.follower_tick(broker)
        return ROLES * len(self._running)

    @property
    def _running(self) -> list[int]:
        return [one for one in BROKERS if one in self.cluster.brokers and one not in self._paused]

    # --- clients --------------------------------------------------------------------------------

    def _write(self) -> None:
        for place, writer in enumerate(self._writers.values()):
            if (self.round + place) % 2 == 0:
                writer.step(self.round)
            else:
                writer.take_answer(self.round)

    def _read(self) -> None:
        self._count("records read", self._reader.step())

    def _change_producers(self) -> None:
        for writer in self._writers.values():
            writer.change_producer()

    def _change_member(self) -> None:
        self._reader.replace_member()
        self._count("members replaced")

    # --- brokers --------------------------------------------------------------------------------

    def _fail_over(self) -> None:
        """Crash or suspend a broker, often the leader of most; it returns when it was replaced."""
        broker = self._random.choice(BROKERS)
        if self._random.random() < 0.3:
            self.cluster.pause(broker)
            self._paused.add(broker)
            self._count("brokers suspended")
        else:
            stop_after = self._random.choice(_STOP_AFTER)
            if stop_after is not None:
                self.cluster.leader_tick(broker, stop_after)
            if broker in self.cluster.brokers:
                self.cluster.crash(broker)
            self._count("brokers crashed")
        self._returns_at[broker] = self.round + _DOWN_ROUNDS

    def _return(self, broker: int) -> None:
        del self._returns_at[broker]
        if broker in self._paused:
            # A suspended process goes on with what it had loaded before.
            self.cluster.leader_tick(broker)
            self.cluster.follower_tick(broker)
            self.cluster.resume(broker)
            self._paused.discard(broker)
            return
        begun = time.process_time()
        self.cluster.restart(broker)
        self._start_ms.append((time.process_time() - begun) * 1000)

    def _merge(self) -> None:
        broker = self._random.choice(self._running)
        self._count("batches merged", self.cluster.merge(broker).batches)

    def _clean(self) -> None:
        broker = self._random.choice(self._running)
        self._count("replicas cleaned", self.cluster.clean(broker).partitions)

    def _vacuum(self) -> None:
        for broker in self._running:
            self._count("files removed", self.cluster.vacuum(broker).files)

    # --- administrators -------------------------------------------------------------------------

    def _delete_records(self) -> None:
        name = TopicPartition("by-size", self._random.randrange(PARTITIONS))
        offset = max(self._reader.positions.get(name, 0) - 50, 0)
        with_leader = self.cluster.partition(*name).leader is not None
        if with_leader and len(self._running) == len(BROKERS):
            self.cluster.delete_records({name: offset})
            self._count("requests to delete records")

    def _temporary_topic(self) -> None:
        """Create a topic, or delete the one of the last time."""
        topic = "temporary"
        if any(one.topic == topic for one in self.cluster.connection.metadata().topics.values()):
            self.cluster.delete_topic(topic)
            self._count("topics deleted")
        else:
            self.cluster.create_topic(topic, assignment={0: list(BROKERS)})
            self.cluster.produce(topic, 0, [b"v"] * 10, acks=1)

    # --- checks ---------------------------------------------------------------------------------

    def _scrub(self) -> None:
        report = scrub(Connection(self._root), restart=True)
        if report.findings or report.unreadable:
            raise ViolationError(
                f"round {self.round}: scrub: {report.findings or report.unreadable}"
            )
        self._count("scrubs")

    def check(self) -> None:
        """Let everything settle, then audit, and read every retained record by a new consumer."""
        for broker in list(self._returns_at):
            self._return(broker)
        for _ in range(200):
            for writer in self._writers.values():
                writer.take_answer(self.round)
            self.round += 1
            self.cluster.clock.advance(1_000)
            self.ticks += self._round_of_ticks()
            self._read()
            if all(one.is_idle for one in self._writers.values()) and self._is_read:
                break
        else:
            raise ViolationError(f"round {self.round}: writers or readers do not come to an end")
        self.cluster.tick_until_idle()
        findings = audit(Connection(self._root), verify_files=True)
        if findings:
            raise ViolationError(f"round {self.round}: audit: {[str(one) for one in findings]}")
        count = 0
        for name, writer in self._writers.items():
            count += check_retained(self._root, name, writer.written)
        self._say(
            f"{self.ticks} ticks, {self.records} records acknowledged, {count} retained: "
            "the audit is clean"
        )

    @property
    def _is_read(self) -> bool:
        return all(
            self._reader.positions.get(name, 0) == writer.written.end_offset
            for name, writer in self._writers.items()
            if not has_keys(name)
        )

    @property
    def records(self) -> int:
        """The number of acknowledged records."""
        return sum(writer.written.end_offset for writer in self._writers.values())

    def sample(self) -> Sample:
        """Append a sample to the file of samples, and return it."""
        found = disk(self.folder)
        sample = Sample(
            at=self.ticks,
            records=self.records,
            **vars(found),
            tick_ms=median(self._tick_ms) or 0.0,
            start_ms=median(self._start_ms),
            memory_mib=round(memory_mib(), 1),
        )
        self._tick_ms, self._start_ms = [], []
        append(self._samples, sample)
        return sample

    def _count(self, what: str, count: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + count

    def close(self) -> None:
        """End the clients and the brokers."""
        self._reader.close()
        self.cluster.close()
