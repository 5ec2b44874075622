"""What one broker root leads: how far its followers are, who is in sync, what is committed.

Only partitions to which something has happened since the last look are looked at, so a tick costs
what happened in it, however many partitions are led.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sparklog.broker.isr import change_isr, min_isr
from sparklog.broker.purgatory import Trigger
from sparklog.broker.replicas import Replicas
from sparklog.config import Settings
from sparklog.logger import get_logger
from sparklog.model import TopicIdPartition
from sparklog.protocol.rules import Rules
from sparklog.storage.metadata import Metadata, PartitionState
from sparklog.storage.replica_rows import ReplicaRows
from sparklog.storage.roots import ClusterRoot

_log = get_logger(__name__)

Keys = set[TopicIdPartition]


class Progress(NamedTuple):
    """What the leader knows of one follower; times are the leader's own (rules 1.3, 5.1).

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

    `proposed_isr` is the ISR of the newest proposal while its outcome is unknown, else empty.
    """

    state: PartitionState
    epoch_start_offset: int
    progress: dict[int, Progress] = field(default_factory=dict)
    seen: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    proposed_isr: frozenset[int] = frozenset()


class FollowerReports(NamedTuple):
    """The rows of the followers, one or more roots a broker, and which of them are new."""

    rows: Mapping[int, Sequence[ReplicaRows]]
    changed: AbstractSet[TopicIdPartition]

    def row(self, broker_id: int, key: TopicIdPartition) -> Mapping[str, Any]:
        """Return what a follower has reported of a partition; nothing where it has not."""
        return next((rows[key] for rows in self.rows.get(broker_id, ()) if key in rows), {})


class LedPartitions(dict[TopicIdPartition, Leadership]):
    """The partitions that a root leads, by key; kept in memory only, as a leader's knowledge is."""

    def __init__(
        self,
        broker_id: int,
        cluster: ClusterRoot,
        replicas: Replicas,
        rules: Rules,
        settings: Settings,
    ) -> None:
        super().__init__()
        self._broker_id = broker_id
        self._cluster = cluster
        self._replicas = replicas
        self._rules = rules
        self._settings = settings

    def begin(
        self, state: PartitionState, epoch_start_offset: int, now_ms: int, parked_lags: str | None
    ) -> None:
        """Lead a partition in a new epoch: members of the in-sync set count as caught up (5.1).

        A leader that resumes after it was parked goes on where its clock stopped (5.1), by what it
        has noted in `parked_lags` then.
        """
        lags = _lags(parked_lags, state.leader_epoch)
        progress = {
            one.broker_id: Progress(
                last_caught_up_ms=now_ms - lags.get(one.broker_id, 0) if one.in_isr else None
            )
            for one in state.replicas
            if one.broker_id != self._broker_id
        }
        self[state.key] = Leadership(state, epoch_start_offset, progress)

    def note_lags(self, now_ms: int) -> None:
        """Keep for how long in-sync followers have not been caught up, before being parked."""
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

    def take_state(self, state: PartitionState) -> bool:
        """Take over the published state of a led partition; return whether it is another.

        A proposed ISR whose outcome is unknown counts until the partition epoch has moved: after
        that its commit has landed or never will (rule 2.4).
        """
        leadership = self[state.key]
        is_other = leadership.state != state
        if leadership.state.partition_epoch != state.partition_epoch:
            leadership.proposed_isr = frozenset()
        leadership.state = state
        return is_other

    def whose_lag_ran_out(self, looked_at_ms: int, now_ms: int) -> Keys:
        """Return the partitions with a follower that replica.lag.time.max.ms has just run out for.

        What time alone does to a follower it does at that moment, and not again.
        """
        lag = self._settings.replica_lag_time_max_ms
        return {
            key
            for key, leadership in self.items()
            for broker_id, progress in leadership.progress.items()
            if progress.log_end_offset != self._replicas.log_end_offset(key)
            and progress.last_caught_up_ms is not None
            and looked_at_ms - progress.last_caught_up_ms <= lag
            and now_ms - progress.last_caught_up_ms > lag
            and (progress.log_end_offset is not None or broker_id in leadership.state.isr)
        }

    def take_reports(
        self,
        touched: Keys,
        appended: Keys,
        metadata: Metadata,
        reports: FollowerReports,
        now_ms: int,
    ) -> dict[Trigger, Keys]:
        """Take reports and advance high watermarks, which are staged (rule 5.3).

        `appended`: the partitions to which records are appended; `touched`: those to which
        something else has happened. Returns what has happened by this.
        """
        reported = self._take_reports(touched, metadata, reports, now_ms)
        keys = (touched | appended | reported) & self.keys()
        return {
            Trigger.FOLLOWER_REPORTED: reported,
            Trigger.HIGH_WATERMARK_MOVED: self._advance_high_watermarks(keys, metadata, now_ms),
        }

    def change_in_sync_sets(
        self, keys: Keys, metadata: Metadata, now_ms: int
    ) -> dict[Trigger, Keys]:
        """Shrink and expand in-sync sets, and advance the high watermarks of those (rule 5.3).

        In-sync sets are written at once, high watermarks staged. Returns what has happened by this.
        """
        keys = keys & self.keys()
        shrunk = self._change_isr("isr_shrink", keys, metadata, now_ms)
        moved = self._advance_high_watermarks(shrunk, metadata, now_ms)
        # Nobody can join where all are in sync.
        short = {key for key in keys if len(self[key].state.isr) < len(self[key].state.replicas)}
        expanded = self._change_isr("isr_expand", short, metadata, now_ms)
        moved |= self._advance_high_watermarks(expanded, metadata, now_ms)
        return {Trigger.ISR_CHANGED: shrunk | expanded, Trigger.HIGH_WATERMARK_MOVED: moved}

    def min_isr(self, metadata: Metadata, state: PartitionState) -> int:
        """Return how many in-sync replicas acks=all needs."""
        return min_isr(metadata, state, self._settings)

    def _take_reports(
        self, touched: Keys, metadata: Metadata, reports: FollowerReports, now_ms: int
    ) -> Keys:
        """Note how far the followers are; return the partitions of which there is a new report."""
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
                rows.append(
                    {
                        "topic_id": key.topic_id,
                        "partition": key.partition,
                        "broker_id": broker_id,
                        "leader_epoch": leadership.state.leader_epoch,
                        "broker_epoch": metadata.brokers[broker_id].broker_epoch,
                        "reported_leader_epoch": report.get("leader_epoch"),
                        "reported_broker_epoch": report.get("broker_epoch"),
                        "reported_log_end_offset": report.get("log_end_offset"),
                        "is_new": bool(report) and is_new,
                        "leader_log_end_offset": end,
                        "now_ms": now_ms,
                        **progress._asdict(),
                    }
                )
                leadership.seen[broker_id] = seen
        if rows:
            for row in self._rules.run("follower_progress", followers=rows):
                key = TopicIdPartition(row["topic_id"], row["partition"])
                progress = Progress(*(row[name] for name in Progress._fields))
                self[key].progress[row["broker_id"]] = progress
        return reported

    def _replica_rows(
        self, keys: Iterable[TopicIdPartition], metadata: Metadata, now_ms: int
    ) -> list[dict[str, Any]]:
        """Return one row per replica of these partitions: what the rules on in-sync sets take."""
        rows = []
        settings = self._settings
        for key in sorted(keys):
            leadership = self[key]
            state = leadership.state
            end = self._replicas.log_end_offset(key)
            of_partition = {
                "topic_id": key.topic_id,
                "partition": key.partition,
                "leader_log_end_offset": end,
                "high_watermark": self._replicas[key].high_watermark,
                "epoch_start_offset": leadership.epoch_start_offset,
                "min_isr": self.min_isr(metadata, state),
                "now_ms": now_ms,
                "lag_time_max_ms": settings.replica_lag_time_max_ms,
                "lag_max_messages": settings.replica_lag_max_messages,
            }
            for one in state.replicas:
                is_leader = one.broker_id == self._broker_id
                progress = leadership.progress.get(one.broker_id, _NO_PROGRESS)
                rows.append(
                    {
                        **of_partition,
                        "broker_id": one.broker_id,
                        "is_leader": is_leader,
                        "in_isr": one.in_isr,
                        "in_proposed_isr": one.broker_id in leadership.proposed_isr,
                        "is_alive": metadata.brokers[one.broker_id].is_alive,
                        "log_end_offset": end if is_leader else progress.log_end_offset,
                        "last_caught_up_ms": now_ms if is_leader else progress.last_caught_up_ms,
                        "previous_report_ms": progress.previous_report_ms,
                    }
                )
        return rows

    def _advance_high_watermarks(self, keys: Keys, metadata: Metadata, now_ms: int) -> Keys:
        """Let the rule say how far these partitions are committed; return those that moved."""
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

    def _change_isr(self, rule: str, keys: Keys, metadata: Metadata, now_ms: int) -> Keys:
        """Let `rule` say who leaves or joins, and write it; return what was changed.

        A partition with a proposal of unknown outcome gets another one, if only its present ISR:
        that commit decides the outcome. Otherwise nothing might move the partition epoch, and the
        high watermark would wait for the proposed members.
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
            # Until the outcome is known the high watermark minds the old set and the new (2.4).
            self[key].proposed_isr |= isr
        min_isr_of = {key: self.min_isr(metadata, state) for key, state in held.items()}
        changed = change_isr(self._cluster.partition_state, self._rules, held, proposed, min_isr_of)
        for key in changed:
            # Of the others somebody moved the partition epoch: an earlier proposal may have landed.
            self[key].proposed_isr = frozenset()
        self._take_isr({key: proposed[key] for key in changed}, now_ms)
        for key in changed:
            _log.info(
                rule.replace("_", " "),
                topic=self[key].state.topic,
                partition=key.partition,
                isr=self[key].state.isr,
            )
        return changed

    def _take_isr(self, isr_of: Mapping[TopicIdPartition, frozenset[int]], now_ms: int) -> None:
        """Take over the in-sync sets that were written."""
        for key, isr in isr_of.items():
            leadership = self[key]
            for broker_id in set(leadership.state.isr) - isr:
                # Whoever has left joins again by a report that it makes after that.
                progress = leadership.progress[broker_id]._replace(previous_report_ms=None)
                leadership.progress[broker_id] = progress
            for broker_id in isr - set(leadership.state.isr):
                # As for the members on becoming leader: it may join below the log's end, and
                # has replica.lag.time.max.ms to get there (5.1).
                progress = leadership.progress[broker_id]._replace(last_caught_up_ms=now_ms)
                leadership.progress[broker_id] = progress
            leadership.state = _with_isr(leadership.state, isr)


_REPORTED = ("leader_epoch", "broker_epoch", "log_end_offset", "reported_at_ms")
"""What makes a follower's row a new report when it changes."""


def _lags(parked_lags: str | None, leader_epoch: int) -> dict[int, int]:
    """Return the lags in ms, by broker, that were noted in this leader epoch."""
    noted = json.loads(parked_lags) if parked_lags else {}
    if noted.get("leader_epoch") != leader_epoch:
        return {}
    return {int(broker_id): lag for broker_id, lag in noted["lag_ms"].items()}


def _with_isr(state: PartitionState, isr: frozenset[int]) -> PartitionState:
    replicas = tuple(one._replace(in_isr=one.broker_id in isr) for one in state.replicas)
    return state._replace(replicas=replicas, partition_epoch=state.partition_epoch + 1)
