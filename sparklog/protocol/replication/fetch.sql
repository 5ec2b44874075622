-- Batches that a follower copies from a leader, from its position on (rules 6.3, 6.4, 6.7, 9.5). A
-- partition gets none if the batch before the position does not have the follower's last epoch (the
-- logs have diverged), or if the leader's log begins after the position (the copy would have a
-- gap). Batches of a leader epoch above the follower's are excluded. Limits in bytes: `max_bytes`
-- per partition, always allowing its first batch; `max_total_bytes` over all partitions, always
-- allowing one batch. The total is allotted to all first batches, then to all second ones, and
-- among these first to the lowest `last_served`: the number of the last fetch that returned a batch
-- of the partition, 0 if there was no such fetch. `straddles` marks a batch that begins before the
-- position and has to be cut.
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
