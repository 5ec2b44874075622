"""All works, in the order of the report."""

from __future__ import annotations

from benchmarks.work import Work
from benchmarks.works import (
    catch_up,
    idle_tick,
    log_growth,
    partitions,
    plain_producer,
    produce,
    read,
    small_batches,
    storage_requests,
    store_record,
    stream,
)

WORKS: tuple[Work, ...] = (
    produce.WORK,
    read.WORK,
    small_batches.WORK,
    plain_producer.WORK,
    stream.WORK,
    idle_tick.WORK,
    partitions.WORK,
    catch_up.WORK,
    storage_requests.WORK,
    store_record.WORK,
    log_growth.WORK,
)
