"""The leader role of one broker root: what a broker does for the partitions that it leads.

A tick takes the waiting requests first and looks at the followers after. Each step loads, lets a
rule decide, and writes; effects happen in the order: epoch entry, log, in-sync sets, checkpoint,
responses. Every crash between two of them is survivable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sparklog.broker.appends import Answer, Appends, Standing, answer
from sparklog.broker.isr import change_isr
from sparklog.broker.purgatory import Operation, Purgatory
from sparklog.broker.replicas import Replicas
from sparklog.broker.tick import Effects, TickReport
from sparklog.config import Settings
from sparklog.logger import get_logger
from sparklog.model import EpochEntry, TopicIdPartition
from sparklog.protocol.rules import Rules
from sparklog.storage.metadata import Metadata, PartitionState
from sparklog.storage.roots import ClusterRoot

_log = get_logger(__name__)


class Progress(NamedTuple):
    """What the leader knows of one follower; times are the leader's own (rules 1.3, 5.1).

    `log_end_offset` is the position last reported under this leader epoch and the follower's
    current broker epoch, or `None`.
    """

    log_end_offset: int | None = None
    previous_leader_log_end_offset: int | None = None
    previous_report_ms: int | None = None
    last_caught_up_ms: int | None = None


@dataclass
class Leadership:
    """One partition that this broker leads, in one leader epoch."""

    state: PartitionState
    epoch_start_offset: int
    progress: dict[int, Progress] = field(default_factory=dict)
    seen: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    proposed_isr: frozenset[int] = frozenset()


class FollowerReports(NamedTuple):
    """The followers' checkpoint rows, by broker and partition, as just read."""

    rows: dict[tuple[int, TopicIdPartition], dict[str, Any]]
    changed: bool


