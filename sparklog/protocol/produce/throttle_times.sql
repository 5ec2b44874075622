-- The time in ms for which a client id that has exceeded its quota is throttled, as Kafka computes
-- it: its bytes of the last `window_ms`, spread over the window and that time, are at its quota of
-- `byte_rate` bytes per second again. Rounded up; no row for a client id within its quota (rule
-- 3.9).
-- takes clients: client_id string, recent_bytes bigint, window_ms bigint, byte_rate bigint
-- gives: client_id string, throttle_time_ms bigint
select
    client_id,
    cast(
        round(cast(recent_bytes * 1000 - (recent_bytes * 1000) % byte_rate as double) / byte_rate)
        as bigint
    ) - window_ms + 1 as throttle_time_ms
from clients
where cast(recent_bytes as double) * 1000 > cast(byte_rate as double) * window_ms
