"""The commits of Delta tables: their actions, their text, and reading them.

Each commit carries an id, the field `txnId` of its first line `commitInfo`. A commit that was
refused, or whose response was lost, is read back and recognised by this id. In local folders the
first line carries a checksum of the other lines, so that reading detects an empty, cut or changed
commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote

import xxhash
from deltalake import CommitProperties
from deltalake.transaction import Transaction

import sparklog
from sparklog.errors import AccessDeniedError, DamagedError
from sparklog.storage.content_cache import ContentCache
from sparklog.storage.damaged_commits import (
    CHECKSUM,
    COMMIT_REMEDY,
    MALFORMED,
    METADATA_CHECKSUM,
    PLACE,
    TABLE_ID,
    USER_METADATA,
    MisplacedCommitError,
    check_metadata,
    check_table,
    check_written,
    damaged_commit,
    matches_checksum,
    names_its_place,
    place_of,
    with_info_checksum,
)
from sparklog.storage.delta_log_files import (
    LOG_FOLDER,
    commit_path,
    has_version,
    is_checkpoint,
    log_names,
    newest_checkpoint,
)
from sparklog.storage.exhausted import is_exhausted
from sparklog.storage.file_copies import differs_from_copy
from sparklog.storage.json_text import json_bytes, json_value
from sparklog.storage.location import Location
from sparklog.storage.parallel import reading_threads

BROKER_EPOCH = "broker_epoch"
"""The app transaction that fences the tables of a broker root."""

CONTROLLER_EPOCH = "controller_epoch"
"""The app transaction that fences the tables that the controller writes."""

LOG_VERSION = "log_version"
"""The app transaction of a checkpoint table with the version of the log that it describes."""

TOPICS_VERSION = "topics_version"
"""The app transaction of a log with the version of `topics` by which replicas were removed."""

PARTITIONS_VERSION = "partition_state_version"
"""The app transaction of a log with the version of `partition_state` by which a reassignment's
replicas were removed.
"""

FORMAT_VERSION = "format_version"
"""The app transaction of the table `brokers` with the format of the cluster root."""

CONFIGS_VERSION = "configs_version"
"""The app transaction of the table `brokers` with the newest version of `configs`."""

COMMIT_ID = "txnId"
"""The field of `commitInfo` with the id of the attempt that made the commit."""


_CAUSE = "cause"
"""The field of `commitInfo` with the cause of a commit that delta-rs has made."""

_sound_commits: ContentCache[Commit] = ContentCache(4 << 20)
"""Parsed commits, shared by the readers of a journal: each broker reads it as leader and follower.
At most 4 MiB of content: the commits of three brokers in a round that appends to 1,000 partitions.
"""

_Derived = TypeVar("_Derived")


class Cause(NamedTuple):
    """The operation of a commit and its parameters, which Delta shows in the table's history.

    All parameters are text, as Delta's own are.
    """

    operation: str = "WRITE"
    parameters: Mapping[str, str] = {}


WRITE = Cause()
"""The cause of commits for which the rows say everything."""


class Protocol(NamedTuple):
    """The versions of Delta's protocol that a table requires of its readers and writers."""

    reader_version: int
    writer_version: int


class AddedFile(NamedTuple):
    """A file that a commit adds: its path in the table, size, partition values and statistics.

    `modified_at_ms` is the file's time as its writer sets it, in ms since 1970.
    """

    path: str
    size_bytes: int
    modified_at_ms: int
    partition_values: Mapping[str, str | None]
    statistics: Mapping[str, Any]


class RemovedFile(NamedTuple):
    """A file that a commit removes; `removed_at_ms` is in ms since 1970 on the system's clock."""

    path: str
    removed_at_ms: int
    size_bytes: int | None = None
    partition_values: Mapping[str, str | None] = {}


@dataclass
class Commit:
    """The actions of one commit, and the id of the attempt that wrote it, if it has one.

    `user_metadata` is the text that the writer stores with it; Delta shows it in the table's
    history. `table_id` is the id of its table, which commits of earlier releases do not name.
    `made_at_ms` is the time on its writer's clock, in ms since 1970. `cause` is covered by no
    checksum, so no decision may depend on it. Invariant: a commit is not changed after it was read,
    since its readers in this process share it.
    """

    version: int
    added: list[AddedFile] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    transactions: dict[str, int] = field(default_factory=dict)
    protocol: Protocol | None = None
    commit_id: str | None = None
    user_metadata: str | None = None
    table_id: str | None = field(default=None, compare=False)
    made_at_ms: int | None = field(default=None, compare=False)
    cause: Cause = field(default=WRITE, compare=False)
    _derived: dict[object, Any] = field(default_factory=dict, compare=False, repr=False)

    def derived(self, function: Callable[[Commit], _Derived]) -> _Derived:
        """Return `function(commit)`, which is computed once for all readers."""
        if function not in self._derived:
            self._derived[function] = function(self)
        found: _Derived = self._derived[function]
        return found


