-- A leader-epoch history after one new entry: the same epoch with a later start is ignored;
-- otherwise the entries with an epoch or a start at or beyond the new one's go (rule 6.1).
-- takes entries: topic_id string, partition int, epoch int, start_offset bigint
-- takes assigned: topic_id string, partition int, epoch int, start_offset bigint
-- gives: topic_id string, partition int, epoch int, start_offset bigint
with effective as (
    select a.topic_id, a.partition, a.epoch, a.start_offset
    from assigned a
    left join entries e
        on e.topic_id = a.topic_id
        and e.partition = a.partition
        and e.epoch = a.epoch
        and e.start_offset <= a.start_offset
    where e.epoch is null
)
select e.topic_id, e.partition, e.epoch, e.start_offset
from entries e
left join effective a on a.topic_id = e.topic_id and a.partition = e.partition
where a.epoch is null or (e.epoch < a.epoch and e.start_offset < a.start_offset)
union all
select topic_id, partition, epoch, start_offset
from effective
