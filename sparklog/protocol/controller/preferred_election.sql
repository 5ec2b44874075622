-- Partitions that can return to their preferred replica, the first assigned one: it is in sync and
-- alive, its broker is neither stopping nor parked (which counts as stopping), and another one
-- leads (rule 7.6).
-- takes replicas: topic_id string, partition int, broker_id int, replica_index int, in_isr boolean,
--   is_alive boolean, is_stopping boolean, leader int?
-- gives: topic_id string, partition int, leader int
select topic_id, partition, broker_id as leader
from replicas
where replica_index = 0 and in_isr and is_alive and not is_stopping
    and coalesce(leader, -1) <> broker_id
