"""The noted files of a streaming query's micro-batch, so that another run of it sends the same.

Another run of a micro-batch may split and route its rows differently. Therefore the files of all
its topics and partitions are noted by one compare-and-set before the first request is sent. Another
run sends the noted files under the same batch ids, which leaders recognise (3.6, 3.7).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.cluster.connection import Connection
from sparklog.errors import DamagedError, ProtocolError, StorageError
from sparklog.model import STREAM_WRITES, TopicIdPartition
from sparklog.storage.batch_files import BatchFile
from sparklog.storage.commits import Cause
from sparklog.storage.control_table import ControlTable
from sparklog.storage.control_table_damage import remedy
from sparklog.storage.damaged_commits import MALFORMED
from sparklog.storage.json_text import json_value
from sparklog.storage.location import Location, one_line

_Row = dict[str, Any]


class SentFile(NamedTuple):
    """A batch file and the log in whose inbox it is stored."""

    log: Location
    file: BatchFile


Files = dict[TopicIdPartition, list[SentFile]]


class MicroBatch(NamedTuple):
    """A micro-batch of a streaming query.

    `topic_id` is set if the program writes each topic of the micro-batch separately
    (`SparkProducer` in foreachBatch). Without it the files of all topics are one write.
    """

    query_id: str
    batch_id: int
    topic_id: str | None = None

    def __str__(self) -> str:
        return f"micro-batch {self.batch_id} of query {self.query_id}"


class StreamWrite(NamedTuple):
    """The noted files of a micro-batch; empty after all of them are stored."""

    is_done: bool
    files: Files


class StreamWrites:
    """The latest micro-batch of every query. Spark never runs an earlier one again."""

    def __init__(self, connection: Connection) -> None:
        self._root = connection.root
        self._storage_options = connection.storage_options

    @property
    def _table(self) -> ControlTable:
        # Opened when a micro-batch is written first: other writers may not read it.
        return self._root.stream_writes

    def find(self, once: MicroBatch) -> StreamWrite | None:
        """Return the noted files of the micro-batch, or `None` if no run has noted its files.

        Raises INVALID_PRODUCER_EPOCH if a later micro-batch of this query has begun: the caller is
        an older run of the query.
        """
        self._table.refresh()
        return self._noted(_rows_of(self._table.rows(), once), once)

    def begin(self, once: MicroBatch, files: Files) -> StreamWrite:
        """Note the files of a micro-batch, unless another run has noted its own; return the noted.

        Raises the errors of `find`.
        """

        def change(rows: pa.Table) -> tuple[pa.Table | None, StreamWrite]:
            before = _rows_of(rows, once)
            found = self._noted(before, once)
            if found is not None:
                return None, found
            others = [row for row in rows.to_pylist() if row not in before]
            return _table(others, once, files), StreamWrite(is_done=False, files=files)

        return self._table.update(change, cause=_cause("BEGIN MICRO-BATCH", once))

    def replace(self, once: MicroBatch, before: Files, after: Files) -> None:
        """Note `after` in place of `before`, some files of which are lost.

        Raises INVALID_PRODUCER_EPOCH if another run has replaced or finished them, and the errors
        of `find`. Nothing is changed then.
        """

        def change(rows: pa.Table) -> tuple[pa.Table | None, None]:
            noted = _rows_of(rows, once)
            self._check(self._noted(noted, once), once, before)
            others = [row for row in rows.to_pylist() if row not in noted]
            return _table(others, once, after), None

        self._table.update(change, cause=_cause("REPLACE FILES", once))

    def check(self, once: MicroBatch, files: Files) -> None:
        """Raise INVALID_PRODUCER_EPOCH if `files` are no longer the noted files."""
        self._check(self.find(once), once, files)

    def finish(self, once: MicroBatch) -> None:
        """Note that every file of the micro-batch is stored."""

        def change(rows: pa.Table) -> tuple[pa.Table | None, None]:
            ours = [row for row in _rows_of(rows, once) if row["batch_id"] == once.batch_id]
            if all(row["is_done"] for row in ours):
                return None, None
            done = [
                row | {"is_done": True, "files": "[]"} if row in ours else row
                for row in rows.to_pylist()
            ]
            return STREAM_WRITES.rows(done), None

        self._table.update(change, cause=_cause("FINISH MICRO-BATCH", once))

    def _check(self, noted: StreamWrite | None, once: MicroBatch, files: Files) -> None:
        if noted is None or noted.is_done or noted.files != files:
            raise ProtocolError(
                "INVALID_PRODUCER_EPOCH",
                f"{once} is being written by another run of the query: let that one finish",
            )

    def _noted(self, rows: Sequence[_Row], once: MicroBatch) -> StreamWrite | None:
        try:
            newest = max((int(row["batch_id"]) for row in rows), default=-1)
            noted = self._parsed([row for row in rows if row["batch_id"] == once.batch_id])
        except (*MALFORMED, StorageError) as error:
            path = f"query {once.query_id!r} in the table {STREAM_WRITES.name}"
            fault = f"a row is malformed ({one_line(error)})"
            raise DamagedError(path, fault, remedy(STREAM_WRITES.name)) from error
        if newest > once.batch_id:
            raise ProtocolError(
                "INVALID_PRODUCER_EPOCH",
                f"{once} is written after its micro-batch {newest}: a newer run of the query has "
                "gone on, or its checkpoint was removed, and then it needs another query id",
            )
        return noted

    def _parsed(self, ours: Sequence[_Row]) -> StreamWrite | None:
        if not ours:
            return None
        files: Files = {}
        for row in ours:
            for partition, uri, *of_file in json_value(row["files"]):
                sent = SentFile(Location.of(uri, self._storage_options), BatchFile(*of_file))
                files.setdefault(TopicIdPartition(row["topic_id"], partition), []).append(sent)
        return StreamWrite(all(row["is_done"] for row in ours), files)


def _rows_of(rows: pa.Table, once: MicroBatch) -> list[_Row]:
    """Return the rows of the micro-batch's query; only those of its topic if `topic_id` is set."""
    return [
        row
        for row in rows.to_pylist()
        if row["query_id"] == once.query_id and once.topic_id in (None, row["topic_id"])
    ]


def _table(others: Sequence[_Row], once: MicroBatch, files: Files) -> pa.Table:
    """Return a table of `others` and one row for each topic of the micro-batch."""
    by_topic: dict[str, list[Any]] = {} if once.topic_id is None else {once.topic_id: []}
    for key, members in files.items():
        noted = [[key.partition, sent.log.uri, *sent.file] for sent in members]
        by_topic.setdefault(key.topic_id, []).extend(noted)
    return STREAM_WRITES.rows(
        [
            *others,
            *(
                {
                    "query_id": once.query_id,
                    "topic_id": topic_id,
                    "batch_id": once.batch_id,
                    "files": json.dumps(noted),
                    "is_done": False,
                }
                for topic_id, noted in by_topic.items()
            ),
        ]
    )


def _cause(operation: str, once: MicroBatch) -> Cause:
    return Cause(operation, {"queryId": once.query_id, "batchId": str(once.batch_id)})
