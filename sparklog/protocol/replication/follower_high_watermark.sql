-- A follower's high watermark: the leader's as it was fetched, but not past the own log's end. It
-- falls by truncation alone, so that a reader of this replica is never shown less after a clean
-- election than before it (rules 2.5, 2.7, 9.3).
-- takes followed: topic_id string, partition int, high_watermark bigint,
--   leader_high_watermark bigint, log_end_offset bigint
-- gives: topic_id string, partition int, high_watermark bigint
select
    topic_id,
    partition,
    greatest(high_watermark, least(leader_high_watermark, log_end_offset)) as high_watermark
from followed
