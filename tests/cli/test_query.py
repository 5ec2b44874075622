"""`sparklog query`: SQL over the cluster's state."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sparklog.cli.cluster import Cluster
from sparklog.cli.sql import query
from sparklog.cluster.config_past import CONFIG_HISTORY
from sparklog.cluster.group_past import GROUP_HISTORY
from sparklog.cluster.past import BROKER_PAST, PAST_VIEWS
from sparklog.model import BATCH_INDEX, BROKER_TABLES, CLUSTER_TABLES, REQUEST_INDEX
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog
from sparklog.testing import LocalCluster
from tests.cli.command_line import files_in, run

NAMES = (
    "batches, brokers, cleaner_offset_checkpoint, config_history, configs, "
    "consumer_group_heartbeats, consumer_groups, consumer_offsets, controller, "
    "controller_history, delayed_operations, elections, group_history, "
    "high_watermark_checkpoint, high_watermark_history, isr_history, lag, leader_epoch_checkpoint, "
    "leader_imbalance, leadership_history, partition_history, partition_state, produce_requests, "
    "producer_ids, producer_state, refusals, repairs, replica_history, replica_progress, scrubs, "
    "stream_writes, topics, truncations"
)

TIMES_ARE_NUMBERS = (
    "; the columns *_ms are ms since 1970: write unix_millis(timestamp '2026-01-31 12:00:00Z') for "
    "a time, unix_millis(current_timestamp - interval '1' day) for one before now"
)


def produced(folder: Path) -> LocalCluster:
    """Return a cluster with three records in two partitions on brokers 0 and 1, and broker 2."""
    cluster = LocalCluster(folder, [0, 1, 2])
    cluster.create_topic("t", assignment={0: [0, 1], 1: [1, 0]})
    cluster.produce("t", 0, [b"a", b"b"])
    cluster.produce("t", 1, [b"c"])
    cluster.tick_until_idle()
    return cluster


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of such a cluster, which no test changes."""
    folder = tmp_path_factory.mktemp("produced")
    produced(folder)
    return folder


def answer(folder: Path, statement: str) -> list[dict[str, Any]]:
    printed = run("query", statement, "--json", cluster=folder / "cluster")
    assert (printed.exit_code, printed.stderr) == (0, "")
    rows: list[dict[str, Any]] = json.loads(printed.stdout)
    return rows


def test_a_table_for_people_has_numbers_to_the_right_and_is_never_folded_in_a_file(
    folder: Path,
) -> None:
    """The printed table aligns numbers to the right, and is not wrapped in a file."""
    statement = """
        select broker_id, topic, partition, role, log_end_offset, null as nothing,
            repeat('[bold] ', 20) as long
        from high_watermark_checkpoint order by all limit 1"""
    printed = run("query", statement, cluster=folder / "cluster").printed
    lines = [line.strip() for line in printed.splitlines()]
    assert lines[1].split() == [
        *("broker_id", "topic", "partition", "role", "log_end_offset", "nothing", "long")
    ]
    assert (
        lines[3]
        == f"0   t               0   leader                2   NULL      {'[bold] ' * 20}".strip()
    )
    assert lines[-1] == "(1 row)"


def test_csv_has_a_header_and_nothing_for_null(folder: Path) -> None:
    """CSV has a header, and empty fields for null."""
    statement = "select broker_id, topic, 'a,b' as text, null as nothing, true as b from batches"
    printed = run("query", f"{statement} order by all limit 2", "--csv", cluster=folder / "cluster")
    assert printed.printed == 'broker_id,topic,text,nothing,b\n0,t,"a,b",,true\n0,t,"a,b",,true\n'


def test_json_keeps_numbers_and_every_column(folder: Path) -> None:
    """JSON has numbers as numbers, and every column, also those with equal names."""
    statement = """
        select sum(log_end_offset) as records, 1.5::decimal(4, 1) as decimal, 'nan'::double as nan,
            ['[x]', null] as list, {'at': date '2026-01-02'} as struct, 'k\\xFF'::blob as bytes,
            1 as a, 2 as a, 3 as a_1
        from high_watermark_checkpoint"""
    [row] = answer(folder, statement)
    assert row == {
        "records": 6,
        "decimal": 1.5,
        "nan": None,
        "list": ["[x]", None],
        "struct": {"at": "2026-01-02"},
        "bytes": "k\\xff",
        "a": 1,
        "a_1": 2,
        "a_1_1": 3,
    }
    assert answer(folder, "select 1 where false") == []


