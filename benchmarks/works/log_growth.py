"""The cost of a busy tick on an empty log and on a long one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from benchmarks.bench import Bench, seconds
from benchmarks.figures import Figures, Target
from benchmarks.requests import BulkProducer
from benchmarks.work import Work
from sparklog.cluster.connection import Connection
from sparklog.config import Settings
from sparklog.testing import LocalCluster

SPARKLOG = "sparklog"
EMPTY, GROWN = "an empty log", "100,000 batches, 100 million records"
REQUESTS = {"1 request": (1, 30), "100 requests": (100, 5)}
"""By kind of busy tick: the number of requests per tick, and of ticks per run."""

_BATCHES = 100_000
_RECORDS = 1_000
_BATCHES_A_ROUND = 500
_ROUNDS_A_MERGE = 20
_PARTITIONS = 4
_FOLLOWERS = (1, 2)
_MERGING = {
    "log.merger.enable": True,
    "log.merger.min.lag.ms": 1_000,
}
"""The settings of clusters that merge: batches are as old as the time was advanced."""


def run(bench: Bench, figures: Figures) -> None:
    """Grow one of two logs, then measure ticks on both in turn."""
    batches = bench.scaled(_BATCHES, least=1000)
    with bench.temporary("growth") as folder:
        logs = {name: _Log(folder / name.split()[0]) for name in (EMPTY, GROWN)}
        taken = seconds(lambda: logs[GROWN].grow(batches, bench.say))
        figures.add("batches committed on three replicas", SPARKLOG, "batches/s", batches / taken)
        for log in logs.values():
            log.ticks(1, 3)
        for one in range(bench.runs):
            for kind, (requests, ticks) in REQUESTS.items():
                for name, log in logs.items():
                    leader, whole = log.ticks(requests, ticks)
                    figures.add(f"{kind}, leader's tick, {name}", SPARKLOG, "ms", leader * 1000)
                    figures.add(f"{kind}, until answered, {name}", SPARKLOG, "ms", whole * 1000)
                    bench.say(f"  run {one + 1}: {kind}, {name}: {leader * 1000:.1f} ms")
            for name, log in logs.items():
                figures.add(f"live files, {name}", SPARKLOG, "files", log.live_files())
                log.merge()


class _Log:
    """A cluster in which the first broker leads all partitions and the others follow."""

    def __init__(self, folder: Path) -> None:
        known = {field.alias for field in Settings.model_fields.values()}
        config: dict[str, Any] = {name: value for name, value in _MERGING.items() if name in known}
        config["queued.max.requests"] = 1_000_000
        self._folder = folder
        self._cluster = LocalCluster(folder, config=config)
        assignment = {partition: [0, 1, 2] for partition in range(_PARTITIONS)}
        self._cluster.create_topic("t", assignment=assignment)
        self._cluster.tick_until_idle()
        connection = Connection(str(folder / "cluster"))
        self._producer = BulkProducer(connection, self._cluster.clock)
        self._values = [b"record %07d of a batch that compresses well" % n for n in range(_RECORDS)]
        self._record = self._values[:1]

    def grow(self, batches: int, say: Callable[[str], None]) -> None:
        """Commit batches of 1,000 records each on all three replicas."""
        for start in range(0, batches, _BATCHES_A_ROUND):
            count = min(_BATCHES_A_ROUND, batches - start)
            numbers = [number % _PARTITIONS for number in range(count)]
            pending = self._producer.send("t", numbers, self._values)
            self._cluster.tick_until_idle()
            assert pending.is_done
            done = start // _BATCHES_A_ROUND + 1
            if done % _ROUNDS_A_MERGE == 0:
                self.merge()
                live_files = self.live_files()
                say(f"  {start + count:,} batches, {live_files:,} live files")
                assert live_files < _BATCHES_A_ROUND, "small batches are not merged"
        self.merge()

    def ticks(self, requests: int, ticks: int) -> tuple[float, float]:
        """Return average durations in s: of the leader's first tick, and until all are answered.

        The average rather than the median, so that it includes Delta's checkpoints.
        """
        leader = whole = 0.0
        for _ in range(ticks):
            numbers = [number % _PARTITIONS for number in range(requests)]
            pending = self._producer.send_each("t", numbers, self._record)
            first = seconds(lambda: self._cluster.leader_tick(0))
            # In production followers run on separate machines, so only the slower one counts.
            copying = max(seconds(partial(self._cluster.follower_tick, one)) for one in _FOLLOWERS)
            last = seconds(lambda: self._cluster.leader_tick(0))
            assert all(one.is_done for one in pending)
            leader += first
            whole += first + copying + last
        return leader / ticks, whole / ticks

    def merge(self) -> None:
        """Merge all small batches of each broker."""
        self._cluster.clock.advance(2_000)
        for broker in (0, *_FOLLOWERS):
            # Each call merges one commit's worth.
            while self._cluster.merge(broker).batches:
                pass
        self._cluster.tick_until_idle()

    def live_files(self) -> int:
        """Return the number of live batch files in the leader's log."""
        table = DeltaTable(str(self._folder / "broker-0" / "log"))
        return len(table.file_uris())


WORK = Work(
    "log_growth",
    "A busy tick's cost as the log grows",
    "Three brokers in one process without Spark, 4 partitions, RF 3. One log is grown to 100,000 "
    "batches of 1,000 records each through produce requests, another stays empty; then ticks with "
    "1 request of one record and with 100 such are measured on both in turn: the leader's tick "
    "that appends, and that with a follower's and the leader's that answers. Small batches are "
    "merged while the log grows and between runs.",
    run,
    tuple(
        Target(f"{kind}, {part}, {GROWN}", SPARKLOG, 1.5, against_what=f"{kind}, {part}, {EMPTY}")
        for kind in REQUESTS
        for part in ("leader's tick", "until answered")
    ),
    is_by_hand=True,
)
