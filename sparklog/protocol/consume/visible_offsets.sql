-- The offsets of a partition that consumers may read: those below the high watermark of the
-- leader's row, once that row is of the current leader epoch (rule 2.6). A fetch is served up to it
-- at once, even under min.insync.replicas and before a new leader has caught up (rule 10.2).
-- `error` is the reason why no offset may be read. The latest offset is known when the high
-- watermark has reached the start of the epoch, so that "latest" never goes back (rule 7.7;
-- KIP-207). `latest_error` is the reason why it is not known. The first leader of a new topic has
-- an empty log until its first report. If it is another process or has other tables than the one
-- that was elected, it may have lost records, and no offset may be read. The reported epoch is that
-- in which the leader's row says that it leads, -1 if it says that it follows.
-- takes partitions:
--   topic_id string,
--   partition int,
--   leader int?,
--   leader_epoch int,
--   is_as_elected boolean,
--   reported_leader_epoch int?,
--   high_watermark bigint?,
--   log_start_offset bigint?,
--   epoch_start_offset bigint?
-- gives: topic_id string, partition int, log_start_offset bigint, high_watermark bigint,
--   error string?, latest_error string?
with judged as (
    select
        *,
        reported_leader_epoch is null and leader_epoch = 0 and is_as_elected as is_new,
        case
            when leader is null then 'LEADER_NOT_AVAILABLE'
            when reported_leader_epoch is null and leader_epoch = 0 and is_as_elected then null
            when reported_leader_epoch is null or reported_leader_epoch <> leader_epoch
                then 'OFFSET_NOT_AVAILABLE'
        end as error
    from partitions
)
select
    topic_id,
    partition,
    coalesce(log_start_offset, 0) as log_start_offset,
    coalesce(high_watermark, 0) as high_watermark,
    error,
    case
        when error is not null then error
        when not is_new and coalesce(high_watermark < epoch_start_offset, true)
            then 'OFFSET_NOT_AVAILABLE'
    end as latest_error
from judged
