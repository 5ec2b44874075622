"""Spark jobs of this project: their names, their number, and Python functions in their tasks.

Everything here works with a classic session and with Spark Connect: no RDD, and the JVM only for
the description of a job.
"""

from __future__ import annotations

import heapq
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from sparklog.session import is_connect, spark_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_Of = TypeVar("_Of")
_Result = TypeVar("_Result")


class _OfThread(threading.local):
    """The role that a thread plays, and the number of jobs that it has started."""

    role: str | None = None
    jobs: int = 0


_of_thread = _OfThread()


@contextmanager
def role(name: str) -> Iterator[None]:
    """Name the jobs that this thread starts in the block after a role: "broker 1, follower"."""
    before = _of_thread.role
    _of_thread.role = name
    try:
        yield
    finally:
        _of_thread.role = before


def jobs_started() -> int:
    """Return the number of Spark jobs that this thread has started so far."""
    return _of_thread.jobs


@contextmanager
def spark_job(spark: SparkSession, action: str) -> Iterator[None]:
    """Name the one job that the block starts, and count it.

    The job's description in Spark's UI is "broker 1, follower: fetch" if the thread plays that
    role. With Spark Connect the name is a tag of the operation, in which commas are not allowed.
    """
    name = f"{_of_thread.role}: {action}" if _of_thread.role else action
    _of_thread.jobs += 1
    if is_connect(spark):
        tag = name.replace(",", "")
        spark.addTag(tag)
        try:
            yield
        finally:
            spark.removeTag(tag)
        return
    context = spark.sparkContext
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, name)
    try:
        yield
    finally:
        # PySpark's annotation lacks the null that removes a property.
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]


_DESCRIPTION = "spark.job.description"


def own_session(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Return a session of the same application with these settings; `spark` keeps its own."""
    session: SparkSession
    if is_connect(spark):
        # Spark Connect has no other way to a second session than a copy.
        session = spark.cloneSession()  # type: ignore[attr-defined]
        # Spark closes a session when it is collected. At the exit of the interpreter this would
        # wait for ever: the threads of grpc have ended.
        weakref.finalize(session, session.client.close)
    else:
        session = spark.newSession()
    for key, value in settings.items():
        session.conf.set(key, value)
    return session


def has_executors(spark: SparkSession) -> bool:
    """Return whether tasks run in processes other than the driver."""
    return _setting(spark, "spark.master", "a cluster").partition("[")[0] != "local"


def parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that run at once, or an assumption where Spark hides it."""
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    # Spark Connect offers no other number.
    return max(1, int(_setting(spark, "spark.default.parallelism", "0")) or _CONNECT_TASKS)


_CONNECT_TASKS = 16
"""The assumed number of tasks that run at once with Spark Connect, which hides it."""


def _setting(spark: SparkSession, key: str, default: str) -> str:
    """Return a setting, or the default where it is not set or the platform hides it."""
    try:
        return spark.conf.get(key, default) or default
    except spark_errors():
        return default


def run_in_tasks(
    spark: SparkSession,
    action: str,
    function: Callable[[Sequence[_Of]], list[_Result]],
    shares: Sequence[Sequence[_Of]],
) -> list[list[_Result]]:
    """Apply a function to each share, in a task of its own, in one job.

    Parameters: `action`, the name of the job, such as "copy"; `function`, which must be importable
    on the executors, as its arguments and results must be. Returns the results of each share, in
    order. Spark may run a task more than once, also at the same time: the function must write
    nothing that its second run would find. Raises Spark's errors if a task fails repeatedly.
    """
    given = [pickle.dumps(list(share)) for share in shares]

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            numbers = batch.column("id")
            results = [
                pickle.dumps(function(pickle.loads(given[number])))
                for number in numbers.to_pylist()
            ]
            yield pa.RecordBatch.from_arrays(
                [numbers, pa.array(results, pa.binary())], ["share", "results"]
            )

    count = len(shares)
    with spark_job(spark, action):
        shared = spark.range(0, count, 1, count).mapInArrow(run, "share bigint, results binary")
        output = shared.toArrow()
    results: list[list[_Result]] = [[] for _ in shares]
    for number, result in zip(*(output.column(at).to_pylist() for at in range(2)), strict=True):
        results[number] = pickle.loads(result)
    return results


def shares(sizes: Sequence[int], count: int, order: Sequence[int] | None = None) -> list[list[int]]:
    """Distribute item numbers to at most `count` tasks with about equal bytes each.

    Parameters: `order`, the item numbers in the order in which they are dealt; any first part of it
    has about equal bytes in each task, too. The largest items are first by default.
    """
    dealt: list[list[int]] = [[] for _ in range(min(count, len(sizes)))]
    heap = [(0, number) for number in range(len(dealt))]
    if order is None:
        order = sorted(range(len(sizes)), key=lambda item: -sizes[item])
    for item in order:
        size, least = heapq.heappop(heap)
        dealt[least].append(item)
        heapq.heappush(heap, (size + sizes[item], least))
    return dealt
