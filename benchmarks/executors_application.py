"""The Spark application of the work `executors`: a follower's backlog, copied in several ways.

`spark-submit executors_application.py OPTIONS` on two executors of one core each, with `Options` as
JSON. It prints one line of JSON for each `Copied`. Each way has a follower of its own, which lacks
all batches of the leader. The last ways run on one executor: the other one is removed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JJavaError

from benchmarks.s3_store import Store
from sparklog.broker.broker import Broker
from sparklog.broker.tick import TickReport
from sparklog.clock import wait_until
from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.config import Settings
from sparklog.errors import SparklogError
from sparklog.model import new_batch_path
from sparklog.producer.produce_requests import ProduceClient, RequestedBatch
from sparklog.protocol.driver_rules import DriverRules
from sparklog.session import spark_session
from sparklog.storage.batch_files import BatchFileWriter, records_table
from sparklog.storage.copying import Copy
from sparklog.storage.execution import DriverExecution, Execution, spark_execution
from sparklog.storage.location import Location, StorageOptions
from sparklog.storage.record_log import RecordLog
from sparklog.testing import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER, TWO, KILLED, ONE = (
    "driver threads",
    "two executors",
    "two, one of them killed",
    "one executor",
)
WAYS = (DRIVER, TWO, KILLED, ONE)
FOLDER, STORE = "local folder", "object store"
PLACES = (FOLDER, STORE)

_LATENCY_MS = 30
_RECORD_BYTES = 64 << 10
_PARTITIONS = 4
_LEADER = 0
_WARM_FILES = 8
_PATIENCE_MS = 300_000


class Options(NamedTuple):
    """The size of a run: `batches` of `batch_bytes`; `store_port` is that of the S3 API server."""

    folder: str
    store_port: int
    batches: int
    batch_bytes: int
    bytes_per_task: int


class Copied(NamedTuple):
    """A follower's way from its registration to its last commit.

    `tasks` that have succeeded, and `repeated` ones that have failed before.
    """

    place: str
    way: str
    seconds: float
    size_bytes: int
    ticks: int
    jobs: int
    tasks: int
    repeated: int


class Backlog:
    """A leader with records, and followers that have registered and then ended."""

    def __init__(self, place: str, options: Options, store: Store) -> None:
        self.place = place
        self._clock = ManualClock()
        self._settings = Settings()
        self._options: StorageOptions | None = None
        self._store = store
        names = ["cluster", *(f"broker-{one}" for one in range(len(WAYS) + 1))]
        if place == STORE:
            self._options = store.options()
            uris = [store.bucket(f"{name}-{time.time_ns()}") for name in names]
        else:
            uris = [f"{options.folder}/{name}" for name in names]
        self._cluster, *self._roots = (Location.of(uri, self._options) for uri in uris)
        leader = self._broker(_LEADER, DriverExecution())
        for follower in range(1, len(self._roots)):
            self._broker(follower, DriverExecution())
        self._connection = Connection(uris[0], storage_options=self._options)
        assignment = {one: list(range(len(self._roots))) for one in range(_PARTITIONS)}
        admin = Admin(self._connection, settings=self._settings, clock=self._clock)
        admin.create_topic("t", assignment=assignment)
        self._produce(leader, options)
        logs = RecordLog(self._roots[_LEADER])
        self.files = [batch for key in logs.partitions() for batch in logs.batches(key)]
        self.size_bytes = sum(batch.size_bytes for batch in self.files)

    def _broker(self, broker_id: int, execution: Execution) -> Broker:
        return Broker(
            broker_id,
            self._cluster,
            [self._roots[broker_id]],
            rules=DriverRules(),
            execution=execution,
            clock=self._clock,
            settings=self._settings,
            storage_options=self._options,
        )

    def _produce(self, leader: Broker, options: Options) -> None:
        """Produce batches that do not compress, and have the leader append them."""
        client = ProduceClient(self._connection, client_id="benchmark", clock=self._clock)
        log = self._roots[_LEADER].child("log")
        values = [os.urandom(_RECORD_BYTES) for _ in range(options.batch_bytes // _RECORD_BYTES)]
        for number in range(options.batches):
            state = self._connection.metadata().partition("t", number % _PARTITIONS)
            writer = BatchFileWriter(log, new_batch_path())
            writer.write(records_table(values, None, self._clock.now_ms()))
            client.send([RequestedBatch(state, writer.close())], 1, 30_000)
            _ticked(leader, leader.leader_tick)

    def catch_up(self, follower: int, execution: Execution) -> tuple[float, TickReport, int]:
        """Start a follower; return the seconds until it has all records, its report and ticks."""
        # Earlier writes must not be part of the measurement.
        os.sync()
        if self.place == STORE:
            self._store.set_latency(_LATENCY_MS)
        start = time.perf_counter()
        broker = self._broker(follower, execution)
        report, ticks = TickReport(), 0
        while (one := _ticked(broker, broker.follower_tick)).changed:
            report.add(one)
            ticks += 1
        taken = time.perf_counter() - start
        self._store.set_latency(0)
        has = RecordLog(self._roots[follower])
        leads = RecordLog(self._roots[_LEADER])
        for key in leads.partitions():
            if has.log_end_offset(key) != leads.log_end_offset(key):
                raise SparklogError(f"the follower lacks records of {key}")
        return taken, report, ticks

    def warm_up(self, execution: Execution) -> None:
        """Copy some files to where no log is: first tasks load classes and open connections."""
        source, target = self._roots[_LEADER].child("log"), self._cluster.child("warm-up")
        for copied in execution.copy(
            [
                Copy(source, one.path, target, new_batch_path(), one.size_bytes, one.checksum)
                for one in self.files[:_WARM_FILES]
            ]
        ):
            if copied.fault is not None:
                raise SparklogError(copied.fault)

    def discard(self, follower: int) -> None:
        """Remove the copies of a follower: the store keeps its objects in memory."""
        if self.place == STORE:
            self._store.remove_bucket(self._roots[follower].uri.removeprefix("s3://"))


def _ticked(broker: Broker, tick: Callable[[], TickReport]) -> TickReport:
    broker.poll_ahead(to_end=True)
    return tick()


class Executors:
    """The executors of an application, by Spark's own store of its state."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._context = spark.sparkContext._jsc.sc()

    def start_workers(self) -> dict[str, int]:
        """Start the Python workers; return the process id of each executor's JVM by its id."""

        def seen(batches: Iterator[Any]) -> Iterator[Any]:
            import pyarrow as pa

            import sparklog.storage.execution  # noqa: F401 - what tasks import is part of a start

            for batch in batches:
                # The folder of an executor of a standalone cluster is named by its id.
                names = pa.array([Path.cwd().name] * batch.num_rows)
                yield pa.RecordBatch.from_arrays(
                    [names, batch.column("process")], ["executor", "process"]
                )

        # The process id of the JVM in which a task runs.
        process = "reflect('java.lang.ProcessHandle', 'current') AS process"
        frame = self._spark.range(0, 8, 1, 8).selectExpr(process)
        rows = frame.mapInArrow(seen, "executor string, process string").collect()
        return {row.executor: int(row.process) for row in rows}

    def await_count(self, count: int) -> dict[str, int]:
        """Wait until this number of executors runs tasks; return them as `start_workers` does."""
        found = wait_until(
            self.start_workers, _PATIENCE_MS, pause_ms=200, until=lambda one: len(one) == count
        )
        if len(found) != count:
            raise SparklogError(f"there are executors {sorted(found)}, and not {count} of them")
        return found

    def remove(self, executor: str) -> None:
        """Remove an executor for good."""
        self._context.killExecutor(executor)

    def tasks(self, after_job: int, name: str = "") -> list[tuple[str, str]]:
        """Return the executor and the status of each task of the jobs after one, by its id."""
        store = self._context.statusStore()
        return [
            (task.executorId(), task.status())
            for job in _listed(store.jobsList(None))
            if job.jobId() > after_job and (not name or _action(job) == name)
            for stage in _listed(job.stageIds())
            for task in _tasks_of(store, stage)
        ]

    def last_job(self) -> int:
        """Return the id of the newest job, -1 without one, once its events have been stored."""
        self._context.listenerBus().waitUntilEmpty()
        return max(
            (job.jobId() for job in _listed(self._context.statusStore().jobsList(None))), default=-1
        )


