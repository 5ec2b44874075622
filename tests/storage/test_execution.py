"""Work on record bytes has the same results in this process and in Spark's tasks."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sparklog.broker.engines import execution_of
from sparklog.config import Settings
from sparklog.errors import ApplicationFailedError
from sparklog.model import Batch, new_batch_path
from sparklog.spark_jobs import jobs_started, role, run_in_tasks
from sparklog.storage import execution as executing
from sparklog.storage.batch_files import (
    BatchFile,
    PassingFault,
    file_checksum,
    read_records,
    rewrite_slice,
)
from sparklog.storage.batch_merging import Merge
from sparklog.storage.copying import Copy
from sparklog.storage.execution import (
    BatchSlice,
    DriverExecution,
    Execution,
    ListedFile,
    SparkExecution,
    executors_fault,
    spark_execution,
)
from sparklog.storage.location import Location
from tests.storage.batches import batch_of_file, write_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def log(root: Location) -> Location:
    return root.child("log")


@pytest.fixture
def target(tmp_path: Path) -> Location:
    return Location.of(str(tmp_path / "other root" / "log"))


@pytest.fixture(params=["driver", "spark"])
def execution(request: pytest.FixtureRequest, spark: SparkSession) -> Execution:
    """Work in this process, and all work in tasks, of which each gets few bytes."""
    return DriverExecution() if request.param == "driver" else SparkExecution(spark, 0, 100)


def copy_of(log: Location, file: BatchFile, target: Location) -> Copy:
    batch_id = batch_of_file(file).batch_id
    path = new_batch_path(batch_id)
    return Copy(log, file.path, target, path, file.size_bytes, file.checksum)


class TestBothExecutions:
    """A failure of an item does not affect the others, and results have the items' order."""

    def test_check_files(self, execution: Execution, log: Location) -> None:
        """A sound file has no fault, a missing one may still arrive, a changed one never counts."""
        sound, missing, changed = (write_file(log, [b"v%d" % number]) for number in range(3))
        Path(log.uri, missing.path).unlink()
        content = bytearray(Path(log.uri, changed.path).read_bytes())
        content[10] ^= 1
        Path(log.uri, changed.path).write_bytes(content)
        found = execution.check(log, [sound, missing, changed])
        assert found == [None, "there is no such file", "its bytes do not match the checksum"]
        assert [isinstance(one, PassingFault) for one in found] == [False, True, False]

    def test_copy_files(self, execution: Execution, log: Location, target: Location) -> None:
        """A copy has the same bytes, batch id and inbox; a failed copy leaves no file."""
        files = [write_file(log, [b"v%d" % number]) for number in range(8)]
        Path(log.uri, files[3].path).write_bytes(b"damaged")
        Path(log.uri, files[5].path).unlink()
        copies = [copy_of(log, file, target) for file in files]
        found = execution.copy(copies)
        assert [number for number, one in enumerate(found) if one.fault] == [3, 5]
        sound = [(one, copy) for one, copy in zip(found, copies, strict=True) if one.fault is None]
        for one, copy in sound:
            assert file_checksum(target, one.path) == copy.checksum
            assert batch_of_file(files[0])._replace(path=one.path).batch_id in copy.source_path
        stored = {str(one.relative_to(target.uri)) for one in Path(target.uri).rglob("*.parquet")}
        assert stored == {one.path for one, _ in sound}

    def test_cut_batches(self, execution: Execution, log: Location, target: Location) -> None:
        """A part has the records between two offsets, and the batch's identity."""
        batch = batch_of_file(write_file(log, [b"a", b"b", b"c", b"d"]))._replace(base_offset=10)
        gone = batch_of_file(write_file(log, [b"x"]))
        Path(log.uri, gone.path).unlink()
        failed, part = execution.cut(
            [BatchSlice(log, gone, 0, 1, target), BatchSlice(log, batch, 11, 13, target)]
        )
        assert isinstance(failed, str)
        assert gone.path in failed
        assert isinstance(part, Batch)
        assert part.batch_id == batch.batch_id
        assert [(one.offset, one.value) for one in read_records(target, [part], 0, 99)] == [
            (11, b"b"),
            (12, b"c"),
        ]

    def test_merge_batches(self, execution: Execution, log: Location) -> None:
        """A merged batch has the records of all its batches."""
        runs = [_adjacent(log, number) for number in range(3)]
        Path(log.uri, runs[1][0].path).unlink()
        found = execution.merge([Merge(log, run, new_batch_path()) for run in runs])
        assert [isinstance(one, Batch) for one in found] == [True, False, True]
        for run, merged in zip(runs, found, strict=True):
            if isinstance(merged, Batch):
                values = [one.value for one in read_records(log, run, 0, 99)]
                assert [one.value for one in read_records(log, [merged], 0, 99)] == values

    def test_nothing_to_do_is_no_job(self, execution: Execution, log: Location) -> None:
        """A tick without work starts no job."""
        before = jobs_started()
        assert not execution.check(log, [])
        assert not execution.copy([])
        assert not execution.cut([])
        assert not execution.merge([])
        assert jobs_started() == before


