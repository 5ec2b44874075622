-- The leader-epoch history that a broker starts with: its checkpoint, and what the log's batches show
-- of epochs that the checkpoint lacks; entries that start at or after the log end are dropped
-- (rule 7.0).
-- takes entries: topic_id string, partition int, epoch int, start_offset bigint
-- takes batches: topic_id string, partition int, leader_epoch int, base_offset bigint
-- takes replicas: topic_id string, partition int, log_end_offset bigint
-- gives: topic_id string, partition int, epoch int, start_offset bigint
with seen as (
    select topic_id, partition, epoch, start_offset from entries
    union all
    select topic_id, partition, leader_epoch as epoch, base_offset as start_offset from batches
)
select s.topic_id, s.partition, s.epoch, min(s.start_offset) as start_offset
from seen s
join replicas r on r.topic_id = s.topic_id and r.partition = s.partition
where s.start_offset < r.log_end_offset
group by s.topic_id, s.partition, s.epoch
