"""The costs of ticks, in counts that do not depend on the machine: files, bytes, Spark jobs,
requests.

Each number is a limit that was just reached when it was written: if the count decreases, the limit
is to be lowered. The number of commits per tick is tested in tests/broker/test_counts.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.counts import Watch, spark_jobs
from benchmarks.figures import Figures
from benchmarks.request_list import by_table, listed
from benchmarks.s3_server import Logged
from benchmarks.s3_store import running_store
from benchmarks.works.storage_requests import BUSY, IDLE, ROUND, ROUND_LIST, SEND, Counted
from sparklog.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BROKERS = (0, 1, 2)

MOST_COMMITS, MOST_FILES = 24, 39
"""Files of a round in which all three brokers take requests and copy, until it is answered."""
MOST_BYTES = 55_000
"""Bytes of a batch of one record, on three brokers with all tables that it changes."""
MOST_IDLE_LISTS, MOST_IDLE_GETS, MOST_BUSY_PUTS, MOST_KEPT_PUTS = 0, 15.34, 30, 20
"""Requests to a store: by a broker's idle tick, by all brokers for a request of four batches, and
for the tables that are written every few seconds only.
"""


def cluster_at_rest(folder: Path, partitions: int, spark: SparkSession | None) -> LocalCluster:
    cluster = LocalCluster(folder, BROKERS, spark=spark)
    assignment = {one: [(one + other) % 3 for other in BROKERS] for one in range(partitions)}
    cluster.create_topic("t", assignment=assignment, configs={"min.insync.replicas": "2"})
    for partition in range(partitions):
        cluster.produce("t", partition, [b"a record"])
    cluster.tick_until_idle()
    return cluster


@pytest.mark.parametrize("partitions", [1, 7])
def test_an_idle_tick_writes_no_file(tmp_path: Path, partitions: int) -> None:
    """An idle tick writes no file."""
    cluster = cluster_at_rest(tmp_path, partitions, None)
    watch = Watch(tmp_path)
    for broker in BROKERS:
        cluster.leader_tick(broker)
        cluster.follower_tick(broker)
    cluster.controller_tick()
    written = watch.written()
    assert (written.files.total(), written.commits.total()) == (0, 0)


@pytest.mark.parametrize("partitions", [3, 9])
def test_the_files_of_a_busy_round_are_its_batches_and_a_fixed_number_of_commits(
    tmp_path: Path, partitions: int
) -> None:
    """Every broker leads a third and follows the rest; partitions and batches add their own files
    on three replicas, and no other files.
    """
    cluster = cluster_at_rest(tmp_path, partitions, None)
    pending = [cluster.produce("t", one, [b"x" * 1000] * 10) for one in range(partitions)]
    watch = Watch(tmp_path)
    cluster.tick_until_idle()
    assert all(one.response is not None and one.response.error == "NONE" for one in pending)
    written = watch.written()
    batches = [name for name in written.files if name.endswith("/log")]
    # The leaders' own files were already in their inboxes: two copies of each are new. Each commit
    # has a second copy.
    copies = sum(written.files[name] - 2 * written.commits[name] for name in batches)
    assert copies == 2 * partitions
    assert written.commits.total() <= MOST_COMMITS
    assert written.files.total() - copies <= MOST_FILES


def test_the_bytes_that_a_small_batch_costs_beside_its_own_are_bounded(tmp_path: Path) -> None:
    """The bytes that a small batch writes in addition to its own are limited."""
    cluster = cluster_at_rest(tmp_path, 1, None)
    watch = Watch(tmp_path)
    cluster.produce("t", 0, [b"x"])
    cluster.tick_until_idle()
    assert watch.written().bytes.total() <= MOST_BYTES


def test_small_copies_are_one_spark_job_a_follower(tmp_path: Path, spark: SparkSession) -> None:
    """A follower copies small batches in one Spark job."""
    cluster = cluster_at_rest(tmp_path, 4, spark)
    for partition in range(4):
        cluster.produce("t", partition, [b"x"])
    before = spark_jobs(spark)
    cluster.tick_until_idle()
    # Each follows two of three leaders, and copies from both in one job.
    assert spark_jobs(spark) - before <= len(BROKERS)
    before = spark_jobs(spark)
    for broker in BROKERS:
        cluster.leader_tick(broker)
        cluster.follower_tick(broker)
    assert spark_jobs(spark) == before


def test_requests_to_a_store_are_bounded(tmp_path: Path) -> None:
    """The numbers of requests to a store are limited."""
    figures = Figures()
    with running_store(tmp_path / "log") as store:
        Counted(store, "bucket", 4).measure(figures)

    def count(what: str, *kinds: str) -> float:
        found = [figures.get(f"{what}: {kind}", "4 partitions") for kind in kinds]
        return sum(one.median for one in found if one is not None)

    assert count(IDLE, "PUT", "DELETE") == 0
    assert count(IDLE, "LIST") <= MOST_IDLE_LISTS
    assert count(IDLE, "GET", "HEAD") <= MOST_IDLE_GETS
    assert count(BUSY, "PUT") <= MOST_BUSY_PUTS
    # Checkpoints and the removal of requests occur in some rounds only.
    assert 0 < count(ROUND, "PUT") <= count(BUSY, "PUT") + count(SEND, "PUT") + MOST_KEPT_PUTS
    names, *lines = figures.tables[ROUND_LIST]
    assert names.startswith("number,step,")
    assert len(lines) == count(ROUND, "PUT", "GET", "LIST", "HEAD", "DELETE")
    assert by_table(figures.tables[ROUND_LIST])[-1].startswith(
        f"| all | | {count(ROUND, 'PUT'):.0f} | {count(ROUND, 'GET'):.0f} |"
    )


def test_a_list_of_requests_is_summed_by_table_and_file() -> None:
    """A list of requests is summed up by table and kind of file."""
    version, batch = f"{7:020}", "0123456789abcdef0123456789abcdef"
    paths = [
        ("PUT", f"broker-0/log/_inbox/{batch}.0123456789ab.parquet", 200),
        ("GET", f"broker-2/log/_delta_log/{version}.json", 404),
        ("GET", f"broker-1/log/_delta_log/{version}.json", 200),
        ("PUT", f"broker-1/log/_delta_log/{version}.json", 412),
        ("GET", "cluster/brokers/_delta_log/_last_checkpoint", 200),
        ("HEAD", "cluster/brokers/part-0001ab0c-4444-5555-6666-777788889999.parquet", 200),
    ]
    log = [
        Logged(1.5, "client", method, f"bucket/{key}", status, 9) for method, key, status in paths
    ]
    lines = listed([("send", log[:1]), ("answer", log[1:])])
    assert lines[1] == (
        "1,send,1.5,client,PUT,broker-0/log/_inbox/01234567~.0123456789ab.parquet,200,9"
    )
    assert lines[-1].split(",")[5] == "cluster/brokers/part-0001ab0c~.parquet"
    assert by_table(lines)[2:] == [
        "| broker/log | commit | 1 | 2 |  |  |  | 1 | 1 |",
        "| broker/log | batch file | 1 |  |  |  |  |  |  |",
        "| cluster/brokers | checkpoint pointer |  | 1 |  |  |  |  |  |",
        "| cluster/brokers | data file |  |  |  | 1 |  |  |  |",
        "| all | | 2 | 3 |  | 1 |  | 1 | 1 |",
    ]
