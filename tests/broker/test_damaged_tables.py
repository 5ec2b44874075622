"""Damaged and missing control tables: the effect of each is limited and reported with a remedy.

Every control table of a broker root and of the cluster root is damaged in every way. Each user of
the table does its work, or reports which file is damaged and what to do.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from sparklog.cluster.connection import Connection
from sparklog.consumer.consumer import Consumer
from sparklog.errors import DamagedError
from sparklog.maintenance.audit import audit
from sparklog.model import (
    BROKER_TABLES,
    BROKERS,
    CLUSTER_TABLES,
    CONTROLLER,
    DELAYED_OPERATIONS,
    FORMAT,
    LOG,
    PARTITION_STATE,
    PRODUCE_REQUESTS,
    TOPICS,
    TableSchema,
    TopicPartition,
)
from sparklog.storage.control_table import ControlTable
from sparklog.storage.control_table_damage import REBUILT_FROM_LOG
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster
from tests.broker.states import check_at_rest, error, high_watermark, log
from tests.cli.command_line import run

Start = Callable[..., LocalCluster]


class Damage(NamedTuple):
    """A kind of damage to a table's folder."""

    name: str
    inflict: Callable[[Path, Path], object]
    """A function of the table's folder and its newest data file."""

    def __str__(self) -> str:
        return self.name


def flip(_: Path, file: Path) -> None:
    content = bytearray(file.read_bytes())
    # The last byte of the last column's page, before the footer.
    content[-9 - int.from_bytes(content[-8:-4], "little")] ^= 1
    file.write_bytes(content)


DAMAGES = (
    Damage("emptied", lambda _, file: file.write_bytes(b"")),
    Damage("cut", lambda _, file: file.write_bytes(file.read_bytes()[:-20])),
    Damage("changed", flip),
    Damage("file removed", lambda _, file: file.unlink()),
    Damage("table removed", lambda folder, _: shutil.rmtree(folder)),
    Damage(
        "commit emptied",
        lambda folder, _: max((folder / "_delta_log").glob("[0-9]*.json")).write_bytes(b""),
    ),
)
OF_BROKER = [schema for schema in (*BROKER_TABLES, FORMAT) if schema is not LOG]
OF_CLUSTER = [*CLUSTER_TABLES, FORMAT]
each_damage = pytest.mark.parametrize("damage", DAMAGES, ids=str)
OF_THE_LOG = [one for one in DAMAGES if one.name in ("table removed", "commit emptied")]
"""Damage to the log that names the data files, and not to the data files."""


def folder(cluster: LocalCluster, root: str, schema: TableSchema) -> Path:
    return Path(cluster.root) / root / schema.name


def inflict(cluster: LocalCluster, root: str, schema: TableSchema, damage: Damage) -> None:
    """Damage a table. A table without a data file gets a row, or an empty one, first."""
    if schema is PRODUCE_REQUESTS:
        # Its data files are those of the log.
        if damage in OF_THE_LOG:
            damage.inflict(folder(cluster, root, schema), folder(cluster, root, schema) / "none")
        return
    table = ControlTable(Location.of(str(Path(cluster.root) / root)), schema)
    if schema is DELAYED_OPERATIONS or not table._files:
        columns = {one.name: None for one in schema.columns}
        table.compare_and_set(schema.rows([columns]))
    [file] = table._files
    damage.inflict(folder(cluster, root, schema), folder(cluster, root, schema) / file)


def check_named(text: str, schema: TableSchema) -> None:
    """Check that a message names a path of the table, reports damage, and states a remedy in one
    line.
    """
    assert f"/{schema.name}" in text
    assert "is damaged: " in text
    assert any(
        word in text
        for word in ("restart the broker", "restore it", "delete the table", "sparklog repair")
    )
    assert "\n" not in text


@pytest.fixture
def three(start: Start) -> LocalCluster:
    """Broker 0 leads `t`, 1 and 2 follow; one record is committed on all of them."""
    cluster = start(0, 1, 2, min_isr=2)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    for broker in cluster.brokers.values():
        broker._replicas[0].checkpoints.write()
    return cluster


