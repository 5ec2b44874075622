-- Adjacent batches of a replica that can be merged: all below the high watermark, of one leader
-- epoch, committed at least `min_lag_ms` ago, and together at most `max_batch_bytes` (rule 8.4).
-- `is_settled` says that no request waits for a batch, and that it lacks none of its records. There
-- are three tiers: runs of batches that are smaller than 1/256, 1/16 or 1/4 of `max_batch_bytes`;
-- larger batches are not merged. In the upper two a run has at least four times the bytes of its
-- largest batch, so that no record is rewritten more than a few times. Of overlapping runs, that of
-- the upper tier is taken.
-- takes batches:
--   topic_id string,
--   partition int,
--   base_offset bigint,
--   last_offset_delta int,
--   leader_epoch int,
--   size_bytes bigint,
--   appended_at_ms bigint,
--   is_settled boolean,
--   high_watermark bigint,
--   now_ms bigint,
--   min_lag_ms bigint,
--   min_batches bigint,
--   max_batch_bytes bigint
-- gives: topic_id string, partition int, base_offset bigint, end_offset bigint, batch_count bigint
with tiers as (
    select 1 as tier, 256 as part
    union all
    select 2 as tier, 16 as part
    union all
    select 3 as tier, 4 as part
),
judged as (
    select
        b.*,
        t.tier,
        t.part,
        b.base_offset + b.last_offset_delta + 1 as end_offset,
        b.is_settled
            and b.size_bytes * t.part < b.max_batch_bytes
            and b.base_offset + b.last_offset_delta < b.high_watermark
            and b.now_ms - b.appended_at_ms >= b.min_lag_ms as is_mergeable
    from batches b
    cross join tiers t
),
preceded as (
    select
        *,
        lag(is_mergeable) over (
            partition by topic_id, partition, tier order by base_offset
        ) as after_mergeable,
        lag(end_offset) over (
            partition by topic_id, partition, tier order by base_offset
        ) as previous_end,
        lag(leader_epoch) over (
            partition by topic_id, partition, tier order by base_offset
        ) as previous_epoch
    from judged
),
stretched as (
    select
        *,
        count(
            case
                when after_mergeable
                    and previous_end = base_offset
                    and previous_epoch = leader_epoch
                    then null
                else 1
            end
        ) over (
            partition by topic_id, partition, tier order by base_offset
            rows between unbounded preceding and current row
        ) as stretch
    from preceded
),
measured as (
    select
        *,
        part * (
            sum(size_bytes) over (
                partition by topic_id, partition, tier, stretch order by base_offset
                rows between unbounded preceding and current row
            ) - size_bytes
        ) as bytes_before,
        max_batch_bytes * (part - 1) as bytes_at_most
    from stretched
    where is_mergeable
),
runs as (
    select
        topic_id,
        partition,
        tier,
        min(base_offset) as base_offset,
        max(end_offset) as end_offset,
        count(*) as batch_count
    from measured
    -- A new run begins if one more batch of its tier might exceed the limit.
    group by topic_id, partition, tier, stretch, bytes_before - mod(bytes_before, bytes_at_most)
    having count(*) >= max(min_batches) and (tier = 1 or sum(size_bytes) >= 4 * max(size_bytes))
)
select r.topic_id, r.partition, r.base_offset, r.end_offset, r.batch_count
from runs r
left join runs u
    on u.topic_id = r.topic_id and u.partition = r.partition and u.tier > r.tier
        and u.base_offset < r.end_offset and r.base_offset < u.end_offset
where u.tier is null
order by r.topic_id, r.partition, r.base_offset
