-- Replicas whose row in the journal violates log start offset <= high watermark <= log end, or
-- reports a log end offset above the log's (rule 1.2). One row per violated inequality: `lower` >
-- `upper`. The high watermark of a replica that is not in sync and has not reported in the current
-- leader epoch is not compared with its log end: a truncation may have been interrupted, and the
-- row is lowered at the next start (7.0).
-- takes replicas: topic_id string, partition int, broker_id int, in_isr boolean,
--   log_start_offset bigint, high_watermark bigint, reported_log_end_offset bigint?,
--   log_end_offset bigint
-- gives: topic_id string, partition int, broker_id int, lower string, lower_offset bigint,
--   upper string, upper_offset bigint
select
    topic_id,
    partition,
    broker_id,
    'log_start_offset' as lower,
    log_start_offset as lower_offset,
    'high_watermark' as upper,
    high_watermark as upper_offset
from replicas
where log_start_offset > high_watermark
union all
select
    topic_id,
    partition,
    broker_id,
    'high_watermark',
    high_watermark,
    'log_end_offset',
    log_end_offset
from replicas
where high_watermark > log_end_offset and (in_isr or reported_log_end_offset is not null)
union all
select
    topic_id,
    partition,
    broker_id,
    'reported_log_end_offset',
    reported_log_end_offset,
    'log_end_offset',
    log_end_offset
from replicas
where reported_log_end_offset > log_end_offset
