"""Commits, files and bytes that a cluster in a local folder has written, by table."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMMIT = re.compile(r"\d{20}\.json")


class Written(NamedTuple):
    """The new commits, files and bytes in a folder, by table as `root/table`."""

    commits: Counter[str]
    files: Counter[str]
    bytes: Counter[str]


class Watch:
    """Records the files in a folder, and returns those that are new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: set[Path] = set()
        self.written()

    def written(self) -> Written:
        """Return the files that are new since the last call."""
        commits: Counter[str] = Counter()
        files: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        found = {path for path in self._folder.rglob("*") if path.is_file()}
        for path in found - self._known:
            table = "/".join(path.relative_to(self._folder).parts[:2])
            files[table] += 1
            sizes[table] += path.stat().st_size
            if path.parent.name == "_delta_log" and _COMMIT.fullmatch(path.name):
                commits[table] += 1
        self._known = found
        return Written(commits, files, sizes)


def spark_jobs(spark: SparkSession) -> int:
    """Return the number of jobs that Spark has run so far, of all users of its context."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())
