"""Targets: commits, journals, checkpoints and rows of Delta tables."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import xxhash

from sparklog.cluster.connection import Connection
from sparklog.cluster.noted_files import noted_files
from sparklog.errors import DamagedError
from sparklog.groups.committed_offsets import _newest_fence
from sparklog.groups.group import groups_in
from sparklog.model import CONSUMER_GROUPS, CONSUMER_OFFSETS, STREAM_WRITES
from sparklog.producer.stream_writes import MicroBatch, StreamWrites
from sparklog.storage.batch_actions import added_batches, has_damaged_header
from sparklog.storage.commits import AddedFile, parse_commit
from sparklog.storage.control_table_damage import commit_fault, find_damage
from sparklog.storage.damaged_commits import (
    CHECKSUM,
    INFO_CHECKSUM,
    METADATA_CHECKSUM,
    PLACE,
    matches_checksum,
)
from sparklog.storage.delta_checkpoints import checkpoint_size
from sparklog.storage.delta_log_check import check_log
from sparklog.storage.delta_log_files import (
    LOG_FOLDER,
    commit_path,
    complete_checkpoint,
    last_checkpoint,
    newest_in,
    newest_version,
)
from sparklog.storage.delta_snapshots import open_table
from sparklog.storage.journal import (
    Journal,
    ProduceAnswer,
    activity_in,
    answers_in,
    changes_in,
    renewal_in,
    rows_in,
    seen_in,
)
from sparklog.storage.json_text import json_bytes, json_value
from sparklog.storage.location import Location
from sparklog.storage.request_commits import peek_request_commit, read_request_commit, refusals
from sparklog.storage.request_files import (
    are_valid_statistics,
    are_valid_values,
    live_requests,
    request_of,
)
from sparklog.storage.seen_versions import JournalOf, SeenVersions
from tests.faults.hostile.samples import Samples, group_rows, table_of
from tests.faults.hostile.target import Target

_VERSION = 7


def sealed(random: Random, content: bytes) -> bytes:
    """Return a commit whose checksums match its lines, or without them, as another writer's."""
    first, newline, lines = content.partition(b"\n")
    try:
        action = json.loads(first)
        info = action["commitInfo"]
        if not isinstance(info, dict):
            return content
        info.pop(PLACE, None)
        info.pop(INFO_CHECKSUM, None)
        if random.random() < 0.4:
            info.pop(CHECKSUM, None)
            info.pop(METADATA_CHECKSUM, None)
        else:
            info[CHECKSUM] = xxhash.xxh3_64_hexdigest(lines)
            written = str(info.get("userMetadata")).encode()
            info[METADATA_CHECKSUM] = xxhash.xxh3_64_hexdigest(written)
        return json.dumps(action, separators=(",", ":")).encode() + newline + lines
    except (ValueError, LookupError, TypeError, RecursionError):
        return content


def placeless(content: bytes) -> bytes:
    """Return a commit without the fields that name its place, as an earlier release's.

    That which creates a table is in its place at version 0 only, so it gets another operation.
    """
    first, newline, lines = content.partition(b"\n")
    action = json.loads(first)
    info = action.get("commitInfo", {})
    for name in (PLACE, INFO_CHECKSUM):
        info.pop(name, None)
    if info.get("operation") == "CREATE TABLE":
        info["operation"] = "WRITE"
    return json.dumps(action, separators=(",", ":")).encode() + newline + lines