def _tasks_of(store: Any, stage: int) -> list[Any]:
    """Return the tasks of a stage; none while Spark has stored its job and not yet the stage."""
    try:
        attempt = store.lastStageAttempt(stage).attemptId()
    except Py4JJavaError as error:
        if error.java_exception.getClass().getSimpleName() != "NoSuchElementException":
            raise
        return []
    return _listed(store.taskList(stage, attempt, 10_000))


def _action(job: Any) -> str:
    description = job.description()
    return str(description.get()).rpartition(": ")[2] if description.isDefined() else ""


def _listed(sequence: Any) -> list[Any]:
    return [sequence.apply(number) for number in range(sequence.size())]


def _kill_copying(
    executors: Executors, after_job: int, processes: dict[str, int], is_over: Callable[[], bool]
) -> None:
    """Kill an executor by SIGKILL while it copies, once a task of the job has succeeded.

    A small backlog may be copied before that is seen: nothing is killed then, and no task repeated.
    """

    def copying() -> str | None:
        tasks = executors.tasks(after_job, "copy")
        is_begun = any(status == "SUCCESS" for _, status in tasks)
        running = [executor for executor, status in tasks if status == "RUNNING"]
        return running[0] if is_begun and running else None

    executor = wait_until(lambda: copying() or is_over(), pause_ms=5)
    if isinstance(executor, str):
        os.kill(processes[executor], signal.SIGKILL)


