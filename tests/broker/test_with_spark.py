"""The same protocol with Spark's tasks copying the files, and with the rules on Spark."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sparklog.storage import copying
from sparklog.testing import LocalCluster
from tests.broker.states import check_at_rest
from tests.scenario import play, scenarios

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("case", scenarios()[:3], ids=lambda case: case["name"])
def test_scenarios_have_the_same_steps(
    spark: SparkSession, case: dict[str, Any], tmp_path: Path
) -> None:
    """A scenario has the same steps if Spark's tasks copy the files."""
    play(case, LocalCluster(tmp_path, brokers=case["brokers"], spark=spark))


def test_a_scenario_with_rules_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    """rules.engine=spark: no rule runs on DuckDB."""
    case = scenarios()[1]
    config = {"rules.engine": "spark"}
    play(case, LocalCluster(tmp_path, brokers=case["brokers"], spark=spark, config=config))


def test_one_job_copies_all_that_a_tick_fetches(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick without anything to fetch starts no job. Here tasks count as if they ran on
    executors.
    """
    monkeypatch.setattr(copying, "_has_executors", lambda _: True)
    monkeypatch.setattr(copying, "_BYTES_PER_JOB", 1 << 20)
    cluster = LocalCluster(tmp_path, brokers=[0, 1], spark=spark)
    cluster.create_topic("t", assignment={0: [0, 1]})
    cluster.create_topic("u", assignment={0: [0, 1]})
    large = random.Random(7).randbytes(700_000).hex()
    for text in ("a", large):
        cluster.produce("t", 0, [text.encode()], acks=1)
        cluster.produce("u", 0, [text.encode()], acks=1)
    assert cluster.leader_tick(0).spark_jobs == 0
    report = cluster.follower_tick(1)
    assert (report.spark_jobs, report.files_copied) == (1, 4)
    assert cluster.follower_tick(1).spark_jobs == 0
    check_at_rest(cluster, "a", large)
    check_at_rest(cluster, "a", large, topic="u")


def test_the_driver_copies_what_is_not_worth_a_job(spark: SparkSession, tmp_path: Path) -> None:
    """A job takes longer to start than small files take to copy."""
    cluster = LocalCluster(tmp_path, brokers=[0, 1], spark=spark)
    cluster.create_topic("t", assignment={0: [0, 1]})
    cluster.produce("t", 0, [b"a"], acks=1)
    cluster.leader_tick(0)
    report = cluster.follower_tick(1)
    assert (report.spark_jobs, report.files_copied) == (0, 1)
    check_at_rest(cluster, "a")