def _adjacent(log: Location, number: int) -> tuple[Batch, ...]:
    files = [write_file(log, [b"%d %d" % (number, at)] * 2) for at in range(3)]
    return tuple(batch_of_file(file)._replace(base_offset=2 * at) for at, file in enumerate(files))


def test_a_call_is_one_named_job_with_tasks_by_bytes(
    spark: SparkSession, log: Location, target: Location
) -> None:
    """Spark's UI shows "broker 1, follower: copy"; a task has the bytes of bytes_per_task."""
    files = [write_file(log, [os.urandom(1000)]) for _ in range(6)]
    execution = SparkExecution(spark, 0, 2 * files[0].size_bytes)
    before = jobs_started()
    with role("broker 1, follower"):
        execution.copy([copy_of(log, file, target) for file in files])
    assert jobs_started() - before == 1
    newest = _jobs(spark)[0]
    assert newest.description().get() == "broker 1, follower: copy"
    assert newest.numTasks() == 3
    assert spark.sparkContext.getLocalProperty("spark.job.description") is None


def _jobs(spark: SparkSession) -> list[Any]:
    """Return Spark's own jobs, the newest first."""
    store = spark.sparkContext._jsc.sc().statusStore()
    found = store.jobsList(None)
    return [found.apply(number) for number in range(found.size())]


@pytest.mark.parametrize(("min_bytes", "jobs"), [(1 << 30, 0), (1, 1)])
def test_work_below_the_minimum_stays_in_the_driver(
    spark: SparkSession, log: Location, target: Location, min_bytes: int, jobs: int
) -> None:
    """execution=auto: a job starts from execution.spark.min.bytes on."""
    execution = SparkExecution(spark, min_bytes, 1 << 20)
    before = jobs_started()
    [copied] = execution.copy([copy_of(log, write_file(log, [b"v"]), target)])
    assert (copied.fault, jobs_started() - before) == (None, jobs)


def test_without_executors_auto_merges_in_tasks_and_copies_in_the_driver(
    spark: SparkSession, log: Location, target: Location
) -> None:
    """On a local master tasks share the driver's processors, and merging holds Python's lock."""
    auto = spark_execution(spark, is_always=False, min_bytes=0, bytes_per_task=1)
    before = jobs_started()
    [copied] = auto.copy([copy_of(log, write_file(log, [b"v"]), target)])
    assert (copied.fault, jobs_started() - before) == (None, 0)
    [merged] = auto.merge([Merge(log, _adjacent(log, 0), new_batch_path())])
    assert isinstance(merged, Batch)
    assert jobs_started() - before == 1


def _crash(_: object) -> None:
    """End the worker of a task at once."""
    os._exit(1)


def _fail(_: object) -> None:
    raise RuntimeError("the task fails")


@pytest.mark.parametrize("end", [_crash, _fail])
def test_work_of_a_job_that_fails_is_done_in_the_driver(
    spark: SparkSession,
    log: Location,
    target: Location,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    end: Any,
) -> None:
    """Whether tasks raise or their workers die: one warning, and the files are copied."""
    monkeypatch.setattr(executing, "_copied", end)
    now_s = [100.0]
    execution = SparkExecution(spark, 0, 1 << 20, lambda: now_s[0])
    before = jobs_started()
    # Failed jobs leave files that no commit names: none is started for 10 s, then for 20 s.
    for at_s, jobs in ((100, 1), (109, 1), (110, 2), (129, 2), (130, 3)):
        now_s[0] = at_s
        [copied] = execution.copy([copy_of(log, write_file(log, [b"v"]), target)])
        assert copied.fault is None
        assert jobs_started() - before == jobs
    monkeypatch.undo()
    now_s[0] = 170
    execution.copy([copy_of(log, write_file(log, [b"v"]), target)])
    assert not execution.is_paused
    warnings = [one for one in caplog.records if "job failed" in one.message]
    assert len(warnings) == 1


