"""A stream's micro-batch whose run was killed between two of its effects, committed by another run.

Each record is stored once, for any loss in between and any division and routing by the other run.
The tasks and the commit of the sink run without Spark.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from sparklog.datasource.write_commit import commit_write
from sparklog.datasource.write_options import WriteOptions, parse_write_options
from sparklog.datasource.write_task import WrittenFile, write_task
from sparklog.errors import ProtocolError, SparklogError, StorageError
from sparklog.producer.produce_requests import Acks, PendingProduce, ProduceClient, RequestedBatch
from sparklog.producer.stream_writes import MicroBatch, StreamWrites
from tests.jobs.processes import wait_for
from tests.running_cluster import RunningCluster

ONCE = MicroBatch("query", 0)

Row = Mapping[str, Any]


class KilledError(Exception):
    """The end of a run, at a moment that the test chooses."""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningCluster]:
    cluster = RunningCluster(tmp_path)
    yield cluster
    cluster.stop()


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a block in which a run ends once the batches that `is_sent` accepts are stored."""
    send = ProduceClient.send

    @contextmanager
    def kill(is_sent: Callable[[RequestedBatch], bool]) -> Iterator[None]:
        def send_some(
            client: ProduceClient,
            batches: Sequence[RequestedBatch],
            acks: Acks,
            timeout_ms: int = 30_000,
        ) -> PendingProduce:
            sent = [batch for batch in batches if is_sent(batch)]
            pending = send(client, sent, acks, timeout_ms)
            assert {one.error for one in pending.result().values()} <= {"NONE"}
            if len(sent) < len(batches):
                raise KilledError
            return pending

        monkeypatch.setattr(ProduceClient, "send", send_some)
        with pytest.raises(KilledError):
            yield
        monkeypatch.setattr(ProduceClient, "send", send)

    return kill


def options(cluster: RunningCluster, **given: str) -> WriteOptions:
    timeout = {"kafka.delivery.timeout.ms": "60000"}
    return parse_write_options({"cluster": cluster.connection.cluster} | timeout | given)


def tasks(given: WriteOptions, *of_tasks: Sequence[Row]) -> list[WrittenFile]:
    """Write the rows of each task to files."""
    schema = pa.schema(
        {"topic": pa.string(), "key": pa.binary(), "value": pa.binary(), "partition": pa.int32()}
    )
    return [
        file
        for rows in of_tasks
        for file in write_task([pa.RecordBatch.from_pylist(list(rows), schema)], given)
    ]


def stored(cluster: RunningCluster, *topics: str) -> list[bytes]:
    return sorted(
        record["value"]
        for topic in topics
        for records in cluster.committed(topic).values()
        for record in records
    )


def lose_broker(cluster: RunningCluster, broker: int, topic: str = "t") -> None:
    """End a broker, delete its disk, and wait until others lead its partitions."""
    with cluster.application.between_rounds():
        cluster.application.drop_broker(broker)
        shutil.rmtree(cluster.folder / f"broker-{broker}")

    def is_led() -> bool:
        return cluster.connection.metadata().partition(topic, 0).leader not in (None, broker)

    wait_for(is_led, "leader")


class TestALeaderWhoseDiskDies:
    """Its inbox had noted files that no leader had appended."""

    ROWS: ClassVar[list[dict[str, Any]]] = [
        {"value": b"%d" % one, "partition": one % 3} for one in range(30)
    ]

    @pytest.fixture
    def lost(self, running: RunningCluster, killed: Callable[..., Any]) -> RunningCluster:
        """Partitions 1 and 2 of topic t have their rows; those of partition 0 are lost."""
        running.create_topic("t", partitions=3, min_insync_replicas=2)
        written = tasks(options(running, topic="t"), self.ROWS)
        with killed(lambda batch: batch.state.partition != 0):
            commit_write(options(running, topic="t"), written, ONCE)
        lose_broker(running, 0)
        return running

    def test_lets_the_next_run_store_the_rows_that_no_leader_has(
        self, lost: RunningCluster
    ) -> None:
        """The next run stores the lost rows, although it divides and routes its rows
        differently.
        """
        rows = [{"value": row["value"]} for row in reversed(self.ROWS)]
        given = options(lost, topic="t")
        commit_write(given, tasks(given, rows[:7], rows[7:]), ONCE)
        assert stored(lost, "t") == sorted(row["value"] for row in self.ROWS)
        found = StreamWrites(lost.connection).find(ONCE)
        assert found == (True, {})

    def test_refuses_a_run_with_other_rows(self, lost: RunningCluster) -> None:
        """The lost rows cannot be determined: no row is written twice or omitted silently."""
        rows = [row | {"value": b"other %b" % row["value"]} for row in self.ROWS]
        given = options(lost, topic="t")
        with pytest.raises(
            SparklogError, match=r"micro-batch 0 of query query cannot be completed"
        ):
            commit_write(given, tasks(given, rows), ONCE)
        assert len(stored(lost, "t")) == 20


