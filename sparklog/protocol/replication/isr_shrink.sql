-- Followers that leave the in-sync set (rule 5.1): they are not at the leader's log end and were
-- last caught up longer ago than replica.lag.time.max.ms, or never; or they are known to be further
-- behind than replica.lag.max.messages, if that is set.
-- takes replicas:
--   topic_id string,
--   partition int,
--   broker_id int,
--   is_leader boolean,
--   in_isr boolean,
--   log_end_offset bigint?,
--   leader_log_end_offset bigint,
--   last_caught_up_ms bigint?,
--   now_ms bigint,
--   lag_time_max_ms bigint,
--   lag_max_messages bigint?
-- gives: topic_id string, partition int, broker_id int
select topic_id, partition, broker_id
from replicas
where in_isr
    and not is_leader
    and coalesce(log_end_offset, -1) <> leader_log_end_offset
    and (
        coalesce(now_ms - last_caught_up_ms > lag_time_max_ms, true)
        or coalesce(leader_log_end_offset - log_end_offset > lag_max_messages, false)
    )
