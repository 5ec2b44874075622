"""`sparklog state`: the tree that Kafka's people know."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from rich.cells import cell_len

from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.testing import LocalCluster
from tests.cli.command_line import files_in, run
from tests.cli.terminal import run_in_terminal
from tests.examples import CHECKOUT

TREE = """\
/
├── cluster: id=<id> root=ROOT format=FORMAT
├── controller: broker_id=0 controller_epoch=1 since_ms=TIME
├── brokers
│   ├── ids
│   │   ├── 0: state=alive broker_epoch=1 rack=none leads=1 replicas=2 log_dirs=[DIR/broker-0]
│   │   └── 1: state=alive broker_epoch=2 rack=east leads=1 replicas=2 log_dirs=[DIR/broker-1]
│   └── topics
│       └── orders
│           ├── id: topic_id=<id>
│           └── partitions
│               ├── 0: leader=0 leader_epoch=0 isr=[0,1] elr=[] replicas=[0,1] partition_epoch=0 \
controller_epoch=CE
│               └── 1: leader=1 leader_epoch=0 isr=[0,1] elr=[] replicas=[1,0] partition_epoch=0 \
controller_epoch=CE
├── config
│   ├── topics
│   │   └── orders: retention.ms=5000
│   ├── brokers
│   └── clients
│       └── <default>: producer_byte_rate=9000
├── consumers
└── admin
    ├── reassign_partitions
    └── delete_topics
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a cluster with a topic and a quota, which no test changes."""
    folder = tmp_path_factory.mktemp("state")
    cluster = LocalCluster(folder, [0, 1], racks={1: "east"})
    cluster.create_topic(
        "orders", assignment={0: [0, 1], 1: [1, 0]}, configs={"retention.ms": 5000}
    )
    cluster.tick_until_idle()
    Admin(Connection(str(folder / "cluster"))).alter_client_quotas(
        None, {"producer_byte_rate": 9000}
    )
    return folder / "cluster"


def test_the_tree_is_that_of_zookeeper(root: Path) -> None:
    before = files_in(root)
    printed = run("state", "--utc", cluster=root).printed
    printed = printed.replace(str(root), "ROOT").replace(str(root.parent), "DIR")
    printed = re.sub(
        r"since_ms=\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\+00:00", "since_ms=TIME", printed
    )
    printed = re.sub(r"\bformat=\d+", "format=FORMAT", printed)
    printed = re.sub(r"(?m)controller_epoch=\d+$", "controller_epoch=CE", printed)
    assert printed == TREE
    assert files_in(root) == before


def test_a_path_is_a_part_of_it_and_json_has_the_same_names(root: Path) -> None:
    printed = run("state", "/brokers/topics/orders/partitions/1", cluster=root).printed
    assert printed.startswith("/brokers/topics/orders/partitions/1: leader=1 leader_epoch=0 isr=")
    everything = json.loads(run("state", "--json", cluster=root).printed)
    assert list(everything) == ["cluster", "controller", "brokers", "config", "consumers", "admin"]
    part = json.loads(run("state", "brokers/ids/1", "--json", cluster=root).printed)
    assert part == everything["brokers"]["ids"]["1"]
    assert (part["rack"], part["leads"]) == ("east", 1)
    assert isinstance(everything["controller"]["since_ms"], int)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/brokers/id", "there is no 'id' in /brokers; it has: ids, topics"),
        ("/nothing", "there is no 'nothing' in /; it has: cluster, controller, brokers, config, "),
        ("/controller/x", "there is no 'x' in /controller; it has: nothing"),
    ],
)
def test_an_unknown_path_is_answered_with_the_names_there(root: Path, path: str, said: str) -> None:
    assert run("state", path, cluster=root).refusal.startswith(said)


def test_it_is_folded_at_80_columns(root: Path) -> None:
    printed = run_in_terminal("state", "/brokers", cluster=root, NO_COLOR="1", PAGER="cat")
    assert max(map(cell_len, printed.splitlines())) <= 80
    assert printed.startswith("/brokers\n├── ids\n")


def test_the_commands_of_the_document_run(root: Path) -> None:
    text = (CHECKOUT / "docs" / "operating.md").read_text(encoding="utf-8")
    section = text.split("\n## Reading the state\n")[1].split("\n## ")[0]
    lines = re.findall(r"^\$ sparklog (.*)$", section, re.MULTILINE)
    assert len(lines) == 6
    for line in lines:
        # The cluster is younger than that.
        given = line.replace("10 minutes", "0 seconds").replace("conf/cluster.yaml", str(root))
        finished = run(*shlex.split(given))
        assert (finished.exit_code, finished.stderr) == (0, "")
