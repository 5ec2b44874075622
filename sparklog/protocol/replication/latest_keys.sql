-- The last offset of each key in the dirty part of a log (rule 8.3). `key_digest` stands for a key:
-- equal keys have equal digests. Records without a key have none.
-- takes records: key_digest string?, record_offset bigint
-- gives: key_digest string, last_offset bigint
select key_digest, max(record_offset) as last_offset
from records
where key_digest is not null
group by key_digest
order by key_digest
