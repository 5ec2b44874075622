"""The log of a Delta table: opening by delta-rs, following commits, compare-and-set commits.

Each reader keeps the table's file list in memory and applies new commits to it, so polling costs
O(new commits). A commit to a local folder is one small file. Writing it takes a tenth of the time
of loading a snapshot and checking for conflicts.
"""

from __future__ import annotations

import errno
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import NamedTuple

from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from sparklog.clock import clocks, is_ago
from sparklog.errors import DamagedError, StorageError
from sparklog.model import LOG
from sparklog.storage.commits import (
    BROKER_EPOCH,
    CONTROLLER_EPOCH,
    LOG_VERSION,
    PARTITIONS_VERSION,
    TOPICS_VERSION,
    AddedFile,
    Cause,
    Commit,
    Protocol,
    RemovedFile,
    check_commits,
    check_contents,
    commit_content,
    commit_properties,
    commit_text,
    parse_commit,
    read_commit,
)
from sparklog.storage.commits_ahead import CommitsAhead
from sparklog.storage.damaged_commits import COMMIT_REMEDY, place_of
from sparklog.storage.delta_checkpoints import (
    CHECKPOINT_INTERVAL,
    DEFAULT_CHECKPOINT_INTERVAL,
    DUE_CHECKPOINTS,
    checkpoint_interval,
    start_checkpoint,
)
from sparklog.storage.delta_log_files import (
    LOG_FOLDER,
    commit_path,
    has_commit,
    newest_after,
    newest_checkpoint,
)
from sparklog.storage.delta_snapshots import open_delta_table, open_table
from sparklog.storage.errors import STORE_ERRORS
from sparklog.storage.file_copies import (
    SecondCopy,
    beside,
    copy_file,
    has_copies,
    is_commit_lost,
    remove_copies,
    write_copy,
)
from sparklog.storage.json_text import json_bytes
from sparklog.storage.location import Location, one_line

_READER_VERSION, _WRITER_VERSION = 1, 2

_KNOWN_TRANSACTIONS = (
    BROKER_EPOCH,
    CONTROLLER_EPOCH,
    LOG_VERSION,
    TOPICS_VERSION,
    PARTITIONS_VERSION,
)
"""The versions of Delta's protocol that every sparklog table has."""

EMPTY_PER_COMMIT = 5
"""The number of empty commits that count as one commit towards the checkpoint interval."""

LONG_AGO_S = 60
"""Seconds after which the version that was read as newest may have been cleaned up. Clean-up keeps
it for ten minutes at least.
"""

_WITHOUT_HARD_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP}
"""The errors of link() on file systems without hard links."""


def _is_of(copy: SecondCopy | None, table_id: str) -> bool:
    return copy is not None and copy.table_id == table_id


class Stamp(NamedTuple):
    """The identity of a commit's file.

    The stamps of two commits with one version differ if the first was lost and replaced.
    """

    version: int
    modified_at_ns: int
    size_bytes: int