def read_commit(
    table: Location,
    version: int,
    explains: Callable[[Commit], bool] | None = None,
    table_id: str | None = None,
) -> Commit | None:
    """Return commit `version` of the table at `table`, or `None` if it does not exist.

    Raises `DamagedError` if it is empty, cut, changed, or that of a table with another id than
    `table_id`. If every line can be parsed and `explains` returns True for the parsed commit, it is
    returned in spite of a wrong checksum: the caller detects the change in its actions. An empty
    commit is never returned.
    """
    text = commit_content(table, version)
    if text is None:
        return None
    commit = parse_commit(table, version, text, explains)
    try:
        check_table(commit.table_id, table_id)
    except MisplacedCommitError as error:
        raise damaged_commit(table, commit_path(version), error) from error
    return commit


def read_commits(
    table: Location, first: int, last: int, table_id: str | None = None
) -> Iterator[Commit]:
    """Yield the commits `first` to `last` in order; an object store is read in parallel.

    Raises `DamagedError` as `read_commit` does, also for a commit of a table with another id than
    `table_id`, and for a missing commit.
    """

    def read(version: int) -> Commit:
        # Accepted here: a changed header is detected when the batches are loaded.
        commit = read_commit(table, version, lambda _: True, table_id)
        if commit is None:
            raise DamagedError(
                f"{table.uri}/{commit_path(version)}", "it is missing", COMMIT_REMEDY
            )
        return commit

    versions = range(first, last + 1)
    if table.is_local or len(versions) < 2:
        yield from map(read, versions)
        return
    yield from reading_threads().map(read, versions)


def request_commits(table: Location, first: int, count: int) -> dict[int, Future[bytes | None]]:
    """Request `count` commits from version `first` on from an object store, in parallel.

    Returns futures by version; each has the commit's bytes, or `None` if it does not exist.
    """
    readers = reading_threads()
    return {
        version: readers.submit(commit_content, table, version)
        for version in range(first, first + count)
    }


def commit_contents(table: Location, first: int, last: int) -> list[bytes | None]:
    """Return the bytes of the commits `first` to `last`, with `None` for those that do not exist.

    An object store is read in parallel. Must not run in `reading_threads`.
    """
    versions = range(first, last + 1)
    if table.is_local or len(versions) < 2:
        return [commit_content(table, version) for version in versions]
    return [each.result() for each in request_commits(table, first, len(versions)).values()]


def commit_content(table: Location, version: int) -> bytes | None:
    """Return the bytes of a commit, or `None` if it does not exist."""
    try:
        return table.read_bytes(commit_path(version))
    except FileNotFoundError:
        return None


def first_commit(table: Location) -> bytes | None:
    """Return a table's first commit, which contains its id, or `None` if it does not exist."""
    return commit_content(table, 0)


def parse_commit(
    table: Location, version: int, text: bytes, explains: Callable[[Commit], bool] | None = None
) -> Commit:
    """Return a commit from its bytes; raises as `read_commit` does.

    An undamaged commit is shared by all readers in this process.
    """
    place = place_of(table, version)
    shared = _sound_commits.get(place, text)
    if shared is not None:
        return shared
    commit = Commit(version)
    try:
        first, _, lines = text.partition(b"\n")
        actions = [json_value(line) for line in (first, *lines.splitlines())] if text else []
        for action in actions:
            _read_action(commit, action)
        try:
            check_written(text, actions[0] if actions else {}, place)
        except MisplacedCommitError:
            # Its headers are sound, and not those of this version.
            raise
        except MALFORMED:
            if not text or explains is None or not explains(commit):
                raise
            return commit
    except MALFORMED as error:
        raise damaged_commit(table, commit_path(version), error) from error
    _sound_commits.put(place, text, commit)
    return commit