class Leader:
    """Plays the leader role for one root; keeps what a leader knows in memory only."""

    def __init__(
        self,
        broker_id: int,
        cluster: ClusterRoot,
        replicas: Replicas,
        rules: Rules,
        settings: Settings,
        now_ms: int,
    ) -> None:
        self._broker_id = broker_id
        self._cluster = cluster
        self._replicas = replicas
        self._root = replicas.root
        self._rules = rules
        self._settings = settings
        self._led: dict[TopicIdPartition, Leadership] = {}
        self._purgatory = Purgatory(self._root, rules)
        self.appends = Appends(self._root, rules, settings, replicas.last_report_ms() or now_ms)
        self._answers: list[Answer] = []
        self._seen_versions: object = None
        self._looked_at_ms = now_ms

    def tick(
        self,
        metadata: Metadata,
        metadata_versions: object,
        reports: FollowerReports,
        now_ms: int,
        effects: Effects,
    ) -> TickReport:
        """Do what is to be done at `now_ms`; `reports` are the rows of the followers."""
        before = self._commits()
        # A tick that fails is completed by the next one, whatever there is to see then.
        seen_versions, self._seen_versions = self._seen_versions, None
        self._take_roles(metadata, now_ms, effects)
        self.appends.inbox.look(now_ms)
        if not (
            self._is_due(now_ms)
            or reports.changed
            or self.appends.inbox.waiting
            or metadata_versions != seen_versions
        ):
            self._seen_versions = seen_versions
            return TickReport()
        answers, delayed = self.appends.append(now_ms, self._standing(metadata))
        self._answers += answers
        self._purgatory.watch(delayed)
        effects.done("log_commit")
        isr_changed = self._advance(metadata, reports, now_ms, effects)
        changed = self._replicas.write_checkpoint() or isr_changed
        effects.done("checkpoint")
        completed = self._purgatory.complete(
            now_ms, lambda operation: self._operation_standing(metadata, operation)
        )
        self._answers += [_answer(operation, error) for operation, error in completed]
        changed |= self.appends.respond(self._answers, now_ms)
        self._answers.clear()
        changed |= self._purgatory.write()
        effects.done("responses")
        changed |= self.appends.inbox.trim()
        self._seen_versions = metadata_versions
        self._looked_at_ms = now_ms
        return TickReport(changed=changed, commits=self._commits() - before)

    def led(self) -> Iterable[PartitionState]:
        """Return the partitions that this root leads, as of the last tick."""
        return [leadership.state for leadership in self._led.values()]

    def _take_roles(self, metadata: Metadata, now_ms: int, effects: Effects) -> None:
        """Become leader of what this process was newly elected for; forget what it lost."""
        mine = {
            key: state
            for key, state in metadata.partitions.items()
            if state.leader == self._broker_id
            and state.leader_broker_epoch == self._root.fence.epoch
            and self._replicas.root_index == _root_of(state, self._broker_id)
        }
        for key in [key for key in self._led if key not in mine]:
            del self._led[key]
        new = {}
        for key, state in mine.items():
            leadership = self._led.get(key)
            if leadership is not None and leadership.state.leader_epoch == state.leader_epoch:
                leadership.state = state
                leadership.proposed_isr = frozenset()
            else:
                new[key] = state
        if not new:
            return
        ends = {key: self._replicas.log_end_offset(key) for key in new}
        for key, state in new.items():
            self._replicas.put(
                key,
                state.topic,
                role="leader",
                leader_epoch=state.leader_epoch,
                reported_at_ms=now_ms,
            )
        # Before the first append of the epoch, and durably (6.1).
        self._replicas.assign_epochs(
            {key: EpochEntry(state.leader_epoch, ends[key]) for key, state in new.items()}
        )
        self._replicas.write_epochs()
        effects.done("epoch_entry")
        for key, state in new.items():
            entries = dict(self._replicas.epochs(key))
            start = entries[state.leader_epoch]
            progress = {
                one.broker_id: Progress(last_caught_up_ms=now_ms if one.in_isr else None)
                for one in state.replicas
                if one.broker_id != self._broker_id
            }
            self._led[key] = Leadership(state, start, progress)
            _log.info(
                "became leader",
                broker=self._broker_id,
                topic=state.topic,
                partition=key.partition,
                leader_epoch=state.leader_epoch,
                start_offset=start,
            )

    def _standing(self, metadata: Metadata) -> Standing:
        return Standing(
            metadata,
            {key: leadership.state for key, leadership in self._led.items()},
            {key: self._replicas.log_end_offset(key) for key in self._led},
        )

    def _is_due(self, now_ms: int) -> bool:
        """Say whether a deadline has run out, or a lag since the last look.

        What time alone does to a follower it does at that moment, and not again.
        """
        deadline = self._purgatory.next_deadline_ms()
        if deadline is not None and now_ms >= deadline:
            return True
        lag = self._settings.replica_lag_time_max_ms
        return any(
            progress.log_end_offset != self._replicas.log_end_offset(key)
            and progress.last_caught_up_ms is not None
            and self._looked_at_ms - progress.last_caught_up_ms <= lag
            and now_ms - progress.last_caught_up_ms > lag
            and (progress.log_end_offset is not None or broker_id in leadership.state.isr)
            for key, leadership in self._led.items()
            for broker_id, progress in leadership.progress.items()
        )

    def _advance(
        self, metadata: Metadata, reports: FollowerReports, now_ms: int, effects: Effects
    ) -> bool:
        """Reports, shrink, high watermark, expand, high watermark again (rule 5.3)."""
        self._take_reports(metadata, reports, now_ms)
        shrunk = self._change_isr("isr_shrink", metadata, now_ms)
        self._advance_high_watermarks(metadata, now_ms)
        expanded = self._change_isr("isr_expand", metadata, now_ms)
        effects.done("isr_change")
        if expanded:
            self._advance_high_watermarks(metadata, now_ms)
        return shrunk or expanded

    def _take_reports(self, metadata: Metadata, reports: FollowerReports, now_ms: int) -> None:
        rows = []
        for key, leadership in self._led.items():
            for broker_id, progress in leadership.progress.items():
                report = reports.rows.get((broker_id, key), {})
                seen = tuple(report.get(name) for name in _REPORTED)
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
                        "is_new": bool(report) and seen != leadership.seen.get(broker_id),
                        "leader_log_end_offset": self._replicas.log_end_offset(key),
                        "now_ms": now_ms,
                        **progress._asdict(),
                    }
                )
                leadership.seen[broker_id] = seen
        if not rows:
            return
        for row in self._rules.run("follower_progress", followers=rows):
            key = TopicIdPartition(row["topic_id"], row["partition"])
            progress = Progress(*(row[name] for name in Progress._fields))
            self._led[key].progress[row["broker_id"]] = progress

    def _replica_rows(self, metadata: Metadata, now_ms: int) -> list[dict[str, Any]]:
        """Return one row per replica of what is led: the input of the rules on in-sync sets."""
        rows = []
        for key, leadership in self._led.items():
            state = leadership.state
            end = self._replicas.log_end_offset(key)
            for one in state.replicas:
                is_leader = one.broker_id == self._broker_id
                progress = leadership.progress.get(one.broker_id, Progress())
                rows.append(
                    {
                        "topic_id": key.topic_id,
                        "partition": key.partition,
                        "broker_id": one.broker_id,
                        "is_leader": is_leader,
                        "in_isr": one.in_isr,
                        "in_proposed_isr": one.broker_id in leadership.proposed_isr,
                        "is_alive": metadata.brokers[one.broker_id].is_alive,
                        "log_end_offset": end if is_leader else progress.log_end_offset,
                        "leader_log_end_offset": end,
                        "last_caught_up_ms": now_ms if is_leader else progress.last_caught_up_ms,
                        "previous_report_ms": progress.previous_report_ms,
                        "high_watermark": self._replicas[key].high_watermark,
                        "epoch_start_offset": leadership.epoch_start_offset,
                        "min_isr": self._min_isr(metadata, state),
                        "now_ms": now_ms,
                        "lag_time_max_ms": self._settings.replica_lag_time_max_ms,
                        "lag_max_messages": self._settings.replica_lag_max_messages,
                    }
                )
        return rows

    def _min_isr(self, metadata: Metadata, state: PartitionState) -> int:
        config = metadata.topics[state.topic_id].config
        return config.min_insync_replicas or self._settings.min_insync_replicas

    def _advance_high_watermarks(self, metadata: Metadata, now_ms: int) -> None:
        if not self._led:
            return
        replicas = self._replica_rows(metadata, now_ms)
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

    def _change_isr(self, rule: str, metadata: Metadata, now_ms: int) -> bool:
        """Let `rule` say who leaves or joins, and write it; say whether anything changed."""
        if not self._led:
            return False
        moved = self._rules.run(rule, replicas=self._replica_rows(metadata, now_ms))
        if not moved:
            return False
        proposed: dict[TopicIdPartition, frozenset[int]] = {}
        for row in moved:
            key = TopicIdPartition(row["topic_id"], row["partition"])
            before = proposed.get(key, frozenset(self._led[key].state.isr))
            proposed[key] = before ^ {row["broker_id"]}
        held = {key: self._led[key].state for key in proposed}
        for key, isr in proposed.items():
            # Until the outcome is known the high watermark minds the old set and the new (2.4).
            self._led[key].proposed_isr = isr
        min_isr = {key: self._min_isr(metadata, state) for key, state in held.items()}
        changed = change_isr(self._cluster.partition_state, self._rules, held, proposed, min_isr)
        for key, isr in proposed.items():
            leadership = self._led[key]
            leadership.proposed_isr = frozenset()
            if key in changed:
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
                _log.info(
                    rule.replace("_", " "),
                    topic=leadership.state.topic,
                    partition=key.partition,
                    isr=sorted(isr),
                )
        return bool(changed)

    def _commits(self) -> int:
        return self._root.commits() + self._cluster.partition_state.commits

    def _operation_standing(self, metadata: Metadata, operation: Operation) -> dict[str, Any]:
        key = TopicIdPartition(operation["topic_id"], operation["partition"])
        leadership = self._led.get(key)
        # In another epoch the offset may be another record's: the client has to ask again (4.4).
        if leadership is None or leadership.state.leader_epoch != operation["leader_epoch"]:
            return {
                "is_leader": False,
                "high_watermark": None,
                "isr_size": None,
                "min_isr": None,
                "replica_count": None,
            }
        return {
            "is_leader": True,
            "high_watermark": self._replicas[key].high_watermark,
            "isr_size": len(leadership.state.isr),
            "min_isr": self._min_isr(metadata, leadership.state),
            "replica_count": len(leadership.state.replicas),
        }


_REPORTED = ("leader_epoch", "broker_epoch", "log_end_offset", "reported_at_ms")
"""What makes a follower's row a new report when it changes."""


def _root_of(state: PartitionState, broker_id: int) -> int | None:
    replica = state.replica(broker_id)
    return replica.root if replica else None


def _with_isr(state: PartitionState, isr: frozenset[int]) -> PartitionState:
    replicas = tuple(one._replace(in_isr=one.broker_id in isr) for one in state.replicas)
    return state._replace(replicas=replicas, partition_epoch=state.partition_epoch + 1)


def _answer(operation: Operation, error: str) -> Answer:
    last_offset = operation["required_offset"] - 1
    of = operation["request_id"], operation["topic_id"], operation["partition"]
    return answer(*of, error, operation["base_offset"], last_offset)
