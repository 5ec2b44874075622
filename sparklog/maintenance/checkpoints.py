"""Exporting and importing the checkpoints of a broker root as a Kafka log directory (rule 1.5).

The folder has Kafka's files under Kafka's names. `replication-offset-checkpoint`,
`log-start-offset-checkpoint` and `recovery-point-offset-checkpoint` are in the folder itself,
`leader-epoch-checkpoint` is in `<topic>-<partition>`.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sparklog.cluster.connection import Connection
from sparklog.cluster.operations import cause_of_event
from sparklog.errors import CommitConflictError, FencedError, StorageError
from sparklog.maintenance.checkpoint_files import (
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    format_epochs,
    format_offsets,
    read_epochs,
    read_offsets,
)
from sparklog.maintenance.replica_locations import replicas_in_root
from sparklog.model import BROKERS, EpochEntry, Row, TopicIdPartition
from sparklog.states import RUNNING_STATES, broker_state_after
from sparklog.storage.commits import BROKER_EPOCH
from sparklog.storage.fence import Fence
from sparklog.storage.journal import Histories, Journal, Step

_TopicPartition = tuple[str, int]

_PARTITION_FOLDER = re.compile(r"(?P<topic>.+)-(?P<partition>\d{1,9})")
_OF_KAFKA_ITSELF = "__cluster_metadata"
"""KRaft's own log, which it stores among the topics' logs."""


class Checkpoints(NamedTuple):
    """The content of a folder, by topic and partition: valid, but not yet compared with a broker.

    Recovery points are omitted: all commits of a log table are durable, so its end is the recovery
    point.
    """

    high_watermarks: dict[_TopicPartition, int]
    log_start_offsets: dict[_TopicPartition, int]
    epochs: dict[_TopicPartition, list[EpochEntry]]


def export_checkpoints(
    connection: Connection, broker_id: int, folder: Path, log_dir: int | None = None
) -> int:
    """Write the checkpoints of one root of a broker into `folder`; return the number of replicas.

    Parameters: `folder`, which must be new or empty and is filled atomically; `log_dir`, the root's
    number in log.dirs, required if there are several. The broker may be running.

    Raises `SparklogError` if the broker, the root or the folder cannot be used; nothing is written
    in that case.
    """
    location, held = replicas_in_root(connection, broker_id, log_dir)
    _check_new(folder)
    log = Journal(location)
    rows = log.rows
    keys = sorted(
        (key for key in held if key in rows or log.batches(key)),
        key=lambda key: (held[key].topic, key.partition),
    )
    high_watermarks, starts, ends = {}, {}, {}
    for key in keys:
        name = (held[key].topic, key.partition)
        start = rows[key]["log_start_offset"] if key in rows else 0
        high_watermarks[name] = rows[key]["high_watermark"] if key in rows else 0
        ends[name] = log.log_end_offset(key, start)
        if start:
            # As in Kafka, only log start offsets that differ from the default are listed.
            starts[name] = start
    files = {
        HIGH_WATERMARKS: format_offsets(high_watermarks),
        LOG_START_OFFSETS: format_offsets(starts),
        RECOVERY_POINTS: format_offsets(ends),
    }
    for key in keys:
        partition_folder = f"{held[key].topic}-{key.partition}"
        files[f"{partition_folder}/{LEADER_EPOCHS}"] = format_epochs(log.epochs.get(key, ()))
    _write(folder, files)
    return len(keys)


def read_folder(folder: Path) -> Checkpoints:
    """Read a folder in the format above: a log directory of Kafka or an exported one.

    Folders of logs that Kafka is deleting or moving are skipped, as Kafka does. Raises
    `StorageError` with the line if a file is malformed, or if the folder is not a log directory.
    """
    if not (folder / HIGH_WATERMARKS).is_file():
        raise StorageError(
            f"{folder} holds no {HIGH_WATERMARKS}: name a folder that has the shape of a Kafka "
            "log directory"
        )
    starts = folder / LOG_START_OFFSETS
    recovery_points = folder / RECOVERY_POINTS
    if recovery_points.exists():
        read_offsets(recovery_points)
    epochs = {}
    for file in sorted(folder.glob(f"*/{LEADER_EPOCHS}")):
        named = _PARTITION_FOLDER.fullmatch(file.parent.name)
        if named is not None and named["topic"] != _OF_KAFKA_ITSELF:
            epochs[named["topic"], int(named["partition"])] = read_epochs(file)
    return Checkpoints(
        read_offsets(folder / HIGH_WATERMARKS),
        read_offsets(starts) if starts.exists() else {},
        epochs,
    )


def import_checkpoints(
    connection: Connection, broker_id: int, folder: Path, log_dir: int | None = None
) -> int:
    """Import the checkpoints of a stopped broker's root; return the number of replicas.

    Values that the folder does not name are unchanged. Everything is checked before the first
    write. The import then registers as the broker would, under a new broker epoch, so that no
    suspended process of the broker can overwrite it. Afterwards the broker is `stopped`. When it is
    started, it loads its state by rules 1.4 and 7.0: high watermarks are limited to the log ends,
    and epochs follow the batches if there are any.

    Parameters: `folder` and `log_dir` as in `export_checkpoints`. Raises `SparklogError` if the
    broker's row says that it is alive. Raises it also if the folder names a replica that the broker
    does not have in this root, or an offset that is impossible for it.
    """
    location, held = replicas_in_root(connection, broker_id, log_dir)
    _check_stopped(connection.metadata().brokers[broker_id].state, broker_id)
    found = read_folder(folder)
    names = {name for of_one_kind in found for name in of_one_kind}
    by_name = {(state.topic, key.partition): key for key, state in held.items()}
    for topic, partition in sorted(names - by_name.keys()):
        raise StorageError(
            f"{folder} names partition {partition} of topic {topic}, of which broker {broker_id} "
            f"has no replica in {location.uri}: take it out of the files"
        )
    _imported_rows(Journal(location), by_name, found, folder)
    fence = Fence(BROKER_EPOCH, _register(connection, broker_id))
    try:
        # After the fence no other process can write; before it, another process may have written.
        journal = Journal(location, fence)
        rows = _imported_rows(journal, by_name, found, folder)
        for row in rows:
            row["broker_epoch"] = fence.epoch
        histories = {
            by_name[name]: Histories(name[0], tuple(history))
            for name, history in found.epochs.items()
        }
        journal.commit_step([], [], Step(rows, histories), time.time_ns() // 1_000_000)
    except (CommitConflictError, FencedError) as error:
        raise StorageError(
            f"broker {broker_id} was started while its checkpoints were being imported: stop it "
            "and import them again"
        ) from error
    return len(names)


def _imported_rows(
    journal: Journal,
    replicas: Mapping[_TopicPartition, TopicIdPartition],
    found: Checkpoints,
    folder: Path,
) -> list[dict[str, Any]]:
    """Return the rows that change; raises `StorageError` if an offset is impossible."""
    rows: list[dict[str, Any]] = []
    for name in sorted(found.high_watermarks.keys() | found.log_start_offsets.keys()):
        key = replicas[name]
        new: Row = {
            **key._asdict(),
            "topic": name[0],
            "log_start_offset": 0,
            "high_watermark": 0,
            "reported_at_ms": 0,
        }
        row = journal.rows.get(key, new)
        before: int = row["log_start_offset"]
        start = found.log_start_offsets.get(name, before)
        high_watermark = found.high_watermarks.get(name, int(row["high_watermark"]))
        batches, end = journal.batches(key), journal.log_end_offset(key, before)
        begin = batches[0].base_offset if batches else before
        if start > high_watermark or (start != before and not begin <= start <= end):
            raise StorageError(
                f"{folder} gives partition {name[1]} of topic {name[0]} the log start offset "
                f"{start} and the high watermark {high_watermark}, but its log has the offsets "
                f"{begin} to {end}: the log start offset must be in it, and not above the high "
                "watermark"
            )
        changes = {
            # The replica has not yet agreed with a leader, and may not lead with imported values
            # (6.3).
            "leader_epoch": -1,
            "role": "follower",
            "log_start_offset": start,
            "log_end_offset": journal.log_end_offset(key, start),
            "high_watermark": high_watermark,
        }
        rows.append({**row, **changes})
    return rows


def _register(connection: Connection, broker_id: int) -> int:
    """Register the import as the broker's next process, which has stopped; return its epoch."""

    def change(table: Any) -> tuple[Any, int]:
        rows = table.to_pylist()
        epoch = int(max(row["broker_epoch"] for row in rows)) + 1
        for row in rows:
            if row["broker_id"] == broker_id:
                _check_stopped(row["state"], broker_id)
                state = broker_state_after("replace_checkpoints", row["state"])
                row |= {"broker_epoch": epoch, "state": state}
        return BROKERS.rows(rows), epoch

    cause = cause_of_event("replace_checkpoints", broker_id)
    return connection.root.brokers.update(change, cause=cause)


def _check_stopped(state: str, broker_id: int) -> None:
    # A parked broker counts as alive for elections, but none of its processes is running.
    if state in RUNNING_STATES:
        raise StorageError(
            f"broker {broker_id} is {state}: stop it, and where its process has died wait until "
            "the controller has fenced it, before its checkpoints are replaced"
        )


def _check_new(folder: Path) -> None:
    try:
        is_new = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    except OSError as error:
        raise StorageError(
            f"{folder} cannot be used ({error.strerror}): name a folder that this process may write"
        ) from error
    if not is_new:
        raise StorageError(f"{folder} is there already: name a new or an empty folder")


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Write `files`, by path, into `folder` atomically: after a failure it does not exist."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            for name, text in files.items():
                (unfinished / name).parent.mkdir(exist_ok=True)
                (unfinished / name).write_text(text, encoding="utf-8", newline="\n")
            # mkdtemp makes the folder readable only by its owner.
            unfinished.chmod(0o755)
            unfinished.replace(folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    except OSError as error:
        raise StorageError(
            f"{folder} cannot be written ({error.strerror}): "
            "name a folder that this process may write"
        ) from error
