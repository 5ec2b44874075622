-- Leader epochs that more than one broker claims, in its own row or by what the controller has
-- published, or that were not given to whoever claims them (rule 9.4). A row with epoch -1 claims
-- nothing.
-- takes claims: topic_id string, partition int, broker_id int, leader_epoch int
-- takes published: topic_id string, partition int, leader int?, leader_epoch int
-- gives: topic_id string, partition int, leader_epoch int, broker_id int, other_broker_id int?,
--   published_epoch int
with leaders as (
    select topic_id, partition, broker_id, leader_epoch from claims where leader_epoch >= 0
    union
    select topic_id, partition, leader as broker_id, leader_epoch
    from published
    where leader is not null
),
claimed as (
    select
        topic_id,
        partition,
        leader_epoch,
        min(broker_id) as broker_id,
        max(broker_id) as other_broker_id
    from leaders
    group by topic_id, partition, leader_epoch
)
select
    c.topic_id,
    c.partition,
    c.leader_epoch,
    c.broker_id,
    case when c.other_broker_id <> c.broker_id then c.other_broker_id end as other_broker_id,
    p.leader_epoch as published_epoch
from claimed c
join published p on p.topic_id = c.topic_id and p.partition = c.partition
where c.other_broker_id <> c.broker_id
    or c.leader_epoch > p.leader_epoch
    or (c.leader_epoch = p.leader_epoch and p.leader is null)
