-- The leader of each partition (rules 7.2, 7.5). A valid leader stays: it is alive, and it is the
-- process that was elected. If its broker is stopping, it stays only until another replica can take
-- over. Otherwise the first assigned replica in sync and alive is elected, preferably one whose
-- broker is not stopping. A parked broker counts as stopping where it does not lead. Next come
-- eligible replicas, and in an unclean election any that are alive. If there is no candidate, there
-- is no leader, and the in-sync set is kept. Losing the leader, to another process or to none,
-- raises the leader epoch, and so does the first election in a partition of a new topic, which has
-- no leader and leader epoch -1.
-- `allows` is the kind of election that the partition allows: 'clean' or 'unclean'.
-- takes replicas:
--   topic_id string,
--   partition int,
--   broker_id int,
--   replica_index int,
--   in_isr boolean,
--   in_elr boolean,
--   is_alive boolean,
--   is_stopping boolean,
--   leader int?,
--   leader_is_valid boolean,
--   leader_epoch int,
--   allows string
-- gives: topic_id string, partition int, broker_id int, in_isr boolean, leader int?,
--   leader_epoch int, is_changed boolean, is_unclean boolean
with ranked as (
    select
        *,
        case
            when in_isr and is_alive and not is_stopping then replica_index
            when in_isr and is_alive then 1000 + replica_index
            when in_elr and is_alive then 2000 + replica_index
            when is_alive and allows = 'unclean' then 3000 + replica_index
        end as rank
    from replicas
),
best as (
    select
        topic_id,
        partition,
        min(rank) as rank,
        count(case when is_stopping and broker_id = leader then 1 end) > 0 as leader_is_stopping
    from ranked
    group by topic_id, partition
),
elected as (
    select b.topic_id, b.partition, r.broker_id, b.rank, b.leader_is_stopping
    from best b
    left join ranked r
        on r.topic_id = b.topic_id and r.partition = b.partition and r.rank = b.rank
),
decided as (
    select
        r.topic_id,
        r.partition,
        r.broker_id,
        r.in_isr,
        r.leader,
        r.leader_epoch,
        e.broker_id as elected,
        e.rank,
        case
            when r.leader_is_valid then coalesce(e.leader_is_stopping and e.rank < 1000, false)
            else r.leader is not null or e.broker_id is not null
        end as is_changed
    from ranked r
    join elected e on e.topic_id = r.topic_id and e.partition = r.partition
)
select
    topic_id,
    partition,
    broker_id,
    case when is_changed and rank >= 2000 then broker_id = elected else in_isr end as in_isr,
    case when is_changed then elected else leader end as leader,
    case when is_changed then leader_epoch + 1 else leader_epoch end as leader_epoch,
    is_changed,
    coalesce(is_changed and rank >= 3000, false) as is_unclean
from decided
