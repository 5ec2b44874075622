-- The brokers to fence (rules 7.1, 7.2): brokers that are alive or stopping by their row, and whose
-- heartbeat has not changed for longer than broker.session.timeout.ms on the observer's own clock;
-- and brokers parked for longer than parked.session.timeout.ms. The parked time is the observer's
-- wall clock minus the broker's at parking, or, if the row lacks the latter, the row's age on the
-- observer's own clock.
-- takes brokers: broker_id int, state string, last_changed_ms bigint, now_ms bigint,
--   session_timeout_ms bigint, parked_at_ms bigint?, wall_clock_ms bigint,
--   parked_session_timeout_ms bigint
-- gives: broker_id int
select broker_id
from brokers
where (state in ('alive', 'stopping') and now_ms - last_changed_ms > session_timeout_ms)
    or (
        state = 'parked'
        and coalesce(wall_clock_ms - parked_at_ms, now_ms - last_changed_ms)
            > parked_session_timeout_ms
    )
