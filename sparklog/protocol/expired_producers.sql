-- Which idempotent producers are forgotten in a partition: those that have appended nothing to it
-- for producer.id.expiration.ms, on the clocks of those who wrote this replica. They may begin
-- anywhere again (rule 3.6).
-- takes batches: topic_id string, partition int, producer_id bigint, appended_at_ms bigint,
--   now_ms bigint, producer_id_expiration_ms bigint
-- gives: topic_id string, partition int, producer_id bigint
select topic_id, partition, producer_id
from batches
group by topic_id, partition, producer_id
having max(now_ms) - max(appended_at_ms) >= max(producer_id_expiration_ms)
