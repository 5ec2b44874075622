"""A Delta checkpoint of a table with a damaged log, from the state that its owner has in memory.

The owner has read the log before it was damaged. A checkpoint of the newest version has the effect
of all commits up to it, so no process reads an earlier file of the log when it opens the table.
Delta's checkpoints do not name their version: one of a small table with the same state takes its
place.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from deltalake import DeltaTable

from sparklog.storage.commits import AddedFile, Cause, RemovedFile, commit_text
from sparklog.storage.delta_log_files import CHECKPOINT_HINT, LOG_FOLDER, commit_path
from sparklog.storage.json_text import json_bytes, json_value
from sparklog.storage.location import Location

_VERSION = 1
"""The version of the small table: its first commit describes it, the second one has its state."""


def write_recovered_checkpoint(
    table: Location,
    described: DeltaTable,
    version: int,
    live: Mapping[str, AddedFile],
    transactions: Mapping[str, int],
    now_ms: int,
    removed: Iterable[str] = (),
    table_id: str | None = None,
) -> None:
    """Write the checkpoint of `version`, whatever is damaged in the log up to it.

    Raises `OSError` or `DeltaError` if it cannot be written.

    Parameters: `described`, the table as it was opened, for its id, schema and properties; `live`,
    its files at `version` by path; `transactions`, its app transactions; `removed`, the
    paths of files that were removed lately, which a vacuum keeps for readers; `table_id`, another
    id.
    """
    with TemporaryDirectory(prefix="sparklog-") as folder:
        log = Path(folder, LOG_FOLDER)
        log.mkdir()
        description = [json_bytes(action) for action in _description(described, table_id)]
        Path(folder, commit_path(_VERSION - 1)).write_bytes(b"\n".join(description))
        # A vacuum compares with the system's time; `now_ms` is the time of the cluster's clock.
        at_ms = time.time_ns() // 1_000_000
        gone = [RemovedFile(path, at_ms) for path in removed]
        added = [*live.values()]
        state = commit_text(Cause("REPAIR"), added, gone, transactions, "", None, now_ms)
        Path(folder, commit_path(_VERSION)).write_bytes(state)
        DeltaTable(folder).create_checkpoint()
        content = Path(log, _checkpoint(_VERSION)).read_bytes()
        hint = json_value(Path(log, CHECKPOINT_HINT).read_bytes())
    table.replace(f"{LOG_FOLDER}/{_checkpoint(version)}", content)
    # The hint is written last, since it names the checkpoint.
    table.replace(f"{LOG_FOLDER}/{CHECKPOINT_HINT}", json_bytes({**hint, "version": version}))


def _checkpoint(version: int) -> str:
    return f"{version:020}.checkpoint.parquet"


def _description(described: DeltaTable, table_id: str | None) -> list[dict[str, Any]]:
    """Return the actions that describe a table: its protocol, and its metadata."""
    protocol, metadata = described.protocol(), described.metadata()
    versions: dict[str, Any] = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
    }
    for name, features in (
        ("readerFeatures", protocol.reader_features),
        ("writerFeatures", protocol.writer_features),
    ):
        if features is not None:
            versions[name] = list(features)
    return [
        {"protocol": versions},
        {
            "metaData": {
                "id": table_id or str(metadata.id),
                "name": metadata.name,
                "description": metadata.description,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": described.schema().to_json(),
                "partitionColumns": list(metadata.partition_columns),
                "createdTime": metadata.created_time,
                "configuration": dict(metadata.configuration),
            }
        },
    ]
