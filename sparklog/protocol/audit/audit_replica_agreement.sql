-- In-sync replicas whose batches differ from the leader's in bounds, leader epoch or checksum (rule
-- 9.2). `base_offset` is that of the first differing batch, of either replica. Merged batches
-- differ although their records are equal, so the caller compares the records. Only batches with
-- offsets in [`compared_from`, `compared_below`) are compared: those that every in-sync replica
-- has. `leader` is the first ISR member if the leader cannot be compared.
-- takes batches: topic_id string, partition int, broker_id int, base_offset bigint,
--   last_offset_delta int, leader_epoch int, checksum string
-- takes replicas: topic_id string, partition int, broker_id int, leader int, compared_from bigint,
--   compared_below bigint
-- gives: topic_id string, partition int, broker_id int, leader int, base_offset bigint
with compared as (
    select
        r.topic_id,
        r.partition,
        r.broker_id,
        r.leader,
        b.broker_id as held_by,
        b.base_offset,
        b.last_offset_delta,
        b.leader_epoch,
        b.checksum
    from replicas r
    join batches b
        on b.topic_id = r.topic_id
        and b.partition = r.partition
        and (b.broker_id = r.broker_id or b.broker_id = r.leader)
    where b.base_offset < r.compared_below
        and b.base_offset + b.last_offset_delta >= r.compared_from
),
held_by_one as (
    select topic_id, partition, broker_id, leader, base_offset
    from compared
    where broker_id <> leader
    group by
        topic_id,
        partition,
        broker_id,
        leader,
        base_offset,
        last_offset_delta,
        leader_epoch,
        checksum
    having count(distinct held_by) = 1
)
select topic_id, partition, broker_id, leader, min(base_offset) as base_offset
from held_by_one
group by topic_id, partition, broker_id, leader