def test_every_table_is_there_with_its_columns_and_brokers_tables_begin_with_broker_id(
    folder: Path,
) -> None:
    """Every table exists with its columns, and brokers' tables begin with `broker_id`."""
    names = {row["name"] for row in answer(folder, "show tables")}
    assert ", ".join(sorted(names)) == NAMES
    expected = {schema.name: schema.columns.names for schema in CLUSTER_TABLES}
    for schema in BROKER_TABLES:
        expected[schema.name] = ["broker_id", *schema.columns.names]
    # A row for each pending batch, and not for each of its records.
    expected["produce_requests"] = ["broker_id", *REQUEST_INDEX.names]
    expected["batches"] = ["broker_id", *BATCH_INDEX.names, "next_offset"]
    for name, past in BROKER_PAST.items():
        expected[name] = ["broker_id", *past.columns.names]
    expected["config_history"] = CONFIG_HISTORY.names
    expected["group_history"] = GROUP_HISTORY.names
    expected["leader_imbalance"] = ["broker_id", "preferred", "led_by_others", "leader_imbalance"]
    # tests/cluster/test_past.py has their columns.
    views = PAST_VIEWS.keys()
    assert names > views
    names -= views
    del expected["log"]
    assert names == expected.keys()
    cluster = Cluster.of(str(folder / "cluster"))
    found = {name: query(f"from {name}", cluster).rows.column_names for name in names}
    assert found == expected


def test_a_brokers_table_is_the_union_over_all_brokers(folder: Path) -> None:
    """A broker's table is the union over all brokers."""
    statement = """
        select broker_id, partition, role, high_watermark from high_watermark_checkpoint
        order by all"""
    assert [tuple(row.values()) for row in answer(folder, statement)] == [
        (0, 0, "leader", 2),
        (0, 1, "follower", 1),
        (1, 0, "follower", 2),
        (1, 1, "leader", 1),
    ]


def test_batches_are_those_of_the_brokers_logs(folder: Path) -> None:
    """The table `batches` has the batches of the brokers' logs."""
    rows = answer(folder, "from batches order by broker_id, partition")
    expected = []
    for broker_id in (0, 1):
        log = RecordLog(Location.of(str(folder / f"broker-{broker_id}")))
        for key in sorted(log.partitions()):
            expected += [
                {"broker_id": broker_id, **batch._asdict(), "next_offset": batch.next_offset}
                for batch in log.batches(key)
            ]
    assert rows == expected
    assert [row["next_offset"] for row in rows] == [2, 1, 2, 1]


def test_cluster_and_broker_tables_join(folder: Path) -> None:
    """Tables of the cluster and of brokers can be joined."""
    statement = """
        with leaders as (select * from PARTITION_STATE where broker_id = leader)
        select partition, sum(record_count) as records
        from leaders join batches using (topic_id, partition, broker_id)
        group by all order by all"""
    assert answer(folder, statement) == [
        {"partition": 0, "records": 2},
        {"partition": 1, "records": 1},
    ]


@pytest.mark.parametrize("lost", ["log", "high_watermark_checkpoint"])
def test_a_broker_root_that_cannot_be_read_is_reported_and_the_others_are_shown(
    tmp_path: Path, lost: str
) -> None:
    """An unreadable broker root is reported, and the rows of the other brokers are printed."""
    produced(tmp_path)
    shutil.rmtree(tmp_path / "broker-1" / lost)
    table = "batches" if lost == "log" else lost

    asked = run("query", f"from {table}", "--json", cluster=tmp_path / "cluster")

    assert {row["broker_id"] for row in json.loads(asked.stdout)} == {0}
    assert asked.exit_code == 0
    [line] = asked.stderr.splitlines()
    assert line.startswith("sparklog: broker 1 is left out, its root cannot be read: ")
    assert str(tmp_path / "broker-1") in line


def test_a_lost_data_file_is_reported_as_well(tmp_path: Path) -> None:
    """A broker's lost data file is reported as well."""
    produced(tmp_path)
    for file in (tmp_path / "broker-0" / "high_watermark_checkpoint").glob("*.parquet"):
        file.unlink()
    asked = run("query", "from high_watermark_checkpoint", "--json", cluster=tmp_path / "cluster")
    assert {row["broker_id"] for row in json.loads(asked.stdout)} == {1}
    [line] = asked.stderr.splitlines()
    assert line.startswith("sparklog: broker 0 is left out, its root cannot be read: ")


