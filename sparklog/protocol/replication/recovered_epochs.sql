-- The leader-epoch history with which a broker starts (rules 7.0, 9.6). It is derived from the
-- log's batches; the checkpoint adds the entries before the first batch. An entry at or after the
-- log end is dropped, and so is one that the batches contradict: it is left of an interrupted
-- truncation or copy.
-- takes entries: topic_id string, partition int, epoch int, start_offset bigint
-- takes batches: topic_id string, partition int, leader_epoch int, base_offset bigint
-- takes replicas: topic_id string, partition int, log_end_offset bigint
-- gives: topic_id string, partition int, epoch int, start_offset bigint
with first_batches as (
    select topic_id, partition, min(base_offset) as base_offset, min(leader_epoch) as leader_epoch
    from batches
    group by topic_id, partition
),
seen as (
    select e.topic_id, e.partition, e.epoch, e.start_offset
    from entries e
    left join first_batches f on f.topic_id = e.topic_id and f.partition = e.partition
    where f.base_offset is null
        or (e.start_offset < f.base_offset and e.epoch <= f.leader_epoch)
    union all
    select topic_id, partition, leader_epoch as epoch, base_offset as start_offset from batches
)
select s.topic_id, s.partition, s.epoch, min(s.start_offset) as start_offset
from seen s
join replicas r on r.topic_id = s.topic_id and r.partition = s.partition
where s.start_offset < r.log_end_offset
group by s.topic_id, s.partition, s.epoch
