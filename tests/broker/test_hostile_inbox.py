"""Commits to `produce_requests` that no correct client makes: none of them stops its broker.

Every client may append to the table, so each commit, checkpoint and folder of it may have any
content. The broker goes on in its next tick and can be restarted, and correct clients are served
afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Schema

from sparklog.model import PRODUCE_REQUESTS
from sparklog.testing import LocalCluster
from tests.broker.states import error, log, rows

Attack = Callable[[Path], object]

ADD: dict[str, Any] = {
    "path": "nothing.parquet",
    "partitionValues": {},
    "size": 1,
    "modificationTime": 1,
    "dataChange": True,
}
METADATA: dict[str, Any] = {
    "id": "another",
    "format": {"provider": "parquet", "options": {}},
    "schemaString": json.dumps({"type": "struct", "fields": []}),
    "partitionColumns": [],
    "configuration": {},
}
OWN_METADATA = METADATA | {
    "schemaString": Schema.from_arrow(PRODUCE_REQUESTS.columns).to_json(),
    "partitionColumns": list(PRODUCE_REQUESTS.partition_by),
}


def line(action: str, value: object) -> bytes:
    return json.dumps({action: value}).encode()


COMMITS: dict[str, bytes] = {
    "text": b"no json",
    "nothing": b"",
    "half a line": b'{"add":{"path":"x","partitionVal',
    "no UTF-8": b"\xff\xfe\x00",
    "a list": b"[]",
    "a number": b"7",
    "nesting without an end": b"[" * 100_000,
    "a number of 5000 digits": b'{"add":' + b"9" * 5000 + b"}",
    "NaN": b'{"add":{"path":"x","partitionValues":{},"size":NaN,"modificationTime":1}}',
    "an add of nothing": line("add", None),
    "an add of a number": line("add", 7),
    "an add without a size": line("add", {"path": "x"}),
    "an add of a negative size": line("add", ADD | {"size": -5}),
    "an add of a number for a path": line("add", ADD | {"path": 5}),
    "an add of half a character": b'{"add":{"path":"\\ud800","partitionValues":{},"size":1,'
    b'"modificationTime":1,"dataChange":true}}',
    "an add of a file outside": line("add", ADD | {"path": "../log/_delta_log/0.json"}),
    "an add of an absolute path": line("add", ADD | {"path": "/etc/passwd"}),
    "an add with a number that is text": line("add", ADD | {"partitionValues": {"acks": "all"}}),
    "an add with a number that runs over": line(
        "add", ADD | {"partitionValues": {"acks": str(1 << 31), "timeout_ms": str(1 << 63)}}
    ),
    "an add with an unknown column": line("add", ADD | {"partitionValues": {"a": "1"}}),
    "statistics that are none": line("add", ADD | {"stats": '{"numRecords":"all"}'}),
    "statistics of an invalid time": line(
        "add", ADD | {"stats": '{"numRecords":1,"minValues":{"timestamp":"long ago"}}'}
    ),
    "statistics of a number that runs over": line(
        "add", ADD | {"stats": json.dumps({"numRecords": 1 << 70})}
    ),
    "statistics of another column": line("add", ADD | {"stats": '{"minValues":{"value":"a"}}'}),
    "an add with a partition that is a number": line("add", ADD | {"partitionValues": {"a": 1}}),
    "an add with a deletion vector": line(
        "add",
        ADD | {"deletionVector": {"storageType": "p", "pathOrInlineDv": "/x", "sizeInBytes": 1}},
    ),
    "a remove of nothing": line("remove", None),
    "a remove of a number": line("remove", {"path": 7, "dataChange": True}),
    "a remove of what is not there": line("remove", {"path": "x", "dataChange": True}),
    "the epoch of a newer broker": line("txn", {"appId": "broker_epoch", "version": 1 << 40}),
    "an epoch that is text": line("txn", {"appId": "broker_epoch", "version": "x"}),
    "a protocol of tomorrow": line("protocol", {"minReaderVersion": 99, "minWriterVersion": 99}),
    "a protocol with features": line(
        "protocol",
        {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["deletionVectors"],
            "writerFeatures": ["deletionVectors"],
        },
    ),
    "a protocol that is true": line("protocol", {"minReaderVersion": True, "minWriterVersion": 2}),
    "a protocol that is text": line("protocol", "7"),
    "metadata that are none": line("metaData", {}),
    "metadata without columns": line("metaData", METADATA),
    "metadata with a schema that is none": line("metaData", METADATA | {"schemaString": "zz"}),
    "a checkpoint after every zero commits": line(
        "metaData", METADATA | {"configuration": {"delta.checkpointInterval": "0"}}
    ),
    "a checkpoint interval that is text": line(
        "metaData", OWN_METADATA | {"configuration": {"delta.checkpointInterval": "often"}}
    ),
    "a checkpoint interval of 5000 digits": line(
        "metaData", OWN_METADATA | {"configuration": {"delta.checkpointInterval": "9" * 5000}}
    ),
    "a creation time that is text": line("metaData", OWN_METADATA | {"createdTime": "x"}),
    "a format that is a number": line("metaData", OWN_METADATA | {"format": {"provider": 5}}),
    "statistics of half a character": line("add", ADD | {"stats": "\ud800"}),
    "a property that is a list": line(
        "metaData", OWN_METADATA | {"configuration": {"delta.logRetentionDuration": []}}
    ),
    "a format without options": line(
        "metaData", OWN_METADATA | {"format": {"provider": "parquet"}}
    ),
    "statistics nested without an end": line("add", ADD | {"stats": "[" * 100_000}),
    "an unknown action": line("mergeAll", {"at": 1}),
    "a domain": line("domainMetadata", {"domain": 5, "configuration": "", "removed": False}),
    "commit information that is none": line("commitInfo", {"timestamp": "yesterday"}),
    "two actions in one": b'{"add":null,"txn":null}',
}
"""The commits, each as the bytes of its file."""


def newest(table: Path) -> int:
    return max(int(one.stem) for one in (table / "_delta_log").glob("[0-9]*.json"))


def following(table: Path) -> Path:
    return table / "_delta_log" / f"{newest(table) + 1:020}.json"


def link_elsewhere(table: Path) -> None:
    (table.parent / "secret").write_bytes(line("add", ADD))
    following(table).symlink_to(table.parent / "secret")


def too_large(table: Path) -> None:
    with following(table).open("wb") as commit:
        commit.truncate(65 << 20)


def remove_commits(table: Path) -> None:
    for one in (table / "_delta_log").iterdir():
        one.unlink()


ATTACKS: dict[str, Attack] = {
    **{
        name: lambda table, content=content: following(table).write_bytes(content)  # type: ignore[misc]
        for name, content in COMMITS.items()
    },
    "a commit that is a folder": lambda table: following(table).mkdir(),
    "a commit that is a pipe": lambda table: os.mkfifo(following(table)),
    "a commit that is a link": link_elsewhere,
    "a commit that is too large": too_large,
    "all commits removed": remove_commits,
    "the table removed": shutil.rmtree,
    "a commit after a gap": lambda table: (
        table / "_delta_log" / f"{newest(table) + 7:020}.json"
    ).write_bytes(line("add", ADD)),
    "the last version there can be": lambda table: (
        table / "_delta_log" / f"{(1 << 63) - 1:020}.json"
    ).write_bytes(line("add", ADD)),
    "a checkpoint that is text": lambda table: (
        table / "_delta_log" / f"{newest(table):020}.checkpoint.parquet"
    ).write_bytes(b"PAR1 no parquet"),
    "a checkpoint whose version has other digits": lambda table: (
        table / "_delta_log" / ("\N{SUPERSCRIPT TWO}" * 20 + ".checkpoint.parquet")
    ).write_bytes(b"PAR1"),
    "a commit whose version has other digits": lambda table: (
        table / "_delta_log" / ("\N{ARABIC-INDIC DIGIT NINE}" * 20 + ".json")
    ).write_bytes(line("add", ADD)),
    "a hint at a checkpoint that is not there": lambda table: (
        table / "_delta_log" / "_last_checkpoint"
    ).write_bytes(b'{"version":2,"size":3}'),
    "a hint at a checkpoint that is text": lambda table: (
        table / "_delta_log" / "_last_checkpoint"
    ).write_bytes(b"text"),
    "the first commit changed": lambda table: (table / "_delta_log" / f"{0:020}.json").write_bytes(
        line("metaData", METADATA)
    ),
}


@pytest.fixture
def cluster(start: Callable[..., LocalCluster]) -> LocalCluster:
    """A broker with the topic `t` and a record, whose request has been handled."""
    cluster = start(0)
    cluster.produce("t", 0, [b"before"], acks=1)
    cluster.leader_tick(0)
    return cluster


def table_of(cluster: LocalCluster) -> Path:
    return Path(cluster.root) / "broker-0" / "produce_requests"


def check_served(cluster: LocalCluster) -> None:
    """A valid request is answered, the broker becomes idle, and Delta can read the table."""
    pending = cluster.produce("t", 0, [b"after"], acks=1)
    cluster.tick_until_idle()
    assert error(pending) == "NONE"
    assert log(cluster, 0)[-1] == "after"
    # Requests that were taken are removed together.
    cluster.clock.advance(5_000)
    cluster.leader_tick(0)
    assert DeltaTable(str(table_of(cluster))).file_uris() == []
    assert rows(cluster, 0, PRODUCE_REQUESTS) == []


NOTICED_AT_START = {
    name for name in ATTACKS if "checkpoint that" in name or "other digits" in name
} | {
    "a commit after a gap",
    "the last version there can be",
    "the first commit changed",
}
"""Attacks on parts of the log that a broker has already read, or reads only at its start."""


@pytest.mark.parametrize("attack", sorted(ATTACKS.keys() - NOTICED_AT_START))
def test_a_tick_goes_on_after(cluster: LocalCluster, attack: str) -> None:
    """A broker's ticks go on after an attack on its request table."""
    waiting = cluster.produce("t", 0, [b"waiting"], acks=1)
    ATTACKS[attack](table_of(cluster))
    cluster.tick_until_idle()
    if attack in COMMITS:
        assert error(waiting) == "NONE"
    check_served(cluster)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_broker_starts_after(cluster: LocalCluster, attack: str) -> None:
    """A broker starts after an attack on its request table."""
    cluster.crash(0)
    ATTACKS[attack](table_of(cluster))
    cluster.restart(0)
    cluster.tick_until_idle()
    check_served(cluster)


def test_the_sound_actions_of_a_damaged_commit_count(cluster: LocalCluster) -> None:
    """A broker that fences its tables is not the only reader of the commit."""
    table = table_of(cluster)
    pending = cluster.produce("t", 0, [b"after"], acks=1)
    commit = table / "_delta_log" / f"{newest(table):020}.json"
    epoch = line("txn", {"appId": "broker_epoch", "version": 99})
    commit.write_bytes(b"\n".join([b"no json", commit.read_bytes(), epoch, line("protocol", 7)]))
    cluster.leader_tick(0)
    assert error(pending) == "NONE"
    mended = [json.loads(one) for one in commit.read_text().splitlines()]
    assert [next(iter(one)) for one in mended] == ["commitInfo", "add", "txn"]


def test_a_broker_does_not_recreate_the_table_in_a_root_that_is_gone(
    cluster: LocalCluster,
) -> None:
    """A mount point whose file system is missing is not the place for a new table."""
    shutil.rmtree(table_of(cluster).parent)
    with pytest.raises(Exception, match=r"broker-0/"):
        cluster.leader_tick(0)
    assert not table_of(cluster).exists()
