"""The leader role of one broker root: the work of a broker for the partitions that it leads.

A tick takes the pending requests first and reads the followers' reports afterwards. Each step loads
data and runs a rule; the decisions are one commit of the root's journal. Effects happen in the
order: becoming leader (epoch entry), journal, in-sync sets, journal with high watermarks and
answers that follow from these. Every crash between two of them is survivable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial

from sparklog.broker.broker_counts import BrokerCounts
from sparklog.broker.leading.appends import Appends, Standing
from sparklog.broker.leading.led_partitions import FollowerReports, Keys, LedPartitions
from sparklog.broker.leading.reassigned_replicas import ReassignedReplicas
from sparklog.broker.leading.retention import Retention
from sparklog.broker.log_starts import LogStarts
from sparklog.broker.producer_state import ProducerState
from sparklog.broker.purgatory import DelayedProduce, Kind, ProduceProgress, Purgatory, Trigger
from sparklog.broker.replicas import Replicas
from sparklog.broker.tick import Effects, TickReport
from sparklog.clock import Clock
from sparklog.cluster.dynamic_configs import DynamicConfigs
from sparklog.cluster.metadata import Metadata, PartitionState
from sparklog.cluster.roots import ClusterRoot
from sparklog.config import Settings
from sparklog.logger import get_logger
from sparklog.model import EpochEntry, TopicIdPartition
from sparklog.protocol.rules import Rules
from sparklog.storage.commits import PARTITIONS_VERSION, TOPICS_VERSION
from sparklog.storage.execution import Execution
from sparklog.storage.journal import ProduceAnswer

_log = get_logger(__name__)


class Leader:
    """Plays the leader role for one root. The state of a leader is in memory only."""

    def __init__(
        self,
        broker_id: int,
        cluster: ClusterRoot,
        replicas: Replicas,
        producer_state: ProducerState,
        log_starts: LogStarts,
        purgatory: Purgatory,
        rules: Rules,
        settings: Settings,
        execution: Execution,
        configs: DynamicConfigs,
        clock: Clock,
        counts: BrokerCounts,
    ) -> None:
        self._broker_id = broker_id
        self._counts = counts
        self._cluster = cluster
        self._replicas = replicas
        self._root = replicas.root
        self._purgatory = purgatory
        self._producer_state = producer_state
        self._led = LedPartitions(broker_id, cluster, replicas, rules, settings, counts)
        self._retention = Retention(replicas, log_starts, self._led, rules, settings, clock)
        self.appends = Appends(
            self._root, producer_state, rules, settings, execution, configs, clock, counts
        )
        self._seen_versions: object = None
        self._surroundings: object = None
        self._roles_of: tuple[object, Keys] | None = None
        self._polled_at_ms = clock.now_ms()
        # The deleted topics of which this root has no replica any more.
        self._removed: AbstractSet[str] = frozenset()
        self._reassigned = ReassignedReplicas(broker_id, replicas, producer_state, rules)

    def tick(
        self,
        metadata: Metadata,
        metadata_versions: object,
        reports: FollowerReports,
        now_ms: int,
        effects: Effects,
    ) -> TickReport:
        """Run one tick at `now_ms`; `reports` are the rows of the followers."""
        before, news_before = self._commits(), self._replicas.news
        self._replicas.settle()
        version = self._root.log.content_version
        # A failed tick is completed by the next one, even if that finds nothing new.
        seen_versions, self._seen_versions = self._seen_versions, None
        if seen_versions is None:
            self._roles_of = None
        touched = self._take_roles(metadata, now_ms, effects)
        touched |= self._led.whose_lag_ran_out(self._polled_at_ms, now_ms)
        deleted = self._deleted_replicas(metadata) | self._reassigned.find(metadata)
        touched |= deleted
        self.appends.inbox.poll(now_ms)
        if self._replicas.journal_damage is not None:
            # No partition is led, and no answer can be committed.
            return TickReport()
        self._replicas.checkpoints.verify()
        has_deleted = self._retention.tick(metadata, now_ms, effects)
        is_idle = not (
            touched
            or has_deleted
            or reports.changed & self._led.keys()
            or self.appends.inbox.waiting
            or metadata_versions != seen_versions
            or self._purgatory.may_have_expired_operations(DelayedProduce, now_ms)
        )
        if is_idle:
            self._seen_versions = seen_versions
            self._keep_tables()
            return TickReport(commits=self._commits() - before)
        if seen_versions is None or self._surroundings != _surroundings(metadata):
            touched |= self._led.keys() | self._purgatory.watched(DelayedProduce).keys()
        self._surroundings = _surroundings(metadata)
        plan = self.appends.load(now_ms, self._standing(metadata))
        self._replicas.append(plan.batches)
        fired = self._led.note_reports(touched, plan.appended, metadata, reports, now_ms)
        progress = partial(self._produce_progress, metadata)
        keys = touched.union(*fired.values())
        answers = [
            *plan.answers,
            *_answers(self._purgatory.try_complete_else_watch(plan.delayed, progress)),
            *_answers(self._purgatory.check_and_complete(DelayedProduce, keys, progress)),
        ]
        answers = self.appends.with_throttle_times(plan, answers, now_ms)
        self._replicas.remove(deleted)
        self._commit_requests(answers, now_ms, removes=bool(deleted))
        self.appends.note(plan, now_ms)
        effects.done("log_commit")
        self._end_removal(deleted, metadata)
        effects.done("removal")
        keys = touched | plan.appended | fired[Trigger.FOLLOWER_REPORTED]
        fired = self._led.change_in_sync_sets(keys, metadata, now_ms)
        effects.done("isr_change")
        keys = fired[Trigger.HIGH_WATERMARK_MOVED]
        answers = [
            *_answers(self._purgatory.check_and_complete(DelayedProduce, keys, progress)),
            *_answers(self._purgatory.expire(DelayedProduce, now_ms)),
        ]
        answers = self.appends.with_throttle_times(plan, answers, now_ms)
        self._commit_answers(answers, now_ms)
        effects.done("checkpoint")
        changed = self._root.log.content_version != version or bool(fired[Trigger.ISR_CHANGED])
        changed |= self._producer_state.expire(now_ms)
        effects.done("responses")
        self._keep_tables()
        self._seen_versions = metadata_versions
        self._polled_at_ms = now_ms
        has_traffic = self._replicas.news != news_before
        return TickReport(changed, has_traffic, self._commits() - before)

    def _commit_requests(
        self, answers: Sequence[ProduceAnswer], now_ms: int, *, removes: bool
    ) -> None:
        """Commit the outcome of the loaded requests, with all other staged changes.

        `removes`: whether replicas of deleted topics, or reassigned ones, are removed with it.
        """
        inbox = self.appends.inbox
        positions = inbox.positions()
        # By these versions a restored cluster root is recognised.
        versions = {
            TOPICS_VERSION: self._cluster.topics.version,
            PARTITIONS_VERSION: self._cluster.partition_state.version,
        }
        acted_on = versions if removes else None
        self._replicas.commit(
            now_ms, answers=answers, inbox_positions=positions, transactions=acted_on
        )
        inbox.note_committed(positions)
        self.appends.note_answered(answers)

    def _commit_answers(self, answers: Sequence[ProduceAnswer], now_ms: int) -> None:
        """Commit answers that high watermarks or time allow, with all other staged changes."""
        self._replicas.commit(now_ms, answers=answers)
        self.appends.note_answered(answers)

    def _deleted_replicas(self, metadata: Metadata) -> Keys:
        """Return the partitions of deleted topics of which this root still has something (7.9).

        Only topics that are recorded as deleted count: a cluster root without a topic may have been
        restored.
        """
        if metadata.deleted is self._removed:
            return set()
        known = {*self._replicas.partitions(), *self._producer_state.partitions()}
        found = {key for key in known if key.topic_id in metadata.deleted}
        if not found:
            self._removed = metadata.deleted
        return found

    def _end_removal(self, removed: Keys, metadata: Metadata) -> None:
        """Remove the producers of removed replicas."""
        self._producer_state.remove(removed)
        self._removed = metadata.deleted
        self._reassigned.note_removed(metadata)
        for key in sorted(removed):
            _log.info(
                "replica removed",
                broker=self._broker_id,
                topic_id=key.topic_id,
                partition=key.partition,
            )

    def _keep_tables(self) -> None:
        """Remove taken requests and write checkpoints, if that is due."""
        self.appends.inbox.trim()
        self._replicas.checkpoints.keep()

    def park(self, now_ms: int) -> None:
        """Persist the lags of the followers for the next run (5.1)."""
        self._replicas.settle()
        self._led.note_lags(now_ms)
        self._replicas.commit(now_ms)

    def purgatory_size(self, kind: Kind) -> int:
        """Return the number of delayed operations of a kind in this root."""
        return self._purgatory.size(kind)

    @property
    def has_waiting(self) -> bool:
        """Whether a produce request waits for its followers."""
        return bool(self._purgatory.watched(DelayedProduce))

    def led(self) -> Iterable[PartitionState]:
        """Return the partitions that this root leads, as of the last tick."""
        return [leadership.state for leadership in self._led.values()]

    def _take_roles(self, metadata: Metadata, now_ms: int, effects: Effects) -> Keys:
        """Become leader where this process was newly elected; drop the partitions that it lost.

        Returns the partitions with any change.
        """
        faulty = {key for key, damage in self._replicas.damaged.items() if damage.in_log}
        roles_of = metadata.partitions, faulty
        if self._roles_of is not None and (
            self._roles_of[0] is metadata.partitions and self._roles_of[1] == faulty
        ):
            return set()
        self._roles_of = None
        mine = {
            key: state
            for key, state in metadata.partitions.items()
            if state.leader == self._broker_id
            and state.leader_broker_epoch == self._root.fence.epoch
            and self._replicas.root_index == _root_of(state, self._broker_id)
            and key not in faulty
        }
        touched = self._led.keys() - mine.keys()
        for key in touched:
            del self._led[key]
        new = {}
        for key, state in mine.items():
            leadership = self._led.get(key)
            if leadership is not None and leadership.state.leader_epoch == state.leader_epoch:
                if self._led.update_state(state, metadata):
                    touched.add(key)
            else:
                new[key] = state
        if not new:
            self._roles_of = roles_of
            return touched
        ends = {key: self._replicas.log_end_offset(key) for key in new}
        lags = {key: self._replicas[key].parked_lags for key in new if key in self._replicas}
        for key, state in new.items():
            self._replicas.put(
                key,
                state.topic,
                role="leader",
                leader_epoch=state.leader_epoch,
                reported_at_ms=now_ms,
                parked_lags=None,
            )
        # A commit of its own, before the first append of the epoch (6.1). Invariant: a partition
        # that is led in memory is led in the journal.
        self._replicas.assign_epochs(
            {key: EpochEntry(state.leader_epoch, ends[key]) for key, state in new.items()}
        )
        self._replicas.commit(now_ms)
        effects.done("epoch_entry")
        for key, state in new.items():
            entries = dict(self._replicas.epochs(key))
            start = entries[state.leader_epoch]
            self._led.begin(state, metadata, start, now_ms, lags.get(key))
            _log.info(
                "became leader",
                broker=self._broker_id,
                topic=state.topic,
                partition=key.partition,
                leader_epoch=state.leader_epoch,
                start_offset=start,
            )
        self._roles_of = roles_of
        return touched | new.keys()

    def _standing(self, metadata: Metadata) -> Standing:
        return Standing(
            metadata,
            {key: leadership.state for key, leadership in self._led.items()},
            self._replicas.log_end_offset,
        )

    def _commits(self) -> int:
        return self._root.commits() + self._cluster.partition_state.commits

    def _produce_progress(self, metadata: Metadata, operation: DelayedProduce) -> ProduceProgress:
        key = TopicIdPartition(operation.topic_id, operation.partition)
        leadership = self._led.get(key)
        if leadership is None or not self._holds(key, operation):
            is_deleted = key.topic_id in metadata.deleted
            return ProduceProgress(is_leader=False, is_topic_deleted=is_deleted)
        state = leadership.state
        return ProduceProgress(
            is_leader=True,
            high_watermark=self._replicas[key].high_watermark,
            isr_size=len(state.isr),
            min_isr=self._led.min_isr(metadata, state),
            replica_count=len(state.replicas),
        )

    def _holds(self, key: TopicIdPartition, operation: DelayedProduce) -> bool:
        """Return whether the log has the records that an operation waits for (4.4).

        In a later epoch the offset may be another record's. An epoch and an offset together
        identify one record for good.
        """
        if self._led[key].state.leader_epoch == operation.leader_epoch:
            return True
        last = self._root.log.batch_at(key, operation.last_offset)
        return last is not None and last.leader_epoch == operation.leader_epoch


def _answers(completed: Iterable[tuple[DelayedProduce, str]]) -> list[ProduceAnswer]:
    """Return the answers of completed operations, each given with the name of its error."""
    return [
        ProduceAnswer(
            operation.request_id,
            operation.topic_id,
            operation.partition,
            error,
            operation.base_offset,
            operation.last_offset,
        )
        for operation, error in completed
    ]


def _surroundings(metadata: Metadata) -> object:
    """Return the state that concerns every partition: broker processes, their liveness, topics."""
    brokers = {
        one.broker_id: (one.broker_epoch, one.is_alive, one.roots, one.offline_log_dirs)
        for one in metadata.brokers.values()
    }
    return brokers, metadata.topics


def _root_of(state: PartitionState, broker_id: int) -> int | None:
    replica = state.replica(broker_id)
    return replica.root if replica else None
