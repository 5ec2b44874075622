"""Processes that are suspended while others replace them: they resume, do no harm, and catch up."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import pytest

from sparklog.cli.exit_codes import ExitCode
from sparklog.cluster.roots import ClusterRoot
from sparklog.errors import FencedError
from sparklog.model import BROKERS, new_batch_path
from sparklog.producer.produce_requests import PendingProduce
from sparklog.storage.commits import BROKER_EPOCH
from sparklog.storage.fence import Fence
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog
from tests.jobs.processes import Client, Cluster, Process, wait_for

IDS = (0, 1, 2)


@pytest.fixture
def brokers(cluster: Cluster) -> dict[int, Process]:
    ClusterRoot.create(Location.of(str(cluster.folder / "cluster")))
    return {one: cluster.run(broker_id=one) for one in IDS}


def row(cluster: Cluster, broker_id: int) -> dict[str, object]:
    [found] = [row for row in cluster.rows(BROKERS) if row["broker_id"] == broker_id]
    return found


def log_of(cluster: Cluster, broker_id: int, fence: Fence | None = None) -> RecordLog:
    return RecordLog(Location.of(str(cluster.folder / f"broker-{broker_id}")), fence)


def send_some(client: Client, prefix: str) -> dict[bytes, PendingProduce]:
    """Send requests of one record each, every third of them with acks=1."""
    values = [f"{prefix}{number}".encode() for number in range(12)]
    return {
        value: client.send([value], acks=1 if number % 3 == 0 else -1)
        for number, value in enumerate(values)
    }


def wait_for_another_leader(client: Client, than: int) -> None:
    wait_for(lambda: client.leader() not in (than, None), "new leader")


def acknowledged_by_all(sent: dict[bytes, PendingProduce]) -> dict[bytes, int]:
    """Return the offsets of the records that were acknowledged with acks=all."""
    return {
        value: pending.response.base_offset
        for value, pending in sent.items()
        if pending.acks == "all" and pending.response and pending.response.error == "NONE"
    }


def check_at_rest(
    cluster: Cluster, client: Client, processes: Sequence[Process], told: dict[bytes, int]
) -> None:
    """Check that all logs are equal and committed, and have the acknowledged records once."""
    wait_for(lambda: client.isr() == list(IDS), "full in-sync set", processes[0])
    client.produce(b"last")

    def poll() -> bool:
        logs = [cluster.log(broker) for broker in IDS]
        ends = {cluster.high_watermark(broker) for broker in IDS}
        return logs[0] == logs[1] == logs[2] and ends == {len(logs[0])}

    wait_for(poll, "equal logs", processes[0])
    values = [value for _, _, value in cluster.log(0)]
    assert values == client.committed()
    assert len(set(values)) == len(values)
    assert {value: values.index(value) for value in told} == told
    for process in processes:
        assert process.popen.poll() is None
        assert "Traceback" not in process.stderr


def test_a_leader_that_sleeps_until_another_leads_wakes_up_as_a_follower(
    cluster: Cluster, brokers: dict[int, Process]
) -> None:
    """The requests from before and during the suspension are stored on all brokers or refused."""
    client = Client(cluster)
    client.create_topic(leader=1)
    told = {b"a": client.produce(b"a")}
    sent = send_some(client, "before")
    wait_for(lambda: any(pending.is_done for pending in sent.values()), "answer")
    brokers[1].send(signal.SIGSTOP)
    sent |= send_some(client, "meanwhile")
    broker_epoch = row(cluster, 1)["broker_epoch"]
    slept_at = log_of(cluster, 1).version

    wait_for_another_leader(client, 1)
    told[b"b"] = client.produce(b"b")
    assert client.isr() == [0, 2]
    assert log_of(cluster, 1).version == slept_at
    brokers[1].send(signal.SIGCONT)
    wait_for(lambda: all(pending.is_done for pending in sent.values()), "answer to every request")
    errors = {pending.response.error for pending in sent.values() if pending.response}
    assert errors <= {"NONE", "NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT"}

    told |= acknowledged_by_all(sent)
    check_at_rest(cluster, client, list(brokers.values()), told)
    assert row(cluster, 1)["broker_epoch"] == broker_epoch
    assert client.leader() != 1


def test_the_older_of_two_processes_of_a_leader_is_fenced_and_the_newer_goes_on(
    cluster: Cluster, brokers: dict[int, Process]
) -> None:
    """The older of two processes of a leader is fenced, and the newer one goes on."""
    client = Client(cluster)
    client.create_topic(leader=0)
    told = {b"a": client.produce(b"a")}
    epoch = int(str(row(cluster, 0)["broker_epoch"]))
    of_older = log_of(cluster, 0, Fence(BROKER_EPOCH, epoch))
    sent = send_some(client, "before")
    wait_for(lambda: any(pending.is_done for pending in sent.values()), "answer")
    older = brokers[0]
    older.send(signal.SIGSTOP)
    of_older.refresh()

    newer = cluster.run(broker_id=0)
    newer.wait_for_event("broker started")
    [key] = of_older.partitions()
    last = of_older.batches(key)[-1]
    zombies = last._replace(path=new_batch_path(), base_offset=last.next_offset)
    of_older.location.create(zombies.path).close()
    with pytest.raises(FencedError, match="a newer process plays this role"):
        of_older.commit([zombies])

    older.send(signal.SIGCONT)
    told[b"b"] = client.produce(b"b")
    assert older.exit_code() == ExitCode.TAKEN_OVER
    assert older.stderr.splitlines()[-1].startswith("sparklog: ")
    assert "Traceback" not in older.stderr
    told |= acknowledged_by_all(sent)
    check_at_rest(cluster, client, [newer, brokers[1], brokers[2]], told)
    assert int(str(row(cluster, 0)["broker_epoch"])) > epoch


def test_a_leader_that_sleeps_again_and_again_loses_nothing(
    cluster: Cluster, brokers: dict[int, Process]
) -> None:
    """Each leader is suspended at an arbitrary point, until another broker leads."""
    client = Client(cluster)
    client.create_topic(leader=2)
    told: dict[bytes, int] = {}
    sent: dict[bytes, PendingProduce] = {}
    for turn in range(3):
        leader = client.leader()
        assert leader is not None
        sent |= send_some(client, f"{turn}.")
        brokers[leader].send(signal.SIGSTOP)
        wait_for_another_leader(client, leader)
        value = f"after{turn}".encode()
        told[value] = client.produce(value)
        brokers[leader].send(signal.SIGCONT)
        wait_for(lambda: client.isr() == list(IDS), "return to the in-sync replicas")
    wait_for(lambda: all(pending.is_done for pending in sent.values()), "answer to every request")
    told |= acknowledged_by_all(sent)
    check_at_rest(cluster, client, list(brokers.values()), told)
