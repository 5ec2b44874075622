"""The replicas of one broker root: what the broker knows of them, and their checkpoints.

Between two ticks the memory is the truth, since nobody else may write to the root; after a crash
it is rebuilt from the tables (rule 7.0).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from sparklog.errors import CommitConflictError, DamagedError
from sparklog.logger import get_logger
from sparklog.model import (
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    Batch,
    EpochEntry,
    TopicIdPartition,
)
from sparklog.protocol.rules import Rules
from sparklog.storage.batch_files import file_damage
from sparklog.storage.control_table import ControlTable, Fence
from sparklog.storage.location import one_line
from sparklog.storage.roots import BrokerRoot

_log = get_logger(__name__)


VERIFY_INTERVAL_MS = 10_000
"""How often a broker verifies its tables that other processes depend on, to find damage."""


@dataclass(frozen=True)
class Replica:
    """What a broker keeps of one replica beside its log.

    `leader_epoch` is the epoch that the checkpointed row bears: for a follower, that of the
    leader with which its log was last found to agree (rules 1.5, 6.4); -1 before that.
    `parked_lags` is what a leader that was parked noted of its followers (5.1); see `Leadership`.
    """

    topic: str
    role: Literal["leader", "follower"]
    leader_epoch: int = -1
    log_start_offset: int = 0
    high_watermark: int = 0
    reported_at_ms: int = 0
    parked_lags: str | None = None


class Damage(NamedTuple):
    """The first fault of a replica: the offset from which on it is damaged, and the fault.

    `in_log`: whether its log has the fault, not a batch file: its log end offset is wrong then.
    """

    from_offset: int
    error: DamagedError
    in_log: bool


class Replicas:
    """All replicas of one broker root, recovered from its tables when it is opened."""

    def __init__(self, root: BrokerRoot, root_index: int, rules: Rules) -> None:
        self.root = root
        self.root_index = root_index
        self._rules = rules
        self._replicas: dict[TopicIdPartition, Replica] = {}
        self.damaged: dict[TopicIdPartition, Damage] = {}
        """The damaged replicas: they are not followed, and lead only as the last in sync."""
        self._leader_faults: dict[TopicIdPartition, tuple[int, int]] = {}
        self._epochs: dict[TopicIdPartition, list[EpochEntry]] = {}
        self._epochs_written: pa.Table | None = None
        self._written: pa.Table | None = None
        self._verified_at_ms = 0
        self._recover()

    def __contains__(self, key: TopicIdPartition) -> bool:
        return key in self._replicas

    def __getitem__(self, key: TopicIdPartition) -> Replica:
        return self._replicas[key]

    def partitions(self) -> Collection[TopicIdPartition]:
        """Return the partitions of which this root has a replica."""
        return self._replicas.keys()

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

    def withdraw(self, keys: Iterable[TopicIdPartition]) -> None:
        """Withdraw the reports of followed replicas, durably, until they are reported again.

        A leader counts no position of a withdrawn report (rule 1.3), so it cannot add the replica
        to the ISR by it. Called before `leave_isr`, which is called before a truncation.
        """
        for key in keys:
            if key in self._replicas:
                self.put(key, self._replicas[key].topic, leader_epoch=-1)
        self.write_checkpoint()

    def note_damage(self, key: TopicIdPartition, damage: Damage) -> None:
        """Note that a replica is damaged; the first fault counts."""
        known = self.damaged.get(key)
        if known is None or damage.from_offset < known.from_offset:
            in_log = damage.in_log or (known is not None and known.in_log)
            self.damaged[key] = damage._replace(in_log=in_log)

    def check_batch(self, batch: Batch) -> bool:
        """Verify the file of an own batch; return whether it is damaged, which is noted."""
        try:
            error = file_damage(self.root.log, batch)
        except OSError as failure:
            _log.warning("batch not verified", path=batch.path, error=one_line(failure))
            return False
        if error is None:
            return False
        self.note_damage(batch.topic_id_partition, Damage(batch.base_offset, error, in_log=False))
        return True

    def drop_restored(self) -> None:
        """Forget the damage to batch files that were restored meanwhile."""
        for key, damage in list(self.damaged.items()):
            batch = self.root.log.batch_at(key, damage.from_offset)
            if not damage.in_log and batch is not None:
                del self.damaged[key]
                self.check_batch(batch)

    def note_leader_fault(self, key: TopicIdPartition, offset: int | None) -> None:
        """Report that the leader's batch at `offset` is damaged; `None`: that it is not (any more).

        It is reported until the leader epoch changes.
        """
        if offset is not None:
            self._leader_faults[key] = self._replicas[key].leader_epoch, offset
        else:
            self._leader_faults.pop(key, None)

    def _leader_fault(self, key: TopicIdPartition) -> int | None:
        epoch, offset = self._leader_faults.get(key, (None, None))
        return offset if epoch == self._replicas[key].leader_epoch else None

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

    def find_damage(self, now_ms: int) -> bool:
        """Read the tables again that others read, where that is due; say whether one is damaged.

        Damaged checkpoints are written again by `write_epochs` and `write_checkpoint`. A table of
        answers whose log is damaged starts again empty. Only in local folders: an object store
        verifies its objects itself, and reads cost requests.
        """
        is_due = now_ms >= self._verified_at_ms + VERIFY_INTERVAL_MS
        if not is_due or not self.root.location.is_local:
            return False
        self._verified_at_ms = now_ms
        is_damaged = False
        for table in (self.root.leader_epoch_checkpoint, self.root.high_watermark_checkpoint):
            try:
                table.verify()
            except DamagedError as error:
                _log.error("checkpoint written again", error=str(error))
                table.mend_log(self.root.fence)
                self._epochs_written = self._written = None
                is_damaged = True
        try:
            self.root.produce_responses.verify_log()
        except DamagedError as error:
            _log.error("table recreated", error=str(error))
            self.root.produce_responses.mend_log(self.root.fence)
        return is_damaged

    @property
    def is_written(self) -> bool:
        """Whether the checkpoint says all there is to say, but for the log's newest version
        and damage that was found since.

        It does not before the first tick, and after one that failed half-way.
        """
        if self._written is None:
            return False
        left_out = ["log_version", "damaged_offset", "damage", "leader_damaged_offset"]
        return bool(
            self._checkpoint_rows()
            .drop_columns(left_out)
            .equals(self._written.drop_columns(left_out))
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
        damaged = [self.damaged.get(key) for key in keys]
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
            "damaged_offset": [one.from_offset if one else None for one in damaged],
            "damage": [str(one.error) if one else None for one in damaged],
            "leader_damaged_offset": [self._leader_fault(key) for key in keys],
            "parked_lags": [one.parked_lags for one in replicas],
        }
        return pa.table(columns, schema=HIGH_WATERMARK_CHECKPOINT.columns)

    def settle(self) -> None:
        """Derive the memory from the log for the replicas that changed otherwise than by a tick.

        A commit whose answer was lost is found in the log later. Its epoch entries, positions and
        truncations are what the log implies, as at a start (rules 7.0, 10.6). Called before a tick
        decides anything; costs nothing where no such commit was made.
        """
        log = self.root.log
        if log.is_uncertain:
            log.refresh()
        keys = log.take_moved()
        if not keys:
            return
        _log.warning(
            "commit found whose answer was lost",
            root=self.root.location.uri,
            replicas=len(keys),
            log_version=log.version,
        )
        known = {key: self._replicas[key] for key in keys if key in self._replicas}
        offsets = {key: (one.log_start_offset, one.high_watermark) for key, one in known.items()}
        derived = self._derive(keys, offsets, self.epoch_entries(keys))
        for row in derived.replicas:
            key = TopicIdPartition(row["topic_id"], row["partition"])
            batches = log.batches(key)
            if key not in known and not batches:
                continue
            topic = known[key].topic if key in known else batches[0].topic
            self.put(
                key,
                topic,
                log_start_offset=row["log_start_offset"],
                high_watermark=row["high_watermark"],
            )
        for key in keys & self._replicas.keys():
            self._epochs[key] = derived.epochs.get(key, []) + self._entry_at_end(key)
        self.write_epochs()

    def _entry_at_end(self, key: TopicIdPartition) -> list[EpochEntry]:
        """Return the entry of the epoch that the replica leads in, while it has no record of it.

        It is written before the first append of the epoch (rule 6.1), so no log tells of it.
        """
        replica = self._replicas[key]
        if replica.role != "leader":
            return []
        end = self.log_end_offset(key)
        entries = self.epochs(key)[-1:]
        return [one for one in entries if one == (replica.leader_epoch, end)]

    def _recover(self) -> None:
        log = self.root.log
        # The replicas are derived from the whole log here.
        log.take_moved()
        table = self.root.high_watermark_checkpoint.rows()
        rows = {TopicIdPartition(r["topic_id"], r["partition"]): r for r in table.to_pylist()}
        topics = {key: row["topic"] for key, row in rows.items()}
        topics |= {key: log.batches(key)[0].topic for key in log.partitions()}
        topics |= {
            key: log.unsound_batches(key)[0].topic for key in log.damaged if key not in topics
        }
        derived = self._derive(
            topics,
            {key: self._known_offsets(key, rows.get(key)) for key in topics},
            self.root.leader_epoch_checkpoint.rows(),
        )
        for found in derived.replicas:
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
                parked_lags=rows.get(key, {}).get("parked_lags"),
            )
        self._epochs = derived.epochs
        # The last process may have ended between a commit to the log and the entries it implies.
        self._epochs_written = self.root.leader_epoch_checkpoint.rows()
        self.write_epochs()
        self._recover_damage(rows)

    def _recover_damage(self, rows: Mapping[TopicIdPartition, Mapping[str, Any]]) -> None:
        """Find again which batch files were damaged when this was last reported."""
        log = self.root.log
        for key, error in log.damaged.items():
            self.damaged[key] = Damage(log.log_end_offset(key), error, in_log=True)
        for key, row in rows.items():
            offset = row["damaged_offset"]
            batch = log.batch_at(key, offset) if offset is not None else None
            if batch is not None:
                self.check_batch(batch)

    def _known_offsets(
        self, key: TopicIdPartition, row: Mapping[str, Any] | None
    ) -> tuple[int, int | None]:
        """Return the checkpointed log start offset and high watermark.

        Without a checkpoint the log begins with its first batch.
        """
        if row is not None:
            return row["log_start_offset"], row["high_watermark"]
        return self.root.log.batches(key)[0].base_offset, None

    def _derive(
        self,
        keys: Collection[TopicIdPartition],
        offsets: Mapping[TopicIdPartition, tuple[int, int | None]],
        entries: pa.Table | list[dict[str, Any]],
    ) -> _Derived:
        """Let the rules derive positions and epoch histories from the log (rule 7.0).

        Parameters: `keys`, the replicas; `offsets`, the log start offset and high watermark that
        are known of them; `entries`, the epoch entries that are known.
        """
        log = self.root.log
        loaded = [
            {
                "topic_id": key.topic_id,
                "partition": key.partition,
                "log_start_offset": offsets.get(key, (None, None))[0],
                "checkpointed_high_watermark": offsets.get(key, (None, None))[1],
                "log_end_offset": log.log_end_offset(key),
            }
            for key in keys
        ]
        replicas = self._rules.run("recovered_replicas", replicas=loaded)
        epochs = self._rules.run(
            "recovered_epochs",
            entries=entries,
            batches=log.batch_index(dict.fromkeys(keys, 0)),
            replicas=replicas,
        )
        return _Derived(replicas, _histories(epochs))


class _Derived(NamedTuple):
    """The replicas as the rules derive them from a log: rows with positions, and histories."""

    replicas: list[dict[str, Any]]
    epochs: dict[TopicIdPartition, list[EpochEntry]]


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
    except DamagedError as error:
        # The table was removed or its log damaged while the broker ran.
        _log.error("table recreated", error=str(error))
        table.recreate(fence)
        table.compare_and_set(rows, fence)


def _histories(rows: list[dict[str, Any]]) -> dict[TopicIdPartition, list[EpochEntry]]:
    histories: dict[TopicIdPartition, list[EpochEntry]] = defaultdict(list)
    for row in rows:
        key = TopicIdPartition(row["topic_id"], row["partition"])
        histories[key].append(EpochEntry(row["epoch"], row["start_offset"]))
    return {key: sorted(entries) for key, entries in histories.items()}
