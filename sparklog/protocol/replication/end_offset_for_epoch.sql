-- Answers to OffsetsForLeaderEpoch on a replica's log (rule 6.2): latest epoch: (asked, log end
-- offset); an earlier epoch of the history: (asked, start of the next one); between two known
-- epochs: (the largest smaller one, start of the next one); before all: (asked, first start); after
-- all, negative, or without a history: (-1, -1).
-- takes asked: topic_id string, partition int, asked_epoch int, log_end_offset bigint
-- takes entries: topic_id string, partition int, epoch int, start_offset bigint
-- gives: topic_id string, partition int, asked_epoch int, epoch int, end_offset bigint
with found as (
    select
        a.topic_id,
        a.partition,
        a.asked_epoch,
        a.log_end_offset,
        max(e.epoch) as latest_epoch,
        max(case when e.epoch <= a.asked_epoch then e.epoch end) as floor_epoch,
        min(case when e.epoch > a.asked_epoch then e.start_offset end) as next_start_offset
    from asked a
    left join entries e on e.topic_id = a.topic_id and e.partition = a.partition
    group by a.topic_id, a.partition, a.asked_epoch, a.log_end_offset
)
select
    topic_id,
    partition,
    asked_epoch,
    case
        when latest_epoch is null or asked_epoch > latest_epoch or asked_epoch < 0 then -1
        when floor_epoch is null then asked_epoch
        else floor_epoch
    end as epoch,
    case
        when latest_epoch is null or asked_epoch > latest_epoch or asked_epoch < 0 then -1
        when asked_epoch = latest_epoch then log_end_offset
        else next_start_offset
    end as end_offset
from found