def table_targets(folder: Path, samples: Samples) -> list[Target]:
    """Return the targets about tables; `folder` is theirs."""
    of_log = [placeless(one) for one in samples.commits("log")]
    of_others = [
        placeless(one) for name in ("topics", "brokers", "format") for one in samples.commits(name)
    ]
    requests = samples.commits("produce_requests")
    checkpoint, hint = samples.checkpoint("log")
    seen = SeenVersions({JournalOf(0, 0, 3): 17, JournalOf(1, 0, 4): 2}, {"topics": 5})
    answer = ProduceAnswer("r", "t", 0, "NONE", 5, 9, 100).to_row()
    groups = json_bytes(group_rows())
    lines = [line for commit in of_log for line in commit.splitlines()]
    return [
        Target("commit", _commit(folder), of_log + of_others, "json", weight=60, finish=sealed),
        Target("journal", _journal(folder), of_log, "json", weight=100, finish=sealed),
        Target("journal_opened", _opened_journal(folder, samples), of_log, "json", weight=1),
        Target("commit_fault", commit_fault, of_log + requests, "json", permitted=(), weight=40),
        Target(
            "request_commit",
            _request_commit(folder),
            requests,
            "json",
            permitted=(),
            weight=60,
            finish=sealed,
        ),
        Target(
            "request_table",
            _request_table(folder, samples),
            requests,
            "json",
            permitted=(),
            weight=8,
            finish=sealed,
        ),
        Target("request_values", _request_values, _request_samples(requests), "json", weight=60),
        Target("answer", _answer, [json_bytes(answer)], "json", (ValueError,), weight=30),
        Target(
            "seen_versions", _seen, [json_bytes(seen.to_json())], "json", (ValueError,), weight=30
        ),
        Target("json_text", json_value, lines, "json", (ValueError, RecursionError), weight=30),
        Target("checkpoint_hint", _hint(folder), [hint], "json", weight=15),
        Target("checkpoint", _checkpoint(folder), [checkpoint], weight=15),
        Target("log_names", _names, [_log_names()], "json", (FileNotFoundError,), weight=20),
        Target("group_rows", _groups, [groups], "json", weight=20),
        Target(
            "stream_writes",
            _stream_writes(samples),
            [json_bytes(_stream_rows())],
            "json",
            weight=20,
        ),
        Target("offset_rows", _offsets, [json_bytes(_offset_rows())], "json", weight=10),
    ]


def _commit(folder: Path) -> Callable[[bytes], object]:
    table = Location.of(str(folder / "commit"))

    def run(content: bytes) -> None:
        commit = parse_commit(table, _VERSION, content, has_damaged_header)
        for one in added_batches(commit):
            assert one.is_sound in (True, False)
        hash(tuple(commit.transactions))

    return run


def _journal(folder: Path) -> Callable[[bytes], object]:
    table = Location.of(str(folder / "journal"))

    def run(content: bytes) -> None:
        commit = parse_commit(table, _VERSION, content)
        try:
            changes = commit.derived(changes_in)
        finally:
            # Each of them is read by a process that need not read the others.
            for read in (answers_in, rows_in, renewal_in, seen_in, activity_in):
                _permitting_damage(lambda read=read: read(commit))  # type: ignore[misc]
            answers_in(commit, lambda _: None)
        for key in (*changes.rows, *changes.histories, *changes.removed):
            assert isinstance(key.topic_id, str)
            assert isinstance(key.partition, int)

    return run


def _permitting_damage(read: Callable[[], object]) -> None:
    with contextlib.suppress(DamagedError):
        read()


def _opened_journal(folder: Path, samples: Samples) -> Callable[[bytes], object]:
    root = folder / "journal_root"
    if not root.exists():
        shutil.copytree(samples.broker, root)
    version = len(samples.commits("log"))

    def run(content: bytes) -> None:
        path = root / "log" / commit_path(version)
        path.write_bytes(content)
        try:
            Journal(Location.of(str(root)), with_operations=True).row_table()
        finally:
            path.unlink()

    return run


def _request_commit(folder: Path) -> Callable[[bytes], object]:
    table = Location.of(str(folder / "requests"))
    log = folder / "requests" / LOG_FOLDER
    log.mkdir(parents=True, exist_ok=True)

    def run(content: bytes) -> None:
        path = log / f"{_VERSION:020}.json"
        path.write_bytes(content)
        peeked = peek_request_commit(table, _VERSION)
        commit = read_request_commit(table, _VERSION)
        assert commit is not None
        assert peeked is not None
        assert peeked.added == commit.added
        refusals(commit)
        for file in commit.added:
            request = request_of(file)
            assert 0 <= request.record_count < 1 << 31
            hash(request)
        mended = path.read_bytes()
        assert matches_checksum(mended)
        again = read_request_commit(table, _VERSION)
        assert again is not None
        assert again.added == commit.added
        assert path.read_bytes() == mended, "a commit is mended once"

    return run


def _request_table(folder: Path, samples: Samples) -> Callable[[bytes], object]:
    """Read a commit as the owner does; afterwards delta-rs can open the table for anyone."""
    root = folder / "request_table"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(samples.broker / "produce_requests", root)
    table = Location.of(str(root))
    version = newest_version(table) + 1

    def run(content: bytes) -> None:
        path = root / commit_path(version)
        path.write_bytes(content)
        read_request_commit(table, version)
        opened = open_table(table).snapshot
        for file, request in live_requests(opened):
            assert isinstance(file.path, str)
            hash(request)
        path.unlink()

    return run


