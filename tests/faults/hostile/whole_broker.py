"""Hostile commits among those of correct clients, to every table that a client may write.

Each round begins with a copy of a small cluster. A hostile client commits any bytes, or rows that
the schema permits. After each attack the broker ticks, a correct producer gets its answer, and its
records are read. Now and then the background work runs, the broker is restarted, or a topic is
deleted.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

from deltalake import write_deltalake
from deltalake.exceptions import DeltaError

from sparklog.clock import Clock
from sparklog.errors import SparklogError
from sparklog.groups.committed_offsets import CommittedOffsets, OffsetAndMetadata
from sparklog.groups.group import ConsumerGroups, GroupFence
from sparklog.model import (
    CONSUMER_GROUP_HEARTBEATS,
    CONSUMER_GROUPS,
    CONSUMER_OFFSETS,
    PRODUCER_IDS,
    STREAM_WRITES,
    TableSchema,
    TopicIdPartition,
)
from sparklog.producer.producer_ids import ProducerIds
from sparklog.storage.json_text import json_bytes
from sparklog.testing import LocalCluster
from tests.faults.hostile.mutation import TEXTS, Mutator
from tests.faults.hostile.samples import group_rows, table_of
from tests.faults.hostile.tables import sealed

CLUSTER_TABLES = (
    CONSUMER_GROUPS,
    CONSUMER_GROUP_HEARTBEATS,
    CONSUMER_OFFSETS,
    PRODUCER_IDS,
    STREAM_WRITES,
)
"""The tables of the cluster root that clients write to."""

NAMES = tuple(text for text in TEXTS if text and "\ud800" not in text)
"""Names that are also SQL, paths, references or nothing that can be seen."""


class Attack(NamedTuple):
    """An attack: its table, and the bytes of the commit or the rows."""

    table: str
    content: bytes
    is_commit: bool


class HostileCluster:
    """A cluster beside a canary: files that no process of the cluster may touch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._root = folder / "victim"
        self._saved = folder / "saved"
        cluster = LocalCluster(self._root, brokers=[0])
        cluster.create_topic("t", assignment={0: [0]})
        cluster.tick_until_idle()
        cluster.produce("t", 0, [b"0"])
        cluster.tick_until_idle()
        _commit_offset(cluster, 1)
        ProducerIds(cluster.connection).allot("honest")
        cluster.close()
        # The cluster knows the paths of its roots, so each round is at the same place.
        self._root.rename(self._saved)
        canary = folder / "canary"
        canary.mkdir()
        (canary / "file").write_bytes(b"nobody may change this")
        self._outside = self._files_outside()
        self._commits = {
            name: [one.read_bytes() for one in sorted((at / "_delta_log").glob("*.json"))]
            for name, at in self._tables(self._saved).items()
        }

    def _tables(self, root: Path) -> dict[str, Path]:
        names = [schema.name for schema in CLUSTER_TABLES]
        of_cluster = {name: root / "cluster" / name for name in names}
        return of_cluster | {"produce_requests": root / "broker-0" / "produce_requests"}

    def round(self, random: Random, attacks: int) -> Iterator[Attack]:
        """Carry out attacks; yield each after the broker has withstood it."""
        root = self._root
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self._saved, root)
        cluster = LocalCluster(root, brokers=[0], start_ms=2_000_000)
        cluster.tick_until_idle()
        sent = 1
        for number in range(attacks):
            attack = self._attack(random, root)
            cluster.tick_until_idle()
            pending = cluster.produce("t", 0, [b"%d" % sent], acks=random.choice((1, "all")))
            cluster.tick_until_idle()
            assert pending.response is not None, attack
            assert pending.response.error == "NONE", (attack, pending.response)
            sent += 1
            values = [record.value for record in cluster.consume("t", 0)]
            assert values == [b"%d" % one for one in range(sent)], attack
            self._act(random, cluster, number)
            assert self._files_outside() == self._outside, attack
            assert not [one for one in root.iterdir() if one.name not in ("cluster", "broker-0")]
            yield attack
        cluster.close()

    def _attack(self, random: Random, root: Path) -> Attack:
        name, at = random.choice(list(self._tables(root).items()))
        schema = next((one for one in CLUSTER_TABLES if one.name == name), None)
        if schema is not None and random.random() < 0.6:
            return self._append(random, at, schema)
        samples = self._commits[name] + self._commits["produce_requests"]
        content = Mutator(samples, "json", sealed).input(random)
        log = at / "_delta_log"
        newest = max((int(one.stem) for one in log.glob("[0-9]*.json")), default=0)
        (log / f"{newest + 1:020}.json").write_bytes(content)
        return Attack(name, content, is_commit=True)

    def _append(self, random: Random, at: Path, schema: TableSchema) -> Attack:
        """Append rows that the table's schema permits, as any Delta writer can."""
        content = Mutator([json_bytes(_rows(schema, random))], "json").input(random)
        with suppress(ValueError, RecursionError):
            rows = table_of(schema, _parsed(content))
            if rows is not None:
                # The table may be damaged by an earlier attack.
                with suppress(DeltaError, OSError, ValueError):
                    write_deltalake(str(at), rows, mode="append")
        return Attack(schema.name, content, is_commit=False)

    def _act(self, random: Random, cluster: LocalCluster, number: int) -> None:
        """Run other work; a table that an attack has damaged is named by a `SparklogError`."""
        acts: tuple[Callable[[], object], ...] = (
            lambda: cluster.merge(0),
            lambda: cluster.clean(0),
            lambda: cluster.vacuum(0),
            lambda: _commit_offset(cluster, number),
            lambda: ConsumerGroups(cluster.connection.root.consumer_groups).all(),
            lambda: ProducerIds(cluster.connection).allot(),
            lambda: ProducerIds(cluster.connection).allot("honest"),
            cluster.reconnect,
        )
        with suppress(SparklogError, DeltaError):
            random.choice(acts)()
        how = random.randrange(12)
        if how == 0:
            cluster.crash(0)
            cluster.restart(0)
        elif how == 1:
            with suppress(SparklogError):
                cluster.create_topic(f"x{number}", assignment={0: [0]})
                cluster.delete_topic(f"x{number}")
        elif how == 2:
            cluster.clock.advance(random.choice((5_000, 60_000, 3_600_000)))
        cluster.tick_until_idle()

    def _files_outside(self) -> dict[str, tuple[int, str]]:
        """Return the files beside the victim's roots: their times and digests."""
        return {
            str(one.relative_to(self.folder)): (
                one.stat().st_mtime_ns,
                hashlib.sha256(one.read_bytes()).hexdigest() if one.is_file() else "",
            )
            for one in sorted(self.folder.rglob("*"))
            if one.relative_to(self.folder).parts[0] != "victim"
        }


