"""The requests of a cluster to an object store, counted by the store, and their costs."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping

from benchmarks.bench import Bench
from benchmarks.figures import Figures, Target
from benchmarks.prices import dollars
from benchmarks.request_list import by_table, listed
from benchmarks.requests import BulkProducer
from benchmarks.s3_server import BYTES, KINDS, NOT_FOUND, REFUSED, Logged
from benchmarks.s3_store import Store, running_store
from benchmarks.work import Work
from sparklog.broker.application import Application
from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.config import ClusterConfig, parse
from sparklog.producer.produce_requests import PendingProduce
from sparklog.testing.manual_clock import ManualClock

IDLE = "an idle tick of a broker"
HEARTBEAT = "a heartbeat of a broker"
RENEWAL = "a follower's renewal, beside idle ticks"
BUSY = "a request of 4 small batches, all brokers, beside idle ticks"
SEND = "... and its producer"
CHECKPOINTS = "the checkpoints after it, all brokers"
MEBIBYTE = "a committed MiB, in batches of 4 MiB, all of them"
ROUND = "a round of 4 partitions, acks=all, with its producer, all requests"
READS = "GET and HEAD"
ROUND_LIST = "storage_requests-round"
"""The name of the table with the single requests of a round."""

RENEWAL_SECONDS = 10
CHECKPOINT_SECONDS = 5
FEW = "4 partitions"

_NAMES = (*KINDS, NOT_FOUND, REFUSED, BYTES)
_BROKERS = 3
_IDLE_ROUNDS = 6
_SMALL, _LARGE_BYTES = [b"x" * 100], 4 << 20
_HOUR_MS = 3_600_000
_SETTLED_SECONDS = 0.3


def run(bench: Bench, figures: Figures) -> None:
    """Count for topics with few and many partitions; counts hardly vary, so runs are short."""
    many = bench.scaled(100, least=8)
    for one in range(bench.runs):
        with (
            bench.temporary("storage") as folder,
            running_store(folder / "store.log") as store,
        ):
            for partitions in (4, many):
                Counted(store, f"run-{one}-{partitions}", partitions).measure(figures)
        bench.say(f"  run {one + 1}: {_told(figures)}")


class Counted:
    """A cluster on the store, whose rounds and time the benchmark controls."""

    def __init__(self, store: Store, bucket: str, partitions: int) -> None:
        self._store = store
        self._partitions = partitions
        uri, options = store.bucket(bucket), store.options()
        brokers = [{"broker.id": one, "log.dirs": f"{uri}/broker-{one}"} for one in range(_BROKERS)]
        values = {
            "cluster.root": f"{uri}/cluster",
            "brokers": brokers,
            "storage.options": options,
            # Heartbeats are made explicitly, to be counted separately.
            "broker.heartbeat.interval.ms": _HOUR_MS,
            "broker.session.timeout.ms": 2 * _HOUR_MS,
            # Checkpoints are due before a renewal, to be counted separately.
            "replica.high.watermark.checkpoint.interval.ms": CHECKPOINT_SECONDS * 1000,
        }
        self._clock = ManualClock()
        self._idle: Mapping[str, float] = dict.fromkeys(_NAMES, 0.0)
        config = parse(ClusterConfig, values, "the benchmark")
        self._application = Application(config, clock=self._clock)
        self._application.start()
        connection = Connection(f"{uri}/cluster", storage_options=options)
        Admin(connection).create_topic(
            "t", partitions, _BROKERS, configs={"min.insync.replicas": "2"}
        )
        self._producer = BulkProducer(connection, self._clock)
        self._until_idle()

    def measure(self, figures: Figures) -> None:
        """Count the requests of each step, and add them."""
        self._produce(_SMALL)
        # Twice, since the first rounds afterwards still load the new topic.
        for _ in range(2):
            self._clock.advance(RENEWAL_SECONDS * 1000)
            self._worked_off()
        idle = self._counted(self._tick_idly)
        idle_ticks = {name: idle[name] / _IDLE_ROUNDS for name in _NAMES}
        self._add(figures, IDLE, idle_ticks, _BROKERS)
        still = self._counted(lambda: [self._application.round() for _ in range(_IDLE_ROUNDS)])
        self._idle = {name: still[name] / _IDLE_ROUNDS for name in _NAMES}
        self._add(figures, HEARTBEAT, self._beaten(), _BROKERS)
        self._clock.advance(CHECKPOINT_SECONDS * 1000)
        self._worked_off()
        self._clock.advance(RENEWAL_SECONDS * 1000)
        self._add(figures, RENEWAL, self._worked_off(), _BROKERS)
        # The first includes the checkpoints and removals that are due; the second follows them.
        for _ in range(2):
            self._produce(_SMALL)
        client, brokers = self._produce(_SMALL)
        self._add(figures, BUSY, brokers, 1)
        self._add(figures, SEND, client, 1)
        self._clock.advance(CHECKPOINT_SECONDS * 1000)
        self._add(figures, CHECKPOINTS, self._worked_off(), 1)
        # Includes the removal of earlier requests, if that is due.
        self._produce(_SMALL)
        self._add_round(figures)
        client, brokers = self._produce([random.Random(7).randbytes(_LARGE_BYTES)])
        both = {name: client[name] + brokers.get(name, 0) for name in _NAMES}
        self._add(figures, MEBIBYTE, both, 4 * _LARGE_BYTES / (1 << 20))
        self._application.stop()
        self._application.run_until_idle()

    def _tick_idly(self) -> None:
        """Run rounds at intervals of one second, before a renewal is due."""
        for _ in range(_IDLE_ROUNDS):
            self._clock.advance(1000)
            self._application.round()

    def _produce(self, values: list[bytes]) -> tuple[Counter[str], dict[str, float]]:
        """Return the requests that four batches cause: of their producer, and of all brokers."""
        pending = []
        client = self._counted(lambda: pending.append(self._producer.send("t", range(4), values)))
        brokers = self._worked_off()
        client.update(self._counted(pending[0].poll))
        assert pending[0].is_done
        return client, brokers

    def _add_round(self, figures: Figures) -> None:
        """Add all requests of a round, and list them if the topic has few partitions.

        A round ends when no work is left. The idle ticks that show this are excluded.
        """
        steps: list[tuple[str, list[Logged]]] = []

        def step(name: str, action: Callable[[], None]) -> None:
            with self._store.logged() as log:
                action()
            steps.append((name, log))

        pending = []
        step("send", lambda: pending.append(self._producer.send("t", range(4), _SMALL)))
        rounds: list[bool] = []
        while not rounds or rounds[-1]:
            name = f"ticks {len(rounds) + 1}"
            step(name, lambda: rounds.append(self._application.round().changed))
        steps.pop()
        step("answer", lambda: self._check_answered(pending[0]))
        lines = listed(steps)
        counts = Counter(one.kind for _, log in steps for one in log)
        for _, log in steps:
            counts[NOT_FOUND] += sum(one.kind == "GET" and one.status == 404 for one in log)
            counts[REFUSED] += sum(one.status == 412 for one in log)
            counts[BYTES] += sum(one.size_bytes for one in log if one.kind == "PUT")
        self._add(figures, ROUND, counts, 1)
        if self._partitions == 4:
            figures.tables[ROUND_LIST] = lines

    @staticmethod
    def _check_answered(pending: PendingProduce) -> None:
        pending.poll()
        assert pending.is_done

    def _worked_off(self) -> dict[str, float]:
        """Work until the cluster is idle; return the requests beyond those of idle rounds.

        This includes the brokers' work in parallel to their rounds: checkpoints, removal of
        requests.
        """
        rounds: list[int] = []

        def work() -> None:
            rounds.append(self._until_idle())
            counts: list[Counter[str]] = [Counter()]
            while counts[-1] != counts[0] or len(counts) == 1:
                time.sleep(_SETTLED_SECONDS)
                counts = [counts[-1], self._store.counts()]

        counts = self._counted(work)
        return {
            name: count - rounds[0] * self._idle[name]
            for name, count in counts.items()
            if name in self._idle
        }

    def _until_idle(self) -> int:
        """Run rounds until one changes nothing; return their number, including the last one."""
        rounds = 1
        while self._application.round().changed:
            rounds += 1
        return rounds

    def _beaten(self) -> dict[str, float]:
        """Return the requests of a heartbeat of each broker, and of a round that reads them all."""

        def beat() -> None:
            self._beat()
            self._application.round()

        counts = self._counted(beat)
        return {name: counts[name] - self._idle[name] for name in _NAMES}

    def _beat(self) -> None:
        with self._application.between_rounds() as brokers:
            for broker in brokers.values():
                broker.heartbeat()

    def _counted(self, action: Callable[[], object]) -> Counter[str]:
        before = self._store.counts()
        action()
        after = self._store.counts()
        after.subtract(before)
        return after

    def _add(
        self, figures: Figures, what: str, counts: Mapping[str, float], divisor: float
    ) -> None:
        system = FEW if self._partitions == 4 else "100 partitions"
        found = {name: max(counts.get(name, 0), 0) / divisor for name in _NAMES}
        for name, count in found.items():
            figures.add(f"{what}: {name}", system, "bytes" if name == BYTES else "requests", count)
        figures.add(f"{what}: {READS}", system, "requests", found["GET"] + found["HEAD"])


def _told(figures: Figures) -> str:
    found = {
        name: one.values[-1]
        for name in KINDS
        if (one := figures.get(f"{IDLE}: {name}", FEW)) is not None
    }
    return "an idle tick asks " + ", ".join(f"{count:g} {name}" for name, count in found.items())


def appendix(figures: Figures) -> str:
    """Return the counts as a table, the requests of a round by table, and the costs of a GiB."""
    names = [*KINDS, NOT_FOUND, REFUSED]
    lines = [
        f"| | {' | '.join(names)} | KiB put |",
        f"|---|{'---:|' * (len(names) + 1)}",
    ]
    systems = list(dict.fromkeys(one.system for one in figures))
    for what in (IDLE, HEARTBEAT, RENEWAL, BUSY, SEND, CHECKPOINTS, ROUND, MEBIBYTE):
        for system in systems:
            counts = _medians(figures, what, system)
            cells = " | ".join(f"{counts[name]:.3g}" for name in names)
            lines.append(f"| {what} ({system}) | {cells} | {counts[BYTES] / 1024:.3g} |")
    if ROUND_LIST in figures.tables:
        lines += [
            "",
            f"The requests of a round by table ([one by one](benchmarks/{ROUND_LIST}.csv)):",
            "",
            *by_table(figures.tables[ROUND_LIST]),
        ]
    mebibyte = max(dollars(_medians(figures, MEBIBYTE, system)) for system in systems)
    lines += ["", f"A committed GiB in batches of 4 MiB costs ${mebibyte * 1024:.3f} in requests."]
    return "\n".join(lines)


def _medians(figures: Figures, what: str, system: str) -> dict[str, float]:
    found = {name: figures.get(f"{what}: {name}", system) for name in _NAMES}
    return {name: 0.0 if one is None else one.median for name, one in found.items()}


WORK = Work(
    "storage_requests",
    "Storage requests",
    "A cluster of three brokers in one process on the S3 API server of the benchmarks, which "
    "counts requests by S3's price classes; rounds, heartbeats and time are made by hand, so that "
    "each is counted alone. A heartbeat is counted with its reads by the others. It, a renewal and "
    "a request of batches are counted without the idle ticks that they take. A round is counted "
    "whole: from the producer's first request through all ticks until nothing is left to do to the "
    "answer, which the producer polls once. Counts do not depend on the machine.",
    run,
    (
        Target(f"{ROUND}: PUT", FEW, 40, 26),
        Target(f"{ROUND}: GET", FEW, 120, 60),
        Target(f"{ROUND}: LIST", FEW, 0),
        Target(f"{ROUND}: HEAD", FEW, 0),
        Target(f"{IDLE}: {READS}", FEW, 5),
        Target(f"{IDLE}: LIST", FEW, 0),
    ),
    appendix=appendix,
    is_plotted=False,
    most_runs=2,
)
