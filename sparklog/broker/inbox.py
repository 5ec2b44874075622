"""The produce requests of one broker root, as they arrive: noticed, read, and removed (rule 3.1).

How far they are taken the commit says that deals with them, so each is dealt with once.

Whoever may reach the root may append anything to its request table, so nothing that is read here
is believed: what cannot be a request is marked so, and refused like any other.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sparklog.broker.leader_roots import UNREADABLE
from sparklog.logger import get_logger
from sparklog.model import PRODUCE_REQUESTS, batch_id
from sparklog.storage.batch_actions import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from sparklog.storage.journal import Taken, taken_transaction
from sparklog.storage.location import Location, one_line
from sparklog.storage.parquet import ParquetContent, parquet_pieces
from sparklog.storage.roots import BrokerRoot

_log = get_logger(__name__)

_NO_ACKS = -99
_DEFAULTS: dict[str, Any] = {
    "request_id": "",
    "topic_id": "",
    "topic": "",
    "partition": -1,
    "leader_epoch": -1,
    "path": "",
    "record_count": 0,
    "byte_size": 0,
    "checksum": "",
    "min_timestamp_ms": 0,
    "max_timestamp_ms": 0,
    "producer_id": -1,
    "producer_epoch": -1,
    "base_sequence": -1,
    "acks": _NO_ACKS,
    "timeout_ms": 0,
}
"""What a column counts as that a request leaves out; each is refused where it matters."""

_MOST_RECORDS = (1 << 31) - 1
_MOST_BYTES = 256 << 20
_ROW_BYTES = 1 << 10
"""How much a file of requests may take in memory, and what a row takes beside its text."""

_FIRST_WAIT_MS, _LONGEST_WAIT_MS = 100, 10_000
"""The wait before a request file that could not be read is tried again; it doubles each time."""

_GIVEN_UP_AFTER_MS = 600_000
"""How long a request file is tried that cannot be read: longer than any producer waits."""

_NEVER_READABLE = frozenset(
    {
        errno.ENOENT,
        errno.EISDIR,
        errno.ENOTDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EINVAL,
        errno.ENXIO,
        errno.EACCES,
        errno.EPERM,
    }
)
"""Errors of a path that names no readable file, which clients may commit. Others are transient."""

_HELD_BACK_MS = 10_000
"""How long later requests wait for a file that could not be read, which keeps their order.

