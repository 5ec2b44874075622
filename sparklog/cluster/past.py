"""The past of a cluster as tables: what its views show that no table has as it is.

Each function reads a root when it is called, and needs no broker that runs. The tables with the
past of a cluster root are completed by the commits since they were written last; those of a broker
root by its journal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sparklog.cluster.config_past import CONFIG_HISTORY, config_past
from sparklog.cluster.group_past import GROUP_HISTORY, group_past
from sparklog.cluster.partition_changes import (
    OF_CONTROLLER,
    OF_PARTITIONS,
    PastOfTable,
    further_rows,
)
from sparklog.cluster.replica_past import replica_past
from sparklog.cluster.root_format import read_format
from sparklog.model import (
    CONTROLLER_HISTORY,
    LEADERSHIP_HISTORY,
    PARTITION_HISTORY,
    PARTITION_STATE,
    REPLICA_HISTORY,
    TRUNCATIONS,
    TopicIdPartition,
)
from sparklog.storage.control_table import ControlTable
from sparklog.storage.journal import Journal
from sparklog.storage.location import Location
from sparklog.storage.sharded_table import ShardedTable

_STRING, _INT, _LONG = pa.string(), pa.int32(), pa.int64()


class PastView(NamedTuple):
    """A table that is read by sparklog: its columns, and the function that reads it from a root."""

    columns: pa.Schema
    read: Callable[[Location], pa.Table]


# --- cluster root -------------------------------------------------------------------------------


def _completed(history: PastOfTable, root: Location) -> pa.Table:
    """Return the rows of a table with the past, with those that it does not have yet."""
    found = read_format(root)
    source_type = ShardedTable if history.source == PARTITION_STATE else ControlTable
    source = source_type(root, history.source)
    now_ms = time.time_ns() // 1_000_000
    rows, covered = history.schema.columns.empty_table(), None
    # A root that is older than the table does not have it.
    if found is not None and history.schema.name in found.tables:
        table = ControlTable(root, history.schema)
        rows, covered = table.rows(), table.transaction(history.source.name)
    newer = further_rows(history, rows, covered, source, now_ms)
    return history.fill(rows) if newer is None else newer


def _leaders(root: Location) -> pa.Table:
    """Return `leadership_history` with the leader epochs that it does not have yet."""
    stored = ControlTable(root, LEADERSHIP_HISTORY).rows()
    known: dict[TopicIdPartition, int] = {}
    for row in stored.select(["topic_id", "partition", "leader_epoch"]).to_pylist():
        key = TopicIdPartition(row["topic_id"], row["partition"])
        known[key] = max(row["leader_epoch"], known.get(key, -1))
    newer = [
        row | {"since_ms": row["at_ms"]}
        for row in _completed(OF_PARTITIONS, root).to_pylist()
        if row["is_elected"]
        and row["leader_epoch"] > known.get(TopicIdPartition(row["topic_id"], row["partition"]), -1)
    ]
    columns = LEADERSHIP_HISTORY.columns.names
    rows = [{name: row[name] for name in columns} for row in newer]
    return pa.concat_tables([stored, LEADERSHIP_HISTORY.rows(rows)])


CLUSTER_PAST: dict[str, PastView] = {
    PARTITION_HISTORY.name: PastView(
        PARTITION_HISTORY.columns, lambda root: _completed(OF_PARTITIONS, root)
    ),
    CONTROLLER_HISTORY.name: PastView(
        CONTROLLER_HISTORY.columns, lambda root: _completed(OF_CONTROLLER, root)
    ),
    LEADERSHIP_HISTORY.name: PastView(LEADERSHIP_HISTORY.columns, _leaders),
    "config_history": PastView(CONFIG_HISTORY, config_past),
    "group_history": PastView(GROUP_HISTORY, group_past),
}
"""The tables of the cluster root that sparklog reads: they lag behind, or are made of commits."""

# --- broker roots -------------------------------------------------------------------------------

REFUSALS = pa.schema(
    [
        ("at_ms", _LONG),
        ("error", _STRING),
        ("topic_id", _STRING),
        ("topic", _STRING),
        ("partition", _INT),
        ("requests", _LONG),
        ("version", _LONG),
    ]
)
"""The columns of `refusals`: numbers of answers to produce requests with an error."""

HIGH_WATERMARKS = pa.schema(
    [
        ("at_ms", _LONG),
        ("topic_id", _STRING),
        ("topic", _STRING),
        ("partition", _INT),
        ("role", _STRING),
        ("leader_epoch", _INT),
        ("log_start_offset", _LONG),
        ("log_end_offset", _LONG),
        ("high_watermark", _LONG),
        ("version", _LONG),
    ]
)
"""The columns of `high_watermark_history`."""


def _truncations(root: Location) -> pa.Table:
    """Return the truncations in the table and in the journal, each once."""
    found = read_format(root)
    rows: list[dict[str, Any]] = []
    journal = Journal(root)
    if found is not None and TRUNCATIONS.name in found.tables:
        rows = ControlTable(root, TRUNCATIONS).rows().to_pylist()
    known = {tuple(row[name] for name in TRUNCATIONS.key) for row in rows}
    rows += [
        dict(row)
        for row in journal.truncations
        if tuple(row[name] for name in TRUNCATIONS.key) not in known
    ]
    return TRUNCATIONS.rows(rows)


def _refusals(root: Location) -> pa.Table:
    """Return the number of refused requests by error and partition in each minute with some."""
    rows = replica_past(root)
    return rows.filter(pc.is_valid(rows["error"])).select(REFUSALS.names)


def _high_watermarks(root: Location) -> pa.Table:
    """Return the last row of each replica in each minute in which it has changed."""
    rows = replica_past(root)
    return rows.filter(pc.is_null(rows["error"])).select(HIGH_WATERMARKS.names)


BROKER_PAST: dict[str, PastView] = {
    TRUNCATIONS.name: PastView(TRUNCATIONS.columns, _truncations),
    REPLICA_HISTORY.name: PastView(REPLICA_HISTORY.columns, replica_past),
    "refusals": PastView(REFUSALS, _refusals),
    "high_watermark_history": PastView(HIGH_WATERMARKS, _high_watermarks),
}
"""The tables of a broker root that sparklog reads from its journal."""

# --- views over the others ----------------------------------------------------------------------

ISR_HISTORY = """
select
    topic_id, topic, partition, at_ms, isr, joined_isr, left_isr, operation, cause, detail,
    leader, leader_epoch, partition_epoch, version
