"""Damaged replicas of one broker root: detection, leaving the ISR, removal before a refill.

A replica is damaged from an offset on: its log has a fault there (`RecordLog.damaged`), or the
Parquet file of the batch there is missing or does not match its checksum. It is repaired in this
order, each step durable before the next:

1. The replica's row in the journal records the damage: columns `damaged_offset` and `damage`.
2. The broker leaves the ISR and the ELR, and stops leading the partition.
3. Under another leader, the batches from the offset on are removed. The offset may be below the
   replica's own high watermark: no broker relies on these batches any more.
4. The replica follows, copies what it lacks from its leader, and joins the ISR again.

After a crash between two steps the damage is found again: by loading the log, or in the row.

If a commit of the log table is damaged, no other process can open the table. Until the commit is
restored the broker leaves every ISR in which another member stays, leads nothing from this root and
removes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from sparklog.broker.checkpoints import VERIFY_INTERVAL_MS
from sparklog.broker.leading.led_partitions import FollowerReports
from sparklog.broker.producer_state import ProducerState
from sparklog.broker.repair_requests import RepairRequests
from sparklog.broker.replicas import Damage, Replicas
from sparklog.broker.tick import Effects
from sparklog.clock import Clock, Interval
from sparklog.cluster.isr import leave_isr
from sparklog.cluster.metadata import Metadata, PartitionState
from sparklog.cluster.roots import ClusterRoot
from sparklog.config import Settings
from sparklog.errors import DamagedError
from sparklog.logger import get_logger
from sparklog.model import Batch, TopicIdPartition
from sparklog.storage.batch_files import file_damage
from sparklog.storage.location import Location, one_line
from sparklog.storage.parallel import background_thread, map_in_parallel
from sparklog.storage.record_log import RecordLog

_log = get_logger(__name__)

_SCRUB_MS = 1_000
"""The time between two slices of the scrub, in ms on the broker's clock."""

_SCRUB_FILES = 100
"""Maximum number of files that a slice of the scrub reads."""

_Keys = set[TopicIdPartition]


