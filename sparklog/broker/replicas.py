"""The replicas of one broker root: their state, and their checkpoints.

The root's journal is the source of truth. The state in memory is that of the journal, plus the
staged changes of the current step. After a crash it is rebuilt from the checkpoints and the journal
(rule 7.0).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from sparklog.broker.checkpoints import CheckpointWriter
from sparklog.broker.purgatory import Purgatory
from sparklog.clock import Clock, clocks
from sparklog.cluster.changed_partitions import ChangedPartitions
from sparklog.cluster.roots import BrokerRoot
from sparklog.errors import DamagedError
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.model import Batch, EpochEntry, Row, TopicIdPartition
from sparklog.protocol.rules import Rules
from sparklog.storage.batch_files import file_damage
from sparklog.storage.journal import Histories, InboxPosition, ProduceAnswer, Step
from sparklog.storage.location import one_line
from sparklog.storage.new_file import check_present

_log = get_logger(__name__)


class Replica(NamedTuple):
    """The state that a broker keeps of one replica in addition to its log.

    `leader_epoch` is the epoch in the replica's row in the journal. For a follower it is the epoch
    of the leader with which its log was last found to agree (rules 1.5, 6.4), and -1 before that.
    `parked_lags` are the lags of the followers that a leader noted when it was parked (5.1); see
    `Leadership`.
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

    `in_log`: the fault is in the replica's log, not in a batch file; its log end offset is wrong.
    `in_records`: its records differ from those of the replicas in sync; its files are sound.
    """

    from_offset: int
    error: DamagedError
    in_log: bool
    in_records: bool = False

    @property
    def is_of_file(self) -> bool:
        """Whether the fault is that of a batch file, which may be restored."""
        return not (self.in_log or self.in_records)


class Replicas:
    """All replicas of one broker root, recovered from its journal when it is opened.

    Changes of a step are staged, and readers of this object see them. `commit` makes them durable
    in one commit of the journal. Every tick begins with `settle`, which discards the staged changes
    of a failed tick.
    """

    def __init__(
        self,
        root: BrokerRoot,
        root_index: int,
        purgatory: Purgatory,
        rules: Rules,
        clock: Clock,
        checkpoint_interval_ms: int = 5_000,
    ) -> None:
        self.root = root
        self._failures = RepeatedFailures(_log)
        self.checkpoints = CheckpointWriter(root, checkpoint_interval_ms, clock)
        self._purgatory = purgatory
        self.root_index = root_index
        self._rules = rules
        self._journal = root.log
        self._replicas: dict[TopicIdPartition, Replica] = {}
        self._epochs: dict[TopicIdPartition, tuple[EpochEntry, ...]] = {}
        self._staged: dict[TopicIdPartition, Replica] = {}
        self._staged_epochs: dict[TopicIdPartition, tuple[EpochEntry, ...]] = {}
        self._appended: list[Batch] = []
        self._ends: dict[TopicIdPartition, int] = {}
        self._removing: set[TopicIdPartition] = set()
        # Replicas whose rows or histories in the journal differ from those in memory: they are
        # written with the next commit.
        self._unwritten: set[TopicIdPartition] = set()
        # Replicas whose rows in the journal report damage.
        self._told: set[TopicIdPartition] = set()
        self.news = 0
        """The number of commits that have changed more than the times of reports."""
        self.damaged: dict[TopicIdPartition, Damage] = {}
        """The damaged replicas: they do not follow, and lead only as the last in sync."""
        self.journal_damage: DamagedError | None = None
        """The damage that keeps other processes from opening the journal: nothing is committed."""
        self._leader_faults: dict[TopicIdPartition, tuple[int, int]] = {}
        self.changes = ChangedPartitions()
        """The replicas whose rows, histories or batches have changed."""
        self._version = self._journal.content_version
        self._settled_at = clocks()
        self._recover()
        if root.log.lacks_described:
            # The rows in the journal are those of a longer log.
            self.commit(clock.now_ms())

    def __contains__(self, key: TopicIdPartition) -> bool:
        return (key in self._staged or key in self._replicas) and key not in self._removing

    def __getitem__(self, key: TopicIdPartition) -> Replica:
        staged = self._staged.get(key)
        return self._replicas[key] if staged is None else staged

    def partitions(self) -> Collection[TopicIdPartition]:
        """Return the partitions of which this root has a replica."""
        return (self._replicas.keys() | self._staged.keys()) - self._removing

    def log_end_offset(self, key: TopicIdPartition) -> int:
        """Return the offset of the replica's next record."""
        staged = self._ends.get(key)
        if staged is not None:
            return staged
        replica = self._staged.get(key) or self._replicas.get(key)
        log_start_offset = replica.log_start_offset if replica is not None else 0
        return self._journal.log_end_offset(key, log_start_offset)

    def last_record_epoch(self, key: TopicIdPartition) -> int | None:
        """Return the leader epoch of the replica's last record."""
        batches = self._journal.batches(key, self.log_end_offset(key) - 1)
        return batches[-1].leader_epoch if batches else None

    # --- staging --------------------------------------------------------------------------------

    def put(self, key: TopicIdPartition, topic: str, **changes: Any) -> None:
        """Stage changes of a replica's state; a replica is created on demand (rule 1.4)."""
        replica = self[key] if key in self else Replica(topic, "follower")
        self._staged[key] = replica._replace(topic=topic, **changes)

    def append(self, batches: Iterable[Batch]) -> None:
        """Stage batches to append, those of each replica in order of their offsets."""
        for batch in batches:
            self._appended.append(batch)
            self._ends[batch.topic_id_partition] = batch.next_offset

    def epochs(self, key: TopicIdPartition) -> Sequence[EpochEntry]:
        """Return the replica's leader-epoch history, oldest first."""
        staged = self._staged_epochs.get(key)
        return self._epochs.get(key, ()) if staged is None else staged

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
        self._staged_epochs.update(_histories(result))

    def truncate_epochs(self, points: Mapping[TopicIdPartition, int]) -> None:
        """Drop the entries that start at or after each replica's new end (rule 6.5)."""
        for key, offset in points.items():
            kept = (entry for entry in self.epochs(key) if entry.start_offset < offset)
            self._staged_epochs[key] = tuple(kept)

    def cut_epochs(self, starts: Mapping[TopicIdPartition, int]) -> None:
        """Drop the entries before each replica's new log start offset (rule 8.3).

        The boundary is kept: the entry of the last record before that offset. By it a log whose
        records were all deleted is still compared with its leader's.
        """
        for key, offset in starts.items():
            entries = self.epochs(key)
            before = sum(entry.start_offset < offset for entry in entries)
            self._staged_epochs[key] = tuple(entries[max(before - 1, 0) :])

    def restart_epochs(self, entries: Mapping[TopicIdPartition, Sequence[EpochEntry]]) -> None:
        """Replace the histories of replicas whose logs are restarted (rule 6.7)."""
        self._staged_epochs |= {key: tuple(of_replica) for key, of_replica in entries.items()}

    def remove(self, keys: Iterable[TopicIdPartition]) -> None:
        """Stage the removal of replicas of deleted topics: batches, row and history (rule 7.9)."""
        self._removing |= set(keys)
        for key in self._removing:
            self._staged.pop(key, None)
            self._staged_epochs.pop(key, None)

    def truncation(self, key: TopicIdPartition, offset: int, cause: str, leader: int | None) -> Row:
        """Return the row of `truncations` for a replica that is about to be cut at `offset`."""
        replica, end = self[key], self.log_end_offset(key)
        start = replica.log_start_offset if cause == "log_restart" else min(offset, end)
        return {
            **key._asdict(),
            "topic": replica.topic,
            # The clock of commits, as in the other tables of the past.
            "at_ms": time.time_ns() // 1_000_000,
            "cause": cause,
            "leader": leader,
            "from_offset": end,
            "to_offset": offset,
            "high_watermark": replica.high_watermark,
            "records_removed": max(0, end - start),
            "records_lost": max(0, replica.high_watermark - offset),
        }

    # --- committing -----------------------------------------------------------------------------

    def commit(
        self,
        now_ms: int,
        added: Sequence[Batch] = (),
        removed: Sequence[Batch] = (),
        *,
        answers: Sequence[ProduceAnswer] = (),
        inbox_positions: Sequence[InboxPosition] = (),
        transactions: Mapping[str, int] | None = None,
        truncations: Sequence[Row] = (),
    ) -> bool:
        """Commit the staged changes, and batches added and removed; return if there were any.

        `answers`: to requests; `inbox_positions`: those up to which requests are taken with this
        commit; `transactions`: the versions of app transactions to set in it; `truncations`: rows
        of that table for the commit. Raises as `RecordLog.commit` does; the staged changes are then
        void (`settle`).
        """
        if self.journal_damage is not None:
            if added or removed or self._appended or answers or inbox_positions:
                raise self.journal_damage
            self._discard_staged()
            return False
        added = [*self._appended, *added]
        removed = [*removed, *self._batches_of(self._removing)]
        moved = {batch.topic_id_partition for batch in (*added, *removed)}
        ends = self._ends_after(moved, added, removed)
        touched = moved | self._unwritten | self._staged.keys()
        touched |= self.damaged.keys() | self._told | self._leader_faults.keys()
        changed = touched | self._staged_epochs.keys()
        rows = {}
        for key in touched:
            if key in self:
                row = self._row(key, ends)
                if row != self._journal.rows.get(key):
                    rows[key] = row
        histories = {
            key: Histories(self[key].topic, tuple(self.epochs(key)))
            for key in changed
            if key in self and tuple(self.epochs(key)) != self._journal.epochs.get(key, ())
        }
        operations = self._purgatory.staged()
        gone = [key for key in sorted(self._removing) if key in self._journal]
        step = Step(
            list(rows.values()), histories, operations, answers, inbox_positions, gone, truncations
        )
        # A commit that was given up may still land after later decisions: an empty commit takes its
        # version (rule 10.6).
        if not (added or removed or any(step) or self._journal.may_land_late):
            self.changes.note(changed)
            self._settle_staged()
            return False
        is_news = (
            bool(histories)
            or bool(operations)
            or bool(gone)
            or any(
                _without_report(row) != _without_report(self._journal.rows.get(key, {}))
                for key, row in rows.items()
            )
        )
        paths = (batch.path for batch in added)
        check_present(self.root.log.location, paths, self._settled_at)
        self._journal.commit_step(added, removed, step, now_ms, transactions)
        if is_news:
            self.news += 1
            self.checkpoints.note_change()
        self._version = self._journal.content_version
        self.changes.note(changed | self._removing)
        self._told -= rows.keys()
        self._told |= {key for key, row in rows.items() if _tells_of_damage(row)}
        self._unwritten.clear()
        self._settle_staged()
        return True

    def _batches_of(self, keys: Iterable[TopicIdPartition]) -> list[Batch]:
        """Return all live batches of these replicas, sound or not."""
        log = self._journal
        return [one for key in keys for one in (*log.batches(key), *log.unsound_batches(key))]

    def _ends_after(
        self, moved: Iterable[TopicIdPartition], added: Sequence[Batch], removed: Sequence[Batch]
    ) -> dict[TopicIdPartition, int]:
        """Return the log end offsets that the replicas have after a commit."""
        gone = {batch.path for batch in removed}
        after: dict[TopicIdPartition, int] = {}
        for batch in added:
            key = batch.topic_id_partition
            after[key] = max(batch.next_offset, after.get(key, 0))
        shrinking = {batch.topic_id_partition for batch in removed}
        ends = {}
        for key in moved:
            # Without removals, added batches come after all existing ones.
            batches = self._journal.batches(key) if key in shrinking else ()
            left = (one.next_offset for one in reversed(batches) if one.path not in gone)
            kept = next(left, 0)
            start = self[key].log_start_offset if key in self else 0
            ends[key] = max(start, kept, after.get(key, 0))
        return ends

    def _row(self, key: TopicIdPartition, ends: Mapping[TopicIdPartition, int]) -> dict[str, Any]:
        """Return the row of a replica for the journal."""
        replica, damage = self[key], self.damaged.get(key)
        end = ends.get(key)
        return {
            "topic_id": key.topic_id,
            "topic": replica.topic,
            "partition": key.partition,
            "leader_epoch": replica.leader_epoch,
            "broker_epoch": self.root.fence.epoch,
            "role": replica.role,
            "log_start_offset": replica.log_start_offset,
            "log_end_offset": self.log_end_offset(key) if end is None else end,
            "high_watermark": replica.high_watermark,
            "reported_at_ms": replica.reported_at_ms,
            "damaged_offset": damage.from_offset if damage else None,
            "damage": str(damage.error) if damage else None,
            "leader_damaged_offset": self._leader_fault(key),
            "parked_lags": replica.parked_lags,
        }

    def _settle_staged(self) -> None:
        """Make the staged changes the committed state."""
        for key in self._staged.keys() - self._replicas.keys():
            topic = self._staged[key].topic
            _log.info("replica created", topic=topic, partition=key.partition, high_watermark=0)
        self._replicas |= self._staged
        self._epochs |= self._staged_epochs
        self._forget(self._removing)
        self._purgatory.committed()
        self._discard_staged()

    def _discard_staged(self) -> None:
        self._purgatory.settle()
        self._staged.clear()
        self._staged_epochs.clear()
        self._appended.clear()
        self._ends.clear()
        self._removing.clear()

    def _forget(self, keys: Iterable[TopicIdPartition]) -> None:
        """Drop the state in memory of replicas that the journal no longer has."""
        for key in keys:
            for state in (self._replicas, self._epochs, self.damaged, self._leader_faults):
                state.pop(key, None)
            self._told.discard(key)
            self._unwritten.discard(key)

    def withdraw(self, keys: Iterable[TopicIdPartition], now_ms: int) -> None:
        """Withdraw the reports of followed replicas, durably, until they are reported again.

        A leader ignores the position in a withdrawn report (rule 1.3), so it cannot add the replica
        to the ISR by it. Called before `leave_isr`, which is called before a truncation.
        """
        for key in keys:
            if key in self:
                self.put(key, self[key].topic, leader_epoch=-1)
        self.commit(now_ms)

    # --- damage ---------------------------------------------------------------------------------

    def note_damage(self, key: TopicIdPartition, damage: Damage) -> None:
        """Note that a replica is damaged; the fault with the lowest offset counts."""
        known = self.damaged.get(key)
        if known is None or damage.from_offset < known.from_offset:
            in_log = damage.in_log or (known is not None and known.in_log)
            self.damaged[key] = damage._replace(in_log=in_log)

    def check_batch(self, batch: Batch) -> bool:
        """Verify the file of an own batch; note damage, and return whether there is any."""
        try:
            error = file_damage(self.root.log, batch)
        except OSError as failure:
            self._failures.warning(
                "verify", "batch not verified", path=batch.path, error=one_line(failure)
            )
            return False
        self._failures.over("verify")
        if error is None:
            return False
        self.note_damage(batch.topic_id_partition, Damage(batch.base_offset, error, in_log=False))
        return True

    def drop_restored(self) -> None:
        """Forget the damage to batch files that have been restored meanwhile."""
        for key, damage in list(self.damaged.items()):
            batch = self.root.log.batch_at(key, damage.from_offset)
            if damage.is_of_file and batch is not None:
                del self.damaged[key]
                self.check_batch(batch)

    def note_leader_fault(self, key: TopicIdPartition, offset: int | None) -> None:
        """Report that the leader's batch at `offset` is damaged; `None` withdraws the report.

        It is reported until the leader epoch changes.
        """
        if offset is not None:
            self._leader_faults[key] = self[key].leader_epoch, offset
        else:
            self._leader_faults.pop(key, None)

    def _leader_fault(self, key: TopicIdPartition) -> int | None:
        epoch, offset = self._leader_faults.get(key, (None, None))
        return offset if epoch == self[key].leader_epoch else None

    # --- state in the journal -------------------------------------------------------------------

    @property
    def is_written(self) -> bool:
        """Whether the journal has the whole state of the replicas.

        False before the first commit, and after `settle` has found a commit until the next one.
        """
        return not self._unwritten

    def settle(self) -> None:
        """Discard the staged changes of a failed tick, and apply commits whose answers were lost.

        Such a commit is found in the journal later, with all of its effects (rules 7.0, 10.6).
        Called before a tick decides anything; costs nothing if there is no such commit. Raises
        `FencedError` if a newer process has made commits since: its replicas are not those that
        this one leads.
        """
        self._discard_staged()
        self._settled_at = clocks()
        log = self._journal
        if log.is_uncertain:
            log.refresh()
            log.check_fence()
        keys = log.pop_moved()
        if log.content_version != self._version:
            self._version = log.content_version
            self._purgatory.reload()
        if not keys:
            return
        _log.warning(
            "commit found whose answer was lost",
            root=self.root.location.uri,
            replicas=len(keys),
            log_version=log.version,
        )
        found = keys
        self._forget(key for key in keys if key not in log)
        keys = {key for key in keys if key in log}
        for key in keys & log.rows.keys():
            self._replicas[key] = _replica(log.rows[key])
        # The state that the log implies, if another tool has made the commit.
        known = {key: self._replicas[key] for key in keys if key in self._replicas}
        offsets = {key: (one.log_start_offset, one.high_watermark) for key, one in known.items()}
        self._epochs |= {key: log.epochs.get(key, ()) for key in keys}
        derived = self._derive(keys, offsets, self.epoch_entries(keys))
        for row in derived.replicas:
            key = TopicIdPartition(row["topic_id"], row["partition"])
            batches = log.batches(key)
            if key in known:
                replica = known[key]
            elif batches:
                replica = Replica(batches[0].topic, "follower")
            else:
                continue
            self._replicas[key] = replica._replace(
                log_start_offset=row["log_start_offset"],
                high_watermark=row["high_watermark"],
            )
        for key in keys & self._replicas.keys():
            self._epochs[key] = (*derived.epochs.get(key, ()), *self._entry_at_end(key))
        self._unwritten |= keys & self._replicas.keys()
        self.changes.note(found)

    def _entry_at_end(self, key: TopicIdPartition) -> list[EpochEntry]:
        """Return the entry of the epoch in which the replica leads, while it has no record of it.

        The entry is written before the first append of the epoch (rule 6.1), so no batch implies
        it.
        """
        replica = self._replicas[key]
        if replica.role != "leader":
            return []
        end = self.log_end_offset(key)
        entries = self.epochs(key)[-1:]
        return [one for one in entries if one == (replica.leader_epoch, end)]

    def _recover(self) -> None:
        log = self.root.log
        # All replicas are derived from the log here, so the changed ones are of no interest.
        log.pop_moved()
        rows = log.rows
        topics = {key: row["topic"] for key, row in rows.items()}
        topics |= {key: log.batches(key)[0].topic for key in log.partitions()}
        topics |= {
            key: log.unsound_batches(key)[0].topic for key in log.damaged if key not in topics
        }
        derived = self._derive(
            topics,
            {key: self._known_offsets(key, rows.get(key)) for key in topics},
            log.epoch_table(),
        )
        for found in derived.replicas:
            key = TopicIdPartition(found["topic_id"], found["partition"])
            if key not in rows:
                _log.warning("replica row missing", topic=topics[key], partition=key.partition)
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
        # All rows are written again: readers must see that another process has taken the root over.
        self._unwritten |= self._replicas.keys()
        self._told = {key for key, row in rows.items() if _tells_of_damage(row)}
        self._recover_damage(rows)

    def _recover_damage(self, rows: Mapping[TopicIdPartition, Mapping[str, Any]]) -> None:
        """Note damage of the log, and verify the batch files that were reported as damaged."""
        log = self.root.log
        for key, error in log.damaged.items():
            self.damaged[key] = Damage(log.log_end_offset(key), error, in_log=True)
        for key, row in rows.items():
            offset = row.get("damaged_offset")
            batch = log.batch_at(key, offset) if offset is not None else None
            if batch is not None:
                self.check_batch(batch)

    def _known_offsets(
        self, key: TopicIdPartition, row: Mapping[str, Any] | None
    ) -> tuple[int, int | None]:
        """Return the checkpointed log start offset and high watermark.

        Without a checkpoint the log begins with its first batch, and its high watermark is unknown.
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
        """Derive positions and epoch histories from the log by the rules (rule 7.0).

        Parameters: `keys`, the replicas; `offsets`, their known log start offsets and high
        watermarks; `entries`, the known epoch entries.
        """
        if not keys:
            return _Derived([], {})
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
            # Later batches of an epoch do not change the result.
            batches=log.epoch_starts(keys),
            replicas=replicas,
        )
        return _Derived(replicas, _histories(epochs))


class _Derived(NamedTuple):
    """The replicas that the rules derive from a log: rows with positions, and histories."""

    replicas: list[dict[str, Any]]
    epochs: dict[TopicIdPartition, tuple[EpochEntry, ...]]


def _tells_of_damage(row: Mapping[str, Any]) -> bool:
    return row["damaged_offset"] is not None or row["leader_damaged_offset"] is not None


def _without_report(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "reported_at_ms"}


def _replica(row: Mapping[str, Any]) -> Replica:
    """Return the replica that a row of the journal describes."""
    return Replica(
        row["topic"],
        row["role"],
        row["leader_epoch"],
        row["log_start_offset"],
        row["high_watermark"],
        row["reported_at_ms"],
        row.get("parked_lags"),
    )


def _histories(rows: list[dict[str, Any]]) -> dict[TopicIdPartition, tuple[EpochEntry, ...]]:
    histories: dict[TopicIdPartition, list[EpochEntry]] = defaultdict(list)
    for row in rows:
        key = TopicIdPartition(row["topic_id"], row["partition"])
        histories[key].append(EpochEntry(row["epoch"], row["start_offset"]))
    return {key: tuple(sorted(entries)) for key, entries in histories.items()}
