-- Idempotent producers without a batch committed to this replica for producer.id.expiration.ms, on
-- the clock of the replica's broker (rule 3.6). Their next batch may have any sequence number.
-- takes batches: topic_id string, partition int, producer_id bigint, appended_at_ms bigint,
--   now_ms bigint, producer_id_expiration_ms bigint
-- gives: topic_id string, partition int, producer_id bigint
select topic_id, partition, producer_id
from batches
group by topic_id, partition, producer_id
having max(now_ms) - max(appended_at_ms) >= max(producer_id_expiration_ms)
