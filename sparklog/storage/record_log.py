"""A replica's log: batches by reference, one fenced compare-and-set a commit.

The log table holds every replica of its broker root; a replica is the slice of one topic id and
partition. A batch is named, never rewritten: a commit adds and removes file references. Only
this module writes to a log table, and Spark never does.
"""

from __future__ import annotations

import bisect
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from operator import attrgetter
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from sparklog.errors import CommitConflictError, StorageError
from sparklog.model import BATCH_INDEX, HEADER_COLUMNS, LOG, Batch, TopicIdPartition
from sparklog.storage.control_table import (
    Fence,
    check_fence,
    commit_properties,
    open_delta_table,
    take_fence,
)
from sparklog.storage.delta_log import AddedFile, read_commit
from sparklog.storage.location import Location

REMEMBERED_BATCHES = 5
"""How many batches of an idempotent producer are known again (rule 3.6)."""

_base_offset = attrgetter("base_offset")
_next_offset = attrgetter("next_offset")


class RecordLog:
    """The log table of one broker root, with its batch index in memory.

    The index follows the table commit by commit, so that a tick costs what changed and not what
    is there. A log is opened with a `fence` by the broker that owns it, and without one by
    everybody who reads.
    """

    def __init__(self, root: Location, fence: Fence | None = None) -> None:
        self.location = root.child(LOG.name)
        self.fence = fence
        self.commits = 0
        """How many commits this handle has made."""
        self._table = open_delta_table(self.location)
        if fence is not None:
            take_fence(self._table, fence)
        self._slices: dict[TopicIdPartition, list[Batch]] = defaultdict(list)
        self._live: dict[str, Batch] = {}
        self._by_batch_id: dict[str, Batch] = {}
        self._by_producer: dict[tuple[TopicIdPartition, int], list[Batch]] = defaultdict(list)
        self._removed: set[str] = set()
        self._version = -1
        self._load(self._table)

    @property
    def version(self) -> int:
        """The version that the index describes."""
        return self._version

    @property
    def table_id(self) -> str:
        """The id that Delta gave the table when it was created."""
        return str(self._table.metadata().id)

    def refresh(self, to_version: int | None = None) -> None:
        """Bring the index to `to_version`, or to the newest version.

        Raises `StorageError` where the table never had `to_version` (a lost or restored root).
        """
        if to_version is not None and to_version < self._version:
            self._reopen(to_version)
            return
        while to_version is None or self._version < to_version:
            commit = read_commit(self.location, self._version + 1)
            if commit is None:
                break
            for path in commit.removed:
                self._forget(path)
            for file in commit.added:
                self._remember(_batch(file))
            self._version = commit.version
        if to_version is not None and self._version < to_version:
            self._reopen(to_version)

    def partitions(self) -> list[TopicIdPartition]:
        """Return the replicas that have at least one batch here."""
        return [key for key, batches in self._slices.items() if batches]

    def log_end_offset(self, partition: TopicIdPartition, log_start_offset: int = 0) -> int:
        """Return the offset that the replica's next record gets."""
        batches = self._slices.get(partition)
        return max(batches[-1].next_offset, log_start_offset) if batches else log_start_offset

    def batches(self, partition: TopicIdPartition, from_offset: int = 0) -> Sequence[Batch]:
        """Return the batches that hold `from_offset` or later records, in order of offset."""
        batches = self._slices.get(partition, [])
        return batches[bisect.bisect_right(batches, from_offset, key=_next_offset) :]

    def batch_index(self, from_offsets: Mapping[TopicIdPartition, int]) -> pa.Table:
        """Return the index of the batches at or after each replica's offset, as `BATCH_INDEX`.

        The batch that ends just at the offset is there too: its epoch tells whether whoever
        stands there agrees with this log (rule 6.4).
        """
        return index_table(
            batch
            for partition, offset in from_offsets.items()
            for batch in self.batches(partition, offset - 1)
        )

    def find(self, batch_ids: Iterable[str]) -> list[Batch]:
        """Return the live batches that have one of these ids (rule 3.7)."""
        return [self._by_batch_id[key] for key in batch_ids if key in self._by_batch_id]

    def producer_batches(self, partition: TopicIdPartition, producer_id: int) -> list[Batch]:
        """Return the last batches of an idempotent producer, as many as are remembered (3.6)."""
        return self._by_producer[partition, producer_id][-REMEMBERED_BATCHES:]

    def was_committed(self, path: str) -> bool:
        """Say whether `path` is, or since this log was opened has been, part of the log (3.7)."""
        return path in self._live or path in self._removed

    def commit(self, added: Sequence[Batch] = (), removed: Sequence[Batch] = ()) -> None:
        """Add and remove batches, of any replicas, as the version after the loaded one.

        Raises `FencedError` where another process has taken the broker over, and
        `CommitConflictError` where the table moved; nothing is written then. delta-rs would
        take a path twice, drop an unknown one or leave a gap without a word, so all of that is
        checked here: it would be a programmer's fault.
        """
        self._check(added, removed)
        now_ms = int(datetime.now(timezone.utc).timestamp() * 1000)
        actions: list[AddAction | RemoveAction] = [_add_action(batch, now_ms) for batch in added]
        actions += [_remove_action(batch, now_ms) for batch in removed]
        if self._table.version() != self._version:
            self._table.update_incremental()
        if self._table.version() != self._version:
            self.refresh()
            check_fence(self._table, self.fence)
            raise CommitConflictError(f"{self.location.uri} moved: look at it again")
        check_fence(self._table, self.fence)
        try:
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                list(LOG.partition_by),
                commit_properties=commit_properties(),
            )
        except CommitFailedError:
            self._table.update_incremental()
            check_fence(self._table, self.fence)
            self.refresh()
            raise CommitConflictError(f"{self.location.uri} moved: look at it again") from None
        self._table.update_incremental()
        self.commits += 1
        for batch in removed:
            self._forget(batch.path)
        for batch in added:
            self._remember(batch)
        self._version += 1

    def _check(self, added: Sequence[Batch], removed: Sequence[Batch]) -> None:
        for batch in removed:
            assert self._live.get(batch.path) == batch, f"{batch.path} is not in the log"
        gone = {batch.path for batch in removed}
        ends: dict[TopicIdPartition, int | None] = {}
        for key in {batch.topic_id_partition for batch in added}:
            kept = [batch for batch in self._slices.get(key, []) if batch.path not in gone]
            ends[key] = kept[-1].next_offset if kept else None
        for batch in added:
            assert not self.was_committed(batch.path), f"{batch.path} was committed before"
            end = ends[batch.topic_id_partition]
            assert end in (None, batch.base_offset), f"{batch.path} leaves a gap after {end}"
            ends[batch.topic_id_partition] = batch.next_offset

    def _reopen(self, version: int) -> None:
        options = dict(self.location.options) or None
        newest = open_delta_table(self.location).version()
        if version > newest:
            raise StorageError(
                f"{self.location.uri} has version {newest}, but version {version} was announced: "
                "the root was lost or restored"
            )
        self._slices.clear()
        self._live.clear()
        self._by_batch_id.clear()
        self._by_producer.clear()
        self._load(DeltaTable(self.location.uri, version=version, storage_options=options))

    def _load(self, table: DeltaTable) -> None:
        actions = pa.table(table.get_add_actions(flatten=True))
        for row in actions.to_pylist():
            values = {name: row[f"partition.{name}"] for name in HEADER_COLUMNS.names}
            batch = Batch(
                path=unquote(row["path"]),
                size_bytes=row["size_bytes"],
                **values,
                record_count=row["num_records"],
                last_offset_delta=row["max.offset_delta"],
                min_timestamp_ms=_datetime_ms(row["min.timestamp"]),
                max_timestamp_ms=_datetime_ms(row["max.timestamp"]),
            )
            self._live[batch.path] = batch
            self._by_batch_id[batch.batch_id] = batch
            self._slices[batch.topic_id_partition].append(batch)
            if batch.producer_id >= 0:
                self._by_producer[batch.topic_id_partition, batch.producer_id].append(batch)
        for batches in (*self._slices.values(), *self._by_producer.values()):
            batches.sort(key=_base_offset)
        self._version = table.version()

    def _remember(self, batch: Batch) -> None:
        self._live[batch.path] = batch
        self._by_batch_id[batch.batch_id] = batch
        bisect.insort(self._slices[batch.topic_id_partition], batch, key=_base_offset)
        if batch.producer_id >= 0:
            of_producer = self._by_producer[batch.topic_id_partition, batch.producer_id]
            bisect.insort(of_producer, batch, key=_base_offset)

    def _forget(self, path: str) -> None:
        self._removed.add(path)
        batch = self._live.pop(path, None)
        if batch is None:
            return
        batches = self._slices[batch.topic_id_partition]
        batches.pop(bisect.bisect_left(batches, batch.base_offset, key=_base_offset))
        if batch.producer_id >= 0:
            self._by_producer[batch.topic_id_partition, batch.producer_id].remove(batch)
        if self._by_batch_id.get(batch.batch_id) == batch:
            del self._by_batch_id[batch.batch_id]


