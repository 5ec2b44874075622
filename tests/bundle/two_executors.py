"""A Spark application with two executors, which do the record work of brokers.

`spark-submit two_executors.py ZIP FOLDER`, on two executors of one core each, without --py-files:
the driver has the package from the bundle's zip, and the executors get it in the course of the
application. Each part prints what it has seen as one line, "PART: JSON"; the tests assert it.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

ZIP, FOLDER = sys.argv[1:]
sys.path.insert(0, ZIP)

from sparklog import Admin, Application, ClusterConfig  # noqa: E402
from sparklog.cli import main as command  # noqa: E402
from sparklog.clock import wait_until  # noqa: E402
from sparklog.errors import ConfigError  # noqa: E402
from sparklog.logger import ROOT, event_of  # noqa: E402
from sparklog.maintenance.audit import audit  # noqa: E402
from sparklog.model import Batch  # noqa: E402
from sparklog.session import spark_session  # noqa: E402
from sparklog.storage.record_log import RecordLog  # noqa: E402
from sparklog.testing import LocalCluster  # noqa: E402

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from typing_extensions import Self

PARTITIONS = range(8)
IN_TASKS = {"execution": "spark", "execution.spark.bytes.per.task": 1}
MERGER_LAG_MS = 120_000
PATIENCE_MS = 120_000
CHUNK_BYTES = 256 << 10

Facts = dict[str, Any]


class Task(NamedTuple):
    """An attempt of a task, as Spark's own store of its state has it."""

    number: int
    attempt: int
    executor: str
    status: str


class Jobs:
    """The jobs that Spark has run since this object was created, without the job's role."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext._jsc.sc()
        self._before = {job.jobId() for job in self._all()}

    def tasks(self) -> list[tuple[str, list[Task]]]:
        """Return the name of each job, such as "copy", and its tasks, the oldest job first."""
        self._context.listenerBus().waitUntilEmpty()
        return self.tasks_so_far()

    def tasks_so_far(self) -> list[tuple[str, list[Task]]]:
        """Return the same without waiting for the newest events."""
        new = [job for job in self._all() if job.jobId() not in self._before]
        return [(_action(job), self._tasks(job)) for job in reversed(new)]

    def _all(self) -> list[Any]:
        return _listed(self._context.statusStore().jobsList(None))

    def _tasks(self, job: Any) -> list[Task]:
        store = self._context.statusStore()
        return [
            Task(task.index(), task.attempt(), task.executorId(), task.status())
            for stage in _listed(job.stageIds())
            for task in _listed(
                store.taskList(stage, store.lastStageAttempt(stage).attemptId(), 1000)
            )
        ]


def _action(job: Any) -> str:
    description = job.description()
    return str(description.get()).rpartition(": ")[2] if description.isDefined() else ""


def _listed(sequence: Any) -> list[Any]:
    return [sequence.apply(number) for number in range(sequence.size())]


class Events(logging.Handler):
    """The warnings of the package."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.warnings: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.warnings.append(event_of(record))

    def __enter__(self) -> Self:
        logging.getLogger(ROOT).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger(ROOT).removeHandler(self)


def without_the_package(spark: SparkSession, folder: Path) -> Facts:
    """Start brokers while the executors lack the package."""
    with Events() as events:
        given = {"execution.spark.min.bytes": 0}
        cluster = LocalCluster(folder / "auto", brokers=[0, 1], spark=spark, config=given)
    cluster.create_topic("t", assignment={0: [0, 1]})
    pending = cluster.produce("t", 0, [b"a"])
    jobs = Jobs(spark)
    cluster.tick_until_idle()
    refused = ""
    brokers = [{"broker.id": 0, "log.dirs": str(folder / "refused" / "broker-0")}]
    root = str(folder / "refused" / "cluster")
    config = {"cluster.root": root, "execution": "spark", "brokers": brokers}
    try:
        Application(ClusterConfig.model_validate(config), spark).start()
    except ConfigError as error:
        refused = str(error)
    return {
        "warnings": events.warnings,
        "error": pending.response and pending.response.error,
        "jobs": jobs.tasks()[:-1],
        "refused": refused,
        "created": (folder / "refused").exists(),
    }


class Executor(NamedTuple):
    """An executor: its id, its JVM's process id, its folder and its copy of the package."""

    id: str
    process: int
    folder: str
    package: str
    rules: int


