"""The partitions that one broker root leads: follower progress, in-sync sets, high watermarks.

A tick runs rules only on the partitions with events since the last poll. So their cost depends on
the number of these, not on the number of led partitions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sparklog.broker.broker_counts import BrokerCounts
from sparklog.broker.purgatory import Trigger
from sparklog.broker.replicas import Replicas
from sparklog.cluster.isr import change_isr, min_isr
from sparklog.cluster.metadata import BrokerInfo, Metadata, PartitionState
from sparklog.cluster.replica_rows import ReplicaRows
from sparklog.cluster.roots import ClusterRoot
from sparklog.config import Settings
from sparklog.logger import get_logger
from sparklog.model import TopicIdPartition
from sparklog.protocol.replication.high_watermark import may_advance
from sparklog.protocol.replication.isr_expand import may_expand, may_join
from sparklog.protocol.replication.isr_shrink import (
    may_fall_behind,
    may_have_fallen_behind,
    may_leave,
)
from sparklog.protocol.rules import RowTuples, Rules

_log = get_logger(__name__)

Keys = set[TopicIdPartition]


class Progress(NamedTuple):
    """The leader's state of one follower; times are in ms on its own clock (rules 1.3, 5.1).

    `log_end_offset` is the position last reported under this leader epoch and the follower's
    current broker epoch, or `None`.
    """

    log_end_offset: int | None = None
    previous_leader_log_end_offset: int | None = None
    previous_report_ms: int | None = None
    last_caught_up_ms: int | None = None


_NO_PROGRESS = Progress()


@dataclass
class Leadership:
    """One partition that this broker leads, in one leader epoch.

    `proposed_isr` is the union of the proposed ISRs whose outcome is unknown, otherwise empty.
    `brokers` are those of the metadata that `state` was read with.
    """

    state: PartitionState
    epoch_start_offset: int
    progress: dict[int, Progress] = field(default_factory=dict)
    seen: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    proposed_isr: frozenset[int] = frozenset()
    brokers: Mapping[int, BrokerInfo] = field(default_factory=dict)


class FollowerReports(NamedTuple):
    """The followers' rows by broker, one mapping per root, and the partitions with new rows."""

    rows: Mapping[int, Sequence[ReplicaRows]]
    changed: AbstractSet[TopicIdPartition]

    def row(self, broker_id: int, key: TopicIdPartition) -> Mapping[str, Any]:
        """Return the follower's row of a partition, `{}` if none of its roots has one."""
        return next((rows[key] for rows in self.rows.get(broker_id, ()) if key in rows), {})


