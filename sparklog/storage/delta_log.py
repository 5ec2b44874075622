"""The log of a Delta table: opened by delta-rs, followed commit by commit, written to by
compare-and-set.

The files of a table are kept in memory by each reader, which applies new commits to them: polling
costs O(new commits). A commit to a local folder is one small file, which takes a tenth of the time
that loading a snapshot and checking for conflicts takes.

Each commit carries an id, its first line `commitInfo` has it as `txnId`. A commit that was
refused, or whose answer was lost, is read back and recognised by it. In local folders
the first line carries a checksum of the others, so that a commit that is empty, cut or changed is
found when it is read.
"""

from __future__ import annotations

import errno
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote

import xxhash
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    TableNotFoundError,
)
from deltalake.transaction import AddAction, RemoveAction, Transaction

import sparklog
from sparklog.errors import DamagedError, StorageError
from sparklog.logger import get_logger
from sparklog.storage.content_cache import ContentCache
from sparklog.storage.delta_checkpoints import newest_checkpoint, write_store_checkpoint
from sparklog.storage.json_text import json_bytes, json_value
from sparklog.storage.location import Location, one_line

_log = get_logger(__name__)

BROKER_EPOCH = "broker_epoch"
"""The app transaction that fences the tables of a broker root."""

CONTROLLER_EPOCH = "controller_epoch"
"""The app transaction that fences the tables that the controller writes."""

_READER_VERSION, _WRITER_VERSION = 1, 2
"""The versions of Delta's protocol that every table of sparklog has."""

LOG_VERSION = "log_version"
"""The app transaction that names which version of its root's log a checkpoint table describes."""

CHECKPOINT_INTERVAL = "delta.checkpointInterval"
"""The table property with the number of commits between two checkpoints."""

DEFAULT_CHECKPOINT_INTERVAL = 100

EMPTY_PER_COMMIT = 5
"""The number of empty commits that count as one commit where checkpoints become due."""
_LARGEST_CHECKPOINT_INTERVAL = 1_000_000

COMMIT_ID = "txnId"
"""The field of `commitInfo` with the id of the attempt that made the commit."""

_CHECKSUM = "sparklogChecksum"
"""The field of `commitInfo` with the checksum of the lines after it."""

USER_METADATA, _METADATA_CHECKSUM = "userMetadata", "sparklogMetadataChecksum"
"""The fields of `commitInfo` with a text of the writer's own, and with the text's checksum."""

_WITHOUT_HARD_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP}
"""The errors of link() on file systems that have no hard links."""

_REMEDY = (
    "restore it from a copy of the root, or, in a broker's root, stop the broker, move the root "
    "away and start the broker: it copies its replicas from the other brokers"
)


_Derived = TypeVar("_Derived")


class Protocol(NamedTuple):
    """The versions of Delta's protocol that a table asks its readers and writers to know."""

    reader_version: int
    writer_version: int


class AddedFile(NamedTuple):
    """A file that a commit adds: its path in the table, size, partition values, statistics.

    `modified_at_ms` is what the writer gives as the file's time, in ms since 1970.
    """

    path: str
    size_bytes: int
    modified_at_ms: int
    partition_values: Mapping[str, str | None]
    statistics: Mapping[str, Any]


class RemovedFile(NamedTuple):
    """A file that a commit removes, at a time in ms since 1970 on the system's clock."""

    path: str
    removed_at_ms: int
    size_bytes: int | None = None
    partition_values: Mapping[str, str | None] = {}


@dataclass
class Commit:
    """The actions of one commit, and the id of the attempt that wrote it, where it has one.

    `user_metadata` is the text that its writer gave along; Delta shows it in a table's history.
    Nobody changes a commit that was read: its readers in this process share it.
    """

    version: int
    added: list[AddedFile] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    transactions: dict[str, int] = field(default_factory=dict)
    protocol: Protocol | None = None
    commit_id: str | None = None
    user_metadata: str | None = None
    _derived: dict[object, Any] = field(default_factory=dict, compare=False, repr=False)

    def derived(self, function: Callable[[Commit], _Derived]) -> _Derived:
        """Return what `function` makes of the commit, which is computed once for all readers."""
        if function not in self._derived:
            self._derived[function] = function(self)
        found: _Derived = self._derived[function]
        return found