def check_commits(
    table: Location,
    version: int | None = None,
    explains: Callable[[Commit], bool] | None = None,
    table_id: str | None = None,
) -> None:
    """Raise `DamagedError` for a damaged commit among those that opening at `version` reads.

    Without a version, the newest is used. Checks only local folders: object stores store an object
    completely or not at all. `explains`, `table_id`: see `read_commit`. Raises
    `OSError` if this process has reached a limit, such as that of open files.
    """
    if not table.is_local:
        return
    names = [name for name in log_names(table) if has_version(name)]
    commits = {int(name[:20]) for name in names if name[20:] == ".json"}
    last = max(commits, default=-1) if version is None else version
    number = 1 + newest_checkpoint(names, last)
    while number <= last:
        path = commit_path(number)
        try:
            text = table.read_bytes(path)
            if not matches_checksum(text, place_of(table, number), table_id):
                # Raises, unless `explains` accepts the change.
                read_commit(table, number, explains, table_id)
            elif not names_its_place(text) and differs_from_copy(table, path, text):
                raise ValueError("it differs from its second copy")
        except (*MALFORMED, OSError) as error:
            if is_exhausted(error) or isinstance(error, AccessDeniedError):
                raise
            checkpoint = newest_checkpoint(log_names(table), last)
            if not isinstance(error, FileNotFoundError) or checkpoint < number:
                raise damaged_commit(table, path, error) from error
            # A checkpoint was written meanwhile, and clean-up removed the commits before it.
            number = checkpoint
        number += 1


def check_contents(
    table: Location,
    contents: Mapping[str, bytes],
    explains: Callable[[Commit], bool] | None = None,
    table_id: str | None = None,
) -> None:
    """Raise `DamagedError` for a damaged commit among the files of a log that were read.

    A store verifies its objects, but an object may have been replaced by another one. Raises it
    also for the checkpoint of another table: the commit of its version names the table.

    Parameters: `contents`, the files by name; `explains`, see `read_commit`; `table_id`, the id of
    the opened table.
    """
    newest = newest_checkpoint(contents)
    for name, text in contents.items():
        if not has_version(name) or name[20:] != ".json":
            continue
        version = int(name[:20])
        if matches_checksum(text, place_of(table, version), table_id):
            continue
        if version > newest:
            # Raises, unless `explains` accepts the change.
            commit = parse_commit(table, version, text, explains)
            try:
                check_table(commit.table_id, table_id)
            except MisplacedCommitError as error:
                raise damaged_commit(table, commit_path(version), error) from error
        elif version == newest and matches_checksum(text, place_of(table, version)):
            fault = f"it is of the table with id {table_id}, and the commit of its version is not"
            part = next(one for one in contents if is_checkpoint(one) and int(one[:20]) == newest)
            raise DamagedError(f"{table.uri}/{LOG_FOLDER}/{part}", fault, COMMIT_REMEDY)


def _read_action(commit: Commit, action: Mapping[str, Any]) -> None:
    if add := action.get("add"):
        statistics = _statistics(add.get("stats"))
        values = _of_type(add["partitionValues"], dict)
        size, modified_at_ms = _of_type(add["size"], int), _of_type(add["modificationTime"], int)
        path = unquote(add["path"])
        commit.added.append(AddedFile(path, size, modified_at_ms, values, statistics))
    elif remove := action.get("remove"):
        commit.removed.append(unquote(remove["path"]))
    elif transaction := action.get("txn"):
        name = _of_type(transaction["appId"], str)
        commit.transactions[name] = _of_type(transaction["version"], int)
    elif protocol := action.get("protocol"):
        versions = protocol["minReaderVersion"], protocol["minWriterVersion"]
        commit.protocol = Protocol(*(_of_type(one, int) for one in versions))
    elif info := action.get("commitInfo"):
        # Other writers may store anything here, which is no damage.
        commit.commit_id = _if_of_type(info.get(COMMIT_ID), str)
        commit.table_id = _if_of_type(info.get(TABLE_ID), str)
        commit.user_metadata = _if_of_type(info.get(USER_METADATA), str)
        commit.made_at_ms = _if_of_type(info.get("timestamp"), int)
        commit.cause = _cause_in(info)
        check_metadata(info)


def _of_type(value: Any, kind: type[_Derived]) -> _Derived:
    """Return a value of an action; raises `TypeError` if it has another type."""
    if isinstance(value, kind):
        return value
    raise TypeError(f"{type(value).__name__} in the place of {kind.__name__}")