class LedPartitions(dict[TopicIdPartition, Leadership]):
    """The partitions that a root leads, by key; the state is kept in memory only."""

    def __init__(
        self,
        broker_id: int,
        cluster: ClusterRoot,
        replicas: Replicas,
        rules: Rules,
        settings: Settings,
        counts: BrokerCounts,
    ) -> None:
        super().__init__()
        self._counts = counts
        self._broker_id = broker_id
        self._cluster = cluster
        self._replicas = replicas
        self._rules = rules
        self._settings = settings
        # Invariant: contains each partition with a follower whose lag timeout may expire.
        self._lagging: Keys = set()
        self._seen_change = 0

    def begin(
        self,
        state: PartitionState,
        metadata: Metadata,
        epoch_start_offset: int,
        now_ms: int,
        parked_lags: str | None,
    ) -> None:
        """Lead a partition in a new epoch: members of the in-sync set count as caught up (5.1).

        A leader that resumes after it was parked continues with the lags that it noted then, in
        `parked_lags` (5.1).
        """
        lags = _lags(parked_lags, state.leader_epoch)
        progress = {
            one.broker_id: Progress(
                last_caught_up_ms=now_ms - lags.get(one.broker_id, 0) if one.in_isr else None
            )
            for one in state.replicas
            if one.broker_id != self._broker_id
        }
        self[state.key] = Leadership(state, epoch_start_offset, progress, brokers=metadata.brokers)
        self._lagging.add(state.key)

    def note_lags(self, now_ms: int) -> None:
        """Store the lags in ms of in-sync followers below the log end, before being parked."""
        for key, leadership in self.items():
            end = self._replicas.log_end_offset(key)
            lags = {
                broker_id: now_ms - progress.last_caught_up_ms
                for broker_id, progress in leadership.progress.items()
                if broker_id in leadership.state.isr
                and progress.log_end_offset != end
                and progress.last_caught_up_ms is not None
            }
            if lags:
                noted = {"leader_epoch": leadership.state.leader_epoch, "lag_ms": lags}
                self._replicas.put(key, leadership.state.topic, parked_lags=json.dumps(noted))

    def update_state(self, state: PartitionState, metadata: Metadata) -> bool:
        """Take over the published state of a led partition; return whether it has changed.

        Metadata that were read before the leader's own change of the ISR are older than the state
        it leads with, and are ignored: without the followers it has added, the high watermark would
        pass their logs (2.4).
        A proposed ISR whose outcome is unknown counts until the partition epoch has changed. After
        that its commit either exists or never will (rule 2.4). A live follower that has left by
        itself, as before a repair, is not waited for, and joins by a new report only (5.2): until
        the leader reads one, its last report is of the time before. A follower that was fenced and
        has returned since has not left by itself: its last report stands.
        """
        leadership = self[state.key]
        if state.partition_epoch < leadership.state.partition_epoch:
            return False
        is_other = leadership.state != state
        if leadership.state.partition_epoch != state.partition_epoch:
            leadership.proposed_isr = frozenset()
        if is_other:
            # A reassignment may have added replicas, which have not reported yet.
            followers = {one.broker_id for one in state.replicas} - {self._broker_id}
            leadership.progress = {
                one: leadership.progress.get(one, _NO_PROGRESS) for one in sorted(followers)
            }
            before, leadership.brokers = leadership.brokers, metadata.brokers
            live = {one.broker_id for one in state.replicas if metadata.is_live(one)}
            for one in followers & live & (set(leadership.state.isr) - set(state.isr)):
                if one not in before or before[one].heartbeat != metadata.brokers[one].heartbeat:
                    continue
                progress = leadership.progress[one]
                leadership.progress[one] = progress._replace(
                    previous_report_ms=None, last_caught_up_ms=None
                )
        leadership.state = state
        return is_other

    def whose_lag_ran_out(self, polled_at_ms: int, now_ms: int) -> Keys:
        """Return the partitions with a follower whose lag timeout has expired since the last tick.

        Each expiry of replica.lag.time.max.ms is reported once. Only partitions are examined whose
        followers were behind in the last tick, or whose positions have changed since.
        """
        lag_time_max_ms = self._settings.replica_lag_time_max_ms
        changes = self._replicas.changes
        changed = changes.since(self._seen_change)
        self._seen_change = changes.number
        examined = self._lagging | (self.keys() if changed is None else changed)
        found = set()
        self._lagging = set()
        for key in examined & self.keys():
            end = self._replicas.log_end_offset(key)
            for progress in self[key].progress.values():
                position = progress.log_end_offset, end, progress.last_caught_up_ms
                if may_have_fallen_behind(*position, polled_at_ms, now_ms, lag_time_max_ms):
                    found.add(key)
                if may_fall_behind(*position, polled_at_ms, lag_time_max_ms):
                    self._lagging.add(key)
        return found

    def note_reports(
        self,
        touched: Keys,
        appended: Keys,
        metadata: Metadata,
        reports: FollowerReports,
        now_ms: int,
    ) -> dict[Trigger, Keys]:
        """Process followers' reports, and stage advanced high watermarks (rule 5.3).

        Parameters: `appended`, the partitions to which records are appended; `touched`, those with
        other events. Returns the triggers that have fired, each with its partitions.
        """
        reported = self._note_reports(touched, metadata, reports, now_ms)
        keys = (touched | appended | reported) & self.keys()
        return {
            Trigger.FOLLOWER_REPORTED: reported,
            Trigger.HIGH_WATERMARK_MOVED: self._advance_high_watermarks(keys, metadata, now_ms),
        }

    def change_in_sync_sets(
        self, keys: Keys, metadata: Metadata, now_ms: int
    ) -> dict[Trigger, Keys]:
        """Shrink and expand in-sync sets, and advance the high watermarks of those (rule 5.3).

        In-sync sets are committed immediately, high watermarks are staged. Returns the triggers
        that have fired, each with its partitions.
        """
        keys = keys & self.keys()
        lagging = {key for key in keys if self[key].proposed_isr or self._may_shrink(key, now_ms)}
        shrunk = self._change_isr("isr_shrink", lagging, metadata, now_ms)
        moved = self._advance_high_watermarks(shrunk, metadata, now_ms)
        short = {key for key in keys if self._may_expand(key)}
        expanded = self._change_isr("isr_expand", short, metadata, now_ms)
        moved |= self._advance_high_watermarks(expanded, metadata, now_ms)
        return {Trigger.ISR_CHANGED: shrunk | expanded, Trigger.HIGH_WATERMARK_MOVED: moved}

    def min_isr(self, metadata: Metadata, state: PartitionState) -> int:
        """Return the number of in-sync replicas that acks=all requires."""
        return min_isr(metadata, state, self._settings)

    def _note_reports(
        self, touched: Keys, metadata: Metadata, reports: FollowerReports, now_ms: int
    ) -> Keys:
        """Update the progress of the followers; return the partitions with a new report."""
        rows = []
        reported: Keys = set()
        for key in (touched | reports.changed) & self.keys():
            leadership = self[key]
            end = self._replicas.log_end_offset(key)
            for broker_id, progress in leadership.progress.items():
                report = reports.row(broker_id, key)
                seen = tuple(map(report.get, _REPORTED))
                is_new = seen != leadership.seen.get(broker_id)
                if is_new:
                    reported.add(key)
                elif key not in touched:
                    continue
                of_replica = (
                    *key,
                    broker_id,
                    leadership.state.leader_epoch,
                    metadata.brokers[broker_id].broker_epoch,
                )
                rows.append((*of_replica, *seen, bool(report) and is_new, end, now_ms, *progress))
                leadership.seen[broker_id] = seen
        if rows:
            followers = RowTuples(_OF_FOLLOWER, rows)
            for row in self._rules.run("follower_progress", followers=followers):
                key = TopicIdPartition(row["topic_id"], row["partition"])
                progress = Progress(*(row[name] for name in Progress._fields))
                self[key].progress[row["broker_id"]] = progress
                self._lagging.add(key)
        return reported

    def _replica_rows(
        self, keys: Iterable[TopicIdPartition], metadata: Metadata, now_ms: int
    ) -> RowTuples:
        """Return one row per replica, for the rules on in-sync sets and high watermarks."""
        rows = []
        lag_time_max_ms = self._settings.replica_lag_time_max_ms
        lag_max_messages = self._settings.replica_lag_max_messages
        for key in sorted(keys):
            leadership = self[key]
            state = leadership.state
            end = self._replicas.log_end_offset(key)
            of_partition = (
                *key,
                end,
                self._replicas[key].high_watermark,
                leadership.epoch_start_offset,
                self.min_isr(metadata, state),
                now_ms,
                lag_time_max_ms,
                lag_max_messages,
            )
            for one in state.replicas:
                is_leader = one.broker_id == self._broker_id
                progress = leadership.progress.get(one.broker_id, _NO_PROGRESS)
                of_replica = (
                    one.broker_id,
                    is_leader,
                    one.in_isr,
                    one.broker_id in leadership.proposed_isr,
                    metadata.is_live(one),
                    end if is_leader else progress.log_end_offset,
                    now_ms if is_leader else progress.last_caught_up_ms,
                    progress.previous_report_ms,
                )
                rows.append((*of_partition, *of_replica))
        return RowTuples(_OF_REPLICA, rows)

    def _advance_high_watermarks(self, keys: Keys, metadata: Metadata, now_ms: int) -> Keys:
        """Stage the high watermarks that the rule gives; return the partitions that moved."""
        keys = {key for key in keys if self._may_advance(key)}
        if not keys:
            return set()
        moved = set()
        replicas = self._replica_rows(keys, metadata, now_ms)
        for row in self._rules.run("high_watermark", replicas=replicas):
            key = TopicIdPartition(row["topic_id"], row["partition"])
            replica = self._replicas[key]
            if row["high_watermark"] != replica.high_watermark:
                self._replicas.put(
                    key,
                    replica.topic,
                    high_watermark=row["high_watermark"],
                    reported_at_ms=now_ms,
                )
                moved.add(key)
        return moved

    def _may_advance(self, key: TopicIdPartition) -> bool:
        leadership = self[key]
        ends = (
            self._replicas.log_end_offset(key)
            if one == self._broker_id
            else leadership.progress.get(one, _NO_PROGRESS).log_end_offset
            for one in leadership.state.isr
        )
        return may_advance(self._replicas[key].high_watermark, ends)

    def _may_shrink(self, key: TopicIdPartition, now_ms: int) -> bool:
        leadership = self[key]
        return any(
            may_leave(
                leadership.progress.get(one, _NO_PROGRESS).last_caught_up_ms,
                now_ms,
                self._settings.replica_lag_time_max_ms,
                self._settings.replica_lag_max_messages,
            )
            for one in leadership.state.isr
            if one != self._broker_id
        )

    def _may_expand(self, key: TopicIdPartition) -> bool:
        leadership = self[key]
        if not may_expand(*_sizes(leadership.state)):
            return False
        high_watermark = self._replicas[key].high_watermark
        return bool(leadership.proposed_isr) or any(
            may_join(
                leadership.progress.get(one.broker_id, _NO_PROGRESS).log_end_offset, high_watermark
            )
            for one in leadership.state.replicas
            if not one.in_isr
        )

    def _change_isr(self, rule: str, keys: Keys, metadata: Metadata, now_ms: int) -> Keys:
        """Commit the ISR changes that `rule` gives; return the partitions that were changed.

        A partition with a proposal of unknown outcome gets another proposal, even if it is the
        current ISR: this commit decides the outcome. Otherwise the partition epoch might never
        change, and the high watermark would wait for the proposed members.
        """
        if not keys:
            return set()
        moved = self._rules.run(rule, replicas=self._replica_rows(keys, metadata, now_ms))
        proposed = {key: frozenset(self[key].state.isr) for key in keys if self[key].proposed_isr}
        if not moved and not proposed:
            return set()
        for row in moved:
            key = TopicIdPartition(row["topic_id"], row["partition"])
            before = proposed.get(key, frozenset(self[key].state.isr))
            proposed[key] = before ^ {row["broker_id"]}
        held = {key: self[key].state for key in proposed}
        for key, isr in proposed.items():
            # Until the outcome is known, old and new ISR both bind the high watermark (2.4).
            self[key].proposed_isr |= isr
        min_isr_of = {key: self.min_isr(metadata, state) for key, state in held.items()}
        details = {
            key: self._reasons(key, frozenset(held[key].isr) ^ isr, now_ms)
            for key, isr in proposed.items()
        }
        changed = change_isr(
            self._cluster.partition_state, self._rules, held, proposed, min_isr_of, details
        )
        for key in changed:
            # The other partitions have a newer partition epoch: an earlier proposal may have been
            # committed.
            self[key].proposed_isr = frozenset()
        self._take_isr({key: proposed[key] for key in changed}, now_ms)
        self._counts.isr_changes.add(rule, len(changed))
        self._counts.isr_changes.add("failed", len(proposed) - len(changed))
        for key in changed:
            _log.info(
                rule.replace("_", " "),
                topic=self[key].state.topic,
                partition=key.partition,
                isr=self[key].state.isr,
            )
        return changed

    def _reasons(self, key: TopicIdPartition, followers: frozenset[int], now_ms: int) -> str:
        """Return the positions of followers that join or leave the ISR, for people."""
        end = self._replicas.log_end_offset(key)
        texts = []
        for broker_id in sorted(followers):
            progress = self[key].progress.get(broker_id, _NO_PROGRESS)
            at_ms = progress.last_caught_up_ms
            since = "never caught up" if at_ms is None else f"caught up {now_ms - at_ms} ms ago"
            at = progress.log_end_offset
            texts.append(f"broker {broker_id} at offset {at} of {end}, {since}")
        return "; ".join(texts)

    def _take_isr(self, isr_of: Mapping[TopicIdPartition, frozenset[int]], now_ms: int) -> None:
        """Apply the committed in-sync sets to the state in memory."""
        for key, isr in isr_of.items():
            self._lagging.add(key)
            leadership = self[key]
            for broker_id in set(leadership.state.isr) - isr:
                # A follower that has left can join again only after a new report.
                progress = leadership.progress[broker_id]._replace(previous_report_ms=None)
                leadership.progress[broker_id] = progress
            for broker_id in isr - set(leadership.state.isr):
                # As for members in `begin`: a follower may join below the log end, and has
                # replica.lag.time.max.ms to reach it (5.1).
                progress = leadership.progress[broker_id]._replace(last_caught_up_ms=now_ms)
                leadership.progress[broker_id] = progress
            leadership.state = _with_isr(leadership.state, isr)


