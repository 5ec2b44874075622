"""Operations of one user of the operating system: `python -m tests.access.user_operations`.

Its arguments are a umask, the cluster root and the names of operations. For each it prints a line
of JSON: the operation, and the class and message of its error, or null for both.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from sparklog import Admin, Consumer, Producer, TopicPartition
from sparklog.clock import wait_until
from sparklog.cluster.connection import Connection
from sparklog.cluster.roots import ClusterRoot
from sparklog.maintenance.audit import audit
from sparklog.storage.delta_checkpoints import await_checkpoints
from sparklog.storage.location import Location

TOPIC, PARTITIONS = "t", 2


def create_cluster(cluster: str) -> None:
    ClusterRoot.create(Location.of(cluster))


def create_topic(cluster: str) -> None:
    Admin(cluster).create_topic(TOPIC, PARTITIONS, PARTITIONS)


def alter_topic(cluster: str) -> None:
    # Another value than that of other users: an equal one needs no commit.
    Admin(cluster).alter_configs(TOPIC, {"retention.ms": str(10**9 + os.getpid())})


def _produce(cluster: str, *, is_idempotent: bool) -> None:
    with Producer(
        cluster,
        enable_idempotence=is_idempotent,
        request_timeout_ms=30_000,
        delivery_timeout_ms=40_000,
    ) as producer:
        sent = [producer.send(TOPIC, b"a record", partition=one) for one in range(PARTITIONS)]
        for one in sent:
            one.result(60)


def produce(cluster: str) -> None:
    for _ in range(3):
        _produce(cluster, is_idempotent=True)


def produce_plainly(cluster: str) -> None:
    _produce(cluster, is_idempotent=False)


def _consume(consumer: Consumer) -> None:
    seen: set[TopicPartition] = set()

    def has_all() -> bool:
        seen.update(consumer.poll(500))
        return len(seen) == PARTITIONS

    is_read, _ = wait_until(lambda: (has_all(), None), 20_000, pause_ms=1, until=any)
    assert is_read, "no records"


def consume(cluster: str) -> None:
    with Consumer(cluster, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(TOPIC, one) for one in range(PARTITIONS)])
        _consume(consumer)


def join(cluster: str) -> None:
    with Consumer(cluster, auto_offset_reset="earliest", group_id="g") as consumer:
        consumer.subscribe([TOPIC])
        _consume(consumer)
        consumer.commit()


def check(cluster: str) -> None:
    found = list(map(str, audit(Connection(cluster))))
    assert found == [], found


def read_a_record_file(cluster: str) -> None:
    """Read a batch file without sparklog."""
    for inbox in Path(cluster).parent.glob("broker-*/log/_inbox"):
        for file in inbox.iterdir():
            file.read_bytes()


OPERATIONS: dict[str, Callable[[str], None]] = {
    one.__name__: one
    for one in (
        create_cluster,
        create_topic,
        alter_topic,
        produce,
        produce_plainly,
        consume,
        join,
        check,
        read_a_record_file,
    )
}


def main(umask: str, cluster: str, *names: str) -> None:
    """Run operations, and print their outcomes."""
    os.umask(int(umask, 8))
    for name in names:
        error: Exception | None = None
        try:
            OPERATIONS[name](cluster)
            await_checkpoints()
        except Exception as failure:  # noqa: BLE001 - it is the outcome
            error = failure
        outcome = (None, None) if error is None else (type(error).__name__, str(error))
        print(json.dumps([name, *outcome]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