@pytest.mark.parametrize("cut_all", [DriverExecution().cut, executing._cut_each])
def test_cut_files_of_a_full_disk_are_removed(
    log: Location, target: Location, monkeypatch: pytest.MonkeyPatch, cut_all: Any
) -> None:
    """If a part cannot be written, the parts before it are removed: attempts are repeated."""
    batches = [batch_of_file(write_file(log, [b"a", b"b"])) for _ in range(2)]
    cut = rewrite_slice
    written: list[Batch] = []

    def full(*of: Any) -> Batch:
        if written:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(cut(*of))
        return written[0]

    monkeypatch.setattr(executing, "rewrite_slice", full)
    with pytest.raises(OSError, match="No space left"):
        cut_all([BatchSlice(log, batch, 1, 2, target) for batch in batches])
    assert written
    assert not list(Path(target.uri).rglob("*.parquet"))


def test_the_first_files_of_all_partitions_are_spread_over_the_tasks(spark: SparkSession) -> None:
    """A fetch is bounded in bytes, so it copies the first files of a long backlog."""
    execution = SparkExecution(spark, 0, 1 << 20)
    files = [
        ListedFile(rank, 0, (1 << 20) + partition, "", f"{partition} {rank}")
        for partition in range(8)
        for rank in range(64)
    ]
    listed = execution.work_list(files, 8 << 20)
    heads = [name for file, name in zip(files, listed.names, strict=True) if file.rank == 0]
    assert listed.task_count == 8
    assert len({name.split(" ")[0] for name in heads}) == 8


def test_shares_keep_their_order_and_have_one_task_each(spark: SparkSession) -> None:
    """The results of each share are those of its members, in order."""
    shares = [[1, 2], [3], [], [4, 5, 6]]
    assert run_in_tasks(spark, "square", _squares, shares) == [[1, 4], [9], [], [16, 25, 36]]


def _squares(numbers: Sequence[int]) -> list[int]:
    return [number * number for number in numbers]


def test_the_executors_of_this_session_can_run_the_package(spark: SparkSession) -> None:
    """Its workers have the environment of this process."""
    assert executors_fault(spark, {}) is None


def test_executors_without_the_variable_of_a_reference_are_named(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their copies would fail at every tick."""
    options = {"s3://logs": {"AWS_SECRET_ACCESS_KEY": "${ONLY_THE_DRIVER_HAS_IT}"}}
    monkeypatch.setenv("ONLY_THE_DRIVER_HAS_IT", "a secret")
    found = executors_fault(spark, options)
    assert found is not None
    assert found.startswith("on an executor, ")
    assert "ONLY_THE_DRIVER_HAS_IT" in found
    assert "a secret" not in found


class TestACheckThatFailsForAReasonThatMayPass:
    @pytest.fixture(autouse=True)
    def failing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(executing, "_fitness", _fail_in_task)

    def test_ends_a_start_with_execution_spark_so_that_it_is_restarted(
        self, spark: SparkSession
    ) -> None:
        """An executor may be lost while brokers start."""
        with pytest.raises(ApplicationFailedError, match="check of the executors has failed"):
            execution_of(Settings(execution="spark"), spark)

    def test_keeps_tasks_with_execution_auto(
        self, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sparklog.broker.engines.has_executors", lambda _: True)
        assert isinstance(execution_of(Settings(), spark), SparkExecution)


def _fail_in_task(_: object, __: object) -> None:
    raise RuntimeError("the task fails")


def test_executors_with_another_release_or_without_the_package_are_named(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says what the executors lack, and what to do."""
    monkeypatch.setattr("sparklog.__version__", "0.0.1")
    found = executors_fault(spark, {})
    assert found is not None
    assert "the driver has 0.0.1" in found
    monkeypatch.undo()
    monkeypatch.setattr(executing, "_fitness", _lack_a_package)
    found = executors_fault(spark, {})
    assert found is not None
    assert found.startswith(
        "the executors lack the Python package sparklog_of_nobody: install the driver's release"
    )


def _lack_a_package(_: object, __: object) -> None:
    import sparklog_of_nobody  # type: ignore[import-not-found]

    del sparklog_of_nobody
