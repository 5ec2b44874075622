-- Appended batches, and whether their answer is delayed: acks=all waits until the high watermark
-- has passed the last record, acks=1 does not wait, acks=0 is never answered (rules 3.2, 3.4). A
-- timeout is at most Kafka's largest, so that no client's number overflows.
-- takes appended: request_id string, topic_id string, partition int, acks int, base_offset bigint,
--   last_offset bigint, timeout_ms bigint, now_ms bigint
-- gives: request_id string, topic_id string, partition int, is_delayed boolean,
--   base_offset bigint, required_offset bigint, deadline_ms bigint
select
    request_id,
    topic_id,
    partition,
    min(acks) = -1 as is_delayed,
    min(base_offset) as base_offset,
    max(last_offset) + 1 as required_offset,
    max(now_ms + least(timeout_ms, 2147483647)) as deadline_ms
from appended
where acks <> 0
group by request_id, topic_id, partition
