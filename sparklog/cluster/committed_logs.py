"""The committed records of the leaders' logs, read incrementally by clients."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable

import pyarrow as pa

from sparklog.clock import Clock, SystemClock
from sparklog.cluster.connection import Connection, Visible
from sparklog.cluster.metadata import Metadata, PartitionState
from sparklog.errors import AccessDeniedError, ProtocolError, SparklogError, StorageError
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.model import Batch, TopicIdPartition
from sparklog.protocol.consume.divergence import Divergence, ReadPosition, divergences
from sparklog.storage.batch_files import read_batch
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.journal import Journal
from sparklog.storage.location import Location, one_line
from sparklog.storage.parallel import map_in_parallel
from sparklog.storage.record_log import RecordLog

_log = get_logger(__name__)

_METADATA_MS, _STORE_METADATA_MS = 100, 1_000
"""Maximum age of metadata, in ms, on a local file system and on an object store.

Older metadata is safe, because a past leader shows committed records only. After an error, metadata
is reloaded immediately.
"""


class CommittedLogs:
    """The visible offsets and the records of the partitions of one cluster (rule 2.6).

    Journals and metadata are opened once and followed commit by commit. Polling unchanged
    partitions costs one version look-up for each leader's root. Not thread-safe, like `connection`.
    """

    def __init__(self, connection: Connection, clock: Clock | None = None) -> None:
        self._connection = connection
        self._clock = clock or SystemClock()
        self._metadata = connection.metadata()
        self._loaded_ms = self._clock.monotonic_ms()
        self._is_suspect = False
        self._failures = RepeatedFailures(_log)
        self._seen: dict[TopicIdPartition, tuple[PartitionState, int, Visible]] = {}

    @property
    def connection(self) -> Connection:
        """The connection to the cluster."""
        return self._connection

    def metadata(self, max_age_ms: int | None = None) -> Metadata:
        """Return metadata that was loaded at most `max_age_ms` ago.

        While the cluster root cannot be read, the metadata that was loaded last is returned.
        """
        is_local = self._connection.root.location.is_local
        if max_age_ms is None:
            max_age_ms = _METADATA_MS if is_local else _STORE_METADATA_MS
        now_ms = self._clock.monotonic_ms()
        # On an object store the connection knows their age and requests newer ones ahead of time.
        is_due = not is_local or now_ms - self._loaded_ms >= max_age_ms
        if self._is_suspect or is_due:
            try:
                self._metadata = self._connection.metadata(0 if self._is_suspect else max_age_ms)
            except AccessDeniedError:
                raise
            except UNREADABLE as error:
                self._failures.warning("cluster", "cluster not readable", error=one_line(error))
            self._loaded_ms, self._is_suspect = now_ms, False
        return self._metadata

    def visible(
        self, keys: Iterable[TopicIdPartition]
    ) -> dict[TopicIdPartition, Visible | SparklogError]:
        """Return the offsets that a fetch is served of each partition, or the partition's error.

        See `Connection.fetchable`. Reads up to the latest offset call `Visible.check_latest`.
        """
        found: dict[TopicIdPartition, Visible | SparklogError] = {}
        of_root: dict[Location, list[PartitionState]] = defaultdict(list)
        metadata = self.metadata()
        for key in keys:
            state = metadata.partitions.get(key)
            if state is None:
                found[key] = ProtocolError(
                    "UNKNOWN_TOPIC_OR_PARTITION",
                    f"there is no partition {key.partition} of a topic with id {key.topic_id} "
                    "(any more): was the topic deleted?",
                )
                continue
            try:
                of_root[self._connection.leader_location(state)].append(state)
            except SparklogError as error:
                found[key] = error
        # Each refresh waits for an object store.
        journals = map_in_parallel(
            self._refreshed, list(of_root), 0, is_local=all(root.is_local for root in of_root)
        )
        for (location, states), journal in zip(of_root.items(), journals, strict=True):
            found |= self._of_root(location, journal, states)
        if any(isinstance(one, SparklogError) for one in found.values()):
            self._is_suspect = True
        return found

    def log(self, visible: Visible) -> RecordLog:
        """Return the log of a visible partition, at `visible.log_version` or later.

        Raises an error of `UNREADABLE` if the log cannot be read.
        """
        log = self.log_at(visible.location)
        if log.version < visible.log_version:
            log.refresh(visible.log_version)
        return log

    def log_at(self, location: Location) -> RecordLog:
        """Return the log in the root at `location`, at the version that was loaded last."""
        return self._connection.opened_journal(location)

    def batches(self, visible: Visible, from_offset: int) -> list[Batch]:
        """Return the committed batches that contain `from_offset` or later records, in order.

        Raises KAFKA_STORAGE_ERROR if the replica's log is damaged and offers none of these batches.
        If it offers some, those are returned.
        """
        log = self.log(visible)
        batches = log.batches(visible.state.key, from_offset)
        if not batches and visible.state.key in log.damaged:
            log.refresh()
            batches = log.batches(visible.state.key, from_offset)
            error = log.damaged.get(visible.state.key)
            if not batches and error is not None and from_offset < visible.high_watermark:
                state = visible.state
                raise ProtocolError(
                    "KAFKA_STORAGE_ERROR",
                    f"offset {from_offset} of {state.topic}-{state.partition} cannot be read: "
                    f"{error}",
                )
        # A log at a version after `visible.log_version` may contain batches of later leaders, about
        # which `visible` says nothing.
        return list(
            itertools.takewhile(
                lambda batch: (
                    batch.base_offset < visible.high_watermark
                    and batch.leader_epoch <= visible.state.leader_epoch
                ),
                batches,
            )
        )

    def epoch_before(self, visible: Visible, offset: int) -> int:
        """Return the leader epoch of the record before `offset`, or -1 without one."""
        batches = self.batches(visible, offset - 1)
        return batches[0].leader_epoch if batches and batches[0].base_offset < offset else -1

    def log_end_offset(self, visible: Visible) -> int:
        """Return the log end offset, which is the offset of the partition's next record."""
        log = self.log(visible)
        return log.log_end_offset(visible.state.key, visible.log_start_offset)

    def divergence(self, visible: Visible, offset: int, leader_epoch: int) -> Divergence | None:
        """Return where the leader's log diverges from the records that a reader has below `offset`.

        `leader_epoch` is that of the record before `offset`. Returns `None` if the logs agree.
        """
        key = visible.state.key
        read = ReadPosition(
            offset, leader_epoch, None, self.log_end_offset(visible), visible.epochs
        )
        return divergences(self._connection.rules, {key: read}).get(key)

    def read(self, location: Location, batch: Batch) -> pa.Table:
        """Return the records of a batch of the log in the root at `location`."""
        return read_batch(location.child("log"), batch)

    def release(self, location: Location) -> None:
        """Release the log of a root that could not be read; the next read opens it again."""
        self._is_suspect = True
        self._connection.release(location)
        self._seen = {key: one for key, one in self._seen.items() if one[2].location != location}

    def _refreshed(self, location: Location) -> Journal | Exception:
        try:
            return self._connection.journal(location)
        except UNREADABLE as error:
            return error

    def _of_root(
        self, location: Location, journal: Journal | Exception, states: list[PartitionState]
    ) -> dict[TopicIdPartition, Visible | SparklogError]:
        """Return the visible offsets, or the errors, of partitions with leaders in one root."""
        try:
            if isinstance(journal, Exception):
                raise journal
            version = journal.version
            moved = [one for one in states if self._seen.get(one.key, ())[:2] != (one, version)]
            judged = self._connection.fetchable(moved, {location: journal})
        except UNREADABLE as error:
            self._failures.warning(
                location, "leader not readable", root=location.uri, error=one_line(error)
            )
            self.release(location)
            failure = (
                error
                if isinstance(error, AccessDeniedError)
                else StorageError(f"{location.uri} cannot be read: {one_line(error)}")
            )
            return {state.key: failure for state in states}
        self._failures.over(location)
        for state in moved:
            result = judged[state.key]
            if isinstance(result, Visible):
                self._seen[state.key] = state, version, result
            else:
                self._seen.pop(state.key, None)
        return judged | {
            state.key: self._seen[state.key][2] for state in states if state.key in self._seen
        }
