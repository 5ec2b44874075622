"""Rules and record work both on Spark: a fetch is one job, with the outcome of rule and copies."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from sparklog.broker.engines import execution_of, rules_of
from sparklog.broker.following.fetch_plan import FetchPlan, fetch_plan
from sparklog.broker.tick import TickReport
from sparklog.config import Settings
from sparklog.model import Batch, new_batch_path
from sparklog.protocol.driver_rules import DriverRules
from sparklog.protocol.rules import SparkRules
from sparklog.storage import execution as executing
from sparklog.storage.batch_files import file_checksum
from sparklog.storage.copying import Copied, Copy
from sparklog.storage.execution import DriverExecution, SparkExecution
from sparklog.storage.location import Location
from sparklog.storage.record_log import index_table
from sparklog.testing import LocalCluster
from tests.broker.states import check_at_rest, error, log
from tests.storage.batches import batch_of_file, write_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Start = Callable[..., LocalCluster]
Follow = Callable[..., TickReport]

ALL_ON_SPARK = {"execution": "spark", "rules.engine": "spark"}


class Jobs:
    """The jobs that Spark itself has run."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext._jsc.sc()
        self._seen = self._count()

    def _count(self) -> int:
        self._context.listenerBus().waitUntilEmpty()
        return int(self._context.statusStore().jobsList(None).size())

    def started(self) -> list[str]:
        """Return the descriptions of the jobs since the last call, in order."""
        count = self._count()
        newest_first = self._context.statusStore().jobsList(None)
        found = [newest_first.apply(at) for at in range(count - self._seen)]
        self._seen = count
        return [str(job.description().get()) for job in reversed(found)]


@pytest.fixture
def jobs(spark: SparkSession) -> Jobs:
    return Jobs(spark)


def of_role(jobs: Jobs, role: str, report: TickReport) -> list[str]:
    """Return the names of the jobs of a tick; all are of this role, and the tick counts them."""
    started = jobs.started()
    assert report.spark_jobs == len(started)
    assert all(name.startswith(f"{role}: ") for name in started), started
    return [name.removeprefix(f"{role}: ") for name in started]


def _crash(_: object) -> None:
    """End the worker of a task at once."""
    os._exit(1)


def _fail(_: object) -> None:
    raise RuntimeError("the task fails")


class Leaders(NamedTuple):
    """The logs of leaders, and a follower's position in each partition, without its limits."""

    logs: list[tuple[Location, list[Batch]]]
    positions: list[dict[str, Any]]


@pytest.fixture(scope="module")
def leaders(tmp_path_factory: pytest.TempPathFactory) -> Leaders:
    """Logs of random batches; followers at the start of a batch, some of them diverged."""
    chance = random.Random(5)
    made = Leaders([], [])
    for leader in range(2):
        location = Location.of(str(tmp_path_factory.mktemp(f"leader-{leader}") / "log"))
        batches: list[Batch] = []
        for partition in range(leader * 20, leader * 20 + 20):
            slice_ = random_batches(location, chance, partition)
            made.positions.append(random_position(chance, slice_))
            batches += slice_
        made.logs.append((location, batches))
    return made


def random_batches(location: Location, chance: random.Random, partition: int) -> list[Batch]:
    """Write adjacent batches, of which some files are missing or damaged then."""
    batches: list[Batch] = []
    offset = epoch = chance.choice([0, 0, 0, 7])
    for _ in range(chance.randint(1, 6)):
        values = [chance.randbytes(chance.choice([5, 50, 900]))] * chance.randint(1, 3)
        file = write_file(location, values)
        epoch += chance.choice([0, 0, 0, 1])
        batches.append(batch_of_file(file, offset, partition=partition, leader_epoch=epoch))
        offset = batches[-1].next_offset
        harm = chance.randint(1, 12)
        path = Path(location.uri, file.path)
        if harm == 1:
            path.unlink()
        elif harm == 2:
            path.write_bytes(path.read_bytes()[:-1] + b"?")
    return batches


def random_position(chance: random.Random, batches: Sequence[Batch]) -> dict[str, Any]:
    """Return a position at the start of a batch, or beyond the last one."""
    at = chance.randint(0, len(batches))
    before = batches[at - 1].leader_epoch if at else None
    return {
        "topic_id": batches[0].topic_id,
        "partition": batches[0].partition,
        "fetch_offset": batches[at].base_offset if at < len(batches) else 99,
        "last_fetched_epoch": chance.choice([before, before, before, 9]),
        "leader_epoch": chance.choice([9, 9, 8, batches[0].leader_epoch]),
        "last_served": chance.randint(0, 3),
    }


