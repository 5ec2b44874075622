"""Appending to the request tables of a leader's root, as producers do.

A store accepts one commit of a table per round trip. A producer appends to `produce_requests` until
it is refused repeatedly, because other producers commit faster. It then continues in another table
of `REQUEST_TABLES`, if the root has more than one.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from sparklog.errors import CommitConflictError, StorageError
from sparklog.model import REQUEST_TABLES
from sparklog.storage.commit_retries import moved, until_it_lands
from sparklog.storage.commits import AddedFile, Protocol, commit_content
from sparklog.storage.delta_checkpoints import DEFAULT_CHECKPOINT_INTERVAL
from sparklog.storage.delta_log import DeltaLog
from sparklog.storage.delta_log_files import commit_path, newest_after, newest_version
from sparklog.storage.location import Location
from sparklog.storage.parallel import reading_threads
from sparklog.storage.request_commits import MANY_REFUSALS, told_refusals
from sparklog.storage.request_files import ProduceRequest, request_file

_CHECK_SECONDS = 5.0
"""Seconds between a producer's checks, on an object store, whether the table was recreated."""

_AWAY_SECONDS = 30.0
"""Seconds for which a producer stays in a further table after its last repeated refusals."""

_MISSING_SECONDS = 1.0
"""Seconds before a producer searches for further tables again, if none were found."""


class RequestAppends:
    """The request tables of one broker root, opened by a producer; threads may share it.

    Raises `StorageError` if `produce_requests` does not exist or cannot be opened.
    """

    def __init__(self, root: Location) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._last_ms = 0
        self._tables = {0: _AppendedTable(root.child(REQUEST_TABLES[0].name))}
        self._number = 0
        self._away_until = 0.0
        self._missing_until = 0.0

    def append(self, requests: Sequence[ProduceRequest]) -> None:
        """Append requests in one commit: all of them or none.

        The files of their batches exist, or will soon. Other clients may append or remove at the
        same time. Raises `OSError` or `DeltaError` if the commit failed or its outcome is unknown.
        Raises `CommitConflictError` if other clients were faster at each attempt.
        """
        with self._lock:
            # Strictly increasing, so that the order of requests is known after their commits are
            # gone.
            first_ms = max(time.time_ns() // 1_000_000, self._last_ms + 1)
            self._last_ms = first_ms + len(requests) - 1
        files = [request_file(one, first_ms + place) for place, one in enumerate(requests)]
        refused = 0

        def attempt() -> None:
            nonlocal refused
            with self._lock:
                if refused and refused % MANY_REFUSALS == 0:
                    self._go_away()
                elif time.monotonic() > self._away_until:
                    self._number = 0
                try:
                    self._tables[self._number].append(files, refused)
                except CommitConflictError:
                    refused += 1
                    raise

        until_it_lands(self._root.child(REQUEST_TABLES[0].name), attempt)

    def _go_away(self) -> None:
        """Switch to another table, if one can be opened."""
        now = time.monotonic()
        if self._root.is_local or now < self._missing_until:
            return
        # At random, since other refused producers choose another table at the same time.
        number = random.choice([one for one in range(len(REQUEST_TABLES)) if one != self._number])
        if number not in self._tables:
            try:
                table = self._root.child(REQUEST_TABLES[number].name)
                self._tables[number] = _AppendedTable(table)
            except StorageError:
                # The owner creates the further tables after it has seen that producers compete.
                self._missing_until = now + _MISSING_SECONDS
                return
        self._number = number
        self._away_until = now + _AWAY_SECONDS


class _AppendedTable:
    """One request table for appending; raises `StorageError` if it does not exist."""

    def __init__(self, table: Location) -> None:
        self.location = table
        self._checked_at = time.monotonic()
        # The number of other clients' commits between the last two commits of this producer.
        self._passed = 0
        self._open()

    def _open(self) -> None:
        self._log = _EndOfLog(self.location)
        self._stamp = self._log.stamp()
        self._landed = self._log.version

    def append(self, files: Sequence[AddedFile], refused: int) -> None:
        """Commit files; `refused` is the number of earlier refusals of these files in any table.

        Raises `CommitConflictError` if another client has committed first.
        """
        check = self._check_beside()
        self._go_on()
        if not self._log.commit(
            "WRITE", files, user_metadata=told_refusals(refused), syncs_files=False
        ):
            self._passed = max(self._passed, 1)
            raise moved(self._log)
        if check is not None and not check.result():
            # The broker has recreated the table: this commit has no predecessor.
            self.location.remove(commit_path(self._log.version))
            self._open()
            raise moved(self._log)
        self._passed = self._log.version - 1 - self._landed
        self._landed = self._log.version
        self._stamp = self._log.stamp()
        # Exactly one of the producers that append here writes the checkpoint.
        if self._log.version % self._log.checkpoint_interval == 0:
            self._log.write_due_checkpoint()

    def _check_beside(self) -> Future[bool] | None:
        """Check in parallel to the commit whether the loaded version exists, on an object store.

        The check runs every `_CHECK_SECONDS`; returns `None` between two checks.
        """
        now = time.monotonic()
        if self.location.is_local or now - self._checked_at < _CHECK_SECONDS:
            return None
        self._checked_at = now
        return reading_threads().submit(self._is_there, self._log.version)

    def _is_there(self, version: int) -> bool:
        return commit_content(self.location, version) is not None

    def _go_on(self) -> None:
        """Advance to the newest version; open the table again if it was replaced.

        An object store is not read in two cases: the commit will probably be accepted, or the last
        refusal has shown the newest version.
        """
        log = self._log
        if not self.location.is_local and not log.is_uncertain:
            if log.refused_at is not None:
                log.step_to(log.refused_at)
                return
            if not self._passed:
                return
        stamp = log.stamp()
        # The broker recreates an unreadable table, and it cleans up commits.
        is_other = stamp is None and self.location.is_local
        if self._stamp is not None and stamp is not None:
            is_other = stamp != self._stamp
        if not is_other:
            log.skip(self._passed)
        if is_other or log.is_lost:
            self._open()
        self._stamp = self._log.stamp()


class _EndOfLog(DeltaLog):
    """The log of a request table for an instance that only appends to it.

    Commits of other clients do not matter to it, so those of a table on an object store are not
    read. delta-rs would read all commits after the last checkpoint.
    """

    def __init__(self, table: Location) -> None:
        super().__init__(table, cleans_up=False)
        self.refused_at: int | None = None
        """The newest version when the last commit was refused on an object store, or `None`."""

    def _load(self, version: int | None) -> None:
        if self.location.is_local:
            super()._load(version)
            return
        self.version = newest_version(self.location)
        self.transactions = {}
        # The version of every request table, which its owner enforces.
        self._protocol = Protocol(1, 2)
        self.checkpoint_interval = DEFAULT_CHECKPOINT_INTERVAL

    def _named_id(self) -> None:
        """Return `None`: clients may have opened the table that was here before."""

    def commit(self, *args: Any, **options: Any) -> bool:
        """Commit as `DeltaLog` does; after a refusal, continue from version `refused_at`."""
        self.refused_at = None
        return super().commit(*args, **options)

    def _is_by(self, commit_id: str) -> bool:
        if self.location.is_local:
            return super()._is_by(commit_id)
        # One round trip returns both the author of the version and the newest version.
        is_mine = reading_threads().submit(super()._is_by, commit_id)
        newest = newest_after(self.location, self.version + 1)
        if not is_mine.result() and self.taken_by is not None:
            self.refused_at = newest
        return is_mine.result()