def _if_of_type(value: Any, kind: type[_Derived]) -> _Derived | None:
    return value if isinstance(value, kind) else None


def _statistics(text: str | None) -> dict[str, Any]:
    """Return a file's statistics, `{}` if malformed: any client may append any text to a table."""
    return _json_object(text or "{}")


def _json_object(text: Any) -> dict[str, Any]:
    """Return the JSON object in `text`, `{}` for anything else."""
    try:
        found = json_value(text)
    except (ValueError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _cause_in(info: Mapping[str, Any]) -> Cause:
    """Return the cause in a `commitInfo`; other writers' values are kept if they are text."""
    handed_over = info.get(_CAUSE)
    found = _json_object(handed_over) if isinstance(handed_over, str) else info
    operation, parameters = found.get("operation"), found.get("operationParameters")
    if not isinstance(operation, str):
        return WRITE
    texts = parameters.items() if isinstance(parameters, dict) else ()
    return Cause(operation, {name: one for name, one in texts if isinstance(one, str)})


def commit_text(
    cause: Cause,
    added: Sequence[AddedFile],
    removed: Sequence[RemovedFile],
    transactions: Mapping[str, int],
    commit_id: str,
    user_metadata: str | None,
    now_ms: int,
    place: str | None = None,
    table_id: str | None = None,
) -> bytes:
    """Return the text of a commit, which shows its `cause` in the table's history.

    `transactions` are the new versions of app transactions by name, `commit_id` is the id of this
    attempt, `user_metadata` the writer's own text, `now_ms` the commit's time in ms since 1970,
    `place` the commit's table and version (`place_of`), and `table_id` the id of its table.
    """
    actions: list[dict[str, Any]] = [
        *(
            {"txn": {"appId": name, "version": epoch, "lastUpdated": now_ms}}
            for name, epoch in transactions.items()
        ),
        *({"remove": _remove(file)} for file in removed),
        *({"add": _add(file)} for file in added),
    ]
    lines = b"\n".join(map(json_bytes, actions))
    info = {
        "timestamp": now_ms,
        "operation": cause.operation,
        "operationParameters": cause.parameters,
        "engineInfo": f"sparklog {sparklog.__version__}",
        COMMIT_ID: commit_id,
        CHECKSUM: xxhash.xxh3_64_hexdigest(lines),
        **({} if place is None else {PLACE: place}),
        **({} if table_id is None else {TABLE_ID: table_id}),
        **_own_text(user_metadata),
    }
    first = json_bytes({"commitInfo": info})
    return (first if place is None else with_info_checksum(first)) + b"\n" + lines


def commit_properties(
    cause: Cause, transactions: Mapping[str, int], commit_id: str, user_metadata: str | None
) -> CommitProperties:
    """Return delta-rs's form of these parts of `commit_text`, for a single attempt to commit.

    delta-rs names the operation itself, so the cause is a field of its own.
    """
    given = {"operation": cause.operation, "operationParameters": cause.parameters}
    epochs = [Transaction(name, epoch) for name, epoch in transactions.items()]
    return CommitProperties(
        max_commit_retries=0,
        custom_metadata={
            COMMIT_ID: commit_id,
            _CAUSE: json_bytes(given).decode(),
            **_own_text(user_metadata),
        },
        app_transactions=epochs or None,
    )


def _own_text(user_metadata: str | None) -> dict[str, str]:
    """Return the fields of `commitInfo` with the writer's own text and its checksum."""
    if user_metadata is None:
        return {}
    checksum = xxhash.xxh3_64_hexdigest(user_metadata.encode())
    return {USER_METADATA: user_metadata, METADATA_CHECKSUM: checksum}


def _add(file: AddedFile) -> dict[str, Any]:
    return {
        "path": quote(file.path),
        "partitionValues": file.partition_values,
        "size": file.size_bytes,
        "modificationTime": file.modified_at_ms,
        "dataChange": True,
        "stats": json_bytes(file.statistics).decode(),
    }


def _remove(file: RemovedFile) -> dict[str, Any]:
    action: dict[str, Any] = {
        "path": quote(file.path),
        "deletionTimestamp": file.removed_at_ms,
        "dataChange": True,
    }
    if file.size_bytes is None:
        return action
    return action | {
        "extendedFileMetadata": True,
        "partitionValues": file.partition_values,
        "size": file.size_bytes,
    }