class Stamp(NamedTuple):
    """Which file a commit is: it differs where another commit has taken a lost one's version."""

    version: int
    modified_at_ns: int
    size_bytes: int


class DeltaLog:
    """The log of one table, at one version; opening it raises what `open_delta_table` raises.

    Parameters: `explains`, see `read_commit`; `cleans_up`, whether commits write Delta's checkpoint
    where that is due, after which old commits are cleaned up. Else `write_due_checkpoint` does.
    """

    def __init__(
        self,
        table: Location,
        version: int | None = None,
        explains: Callable[[Commit], bool] | None = None,
        *,
        cleans_up: bool = True,
    ) -> None:
        self.location = table
        self._explains = explains
        self._cleans_up = cleans_up
        self._load(version)
        self.empty_commits = 0
        """The commits passed since the log was opened that change nothing; counted by the owner."""
        self._checkpointed = self.version
        self._ahead: dict[int, Future[bytes | None]] = {}
        self._reach = 1
        self._seen_at: tuple[float, float] | None = None
        self._asked_at = clocks()
        self._to_end = False
        self._looked_at = clocks()
        self.is_uncertain = False
        """Whether the outcome of this handle's last commit is unknown."""
        self._late_version = -1
        self.taken_by: Commit | None = None
        """The commit that has the version for which the last commit was refused, if it is there."""
        self.is_lost = False
        """Whether the loaded version's commit was gone when the log was followed last.

        The commits after it were cleaned up as well, or the root was lost or restored: open the
        table again.
        """

    def _load(self, version: int | None) -> None:
        """Open the table with delta-rs, and take over what it tells."""
        self.snapshot = open_delta_table(self.location, version)
        """The table as delta-rs opened it: before the first commit that was followed."""
        self.version = self.snapshot.version()
        self.transactions = {
            name: held
            for name in (BROKER_EPOCH, CONTROLLER_EPOCH, LOG_VERSION)
            if (held := self.snapshot.transaction_version(name)) is not None
        }
        """The versions of the table's app transactions, by name: epochs, and `LOG_VERSION`."""
        # After delta-rs has read them, since clean-up may take them at any time.
        check_commits(self.location, self.version, self._explains)
        metadata = self.snapshot.metadata()
        self.table_id = str(metadata.id)
        """The id that Delta gave the table when it was created."""
        protocol = self.snapshot.protocol()
        self._protocol = Protocol(protocol.min_reader_version, protocol.min_writer_version)
        self._check_protocol()
        given = metadata.configuration.get(CHECKPOINT_INTERVAL)
        self.checkpoint_interval = checkpoint_interval(given) or DEFAULT_CHECKPOINT_INTERVAL
        """The number of commits between two of Delta's checkpoints of the table."""

    def follow(self, to_version: int | None = None) -> Iterator[Commit]:
        """Go on to the newest version, or `to_version` at most, and yield each commit on the way.

        Raises `StorageError` where the table's protocol is not supported when all are applied,
        `DamagedError` at a commit that is damaged.
        """
        start = self.version
        if self.is_uncertain:
            # The commit may be there without being on the disk.
            with suppress(FileNotFoundError):
                self.location.sync([commit_path(self.version + 1)])
        elif self._seen_at is not None and not is_ago(self._seen_at, FRESH_S):
            return
        ahead, self._ahead = self._ahead, {}
        if ahead and is_ago(self._asked_at, FRESH_S):
            ahead = {}
        while to_version is None or self.version < to_version:
            began = clocks()
            if ahead and self.version + 1 not in ahead:
                # There may be more: the next look asks for more at once.
                self._reach = min(2 * self._reach, MOST_AHEAD)
                if not self._to_end:
                    break
            commit = self._read(self.version + 1, ahead.get(self.version + 1))
            if ahead and commit is None:
                self._reach = 1
            if self.version == start:
                # A commit that follows a removed one was made by a writer that had fallen behind
                # clean-up: it is not part of the table (protocol rule 10.7).
                self.is_lost = self._is_predecessor_lost()
                self._looked_at = began
            if commit is None or self.is_lost:
                break
            self.version = commit.version
            self.transactions |= commit.transactions
            self._protocol = commit.protocol or self._protocol
            yield commit
        if ahead:
            self._seen_at = self._asked_at
        if self.is_uncertain and self.version == start:
            self._late_version = start + 1
        self.is_uncertain = False
        self._check_protocol()

    def look_ahead(self, *, to_end: bool = False, least: int = 1) -> None:
        """Ask an object store for the next commits, beside the caller; `follow` takes them.

        So a look at many tables takes as long as one request. Where all that was asked for is
        there, `follow` goes on to the newest commit (`to_end`), or the next look does. What is
        found counts as the newest for all who look at this handle until something is committed by
        it, for `FRESH_S` at most. `least` is the number of commits that are asked for at least.
        Does nothing for a table in a folder.
        """
        if self.location.is_local or self.is_uncertain:
            return
        self._seen_at = None
        self._to_end = to_end
        self._asked_at = clocks()
        reach = max(self._reach, least)
        self._ahead = request_commits(self.location, self.version + 1, reach)

    def _read(self, version: int, ahead: Future[bytes | None] | None) -> Commit | None:
        """Return a commit, which may have been asked for already; raises as `read_commit` does."""
        content = ahead.result() if ahead else _content(self.location, commit_path(version))
        if content is None:
            return None
        return parse_commit(self.location, version, content, self._explains)

    def skip(self, likely: int = 0) -> None:
        """Look where the table ends, and `step_to` there; `is_lost` is as after `follow`.

        `likely`: how many commits there are on the way, if the caller can guess.
        """
        began = clocks()
        self.is_lost = self._is_predecessor_lost()
        if not self.is_lost:
            self.version = newest_after(self.location, self.version, likely)
            self.is_uncertain = False
        self._looked_at = began

    def stamp(self) -> Stamp | None:
        """Return the stamp of the loaded version's commit file.

        `None` where there is no such file, and on object stores, where reading it costs a request.
        """
        if not self.location.is_local:
            return None
        try:
            # Called for every table in every tick: a Path takes four times as long.
            found = os.stat(f"{self.location.uri}/{commit_path(self.version)}")  # noqa: PTH116
        except OSError:
            return None
        return Stamp(self.version, found.st_mtime_ns, found.st_size)

    def has_news(self) -> bool:
        """Return whether the next commit exists; always False on object stores (a request)."""
        return self.location.is_local and has_commit(self.location, self.version + 1)

    def commit(
        self,
        operation: str,
        added: Sequence[AddedFile] = (),
        removed: Sequence[RemovedFile] = (),
        transactions: Mapping[str, int] | None = None,
        user_metadata: str | None = None,
        commit_id: str | None = None,
        *,
        syncs_files: bool = True,
    ) -> bool:
        """Commit as the version after this one, and go on to it; return whether it was free.

        `operation` is Delta's name for it, which the table's history shows, as it does
        `user_metadata`; `commit_id`, the id of the attempt, a new one by default. Where the version
        was not free, `taken_by` is the commit that has it. In local folders the added files are
        synced first, unless another commit does so that counts on them (`syncs_files`), and the
        commit is synced before this returns. Raises `OSError` or `DeltaError` where the commit
        failed or its outcome is unknown (`is_uncertain`): follow the log then before deciding
        anything.
        """
        transactions = transactions or {}
        self._ahead, self._seen_at = {}, None
        self._check_protocol()
        commit_id = commit_id or uuid.uuid4().hex
        self.is_uncertain = True
        self.taken_by = None
        # An error, and a refusal, are believed only after the version was read back: a conditional
        # PUT that is repeated after its answer was lost is refused because of itself.
        try:
            if syncs_files:
                self.location.sync(file.path for file in added)
            put = self._put(operation, added, removed, transactions, commit_id, user_metadata)
            is_mine = put or self._is_by(commit_id)
        except (DeltaError, OSError):
            if not self._is_by(commit_id):
                raise
            # Whatever failed, the commit counts only once it is on the disk.
            self.location.sync([commit_path(self.version + 1)])
            is_mine = True
        if is_mine and self._is_predecessor_lost():
            # Clean-up has taken the predecessor, and with it the commits that really followed.
            self.location.remove_durably(commit_path(self.version + 1))
            self.taken_by = None
            is_mine = False
        self.is_uncertain = False
        if is_mine:
            self.version += 1
            self.transactions |= transactions
            self._looked_at = clocks()
            if self._cleans_up:
                self.write_due_checkpoint()
        return is_mine

    def next_commit(self) -> Commit | None:
        """Return the commit after the loaded version, without going on to it."""
        return read_commit(self.location, self.version + 1, self._explains)

    def step_over(self) -> None:
        """Go on to the next version, which the caller knows to be an empty commit of its own.

        In local folders it is synced, since its answer was lost.
        """
        self.location.sync([commit_path(self.version + 1)])
        self._ahead, self._seen_at = {}, None
        self.version += 1
        self.is_uncertain = False
        self._looked_at = clocks()

    def step_to(self, version: int) -> None:
        """Go on to a version that is known to be there, without reading the commits on the way.

        So one that only appends goes on: what others have committed does not concern it.
        """
        self.version = max(self.version, version)

    @property
    def may_land_late(self) -> bool:
        """Whether a commit that was given up, and was not there, may still take the next version.

        A store may carry a request out after its sender has given it up.
        """
        return self._late_version == self.version + 1

    @property
    def progress(self) -> int:
        """The version, with `EMPTY_PER_COMMIT` empty commits counted as one since the opening."""
        return self.version - self.empty_commits + self.empty_commits // EMPTY_PER_COMMIT

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether Delta's checkpoint is due: `CHECKPOINT_INTERVAL` commits after the last one.

        `EMPTY_PER_COMMIT` empty commits count as one.
        """
        interval = self.checkpoint_interval
        return self.progress // interval > self._checkpointed // interval

    def write_due_checkpoint(self) -> None:
        """Have Delta's checkpoint written, in another thread, where that is due.

        Commits that were cleaned up before are no longer there to be read after that.
        """
        if self.is_checkpoint_due:
            self._checkpointed = self.progress
            _checkpoints.submit(_write_checkpoint, self.location)

    def _is_predecessor_lost(self) -> bool:
        """Return whether the loaded version's commit is gone.

        On object stores, where it takes a request, only where the log was not looked at for long:
        clean-up keeps commits for at least ten minutes.
        """
        if not self.location.is_local and not is_ago(self._looked_at, LONG_AGO_S):
            return False
        return not has_commit(self.location, self.version)

    def _is_by(self, commit_id: str) -> bool:
        commit = self.taken_by = read_commit(self.location, self.version + 1)
        return commit is not None and commit.commit_id == commit_id

    def _put(
        self,
        operation: str,
        added: Sequence[AddedFile],
        removed: Sequence[RemovedFile],
        transactions: Mapping[str, int],
        commit_id: str,
        user_metadata: str | None,
    ) -> bool:
        now_ms = time.time_ns() // 1_000_000
        actions: list[dict[str, Any]] = [
            *(
                {"txn": {"appId": name, "version": epoch, "lastUpdated": now_ms}}
                for name, epoch in transactions.items()
            ),
            *({"remove": _remove(file)} for file in removed),
            *({"add": _add(file)} for file in added),
        ]
        text = _commit_text(actions, operation, now_ms, commit_id, user_metadata)
        try:
            self.location.put_new(commit_path(self.version + 1), text)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _WITHOUT_HARD_LINKS:
                raise
            # delta-rs knows other ways to put a file that must not exist.
            return self._hand_over(added, removed, transactions, commit_id, user_metadata)
        return True

    def _hand_over(
        self,
        added: Sequence[AddedFile],
        removed: Sequence[RemovedFile],
        transactions: Mapping[str, int],
        commit_id: str,
        user_metadata: str | None,
    ) -> bool:
        """Have delta-rs commit, to a folder whose file system has no hard links."""
        self._load_snapshot()
        if self.snapshot.version() != self.version:
            return False
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                file.path,
                file.size_bytes,
                dict(file.partition_values),
                file.modified_at_ms,
                True,
                json_bytes(file.statistics).decode(),
            )
            for file in added
        ]
        actions += [
            RemoveAction(
                file.path, True, file.removed_at_ms, file.size_bytes, dict(file.partition_values)
            )
            for file in removed
        ]
        epochs = [Transaction(name, epoch) for name, epoch in transactions.items()]
        try:
            self.snapshot.create_write_transaction(
                actions,
                "append",
                self.snapshot.schema(),
                self.snapshot.metadata().partition_columns,
                commit_properties=_properties(commit_id, epochs or None, user_metadata),
            )
        except CommitFailedError:
            return False
        self.location.sync([commit_path(self.version + 1)])
        return True

    def _check_protocol(self) -> None:
        asked = self._protocol
        if asked.reader_version > _READER_VERSION or asked.writer_version > _WRITER_VERSION:
            raise StorageError(
                f"the table at {self.location.uri} asks for reader version {asked.reader_version} "
                f"and writer version {asked.writer_version} of Delta's protocol, and sparklog "
                f"supports {_READER_VERSION} and {_WRITER_VERSION}: drop the table features that "
                "were added"
            )

    def _load_snapshot(self) -> None:
        try:
            self.snapshot.update_incremental()
        except DeltaError:
            # The commits that it would have to read were cleaned up.
            self.snapshot = open_delta_table(self.location)


def _properties(
    commit_id: str, epochs: list[Transaction] | None, user_metadata: str | None
) -> CommitProperties:
    told = {COMMIT_ID: commit_id}
    if user_metadata is not None:
        told[USER_METADATA] = user_metadata
        told[_METADATA_CHECKSUM] = xxhash.xxh3_64_hexdigest(user_metadata.encode())
    return CommitProperties(max_commit_retries=0, custom_metadata=told, app_transactions=epochs)


def _commit_text(
    actions: Sequence[Mapping[str, Any]],
    operation: str,
    now_ms: int,
    commit_id: str,
    user_metadata: str | None,
) -> bytes:
    lines = b"\n".join(map(json_bytes, actions))
    info = {
        "timestamp": now_ms,
        "operation": operation,
        "operationParameters": {},
        "engineInfo": f"sparklog {sparklog.__version__}",
        COMMIT_ID: commit_id,
        _CHECKSUM: xxhash.xxh3_64_hexdigest(lines),
    }
    if user_metadata is not None:
        info[USER_METADATA] = user_metadata
        info[_METADATA_CHECKSUM] = xxhash.xxh3_64_hexdigest(user_metadata.encode())
    return json_bytes({"commitInfo": info}) + b"\n" + lines


def checkpoint_interval(text: str | None) -> int | None:
    """Return the value of `CHECKPOINT_INTERVAL`, or `None` where it is not usable."""
    if text is None or not text.isdecimal() or len(text) > len(str(_LARGEST_CHECKPOINT_INTERVAL)):
        return None
    interval = int(text)
    return interval if 0 < interval <= _LARGEST_CHECKPOINT_INTERVAL else None


# One at a time, beside whoever commits: a checkpoint takes as long as a hundred commits.
_checkpoints = ThreadPoolExecutor(1, thread_name_prefix="delta-checkpoints")


def _write_checkpoint(table: Location) -> None:
    """Write a checkpoint, which makes opening the table cheaper, and clean up old commits."""
    try:
        if table.is_local:
            opened = open_delta_table(table)
            opened.create_checkpoint()
            if table.is_synced:
                # Before the commits go that the checkpoint stands for.
                names = Path(table.uri, "_delta_log").glob("*checkpoint*")
                table.sync(f"_delta_log/{name.name}" for name in names)
        else:
            write_store_checkpoint(table)
            opened = open_delta_table(table)
        opened.cleanup_metadata()
    except (StorageError, DeltaError, OSError) as error:
        # The commits hold without it; the next checkpoint makes up for this one.
        _log.warning("no checkpoint", table=table.uri, error=one_line(error))


def await_checkpoints() -> None:
    """Wait until the checkpoints are written that this process's commits have made due."""
    _checkpoints.submit(int).result()


