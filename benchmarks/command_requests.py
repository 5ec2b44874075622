"""Requests and durations of commands about a whole cluster on an object store.

    python -m benchmarks.command_requests

Prints the table of docs/object-stores.md: three brokers with 6 partitions on the S3 API server with
30 ms a request. The brokers have stopped, so that nothing else sends requests.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.s3_store import CLIENT, Store, running_store
from sparklog.cluster.connection import Connection
from sparklog.config import Settings
from sparklog.maintenance.audit import audit
from sparklog.maintenance.backup import backup, restore
from sparklog.maintenance.repair import repair
from sparklog.maintenance.scrub import scrub
from sparklog.maintenance.table_checkpoints import checkpoint_tables
from sparklog.maintenance.vacuum import vacuum_cluster
from sparklog.storage.file_copies import await_copies
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster

LATENCY_MS = 30
PARTITIONS = 6
BATCHES = 60
"""The batches of each partition."""

_BUCKET, _BACKUP, _COPY = "commands", "backup", "copy"


def _build(store: Store) -> None:
    """Create a cluster with records, and stop its brokers."""
    options = store.options("preparation")
    cluster = LocalCluster(store.bucket(_BUCKET), (0, 1, 2), storage_options=options)
    cluster.create_topic("t", partitions=PARTITIONS, replication_factor=3)
    for number in range(BATCHES):
        for partition in range(PARTITIONS):
            cluster.produce("t", partition, [b"record %d" % number])
        cluster.tick_until_idle()
    for broker in cluster.brokers.values():
        broker.prepare_to_stop()
    cluster.tick_until_idle()
    for broker in cluster.brokers.values():
        broker.stop()
    await_copies()
    cluster.close()


def commands(store: Store) -> dict[str, Callable[[], object]]:
    """Return the commands by the names in the table; each begins with a connection."""
    options = store.options()
    root = f"s3://{_BUCKET}/cluster"
    target = Location.of(f"s3://{_BACKUP}/one", options)

    def connect() -> Connection:
        return Connection(root, storage_options=options)

    def maintain() -> None:
        connection = connect()
        checkpoint_tables(connection)
        vacuum_cluster(connection, Settings())

    return {
        "`sparklog audit`": lambda: audit(connect()),
        "`sparklog audit --verify-files`": lambda: audit(connect(), verify_files=True),
        "`sparklog scrub`": lambda: scrub(connect()),
        "`sparklog repair`, nothing to repair": lambda: repair(connect()),
        "`sparklog maintain`": maintain,
        "`sparklog backup`": lambda: backup(Location.of(root, options), target, options),
        "`sparklog backup` again": lambda: backup(Location.of(root, options), target, options),
        "`sparklog restore`": lambda: restore(
            target, options, Location.of(f"s3://{_COPY}/one", options)
        ),
    }


def measured(store: Store, action: Callable[[], object]) -> tuple[int, float]:
    """Return the requests of a command, and its duration in s."""
    with store.logged() as log:
        began = time.perf_counter()
        action()
        seconds = time.perf_counter() - began
    return sum(one.sender == CLIENT for one in log), seconds


def main(latency_ms: int = LATENCY_MS) -> None:
    """Print the requests and durations of the commands as a Markdown table."""
    with tempfile.TemporaryDirectory() as folder, running_store(Path(folder, "log")) as store:
        _build(store)
        store.bucket(_BACKUP)
        store.bucket(_COPY)
        store.set_latency(latency_ms)
        print("| command | requests | time |\n|---|---:|---:|")
        for name, action in commands(store).items():
            requests, seconds = measured(store, action)
            print(f"| {name} | {requests:,} | {seconds:.2g} s |", flush=True)


if __name__ == "__main__":
    main()