class Repairs:
    """Finds and repairs the damaged replicas of one root; runs before the roles of a tick."""

    def __init__(
        self,
        broker_id: int,
        cluster: ClusterRoot,
        replicas: Replicas,
        producer_state: ProducerState,
        settings: Settings,
        clock: Clock,
        locate: Callable[[int, int], Location],
    ) -> None:
        self._broker_id = broker_id
        self._cluster = cluster
        self._replicas = replicas
        self._log = replicas.root.log
        self._producer_state = producer_state
        self._settings = settings
        self._slices = Interval(clock)
        self._slices.begin(_SCRUB_MS)
        self._scrubbed: tuple[TopicIdPartition, int] | None = None
        # Replicas that no broker relies on since a leader epoch: one that leads in a later epoch
        # was elected uncleanly.
        self._out_since: dict[TopicIdPartition, int] = {}
        # Replicas that have left the ISR since their damage was found.
        self._left: _Keys = set()
        self._was_damaged = bool(replicas.damaged)
        self._verifications = Interval(clock)
        self._verifications.begin(VERIFY_INTERVAL_MS)
        self._refuted: dict[TopicIdPartition, tuple[int, int]] = {}
        self._told: set[tuple[TopicIdPartition, str]] = set()
        self._scrub_bytes_per_second = settings.scrub_bytes_per_second(
            is_local=self._log.location.is_local
        )
        self._beside = None if self._log.location.is_local else background_thread("scrub")
        self._reading: Future[list[tuple[Batch, DamagedError | None]]] | None = None
        self._requests = RepairRequests(
            broker_id, cluster, replicas, locate, self._verify_log, clock
        )

    def tick(
        self, metadata: Metadata, reports: FollowerReports, now_ms: int, effects: Effects
    ) -> bool:
        """Find damage and do the next step of each repair; return whether anything was written.

        If so, the caller must load the metadata again.
        """
        self._replicas.settle()
        self._find_in_log()
        self._find_in_table()
        self._find_reported(metadata, reports, now_ms)
        self._scrub()
        has_acted = self._requests.tick(metadata, now_ms, effects)
        return self._repair(metadata, now_ms, effects) or has_acted

    def _repair(self, metadata: Metadata, now_ms: int, effects: Effects) -> bool:
        """Do the next step of each repair; return whether anything was written."""
        damaged = self._replicas.damaged
        states = {key: metadata.partitions[key] for key in damaged if key in metadata.partitions}
        self._told = {one for one in self._told if one[0] in damaged}
        is_over, self._was_damaged = self._was_damaged and not states, bool(states)
        self._left &= states.keys()
        if not states:
            self._out_since.clear()
            return is_over and self._replicas.commit(now_ms)
        for key in states:
            self._tell(key)
        unclean = {
            key
            for key, state in states.items()
            if state.leader == self._broker_id
            and state.leader_broker_epoch >= 0
            and state.leader_epoch > self._out_since.get(key, state.leader_epoch)
        }
        leaving = {
            key
            for key, state in states.items()
            if key not in unclean and self._must_leave(key, state, metadata)
        }
        may_cut = {key for key, state in states.items() if self._may_cut(state, metadata)}
        # The leader may add a replica that these metadata have outside the ISR, or has done so.
        may_join = {key for key in may_cut if states[key].replica(self._broker_id)} - self._left
        if self._replicas.journal_damage is None:
            leaving |= may_join - unclean
        if leaving:
            self._leave(leaving, states, now_ms)
            effects.done("damage_isr")
            return True
        cut = unclean | (may_cut - may_join)
        if self._replicas.journal_damage is not None:
            cut = set()
        for key, state in states.items():
            if self._broker_id not in _counted_on(state):
                self._out_since.setdefault(key, state.leader_epoch)
        if cut:
            self._cut(cut, unclean, metadata, now_ms, effects)
        return bool(cut) or self._replicas.commit(now_ms)

    # --- finding --------------------------------------------------------------------------------

    def _find_in_log(self) -> None:
        for key, error in self._log.damaged.items():
            self._replicas.note_damage(
                key, Damage(self._log.log_end_offset(key), error, in_log=True)
            )

    def _find_in_table(self, *, is_requested: bool = False) -> None:
        """Verify the commits of the log table, which this process has in memory.

        Only on local file systems, every `VERIFY_INTERVAL_MS` and when it is requested.
        """
        if not (is_requested or self._verifications.is_over):
            return
        self._verifications.begin(VERIFY_INTERVAL_MS)
        before, found = self._replicas.journal_damage, None
        try:
            self._log.verify_commits()
        except DamagedError as error:
            found = error
        self._replicas.journal_damage = found
        for key, damage in list(self._replicas.damaged.items()):
            if damage.error is before:
                del self._replicas.damaged[key]
        if found is not None:
            for key in self._replicas.partitions():
                end = self._replicas.log_end_offset(key)
                self._replicas.note_damage(key, Damage(end, found, in_log=True))

    def _find_reported(self, metadata: Metadata, reports: FollowerReports, now_ms: int) -> None:
        """Verify the batches that followers report as damaged; a report alone has no effect."""
        for key in reports.changed:
            state = metadata.partitions.get(key)
            if state is None or state.leader != self._broker_id or key in self._replicas.damaged:
                continue
            for one in state.replicas:
                offset = reports.row(one.broker_id, key).get("leader_damaged_offset")
                if offset is None or self._was_refuted(key, offset, now_ms):
                    continue
                batch = self._log.batch_at(key, offset)
                if batch is None:
                    continue
                if not self._replicas.check_batch(batch):
                    self._check_log(key)
                if key not in self._replicas.damaged:
                    self._refuted[key] = offset, now_ms

    def _was_refuted(self, key: TopicIdPartition, offset: int, now_ms: int) -> bool:
        refuted, at_ms = self._refuted.get(key, (-1, 0))
        return refuted == offset and now_ms - at_ms < self._settings.replica_lag_time_max_ms

    def _verify_log(self, key: TopicIdPartition | None) -> None:
        """Verify the log of the root at once, or that of one replica."""
        if key is not None:
            self._check_log(key)
        elif self._log.location.is_local:
            self._find_in_table(is_requested=True)

    def _check_log(self, key: TopicIdPartition) -> None:
        """Open the broker's own log as readers do: memory may be sound although the table is
        damaged.
        """
        opened = RecordLog(self._replicas.root.location)
        error = opened.damaged.get(key)
        if error is not None:
            self._replicas.note_damage(key, Damage(opened.log_end_offset(key), error, in_log=True))

    def _scrub(self) -> None:
        """Verify the files of a slice of the root, of `log.scrub.bytes.per.second` bytes.

        An object store is read in another thread, and only if the rate is configured: reads cost
        requests there. The position is kept in memory; `sparklog scrub` verifies a whole cluster.
        """
        self._note_scrubbed()
        if not self._scrub_bytes_per_second or self._reading:
            return
        if not self._slices.is_over:
            return
        self._slices.begin(_SCRUB_MS)
        self._replicas.drop_restored()
        batches = self._next_slice()
        if self._beside is None:
            for batch in batches:
                self._replicas.check_batch(batch)
        elif batches:
            self._reading = self._beside.submit(_damage_of, self._log, batches)

    def _note_scrubbed(self) -> None:
        """Note the damage that a slice on an object store has found, of batches still live."""
        if self._reading is None or not self._reading.done():
            return
        read, self._reading = self._reading.result(), None
        for batch, error in read:
            if error is not None and self._log.is_live(batch):
                damage = Damage(batch.base_offset, error, in_log=False)
                self._replicas.note_damage(batch.topic_id_partition, damage)

    def _next_slice(self) -> list[Batch]:
        """Return the next batches to be verified; after the last one, the first follows."""
        left = self._scrub_bytes_per_second
        chosen = []
        for batch in self._next_batches():
            chosen.append(batch)
            left -= batch.size_bytes
            self._scrubbed = batch.topic_id_partition, batch.next_offset
            if left <= 0 or len(chosen) == _SCRUB_FILES:
                return chosen
        self._scrubbed = None
        return chosen

    def _next_batches(self) -> Iterable[Batch]:
        start, offset = self._scrubbed or (None, 0)
        for key in sorted(self._log.partitions()):
            if (start is not None and key < start) or key in self._replicas.damaged:
                continue
            yield from self._log.batches(key, offset if key == start else 0)

    # --- repairing ------------------------------------------------------------------------------

    def _must_leave(self, key: TopicIdPartition, state: PartitionState, metadata: Metadata) -> bool:
        """Whether the broker must leave the ISR, the ELR and the leadership of a partition.

        A fault in the log removes even the last member: its log end offset is wrong. After damage
        to a file the last member stays: its other records can still be read. After damage to a
        commit it stays, too: the commit can be restored.
        """
        if self._broker_id not in _counted_on(state):
            return False
        if self._has_wrong_end(key):
            return True
        return any(
            one.in_isr and one.broker_id != self._broker_id and metadata.is_live(one)
            for one in state.replicas
        )

    def _has_wrong_end(self, key: TopicIdPartition) -> bool:
        damage = self._replicas.damaged[key]
        return damage.in_log and damage.error is not self._replicas.journal_damage

    def _leave(
        self, keys: _Keys, states: dict[TopicIdPartition, PartitionState], now_ms: int
    ) -> None:
        followed = {one for one in keys if one in self._replicas}
        self._replicas.withdraw(
            {one for one in followed if self._replicas[one].role == "follower"}, now_ms
        )
        in_log = {key for key in keys if self._has_wrong_end(key)}
        table = self._cluster.partition_state
        left = leave_isr(table, self._broker_id, in_log, cause="damage")
        left |= leave_isr(table, self._broker_id, keys - in_log, keep_last=True, cause="damage")
        self._left |= left
        for key in sorted(left):
            self._out_since[key] = states[key].leader_epoch
            _log.warning(
                "left the ISR to be repaired",
                broker=self._broker_id,
                topic=states[key].topic,
                partition=key.partition,
                from_offset=self._replicas.damaged[key].from_offset,
            )

    def _may_cut(self, state: PartitionState, metadata: Metadata) -> bool:
        """Whether no broker relies on the replica, and a live leader can refill it."""
        return (
            self._broker_id not in _counted_on(state)
            and state.leader is not None
            and state.leader_broker_epoch >= 0
            and _is_alive(metadata, state.leader)
        )

    def _cut(
        self, keys: _Keys, unclean: _Keys, metadata: Metadata, now_ms: int, effects: Effects
    ) -> None:
        """Remove the batches from the damaged offset on, then what depends on them (rule 6.5).

        They are copied from the leader again, but for those of the replicas in `unclean`, which
        lead after an unclean election: their committed records are lost.

        A compacted replica is refilled from its start: the leader may have removed a tombstone
        (8.3) whose key has an earlier record here.
        """
        points: dict[TopicIdPartition, int] = {}
        removed: list[Batch] = []
        truncations = []
        for key in sorted(keys):
            offset = self._replicas.damaged[key].from_offset
            topic = metadata.topics.get(key.topic_id)
            if topic is not None and topic.config.is_compacted(self._settings):
                offset = min(offset, self._replicas[key].log_start_offset)
            batches = self._log.batches(key, offset)
            # A batch that was merged meanwhile begins earlier.
            points[key] = min([offset, *(batch.base_offset for batch in batches[:1])])
            batches = [*batches, *self._log.unsound_batches(key)]
            removed += batches
            # The offsets of a damaged header are not known; its number of records is.
            records = sum(one.next_offset - one.base_offset for one in batches)
            state = metadata.partitions[key]
            row = self._replicas.truncation(key, points[key], "damage", state.leader)
            truncations.append(
                {
                    **row,
                    "leader_epoch": state.leader_epoch,
                    "from_offset": points[key] + records,
                    "records_removed": records,
                    "records_lost": records if key in unclean else 0,
                }
            )
        for key, offset in points.items():
            replica = self._replicas[key]
            _log.warning(
                "damaged batches removed, to be copied from the leader",
                broker=self._broker_id,
                topic=replica.topic,
                partition=key.partition,
                to_offset=offset,
            )
            # Readers with metadata from before the election must not take it for the leader's.
            role = replica.role if key in unclean else "follower"
            self._replicas.put(
                key,
                replica.topic,
                role=role,
                log_start_offset=min(replica.log_start_offset, offset),
                high_watermark=min(replica.high_watermark, offset),
            )
        self._replicas.truncate_epochs(points)
        damages = {key: self._replicas.damaged.pop(key) for key in points}
        try:
            self._replicas.commit(now_ms, removed=removed, truncations=truncations)
        except BaseException:
            self._replicas.damaged |= damages
            raise
        effects.done("damage_cut")
        for key in points:
            self._out_since.pop(key, None)
            self._left.discard(key)
        self._producer_state.truncate(points)

    def _tell(self, key: TopicIdPartition) -> None:
        damage = self._replicas.damaged[key]
        if (key, damage.error.fault) in self._told:
            return
        self._told.add((key, damage.error.fault))
        _log.error(
            "replica damaged",
            broker=self._broker_id,
            topic=self._replicas[key].topic,
            partition=key.partition,
            from_offset=damage.from_offset,
            error=str(damage.error),
        )


def _damage_of(log: RecordLog, batches: Sequence[Batch]) -> list[tuple[Batch, DamagedError | None]]:
    """Read the files of batches on an object store in parallel; return the damage to each."""

    def damage(batch: Batch) -> tuple[Batch, DamagedError | None]:
        try:
            return batch, file_damage(log, batch)
        except OSError as error:
            _log.warning("batch not verified", path=batch.path, error=one_line(error))
            return batch, None

    return map_in_parallel(damage, batches, 0, is_local=False)


def _counted_on(state: PartitionState) -> set[int | None]:
    """Return the brokers that are in the ISR or the ELR of a partition, or lead it."""
    leader = state.leader if state.leader_broker_epoch >= 0 else None
    return {leader, *(one.broker_id for one in state.replicas if one.in_isr or one.in_elr)}


def _is_alive(metadata: Metadata, broker_id: int) -> bool:
    broker = metadata.brokers.get(broker_id)
    return broker is not None and broker.is_alive
