-- What a consumer may see of a partition: offsets below the high watermark of the leader's row,
-- where that row is of the current leader epoch and has reached the epoch's start; before that the
-- answer is OFFSET_NOT_AVAILABLE, so that "latest" never goes back (rules 2.6, 7.7; KIP-207). A new
-- topic's first leader has nothing to show yet, unless it is another process, or has other tables,
-- than the one that was elected: it may have lost what it showed.
-- takes partitions: topic_id string, partition int, leader int?, leader_epoch int,
--   is_as_elected boolean, reported_leader_epoch int?, high_watermark bigint?,
--   log_start_offset bigint?, epoch_start_offset bigint?
-- gives: topic_id string, partition int, log_start_offset bigint, high_watermark bigint,
--   error string?
select
    topic_id,
    partition,
    coalesce(log_start_offset, 0) as log_start_offset,
    coalesce(high_watermark, 0) as high_watermark,
    case
        when leader is null then 'LEADER_NOT_AVAILABLE'
        when reported_leader_epoch is null and leader_epoch = 0 and is_as_elected then null
        when reported_leader_epoch is null or reported_leader_epoch <> leader_epoch
            then 'OFFSET_NOT_AVAILABLE'
        when coalesce(high_watermark < epoch_start_offset, true) then 'OFFSET_NOT_AVAILABLE'
    end as error
from partitions
