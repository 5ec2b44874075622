-- Which batches of idempotent producers are refused: under an older epoch than known with
-- INVALID_PRODUCER_EPOCH, with a gap before it with OUT_OF_ORDER_SEQUENCE_NUMBER. A producer of which
-- nothing is known may begin anywhere, a new epoch of a known one begins at 0. Sequences wrap at
-- 2^31. Of several batches of one producer in one tick each follows the one before, and falls with it
-- (rule 3.6, KIP-98).
-- `refusal` is why a batch is refused for another reason; duplicates are not among the requests.
-- takes requests: position int, topic_id string, partition int, producer_id bigint,
--   producer_epoch int, base_sequence int, record_count bigint, refusal string?
-- takes batches: topic_id string, partition int, producer_id bigint, producer_epoch int,
--   last_sequence bigint, base_offset bigint
-- gives: position int, error string
with ranked as (
    select
        *,
        row_number() over (
            partition by topic_id, partition, producer_id
            order by producer_epoch desc, base_offset desc
        ) as age
    from batches
),
chained as (
    select
        r.position,
        r.topic_id,
        r.partition,
        r.producer_id,
        r.producer_epoch,
        r.base_sequence,
        r.refusal,
        coalesce(lag(r.producer_epoch) over in_order, k.producer_epoch) as previous_epoch,
        coalesce(
            lag(mod(r.base_sequence + r.record_count - 1, 2147483648)) over in_order,
            k.last_sequence
        ) as previous_sequence
    from requests r
    left join ranked k
        on k.topic_id = r.topic_id and k.partition = r.partition
            and k.producer_id = r.producer_id and k.age = 1
    window in_order as (partition by r.topic_id, r.partition, r.producer_id order by r.position)
),
judged as (
    select
        *,
        case
            when refusal is not null then refusal
            when producer_epoch < previous_epoch then 'INVALID_PRODUCER_EPOCH'
            when producer_epoch > previous_epoch and base_sequence <> 0
                then 'OUT_OF_ORDER_SEQUENCE_NUMBER'
            when producer_epoch = previous_epoch
                and base_sequence <> mod(previous_sequence + 1, 2147483648)
                then 'OUT_OF_ORDER_SEQUENCE_NUMBER'
        end as own_error
    from chained
),
fallen as (
    select
        position,
        own_error,
        count(own_error) over (
            partition by topic_id, partition, producer_id order by position
            rows between unbounded preceding and 1 preceding
        ) as earlier_errors
    from judged
)
select position, coalesce(own_error, 'OUT_OF_ORDER_SEQUENCE_NUMBER') as error
from fallen
where own_error is not null or earlier_errors > 0
