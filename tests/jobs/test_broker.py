"""jobs.broker as real processes, one per broker: failover, a returning leader, fencing, stops."""

from __future__ import annotations

import signal

import pytest

from sparklog.cli.exit_codes import ExitCode
from sparklog.model import BROKERS
from tests.jobs.processes import Client, Cluster, Process, wait_for

IDS = (0, 1, 2)


@pytest.fixture
def brokers(cluster: Cluster) -> dict[int, Process]:
    """Three processes that start at once in an empty folder, and create the cluster."""
    return {one: cluster.run(broker_id=one) for one in IDS}


def states(cluster: Cluster) -> dict[int, str]:
    return {row["broker_id"]: row["state"] for row in cluster.rows(BROKERS)}


def epoch(cluster: Cluster, broker_id: int) -> int:
    [row] = [row for row in cluster.rows(BROKERS) if row["broker_id"] == broker_id]
    return int(row["broker_epoch"])


def test_when_the_leaders_machine_is_lost_the_others_go_on_and_it_truncates_and_rejoins_later(
    cluster: Cluster, brokers: dict[int, Process]
) -> None:
    client = Client(cluster)
    client.create_topic(leader=1)
    client.produce(b"a", b"b")

    # The leader alone has this record when its process and its disk are lost.
    for follower in (0, 2):
        brokers[follower].send(signal.SIGSTOP)
    assert client.produce(b"lost", acks=1) == 2
    brokers[1].kill()
    disk, elsewhere = cluster.folder / "broker-1", cluster.folder / "elsewhere"
    disk.rename(elsewhere)
    for follower in (0, 2):
        brokers[follower].send(signal.SIGCONT)

    wait_for(lambda: client.leader() not in (1, None), "new leader")
    assert client.produce(b"c") == 2
    assert client.isr() == [0, 2]
    assert client.committed() == [b"a", b"b", b"c"]

    elsewhere.rename(disk)
    assert cluster.log(1) == [(0, 0, b"a"), (1, 0, b"b"), (2, 0, b"lost")]
    old_epoch = epoch(cluster, 1)
    returned = cluster.run(broker_id=1)
    wait_for(lambda: client.isr() == [0, 1, 2], "return to the in-sync replicas", returned)
    assert epoch(cluster, 1) > old_epoch
    assert client.leader() != 1
    client.produce(b"d")
    assert client.committed() == [b"a", b"b", b"c", b"d"]
    wait_for(lambda: cluster.log(0) == cluster.log(1) == cluster.log(2), "equal logs")
    assert [value for _, _, value in cluster.log(1)] == [b"a", b"b", b"c", b"d"]

    for process in (brokers[0], brokers[2], returned):
        assert process.end() == 0, process.stderr
        assert "Traceback" not in process.stderr
    assert states(cluster) == dict.fromkeys(IDS, "stopped")


def test_a_stopped_broker_hands_over_and_may_catch_up_in_a_run_until_idle(
    cluster: Cluster, brokers: dict[int, Process]
) -> None:
    """A stopped broker hands over its leadership, and catches up in a run until idle."""
    client = Client(cluster)
    client.create_topic(leader=0)
    client.produce(b"a")
    assert brokers[0].end() == 0
    assert states(cluster)[0] == "stopped"
    assert client.leader() in (1, 2), "handed over before it ended"
    client.produce(b"b")
    assert client.committed() == [b"a", b"b"]

    scheduled = cluster.run("--until-idle", broker_id=0)
    assert scheduled.exit_code() == 0, scheduled.stderr
    assert [value for _, _, value in cluster.log(0)] == [b"a", b"b"]
    assert states(cluster)[0] == "parked"


def test_of_two_processes_for_one_broker_the_live_one_stays_and_the_silent_one_goes(
    cluster: Cluster, brokers: dict[int, Process]
) -> None:
    """A second process of a live broker is refused; it replaces a suspended one after its
    session.
    """
    first = brokers[2]
    first.wait_for_event("broker started")
    epoch_of_first = epoch(cluster, 2)
    refused = cluster.run(broker_id=2)
    assert refused.exit_code() == ExitCode.TAKEN_OVER
    told = (
        "sparklog: DUPLICATE_BROKER_REGISTRATION: broker 2 is registered and alive: stop that "
        "process first, or give this one another broker.id"
    )
    assert refused.stderr.splitlines() == [told]
    assert epoch(cluster, 2) == epoch_of_first

    # While the first process is suspended for longer than its session, a newer one takes the broker
    # over.
    first.send(signal.SIGSTOP)
    newer = cluster.run(broker_id=2)
    newer.wait_for_event("broker started")
    epoch_of_newer = epoch(cluster, 2)
    assert epoch_of_newer > epoch_of_first
    first.send(signal.SIGCONT)
    assert first.exit_code() == ExitCode.TAKEN_OVER
    assert first.stderr.splitlines()[-1].startswith("sparklog: ")
    assert "Traceback" not in first.stderr
    assert epoch(cluster, 2) == epoch_of_newer
    assert newer.popen.poll() is None