from partition_history
where joined_isr is null or joined_isr <> '[]' or left_isr <> '[]'
"""
"""The SQL text of the view `isr_history`: the changes of the ISR of each partition."""

ELECTIONS = """
select
    topic_id, topic, partition, at_ms, leader_before, leader, leader_epoch, is_unclean, operation,
    cause, detail, isr, controller_epoch, version
from partition_history
where is_elected
"""
"""The SQL text of the view `elections`: the beginnings of leader epochs."""

_TIMESTAMP_AT = """
    b.min_timestamp_ms + case
        when b.base_offset < {position} then cast(
            floor(
                (b.max_timestamp_ms - b.min_timestamp_ms) * ({position} - b.base_offset)
                / (b.next_offset - b.base_offset - 1)
            ) as bigint
        )
        else 0
    end
"""
"""The timestamp of the first record of the batch `b` at or after a position.

Within a batch it is as if the records were evenly spread. Merged batches may span hours: by its
first timestamp a reader in the middle would be behind by all of them.
"""

REPLICA_PROGRESS = f"""
with reports as (
    select
        s.topic_id, s.topic, s.partition, s.broker_id, s.leader, s.leader_epoch, s.in_isr,
        f.leader_epoch as reported_epoch,
        f.log_end_offset, f.high_watermark, f.reported_at_ms,
        l.log_end_offset as leader_log_end_offset
    from partition_state s
    join topics t on t.topic_id = s.topic_id and t.state = 'live' and s.partition < t.partitions
    left join high_watermark_checkpoint f
        on f.topic_id = s.topic_id and f.partition = s.partition and f.broker_id = s.broker_id
    left join high_watermark_checkpoint l
        on l.topic_id = s.topic_id and l.partition = s.partition and l.broker_id = s.leader
        and l.leader_epoch = s.leader_epoch
    where s.broker_id <> coalesce(s.leader, -1)
),
missing as (
    select
        r.topic_id, r.partition, r.broker_id,
        min_by({_TIMESTAMP_AT.format(position="r.log_end_offset")}, b.base_offset) as since_ms
    from reports r
    join batches b
        on b.topic_id = r.topic_id and b.partition = r.partition and b.broker_id = r.leader
        and b.next_offset > r.log_end_offset
    group by r.topic_id, r.partition, r.broker_id
),
departures as (
    select
        r.topic_id, r.partition, r.broker_id, h.at_ms, h.cause, h.detail,
        row_number() over (
            partition by r.topic_id, r.partition, r.broker_id order by h.partition_epoch desc
        ) as place
    from reports r
    join partition_history h
        on h.topic_id = r.topic_id and h.partition = r.partition
        and replace(replace(replace(h.left_isr, ' ', ''), '[', ','), ']', ',')
            like concat('%,', cast(r.broker_id as string), ',%')
    where not r.in_isr
)
select
    r.topic_id, r.topic, r.partition, r.broker_id, r.leader, r.leader_epoch, r.in_isr,
    r.log_end_offset, r.high_watermark, r.leader_log_end_offset,
    case
        when r.log_end_offset >= r.leader_log_end_offset then 0
        else r.leader_log_end_offset - r.log_end_offset
    end as lag,
    case
        when r.log_end_offset >= r.leader_log_end_offset
            or m.since_ms > unix_millis(current_timestamp) then cast(0 as double)
        else cast(unix_millis(current_timestamp) - m.since_ms as double) / 1000
    end as lag_seconds,
    case
        when r.log_end_offset >= r.leader_log_end_offset then r.reported_at_ms
        else m.since_ms
    end as last_caught_up_ms,
    r.reported_at_ms,
    d.at_ms as left_isr_at_ms, d.cause as left_isr_because,
    -- A detail names each broker that has left with the same commit.
    coalesce(
        nullif(
            regexp_extract(
                d.detail, concat('broker ', cast(d.broker_id as string), ' [^;]*'), 0
            ),
            ''
        ),
        d.detail
    ) as left_isr_detail