_REPORTED = ("leader_epoch", "broker_epoch", "log_end_offset", "reported_at_ms")
"""The columns of a follower's row of which a change makes it a new report."""

_OF_FOLLOWER = (
    "topic_id",
    "partition",
    "broker_id",
    "leader_epoch",
    "broker_epoch",
    *(f"reported_{name}" for name in _REPORTED[:-1]),
    "reported_at_ms",
    "is_new",
    "leader_log_end_offset",
    "now_ms",
    *Progress._fields,
)
"""The columns of a follower's row for the rule `follower_progress`."""

_OF_REPLICA = (
    "topic_id",
    "partition",
    "leader_log_end_offset",
    "high_watermark",
    "epoch_start_offset",
    "min_isr",
    "now_ms",
    "lag_time_max_ms",
    "lag_max_messages",
    "broker_id",
    "is_leader",
    "in_isr",
    "in_proposed_isr",
    "is_alive",
    "log_end_offset",
    "last_caught_up_ms",
    "previous_report_ms",
)
"""The columns of a replica's row for the rules on in-sync sets and high watermarks."""


def _lags(parked_lags: str | None, leader_epoch: int) -> dict[int, int]:
    """Return the lags in ms by broker; empty if they were noted in another leader epoch."""
    noted = json.loads(parked_lags) if parked_lags else {}
    if noted.get("leader_epoch") != leader_epoch:
        return {}
    return {int(broker_id): lag for broker_id, lag in noted["lag_ms"].items()}


def _sizes(state: PartitionState) -> tuple[int, int]:
    """Return the numbers of in-sync replicas and of all replicas."""
    return len(state.isr), len(state.replicas)


def _with_isr(state: PartitionState, isr: frozenset[int]) -> PartitionState:
    replicas = tuple(one._replace(in_isr=one.broker_id in isr) for one in state.replicas)
    return state._replace(replicas=replicas, partition_epoch=state.partition_epoch + 1)
