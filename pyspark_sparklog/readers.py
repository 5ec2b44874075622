"""The readers of `format("sparklog")`, as classes of Spark's interface.

Spark calls them in separate Python processes without a session. They must not request one, since
that would start a second Spark.

They accept no filters (`pushFilters`). In Spark 4.2 a DataFrame keeps the filters that its first
query has pushed down, so a later query without the filter would miss records. Use `sparklog.read`
to have filters pushed down.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from pyspark_sparklog import errors_in_one_line
from pyspark_sparklog.from_files import FromFiles
from sparklog.datasource.options import ReadOptions
from sparklog.errors import ConfigError, SparklogError

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.datasource.stream_read import StreamRead

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    HAS_ADMISSION_CONTROL = True
except ImportError:
    HAS_ADMISSION_CONTROL = False


class BatchReader(FromFiles, DataSourceReader):
    """Reads the records of a batch query between its starting and ending offsets."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    @errors_in_one_line()
    def partitions(self) -> list[InputPartition]:
        """Return one partition per task."""
        from sparklog.datasource.batch_read import plan_batch

        return [InputPartition(task) for task in plan_batch(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition."""
        return _read(partition)


class StateReader(FromFiles, DataSourceReader):
    """Reads the state of replicas in one task, when the query runs."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return the one partition."""
        return [InputPartition(0)]

    @errors_in_one_line()
    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002 - Spark's
        """Return the rows, as Arrow's record batches."""
        from sparklog.datasource.replica_state import read_state

        return iter(read_state(self._options).to_batches())


class RefusedStreamReader(FromFiles, DataSourceStreamReader):
    """The reader of a stream with invalid options: each of its methods raises the error.

    If `DataSource.streamReader` raises, Spark 4.2 shows an UnboundLocalError of its own instead.
    """

    def __init__(self, error: SparklogError) -> None:
        self._error = error

    @errors_in_one_line()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Raise the error."""
        raise self._error

    @errors_in_one_line()
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override] # noqa: N802 - as it was
        """Raise the error."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - Spark's
        """Raise the error."""
        raise self._error


class _StreamReader(FromFiles, DataSourceStreamReader):
    """The common part of the readers of streams for all versions of Spark."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    @cached_property
    def _stream(self) -> StreamRead:
        from sparklog.datasource.stream_read import StreamRead

        return StreamRead(self._options)

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the connection from pickling: only the planning process uses it."""
        return {"_options": self._options}

    @errors_in_one_line()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Return the start offsets of a new query."""
        return self._stream.initial_offset()

    @errors_in_one_line()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of one micro-batch."""
        return [InputPartition(task) for task in self._stream.plan(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition."""
        return _read(partition)

    @errors_in_one_line()
    def commit(self, end: dict[str, Any]) -> None:
        """Publish the progress: all records before `end` are processed."""
        self._stream.commit(end)


class StreamReaderWithoutLimits(_StreamReader):
    """Reads a stream on Spark 4.0 and 4.1, which support no limits and no real AvailableNow."""

    def __init__(self, options: ReadOptions) -> None:
        for name, value in {
            "maxOffsetsPerTrigger": options.max_offsets_per_trigger,
            "minOffsetsPerTrigger": options.min_offsets_per_trigger,
        }.items():
            if value is not None:
                raise ConfigError(f"option {name} needs Spark 4.2 or newer: leave it out")
        super().__init__(options)

    @errors_in_one_line()
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override] # noqa: N802 - as it was
        """Return the high watermarks."""
        return self._stream.latest_offset_of_all()


if HAS_ADMISSION_CONTROL:

    class StreamReader(_StreamReader, SupportsTriggerAvailableNow):
        """Reads a stream on Spark 4.2 and newer."""

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
            """Return the limit of the options, as far as one of Spark's limits can express it.

            Spark returns it unchanged; the effective limits are the options themselves.
            """
            if self._options.max_offsets_per_trigger is not None:
                return ReadMaxRows(self._options.max_offsets_per_trigger)
            if self._options.min_offsets_per_trigger is not None:
                return ReadMinRows(self._options.min_offsets_per_trigger)
            return ReadAllAvailable()

        @errors_in_one_line()
        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's
            """Return the end offsets of the micro-batch that starts at `start`."""
            is_limited = not isinstance(limit, ReadAllAvailable)
            return self._stream.latest_offset(start, is_limited=is_limited)

        @errors_in_one_line()
        def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
            """Return the high watermarks, for the progress report."""
            return self._stream.report_latest_offset()

        @errors_in_one_line()
        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
            """Read only up to the current high watermarks."""
            self._stream.prepare_for_trigger_available_now()


def stream_reader(options: ReadOptions) -> DataSourceStreamReader:
    """Return the reader with the most features that this Spark supports."""
    return StreamReader(options) if HAS_ADMISSION_CONTROL else StreamReaderWithoutLimits(options)


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read one partition; Spark passes a partition of `None` if there is nothing to read."""
    from sparklog.datasource.read_task import read_task

    with errors_in_one_line():
        yield from () if partition.value is None else read_task(partition.value)
