"""The same protocol with the record work in Spark's tasks, and with the rules on Spark."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sparklog.broker.application import Application
from sparklog.config import ClusterConfig
from sparklog.errors import ConfigError
from sparklog.testing import LocalCluster
from tests.broker.states import check_at_rest
from tests.scenario import play, scenarios

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ON_SPARK = {"execution": "spark"}
ALL_ON_SPARK = ON_SPARK | {"rules.engine": "spark"}


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("case", scenarios(), ids=lambda case: case["name"])
def test_scenarios_have_the_same_steps(
    spark: SparkSession, case: dict[str, Any], tmp_path: Path
) -> None:
    """Each scenario has the same steps if Spark runs all rules and all work on records."""
    config = case.get("config", {}) | ALL_ON_SPARK
    play(case, LocalCluster(tmp_path, brokers=case["brokers"], spark=spark, config=config))


def test_one_job_does_all_work_of_a_kind_in_a_tick(spark: SparkSession, tmp_path: Path) -> None:
    """A leader checks all files in one job, a follower copies all in one; idle ticks have none."""
    cluster = LocalCluster(tmp_path, brokers=[0, 1], spark=spark, config=ON_SPARK)
    cluster.create_topic("t", assignment={0: [0, 1]})
    cluster.create_topic("u", assignment={0: [0, 1]})
    large = random.Random(7).randbytes(700_000).hex()
    for text in ("a", large):
        cluster.produce("t", 0, [text.encode()], acks=1)
        cluster.produce("u", 0, [text.encode()], acks=1)
    assert cluster.leader_tick(0).spark_jobs == 1
    report = cluster.follower_tick(1)
    assert (report.spark_jobs, report.files_copied) == (1, 4)
    check_at_rest(cluster, "a", large)
    check_at_rest(cluster, "a", large, topic="u")
    cluster.tick_until_idle()
    ticks = (cluster.leader_tick(0), cluster.follower_tick(1), cluster.controller_tick())
    assert [one.spark_jobs for one in ticks] == [0, 0, 0]


def test_the_driver_does_what_is_not_worth_a_job(spark: SparkSession, tmp_path: Path) -> None:
    """execution=auto: a job takes longer to start than small files take to copy."""
    cluster = LocalCluster(tmp_path, brokers=[0, 1], spark=spark)
    cluster.create_topic("t", assignment={0: [0, 1]})
    cluster.produce("t", 0, [b"a"], acks=1)
    cluster.leader_tick(0)
    report = cluster.follower_tick(1)
    assert (report.spark_jobs, report.files_copied) == (0, 1)
    check_at_rest(cluster, "a")


@pytest.mark.parametrize("key", ["execution", "rules.engine"])
def test_spark_without_a_session_is_refused(key: str, tmp_path: Path) -> None:
    """One line names the key and what to do; no root is created."""
    config = {"cluster.root": str(tmp_path / "c"), key: "spark"}
    brokers = [{"broker.id": 0, "log.dirs": str(tmp_path / "b")}]
    application = ClusterConfig.model_validate(config | {"brokers": brokers})
    wanted = f"configuration key {key} is spark, but this application runs without Spark: "
    with pytest.raises(ConfigError, match=wanted):
        Application(application).start()
    with pytest.raises(ConfigError, match=wanted):
        LocalCluster(tmp_path / "local", config={key: "spark"})
    assert not list(tmp_path.iterdir())
