"""Appending to the request table of a leader's root, as producers do."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import count
from typing import Any

from sparklog.model import PRODUCE_REQUESTS
from sparklog.storage.control_table import moved, until_it_lands
from sparklog.storage.delta_log import DeltaLog, commit_content, commit_path, reading_threads
from sparklog.storage.location import Location
from sparklog.storage.request_files import request_file

_CHECK_SECONDS = 5.0
"""How often a producer looks, on an object store, whether its leader has recreated the table."""


class RequestAppends:
    """The request table of one broker root, opened by a producer; threads may share it.

    Raises `StorageError` where there is no table that can be opened.
    """

    def __init__(self, root: Location) -> None:
        self.location = root.child(PRODUCE_REQUESTS.name)
        self._lock = threading.Lock()
        self._last_ms = 0
        self._checked_at = time.monotonic()
        self._open()

    def _open(self) -> None:
        self._log = DeltaLog(self.location, cleans_up=False)
        self._stamp = self._log.stamp()

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
        attempts = count()

        def attempt() -> None:
            with self._lock:
                check = self._check_beside()
                # A store refuses a commit whose version is taken: to look before costs a request.
                number = next(attempts)
                if self.location.is_local or self._log.is_uncertain or number > 1:
                    self._go_on()
                elif number == 1:
                    self._log.step_past()
                if not self._log.commit("WRITE", files, syncs_files=False):
                    raise moved(self._log)
                if check is not None and not check.result():
                    # The broker has recreated the table: this commit follows none.
                    self.location.remove(commit_path(self._log.version))
                    self._open()
                    raise moved(self._log)
                self._stamp = self._log.stamp()
                # One of all that append here writes the checkpoint.
                if self._log.version % self._log.checkpoint_interval == 0:
                    self._log.write_due_checkpoint()

        until_it_lands(self.location, attempt)

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
        """Go on to the newest version; open the table again where it is another one."""
        stamp = self._log.stamp()
        # The broker recreates a table that cannot be read any more, and cleans up commits.
        is_other = stamp is None and self.location.is_local
        if self._stamp is not None and stamp is not None:
            is_other = stamp != self._stamp
        if not is_other:
            self._log.skip()
        if is_other or self._log.is_lost:
            self._open()
        self._stamp = self._log.stamp()
