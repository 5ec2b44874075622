-- The high watermark of each partition's leader and its recomputed bound, the least log end offset
-- in the ISR (rules 2.1, 9.7). A replica counts with the lower of its log's end and, if it has
-- reported in the current leader epoch, its reported end. Invariant: high_watermark <= recomputed;
-- `is_wrong` marks a violation. `least_broker_id` is the lowest broker with that end.
-- `high_watermark` is null in the rows of other replicas.
-- takes replicas: topic_id string, partition int, broker_id int, in_isr boolean,
--   high_watermark bigint?, reported_log_end_offset bigint?, log_end_offset bigint
-- gives: topic_id string, partition int, broker_id int, high_watermark bigint, recomputed bigint,
--   least_broker_id int, is_wrong boolean
with ends as (
    select
        topic_id,
        partition,
        broker_id,
        least(log_end_offset, coalesce(reported_log_end_offset, log_end_offset)) as log_end_offset
    from replicas
    where in_isr
),
minima as (
    select topic_id, partition, min(log_end_offset) as recomputed
    from ends
    group by topic_id, partition
),
least_ends as (
    select m.topic_id, m.partition, m.recomputed, min(e.broker_id) as least_broker_id
    from minima m
    join ends e
        on e.topic_id = m.topic_id
        and e.partition = m.partition
        and e.log_end_offset = m.recomputed
    group by m.topic_id, m.partition, m.recomputed
)
select
    r.topic_id,
    r.partition,
    r.broker_id,
    r.high_watermark,
    l.recomputed,
    l.least_broker_id,
    r.high_watermark > l.recomputed as is_wrong
from replicas r
join least_ends l on l.topic_id = r.topic_id and l.partition = r.partition
where r.high_watermark is not null