An idempotent producer's next batch would be refused with OUT_OF_ORDER_SEQUENCE_NUMBER.
"""

_TRIM_INTERVAL_MS = 5_000
"""How long requests that were taken stay in the table, and how many at most."""

_MOST_TAKEN = 500

_TYPES = {field.name: field.type for field in PRODUCE_REQUESTS.columns}

Request = dict[str, Any]
"""One row of `produce_requests`, complete: one batch of a request."""

Group = tuple[str, str, int]
"""What is answered once: a partition of a request, by its request id, topic id and number."""


class _Retry(NamedTuple):
    """A request file that could not be read: when that began, and when it is tried again."""

    since_ms: int
    at_ms: int
    wait_ms: int


class Inbox:
    """The requests that wait in one root.

    Parameters: `looked_at_ms`, when an earlier process of the broker looked last, as far as it is
    known.
    """

    def __init__(self, root: BrokerRoot, looked_at_ms: int) -> None:
        self._root = root
        self._table = root.produce_requests
        self._generation = self._table.generation
        self._looked_at_ms = looked_at_ms
        self._looked_version = -1
        self._unseen_since_ms: dict[str, int] = {}
        self._loaded: set[str] = set()
        self._taken: set[str] = set()
        self._retries: dict[str, _Retry] = {}
        self._failing_since_ms = 0
        self._trim_at_ms = 0
        # What an earlier process has taken is found by the next look.
        self._known = self._recovered()

    @property
    def waiting(self) -> bool:
        """Whether the inbox has requests that can be loaded now."""
        return next(self._due(self._looked_at_ms), None) is not None

    def _due(self, now_ms: int) -> Iterator[str]:
        """Yield the files that can be read now, in order of arrival."""
        for path in list(self._unseen_since_ms):
            retry = self._retries.get(path)
            if retry is None or now_ms >= retry.at_ms:
                yield path
            # The caller may have failed to read the file that it was given.
            retry = self._retries.get(path)
            if retry is not None and now_ms - self._failing_since_ms <= _HELD_BACK_MS:
                return

    def look(self, now_ms: int) -> None:
        """Note which requests are there, and since when they may have been (rule 3.1)."""
        self._table.refresh()
        if self._table.generation != self._generation:
            # The requests of the table that was replaced are gone; their clients send them again.
            self._generation = self._table.generation
            self._looked_version = -1
            self._unseen_since_ms.clear()
            self._loaded.clear()
            self._taken.clear()
            self._retries.clear()
        known, self._known = self._known, self._root.log.taken or self._known
        is_taken_elsewhere = self._known != known
        if self._table.version != self._looked_version or is_taken_elsewhere:
            since = -1 if is_taken_elsewhere else self._looked_version
            for path in self._table.new_files(since):
                if self._was_taken(path):
                    self._taken.add(path)
                    self._unseen_since_ms.pop(path, None)
                elif path not in self._taken:
                    self._unseen_since_ms.setdefault(path, self._looked_at_ms)
            self._looked_version = self._table.version
        self._looked_at_ms = now_ms

    def _recovered(self) -> Taken | None:
        """Return how far the requests were taken when the checkpoint was written."""
        checkpoint = self._root.high_watermark_checkpoint
        version = checkpoint.transaction(taken_transaction(self._table.table_id))
        return Taken(self._table.table_id, version) if version is not None else None

    def _was_taken(self, path: str) -> bool:
        """Say whether the journal says of a file that it is taken."""
        known = self._known
        if known is None or known.table_id != self._table.table_id:
            return False
        if path in known.paths:
            return True
        added_at = self._table.added_at(path)
        return added_at is not None and added_at <= known.version

    def load(self, now_ms: int) -> list[Request]:
        """Return the waiting requests, in order of arrival.

        Beside its columns each has: `position`, its number;
        `waited_ms`, how long it may have lain there unseen; `batch_id`; `claim_fault`, what no
        batch can be, or `None`; `repeats`, the position of an earlier one that names the same
        batch, or `None`.
        """
        rows: list[Request] = []
        for path in self._due(now_ms):
            try:
                requested = _read(self._table.location, path)
            except OSError as error:
                self._loaded.discard(path)
                self._try_again(path, error, now_ms)
                continue
            except (ValueError, pa.ArrowException) as error:
                _log.warning("request file dropped", path=path, error=one_line(error))
                requested = []
            self._retries.pop(path, None)
            self._loaded.add(path)
            for row in requested:
                given = {name: value for name, value in row.items() if value is not None}
                request = row | _DEFAULTS | given
                request["waited_ms"] = now_ms - self._unseen_since_ms[path]
                request["position"] = len(rows)
                request["batch_id"] = batch_id(request["path"])
                request["claim_fault"] = _claim_fault(request)
                rows.append(request)
        _mark_repetitions(rows)
        return rows

    def _try_again(self, path: str, error: OSError, now_ms: int) -> None:
        """Note when to read a file again that could not be read, or drop it."""
        retry = self._retries.get(path)
        since_ms = retry.since_ms if retry else now_ms
        is_permanent = error.errno in _NEVER_READABLE or isinstance(error, FileNotFoundError)
        if is_permanent or now_ms - since_ms > _GIVEN_UP_AFTER_MS:
            _log.warning("request file dropped", path=path, error=one_line(error))
            self._retries.pop(path, None)
            self._loaded.add(path)
            return
        if not self._retries:
            self._failing_since_ms = now_ms
        wait_ms = min(2 * retry.wait_ms, _LONGEST_WAIT_MS) if retry else _FIRST_WAIT_MS
        self._retries[path] = _Retry(since_ms, now_ms + wait_ms, wait_ms)
        if retry is None:
            _log.warning("request file not readable", path=path, error=one_line(error))

    def taken(self) -> Taken | None:
        """Return how far the requests are taken when all that was loaded is dealt with.

        `None` where nothing was loaded. Files that could not be read stay in the inbox until they
        are tried again.
        """
        if not self._loaded:
            return None
        waiting = [path for path in self._unseen_since_ms if path not in self._loaded]
        added_at = [self._table.added_at(path) for path in waiting]
        version = min([self._looked_version, *((at or 0) - 1 for at in added_at)])
        beyond = {path for path in self._loaded | self._taken if self._is_beyond(path, version)}
        return Taken(self._table.table_id, version, tuple(sorted(beyond)))

    def _is_beyond(self, path: str, version: int) -> bool:
        added_at = self._table.added_at(path)
        return added_at is not None and added_at > version

    def take(self, taken: Taken | None) -> None:
        """Note that all that was loaded has been dealt with, durably; `taken` is what was said."""
        self._taken |= self._loaded
        for path in self._loaded:
            self._unseen_since_ms.pop(path, None)
        self._loaded.clear()
        self._known = taken or self._known

    def trim(self, now_ms: int) -> None:
        """Remove the requests that were taken, where it is time; a failure is only logged."""
        is_due = now_ms >= self._trim_at_ms or len(self._taken) >= _MOST_TAKEN
        if not self._taken or not is_due:
            return
        self._trim_at_ms = now_ms + _TRIM_INTERVAL_MS
        try:
            self._table.trim(sorted(self._taken))
        except UNREADABLE as error:
            _log.warning("requests not removed", table=self._table.location.uri, error=str(error))
            return
        self._taken.clear()


def _read(location: Location, path: str) -> list[Request]:
    """Return the rows of a file of the request table, with those columns of it that are there.

    Raises `OSError` where it cannot be read, `ValueError` or `pa.ArrowException` where it is no
    such file.
    """
    if location.is_local and not stat.S_ISREG(Path(location.uri, path).lstat().st_mode):
        raise ValueError("it is a link or something else that is no file")
    stream, size_bytes = location.open_with_size(path)
    with stream:
        if size_bytes > _MOST_BYTES:
            raise ValueError(f"it has {size_bytes} bytes")
        content = stream.read(size_bytes)
    try:
        return _rows(content)
    except OSError as error:
        # Arrow takes some files for unreadable that are no Parquet files.
        raise ValueError(one_line(error)) from error


def _rows(content: bytes) -> list[Request]:
    """Return the rows of a file of requests; raises what `_read` raises for content."""
    given = [field for field in ParquetContent(content).columns if field.name in _TYPES]
    names = [field.name for field in given]
    if len(set(names)) < len(names) or any(pa.types.is_nested(field.type) for field in given):
        raise ValueError("its columns are not those of a request")
    rows: list[Request] = []
    memory = 0
    for piece in parquet_pieces(content, names):
        memory += piece.num_rows * _ROW_BYTES + sum(map(_text_bytes, piece.columns))
        if memory > _MOST_BYTES:
            raise ValueError("it holds more requests than fit in memory")
        arrays = [piece.column(name).cast(_TYPES[name]) for name in names]
        rows += pa.RecordBatch.from_arrays(arrays, names).to_pylist()
    return rows


def _text_bytes(column: pa.Array[Any]) -> int:
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary).take(column.indices)
    return int(pc.sum(lengths.cast(pa.int64())).as_py() or 0)


def group(row: Mapping[str, Any]) -> Group:
    """Return which partition of which request a row belongs to."""
    return row["request_id"], row["topic_id"], row["partition"]


def _claim_fault(request: Request) -> str | None:
    """Say what no batch can be; numbers that run over are set to what is refused anyway."""
    if not request["request_id"]:
        return "nobody could be told what became of it"
    if not 0 < request["record_count"] <= _MOST_RECORDS:
        fault = f"it cannot hold {request['record_count']} records"
        request["record_count"] = 0
        return fault
    first_ms, last_ms = request["min_timestamp_ms"], request["max_timestamp_ms"]
    if not MIN_TIMESTAMP_MS <= first_ms <= last_ms <= MAX_TIMESTAMP_MS:
        return "its timestamps are none"
    producer = (request["producer_id"], request["producer_epoch"], request["base_sequence"])
    if producer != (-1, -1, -1) and min(producer) < 0:
        return "its producer is none"
    return None


def _mark_repetitions(requests: list[Request]) -> None:
    """Mark what names the batch of an earlier request: it shares what becomes of that one.

    A batch is known by its id, and that of an idempotent producer by its sequence as well; a file
    can be of one partition only (rules 3.6, 3.7).
    """
    first: dict[tuple[Any, ...], int] = {}
    partition_of: dict[str, tuple[str, int]] = {}
    for request in requests:
        partition = (request["topic_id"], request["partition"])
        if partition_of.setdefault(request["path"], partition) != partition:
            request["claim_fault"] = "its file is named for another partition, too"
        identities: list[tuple[Any, ...]] = [(*partition, request["batch_id"])]
        if request["producer_id"] >= 0:
            names = ("producer_id", "producer_epoch", "base_sequence", "record_count")
            identities.append((*partition, *(request[name] for name in names)))
        found = [first[identity] for identity in identities if identity in first]
        request["repeats"] = found[0] if found else None
        origin = found[0] if found else request["position"]
        for identity in identities:
            first.setdefault(identity, origin)
