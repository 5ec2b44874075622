-- Which delayed operations are complete: those whose partition the broker no longer leads, and
-- those that the high watermark has passed; the latter fail if by then too few replicas are in sync
-- (rules 3.2, 3.3, 4.3, 4.4).
-- takes operations: operation_id string, required_offset bigint, is_leader boolean,
--   high_watermark bigint?, isr_size int?, min_isr int?, replica_count int?
-- gives: operation_id string, error string
select
    operation_id,
    case
        when not is_leader then 'NOT_LEADER_OR_FOLLOWER'
        when isr_size < least(min_isr, replica_count) then 'NOT_ENOUGH_REPLICAS_AFTER_APPEND'
        else 'NONE'
    end as error
from operations
where not is_leader or high_watermark >= required_offset
