"""All works, in the order of the report."""

from __future__ import annotations

from benchmarks.work import Work
from benchmarks.works import (
    catch_up,
    cleaning,
    control_state,
    executors,
    idle_tick,
    log_growth,
    modes,
    partitions,
    plain_producer,
    produce,
    read,
    small_batches,
    storage_requests,
    store_clients,
    store_month,
    store_record,
    store_spark,
    store_start,
    stream,
)

WORKS: tuple[Work, ...] = (
    produce.WORK,
    read.WORK,
    small_batches.WORK,
    plain_producer.WORK,
    stream.WORK,
    idle_tick.WORK,
    modes.WORK,
    partitions.WORK,
    control_state.WORK,
    catch_up.WORK,
    executors.WORK,
    storage_requests.WORK,
    store_month.WORK,
    store_month.DEFAULT_TICKS,
    store_record.WORK,
    store_spark.WORK,
    store_start.WORK,
    store_clients.THROUGHPUT,
    store_clients.CONTENTION,
    log_growth.WORK,
    cleaning.WORK,
)
