"""The leader role of one broker root: what a broker does for the partitions that it leads.

A tick takes the waiting requests first and looks at the followers after. Each step loads and lets a
rule decide; what they decide is one commit of the root's journal. Effects happen in the order:
becoming leader (epoch entry), journal, in-sync sets, journal with what these have committed. Every
crash between two of them is survivable.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from sparklog.broker.appends import Answer, Appends, Standing, answer
from sparklog.broker.led_partitions import FollowerReports, Keys, LedPartitions
from sparklog.broker.producer_state import ProducerState
from sparklog.broker.purgatory import Operation, Purgatory, Trigger
from sparklog.broker.replicas import Replicas
from sparklog.broker.tick import Effects, TickReport
from sparklog.config import Settings
from sparklog.logger import get_logger
from sparklog.model import EpochEntry, TopicIdPartition
from sparklog.protocol.rules import Rules
from sparklog.storage.metadata import Metadata, PartitionState
from sparklog.storage.roots import ClusterRoot

_log = get_logger(__name__)


class Leader:
    """Plays the leader role for one root; keeps what a leader knows in memory only."""

    def __init__(
        self,
        broker_id: int,
        cluster: ClusterRoot,
        replicas: Replicas,
        producer_state: ProducerState,
        purgatory: Purgatory,
        rules: Rules,
        settings: Settings,
        now_ms: int,
    ) -> None:
        self._broker_id = broker_id
        self._cluster = cluster
        self._replicas = replicas
        self._root = replicas.root
        self._purgatory = purgatory
        self._producer_state = producer_state
        self._led = LedPartitions(broker_id, cluster, replicas, rules, settings)
        looked_at_ms = replicas.last_report_ms() or now_ms
        self.appends = Appends(self._root, producer_state, rules, settings, looked_at_ms)
        self._seen_versions: object = None
        self._surroundings: object = None
        self._roles_of: tuple[object, Keys] | None = None
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
        before, news_before = self._commits(), self._replicas.news
        self._replicas.settle()
        version = self._root.log.content_version
        # A tick that fails is completed by the next one, whatever there is to see then.
        seen_versions, self._seen_versions = self._seen_versions, None
        if seen_versions is None:
            self._roles_of = None
        touched = self._take_roles(metadata, now_ms, effects)
        touched |= self._led.whose_lag_ran_out(self._looked_at_ms, now_ms)
        self.appends.inbox.look(now_ms)
        if self._replicas.journal_damage is not None:
            # Nothing is led, and no answer can be given.
            return TickReport()
        self._replicas.checkpoints.verify(now_ms)
        is_idle = not (
            touched
            or reports.changed & self._led.keys()
            or self.appends.inbox.waiting
            or metadata_versions != seen_versions
            or self._purgatory.has_expired("DelayedProduce", now_ms)
        )
        if is_idle:
            self._seen_versions = seen_versions
            self._keep_tables(now_ms)
            return TickReport(commits=self._commits() - before)
        if seen_versions is None or self._surroundings != _surroundings(metadata):
            touched |= self._led.keys() | self._purgatory.watched("DelayedProduce").keys()
        self._surroundings = _surroundings(metadata)
        taken = self.appends.load(now_ms, self._standing(metadata))
        self._replicas.append(taken.batches)
        fired = self._led.take_reports(touched, taken.appended, metadata, reports, now_ms)
        standing = partial(self._operation_standing, metadata)
        keys = touched.union(*fired.values())
        answers = [
            *taken.answers,
            *_answers(self._purgatory.try_complete_else_watch(taken.delayed, standing)),
            *_answers(self._purgatory.check_and_complete("DelayedProduce", keys, standing)),
        ]
        inbox = self.appends.inbox
        position = inbox.taken()
        self._replicas.commit(now_ms, answers=answers, taken=position)
        inbox.take(position)
        self.appends.note(taken, now_ms)
        effects.done("log_commit")
        keys = touched | taken.appended | fired[Trigger.FOLLOWER_REPORTED]
        fired = self._led.change_in_sync_sets(keys, metadata, now_ms)
        effects.done("isr_change")
        keys = fired[Trigger.HIGH_WATERMARK_MOVED]
        answers = [
            *_answers(self._purgatory.check_and_complete("DelayedProduce", keys, standing)),
            *_answers(self._purgatory.expire("DelayedProduce", now_ms)),
        ]
        self._replicas.commit(now_ms, answers=answers)
        effects.done("checkpoint")
        changed = self._root.log.content_version != version or bool(fired[Trigger.ISR_CHANGED])
        changed |= self._producer_state.expire(now_ms)
        effects.done("responses")
        self._keep_tables(now_ms)
        self._seen_versions = metadata_versions
        self._looked_at_ms = now_ms
        has_traffic = self._replicas.news != news_before
        return TickReport(changed, has_traffic, self._commits() - before)

    def _keep_tables(self, now_ms: int) -> None:
        """Remove taken requests and write checkpoints, where it is time."""
        self.appends.inbox.trim(now_ms)
        self._replicas.checkpoints.keep(now_ms)

    def park(self, now_ms: int) -> None:
        """Write down how far behind the followers are, for the next run (5.1)."""
        self._replicas.settle()
        self._led.note_lags(now_ms)
        self._replicas.commit(now_ms)

    @property
    def has_waiting(self) -> bool:
        """Whether a produce request waits for its followers."""
        return bool(self._purgatory.watched("DelayedProduce"))

    def led(self) -> Iterable[PartitionState]:
        """Return the partitions that this root leads, as of the last tick."""
        return [leadership.state for leadership in self._led.values()]

    def _take_roles(self, metadata: Metadata, now_ms: int, effects: Effects) -> Keys:
        """Become leader of what this process was newly elected for; forget what it lost.

        Returns the partitions of which anything is new.
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
                if self._led.take_state(state):
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
        # A commit of its own, before the first append of the epoch (6.1): nothing leads in memory
        # that the journal does not say to lead.
        self._replicas.assign_epochs(
            {key: EpochEntry(state.leader_epoch, ends[key]) for key, state in new.items()}
        )
        self._replicas.commit(now_ms)
        effects.done("epoch_entry")
        for key, state in new.items():
            entries = dict(self._replicas.epochs(key))
            start = entries[state.leader_epoch]
            self._led.begin(state, start, now_ms, lags.get(key))
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

    def _operation_standing(self, metadata: Metadata, operation: Operation) -> dict[str, Any]:
        key = TopicIdPartition(operation["topic_id"], operation["partition"])
        leadership = self._led.get(key)
        if leadership is None or not self._holds(key, operation):
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
            "min_isr": self._led.min_isr(metadata, leadership.state),
            "replica_count": len(leadership.state.replicas),
        }

    def _holds(self, key: TopicIdPartition, operation: Operation) -> bool:
        """Say whether the log has the records that an operation waits for (4.4).

        In a later epoch the offset may be another record's, and an epoch and an offset together
        name one record for good.
        """
        if self._led[key].state.leader_epoch == operation["leader_epoch"]:
            return True
        last = self._root.log.batch_at(key, operation["required_offset"] - 1)
        return last is not None and last.leader_epoch == operation["leader_epoch"]


def _answers(completed: Iterable[tuple[Operation, str]]) -> list[Answer]:
    """Return the answers of operations that are complete, each with the name of its error."""
    return [
        answer(
            operation["request_id"],
            operation["topic_id"],
            operation["partition"],
            error,
            operation["base_offset"],
            operation["required_offset"] - 1,
        )
        for operation, error in completed
    ]


def _surroundings(metadata: Metadata) -> object:
    """Return what bears on every partition: the brokers' processes, who lives, the topics."""
    brokers = {one.broker_id: (one.broker_epoch, one.is_alive) for one in metadata.brokers.values()}
    return brokers, metadata.topics


def _root_of(state: PartitionState, broker_id: int) -> int | None:
    replica = state.replica(broker_id)
    return replica.root if replica else None
