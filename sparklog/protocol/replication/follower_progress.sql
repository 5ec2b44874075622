-- The leader's state of a follower, updated by the follower's row. The position in the row counts
-- only under the leader's epoch and the follower's current broker epoch; the report of an earlier
-- process is ignored (1.3, 6.4). A row that has changed since the leader last read it (`is_new`) is
-- a report. The follower was caught up now if it has reached the leader's log end, or at its
-- previous report if it has reached the log end of that time (5.1). Times are the leader's own.
-- takes followers:
--   topic_id string,
--   partition int,
--   broker_id int,
--   leader_epoch int,
--   broker_epoch bigint,
--   reported_leader_epoch int?,
--   reported_broker_epoch bigint?,
--   reported_log_end_offset bigint?,
--   is_new boolean,
--   leader_log_end_offset bigint,
--   previous_leader_log_end_offset bigint?,
--   previous_report_ms bigint?,
--   last_caught_up_ms bigint?,
--   now_ms bigint
-- gives: topic_id string, partition int, broker_id int, log_end_offset bigint?,
--   previous_leader_log_end_offset bigint?, previous_report_ms bigint?, last_caught_up_ms bigint?
with judged as (
    select
        *,
        coalesce(
            reported_leader_epoch = leader_epoch and reported_broker_epoch = broker_epoch, false
        ) as counts
    from followers
),
reported as (
    select *, counts and is_new as is_report
    from judged
)
select
    topic_id,
    partition,
    broker_id,
    case when counts then reported_log_end_offset end as log_end_offset,
    case when is_report then leader_log_end_offset else previous_leader_log_end_offset end
        as previous_leader_log_end_offset,
    case when is_report then now_ms else previous_report_ms end as previous_report_ms,
    case
        when is_report and reported_log_end_offset >= leader_log_end_offset
            then greatest(last_caught_up_ms, now_ms)
        when is_report and reported_log_end_offset >= previous_leader_log_end_offset
            then greatest(last_caught_up_ms, previous_report_ms)
        else last_caught_up_ms
    end as last_caught_up_ms
from reported
