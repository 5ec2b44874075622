-- A fetch: the leader's batches at or after each follower's position, joined on topic and
-- partition, in order of offset and bounded by bytes, one batch at least. The bytes of all
-- partitions together are spent in turns: first batches before second ones, and those of partitions
-- first that were served longest ago (`last_served`: the number of the fetch that last gave
-- something, 0 for none), so that no partition starves. Nothing is given where
-- the batch before the position does not bear the follower's last epoch (the logs have diverged),
-- nor where the leader's log begins after it (a log has no gap), and no batch of an epoch above the
-- one that the follower knows (rules 6.3, 6.4, 6.7, 9.5).
-- `straddles` marks a batch that begins before the position and has to be cut.
-- takes positions: topic_id string, partition int, fetch_offset bigint, last_fetched_epoch int?,
--   leader_epoch int, max_bytes bigint, max_total_bytes bigint, last_served bigint
-- takes batches: topic_id string, partition int, path string, base_offset bigint,
--   last_offset_delta int, leader_epoch int, size_bytes bigint
-- gives: topic_id string, partition int, path string, base_offset bigint, straddles boolean
with diverged as (
    select p.topic_id, p.partition
    from positions p
    join batches b on b.topic_id = p.topic_id and b.partition = p.partition
    where b.base_offset < p.fetch_offset
        and b.base_offset + b.last_offset_delta + 1 >= p.fetch_offset
        and b.leader_epoch <> coalesce(p.last_fetched_epoch, b.leader_epoch)
),
candidates as (
    select
        b.topic_id,
        b.partition,
        b.path,
        b.base_offset,
        b.base_offset < p.fetch_offset as straddles,
        min(b.base_offset) over (partition by b.topic_id, b.partition) <= p.fetch_offset
            as joins_on,
        p.max_bytes,
        p.max_total_bytes,
        p.last_served,
        b.size_bytes,
        row_number() over (partition by b.topic_id, b.partition order by b.base_offset) as position,
        sum(b.size_bytes) over (
            partition by b.topic_id, b.partition order by b.base_offset
            rows between unbounded preceding and current row
        ) as partition_bytes
    from positions p
    join batches b on b.topic_id = p.topic_id and b.partition = p.partition
    left join diverged d on d.topic_id = p.topic_id and d.partition = p.partition
    where b.base_offset + b.last_offset_delta >= p.fetch_offset
        and b.leader_epoch <= p.leader_epoch
        and d.topic_id is null
),
bounded as (
    select
        *,
        sum(size_bytes) over (
            order by position, last_served, topic_id, partition
            rows between unbounded preceding and current row
        ) as total_bytes,
        row_number() over (order by position, last_served, topic_id, partition) as total_position
    from candidates
    where joins_on and (position = 1 or partition_bytes <= max_bytes)
)
select topic_id, partition, path, base_offset, straddles
from bounded
where total_position = 1 or total_bytes <= max_total_bytes
order by topic_id, partition, base_offset