class TestPlanAgainstRuleAndCopies:
    """In bulk: 40 partitions of two leaders with sound, damaged and missing files."""

    @pytest.fixture
    def plan(self, spark: SparkSession, tmp_path: Path) -> FetchPlan:
        settings = Settings.model_validate(ALL_ON_SPARK | {"execution.spark.bytes.per.task": 4096})
        rules, execution = rules_of(settings, spark), execution_of(settings, spark)
        plan = fetch_plan(rules, execution, Location.of(str(tmp_path / "log")))
        assert plan is not None
        return plan

    @pytest.mark.parametrize(
        ("max_bytes", "max_total_bytes"),
        [
            (1 << 30, 1 << 30),
            (4_000, 30_000),
            (1, 1),
        ],
    )
    def test_has_the_same_batches_limits_and_failures(
        self,
        leaders: Leaders,
        plan: FetchPlan,
        jobs: Jobs,
        tmp_path: Path,
        max_bytes: int,
        max_total_bytes: int,
    ) -> None:
        """The same rows in the same order, equal files, equal failures; no other file is left."""
        limits = {"max_bytes": max_bytes, "max_total_bytes": max_total_bytes}
        positions = [one | limits for one in leaders.positions]
        given = [(location, index_table(batches)) for location, batches in leaders.logs]
        found = plan.run(positions, given, max_total_bytes)
        assert jobs.started() == ["fetch"]

        batches = [batch for _, of in leaders.logs for batch in of]
        rows = DriverRules().run("fetch", positions=positions, batches=index_table(batches))
        assert found is not None
        assert [(*one.key, one.base_offset, one.straddles) for one in found] == [
            (row["topic_id"], row["partition"], row["base_offset"], False) for row in rows
        ]
        target, other = (Location.of(str(tmp_path / name)) for name in ("log", "other"))
        sources = {batch.path: (location, batch) for location, of in leaders.logs for batch in of}
        copies = [
            Copy(location, batch.path, other, new_batch_path(), batch.size_bytes, batch.checksum)
            for location, batch in (sources[row["path"]] for row in rows)
        ]
        expected = DriverExecution().copy(copies)
        outcomes = [one.copied or Copied("", "not tried") for one in found]
        assert [one.fault for one in outcomes] == [one.fault for one in expected]
        sound = [
            (one.path, copy.checksum)
            for one, copy in zip(outcomes, copies, strict=True)
            if one.fault is None
        ]
        assert all(file_checksum(target, path) == checksum for path, checksum in sound)
        left = {str(one.relative_to(target.uri)) for one in Path(target.uri).rglob("*.parquet")}
        assert left == {path for path, _ in sound}
        if max_bytes == max_total_bytes == 1:
            assert len(found) == 1

    def test_has_tasks_by_bytes(
        self, leaders: Leaders, plan: FetchPlan, spark: SparkSession, jobs: Jobs
    ) -> None:
        """Tasks get about equal bytes of the files, and at most four for each that runs at once."""
        limits = {"max_bytes": 1 << 30, "max_total_bytes": 1 << 30}
        positions = [one | limits for one in leaders.positions]
        given = [(location, index_table(batches)) for location, batches in leaders.logs]
        assert plan.run(positions, given, 1 << 30)
        assert jobs.started() == ["fetch"]
        newest = spark.sparkContext._jsc.sc().statusStore().jobsList(None).apply(0)
        # The tasks of the stage that copies, in addition to one for each input.
        assert newest.numTasks() >= 8

    @pytest.mark.parametrize("other", [{"execution": "auto"}, {"rules.engine": "duckdb"}])
    def test_needs_both_engines(
        self, spark: SparkSession, tmp_path: Path, other: dict[str, str]
    ) -> None:
        settings = Settings.model_validate(ALL_ON_SPARK | other)
        rules, execution = rules_of(settings, spark), execution_of(settings, spark)
        assert fetch_plan(rules, execution, Location.of(str(tmp_path))) is None


