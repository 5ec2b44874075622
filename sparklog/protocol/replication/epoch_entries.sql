-- A leader-epoch history after one new entry (rule 6.1). The latest epoch with a later start is
-- ignored; otherwise the entries with an epoch or a start at or beyond the new one's are removed.
-- An epoch before the latest is not expected; if it comes, the history ends with it, as in Kafka.
-- takes entries: topic_id string, partition int, epoch int, start_offset bigint
-- takes assigned: topic_id string, partition int, epoch int, start_offset bigint
-- gives: topic_id string, partition int, epoch int, start_offset bigint
with latest as (
    select topic_id, partition, max(epoch) as epoch, max(start_offset) as start_offset
    from entries
    group by topic_id, partition
),
effective as (
    select a.topic_id, a.partition, a.epoch, a.start_offset
    from assigned a
    left join latest l
        on l.topic_id = a.topic_id
        and l.partition = a.partition
        and l.epoch = a.epoch
        and l.start_offset <= a.start_offset
    where l.epoch is null
)
select e.topic_id, e.partition, e.epoch, e.start_offset
from entries e
left join effective a on a.topic_id = e.topic_id and a.partition = e.partition
where a.epoch is null or (e.epoch < a.epoch and e.start_offset < a.start_offset)
union all
select topic_id, partition, epoch, start_offset
from effective