@each_damage
def test_a_dead_brokers_tables_stop_nobody_else(
    three: LocalCluster, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    """The others elect, append, commit and answer; an audit names each damaged table."""
    three.crash(0)
    for schema in OF_BROKER:
        inflict(three, "broker-0", schema, damage)
    three.fence(0)
    three.tick_until_idle()
    state = three.partition("t", 0)
    assert (state.leader, state.isr) == (1, [1, 2])
    pending = three.produce("t", 0, [b"b"])
    three.tick_until_idle()
    assert error(pending) == "NONE"
    assert (high_watermark(three, 1), high_watermark(three, 2)) == (2, 2)
    assert log(three, 2) == ["a", "b"]
    assert len([one for one in caplog.records if "not readable" in one.message]) <= 3
    found = [str(one) for one in audit(Connection(str(three.root / "cluster")))]
    for schema in OF_BROKER:
        # The data files of requests are arbitrary files, written by clients.
        if schema is PRODUCE_REQUESTS and damage not in OF_THE_LOG:
            continue
        [line] = [one for one in found if f"broker-0/{schema.name}" in one]
        check_named(line, schema)


@each_damage
def test_a_broker_starts_with_the_tables_about_its_replicas_damaged(
    three: LocalCluster, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker names each table, leaves the ISR, rebuilds the tables from its log, and joins
    again.
    """
    three.crash(2)
    for schema in REBUILT_FROM_LOG:
        inflict(three, "broker-2", schema, damage)
    three.restart(2)
    assert three.partition("t", 0).isr == [0, 1]
    told = [one.message for one in caplog.records if "starts again empty" in one.message]
    for schema, line in zip(REBUILT_FROM_LOG, told, strict=True):
        check_named(line, schema)
    three.produce("t", 0, [b"b"])
    three.tick_until_idle()
    check_at_rest(three, "a", "b")


@each_damage
def test_a_broker_starts_with_its_other_tables_damaged_and_keeps_its_place(
    three: LocalCluster, damage: Damage
) -> None:
    """Requests, answers and delayed operations contain no state of the replicas."""
    three.crash(2)
    for schema in OF_BROKER:
        if schema not in (*REBUILT_FROM_LOG, FORMAT):
            inflict(three, "broker-2", schema, damage)
    three.restart(2)
    assert three.partition("t", 0).isr == [0, 1, 2]
    three.produce("t", 0, [b"b"])
    three.tick_until_idle()
    check_at_rest(three, "a", "b")


@pytest.mark.parametrize("damage", [one for one in DAMAGES if one.name != "table removed"], ids=str)
def test_a_broker_whose_format_table_is_damaged_does_not_start_and_names_it(
    three: LocalCluster, damage: Damage
) -> None:
    """A broker whose `format` table is damaged refuses to start and names the table."""
    three.crash(2)
    inflict(three, "broker-2", FORMAT, damage)
    with pytest.raises(DamagedError) as refused:
        three.restart(2)
    check_named(str(refused.value), FORMAT)


@each_damage
def test_the_only_replica_stays_leader_with_what_its_log_has(start: Start, damage: Damage) -> None:
    """A broker that is the only replica rebuilds its tables from its log and stays the leader."""
    cluster = start(0)
    for value in (b"a", b"b"):
        cluster.produce("t", 0, [value])
        cluster.tick_until_idle()
    cluster.crash(0)
    for schema in REBUILT_FROM_LOG:
        inflict(cluster, "broker-0", schema, damage)
    cluster.restart(0)
    check_at_rest(cluster, "a", "b")
    assert audit(Connection(str(cluster.root / "cluster"))) == []


@each_damage
def test_a_broker_that_runs_goes_on_with_its_own_tables_damaged(
    three: LocalCluster, damage: Damage
) -> None:
    """The broker writes its state from memory again, at the next change or after ten seconds."""
    for schema in OF_BROKER:
        inflict(three, "broker-0", schema, damage)
    three.clock.advance(10_000)
    pending = three.produce("t", 0, [b"b"])
    three.tick_until_idle()
    assert error(pending) == "NONE"
    check_at_rest(three, "a", "b")


@each_damage
def test_the_checkpoints_of_brokers_that_run_are_mended_although_nothing_happens(
    three: LocalCluster, damage: Damage
) -> None:
    """Running brokers rewrite their damaged checkpoints within ten seconds, also if they are
    idle.
    """
    for broker in (0, 1):
        for schema in REBUILT_FROM_LOG[:2]:
            inflict(three, f"broker-{broker}", schema, damage)
    three.clock.advance(10_000)
    three.tick_until_idle()
    assert audit(Connection(str(three.root / "cluster"))) == []
    check_at_rest(three, "a")


INDISPENSABLE = (BROKERS, TOPICS, PARTITION_STATE)
"""The tables of the cluster root on which replication depends."""


@each_damage
def test_replication_goes_on_without_the_other_tables_of_the_cluster_root(
    three: LocalCluster, damage: Damage
) -> None:
    """Replication goes on while the other tables of the cluster root are damaged."""
    damaged = [one for one in OF_CLUSTER if one not in INDISPENSABLE]
    if damage.name == "table removed":
        # Without this table there is no cluster root: see test_cluster_root.py.
        damaged.remove(FORMAT)
    for schema in damaged:
        inflict(three, "cluster", schema, damage)
    pending = three.produce("t", 0, [b"b"])
    for _ in range(3):
        for broker in (0, 1, 2):
            three.leader_tick(broker)
        for broker in (1, 2):
            three.follower_tick(broker)
    assert (error(pending), log(three, 2)) == ("NONE", ["a", "b"])
    if damage.name == "table removed":
        with pytest.raises(DamagedError) as failure:
            three.controller_tick()
        check_named(str(failure.value), CONTROLLER)


@pytest.mark.parametrize("schema", OF_CLUSTER, ids=lambda schema: schema.name)
def test_clients_and_the_command_line_name_each_table_of_the_cluster_root(
    three: LocalCluster, schema: TableSchema
) -> None:
    """Clients, brokers and the command line name each damaged table of the cluster root."""
    for damage in DAMAGES:
        saved = folder(three, "cluster", schema).with_name("saved")
        inflict(three, "cluster", schema, Damage("none", lambda *_: None))
        shutil.copytree(folder(three, "cluster", schema), saved)
        inflict(three, "cluster", schema, damage)
        ended = run("audit", cluster=three.root / "cluster")
        if (schema, damage.name) != (FORMAT, "table removed"):
            assert ended.exit_code in (1, 2)
            [line] = (ended.stdout + ended.stderr).splitlines()
            check_named(line, schema)
        if schema in INDISPENSABLE:
            with pytest.raises(DamagedError) as refused:
                Connection(str(three.root / "cluster")).metadata()
            check_named(str(refused.value), schema)
            try:
                three.leader_tick(0)
            except DamagedError as failure:
                check_named(str(failure), schema)
        shutil.rmtree(folder(three, "cluster", schema), ignore_errors=True)
        saved.rename(folder(three, "cluster", schema))


@pytest.fixture
def two_topics(start: Start) -> Iterator[tuple[LocalCluster, Consumer]]:
    """Broker 0 leads partition 0, broker 1 leads partition 1; a consumer reads both."""
    cluster = start(0, 1, assignment={0: [0, 1], 1: [1, 0]})
    for partition in (0, 1):
        cluster.produce("t", partition, [b"%d" % partition])
    cluster.tick_until_idle()
    with Consumer(str(cluster.root / "cluster"), auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", 0), TopicPartition("t", 1)])
        yield cluster, consumer


@each_damage
def test_a_consumer_goes_on_with_the_partitions_of_other_leaders(
    two_topics: tuple[LocalCluster, Consumer],
    damage: Damage,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A consumer goes on reading the partitions of leaders whose tables are readable."""
    cluster, consumer = two_topics
    for schema in REBUILT_FROM_LOG[:2]:
        inflict(cluster, "broker-0", schema, damage)
    polled = [consumer.poll(timeout_ms=0) for _ in range(20)]
    values = [one.value for poll in polled for records in poll.values() for one in records]
    assert values == [b"1"]
    told = [one.message for one in caplog.records if "leader not readable" in one.message]
    assert len(told) == 1
    check_named(told[0], REBUILT_FROM_LOG[0])
    cluster.clock.advance(10_000)
    cluster.tick_until_idle()
    polled = [consumer.poll(timeout_ms=200) for _ in range(5)]
    values = [one.value for poll in polled for records in poll.values() for one in records]
    assert values == [b"0"]
