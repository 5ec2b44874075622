"""Detection at a broker's start that its replicas are not as they were (rules 7.2, 10.4).

A log may be older than at the last registration, lost, or without its newest files.

A broker that stops cleanly leaves a mark in its registration: a digest of each log. A start without
the mark is unclean if files that were not synced may be gone: on a local file system, after another
boot of the machine, or on another machine. Unless the digests of all logs match, the logs are
compared with other replicas, too: a log that ends before offsets that others know to be committed
has lost records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, NamedTuple

from sparklog.cluster.isr import leave_isr
from sparklog.cluster.metadata import MetadataReader, PartitionState
from sparklog.cluster.replica_rows import ReplicaRows
from sparklog.logger import get_logger
from sparklog.model import TopicIdPartition
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.journal import Journal
from sparklog.storage.location import Location
from sparklog.storage.sharded_table import ShardedTable

_log = get_logger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str | None:
    """Return an id of this boot of the machine, or `None` if the system does not give one.

    Files that a process wrote outlive the process as long as the machine runs, synced or not.
    """
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return None


def may_have_lost_files(registered_boot_id: str | None, root: Location) -> bool:
    """Return whether files of a root may be gone that were there when its last process ended.

    False for an object store: it keeps what it has acknowledged. Parameters: `registered_boot_id`,
    the boot id in the broker's registration.
    """
    return root.is_local and (registered_boot_id is None or registered_boot_id != boot_id())


class OwnLog:
    """One log of the starting broker, as its journal is before anything is written."""

    def __init__(self, log: Journal) -> None:
        self.log = log

    @property
    def described_version(self) -> int:
        """The newest version of the log that its checkpoints describe."""
        return self.log.described_version

    def log_end_offset(self, key: TopicIdPartition) -> int:
        """Return the offset of the replica's next record."""
        row = self.log.rows.get(key)
        return self.log.log_end_offset(key, row["log_start_offset"] if row else 0)

    def high_watermark(self, key: TopicIdPartition) -> int:
        """Return the high watermark of a replica in its journal."""
        row = self.log.rows.get(key)
        return row["high_watermark"] if row else 0

    def last_epoch(self, key: TopicIdPartition) -> int:
        """Return the newest leader epoch that the replica knows, -1 if it knows no epoch."""
        batches = self.log.batches(key, self.log_end_offset(key) - 1)
        of_log = batches[-1].leader_epoch if batches else -1
        return max([of_log, *(entry.epoch for entry in self.log.epochs.get(key, ()))])


def shortened_replicas(
    broker_id: int, own: Mapping[int, OwnLog], reader: MetadataReader
) -> set[TopicIdPartition]:
    """Return the replicas in the ISR or ELR that have lost records which other replicas know of.

    `own` are the broker's logs by the number of their log directory.

    A member of the ISR or ELR has every committed record, and no replica has more records of an
    epoch than its leader. Only rows of the newest leader epoch that the replica knows, or of later
    ones, count: an unclean election may have replaced the records that older rows describe.
    Journals that cannot be read are skipped.
    """
    partitions = reader.load().partitions
    members: dict[TopicIdPartition, tuple[PartitionState, OwnLog]] = {}
    for key, state in partitions.items():
        replica = state.replica(broker_id)
        if replica is not None and replica.root in own and (replica.in_isr or replica.in_elr):
            members[key] = state, own[replica.root]
    shortened = {
        key
        for key, (_, log) in members.items()
        if log.high_watermark(key) > log.log_end_offset(key)
    }
    checkpoints: dict[tuple[int, int], Mapping[TopicIdPartition, Mapping[str, Any]]] = {}
    for key, (state, log) in members.items():
        end = log.log_end_offset(key)
        for other in state.replicas:
            if other.broker_id == broker_id:
                continue
            of = other.broker_id, other.root
            if of not in checkpoints:
                checkpoints[of] = _checkpoint(reader, *of)
            row = checkpoints[of].get(key)
            if row is None or row["leader_epoch"] < log.last_epoch(key):
                continue
            is_of_own_epoch = (
                state.leader == broker_id and row["leader_epoch"] == state.leader_epoch
            )
            if row["high_watermark"] > end or (is_of_own_epoch and row["log_end_offset"] > end):
                shortened.add(key)
    return shortened


