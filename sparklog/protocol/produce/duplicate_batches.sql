-- Requested batches that are in the log already, and their offsets. The batch id in a file's name
-- stays the same in every retry and every copy (3.7). An idempotent producer's batch is identified
-- by its producer id, latest epoch and sequence, among the last five batches of that producer in
-- the partition (3.6, KIP-98). Sequences wrap at 2^31. Of a batch that was merged with others only
-- the latter identity is known: its `batch_id` is null.
-- takes requests: position int, topic_id string, partition int, batch_id string,
--   producer_id bigint, producer_epoch int, base_sequence int, record_count bigint
-- takes batches:
--   topic_id string,
--   partition int,
--   batch_id string?,
--   producer_id bigint,
--   producer_epoch int,
--   base_sequence int,
--   last_sequence bigint,
--   base_offset bigint,
--   last_offset bigint
-- gives: position int, base_offset bigint, last_offset bigint
with known as (
    select topic_id, partition, producer_id, max(producer_epoch) as producer_epoch
    from batches
    where producer_id >= 0
    group by topic_id, partition, producer_id
)
select r.position, min(b.base_offset) as base_offset, min(b.last_offset) as last_offset
from requests r
join batches b on b.topic_id = r.topic_id and b.partition = r.partition
left join known k
    on k.topic_id = r.topic_id and k.partition = r.partition and k.producer_id = r.producer_id
where b.batch_id = r.batch_id
    or (
        r.producer_id >= 0
        and b.producer_id = r.producer_id
        and b.producer_epoch = r.producer_epoch
        and k.producer_epoch = r.producer_epoch
        and b.base_sequence = r.base_sequence
        -- A record count that no file can have must not overflow here.
        and b.last_sequence = case
            when r.record_count between 1 and 2147483647
                then mod(r.base_sequence + r.record_count - 1, 2147483648)
        end
    )
group by r.position
