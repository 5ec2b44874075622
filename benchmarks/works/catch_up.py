"""How fast a follower that is far behind catches up, beside a plain copy of the same files."""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.bench import Bench, seconds
from benchmarks.figures import Figures, Target
from benchmarks.work import Work
from sparklog.testing import LocalCluster

WHAT = "2 GiB behind"
SPARKLOG = "sparklog's follower"
COPY = "plain copy, one file after the other"
PARALLEL = "plain copy, a thread a core"

_BYTES = 2 << 30
_BATCH_BYTES = 16 << 20
_RECORD_BYTES = 64 << 10
_PARTITIONS = 4
_WARM_BATCHES = 16


def run(bench: Bench, figures: Figures) -> None:
    """Let a follower fall behind and come back; then copy the leader's files by hand."""
    batches = bench.scaled(_BYTES // _BATCH_BYTES, least=_PARTITIONS)
    values = [os.urandom(_RECORD_BYTES) for _ in range(_BATCH_BYTES // _RECORD_BYTES)]
    for one in range(bench.runs):
        with bench.temporary("catch-up") as folder:
            cluster = LocalCluster(folder / "cluster", [0, 1], spark=bench.spark)
            cluster.create_topic("t", assignment={one: [0, 1] for one in range(_PARTITIONS)})
            cluster.tick_until_idle()
            # The first job pays for the start of Spark's workers, and little needs no job.
            for number in range(_WARM_BATCHES):
                cluster.produce("t", number % _PARTITIONS, values)
            cluster.tick_until_idle()
            known = set(_batch_files(folder / "cluster"))
            cluster.crash(1)
            for number in range(batches):
                cluster.produce("t", number % _PARTITIONS, values, acks=1)
                cluster.leader_tick(0)
            files = [file for file in _batch_files(folder / "cluster") if file not in known]
            size = sum(file.stat().st_size for file in files)
            # Each takes the memory for its files over from a copy that does not count.
            copies = folder / "copies"
            _copied(files, copies, bench.cores)
            taken = {SPARKLOG: _caught_up(cluster)}
            for name, threads in ((COPY, 1), (PARALLEL, bench.cores)):
                _copied(files, copies, bench.cores)
                taken[name] = _copied(files, copies, threads)
            cluster.close()
        for name, value in taken.items():
            figures.add(WHAT, name, "GB/s", size / value / 1e9)
            bench.say(f"  run {one + 1}: {name} {size / value / 1e9:.2f} GB/s")


def _batch_files(cluster: Path) -> list[Path]:
    return sorted((cluster / "broker-0" / "log" / "_inbox").rglob("*.parquet"))


def _caught_up(cluster: LocalCluster) -> float:
    """Return the seconds from the follower's start until it has all that the leader has."""
    ends = [cluster.replica(0, "t", one).log_end_offset for one in range(_PARTITIONS)]
    # What was written before is not to be paid for now.
    os.sync()
    start = time.perf_counter()
    cluster.restart(1)
    while cluster.follower_tick(1).changed:
        pass
    taken = time.perf_counter() - start
    assert ends == [cluster.replica(1, "t", one).log_end_offset for one in range(_PARTITIONS)]
    return taken


def _copied(files: list[Path], target: Path, threads: int) -> float:
    target.mkdir()
    os.sync()
    with ThreadPoolExecutor(threads) as pool:
        taken = seconds(
            lambda: list(pool.map(lambda file: shutil.copyfile(file, target / file.name), files))
        )
    shutil.rmtree(target)
    return taken


WORK = Work(
    "catch_up",
    "A follower 2 GiB behind",
    "Two brokers, 4 partitions; the follower is stopped, 2 GiB are produced in batches of 16 MiB "
    "that do not compress, and the follower is started: from its registration to the last commit, "
    "copying in Spark tasks and verifying every checksum. Beside it `shutil.copyfile` of the same "
    "files. Neither syncs files to disk, and what was written before is synced before each.",
    run,
    (Target(WHAT, SPARKLOG, 0.7, against=(COPY,), is_floor=True),),
)
