"""The writers of `format("sparklog")`, as Spark's classes.

Tasks write files, and one process at the end names them to the leaders. Like the readers they run
in Python processes of their own, without a session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pyspark_sparklog import errors_in_one_line
from sparklog.datasource.write_options import WriteOptions
from sparklog.errors import SparklogError

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.datasource.write_task import WrittenFile

_QUERY_ID = "sql.streaming.queryId"
"""The local property by which a task knows the streaming query that it works for."""


@dataclass
class _Written(WriterCommitMessage):
    """What one task wrote, and for which streaming query."""

    files: list[WrittenFile]
    query_id: str | None = None


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame: stored when `save` returns, maybe twice where it has to be repeated."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @errors_in_one_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows to files."""
        from sparklog.datasource.write_task import write_task

        return _Written(write_task(iterator, self._options))

    @errors_in_one_line()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Name the files to the leaders and wait for the answers."""
        from sparklog.datasource.write_commit import commit_write

        commit_write(self._options, _files(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream: every micro-batch is stored once, however often it is run."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @errors_in_one_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows to files."""
        from sparklog.datasource.write_task import write_task

        context = TaskContext.get()
        query_id = context.getLocalProperty(_QUERY_ID) if context is not None else None
        if query_id is None:
            raise SparklogError(
                f"this Spark does not tell a task its query's id ({_QUERY_ID}), without which a "
                "micro-batch would be stored twice when it is repeated: use foreachBatch and "
                "SparkProducer.send with micro_batch"
            )
        return _Written(write_task(iterator, self._options), query_id)

    @errors_in_one_line()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Name the files to the leaders, once for a micro-batch, and wait for the answers."""
        from sparklog.clients.stream_writes import MicroBatch
        from sparklog.datasource.write_commit import commit_write

        query_ids = {one.query_id for one in messages if isinstance(one, _Written)}
        for query_id in query_ids:
            once = MicroBatch(str(query_id), batchId)
            commit_write(self._options, _files(messages), once)


def _files(messages: Iterable[WriterCommitMessage | None]) -> list[WrittenFile]:
    return [file for one in messages if isinstance(one, _Written) for file in one.files]
