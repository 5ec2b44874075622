"""`sparklog configs`: output in the form of kafka-configs.sh."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparklog.testing import LocalCluster
from tests.cli.command_line import run

OF_TOPIC = ("--entity-type", "topics", "--entity-name", "t")


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    """A cluster with a topic `t`."""
    made = LocalCluster(tmp_path, [0, 1])
    made.create_topic("t", configs={"min.insync.replicas": 2})
    made.tick_until_idle()
    return made


def test_settings_are_changed_and_described_as_by_kafkas_tool(cluster: LocalCluster) -> None:
    """The topic's own; with --all also the others."""
    root = cluster.root / "cluster"
    described = run("configs", "describe", *OF_TOPIC, cluster=root).printed
    assert described == (
        "Dynamic configs for topic t are:\n"
        "  min.insync.replicas=2 sensitive=false "
        "synonyms={DYNAMIC_TOPIC_CONFIG:min.insync.replicas=2, DEFAULT_CONFIG:min.insync.replicas"
        "=1}\n"
    )
    changed = run(
        *("configs", "alter", *OF_TOPIC),
        *("--add-config", "max.message.bytes=1000,unclean.leader.election.enable=[true]"),
        *("--delete-config", "min.insync.replicas"),
        cluster=root,
    )
    assert changed.printed == "Completed updating config for topic t.\n"
    cluster.tick_until_idle()
    described = run("configs", "describe", "--all", cluster=root).printed
    lines = [line for line in described.splitlines() if "min.insync" in line or "max.mess" in line]
    assert described.startswith("All configs for topic t are:\n")
    assert lines == [
        "  min.insync.replicas=1 sensitive=false synonyms={DEFAULT_CONFIG:min.insync.replicas=1}",
        (
            "  max.message.bytes=1000 sensitive=false "
            "synonyms={DYNAMIC_TOPIC_CONFIG:max.message.bytes=1000, "
            "DEFAULT_CONFIG:message.max.bytes=1073741824}"
        ),
    ]
    [topic] = json.loads(run("configs", "describe", "--json", cluster=root).printed)
    assert topic["configs"] == [
        {"name": "max.message.bytes", "value": "1000", "source": "topic"},
        {"name": "unclean.leader.election.enable", "value": "true", "source": "topic"},
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--add-config", "a"), "--add-config 'a' is not key=value"),
        (("--add-config", "max.message.bytes=1,max.message.bytes=2"), "is given twice"),
        (("--add-config", "nonsense=1"), "unknown configuration key nonsense in topic t"),
        (("--delete-config", "nonsense"), "unknown configuration key nonsense in topic t"),
        (("--delete-config", "max.message.bytes"), "does not set max.message.bytes"),
        (("--add-config", "min.insync.replicas=3"), "above its replication factor 2"),
        ((), "nothing is to be changed"),
        (("--entity-type", "brokers"), "--entity-type brokers has no settings that can be changed"),
    ],
)
def test_what_is_refused(cluster: LocalCluster, options: tuple[str, ...], expected: str) -> None:
    """In one sentence, and nothing is changed."""
    root = cluster.root / "cluster"
    refused = run("configs", "alter", *OF_TOPIC, *options, cluster=root).refusal
    assert expected in refused
    [topic] = json.loads(run("configs", "describe", "--json", cluster=root).printed)
    assert topic["configs"] == [{"name": "min.insync.replicas", "value": "2", "source": "topic"}]