from reports r
left join missing m
    on m.topic_id = r.topic_id and m.partition = r.partition and m.broker_id = r.broker_id
left join departures d
    on d.topic_id = r.topic_id and d.partition = r.partition and d.broker_id = r.broker_id
    and d.place = 1
"""
"""The SQL text of the view `replica_progress`: each follower as its leader sees it.

`last_caught_up_ms` is the time of the newest report of a follower at the leader's log end, or the
timestamp of the first record that it lacks. `lag_seconds` is the time from this timestamp until
now, 0 at the leader's log end, and null where the leader, its log end or that record's batch is not
known. The last three columns say when and why a follower outside the ISR has left it, which may be
before `last_caught_up_ms`: it has everything until the next record is written.

A timestamp is the producer's, so the lag behind backfilled records of last year is a year. The time
at which a batch was appended is not used: it is lost when batches are merged, two minutes later by
default, and the lag of a reader that has stopped would begin at 0 with each merge.
"""

LAG = f"""
select
    'replica' as kind, cast(broker_id as string) as name, topic_id, topic, partition,
    log_end_offset as position, leader_log_end_offset as end_offset, lag, lag_seconds
from replica_progress
union all
select
    'group', o.group_id, o.topic_id, o.topic, o.partition,
    o.committed_offset, c.high_watermark,
    case
        when o.committed_offset >= c.high_watermark then 0
        else c.high_watermark - o.committed_offset
    end,
    case
        when o.committed_offset >= c.high_watermark
            or min_by({_TIMESTAMP_AT.format(position="o.committed_offset")}, b.base_offset)
                > unix_millis(current_timestamp)
            then cast(0 as double)
        else cast(
            unix_millis(current_timestamp)
                - min_by({_TIMESTAMP_AT.format(position="o.committed_offset")}, b.base_offset)
            as double
        ) / 1000
    end
from consumer_offsets o
join partition_state s
    on s.topic_id = o.topic_id and s.partition = o.partition and s.replica_index = 0
left join high_watermark_checkpoint c
    on c.topic_id = o.topic_id and c.partition = o.partition and c.broker_id = s.leader
left join batches b
    on b.topic_id = o.topic_id and b.partition = o.partition and b.broker_id = s.leader
    and b.next_offset > o.committed_offset and b.base_offset < c.high_watermark
group by o.group_id, o.topic_id, o.topic, o.partition, o.committed_offset, c.high_watermark
"""
"""The SQL text of the view `lag`: of each follower to its leader's log end (`kind` is replica), and
of each consumer group to the high watermark (`kind` is group), in offsets, and in seconds from the
timestamp of the first record behind until now.

The end, the lag and its seconds are null as long as the partition has no leader. A timestamp is the
producer's: see `REPLICA_PROGRESS`.
"""

PAST_VIEWS: Mapping[str, str] = {
    "isr_history": ISR_HISTORY,
    "elections": ELECTIONS,
    "replica_progress": REPLICA_PROGRESS,
    "lag": LAG,
}
"""The SQL texts of the views over the past, in their order: a view may use those before it."""
