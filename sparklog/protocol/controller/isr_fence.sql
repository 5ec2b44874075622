-- Members that leave the ISR because their broker is not alive: fenced, stopped, unregistered or
-- unknown (rule 7.2). An ISR without any live member is unchanged.
-- takes replicas: topic_id string, partition int, broker_id int, in_isr boolean, is_alive boolean
-- gives: topic_id string, partition int, broker_id int
with remaining as (
    select topic_id, partition
    from replicas
    where in_isr and is_alive
    group by topic_id, partition
)
select r.topic_id, r.partition, r.broker_id
from replicas r
join remaining s on s.topic_id = r.topic_id and s.partition = r.partition
where r.in_isr and not r.is_alive
