"""The invariants after every step (section 9 of the protocol), read from the tables alone.

The tables are followed by separate handles, so that a check costs O(changes). A single state of the
tables is checked by the rules of `sparklog audit`, so that these are shown to accuse no sound
cluster, whatever has happened to it. Conditions on single logs are shared with the model
(`tests/log_conditions.py`). Only the conditions on a state and its past are written here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from sparklog.cluster.connection import Connection
from sparklog.cluster.isr import NO_REGISTRATION
from sparklog.cluster.metadata import PartitionState
from sparklog.errors import ProtocolError, SparklogError, TableReplacedError
from sparklog.maintenance import audit_checks
from sparklog.maintenance.audit_reading import AuditedReplica, Reading
from sparklog.model import HIGH_WATERMARK_CHECKPOINT, PARTITION_STATE, Batch, TopicIdPartition
from sparklog.protocol.invariants import Invariant, checks
from sparklog.protocol.sqlite_rules import SQLiteRules
from sparklog.storage.batch_files import read_records
from sparklog.storage.control_table import ControlTable
from sparklog.storage.journal import CHECKPOINTS, Journal
from sparklog.storage.location import Location
from tests.log_conditions import (
    agree_below,
    epochs_never_decrease,
    has_each_value_once,
    history_has_epochs,
)

Row = Mapping[str, Any]
_Found = TypeVar("_Found")


class Written(NamedTuple):
    """A record in a log; its offset is its index there."""

    leader_epoch: int
    value: bytes


DELETED = Written(-1, b"")
"""Stands for each deleted record at the start of a log."""

_COMPACTED = b"a record that compaction has removed"
"""The value of such a record; its batch is still there, with its epoch."""


def is_kept(record: Written) -> bool:
    """Whether a record is neither deleted nor removed by compaction."""
    return record is not DELETED and record.value is not _COMPACTED


def kept(records: Sequence[Written]) -> list[Written]:
    """Return the records that are there."""
    return [record for record in records if is_kept(record)]


def agree_where_kept(one: Sequence[Written], other: Sequence[Written], end: int) -> bool:
    """9.1, 9.2: `agree_below`, for the offsets that both logs still have."""
    pairs = [
        (first, second)
        for first, second in zip(one[:end], other[:end], strict=False)
        if is_kept(first) and is_kept(second)
    ]
    is_equal = agree_below([a for a, _ in pairs], [b for _, b in pairs], len(pairs))
    return is_equal and len(one[:end]) == len(other[:end])


@dataclass
class _Past:
    """The earlier state of a partition, which must not be revoked."""

    committed: list[Written] = field(default_factory=list)
    unclean_epoch: int = -1
    """The epoch of the last unclean election: records that were committed before it may be lost."""
    replicas: dict[int, Row] = field(default_factory=dict)
    """The rows of `partition_state` at the last check, by broker."""
    leaders: dict[int, tuple[int, int]] = field(default_factory=dict)
    high_watermarks: dict[int, tuple[int, int]] = field(default_factory=dict)
    written: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """The value that was written at an offset in a leader epoch: there can be only one."""
    visible: int = 0
    deletable: set[Written] = field(default_factory=set)
    """The records that an administrator has requested to delete."""

    def begin_again(self, epoch: int) -> None:
        """Expect no record that was committed before `epoch`."""
        self.unclean_epoch = epoch
        self.committed = []
        self.visible = 0


class _Root:
    """The tables of one broker root."""

    def __init__(self, location: Location, known: dict[tuple[str, str], dict[int, bytes]]) -> None:
        self._location = location
        self._known = known
        self._checkpoints = self._opened_checkpoints()
        self.log = Journal(location, checkpoints=self._checkpoints)
        self.records: dict[TopicIdPartition, list[Written]] = {}
        self._seen = -1
        self._recovered = -1, ""
        self._values: dict[str, dict[int, bytes]] = {}
        self.may_be_damaged = False

    @property
    def rows(self) -> Mapping[TopicIdPartition, Row]:
        """The rows of the replicas."""
        return self.log.rows

    def refresh(self, *, checks_recovery: bool) -> bool:
        """Load new commits; return whether there were any."""
        self._with_checkpoints(self.log.refresh)
        if checks_recovery and self._checkpointed() != self._recovered[1]:
            self.check_recovery()
        if self.log.version == self._seen:
            return False
        self._seen = self.log.version
        self.records = {key: self._read(key) for key in {*self.log.partitions(), *self.rows}}
        return True

    def _with_checkpoints(self, action: Callable[[], _Found]) -> _Found:
        """Do what reads the checkpoints; their broker may have recreated those it cannot read."""
        try:
            return action()
        except TableReplacedError:
            self._checkpoints[:] = self._opened_checkpoints()
            return action()

    def _opened_checkpoints(self) -> list[ControlTable]:
        return [ControlTable(self._location, schema) for schema in CHECKPOINTS]

    def _checkpointed(self) -> str:
        """Return the name of the last commit to the checkpoints of the rows."""
        checkpoints = Path(self._location.uri, HIGH_WATERMARK_CHECKPOINT.name, "_delta_log")
        return max((one.name for one in checkpoints.glob("*.json")), default="")

    def check_recovery(self, *, opens_checkpoints: bool = False) -> None:
        """7.0: the checkpoints and the commits after them give the same state as following the
        journal.

        It is checked when the checkpoints have changed and at rest. In between, a process that
        starts opens it.
        `opens_checkpoints`: whether the checkpoint tables are opened as well, and not followed.
        """
        found = self.log.version, self._checkpointed()
        if found == self._recovered and not opens_checkpoints:
            return
        self._recovered = found
        checkpoints = None if opens_checkpoints else self._checkpoints
        opened = self._with_checkpoints(lambda: Journal(self._location, checkpoints=checkpoints))
        for key, row in self.rows.items():
            assert opened.rows[key] == row, f"7.0: {opened.rows[key]} is recovered of {row}"
        histories = {key: entries for key, entries in self.log.epochs.items() if entries}
        recovered = {key: entries for key, entries in opened.epochs.items() if entries}
        assert recovered == histories, f"7.0: {recovered} is recovered of {histories}"

    def history(self, key: TopicIdPartition) -> list[tuple[int, int]]:
        """The leader epochs of a replica and their start offsets, sorted."""
        return [(epoch, start) for epoch, start in self.log.epochs.get(key, ())]

    def _read(self, key: TopicIdPartition) -> list[Written]:
        first, row = self.log.first_batch(key), self.rows.get(key)
        start = row["log_start_offset"] if row is not None else 0
        return [DELETED] * (start if first is None else first.base_offset) + [
            Written(batch.leader_epoch, self._of(batch).get(offset, _COMPACTED))
            for batch in self.log.batches(key)
            for offset in range(batch.base_offset, batch.next_offset)
        ]

    def _of(self, batch: Batch) -> dict[int, bytes]:
        """The values of a batch by their offsets; those that were read before it was damaged."""
        if batch.path not in self._values:
            place = self._location.uri, batch.path
            try:
                found = [
                    *read_records(self.log.location, [batch], batch.base_offset, batch.next_offset)
                ]
            except (SparklogError, OSError, pa.ArrowException):
                if not self.may_be_damaged or place not in self._known:
                    raise
            else:
                self._known[place] = {one.offset: one.value or b"" for one in found}
            self._values[batch.path] = self._known[place]
        return self._values[batch.path]


def _is_damage(finding: audit_checks.Finding) -> bool:
    """Whether a finding is damage that a broker reports (10.8), or that its file has."""
    return finding.rule == "10.8" or "is damaged: " in finding.expected


class Invariants:
    """Checks a cluster in the folder `root` after each step against its earlier states.

    `costly_every`: the audit, opening a journal again and listing commits take longer than all
    other checks. They are made at each change whose number is divisible by it, and at rest.
    `key_of`: the key of a record's value in a compacted topic, `None` if nothing is compacted.
    `may_repeat`: whether a value may be written twice, as by retries of a producer without
    idempotence after its batches were merged.
    """

    def __init__(
        self,
        root: Path,
        brokers: Collection[int],
        *,
        allows_unclean: bool,
        costly_every: int = 1,
        key_of: Callable[[bytes], bytes] | None = None,
        may_repeat: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        self._root = root
        self._costly_every = costly_every
        self._changes = 0
        self._key_of = key_of
        self._may_repeat = may_repeat
        self._brokers = set(brokers)
        self._allows_unclean = allows_unclean
        self._connection = Connection(str(root / "cluster"))
        self._partition_state = ControlTable(Location.of(str(root / "cluster")), PARTITION_STATE)
        self._seen_version = -1
        self._roots: dict[int, _Root] = {}
        self._past: dict[int, _Past] = {}
        self._cleaned_up: set[Path] = set()
        self._failed_reads: set[int] = set()
        self._derived: set[tuple[int, int]] = set()
        """The replicas, by broker and partition, whose history may lack epochs of their logs, since
        a table was damaged."""
        self._known: dict[tuple[str, str], dict[int, bytes]] = {}
        """The values of each batch file that was read, by root and path."""
        self._rules = SQLiteRules()

    def fail_reads(self, broker_id: int) -> None:
        """Allow a broker to report damage (10.8): the disk has failed to read a batch file.

        The scrub of the broker reads files at any tick, and copies what it cannot read again. The
        high watermark of such a replica goes back with its log.
        """
        self._failed_reads.add(broker_id)

    def expect_sound_replicas(self) -> None:
        """Allow no report of damage any more, and audit."""
        self._failed_reads.clear()
        self.audit()

    def lose(self, broker_id: int) -> None:
        """Stop checking a broker: its root is lost."""
        self._brokers.discard(broker_id)
        self._roots.pop(broker_id, None)
        for past in self._past.values():
            past.high_watermarks.pop(broker_id, None)

    def regain(self, broker_id: int, *, was_damaged: bool = False) -> None:
        """Check a broker again that has started on a root that was lost, damaged or not synced.

        With `was_damaged` its epoch history may be derived from its batches at each start, until
        its next commit with batches or epochs has the entries.
        """
        if was_damaged and broker_id not in self._brokers:
            self._derived |= {(broker_id, partition) for partition in self._past}
        self._brokers.add(broker_id)

    def lose_power(self, broker_id: int, *, syncs: bool) -> None:
        """Open a broker's tables again after a power loss, which may have removed the newest
        commits.

        With `syncs` the replicas have all committed records. Without it they are not read until the
        broker has started. If no other replica is in sync or eligible, committed records may be
        lost.

        A leader's process may have ended between the commit of a high watermark and its sync, so
        that consumers have seen what is gone. The records are in the logs of the in-sync set, by
        whose durable reports the high watermark had advanced, and the leader comes to it again.
        """
        self._roots.pop(broker_id, None)
        for partition, past in self._past.items():
            past.high_watermarks.pop(broker_id, None)
            if self.leader(partition) == broker_id:
                past.visible = 0
        if syncs:
            return
        self._brokers.discard(broker_id)
        for past in self._past.values():
            members = {of for of, row in past.replicas.items() if row["in_isr"] or row["in_elr"]}
            if members <= {broker_id}:
                row = next(iter(past.replicas.values()))
                past.begin_again(row["leader_epoch"] + 1)

    def leader(self, partition: int) -> int | None:
        """The leader, or `None`."""
        leader: int | None = next(iter(self._past[partition].replicas.values()))["leader"]
        return leader

    def unclean_epoch(self, partition: int) -> int:
        """The epoch of the last unclean election, -1 if there was none."""
        return self._past[partition].unclean_epoch

    def committed(self, partition: int) -> list[bytes]:
        """The records that the partition has committed, as far as they were observed."""
        return [record.value for record in self._past[partition].committed]

    def has_committed(self, partition: int, offset: int, values: Sequence[bytes]) -> bool:
        """Whether these values are committed from an offset on, as far as they are not deleted."""
        found = self._past[partition].committed[offset : offset + len(values)]
        given = [
            Written(one.leader_epoch, value) for one, value in zip(found, values, strict=False)
        ]
        return len(found) == len(values) and agree_where_kept(found, given, len(values))

    def superseded(self, partition: int) -> dict[int, bytes]:
        """The committed records that compaction may remove: a later one has their key (8.3)."""
        if self._key_of is None:
            return {}
        found: dict[int, bytes] = {}
        later: set[bytes] = set()
        committed = self._past[partition].committed
        for offset in range(len(committed) - 1, -1, -1):
            if is_kept(committed[offset]):
                value = committed[offset].value
                if self._key_of(value) in later:
                    found[offset] = value
                later.add(self._key_of(value))
        return found

    def expect_deletion(self, partition: int, offset: int) -> None:
        """Expect that the committed records before an offset are deleted."""
        past = self._past[partition]
        past.deletable |= set(kept(past.committed[:offset]))

    def may_be_deleted(self, partition: int, offset: int) -> bool:
        """Whether a committed record may be deleted already, as `expect_deletion` has said."""
        past = self._past[partition]
        return past.committed[offset] in past.deletable

    def may_be_removed(self, partition: int, offset: int) -> bool:
        """Whether a committed record may be deleted, or removed by compaction, already."""
        committed = self._past[partition].committed
        is_gone = offset < len(committed) and not is_kept(committed[offset])
        return (
            is_gone
            or (offset < len(committed) and self.may_be_deleted(partition, offset))
            or offset in self.superseded(partition)
        )

    def settled_files(self, broker_id: int, partition: int) -> list[str]:
        """The batch files of a broker's replica whose records another replica has, in sync.

        Empty unless all replicas are in sync and checked, and none is being moved: a reassignment
        might remove the others.
        """
        past = self._past[partition]
        if not self._has_all_in_sync(past):
            return []
        key, in_sync = self._key(past), past.replicas.keys()
        marks = [row["high_watermark"] for of in in_sync if (row := self._roots[of].rows.get(key))]
        if len(marks) < len(in_sync) or broker_id not in in_sync:
            return []
        batches = self._roots[broker_id].log.batches(key)
        return [one.path for one in batches if one.next_offset <= min(marks)]

    def is_settled(self, broker_id: int) -> bool:
        """Whether each partition of a broker has all replicas in sync, at least two, and is not
        being moved: all that its log has committed is in another one.
        """
        own = [past for past in self._past.values() if broker_id in past.replicas]
        return bool(own) and all(self._has_all_in_sync(past) for past in own)

    def _has_all_in_sync(self, past: _Past) -> bool:
        """Whether all replicas are in sync and checked, at least two, and none is being moved."""
        in_sync = {of for of, row in past.replicas.items() if row["in_isr"]}
        is_complete = in_sync == past.replicas.keys() <= self._roots.keys()
        is_moving = any(row["adding"] or row["removing"] for row in past.replicas.values())
        return len(in_sync) >= 2 and is_complete and not is_moving

    def has_committed_all(self, partition: int) -> bool:
        """Whether the leader has committed all records of its log."""
        past = self._past[partition]
        leader = self.leader(partition)
        row = self._roots[leader].rows.get(self._key(past)) if leader in self._roots else None
        return row is not None and row["high_watermark"] == row["log_end_offset"]

    def high_watermarks(self, partition: int) -> dict[int, int]:
        """The high watermarks of the replicas, by broker."""
        return {of: found for of, (_, found) in self._past[partition].high_watermarks.items()}

    def clean_up(self, root: Path) -> None:
        """Expect this root's remaining commits to have no gap: the old ones were removed."""
        self._cleaned_up.add(root)

    def check_appended(self, partition: int, base_offset: int, values: list[bytes]) -> None:
        """Expect that some replica has, or had, these values at these offsets."""
        written = self._past[partition].written
        for offset, value in enumerate(values, base_offset):
            found = {value for (_, at), value in written.items() if at == offset}
            assert value in found, f"3.2: {value!r} is answered with {offset}, {found} are there"

    def check(self, *, unclean_was_asked: bool = False) -> None:
        """Compare the tables with their earlier state."""
        is_costly = self._changes % self._costly_every == 0
        if is_costly:
            self._check_commits()
        is_changed = self._follow_partition_state(unclean_was_asked=unclean_was_asked)
        for broker_id in sorted(self._brokers):
            if broker_id not in self._roots:
                location = Location.of(str(self._root / f"broker-{broker_id}"))
                self._roots[broker_id] = _Root(location, self._known)
            root = self._roots[broker_id]
            root.may_be_damaged = broker_id in self._failed_reads
            if root.refresh(checks_recovery=is_costly):
                is_changed = True
                for partition, past in self._past.items():
                    self._check_replica(broker_id, root, partition, past)
        self._changes += is_changed
        if is_changed or is_costly:
            for partition, past in self._past.items():
                self._check_in_sync(partition, past)
                self._check_visible(partition, past)
        if is_changed and is_costly:
            self.audit()

    @checks(
        Invariant.IN_SYNC_REPLICAS_AGREE,
        Invariant.ONE_LEADER_PER_EPOCH,
        Invariant.OFFSETS_ARE_DENSE,
        Invariant.EPOCH_HISTORIES_INCREASE,
        Invariant.HIGH_WATERMARK_IS_BELOW_KNOWN_ENDS,
    )
    def audit(self) -> None:
        """Expect that `sparklog audit` finds nothing in the tables of the checked brokers."""
        partitions = self._connection.metadata().partitions
        replicas = []
        for state in partitions.values():
            for one in state.replicas:
                if one.broker_id in self._brokers:
                    log = self._roots[one.broker_id].log
                    row, epochs = log.rows.get(state.key), log.epochs.get(state.key, ())
                    of = state, one.broker_id, one.in_isr
                    start = row["log_start_offset"] if row is not None else 0
                    replicas.append(AuditedReplica(*of, row, row, log, epochs, start))
        findings = [
            one
            for one in audit_checks.check(Reading(partitions, replicas, [], []), self._rules)
            if one.broker_id not in self._failed_reads or not _is_damage(one)
        ]
        assert not findings, "; ".join(f"{one.rule}: {one}" for one in findings)

    def _key(self, past: _Past) -> TopicIdPartition:
        row = next(iter(past.replicas.values()))
        return TopicIdPartition(row["topic_id"], row["partition"])

    def _check_commits(self) -> None:
        """10.7: no process commits after a version that clean-up has removed."""
        checked = {
            self._root / name for name in ("cluster", *map("broker-{}".format, self._brokers))
        }
        for root in sorted(self._cleaned_up & checked):
            for log in root.glob("*/_delta_log"):
                if ".damaged-" in log.parent.name:
                    # A table that was set aside because commits of it are missing.
                    continue
                versions = sorted(int(one.stem) for one in log.glob("*.json") if one.stem.isdigit())
                for version, following in pairwise(versions):
                    assert following == version + 1, f"10.7: {log} has {versions}"

    # --- partition_state ------------------------------------------------------------------------

    def _follow_partition_state(self, *, unclean_was_asked: bool) -> bool:
        """Check each new version; return whether there was any."""
        self._partition_state.refresh()
        if self._seen_version == self._partition_state.version:
            return False
        for version in range(self._seen_version + 1, self._partition_state.version + 1):
            by_partition: dict[int, dict[int, Row]] = {}
            for row in self._partition_state.rows_at(version).to_pylist():
                by_partition.setdefault(row["partition"], {})[row["broker_id"]] = row
            for partition, rows in by_partition.items():
                past = self._past.setdefault(partition, _Past())
                self._check_transition(partition, past, rows, unclean_was_asked)
                past.replicas = rows
        self._seen_version = self._partition_state.version
        return True

    @checks(Invariant.ONE_LEADER_PER_EPOCH)
    def _check_transition(
        self, partition: int, past: _Past, rows: dict[int, Row], unclean_was_asked: bool
    ) -> None:
        row, *others = rows.values()
        for column in ("leader", "leader_broker_epoch", "leader_epoch", "partition_epoch"):
            assert {one[column] for one in others} <= {row[column]}, f"{column} differs: {rows}"
        leader, epoch = row["leader"], row["leader_epoch"]
        is_first = not past.replicas
        before = {} if is_first else next(iter(past.replicas.values()))
        if leader is not None and row["leader_broker_epoch"] != NO_REGISTRATION:
            process = leader, row["leader_broker_epoch"]
            known = past.leaders.setdefault(epoch, process)
            assert known == process, f"9.4: {known} and {process} lead in epoch {epoch}"
        if is_first:
            return
        assert epoch >= before["leader_epoch"], "the leader epoch went back"
        if rows != past.replicas:
            assert row["partition_epoch"] > before["partition_epoch"], "the partition epoch stood"
        if epoch == before["leader_epoch"]:
            assert leader == before["leader"], "7.5: a leader without an election"
            return
        if leader is None:
            return
        was = past.replicas.get(leader)
        if was is not None and (was["in_isr"] or was["in_elr"]):
            return
        assert self._allows_unclean or unclean_was_asked, (
            f"7.5: broker {leader} leads {partition} in epoch {epoch}, though it was not in sync"
        )
        past.begin_again(epoch)

    # --- replicas -------------------------------------------------------------------------------

    @checks(
        Invariant.ACKNOWLEDGED_RECORDS_SURVIVE,
        Invariant.ONE_LEADER_PER_EPOCH,
        Invariant.OFFSETS_ARE_DENSE,
        Invariant.EPOCH_HISTORIES_INCREASE,
    )
    def _check_replica(self, broker_id: int, root: _Root, partition: int, past: _Past) -> None:
        key = self._key(past)
        records = root.records.get(key, [])
        once = [one for one in kept(records) if not self._may_repeat(one.value)]
        assert has_each_value_once(once), f"9.1: written twice by broker {broker_id}"
        for offset, record in enumerate(records):
            if not is_kept(record):
                continue
            first = past.written.setdefault((record.leader_epoch, offset), record.value)
            assert first == record.value, (
                f"9.4: two records at offset {offset} in epoch {record.leader_epoch}: "
                f"{first!r} and {record.value!r}"
            )
        assert epochs_never_decrease(kept(records)), f"9.5: epochs of broker {broker_id}: {records}"
        row = root.rows.get(key)
        if row is None:
            # A reassignment has removed it: the next replica begins empty.
            past.high_watermarks.pop(broker_id, None)
        else:
            end = row["log_end_offset"]
            # A broker whose log is damaged offers what is before that, until it is refilled.
            offered = {len(records), row["damaged_offset"]}
            assert end in offered, f"1.5: broker {broker_id} reports {end}: {records}"
            # The audit excuses epochs that a follower has copied and not entered yet.
            history = root.history(key)
            # The history begins with the entry of the last deleted record.
            begun = records.count(DELETED)
            shifted = [(epoch, max(start - begun, 0)) for epoch, start in history]
            shifted = [one for one, later in pairwise([*shifted, (-1, 1)]) if later[1] > 0]
            is_complete = history_has_epochs(shifted, records[begun:])
            if is_complete:
                self._derived.discard((broker_id, partition))
            assert is_complete or (broker_id, partition) in self._derived, (
                f"9.6: {history} of {records}"
            )
            self._check_row(broker_id, partition, past, row, records)

    @checks(Invariant.IN_SYNC_REPLICAS_AGREE, Invariant.HIGH_WATERMARK_NEVER_GOES_BACK)
    def _check_row(
        self, broker_id: int, partition: int, past: _Past, row: Row, records: list[Written]
    ) -> None:
        epoch, high_watermark = row["leader_epoch"], row["high_watermark"]
        old_epoch, old = past.high_watermarks.get(broker_id, (-1, 0))
        past.high_watermarks[broker_id] = epoch, high_watermark
        of = f"the replica {partition} of broker {broker_id}"
        if old_epoch >= past.unclean_epoch and broker_id not in self._failed_reads:
            assert high_watermark >= old, f"9.3: {of} went from {old} to {high_watermark}"
        if epoch < past.unclean_epoch:
            return
        assert high_watermark <= len(records), f"1.2: {of} is committed past its end"
        shown = records[:high_watermark]
        both = min(high_watermark, len(past.committed))
        assert agree_where_kept(shown, past.committed, both), (
            f"9.2: {of} has {shown[:both]} committed, others had {past.committed[:both]}"
        )
        if high_watermark > len(past.committed):
            known = past.committed
            past.committed = [
                known[offset] if not is_kept(record) and offset < len(known) else record
                for offset, record in enumerate(shown)
            ]

    @checks(
        Invariant.ACKNOWLEDGED_RECORDS_SURVIVE,
        Invariant.IN_SYNC_REPLICAS_AGREE,
        Invariant.HIGH_WATERMARK_IS_BELOW_KNOWN_ENDS,
    )
    def _check_in_sync(self, partition: int, past: _Past) -> None:
        key = self._key(past)
        superseded = self.superseded(partition)
        for broker_id, replica in past.replicas.items():
            if not replica["in_isr"] or broker_id not in self._roots:
                continue
            records = self._roots[broker_id].records.get(key, [])
            assert agree_where_kept(records, past.committed, len(past.committed)), (
                f"9.1, 9.2, 9.7: broker {broker_id} is in sync in {partition} and has {records}, "
                f"but {past.committed} were committed"
            )
            lacking = {
                committed
                for offset, (record, committed) in enumerate(
                    zip(records, past.committed, strict=False)
                )
                if not is_kept(record) and is_kept(committed) and offset not in superseded
            }
            assert lacking <= past.deletable, (
                f"9.1, 8.3: broker {broker_id} is in sync in {partition} and lacks records that "
                f"nobody has requested to delete: {lacking - past.deletable}"
            )

    @checks(Invariant.HIGH_WATERMARK_NEVER_GOES_BACK)
    def _check_visible(self, partition: int, past: _Past) -> None:
        state = self._state(past)
        if state.leader not in self._brokers or state.leader_epoch < past.unclean_epoch:
            # Before the election after a power loss of the last replica, which may have kept all.
            return
        [visible] = self._connection.fetchable([state]).values()
        if isinstance(visible, SparklogError):
            if not (isinstance(visible, ProtocolError) and visible.code.retriable):
                raise visible
            return
        if visible.is_latest_known:
            assert visible.high_watermark >= past.visible, (
                f"9.3: a consumer of {partition} sees {visible.high_watermark} after {past.visible}"
            )
            past.visible = visible.high_watermark
        assert state.leader is not None
        records = self._roots[state.leader].records.get(state.key, [])
        end = visible.high_watermark
        assert agree_where_kept(records, past.committed, end), (
            f"9.3: a consumer of {partition} sees {records[:end]}, committed were {past.committed}"
        )

    def _state(self, past: _Past) -> PartitionState:
        return self._connection.metadata().partitions[self._key(past)]

    # --- at rest --------------------------------------------------------------------------------

    def check_at_rest(self) -> None:
        """With all brokers running and idle: all replicas are equal, and all records are
        committed.
        """
        self.check()
        self.audit()
        for root in self._roots.values():
            root.check_recovery(opens_checkpoints=True)
        for partition, past in self._past.items():
            state, key = self._state(past), self._key(past)
            brokers = sorted(past.replicas)
            assert not state.is_reassigning, f"not complete: {past.replicas}"
            for broker_id in self._roots.keys() - set(brokers):
                assert key not in self._roots[broker_id].rows, f"not removed: broker {broker_id}"
                assert not self._roots[broker_id].records.get(key), f"left: broker {broker_id}"
            assert state.leader is not None, f"{partition} is offline: {past.replicas}"
            leaders = self._roots[state.leader].records.get(key, [])
            for broker_id in brokers:
                root = self._roots[broker_id]
                records = root.records.get(key, [])
                is_equal = agree_where_kept(records, leaders, max(len(records), len(leaders)))
                assert is_equal, f"broker {broker_id} has {records}, not {leaders}"
                row = root.rows[key]
                found = row["high_watermark"], row["log_end_offset"], row["leader_epoch"]
                expected = len(records), len(records), state.leader_epoch
                assert found == expected, f"broker {broker_id} reports {found}, not {expected}"
            assert state.isr == brokers, f"in sync in {partition} are {state.isr} of {brokers}"
