"""`sparklog upgrade` and `sparklog features`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparklog.cluster.formats import THIS_RELEASE
from sparklog.maintenance.upgrade import Upgrade
from sparklog.model import CONSUMER_GROUPS, CONTROLLER, CONTROLLER_HISTORY, PARTITION_STATE
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster
from tests.cli.command_line import files_in, run
from tests.maintenance.releases import EARLIER, LATER, MixedCluster, earlier_cluster_root


@pytest.fixture
def cluster(tmp_path: Path) -> MixedCluster:
    """A cluster of the earlier release, one of whose brokers was started with this release."""
    earlier_cluster_root(Location.of(str(tmp_path / "cluster")), ["stream_writes"])
    return MixedCluster(tmp_path, {0: EARLIER, 1: THIS_RELEASE})


def test_features_shows_what_the_brokers_know(cluster: MixedCluster) -> None:
    """The cluster's format, and the newest format that each broker's release knows."""
    root = cluster.root / "cluster"
    assert json.loads(run("features", "--json", cluster=root).printed) == [
        {"of": "cluster", "state": None, "format": 2, "newest_format": 3},
        {"of": "broker 0", "state": "alive", "format": None, "newest_format": 2},
        {"of": "broker 1", "state": "alive", "format": None, "newest_format": 3},
    ]


def test_upgrade_shows_its_steps_and_is_refused_while_an_older_broker_runs(
    cluster: MixedCluster,
) -> None:
    """With --dry-run nothing is changed, nor by a refused upgrade."""
    root = cluster.root / "cluster"
    before = files_in(cluster.root)
    refused = (
        "sparklog: format 3 is not known to the releases of these brokers: 0 (alive); start them "
        "with this release, or stop them, or unregister those that will not return; then run "
        "`sparklog upgrade` again\n"
    )
    columns = {
        one.name: ", ".join(name for name in one.columns.names if name in one.added)
        for one in (CONTROLLER, PARTITION_STATE, CONTROLLER_HISTORY, CONSUMER_GROUPS)
    }
    lease, *tables = (f"{root}: add to {name}: {added}\n" for name, added in columns.items())
    steps = "".join(tables) + (
        f"{root}: announce format 3 to running processes\n"
        f"{root}: set the format from 2 to 3\n"
        f"{cluster.root}/broker-0: set the format from 2 to 3\n"
        f"{cluster.root}/broker-1: set the format from 2 to 3\n"
    )
    assert run("upgrade", "--dry-run", cluster=root) == (2, lease + steps, refused)
    assert run("upgrade", cluster=root) == (2, "", refused)
    assert files_in(cluster.root) == before
    cluster.upgrade_broker(0, THIS_RELEASE)
    # A broker has taken the lease over, and added the column with its time.
    assert run("upgrade", cluster=root).printed == steps + "Upgraded the cluster to format 3.\n"
    done = "The cluster has format 3: nothing to do.\n"
    assert run("upgrade", cluster=root).printed == done
    assert run("upgrade", "--dry-run", cluster=root).printed == done


def test_a_root_that_is_left_to_its_broker_is_named(cluster: MixedCluster) -> None:
    """The upgrade goes on without it."""
    cluster.upgrade_broker(0, THIS_RELEASE)
    (cluster.root / "broker-1" / "format").rename(cluster.root / "away")
    (cluster.root / "broker-1" / "format").write_text("")
    finished = run("upgrade", cluster=cluster.root / "cluster")
    assert finished.exit_code == 0
    assert finished.stderr == (
        f"sparklog: {cluster.root}/broker-1 of broker 1 is not there now: its broker upgrades "
        "it at its next start\n"
    )


def test_every_command_refuses_a_cluster_of_a_later_release(tmp_path: Path) -> None:
    """The line says where, what and what to do; nothing is changed."""
    cluster = LocalCluster(tmp_path, [0])
    cluster.create_topic("t")
    cluster.brokers[0].stop()
    cluster.close()
    root = tmp_path / "cluster"
    for step in Upgrade.of(Location.of(str(root)), formats=LATER).steps:
        step.make()
    before = files_in(tmp_path)
    for command in (["topics", "list"], ["features"], ["upgrade"], ["audit"], ["format"]):
        assert run(*command, cluster=root).refusal == (
            f"{root} has format 4, and sparklog 0.1.0 knows formats 2 to 3: start the release that "
            "upgraded the cluster, or a later one"
        )
    assert files_in(tmp_path) == before
