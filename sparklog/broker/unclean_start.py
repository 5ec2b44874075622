"""The evidence at a broker's start that its replicas are not what they were (rules 7.2, 10.4).

A broker that stops cleanly leaves a mark in its registration: a digest of each log. A start
without the mark is unclean where files that were not synced may be gone: in a local folder, after
another boot of the machine, or on another machine. Whatever the mark says, a log that ends before
offsets that others know to be committed has lost records.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from sparklog.broker.leader_roots import UNREADABLE
from sparklog.logger import get_logger
from sparklog.model import TopicIdPartition
from sparklog.storage.journal import Journal
from sparklog.storage.location import Location
from sparklog.storage.metadata import MetadataReader, PartitionState
from sparklog.storage.replica_rows import ReplicaRows

_log = get_logger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str | None:
    """Return an id of this boot of the machine, or `None` where the system has none.

    Files that a process wrote outlive the process as long as the machine runs, synced or not.
    """
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return None


def may_have_lost_files(registered_boot_id: str | None, root: Location) -> bool:
    """Return whether files of a root may be gone that were there when its last process ended.

    An object store keeps what it has acknowledged. Parameters: `registered_boot_id`, the boot id
    in the broker's registration.
    """
    return root.is_local and (registered_boot_id is None or registered_boot_id != boot_id())


class OwnLog:
    """One log of the broker that starts, as its journal is before anything is written.

    `damaged` are the names of checkpoint tables that cannot be read; they count as empty.
    """

    def __init__(self, root: Location, damaged: Collection[str] = ()) -> None:
        self.log = Journal(root, damaged=damaged)

    @property
    def described_version(self) -> int:
        """The newest version of the log that the checkpoints beside it describe."""
        return self.log.described_version

    def log_end_offset(self, key: TopicIdPartition) -> int:
        """Return the offset that the replica's next record gets."""
        row = self.log.rows.get(key)
        return self.log.log_end_offset(key, row["log_start_offset"] if row else 0)

    def high_watermark(self, key: TopicIdPartition) -> int:
        """Return the high watermark of a replica, as of its journal."""
        row = self.log.rows.get(key)
        return row["high_watermark"] if row else 0

    def last_epoch(self, key: TopicIdPartition) -> int:
        """Return the newest leader epoch that the replica knows, -1 where it knows none."""
        batches = self.log.batches(key, self.log_end_offset(key) - 1)
        of_log = batches[-1].leader_epoch if batches else -1
        return max([of_log, *(entry.epoch for entry in self.log.epochs.get(key, ()))])


def shortened_replicas(
    broker_id: int, own: Mapping[int, OwnLog], reader: MetadataReader
) -> set[TopicIdPartition]:
    """Return the replicas in the ISR or ELR that have lost records which others know of.

    `own` are the broker's logs by the number of their log directory.

    A member of the ISR or ELR has every committed record, and nobody has more records of an epoch
    than its leader. Only rows of the newest leader epoch that the replica knows, or of later
    ones, count: an unclean election may have replaced what older ones describe. Journals that
    cannot be read are passed over.
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
        _log.warning("checkpoint not compared", broker=broker_id, root=root, error=str(error))
        return {}
    return rows
