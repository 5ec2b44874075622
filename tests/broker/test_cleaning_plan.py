"""Cleaning as one Spark job keeps what the driver keeps, and what Kafka's cleaner keeps."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobs.spark_status import jobs_since, next_job
from sparklog.broker import cleaner
from sparklog.maintenance.audit import audit
from sparklog.model import Batch
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog
from sparklog.testing import LocalCluster
from tests.kafka_comparison.cleaning import (
    DELETE_RETENTION_MS,
    ROLL,
    Kept,
    KeyValue,
    cases,
    outcomes,
    without_rolls,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAG_MS = 120_000
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
IN_TASKS = {"execution": "spark", "execution.spark.bytes.per.task": 1}


def started(
    folder: Path, brokers: list[int], spark: SparkSession | None, **config: Any
) -> LocalCluster:
    keys = {name.replace("_", "."): value for name, value in config.items()}
    return LocalCluster(
        folder, brokers=brokers, spark=spark, config=(IN_TASKS if spark else {}) | keys
    )


def write(cluster: LocalCluster, topic: str, records: list[KeyValue]) -> None:
    values = [None if one.value is None else one.value.encode() for one in records]
    cluster.produce(topic, 0, values, keys=[one.key.encode() for one in records], acks=1)


def pass_the_lag(cluster: LocalCluster) -> None:
    cluster.tick_until_idle()
    cluster.clock.advance(LAG_MS)
    cluster.tick_until_idle()


def kept(cluster: LocalCluster, broker: int, topic: str) -> list[Kept]:
    return [
        Kept(
            one.offset, (one.key or b"").decode(), None if one.value is None else one.value.decode()
        )
        for one in cluster.log(broker, topic, 0)
    ]


def batches(cluster: LocalCluster, broker: int, topic: str) -> list[Batch]:
    key = cluster.connection.metadata().partition(topic, 0).key
    return list(RecordLog(Location.of(str(cluster.root / f"broker-{broker}"))).batches(key))


def test_it_keeps_the_records_that_kafka_keeps(spark: SparkSession, tmp_path: Path) -> None:
    """All recorded cases, a topic each; every cleaned log is one job."""
    cluster = started(tmp_path, [0], spark)
    names = {case: f"c{number}" for number, case in enumerate(sorted(cases()))}
    configs = COMPACT | {"delete.retention.ms": str(DELETE_RETENTION_MS)}
    for name in names.values():
        cluster.create_topic(name, assignment={0: [0]}, configs=configs)
    cluster.tick_until_idle()
    for number in range(max(map(len, cases().values()))):
        phases = {names[case]: of[number] for case, of in cases().items() if number < len(of)}
        for topic, phase in phases.items():
            write(cluster, topic, phase)
            write(cluster, topic, [KeyValue(ROLL, str(number))])
        pass_the_lag(cluster)
        first = next_job(spark)
        assert cluster.clean(0).partitions == len(phases)
        jobs = [job.name for job in jobs_since(spark, first)]
        assert jobs == ["broker 0, cleaner: clean"] * len(phases)
    for case, topic in names.items():
        assert without_rolls(kept(cluster, 0, topic)) == outcomes()[case], case
    assert audit(cluster.connection) == []


def history(cluster: LocalCluster, chance: random.Random) -> None:
    """Records of two leader epochs in many batches, of few and of many keys, with tombstones."""
    for epoch in range(2):
        for number in range(10):
            few = [f"few-{number % 3}"] * 20
            keys = few if number < 5 else [f"k{chance.randrange(300)}" for _ in range(20)]
            write(
                cluster,
                "c",
                [
                    KeyValue(one, None if chance.random() < 0.1 else f"{epoch}-{number}")
                    for one in keys
                ],
            )
            cluster.tick_until_idle()
        cluster.crash(epoch)
        cluster.fence(epoch)
        cluster.tick_until_idle()
        cluster.restart(epoch)
        cluster.tick_until_idle()


def test_its_batches_are_those_of_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several passes and commits: headers, records and the clean parts are equal.

    The last pass has no record left in some batches, and leaves others as they are.
    """
    monkeypatch.setattr(cleaner, "_MOST_BATCHES", 7)
    outcome = []
    has_empty_batch = False
    for name, session in (("driver", None), ("spark", spark)):
        cluster = started(tmp_path / name, [0, 1], session, log_merger_max_batch_bytes=2_500)
        configs = COMPACT | {"delete.retention.ms": "1"}
        cluster.create_topic("c", assignment={0: [0, 1]}, configs=configs)
        cluster.tick_until_idle()
        chance = random.Random(7)
        found: list[object] = []
        for _ in range(2):
            history(cluster, chance)
            pass_the_lag(cluster)
            found.append(cluster.clean(0))
            found.append(kept(cluster, 0, "c"))
            headers = ("base_offset", "last_offset_delta", "leader_epoch", "record_count")
            rows = [[getattr(one, field) for field in headers] for one in batches(cluster, 0, "c")]
            found.append(rows)
            has_empty_batch = any(row[-1] == 0 for row in rows)
        assert audit(cluster.connection) == []
        files = {one.path for one in batches(cluster, 0, "c")}
        outcome.append(found)
        assert all((tmp_path / name / "broker-0" / "log" / path).exists() for path in files)
    assert outcome[0] == outcome[1]
    assert has_empty_batch


def test_a_job_that_fails_is_done_in_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    """A damaged file fails the job; the driver finds it, and the replica is repaired."""
    cluster = started(tmp_path, [0, 1], spark)
    for topic in ("c", "d"):
        cluster.create_topic(topic, assignment={0: [0, 1]}, configs=COMPACT)
    cluster.tick_until_idle()
    for topic in ("c", "d"):
        write(cluster, topic, [KeyValue("k", "1"), KeyValue("k", "2")])
    pass_the_lag(cluster)
    [damaged] = batches(cluster, 0, "c")
    Path(cluster.root, "broker-0", "log", damaged.path).write_bytes(b"?")
    assert cluster.clean(0).partitions == 1
    assert kept(cluster, 0, "d") == [Kept(1, "k", "2")]
    for _ in range(3):
        cluster.clock.advance(10_000)
        cluster.tick_until_idle()
    assert len(kept(cluster, 0, "c")) == 2
    assert audit(cluster.connection) == []


@pytest.mark.parametrize("point", ["files", "producer_state", "log_commit", "cleaner_checkpoint"])
def test_a_crash_leaves_a_log_that_the_next_run_cleans(
    spark: SparkSession, tmp_path: Path, point: str
) -> None:
    """The files of later commits are removed, if the process can."""
    cluster = started(tmp_path, [0, 1], spark)
    cluster.create_topic("c", assignment={0: [0, 1]}, configs=COMPACT)
    cluster.tick_until_idle()
    for number in range(6):
        write(cluster, "c", [KeyValue(f"k{number % 2}", str(number))])
        cluster.tick_until_idle()
    pass_the_lag(cluster)
    before = kept(cluster, 0, "c")
    cluster.clean(0, stop_after=point)
    cluster.restart(0)
    cluster.tick_until_idle()
    after = before[4:]
    assert kept(cluster, 0, "c") == (before if point in ("files", "producer_state") else after)
    assert audit(cluster.connection) == []
    pass_the_lag(cluster)
    cluster.clean(0)
    assert kept(cluster, 0, "c") == after
