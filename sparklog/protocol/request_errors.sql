-- What a leader answers instead of appending. A request names the leader epoch that it addresses;
-- it is refused under another one, or when it may have waited longer than its timeout unseen (3.1);
-- when queued.max.requests others came before it in this tick; when its topic's producers have
-- lately been faster than producer_byte_rate, in bytes a second; for acks=all under min ISR (3.3);
-- and where a batch of it is not what it claims (3.5). One bad batch refuses its partition of its
-- request, and nothing else. A batch that is in the log already is not refused for what only
-- concerns appending (3.6).
-- `error` is null where the batch is to be appended.
-- takes requests: position int, request_id string, topic_id string, partition int, acks int,
--   is_topic_known boolean, is_internal boolean, is_leader boolean, named_leader_epoch int,
--   leader_epoch int?, waited_ms bigint, timeout_ms bigint, is_duplicate boolean,
--   requests_before int, queued_max_requests int, recent_bytes bigint, window_ms bigint,
--   byte_rate bigint?, isr_size int?, min_isr int, replica_count int?, byte_size bigint,
--   max_message_bytes bigint, file_fault string?
-- gives: position int, error string?
with judged as (
    select
        position,
        request_id,
        topic_id,
        partition,
        case
            when acks not in (-1, 0, 1) then 'INVALID_REQUIRED_ACKS'
            when is_internal then 'INVALID_TOPIC_EXCEPTION'
            when not is_topic_known then 'UNKNOWN_TOPIC_OR_PARTITION'
            when not is_leader then 'NOT_LEADER_OR_FOLLOWER'
            when is_duplicate then null
            when named_leader_epoch < leader_epoch then 'FENCED_LEADER_EPOCH'
            when named_leader_epoch > leader_epoch then 'UNKNOWN_LEADER_EPOCH'
            when waited_ms > timeout_ms then 'REQUEST_TIMED_OUT'
            when requests_before >= queued_max_requests
                or cast(recent_bytes as double) * 1000 / window_ms > byte_rate
                then 'THROTTLING_QUOTA_EXCEEDED'
            when acks = -1 and isr_size < least(min_isr, replica_count) then 'NOT_ENOUGH_REPLICAS'
            when byte_size > max_message_bytes then 'MESSAGE_TOO_LARGE'
            when file_fault is not null then 'CORRUPT_MESSAGE'
        end as error
    from requests
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