def open_delta_table(table: Location, version: int | None = None) -> DeltaTable:
    """Open the Delta table at `table`, at its newest version or the one that is named.

    Raises a `StorageError` that says what is missing.
    """
    try:
        return DeltaTable(table.uri, version=version, storage_options=table.store_options)
    except (DeltaError, OSError) as error:
        if version is not None:
            raise StorageError(
                f"the table at {table.uri} has no version {version} that can be read: it was "
                f"cleaned up, or the root was lost or restored ({one_line(error)})"
            ) from error
        if isinstance(error, TableNotFoundError):
            raise StorageError(
                f"there is no table at {table.uri}: check the root, or create the cluster first"
            ) from None
        check_commits(table)
        raise StorageError(
            f"the table at {table.uri} cannot be opened: {one_line(error)}"
        ) from error


def read_commit(
    table: Location, version: int, explains: Callable[[Commit], bool] | None = None
) -> Commit | None:
    """Return commit `version` of the table at `table`, or `None` where it does not exist.

    Raises `DamagedError` where it is empty, cut or changed, unless all of its lines are whole and
    `explains` returns True: the actions themselves show then what was changed.
    """
    text = _content(table, commit_path(version))
    return None if text is None else parse_commit(table, version, text, explains)


def request_commits(table: Location, first: int, count: int) -> dict[int, Future[bytes | None]]:
    """Ask an object store for `count` commits from version `first` on, in parallel.

    The results are the commits' bytes, `None` for one that does not exist.
    """
    readers = reading_threads(os.getpid())
    return {
        version: readers.submit(commit_content, table, version)
        for version in range(first, first + count)
    }


