"""What a cluster asks of an object store, counted by the store, and what that costs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping

from benchmarks.bench import Bench
from benchmarks.figures import Figures
from benchmarks.requests import BulkProducer
from benchmarks.s3_server import BYTES, KINDS
from benchmarks.s3_store import Store, running_store
from benchmarks.work import Work
from sparklog.broker.application import Application
from sparklog.clients.admin import Admin
from sparklog.clients.connection import Connection
from sparklog.config import ClusterConfig, parse
from sparklog.testing.manual_clock import ManualClock

IDLE = "an idle tick of a broker"
HEARTBEAT = "a heartbeat of a broker"
RENEWAL = "a follower's renewal, beside idle ticks"
BUSY = "a request of 4 small batches, all brokers, beside idle ticks"
SEND = "... and its producer"
MEBIBYTE = "a committed MiB, in batches of 4 MiB, all of them"

HEARTBEAT_SECONDS = 2
RENEWAL_SECONDS = 10
INTERVALS_SECONDS = (1, 5)
MONTH_SECONDS = 30.44 * 86_400
PRICES = {"PUT": 5e-6, "LIST": 5e-6, "GET": 4e-7, "HEAD": 4e-7, "DELETE": 0.0}
"""Dollars a request: the list prices of S3 Standard in us-east-1."""
STORED_GB_MONTH = 0.023

_BROKERS = 3
_IDLE_ROUNDS = 10
_SMALL, _LARGE_BYTES = [b"x" * 100], 4 << 20
_HOUR_MS = 3_600_000


def run(bench: Bench, figures: Figures) -> None:
    """Count for topics of few and of many partitions; counts hardly vary, so runs are short."""
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
    """A cluster over the store, whose rounds and time are in the benchmark's hand."""

    def __init__(self, store: Store, bucket: str, partitions: int) -> None:
        self._store = store
        self._partitions = partitions
        uri, options = store.bucket(bucket), store.options()
        brokers = [{"broker.id": one, "log.dirs": f"{uri}/broker-{one}"} for one in range(_BROKERS)]
        values = {
            "cluster.root": f"{uri}/cluster",
            "brokers": brokers,
            "storage.options": options,
            # Heartbeats are made by hand, to be counted alone.
            "broker.heartbeat.interval.ms": _HOUR_MS,
            "broker.session.timeout.ms": 2 * _HOUR_MS,
        }
        self._clock = ManualClock()
        self._idle: Mapping[str, float] = dict.fromkeys((*KINDS, BYTES), 0.0)
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
        """Count what each step asks of the store, and note it."""
        self._produce(_SMALL)
        idle = self._counted(lambda: [self._application.round() for _ in range(_IDLE_ROUNDS)])
        self._idle = {name: idle[name] / _IDLE_ROUNDS for name in (*KINDS, BYTES)}
        self._add(figures, IDLE, self._idle, _BROKERS)
        self._add(figures, HEARTBEAT, self._counted(self._beat), _BROKERS)
        self._clock.advance(RENEWAL_SECONDS * 1000)
        self._add(figures, RENEWAL, self._worked_off(), _BROKERS)
        client, brokers = self._produce(_SMALL)
        self._add(figures, BUSY, brokers, 1)
        self._add(figures, SEND, client, 1)
        client, brokers = self._produce([random.Random(7).randbytes(_LARGE_BYTES)])
        both = {name: client[name] + brokers.get(name, 0) for name in (*KINDS, BYTES)}
        self._add(figures, MEBIBYTE, both, 4 * _LARGE_BYTES / (1 << 20))
        self._application.stop()
        self._application.run_until_idle()

    def _produce(self, values: list[bytes]) -> tuple[Counter[str], dict[str, float]]:
        """Return what a request with four batches asks: of its producer, and of all brokers."""
        pending = []
        client = self._counted(lambda: pending.append(self._producer.send("t", range(4), values)))
        brokers = self._worked_off()
        client.update(self._counted(pending[0].poll))
        assert pending[0].is_done
        return client, brokers

    def _worked_off(self) -> dict[str, float]:
        """Work until there is nothing to do; return what that asks beyond so many idle rounds."""
        rounds: list[int] = []
        counts = self._counted(lambda: rounds.append(self._until_idle()))
        return {
            name: count - rounds[0] * self._idle[name]
            for name, count in counts.items()
            if name in self._idle
        }

    def _until_idle(self) -> int:
        """Return how many rounds it took, with the last one, which changed nothing."""
        rounds = 1
        while self._application.round().changed:
            rounds += 1
        return rounds

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
        system = "4 partitions" if self._partitions == 4 else "100 partitions"
        for name in (*KINDS, BYTES):
            figures.add(f"{what}: {name}", system, "a piece", max(counts.get(name, 0), 0) / divisor)


