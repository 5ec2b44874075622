-- Which brokers are to be fenced: alive (or stopping) by their row, but their heartbeat has not
-- changed for longer than broker.session.timeout.ms on the observer's own clock (rules 7.1, 7.2).
-- takes brokers: broker_id int, state string, last_changed_ms bigint, now_ms bigint,
--   session_timeout_ms bigint
-- gives: broker_id int
select broker_id
from brokers
where state in ('alive', 'stopping') and now_ms - last_changed_ms > session_timeout_ms
