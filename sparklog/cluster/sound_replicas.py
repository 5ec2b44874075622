"""In-sync replicas that are read in place of one whose log or batch file is damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from sparklog.cluster.committed_logs import CommittedLogs
from sparklog.cluster.connection import Visible
from sparklog.cluster.replica_selection import RackAwareReplicaSelector
from sparklog.errors import DamagedError, ProtocolError
from sparklog.logger import get_logger
from sparklog.model import Batch, TopicIdPartition
from sparklog.storage.batch_files import file_damage
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.file_states import FileState, NamedFile, find_fault
from sparklog.storage.location import Location, one_line

_log = get_logger(__name__)


class SoundReplicas:
    """Finds sound copies of committed records in the replicas that `logs` reads."""

    def __init__(self, logs: CommittedLogs) -> None:
        self._logs = logs
        self._selector = RackAwareReplicaSelector(logs.connection, "")

    def in_sync(self, key: TopicIdPartition, needed: int) -> Iterator[Visible]:
        """Yield the in-sync replicas whose high watermark is at least `needed`, the leader first.

        Each has its own high watermark (rule 2.7).
        """
        metadata = self._logs.metadata()
        leader = self._logs.visible([key])[key]
        if not isinstance(leader, Visible):
            return
        found = [leader]
        for one in leader.state.replicas:
            broker = metadata.brokers.get(one.broker_id)
            if one.in_isr and one.broker_id != leader.state.leader and broker is not None:
                try:
                    follower = self._selector.follower(leader, one, broker.broker_epoch)
                except UNREADABLE as error:
                    _log.info("follower not readable", broker=one.broker_id, error=one_line(error))
                    continue
                found += [follower] if follower is not None else []
        yield from (one for one in found if one.high_watermark >= needed)

    def with_sound_log(self, seen: Visible, offset: int, needed: int) -> Visible:
        """Return `seen`, or another in-sync replica if the log of `seen` is damaged at `offset`.

        Raises KAFKA_STORAGE_ERROR if no in-sync replica with offsets up to `needed` is sound, and
        an error of `UNREADABLE` if the log of `seen` cannot be read.
        """
        if seen.state.key not in self._logs.log(seen).damaged:
            return seen
        try:
            self._logs.batches(seen, offset)
        except ProtocolError as error:
            for other in self.in_sync(seen.state.key, needed):
                if self._has_batches(other, offset):
                    _log.warning(
                        "another replica is read", root=other.location.uri, error=str(error)
                    )
                    return other
            raise
        return seen

    def _has_batches(self, seen: Visible, offset: int) -> bool:
        try:
            return bool(self._logs.batches(seen, offset))
        except (ProtocolError, *UNREADABLE):
            return False

    def read_at(self, key: TopicIdPartition, offset: int) -> tuple[Visible, Batch, pa.Table] | None:
        """Return a readable replica with the batch that has a committed offset, and its records.

        Returns `None` if no in-sync replica can be read there.
        """
        for seen in self.in_sync(key, offset + 1):
            try:
                batches = self._logs.batches(seen, offset)
                if batches and batches[0].base_offset <= offset:
                    return seen, batches[0], self._logs.read(seen.location, batches[0])
            except (ProtocolError, *UNREADABLE) as error:
                _log.info("copy not readable", root=seen.location.uri, error=one_line(error))
        return None

    def damage(self, location: Location, batch: Batch) -> DamagedError | None:
        """Return the damage to a live batch's file in the root at `location`.

        Returns `None` if the batch is sound, is no longer part of the log, or cannot be verified
        now.
        """
        try:
            log = self._logs.log_at(location)
            log.refresh()
            return file_damage(log, batch) if log.is_live(batch) else None
        except UNREADABLE as error:
            _log.info("batch not verified", root=location.uri, error=one_line(error))
            return None


def sound_replica(logs: CommittedLogs, seen: Visible, start: int, end: int) -> Visible:
    """Return `seen`, or another in-sync replica if the log of `seen` is damaged before `end`.

    For reads of whole ranges of offsets. Raises KAFKA_STORAGE_ERROR if no in-sync replica has a
    sound log up to `end`.
    """
    key = seen.state.key
    damage = logs.log(seen).damaged.get(key)
    if damage is None or start >= end:
        return seen
    for one in (seen, *SoundReplicas(logs).in_sync(key, end)):
        try:
            if logs.log(one).log_end_offset(key) >= end:
                return one
        except UNREADABLE as error:
            _log.info("replica not readable", root=one.location.uri, error=one_line(error))
    raise ProtocolError(
        "KAFKA_STORAGE_ERROR",
        f"offsets {start} to {end - 1} of {seen.state.topic}-{seen.state.partition} cannot be "
        f"read: {damage}",
    )


def replicas_with_sound_files(
    logs: CommittedLogs,
    ranges: Sequence[tuple[Visible, int, int]],
    read: Callable[[Sequence[NamedFile]], list[FileState]],
) -> list[Visible]:
    """Return for each range of offsets a replica whose batch files have their checksums.

    For readers that decode files themselves, as Spark's scan does. Each file is read to its end;
    other replicas are read only where one is damaged. Raises CORRUPT_MESSAGE if no in-sync replica
    has sound files of a range.

    Parameters: `ranges`, the replica that is to be read, the first offset and the end of each;
    `read`, returns the states of files.
    """
    wanted = [_files_of(logs, *one) for one in ranges]
    states = iter(read([named for files in wanted for named, _ in files]))
    faults = [_first_fault(files, [next(states) for _ in files]) for files in wanted]
    return [
        seen if fault is None else _sound_elsewhere(logs, seen, start, end, fault, read)
        for (seen, start, end), fault in zip(ranges, faults, strict=True)
    ]


_NamedBatches = list[tuple[NamedFile, Batch]]


def _files_of(logs: CommittedLogs, seen: Visible, start: int, end: int) -> _NamedBatches:
    log = seen.location.child("log")
    return [
        (NamedFile(log, batch.path, batch.size_bytes), batch)
        for batch in logs.batches(seen, start)
        if batch.base_offset < end
    ]


def _first_fault(files: _NamedBatches, states: Sequence[FileState]) -> str | None:
    """Return the first fault of a range's files in words, or `None`."""
    for (named, batch), state in zip(files, states, strict=True):
        where = f"{named.log.uri}/{named.path}"
        try:
            fault = find_fault(batch, state, {})
        except OSError as error:
            return f"{where} cannot be read: {one_line(error)}"
        if fault is not None:
            return f"{where} is damaged: {fault[1]}"
    return None


def _sound_elsewhere(
    logs: CommittedLogs,
    seen: Visible,
    start: int,
    end: int,
    fault: str,
    read: Callable[[Sequence[NamedFile]], list[FileState]],
) -> Visible:
    for one in SoundReplicas(logs).in_sync(seen.state.key, end):
        if one.location == seen.location:
            continue
        try:
            files = _files_of(logs, one, start, end)
            is_whole = bool(files) and files[-1][1].next_offset >= end
            if not is_whole or _first_fault(files, read([named for named, _ in files])) is not None:
                continue
        except (ProtocolError, *UNREADABLE) as error:
            _log.info("copy not readable", root=one.location.uri, error=one_line(error))
            continue
        _log.warning("another replica is read", root=one.location.uri, error=fault)
        return one
    raise ProtocolError(
        "CORRUPT_MESSAGE",
        f"{fault}; no other replica in sync has sound files of offsets {start} to {end - 1} of "
        f"{seen.state.topic}-{seen.state.partition}: run sparklog scrub and sparklog repair, or "
        "read other offsets",
    )