def test_the_jobs_of_each_tick(spark: SparkSession, tmp_path: Path, jobs: Jobs) -> None:
    """Decision 28 lists them. Their number does not depend on partitions, requests or batches."""
    leader, follower = "broker 0, leader", "broker 1, follower"
    cluster = LocalCluster(tmp_path, brokers=[0, 1], spark=spark, config=ALL_ON_SPARK)
    cluster.create_topic("t", assignment={partition: [0, 1] for partition in range(3)})
    cluster.leader_tick(0)
    jobs.started()
    pending = [cluster.produce("t", number % 3, [b"a"] * 3) for number in range(6)]
    assert of_role(jobs, leader, cluster.leader_tick(0)) == [
        "check",
        "request errors",
        "assigned offsets",
        "delayed operations",
    ]
    report = cluster.follower_tick(1)
    assert report.files_copied == 6
    # The first and the third are those of a new leader epoch.
    assert of_role(jobs, follower, report) == [
        "truncation point",
        "fetch",
        "epoch entries",
        "follower high watermark",
    ]
    assert of_role(jobs, leader, cluster.leader_tick(0)) == [
        "follower progress",
        "high watermark",
        "completed operations",
    ]
    assert {error(one) for one in pending} == {"NONE"}
    cluster.tick_until_idle()
    jobs.started()
    idle = cluster.leader_tick(0), cluster.follower_tick(1), cluster.controller_tick()
    assert [one.spark_jobs for one in idle] == [0, 0, 0]
    assert jobs.started() == []

    for partition in range(3):
        cluster.produce("t", partition, [b"lost"], acks=1)
    cluster.leader_tick(0)
    cluster.crash(0)
    cluster.clock.advance(cluster.settings.broker_session_timeout_ms + 1)
    jobs.started()
    assert of_role(jobs, "broker 1, controller", cluster.controller_tick())[:4] == [
        "silent brokers",
        "isr fence",
        "leader election",
        "eligible replicas",
    ]
    for partition in range(3):
        cluster.produce("t", partition, [b"kept"], acks=1)
    cluster.leader_tick(1)
    cluster.restart(0)
    jobs.started()
    assert of_role(jobs, "broker 1, controller", cluster.controller_tick()) == ["leader election"]
    report = cluster.follower_tick(0)
    assert report.files_copied == 3
    # One job finds where all logs are to be cut, and one fetches what follows.
    assert of_role(jobs, "broker 0, follower", report) == [
        "truncation point",
        "fetch",
        "epoch entries",
        "follower high watermark",
    ]
    assert log(cluster, 0) == [*"aaaaaa", "kept"]


