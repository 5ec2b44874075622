-- The positions of readers below which the leader's log has other records than were read (rule 8.2,
-- KIP-320). `leader_epoch` is that of the last record read, -1 where it is unknown: then nothing is
-- compared. `epoch_start_offset` is the first offset of this epoch in the log that was read, where
-- the reader knows it; `found_epoch` and `end_offset` are the leader's answer for `leader_epoch`
-- (rule 6.2). A log that never had the epoch has no record of it, even where the epoch that the
-- leader names instead ends at the position or later: Kafka compares the end alone there.
-- `divergent_offset` is the first offset that is known to diverge, null where none is known. After
-- several unclean elections records below it may be others, too: a position names one epoch alone.
-- `replaced_offset` is the offset from which on the records that were read count as replaced: the
-- divergent offset; where none is known, 0 if the leader's history is empty or ends before the
-- position's epoch, else the position itself.
-- takes positions: topic_id string, partition int, fetch_offset bigint, leader_epoch int,
--   epoch_start_offset bigint?, found_epoch int, end_offset bigint
-- gives: topic_id string, partition int, epoch int, divergent_offset bigint?,
--   replaced_offset bigint
with diverged as (
    select
        topic_id,
        partition,
        found_epoch,
        fetch_offset,
        case
            when found_epoch < 0 then 0
            when found_epoch = leader_epoch then end_offset
            else least(end_offset, coalesce(epoch_start_offset, fetch_offset), fetch_offset)
        end as replaced_offset
    from positions
    where leader_epoch >= 0 and (found_epoch <> leader_epoch or end_offset < fetch_offset)
)
select
    topic_id,
    partition,
    found_epoch as epoch,
    case when found_epoch >= 0 and replaced_offset < fetch_offset then replaced_offset end
        as divergent_offset,
    replaced_offset
from diverged