def executors(spark: SparkSession) -> list[Executor]:
    """Return the executors that run tasks; a standalone executor's folder is named by its id."""

    def seen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        import sparklog
        from sparklog.protocol.rules import rule_names

        for batch in batches:
            yield pa.RecordBatch.from_arrays(
                [
                    batch.column("process"),
                    pa.array([str(Path.cwd())] * batch.num_rows),
                    pa.array([str(Path(sparklog.__file__).absolute())] * batch.num_rows),
                    pa.array([len(rule_names())] * batch.num_rows),
                ],
                ["process", "folder", "package", "rules"],
            )

    # The process id of the JVM in which a task runs: Java's method is called once for each row.
    process = "reflect('java.lang.ProcessHandle', 'current') AS process"
    schema = "process string, folder string, package string, rules bigint"
    frame = spark.range(0, 4, 1, 4).selectExpr(process).mapInArrow(seen, schema)
    found = {
        Executor(Path(row.folder).name, int(row.process), row.folder, row.package, row.rules)
        for row in frame.collect()
    }
    return sorted(found)


def record_work(spark: SparkSession, folder: Path) -> Facts:
    """Run the same history in tasks and in the driver, and compare all that it has left."""
    merger = {"log.merger.min.batches": 2}
    in_driver = LocalCluster(folder / "driver", config=merger)
    in_tasks = LocalCluster(folder / "tasks", spark=spark, config=merger | IN_TASKS)
    jobs = Jobs(spark)
    with Events() as events:
        merged = [history(cluster) for cluster in (in_driver, in_tasks)]
    return {
        "jobs": jobs.tasks(),
        "warnings": events.warnings,
        "merged": merged,
        "is_equal": state(in_driver) == state(in_tasks),
        "batches of the follower that was away": [one.record_count for one in batches(in_tasks, 2)],
        "findings": [str(one) for one in audit(in_tasks.connection, verify_files=True)],
    }


def history(cluster: LocalCluster) -> tuple[int, int]:
    """Produce, merge while a follower is away, and let it return: it stands in merged batches.

    Returns the numbers of batches before and after the merge.
    """
    cluster.create_topic("t", assignment={one: [0, 1, 2] for one in PARTITIONS})
    produce(cluster, b"a", b"b")
    cluster.crash(2)
    cluster.fence(2)
    produce(cluster, b"c", b"d")
    cluster.clock.advance(MERGER_LAG_MS)
    cluster.tick_until_idle()
    merged = cluster.merge(0)
    cluster.restart(2)
    cluster.tick_until_idle()
    return merged


def produce(cluster: LocalCluster, *values: bytes) -> None:
    for value in values:
        for partition in PARTITIONS:
            cluster.produce("t", partition, [b"%d %s" % (partition, value)])
        cluster.tick_until_idle()


def batches(cluster: LocalCluster, broker: int) -> list[Batch]:
    """Return the batches of all partitions in a broker's log."""
    log = RecordLog(cluster.location(broker))
    keys = [cluster.connection.metadata().partition("t", one).key for one in PARTITIONS]
    return [batch for key in keys for batch in log.batches(key)]


def state(cluster: LocalCluster) -> list[Any]:
    """Return each replica's records, their division into batches, and its positions."""
    return [
        (
            [(cluster.log(broker, "t", one), cluster.replica(broker, "t", one))],
            [(batch.base_offset, batch.record_count) for batch in batches(cluster, broker)],
        )
        for broker in cluster.broker_ids
        for one in PARTITIONS
    ]


def killed_executor(spark: SparkSession, folder: Path) -> Facts:
    """Kill an executor in the middle of a copy."""
    config = {"execution.spark.min.bytes": 1, "execution.spark.bytes.per.task": 1}
    with Events() as events:
        cluster = LocalCluster(folder / "killed", brokers=[0, 1], spark=spark, config=config)
        cluster.create_topic("t", assignment={one: [0, 1] for one in PARTITIONS})
        for one in PARTITIONS:
            cluster.produce("t", one, [os.urandom(4 * CHUNK_BYTES)], acks=1)
        cluster.leader_tick(0)
        source = cluster.root / "broker-0" / "log" / batches(cluster, 0)[3].path
        copies = cluster.root / "broker-1" / "log" / "_inbox"
        processes = {one.id: one.process for one in executors(spark)}
        jobs = Jobs(spark)
        with replaced_by_pipe(source) as kept, ThreadPoolExecutor(1) as other:
            killing = other.submit(kill_in_the_middle, processes, jobs, source, kept, copies)
            report = cluster.follower_tick(1)
            victim = killing.result()
        names = jobs.tasks()
        cluster.tick_until_idle()
    stored = {one.name: one.stat().st_size for one in copies.rglob("*.parquet")}
    commits = "".join(one.read_text() for one in (copies.parent / "_delta_log").glob("*.json"))
    return {
        "victim": victim,
        "jobs": names,
        "warnings": events.warnings,
        "copied": report.files_copied,
        "is_equal": all(cluster.log(0, "t", one) == cluster.log(1, "t", one) for one in PARTITIONS),
        "records": sum(len(cluster.log(1, "t", one)) for one in PARTITIONS),
        "findings": [str(one) for one in audit(cluster.connection, verify_files=True)],
        "stored": len(stored),
        "not named": [size for name, size in stored.items() if name not in commits],
        "source": source.stat().st_size,
    }


