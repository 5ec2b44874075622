"""Produce requests in `produce_requests`: each is an add action of the requested batch's file.

The file is in the inbox of the log of the same root. The action's partition values are the header
of the request; its statistics are the producer's description of the records.

Every client may append to the table. An add action is validated in two steps: `are_valid_values`
and `are_valid_statistics` keep actions out of the table that no Delta engine could read, and a
`ProduceRequest` made of an action names the fault for which the leader refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from sparklog.model import (
    LOG,
    PRODUCE_REQUESTS,
    REQUEST_INDEX,
    REQUEST_TABLES,
    TopicIdPartition,
    batch_id,
)
from sparklog.storage.batch_actions import (
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    UNREADABLE_NUMBER,
    file_statistics,
    milliseconds,
    milliseconds_of,
)
from sparklog.storage.commits import AddedFile
from sparklog.storage.delta_snapshots import open_table
from sparklog.storage.location import Location

RequestPartition = tuple[str, str, int]
"""The unit of an answer: a partition of a request, by request id, topic id and number."""


class ProduceRequest(NamedTuple):
    """One batch of a produce request.

    `named_leader_epoch` is the leader epoch that the client knows, Kafka's CurrentLeaderEpoch; its
    column in the table is `leader_epoch`. Times are in ms; timestamps are since 1970. The other
    fields are those of the batch (`Batch`) and the columns of `REQUEST_INDEX`.

    `fault` is the reason why the request cannot be a batch, or `None`. Invariant of a request that
    `request_of` or `live_requests` has made: every field has a value of its type, and
    0 <= record_count < 2^31; a request without a fault has a request id, at least one record,
    timestamps in Delta's range, and all or none of a producer's id, epoch and sequence. A missing
    field has a value of `_MISSING`, for which the leader refuses it. Size, checksum, record count
    and timestamps are only claims about the file until the leader has checked it.
    """

    request_id: str
    topic_id: str
    topic: str
    partition: int
    named_leader_epoch: int
    path: str
    record_count: int
    byte_size: int
    checksum: str
    min_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    acks: int
    timeout_ms: int
    client_id: str
    created_at_ms: int
    fault: str | None = None

    @property
    def batch_id(self) -> str:
        """The part of the path that is the same in each copy and each retry of the batch."""
        return batch_id(self.path)

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        """The partition of the batch."""
        return TopicIdPartition(self.topic_id, self.partition)

    @property
    def request_partition(self) -> RequestPartition:
        """The unit of the answer to this request."""
        return self.request_id, self.topic_id, self.partition

    @property
    def is_idempotent(self) -> bool:
        """Whether an idempotent producer has sent the batch."""
        return self.producer_id >= 0


_LOG_FOLDER = f"../{LOG.name}/"
"""The prefix of the table's paths: a batch's path is relative to the log."""

_COLUMNS = PRODUCE_REQUESTS.columns
_HEADER = {name: _COLUMNS.field(name).type for name in PRODUCE_REQUESTS.partition_by}
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
    r"(Z|[+-][0-9]{2}:[0-9]{2})"
)
"""The format of times that every Delta engine reads as Python does."""
_BITS_OF_TYPE = {pa.int32(): 32, pa.int64(): 64}
# Keyed by name, since hashing an Arrow type takes as long as checking a value.
_BITS = {name: _BITS_OF_TYPE.get(kind) for name, kind in _HEADER.items()}
"""The bits of the header's integer columns; `None` for text columns."""

_NO_ACKS = -99
_MISSING: dict[str, Any] = {
    "request_id": "",
    "topic_id": "",
    "topic": "",
    "partition": -1,
    "leader_epoch": -1,
    "checksum": "",
    "producer_id": -1,
    "producer_epoch": -1,
    "base_sequence": -1,
    "acks": _NO_ACKS,
    "timeout_ms": 0,
    "client_id": "",
    "created_at_ms": -1,
}
"""The values of header columns that an action omits; each is refused where it matters."""

_FIELDS = tuple((name, bits, _MISSING[name]) for name, bits in _BITS.items())
_OF_FILE = "byte_size", "record_count", "min_timestamp_ms", "max_timestamp_ms"
"""The columns of `REQUEST_INDEX` that are neither in the header nor the path."""

_MOST_RECORDS = (1 << 31) - 1
_NO_PRODUCER = [-1, -1, -1]

_header_values = attrgetter(
    *("named_leader_epoch" if name == "leader_epoch" else name for name in _HEADER)
)


def request_file(request: ProduceRequest, now_ms: int) -> AddedFile:
    """Return the add action of a request's batch, for a request table of its leader's root.

    Parameters: `now_ms`, the file's time in ms, which orders requests after their commits are gone.
    """
    count = request.record_count
    return AddedFile(
        f"{_LOG_FOLDER}{request.path}",
        request.byte_size,
        now_ms,
        dict(zip(_HEADER, map(str, _header_values(request)), strict=True)),
        file_statistics(count, count - 1, request.min_timestamp_ms, request.max_timestamp_ms),
    )


def request_of(file: AddedFile) -> ProduceRequest:
    """Return the validated request of an add action whose values are valid."""
    values = file.partition_values
    lowest, highest = (file.statistics.get(name) or {} for name in ("minValues", "maxValues"))
    header: list[Any] = []
    for name, bits, missing in _FIELDS:
        text = values.get(name)
        header.append((int(text) if bits else text) if text else missing)
    return _validated(
        _batch_path(file.path),
        file.size_bytes,
        file.statistics.get("numRecords"),
        milliseconds_of(lowest.get("timestamp")),
        milliseconds_of(highest.get("timestamp")),
        header,
    )


