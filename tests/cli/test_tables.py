"""`sparklog produce --from` and `sparklog consume --to`: Spark sources and Delta tables."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

from sparklog.cli.cluster import given_storage_options
from sparklog.cli.spark_records import of_cluster
from sparklog.producer.plain import Producer
from tests.cli.command_line import Finished, run
from tests.jobs.processes import Process
from tests.running_cluster import RunningCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 240.0
"""Timeout in seconds: with all cores busy, Spark and its Python processes start slowly."""

SELECT = ("--select=cast(id as string) as key", "--select=to_json(struct(*)) as value")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    # The brokers tick every 50 ms only, because Spark needs the two cores as well.
    cluster = RunningCluster(tmp_path_factory.mktemp("running"))
    yield cluster
    cluster.stop()


def sparklog(cluster: RunningCluster, *arguments: str | Path) -> Finished:
    return run(*arguments, cluster=cluster.connection.cluster)


def values(cluster: RunningCluster, topic: str) -> list[str]:
    """Return the values of all committed records, by partition and offset."""
    committed = cluster.committed(topic)
    return [row["value"].decode() for rows in committed.values() for row in rows]


def orders(folder: Path, ids: range) -> Path:
    """Append rows to a Delta table, and return its path."""
    write_deltalake(folder / "orders", pa.table({"id": list(ids)}), mode="append")
    return folder / "orders"


def newest_commit(checkpoint: Path) -> Path:
    """Return the file by which Spark notes that its newest micro-batch is complete."""
    commits = [one for one in (checkpoint / "commits").iterdir() if one.name.isdigit()]
    return max(commits, key=lambda one: int(one.name))


def lose_newest_commit(checkpoint: Path) -> Path:
    """Remove that file, as if the process had ended before it was written."""
    newest = newest_commit(checkpoint)
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    return newest


def test_a_batch_is_produced_from_a_path_a_table_or_a_query(
    cluster: RunningCluster, spark: SparkSession, tmp_path: Path
) -> None:
    cluster.create_topic("batches")
    path = orders(tmp_path, range(2))
    spark.read.format("delta").load(str(path)).createOrReplaceTempView("orders_to_produce")

    for source in (
        ["--from", str(path)],
        ["--from", "orders_to_produce", "--format=table"],
        ["--from", "select id from orders_to_produce where id > 0", "--format=sql"],
        ["--from", str(path), "--format=parquet"],
    ):
        finished = sparklog(cluster, "produce", "batches", *source, *SELECT)
        assert finished == (0, "", f"Produced {source[1]} to topic batches.\n")

    both = ['{"id":0}', '{"id":1}']
    found = values(cluster, "batches")
    assert [sorted(found[:2]), sorted(found[2:4])] == [both, both]
    assert [found[4:5], sorted(found[5:])] == [['{"id":1}'], both]


def test_a_stream_produces_what_is_new_since_the_last_run_exactly_once(
    cluster: RunningCluster, spark: SparkSession, tmp_path: Path
) -> None:
    """A run that ended between its records and its checkpoint is completed, not repeated."""
    cluster.create_topic("news", partitions=2)
    checkpoint = tmp_path / "checkpoint"

    def run_once() -> list[int]:
        path = tmp_path / "orders"
        stream = ["--stream", f"--checkpoint={checkpoint}"]
        finished = sparklog(cluster, "produce", "news", "--from", path, *SELECT, *stream)
        assert finished.exit_code == 0, finished.stderr
        return sorted(int(value[6:-1]) for value in values(cluster, "news"))

    orders(tmp_path, range(10))
    assert run_once() == [*range(10)]
    assert run_once() == [*range(10)]
    orders(tmp_path, range(10, 15))
    assert run_once() == [*range(15)]

    lost = lose_newest_commit(checkpoint)
    assert run_once() == [*range(15)]
    assert lost.exists(), "the micro-batch has run again"


def test_a_topic_goes_into_a_table_exactly_once(
    cluster: RunningCluster, spark: SparkSession, tmp_path: Path
) -> None:
    """Delta ignores a micro-batch that it has, also if Spark runs it again."""
    cluster.create_topic("once")
    checkpoint, table = tmp_path / "checkpoint", tmp_path / "table"

    def send_and_consume(*numbers: int) -> list[int]:
        with Producer(cluster.connection) as producer:
            for number in numbers:
                producer.send("once", b"%d" % number)
        finished = sparklog(cluster, "consume", "once", "--to", table, "--checkpoint", checkpoint)
        assert finished == (0, "", f"Consumed topic once to {table}.\n")
        rows = DeltaTable(table).to_pyarrow_table()
        assert {"key", "topic", "partition", "timestamp"} < set(rows.column_names)
        assert sorted(rows["offset"].to_pylist()) == [*range(rows.num_rows)]
        return sorted(int(value) for value in rows["value"].to_pylist())

    assert send_and_consume(0, 1) == [0, 1]
    assert send_and_consume(2) == [0, 1, 2]
    version = DeltaTable(table).version()
    lost = lose_newest_commit(checkpoint)
    assert send_and_consume() == [0, 1, 2]
    assert lost.exists(), "the micro-batch has run again"
    assert DeltaTable(table).version() == version


def test_a_table_of_the_catalog_gets_the_selected_columns(
    cluster: RunningCluster, spark: SparkSession, tmp_path: Path
) -> None:
    cluster.create_topic("named")
    with Producer(cluster.connection) as producer:
        producer.send("named", b"an order")
    columns = ["--select=cast(value as string) as text", "--select=offset"]
    target = ["--to=named_orders", "--format=table", f"--checkpoint={tmp_path / 'checkpoint'}"]
    finished = sparklog(cluster, "consume", "named", *target, *columns)
    assert finished.exit_code == 0, finished.stderr
    [row] = spark.table("named_orders").collect()
    assert row.asDict() == {"text": "an order", "offset": 0}


def test_processes_that_are_killed_in_the_middle_leave_each_record_once_in_the_table(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    """Two runs with micro-batches of three records are killed; a later one completes the table."""
    cluster.create_topic("killed", partitions=2)
    count = 60
    with Producer(cluster.connection) as producer:
        for number in range(count):
            producer.send("killed", b"%d" % number, partition=number % 2)
    table = tmp_path / "table"

    def start(run: int, *options: str) -> Process:
        command = ["consume", "killed", "--cluster", cluster.connection.cluster]
        target = ["--to", str(table), "--checkpoint", str(tmp_path / "checkpoint")]
        return Process(
            [sys.executable, "-m", "jobs.submit", *command, *target, *options],
            tmp_path / f"run-{run}",
        )

    runs = itertools.count()
    for _ in range(2):
        before = rows(table)
        process = start(next(runs), "--option=maxOffsetsPerTrigger=3")
        while rows(table) < before + 3:
            # As a scheduler does: Spark gives its workers 10 s to start, however busy the machine.
            if process.popen.poll() is not None:
                number = next(runs)
                assert number < 10, process.stderr
                process = start(number, "--option=maxOffsetsPerTrigger=3")
            time.sleep(0.02)
        os.killpg(process.popen.pid, signal.SIGKILL)
        process.popen.wait()
        assert rows(table) < count
    while (last := start(next(runs))).popen.wait(PATIENCE):
        assert next(runs) < 20, last.stderr

    found = DeltaTable(table).to_pyarrow_table()
    pairs = list(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))
    assert sorted(pairs) == [(partition, offset) for partition in (0, 1) for offset in range(30)]
    assert sorted(map(int, found["value"].to_pylist())) == list(range(count))


def rows(table: Path) -> int:
    """Return the number of rows of a table, 0 if it does not exist yet."""
    try:
        return int(DeltaTable(table).to_pyarrow_dataset().count_rows())
    except TableNotFoundError:
        return 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["produce", "T", "--from", "ORDERS"], "has no column value, but id: name the columns"),
        (["produce", "T", "--from", "/no/table", *SELECT], "/no/table"),
        (["produce", "T", "--from", "no_table", "--format=table", *SELECT], "no_table"),
        (["produce", "T", "--from", "ORDERS", "--select=nothing as value"], "nothing"),
        (["produce", "T", "--from", "ORDERS", "--select=id as value"], "value"),
        (
            ["produce", "T", "--from", "ORDERS", *SELECT, "--select=now() as timestamp"],
            "a record has no column timestamp: --select may name key, value, headers, partition",
        ),
        (
            ["produce", "T", "--from=select 1", "--format=sql", "--stream", "--checkpoint=C"],
            "a SELECT statement is no stream",
        ),
        (["consume", "T", "--to=C", "--checkpoint=C2", "--option=maxOffset=1"], "maxOffset"),
    ],
)
def test_errors_of_spark_are_one_line(
    cluster: RunningCluster, spark: SparkSession, tmp_path: Path, arguments: list[str], said: str
) -> None:
    """Errors of sources, columns and options are one line, and nothing is produced."""
    if not (tmp_path / "orders").exists():
        orders(tmp_path, range(2))
    topic = f"refused-{abs(hash(tuple(arguments)))}"
    cluster.create_topic(topic)
    names = {"T": topic, "ORDERS": str(tmp_path / "orders")}
    paths = {"=C": f"={tmp_path}/c", "=C2": f"={tmp_path}/c2"}
    given = [names.get(one, one) for one in arguments]
    given = [
        next(
            (one.removesuffix(end) + path for end, path in paths.items() if one.endswith(end)), one
        )
        for one in given
    ]
    assert said in sparklog(cluster, *given).refusal
    assert values(cluster, topic) == []


def test_storage_options_of_the_command_line_travel_to_the_tasks() -> None:
    """The format gets the options that are given before the command; a path becomes absolute."""
    given = '{"s3://logs": {"AWS_REGION": "eu-central-1"}}'
    token = given_storage_options.set(given)
    try:
        assert of_cluster("s3://logs/c") == {"cluster": "s3://logs/c", "storageOptions": given}
    finally:
        given_storage_options.reset(token)
    assert of_cluster("conf/cluster.yaml") == {"cluster": str(Path("conf/cluster.yaml").resolve())}
