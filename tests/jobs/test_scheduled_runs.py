"""Brokers that a scheduler starts: an afternoon on a manual clock, and runs of real processes."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from sparklog.broker.application import Application
from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.config import BrokerConfig, ClusterConfig
from sparklog.consumer.consumer import Consumer
from sparklog.errors import ProtocolError
from sparklog.model import BROKERS, new_batch_path
from sparklog.producer.plain import Producer
from sparklog.producer.produce_requests import PendingProduce, ProduceClient, RequestedBatch
from sparklog.storage.batch_files import BatchFileWriter, records_table
from sparklog.storage.request_files import read_requests
from sparklog.testing import ManualClock
from tests.jobs.processes import Client, Cluster, Process, wait_for

MINUTE_MS = 60_000


class Schedule:
    """Runs of brokers on a manual clock, and a client whose clock is the same."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.clock = ManualClock()
        self.settings = {
            "cluster.root": str(folder / "cluster"),
            "broker.heartbeat.interval.ms": 50,
            "log.merger.enable": False,
        } | {key.replace("_", "."): value for key, value in settings.items()}
        self._folder = folder
        self.run(0, 1, 2)
        self.connection = Connection(str(folder / "cluster"))
        self._client = ProduceClient(self.connection, clock=self.clock)

    def application(self, *brokers: int) -> Application:
        """Return an application of these brokers that has not started."""
        entries = [
            {"broker.id": one, "log.dirs": str(self._folder / f"broker-{one}")} for one in brokers
        ]
        config: ClusterConfig | BrokerConfig
        if len(brokers) == 1:
            config = BrokerConfig.model_validate(self.settings | entries[0])
        else:
            config = ClusterConfig.model_validate(self.settings | {"brokers": entries})
        return Application(config, clock=self.clock)

    def run(self, *brokers: int) -> None:
        """Run brokers in one application until they are idle."""
        application = self.application(*brokers)
        application.start()
        application.run_until_idle()

    def send(
        self, value: bytes, minutes: int, again: PendingProduce | None = None
    ) -> PendingProduce:
        """Send a batch of one record with acks=all, or the batch of an earlier request again."""
        state = self.connection.metadata().partition("t", 0)
        if again is not None:
            [batch] = again.batches
            batch = batch._replace(state=state)
        else:
            log = self.connection.leader_location(state).child("log")
            writer = BatchFileWriter(log, new_batch_path())
            writer.write(records_table([value], None, self.clock.now_ms()))
            batch = RequestedBatch(state, writer.close())
        return self._client.send([batch], "all", minutes * MINUTE_MS)

    @property
    def committed(self) -> list[bytes | None]:
        """The values that a consumer reads now."""
        with Consumer(str(self._folder / "cluster"), auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            return [record.value for of in consumer.poll(0).values() for record in of]

    @property
    def epochs(self) -> tuple[int, list[int]]:
        """The leader epoch, and the registration of each broker."""
        metadata = self.connection.metadata()
        brokers = [metadata.brokers[one].broker_epoch for one in sorted(metadata.brokers)]
        return metadata.partition("t", 0).leader_epoch, brokers

    @property
    def isr(self) -> list[int]:
        return self.connection.metadata().partition("t", 0).isr


def errors(pending: Iterable[PendingProduce]) -> list[str | None]:
    return [one.response.error if one.response else None for one in pending]


def test_an_afternoon_of_runs_every_quarter_of_an_hour(tmp_path: Path) -> None:
    """Requests are served by the next run, and after a missed run by one that comes in time.

    Nobody is fenced and nothing is elected. Consumers read between the runs. A request whose
    producer gave up is not appended; sent again, its batch is stored once.
    """
    schedule = Schedule(tmp_path)
    Admin(schedule.connection).create_topic(
        "t", assignment={0: [0, 1, 2]}, configs={"min.insync.replicas": 2}
    )
    schedule.run(0, 1, 2)
    epochs = schedule.epochs
    stored: list[bytes] = []
    for quarter in range(8):
        patient = schedule.send(b"patient %d" % quarter, minutes=40)
        schedule.clock.advance(10 * MINUTE_MS)
        hasty = schedule.send(b"hasty %d" % quarter, minutes=10)
        assert schedule.committed == stored
        schedule.clock.advance(5 * MINUTE_MS)
        if quarter == 3:
            # This run is missed; the next one comes 15 minutes later.
            schedule.clock.advance(15 * MINUTE_MS)
            schedule.run(0, 1, 2)
            assert errors([patient, hasty]) == ["NONE", "REQUEST_TIMED_OUT"]
            hasty = schedule.send(b"", minutes=10, again=hasty)
            schedule.run(0, 1, 2)
        elif quarter == 5:
            run_twice_at_once(schedule)
        else:
            schedule.run(0, 1, 2)
        assert errors([patient, hasty]) == ["NONE", "NONE"]
        stored += [b"patient %d" % quarter, b"hasty %d" % quarter]
        assert schedule.committed == stored
        assert (schedule.epochs, schedule.isr) == (epochs, [0, 1, 2])


def run_twice_at_once(schedule: Schedule) -> None:
    """Run the cluster while another run of it goes on: the second one is refused."""
    first = schedule.application(0, 1, 2)
    first.start()
    with pytest.raises(ProtocolError, match="DUPLICATE_BROKER_REGISTRATION"):
        schedule.run(0, 1, 2)
    first.run_until_idle()


def test_brokers_on_different_schedules_replicate_and_drop_one_that_never_comes(
    tmp_path: Path,
) -> None:
    """Broker 0 runs every 5 minutes, broker 1 every 15, broker 2 not any more.

    Requests with acks=all wait for broker 2 until parked.session.timeout.ms is over. Each run is
    one broker's, is shorter than a session, and begins with no knowledge of earlier ones.
    """
    schedule = Schedule(tmp_path, parked_session_timeout_ms=45 * MINUTE_MS)
    Admin(schedule.connection).create_topic("t", assignment={0: [0, 1, 2]})
    for broker in (0, 1, 2):
        schedule.run(broker)
    epochs = schedule.epochs
    parked_at_ms = schedule.clock.now_ms()
    sent: list[PendingProduce] = []
    for minute in range(5, 76, 5):
        sent.append(schedule.send(b"%d" % minute, minutes=120))
        schedule.clock.advance(5 * MINUTE_MS)
        schedule.run(0)
        if minute % 15 == 0:
            schedule.run(1)
        is_away = schedule.clock.now_ms() - parked_at_ms > 45 * MINUTE_MS
        assert schedule.isr == ([0, 1] if is_away else [0, 1, 2])
        if not is_away:
            assert schedule.committed == []
    schedule.run(0)
    assert errors(sent) == ["NONE"] * len(sent)
    assert schedule.committed == [b"%d" % minute for minute in range(5, 76, 5)]
    assert schedule.epochs == epochs
    schedule.run(2)
    schedule.run(0)
    assert schedule.isr == [0, 1, 2]


def test_of_two_runs_that_begin_at_once_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one finds the broker parked, and registers after the first one has.

    It used to take the broker over, under a new registration, which cost an election.
    """
    schedule = Schedule(tmp_path)
    Admin(schedule.connection).create_topic("t", assignment={0: [0, 1, 2]})
    schedule.run(0)
    epochs = schedule.epochs
    first, second = schedule.application(0), schedule.application(0)
    start_brokers = second._start_brokers

    def start_late() -> None:
        first.start()
        start_brokers()

    monkeypatch.setattr(second, "_start_brokers", start_late)
    with pytest.raises(ProtocolError, match="DUPLICATE_BROKER_REGISTRATION"):
        second.start()
    first.run_until_idle()
    assert schedule.epochs == epochs


# --- real processes -----------------------------------------------------------------------------


def run(cluster: Cluster, broker_id: int | None = None) -> Process:
    return cluster.run("--until-idle", broker_id=broker_id)


def finish(*processes: Process) -> list[int]:
    """Wait for runs; return their exit codes in ascending order."""
    return sorted(process.exit_code() for process in processes)


def test_a_loop_of_runs_with_an_overlap_and_a_killed_run_stores_each_record_once(
    cluster: Cluster,
) -> None:
    """A producer sends while runs come and go, overlap, are missed, and one is killed."""
    assert finish(run(cluster)) == [0]
    client = Client(cluster)
    client.create_topic(leader=0)
    assert finish(run(cluster)) == [0]
    first_epoch = client.connection.metadata().partition("t", 0).leader_epoch
    values: list[bytes] = []
    with Producer(
        str(cluster.folder / "cluster"), request_timeout_ms=1_000, delivery_timeout_ms=300_000
    ) as producer:

        def send(count: int) -> list[Any]:
            values.extend(b"%d" % number for number in range(len(values), len(values) + count))
            return [producer.send("t", value) for value in values[-count:]]

        # A run is missed, and the producer sends its batch again after request.timeout.ms.
        first = send(20)
        wait_for(lambda: waiting_requests(client) >= 2, "second request")
        assert not any(one.done() for one in first)
        assert finish(run(cluster)) == [0]
        second = send(20)
        # Two runs at once: the second one is refused, or begins when the first one is over.
        assert finish(run(cluster), run(cluster)) in ([0, 0], [0, 3])
        assert client.connection.metadata().partition("t", 0).leader_epoch == first_epoch
        third = send(20)
        killed = run(cluster)
        killed.wait_for_event("became leader")
        killed.end(signal.SIGKILL)

        def is_delivered() -> bool:
            assert finish(run(cluster)) == [0]
            return all(one.done() for one in (*first, *second, *third))

        wait_for(is_delivered, "delivery", patience=300)
        offsets = [one.result(0).offset for one in (*first, *second, *third)]
    assert offsets == list(range(60))
    assert client.committed() == values
    assert cluster.log(0) == cluster.log(1) == cluster.log(2)


def waiting_requests(client: Client) -> int:
    """Return the number of requests in the inbox of the leader."""
    state = client.connection.metadata().partition(client.topic, 0)
    return int(read_requests(client.connection.leader_location(state)).num_rows)


def test_runs_of_single_brokers_find_a_broker_that_has_died(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A run until idle would end long before the session of the dead broker: it lasts until then.

    Only the run that finds it takes that long.
    """
    assert finish(run(cluster)) == [0]
    client = Client(cluster)
    client.create_topic(leader=0, min_isr=1)
    for broker in (0, 1, 2):
        assert finish(run(cluster, broker)) == [0]
    dies = cluster.run(broker_id=2)
    dies.wait_for_event("broker started")
    dies.kill()
    pending = client.send([b"a"])
    for broker in (0, 1, 0):
        assert finish(run(cluster, broker)) == [0]
    assert client.isr() == [0, 1]
    assert pending.response is not None
    assert pending.response.error == "NONE"
    assert client.committed() == [b"a"]
    assert {row["broker_id"]: row["state"] for row in cluster.rows(BROKERS)} == {
        0: "parked",
        1: "parked",
        2: "fenced",
    }


def test_a_producer_that_gave_up_reports_that_its_leader_is_parked(
    cluster: Cluster,
) -> None:
    """Its record is not appended by the next run, which logs how many requests it has refused."""
    assert finish(run(cluster)) == [0]
    client = Client(cluster)
    client.create_topic(leader=0)
    assert finish(run(cluster)) == [0]
    timeouts: dict[str, Any] = {"request_timeout_ms": 200, "delivery_timeout_ms": 300}
    with Producer(str(cluster.folder / "cluster"), linger_ms=0, **timeouts) as producer:
        failure = producer.send("t", b"a").exception(60)
    assert str(failure) == (
        "REQUEST_TIMED_OUT: partition 0 of topic t: delivery.timeout.ms has passed, and broker 0, "
        "its leader, is parked; the records may be stored. Raise delivery.timeout.ms above the "
        "time between the runs of the brokers"
    )
    process = run(cluster)
    assert finish(process) == [0]
    assert process.stderr.count('"event": "requests refused"') == 1
    assert client.committed() == []
