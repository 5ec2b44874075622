"""A broker's part of repairs that `sparklog repair` requests: those that commit to its own log.

The broker's row in `brokers` counts the requests, so an idle broker does not read `repairs`. Each
request is verified before anything is written, and its row is changed after the commit: a broker
that dies in between finds the batch sound, or no longer in its log, when it acts again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from sparklog.broker.replicas import Damage, Replicas
from sparklog.broker.tick import Effects
from sparklog.clock import Clock, Interval
from sparklog.cluster.metadata import Metadata, PartitionState
from sparklog.cluster.repairs import Repair, repairs_of, set_outcomes
from sparklog.cluster.restore_candidates import restore_candidates
from sparklog.cluster.roots import ClusterRoot
from sparklog.errors import DamagedError
from sparklog.logger import get_logger
from sparklog.model import LOG, Batch, TopicIdPartition, batch_id
from sparklog.storage.batch_files import file_damage
from sparklog.storage.delta_log_check import JOURNAL_FAULTS, check_log
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.file_states import FILE_FAULTS
from sparklog.storage.journal import CHECKPOINTS
from sparklog.storage.journal_check import check_journal
from sparklog.storage.location import Location, one_line
from sparklog.storage.new_file import new_file
from sparklog.storage.record_log import RecordLog
from sparklog.storage.restoring import find_content, replace_file

_log = get_logger(__name__)

_MOST_BYTES = 64 << 20
"""Bytes of batch files that are repaired in one tick, at least one file."""

_RETRY_MS = 10_000
"""The time in ms after which a request that failed is tried again."""

_Changes = dict[str, Any]


class RepairRequests:
    """Acts on the requests for one root of a broker; runs at the beginning of a leader's tick.

    Parameters: `locate`, the location of another broker's root, by its broker and number;
    `check_log`, verifies the broker's log at once and notes its damage.
    """

    def __init__(
        self,
        broker_id: int,
        cluster: ClusterRoot,
        replicas: Replicas,
        locate: Callable[[int, int], Location],
        check_log: Callable[[TopicIdPartition | None], None],
        clock: Clock,
    ) -> None:
        self._broker_id = broker_id
        self._cluster = cluster
        self._replicas = replicas
        self._locate = locate
        self._check_log = check_log
        # A process begins with the requests that an earlier one has left.
        self._seen = 0
        self._is_first = True
        self._is_unfinished = False
        self._pause = Interval(clock)
        """The time until requests are acted on that could not be read or carried out."""
        self._refilling: dict[TopicIdPartition, set[str]] = defaultdict(set)

    def tick(self, metadata: Metadata, now_ms: int, effects: Effects) -> bool:
        """Act on new requests, and report refilled replicas; return whether anything was written.

        Costs nothing unless `sparklog repair` has requested something since the last call.
        """
        try:
            return self._act_on_requests(metadata, now_ms, effects)
        except UNREADABLE as error:
            # Other repairs of the broker do not depend on the table.
            _log.warning("requests for repairs not readable", error=one_line(error))
            self._retry_in(_RETRY_MS)
            return False

    def _retry_in(self, ms: int) -> None:
        self._is_unfinished = True
        self._pause.begin(ms)

    def _act_on_requests(self, metadata: Metadata, now_ms: int, effects: Effects) -> bool:
        is_changed = self._report_refilled(now_ms)
        mine = metadata.brokers.get(self._broker_id)
        count = mine.repair_requests if mine is not None else 0
        is_due = self._pause.is_over if self._is_unfinished else count != self._seen
        if not is_due:
            return is_changed
        wanted = {"requested", "refilling"} if self._is_first else {"requested"}
        rows = [
            one
            for one in repairs_of(self._cluster)
            if one.state in wanted
            and (one.broker_id, one.root) == (self._broker_id, self._replicas.root.location.uri)
        ]
        left = _MOST_BYTES
        outcomes: dict[str, _Changes] = {}
        self._is_unfinished = False
        for one in rows:
            if left <= 0:
                # The next tick goes on.
                self._retry_in(0)
                break
            try:
                changes, size_bytes = self._act(one, metadata, now_ms, effects)
            except UNREADABLE as error:
                _log.warning("repair failed", path=one.path, error=one_line(error))
                self._retry_in(_RETRY_MS)
                continue
            left -= size_bytes
            outcomes[one.repair_id] = changes | {"changed_at_ms": now_ms}
            _log.info("repair", fault=one.fault, path=one.path, **changes)
        set_outcomes(self._cluster.repairs, outcomes)
        self._seen, self._is_first = count, False
        effects.done("repair_rows")
        return is_changed or bool(outcomes)

    def _act(
        self, one: Repair, metadata: Metadata, now_ms: int, effects: Effects
    ) -> tuple[_Changes, int]:
        """Act on a request; return the changes of its row, and the bytes that were read."""
        if one.table_name != LOG.name:
            return self._write_table(one), 0
        if one.fault in JOURNAL_FAULTS:
            damaged = check_journal(self._replicas.root.location).damaged
            if not any(each.kind == one.fault for each in damaged):
                return _repaired("the log is opened without it"), 0
            self._replicas.checkpoints.describe_newest()
            if check_log(self._replicas.root.log.location).damaged:
                self._replicas.root.log.write_recovered_checkpoint(now_ms)
            effects.done("repair_checkpoint")
            self._check_log(None)
            return _repaired("checkpoints of the log were written from memory"), 0
        state = metadata.partitions.get(one.key) if one.key is not None else None
        if one.key is None or state is None or one.key not in self._replicas:
            return _gone("there is no such replica any more"), 0
        if one.fault in FILE_FAULTS:
            return self._restore(one, state, metadata, now_ms, effects)
        if one.fault == "damaged_header":
            self._check_log(one.key)
            if one.key not in self._replicas.damaged:
                return _gone("the log is sound"), 0
            return self._refill(one, one.key, state, metadata), 0
        if state.leader == self._broker_id:
            return {
                "state": "unrepairable",
                "outcome": f"broker {self._broker_id} leads the partition, so its records count",
            }, 0
        error = DamagedError(
            f"{self._replicas.root.location.uri}/{LOG.name}", one.detail, one.remedy
        )
        offset = one.first_offset or 0
        self._replicas.note_damage(one.key, Damage(offset, error, in_log=False, in_records=True))
        return self._refill(one, one.key, state, metadata), 0

    def _restore(
        self,
        one: Repair,
        state: PartitionState,
        metadata: Metadata,
        now_ms: int,
        effects: Effects,
    ) -> tuple[_Changes, int]:
        """Restore a batch's file, or commit one with the same records in its place."""
        log = self._replicas.root.log
        batches = log.batches(state.key, -1)
        batch = next((batch for batch in batches if batch.path == one.path), None)
        if batch is None:
            if one.path is not None and log.find([batch_id(one.path)]):
                return _repaired("the batch has another file now"), 0
            return _gone("the batch is no longer part of its log"), 0
        if file_damage(log, batch) is None:
            self._forget(batch)
            return _repaired("the file is sound again"), batch.size_bytes
        logs: dict[int, RecordLog | None] = {}

        def log_of(state: PartitionState, broker_id: int) -> RecordLog | None:
            if broker_id not in logs:
                logs[broker_id] = self._open(state, broker_id)
            return logs[broker_id]

        found = find_content(
            batch,
            restore_candidates(
                state,
                self._broker_id,
                batch,
                self._replicas[state.key].high_watermark,
                log_of,
            ),
        )
        if found is None:
            self._replicas.check_batch(batch)
            return self._refill(one, state.key, state, metadata), batch.size_bytes
        source = {"source_broker_id": found.source_broker_id}
        if found.batch == batch:
            replace_file(log.location, batch, found.content)
            what = f"the file was restored from broker {found.source_broker_id}"
        else:
            with log.discarding([found.batch]):
                with new_file(log.location, found.batch.path) as file:
                    file.write(found.content)
                log.location.sync([found.batch.path])
                effects.done("repair_file")
                self._replicas.commit(now_ms, added=[found.batch], removed=[batch])
            what = f"the file was rebuilt from broker {found.source_broker_id}, and committed"
        effects.done("repair_commit")
        self._forget(batch)
        return source | _repaired(what), batch.size_bytes

    def _forget(self, batch: Batch) -> None:
        """Forget damage that the broker has noted of a batch which is sound again."""
        damage = self._replicas.damaged.get(batch.topic_id_partition)
        if damage is not None and damage.from_offset == batch.base_offset and damage.is_of_file:
            del self._replicas.damaged[batch.topic_id_partition]

    def _open(self, state: PartitionState, broker_id: int) -> RecordLog | None:
        replica = state.replica(broker_id)
        if replica is None:
            return None
        try:
            return RecordLog(self._locate(broker_id, replica.root))
        except UNREADABLE as error:
            _log.info("replica not readable", broker=broker_id, error=one_line(error))
            return None

    def _refill(
        self, one: Repair, key: TopicIdPartition, state: PartitionState, metadata: Metadata
    ) -> _Changes:
        """Leave the replica to its refill from the leader, which `Repairs` does."""
        others = [
            other.broker_id
            for other in state.replicas
            if other.in_isr and other.broker_id != self._broker_id and metadata.is_live(other)
        ]
        if not others:
            return {
                "state": "unrepairable",
                "outcome": "no other replica in sync is alive: restore the file from a copy of the "
                f"root; broker {self._broker_id} keeps its place, so that other records are read",
            }
        self._refilling[key].add(one.repair_id)
        return {
            "state": "refilling",
            "outcome": f"broker {self._broker_id} leaves the ISR and is refilled",
        }

    def _report_refilled(self, now_ms: int) -> bool:
        """Report the replicas whose damage is gone."""
        over = [key for key in self._refilling if key not in self._replicas.damaged]
        outcomes = {
            repair_id: _repaired("the replica was refilled") | {"changed_at_ms": now_ms}
            for key in over
            for repair_id in self._refilling[key]
        }
        if not outcomes:
            return False
        set_outcomes(self._cluster.repairs, outcomes)
        for key in over:
            del self._refilling[key]
        return True

    def _write_table(self, one: Repair) -> _Changes:
        """Write a checkpoint table again from the journal, or mend or recreate a request table."""
        for table in self._replicas.root.request_tables.tables:
            if table.location.uri == f"{one.root}/{one.table_name}":
                table.reopen()
                return _repaired("the table was mended, or recreated without requests")
        if one.table_name not in {schema.name for schema in CHECKPOINTS}:
            return {"state": "unrepairable", "outcome": one.remedy}
        self._replicas.checkpoints.verify(is_requested=True)
        return _repaired("the table was verified, and written again from the journal if damaged")


def _repaired(outcome: str) -> _Changes:
    return {"state": "repaired", "outcome": outcome}


def _gone(outcome: str) -> _Changes:
    return {"state": "gone", "outcome": outcome}