class DeltaLog:
    """The log of one table at one version; opening it raises as `open_delta_table` does.

    Parameters: `explains`, see `read_commit`; `cleans_up`, whether commits write Delta's checkpoint
    when it is due, which also cleans up old commits. If False, the caller calls
    `write_due_checkpoint`.
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
        self._text = b""
        self._is_of_batches = table.uri.endswith(f"/{LOG.name}")
        self._load(version)
        self.empty_commits = 0
        """The number of commits since the log was opened that change nothing; its owner counts."""
        self._checkpointed = self.version
        self._ahead = CommitsAhead()
        self._polled_at = clocks()
        self.is_uncertain = False
        """Whether the outcome of this instance's last commit is unknown."""
        self._late_version = -1
        self.taken_by: Commit | None = None
        """The commit that has the version for which the last commit was refused, if it was found.
        """
        self.is_lost = False
        """Whether the loaded version's commit was gone when the log was last followed.

        Either the commits after it were cleaned up as well, or the root was lost or restored. Open
        the table again.
        """

    def _load(self, version: int | None) -> None:
        """Open the table with delta-rs and read its version, transactions and properties."""
        self._opened = open_table(self.location, version)
        self._opened_transactions: dict[str, int | None] = {}
        self.snapshot = self._opened.snapshot
        """The table as delta-rs opened it, before the first commit that `follow` applied."""
        self.version = self.snapshot.version()
        metadata = self.snapshot.metadata()
        self.table_id = str(metadata.id)
        """The id that Delta gave the table when it was created."""
        self.transactions = self._held_transactions()
        """The versions of the table's app transactions by name: epochs, and versions of tables."""
        # Checked after delta-rs has read the commits, since clean-up may remove them at any time.
        check_commits(self.location, self.version, self._explains, self._named_id())
        if self._opened.contents is not None:
            check_contents(self.location, self._opened.contents, self._explains, self._named_id())
            self._opened = self._opened._replace(contents=None)
        newest = self._newest() if self.location.is_local else None
        self._loaded_id = self.version, newest.commit_id if newest is not None else None
        later = self._opened.later_copy
        if version is None and (self.location.is_local or _is_of(later, self.table_id)):
            self._check_newest()
        protocol = self.snapshot.protocol()
        self._protocol = Protocol(protocol.min_reader_version, protocol.min_writer_version)
        self._check_protocol()
        given = metadata.configuration.get(CHECKPOINT_INTERVAL)
        self.checkpoint_interval = checkpoint_interval(given) or DEFAULT_CHECKPOINT_INTERVAL
        """The number of commits between two of Delta's checkpoints of the table."""

    def _newest(self) -> Commit | None:
        """Read the loaded version's commit; returns `None` if only its checkpoint can be read.

        A sound commit of another table than the checkpoint is damage of the checkpoint.
        """
        try:
            return read_commit(self.location, self.version, self._explains, self._named_id())
        except DamagedError:
            is_checkpointed = newest_checkpoint(self.location.names(LOG_FOLDER)) >= self.version
            if not is_checkpointed or self._is_newest_sound():
                raise
            return None

    def _is_newest_sound(self) -> bool:
        """Return whether the loaded version's commit is sound, of whichever table it is."""
        try:
            return read_commit(self.location, self.version, self._explains) is not None
        except DamagedError:
            return False

    def _named_id(self) -> str | None:
        """Return the id of the table that its commits name, or `None` if they name none."""
        return self.table_id

    def _is_of_another_table(self, commit: Commit) -> bool:
        named = self._named_id()
        return named is not None and commit.table_id not in (None, named)

    def _check_newest(self) -> None:
        """Raise `DamagedError` if the table had a later commit, which is gone.

        If the loaded commit is gone, too, clean-up may have removed both.
        """
        is_lost = is_commit_lost(self.location, self.version + 1)
        if is_lost and has_commit(self.location, self.version):
            path = f"{self.location.uri}/{commit_path(self.version + 1)}"
            raise DamagedError(path, "it is missing, and its second copy is there", COMMIT_REMEDY)

    def _held_transactions(self) -> dict[str, int]:
        try:
            found = {name: self._opened.transaction(name) for name in _KNOWN_TRANSACTIONS}
        except STORE_ERRORS as error:
            # delta-rs opens a table without reading its app transactions.
            check_commits(self.location, self.version, self._explains, self._named_id())
            raise StorageError(
                f"the app transactions of the table at {self.location.uri} cannot be read: "
                f"{one_line(error)}"
            ) from error
        return {name: held for name, held in found.items() if held is not None}

    def opened_transaction(self, name: str) -> int | None:
        """Return the version of any app transaction at the time when the table was opened.

        It is looked up at the first call. If clean-up has removed the commits since the opening, it
        is that of the newest version.
        """
        if name not in self._opened_transactions:
            try:
                found = self._opened.transaction(name)
            except DeltaError:
                found = open_table(self.location).transaction(name)
            self._opened_transactions[name] = found
        return self._opened_transactions[name]

    def follow(self, to_version: int | None = None) -> Iterator[Commit]:
        """Advance to the newest version, or to `to_version` at most, and yield each commit applied.

        Raises `DamagedError` at a damaged commit. Raises `StorageError` after applying all commits
        if the table's protocol is not supported.
        """
        start = self.version
        if self.is_uncertain:
            # The commit may exist without being synced to the disk.
            with suppress(FileNotFoundError):
                self.location.sync([commit_path(self.version + 1)])
        elif self._ahead.are_newest:
            return
        ahead = self._ahead.take()
        while to_version is None or self.version < to_version:
            began = clocks()
            if ahead and self.version + 1 not in ahead and not self._ahead.continues():
                break
            commit = self._read(self.version + 1, ahead.get(self.version + 1))
            if ahead and commit is None:
                self._ahead.end_was_found()
            if self.version == start:
                # If the loaded commit was removed, a commit after it was made by a writer that had
                # fallen behind clean-up. It is not part of the table (protocol rule 10.7).
                self.is_lost = self._is_predecessor_lost()
                self._polled_at = began
            if commit is not None and self._is_of_another_table(commit):
                # Another table has taken the place of the loaded one, or the commit that of another
                # commit, which opening the table finds.
                self.is_lost = True
            if commit is None or self.is_lost:
                break
            self.version = commit.version
            self._loaded_id = commit.version, commit.commit_id
            self.transactions |= commit.transactions
            self._protocol = commit.protocol or self._protocol
            yield commit
        if ahead:
            self._ahead.were_applied()
        if self.is_uncertain and self.version == start:
            self._late_version = start + 1
        self.is_uncertain = False
        self._check_protocol()

    def poll_ahead(self, *, to_end: bool = False, least: int = 1, counts: bool = True) -> None:
        """Request the next commits from an object store without waiting; `follow` applies them.

        Polling many tables thus takes as long as one request. If all requested commits exist,
        `follow` continues to the newest commit (`to_end`), or the next call requests more. Unless
        `counts` is False, the commits found count as the newest for every user of this instance:
        for `FRESH_S` at most, and only until the instance commits. `least` is the minimum number of
        commits requested. Does nothing for a local folder.
        """
        if self.location.is_local or self.is_uncertain:
            return
        self._ahead.request(
            self.location, self.version + 1, to_end=to_end, least=least, counts=counts
        )

    def _read(self, version: int, ahead: Future[bytes | None] | None) -> Commit | None:
        """Return a commit, which may have been requested already; raises as `read_commit` does."""
        content = ahead.result() if ahead else commit_content(self.location, version)
        if content is None:
            return None
        return parse_commit(self.location, version, content, self._explains)

    def skip(self, likely: int = 0) -> None:
        """Advance to the newest version without reading commits; sets `is_lost` as `follow` does.

        Parameters: `likely`, an estimate of the number of new commits.
        """
        began = clocks()
        self.is_lost = self._is_predecessor_lost()
        if not self.is_lost:
            self.version = newest_after(self.location, self.version, likely)
            self.is_uncertain = False
        self._polled_at = began

    def stamp(self) -> Stamp | None:
        """Return the stamp of the loaded version's commit file.

        Returns `None` if the file does not exist, and on object stores, where it costs a request.
        """
        if not self.location.is_local:
            return None
        try:
            # Called for each table in each tick: a Path takes four times as long.
            found = os.stat(f"{self.location.uri}/{commit_path(self.version)}")  # noqa: PTH116
        except OSError:
            return None
        return Stamp(self.version, found.st_mtime_ns, found.st_size)

    def has_loaded_commit(self) -> bool:
        """Return whether the loaded version's commit is known to be the one that was read.

        Its file may have been written again, as by a repair. Commits of delta-rs have no id, and
        that at the opening of a table on an object store is not read. Raises `DamagedError` if the
        commit is damaged.
        """
        version, commit_id = self._loaded_id
        if version != self.version or commit_id is None:
            return False
        commit = read_commit(self.location, version)
        return commit is not None and commit.commit_id == commit_id

    def has_news(self) -> bool:
        """Return True if the next commit exists. Always False on object stores (a request)."""
        return self.location.is_local and has_commit(self.location, self.version + 1)

    def commit(
        self,
        cause: Cause | str,
        added: Sequence[AddedFile] = (),
        removed: Sequence[RemovedFile] = (),
        transactions: Mapping[str, int] | None = None,
        user_metadata: str | None = None,
        commit_id: str | None = None,
        *,
        syncs_files: bool = True,
    ) -> bool:
        """Commit as the next version and advance to it; return False if the version was taken.

        Parameters: `cause`, or only the name of the operation, which the table's history shows
        along with `user_metadata`; `commit_id`, the id of the attempt, a new one by default;
        `syncs_files`, whether the added files are synced first in local folders, which is
        unnecessary if another commit that depends on them does so. In local folders the commit
        itself is synced before this returns.

        If the version was taken, `taken_by` is the commit that has it. Raises `OSError` or
        `DeltaError` if the commit failed or its outcome is unknown (`is_uncertain`): follow the log
        before deciding anything.
        """
        transactions = transactions or {}
        self._ahead.drop()
        self._check_protocol()
        if self.location.is_local:
            # On an object store the copy is read when the table is opened: here it would cost a
            # request.
            self._check_newest()
        commit_id = commit_id or uuid.uuid4().hex
        self.is_uncertain = True
        self.taken_by = None
        # Neither an error nor a refusal counts until the version was read back: a conditional PUT
        # that is repeated after its response was lost is refused because of itself.
        try:
            if syncs_files:
                self.location.sync(file.path for file in added)
            given = Cause(cause) if isinstance(cause, str) else cause
            put = self._put(given, added, removed, transactions, commit_id, user_metadata)
            is_mine = put or self._is_by(commit_id)
        except STORE_ERRORS:
            if not self._is_by(commit_id):
                raise
            # Whichever step failed, the commit counts only once it is on the disk.
            self.location.sync([commit_path(self.version + 1)])
            is_mine = True
        if is_mine and self._is_predecessor_lost() and not self._is_checkpointed_next():
            # Clean-up has removed the predecessor, and with it the commits that really followed it.
            self.location.remove_durably(commit_path(self.version + 1))
            self.taken_by = None
            is_mine = False
        self.is_uncertain = False
        if is_mine:
            self.version += 1
            self._loaded_id = self.version, commit_id
            self._copy(added, removed)
            self.transactions |= transactions
            self._polled_at = clocks()
            if self._cleans_up:
                self.write_due_checkpoint()
        return is_mine

    def _copy(self, added: Sequence[AddedFile], removed: Sequence[RemovedFile]) -> None:
        """Write copies of the newest commit and of its files, in place of those it removes.

        The batch files of a log have other replicas instead.
        """
        if not has_copies(self.location):
            return
        location, table_id, is_of_batches = self.location, self.table_id, self._is_of_batches
        text, self._text = self._text, b""
        path = commit_path(self.version)

        def write() -> None:
            if text:
                write_copy(location, table_id, path, text)
            else:
                copy_file(location, table_id, path)
            if not is_of_batches:
                for file in added:
                    copy_file(location, table_id, file.path)
                remove_copies(location, [file.path for file in removed])

        beside(location, write)

    def next_commit(self) -> Commit | None:
        """Return the commit after the loaded version, without advancing to it."""
        return read_commit(self.location, self.version + 1, self._explains)

    def step_over(self) -> None:
        """Advance to the next version, which the caller knows to be its own empty commit.

        In local folders the commit is synced, since its response was lost.
        """
        self.location.sync([commit_path(self.version + 1)])
        self._ahead.drop()
        self.version += 1
        self.is_uncertain = False
        self._polled_at = clocks()

    def step_to(self, version: int) -> None:
        """Advance to an existing version without reading the commits up to it.

        For writers that only append: the commits of others do not concern them.
        """
        self.version = max(self.version, version)

    @property
    def may_land_late(self) -> bool:
        """Whether an abandoned commit that was not found may still take the next version.

        A store may execute a request after its sender has abandoned it.
        """
        return self._late_version == self.version + 1

    @property
    def progress(self) -> int:
        """The version, with `EMPTY_PER_COMMIT` empty commits since the opening counted as one."""
        return self.version - self.empty_commits + self.empty_commits // EMPTY_PER_COMMIT

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether Delta's checkpoint is due: `checkpoint_interval` commits after the last one.

        More if that one was large; `EMPTY_PER_COMMIT` empty commits count as one.
        """
        interval = self.checkpoint_interval
        if self.progress // interval <= self._checkpointed // interval:
            return False
        return self.progress - self._checkpointed >= DUE_CHECKPOINTS.least_commits(self.location)

    def write_due_checkpoint(self) -> None:
        """Start writing Delta's checkpoint in another thread, if it is due.

        It cleans up old commits, which can no longer be read afterwards.
        """
        if self.is_checkpoint_due:
            self._checkpointed = self.progress
            start_checkpoint(self.location)

    def _is_predecessor_lost(self) -> bool:
        """Return whether the loaded version's commit is gone.

        On object stores, where this costs a request, it is checked only if the log was not read for
        `LONG_AGO_S`: clean-up keeps commits for at least ten minutes.
        """
        if not self.location.is_local and not is_ago(self._polled_at, LONG_AGO_S):
            return False
        return not has_commit(self.location, self.version)

    def _is_checkpointed_next(self) -> bool:
        """Return whether the newest checkpoint is that of the next version.

        Clean-up removes the commits before the newest checkpoint. So a commit with the version of
        that checkpoint was there before clean-up.
        """
        newest = newest_checkpoint(self.location.names(LOG_FOLDER))
        return newest == self.version + 1

    def _is_by(self, commit_id: str) -> bool:
        commit = self.taken_by = read_commit(self.location, self.version + 1)
        return commit is not None and commit.commit_id == commit_id

    def _put(
        self,
        cause: Cause,
        added: Sequence[AddedFile],
        removed: Sequence[RemovedFile],
        transactions: Mapping[str, int],
        commit_id: str,
        user_metadata: str | None,
    ) -> bool:
        now_ms = time.time_ns() // 1_000_000
        place = place_of(self.location, self.version + 1)
        given = (cause, added, removed, transactions, commit_id, user_metadata)
        text = commit_text(*given, now_ms, place, self._named_id())
        self._text = text
        try:
            self.location.put_new(commit_path(self.version + 1), text)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _WITHOUT_HARD_LINKS:
                raise
            # delta-rs has other ways to create a file exclusively.
            return self._hand_over(cause, added, removed, transactions, commit_id, user_metadata)
        return True

    def _hand_over(
        self,
        cause: Cause,
        added: Sequence[AddedFile],
        removed: Sequence[RemovedFile],
        transactions: Mapping[str, int],
        commit_id: str,
        user_metadata: str | None,
    ) -> bool:
        """Commit by delta-rs, to a local folder whose file system has no hard links."""
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
        try:
            self.snapshot.create_write_transaction(
                actions,
                "append",
                self.snapshot.schema(),
                self.snapshot.metadata().partition_columns,
                commit_properties=commit_properties(cause, transactions, commit_id, user_metadata),
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
            # The commits that the update has to read were cleaned up.
            self.snapshot = open_delta_table(self.location)
