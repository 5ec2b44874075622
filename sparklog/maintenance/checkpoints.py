"""Exporting and importing the checkpoints of a broker root as a Kafka log directory (rule 1.5).

The folder holds Kafka's files under Kafka's names: `replication-offset-checkpoint`,
`log-start-offset-checkpoint` and `recovery-point-offset-checkpoint` in itself, and
`leader-epoch-checkpoint` in `<topic>-<partition>`.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sparklog.clients.connection import Connection
from sparklog.errors import CommitConflictError, FencedError, StorageError
from sparklog.maintenance.replica_locations import replicas_in_root
from sparklog.model import BROKERS, EpochEntry, TopicIdPartition
from sparklog.storage.checkpoint_files import (
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    format_epochs,
    format_offsets,
    read_epochs,
    read_offsets,
)
from sparklog.storage.control_table import Fence
from sparklog.storage.delta_log import BROKER_EPOCH
from sparklog.storage.journal import Histories, Journal, Row, Step

_TopicPartition = tuple[str, int]

_PARTITION_FOLDER = re.compile(r"(?P<topic>.+)-(?P<partition>\d{1,9})")
_OF_KAFKA_ITSELF = "__cluster_metadata"
"""KRaft keeps its own log among the others; it is no topic's."""


class Checkpoints(NamedTuple):
    """What a folder says, by topic and partition: checked by itself, not yet against a broker.

    Recovery points are left out: what is committed to a log table is durable, so its end says it.
    """

    high_watermarks: dict[_TopicPartition, int]
    log_start_offsets: dict[_TopicPartition, int]
    epochs: dict[_TopicPartition, list[EpochEntry]]


def export_checkpoints(
    connection: Connection, broker_id: int, folder: Path, log_dir: int | None = None
) -> int:
    """Write the checkpoints of one root of a broker into `folder`; return how many replicas.

    The broker may be running. `folder` must be new or empty; it is filled in one piece. `log_dir`
    is the root's number in log.dirs, needed where there are several. Raises `SparklogError` where
    the broker, the root or the folder cannot be used; nothing is written then.
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
            # Kafka, too, lists only what does not begin where its log begins by itself.
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
    """Read a folder of the shape above, a real log directory of Kafka's or an exported one.

    Folders of logs that Kafka is deleting or moving are passed over, as Kafka does. Raises
    `StorageError` with the line where a file is malformed, or where the folder is no log directory.
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
    """Take the checkpoints of one root of a stopped broker from `folder`; return how many replicas.

    What the folder does not name stays as it is. Everything is checked before the first write. The
    import then registers as the broker would, under a new broker epoch, so that no process of it
    that was only asleep can write over it; the broker is `stopped` after that, and when it is
    started takes its state by rules 1.4 and 7.0: high watermarks are cut at the log ends, and
    epochs follow the batches where there are any.

    Raises `SparklogError` where the broker is alive by its row, or the folder names a replica that
    the broker does not have there, or an offset that cannot be its.
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
        # Nobody else writes once the fence is taken; until then another process may have.
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
    """Return the rows that change; `StorageError` where an offset cannot be the replica's."""
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
            # It has yet to agree with a leader, and leads nothing by what was imported (6.3).
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
                row |= {"broker_epoch": epoch, "state": "stopped"}
        return BROKERS.rows(rows), epoch

    return connection.root.brokers.update(change)


def _check_stopped(state: str, broker_id: int) -> None:
    # A parked broker counts as alive for elections, but no process of it runs.
    if state in ("alive", "stopping"):
        raise StorageError(
            f"broker {broker_id} is {state}: stop it, and where its process has died wait until "
            "the controller has fenced it, before its checkpoints are replaced"
        )


def _check_new(folder: Path) -> None:
    try:
        is_new = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    except OSError as error:
        raise StorageError(f"{folder} cannot be used ({error.strerror})") from error
    if not is_new:
        raise StorageError(f"{folder} is there already: name a new or an empty folder")


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Write `files`, by their paths, into `folder`, which gets all of them or is not there."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            for name, text in files.items():
                (unfinished / name).parent.mkdir(exist_ok=True)
                (unfinished / name).write_text(text, encoding="utf-8", newline="\n")
            # A temporary folder is its owner's alone.
            unfinished.chmod(0o755)
            unfinished.replace(folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    except OSError as error:
        raise StorageError(f"{folder} cannot be written ({error.strerror})") from error
