"""The follower role of one broker root: agree with the leader, copy what it has, report.

A tick reads the leaders and their epochs, finds where the logs agree and cuts its own log there.
Then it joins its positions with the leader's batches and copies the files. It commits them if the
leader is still the same, together with their epochs and its report. Effects happen in the order:
truncation, copy, journal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from sparklog.broker.following.copies_ahead import CopiesAhead
from sparklog.broker.following.delayed_fetch import may_be_delayed
from sparklog.broker.following.due_partitions import DuePartitions
from sparklog.broker.following.fetch import Followed, ReplicaFetcher
from sparklog.broker.following.leader_roots import LeaderRoot, LeaderRoots
from sparklog.broker.following.producer_fetch import ProducerFetcher
from sparklog.broker.following.replication_throttle import ReplicationThrottle
from sparklog.broker.log_starts import LogStarts
from sparklog.broker.peers import Peer, Peers
from sparklog.broker.producer_state import ProducerState
from sparklog.broker.purgatory import DelayedFetch, Purgatory
from sparklog.broker.replicas import Replicas
from sparklog.broker.tick import Effects, TickReport
from sparklog.cluster.isr import leave_isr
from sparklog.cluster.metadata import Metadata, MetadataReader
from sparklog.config import Settings
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.model import Batch, EpochEntry, Row, TopicIdPartition
from sparklog.protocol.produce.expired_operations import may_have_expired
from sparklog.protocol.replication.fetch import may_return_batches
from sparklog.protocol.replication.truncation_point import may_disagree
from sparklog.protocol.rules import RowTuples, Rules
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.execution import BatchSlice, Execution
from sparklog.storage.location import Location
from sparklog.storage.new_file import discard_file
from sparklog.storage.sharded_table import ShardedTable

_log = get_logger(__name__)

_NEWS = ("log_start_offset", "log_end_offset", "high_watermark")
"""The columns of a leader's row whose changes are news to its followers."""

_OF_REPORT = ("topic_id", "partition", "high_watermark", "leader_high_watermark", "log_end_offset")
"""The columns of a row for the rule `follower_high_watermark`."""

_News = dict[TopicIdPartition, tuple[Any, ...]]


