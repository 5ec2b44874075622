"""The machine and software versions of a measurement."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

from benchmarks.kafka_jars import CONNECTOR, KAFKA
from sparklog.java import find_java

_DISK_BYTES = 256 << 20


def description(folder: Path, cores: int, *, with_kafka: bool) -> dict[str, str]:
    """Return the machine's properties and the versions; `folder` is on the measured disk."""
    found = {
        "cores": f"{os.cpu_count()} ({_processor()}), Spark on {cores}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "disk": f"{shutil.disk_usage(folder).free / 2**30:.0f} GiB free, {_disk_speed(folder)}",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "Java": _java(),
        "Python": platform.python_version(),
        "Spark": version("pyspark"),
        "Delta Lake": f"delta-spark {version('delta-spark')}, deltalake {version('deltalake')}",
        "sparklog": _commit(),
    }
    if with_kafka:
        found["Kafka"] = f"{KAFKA}, three brokers on loopback; Spark's connector {CONNECTOR}"
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _disk_speed(folder: Path) -> str:
    """Return the disk's throughput for a synced file, in words."""
    path = folder / "disk-speed"
    block = os.urandom(1 << 20)
    start = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(_DISK_BYTES >> 20):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    taken = time.perf_counter() - start
    path.unlink()
    return f"{_DISK_BYTES / taken / 1e9:.2g} GB/s written and synced"


def _java() -> str:
    answer = subprocess.run(
        [find_java().executable, "-version"], capture_output=True, text=True, check=False
    )
    return answer.stderr.splitlines()[0] if answer.stderr else "unknown"


def _commit() -> str:
    """Return the version, and the commit if this is a git checkout."""
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return version("sparklog")
    commit = answer.stdout.strip()
    return version("sparklog") + (f", commit {commit}" if commit else "")
