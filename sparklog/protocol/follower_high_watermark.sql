-- A follower's high watermark: the leader's as it was fetched, but not past the own log's end
-- (rule 2.5).
-- takes followed: topic_id string, partition int, leader_high_watermark bigint,
--   log_end_offset bigint
-- gives: topic_id string, partition int, high_watermark bigint
select topic_id, partition, least(leader_high_watermark, log_end_offset) as high_watermark
from followed
