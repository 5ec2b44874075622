-- The error of each requested batch; the first condition that applies decides (rules 3.1, 3.3, 3.5,
-- 3.6). INVALID_REQUIRED_ACKS, INVALID_TOPIC_EXCEPTION (internal topic), UNKNOWN_TOPIC_OR_PARTITION
-- and NOT_LEADER_OR_FOLLOWER apply to every batch; the others not to a batch that the log already
-- has. FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH: the request names a lower or higher leader
-- epoch. REQUEST_TIMED_OUT: its producer may have given up, so an append would be behind its back
-- (10.1). A request is in time if it was first read within `timeout_ms` of the last read of the
-- inbox, on the leader's own clock (`waited_ms`, null without an earlier read by this process); or
-- if its age, the leader's clock minus the producer's time of sending, is within `timeout_ms`.
-- Assumption of the latter: the clocks differ by at most `clock_skew_ms`. So an age counts as that
-- much higher, and below minus that much it shows that the assumption does not hold. A batch is in
-- time if one of its requests is: the first one or one of `repeats`, which have its position.
-- THROTTLING_QUOTA_EXCEEDED: queued.max.requests requests came before it in the tick, or the topic
-- exceeded producer_byte_rate (bytes per second) over the last `window_ms`, or its client id is
-- throttled (3.9); with acks=0 it is not refused, since nobody would send it again.
-- NOT_ENOUGH_REPLICAS: acks=all under min ISR. MESSAGE_TOO_LARGE. INVALID_RECORD: a record of a
-- compacted topic has no key. CORRUPT_MESSAGE: the file does not match the request.
-- An error applies to all batches of the same partition in the same request, and to no others.
-- `error` is null for a batch to append.
-- takes requests:
--   position int,
--   request_id string,
--   topic_id string,
--   partition int,
--   acks int,
--   is_topic_known boolean,
--   is_internal boolean,
--   is_leader boolean,
--   named_leader_epoch int,
--   leader_epoch int?,
--   waited_ms bigint?,
--   age_ms bigint?,
--   timeout_ms bigint,
--   clock_skew_ms bigint,
--   is_duplicate boolean,
--   requests_before int,
--   queued_max_requests int,
--   recent_bytes bigint,
--   window_ms bigint,
--   byte_rate bigint?,
--   is_throttled boolean,
--   isr_size int?,
--   min_isr int,
--   replica_count int?,
--   byte_size bigint,
--   max_message_bytes bigint,
--   lacks_keys boolean,
--   file_fault string?
-- takes repeats:
--   position int,
--   waited_ms bigint?,
--   age_ms bigint?,
--   timeout_ms bigint,
--   clock_skew_ms bigint
-- gives: position int, error string?
with asked as (
    select position, waited_ms, age_ms, timeout_ms, clock_skew_ms from requests
    union all
    select position, waited_ms, age_ms, timeout_ms, clock_skew_ms from repeats
),
timely as (
    select distinct position
    from asked
    where waited_ms between 0 and timeout_ms
        or age_ms + clock_skew_ms between 0 and timeout_ms
),
judged as (
    select
        r.position,
        r.request_id,
        r.topic_id,
        r.partition,
        case
            when acks not in (-1, 0, 1) then 'INVALID_REQUIRED_ACKS'
            when is_internal then 'INVALID_TOPIC_EXCEPTION'
            when not is_topic_known then 'UNKNOWN_TOPIC_OR_PARTITION'
            when not is_leader then 'NOT_LEADER_OR_FOLLOWER'
            when is_duplicate then null
            when named_leader_epoch < leader_epoch then 'FENCED_LEADER_EPOCH'
            when named_leader_epoch > leader_epoch then 'UNKNOWN_LEADER_EPOCH'
            when t.position is null then 'REQUEST_TIMED_OUT'
            when requests_before >= queued_max_requests
                or cast(recent_bytes as double) * 1000 / window_ms > byte_rate
                or (is_throttled and acks <> 0)
                then 'THROTTLING_QUOTA_EXCEEDED'
            when acks = -1 and isr_size < least(min_isr, replica_count) then 'NOT_ENOUGH_REPLICAS'
            when byte_size > max_message_bytes then 'MESSAGE_TOO_LARGE'
            when lacks_keys then 'INVALID_RECORD'
            when file_fault is not null then 'CORRUPT_MESSAGE'
        end as error
    from requests r
    left join timely t on t.position = r.position
)
select
    j.position,
    w.error
from judged j
join (
    select request_id, topic_id, partition, min(error) as error
    from judged
    group by request_id, topic_id, partition
) w on w.request_id = j.request_id and w.topic_id = j.topic_id and w.partition = j.partition