def _checkpoint(
    reader: MetadataReader, broker_id: int, root: int
) -> Mapping[TopicIdPartition, Mapping[str, Any]]:
    try:
        rows = ReplicaRows(reader.location(broker_id, root))
    except UNREADABLE as error:
        _log.warning("replicas not compared", broker=broker_id, root=root, error=str(error))
        return {}
    return rows


class Doubts(NamedTuple):
    """The replicas of a starting broker that may not be as they were.

    `lost`: the roots, by number, that were lost or restored. `shortened`: replicas that have lost
    records which other brokers know of. `unclean`: the roots whose unsynced files may be gone, or
    with a damaged table.
    """

    lost: AbstractSet[int] = frozenset()
    shortened: AbstractSet[TopicIdPartition] = frozenset()
    unclean: AbstractSet[int] = frozenset()


def doubts_about(
    broker_id: int,
    before: Mapping[str, Any],
    own: Mapping[int, OwnLog],
    roots: Mapping[int, Location],
    reader: MetadataReader,
    rebuilt: AbstractSet[int],
    seen: Mapping[int, int],
) -> Doubts:
    """Compare the logs with the broker's last registration, and with the other brokers' journals.

    Parameters: `before`, the columns of the registration that identify the logs; `rebuilt`, the
    roots with a damaged table about their replicas; `seen`, the newest versions that other brokers
    have seen of the logs since that registration, by the number of the root.
    """
    ids, versions = json.loads(before["log_table_id"]), json.loads(before["log_version"])
    digests = json.loads(before["log_digest"]) if before["log_digest"] else None
    lost, unclean = set(), set()
    for index, (table_id, version) in enumerate(zip(ids, versions, strict=True)):
        now = own.get(index)
        if now is None:
            # The directory is offline: it is compared when it is back.
            continue
        if now.log.table_id != table_id:
            lost.add(index)
            continue
        if digests is not None and digests[index] is not None:
            # A clean stop: nothing was written after the mark.
            if now.log.digest() != digests[index]:
                lost.add(index)
            continue
        is_unsynced = may_have_lost_files(before["boot_id"], roots[index])
        # Others may have read the newest commit before it was synced.
        known = max(version, now.described_version, seen.get(index, -1) - is_unsynced)
        if now.log.version < known:
            lost.add(index)
        elif is_unsynced:
            unclean.add(index)
    is_marked = digests is not None and None not in [
        digest for index, digest in enumerate(digests) if index in own
    ]
    if is_marked and not lost:
        return Doubts(unclean=rebuilt)
    return Doubts(lost, shortened_replicas(broker_id, own, reader), unclean | rebuilt)


def leave_in_sync_sets(
    partition_state: ShardedTable, reader: MetadataReader, broker_id: int, doubts: Doubts
) -> None:
    """Leave the ISR and ELR of every partition whose replica is in doubt."""
    roots_of = {
        key: replica.root
        for key, state in reader.load().partitions.items()
        if (replica := state.replica(broker_id)) is not None
    }
    lost = {key for key, root in roots_of.items() if root in doubts.lost} | doubts.shortened
    unclean = {key for key, root in roots_of.items() if root in doubts.unclean} - lost
    if lost:
        _log.warning(
            "replicas lost or restored: they leave the ISR",
            broker=broker_id,
            roots=sorted(doubts.lost),
            partitions=len(lost),
        )
        leave_isr(partition_state, broker_id, lost, cause="log_lost")
    if unclean:
        left = leave_isr(partition_state, broker_id, unclean, keep_last=True, cause="unclean_start")
        _log.warning(
            "unclean start: replicas leave the ISR if others stay",
            broker=broker_id,
            left=len(left),
            stayed=len(unclean) - len(left),
        )
