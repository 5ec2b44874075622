-- A follower's log start offset: at least as far as the leader's, but not past its own high
-- watermark (rule 8.3). It never moves back.
-- takes followed: topic_id string, partition int, log_start_offset bigint,
--   leader_log_start_offset bigint, high_watermark bigint
-- gives: topic_id string, partition int, log_start_offset bigint
select
    topic_id,
    partition,
    greatest(log_start_offset, least(leader_log_start_offset, high_watermark)) as log_start_offset
from followed
