-- Delayed produce operations that are complete (rules 3.2, 3.3, 4.3, 4.4, 7.9).
-- UNKNOWN_TOPIC_OR_PARTITION if the topic was deleted, which no broker leads.
-- NOT_LEADER_OR_FOLLOWER if the broker no longer leads the partition, or its log no longer has the
-- records (`is_leader` is false in both cases). Otherwise complete at
-- high_watermark >= required_offset: NOT_ENOUGH_REPLICAS_AFTER_APPEND if too few replicas are in
-- sync by then, else NONE.
-- takes operations:
--   operation_id string,
--   required_offset bigint,
--   is_leader boolean,
--   is_topic_deleted boolean,
--   high_watermark bigint?,
--   isr_size int?,
--   min_isr int?,
--   replica_count int?
-- gives: operation_id string, error string
select
    operation_id,
    case
        when is_topic_deleted then 'UNKNOWN_TOPIC_OR_PARTITION'
        when not is_leader then 'NOT_LEADER_OR_FOLLOWER'
        when isr_size < least(min_isr, replica_count) then 'NOT_ENOUGH_REPLICAS_AFTER_APPEND'
        else 'NONE'
    end as error
from operations
where not is_leader or high_watermark >= required_offset
