"""The Spark jobs and the time of a tick in each mode of `execution` and `rules.engine`."""

from __future__ import annotations

import os

from benchmarks.bench import Bench, seconds
from benchmarks.figures import Figures, Target
from benchmarks.work import Work
from sparklog.testing import LocalCluster

SYSTEMS = {
    "driver, duckdb": {"execution": "driver"},
    "auto, duckdb": {"execution": "auto"},
    "spark, duckdb": {"execution": "spark"},
    "spark, spark": {"execution": "spark", "rules.engine": "spark"},
}
"""The settings by name: the values of `execution` and `rules.engine`."""

APPEND = "leader: checks and appends"
COPY = "follower: fetches and copies"
ANSWER = "leader: high watermark, answer"
TICKS = (APPEND, COPY, ANSWER)

SMALL = "100 records"
MEDIUM = "100 MiB"
LARGE = "2 GiB"
SIZES = {SMALL: 0, MEDIUM: 100 << 20, LARGE: 2 << 30}
"""The bytes of the pending records, by name; 0 for one batch of 100 records of 100 bytes."""

_BATCH_BYTES = 16 << 20
_RECORD_BYTES = 64 << 10
_PARTITIONS = 4
_WARM_ROUNDS = 3


def run(bench: Bench, figures: Figures) -> None:
    """Play a round of each size in each mode, the modes in turn."""
    for one in range(bench.runs):
        for system, settings in SYSTEMS.items():
            _measure(bench, figures, system, settings)
            taken = [figures.get(f"{LARGE}: {tick}", system) for tick in TICKS]
            words = ", ".join(f"{figure.values[-1]:.0f} ms" for figure in taken if figure)
            bench.say(f"  run {one + 1}: {system}: {LARGE}: {words}")


def _measure(bench: Bench, figures: Figures, system: str, settings: dict[str, str]) -> None:
    # One tick copies all.
    limits = {"replica.fetch.max.bytes": 4 << 30, "replica.fetch.response.max.bytes": 4 << 30}
    for size, size_bytes in SIZES.items():
        with bench.temporary("modes") as folder:
            # Unsynced: the disk's speed would hide the modes' differences.
            options = {"/": {"sync": "false"}}
            cluster = LocalCluster(
                folder, [0, 1], bench.spark, limits | settings, storage_options=options
            )
            cluster.create_topic("t", assignment={one: [0, 1] for one in range(_PARTITIONS)})
            cluster.tick_until_idle()
            for _ in range(_WARM_ROUNDS):
                for number in range(_PARTITIONS):
                    cluster.produce("t", number, [b"warm"])
                cluster.tick_until_idle()
            _produce(cluster, bench.scaled(size_bytes, least=0))
            os.sync()
            ticks = {APPEND: (0, "leader"), COPY: (1, "follower"), ANSWER: (0, "leader")}
            for tick, (broker, role) in ticks.items():
                _tick(figures, f"{size}: {tick}", system, cluster, broker, role)
            for number in range(_PARTITIONS):
                replica = cluster.replica(0, "t", number)
                assert replica.high_watermark == replica.log_end_offset, "all is committed"
            cluster.close()


def _produce(cluster: LocalCluster, size_bytes: int) -> None:
    """Store the pending batches, of 16 MiB and the rest; one of 100 records for no bytes."""
    if size_bytes == 0:
        cluster.produce("t", 0, [os.urandom(50).hex().encode() for _ in range(100)])
        return
    values = [os.urandom(_RECORD_BYTES) for _ in range(_BATCH_BYTES // _RECORD_BYTES)]
    number = 0
    while size_bytes > 0:
        records = min(len(values), -(-size_bytes // _RECORD_BYTES))
        cluster.produce("t", number % _PARTITIONS, values[:records])
        size_bytes -= records * _RECORD_BYTES
        number += 1


def _tick(
    figures: Figures, what: str, system: str, cluster: LocalCluster, broker: int, role: str
) -> None:
    """Add the time and the jobs of one tick."""
    play = cluster.leader_tick if role == "leader" else cluster.follower_tick
    jobs = 0

    def tick() -> None:
        nonlocal jobs
        report = play(broker)
        assert report.changed, "the tick has something to do"
        jobs = report.spark_jobs

    figures.add(what, system, "ms", seconds(tick) * 1000)
    figures.add(f"{what}, Spark jobs", system, "jobs", jobs)


WORK = Work(
    "modes",
    "A tick in each mode of execution and rules.engine",
    "Two brokers, 4 partitions, acks=all, over a Spark session of this machine without executors. "
    "Pending are one batch of 100 records of 100 bytes, or batches of 16 MiB that do not compress. "
    "One tick of the leader checks and appends all of them, one tick of the follower copies all, "
    "and the leader's next one advances the high watermarks and answers. The names of columns are "
    "the values of `execution` and of `rules.engine`. Three rounds of a record a partition have "
    "warmed the mode before. Files are not synced. [modes.md](modes.md) has the jobs by name.",
    run,
    (
        Target(f"{SMALL}: {APPEND}, Spark jobs", "auto, duckdb", 0),
        Target(f"{LARGE}: {APPEND}, Spark jobs", "spark, duckdb", 1),
        Target(f"{LARGE}: {COPY}, Spark jobs", "spark, duckdb", 1),
    ),
    is_plotted=False,
    most_runs=3,
)
