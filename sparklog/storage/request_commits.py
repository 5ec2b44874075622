"""Validation of the commits of request tables, and replacement of invalid ones.

Every client may append to the table, so its log is untrusted input, not state. From a commit the
owner of the root uses only the files that it adds and removes. Epochs, protocol versions, table
properties and schemas that a client commits have no effect on the owner. A commit with invalid
actions is replaced by one with only its valid actions, so that each Delta engine can continue to
read the table.
"""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from deltalake import Schema
from deltalake.exceptions import DeltaError
from pydantic_core import from_json

from sparklog.logger import get_logger
from sparklog.model import PRODUCE_REQUESTS
from sparklog.storage.commits import COMMIT_ID, AddedFile, Commit
from sparklog.storage.damaged_commits import MALFORMED, USER_METADATA, check_commit_text
from sparklog.storage.delta_checkpoints import CHECKPOINT_INTERVAL, checkpoint_interval
from sparklog.storage.delta_log import DeltaLog
from sparklog.storage.delta_log_files import commit_path, has_version
from sparklog.storage.json_text import json_value
from sparklog.storage.location import Location, one_line
from sparklog.storage.parallel import reading_threads
from sparklog.storage.request_files import are_valid_statistics, are_valid_values

_log = get_logger(__name__)

_MOST_COMMIT_BYTES = 64 << 20
"""The largest commit that is read, in bytes: enough for 50,000 batches."""

_MOST_LINE_BYTES = 1 << 20
"""The largest action that is read, in bytes. While it is parsed no other thread runs: nested lists
take 0.25 s for each MiB, and the broker makes its heartbeats in another thread.
"""

_LARGEST = (1 << 53) - 1
"""The largest number that every JSON reader represents exactly."""

_Action = dict[str, Any]


class RequestLog(DeltaLog):
    """The log of a request table, whose commits are read only for their files."""

    def __init__(self, table: Location, version: int | None = None) -> None:
        super().__init__(table, version)
        self.transactions = {}

    def _read(self, version: int, ahead: Future[bytes | None] | None) -> Commit | None:
        if ahead is None:
            return read_request_commit(self.location, version)
        content = ahead.result()
        if content is None:
            return None
        is_small = len(content) <= _MOST_COMMIT_BYTES
        fault = None if is_small else f"it has {len(content)} bytes"
        return _parsed(self.location, version, content if is_small else b"", fault)

    def _named_id(self) -> None:
        """Return `None`: clients may have opened the table that was here before."""

    def _check_protocol(self) -> None:
        """Accept any protocol, since clients commit to the table."""

    def _is_by(self, commit_id: str) -> bool:
        commit = read_request_commit(self.location, self.version + 1)
        return commit is not None and commit.commit_id == commit_id


def read_request_commit(table: Location, version: int) -> Commit | None:
    """Return the files of a commit, mended if necessary, or `None` if it does not exist."""
    return _read(table, version, *_limited_bytes(table, commit_path(version)))


def _read(table: Location, version: int, content: bytes | None, fault: str | None) -> Commit | None:
    if content is None and fault is None:
        return None
    return _parsed(table, version, content or b"", fault)


def request_commits_down_from(table: Location, version: int) -> Iterator[Commit]:
    """Yield the commits `version`, `version` - 1 and so on, down to the first missing one.

    Each commit is mended if necessary, when it is yielded. An object store is asked for several in
    parallel.
    """
    count = 1
    while version >= 0:
        versions = range(version, max(version - count, -1), -1)
        paths = [commit_path(one) for one in versions]
        found: Iterator[tuple[bytes | None, str | None]]
        found = map(partial(_limited_bytes, table), paths)
        if not table.is_local:
            found = reading_threads().map(partial(_limited_bytes, table), paths)
            count = min(4 * count, _MOST_READ)
        for one, (content, fault) in zip(versions, found, strict=True):
            commit = _read(table, one, content, fault)
            if commit is None:
                return
            yield commit
        version -= len(versions)


