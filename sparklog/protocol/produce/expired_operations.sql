-- Expired delayed operations: REQUEST_TIMED_OUT for the partitions that are still pending (rule
-- 4.2).
-- takes operations: operation_id string, deadline_ms bigint, now_ms bigint
-- gives: operation_id string, error string
select operation_id, 'REQUEST_TIMED_OUT' as error
from operations
where now_ms >= deadline_ms
