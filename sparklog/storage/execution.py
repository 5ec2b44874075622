"""Work on record bytes, in this process or in the tasks of a Spark job (key `execution`).

Five kinds of work have the size of the records: a leader's check of batch files, a follower's
copies, the cut of a batch that straddles an offset, merging, and compaction, which is a plan of its
own (`compaction_tasks`). Everything else is metadata.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import sparklog
from sparklog.errors import ConfigError, StorageError
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.model import Batch, batch_id, new_batch_path
from sparklog.session import spark_errors
from sparklog.spark_jobs import has_executors, parallelism, run_in_tasks, shares, spark_job
from sparklog.storage.batch_files import BatchFile, file_fault, files_faults, rewrite_slice
from sparklog.storage.batch_merging import Merge, merge_batches
from sparklog.storage.copying import Copied, Copy, copy_file, copy_files
from sparklog.storage.file_states import FileState, NamedFile, read_files
from sparklog.storage.location import Location, one_line
from sparklog.storage.new_file import discard_file
from sparklog.storage.parallel import map_in_parallel
from sparklog.storage.references import resolved

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_log = get_logger(__name__)

_Of = TypeVar("_Of")
_Result = TypeVar("_Result")


class BatchSlice(NamedTuple):
    """The records of a batch with from_offset <= offset < below_offset, to become a new batch."""

    source: Location
    batch: Batch
    from_offset: int
    below_offset: int
    target: Location


class ListedFile(NamedTuple):
    """A file that may be copied.

    `rank` is its place among the files of its partition: a query gives the lowest of each.
    `source` is the number of the log that has it.
    """

    rank: int
    source: int
    size_bytes: int
    checksum: str
    path: str


class WorkList(NamedTuple):
    """The names of files for a query, in the order of the files, and the number of tasks.

    A name has the parts of a `Copy` that differ between files. Tasks get about equal bytes of all.
    """

    names: list[str]
    task_count: int


class Execution(Protocol):
    """The place of the work on record bytes.

    Each method returns a result or a failure as text for each item, in the order of the items. A
    failure does not affect the other items.
    """

    def check(
        self, log: Location, files: Sequence[BatchFile], keyed: Collection[str] = frozenset()
    ) -> list[str | None]:
        """Check files that requests name; return the fault of each, or `None` (3.5, 3.7).

        Parameters: `keyed`, the paths of the files whose records need keys.
        """
        ...

    def copy(self, copies: Sequence[Copy]) -> list[Copied]:
        """Copy files byte for byte; return the path of each copy, and its failure if it failed."""
        ...

    def cut(self, slices: Sequence[BatchSlice]) -> list[Batch | str]:
        """Write parts of batches as new batches; return the new batches (6.3, 6.5).

        Raises `OSError` if a new batch cannot be written.
        """
        ...

    def merge(self, merges: Sequence[Merge]) -> list[Batch | str]:
        """Write adjacent batches as one; return the merged batches (8.4)."""
        ...

    def read(self, files: Sequence[NamedFile]) -> list[FileState]:
        """Read files to their ends; return the state of each, to be compared with its header."""
        ...


class DriverExecution:
    """Work in the threads of this process."""

    def check(
        self, log: Location, files: Sequence[BatchFile], keyed: Collection[str] = frozenset()
    ) -> list[str | None]:
        """See `Execution.check`."""
        return files_faults(log, files, keyed)

    def copy(self, copies: Sequence[Copy]) -> list[Copied]:
        """See `Execution.copy`."""
        return copy_files(copies)

    def cut(self, slices: Sequence[BatchSlice]) -> list[Batch | str]:
        """See `Execution.cut`."""
        written: list[Batch | str] = []
        try:
            for one in slices:
                part = _cut(one)
                written.append(part)
        except OSError:
            # Repeated attempts must not fill the disk.
            for one, part in zip(slices, written, strict=False):
                if isinstance(part, Batch):
                    discard_file(one.target, part.path)
            raise
        return written

    def merge(self, merges: Sequence[Merge]) -> list[Batch | str]:
        """See `Execution.merge`."""
        return [merge_batches(merge) for merge in merges]

    def read(self, files: Sequence[NamedFile]) -> list[FileState]:
        """See `Execution.read`."""
        return read_files(files)


class SparkExecution:
    """Work in the tasks of one Spark job for each call; small work stays in this process.

    Parameters: `min_bytes`, the bytes from which on a call is a job, 0 for all calls, infinite for
    merges alone; `bytes_per_task`, the bytes for which a task is started, and from which on a merge
    is a job.

    A task that is run again, after its executor was lost or by speculation, writes files of its
    own. Those of the other attempt are named by no commit. If a job fails nevertheless, the work is
    done in this process, and a warning is logged. So is all work of the next 10 s, and of twice as
    long after each further failure: the tasks of failed jobs leave files that no commit names.
    """

    def __init__(
        self,
        spark: SparkSession,
        min_bytes: float,
        bytes_per_task: int,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark = spark
        self._min_bytes = min_bytes
        self._bytes_per_task = bytes_per_task
        self._driver = DriverExecution()
        self._failures = RepeatedFailures(_log)
        self._monotonic_s = monotonic_s
        self._failed_jobs = 0
        """Consecutive failures."""
        self._paused_until_s = -math.inf

    @property
    def spark(self) -> SparkSession:
        """The session that runs the jobs."""
        return self._spark

    @property
    def is_paused(self) -> bool:
        """Whether no job is started, since the last one has failed a short time ago."""
        return self._monotonic_s() < self._paused_until_s

    def check(
        self, log: Location, files: Sequence[BatchFile], keyed: Collection[str] = frozenset()
    ) -> list[str | None]:
        """See `Execution.check`."""
        return self._run(
            "check",
            partial(_checked, log, keyed),
            files,
            [file.size_bytes for file in files],
            partial(self._driver.check, log, keyed=keyed),
        )

    def copy(self, copies: Sequence[Copy]) -> list[Copied]:
        """See `Execution.copy`."""
        sizes = [copy.size_bytes for copy in copies]
        return self._run("copy", _copied, copies, sizes, self._driver.copy)

    @property
    def is_always_in_tasks(self) -> bool:
        """Whether every call is a job, however few bytes it has (`execution` = spark)."""
        return self._min_bytes == 0

    def work_list(self, files: Sequence[ListedFile], max_bytes: int) -> WorkList:
        """Name files for a query that decides which of them `copy_found` copies.

        Parameters: `max_bytes`, the most that the query gives.
        """
        sizes = [file.size_bytes for file in files]
        # The files that the query gives are the first ones of each partition.
        order = sorted(range(len(files)), key=lambda number: files[number].rank)
        dealt = shares(sizes, self.task_count(min(max_bytes, sum(sizes))), order)
        names = {
            number: " ".join(map(str, (task, *files[number][1:])))
            for task, share in enumerate(dealt)
            for number in share
        }
        return WorkList([names[number] for number in range(len(files))], len(dealt))

    def copy_found(
        self, found: DataFrame, task_count: int, sources: Sequence[Location], target: Location
    ) -> pa.Table | None:
        """Copy the files that a query gives, as part of its plan: one job finds and copies them.

        Parameters: `found`, rows with the name of a file of a work list as `path`; `task_count`,
        that of the work list; `sources`, the logs to which the numbers in the names refer.

        Returns the rows with two more columns, those of `Copied`. If the job fails, a warning is
        logged and `None` returned; the files that it copied are then named nowhere.
        """
        try:
            columns = ", ".join(f"{name} {type_}" for name, type_ in found.dtypes)
            schema = f"{columns}, copied_path string, fault string"
            if task_count > 1:
                # The number is in the name, so a task that runs again has the same files.
                task = "cast(substring_index(path, ' ', 1) as int)"
                dealt = found.selectExpr("*", f"{task} as {_TASK}")
                # Before Spark 4.1 some tasks get the files of two.
                by_number = getattr(dealt, "repartitionById", dealt.repartition)
                found = by_number(task_count, _TASK).drop(_TASK)
            return self.collect("fetch", found.mapInArrow(_copying(sources, target), schema))
        except spark_errors() as error:
            self.note_failure("fetch", error)
            return None

    def collect(self, action: str, plan: DataFrame) -> pa.Table | None:
        """Run a plan as one job, and return its rows; `None`, with a warning, if the job fails.

        Parameters: `action`, the name of the job.
        """
        try:
            with spark_job(plan.sparkSession, action):
                rows = plan.toArrow()
        except spark_errors() as error:
            self.note_failure(action, error)
            return None
        self._note_success(action)
        return rows

    def cut(self, slices: Sequence[BatchSlice]) -> list[Batch | str]:
        """See `Execution.cut`."""
        sizes = [one.batch.size_bytes for one in slices]
        return self._run("cut", _cut_each, slices, sizes, self._driver.cut)

    def merge(self, merges: Sequence[Merge]) -> list[Batch | str]:
        """See `Execution.merge`."""
        sizes = [merge.size_bytes for merge in merges]
        if not self.rewrites_in_tasks(sum(sizes)):
            return self._driver.merge(merges)
        return self._run("merge", _merged_each, merges, sizes, self._driver.merge, min_bytes=0)

    def rewrites_in_tasks(self, size_bytes: int) -> bool:
        """Return whether rewriting batches of this size in bytes is worth a job now."""
        # It holds the interpreter's lock, so it delays ticks in this process: a job pays from the
        # bytes of one task on.
        return size_bytes >= min(self._min_bytes, self._bytes_per_task) and not self.is_paused

    def read(self, files: Sequence[NamedFile]) -> list[FileState]:
        """See `Execution.read`."""
        sizes = [file.size_bytes for file in files]
        return self._run("scrub", read_files, files, sizes, self._driver.read)

    def _run(
        self,
        action: str,
        function: Callable[[Sequence[_Of]], list[_Result]],
        items: Sequence[_Of],
        sizes: Sequence[int],
        in_driver: Callable[[Sequence[_Of]], list[_Result]],
        min_bytes: float | None = None,
    ) -> list[_Result]:
        total = sum(sizes)
        is_small = total < (self._min_bytes if min_bytes is None else min_bytes)
        if not items or is_small or self.is_paused:
            return in_driver(items)
        dealt = shares(sizes, self.task_count(total))
        try:
            given = [[items[number] for number in share] for share in dealt]
            results = run_in_tasks(self._spark, action, function, given)
        except spark_errors() as error:
            self.note_failure(action, error)
            return in_driver(items)
        self._note_success(action)
        by_number = {
            number: result
            for share, of in zip(dealt, results, strict=True)
            for number, result in zip(share, of, strict=True)
        }
        return [by_number[number] for number in range(len(items))]

    def note_failure(self, action: str, error: Exception) -> None:
        """Log that a job has failed, and start none for a while: its work is done here."""
        pause_s = min(_FIRST_PAUSE_S << min(self._failed_jobs, 10), _LONGEST_PAUSE_S)
        self._failed_jobs += 1
        self._paused_until_s = self._monotonic_s() + pause_s
        self._failures.warning(
            action,
            "job failed, done in the driver",
            action=action,
            error=one_line(error),
            next_job_after_s=pause_s,
        )

    def _note_success(self, action: str) -> None:
        self._failed_jobs = 0
        self._failures.over(action)

    def task_count(self, size_bytes: int) -> int:
        """Return the number of tasks for work of this size in bytes."""
        most = _TASKS_PER_SLOT * parallelism(self._spark)
        return min(most, max(1, -(-size_bytes // self._bytes_per_task)))


_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10, 640
"""The time in s without jobs after a failed one; it doubles with each consecutive failure."""

_TASKS_PER_SLOT = 4
"""The most tasks for each that runs at once: a lost executor costs a small part of the work."""


def spark_execution(
    spark: SparkSession, *, is_always: bool, min_bytes: int, bytes_per_task: int
) -> Execution:
    """Return the execution for a session: all work in tasks, or that which is worth a job.

    Without executors (master `local`) tasks share the driver's processors, whose threads copy twice
    as fast. Only merges are worth a job there.
    """
    if is_always:
        return SparkExecution(spark, 0, bytes_per_task)
    return SparkExecution(spark, min_bytes if has_executors(spark) else math.inf, bytes_per_task)


def executors_fault(
    spark: SparkSession, storage_options: Mapping[str, Mapping[str, str]]
) -> str | None:
    """Return the reason why the executors cannot run this package's code, or `None` if they can.

    One job with a task for each core imports what the tasks of `run_in_tasks` need, and resolves
    the references of `storage_options`, by URI prefix. Raises Spark's errors if the job fails for
    another reason than a missing package.
    """
    fitness = partial(_fitness, storage_options)
    try:
        found = run_in_tasks(
            spark, "check of the executors", fitness, [[0]] * max(2, parallelism(spark))
        )
    except spark_errors() as error:
        missing = _missing_package(str(error))
        if missing is None:
            raise
        return f"the executors lack the Python package {missing}: {_REMEDY}"
    for _, fault in (one for share in found for one in share):
        if fault is not None:
            return f"on an executor, {fault}"
    others = {version for share in found for version, _ in share} - {sparklog.__version__}
    if others:
        return (
            f"the executors have sparklog {', '.join(sorted(others))}, the driver has "
            f"{sparklog.__version__}: {_REMEDY}"
        )
    return None


_REMEDY = (
    "install the driver's release of sparklog and its dependencies on the workers, or give "
    "spark-submit the zip that `make bundle` writes, with --py-files (Spark imports no .whl)"
)


def _fitness(
    storage_options: Mapping[str, Mapping[str, str]], _: Sequence[int]
) -> list[tuple[str, str | None]]:
    """Return this package's version, and the fault of a reference, or `None`.

    The import of this module needs all that tasks need.
    """
    fault = None
    try:
        for uri, options in storage_options.items():
            resolved(options, uri)
    except ConfigError as error:
        fault = str(error)
    return [(sparklog.__version__, fault)]


def _missing_package(error: str) -> str | None:
    found = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", error)
    return found[1] if found else None


def _checked(log: Location, keyed: Collection[str], files: Sequence[BatchFile]) -> list[str | None]:
    """Check the files of a task."""
    return _in_task(partial(file_fault, log, keyed=keyed), files, is_local=log.is_local)


def _copied(copies: Sequence[Copy]) -> list[Copied]:
    """Copy the files of a task."""
    is_local = all(copy.source.is_local and copy.target.is_local for copy in copies)
    return _in_task(_copied_one, copies, is_local=is_local)


def _in_task(
    action: Callable[[_Of], _Result], items: Sequence[_Of], *, is_local: bool
) -> list[_Result]:
    """Apply an action to the items of a task, in parallel on object stores, where it waits.

    In local folders it needs the processor, of which a task has one core.
    """
    if is_local:
        return [action(one) for one in items]
    return map_in_parallel(action, items, 0, is_local=False)


def _copied_one(copy: Copy) -> Copied:
    """Copy a file, to a path that no other attempt uses."""
    path = new_batch_path(batch_id(copy.target_path))
    return Copied(path, copy_file(copy._replace(target_path=path)))


def _copying(
    sources: Sequence[Location], target: Location
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function with which the tasks of `SparkExecution.copy_found` copy files."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            named = [name.split(" ", 4) for name in batch.column("path").to_pylist()]
            copied = _copied(
                [
                    Copy(sources[int(source)], path, target, path, int(size_bytes), checksum)
                    for _, source, size_bytes, checksum, path in named
                ]
            )
            paths = pa.array([one.path for one in copied], pa.string())
            faults = pa.array([one.fault for one in copied], pa.string())
            names = [*batch.schema.names, "copied_path", "fault"]
            yield pa.RecordBatch.from_arrays([*batch.columns, paths, faults], names)

    return run


_TASK = "task"
"""The column with the number of the task that copies a file."""


def _merged_each(merges: Sequence[Merge]) -> list[Batch | str]:
    """Merge the batches of a task, into paths that no other attempt uses."""
    return [
        merge_batches(merge._replace(path=new_batch_path(batch_id(merge.path)))) for merge in merges
    ]


def _cut_each(slices: Sequence[BatchSlice]) -> list[Batch | str]:
    """Cut the batches of a task; what it has written is removed if a part cannot be written."""
    return DriverExecution().cut(slices)


def _cut(one: BatchSlice) -> Batch | str:
    try:
        return rewrite_slice(one.source, one.batch, one.from_offset, one.below_offset, one.target)
    except StorageError as error:
        return str(error)