def commit_contents(table: Location, first: int, last: int) -> list[bytes | None]:
    """Return the bytes of the commits `first` to `last`, `None` for those that do not exist.

    An object store is asked for all of them in parallel. Must not run in `reading_threads`.
    """
    versions = range(first, last + 1)
    if table.is_local or len(versions) < 2:
        return [commit_content(table, version) for version in versions]
    return [each.result() for each in request_commits(table, first, len(versions)).values()]


def commit_content(table: Location, version: int) -> bytes | None:
    """Return the bytes of a commit, `None` where it does not exist."""
    return _content(table, commit_path(version))


def _content(table: Location, path: str) -> bytes | None:
    """Return a file's bytes, `None` where there is none."""
    try:
        return table.read_bytes(path)
    except FileNotFoundError:
        return None


def parse_commit(
    table: Location, version: int, text: bytes, explains: Callable[[Commit], bool] | None = None
) -> Commit:
    """Return a commit from its bytes; raises as `read_commit` does.

    A commit that is as it was written is shared by all readers in this process.
    """
    shared = _sound_commits.get(version, text)
    if shared is not None:
        return shared
    commit = Commit(version)
    try:
        first, _, lines = text.partition(b"\n")
        actions = [json_value(line) for line in (first, *lines.splitlines())] if text else []
        for action in actions:
            _read_action(commit, action)
        try:
            _check_written(text, actions[0] if actions else {})
        except _MALFORMED:
            if explains is None or not explains(commit):
                raise
            return commit
    except _MALFORMED as error:
        raise _damaged(table, commit_path(version), error) from error
    _sound_commits.put(version, text, commit)
    return commit


