-- Records that stay when a log is cleaned (rule 8.3): the last one of each key, and those whose key
-- does not come again in the dirty part. Offsets do not change. `base_offset` is passed on: that of
-- the batch into which a record is written. `latest` is the result of the rule `latest_keys` for
-- the dirty part. A tombstone (a record without value) below `tombstones_below` goes as well: its
-- topic's delete.retention.ms have passed since it was cleaned first. So does a record without a
-- key.
-- takes records: base_offset bigint, record_offset bigint, key_digest string?,
--   is_tombstone boolean, tombstones_below bigint
-- takes latest: key_digest string, last_offset bigint
-- gives: base_offset bigint, record_offset bigint
select r.base_offset, r.record_offset
from records r
left join latest l on l.key_digest = r.key_digest
where r.key_digest is not null
    and r.record_offset >= coalesce(l.last_offset, r.record_offset)
    and not (r.is_tombstone and r.record_offset < r.tombstones_below)
order by r.record_offset
