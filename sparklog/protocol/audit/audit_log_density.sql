-- Gaps and overlaps in a replica's log: a batch that does not begin at the end of the previous one,
-- or a first batch that begins after the log start offset (rule 9.5).
-- takes batches: broker_id int, topic_id string, partition int, path string, base_offset bigint,
--   last_offset_delta int, log_start_offset bigint
-- gives: broker_id int, topic_id string, partition int, path string, base_offset bigint,
--   expected_offset bigint
with ordered as (
    select
        *,
        lag(base_offset + last_offset_delta + 1) over (
            partition by broker_id, topic_id, partition
            order by base_offset, last_offset_delta, path, log_start_offset
        ) as previous_end
    from batches
)
select
    broker_id,
    topic_id,
    partition,
    path,
    base_offset,
    coalesce(previous_end, log_start_offset) as expected_offset
from ordered
where base_offset <> previous_end or (previous_end is null and base_offset > log_start_offset)
