"""The Spark jobs of an application by name, as Spark itself has recorded them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Job(NamedTuple):
    """A Spark job: its name in Spark's UI ("broker 1, follower: copy") and its number of tasks.

    The name is empty if the job was not given one.
    """

    name: str
    tasks: int


class JobCount(NamedTuple):
    """The number of jobs of one name, and of all their tasks."""

    name: str
    jobs: int
    tasks: int


def next_job(spark: SparkSession) -> int:
    """Return the number of the next job, which is that of all jobs so far; classic sessions."""
    return int(_context(spark).dagScheduler().numTotalJobs())


def jobs_since(spark: SparkSession, number: int = 0) -> list[Job]:
    """Return the finished jobs from this number on, in order, of all users of the application.

    Spark keeps the last spark.ui.retainedJobs (1,000 by default), also if its UI is off.
    """
    context = _context(spark)
    # Spark records jobs in another thread.
    context.listenerBus().waitUntilEmpty()
    jobs = []
    for one in range(number, next_job(spark)):
        job = context.statusStore().job(one)
        described = job.description()
        jobs.append(Job(described.get() if described.isDefined() else "", job.numTasks()))
    return jobs


def counted(jobs: Iterable[Job]) -> list[JobCount]:
    """Return the numbers of jobs and of their tasks by name, sorted by name."""
    tasks: dict[str, list[int]] = defaultdict(list)
    for job in jobs:
        tasks[job.name].append(job.tasks)
    return [JobCount(name, len(of), sum(of)) for name, of in sorted(tasks.items())]


def _context(spark: SparkSession) -> Any:
    # PySpark has the number and state of a job, but not its description.
    return spark.sparkContext._jsc.sc()
