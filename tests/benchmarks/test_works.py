"""Benchmarks run at a small scale and without Kafka, and measure the figures that they declare."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks import results
from benchmarks.__main__ import measure
from benchmarks.bench import Bench
from benchmarks.clusters import BROKER_IDS, CHECKOUT, embedded, on_store
from benchmarks.executors_application import _tasks_of
from benchmarks.figures import Figures
from benchmarks.report import rendered
from benchmarks.rows import SIZES
from benchmarks.s3_store import CLIENT, running_store
from benchmarks.work import Work
from benchmarks.works import (
    WORKS,
    control_state,
    executors,
    idle_tick,
    modes,
    partitions,
    produce,
    read,
    store_start,
)
from benchmarks.works.store_record import send, timed
from sparklog import Producer
from sparklog.errors import SparklogError
from sparklog.logger import get_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Measure = Callable[[str], Figures]


def test_a_cluster_of_this_process_leaves_the_log_level_as_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A benchmark once silenced every later test that expected a warning."""
    logger = get_logger("sparklog.test")
    with embedded(tmp_path):
        logger.warning("not wanted")
    logger.warning("wanted")
    assert [one.message for one in caplog.records] == ["wanted"]


@pytest.fixture
def measured(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Run one work once, at a thousandth of its size, with records of one size."""
    for module in (produce, read):
        monkeypatch.setattr(module, "SIZES", SIZES[1:])

    def run(name: str) -> Figures:
        [work] = [one for one in WORKS if one.name == name]
        file = tmp_path / "results.json"
        with Bench(tmp_path / "data", scale=0.001, runs=1, given_spark=spark) as bench:
            measure(work, bench, file)
            assert list(bench.folder.iterdir()) == []
        assert work.title in rendered(WORKS, results.load(file))
        return results.load(file)[name].figures

    return run


def test_produce(measured: Measure) -> None:
    """`produce` measures all systems without Kafka."""
    figures = measured("produce")
    systems = {
        produce.SPARKLOG,
        produce.KNOWN,
        produce.UNSYNCED,
        produce.UNSYNCED_KNOWN,
        produce.DELTA,
    }
    assert {(one.what, one.system) for one in figures} == {("1 KiB", system) for system in systems}
    assert all(one.values[0] > 0 for one in figures)


def test_read_gives_the_same_rows_from_every_system(measured: Measure) -> None:
    """The work itself compares the hashes of the rows."""
    assert {one.system for one in measured("read")} == {read.FORMAT, read.READ, read.DELTA}


def test_an_idle_tick_runs_no_job_and_writes_no_file(measured: Measure) -> None:
    """An idle tick runs no job and writes no file."""
    figures = measured("idle_tick")
    counted = [
        figures.get(what, idle_tick.SPARKLOG)
        for what in (idle_tick.JOBS, idle_tick.FILES, idle_tick.ELSEWHERE)
    ]
    assert [one and one.values for one in counted] == [(0.0,)] * 3


def test_a_mode_runs_the_jobs_that_it_names(measured: Measure) -> None:
    """Small files are a job with execution=spark alone, rules with rules.engine=spark alone."""
    figures = measured("modes")
    jobs = {
        system: [
            figures.get(f"{size}: {tick}, Spark jobs", system)
            for size in modes.SIZES
            for tick in modes.TICKS
        ]
        for system in modes.SYSTEMS
    }
    counts = {system: [one.values[0] for one in of if one] for system, of in jobs.items()}
    assert counts["driver, duckdb"] == counts["auto, duckdb"] == [0.0] * 9
    assert counts["spark, duckdb"] == [1.0, 1.0, 0.0] * 3
    assert all(count > 0 for count in counts["spark, spark"])
    assert counts["spark, spark"][:3] == counts["spark, spark"][3:6] == counts["spark, spark"][6:]


def test_partitions(measured: Measure) -> None:
    """The time of the controller's tick is the sum of its steps."""
    figures = measured("partitions")
    [control] = [one for one in figures if one.what == partitions.CONTROL]
    steps = [
        one for one in figures if one.what.startswith("10,000 partitions: ") and one != control
    ]
    assert control.values[0] == pytest.approx(sum(one.values[0] for one in steps), rel=0.01)


def test_control_state_changes_in_folders_and_on_an_object_store(measured: Measure) -> None:
    """The work checks that each change is read by another handle."""
    figures = measured("control_state")
    assert {one.system for one in figures} == {control_state.FOLDER, control_state.STORE}
    whats = {one.what for one in figures}
    assert {one.what for one in control_state.WORK.targets} <= whats


def test_starts_on_an_object_store_list_no_table_of_a_root_twice(measured: Measure) -> None:
    """A start on an object store lists each table of a root once."""
    figures = measured("store_start")
    assert {one.what for one in store_start.WORK.targets} <= {one.what for one in figures}
    lists = figures.get(f"LIST while {store_start.BROKER}", store_start.STORE)
    # Tables of the two roots, `format` of each twice or three times, and further listings of names.
    assert lists is not None
    assert lists.values[0] < 25


def test_catch_up(measured: Measure) -> None:
    """The work checks that the follower has all records at the end."""
    assert len([*measured("catch_up")]) == 5


def test_executors_copy_a_backlog_in_all_ways(measured: Measure) -> None:
    """The application checks that each follower has all records; no task fails unless killed."""
    repeated: dict[str, set[float]] = {}
    for one in measured("executors"):
        if one.unit == "repeated tasks":
            repeated.setdefault(one.system, set()).update(one.values)
    assert repeated.keys() == {executors.DRIVER, executors.TWO, executors.KILLED, executors.ONE}
    assert repeated.pop(executors.KILLED) <= {0, 1}
    assert list(repeated.values()) == [{0}] * 3


def test_a_stage_that_spark_has_not_stored_yet_has_no_tasks(spark: SparkSession) -> None:
    """Spark stores a job before its stages: a poll in between once ended the application."""
    store = spark.sparkContext._jsc.sc().statusStore()
    assert _tasks_of(store, 1_000_000) == []


def test_brokers_in_processes_of_their_own_share_a_store(tmp_path: Path) -> None:
    """Brokers in separate processes share a store, with a sender name each."""
    with (
        running_store(tmp_path / "log") as store,
        on_store(store, tmp_path) as cluster,
        Producer(cluster.config_file) as producer,
    ):
        cluster.create_topic("t", partitions=2, leader=1)
        assert {one.leader for one in cluster.connection.metadata().partitions.values()} == {1}
        store.set_latency(1)
        send(producer, "t", 1)
        cluster.await_known_to_all("t", 1)
        senders = {f"broker-{one}" for one in BROKER_IDS} | {CLIENT}
        assert all(store.counts(sender)["PUT"] for sender in senders)


def test_a_broker_that_does_not_start_is_an_error_with_its_log(tmp_path: Path) -> None:
    """The error for a broker that does not start has the end of its log."""
    with (
        running_store(tmp_path / "log") as store,
        pytest.raises(SparklogError, match=r"(?s)has ended with.*no\.such\.key"),
        on_store(store, tmp_path, no_such_key=1),
    ):
        pytest.fail("a cluster runs with an unknown key")


def test_a_guarded_process_ends_with_its_parent(tmp_path: Path) -> None:
    """A guarded process ends with its parent."""
    command = [sys.executable, "-m", "benchmarks.guarded", "http.server", "0"]
    process = subprocess.Popen(
        command,
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def test_sends_are_measured_until_the_time_is_over_and_three_at_least() -> None:
    """Sends are measured until the time is over, and at least three times."""
    assert len(timed(lambda: None, 5, 60)) == 5
    assert len(timed(lambda: None, 1000, -1)) == 3


def test_a_work_is_run_no_more_often_than_it_says(tmp_path: Path) -> None:
    """A work runs at most `most_runs` times."""

    def run(bench: Bench, figures: Figures) -> None:
        for _ in range(bench.runs):
            figures.add("a figure", "ours", "s", 1.0)

    work = Work("one", "One", "How.", run, most_runs=2)
    with Bench(tmp_path / "data", runs=3) as bench:
        measure(work, bench, tmp_path / "results.json")
        assert bench.runs == 3
    result = results.load(tmp_path / "results.json")["one"]
    assert (result.runs, [len(one.values) for one in result.figures]) == (2, [2])
