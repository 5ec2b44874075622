-- Partitions that return to their preferred replica without a request: those of every broker that
-- does not lead more than leader.imbalance.per.broker.percentage of the partitions in which it is
-- the preferred replica (rule 7.6).
-- takes replicas: topic_id string, partition int, broker_id int, replica_index int, leader int?,
--   max_percentage int
-- gives: topic_id string, partition int
with preferred as (
    select
        topic_id,
        partition,
        broker_id,
        max_percentage,
        coalesce(leader, -1) <> broker_id as lacks
    from replicas
    where replica_index = 0
),
imbalanced as (
    select broker_id
    from preferred
    group by broker_id
    having count(case when lacks then 1 end) * 100 > max(max_percentage) * count(*)
)
select p.topic_id, p.partition
from preferred p
join imbalanced i on i.broker_id = p.broker_id
where p.lacks
