"""Cleaning a log as one Spark job: neither keys nor offsets of records go through the driver.

The plan reads the keys of all batches, finds the last offset of each key (rule `latest_keys`),
joins it to the records (rule `retained_records`), and writes the new batches in tasks. Spark spills
what does not fit in the memory of its executors, so a log is cleaned in one pass whatever its
number of keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING

from sparklog.model import Batch
from sparklog.protocol.rules import SparkRules
from sparklog.session import is_connect, spark_errors
from sparklog.storage.compaction import Compaction
from sparklog.storage.compaction_tasks import keys_in_tasks, results_of, written_in_tasks
from sparklog.storage.execution import Execution, SparkExecution

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


class CleaningPlan:
    """Cleans logs in the tasks of an execution's session."""

    def __init__(self, execution: SparkExecution) -> None:
        self._execution = execution

    @cached_property
    def _rules(self) -> SparkRules:
        """The rules on Spark, whatever runs the others (`rules.engine`): their rows are records."""
        return SparkRules(self._execution.spark)

    def takes(self, size_bytes: int) -> bool:
        """Return whether rewriting batches of this size in bytes is worth a job now."""
        return self._execution.rewrites_in_tasks(size_bytes)

    def run(
        self, compactions: Sequence[Compaction], dirty_offset: int, tombstones_below: int
    ) -> dict[int, Batch | str | None] | None:
        """Write the new batches of a log; return them by the base offsets of their compactions.

        Parameters: `compactions`, all of the log up to the end of its dirty part, which begins at
        `dirty_offset`. A compaction that retains no record is missing in the result. An outcome is
        a failure as text, or `None` if the batch stays as it is.

        `None`: the job has failed, with a warning. Files that it wrote are named by no commit.
        """
        session = self._rules.session
        count = self._execution.task_count(sum(one.size_bytes for one in compactions))
        try:
            session.conf.set(_SHUFFLE_PARTITIONS, str(count))
            with _read_once(keys_in_tasks(session, compactions, count)) as keys:
                return self._run(keys, compactions, dirty_offset, tombstones_below, count)
        except spark_errors() as error:
            self._execution.note_failure("clean", error)
            return None

    def _run(
        self,
        keys: DataFrame,
        compactions: Sequence[Compaction],
        dirty_offset: int,
        tombstones_below: int,
        count: int,
    ) -> dict[int, Batch | str | None] | None:
        dirty = keys.where(f"record_offset >= {dirty_offset}")
        records = keys.selectExpr("*", f"cast({tombstones_below} as bigint) as tombstones_below")
        with (
            self._rules.planned("latest_keys", records=dirty) as latest,
            self._rules.planned("retained_records", records=records, latest=latest) as retained,
        ):
            plan = written_in_tasks(retained, compactions, count)
            rows = self._execution.collect("clean", plan)
        return None if rows is None else results_of(rows)


@contextmanager
def _read_once(keys: DataFrame) -> Iterator[DataFrame]:
    """Keep keys in Spark's memory, or on its disks, for the two rules that read them.

    Otherwise the files of the dirty part are read once more. Some servers of Spark Connect refuse
    to keep rows, so it is not tried there.
    """
    if is_connect(keys.sparkSession):
        yield keys
        return
    keys.persist()
    try:
        yield keys
    finally:
        with suppress(*spark_errors()):
            keys.unpersist()


def cleaning_plan(execution: Execution) -> CleaningPlan | None:
    """Return the plan if the work on records may be done in tasks, else `None`."""
    return CleaningPlan(execution) if isinstance(execution, SparkExecution) else None
