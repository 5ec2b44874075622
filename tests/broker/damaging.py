"""Damage to a broker's log by a disk or by hand: to a header, or to a batch file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparklog.model import Batch
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog
from sparklog.testing import LocalCluster

Action = dict[str, Any]


def log_folder(cluster: LocalCluster, broker: int) -> Path:
    """Return the folder of a broker's log table."""
    return Path(cluster.root) / f"broker-{broker}" / "log"


def change_add(log: Path, path: str, change: Callable[[Action], object]) -> None:
    """Let `change` alter the add action of the batch at `path`, in the commit that contains it."""
    for commit in sorted((log / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            if "add" in action and action["add"]["path"] == path:
                change(action["add"])
                commit.write_text("\n".join(json.dumps(one) for one in actions))
                return
    raise AssertionError(f"no commit adds {path}")


def batch_of(cluster: LocalCluster, broker: int, offset: int) -> Batch:
    """Return the batch that contains `offset` of the partition, in a broker's log."""
    key = cluster.connection.metadata().partition("t", 0).key
    log = RecordLog(Location.of(str(log_folder(cluster, broker).parent)))
    found = log.batch_at(key, offset)
    assert found is not None, f"replica {broker} has no offset {offset}"
    return found


def change_header(
    cluster: LocalCluster, broker: int, offset: int, column: str, value: object
) -> None:
    """Change one value of the header of the batch that contains `offset`."""
    path = batch_of(cluster, broker, offset).path

    def change(add: Action) -> None:
        assert add["partitionValues"][column] != str(value)
        add["partitionValues"][column] = str(value)

    change_add(log_folder(cluster, broker), path, change)


def batch_file(cluster: LocalCluster, broker: int, offset: int) -> Path:
    """Return the Parquet file of the batch that contains `offset`."""
    return log_folder(cluster, broker) / batch_of(cluster, broker, offset).path


def flip_byte(file: Path) -> None:
    """Flip the bits of a byte in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)


def cut(file: Path) -> None:
    """Truncate a file to half its size."""
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
