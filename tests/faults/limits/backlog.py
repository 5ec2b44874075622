"""A follower that was away for days: what it lacks, how fast it catches up, and its memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.requests import BulkProducer
from sparklog.clock import SystemClock
from sparklog.cluster.admin import Admin
from tests.faults.limits.load import memory_bytes
from tests.jobs.processes import Cluster, wait_for

Row = dict[str, Any]

BACKLOGS = ((2_000, 1_000), (8_000, 1_000), (64, 16_000_000))
"""Batches, and the bytes of each."""

_PARTITIONS = 4
_IN_A_REQUEST_BYTES, _IN_A_REQUEST = 64_000_000, 1_000
_PATIENCE_SECONDS = 500.0


def run(folder: Path) -> Iterator[Row]:
    """Yield the outcome for each backlog; other partitions are written to meanwhile."""
    for batches, size_bytes in BACKLOGS:
        cluster = Cluster(folder / f"{batches}-{size_bytes}")
        try:
            yield _caught_up(cluster, batches, size_bytes)
        finally:
            cluster.close()


def _caught_up(cluster: Cluster, batches: int, size_bytes: int) -> Row:
    brokers = {one: cluster.run(broker_id=one) for one in (0, 1)}
    connection = cluster.connect()
    wait_for(
        lambda: sum(one.is_alive for one in connection.metadata().brokers.values()) == 2, "brokers"
    )
    assignment = {one: [0, 1] for one in range(_PARTITIONS + 1)}
    Admin(connection).create_topic("t", assignment=assignment)

    def isr(partition: int) -> list[int]:
        return connection.metadata().partition("t", partition).isr

    wait_for(lambda: connection.metadata().partition("t", _PARTITIONS).leader == 0, "leader")
    brokers[1].kill()
    wait_for(lambda: isr(_PARTITIONS) == [0], "smaller ISR")
    producer = BulkProducer(connection, SystemClock())
    values = [os.urandom(size_bytes)]
    in_one = max(min(_IN_A_REQUEST, _IN_A_REQUEST_BYTES // size_bytes), 1)
    for first in range(0, batches, in_one):
        numbers = [one % _PARTITIONS for one in range(first, min(first + in_one, batches))]
        pending = producer.send("t", numbers, values)
        wait_for(lambda sent=pending: sent.is_done, "answer", patience=_PATIENCE_SECONDS)  # type: ignore[misc]
    began = time.monotonic()
    follower = cluster.run(broker_id=1)
    wait_for(lambda: isr(_PARTITIONS) == [0, 1], "follower of an idle partition", patience=120)
    latencies = []
    while any(isr(one) != [0, 1] for one in range(_PARTITIONS)):
        assert time.monotonic() - began < _PATIENCE_SECONDS
        sent_at = time.monotonic()
        pending = producer.send("t", [_PARTITIONS], [b"of now"])
        wait_for(lambda sent=pending: sent.is_done, "answer", patience=_PATIENCE_SECONDS)  # type: ignore[misc]
        latencies.append(time.monotonic() - sent_at)
    taken = time.monotonic() - began
    return {
        "limit": "backlog",
        "what": f"a follower lacks {batches} batches of {size_bytes} bytes in {_PARTITIONS} "
        "partitions",
        "seconds": round(taken, 1),
        "batches_per_s": round(batches / taken, 1),
        "mb_per_s": round(batches * size_bytes / taken / 1e6, 1),
        "longest_answer_of_another_partition_s": round(max(latencies, default=0.0), 2),
        "peak_of_the_follower_mib": memory_bytes(follower)["VmHWM"] >> 20,
        "peak_of_the_leader_mib": memory_bytes(brokers[0])["VmHWM"] >> 20,
    }