def _request_samples(requests: list[bytes]) -> list[bytes]:
    """Return the partition values and statistics of add actions of requests."""
    found = []
    for commit in requests:
        for line in commit.splitlines():
            add = json.loads(line).get("add")
            if add is not None:
                found.append(json_bytes([add["partitionValues"], json.loads(add["stats"])]))
    return found


def _request_values(content: bytes) -> None:
    given = _json(content)
    if not isinstance(given, list) or len(given) != 2:
        return
    values, statistics = given
    if are_valid_values(values) and are_valid_statistics(statistics):
        request_of(AddedFile("../log/_inbox/x.parquet", 5, 7, values, statistics))


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _answer(content: bytes) -> None:
    row = _json(content)
    if isinstance(row, dict):
        ProduceAnswer.from_row(row).to_row()


def _seen(content: bytes) -> None:
    SeenVersions.from_json(_json(content)).to_json()


def _hint(folder: Path) -> Callable[[bytes], object]:
    root = folder / "hint"
    log = root / "log" / LOG_FOLDER
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{0:020}.json").write_bytes(b'{"metaData":{}}')
    location = Location.of(str(root))

    def run(content: bytes) -> None:
        (log / "_last_checkpoint").write_bytes(content)
        table = location.child("log")
        assert isinstance(last_checkpoint(table), int)
        assert isinstance(checkpoint_size(table), int)
        find_damage(location, "log")
        check_log(table)

    return run


def _checkpoint(folder: Path) -> Callable[[bytes], object]:
    root = folder / "checkpoint"
    log = root / "log" / LOG_FOLDER
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{0:020}.json").write_bytes(b'{"metaData":{}}')
    location = Location.of(str(root))

    def run(content: bytes) -> None:
        (log / f"{0:020}.checkpoint.parquet").write_bytes(content)
        find_damage(location, "log")
        check_log(location.child("log"))

    return run


def _log_names() -> bytes:
    return json_bytes(
        [
            f"{5:020}.json",
            f"{6:020}.json",
            f"{5:020}.checkpoint.parquet",
            f"{5:020}.checkpoint.{1:010}.{2:010}.parquet",
            "_last_checkpoint",
            "\N{SUPERSCRIPT TWO}" * 20 + ".checkpoint.parquet",
            "\N{ARABIC-INDIC DIGIT SEVEN}" * 20 + ".json",
        ]
    )


def _names(content: bytes) -> None:
    names = _json(content)
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        return
    assert newest_in(names) >= -1
    version, files = complete_checkpoint(names)
    assert version >= -1
    assert set(files) <= set(names)


def _groups(content: bytes) -> None:
    rows = table_of(CONSUMER_GROUPS, _json(content))
    if rows is not None:
        groups_in(rows)


def _stream_rows() -> list[dict[str, Any]]:
    path = f"_inbox/{1:032x}.{2:012x}.parquet"
    files = [[0, "/data/broker-0/log", path, 500, "abc", 3, 1_000, 2_000]]
    row = {"query_id": "q", "topic_id": "t", "batch_id": 3, "files": json.dumps(files)}
    return [row | {"is_done": False}, row | {"batch_id": 2, "files": "[]", "is_done": True}]


def _stream_writes(samples: Samples) -> Callable[[bytes], object]:
    """Read rows as the merger and the vacuum do, which need no query's row, and as a query does."""
    writes = StreamWrites(Connection(str(samples.root / "cluster")))
    once = MicroBatch("q", 3, "t")

    def run(content: bytes) -> None:
        table = table_of(STREAM_WRITES, _json(content))
        rows = table.to_pylist() if table is not None else []
        for row in rows:
            for file in noted_files(row):
                assert isinstance(file.path, str)
        writes._noted([row for row in rows if row["query_id"] == "q"], once)

    return run


def _offset_rows() -> list[dict[str, Any]]:
    return [
        {
            "group_id": "g",
            "topic_id": "t",
            "topic": "name",
            "partition": 0,
            "committed_offset": 5,
            "leader_epoch": 2,
            "metadata": "m",
            "generation": 1,
            "committed_at_ms": 1_000,
            "group_epoch": 3,
        }
    ]


def _offsets(content: bytes) -> None:
    rows = table_of(CONSUMER_OFFSETS, _json(content))
    if rows is not None:
        _newest_fence(rows)
