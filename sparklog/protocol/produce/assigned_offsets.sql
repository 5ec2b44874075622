-- The base offsets of the batches that a tick appends: each partition's log end offset plus the
-- prefix sums of the record counts, in the order of arrival (rule 3.4, group commit).
-- takes batches: position int, topic_id string, partition int, record_count bigint,
--   log_end_offset bigint
-- gives: position int, base_offset bigint
select
    position,
    log_end_offset + cast(
        coalesce(
            sum(record_count) over (
                partition by topic_id, partition order by position
                rows between unbounded preceding and 1 preceding
            ),
            0
        ) as bigint
    ) as base_offset
from batches