class TestTick:
    """A follower whose fetch is one plan; all other rules run in the driver, to save jobs."""

    @pytest.fixture
    def cluster(self, start: Start) -> LocalCluster:
        return start(0, 1, assignment={partition: [0, 1] for partition in range(3)})

    @pytest.fixture
    def follow(self, spark: SparkSession) -> Follow:
        """Let the fetches of broker 1 be one plan, and run a tick of it."""

        def follow(cluster: LocalCluster, stop_after: str | None = None) -> TickReport:
            fetcher = cluster.brokers[1]._followers[0]._fetcher
            target = cluster.brokers[1]._followers[0]._root.log.location
            fetcher._plan = FetchPlan(SparkRules(spark), SparkExecution(spark, 0, 1 << 20), target)
            return cluster.follower_tick(1, stop_after=stop_after)

        return follow

    def test_a_file_that_cannot_be_copied_stops_its_partition_only(
        self, cluster: LocalCluster, follow: Follow
    ) -> None:
        """Partition 0 has a damaged second batch, 1 misses its first; what follows is discarded."""
        for partition in range(3):
            for text in (b"a", b"b", b"c"):
                cluster.produce("t", partition, [text], acks=1)
        cluster.leader_tick(0)
        keys = [cluster.connection.metadata().partition("t", number).key for number in range(2)]
        batches = [cluster.brokers[0]._leaders[0]._root.log.batches(key) for key in keys]
        leaders = cluster.root / "broker-0" / "log"
        damaged, missing = leaders / batches[0][1].path, leaders / batches[1][0].path
        contents = damaged.read_bytes(), missing.read_bytes()
        damaged.write_bytes(contents[0][:-1] + b"?")
        missing.unlink()
        report = follow(cluster)
        assert (report.spark_jobs, report.files_copied) == (1, 9)
        assert [log(cluster, 1, partition=one) for one in range(3)] == [["a"], [], list("abc")]
        assert len(list((cluster.root / "broker-1" / "log" / "_inbox").glob("*.parquet"))) == 4
        damaged.write_bytes(contents[0])
        missing.write_bytes(contents[1])
        # The delay between attempts increases.
        cluster.clock.advance(30_000)
        check_at_rest(cluster, "a", "b", "c")
        assert [log(cluster, 1, partition=one) for one in range(3)] == [list("abc")] * 3

    @pytest.mark.parametrize("point", ["copy", "log_commit"])
    def test_a_follower_that_dies_copies_again(
        self, cluster: LocalCluster, follow: Follow, point: str
    ) -> None:
        """A file that no commit names is copied again, under another name."""
        pending = cluster.produce("t", 0, [b"a", b"b"])
        cluster.leader_tick(0)
        follow(cluster, stop_after=point)
        cluster.restart(1)
        cluster.tick_until_idle()
        assert error(pending) == "NONE"
        check_at_rest(cluster, "a", "b")

    def test_partitions_take_turns(self, start: Start, follow: Follow) -> None:
        """replica.fetch.response.max.bytes is for all partitions, and allows one batch."""
        cluster = start(
            0, 1, assignment={n: [0, 1] for n in range(2)}, replica_fetch_response_max_bytes=1
        )
        for partition in (0, 0, 1):
            cluster.produce("t", partition, [b"v"], acks=1)
        cluster.leader_tick(0)
        copied = []
        for _ in range(3):
            assert follow(cluster).files_copied == 1
            copied.append([len(log(cluster, 1, partition=partition)) for partition in range(2)])
        assert copied == [[1, 0], [1, 1], [2, 1]]

    @pytest.mark.parametrize("end", [_crash, _fail])
    def test_a_job_that_fails_is_replaced_by_the_rule_and_copies(
        self,
        cluster: LocalCluster,
        follow: Follow,
        jobs: Jobs,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        end: Any,
    ) -> None:
        """Tasks raise, or their workers die: one warning, and the files are copied."""
        cluster.produce("t", 0, [b"a"], acks=1)
        cluster.leader_tick(0)
        monkeypatch.setattr(executing, "_copied", end)
        assert follow(cluster).files_copied == 1
        assert jobs.started() == ["broker 1, follower: fetch"]
        assert len([one for one in caplog.records if "job failed" in one.message]) == 1
        check_at_rest(cluster, "a")

    def test_a_batch_that_has_to_be_cut_is_left_to_the_driver(
        self, cluster: LocalCluster, follow: Follow
    ) -> None:
        """The follower's log ends inside a batch of the leader's. Later ones depend on the cut."""
        cluster.produce("t", 0, [b"a", b"b"], acks=1)
        cluster.tick_until_idle()
        key = cluster.connection.metadata().partition("t", 0).key
        cluster.brokers[1]._followers[0]._truncate({key: 1}, [], now_ms=0)
        cluster.produce("t", 0, [b"c"], acks=1)
        cluster.leader_tick(0)
        assert follow(cluster).spark_jobs == 0
        check_at_rest(cluster, "a", "b", "c")

    def test_a_fetch_that_may_wait_is_left_to_the_driver(
        self, start: Start, follow: Follow
    ) -> None:
        """Nothing is copied before replica.fetch.wait.max.ms."""
        cluster = start(0, 1, replica_fetch_min_bytes=1 << 20)
        cluster.produce("t", 0, [b"a"], acks=1)
        cluster.leader_tick(0)
        report = follow(cluster)
        assert (report.spark_jobs, report.files_copied) == (0, 0)
        cluster.clock.advance(500)
        report = follow(cluster)
        assert (report.spark_jobs, report.files_copied) == (0, 1)
        check_at_rest(cluster, "a")

    def test_a_partition_that_backs_off_is_left_out(
        self, cluster: LocalCluster, follow: Follow
    ) -> None:
        """After two failed copies nothing of it is in the plan; without others there is no job."""
        cluster.produce("t", 0, [b"a"], acks=1)
        cluster.leader_tick(0)
        key = cluster.connection.metadata().partition("t", 0).key
        [batch] = cluster.brokers[0]._leaders[0]._root.log.batches(key)
        (cluster.root / "broker-0" / "log" / batch.path).unlink()
        assert [follow(cluster).spark_jobs for _ in range(3)] == [1, 1, 0]
