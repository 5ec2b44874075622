"""Invariants of a cluster, and readers of its state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparklog.broker.broker import Broker
from sparklog.errors import ProtocolError
from sparklog.model import (
    BROKER_TABLES,
    HIGH_WATERMARK_CHECKPOINT,
    PRODUCE_REQUESTS,
    Record,
    TableSchema,
)
from sparklog.producer.produce_requests import PendingProduce
from sparklog.storage.commits import read_commits
from sparklog.storage.control_table import ControlTable
from sparklog.storage.delta_log_files import newest_version
from sparklog.storage.journal import CHECKPOINTS, Journal, ProduceAnswer, answers_in
from sparklog.storage.location import Location
from sparklog.storage.request_files import read_requests
from sparklog.testing import LocalCluster


def values(records: Sequence[Record]) -> list[str]:
    """Return the values of records as text."""
    return [(record.value or b"").decode() for record in records]


def log(cluster: LocalCluster, broker: int, topic: str = "t", partition: int = 0) -> list[str]:
    """Return the values in a replica's log, whose offsets have neither gaps nor overlaps (9.5)."""
    records = cluster.log(broker, topic, partition)
    assert [record.offset for record in records] == list(range(len(records)))
    return values(records)


def error(pending: PendingProduce) -> str | None:
    """Return the error code in a request's response, or `None` while it is unanswered."""
    return pending.response.error if pending.response else None


def high_watermark(cluster: LocalCluster, broker: int) -> int:
    """Return a replica's high watermark."""
    return int(cluster.replica(broker, "t", 0).high_watermark)


def table(cluster: LocalCluster, broker: int | None, schema: TableSchema) -> ControlTable:
    """Return a table of a broker's root, or of the cluster root."""
    root = "cluster" if broker is None else f"broker-{broker}"
    return ControlTable(Location.of(str(cluster.root / root)), schema)


def rows(cluster: LocalCluster, broker: int | None, schema: TableSchema) -> list[dict[str, Any]]:
    """Return the rows of a table: from the journal of a broker's root, or from the cluster root."""
    if broker is not None and schema in CHECKPOINTS:
        opened = journal(cluster, broker)
        tables = opened.row_table, opened.epoch_table, opened.operation_table
        found = tables[CHECKPOINTS.index(schema)]()
    elif schema is PRODUCE_REQUESTS:
        found = read_requests(Location.of(str(cluster.root / f"broker-{broker}")))
    else:
        found = table(cluster, broker, schema).rows()
    of_table: list[dict[str, Any]] = found.to_pylist()
    return of_table


def journal(cluster: LocalCluster, broker: int) -> Journal:
    """Return the journal of a broker's root, as another process opens it."""
    return Journal(Location.of(str(cluster.root / f"broker-{broker}")), with_operations=True)


def answers(cluster: LocalCluster, broker: int) -> list[ProduceAnswer]:
    """Return all answers to requests in a broker's journal."""
    log = Location.of(str(cluster.root / f"broker-{broker}")).child("log")
    commits = read_commits(log, 0, newest_version(log))
    return [answer for commit in commits for answer in answers_in(commit)]


def report(cluster: LocalCluster, broker: int) -> dict[str, Any]:
    """Return a replica's row, as the other brokers read it."""
    [row] = rows(cluster, broker, HIGH_WATERMARK_CHECKPOINT)
    return row


def versions(cluster: LocalCluster, broker: int) -> dict[str, int]:
    """Return the versions of all tables of a broker's root; they show whether anything was
    written.
    """
    root = Path(cluster.root) / f"broker-{broker}"
    return {
        schema.name: len(list((root / schema.name / "_delta_log").glob("*.json")))
        for schema in BROKER_TABLES
    }


def take_out(cluster: LocalCluster, broker: int) -> Broker:
    """Remove a broker from the cluster without ending its process, and return it."""
    process = cluster.brokers[broker]
    cluster.crash(broker)
    return process


def error_of_consume(cluster: LocalCluster) -> str:
    """Return the error that a consumer gets."""
    try:
        cluster.consume("t", 0)
    except ProtocolError as error:
        return error.code.name
    return "NONE"


def check_at_rest(cluster: LocalCluster, *expected: str, topic: str = "t") -> None:
    """Check that all replicas hold `expected`, each record once and all committed (9.2, 9.5, 9.6,
    9.7).
    """
    cluster.tick_until_idle()
    state = cluster.partition(topic, 0)
    assert state.isr == sorted(state.replicas)
    histories = [cluster.leader_epochs(broker, topic, 0) for broker in state.replicas]
    for broker, history in zip(state.replicas, histories, strict=True):
        assert log(cluster, broker, topic) == list(expected), f"replica {broker}"
        replica = cluster.replica(broker, topic, 0)
        assert (replica.high_watermark, replica.log_end_offset) == (len(expected), len(expected))
        assert replica.leader_epoch == state.leader_epoch
        columns = list(zip(*history, strict=True))
        for column in columns:
            assert list(column) == sorted(set(column)), f"history of replica {broker}"
    records = [cluster.log(broker, topic, 0) for broker in state.replicas]
    assert all(one == records[0] for one in records)
    assert values(cluster.consume(topic, 0)) == list(expected)
