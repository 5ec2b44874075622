"""Requests and durations of `sparklog status` and of queries about the past on an object store.

    python -m benchmarks.status_requests [COMMITS ...]

Prints the table of docs/status.md: three brokers with 6 partitions on the S3 API server with 30 ms
a request, and journals of the numbers of commits that are given. The brokers run, so that the
checkpoints of their journals are behind.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
import yaml

from benchmarks.s3_store import CLIENT, Store, running_store
from sparklog import Admin, Producer
from sparklog.broker.application import Application
from sparklog.cli.cluster import Cluster
from sparklog.cli.sql import query
from sparklog.cli.status_history import past_status
from sparklog.cluster.connection import Connection
from sparklog.config import ClusterConfig, parse
from sparklog.maintenance.cluster_past import ClusterPast
from sparklog.maintenance.status_reader import StatusReader
from sparklog.storage.journal_tail import JournalTail
from sparklog.storage.location import Location

LATENCY_MS = 30
PARTITIONS = 6
HOURS = 6
VIEWS = ("elections", "isr_history", "truncations", "high_watermark_history")

_BROKERS = (0, 1, 2)
_ROOT = "s3://status/cluster"


def _configuration(store: Store, sender: str) -> dict[str, object]:
    brokers = [{"broker.id": one, "log.dirs": [f"s3://status/broker-{one}"]} for one in _BROKERS]
    return {"cluster.root": _ROOT, "brokers": brokers, "storage.options": store.options(sender)}


def _newest_version(store: Store) -> int:
    root = Location.of("s3://status/broker-0", store.options("preparation"))
    return JournalTail(root).newest.commit.version


def _produce(application: Application, producer: Producer, number: int) -> None:
    sent = producer.send("t", b"a record", partition=number % PARTITIONS)
    while not sent.done():
        application.round()


def _counted(store: Store, what: str, action: Callable[[], object]) -> str:
    """Return a line of the table: the requests of the client in an action, and its duration."""
    with store.logged() as log:
        began = time.perf_counter()
        action()
        seconds = time.perf_counter() - began
    requests = sum(one.sender == CLIENT for one in log)
    return f"| {what} | {requests} | {seconds:.2g} s |"


def _readings(store: Store, config: Path) -> list[str]:
    """Return the lines of the table for a cluster as it is."""

    def connect() -> StatusReader:
        return StatusReader(Connection(_ROOT, storage_options=store.options()))

    readers: list[StatusReader] = []
    pasts: list[ClusterPast] = []

    def first() -> None:
        readers.append(connect())
        readers[0].read()

    def first_page() -> None:
        readers.append(connect())
        pasts.append(ClusterPast(readers[1], HOURS))
        next_page()

    def next_page() -> None:
        past_status(pasts[0].read(readers[1].read().read_at_ms))

    lines = [
        _counted(store, "first", first),
        _counted(store, "each further one, nothing new", readers[0].read),
        _counted(store, "first page (`--html`)", first_page),
        _counted(store, "each further page, nothing new", next_page),
    ]
    cluster = Cluster.of(str(config))
    for view in VIEWS:
        statement = f"select * from {view}"
        name = f'`sparklog query "{statement}"`'
        lines.append(_counted(store, name, lambda text=statement: query(text, cluster)))  # type: ignore[misc]
    return lines


def main(
    commits: Annotated[list[int] | None, typer.Argument(help="Commits of each journal.")] = None,
) -> None:
    """Print the requests and durations of status readings as Markdown tables."""
    with tempfile.TemporaryDirectory() as folder, running_store(Path(folder, "log")) as store:
        store.bucket("status")
        config = Path(folder, "cluster.yaml")
        config.write_text(yaml.safe_dump(_configuration(store, CLIENT)), encoding="utf-8")
        application = Application(parse(ClusterConfig, _configuration(store, "brokers"), "this"))
        application.start()
        connection = Connection(_ROOT, storage_options=store.options("preparation"))
        Admin(connection).create_topic("t", PARTITIONS, len(_BROKERS))
        with Producer(connection) as producer:
            number = 0
            for wanted in sorted(commits or [100, 400]):
                while _newest_version(store) < wanted:
                    for _ in range(10):
                        _produce(application, producer, number)
                        number += 1
                store.set_latency(LATENCY_MS)
                print(f"\n{_newest_version(store)} commits a journal:\n")
                print("| reading | requests | time |\n|---|---|---|")
                for line in _readings(store, config):
                    print(line, flush=True)
                store.set_latency(0)
        application.stop()
        application.run_until_idle()


if __name__ == "__main__":
    typer.run(main)