_MOST_READ = 8
"""Commits that are read at a time; clients may make them as large as `_MOST_COMMIT_BYTES`."""


def peek_request_commit(table: Location, version: int) -> Commit | None:
    """Return the files of a commit without mending it, or `None` if it does not exist.

    For readers that do not own the table.
    """
    content, _ = _limited_bytes(table, commit_path(version))
    if content is None:
        return None
    return _commit(version, _actions(content, _valid_action)[0])


def _parsed(table: Location, version: int, content: bytes, fault: str | None) -> Commit:
    """Return the files of a commit, mended if necessary."""
    actions, is_sound = _actions(content, _valid_action)
    if fault is not None or not is_sound:
        path = commit_path(version)
        _mend(table, path, actions, fault or "it has actions that are not valid")
    return _commit(version, actions)


MANY_REFUSALS = 2
"""The number of refusals of one request from which its table counts as contended."""

_REFUSED = "refused"
_LONG_METADATA = 1_000
"""The characters from which on a text cannot be that of `told_refusals`."""


def told_refusals(count: int) -> str | None:
    """Return the metadata of a producer's commit that states its number of earlier refusals."""
    return json.dumps({_REFUSED: count}) if count else None


def refusals(commit: Commit) -> int:
    """Return the number of earlier refusals that a commit's producer states."""
    text = commit.user_metadata or "{}"
    try:
        count = from_json(text).get(_REFUSED, 0) if len(text) < _LONG_METADATA else 0
    except (ValueError, TypeError, AttributeError):
        return 0
    return count if _is_number(count) else 0


def mend_commits(table: Location, *, files_only: bool) -> bool:
    """Replace each invalid commit of a table; return whether there was one.

    With `files_only`, only actions on files stay.
    """
    is_valid = _valid_file_action if files_only else _valid_action
    is_mended = False
    for path in table.names("_delta_log"):
        if not has_version(path) or path[20:] != ".json":
            continue
        content, fault = _limited_bytes(table, f"_delta_log/{path}")
        actions, is_sound = _actions(content or b"", is_valid)
        if fault is not None or not is_sound:
            is_mended = True
            _mend(table, f"_delta_log/{path}", actions, fault or "it has invalid actions")
    return is_mended


def keep_files(table: Location, path: str, fault: str) -> None:
    """Replace a commit, if it is still there, by one with only its valid actions on files."""
    content, _ = _limited_bytes(table, path)
    if content is not None:
        _mend(table, path, _actions(content, _valid_file_action)[0], fault)


def _limited_bytes(table: Location, path: str) -> tuple[bytes | None, str | None]:
    """Return a commit's bytes and its file's fault; both are `None` if the file does not exist."""
    try:
        if table.is_local:
            # Only regular files are opened: reading a pipe would block, and a link may point
            # anywhere.
            status = Path(table.uri, path).lstat()
            if not stat.S_ISREG(status.st_mode):
                return None, "it is not a regular file"
        stream, size_bytes = table.open_with_size(path)
        with stream:
            if size_bytes > _MOST_COMMIT_BYTES:
                return None, f"it has {size_bytes} bytes"
            return stream.read(size_bytes), None
    except FileNotFoundError:
        return None, None


def _actions(
    content: bytes, is_valid: Callable[[_Action], _Action | None]
) -> tuple[list[_Action], bool]:
    """Return the valid actions of a commit, and whether it contains nothing else."""
    actions: list[_Action] = []
    is_sound = True
    for line in content.split(b"\n"):
        if not line.strip():
            continue
        try:
            is_long = len(line) > _MOST_LINE_BYTES
            given: Any = None if is_long else from_json(line, allow_inf_nan=False)
            valid = is_valid(given) if isinstance(given, dict) and len(given) == 1 else None
            if valid is not None and not valid.keys() <= _FILE_ACTIONS.keys():
                # A number may be too long to be written. The values of file actions were checked.
                json.dumps(valid, ensure_ascii=False).encode("utf-8")
        except (ValueError, RecursionError):
            given = valid = None
        is_sound &= valid is not None and (
            valid == given or _set_fields(valid) == _set_fields(given)
        )
        if valid is not None:
            actions.append(valid)
    # Last, since only commits of valid lines are read twice without a slower parser.
    return actions, is_sound and bool(actions) and _is_as_written(content)


