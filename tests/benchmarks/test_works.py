"""Works run, small and without Kafka, and measure what they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks import results
from benchmarks.__main__ import measure
from benchmarks.bench import Bench
from benchmarks.clusters import embedded
from benchmarks.figures import Figures
from benchmarks.report import rendered
from benchmarks.rows import SIZES
from benchmarks.works import WORKS, idle_tick, partitions, produce, read
from sparklog.logger import get_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Measure = Callable[[str], Figures]


def test_a_cluster_of_this_process_leaves_the_log_level_as_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A benchmark once silenced every test after it that looked for a warning."""
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
    """The work compares their hashes itself."""
    assert {one.system for one in measured("read")} == {read.FORMAT, read.READ, read.DELTA}


def test_an_idle_tick_runs_no_job_and_writes_no_file(measured: Measure) -> None:
    figures = measured("idle_tick")
    counted = [
        figures.get(what, idle_tick.SPARKLOG)
        for what in (idle_tick.JOBS, idle_tick.FILES, idle_tick.ELSEWHERE)
    ]
    assert [one and one.values for one in counted] == [(0.0,)] * 3


def test_partitions(measured: Measure) -> None:
    figures = measured("partitions")
    [control] = [one for one in figures if one.what == partitions.CONTROL]
    steps = [
        one for one in figures if one.what.startswith("10,000 partitions: ") and one != control
    ]
    assert control.values[0] == pytest.approx(sum(one.values[0] for one in steps), rel=0.01)


def test_catch_up(measured: Measure) -> None:
    """The work checks that the follower has everything in the end."""
    assert len([*measured("catch_up")]) == 3
