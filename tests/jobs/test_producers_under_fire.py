"""Eight producers, plain and Spark's, in parallel, while the leaders of three broker processes
fail.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection, Visible
from sparklog.cluster.roots import ClusterRoot
from sparklog.consumer.spark import SparkConsumer
from sparklog.errors import ProtocolError
from sparklog.producer.produce_requests import ProduceResponse
from sparklog.producer.spark import SparkProducer
from sparklog.storage.batch_files import read_records
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog
from sparklog.testing.history import History
from sparklog.testing.history_check import check
from tests.jobs.processes import Cluster, Process, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "t"
PARTITIONS = (0, 1, 2)
IDS = (0, 1, 2)
PLAIN = [f"plain-{number}" for number in range(4)]
SPARK = [f"spark-{number}" for number in range(4)]
RECORDS_OF_A_FRAME = 20
_PAUSE_S = 0.5
"""The time between two frames of a thread: without it the brokers have no core left."""


class Fire:
    """The cluster with failing leaders: its processes, leaders, and committed records."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        ClusterRoot.create(Location.of(str(cluster.folder / "cluster")))
        self.brokers = {one: cluster.run(broker_id=one) for one in IDS}
        self.connection = cluster.connect()
        wait_for(lambda: self._alive() == list(IDS), "third live broker", self.brokers[0])
        assignment = {one: [(one + after) % 3 for after in IDS] for one in PARTITIONS}
        configs = {"min.insync.replicas": 2}
        Admin(self.connection).create_topic(TOPIC, assignment=assignment, configs=configs)
        self.failovers = 0

    def _alive(self) -> list[int]:
        brokers = self.connection.metadata().brokers.values()
        return sorted(one.broker_id for one in brokers if one.is_alive)

    def leader(self, partition: int) -> int:
        """Return the leader of a partition."""
        leader = self.connection.metadata().partition(TOPIC, partition).leader
        assert leader is not None
        return leader

    def kill_leader(self, partition: int) -> None:
        """Kill the process of a leader, wait until another one leads and accepts records, and
        restart it.
        """
        leader = self.leader(partition)
        self.brokers[leader].kill()
        self._await_takeover(partition, leader)
        self.brokers[leader] = self._cluster.run(broker_id=leader)
        self._await_return()

    def pause_leader(self, partition: int) -> None:
        """Suspend the process of a leader until another one leads, and resume it with its old
        state.
        """
        leader = self.leader(partition)
        self.brokers[leader].send(signal.SIGSTOP)
        self._await_takeover(partition, leader)
        self.brokers[leader].send(signal.SIGCONT)
        self._await_return()

    def _await_takeover(self, partition: int, leader: int) -> None:
        def poll() -> bool:
            state = self.connection.metadata().partition(TOPIC, partition)
            return state.leader not in (leader, None)

        wait_for(poll, "new leader")
        self.await_progress()
        self.failovers += 1

    def _await_return(self) -> None:
        def poll() -> bool:
            metadata = self.connection.metadata()
            states = [metadata.partition(TOPIC, one) for one in PARTITIONS]
            return all(sorted(state.isr) == list(IDS) for state in states)

        wait_for(poll, "full in-sync sets")
        self.await_progress()

    def await_progress(self) -> None:
        """Wait until every partition has appended more records, and made them visible."""
        before = [self._visible(one).high_watermark for one in PARTITIONS]

        def poll() -> bool:
            now = [self._visible(one).high_watermark for one in PARTITIONS]
            return all(new > old for new, old in zip(now, before, strict=True))

        wait_for(poll, "further record in every partition")

    def read(self, history: History) -> None:
        """Record a pass over every partition: the records that a consumer can read by now."""
        for partition in PARTITIONS:
            visible = self._visible(partition)
            log = RecordLog(visible.location)
            log.refresh(visible.log_version)
            batches = log.batches(visible.state.key)
            records = read_records(log.location, batches, 0, visible.high_watermark)
            history.record_read(TOPIC, partition, [(one.offset, one.value) for one in records])

    def _visible(self, partition: int) -> Visible:
        """Return the visible records of a partition, once its leader offers them."""

        def poll() -> Visible | None:
            state = self.connection.metadata().partition(TOPIC, partition)
            try:
                return self.connection.visible([state])[0]
            except ProtocolError as error:
                if not error.retriable:
                    raise
                return None

        found = wait_for(poll, f"leader that shows partition {partition}")
        assert found is not None
        return found


