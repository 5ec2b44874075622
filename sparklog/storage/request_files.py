"""A batch that waits for its leader, as `produce_requests` has it: an add action of its file.

The file lies in the inbox of the log beside the table. The action's partition values are the header
of the request, its statistics say what the producer knows of the records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from sparklog.model import LOG, PRODUCE_REQUESTS, REQUEST_INDEX, REQUEST_TABLES
from sparklog.storage.batch_actions import (
    UNREADABLE_NUMBER,
    file_statistics,
    milliseconds,
    milliseconds_of,
)
from sparklog.storage.delta_log import AddedFile, open_delta_table
from sparklog.storage.location import Location

Request = dict[str, Any]
"""A row of `REQUEST_INDEX`: one batch of a request."""

_LOG_FOLDER = f"../{LOG.name}/"
"""Where the paths of the table begin: a batch's path is relative to the log."""

_COLUMNS = PRODUCE_REQUESTS.columns
_HEADER = {name: _COLUMNS.field(name).type for name in PRODUCE_REQUESTS.partition_by}
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
    r"(Z|[+-][0-9]{2}:[0-9]{2})"
)
"""The times that every Delta engine reads as Python does."""
_BITS = {pa.int32(): 32, pa.int64(): 64}


def request_file(request: Mapping[str, Any], now_ms: int) -> AddedFile:
    """Return what adds the batch of a request to the request table of its leader's root.

    `now_ms` is the file's time; by it requests stay in order when their commits are gone.
    """
    values = {name: request[name] for name in _HEADER}
    count = request["record_count"]
    times_ms = request["min_timestamp_ms"], request["max_timestamp_ms"]
    return AddedFile(
        f"{_LOG_FOLDER}{request['path']}",
        request["byte_size"],
        now_ms,
        {name: None if value is None else str(value) for name, value in values.items()},
        file_statistics(count, count - 1, *times_ms),
    )


def request_of(file: AddedFile) -> Request:
    """Return the request that an add action makes; what it leaves out is `None`."""
    lowest, highest = (file.statistics.get(name) or {} for name in ("minValues", "maxValues"))
    request: Request = {
        "path": _batch_path(file.path),
        "byte_size": file.size_bytes,
        "record_count": file.statistics.get("numRecords"),
        "min_timestamp_ms": milliseconds_of(lowest.get("timestamp")),
        "max_timestamp_ms": milliseconds_of(highest.get("timestamp")),
    }
    for name, kind in _HEADER.items():
        text = file.partition_values.get(name)
        request[name] = int(text) if text and kind in _BITS else text or None
    return request


def live_requests(table: DeltaTable) -> Iterator[tuple[AddedFile, Request]]:
    """Yield the files of a version of the table, and what each of them requests, in no order."""
    actions = pa.table(table.get_add_actions(flatten=True))
    columns = {
        "byte_size": actions["size_bytes"].to_pylist(),
        "record_count": _column(actions, "num_records"),
        "min_timestamp_ms": _times(actions, "min.timestamp"),
        "max_timestamp_ms": _times(actions, "max.timestamp"),
        **{name: _column(actions, f"partition.{name}") for name in _HEADER},
    }
    times_ms = actions["modification_time"].cast(pa.int64()).to_pylist()
    for number, path in enumerate(map(unquote, actions["path"].to_pylist())):
        request = {name: values[number] for name, values in columns.items()}
        request["path"] = _batch_path(path)
        yield AddedFile(path, request["byte_size"], times_ms[number], {}, {}), request


def _batch_path(path: str) -> str:
    """Return the path of a batch in the log; nothing where the action names no file of the log."""
    return path[len(_LOG_FOLDER) :] if path.startswith(_LOG_FOLDER) else ""


def _column(actions: pa.Table, name: str) -> list[Any]:
    """Return a column of a snapshot's actions; delta-rs leaves out those that no action has."""
    if name not in actions.column_names:
        return [None] * actions.num_rows
    values: list[Any] = actions[name].to_pylist()
    return values


def _times(actions: pa.Table, name: str) -> list[int]:
    if name not in actions.column_names:
        return [UNREADABLE_NUMBER] * actions.num_rows
    return [UNREADABLE_NUMBER if one is None else one for one in milliseconds(actions[name])]


def read_requests(root: Location) -> pa.Table:
    """Return the batches that wait in a broker root, as `REQUEST_INDEX`.

    Those of which the journal says that they are taken are there until the broker removes them.
    Raises `StorageError` where a table cannot be opened.
    """
    tables = REQUEST_TABLES if has_further_tables(root) else REQUEST_TABLES[:1]
    opened = [open_delta_table(root.child(schema.name)) for schema in tables]
    rows = [row for table in opened for _, row in live_requests(table)]
    return pa.Table.from_pylist(rows, schema=REQUEST_INDEX)


def has_further_tables(root: Location) -> bool:
    """Say whether a root has more request tables than `produce_requests`.

    Only one on an object store has; the first of them is the last to be created.
    """
    return not root.is_local and REQUEST_TABLES[1].name in root.names()


# --- what is valid ------------------------------------------------------------------------------


def are_valid_values(values: object) -> bool:
    """Say whether partition values are those of a request, whatever it asks for.

    Any Delta engine has to be able to read them as the types of their columns.
    """
    return isinstance(values, dict) and all(
        name in _HEADER and (text is None or _is_of(text, _HEADER[name]))
        for name, text in values.items()
    )


def _is_of(text: object, kind: pa.DataType) -> bool:
    if not isinstance(text, str):
        return False
    bits = _BITS.get(kind)
    if bits is None or not text:
        return True
    limit = 1 << (bits - 1)
    return _INTEGER.fullmatch(text) is not None and -limit <= int(text) < limit


def are_valid_statistics(statistics: object) -> bool:
    """Say whether an action's statistics are of the kind that a request has."""
    if not isinstance(statistics, dict) or not statistics.keys() <= _STATISTICS.keys():
        return False
    for name, value in statistics.items():
        of = _STATISTICS[name]
        if of is None:
            if not _is_integer(value, 64):
                return False
        elif not isinstance(value, dict) or not all(
            column in of and of[column](one) for column, one in value.items()
        ):
            return False
    return True


def _is_integer(value: object, bits: int) -> bool:
    limit = 1 << (bits - 1)
    return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit


def _is_delta(value: object) -> bool:
    return _is_integer(value, 32)


def _is_count(value: object) -> bool:
    return _is_integer(value, 64)


def _is_time(value: object) -> bool:
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        return False
    return milliseconds_of(value) != UNREADABLE_NUMBER


_EXTREMES = {"offset_delta": _is_delta, "timestamp": _is_time}
_STATISTICS = {
    "numRecords": None,
    "minValues": _EXTREMES,
    "maxValues": _EXTREMES,
    "nullCount": {"offset_delta": _is_count, "timestamp": _is_count},
}
