"""The replicas of one broker root: what the broker knows of them, and their checkpoints.

Between two ticks the memory is the truth, since nobody else may write to the root; after a crash
it is rebuilt from the tables (rule 7.0).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from sparklog.errors import CommitConflictError
from sparklog.logger import get_logger
from sparklog.model import (
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    EpochEntry,
    TopicIdPartition,
)
from sparklog.protocol.rules import Rules
from sparklog.storage.control_table import ControlTable, Fence
from sparklog.storage.roots import BrokerRoot

_log = get_logger(__name__)


@dataclass(frozen=True)
class Replica:
    """What a broker keeps of one replica beside its log.

    `leader_epoch` is the epoch that the checkpointed row bears: for a follower, that of the
    leader with which its log was last found to agree (rules 1.5, 6.4); -1 before that.
    """

    topic: str
    role: Literal["leader", "follower"]
    leader_epoch: int = -1
    log_start_offset: int = 0
    high_watermark: int = 0
    reported_at_ms: int = 0


class Replicas:
    """All replicas of one broker root, recovered from its tables when it is opened."""

    def __init__(self, root: BrokerRoot, root_index: int, rules: Rules) -> None:
        self.root = root
        self.root_index = root_index
        self._rules = rules
        self._replicas: dict[TopicIdPartition, Replica] = {}
        self._epochs: dict[TopicIdPartition, list[EpochEntry]] = {}
        self._epochs_written: pa.Table | None = None
        self._written: pa.Table | None = None
        self._recover()

    def __contains__(self, key: TopicIdPartition) -> bool:
        return key in self._replicas

    def __getitem__(self, key: TopicIdPartition) -> Replica:
        return self._replicas[key]

    def last_report_ms(self) -> int:
        """Return when this root's checkpoint was last written, on the broker's own clock."""
        return max((one.reported_at_ms for one in self._replicas.values()), default=0)

    def log_end_offset(self, key: TopicIdPartition) -> int:
        """Return the offset that the replica's next record gets."""
        replica = self._replicas.get(key)
        return self.root.log.log_end_offset(key, replica.log_start_offset if replica else 0)

    def last_record_epoch(self, key: TopicIdPartition) -> int | None:
        """Return the leader epoch of the replica's last record."""
        batches = self.root.log.batches(key, self.log_end_offset(key) - 1)
        return batches[-1].leader_epoch if batches else None

    def put(self, key: TopicIdPartition, topic: str, **changes: Any) -> None:
        """Change what is kept of a replica; a replica is created on demand (rule 1.4)."""
        replica = self._replicas.get(key)
        if replica is None:
            _log.info("replica created", topic=topic, partition=key.partition, high_watermark=0)
            replica = Replica(topic, "follower")
        self._replicas[key] = replace(replica, topic=topic, **changes)

    def epochs(self, key: TopicIdPartition) -> list[EpochEntry]:
        """Return the replica's leader-epoch history, oldest first."""
        return self._epochs.get(key, [])

    def epoch_entries(self, keys: Iterable[TopicIdPartition]) -> list[dict[str, Any]]:
        """Return the leader-epoch histories of `keys`, one row an entry, as the rules take them."""
        return [
            {"topic_id": key.topic_id, "partition": key.partition, **entry._asdict()}
            for key in keys
            for entry in self.epochs(key)
        ]

    def assign_epochs(self, entries: Mapping[TopicIdPartition, EpochEntry]) -> None:
        """Add one entry to the history of each of these replicas (rule 6.1)."""
        assigned = [
            {"topic_id": key.topic_id, "partition": key.partition, **entry._asdict()}
            for key, entry in entries.items()
        ]
        result = self._rules.run(
            "epoch_entries", entries=self.epoch_entries(entries), assigned=assigned
        )
        self._epochs.update(_histories(result))

    def truncate_epochs(self, points: Mapping[TopicIdPartition, int]) -> None:
        """Drop the entries that start at or after each replica's new end (rule 6.5)."""
        for key, offset in points.items():
            kept = [entry for entry in self.epochs(key) if entry.start_offset < offset]
            self._epochs[key] = kept

    def write_epochs(self) -> bool:
        """Write the leader-epoch checkpoint if it has changed; say whether it had."""
        rows = LEADER_EPOCH_CHECKPOINT.rows(
            [
                {
                    "topic_id": key.topic_id,
                    "topic": self._replicas[key].topic,
                    "partition": key.partition,
                    **entry._asdict(),
                }
                for key in sorted(self._epochs)
                for entry in self._epochs[key]
            ]
        )
        if self._epochs_written is not None and rows.equals(self._epochs_written):
            return False
        overwrite(self.root.leader_epoch_checkpoint, rows, self.root.fence)
        self._epochs_written = rows
        return True

    @property
    def is_written(self) -> bool:
        """Whether the checkpoint says all there is to say, but for the log's newest version.

        It does not before the first tick, and after one that failed half-way.
        """
        if self._written is None:
            return False
        version = ["log_version"]
        return bool(
            self._checkpoint_rows()
            .drop_columns(version)
            .equals(self._written.drop_columns(version))
        )

    def write_checkpoint(self) -> bool:
        """Write the high-watermark checkpoint if it has changed; say whether it had (1.5)."""
        rows = self._checkpoint_rows()
        if self._written is not None and rows.equals(self._written):
            return False
        overwrite(self.root.high_watermark_checkpoint, rows, self.root.fence)
        self._written = rows
        return True

    def _checkpoint_rows(self) -> pa.Table:
        """Return the checkpoint, built by column, since there may be thousands of rows."""
        keys = sorted(self._replicas)
        replicas = [self._replicas[key] for key in keys]
        count = len(keys)
        columns: dict[str, Sequence[Any]] = {
            "topic_id": [key.topic_id for key in keys],
            "topic": [one.topic for one in replicas],
            "partition": [key.partition for key in keys],
            "leader_epoch": [one.leader_epoch for one in replicas],
            "broker_epoch": [self.root.fence.epoch] * count,
            "role": [one.role for one in replicas],
            "log_start_offset": [one.log_start_offset for one in replicas],
            "log_end_offset": [self.log_end_offset(key) for key in keys],
            "high_watermark": [one.high_watermark for one in replicas],
            "log_version": [self.root.log.version] * count,
            "epochs_version": [self.root.leader_epoch_checkpoint.version] * count,
            "reported_at_ms": [one.reported_at_ms for one in replicas],
        }
        return pa.table(columns, schema=HIGH_WATERMARK_CHECKPOINT.columns)

    def _recover(self) -> None:
        log = self.root.log
        table = self.root.high_watermark_checkpoint.rows()
        rows = {TopicIdPartition(r["topic_id"], r["partition"]): r for r in table.to_pylist()}
        topics = {key: row["topic"] for key, row in rows.items()}
        topics |= {key: log.batches(key)[0].topic for key in log.partitions()}
        loaded = [
            {
                "topic_id": key.topic_id,
                "partition": key.partition,
                "log_start_offset": rows.get(key, {}).get("log_start_offset"),
                "checkpointed_high_watermark": rows.get(key, {}).get("high_watermark"),
                "log_end_offset": log.log_end_offset(key),
            }
            for key in topics
        ]
        recovered = self._rules.run("recovered_replicas", replicas=loaded)
        for found in recovered:
            key = TopicIdPartition(found["topic_id"], found["partition"])
            if key not in rows:
                _log.warning("no checkpoint", topic=topics[key], partition=key.partition)
            # The row's epoch is not taken over: this process has yet to agree with a leader.
            self._replicas[key] = Replica(
                topics[key],
                "follower",
                log_start_offset=found["log_start_offset"],
                high_watermark=found["high_watermark"],
                reported_at_ms=rows.get(key, {}).get("reported_at_ms") or 0,
            )
        epochs = self._rules.run(
            "recovered_epochs",
            entries=self.root.leader_epoch_checkpoint.rows(),
            batches=log.batch_index(dict.fromkeys(log.partitions(), 0)),
            replicas=recovered,
        )
        self._epochs = _histories(epochs)


def overwrite(table: ControlTable, rows: pa.Table, fence: Fence) -> None:
    """Overwrite one of the broker's own tables by what it has in memory.

    Nobody else writes there, so where the table has moved a newer process has taken its fence
    (`FencedError`), or the broker's own maintenance was there and the memory is still the truth.
    """
    try:
        table.compare_and_set(rows, fence)
    except CommitConflictError:
        table.refresh()
        table.compare_and_set(rows, fence)


def _histories(rows: list[dict[str, Any]]) -> dict[TopicIdPartition, list[EpochEntry]]:
    histories: dict[TopicIdPartition, list[EpochEntry]] = defaultdict(list)
    for row in rows:
        key = TopicIdPartition(row["topic_id"], row["partition"])
        histories[key].append(EpochEntry(row["epoch"], row["start_offset"]))
    return {key: sorted(entries) for key, entries in histories.items()}
