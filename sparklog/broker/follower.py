"""The follower role of one broker root: agree with the leader, copy what it has, report.

A tick reads who leads in which epoch, finds where the logs agree and cuts the own one there, joins
its positions with the leader's batches, copies the files, and commits them if the leader is still
the same. Effects happen in the order: truncation, copy, log, epoch entries, checkpoint.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import structlog

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
        self.checkpoint = ControlTable(location, HIGH_WATERMARK_CHECKPOINT)
        self.epochs = ControlTable(location, LEADER_EPOCH_CHECKPOINT)
        self.log = RecordLog(location)


class Followed(NamedTuple):
    """One partition to be followed: what the controller says and the leader's row."""

    state: PartitionState
    location: Location
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
        self._leader_roots: dict[str, LeaderRoot] = {}
        self._seen: object = None

    def tick(self, now_ms: int, effects: Effects) -> TickReport:
        """Do what is to be done at `now_ms`."""
        report = TickReport()
        before, jobs_before = self._root.commits(), self._copier.jobs
        metadata = self._reader.load()
        followed = self._followed(metadata)
        news = [(one.state.leader_epoch, *map(one.row.get, _NEWS)) for one in followed]
        if not followed or not self._is_due(followed, news, now_ms):
            return report
        self._seen = news
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
        return report

    def _followed(self, metadata: Metadata) -> list[Followed]:
        """Return what is to be followed and whose leader's row bears the epoch (6.4)."""
        wanted: dict[Location, list[PartitionState]] = defaultdict(list)
        for state in metadata.partitions.values():
            own = state.replica(self._broker_id)
            if own is None or own.root != self._replicas.root_index:
                continue
            leader = state.replica(state.leader) if state.leader is not None else None
            if leader is None or leader.broker_id == self._broker_id:
                continue
            wanted[self._reader.location(leader.broker_id, leader.root)].append(state)
        followed = []
        for location, states in wanted.items():
            try:
                rows = self._leader_rows(location)
            except (StorageError, OSError) as error:
                _log.warning("leader not readable", root=location.uri, error=str(error))
                continue
            for state in states:
                row = rows.get(state.key)
                if (
                    row is not None
                    and row["role"] == "leader"
                    and row["leader_epoch"] == state.leader_epoch
                    and row["broker_epoch"] == state.leader_broker_epoch
                ):
                    followed.append(Followed(state, location, row))
        return followed

    def _leader_rows(self, location: Location) -> dict[TopicIdPartition, dict[str, Any]]:
        if location.uri not in self._leader_roots:
            self._leader_roots[location.uri] = LeaderRoot(location)
        checkpoint = self._leader_roots[location.uri].checkpoint
        checkpoint.refresh()
        rows = checkpoint.rows().to_pylist()
        return {TopicIdPartition(row["topic_id"], row["partition"]): row for row in rows}

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
            self._truncate(points)
        agreed = [one for one in followed if one.key not in waiting]
        for one in agreed:
            self._replicas.put(one.key, one.state.topic, leader_epoch=one.state.leader_epoch)
        return agreed

    def _leader_entries(self, followed: Iterable[Followed]) -> list[dict[str, Any]]:
        """Return the leaders' histories, each as of the version that its row names."""
        rows: list[dict[str, Any]] = []
        versions: dict[tuple[str, int], set[TopicIdPartition]] = defaultdict(set)
        for one in followed:
            versions[one.location.uri, one.row["epochs_version"]].add(one.key)
        for (uri, version), keys in versions.items():
            epochs = self._leader_roots[uri].epochs
            epochs.refresh()
            rows += [
                row
                for row in epochs.rows_at(version).to_pylist()
                if (row["topic_id"], row["partition"]) in keys
            ]
        return rows

    def _truncate(self, points: Mapping[TopicIdPartition, int]) -> None:
        """Drop what lies at or after each point: records first, the rest follows (6.5)."""
        removed: list[Batch] = []
        kept: list[Batch] = []
        log = self._root.log
        for key, offset in points.items():
            replica = self._replicas[key]
            for batch in log.batches(key, offset):
                removed.append(batch)
                if batch.base_offset < offset:
                    location = log.location
                    kept.append(rewrite_slice(location, batch, 0, offset, location))
            is_loss = offset < replica.high_watermark
            (_log.warning if is_loss else _log.info)(
                "truncated below the high watermark: records are lost" if is_loss else "truncated",
                broker=self._broker_id,
                topic=replica.topic,
                partition=key.partition,
                from_offset=self._replicas.log_end_offset(key),
                to_offset=offset,
            )
        if removed:
            log.commit(kept, removed)
        for key, offset in points.items():
            replica = self._replicas[key]
            high_watermark = min(replica.high_watermark, offset)
            self._replicas.put(key, replica.topic, high_watermark=high_watermark)
        self._replicas.truncate_epochs(points)
        self._replicas.write_epochs()

    def _fetch(self, followed: list[Followed], report: TickReport) -> list[Batch]:
        """Join the positions with the leaders' batches and copy what the join gives."""
        copies: list[Copy] = []
        batches: list[Batch] = []
        sliced: list[Batch] = []
        of_log: dict[tuple[str, int], list[Followed]] = defaultdict(list)
        for one in followed:
            if one.row["log_end_offset"] > self._replicas.log_end_offset(one.key):
                of_log[one.location.uri, one.row["log_version"]].append(one)
        for (uri, version), members in of_log.items():
            log = self._leader_roots[uri].log
            log.refresh(version)
            offsets = {one.key: self._replicas.log_end_offset(one.key) for one in members}
            work = self._rules.run(
                "fetch",
                positions=[self._position(one, offsets[one.key]) for one in members],
                batches=log.batch_index(offsets),
            )
            for row in work:
                key = TopicIdPartition(row["topic_id"], row["partition"])
                batch = log.batches(key, row["base_offset"])[0]
                if row["straddles"]:
                    target = self._root.log.location
                    end = batch.next_offset
                    sliced.append(rewrite_slice(log.location, batch, offsets[key], end, target))
                    continue
                path = new_batch_path(batch.batch_id)
                copies.append(
                    Copy(
                        log.location,
                        batch.path,
                        self._root.log.location,
                        path,
                        batch.size_bytes,
                        batch.checksum,
                    )
                )
                batches.append(batch._replace(path=path))
        faults = self._copier.copy(copies)
        report.files_copied += len(copies)
        report.bytes_copied += sum(copy.size_bytes for copy in copies)
        return sliced + self._intact(batches, faults)

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

    def _position(self, one: Followed, fetch_offset: int) -> dict[str, Any]:
        return {
            "topic_id": one.key.topic_id,
            "partition": one.key.partition,
            "fetch_offset": fetch_offset,
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
