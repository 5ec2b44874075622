-- The leader's high watermark: the least log end offset of the in-sync replicas, old and proposed,
-- and of those that are about to join (rules 2.1, 2.3, 2.4). The latter are alive, have reported in
-- this leader epoch, were caught up within replica.lag.time.max.ms, and are no further behind than
-- replica.lag.max.messages, if that is set. It does not move while one in-sync replica has not
-- reported in this leader epoch (its log end offset is null), nor while fewer than
-- min.insync.replicas are in sync. It never moves back.
-- takes replicas:
--   topic_id string,
--   partition int,
--   high_watermark bigint,
--   min_isr int,
--   in_isr boolean,
--   in_proposed_isr boolean,
--   is_alive boolean,
--   log_end_offset bigint?,
--   leader_log_end_offset bigint,
--   last_caught_up_ms bigint?,
--   now_ms bigint,
--   lag_time_max_ms bigint,
--   lag_max_messages bigint?
-- gives: topic_id string, partition int, high_watermark bigint
with minded as (
    select
        *,
        in_isr or in_proposed_isr as in_maximal_isr,
        is_alive
            and log_end_offset is not null
            and (
                log_end_offset = leader_log_end_offset
                or coalesce(now_ms - last_caught_up_ms <= lag_time_max_ms, false)
            )
            and coalesce(leader_log_end_offset - log_end_offset <= lag_max_messages, true)
            as is_joining
    from replicas
)
select
    topic_id,
    partition,
    case
        when count(case when in_isr then 1 end) < least(max(min_isr), count(*))
            then max(high_watermark)
        when count(case when in_maximal_isr and log_end_offset is null then 1 end) > 0
            then max(high_watermark)
        else greatest(
            max(high_watermark),
            min(case when in_maximal_isr or is_joining then log_end_offset end)
        )
    end as high_watermark
from minded
group by topic_id, partition
