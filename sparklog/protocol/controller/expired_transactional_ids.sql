-- Expired transactional ids: no producer has begun under them, or renewed them, for
-- transactional.id.expiration.ms. The next producer under such an id gets another producer id (rule
-- 3.8).
-- takes producers: transactional_id string, used_at_ms bigint, now_ms bigint,
--   transactional_id_expiration_ms bigint
-- gives: transactional_id string
select transactional_id
from producers
where now_ms - used_at_ms >= transactional_id_expiration_ms
