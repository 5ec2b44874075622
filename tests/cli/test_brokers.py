"""`sparklog brokers`: list, drain, fence, unregister."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from sparklog.broker.application import Application
from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.config import ClusterConfig, Settings, parse
from sparklog.errors import FencedError, ProtocolError
from sparklog.testing import LocalCluster
from tests.cli.command_line import files_in, run


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    """Three brokers; broker 0, which leads `t`, is parked and will not return."""
    cluster = LocalCluster(tmp_path, [0, 1, 2], racks={1: "east"})
    cluster.create_topic("t", assignment={0: [0, 1, 2]})
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    cluster.brokers[0].park()
    cluster.crash(0)
    return cluster


def root(cluster: LocalCluster) -> Path:
    return Path(cluster.root) / "cluster"


def states(cluster: LocalCluster) -> dict[int, str]:
    listed = json.loads(run("brokers", "list", "--json", cluster=root(cluster)).stdout)
    return {row["broker_id"]: row["state"] for row in listed}


def test_list_shows_what_each_broker_has(cluster: LocalCluster) -> None:
    """`list` shows each broker's state, epoch, rack, log directories and numbers of partitions."""
    printed = run("brokers", "list", "--json", cluster=root(cluster)).printed
    assert json.loads(printed) == [
        {
            "broker_id": one,
            "state": "parked" if one == 0 else "alive",
            "broker_epoch": one + 1,
            "rack": "east" if one == 1 else None,
            "leads": 1 if one == 0 else 0,
            "in_sync": 1,
            "replicas": 1,
            "leader_imbalance": 0.0,
            "is_controller": False,
            "controller_since_ms": None,
            "log_dirs": [f"0={cluster.root}/broker-{one}"],
        }
        for one in range(3)
    ]
    table = run("brokers", "list", cluster=root(cluster)).printed
    assert "parked" in table
    assert "(3 rows)" in table


def test_list_shows_since_when_the_controller_leads(tmp_path: Path) -> None:
    """The time is that of the takeover, also after renewals and for the next controller."""
    cluster = LocalCluster(tmp_path, [0, 1])

    def controllers() -> list[tuple[int, int]]:
        listed = json.loads(run("brokers", "list", "--json", cluster=root(cluster)).printed)
        return [
            (row["broker_id"], row["controller_since_ms"]) for row in listed if row["is_controller"]
        ]

    cluster.tick_until_idle()
    began_ms = cluster.clock.now_ms()
    assert controllers() == [(0, began_ms)]
    cluster.clock.advance(5_000)
    cluster.tick_until_idle()
    assert controllers() == [(0, began_ms)]
    cluster.brokers[0].stop()
    assert controllers() == []
    cluster.crash(0)
    cluster.tick_until_idle()
    assert controllers() == [(1, began_ms + 5_000)]


def test_list_shows_the_share_of_partitions_that_others_lead(tmp_path: Path) -> None:
    """`leader_imbalance` is the percentage of a broker's preferred partitions, in both views."""
    cluster = LocalCluster(tmp_path, [0, 1])
    cluster.create_topic("t", assignment={one: [0, 1] for one in range(3)} | {3: [1, 0]})
    cluster.tick_until_idle()
    cluster.crash(0)
    cluster.fence(0)
    cluster.restart(0)
    cluster.tick_until_idle()
    cluster.elect_leaders("preferred", [("t", 0)])
    listed = json.loads(run("brokers", "list", "--json", cluster=root(cluster)).printed)
    assert [row["leader_imbalance"] for row in listed] == [66.7, 0.0]
    rows = run("query", "from leader_imbalance", "--json", cluster=root(cluster)).printed
    found = {row["broker_id"]: row for row in json.loads(rows)}
    assert [(of["preferred"], of["led_by_others"]) for of in (found[0], found[1])] == [
        (3, 2),
        (1, 0),
    ]
    assert round(found[0]["leader_imbalance"], 1) == 66.7


def test_fence_gives_a_parked_brokers_leadership_to_another(cluster: LocalCluster) -> None:
    """Without it an election by an administrator was not needed, since the leader counted as
    alive.
    """
    asked = [("t", 0)]
    assert cluster.elect_leaders("unclean", asked) == {("t", 0): "ELECTION_NOT_NEEDED"}
    printed = run("brokers", "fence", "0", cluster=root(cluster)).printed
    assert printed == "Fenced broker 0.\n"
    assert states(cluster)[0] == "fenced"
    state = cluster.partition("t", 0)
    assert (state.leader, state.leader_epoch, state.isr) == (1, 1, [1, 2])
    cluster.tick_until_idle()
    pending = cluster.produce("t", 0, [b"b"])
    cluster.tick_until_idle()
    assert pending.response is not None
    assert pending.response.error == "NONE"
    cluster.restart(0)
    cluster.tick_until_idle()
    assert cluster.partition("t", 0).isr == [0, 1, 2]


