-- Batches whose leader epoch is not the one of the replica's history at their offset; of each epoch
-- the first and the last batch (rules 6.1, 9.6). A follower's batches of epochs after its history's
-- latest are not returned: a copy was interrupted before its entries were written, and the entries
-- are derived when the broker starts (7.0). A leader writes its entries first, so it has no such
-- batches. Offsets before the log start offset have no history any more (8.3).
-- takes batches: broker_id int, topic_id string, partition int, base_offset bigint,
--   last_offset_delta int, leader_epoch int, log_start_offset bigint, is_led boolean
-- takes entries: broker_id int, topic_id string, partition int, epoch int, start_offset bigint
-- gives: broker_id int, topic_id string, partition int, base_offset bigint, leader_epoch int,
--   history_epoch int?
with spans as (
    select
        broker_id,
        topic_id,
        partition,
        leader_epoch,
        is_led,
        min(greatest(base_offset, log_start_offset)) as first_offset,
        max(greatest(base_offset, log_start_offset)) as last_offset
    from batches
    where base_offset + last_offset_delta >= log_start_offset
    group by broker_id, topic_id, partition, leader_epoch, is_led
),
asked as (
    select broker_id, topic_id, partition, leader_epoch, is_led, first_offset as base_offset
    from spans
    union
    select broker_id, topic_id, partition, leader_epoch, is_led, last_offset as base_offset
    from spans
),
known as (
    select
        a.broker_id,
        a.topic_id,
        a.partition,
        a.base_offset,
        a.leader_epoch,
        a.is_led,
        max(e.epoch) as latest_epoch,
        max(case when e.start_offset <= a.base_offset then e.epoch end) as history_epoch
    from asked a
    left join entries e
        on e.broker_id = a.broker_id and e.topic_id = a.topic_id and e.partition = a.partition
    group by a.broker_id, a.topic_id, a.partition, a.base_offset, a.leader_epoch, a.is_led
)
select broker_id, topic_id, partition, base_offset, leader_epoch, history_epoch
from known
where coalesce(history_epoch <> leader_epoch, true)
    and (is_led or leader_epoch <= coalesce(latest_epoch, -1))
