"""The failures of a leader, each by a real kill between two effects of its tick (rule 3.6).

The kill comes before the append, after it and before the answer, or after the answer. The producer
delivers every record once, to the next leader.
"""

from __future__ import annotations

import signal
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

from sparklog.cluster.roots import ClusterRoot
from sparklog.model import PARTITION_STATE
from sparklog.producer.accumulator import RecordMetadata
from sparklog.producer.plain import Producer
from sparklog.storage.location import Location
from tests.jobs.dying_broker import POINTS
from tests.jobs.processes import Client, Cluster, Process, wait_for

IDS = (0, 1, 2)
THE_THREE = ("before_append", "log_commit", "responses")
"""The failures that the rule names; the first test has more points in between."""


class DyingCluster:
    """Three brokers, each of which dies in its tick once it leads and a point is named."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        ClusterRoot.create(Location.of(str(cluster.folder / "cluster")))
        self.brokers: dict[int, Process] = {}
        for broker_id in IDS:
            self._points(broker_id).mkdir()
            self.start(broker_id)
        self.client = Client(cluster)
        self.client.create_topic(leader=0)

    def _points(self, broker_id: int) -> Path:
        return self._cluster.folder / f"points-{broker_id}"

    def start(self, broker_id: int) -> None:
        """Start a broker, which dies at no point until `die_at` names one."""
        for point in self._points(broker_id).iterdir():
            point.unlink()
        self.brokers[broker_id] = self._cluster.start(
            [
                sys.executable,
                "-m",
                "tests.jobs.dying_broker",
                self._cluster.configuration(broker_id),
                self._points(broker_id),
            ]
        )

    def die_at(self, broker_id: int, point: str) -> None:
        """Let a leader die at a point of the next tick in which it appends."""
        (self._points(broker_id) / point).touch()

    def await_death(self, broker_id: int, point: str, offset: int) -> None:
        """Wait until a leader has killed itself at `point` of the batch at `offset`."""
        process = self.brokers[broker_id]
        wait_for(lambda: process.popen.poll() is not None, "death of the leader")
        assert process.exit_code() == -signal.SIGKILL, process.stderr
        assert "Traceback" not in process.stderr
        answers = self._cluster.answers(broker_id)
        high_watermark = self._cluster.high_watermark(broker_id) or 0
        has = {
            "appended": len(self._cluster.log(broker_id)) > offset,
            "committed": high_watermark > offset,
            "answered": any(answer.base_offset == offset for answer in answers),
        }
        reached = POINTS.index(point)
        assert has == {
            "appended": reached >= POINTS.index("log_commit"),
            "committed": reached >= POINTS.index("responses"),
            "answered": reached >= POINTS.index("responses"),
        }, point

    def leader(self) -> int:
        """Return the leader, once there is one."""
        [leader] = wait_for(lambda: {self.client.leader()} - {None}, "leader")
        assert leader is not None
        return leader

    def leader_epoch(self) -> int:
        """Return the partition's leader epoch."""
        return max(int(row["leader_epoch"]) for row in self._cluster.rows(PARTITION_STATE))

    def await_all_in_sync(self) -> None:
        """Wait until all three are in the ISR."""
        wait_for(lambda: self.client.isr() == list(IDS), "full in-sync set")


@pytest.fixture
def dying(cluster: Cluster) -> DyingCluster:
    return DyingCluster(cluster)


class Sending:
    """The records that the test's producer has sent, in order."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.values: list[bytes] = []
        self.futures: list[Future[RecordMetadata]] = []

    def send(self, prefix: str, count: int = 5) -> int:
        """Send some records, which share a batch or two; return the offset of the first."""
        first = len(self.values)
        for number in range(count):
            self.values.append(f"{prefix}-{number}".encode())
            self.futures.append(self._producer.send("t", self.values[-1]))
        return first

    def await_delivery(self) -> None:
        """Wait until each was delivered at the next offset: no loss, no duplicate, in order."""
        assert [future.result(90).offset for future in self.futures] == [*range(len(self.values))]


def check_logs(cluster: Cluster, dying: DyingCluster, sending: Sending) -> None:
    """Check that every broker has all records once, in order."""
    dying.await_all_in_sync()
    assert dying.client.committed() == sending.values
    wait_for(
        lambda: all(
            [value for _, _, value in cluster.log(broker)] == sending.values for broker in IDS
        ),
        "equal logs",
    )


def test_the_next_leader_takes_every_record_once_wherever_the_last_one_died(
    cluster: Cluster, dying: DyingCluster
) -> None:
    """After a leader died at any point, the next leader has every record once."""
    deaths = []
    with Producer(dying.client.connection) as producer:
        sending = Sending(producer)
        for point in POINTS:
            sending.send(f"before {point}")
            sending.await_delivery()
            leader = dying.leader()
            dying.die_at(leader, point)
            offset = sending.send(point)
            dying.await_death(leader, point, offset)
            sending.send(f"after {point}")
            sending.await_delivery()
            assert dying.leader() != leader, point
            deaths.append(leader)
            dying.start(leader)
            dying.await_all_in_sync()
    assert len(deaths) == len(POINTS)
    assert dying.leader_epoch() >= len(POINTS), deaths
    check_logs(cluster, dying, sending)


def test_the_same_leader_takes_every_record_once_when_it_comes_back(
    cluster: Cluster, dying: DyingCluster
) -> None:
    """All three brokers die, and the leader restarts before the others."""
    with Producer(dying.client.connection) as producer:
        sending = Sending(producer)
        for point in THE_THREE:
            sending.send(f"before {point}")
            sending.await_delivery()
            dying.die_at(0, point)
            leader_epoch = dying.leader_epoch()
            offset = sending.send(point)
            dying.await_death(0, point, offset)
            for follower in (1, 2):
                dying.brokers[follower].kill()
            dying.start(0)
            sending.send(f"after {point}")
            dying.brokers[0].wait_for_event("became leader")
            for follower in (1, 2):
                dying.start(follower)
            sending.await_delivery()
            assert dying.leader() == 0, point
            assert dying.leader_epoch() > leader_epoch, point
            dying.await_all_in_sync()
    check_logs(cluster, dying, sending)
