-- Refused batches of idempotent producers: INVALID_PRODUCER_EPOCH under an older epoch than known,
-- OUT_OF_ORDER_SEQUENCE_NUMBER after a gap. A producer without known batches may begin at any
-- sequence, a new epoch of a known one begins at 0. Sequences wrap at 2^31. Of several batches of
-- one producer epoch in one tick each follows the one before, and is refused with it (rule 3.6,
-- KIP-98).
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
numbered as (
    select
        r.*,
        k.producer_epoch as known_epoch,
        k.last_sequence as known_sequence,
        -- A record count that no file can have must not overflow here; the file is refused for it.
        case
            when r.record_count between 1 and 2147483647
                then mod(r.base_sequence + r.record_count - 1, 2147483648)
        end as last_sequence,
        row_number() over (
            partition by r.topic_id, r.partition, r.producer_id, r.producer_epoch
            order by r.position
        ) as number,
        count(case when r.refusal is null then 1 end) over (
            partition by r.topic_id, r.partition, r.producer_id order by r.position
            rows between unbounded preceding and 1 preceding
        ) as others_before
    from requests r
    left join ranked k
        on k.topic_id = r.topic_id and k.partition = r.partition
            and k.producer_id = r.producer_id and k.age = 1
),
begun as (
    select
        *,
        -- A refused batch begins no epoch.
        case
            when refusal is null
                and number = 1
                and (
                    base_sequence = 0
                    or producer_epoch <= known_epoch
                    or (known_epoch is null and others_before = 0)
                )
                then producer_epoch
        end as epoch_begun
    from numbered
),
preceded as (
    select
        *,
        max(epoch_begun) over (
            partition by topic_id, partition, producer_id order by position
            rows between unbounded preceding and 1 preceding
        ) as epoch_before
    from begun
),
chained as (
    select
        *,
        greatest(epoch_before, known_epoch) as newest_epoch,
        case
            when number > 1 then lag(last_sequence) over (
                partition by topic_id, partition, producer_id, producer_epoch
                order by position
            )
            when producer_epoch = known_epoch then known_sequence
        end as previous_sequence
    from preceded
),
judged as (
    select
        *,
        case
            when refusal is not null then refusal
            when producer_epoch < newest_epoch then 'INVALID_PRODUCER_EPOCH'
            when number = 1 and producer_epoch > newest_epoch and base_sequence <> 0
                then 'OUT_OF_ORDER_SEQUENCE_NUMBER'
            when base_sequence <> mod(previous_sequence + 1, 2147483648)
                then 'OUT_OF_ORDER_SEQUENCE_NUMBER'
        end as own_error
    from chained
),
fallen as (
    select
        position,
        own_error,
        count(own_error) over (
            partition by topic_id, partition, producer_id, producer_epoch order by position
            rows between unbounded preceding and 1 preceding
        ) as earlier_errors
    from judged
)
select position, coalesce(own_error, 'OUT_OF_ORDER_SEQUENCE_NUMBER') as error
from fallen
where own_error is not null or earlier_errors > 0