@pytest.mark.parametrize(
    "statement",
    [
        "select topic from topics",
        "with batches as (select topic from topics) from batches",
        "select topic from topics where false and topic in (select topic from TOPICS)",
        "describe batches",
        "explain select * from batches",
    ],
)
def test_only_the_tables_that_a_statement_reads_are_loaded(tmp_path: Path, statement: str) -> None:
    """Only the tables that a statement reads are loaded."""
    produced(tmp_path)
    for broker_id in (0, 1, 2):
        shutil.rmtree(tmp_path / f"broker-{broker_id}")
    for file in (tmp_path / "cluster" / "partition_state").glob("*.parquet"):
        file.unlink()

    # The lost files above would be reported, or be fatal, if they were read.
    assert run("query", statement, cluster=tmp_path / "cluster").printed


def test_a_table_of_the_cluster_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    """An unreadable table of the cluster is reported in one line."""
    produced(tmp_path)
    for file in (tmp_path / "cluster" / "partition_state").glob("*.parquet"):
        file.unlink()
    refusal = run("query", "from partition_state", cluster=tmp_path / "cluster").refusal
    assert refusal.startswith(f"{tmp_path / 'cluster' / 'partition_state'}/part-")
    assert " is damaged: it is missing; run sparklog repair" in refusal


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["from nope"], f"there is no table 'nope'; the tables are: {NAMES}"),
        (['from "two words"'], f"there is no table 'two words'; the tables are: {NAMES}"),
        (["from statement"], f"there is no table 'statement'; the tables are: {NAMES}"),
        (["from records"], "records are read with Spark: see the view `records` of "),
        (["from log"], "records are read with Spark: see the view `records` of "),
        (["selec 1"], 'cannot be run: Parser Error: syntax error at or near "selec"'),
        (["select nope from topics"], 'Referenced column "nope" not found'),
        (["select nope(1)"], "Scalar Function with name nope does not exist"),
        *(
            ([f"select * from elections where {condition}"], TIMES_ARE_NUMBERS)
            for condition in (
                "at_ms > timestamp '2026-01-31'",
                "at_ms > '2026-11-25 09:14'",
                "at_ms > cast('2026-11-25' as text)",
                "at_ms - interval '1' day > 0",
                "current_timestamp - at_ms < interval '1' day",
                "coalesce(at_ms, timestamp '2026-01-31') is null",
            )
        ),
        (["select topic - interval '1' day from topics"], "'-(VARCHAR, INTERVAL)'"),
        (["select 'a'::int"], "Could not convert string 'a' to INT32"),
        ([""], "only one SELECT statement is run"),
        (["select 1; select 2"], "only one SELECT statement is run"),
        (["delete from topics"], "only one SELECT statement is run"),
        (["create table t as from topics"], "only one SELECT statement is run"),
        (["copy topics to 'topics.csv'"], "only one SELECT statement is run"),
        (["select 1", "--json", "--csv"], "--json and --csv are both given"),
    ],
)
def test_a_statement_that_cannot_be_run_is_one_line(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    """An invalid statement is reported in one line."""
    monkeypatch.chdir(tmp_path)
    before = files_in(folder)
    assert said in run("query", *arguments, cluster=folder / "cluster").refusal
    assert (files_in(folder), files_in(tmp_path)) == (before, {})


def test_only_a_text_that_is_a_time_gets_the_hint_on_times(folder: Path) -> None:
    """Another text that is compared with a number has DuckDB's reason alone."""
    for text in ("yesterday", "0-a"):
        statement = f"from elections where version = '{text}'"
        refusal = run("query", statement, cluster=folder / "cluster").refusal
        assert refusal.endswith(f"Could not convert string '{text}' to INT64")


def test_sparks_functions_on_times_are_there(folder: Path) -> None:
    """A time can be written and shown as in Spark, in UTC by its Z."""
    [row] = answer(
        folder,
        "select unix_millis(timestamp '2026-11-25 09:14:00.5Z') as ms, "
        "unix_millis(timestamp_millis(1795598040500)) as again",
    )
    assert row == {"ms": 1795598040500, "again": 1795598040500}


def test_help_names_the_tables_and_says_what_records_need() -> None:
    """The help lists the tables, and says that `records` needs Spark."""
    said = " ".join(run("query", "--help").stdout.split())
    assert all(name in said for name in NAMES.split(", "))
    assert "Records need Spark" in said