class SparkSending:
    """One thread of Spark: small DataFrames, one after the other, all recorded."""

    def __init__(self, spark: SparkSession, connection: Connection, name: str) -> None:
        self._spark = spark
        self._name = name
        self._producer = SparkProducer(connection, spark, client_id=name)
        self._rows = 0

    def run(self, history: History, stopping: threading.Event) -> None:
        """Send until the stop is requested; each frame is answered before the next one is sent."""
        while not stopping.wait(_PAUSE_S):
            self._send(history)

    def _send(self, history: History) -> None:
        rows = [
            (f"{self._name}-{number}".encode(), number % len(PARTITIONS))
            for number in range(self._rows, self._rows + RECORDS_OF_A_FRAME)
        ]
        self._rows += len(rows)
        numbers: dict[int, list[int]] = {partition: [] for partition in PARTITIONS}
        for value, partition in rows:
            number = history.record_sent(self._name, TOPIC, value, partition)
            numbers[partition].append(number)
        frame = self._spark.createDataFrame(rows, "value binary, partition int")
        failure = "NONE"
        answers: Mapping[int, ProduceResponse] = {}
        try:
            pending = self._producer.send(frame, TOPIC)
            try:
                answers = pending.result()
            except ProtocolError as error:
                failure, answers = error.code.name, pending.responses()
        except ProtocolError as error:
            # A partition had no leader: nothing was sent.
            failure = error.code.name
        for partition, of in numbers.items():
            answer = answers.get(partition)
            for index, number in enumerate(of):
                if answer is not None and answer.error == "NONE":
                    offset = answer.base_offset + index
                    history.record_answer(self._name, number, "NONE", partition, offset)
                else:
                    history.record_answer(self._name, number, failure)


@contextmanager
def spark_producers(spark: SparkSession, cluster: Cluster, history: History) -> Iterator[None]:
    """Run threads of this process that produce DataFrames until the block ends."""
    stopping = threading.Event()
    sending = [SparkSending(spark, cluster.connect(), name) for name in SPARK]
    with ThreadPoolExecutor(len(sending)) as pool:
        running = [pool.submit(one.run, history, stopping) for one in sending]
        try:
            yield
        finally:
            stopping.set()
        for one in running:
            one.result()


def plain_producers(cluster: Cluster) -> dict[str, Process]:
    """Start processes that produce single records with keys until they are stopped."""
    return {
        name: cluster.start(
            [
                *(sys.executable, "-m", "tests.jobs.recorded_producer"),
                *(cluster.folder / "cluster", TOPIC, name, cluster.folder / f"{name}.jsonl"),
            ]
        )
        for name in PLAIN
    }


def _has_delivered(process: Process) -> bool:
    return "delivered" in process.stdout


def test_eight_producers_at_once_lose_double_reorder_and_invent_nothing_while_leaders_fail(
    spark: SparkSession, cluster: Cluster
) -> None:
    """Eight parallel producers lose, duplicate, reorder and invent no record while leaders fail."""
    fire = Fire(cluster)
    history = History()
    with spark_producers(spark, cluster, history):
        processes = plain_producers(cluster)
        for process in processes.values():
            wait_for(partial(_has_delivered, process), "first answer", process)
        fire.await_progress()
        fire.kill_leader(0)
        fire.read(history)
        fire.kill_leader(1)
        fire.read(history)
        fire.pause_leader(2)
        fire.read(history)
        for process in processes.values():
            process.send(signal.SIGTERM)
    for name, process in processes.items():
        assert process.exit_code() == 0, process.stderr
        assert "Traceback" not in process.stderr
        history.merge(History.load(cluster.folder / f"{name}.jsonl"))
    fire.read(history)
    everything = SparkConsumer(fire.connection, spark).read(TOPIC)
    rows = everything.select("partition", "offset", "value").collect()
    for partition in PARTITIONS:
        of = [(row["offset"], bytes(row["value"])) for row in rows if row["partition"] == partition]
        history.record_read(TOPIC, partition, of)

    counts = f"{history.summary()}; {fire.failovers} failovers; {_by_producer(history)}"
    print(counts)
    broken = check(history)
    assert not broken, f"{len(broken)} violations, first {broken[:5]}; {counts}"
    acknowledged = Counter(one.producer for one in history.answers if one.is_acknowledgement)
    assert min(acknowledged[name] for name in PLAIN + SPARK) >= RECORDS_OF_A_FRAME, counts
    assert fire.failovers == 3, counts
    for process in fire.brokers.values():
        assert process.popen.poll() is None, process.stderr
        assert "Traceback" not in process.stderr


def _by_producer(history: History) -> str:
    sent = Counter(record.producer for record in history.sent)
    acknowledged = Counter(one.producer for one in history.answers if one.is_acknowledgement)
    return ", ".join(f"{name}: {acknowledged[name]} of {sent[name]}" for name in sorted(sent))