def _validated(
    path: str,
    byte_size: int,
    record_count: int | None,
    min_timestamp_ms: int,
    max_timestamp_ms: int,
    header: Sequence[Any],
) -> ProduceRequest:
    """Return the request of an action's values; `header` has those of the columns of `_HEADER`.

    The only place where a request is made of untrusted values.
    """
    request_id, topic_id, topic, partition, named_leader_epoch, checksum, *others = header
    producer = others[:3]
    count = record_count or 0
    is_possible_count = 0 < count <= _MOST_RECORDS
    fault = None
    if not request_id:
        fault = "it has no request id, so it cannot be answered"
    elif not is_possible_count:
        fault = f"it cannot hold {count} records"
    elif not MIN_TIMESTAMP_MS <= min_timestamp_ms <= max_timestamp_ms <= MAX_TIMESTAMP_MS:
        fault = "its timestamps are out of range"
    elif producer != _NO_PRODUCER and min(producer) < 0:
        fault = "its producer id, epoch or sequence is negative"
    return ProduceRequest._make(
        (
            request_id,
            topic_id,
            topic,
            partition,
            named_leader_epoch,
            path,
            count if is_possible_count else 0,
            byte_size,
            checksum,
            min_timestamp_ms,
            max_timestamp_ms,
            *others,
            fault,
        )
    )


def live_requests(table: DeltaTable) -> Iterator[tuple[AddedFile, ProduceRequest]]:
    """Yield the files of a version of the table with their requests, in no particular order."""
    actions = pa.table(table.get_add_actions(flatten=True))
    columns = _index_columns(actions)
    times_ms = actions["modification_time"].cast(pa.int64()).to_pylist()
    paths = map(unquote, actions["path"].to_pylist())
    files = zip(*(columns[name] for name in _OF_FILE), strict=True)
    headers = zip(*(columns[name] for name in _HEADER), strict=True)
    for path, time_ms, of_file, values in zip(paths, times_ms, files, headers, strict=True):
        header = [
            missing if value is None else value
            for value, (_, _, missing) in zip(values, _FIELDS, strict=True)
        ]
        byte_size, count, first_ms, last_ms = of_file
        request = _validated(_batch_path(path), byte_size, count, first_ms, last_ms, header)
        yield AddedFile(path, byte_size, time_ms, {}, {}), request


def _index_columns(actions: pa.Table) -> dict[str, list[Any]]:
    """Return the columns of `REQUEST_INDEX` except the path; missing values are `None`."""
    return {
        "byte_size": actions["size_bytes"].to_pylist(),
        "record_count": _column(actions, "num_records"),
        "min_timestamp_ms": _times(actions, "min.timestamp"),
        "max_timestamp_ms": _times(actions, "max.timestamp"),
        **{name: _column(actions, f"partition.{name}") for name in _HEADER},
    }


def _batch_path(path: str) -> str:
    """Return a batch's path in the log, or "" if the action does not name a file of the log."""
    return path[len(_LOG_FOLDER) :] if path.startswith(_LOG_FOLDER) else ""


def _column(actions: pa.Table, name: str) -> list[Any]:
    """Return a column of a snapshot's actions; delta-rs omits columns that no action has."""
    if name not in actions.column_names:
        return [None] * actions.num_rows
    values: list[Any] = actions[name].to_pylist()
    return values


def _times(actions: pa.Table, name: str) -> list[int]:
    if name not in actions.column_names:
        return [UNREADABLE_NUMBER] * actions.num_rows
    return [UNREADABLE_NUMBER if one is None else one for one in milliseconds(actions[name])]


def read_requests(root: Location) -> pa.Table:
    """Return the pending batches of a broker root, as `REQUEST_INDEX`.

    They include batches that the journal already records as taken, until the broker removes them.
    Raises `StorageError` if a table cannot be opened.
    """
    tables = REQUEST_TABLES if has_further_tables(root) else REQUEST_TABLES[:1]
    return pa.concat_tables(
        _index(open_table(root.child(schema.name)).snapshot) for schema in tables
    )


def _index(table: DeltaTable) -> pa.Table:
    """Return the requests of a version of a table as they were written; missing values are null."""
    actions = pa.table(table.get_add_actions(flatten=True))
    paths = [_batch_path(unquote(path)) for path in actions["path"].to_pylist()]
    return pa.table(_index_columns(actions) | {"path": paths}, schema=REQUEST_INDEX)


def has_further_tables(root: Location) -> bool:
    """Return whether a root has request tables other than `produce_requests`.

    Only roots on object stores may have them; the first of them is created last.
    """
    return not root.is_local and REQUEST_TABLES[1].name in root.names()


# --- validation ---------------------------------------------------------------------------------


def are_valid_values(values: object) -> bool:
    """Return whether partition values are valid for a request; its content is not checked.

    Invariant: every Delta engine can read valid values as the types of their columns.
    """
    return isinstance(values, dict) and all(
        name in _BITS and (text is None or _is_of(text, _BITS[name]))
        for name, text in values.items()
    )


def _is_of(text: object, bits: int | None) -> bool:
    if not isinstance(text, str):
        return False
    if bits is None or not text:
        return True
    limit = 1 << (bits - 1)
    return _INTEGER.fullmatch(text) is not None and -limit <= int(text) < limit


def are_valid_statistics(statistics: object) -> bool:
    """Return whether an action's statistics have the fields and types of a request."""
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
