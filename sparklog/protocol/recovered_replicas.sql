-- What a broker takes for its state when it starts: the log end offset is the log's, even where the
-- checkpoint is ahead of it (an interrupted truncation) or behind; the high watermark is at most
-- that (rules 1.4, 6.5, 7.0).
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
