"""The writers of `format("sparklog")`, as classes of Spark's interface.

Tasks write files. At the end one process sends requests for the files to the leaders. Like the
readers they run in separate Python processes, without a session.
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
from pyspark_sparklog.from_files import FromFiles
from sparklog.datasource.write_options import WriteOptions
from sparklog.errors import SparklogError

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.datasource.write_task import WrittenFile

_QUERY_ID = "sql.streaming.queryId"
"""The local property with the id of the streaming query that a task belongs to."""


@dataclass
class _Written(WriterCommitMessage):
    """The files that one task wrote, and the id of its streaming query."""

    files: list[WrittenFile]
    query_id: str | None = None


class BatchWriter(FromFiles, DataSourceArrowWriter):
    """Writes a DataFrame. It is stored when `save` returns, and perhaps twice after a retry."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @errors_in_one_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows to files."""
        from sparklog.datasource.write_task import write_task

        return _Written(write_task(iterator, self._options))

    @errors_in_one_line()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Request the append of the files from the leaders, and wait for the answers."""
        from sparklog.datasource.write_commit import commit_write

        commit_write(self._options, _files(messages))


class StreamWriter(FromFiles, DataSourceStreamArrowWriter):
    """Writes a stream: each micro-batch is stored once, even if it is run repeatedly."""

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
                f"this Spark does not pass a query's id to its tasks ({_QUERY_ID}); without it a "
                "repeated micro-batch would be stored twice: use foreachBatch and "
                "SparkProducer.send with micro_batch"
            )
        return _Written(write_task(iterator, self._options), query_id)

    @errors_in_one_line()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Request the append of the files, once per micro-batch, and wait for the answers."""
        from sparklog.datasource.write_commit import commit_write
        from sparklog.producer.stream_writes import MicroBatch

        query_ids = {one.query_id for one in messages if isinstance(one, _Written)}
        for query_id in query_ids:
            once = MicroBatch(str(query_id), batchId)
            commit_write(self._options, _files(messages), once)


def _files(messages: Iterable[WriterCommitMessage | None]) -> list[WrittenFile]:
    return [file for one in messages if isinstance(one, _Written) for file in one.files]