@contextmanager
def replaced_by_pipe(file: Path) -> Iterator[Path]:
    """Replace a file by a pipe within the block; yield its own path meanwhile."""
    kept = file.with_suffix(".kept")
    file.rename(kept)
    os.mkfifo(file)
    try:
        yield kept
    finally:
        if kept.exists():
            kept.rename(file)


def kill_in_the_middle(
    processes: dict[str, int], jobs: Jobs, pipe: Path, kept: Path, copies: Path
) -> str:
    """Stop the copy of a file in its middle, and kill the executor that runs it; return its id.

    A task that reads the pipe has the first half of the file and waits for the rest. The file is
    back before the executor is killed, so the repeated task finds it.
    """
    content = kept.read_bytes()
    writing = wait_until(lambda: _opened(pipe), PATIENCE_MS, pause_ms=5)
    assert writing is not None, "no task has begun to copy the file"
    try:
        os.set_blocking(writing, True)
        assert os.write(writing, content[: 2 * CHUNK_BYTES]) == 2 * CHUNK_BYTES

        def last() -> Task | None:
            """Return the task that reads the pipe, once it has written and the others are done."""
            tasks = [task for name, of in jobs.tasks_so_far() if name == "copy" for task in of]
            by_status = Counter(task.status for task in tasks)
            sizes = [one.stat().st_size for one in copies.rglob("*.parquet")]
            if by_status != {"SUCCESS": len(PARTITIONS) - 1, "RUNNING": 1}:
                return None
            if not any(0 < size < len(content) for size in sizes):
                return None
            return next(task for task in tasks if task.status == "RUNNING")

        task = wait_until(last, PATIENCE_MS, pause_ms=20)
        assert task is not None, "the copy has not come to its middle"
        kept.rename(pipe)
        os.kill(processes[task.executor], signal.SIGKILL)
        # Closing the pipe before its reader has ended would be the end of the file to it.
        assert wait_until(lambda: _has_no_reader(writing), PATIENCE_MS, pause_ms=5)
        return task.executor
    finally:
        os.close(writing)


def _opened(pipe: Path) -> int | None:
    """Open a pipe for writing if it has a reader."""
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def _has_no_reader(pipe: int) -> bool:
    poll = select.poll()
    poll.register(pipe, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def commands(spark: SparkSession, folder: Path) -> Facts:
    """Run `sparklog produce` and `sparklog consume` beside brokers, all on these executors."""
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    orders = pa.table({"order_id": list(range(1000)), "city": ["Łódź"] * 1000})
    write_deltalake(folder / "orders", orders)
    root = str(folder / "brokers" / "cluster")
    brokers = [{"broker.id": 0, "log.dirs": str(folder / "brokers" / "broker-0")}]
    config = {"cluster.root": root, "brokers": brokers, **IN_TASKS}
    application = Application(ClusterConfig.model_validate(config), spark)
    application.start()
    running = threading.Thread(target=application.run)
    running.start()
    jobs = Jobs(spark)
    try:
        Admin(root).create_topic("t")
        _run(
            "produce",
            "t",
            f"--cluster={root}",
            f"--from={folder / 'orders'}",
            "--select=cast(order_id as string) as key",
            "--select=to_json(struct(*)) as value",
        )
        _run(
            "consume",
            "t",
            f"--cluster={root}",
            f"--to={folder / 'copy'}",
            f"--checkpoint={folder / 'checkpoint'}",
            "--select=offset",
            "--select=get_json_object(cast(value as string), '$.city') as city",
        )
    finally:
        application.stop()
        running.join()
    copied = DeltaTable(folder / "copy").to_pyarrow_table().sort_by("offset")
    return {"copied": copied.to_pydict(), "jobs": jobs.tasks()}


def _run(*arguments: str) -> None:
    sys.argv = ["sparklog", *arguments]
    command()


def main() -> None:
    """Run all parts, and print the facts of each."""
    spark = spark_session("two executors")
    folder = Path(FOLDER)

    def show(part: Callable[[SparkSession, Path], Facts]) -> None:
        print(f"{part.__name__}: {json.dumps(part(spark, folder))}", flush=True)

    show(without_the_package)
    spark.sparkContext.addPyFile(ZIP)
    print(f"executors: {json.dumps(executors(spark))}", flush=True)
    show(record_work)
    show(killed_executor)
    show(commands)


if __name__ == "__main__":
    main()
