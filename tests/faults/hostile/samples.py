"""Valid inputs, taken from a small cluster and from objects of the product."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from sparklog.groups.group import Group, Member, assigned, joined
from sparklog.model import TableSchema, TopicIdPartition
from sparklog.testing import LocalCluster


class Samples:
    """A stopped cluster of one broker with the topic `t`, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "cluster"
        cluster = LocalCluster(self.root, brokers=[0])
        cluster.create_topic("t", assignment={0: [0], 1: [0]})
        cluster.tick_until_idle()
        cluster.produce("t", 0, [b"a", None, b"c" * 100], keys=[b"k", b"k", None])
        producer = cluster.idempotent_producer("my-transactional-id")
        cluster.produce("t", 1, [b"x"], producer=producer)
        cluster.tick_until_idle()
        cluster.produce("t", 1, [b"%d" % one for one in range(2_000)], acks=1)
        cluster.tick_until_idle()
        cluster.produce("t", 0, [b"pending"], acks=1)
        cluster.close()
        self.broker = self.root / "broker-0"

    def commits(self, table: str) -> list[bytes]:
        """Return the commits of a table of the broker root or the cluster root."""
        return [
            one.read_bytes()
            for root in (self.broker, self.root / "cluster")
            for one in sorted((root / table / "_delta_log").glob("*.json"))
        ]

    def batch_files(self) -> list[bytes]:
        """Return the batch files of the log and its inbox."""
        return [one.read_bytes() for one in sorted((self.broker / "log").rglob("*/*.parquet"))]

    def table_file(self, table: str) -> bytes:
        """Return a Parquet file of a table of the cluster root."""
        return next((self.root / "cluster" / table).rglob("*.parquet")).read_bytes()

    def checkpoint(self, table: str) -> tuple[bytes, bytes]:
        """Return Delta's checkpoint of a table of the broker root, and its hint."""
        DeltaTable(str(self.broker / table)).create_checkpoint()
        log = self.broker / table / "_delta_log"
        [path] = log.glob("*.checkpoint.parquet")
        hint = log / "_last_checkpoint"
        found = path.read_bytes(), hint.read_bytes()
        path.unlink()
        hint.unlink()
        return found


def group_rows() -> list[dict[str, Any]]:
    """Return the rows of a group of two members, as `consumer_groups` has them."""
    group = Group("g")
    for number in (0, 1, 0):
        name = f"m{number}"
        topics, protocols = ("t",), ("range", "sticky")
        group = joined(
            group, Member(name, None, "client", 0, topics, protocols, (), 45_000, 300_000)
        )
    group = assigned(group, {"m0": [TopicIdPartition("id", 0)], "m1": [TopicIdPartition("id", 1)]})
    of_group = {name: getattr(group, name) for name in Group._fields[:-1]}
    return [
        of_group
        | one._asdict()
        | {name: json.dumps(getattr(one, name)) for name in ("topics", "protocols", "assignment")}
        for one in group.members
    ]


def table_of(schema: TableSchema, rows: Any) -> pa.Table | None:
    """Return rows as a table of a schema, or `None` if no Delta writer could store them."""
    try:
        table = pa.Table.from_pylist(rows, schema.columns)
        table.validate(full=True)
    except (pa.ArrowException, TypeError, ValueError, AttributeError, OverflowError):
        return None
    return table
