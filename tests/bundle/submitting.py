"""spark-submit of files in an environment that has the dependencies, but not the package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.spark_home import spark_home
from jobs.bundle import Bundle
from sparklog.jars import resolve_jars
from sparklog.java import find_java
from tests.jobs.processes import Cluster, Process

TWO_EXECUTORS = "local-cluster[2,1,1024]"
"""A master with two workers, whose executors are processes of one core each."""

PATIENCE = 600
"""Timeout in seconds: up to three Java processes start on a machine with two cores."""


class Submitter:
    """Submits the bundle's files, or others, with a Python that lacks the package."""

    def __init__(self, bundle: Bundle, python: Path, cluster: Cluster) -> None:
        self._bundle = bundle
        self._python = python
        self._cluster = cluster

    def start(
        self,
        *arguments: str | Path,
        file: Path | None = None,
        master: str = "local[2]",
        with_package: bool = True,
    ) -> Process:
        """Submit sparklog-submit.py, or another file, with arguments.

        Parameters: `with_package`, whether the zip is given as --py-files.
        """
        settings = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        }
        if master == TWO_EXECUTORS:
            settings |= {
                # The first job begins when both executors have registered: Spark compares their
                # cores with spark.cores.max, and waits for nothing without it.
                "spark.cores.max": "2",
                "spark.scheduler.minRegisteredResourcesRatio": "1",
                "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{PATIENCE}s",
            }
        home = spark_home(self._cluster.folder / "spark")
        jars = ",".join(str(jar) for jar in resolve_jars())
        command = [str(home / "bin" / "spark-submit"), "--master", master]
        command += ["--driver-memory", "1g", "--jars", jars]
        for key, value in settings.items():
            command += ["--conf", f"{key}={value}"]
        if with_package:
            command += ["--py-files", str(self._bundle.py_files)]
        command += [str(file or self._bundle.submit), *map(str, arguments)]
        # Python workers of the driver find packages in the folder in which Spark was started.
        return self._cluster.start(command, environment(self._python, home), self._cluster.folder)

    def run(
        self,
        *arguments: str | Path,
        file: Path | None = None,
        master: str = "local[2]",
        with_package: bool = True,
    ) -> Process:
        """Submit as `start` does, and wait for the end, which must be a success."""
        process = self.start(*arguments, file=file, master=master, with_package=with_package)
        assert process.popen.wait(PATIENCE) == 0, process.stderr[-10_000:]
        return process


def environment(python: Path, home: Path) -> Mapping[str, str]:
    """Return the variables of a machine where only this Python and Java are installed."""
    return {
        **find_java().launch_environment(),
        # A folder that does not exist, since an empty text would be the folder of the checkout.
        "PYTHONPATH": "/nowhere",
        "PYSPARK_PYTHON": str(python),
        "SPARK_HOME": str(home),
    }
