"""Copies ahead: copies of batches that leaders have not appended yet, parallel to the rounds.

On an object store a copy takes two requests after the leader has appended the batch. A follower
that reads the leader's inbox can make them while the leader reads and commits it. Such a copy has
no effect until the leader's journal names the batch. Then it is used if it is the same file, and
removed otherwise.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import xxhash

from sparklog.clock import wait_until
from sparklog.errors import StorageError
from sparklog.logger import get_logger
from sparklog.model import REQUEST_TABLES, Batch, TopicIdPartition, is_batch_path, new_batch_path
from sparklog.model import batch_id as id_of
from sparklog.storage.commits import Commit
from sparklog.storage.copying import Copy
from sparklog.storage.delta_log_files import has_commit, newest_version
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.location import Location, one_line
from sparklog.storage.new_file import discard_file, new_file
from sparklog.storage.parallel import process_threads, reading_threads
from sparklog.storage.request_commits import MANY_REFUSALS, peek_request_commit, refusals
from sparklog.storage.request_files import ProduceRequest, request_of

_log = get_logger(__name__)

_MOST_BYTES = 1 << 20
"""Maximum size in bytes of a file that is copied ahead: with larger ones the requests matter
little."""

_MOST_COPIES = 32
"""Maximum number of copies of one leader's batches that wait to be used; anyone may fill an
inbox."""

_KEPT_SECONDS = 30.0
"""Seconds that a copy is kept for the leader to append its batch."""

_CHECK_SECONDS = 60.0
"""Seconds without a commit after which a reader may have fallen behind clean-up."""

_FURTHER_SECONDS = 30.0
"""Seconds that further tables of an inbox are read after a commit in one of them, or after
producers have competed for the first one."""

_UPLOAD_MS, _PAUSE_MS = 1_000, 5
"""Time in ms that a copy waits for a file that is being uploaded to the inbox, and between two
attempts."""


@dataclass
class _Ahead:
    """A copy, in progress or done, and its start in seconds of the monotonic clock."""

    copy: Copy
    since: float
    made: Future[bool]


@dataclass
class _Table:
    """A request table, read up to `version`; `None` if that is still to be found."""

    location: Location
    version: int | None = None
    polled_at: float = 0.0


@dataclass
class _Inbox:
    """The inbox of one leader's root; `scan` is the read in progress.

    The further tables are read only while there are commits in them.
    """

    root: Location
    first: _Table
    further: list[_Table] = field(default_factory=list)
    further_until: float = 0.0
    scan: Future[None] | None = None
    copies: dict[str, _Ahead] = field(default_factory=dict)


class CopiesAhead:
    """The copies ahead of one root, whose log is `target`; its ticks call the methods."""

    def __init__(self, target: Location) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._inboxes: dict[str, _Inbox] = {}

    def poll(self, leaders: Mapping[Location, Collection[TopicIdPartition]]) -> None:
        """Read the inboxes of these leaders' roots, without blocking the caller.

        Parameters: `leaders`, the followed partitions of each root. Does nothing for local roots,
        where a copy takes less time than a poll.
        """
        for root, keys in leaders.items():
            if root.is_local:
                continue
            if root.uri not in self._inboxes:
                first = _Table(root.child(REQUEST_TABLES[0].name))
                self._inboxes[root.uri] = _Inbox(root, first)
            inbox = self._inboxes[root.uri]
            self._drop_old(inbox)
            if inbox.scan is None or inbox.scan.done():
                inbox.scan = _threads().submit(self._scan, inbox, frozenset(keys))

    def has_copies(self, root: Location) -> bool:
        """Return whether there are copies ahead of batches of this leader's root."""
        inbox = self._inboxes.get(root.uri)
        return inbox is not None and bool(inbox.copies)

    def pop(self, root: Location, batch: Batch) -> str | None:
        """Remove and return the path of a copy ahead of a leader's batch, `None` without one.

        Waits for a copy in progress: it began earlier than another one would.
        """
        inbox = self._inboxes.get(root.uri)
        with self._lock:
            ahead = inbox.copies.pop(batch.path, None) if inbox is not None else None
        if ahead is None:
            return None
        is_same = (ahead.copy.size_bytes, ahead.copy.checksum) == (
            batch.size_bytes,
            batch.checksum,
        )
        if ahead.made.result() and is_same:
            return ahead.copy.target_path
        discard_file(self._target, ahead.copy.target_path)
        return None

    def _drop_old(self, inbox: _Inbox) -> None:
        """Remove copies of batches that no leader has appended."""
        until = time.monotonic() - _KEPT_SECONDS
        with self._lock:
            old = {of: one for of, one in inbox.copies.items() if one.since < until}
            for of in old:
                del inbox.copies[of]
        for one in old.values():
            _threads().submit(discard_file, self._target, one.copy.target_path)

    def _scan(self, inbox: _Inbox, keys: frozenset[TopicIdPartition]) -> None:
        if time.monotonic() > inbox.further_until:
            inbox.further.clear()
        tables = [inbox.first, *inbox.further]
        try:
            tables = [table for table in tables if self._is_placed(table)]
            while tables:
                commits = reading_threads().map(_next_commit, tables)
                read = zip(tables, commits, strict=True)
                found = [(table, commit) for table, commit in read if commit is not None]
                tables = [table for table, _ in found]
                for table, commit in found:
                    table.version = commit.version
                    table.polled_at = time.monotonic()
                    for request in map(request_of, commit.added):
                        if request.topic_id_partition in keys:
                            self._begin(inbox, request)
                    if table is not inbox.first or refusals(commit) >= MANY_REFUSALS:
                        self._read_further(inbox)
        except UNREADABLE as error:
            # The follower's tick copies the batch later, and reports a root that it cannot read.
            _log.debug("no copies ahead", root=inbox.root.uri, error=one_line(error))

    def _is_placed(self, table: _Table) -> bool:
        """Return whether a table can be read on; otherwise find its end, to continue there."""
        if table.version is not None and not self._has_fallen_behind(table):
            return True
        table.version = newest_version(table.location)
        table.polled_at = time.monotonic()
        return False

    def _has_fallen_behind(self, table: _Table) -> bool:
        """Return whether clean-up may have removed the next commit, or the table was replaced."""
        if time.monotonic() - table.polled_at < _CHECK_SECONDS:
            return False
        table.polled_at = time.monotonic()
        return not has_commit(table.location, table.version or 0)

    def _read_further(self, inbox: _Inbox) -> None:
        """Read the further tables as well from now on, if the leader has created them."""
        inbox.further_until = time.monotonic() + _FURTHER_SECONDS
        if inbox.further:
            return
        further = [_Table(inbox.root.child(schema.name)) for schema in REQUEST_TABLES[1:]]
        # The first of them is created last: if it exists, all others do.
        with suppress(StorageError):
            self._is_placed(further[0])
            inbox.further = further

    def _begin(self, inbox: _Inbox, request: ProduceRequest) -> None:
        path, size_bytes = request.path, request.byte_size
        is_small = size_bytes <= _MOST_BYTES and is_batch_path(path)
        if not is_small or not request.checksum:
            return
        source, target_path = inbox.root.child("log"), new_batch_path(id_of(path))
        copy = Copy(source, path, self._target, target_path, size_bytes, request.checksum)
        with self._lock:
            if path in inbox.copies or len(inbox.copies) >= _MOST_COPIES:
                return
            made = _threads().submit(_made, copy)
            inbox.copies[path] = _Ahead(copy, time.monotonic(), made)


def _next_commit(table: _Table) -> Commit | None:
    """Return the commit after the version up to which a table is read."""
    return None if table.version is None else peek_request_commit(table.location, table.version + 1)


def _made(copy: Copy) -> bool:
    """Copy a file that may still be in upload; return whether the copy was made."""

    def made() -> bool | None:
        try:
            return _is_copied(copy)
        except FileNotFoundError:
            return None
        except OSError:
            return False

    copied = wait_until(made, _UPLOAD_MS, pause_ms=_PAUSE_MS, until=lambda one: one is not None)
    return copied is True


def _is_copied(copy: Copy) -> bool:
    stream, size_bytes = copy.source.open_with_size(copy.source_path)
    with stream:
        # The file is not trusted: no more bytes are read than the request names.
        content = stream.read(copy.size_bytes) if size_bytes == copy.size_bytes else b""
    if xxhash.xxh3_64_hexdigest(content) != copy.checksum:
        return False
    with new_file(copy.target, copy.target_path) as target:
        target.write(content)
    return True


def _threads() -> ThreadPoolExecutor:
    """Return the threads for scans and copies; scans wait for `reading_threads`."""
    return process_threads("copies-ahead", 32)