def _set_fields(action: _Action) -> _Action:
    """Return an action without null fields: some engines write all fields that Delta defines."""
    [(kind, value)] = action.items()
    return {kind: {name: one for name, one in value.items() if one is not None}}


def _is_as_written(content: bytes) -> bool:
    try:
        check_commit_text(content)
    except MALFORMED:
        return False
    return True


def _commit(version: int, actions: list[_Action]) -> Commit:
    commit = Commit(version)
    for action in actions:
        if "add" in action:
            add = action["add"]
            values, statistics = add["partitionValues"], json_value(add.get("stats") or "{}")
            path, size_bytes, time_ms = unquote(add["path"]), add["size"], add["modificationTime"]
            commit.added.append(AddedFile(path, size_bytes, time_ms, values, statistics))
        elif "remove" in action:
            commit.removed.append(unquote(action["remove"]["path"]))
        elif "commitInfo" in action:
            commit.commit_id = action["commitInfo"].get(COMMIT_ID)
            commit.user_metadata = action["commitInfo"].get(USER_METADATA)
    return commit


def _mend(table: Location, path: str, actions: list[_Action], fault: str) -> None:
    """Replace an invalid commit by one with only its valid actions.

    The owner can continue without it, so a failure is only logged.
    """
    now_ms = time.time_ns() // 1_000_000
    kept = [action for action in actions if "commitInfo" not in action]
    told = {"timestamp": now_ms, "operation": "WRITE", "operationParameters": {}}
    lines = [{"commitInfo": told}, *kept]
    content = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines).encode()
    try:
        _replace(table, path, content)
    except OSError as error:
        _log.error("commit not mended", path=f"{table.uri}/{path}", error=one_line(error))
        return
    _log.error("commit mended", path=f"{table.uri}/{path}", fault=fault, kept=len(kept))


def _replace(table: Location, path: str, content: bytes) -> None:
    """Write a file in the place of any existing file or folder of this name."""
    if not table.is_local:
        table.overwrite_object(path, content)
        return
    target_path = Path(table.uri, path)
    unfinished = target_path.with_name(f".{time.time_ns()}.tmp")
    try:
        unfinished.write_bytes(content)
        if target_path.is_dir() and not target_path.is_symlink():
            target_path.rename(target_path.with_name(f".{time.time_ns()}.aside"))
        unfinished.replace(target_path)
    finally:
        unfinished.unlink(missing_ok=True)


# --- validation ---------------------------------------------------------------------------------


def _valid_action(action: _Action) -> _Action | None:
    """Return the part of an action that may stay in the table's log, or `None`."""
    [(kind, value)] = action.items()
    if not isinstance(value, dict):
        return None
    if kind == "commitInfo":
        return action if _is_number(value.get("timestamp", 0)) else None
    if kind == "txn":
        is_valid = isinstance(value.get("appId"), str) and _is_number(value.get("version"))
        return action if is_valid and _is_number(value.get("lastUpdated") or 0) else None
    if kind == "protocol":
        is_known = value == {"minReaderVersion": 1, "minWriterVersion": 2}
        # True equals 1 in Python, and Delta refuses it.
        return action if is_known and all(type(one) is int for one in value.values()) else None
    if kind == "metaData":
        return action if _is_valid_metadata(value) else None
    return _valid_file_action(action)


