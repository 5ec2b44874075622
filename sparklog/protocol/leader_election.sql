-- Who leads: the leader stays while it is valid (alive, and the process that was elected); else the
-- first assigned replica that is in sync and alive, then an eligible one, and with an unclean
-- election the first that is alive; else nobody, and the in-sync set is kept. Losing the leader, to
-- another or to none, raises the leader epoch (rules 7.2, 7.5).
-- `allows` is what the partition may do: 'clean' or 'unclean'.
-- takes replicas: topic_id string, partition int, broker_id int, replica_index int, in_isr boolean,
--   in_elr boolean, is_alive boolean, leader int?, leader_is_valid boolean, leader_epoch int,
--   allows string
-- gives: topic_id string, partition int, broker_id int, in_isr boolean, in_elr boolean,
--   leader int?, leader_epoch int, is_changed boolean
with ranked as (
    select
        *,
        case
            when in_isr and is_alive then replica_index
            when in_elr and is_alive then 1000 + replica_index
            when is_alive and allows = 'unclean' then 2000 + replica_index
        end as rank
    from replicas
),
best as (
    select topic_id, partition, min(rank) as rank
    from ranked
    group by topic_id, partition
),
elected as (
    select r.topic_id, r.partition, r.broker_id, r.rank
    from ranked r
    join best b on b.topic_id = r.topic_id and b.partition = r.partition and b.rank = r.rank
),
decided as (
    select
        r.topic_id,
        r.partition,
        r.broker_id,
        r.replica_index,
        r.in_isr,
        r.in_elr,
        r.leader,
        r.leader_epoch,
        r.leader_is_valid,
        e.broker_id as elected,
        e.rank as elected_rank,
        not r.leader_is_valid and (r.leader is not null or e.broker_id is not null) as is_changed
    from ranked r
    left join elected e on e.topic_id = r.topic_id and e.partition = r.partition
)
select
    topic_id,
    partition,
    broker_id,
    case
        when is_changed and elected_rank >= 1000 then broker_id = elected
        else in_isr
    end as in_isr,
    case when is_changed and elected_rank >= 1000 then false else in_elr end as in_elr,
    case when is_changed then elected else leader end as leader,
    case when is_changed then leader_epoch + 1 else leader_epoch end as leader_epoch,
    is_changed
from decided
