"""The checks of an audit: each runs a rule and makes a finding of each of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.maintenance.audit_reading import AuditedReplica, Reading
from sparklog.maintenance.record_comparison import (
    LastOffsets,
    Slice,
    UncomparedError,
    first_difference,
)
from sparklog.model import BATCH_INDEX, TopicIdPartition
from sparklog.protocol.invariants import Invariant, checks
from sparklog.protocol.rules import Rules
from sparklog.storage.record_log import index_table


class Finding(NamedTuple):
    """An inconsistency: a value that was found, and the expected one.

    `rule` is the number of the violated rule. `topic` and `partition` are `None` if a whole root or
    a control table cannot be read. `broker_id` is `None` if that is in the cluster root.
    """

    rule: str
    topic: str | None
    partition: int | None
    broker_id: int | None
    found: str
    expected: str

    def __str__(self) -> str:
        where = "" if self.topic is None else f"{self.topic}-{self.partition} "
        whose = "cluster root" if self.broker_id is None else f"broker {self.broker_id}"
        return f"{where}{whose}: {self.found}; {self.expected} (rule {self.rule})"


def check(reading: Reading, rules: Rules) -> list[Finding]:
    """Return the inconsistencies in one reading of a cluster."""
    checks = _Checks(reading, rules)
    return [
        *checks.unreadable_roots(),
        *checks.damaged_tables(),
        *checks.high_watermarks(),
        *checks.checkpoints(),
        *checks.log_density(),
        *checks.damage(),
        *checks.epochs(),
        *checks.leaders(),
        *checks.agreement(),
    ]


class _Checks:
    def __init__(self, reading: Reading, rules: Rules) -> None:
        self._rules = rules
        self._unreadable = reading.unreadable
        self._damaged = reading.damaged
        self._partitions = reading.partitions
        self._replicas = {(one.broker_id, one.key): one for one in reading.replicas}
        self._batches = _batches(reading.replicas)

    def unreadable_roots(self) -> Iterator[Finding]:
        for root in self._unreadable:
            of_root = f"its root {root.uri}" if root.uri else "one of its roots"
            yield Finding(
                "1.5", None, None, root.broker_id, f"{of_root} cannot be read", root.reason
            )

    def damaged_tables(self) -> Iterator[Finding]:
        told = {root.reason for root in self._unreadable}
        for broker_id, error in self._damaged:
            if str(error) not in told:
                found = f"{error.path} is damaged: {error.fault}"
                yield Finding("1.5", None, None, broker_id, found, error.remedy)

    @checks(Invariant.HIGH_WATERMARK_IS_BELOW_KNOWN_ENDS)
    def high_watermarks(self) -> Iterator[Finding]:
        rows = [
            {
                **_identity(one),
                "in_isr": one.in_isr,
                "high_watermark": one.checkpointed_high_watermark if one.is_led else None,
                "reported_log_end_offset": one.reported_log_end_offset,
                "log_end_offset": one.log_end_offset,
            }
            for one in self._replicas.values()
        ]
        for row in self._rules.run("audit_high_watermarks", replicas=rows):
            if row["is_wrong"]:
                yield self._finding(
                    Invariant.HIGH_WATERMARK_IS_BELOW_KNOWN_ENDS.number,
                    row,
                    f"high watermark {row['high_watermark']}",
                    f"the least log end offset in sync is {row['recomputed']}, of broker "
                    f"{row['least_broker_id']}",
                )

    def checkpoints(self) -> Iterator[Finding]:
        rows = [
            {
                **_identity(one),
                "in_isr": one.in_isr,
                "log_start_offset": one.row["log_start_offset"],
                "high_watermark": one.row["high_watermark"],
                "reported_log_end_offset": one.reported_log_end_offset,
                "log_end_offset": one.log_end_offset,
            }
            for one in self._replicas.values()
            if one.row is not None
        ]
        for row in self._rules.run("audit_checkpoints", replicas=rows):
            lower, upper = (row[name].replace("_", " ") for name in ("lower", "upper"))
            yield self._finding(
                "1.2",
                row,
                f"{lower} {row['lower_offset']}",
                f"the {upper} is {row['upper_offset']}",
            )

    @checks(Invariant.OFFSETS_ARE_DENSE)
    def log_density(self) -> Iterator[Finding]:
        for row in self._rules.run("audit_log_density", batches=self._batches):
            yield self._finding(
                Invariant.OFFSETS_ARE_DENSE.number,
                row,
                f"batch {row['path']} begins at {row['base_offset']}",
                f"the log goes on at {row['expected_offset']}",
            )

    @checks(Invariant.OFFSETS_ARE_DENSE)
    def damage(self) -> Iterator[Finding]:
        """Yield damaged headers, and the damage that brokers report of their replicas."""
        for replica in self._replicas.values():
            error = replica.log.damaged.get(replica.key)
            if error is not None and "header_checksum" in error.fault:
                yield self._finding(
                    Invariant.OFFSETS_ARE_DENSE.number,
                    _identity(replica),
                    error.fault,
                    "the headers of a log are sound",
                )
            reported = replica.row["damage"] if replica.row else None
            if reported is not None:
                yield self._finding(
                    "10.8", _identity(replica), f"it reports: {reported}", "replicas are sound"
                )

    @checks(Invariant.EPOCH_HISTORIES_INCREASE)
    def epochs(self) -> Iterator[Finding]:
        entries = [
            {**_identity(one), **entry._asdict()}
            for one in self._replicas.values()
            for entry in one.epochs
        ]
        for row in self._rules.run("audit_epoch_histories", entries=entries):
            yield self._finding(
                Invariant.EPOCH_HISTORIES_INCREASE.number,
                row,
                f"leader epoch {row['epoch']} starts at {row['start_offset']}",
                f"epoch {row['previous_epoch']} before it starts at {row['previous_start_offset']}",
            )
        disagreeing = self._rules.run("audit_batch_epochs", batches=self._batches, entries=entries)
        for row in disagreeing:
            epoch = "none" if row["history_epoch"] is None else row["history_epoch"]
            yield self._finding(
                Invariant.EPOCH_HISTORIES_INCREASE.number,
                row,
                f"the batch at offset {row['base_offset']} has leader epoch {row['leader_epoch']}",
                f"the leader-epoch history has {epoch} there",
            )

    @checks(Invariant.ONE_LEADER_PER_EPOCH)
    def leaders(self) -> Iterator[Finding]:
        claims = [
            {**_identity(one), "leader_epoch": one.first_row["leader_epoch"]}
            for one in self._replicas.values()
            if one.first_row is not None and one.first_row["role"] == "leader"
        ]
        published = [state._asdict() for state in self._partitions.values()]
        for row in self._rules.run("audit_leaders", claims=claims, published=published):
            other = row["other_broker_id"]
            yield self._finding(
                Invariant.ONE_LEADER_PER_EPOCH.number,
                row,
                f"it claims leader epoch {row['leader_epoch']}",
                f"the latest that was given is {row['published_epoch']}, and not to it"
                if other is None
                else f"broker {other} claims the same",
            )

    @checks(Invariant.IN_SYNC_REPLICAS_AGREE)
    def agreement(self) -> Iterator[Finding]:
        compared = list(self._compared())
        bounds = {(row["broker_id"], row["topic_id"], row["partition"]): row for row in compared}
        uncompared: set[Finding] = set()
        for row in self._rules.run(
            "audit_replica_agreement", batches=self._batches, replicas=compared
        ):
            bound = bounds[row["broker_id"], row["topic_id"], row["partition"]]
            key = TopicIdPartition(row["topic_id"], row["partition"])
            first = max(row["base_offset"], bound["compared_from"])
            below = bound["compared_below"]
            own = _slice(self._replicas[row["broker_id"], key], first, below)
            leaders = _slice(self._replicas[row["leader"], key], first, below)
            try:
                difference = first_difference(own, leaders, first, below)
            except UncomparedError as error:
                # All others are compared with the leader: one file of it may be met several times.
                holder = row["leader"] if error.log == leaders.log else row["broker_id"]
                finding = self._finding(
                    Invariant.IN_SYNC_REPLICAS_AGREE.number,
                    {**row, "broker_id": holder},
                    "its records cannot be compared with those of other replicas",
                    str(error),
                )
                if finding not in uncompared:
                    uncompared.add(finding)
                    yield finding
                continue
            if difference is not None:
                yield self._finding(
                    Invariant.IN_SYNC_REPLICAS_AGREE.number,
                    row,
                    f"records from offset {difference.offset} on have digest {difference.digest}",
                    f"those of broker {row['leader']} have {difference.other_digest}",
                )

    def _compared(self) -> Iterator[dict[str, Any]]:
        """Yield the in-sync replicas, each with the committed range of offsets to compare."""
        for state in self._partitions.values():
            ids = [broker_id for broker_id in state.isr if (broker_id, state.key) in self._replicas]
            in_sync = [self._replicas[broker_id, state.key] for broker_id in ids]
            if len(in_sync) < 2:
                continue
            committed = max(one.checkpointed_high_watermark for one in in_sync)
            yield from (
                {
                    **_identity(one),
                    "leader": state.leader if state.leader in ids else ids[0],
                    "compared_from": max(one.log_start_offset for one in in_sync),
                    # Missing records are reported by another rule.
                    "compared_below": min(committed, *(one.log_end_offset for one in in_sync)),
                }
                for one in in_sync
            )

    def _finding(self, rule: str, row: dict[str, Any], found: str, expected: str) -> Finding:
        state = self._partitions[TopicIdPartition(row["topic_id"], row["partition"])]
        return Finding(rule, state.topic, state.partition, row["broker_id"], found, expected)


def _identity(replica: AuditedReplica) -> dict[str, Any]:
    return {**replica.key._asdict(), "broker_id": replica.broker_id}


def _slice(replica: AuditedReplica, from_offset: int, below_offset: int) -> Slice:
    batches = [
        batch
        for batch in replica.batches
        if batch.next_offset > from_offset and batch.base_offset < below_offset
    ]
    after = [batch for batch in replica.batches if batch.next_offset > from_offset]
    keys = LastOffsets(replica.log.location, after, below_offset)
    return Slice(replica.log.location, batches, keys)


def _batches(replicas: list[AuditedReplica]) -> pa.Table:
    """Return the batches of all replicas, with the additional columns that the rules read."""
    columns = {
        "broker_id": pa.int32(),
        "log_start_offset": pa.int64(),
        "is_led": pa.bool_(),
    }
    tables = []
    for one in replicas:
        table = index_table(one.batches)
        for name, kind in columns.items():
            value = pa.scalar(getattr(one, name), kind)
            table = table.append_column(name, pa.repeat(value, table.num_rows))
        tables.append(table)
    empty = pa.schema([*BATCH_INDEX, *columns.items()]).empty_table()
    return pa.concat_tables([empty, *tables])
