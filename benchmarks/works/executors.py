"""A follower's backlog, copied by driver threads and by executors that are separate processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.clusters import CHECKOUT
from benchmarks.executors_application import (
    DRIVER,
    KILLED,
    ONE,
    PLACES,
    TWO,
    WAYS,
    Copied,
    Options,
)
from benchmarks.figures import Figures
from benchmarks.s3_store import running_store
from benchmarks.spark_home import spark_home
from benchmarks.work import Work
from sparklog.errors import SparklogError
from sparklog.jars import resolve_jars
from sparklog.java import find_java, python_for_spark

SPEED_UP = "from one to two executors"
COST = "cost of the killed executor"

_BYTES = 2 << 30
_MOST_BATCH_BYTES = 16 << 20
_LEAST_BYTES = 8 << 20
_BATCHES = 128
_BYTES_PER_TASK = 32 << 20
_PATIENCE_SECONDS = 3600

__all__ = ["COST", "DRIVER", "KILLED", "ONE", "SPEED_UP", "TWO", "WORK"]


def run(bench: Bench, figures: Figures) -> None:
    """Run an application for each run, and add what it has measured."""
    size_bytes = bench.scaled(_BYTES, least=_LEAST_BYTES)
    batch_bytes = min(_MOST_BATCH_BYTES, size_bytes // 8)
    bytes_per_task = min(_BYTES_PER_TASK, 2 * batch_bytes)
    for one in range(bench.runs):
        with (
            bench.temporary("executors") as folder,
            running_store(folder / "store.log") as store,
        ):
            options = Options(
                str(folder), store.port, size_bytes // batch_bytes, batch_bytes, bytes_per_task
            )
            seconds: dict[tuple[str, str], float] = {}
            for copied in _run_application(folder, options):
                seconds[copied.place, copied.way] = copied.seconds
                rate = copied.size_bytes / copied.seconds / 1e9
                for unit, value in (
                    ("s", copied.seconds),
                    ("GB/s", rate),
                    ("tasks", copied.tasks),
                    ("repeated tasks", copied.repeated),
                ):
                    figures.add(f"{copied.place}, {unit}", copied.way, unit, value)
                bench.say(
                    f"  run {one + 1}: {copied.place}, {copied.way}: {copied.seconds:.2f} s, "
                    f"{rate:.2f} GB/s, {copied.tasks} tasks in {copied.jobs} jobs, "
                    f"{copied.repeated} repeated"
                )
            for place in PLACES:
                ratio = seconds[place, ONE] / seconds[place, TWO]
                figures.add(f"{place}, speed-up {SPEED_UP}", TWO, "x", ratio)
                cost = seconds[place, KILLED] - seconds[place, TWO]
                figures.add(f"{place}, {COST}", KILLED, "s", cost)


def _run_application(folder: Path, options: Options) -> list[Copied]:
    """Submit the application with two executors; return what it has measured."""
    home = spark_home(folder / "spark")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder / "blocks"),
        # The JVMs only distribute tasks, which Python runs.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        # The first job begins when both executors have registered.
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    }
    command = [str(home / "bin" / "spark-submit"), "--master", "local-cluster[2,1,1024]"]
    command += ["--driver-memory", "1g", "--jars", ",".join(map(str, resolve_jars()))]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    command += [
        str(CHECKOUT / "benchmarks" / "executors_application.py"),
        json.dumps(options._asdict()),
    ]
    environment = {
        **os.environ,
        **find_java().launch_environment(),
        "PYTHONPATH": str(CHECKOUT),
        "PYSPARK_PYTHON": python_for_spark(),
        "SPARK_HOME": str(home),
    }
    log = folder / "application.log"
    with log.open("wb") as errors:
        # A session of its own, so that the executors are killed with it.
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    try:
        output, _ = process.communicate(timeout=_PATIENCE_SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode != 0:
        # spark-submit copies what Python writes to both of its outputs to its own output.
        raise SparklogError(
            f"the application has ended with {process.returncode}: "
            f"{output.decode()[-4000:]}{log.read_text()[-2000:]}"
        )
    lines = [line for line in output.decode().splitlines() if line.startswith("{")]
    copied = [Copied(**json.loads(line)) for line in lines]
    if len(copied) != len(PLACES) * len(WAYS):
        raise SparklogError(f"the application has measured {len(copied)} ways: {lines}")
    return copied


WORK = Work(
    "executors",
    "A follower 2 GiB behind, copied by executors",
    "A Spark application of two executors (`local-cluster`, one core each) holds a leader with "
    "2 GiB in 4 partitions, in batches of 16 MiB that do not compress, in a local folder and on "
    "the S3 API server of the benchmarks with 30 ms a request. Followers, each with an empty log, "
    "catch up one after the other: on threads of the driver, in tasks on two executors, on two of "
    "which one is killed by SIGKILL after the first task has succeeded, and on one. Measured from "
    "a follower's registration to its last commit; every checksum is verified, and files in the "
    "local folder are synced. Python workers have started before; what was written is synced "
    "before each.",
    run,
    is_plotted=False,
    most_runs=2,
)