def test_unregister_ends_a_broker_until_it_registers_again(cluster: LocalCluster) -> None:
    """An unregistered broker leaves the ISR and may register again."""
    before = files_in(root(cluster))
    refusal = run("brokers", "unregister", "0", cluster=root(cluster)).refusal
    assert refusal == (
        "INVALID_REQUEST: broker 0 has a replica of 1 partition: move it away with `sparklog "
        "brokers drain 0`, or give it up with --force"
    )
    assert files_in(root(cluster)) == before
    printed = run("brokers", "unregister", "0", "--force", cluster=root(cluster)).printed
    assert printed == (
        "Unregistered broker 0.\n"
        "Its replicas stay assigned to it: 1 partition has one replica less.\n"
    )
    assert states(cluster)[0] == "unregistered"
    assert cluster.partition("t", 0).leader == 1
    assert cluster.partition("t", 0).isr == [1, 2]
    with pytest.raises(ProtocolError, match=r"INVALID_REPLICA_ASSIGNMENT: .* broker 0, which"):
        cluster.create_topic("u", assignment={0: [0, 1]})
    refusal = run("brokers", "unregister", "0", cluster=root(cluster)).refusal
    assert refusal == (
        "BROKER_ID_NOT_REGISTERED: there is no broker 0: name one of the registered brokers 1, 2"
    )
    cluster.restart(0)
    assert cluster.brokers[0].broker_epoch == 5
    cluster.tick_until_idle()
    assert cluster.partition("t", 0).isr == [0, 1, 2]


def test_an_unregistered_broker_without_replicas_is_not_listed(tmp_path: Path) -> None:
    """An unregistered broker without replicas is not listed."""
    cluster = LocalCluster(tmp_path, [0, 1])
    cluster.brokers[1].stop()
    printed = run("brokers", "unregister", "1", cluster=root(cluster)).printed
    assert printed == "Unregistered broker 1.\n"
    assert states(cluster) == {0: "alive"}


def test_a_suspended_process_of_an_unregistered_broker_is_fenced(cluster: LocalCluster) -> None:
    """It resumes after its broker was fenced because of its silence, and unregistered."""
    cluster.pause(1)
    zombie = cluster.brokers[1]
    cluster.fence(1)
    run("brokers", "unregister", "1", "--force", cluster=root(cluster))
    with pytest.raises(FencedError, match="another process has registered as broker 1"):
        zombie.controller_tick()
    assert states(cluster)[1] == "unregistered"


class TestTheLastInSyncReplica:
    @pytest.fixture
    def cluster(self, cluster: LocalCluster) -> LocalCluster:
        """Only broker 1 has the record `b`; the processes of brokers 0 and 1 have ended."""
        cluster.crash(2)
        cluster.fence(2)
        run("brokers", "fence", "0", cluster=root(cluster))
        cluster.tick_until_idle()
        cluster.produce("t", 0, [b"b"])
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).isr == [1]
        cluster.brokers[1].park()
        cluster.crash(1)
        return cluster

    def test_is_not_given_up_by_unregister(self, cluster: LocalCluster) -> None:
        """`unregister` refuses to remove the last in-sync replica."""
        before = files_in(root(cluster))
        refusal = run("brokers", "unregister", "1", cluster=root(cluster)).refusal
        assert refusal == (
            "INELIGIBLE_REPLICA: broker 1 has the only replica that is in sync of t-0: start it "
            "and wait until another has caught up, or give up the records that it alone has "
            "with --force"
        )
        assert files_in(root(cluster)) == before

    def test_is_given_up_by_force(self, cluster: LocalCluster) -> None:
        """The partition is offline then, until an unclean election."""
        printed = run("brokers", "unregister", "1", "--force", cluster=root(cluster)).printed
        assert printed.startswith("Unregistered broker 1.\n")
        state = cluster.partition("t", 0)
        assert (state.leader, state.isr) == (None, [])
        cluster.restart(2)
        cluster.tick_until_idle()
        assert cluster.elect_leaders("unclean", [("t", 0)]) == {("t", 0): "NONE"}
        assert cluster.partition("t", 0).leader == 2


