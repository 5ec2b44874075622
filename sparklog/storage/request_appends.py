"""Appending to the request tables of a leader's root, as producers do.

A producer appends to `produce_requests` as long as it is not refused again and again there, which
means that others are faster: a store takes one commit of a table each round trip. It goes on in
another table of `REQUEST_TABLES` then, if the root has further ones.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from sparklog.errors import CommitConflictError, StorageError
from sparklog.model import REQUEST_TABLES
from sparklog.storage.control_table import moved, until_it_lands
from sparklog.storage.delta_log import (
    DEFAULT_CHECKPOINT_INTERVAL,
    AddedFile,
    DeltaLog,
    Protocol,
    commit_content,
    commit_path,
    newest_after,
    newest_version,
    reading_threads,
)
from sparklog.storage.location import Location
from sparklog.storage.request_commits import MANY_REFUSALS, told_refusals
from sparklog.storage.request_files import request_file

_CHECK_SECONDS = 5.0
"""How often a producer looks, on an object store, whether its leader has recreated the table."""

_AWAY_SECONDS = 30.0
"""How long a producer appends to a further table after it was refused often the last time."""

_MISSING_SECONDS = 1.0
"""How long a producer does without further tables after it has found none."""


class RequestAppends:
    """The request tables of one broker root, opened by a producer; threads may share it.

    Raises `StorageError` where there is no table that can be opened.
    """

    def __init__(self, root: Location) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._last_ms = 0
        self._tables = {0: _AppendedTable(root.child(REQUEST_TABLES[0].name))}
        self._number = 0
        self._away_until = 0.0
        self._missing_until = 0.0

    def append(self, requests: Sequence[Mapping[str, Any]]) -> None:
        """Append batches, rows of `REQUEST_INDEX`, in one commit: all of them or none.

        Their files are there, or will be soon. Others may append or remove at the same time.
        Raises `OSError` or `DeltaError` where the commit failed or its outcome is unknown, and
        `CommitConflictError` where others commit without a pause.
        """
        with self._lock:
            # Rising, so that the order outlives the commits.
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
        """Go on in another table, if there is one that can be opened."""
        now = time.monotonic()
        if self._root.is_local or now < self._missing_until:
            return
        # At random, since the others that were refused look for another one, too.
        number = random.choice([one for one in range(len(REQUEST_TABLES)) if one != self._number])
        if number not in self._tables:
            try:
                table = self._root.child(REQUEST_TABLES[number].name)
                self._tables[number] = _AppendedTable(table)
            except StorageError:
                # Its owner creates it once it has seen that producers compete.
                self._missing_until = now + _MISSING_SECONDS
                return
        self._number = number
        self._away_until = now + _AWAY_SECONDS


class _AppendedTable:
    """One request table, to which a producer appends; raises `StorageError` where there is none."""

    def __init__(self, table: Location) -> None:
        self.location = table
        self._checked_at = time.monotonic()
        # How many commits of others lay between the last two of this producer.
        self._passed = 0
        self._open()

    def _open(self) -> None:
        self._log = _EndOfLog(self.location)
        self._stamp = self._log.stamp()
        self._landed = self._log.version

    def append(self, files: Sequence[AddedFile], refused: int) -> None:
        """Commit files; `refused` is how often that was refused before, anywhere.

        Raises `CommitConflictError` where somebody else was faster.
        """
        check = self._check_beside()
        self._go_on()
        if not self._log.commit(
            "WRITE", files, user_metadata=told_refusals(refused), syncs_files=False
        ):
            self._passed = max(self._passed, 1)
            raise moved(self._log)
        if check is not None and not check.result():
            # The broker has recreated the table: this commit follows none.
            self.location.remove(commit_path(self._log.version))
            self._open()
            raise moved(self._log)
        self._passed = self._log.version - 1 - self._landed
        self._landed = self._log.version
        self._stamp = self._log.stamp()
        # One of all that append here writes the checkpoint.
        if self._log.version % self._log.checkpoint_interval == 0:
            self._log.write_due_checkpoint()

    def _check_beside(self) -> Future[bool] | None:
        """Ask an object store at times, beside the commit, whether the loaded version is there."""
        now = time.monotonic()
        if self.location.is_local or now - self._checked_at < _CHECK_SECONDS:
            return None
        self._checked_at = now
        return reading_threads(os.getpid()).submit(self._is_there, self._log.version)

    def _is_there(self, version: int) -> bool:
        return commit_content(self.location, version) is not None

    def _go_on(self) -> None:
        """Go on to the newest version; open the table again where it is another one.

        An object store is not asked where the commit will hardly be refused, nor where the refusal
        has told where the table ends.
        """
        log = self._log
        if not self.location.is_local and not log.is_uncertain:
            if log.refused_at is not None:
                log.step_to(log.refused_at)
                return
            if not self._passed:
                return
        stamp = log.stamp()
        # The broker recreates a table that cannot be read any more, and cleans up commits.
        is_other = stamp is None and self.location.is_local
        if self._stamp is not None and stamp is not None:
            is_other = stamp != self._stamp
        if not is_other:
            log.skip(self._passed)
        if is_other or log.is_lost:
            self._open()
        self._stamp = self._log.stamp()


class _EndOfLog(DeltaLog):
    """The log of a request table to which its handle only appends.

    Others' commits do not concern it, so that the commits of a table on an object store are not
    read: delta-rs would read up to all that follow a checkpoint.
    """

    def __init__(self, table: Location) -> None:
        super().__init__(table, cleans_up=False)
        self.refused_at: int | None = None
        """The newest version when the last commit was refused on an object store, else `None`."""

    def _load(self, version: int | None) -> None:
        if self.location.is_local:
            super()._load(version)
            return
        self.version = newest_version(self.location)
        self.transactions = {}
        # That of every request table: its owner sees to it.
        self._protocol = Protocol(1, 2)
        self.checkpoint_interval = DEFAULT_CHECKPOINT_INTERVAL

    def commit(self, *args: Any, **options: Any) -> bool:
        """Commit as `DeltaLog` does; where that is refused, `refused_at` says where to go on."""
        self.refused_at = None
        return super().commit(*args, **options)

    def _is_by(self, commit_id: str) -> bool:
        if self.location.is_local:
            return super()._is_by(commit_id)
        # One round trip tells whose the version is, and where the table ends.
        is_mine = reading_threads(os.getpid()).submit(super()._is_by, commit_id)
        newest = newest_after(self.location, self.version + 1)
        if not is_mine.result() and self.taken_by is not None:
            self.refused_at = newest
        return is_mine.result()