def _valid_file_action(action: _Action) -> _Action | None:
    [(kind, value)] = action.items()
    columns = _FILE_ACTIONS.get(kind)
    if columns is None or not isinstance(value, dict):
        return None
    kept = {name: value[name] for name in columns if name in value}
    if not all(is_valid(kept.get(name)) for name, is_valid in columns.items()):
        return None
    if kept.get("stats") is not None and not _is_statistics(kept["stats"]):
        # Without statistics the request lacks values, and the owner refuses it for that.
        del kept["stats"]
    return {kind: kept}


def _is_statistics(text: str) -> bool:
    try:
        # `json` holds the interpreter for minutes on a long text that pydantic-core refuses.
        return are_valid_statistics(from_json(text))
    except (ValueError, TypeError):
        return False


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def _is_tags(value: object) -> bool:
    return isinstance(value, dict) and all(
        one is None or isinstance(one, str) for one in value.values()
    )


def _or_none(is_valid: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or is_valid(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


_FILE_ACTIONS: Mapping[str, Mapping[str, Callable[[object], bool]]] = {
    "add": {
        "path": _is_text,
        "partitionValues": are_valid_values,
        "size": _is_number,
        "modificationTime": _is_number,
        "dataChange": _is_flag,
        "stats": _or_none(_is_text),
        "tags": _or_none(_is_tags),
    },
    "remove": {
        "path": _is_text,
        "deletionTimestamp": _or_none(_is_number),
        "dataChange": _is_flag,
        "extendedFileMetadata": _or_none(_is_flag),
        "partitionValues": _or_none(are_valid_values),
        "size": _or_none(_is_number),
        "tags": _or_none(_is_tags),
    },
}
"""The fields of file actions that are kept, each with the check of its value."""


def _is_valid_metadata(value: _Action) -> bool:
    try:
        schema = Schema.from_json(value["schemaString"])
    except (KeyError, TypeError, ValueError, DeltaError):
        return False
    return (
        isinstance(value.get("id"), str)
        and value.get("format") == _FORMAT
        and all(_or_none(_is_text)(value.get(name)) for name in ("name", "description"))
        and _or_none(_is_number)(value.get("createdTime"))
        and value.get("partitionColumns") == list(PRODUCE_REQUESTS.partition_by)
        and _are_valid_columns(schema)
        and _is_valid_configuration(value.get("configuration"))
    )


_FORMAT = {"provider": "parquet", "options": {}}
"""The format of every Delta table; delta-rs does not open one that leaves out the options."""


def metadata_fault(log: DeltaLog) -> str | None:
    """Return the reason why an opened table is not usable as a request table, or `None`."""
    protocol, metadata = log.snapshot.protocol(), log.snapshot.metadata()
    if (protocol.min_reader_version, protocol.min_writer_version) != (1, 2):
        return "its Delta protocol was raised"
    if tuple(metadata.partition_columns) != PRODUCE_REQUESTS.partition_by:
        return "it is not partitioned by the header of a request"
    if not _is_valid_configuration(metadata.configuration):
        return "its table properties are not those of a request table"
    if not _are_valid_columns(log.snapshot.schema()):
        return "its columns are not those of a request table"
    return None


def _are_valid_columns(schema: Schema) -> bool:
    """Return whether clients can write requests with this schema; added columns are nullable."""
    given = {field.name: field for field in schema.fields}
    own = Schema.from_arrow(PRODUCE_REQUESTS.columns).fields
    return all(field.nullable and not field.metadata for field in given.values()) and all(
        field.name in given and given[field.name].type == field.type for field in own
    )


def _is_valid_configuration(configuration: object) -> bool:
    if not isinstance(configuration, dict) or not configuration.keys() <= _PROPERTIES.keys():
        return False
    if not all(isinstance(one, str) for one in configuration.values()):
        # delta-rs does not open such a table.
        return False
    interval = configuration.get(CHECKPOINT_INTERVAL)
    return interval is None or checkpoint_interval(interval) is not None


_PROPERTIES = PRODUCE_REQUESTS.properties