_sound_commits: ContentCache[Commit] = ContentCache(4 << 20)
"""A broker reads a journal in both of its roles, and as many times as it has brokers in a process.
The bound is what three brokers commit in a round that appends to 1,000 partitions.
"""


def read_commits(table: Location, first: int, last: int) -> Iterator[Commit]:
    """Yield the commits `first` to `last`, in order, read side by side where that saves time.

    Raises `DamagedError` as `read_commit` does, and for a commit that is not there.
    """

    def read(version: int) -> Commit:
        # A changed header is found where the batches are loaded.
        commit = read_commit(table, version, lambda _: True)
        if commit is None:
            raise DamagedError(f"{table.uri}/{commit_path(version)}", "it is missing", _REMEDY)
        return commit

    versions = range(first, last + 1)
    if table.is_local or len(versions) < 2:
        yield from map(read, versions)
        return
    yield from reading_threads(os.getpid()).map(read, versions)


MOST_AHEAD = 32
"""Commits that are read at a time from an object store."""


@cache
def reading_threads(_process: int) -> ThreadPoolExecutor:
    """Return the threads that read commits, for a whole process; a forked one has none."""
    return ThreadPoolExecutor(4 * MOST_AHEAD, thread_name_prefix="commits")


FRESH_S = 5.0
"""Seconds for which what a look ahead has found counts as the newest, at most."""