class Follower:
    """Plays the follower role for one root."""

    def __init__(
        self,
        broker_id: int,
        reader: MetadataReader,
        partition_state: ShardedTable,
        replicas: Replicas,
        producer_state: ProducerState,
        log_starts: LogStarts,
        purgatory: Purgatory,
        rules: Rules,
        settings: Settings,
        execution: Execution,
        peers: Peers,
        throttle: ReplicationThrottle,
    ) -> None:
        self._broker_id = broker_id
        self._reader = reader
        self._partition_state = partition_state
        self._replicas = replicas
        self._producer_state = producer_state
        self._log_starts = log_starts
        self._purgatory = purgatory
        self._root = replicas.root
        self._rules = rules
        self._settings = settings
        self._execution = execution
        self._leader_roots = LeaderRoots(reader, peers)
        self._producers = ProducerFetcher(producer_state, self._leader_roots)
        self._ahead = CopiesAhead(self._root.log.location)
        self._throttle = throttle
        self._fetcher = ReplicaFetcher(
            replicas,
            self._leader_roots,
            purgatory,
            rules,
            settings,
            execution,
            self._ahead,
            throttle,
        )
        self._failures = RepeatedFailures(_log)
        self._due = DuePartitions(broker_id, replicas)
        # Of the partitions that were examined without a failure.
        self._seen: _News = {}
        # The examined partitions whose logs could not be made to agree with their leaders'.
        self._unsettled: set[TopicIdPartition] = set()
        # The time since which new high watermarks of leaders wait for the next commit, or `None`.
        self._waiting_since_ms: int | None = None
        self._agreed: dict[TopicIdPartition, object] = {}
        self._reported: dict[TopicIdPartition, tuple[int, int, int]] = {}

    def tick(
        self, metadata: Metadata, now_ms: int, effects: Effects, high_watermarks_wait_ms: int = 0
    ) -> TickReport:
        """Run one tick at `now_ms`.

        If only high watermarks of leaders are new, they may wait for `high_watermarks_wait_ms`, or
        until a commit has more. On a local file system, where a commit is cheap, they do not wait.
        """
        if self._root.log.location.is_local:
            high_watermarks_wait_ms = 0
        report = TickReport()
        before = self._root.commits()
        news_before = self._replicas.news
        self._replicas.settle()
        self._throttle.note(metadata.partitions)
        roots = self._open_roots(metadata)
        self._due.note_changes(roots)
        has_all = self._due.is_renewal_due(now_ms) or may_be_delayed(
            self._purgatory, self._settings
        )
        if has_all:
            self._due.examine_all()
        followed = self._followed(roots)
        news = {one.key: tuple(map(one.row.get, _NEWS)) for one in followed}
        is_waited = (
            self._waiting_since_ms is not None
            and now_ms - self._waiting_since_ms >= high_watermarks_wait_ms
        )
        if not is_waited and not self._is_due(followed, news, now_ms):
            self._finish(followed, self._unsettled, was_all=has_all)
            return report
        # If the tick fails from here on, it is repeated.
        for key in news:
            self._seen.pop(key, None)
        agreed = self._agree(followed, now_ms)
        effects.done("truncate")
        # Polled during the copies: whether the leaders are still the same afterwards.
        poll_ahead = self._reader.poll_ahead_at_partitions
        copied = self._fetcher.fetch(agreed, now_ms, report, poll_ahead)
        effects.done("copy")
        batches = self._arrived(copied, agreed, now_ms)
        with self._root.log.discarding(batches):
            self._replicas.append(sorted(batches, key=lambda batch: batch.base_offset))
            self._assign_epochs(batches)
            behind = [one for one in agreed if self._starts_before_leader(one)]
            wait_ms = 0 if batches or behind or is_waited else high_watermarks_wait_ms
            reported = self._report(agreed, now_ms, wait_ms)
            starts = self._new_log_starts(behind)
            removed = self._log_starts.move(starts, now_ms, effects) if starts else []
            report.changed = self._replicas.commit(now_ms, removed=removed)
        self._log_starts.note_committed(starts)
        self._reported |= reported
        effects.done("log_commit")
        self._replicas.checkpoints.keep()
        report.changed |= self._producer_state.expire(now_ms)
        effects.done("checkpoint")
        report.has_traffic = self._replicas.news != news_before
        report.commits = self._root.commits() - before
        self._seen |= news
        self._unsettled = news.keys() - {one.key for one in agreed}
        unfinished = {one.key for one in followed if self._is_unfinished(one)}
        self._finish(followed, unfinished | self._unsettled, was_all=has_all)
        return report

    def _finish(
        self, followed: list[Followed], unfinished: AbstractSet[TopicIdPartition], *, was_all: bool
    ) -> None:
        """End the examination of the partitions of this tick, of which `followed` are followed."""
        keys = {one.key for one in followed}
        for key in [key for key in self._due.waiting if key not in keys]:
            self._seen.pop(key, None)
        self._fetcher.forget(self._due.no_longer_followed())
        # High watermarks that wait for the next commit are examined with it.
        held = keys if self._waiting_since_ms is not None else set()
        renewal_ms = self._settings.replica_lag_time_max_ms // 3
        renewals_ms = [
            self._replicas[key].reported_at_ms + renewal_ms for key in keys if key in self._replicas
        ]
        self._due.finish(held | unfinished, renewals_ms, was_all=was_all)

    def max_lag(self) -> int:
        """Return the most offsets by which a replica is behind its leader, as read last.

        0 if nothing is followed. Any thread may call it.
        """
        lag = 0
        for of, states in list(self._due.by_leader.items()):
            root = self._leader_roots.opened(of)
            for key in states if root is not None else ():
                row = root.row(key) if root is not None else None
                if row is not None:
                    lag = max(lag, row["log_end_offset"] - self._replicas.log_end_offset(key))
        return lag

    def copy_ahead(self) -> None:
        """Copy ahead, in parallel to the rounds, from the leaders that were followed last."""
        if self._root.log.location.is_local:
            return
        followed: dict[Location, Collection[TopicIdPartition]] = {
            root.location: [key for key in states if not self._throttle.is_throttled(key)]
            for of, states in self._due.by_leader.items()
            if (root := self._leader_roots.opened(of)) is not None
        }
        self._ahead.poll(followed)

    def _open_roots(self, metadata: Metadata) -> dict[Peer, LeaderRoot]:
        """Return the roots of the leaders that can be read, with their newest rows."""
        self._due.load(metadata)
        self._leader_roots.keep(self._due.by_leader)
        roots = {}
        for of in self._due.by_leader:
            try:
                root = self._leader_roots.open(of)
            except UNREADABLE as error:
                self._failures.warning(
                    of.broker_id, "leader not there", broker=of.broker_id, error=str(error)
                )
                continue
            self._failures.over(of.broker_id)
            try:
                root.refresh()
            except UNREADABLE as error:
                self._leader_roots.release(root, error)
                continue
            roots[of] = root
        return roots

    def _followed(self, roots: Mapping[Peer, LeaderRoot]) -> list[Followed]:
        """Return the examined partitions whose leader's row has the current epoch (6.4)."""
        followed = []
        for of, key, state in self._due.examined():
            root = roots.get(of)
            row = root.row(key) if root is not None else None
            if (
                root is not None
                and row is not None
                and key not in self._replicas.damaged
                and row["role"] == "leader"
                and row["leader_epoch"] == state.leader_epoch
                and row["broker_epoch"] == state.leader_broker_epoch
            ):
                followed.append(Followed(key, state, root, row))
        return followed

    def _is_due(self, followed: list[Followed], news: _News, now_ms: int) -> bool:
        """Return whether there is anything to do.

        One of these: a leader has news or records; a log has yet to agree with its leader's (6.3);
        the replicas' rows must be renewed (5.1); a fetch has waited long enough (4.2), or its
        partition is no longer followed.
        """
        waiting = self._purgatory.watched(DelayedFetch)
        if not followed:
            return bool(waiting)
        renewal_ms = self._settings.replica_lag_time_max_ms // 3
        return (
            any(self._seen.get(key) != of for key, of in news.items())
            or any(key not in news or may_have_expired(waiting[key], now_ms) for key in waiting)
            or any(
                self._is_unfinished(one, waiting)
                or now_ms - self._replicas[one.key].reported_at_ms >= renewal_ms
                for one in followed
            )
        )

    def _is_unfinished(
        self, one: Followed, waiting: Collection[TopicIdPartition] = frozenset()
    ) -> bool:
        """Return whether a log has yet to agree with its leader's, or to copy from it.

        Partitions in `waiting` wait for more bytes.
        """
        return (
            one.key not in self._replicas
            or self._replicas[one.key].role != "follower"
            or self._replicas[one.key].leader_epoch != one.state.leader_epoch
            or (
                one.key not in waiting
                and may_return_batches(
                    self._replicas.log_end_offset(one.key), one.row["log_end_offset"]
                )
            )
        )

    def _agree(self, followed: list[Followed], now_ms: int) -> list[Followed]:
        """Find where each log agrees with its leader's, and cut it there (6.3, 6.5)."""
        for one in followed:
            if one.key not in self._replicas or self._replicas[one.key].role != "follower":
                self._replicas.put(one.key, one.state.topic, role="follower")
        unsettled = [one for one in followed if self._may_disagree(one)]
        if not unsettled:
            return followed
        rows = [
            {
                "topic_id": one.key.topic_id,
                "partition": one.key.partition,
                "leader_epoch": one.state.leader_epoch,
                "log_end_offset": self._replicas.log_end_offset(one.key),
                "log_start_offset": self._replicas[one.key].log_start_offset,
                "leader_log_start_offset": one.row["log_start_offset"],
                "leader_log_end_offset": one.row["log_end_offset"],
            }
            for one in unsettled
        ]
        found = self._rules.run(
            "truncation_point",
            followed=rows,
            own_entries=self._replicas.epoch_entries([one.key for one in unsettled]),
            leader_entries=self._leader_entries(unsettled),
        )
        points: dict[TopicIdPartition, int] = {}
        restarts: dict[TopicIdPartition, int] = {}
        waiting: set[TopicIdPartition] = set()
        for row in found:
            key = TopicIdPartition(row["topic_id"], row["partition"])
            if row["waits"]:
                waiting.add(key)
            elif row["restart_at"] is not None:
                restarts[key] = row["restart_at"]
            elif row["truncate_to"] is not None:
                points[key] = row["truncate_to"]
        if points:
            waiting |= self._truncate(points, followed, now_ms)
        if restarts:
            waiting |= self._restart(restarts, followed, now_ms)
        for one in unsettled:
            if one.key in waiting:
                self._agreed.pop(one.key, None)
            else:
                epoch = one.state.leader_epoch
                self._replicas.put(one.key, one.state.topic, leader_epoch=epoch)
                self._agreed[one.key] = self._histories(one)
        return [one for one in followed if one.key not in waiting]

    def _may_disagree(self, one: Followed) -> bool:
        """Return whether the rule `truncation_point` has to run, since the logs may disagree."""
        return may_disagree(
            self._replicas.log_end_offset(one.key),
            one.row["log_start_offset"],
            one.row["log_end_offset"],
            has_new_epochs=self._agreed.get(one.key) != self._histories(one)
            or self._replicas[one.key].leader_epoch != one.state.leader_epoch,
        )

    def _histories(self, one: Followed) -> object:
        leader = one.root.fetch_id, one.state.leader_epoch, one.root.log.epochs.get(one.key)
        return leader, self._replicas.epochs(one.key)

    def _leader_entries(self, followed: Iterable[Followed]) -> list[dict[str, Any]]:
        """Return the leaders' histories, one row for each entry."""
        return [
            {**one.key._asdict(), **entry._asdict()}
            for one in followed
            for entry in one.root.log.epochs.get(one.key, ())
        ]

    def _truncate(
        self, points: dict[TopicIdPartition, int], followed: list[Followed], now_ms: int
    ) -> set[TopicIdPartition]:
        """Drop the records from each point on, and the producer state after that commit (6.5).

        A broker leaves the ISR and ELR before it cuts below its own high watermark, since members
        have all committed records (rule 10.4). Returns the partitions that cannot be cut yet: an
        own batch cannot be read, or partition_state was changed at the same time.
        """
        below = {key for key, at in points.items() if at < self._replicas[key].high_watermark}
        staying = below - self._leave_isr(below, now_ms, "truncation")
        points = {key: offset for key, offset in points.items() if key not in staying}
        log = self._root.log
        dropped = {key: log.batches(key, offset) for key, offset in points.items()}
        slices = [
            BatchSlice(log.location, batch, 0, points[key], log.location)
            for key, batches in dropped.items()
            for batch in batches
            if batch.base_offset < points[key]
        ]
        removed: list[Batch] = []
        kept: list[Batch] = []
        unreadable: set[TopicIdPartition] = set()
        with log.discarding(kept):
            for one, part in zip(slices, self._execution.cut(slices), strict=True):
                key = one.batch.topic_id_partition
                if isinstance(part, Batch):
                    kept.append(part)
                    continue
                self._failures.error(key, "batch not cut", partition=key.partition, fault=part)
                self._replicas.check_batch(one.batch)
                unreadable.add(key)
            for key, offset in points.items():
                if key not in unreadable:
                    removed += dropped[key]
                    self._announce_truncation(key, offset)
            cut = {key: offset for key, offset in points.items() if key not in unreadable}
            truncations = self._truncations(cut, followed, "divergence")
            for key, offset in cut.items():
                replica = self._replicas[key]
                self._replicas.put(
                    key,
                    replica.topic,
                    log_start_offset=min(replica.log_start_offset, offset),
                    high_watermark=min(replica.high_watermark, offset),
                )
            self._replicas.truncate_epochs(cut)
            self._replicas.commit(now_ms, kept, removed, truncations=truncations)
        self._producer_state.truncate(cut)
        return unreadable | staying

    def _leave_isr(
        self, keys: set[TopicIdPartition], now_ms: int, cause: str
    ) -> set[TopicIdPartition]:
        """Leave the ISR and ELR of these partitions; return those in which that succeeded."""
        if not keys:
            return set()
        # Even if it is no member now: the leader may be about to add it because of its last report.
        self._replicas.withdraw(keys, now_ms)
        return leave_isr(self._partition_state, self._broker_id, keys, cause=cause)

    def _restart(
        self, starts: dict[TopicIdPartition, int], followed: list[Followed], now_ms: int
    ) -> set[TopicIdPartition]:
        """Drop whole logs, and restart them at the log start offsets of their leaders (6.7).

        The leaders' producer state from before is copied, and the epoch of the record before. A
        broker leaves the ISR and ELR before it restarts below its own high watermark, as before a
        truncation. Returns the partitions that cannot be restarted yet: their leaders cannot be
        read, or partition_state was changed at the same time.
        """
        below = {key for key, at in starts.items() if at < self._replicas[key].high_watermark}
        staying = below - self._leave_isr(below, now_ms, "log_restart")
        starts = {key: offset for key, offset in starts.items() if key not in staying}
        kept = self._producers.copy_before(starts, followed, now_ms)
        unknown = staying | (starts.keys() - kept.keys())
        starts = {key: offset for key, offset in starts.items() if key in kept}
        removed = [batch for key in starts for batch in self._root.log.batches(key)]
        truncations = self._truncations(starts, followed, "log_restart")
        for key, offset in starts.items():
            _log.warning(
                "log restarted at the leader's log start offset",
                broker=self._broker_id,
                topic=self._replicas[key].topic,
                partition=key.partition,
                start_offset=offset,
            )
            self._replicas.put(
                key,
                self._replicas[key].topic,
                log_start_offset=offset,
                high_watermark=offset,
            )
        histories = {one.key: one.root.log.epochs.get(one.key, ()) for one in followed}
        self._replicas.restart_epochs({key: histories[key] for key in starts})
        self._replicas.cut_epochs(starts)
        self._replicas.truncate_epochs(starts)
        self._replicas.commit(now_ms, removed=removed, truncations=truncations)
        self._producer_state.restart(kept)
        return set(unknown)

    def _truncations(
        self,
        points: Mapping[TopicIdPartition, int],
        followed: list[Followed],
        cause: str,
    ) -> list[Row]:
        """Return the rows of `truncations` for logs with records; an empty log loses nothing."""
        states = {one.key: one.state for one in followed}
        rows = [
            {
                **self._replicas.truncation(key, offset, cause, states[key].leader),
                "leader_epoch": states[key].leader_epoch,
            }
            for key, offset in points.items()
            if key in states
        ]
        return [row for row in rows if row["records_removed"]]

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

    def _arrived(self, copied: list[Batch], followed: list[Followed], now_ms: int) -> list[Batch]:
        """Return the copied batches that may be committed: their leader is still the same."""
        if not copied:
            return []
        partitions = self._reader.load().partitions
        moved = {
            key
            for key in {batch.topic_id_partition for batch in copied}
            if key not in partitions
            or partitions[key].leader_epoch != self._replicas[key].leader_epoch
        }
        batches = [batch for batch in copied if batch.topic_id_partition not in moved]
        batches = self._producers.copy_merged(batches, followed, now_ms)
        taken = {batch.path for batch in batches}
        self._discard(batch for batch in copied if batch.path not in taken)
        return batches

    def _assign_epochs(self, batches: list[Batch]) -> None:
        """Add entries for epochs that the histories do not have yet (6.1)."""
        entries: dict[int, dict[TopicIdPartition, EpochEntry]] = defaultdict(dict)
        for batch in sorted(batches, key=lambda batch: batch.base_offset):
            key = batch.topic_id_partition
            known = {entry.epoch for entry in self._replicas.epochs(key)}
            if batch.leader_epoch not in known:
                entry = EpochEntry(batch.leader_epoch, batch.base_offset)
                entries[batch.leader_epoch].setdefault(key, entry)
        for epoch in sorted(entries):
            self._replicas.assign_epochs(entries[epoch])

    def _discard(self, batches: Iterable[Batch]) -> None:
        """Remove copies that no commit names, so that attempts do not fill the disk."""
        for batch in batches:
            discard_file(self._root.log.location, batch.path)

    def _report(
        self, agreed: list[Followed], now_ms: int, wait_ms: int
    ) -> Mapping[TopicIdPartition, tuple[int, int, int]]:
        """Update the replicas' rows: position, high watermark (2.5), and time of the report.

        Nothing is updated if only high watermarks have changed and `wait_ms` is not 0. Returns the
        reported position of each partition.
        """
        positions = {
            one.key: (
                self._replicas[one.key].leader_epoch,
                self._replicas.log_end_offset(one.key),
                one.row["high_watermark"],
            )
            for one in agreed
        }
        rows = []
        for key, position in positions.items():
            if self._has_news_for_leader(key, position, now_ms):
                _, end, leader_high_watermark = position
                rows.append((*key, self._replicas[key].high_watermark, leader_high_watermark, end))
        waiting_since_ms, self._waiting_since_ms = self._waiting_since_ms, None
        if not rows:
            return positions
        if wait_ms and all(self._is_high_watermark_only(one, positions, now_ms) for one in agreed):
            self._waiting_since_ms = now_ms if waiting_since_ms is None else waiting_since_ms
            return {}
        reported = RowTuples(_OF_REPORT, rows)
        for row in self._rules.run("follower_high_watermark", followed=reported):
            key = TopicIdPartition(row["topic_id"], row["partition"])
            self._replicas.put(
                key,
                self._replicas[key].topic,
                high_watermark=row["high_watermark"],
                reported_at_ms=now_ms,
            )
        return positions

    def _starts_before_leader(self, one: Followed) -> bool:
        start: int = one.row["log_start_offset"]
        return self._replicas[one.key].log_start_offset < start

    def _new_log_starts(self, behind: Iterable[Followed]) -> dict[TopicIdPartition, int]:
        """Return the log start offsets that move to those of the leaders, by the rule (8.3)."""
        rows = [
            {
                **one.key._asdict(),
                "log_start_offset": self._replicas[one.key].log_start_offset,
                "leader_log_start_offset": one.row["log_start_offset"],
                "high_watermark": self._replicas[one.key].high_watermark,
            }
            for one in behind
        ]
        if not rows:
            return {}
        found = self._rules.run("follower_log_start_offset", followed=rows)
        starts = {
            TopicIdPartition(row["topic_id"], row["partition"]): row["log_start_offset"]
            for row in found
        }
        return {
            key: offset
            for key, offset in starts.items()
            if offset > self._replicas[key].log_start_offset
        }

    def _is_high_watermark_only(
        self,
        one: Followed,
        positions: Mapping[TopicIdPartition, tuple[int, int, int]],
        now_ms: int,
    ) -> bool:
        """Return whether a row has no news for its leader, which knows the high watermark."""
        reported = self._reported.get(one.key)
        return (
            reported is not None
            and reported[:2] == positions[one.key][:2]
            and not self._is_renewal_due(one.key, now_ms)
        )

    def _has_news_for_leader(
        self, key: TopicIdPartition, position: tuple[int, int, int], now_ms: int
    ) -> bool:
        """Return whether a row differs from the reported one, or must soon be renewed (5.1)."""
        replica = self._replicas[key]
        is_news = (
            self._reported.get(key) != position
            # For example after a repair that ended where the replica had been.
            or replica.high_watermark < min(position[1:])
        )
        return is_news or self._is_renewal_due(key, now_ms)

    def _is_renewal_due(self, key: TopicIdPartition, now_ms: int) -> bool:
        # Rows that are due soon are included, so that rows are renewed together.
        renewal_ms = self._settings.replica_lag_time_max_ms // 6
        return now_ms - self._replicas[key].reported_at_ms >= renewal_ms
