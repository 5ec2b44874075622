"""In-sync replicas that are read in place of one whose log or batch file is damaged."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from sparklog.cluster.committed_logs import CommittedLogs
from sparklog.cluster.connection import Visible
from sparklog.cluster.replica_selection import RackAwareReplicaSelector
from sparklog.errors import DamagedError, ProtocolError
from sparklog.logger import get_logger
from sparklog.model import Batch, TopicIdPartition
from sparklog.storage.batch_files import file_damage
from sparklog.storage.errors import UNREADABLE
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
