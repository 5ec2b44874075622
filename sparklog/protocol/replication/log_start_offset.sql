-- The new log start offsets of led partitions (rule 8.3). Whole batches below the high watermark
-- are deleted from the log start on: those whose largest timestamp is older than `retention_ms`,
-- and those without which the log still has `retention_bytes`. -1 is no limit. A batch whose
-- records have no timestamp counts with the time of its commit. `batches` are the first ones of
-- each log, at least up to the first that is kept; `log_size_bytes` is the size of all.
-- `delete_records_offset` is an administrator's request. It names a record by its offset and its
-- leader epoch, so it is void if an unclean election has replaced that record.
-- `last_deleted_epoch` is the leader epoch of the record before the offset in this log.
-- takes replicas:
--   topic_id string,
--   partition int,
--   log_start_offset bigint,
--   high_watermark bigint,
--   log_size_bytes bigint,
--   retention_ms bigint,
--   retention_bytes bigint,
--   delete_records_offset bigint?,
--   delete_records_epoch int?,
--   last_deleted_epoch int?,
--   now_ms bigint
-- takes batches: topic_id string, partition int, base_offset bigint, last_offset_delta int,
--   size_bytes bigint, max_timestamp_ms bigint, appended_at_ms bigint
-- gives: topic_id string, partition int, log_start_offset bigint
with judged as (
    select
        b.topic_id,
        b.partition,
        b.base_offset,
        b.base_offset + b.last_offset_delta + 1 as end_offset,
        b.base_offset + b.last_offset_delta < r.high_watermark as is_committed,
        r.retention_ms >= 0
            and r.now_ms - case
                when b.max_timestamp_ms >= 0 then b.max_timestamp_ms
                else b.appended_at_ms
            end > r.retention_ms as is_expired,
        r.retention_bytes >= 0
            and r.log_size_bytes - sum(b.size_bytes) over (
                partition by b.topic_id, b.partition order by b.base_offset
                rows between unbounded preceding and current row
            ) >= r.retention_bytes as is_in_excess
    from batches b
    join replicas r on r.topic_id = b.topic_id and r.partition = b.partition
),
kept as (
    select
        topic_id,
        partition,
        coalesce(
            min(case when not (is_expired and is_committed) then base_offset end), max(end_offset)
        ) as by_time,
        coalesce(
            min(case when not (is_in_excess and is_committed) then base_offset end), max(end_offset)
        ) as by_size
    from judged
    group by topic_id, partition
),
moved as (
    select
        r.topic_id,
        r.partition,
        r.log_start_offset as before,
        greatest(
            r.log_start_offset,
            coalesce(k.by_time, 0),
            coalesce(k.by_size, 0),
            case
                when r.delete_records_offset <= r.high_watermark
                    and r.delete_records_epoch = r.last_deleted_epoch
                    then r.delete_records_offset
                else 0
            end
        ) as log_start_offset
    from replicas r
    left join kept k on k.topic_id = r.topic_id and k.partition = r.partition
)
select topic_id, partition, log_start_offset
from moved
where log_start_offset > before
