"""The catch-up rate of a follower that is far behind, compared with plain copies of its files."""

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
UNSYNCED = "sparklog's follower, not synced"
COPY = "plain copy, one file after the other"
PARALLEL = "plain copy, a thread a core"
COPY_SYNCED = "plain copy, one file after the other, each synced"

_BYTES = 2 << 30
_BATCH_BYTES = 16 << 20
_RECORD_BYTES = 64 << 10
_PARTITIONS = 4
_WARM_BATCHES = 16


def run(bench: Bench, figures: Figures) -> None:
    """Make a follower fall behind and return; then copy the leader's files directly."""
    batches = bench.scaled(_BYTES // _BATCH_BYTES, least=_PARTITIONS)
    values = [os.urandom(_RECORD_BYTES) for _ in range(_BATCH_BYTES // _RECORD_BYTES)]
    for one in range(bench.runs):
        taken = _follower(bench, values, batches, is_synced=False)
        taken |= _follower(bench, values, batches, is_synced=True)
        for name, speed in taken.items():
            figures.add(WHAT, name, "GB/s", speed)
            bench.say(f"  run {one + 1}: {name} {speed:.2f} GB/s")


def _follower(
    bench: Bench, values: list[bytes], batches: int, *, is_synced: bool
) -> dict[str, float]:
    """Return the GB/s of a follower and of plain copies of the same files."""
    with bench.temporary("catch-up") as folder:
        root = folder / "cluster"
        options = {} if is_synced else {"/": {"sync": "false"}}
        cluster = LocalCluster(root, [0, 1], spark=bench.spark, storage_options=options)
        cluster.create_topic("t", assignment={one: [0, 1] for one in range(_PARTITIONS)})
        cluster.tick_until_idle()
        # The first Spark job includes the start of its workers, and a small copy needs no job.
        for number in range(_WARM_BATCHES):
            cluster.produce("t", number % _PARTITIONS, values)
        cluster.tick_until_idle()
        known = set(_batch_files(root))
        cluster.crash(1)
        for number in range(batches):
            cluster.produce("t", number % _PARTITIONS, values, acks=1)
            cluster.leader_tick(0)
        files = [file for file in _batch_files(root) if file not in known]
        size = sum(file.stat().st_size for file in files)
        # Each measured copy reuses the page cache of an unmeasured one.
        copies = folder / "copies"
        _copied(files, copies, bench.cores)
        taken = {SPARKLOG if is_synced else UNSYNCED: _caught_up(cluster)}
        ways = [(COPY_SYNCED, 1)] if is_synced else [(COPY, 1), (PARALLEL, bench.cores)]
        for name, threads in ways:
            _copied(files, copies, bench.cores)
            taken[name] = _copied(files, copies, threads, is_synced=is_synced)
        cluster.close()
    return {name: size / value / 1e9 for name, value in taken.items()}


def _batch_files(cluster: Path) -> list[Path]:
    return sorted((cluster / "broker-0" / "log" / "_inbox").rglob("*.parquet"))


def _caught_up(cluster: LocalCluster) -> float:
    """Return the seconds from the follower's start until it has all records of the leader."""
    ends = [cluster.replica(0, "t", one).log_end_offset for one in range(_PARTITIONS)]
    # Earlier writes must not be part of the measurement.
    os.sync()
    start = time.perf_counter()
    cluster.restart(1)
    while cluster.follower_tick(1).changed:
        pass
    taken = time.perf_counter() - start
    assert ends == [cluster.replica(1, "t", one).log_end_offset for one in range(_PARTITIONS)]
    return taken


def _copied(files: list[Path], target: Path, threads: int, *, is_synced: bool = False) -> float:
    """Return the duration of copying the files, in s."""

    def copy(file: Path) -> None:
        copied = shutil.copyfile(file, target / file.name)
        if is_synced:
            with copied.open("rb") as written:
                os.fsync(written.fileno())

    target.mkdir()
    os.sync()
    with ThreadPoolExecutor(threads) as pool:
        taken = seconds(lambda: list(pool.map(copy, files)))
    shutil.rmtree(target)
    return taken


WORK = Work(
    "catch_up",
    "A follower 2 GiB behind",
    "Two brokers, 4 partitions; the follower is stopped, 2 GiB are produced in batches of 16 MiB "
    "that do not compress, and the follower is started: from its registration to the last commit, "
    "copying on threads of the driver, as in Spark's local mode, and verifying every checksum. "
    "Beside it `shutil.copyfile` of the same files. Synced, as by default, the follower is "
    "compared with copies of which each is synced, and not synced (storage option sync: false) "
    "with copies that are not either. What was written before is synced before each.",
    run,
    (
        Target(WHAT, UNSYNCED, 0.7, against=(COPY,), is_floor=True),
        Target(WHAT, SPARKLOG, 0.7, against=(COPY_SYNCED,), is_floor=True),
    ),
)
