-- The offset up to which a follower's log agrees with its leader's: at the largest epoch that both
-- know, the first end of that epoch in the two logs (rule 6.3). The follower's high watermark plays
-- no part. It waits while the leader's history lacks an entry for the leader epoch. If there is no
-- common epoch then, it drops all of its epochs.
-- It also waits if it has records of the leader epoch itself beyond the leader's log end. They came
-- from this leader, whose log does not end earlier within an epoch. So the leader has lost them, in
-- a power loss or with a restored root, and is replaced before anything is cut (rule 10.4).
-- `truncate_to` is null if nothing is to be cut. It may be the log end offset: then an epoch in
-- which the follower led but wrote nothing is dropped from its history, and no record is.
-- `restart_at` is given if the leader's log begins after the remaining log: the follower drops
-- everything and begins there, too (rule 6.7). It is also given if there is no common epoch and the
-- follower's log begins after the leader's: the records that the follower has deleted may not have
-- been the leader's.
-- takes followed: topic_id string, partition int, leader_epoch int, log_start_offset bigint,
--   log_end_offset bigint, leader_log_start_offset bigint, leader_log_end_offset bigint
-- takes own_entries: topic_id string, partition int, epoch int, start_offset bigint
-- takes leader_entries: topic_id string, partition int, epoch int, start_offset bigint
-- gives: topic_id string, partition int, truncate_to bigint?, restart_at bigint?, waits boolean
with common as (
    select o.topic_id, o.partition, max(o.epoch) as epoch
    from own_entries o
    join leader_entries l
        on l.topic_id = o.topic_id and l.partition = o.partition and l.epoch = o.epoch
    group by o.topic_id, o.partition
),
own_ends as (
    select c.topic_id, c.partition, min(o.start_offset) as end_offset
    from common c
    join own_entries o
        on o.topic_id = c.topic_id and o.partition = c.partition and o.epoch > c.epoch
    group by c.topic_id, c.partition
),
leader_ends as (
    select c.topic_id, c.partition, min(l.start_offset) as end_offset
    from common c
    join leader_entries l
        on l.topic_id = c.topic_id and l.partition = c.partition and l.epoch > c.epoch
    group by c.topic_id, c.partition
),
own_first as (
    select topic_id, partition, min(start_offset) as start_offset, max(epoch) as latest_epoch
    from own_entries
    group by topic_id, partition
),
announced as (
    select f.topic_id, f.partition
    from followed f
    join leader_entries l
        on l.topic_id = f.topic_id and l.partition = f.partition and l.epoch = f.leader_epoch
),
beyond as (
    select f.topic_id, f.partition
    from followed f
    join own_entries o
        on o.topic_id = f.topic_id and o.partition = f.partition and o.epoch = f.leader_epoch
    where f.log_end_offset > greatest(o.start_offset, f.leader_log_end_offset)
),
points as (
    select
        f.topic_id,
        f.partition,
        f.log_end_offset,
        f.leader_log_start_offset,
        c.epoch is null and f.log_start_offset > f.leader_log_start_offset as is_foreign,
        a.topic_id is null or b.topic_id is not null as waits,
        coalesce(o.latest_epoch > coalesce(c.epoch, -1), false) as has_foreign_epochs,
        case
            when o.start_offset is null then null
            when c.epoch is null then greatest(o.start_offset, f.log_start_offset)
            else least(
                coalesce(l.end_offset, f.leader_log_end_offset),
                coalesce(e.end_offset, f.log_end_offset)
            )
        end as agreed_offset
    from followed f
    left join common c on c.topic_id = f.topic_id and c.partition = f.partition
    left join own_ends e on e.topic_id = f.topic_id and e.partition = f.partition
    left join leader_ends l on l.topic_id = f.topic_id and l.partition = f.partition
    left join own_first o on o.topic_id = f.topic_id and o.partition = f.partition
    left join announced a on a.topic_id = f.topic_id and a.partition = f.partition
    left join beyond b on b.topic_id = f.topic_id and b.partition = f.partition
)
select
    topic_id,
    partition,
    case
        when not waits and (agreed_offset < log_end_offset or has_foreign_epochs)
            then agreed_offset
    end as truncate_to,
    case
        when not waits
            and (
                least(coalesce(agreed_offset, log_end_offset), log_end_offset)
                < leader_log_start_offset
                or is_foreign
            )
            then leader_log_start_offset
    end as restart_at,
    waits
from points
