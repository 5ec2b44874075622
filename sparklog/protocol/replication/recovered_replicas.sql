-- The state with which a broker starts (rules 1.4, 6.5, 7.0). The log end offset is that of the
-- log, even if the checkpoint is ahead of it (an interrupted truncation) or behind. The high
-- watermark is at most that.
-- takes replicas: topic_id string, partition int, log_start_offset bigint?,
--   checkpointed_high_watermark bigint?, log_end_offset bigint
-- gives: topic_id string, partition int, log_start_offset bigint, log_end_offset bigint,
--   high_watermark bigint
select
    topic_id,
    partition,
    coalesce(log_start_offset, 0) as log_start_offset,
    greatest(log_end_offset, coalesce(log_start_offset, 0)) as log_end_offset,
    least(
        greatest(coalesce(checkpointed_high_watermark, 0), coalesce(log_start_offset, 0)),
        greatest(log_end_offset, coalesce(log_start_offset, 0))
    ) as high_watermark
from replicas