class TestRunningBrokers:
    """The command waits for their heartbeats for a session."""

    @pytest.fixture
    def config(self, tmp_path: Path) -> ClusterConfig:
        values = {
            "cluster.root": str(tmp_path / "cluster"),
            "brokers": [{"broker.id": 0, "log.dirs": str(tmp_path / "broker-0")}],
            "broker.session.timeout.ms": 3_000,
            "broker.heartbeat.interval.ms": 20,
        }
        return parse(ClusterConfig, values, "the test")

    @pytest.mark.parametrize("action", ["fence_broker", "unregister_broker"])
    def test_are_refused(self, config: ClusterConfig, action: str) -> None:
        """Fencing or unregistering a running broker is refused."""
        application = Application(config)
        application.start()
        running = threading.Thread(target=application.run)
        running.start()
        try:
            admin = Admin(Connection(config.cluster_root), settings=config)
            with pytest.raises(ProtocolError, match="INVALID_REQUEST: broker 0 runs: stop it"):
                getattr(admin, action)(0)
        finally:
            application.stop()
            running.join()

    def test_that_died_are_fenced(self, tmp_path: Path) -> None:
        """Their rows have the state alive as long as no controller runs."""
        cluster = LocalCluster(tmp_path, [0, 1])
        cluster.create_topic("t", assignment={0: [0, 1]})
        cluster.tick_until_idle()
        cluster.crash(0)
        settings = Settings.model_validate(
            {"broker.session.timeout.ms": 50, "broker.heartbeat.interval.ms": 20}
        )
        Admin(cluster.connection, settings=settings).fence_broker(0)
        assert cluster.partition("t", 0).leader == 1


def test_an_unknown_broker_is_named(cluster: LocalCluster) -> None:
    """The error for an unknown broker lists the registered ones."""
    for command in ("fence", "unregister"):
        refusal = run("brokers", command, "7", cluster=root(cluster)).refusal
        assert refusal == (
            "BROKER_ID_NOT_REGISTERED: there is no broker 7: name one of the registered brokers "
            "0, 1, 2"
        )


def test_a_broker_that_will_not_return_is_drained(tmp_path: Path) -> None:
    """Its replicas are made from those of others; then it may be unregistered."""
    cluster = LocalCluster(tmp_path, [0, 1, 2, 3])
    cluster.create_topic("t", assignment={0: [3, 0], 1: [0, 3], 2: [0, 1]})
    cluster.tick_until_idle()
    cluster.produce("t", 0, [b"a", b"b"])
    cluster.tick_until_idle()
    cluster.crash(3)
    cluster.fence(3)
    arguments = ("brokers", "drain", "3", "--throttle", "1000000")
    printed = run(*arguments, cluster=root(cluster)).printed
    lines = printed.splitlines()
    assert lines[:2] == [
        "Started 2 reassignments. 2 partitions are moving away from broker 3:",
        "t-0: to 2,0.",
    ]
    assert lines[2].startswith("\treplica on broker 2: offset 0 of 2, ")
    assert lines[3:] == [
        "t-1: to 0,1.",
        "\treplica on broker 1: offset 0 of 0, 0 bytes left to copy",
    ]
    again = run(*arguments, cluster=root(cluster)).printed
    assert again == printed.replace("Started 2 reassignments", "Started 0 reassignments")
    cluster.tick_until_idle()
    assert run(*arguments, cluster=root(cluster)).printed == "Broker 3 has no replicas.\n"
    printed = run("brokers", "unregister", "3", cluster=root(cluster)).printed
    assert printed == "Unregistered broker 3.\n"
    printed = run("brokers", "drain", "2", cluster=root(cluster)).printed
    assert printed.startswith("Started 1 reassignment. 1 partition is moving away from broker 2:")


def test_the_state_and_the_settings_are_shown_after_a_broker_was_unregistered(
    tmp_path: Path,
) -> None:
    """`state`, and `configs` without a name, asked for the settings of brokers that were no longer
    registered, and ended with BROKER_ID_NOT_REGISTERED for ever after the first removal.
    """
    cluster = LocalCluster(tmp_path, [0, 1])
    cluster.create_topic("t", assignment={0: [0, 1]})
    cluster.crash(1)
    cluster.fence(1)
    root = tmp_path / "cluster"
    run("brokers", "unregister", "1", "--force", cluster=root)
    assert "├── brokers" in run("state", cluster=root).printed
    described = run("configs", "describe", "--entity-type", "brokers", cluster=root).printed
    assert described == "Dynamic configs for broker 0 are:\n"
    assert "for all brokers" in run("configs", "explain", "num.partitions", cluster=root).printed
