-- The eligible leader replicas of a partition whose in-sync set changes (rule 7.5, KIP-966). While
-- fewer than min.insync.replicas remain in sync nothing more is committed. So every replica that
-- was in sync or eligible then has all committed records, and is eligible. Eligible replicas are
-- cleared when min.insync.replicas is reached, and by an unclean election: from then on the log of
-- its leader is authoritative.
-- takes replicas: topic_id string, partition int, broker_id int, was_in_isr boolean,
--   in_isr boolean, in_elr boolean, is_unclean boolean, min_isr int
-- gives: topic_id string, partition int, broker_id int, in_elr boolean
with sizes as (
    select
        topic_id,
        partition,
        count(case when in_isr then 1 end) as isr_size,
        least(max(min_isr), count(*)) as needed
    from replicas
    group by topic_id, partition
)
select
    r.topic_id,
    r.partition,
    r.broker_id,
    not r.in_isr
        and (r.was_in_isr or r.in_elr)
        and not r.is_unclean
        and s.isr_size < s.needed as in_elr
from replicas r
join sizes s on s.topic_id = r.topic_id and s.partition = r.partition