def check_commits(
    table: Location,
    version: int | None = None,
    explains: Callable[[Commit], bool] | None = None,
) -> None:
    """Raise `DamagedError` for a damaged commit among those that opening at `version` reads.

    Without a version: the newest. Only in local folders: an object store has the whole of an
    object or nothing of it. `explains`: see `read_commit`.
    """
    if not table.is_local:
        return
    names = [name for name in _names(table) if name[:20].isdigit()]
    commits = {int(name[:20]) for name in names if name[20:] == ".json"}
    last = max(commits, default=-1) if version is None else version
    number = 1 + newest_checkpoint(names, last)
    while number <= last:
        path = commit_path(number)
        try:
            if not _matches(table.read_bytes(path)):
                # Raises, unless what was changed is explained.
                read_commit(table, number, explains)
        except (*_MALFORMED, OSError) as error:
            checkpoint = newest_checkpoint(_names(table), last)
            if not isinstance(error, FileNotFoundError) or checkpoint < number:
                raise _damaged(table, path, error) from error
            # A checkpoint was written meanwhile, and clean-up took the commits before it.
            number = checkpoint
        number += 1


_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""The exceptions that reading a malformed commit may raise."""


def _damaged(table: Location, path: str, error: Exception) -> DamagedError:
    fault = one_line(error)
    if not isinstance(error, (ValueError, OSError)):
        fault = f"an action is malformed ({type(error).__name__}: {fault})"
    return DamagedError(f"{table.uri}/{path}", fault, _REMEDY)


def _names(table: Location) -> list[str]:
    try:
        return [entry.name for entry in Path(table.uri, "_delta_log").iterdir()]
    except FileNotFoundError:
        return []


def check_commit_text(text: bytes) -> None:
    """Raise `ValueError` where a commit is not as it was written."""
    _check_written(text, json_value(text.partition(b"\n")[0]) if text else {})


def _check_written(text: bytes, first: Mapping[str, Any]) -> None:
    """Raise `ValueError` where a commit, whose first action is given, is not as it was written."""
    if not text:
        raise ValueError("the commit is empty")
    lines = text.partition(b"\n")[2]
    info = first.get("commitInfo") or {}
    _check_metadata(info)
    checksum = info.get(_CHECKSUM)
    if checksum is not None and xxhash.xxh3_64_hexdigest(lines) != checksum:
        raise ValueError("the commit is cut or changed: its lines do not match their checksum")
    if checksum is None:
        # Another writer's commit has no checksum, but each of its lines is whole.
        json_value(text[text.rstrip().rfind(b"\n") + 1 :])


def _check_metadata(info: Mapping[str, Any]) -> None:
    """Raise `ValueError` where the writer's own text in a commit is not as it was written."""
    checksum = info.get(_METADATA_CHECKSUM)
    written = str(info.get(USER_METADATA)).encode()
    if checksum is not None and xxhash.xxh3_64_hexdigest(written) != checksum:
        raise ValueError("the commit is changed: its userMetadata does not match its checksum")


