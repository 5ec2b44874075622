"""Little memory: the smallest control group in which each kind of process works, and a backlog."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.faults.limits.cgroups import memory_group
from tests.jobs.processes import ROOT

Row = dict[str, Any]

SIZES_MIB = (96, 128, 160, 192, 256, 384)
_SPARKLOG = [sys.executable, "-c", "from sparklog.cli import app; app()"]

_PEAK = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)"
_PRODUCER = """
from sparklog import Producer
with Producer({cluster!r}) as producer:
    sent = [producer.send("t", b"x" * 1000) for _ in range(5000)]
assert all(one.result() for one in sent)
"""
_CONSUMER = """
from sparklog import Consumer
with Consumer({cluster!r}, auto_offset_reset="earliest") as consumer:
    consumer.assign([("t", one) for one in range(3)])
    count = 0
    while count < 5000:
        count += sum(map(len, consumer.poll(500).values()))
"""


def run(folder: Path) -> Iterator[Row]:
    """Yield for each kind of process and each size whether it worked, and its peak."""
    file = folder / "small.yaml"
    listed = [{"broker.id": one, "log.dirs": str(folder / f"b{one}")} for one in range(3)]
    values = {"cluster.root": str(folder / "cluster"), "brokers": listed}
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    cluster = str(file)
    job = [sys.executable, "-m", "jobs.cluster", "--config", cluster, "--without-spark"]
    subprocess.run([*job, "--until-idle"], cwd=ROOT, check=True, capture_output=True)
    create = "from sparklog import Admin; Admin({!r}).create_topic('t', partitions=3)"
    subprocess.run([sys.executable, "-c", create.format(cluster)], cwd=ROOT, check=True)
    clients = {
        "query": [*_SPARKLOG, "query", "select count(*) from batches", "--cluster", cluster],
        "producer": [sys.executable, "-c", _PRODUCER.format(cluster=cluster) + _PEAK],
        "consumer": [sys.executable, "-c", _CONSUMER.format(cluster=cluster) + _PEAK],
    }
    running = subprocess.Popen(job, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        for size in reversed(SIZES_MIB):
            for name, command in clients.items():
                yield _limited(name, command, size)
    finally:
        running.terminate()
        running.wait()
    for size in reversed(SIZES_MIB):
        yield _limited("application of three brokers", [*job, "--until-idle"], size)


def _limited(name: str, command: list[str], size_mib: int) -> Row:
    with memory_group(size_mib << 20) as group:
        done = subprocess.run(
            group.command(command), cwd=ROOT, capture_output=True, text=True, check=False
        )
        return {
            "limit": "memory",
            "what": f"{name} in {size_mib} MiB",
            "exit_code": done.returncode,
            "peak_of_the_group_mib": group.peak_bytes() >> 20,
        }
