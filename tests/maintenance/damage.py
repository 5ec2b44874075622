"""Copies of a cluster, and damage to their tables and files that no broker causes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sparklog.model import (
    BROKERS,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG,
    Batch,
    TableSchema,
    TopicIdPartition,
    new_batch_path,
)
from sparklog.storage.batch_actions import added_file, removed_file
from sparklog.storage.batch_files import BatchFileWriter, read_records, records_table
from sparklog.storage.commits import BROKER_EPOCH, LOG_VERSION
from sparklog.storage.control_table import ControlTable
from sparklog.storage.delta_log import DeltaLog
from sparklog.storage.fence import Fence
from sparklog.storage.journal import Journal, Step
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog

Row = dict[str, Any]


def root(folder: Path, broker_id: int) -> Location:
    return Location.of(str(folder / f"broker-{broker_id}"))


def change_rows(
    folder: Path, broker_id: int, schema: TableSchema, change: Callable[[list[Row]], object]
) -> None:
    """Let `change` alter the rows of one of a broker's checkpoints, at the newest version of its
    journal.

    Processes that open the journal afterwards read these rows.
    """
    journal = Journal(root(folder, broker_id))
    newest = {
        HIGH_WATERMARK_CHECKPOINT.name: journal.row_table(),
        LEADER_EPOCH_CHECKPOINT.name: journal.epoch_table(),
    }
    rows = newest[schema.name].to_pylist()
    change(rows)
    table = ControlTable(root(folder, broker_id), schema)
    table.compare_and_set(schema.rows(rows), transactions={LOG_VERSION: journal.version})


def commit_row(folder: Path, broker_id: int, key: TopicIdPartition, **changes: object) -> None:
    """Commit a replica's row with these changes to the broker's journal, as its process would."""
    location = root(folder, broker_id)
    epoch = DeltaLog(location.child(LOG.name)).transactions[BROKER_EPOCH]
    journal = Journal(location, Fence(BROKER_EPOCH, epoch))
    journal.commit_step([], [], Step([{**journal.rows[key], **changes}]), 0)


def batches(folder: Path, broker_id: int, key: TopicIdPartition) -> list[Batch]:
    return list(RecordLog(root(folder, broker_id)).batches(key, -1))


def replace_batches(
    folder: Path, broker_id: int, removed: Sequence[Batch], added: Sequence[Batch] = ()
) -> None:
    """Commit to a broker's log without its knowledge, and without any check."""
    log = DeltaLog(root(folder, broker_id).child(LOG.name))
    assert log.commit(
        "WRITE",
        [added_file(one, 0) for one in added],
        [removed_file(one, 0) for one in removed],
    )


def rewritten(
    folder: Path, broker_id: int, group: Sequence[Batch], values: Sequence[bytes | None]
) -> Batch:
    """Write `values` as one batch in place of `group`, from which it takes its header."""
    log = root(folder, broker_id).child("log")
    first = group[0]
    writer = BatchFileWriter(log, new_batch_path())
    writer.write(records_table(values, None, first.min_timestamp_ms))
    file = writer.close()
    return first._replace(
        path=file.path,
        size_bytes=file.size_bytes,
        checksum=file.checksum,
        record_count=file.record_count,
        last_offset_delta=file.record_count - 1,
    )


def values_of(folder: Path, broker_id: int, group: Sequence[Batch]) -> list[bytes | None]:
    log = root(folder, broker_id).child("log")
    return [one.value for one in read_records(log, group, 0, group[-1].next_offset)]


def copy_cluster(source: Path, target: Path) -> None:
    """Copy a cluster whose brokers do not run, and change the paths of their roots in its
    tables.
    """
    shutil.copytree(source, target)

    def moved(table: Any) -> tuple[Any, None]:
        rows = table.to_pylist()
        for row in rows:
            row["roots"] = json.dumps([root(target, row["broker_id"]).uri])
        return BROKERS.rows(rows), None

    ControlTable(Location.of(str(target / "cluster")), BROKERS).update(moved)
