"""The cost of a broker's tick without work."""

from __future__ import annotations

from collections import Counter

from benchmarks.bench import Bench, seconds
from benchmarks.counts import Watch, spark_jobs
from benchmarks.figures import Figures, Target
from benchmarks.work import Work
from sparklog.testing import LocalCluster

SPARKLOG = "sparklog"
TICK = "a broker's idle tick"
JOBS = "Spark jobs of all idle ticks"
FILES = "files of all idle ticks"
ELSEWHERE = "files elsewhere than in brokers, controller and checkpoints, in a minute"

_BROKERS = (0, 1, 2)
_TICKS = 300
_MINUTE = 30
"""The number of heartbeats in a minute: one every two seconds."""
_DUE = (
    "cluster/brokers",
    "cluster/controller",
    # Followers renew their rows in the journal.
    "/log",
    "high_watermark_checkpoint",
    "leader_epoch_checkpoint",
    "delayed_operations",
)


def run(bench: Bench, figures: Figures) -> None:
    """Tick an idle cluster, first at a constant time, then through a minute."""
    ticks = bench.scaled(_TICKS, least=20)
    for one in range(bench.runs):
        with bench.temporary("idle") as folder:
            cluster = LocalCluster(folder, _BROKERS, spark=bench.spark)
            cluster.create_topic("t", partitions=4, configs={"min.insync.replicas": "2"})
            for partition in range(4):
                cluster.produce("t", partition, [b"a record"])
            cluster.tick_until_idle()
            for _ in range(5):
                _round(cluster)
            _at_rest(bench, figures, cluster, Watch(folder), ticks)
            _for_a_minute(figures, cluster, Watch(folder))
            cluster.close()
        found = figures.get(f"{TICK}, p50", SPARKLOG)
        assert found is not None
        bench.say(f"  run {one + 1}: {found.values[-1]:.2f} ms a tick")


def _round(cluster: LocalCluster) -> None:
    cluster.controller_tick()
    for broker in _BROKERS:
        cluster.leader_tick(broker)
    for broker in _BROKERS:
        cluster.follower_tick(broker)


def _at_rest(
    bench: Bench, figures: Figures, cluster: LocalCluster, watch: Watch, ticks: int
) -> None:
    jobs = spark_jobs(bench.spark)
    taken = [seconds(lambda: _round(cluster)) / len(_BROKERS) for _ in range(ticks)]
    written = watch.written()
    figures.add_latencies(TICK, SPARKLOG, taken, 99)
    figures.add(JOBS, SPARKLOG, "jobs", spark_jobs(bench.spark) - jobs)
    figures.add(FILES, SPARKLOG, "files", written.files.total())
    figures.add("commits of all idle ticks", SPARKLOG, "commits", written.commits.total())


def _for_a_minute(figures: Figures, cluster: LocalCluster, watch: Watch) -> None:
    heartbeat_ms = cluster.settings.broker_heartbeat_interval_ms
    for _ in range(_MINUTE):
        cluster.clock.advance(heartbeat_ms)
        _round(cluster)
        _round(cluster)
    written = watch.written()
    by_table: Counter[str] = Counter()
    for table, count in written.commits.items():
        root, name = table.split("/")
        by_table[name if root.startswith("broker-") else table] += count
    for table, count in sorted(by_table.items()):
        figures.add(f"commits to {table} in a minute, 3 brokers", SPARKLOG, "commits", count)
    elsewhere = {table: count for table, count in written.files.items() if not table.endswith(_DUE)}
    figures.add(ELSEWHERE, SPARKLOG, "files", sum(elsewhere.values()))


WORK = Work(
    "idle_tick",
    "Idle tick of a broker",
    "Three brokers with a topic of 4 partitions, RF 3, at rest, ticked by hand over a Spark "
    "session: the controller, leader and follower role of one broker are its tick. Time stands "
    "still for the first part; then a minute passes in steps of a heartbeat. Jobs are those that "
    "Spark has counted, commits and files those that have appeared in the folder.",
    run,
    (
        Target(f"{TICK}, p50", SPARKLOG, 10),
        Target(JOBS, SPARKLOG, 0),
        Target(FILES, SPARKLOG, 0),
        Target(ELSEWHERE, SPARKLOG, 0),
    ),
    is_plotted=False,
)
