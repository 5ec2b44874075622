"""A request table as the broker that owns the root reads it.

A table that cannot be opened is mended (`request_commits`). If that fails, it is set aside and
recreated empty, and its clients resend the requests that were not answered.

The table is not fenced, since a client could write the fence's transaction. An older process of the
broker can do no harm: it removes a request only after its effects are committed in the journal,
which is fenced and which clients cannot write to.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

from deltalake.exceptions import DeltaError

from sparklog.errors import StorageError, UnreachableError
from sparklog.logger import get_logger
from sparklog.model import PRODUCE_REQUESTS, TableSchema
from sparklog.storage.commit_retries import ATTEMPTS, moved, until_it_lands
from sparklog.storage.commits import Commit, RemovedFile
from sparklog.storage.control_table import create_table
from sparklog.storage.control_table_damage import is_in_place, set_aside
from sparklog.storage.delta_log import Stamp
from sparklog.storage.delta_log_check import check_log
from sparklog.storage.exhausted import is_exhausted
from sparklog.storage.location import Location, one_line
from sparklog.storage.request_commits import (
    MANY_REFUSALS,
    RequestLog,
    keep_files,
    mend_commits,
    metadata_fault,
    refusals,
    request_commits_down_from,
)
from sparklog.storage.request_files import ProduceRequest, live_requests, request_of

_log = get_logger(__name__)


class Added(NamedTuple):
    """The position of a request: the version of the table, and the index in its commit.

    If the commit was gone before it was read, `version` is the newest version that is gone, and
    `position` is an index among all requests with that version.
    """

    version: int
    position: int


class RequestTable:
    """A request table of one broker root, opened by its owner.

    Parameters: `schema`, one of `REQUEST_TABLES`. The attribute `generation` increases whenever the
    table has been replaced by another one. Versions of earlier generations have no meaning in later
    ones.
    """

    def __init__(self, root: Location, schema: TableSchema = PRODUCE_REQUESTS) -> None:
        self.root = root
        self.location = root.child(schema.name)
        self._schema = schema
        self.generation = 0
        self.commits = 0
        """The number of commits made through this instance."""
        self.is_contended = False
        """Whether a producer has been refused `MANY_REFUSALS` times or more for one request."""
        self._lock = threading.RLock()
        self._requests: dict[Added, ProduceRequest] = {}
        self._added: dict[str, set[Added]] = defaultdict(set)
        self._log: RequestLog
        self._stamp: Stamp | None = None
        self._take(self._open_log())

    @property
    def version(self) -> int:
        """The loaded version."""
        return self._log.version

    @property
    def table_id(self) -> str:
        """The id that Delta gave the table when it was created."""
        return self._log.table_id

    def has_news(self) -> bool:
        """Return True if a newer version exists. Always False on object stores (a request)."""
        return self._log.has_news()

    def poll_ahead(self, *, to_end: bool = False) -> None:
        """Request the next commits from an object store without waiting; `refresh` applies them."""
        with self._lock:
            self._log.poll_ahead(to_end=to_end)

    def refresh(self) -> None:
        """Load the newest version."""
        with self._lock:
            loaded, stamp = self._stamp, self._log.stamp()
            if loaded and stamp and loaded.version == stamp.version and loaded != stamp:
                self._reopen()
            for commit in self._log.follow():
                if any(path not in self._added for path in commit.removed):
                    # The commit may follow another one than the loaded one, which was lost.
                    self._reopen()
                    break
                self._apply(commit)
            if self._log.is_lost:
                self._reopen()
            self._stamp = self._log.stamp()

    def requests_after(self, version: int) -> dict[Added, ProduceRequest]:
        """Return the requests that were added after a version and not removed, by position."""
        with self._lock:
            return {at: self._requests[at] for at in sorted(self._requests) if at.version > version}

    def remove(self, requests: Collection[Added], attempts: int = ATTEMPTS) -> None:
        """Remove requests, while clients continue to append.

        A file stays in the table as long as another request names it. Raises `CommitConflictError`
        if other writers were faster at each of the `attempts`.
        """
        gone_requests = set(requests)

        def attempt() -> None:
            with self._lock:
                self.refresh()
                now_ms = time.time_ns() // 1_000_000
                paths = {path for path, added in self._added.items() if added <= gone_requests}
                if not paths:
                    return
                gone = [RemovedFile(path, now_ms) for path in sorted(paths)]
                if not self._log.commit("DELETE", (), gone):
                    raise moved(self._log)
                for path in paths:
                    self._forget(path)
                self._stamp = self._log.stamp()
                self.commits += 1

        until_it_lands(self.location, attempt, attempts)

    def _apply(self, commit: Commit) -> None:
        self.is_contended |= refusals(commit) >= MANY_REFUSALS
        for path in commit.removed:
            self._forget(path)
        for position, file in enumerate(commit.added):
            self._note(Added(commit.version, position), file.path, request_of(file))

    def _note(self, at: Added, path: str, request: ProduceRequest) -> None:
        self._requests[at] = request
        self._added[path].add(at)

    def _forget(self, path: str) -> None:
        # A client may remove a file twice in one commit.
        for at in self._added.pop(path, ()):
            del self._requests[at]

    # --- opening --------------------------------------------------------------------------------

    def _open_log(self) -> RequestLog:
        opened = self._try_to_open()
        # If all commits could be read, the store is reachable; OSError is raised otherwise.
        for files_only in (False, True):
            if isinstance(opened, RequestLog):
                return opened
            if mend_commits(self.location, files_only=files_only):
                opened = self._try_to_open()
        if isinstance(opened, RequestLog):
            return opened
        self._recreate(opened)
        return RequestLog(self.location)

    def _try_to_open(self) -> RequestLog | str:
        """Return the table's log, or the reason why it cannot be used."""
        try:
            opened = RequestLog(self.location)
            # Tried now, since delta-rs reads the checkpoint's actions only here.
            list(live_requests(opened.snapshot))
        except UnreachableError:
            # The table may be sound.
            raise
        except (StorageError, DeltaError, ValueError) as error:
            if is_exhausted(error):
                raise UnreachableError(
                    f"{self.location.uri} cannot be read: {one_line(error)}"
                ) from error
            return one_line(error)
        except BaseException as error:
            # delta-rs panics on some input; its exception does not derive from Exception.
            if type(error).__name__ != "PanicException":
                raise
            return one_line(Exception(str(error)))
        return metadata_fault(opened) or opened

    def _recreate(self, reason: str) -> None:
        """Set the table aside and create it empty, in a root that is in place."""
        if not is_in_place(self.root, self._schema.name):
            raise StorageError(
                f"there is no table at {self.location.uri}: check the root, or create the cluster "
                f"first ({reason})"
            )
        set_aside(self.location)
        create_table(self.root, self._schema)
        _log.error("request table recreated", table=self.location.uri, reason=reason)

    def verify(self) -> None:
        """Open the table as a client does; if that is not possible, mend or recreate it.

        This process has the table in memory, and does not read its earlier commits again.
        """
        if not isinstance(self._try_to_open(), RequestLog):
            # Clean-up may have removed a commit meanwhile: it is opened again before it is mended.
            self.reopen()

    def reopen(self) -> None:
        """Mend the table's damaged commits, and open it as another process does.

        A table that cannot be opened then is recreated.
        """
        with self._lock:
            mend_commits(self.location, files_only=False)
            with suppress(FileNotFoundError):
                # Those that are left are valid commits of another table: only their files count.
                for damaged in check_log(self.location).damaged:
                    if damaged.kind == "damaged_commit":
                        keep_files(self.location, damaged.path, damaged.fault)
            self._reopen()

    def _reopen(self) -> None:
        """Open the table again; a client may have replaced it by another one."""
        _log.info("request table opened again", table=self.location.uri)
        opened = self._open_log()
        if opened.table_id != self._log.table_id or opened.version < self._log.version:
            self.generation += 1
            self._requests.clear()
            self._added.clear()
        self._take(opened)

    def _take(self, opened: RequestLog) -> None:
        """Load the requests of a table; known requests keep their positions."""
        self._log = opened
        self._stamp = opened.stamp()
        undated = {file.path: (file, request) for file, request in live_requests(opened.snapshot)}
        for path in self._added.keys() - undated.keys():
            self._forget(path)
        for path, added in self._added.items():
            known = {self._requests[at].request_id for at in added}
            if undated[path][1].request_id in known:
                del undated[path]
        version = opened.version
        # Backwards, since requests that were added long ago are seldom still in the table.
        commits = request_commits_down_from(self.location, version)
        while undated and (commit := next(commits, None)) is not None:
            for position, file in enumerate(commit.added):
                if undated.pop(file.path, None) is not None:
                    self._note(Added(commit.version, position), file.path, request_of(file))
            version = commit.version - 1
        oldest = sorted(undated.values(), key=lambda one: (one[0].modified_at_ms, one[0].path))
        for position, (file, request) in enumerate(oldest):
            self._note(Added(version, position), file.path, request)