def _told(figures: Figures) -> str:
    found = {
        name: one.values[-1]
        for name in KINDS
        if (one := figures.get(f"{IDLE}: {name}", "4 partitions")) is not None
    }
    return "an idle tick asks " + ", ".join(f"{count:g} {name}" for name, count in found.items())


def appendix(figures: Figures) -> str:
    """Return the counts as a table, and what they cost in a month."""
    lines = [
        f"| | {' | '.join(KINDS)} | KiB put |",
        f"|---|{'---:|' * (len(KINDS) + 1)}",
    ]
    systems = list(dict.fromkeys(one.system for one in figures))
    for what in (IDLE, HEARTBEAT, RENEWAL, BUSY, SEND, MEBIBYTE):
        for system in systems:
            counts = _counts(figures, what, system)
            cells = " | ".join(f"{counts[name]:.3g}" for name in KINDS)
            lines.append(f"| {what} ({system}) | {cells} | {counts[BYTES] / 1024:.3g} |")
    return "\n".join([*lines, "", *_costs(figures, systems)])


def _costs(figures: Figures, systems: list[str]) -> list[str]:
    prices = (
        f"${PRICES['PUT'] * 1000:g} for 1,000 PUT or LIST, ${PRICES['GET'] * 1000:g} for 1,000 GET "
        f"or HEAD (DELETE is free); a stored GB costs ${STORED_GB_MONTH:g} a month, "
        f"${STORED_GB_MONTH * _BROKERS:g} on three replicas"
    )
    introduction = (
        f"What three brokers cost in requests in a month of 30.44 days, at {prices}. Heartbeats "
        f"every {HEARTBEAT_SECONDS} s, renewals every {RENEWAL_SECONDS} s; in the last column a "
        "request with a small batch for each of 4 partitions arrives with every tick."
    )
    head = "| ticks every | partitions | at rest | one request every tick |"
    lines = [introduction, "", head, "|---|---|---:|---:|"]
    for interval in INTERVALS_SECONDS:
        for system in systems:
            rest = _dollars(figures, system, interval)
            busy = rest + _price(figures, BUSY, system) * MONTH_SECONDS / interval
            busy += _price(figures, SEND, system) * MONTH_SECONDS / interval
            lines.append(f"| {interval} s | {system} | ${rest:,.0f} | ${busy:,.0f} |")
    mebibyte = max(_price(figures, MEBIBYTE, system) for system in systems)
    lines += ["", f"A committed GiB in batches of 4 MiB costs ${mebibyte * 1024:.3f} in requests."]
    return lines


def _dollars(figures: Figures, system: str, interval: float) -> float:
    """Return what a cluster at rest costs in a month."""
    ticks = _price(figures, IDLE, system) / interval
    heartbeats = _price(figures, HEARTBEAT, system) / HEARTBEAT_SECONDS
    renewals = _price(figures, RENEWAL, system) / RENEWAL_SECONDS
    return _BROKERS * (ticks + heartbeats + renewals) * MONTH_SECONDS


def _price(figures: Figures, what: str, system: str) -> float:
    counts = _counts(figures, what, system)
    return sum(counts[name] * price for name, price in PRICES.items())


def _counts(figures: Figures, what: str, system: str) -> dict[str, float]:
    found = {name: figures.get(f"{what}: {name}", system) for name in (*KINDS, BYTES)}
    return {name: 0.0 if one is None else one.median for name, one in found.items()}


WORK = Work(
    "storage_requests",
    "Storage requests",
    "A cluster of three brokers whose roots lie on a server that speaks S3's API (moto) and counts "
    "requests by what S3 charges for; rounds, heartbeats and time are made by hand, so that "
    "each is counted alone. Counts do not depend on the machine.",
    run,
    appendix=appendix,
    is_plotted=False,
)
