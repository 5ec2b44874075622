"""The follower role of one broker root: agree with the leader, copy what it has, report.

A tick reads who leads in which epoch, finds where the logs agree and cuts the own one there, joins
its positions with the leader's batches, copies the files, and commits them if the leader is still
the same. Effects happen in the order: truncation, copy, log, epoch entries, checkpoint.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import structlog
from deltalake.exceptions import DeltaError

from sparklog.broker.replicas import Replicas
from sparklog.broker.tick import Effects, TickReport
from sparklog.config import Settings
from sparklog.errors import StorageError
from sparklog.model import (
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    Batch,
    EpochEntry,
    TopicIdPartition,
    new_batch_path,
)
from sparklog.protocol.rules import Rules
from sparklog.storage.batch_files import Copy, rewrite_slice
from sparklog.storage.control_table import ControlTable
from sparklog.storage.location import Location
from sparklog.storage.metadata import Metadata, MetadataReader, PartitionState
from sparklog.storage.record_log import RecordLog

_log = structlog.get_logger(__name__)


UNREADABLE = (StorageError, DeltaError, OSError)
"""What reading another broker's root may raise."""

_NEWS = ("log_start_offset", "log_end_offset", "high_watermark")
"""What makes a leader's row news to its followers when it changes."""


class Copier(Protocol):
    """What copies batch files: this process, or the tasks of a Spark job."""

    jobs: int

    def copy(self, copies: list[Copy]) -> list[str | None]:
        """Copy all; return what went wrong with each, or `None`."""
        ...


class LeaderRoot:
    """The tables of a leader's root, as a follower reads them."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.log = RecordLog(location)
        self._checkpoint = ControlTable(location, HIGH_WATERMARK_CHECKPOINT)
        self._epochs = ControlTable(location, LEADER_EPOCH_CHECKPOINT)

    def rows(self) -> dict[TopicIdPartition, dict[str, Any]]:
        """Return the newest rows of the leader's replicas."""
        self._checkpoint.refresh()
        rows = self._checkpoint.rows().to_pylist()
        return {TopicIdPartition(row["topic_id"], row["partition"]): row for row in rows}

    def entries(self, version: int) -> list[dict[str, Any]]:
        """Return the leader-epoch histories as of the version that a row names."""
        self._epochs.refresh()
        rows: list[dict[str, Any]] = self._epochs.rows_at(version).to_pylist()
        return rows


class Followed(NamedTuple):
    """One partition to be followed: what the controller says and the leader's row."""

    state: PartitionState
    root: LeaderRoot
    row: dict[str, Any]

    @property
    def key(self) -> TopicIdPartition:
        """The partition, by its topic's id."""
        return self.state.key