def _copied(executors: Executors, backlog: Backlog, number: int, execution: Execution) -> Copied:
    """Have one follower catch up in the way of this number, counted from 1."""
    way = WAYS[number - 1]
    processes = executors.await_count(1 if way == ONE else 2)
    before = executors.last_job()
    over = threading.Event()
    with ThreadPoolExecutor(1) as other:
        killing = None
        if way == KILLED:
            killing = other.submit(_kill_copying, executors, before, processes, over.is_set)
        try:
            seconds, report, ticks = backlog.catch_up(number, execution)
        finally:
            over.set()
        if killing is not None:
            killing.result()
    backlog.discard(number)
    executors.last_job()
    statuses = [status for _, status in executors.tasks(before)]
    tasks = statuses.count("SUCCESS")
    repeated = len(statuses) - tasks
    of = backlog.place, way, seconds, backlog.size_bytes, ticks, report.spark_jobs, tasks, repeated
    return Copied(*of)


def main() -> None:
    """Copy the backlogs in all ways, and print what each took."""
    options = Options(**json.loads(sys.argv[1]))
    spark = spark_session("executors")
    spark.sparkContext.setLogLevel("OFF")
    executors = Executors(spark)
    store = Store(options.store_port)
    in_tasks = spark_execution(
        spark, is_always=True, min_bytes=0, bytes_per_task=options.bytes_per_task
    )
    backlogs = [Backlog(place, options, store) for place in PLACES]
    for backlog in backlogs:
        for execution in (DriverExecution(), in_tasks):
            backlog.warm_up(execution)
    for number, way in enumerate(WAYS, 1):
        if way == ONE:
            executors.remove(min(executors.await_count(2)))
        for backlog in backlogs:
            execution = DriverExecution() if way == DRIVER else in_tasks
            copied = _copied(executors, backlog, number, execution)
            print(json.dumps(copied._asdict()), flush=True)


if __name__ == "__main__":
    main()
