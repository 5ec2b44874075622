-- Replicas of compacted topics that are to be cleaned, the dirtiest first (rule 8.3). The clean
-- part of a log was cleaned before, the dirty part comes after it; bytes that may not be cleaned
-- yet do not count. A log is cleaned if the dirty part has more than `min_dirty_millionths` of the
-- bytes of both, or if its oldest batch was appended more than `max_lag_ms` ago.
-- takes logs: topic_id string, partition int, clean_bytes bigint, dirty_bytes bigint,
--   dirty_since_ms bigint, now_ms bigint, min_dirty_millionths bigint, max_lag_ms bigint
-- gives: topic_id string, partition int
select topic_id, partition
from logs
where dirty_bytes > 0
    and (
        cast(dirty_bytes as double) * 1000000
            > cast(min_dirty_millionths as double) * (clean_bytes + dirty_bytes)
        or now_ms - dirty_since_ms > max_lag_ms
    )
order by
    cast(dirty_bytes as double) / (clean_bytes + dirty_bytes) desc, topic_id, partition
