"""Which files a streaming query's micro-batch consists of, so that its re-run sends just those.

A micro-batch that Spark runs again may be cut differently. So its files are noted, by one
compare-and-set, before any leader hears of them: whoever runs the micro-batch again sends the same
files under the same batch ids, and leaders know what they have already (rules 3.6, 3.7).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.clients.connection import Connection
from sparklog.errors import ProtocolError
from sparklog.model import STREAM_WRITES, TopicIdPartition
from sparklog.storage.batch_files import BatchFile
from sparklog.storage.location import Location


class SentFile(NamedTuple):
    """A batch file and the log in whose inbox it lies."""

    log: Location
    file: BatchFile


Files = dict[TopicIdPartition, list[SentFile]]


class StreamWrite(NamedTuple):
    """One micro-batch of a query, as far as it went."""

    is_done: bool
    files: Files


class StreamWrites:
    """The latest micro-batch of every query and topic: Spark never runs an earlier one again."""

    def __init__(self, connection: Connection) -> None:
        self._table = connection.root.stream_writes
        self._storage_options = connection.storage_options

    def find(self, query_id: str, topic_id: str, batch_id: int) -> StreamWrite | None:
        """Return the micro-batch if it was begun before.

        Raises INVALID_PRODUCER_EPOCH where a later one of this query has begun: whoever asks is
        an older run of it.
        """
        self._table.refresh()
        return self._of_row(_find(self._table.rows(), query_id, topic_id), batch_id)

    def begin(self, query_id: str, topic_id: str, batch_id: int, files: Files) -> StreamWrite:
        """Note the files of a micro-batch; where another run was faster, return its files.

        Raises as `find` does.
        """
        row = {
            "query_id": query_id,
            "topic_id": topic_id,
            "batch_id": batch_id,
            "files": json.dumps(
                [
                    [key.partition, sent.log.uri, *sent.file]
                    for key, members in files.items()
                    for sent in members
                ]
            ),
            "is_done": False,
        }

        def change(rows: pa.Table) -> tuple[pa.Table | None, StreamWrite]:
            before = _find(rows, query_id, topic_id)
            found = self._of_row(before, batch_id)
            if found is not None:
                return None, found
            others = [one for one in rows.to_pylist() if one != before]
            return STREAM_WRITES.rows([*others, row]), StreamWrite(is_done=False, files=files)

        return self._table.update(change)

    def finish(self, query_id: str, topic_id: str, batch_id: int) -> None:
        """Note that every file of the micro-batch was answered for."""

        def change(rows: pa.Table) -> tuple[pa.Table | None, None]:
            result = rows.to_pylist()
            for row in result:
                if (row["query_id"], row["topic_id"], row["batch_id"]) == (
                    query_id,
                    topic_id,
                    batch_id,
                ):
                    row |= {"is_done": True, "files": "[]"}
                    return STREAM_WRITES.rows(result), None
            return None, None

        self._table.update(change)

    def _of_row(self, row: Mapping[str, Any] | None, batch_id: int) -> StreamWrite | None:
        if row is None or row["batch_id"] < batch_id:
            return None
        if row["batch_id"] > batch_id:
            raise ProtocolError(
                "INVALID_PRODUCER_EPOCH",
                f"micro-batch {batch_id} of query {row['query_id']} is written after its "
                f"micro-batch {row['batch_id']}: a newer run of the query has gone on, or its "
                "checkpoint was removed, and then it needs another query id",
            )
        files: Files = {}
        for partition, uri, *of_file in json.loads(row["files"]):
            sent = SentFile(Location.of(uri, self._storage_options), BatchFile(*of_file))
            files.setdefault(TopicIdPartition(row["topic_id"], partition), []).append(sent)
        return StreamWrite(row["is_done"], files)


def _find(rows: pa.Table, query_id: str, topic_id: str) -> dict[str, Any] | None:
    for row in rows.to_pylist():
        if (row["query_id"], row["topic_id"]) == (query_id, topic_id):
            return dict(row)
    return None
