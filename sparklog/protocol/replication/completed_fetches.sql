-- Completed delayed fetches: those for which their leader has min_bytes, over all partitions of the
-- request; of the others the partitions that it no longer leads in the epoch of the fetch (rules
-- 4.1, 4.3, 4.4).
-- takes operations: operation_id string, request_id string, min_bytes bigint, is_leader boolean,
--   available_bytes bigint
-- gives: operation_id string, error string
with summed as (
    select
        *,
        sum(case when is_leader then available_bytes end) over (partition by request_id)
            as request_bytes
    from operations
)
select
    operation_id,
    case when is_leader then 'NONE' else 'NOT_LEADER_OR_FOLLOWER' end as error
from summed
where not is_leader or request_bytes >= min_bytes
