"""docs/modes.md: its table has the Spark jobs of each tick, as Spark has recorded them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobs.spark_status import jobs_since, next_job
from sparklog.broker.tick import TickReport
from sparklog.model import TopicPartition
from sparklog.testing import LocalCluster
from tests.broker.states import error, log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCUMENT = Path(__file__).parents[2] / "docs" / "modes.md"
HEAD = "| tick | `driver` | `auto` | `execution: spark` | also `rules.engine: spark` |"
LAG_MS = 120_000

Jobs = dict[str, list[str]]
"""The names of the jobs of each tick, without the role, in order."""


class Story:
    """Plays each kind of tick once, and records its jobs."""

    def __init__(self, spark: SparkSession, folder: Path, config: dict[str, Any]) -> None:
        self.spark = spark
        self.jobs: Jobs = {}
        # Each merge has the bytes of a task.
        config = {"log.merger.min.batches": 2, "execution.spark.bytes.per.task": 1} | config
        self.cluster = LocalCluster(folder, brokers=[0, 1], spark=spark, config=config)
        self.cluster.create_topic("t", assignment={0: [0, 1]})

    @contextmanager
    def recorded(self, tick: str, role: str) -> Iterator[None]:
        before = next_job(self.spark)
        yield
        names = [job.name for job in jobs_since(self.spark, before)]
        assert all(name.startswith(f"{role}: ") for name in names), names
        self.jobs[tick] = [name.removeprefix(f"{role}: ") for name in names]

    def tick(self, tick: str, broker: int, role: str) -> TickReport:
        """Record a tick of a broker in one of its roles; its report has the number of jobs."""
        play: Callable[[], TickReport] = getattr(self.cluster.brokers[broker], f"{role}_tick")
        with self.recorded(f"{role}: {tick}", f"broker {broker}, {role}"):
            report = play()
        assert report.spark_jobs == len(self.jobs[f"{role}: {tick}"])
        return report

    def play(self) -> Jobs:
        self.round_of_a_record()
        self.merge_and_truncation()
        self.deletion()
        self.compaction()
        self.cluster.close()
        return self.jobs

    def round_of_a_record(self) -> None:
        cluster = self.cluster
        self.tick("becomes leader of a partition", 0, "leader")
        self.tick("first fetch of a leader epoch", 1, "follower")
        cluster.tick_until_idle()
        cluster.produce("t", 0, [b"first of its epoch"])
        cluster.tick_until_idle()
        for role in ("controller", "leader", "follower"):
            broker = 1 if role == "follower" else 0
            assert not self.tick("idle", broker, role).changed
        pending = cluster.produce("t", 0, [b"a"])
        self.tick("takes a request", 0, "leader")
        assert self.tick("fetches its batch", 1, "follower").files_copied == 1
        assert error(pending) is None
        self.tick("reads the report, answers", 0, "leader")
        assert error(pending) == "NONE"
        self.tick("fetches the high watermark", 1, "follower")
        assert cluster.replica(1, "t", 0).high_watermark == 2

    def merge_and_truncation(self) -> None:
        """Broker 1 misses a record that broker 0 commits and merges; it then leads uncleanly."""
        cluster = self.cluster
        cluster.crash(1)
        cluster.fence(1)
        cluster.produce("t", 0, [b"b"])
        cluster.tick_until_idle()
        cluster.clock.advance(LAG_MS)
        cluster.tick_until_idle()
        with self.recorded("merger: merges batches of 32 MiB or more", "broker 0, merger"):
            assert cluster.merge(0) == (3, 1)
        cluster.restart(1)
        cluster.crash(0)
        cluster.fence(0)
        assert cluster.partition("t", 0).leader is None
        assert cluster.elect_leaders("unclean", [("t", 0)]) == {("t", 0): "NONE"}
        cluster.produce("t", 0, [b"c"], acks=1)
        cluster.leader_tick(1)
        cluster.restart(0)
        self.tick("truncates within a batch, fetches", 0, "follower")
        assert log(cluster, 0) == ["first of its epoch", "a", "c"]

    def deletion(self) -> None:
        """Broker 1 leads; its check finds old records in one of its logs."""
        cluster = self.cluster
        cluster.tick_until_idle()
        cluster.delete_records({TopicPartition("t", 0): 2})
        self.tick("deletes old records", 1, "leader")
        self.tick("deletes what its leader has deleted", 0, "follower")
        starts = [cluster.replica(broker, "t", 0).log_start_offset for broker in (0, 1)]
        assert starts == [2, 2]

    def compaction(self) -> None:
        """Broker 0 cleans its replica of a compacted topic."""
        cluster = self.cluster
        configs = {"cleanup.policy": "compact"}
        cluster.create_topic("c", assignment={0: [0, 1]}, configs=configs)
        for value in (b"a", b"b"):
            cluster.produce("c", 0, [value], keys=[b"k"])
            cluster.tick_until_idle()
        cluster.clock.advance(LAG_MS)
        cluster.tick_until_idle()
        with self.recorded("cleaner: cleans a log of 32 MiB or more", "broker 0, cleaner"):
            assert cluster.clean(0).retained == 1


def table(driver: Jobs, auto: Jobs, spark: Jobs, both: Jobs) -> list[str]:
    """Return the document's table."""

    def cell(names: list[str]) -> str:
        return f"{len(names)}: {', '.join(names)}" if names else "0"

    rows = [HEAD, "|---|---|---|---|---|"]
    for tick, names in both.items():
        cells = (driver[tick], auto[tick], spark[tick], names)
        rows.append(f"| {tick} | {' | '.join(map(cell, cells))} |")
    return rows


@pytest.mark.usefixtures("interpreted")
def test_the_table_has_the_jobs_of_each_tick(spark: SparkSession, tmp_path: Path) -> None:
    """Each tick of the table is played in each mode; REWRITE=1 replaces the table."""
    modes = {
        "driver": {"execution": "driver"},
        "auto": {"execution": "auto"},
        "spark": {"execution": "spark"},
        "both": {"execution": "spark", "rules.engine": "spark"},
    }
    found = {name: Story(spark, tmp_path / name, config).play() for name, config in modes.items()}
    fetched = "follower: fetches its batch"
    assert (found["spark"][fetched], found["both"][fetched][0]) == (["copy"], "fetch")
    expected = table(**found)
    text = DOCUMENT.read_text(encoding="utf-8")
    [before, rest] = text.split("## Spark jobs of a tick\n")
    lines = rest.splitlines()
    written = [line for line in lines if line.startswith("|")]
    if os.environ.get("REWRITE"):
        kept = [line for line in lines if not line.startswith("|")]
        text = before + "\n".join(["## Spark jobs of a tick", *kept, *expected, ""])
        DOCUMENT.write_text(text, encoding="utf-8")
        written = expected
    assert written == expected, "run this test with REWRITE=1"
