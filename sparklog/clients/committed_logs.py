"""The committed records of the leaders' logs, as plain clients read them: only what has moved."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable

import pyarrow as pa

from sparklog.broker.leader_roots import UNREADABLE
from sparklog.clients.connection import Connection, Visible
from sparklog.clock import Clock, SystemClock
from sparklog.errors import ProtocolError, SparklogError, StorageError
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.model import Batch, TopicIdPartition
from sparklog.storage.batch_files import read_batch
from sparklog.storage.location import Location, one_line
from sparklog.storage.metadata import Metadata, PartitionState
from sparklog.storage.record_log import RecordLog

_log = get_logger(__name__)

_METADATA_MS, _STORE_METADATA_MS = 100, 1_000
"""How old the metadata may be while all goes well, in a folder and on an object store: a past
leader shows no record that is not committed, so looking more often would only cost. After an error
they are looked up at once."""


class CommittedLogs:
    """What may be seen of the partitions of one cluster, and the records themselves (rule 2.6).

    Journals and metadata are opened once and followed commit by commit: a look at
    partitions of which nothing has changed costs a version look-up for each leader's root. Not
    safe for threads, like the `connection` that it reads with.
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
        """The connection to their cluster."""
        return self._connection

    def metadata(self, max_age_ms: int | None = None) -> Metadata:
        """Return metadata that was looked up at most `max_age_ms` ago.

        While the cluster root cannot be read, that is what was found there last.
        """
        is_local = self._connection.root.location.is_local
        if max_age_ms is None:
            max_age_ms = _METADATA_MS if is_local else _STORE_METADATA_MS
        now_ms = self._clock.monotonic_ms()
        # On an object store the connection knows how old they are, and looks beside its callers.
        is_due = not is_local or now_ms - self._loaded_ms >= max_age_ms
        if self._is_suspect or is_due:
            try:
                self._metadata = self._connection.metadata(0 if self._is_suspect else max_age_ms)
            except UNREADABLE as error:
                self._failures.warning("cluster", "cluster not readable", error=one_line(error))
            self._loaded_ms, self._is_suspect = now_ms, False
        return self._metadata

    def visible(
        self, keys: Iterable[TopicIdPartition]
    ) -> dict[TopicIdPartition, Visible | SparklogError]:
        """Return what a fetch is served of each partition, or why none is at the moment.

        See `Connection.fetchable`. A read up to the latest offset calls `Visible.check_latest`.
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
        for location, states in of_root.items():
            found |= self._of_root(location, states)
        if any(isinstance(one, SparklogError) for one in found.values()):
            self._is_suspect = True
        return found

    def log(self, visible: Visible) -> RecordLog:
        """Return the log in which a partition is seen, at the version that its leader described.

        Raises one of `UNREADABLE` where it cannot be read.
        """
        log = self.log_at(visible.location)
        if log.version < visible.log_version:
            log.refresh(visible.log_version)
        return log

    def log_at(self, location: Location) -> RecordLog:
        """Return the log in the root at `location`, at the version it was last brought to."""
        return self._connection.opened_journal(location)

    def batches(self, visible: Visible, from_offset: int) -> list[Batch]:
        """Return the committed batches that hold `from_offset` or later records, in order.

        Raises KAFKA_STORAGE_ERROR where the replica's log is damaged so that it offers none of
        them; where it offers some, those are returned.
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
        # A log that was opened at a newer version than the leader described may have batches of
        # later leaders, of whom nothing is known yet.
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
        """Return the leader epoch of the record before `offset`, -1 where there is none."""
        batches = self.batches(visible, offset - 1)
        return batches[0].leader_epoch if batches and batches[0].base_offset < offset else -1

    def log_end_offset(self, visible: Visible) -> int:
        """Return the offset that the partition's next record gets."""
        log = self.log(visible)
        return log.log_end_offset(visible.state.key, visible.log_start_offset)

    def end_offset_for_epoch(self, visible: Visible, epoch: int) -> tuple[int, int]:
        """Return where an epoch ends in the leader's log, as (epoch, end offset) (rule 6.2)."""
        of = visible.state.key._asdict()
        [found] = self._connection.rules.run(
            "end_offset_for_epoch",
            asked=[of | {"asked_epoch": epoch, "log_end_offset": self.log_end_offset(visible)}],
            entries=[of | entry._asdict() for entry in visible.epochs],
        )
        return found["epoch"], found["end_offset"]

    def read(self, location: Location, batch: Batch) -> pa.Table:
        """Return the records of a batch of the log in the root at `location`."""
        return read_batch(location.child("log"), batch)

    def let_go(self, location: Location) -> None:
        """Open a root's log anew when it is read again: this one could not be read."""
        self._is_suspect = True
        self._connection.let_go(location)
        self._seen = {key: one for key, one in self._seen.items() if one[2].location != location}

    def _of_root(
        self, location: Location, states: list[PartitionState]
    ) -> dict[TopicIdPartition, Visible | SparklogError]:
        """Look at the partitions whose leaders keep them in one root."""
        try:
            version = self._connection.journal(location).version
            moved = [one for one in states if self._seen.get(one.key, ())[:2] != (one, version)]
            judged = self._judged(moved)
        except UNREADABLE as error:
            self._failures.warning(
                location, "leader not readable", root=location.uri, error=one_line(error)
            )
            self.let_go(location)
            failure = StorageError(f"{location.uri} cannot be read: {one_line(error)}")
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

    def _judged(
        self, states: list[PartitionState]
    ) -> dict[TopicIdPartition, Visible | SparklogError]:
        """Return what may be seen of each; one that is not available hides none of the others."""
        if not states:
            return {}
        try:
            return {one.state.key: one for one in self._connection.fetchable(states)}
        except ProtocolError as error:
            if len(states) == 1:
                return {states[0].key: error}
        return {key: one for state in states for key, one in self._judged([state]).items()}