def test_rows_of_which_nothing_was_stored_are_those_of_the_next_run(
    running: RunningCluster, killed: Callable[..., Any]
) -> None:
    """If no row of the first run was stored, the rows of the next run are stored."""
    running.create_topic("t", min_insync_replicas=2)
    given = options(running, topic="t")
    with killed(lambda _: False):
        commit_write(given, tasks(given, [{"value": b"a"}, {"value": b"b"}]), ONCE)
    lose_broker(running, 0)
    commit_write(given, tasks(given, [{"value": b"b"}], [{"value": b"a"}]), ONCE)
    assert stored(running, "t") == [b"a", b"b"]


def test_without_acks_a_request_that_cannot_be_written_is_an_error(
    running: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With acks=0 a request that cannot be written raises an error."""

    def fail(*_: object) -> None:
        raise StorageError("the leader's root is away")

    running.create_topic("t")
    given = options(running, topic="t", acks="0")
    written = tasks(given, [{"value": b"a"}])
    monkeypatch.setattr(ProduceClient, "send", fail)
    with pytest.raises(ProtocolError, match="KAFKA_STORAGE_ERROR: a leader's root is away"):
        commit_write(given, written)


class TestAKillBetweenTwoTopics:
    ROWS: ClassVar[list[dict[str, Any]]] = [
        {"topic": "ab"[one % 2], "value": b"%d" % one} for one in range(10)
    ]

    @pytest.fixture
    def half(self, running: RunningCluster, killed: Callable[..., Any]) -> RunningCluster:
        """Topic a has the even numbers; topic b is empty."""
        for topic in ("a", "b", "c"):
            running.create_topic(topic)
        written = tasks(options(running), self.ROWS)
        with killed(lambda batch: batch.state.topic == "a"):
            commit_write(options(running), written, ONCE)
        assert (len(stored(running, "a")), len(stored(running, "b"))) == (5, 0)
        return running

    @pytest.mark.parametrize("routes", ["ba", "cc", "aa"])
    def test_loses_and_doubles_nothing_though_the_next_run_routes_otherwise(
        self, half: RunningCluster, routes: str
    ) -> None:
        """Each row is stored once, in the topic to which the first run routed it."""
        given = options(half)
        again = [row | {"topic": routes[one % 2]} for one, row in enumerate(self.ROWS)]
        commit_write(given, tasks(given, again), ONCE)
        assert stored(half, "a", "b", "c") == sorted(row["value"] for row in self.ROWS)
        assert (len(stored(half, "a")), len(stored(half, "b"))) == (5, 5), "as the first run routed"

    def test_is_completed_by_a_run_that_has_no_rows(self, half: RunningCluster) -> None:
        """A run without rows completes the noted micro-batch."""
        commit_write(options(half), [], ONCE)
        assert stored(half, "a", "b") == sorted(row["value"] for row in self.ROWS)


def test_tasks_and_commit_do_not_open_the_configuration_file(
    running: RunningCluster, tmp_path: Path
) -> None:
    """The sink's tasks opened the configuration file, which was needed at the same path on every
    executor; now the options are part of what the tasks are sent.
    """
    running.create_topic("t")
    file = tmp_path / "client.yaml"
    brokers = f"brokers: [{{broker.id: 0, log.dirs: {tmp_path}/broker-0}}]\n"
    file.write_text(f"cluster.root: {running.connection.cluster}\n{brokers}")
    planned = parse_write_options({"cluster": str(file), "topic": "t"})
    file.unlink()
    written = write_task([pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})], planned)
    commit_write(planned, written)
    assert [row["value"] for row in running.committed("t")[0]] == [b"a", b"b"]