def index_table(batches: Iterable[Batch]) -> pa.Table:
    """Return `batches` as an Arrow table with the columns of `BATCH_INDEX`."""
    columns = list(zip(*batches, strict=True)) or [()] * len(BATCH_INDEX)
    arrays = [
        pa.array(column, field.type) for column, field in zip(columns, BATCH_INDEX, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=BATCH_INDEX)


def _batch(file: AddedFile) -> Batch:
    values = file.partition_values
    lowest, highest = file.statistics["minValues"], file.statistics["maxValues"]
    return Batch(
        path=file.path,
        size_bytes=file.size_bytes,
        topic_id=str(values["topic_id"]),
        topic=str(values["topic"]),
        partition=_int(values["partition"]),
        leader_epoch=_int(values["leader_epoch"]),
        base_offset=_int(values["base_offset"]),
        producer_id=_int(values["producer_id"]),
        producer_epoch=_int(values["producer_epoch"]),
        base_sequence=_int(values["base_sequence"]),
        checksum=str(values["checksum"]),
        record_count=file.statistics["numRecords"],
        last_offset_delta=highest["offset_delta"],
        min_timestamp_ms=_text_ms(lowest["timestamp"]),
        max_timestamp_ms=_text_ms(highest["timestamp"]),
    )


def _add_action(batch: Batch, now_ms: int) -> AddAction:
    header = {name: str(getattr(batch, name)) for name in HEADER_COLUMNS.names}
    statistics = {
        "numRecords": batch.record_count,
        "minValues": {"offset_delta": 0, "timestamp": _ms_text(batch.min_timestamp_ms)},
        "maxValues": {
            "offset_delta": batch.last_offset_delta,
            "timestamp": _ms_text(batch.max_timestamp_ms),
        },
        "nullCount": {"offset_delta": 0, "timestamp": 0},
    }
    return AddAction(batch.path, batch.size_bytes, header, now_ms, True, json.dumps(statistics))


def _remove_action(batch: Batch, now_ms: int) -> RemoveAction:
    header: dict[str, str | None] = {
        name: str(getattr(batch, name)) for name in HEADER_COLUMNS.names
    }
    return RemoveAction(batch.path, True, now_ms, batch.size_bytes, header)


def _int(value: str | None) -> int:
    return int(value) if value is not None else -1


def _ms_text(time_ms: int) -> str:
    moment = datetime.fromtimestamp(time_ms // 1000, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03}Z"


def _text_ms(text: str) -> int:
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return _datetime_ms(moment)


def _datetime_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
