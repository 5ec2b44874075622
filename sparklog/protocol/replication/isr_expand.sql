-- Followers that join the in-sync set (rule 5.2): they have reached the high watermark and the
-- start of the current leader epoch; they have reported in it within replica.lag.time.max.ms under
-- their current broker epoch (a log end offset that does not count is null); their broker is not
-- fenced; and they are no further behind the leader than replica.lag.max.messages, if that is set.
-- takes replicas:
--   topic_id string,
--   partition int,
--   broker_id int,
--   in_isr boolean,
--   is_alive boolean,
--   log_end_offset bigint?,
--   leader_log_end_offset bigint,
--   high_watermark bigint,
--   epoch_start_offset bigint,
--   previous_report_ms bigint?,
--   now_ms bigint,
--   lag_time_max_ms bigint,
--   lag_max_messages bigint?
-- gives: topic_id string, partition int, broker_id int
select topic_id, partition, broker_id
from replicas
where not in_isr
    and is_alive
    and log_end_offset >= high_watermark
    and log_end_offset >= epoch_start_offset
    and now_ms - previous_report_ms <= lag_time_max_ms
    and coalesce(leader_log_end_offset - log_end_offset <= lag_max_messages, true)
