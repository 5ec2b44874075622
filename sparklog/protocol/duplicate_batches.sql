-- Which requested batches are in the log already, and where: the batch id in a file's name stays the
-- same in every retry and every copy (rules 3.6, 3.7).
-- takes requests: position int, topic_id string, partition int, batch_id string
-- takes batches: topic_id string, partition int, batch_id string, base_offset bigint,
--   last_offset bigint
-- gives: position int, base_offset bigint, last_offset bigint
select r.position, b.base_offset, b.last_offset
from requests r
join batches b
    on b.topic_id = r.topic_id and b.partition = r.partition and b.batch_id = r.batch_id
