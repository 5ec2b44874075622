"""Comparison of a Delta checkpoint with its second copy, by each process that opens the table.

Delta's checkpoints have no checksum. delta-rs opens a table by the checkpoint of another table with
the same columns, or by an older one, and the commits after it. The result is a state that the table
never had: an older one without the newest records, or the replicas of another broker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa

from sparklog.errors import DamagedError
from sparklog.storage.damaged_commits import COMMIT_REMEDY
from sparklog.storage.delta_log_files import LOG_FOLDER, complete_checkpoint, is_checkpoint
from sparklog.storage.file_copies import SecondCopy, copies_of, copy_of
from sparklog.storage.location import Location
from sparklog.storage.parquet import ParquetContent

_ACTIONS = ("protocol", "metaData", "txn", "add")
"""The actions that make up the state of a table. Removed files are named for VACUUM only."""


def newest_checkpoint_of(table: Location, version: int) -> dict[str, bytes]:
    """Return the files of the newest complete checkpoint up to a version, by their names.

    Raises `FileNotFoundError` if clean-up has removed one meanwhile.
    """
    _, parts = complete_checkpoint(table.names(LOG_FOLDER), version)
    return {part: table.read_bytes(f"{LOG_FOLDER}/{part}") for part in parts}


def check_checkpoint(
    table: Location,
    contents: Mapping[str, bytes],
    copies: Mapping[str, SecondCopy] | None = None,
) -> None:
    """Raise `DamagedError` if a checkpoint has other actions than its second copy.

    Other bytes alone are no damage: several processes may write the checkpoint of a version, and
    one that ends before it has written the copy leaves that of another one.

    Parameters: `contents`, files of the log by their names; others than checkpoints are left out;
    `copies`, the second copies by the paths of their files. By default they are read.
    """
    for name, content in contents.items():
        if is_checkpoint(name):
            path = f"{LOG_FOLDER}/{name}"
            copy = copy_of(table, path) if copies is None else copies.get(path)
            if copy is not None and copy.content != content and _is_other(table, content, copy):
                fault = "it differs from its second copy"
                raise DamagedError(f"{table.uri}/{path}", fault, COMMIT_REMEDY)


def _is_other(table: Location, content: bytes, copy: SecondCopy) -> bool:
    try:
        if _actions(content) == _actions(copy.content):
            return False
    except (OSError, ValueError, pa.ArrowException):
        # delta-rs has read the checkpoint: it does not read the damaged part.
        return False
    sound, _ = copies_of(table)
    return copy in sound


def _actions(content: bytes) -> set[str]:
    """Return the actions of a checkpoint that make up the state of its table, each as a text."""
    read = ParquetContent(content).read()
    return {
        f"{kind} {json.dumps(action, sort_keys=True, default=str)}"
        for kind in _ACTIONS
        if kind in read.column_names
        for action in read[kind].drop_null().to_pylist(maps_as_pydicts="lossy")
    }
