-- Entries of a leader-epoch history that do not grow in both columns (rule 9.6).
-- takes entries: broker_id int, topic_id string, partition int, epoch int, start_offset bigint
-- gives: broker_id int, topic_id string, partition int, epoch int, start_offset bigint,
--   previous_epoch int, previous_start_offset bigint
with ordered as (
    select
        *,
        lag(epoch) over (
            partition by broker_id, topic_id, partition order by epoch, start_offset
        ) as previous_epoch,
        lag(start_offset) over (
            partition by broker_id, topic_id, partition order by epoch, start_offset
        ) as previous_start_offset
    from entries
)
select broker_id, topic_id, partition, epoch, start_offset, previous_epoch, previous_start_offset
from ordered
where epoch = previous_epoch or start_offset <= previous_start_offset