def _matches(text: bytes) -> bool:
    try:
        check_commit_text(text)
    except _MALFORMED:
        return False
    return True


def _read_action(commit: Commit, action: Mapping[str, Any]) -> None:
    if add := action.get("add"):
        statistics = _statistics(add.get("stats"))
        values = add["partitionValues"]
        path, size, modified_at_ms = unquote(add["path"]), add["size"], add["modificationTime"]
        commit.added.append(AddedFile(path, size, modified_at_ms, values, statistics))
    elif remove := action.get("remove"):
        commit.removed.append(unquote(remove["path"]))
    elif transaction := action.get("txn"):
        commit.transactions[transaction["appId"]] = transaction["version"]
    elif protocol := action.get("protocol"):
        commit.protocol = Protocol(protocol["minReaderVersion"], protocol["minWriterVersion"])
    elif info := action.get("commitInfo"):
        commit.commit_id = info.get(COMMIT_ID)
        commit.user_metadata = info.get(USER_METADATA)
        _check_metadata(info)


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


def _statistics(text: str | None) -> dict[str, Any]:
    """Read a file's statistics; whoever may append to a table may write there what it likes."""
    try:
        statistics = json_value(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return statistics if isinstance(statistics, dict) else {}


def has_commit(table: Location, version: int) -> bool:
    """Say whether commit `version` is there; clean-up takes old ones, a lost root all of them."""
    return table.exists(commit_path(version))


def newest_version(table: Location) -> int:
    """Return the newest version of a table, without opening it.

    Raises `StorageError` where there is no table, `OSError` where it cannot be read.
    """
    if table.is_local:
        known = max((int(name[:20]) for name in _names(table) if _COMMIT.match(name)), default=-1)
    else:
        known = newest_after(table, _last_checkpoint(table))
    if known < 0:
        raise StorageError(
            f"there is no table at {table.uri}: check the root, or create the cluster first"
        )
    return known


def newest_after(table: Location, version: int, likely: int = 0) -> int:
    """Return the newest version of a table from one on that is there or just cleaned up.

    Commits have no gaps. A folder is asked one version after another; an object store side by side,
    around the version that is `likely` commits further, then each time as many times as far, for
    the versions in between then.
    """
    if table.is_local:
        while has_commit(table, version + 1):
            version += 1
        return version
    readers = reading_threads(os.getpid())

    def count_from(first: int, step: int) -> int:
        """Return how many of the next versions are there, of `_PROBES`, `first` among them."""
        asked = [first + step * number for number in range(_PROBES)]
        found = [*readers.map(partial(has_commit, table), asked), False]
        return found.index(False)

    if likely > _PROBES // 2:
        guess = version + likely - _PROBES // 2
        count = count_from(guess, 1)
        if 0 < count < _PROBES:
            return guess + count - 1
        version = guess + count - 1 if count else version
    step = 1
    while True:
        count = count_from(version + step, step)
        version += step * count
        if count == _PROBES:
            step *= _PROBES
        elif step == 1:
            return version
        else:
            step //= _PROBES


_PROBES = 8
"""Versions that are asked for at a time; each round of questions looks so many times as far."""


def _last_checkpoint(table: Location) -> int:
    try:
        return int(json_value(table.read_bytes("_delta_log/_last_checkpoint"))["version"])
    except (FileNotFoundError, *_MALFORMED):
        return -1


_COMMIT = re.compile(r"\d{20}\.json$")


def first_commit(table: Location) -> bytes | None:
    """Return a table's first commit, in which its id is, or `None` where it is not there."""
    try:
        return table.read_bytes(commit_path(0))
    except FileNotFoundError:
        return None


def table_identity(table: Location) -> tuple[str, int]:
    """Return the id that Delta gave a table when it was created, and its newest version."""
    opened = open_delta_table(table)
    return str(opened.metadata().id), opened.version()


LONG_AGO_S = 60
"""Seconds after which a log's newest version may have been cleaned up; it is ten minutes at least.
"""


def clocks() -> tuple[float, float]:
    """Return the system's time and that since its start, in s; each may miss a suspension."""
    return time.time(), time.monotonic()


def is_ago(at: tuple[float, float], seconds: float) -> bool:
    """Return whether more than `seconds` have passed since `at`, by one of `clocks` at least."""
    return any(now - then > seconds for now, then in zip(clocks(), at, strict=True))


def commit_path(version: int) -> str:
    """Return the path of a commit in its table."""
    return f"_delta_log/{version:020}.json"