class Follower:
    """Plays the follower role for one root."""

    def __init__(
        self,
        broker_id: int,
        reader: MetadataReader,
        replicas: Replicas,
        rules: Rules,
        settings: Settings,
        copier: Copier,
    ) -> None:
        self._broker_id = broker_id
        self._reader = reader
        self._replicas = replicas
        self._root = replicas.root
        self._rules = rules
        self._settings = settings
        self._copier = copier
        # By broker, its root, and its process: one that was started anew may have new tables.
        self._leader_roots: dict[tuple[int, int, int], LeaderRoot] = {}
        self._seen: object = None

    def tick(self, metadata: Metadata, now_ms: int, effects: Effects) -> TickReport:
        """Do what is to be done at `now_ms`."""
        report = TickReport()
        before, jobs_before = self._root.commits(), self._copier.jobs
        followed = self._followed(metadata)
        news = [(one.state.leader_epoch, *map(one.row.get, _NEWS)) for one in followed]
        if not followed or not self._is_due(followed, news, now_ms):
            return report
        agreed = self._agree(followed)
        effects.done("truncate")
        copied = self._fetch(agreed, report)
        effects.done("copy")
        self._commit(copied)
        effects.done("log_commit")
        self._report(agreed, now_ms)
        report.changed = self._replicas.write_checkpoint()
        effects.done("checkpoint")
        report.commits = self._root.commits() - before
        report.spark_jobs = self._copier.jobs - jobs_before
        # Last, so that what failed or has to wait is tried again.
        self._seen = news if len(agreed) == len(followed) else None
        return report

    def _followed(self, metadata: Metadata) -> list[Followed]:
        """Return what is to be followed and whose leader's row bears the epoch (6.4)."""
        wanted: dict[tuple[int, int, int], list[PartitionState]] = defaultdict(list)
        for state in metadata.partitions.values():
            own = state.replica(self._broker_id)
            if own is None or own.root != self._replicas.root_index:
                continue
            leader = state.replica(state.leader) if state.leader is not None else None
            if leader is None or leader.broker_id == self._broker_id:
                continue
            of = leader.broker_id, leader.root, state.leader_broker_epoch
            wanted[of].append(state)
        self._leader_roots = {of: root for of, root in self._leader_roots.items() if of in wanted}
        followed = []
        for of, states in wanted.items():
            try:
                root = self._leader_root(of)
                rows = root.rows()
            except UNREADABLE as error:
                _log.warning("leader not readable", broker=of[0], error=str(error))
                self._leader_roots.pop(of, None)
                continue
            for state in states:
                row = rows.get(state.key)
                if (
                    row is not None
                    and row["role"] == "leader"
                    and row["leader_epoch"] == state.leader_epoch
                    and row["broker_epoch"] == state.leader_broker_epoch
                ):
                    followed.append(Followed(state, root, row))
        return followed

    def _leader_root(self, of: tuple[int, int, int]) -> LeaderRoot:
        if of not in self._leader_roots:
            broker_id, index, _ = of
            self._leader_roots[of] = LeaderRoot(self._reader.location(broker_id, index))
        return self._leader_roots[of]

    def _is_due(self, followed: list[Followed], news: object, now_ms: int) -> bool:
        """Say whether a leader has news or records, or the own rows must be renewed (5.1)."""
        renewal_ms = self._settings.replica_lag_time_max_ms // 3
        return news != self._seen or any(
            one.key not in self._replicas
            or one.row["log_end_offset"] > self._replicas.log_end_offset(one.key)
            or now_ms - self._replicas[one.key].reported_at_ms >= renewal_ms
            for one in followed
        )

    def _agree(self, followed: list[Followed]) -> list[Followed]:
        """Find where each log agrees with its leader's and cut it there (6.3, 6.5)."""
        for one in followed:
            self._replicas.put(one.key, one.state.topic, role="follower")
        rows = [
            {
                "topic_id": one.key.topic_id,
                "partition": one.key.partition,
                "leader_epoch": one.state.leader_epoch,
                "log_end_offset": self._replicas.log_end_offset(one.key),
                "log_start_offset": self._replicas[one.key].log_start_offset,
                "leader_log_end_offset": one.row["log_end_offset"],
            }
            for one in followed
        ]
        found = self._rules.run(
            "truncation_point",
            followed=rows,
            own_entries=self._replicas.epoch_entries([one.key for one in followed]),
            leader_entries=self._leader_entries(followed),
        )
        points: dict[TopicIdPartition, int] = {}
        waiting: set[TopicIdPartition] = set()
        for row in found:
            key = TopicIdPartition(row["topic_id"], row["partition"])
            if row["waits"]:
                waiting.add(key)
            elif row["truncate_to"] is not None:
                points[key] = row["truncate_to"]
        if points:
            waiting |= self._truncate(points)
        agreed = [one for one in followed if one.key not in waiting]
        for one in agreed:
            self._replicas.put(one.key, one.state.topic, leader_epoch=one.state.leader_epoch)
        return agreed

    def _leader_entries(self, followed: Iterable[Followed]) -> list[dict[str, Any]]:
        """Return the leaders' histories, each as of the version that its row names.

        Where one cannot be read its followers wait, as for an entry that is not there yet.
        """
        rows: list[dict[str, Any]] = []
        versions: dict[tuple[LeaderRoot, int], set[TopicIdPartition]] = defaultdict(set)
        for one in followed:
            versions[one.root, one.row["epochs_version"]].add(one.key)
        for (root, version), keys in versions.items():
            try:
                entries = root.entries(version)
            except UNREADABLE as error:
                self._let_go(root, error)
                continue
            rows += [row for row in entries if (row["topic_id"], row["partition"]) in keys]
        return rows

    def _let_go(self, root: LeaderRoot, error: Exception) -> None:
        """Open a root anew in the next tick; the others' replicas go on."""
        _log.warning("leader not readable", root=root.location.uri, error=str(error))
        self._leader_roots = {of: one for of, one in self._leader_roots.items() if one is not root}

    def _truncate(self, points: dict[TopicIdPartition, int]) -> set[TopicIdPartition]:
        """Drop what lies at or after each point: records first, the rest follows (6.5).

        Returns the partitions that cannot be cut, since an own batch cannot be read.
        """
        removed: list[Batch] = []
        kept: list[Batch] = []
        unreadable: set[TopicIdPartition] = set()
        log = self._root.log
        for key, offset in points.items():
            batches = log.batches(key, offset)
            try:
                kept += [
                    rewrite_slice(log.location, batch, 0, offset, log.location)
                    for batch in batches
                    if batch.base_offset < offset
                ]
            except StorageError as error:
                _log.error("batch not cut", partition=key.partition, fault=str(error))
                unreadable.add(key)
                continue
            removed += batches
            self._announce_truncation(key, offset)
        if removed:
            log.commit(kept, removed)
        cut = {key: offset for key, offset in points.items() if key not in unreadable}
        for key, offset in cut.items():
            replica = self._replicas[key]
            high_watermark = min(replica.high_watermark, offset)
            self._replicas.put(key, replica.topic, high_watermark=high_watermark)
        self._replicas.truncate_epochs(cut)
        self._replicas.write_epochs()
        return unreadable

    def _announce_truncation(self, key: TopicIdPartition, offset: int) -> None:
        replica = self._replicas[key]
        is_loss = offset < replica.high_watermark
        (_log.warning if is_loss else _log.info)(
            "truncated below the high watermark: records are lost" if is_loss else "truncated",
            broker=self._broker_id,
            topic=replica.topic,
            partition=key.partition,
            from_offset=self._replicas.log_end_offset(key),
            to_offset=offset,
        )

    def _fetch(self, followed: list[Followed], report: TickReport) -> list[Batch]:
        """Join the positions with the leaders' batches and copy what the join gives."""
        of_log: dict[tuple[LeaderRoot, int], list[Followed]] = defaultdict(list)
        for one in followed:
            if one.row["log_end_offset"] > self._replicas.log_end_offset(one.key):
                of_log[one.root, one.row["log_version"]].append(one)
        copies: list[Copy] = []
        copied: list[Batch] = []
        sliced: list[Batch] = []
        for (root, version), members in of_log.items():
            try:
                work = self._work_list(root, version, members)
            except UNREADABLE as error:
                self._let_go(root, error)
                continue
            stopped: set[TopicIdPartition] = set()
            for batch, straddles in work:
                key = batch.topic_id_partition
                if straddles:
                    part = self._slice(root, batch, self._replicas.log_end_offset(key))
                    if part is None:
                        stopped.add(key)
                    else:
                        sliced.append(part)
                elif key not in stopped:
                    copy = self._copy(root, batch)
                    copies.append(copy)
                    copied.append(batch._replace(path=copy.target_path))
        faults = self._copier.copy(copies)
        report.files_copied += len(copies)
        report.bytes_copied += sum(copy.size_bytes for copy in copies)
        return sliced + self._intact(copied, faults)

    def _work_list(
        self, root: LeaderRoot, version: int, members: list[Followed]
    ) -> list[tuple[Batch, bool]]:
        """Return the leader's batches that are to be fetched, and which have to be cut."""
        root.log.refresh(version)
        work = self._rules.run(
            "fetch",
            positions=[self._position(one) for one in members],
            batches=root.log.batch_index(
                {one.key: self._replicas.log_end_offset(one.key) for one in members}
            ),
        )
        found = []
        for row in work:
            key = TopicIdPartition(row["topic_id"], row["partition"])
            found.append((root.log.batches(key, row["base_offset"])[0], row["straddles"]))
        return found

    def _copy(self, root: LeaderRoot, batch: Batch) -> Copy:
        return Copy(
            root.log.location,
            batch.path,
            self._root.log.location,
            new_batch_path(batch.batch_id),
            batch.size_bytes,
            batch.checksum,
        )

    def _slice(self, root: LeaderRoot, batch: Batch, from_offset: int) -> Batch | None:
        target = self._root.log.location
        try:
            return rewrite_slice(root.log.location, batch, from_offset, batch.next_offset, target)
        except StorageError as error:
            _log.warning("batch not copied", topic=batch.topic, fault=str(error))
            return None

    def _intact(self, batches: list[Batch], faults: list[str | None]) -> list[Batch]:
        """Return the batches that arrived; a bad one stops its partition only (8.4)."""
        stopped: set[TopicIdPartition] = set()
        intact = []
        for batch, fault in zip(batches, faults, strict=True):
            key = batch.topic_id_partition
            if fault is not None:
                stopped.add(key)
                _log.warning("batch not copied", topic=batch.topic, partition=key[1], fault=fault)
            elif key not in stopped:
                intact.append(batch)
        return intact

    def _position(self, one: Followed) -> dict[str, Any]:
        return {
            "topic_id": one.key.topic_id,
            "partition": one.key.partition,
            "fetch_offset": self._replicas.log_end_offset(one.key),
            "last_fetched_epoch": self._replicas.last_record_epoch(one.key),
            "leader_epoch": one.state.leader_epoch,
            "max_bytes": self._settings.replica_fetch_max_bytes,
            "max_total_bytes": self._settings.replica_fetch_response_max_bytes,
        }

    def _commit(self, batches: list[Batch]) -> None:
        """Commit what was copied, unless a leader moved meanwhile; then its new epochs (6.1)."""
        if not batches:
            return
        partitions = self._reader.load().partitions
        moved = {
            key
            for key in {batch.topic_id_partition for batch in batches}
            if key not in partitions
            or partitions[key].leader_epoch != self._replicas[key].leader_epoch
        }
        batches = [batch for batch in batches if batch.topic_id_partition not in moved]
        if not batches:
            return
        self._root.log.commit(sorted(batches, key=lambda batch: batch.base_offset))
        entries: dict[int, dict[TopicIdPartition, EpochEntry]] = defaultdict(dict)
        for batch in sorted(batches, key=lambda batch: batch.base_offset):
            key = batch.topic_id_partition
            known = {entry.epoch for entry in self._replicas.epochs(key)}
            if batch.leader_epoch not in known:
                entry = EpochEntry(batch.leader_epoch, batch.base_offset)
                entries[batch.leader_epoch].setdefault(key, entry)
        for epoch in sorted(entries):
            self._replicas.assign_epochs(entries[epoch])
        if entries:
            self._replicas.write_epochs()

    def _report(self, agreed: list[Followed], now_ms: int) -> None:
        """Bring the own rows up to date: position, high watermark (2.5), and that one lives."""
        rows = [
            {
                "topic_id": one.key.topic_id,
                "partition": one.key.partition,
                "leader_high_watermark": one.row["high_watermark"],
                "log_end_offset": self._replicas.log_end_offset(one.key),
            }
            for one in agreed
        ]
        for row in self._rules.run("follower_high_watermark", followed=rows):
            key = TopicIdPartition(row["topic_id"], row["partition"])
            self._replicas.put(
                key,
                self._replicas[key].topic,
                high_watermark=row["high_watermark"],
                reported_at_ms=now_ms,
            )
