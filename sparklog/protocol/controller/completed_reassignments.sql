-- Reassignments that are complete (rule 7.8, KIP-455): every replica of the target, which are all
-- but those that are being removed, is in sync, and one of them is alive. Without a live one the
-- removed replicas may have the only copies that can be read.
-- takes replicas: topic_id string, partition int, broker_id int, in_isr boolean, is_alive boolean,
--   adding boolean, removing boolean
-- gives: topic_id string, partition int
select topic_id, partition
from replicas
group by topic_id, partition
having count(case when adding or removing then 1 end) > 0
    and count(case when not removing and not in_isr then 1 end) = 0
    and count(case when not removing and in_isr and is_alive then 1 end) > 0