def _parsed(content: bytes) -> object:
    import json

    return json.loads(content)


def _rows(schema: TableSchema, random: Random) -> list[dict[str, object]]:
    """Return rows of a table as a correct client has them, some with hostile names."""
    name = random.choice(NAMES)
    file = [0, name, f"_inbox/{1:032x}.{2:012x}.parquet", 500, "abc", 3, 1_000, 2_000]
    rows: dict[str, list[dict[str, object]]] = {
        CONSUMER_GROUPS.name: [*group_rows(), group_rows()[0] | {"group_id": name}],
        CONSUMER_GROUP_HEARTBEATS.name: [{"group_id": name, "member_id": name, "heartbeat": 7}],
        CONSUMER_OFFSETS.name: [
            {
                "group_id": name,
                "topic_id": name,
                "topic": "../../canary",
                "partition": 0,
                "committed_offset": 5,
                "leader_epoch": 2,
                "metadata": name,
                "generation": 1,
                "committed_at_ms": 1_000,
                "group_epoch": 3,
            }
        ],
        PRODUCER_IDS.name: [
            {"transactional_id": name, "producer_id": 5, "producer_epoch": 1, "used_at_ms": 1},
            {"transactional_id": None, "next_producer_id": 10},
        ],
        STREAM_WRITES.name: [
            {
                "query_id": name,
                "topic_id": name,
                "batch_id": 3,
                "files": json_bytes([file]).decode(),
                "is_done": False,
            }
        ],
    }
    return rows[schema.name]


def _commit_offset(cluster: LocalCluster, offset: int) -> None:
    clock: Clock = cluster.clock
    key = TopicIdPartition(cluster.connection.metadata().partition("t", 0).topic_id, 0)
    committed = OffsetAndMetadata(offset, "", 0)
    offsets = CommittedOffsets(cluster.connection.root.consumer_offsets, clock)
    offsets.commit("honest", GroupFence(1, 1), {key: ("t", committed)})
