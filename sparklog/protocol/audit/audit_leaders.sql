-- Leader epochs with two claimants, or claimed without having been published (rule 9.4). A claim is
-- a replica's row with the role leader, or the published leader. An epoch is unpublished if it is
-- above the published one, or equal to it while the partition has no leader. `broker_id` is the
-- lowest claimant, `other_broker_id` the highest, or null if there is only one. Epoch -1 is no
-- claim.
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
