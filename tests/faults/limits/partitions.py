"""10,000 partitions, in one topic and in 1,000: creation, rest, failover, clients, the command."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from benchmarks.requests import BulkProducer
from sparklog.cli import app
from sparklog.consumer.consumer import Consumer
from sparklog.testing import LocalCluster
from tests.faults.limits.load import own_memory_bytes

Row = dict[str, Any]

SHAPES = ((1, 10_000), (1_000, 10))
"""Topics, and partitions of each."""

_COMMANDS = (
    ("status", "--json"),
    ("query", "select count(*) from partition_state"),
    ("query", "select count(*) from replica_progress"),
    ("topics", "list"),
)


def run(folder: Path) -> Iterator[Row]:
    """Yield the wall-clock and CPU seconds of each step, for each shape."""
    for topics, partitions in SHAPES:
        yield measured(folder / str(topics), topics, partitions)


def measured(folder: Path, topics: int, partitions: int) -> Row:
    """Return the seconds of each step, as [wall-clock, CPU], for three replicas of each."""
    taken: dict[str, list[float]] = {}

    def step(name: str, act: Callable[[], object]) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        act()
        taken[name] = [
            round(time.perf_counter() - wall, 2),
            round(time.process_time() - cpu, 2),
        ]

    cluster = LocalCluster(folder, [0, 1, 2])

    def create() -> None:
        for topic in range(topics):
            assignment = {
                one: [(topic + one + next_) % 3 for next_ in range(3)] for one in range(partitions)
            }
            cluster.create_topic(f"t{topic}", assignment=assignment)

    def rest() -> None:
        for _ in range(20):
            for broker in cluster.brokers.values():
                broker.controller_tick()
                broker.leader_tick()
                broker.follower_tick()

    producer = BulkProducer(cluster.connection, cluster.clock)

    def produce(count: int) -> None:
        for topic in range(min(topics, count)):
            of_topic = range(min(max(count // topics, 1), partitions))
            producer.send(f"t{topic}", of_topic, [b"a record"])
        cluster.tick_until_idle()

    def consume() -> None:
        keys = [(f"t{topic}", one) for topic in range(topics) for one in range(partitions)]
        with Consumer(str(folder / "cluster"), auto_offset_reset="earliest") as consumer:
            consumer.assign(keys)
            found = 0
            while found < 100:
                found += sum(map(len, consumer.poll(1_000, max_records=10_000).values()))

    step("creation", create)
    step("first ticks", cluster.tick_until_idle)
    step("20 rounds at rest", rest)
    cluster.clock.advance(1)
    step("a record in each of 100", lambda: produce(100))
    step("consumer of all", consume)
    for command in _COMMANDS:
        arguments = [*command, "--cluster", str(folder / "cluster")]
        step(f"sparklog {' '.join(command)}", lambda given=arguments: _command(given))  # type: ignore[misc]
    cluster.crash(0)
    cluster.clock.advance(cluster.settings.broker_session_timeout_ms + 1)
    step("election of all leaders of a broker", cluster.controller_tick)
    step("ticks after it", cluster.tick_until_idle)
    step("start of the broker", lambda: cluster.restart(0))
    step("ticks until all are in sync", cluster.tick_until_idle)
    cluster.close()
    return {
        "limit": "partitions",
        "what": f"{topics} topics of {partitions}, three brokers in one process, RF 3",
        "seconds": taken,
        "peak_mib": own_memory_bytes()["VmHWM"] >> 20,
    }


def _command(arguments: list[str]) -> None:
    CliRunner().invoke(app, arguments)
