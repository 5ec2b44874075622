"""`sparklog elect-leaders`: the options, output and exit codes of kafka-leader-election.sh."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparklog.testing import LocalCluster
from tests.cli.command_line import run

PREFERRED = ("elect-leaders", "--election-type", "preferred")
UNCLEAN = ("elect-leaders", "--election-type", "UNCLEAN")


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    """Broker 0 was away: broker 1 leads `t-0`, broker 2 its own `t-1`, nobody `u-0`."""
    cluster = LocalCluster(tmp_path, [0, 1, 2])
    cluster.create_topic("t", assignment={0: [0, 1], 1: [2, 1]})
    cluster.create_topic("u", assignment={0: [0, 1]})
    cluster.tick_until_idle()
    cluster.crash(1)
    cluster.fence(1)
    cluster.produce("u", 0, [b"a"], acks=1)
    cluster.tick_until_idle()
    cluster.restart(1)
    # Broker 1 catches up with `t` only, since broker 0 is gone before it has followed `u`.
    cluster.tick_until_idle()
    return cluster


def root(cluster: LocalCluster) -> Path:
    return Path(cluster.root) / "cluster"


def moved(cluster: LocalCluster) -> None:
    """Let broker 0 lose its leadership and come back in sync."""
    cluster.crash(0)
    cluster.fence(0)
    cluster.tick_until_idle()
    cluster.restart(0)
    cluster.tick_until_idle()


def test_all_partitions_return_to_their_preferred_leaders(cluster: LocalCluster) -> None:
    """Elected partitions and those that needed no election are printed as Kafka prints them."""
    moved(cluster)
    assert cluster.partition("t", 0).leader == 1
    printed = run(*PREFERRED, "--all-topic-partitions", cluster=root(cluster)).printed
    assert printed == (
        "Successfully completed leader election (PREFERRED) for partitions t-0, u-0\n"
        "Valid replica already elected for partitions t-1\n"
    )
    assert [cluster.partition(*of).leader for of in (("t", 0), ("t", 1), ("u", 0))] == [0, 2, 0]
    again = run(*PREFERRED, "--all-topic-partitions", cluster=root(cluster)).printed
    assert again == "Valid replica already elected for partitions t-0, t-1, u-0\n"


def test_a_preferred_leader_that_is_gone_is_an_error(cluster: LocalCluster) -> None:
    """The error has Kafka's code, and the exit code is 1; the other partitions are elected."""
    cluster.crash(2)
    cluster.fence(2)
    cluster.tick_until_idle()
    file = Path(cluster.root) / "partitions.json"
    entries = [{"topic": "t", "partition": number} for number in (0, 1, 7)]
    file.write_text(json.dumps({"partitions": entries}))
    asked = run(*PREFERRED, "--path-to-json-file", file, cluster=root(cluster))
    head = "Error completing leader election (PREFERRED) for partition"
    assert asked == (
        1,
        (
            "Valid replica already elected for partitions t-0\n"
            f"{head}: t-1: PREFERRED_LEADER_NOT_AVAILABLE: The preferred leader cannot lead.\n"
            f"{head}: t-7: UNKNOWN_TOPIC_OR_PARTITION: There is no such topic or partition.\n"
            "2 replica(s) could not be elected\n"
        ),
        "",
    )


def test_an_unclean_election_gives_an_offline_partition_a_leader(cluster: LocalCluster) -> None:
    """A partition is offline while its last member in sync is gone."""
    one = ("--topic", "u", "--partition", "0")
    printed = run(*UNCLEAN, *one, cluster=root(cluster)).printed
    assert printed == "Valid replica already elected for partitions u-0\n"
    for broker in (1, 0):
        cluster.crash(broker)
        cluster.fence(broker)
    offline = run(*UNCLEAN, *one, cluster=root(cluster))
    assert offline == (
        1,
        (
            "Error completing leader election (UNCLEAN) for partition: u-0: "
            "ELIGIBLE_LEADERS_NOT_AVAILABLE: No replica is able to lead.\n"
            "1 replica(s) could not be elected\n"
        ),
        "",
    )
    cluster.restart(1)
    printed = run(*UNCLEAN, *one, cluster=root(cluster)).printed
    assert printed == "Successfully completed leader election (UNCLEAN) for partitions u-0\n"
    assert cluster.partition("u", 0).leader == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name the partitions in one way"),
        (("--all-topic-partitions", "--topic", "t"), "name the partitions in one way"),
        (("--topic", "t"), "--topic and --partition belong together"),
        (("--partition", "0"), "--topic and --partition belong together"),
        (("--path-to-json-file", "absent.json"), "absent.json cannot be read"),
    ],
)
def test_partitions_are_named_in_one_way(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    """Options that name no partitions, or name them twice, are refused."""
    assert said in run(*PREFERRED, *arguments, cluster=tmp_path).refusal


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "is not JSON"),
        pytest.param("[" * 100_000, "is not JSON: it is nested too deeply", id="nesting"),
        ("{}", 'must be an object with the list "partitions"'),
        ('{"partitions": []}', 'must be an object with the list "partitions"'),
        ('{"partitions": [{"topic": "t"}]}', 'has {"topic": "t"} for a partition'),
        (
            '{"partitions": [{"topic": "t", "partition": 0}, {"topic": "t", "partition": 0}]}',
            "has the partition t-0 twice",
        ),
    ],
)
def test_a_file_of_another_format_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """The message names the file and the entry."""
    file = tmp_path / "partitions.json"
    file.write_text(text)
    refusal = run(*PREFERRED, "--path-to-json-file", file, cluster=tmp_path).refusal
    assert refusal.startswith(str(file))
    assert said in refusal
