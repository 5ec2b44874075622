"""Delta's checkpoints of tables: when they are due, and writing them in parallel to commits.

delta-rs reads each commit four times to open a table and write its checkpoint. Here each object of
an object store is read once, into a local folder, where delta-rs makes the checkpoint.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from sparklog.errors import StorageError
from sparklog.logger import get_logger
from sparklog.storage.checkpoint_copies import check_checkpoint
from sparklog.storage.delta_log_files import (
    CHECKPOINT_HINT,
    LOG_FOLDER,
    complete_checkpoint,
    fetch_log,
    is_checkpoint,
    write_log,
)
from sparklog.storage.delta_snapshots import open_delta_table
from sparklog.storage.file_copies import copy_file, has_copies, keep_copies_from, write_copy
from sparklog.storage.json_text import json_value
from sparklog.storage.local_files import share
from sparklog.storage.location import Location, one_line
from sparklog.storage.parallel import background_thread

_log = get_logger(__name__)

CHECKPOINT_INTERVAL = "delta.checkpointInterval"
"""The table property with the number of commits between two checkpoints."""

DEFAULT_CHECKPOINT_INTERVAL = 100

_LARGEST_CHECKPOINT_INTERVAL = 1_000_000

_ACTIONS_PER_COMMIT = 20
"""The actions of a checkpoint for which one more commit may follow it before the next one."""

_MOST_COMMITS = 1_000
"""The largest number of commits between two checkpoints that is due to the size of a checkpoint."""


def checkpoint_interval(text: str | None) -> int | None:
    """Return the value of `CHECKPOINT_INTERVAL`, or `None` if it is not usable."""
    if text is None or not text.isdecimal() or len(text) > len(str(_LARGEST_CHECKPOINT_INTERVAL)):
        return None
    interval = int(text)
    return interval if 0 < interval <= _LARGEST_CHECKPOINT_INTERVAL else None


class DueCheckpoints:
    """The tables whose checkpoints are due, and the thread that writes them, one at a time.

    It works in parallel to commits, since a checkpoint takes as long as a hundred commits.
    Invariant: each table is pending at most once, however slowly checkpoints are written.
    """

    def __init__(self) -> None:
        self._thread = background_thread("delta-checkpoints")
        self._lock = threading.Lock()
        self._pending: set[str] = set()
        self._sizes: dict[str, int] = {}

    def __len__(self) -> int:
        """Return the number of pending tables."""
        return len(self._pending)

    def start(self, table: Location) -> None:
        """Start writing the checkpoint of a table, unless it is pending."""
        with self._lock:
            if table.uri in self._pending:
                return
            self._pending.add(table.uri)
        self._thread.submit(self._write, table)

    def _write(self, table: Location) -> None:
        # Before the log is read: a commit after that makes another checkpoint due.
        with self._lock:
            self._pending.discard(table.uri)
        _write_checkpoint(table)
        if table.is_local:
            self._sizes[table.uri] = checkpoint_size(table)

    def least_commits(self, table: Location) -> int:
        """Return the least number of commits between the last checkpoint of a table and the next.

        It grows with the last checkpoint that this process wrote. A checkpoint names all live files
        and those that were removed lately, so a large one would cost many times as much as the
        commits that it spares a reader. On an object store, where each of these commits is a
        request to readers, it is 0.
        """
        return min(self._sizes.get(table.uri, 0) // _ACTIONS_PER_COMMIT, _MOST_COMMITS)

    def wait(self) -> None:
        """Wait until the checkpoints that are pending now are written."""
        self._thread.submit(int).result()


DUE_CHECKPOINTS = DueCheckpoints()
"""The due checkpoints of this process."""


def start_checkpoint(table: Location) -> None:
    """Start writing Delta's checkpoint of a table in another thread; it cleans up old commits."""
    DUE_CHECKPOINTS.start(table)


def await_checkpoints() -> None:
    """Wait until the checkpoints that this process has started are written."""
    DUE_CHECKPOINTS.wait()


def _write_checkpoint(table: Location) -> None:
    """Write a checkpoint, which makes opening the table cheaper, and clean up old commits."""
    try:
        write_checkpoint(table)
        open_delta_table(table).cleanup_metadata()
    except (StorageError, DeltaError, OSError) as error:
        # The commits are valid without a checkpoint, and the next one covers them, too.
        _log.warning("no checkpoint", table=table.uri, error=one_line(error))


def checkpoint_size(table: Location) -> int:
    """Return the number of actions in the newest checkpoint of a table, 0 if it is not known."""
    try:
        hint = json_value(table.read_bytes(f"{LOG_FOLDER}/{CHECKPOINT_HINT}"))
        return int(hint["size"])
    except (OSError, ValueError, LookupError, TypeError, OverflowError):
        return 0


def write_checkpoint(table: Location) -> None:
    """Write Delta's checkpoint of the newest version of `table`; all commits remain.

    Any process may call it at any time. Raises `StorageError`, `DeltaError` or `OSError` if the log
    cannot be read or the checkpoint cannot be written.
    """
    if not table.is_local:
        write_store_checkpoint(table)
        return
    opened = open_delta_table(table)
    opened.create_checkpoint()
    names = [path.name for path in Path(table.uri, LOG_FOLDER).glob("*checkpoint*")]
    for name in names:
        # Those of other users cannot be changed, and were shared by them.
        with suppress(OSError):
            share(f"{table.uri}/{LOG_FOLDER}/{name}")
    if table.is_synced:
        # Synced before a clean-up removes the commits that the checkpoint replaces.
        table.sync(f"{LOG_FOLDER}/{name}" for name in names)
    if has_copies(table):
        _copy_checkpoint(table, opened)


def _copy_checkpoint(table: Location, opened: DeltaTable) -> None:
    """Write copies of a new checkpoint, and remove those of commits before it."""
    version, parts = complete_checkpoint(table.names(LOG_FOLDER))
    for part in parts:
        copy_file(table, str(opened.metadata().id), f"{LOG_FOLDER}/{part}")
    keep_copies_from(table, version)


def write_store_checkpoint(table: Location) -> None:
    """Write Delta's checkpoint of the newest version of `table`.

    Raises `DeltaError` or `OSError` if the log cannot be read or the checkpoint cannot be written.
    The table's version and rows are unchanged in that case; files of the checkpoint may remain,
    without a hint that names them.
    """
    contents = fetch_log(table)
    check_checkpoint(table, contents)
    with TemporaryDirectory(prefix="sparklog-") as folder:
        names = write_log(Path(folder), contents)
        opened = DeltaTable(folder)
        opened.create_checkpoint()
        # Empty if the newest version has a checkpoint already. The hint is written last, since it
        # names the checkpoint's files.
        made = {path.name for path in Path(folder, LOG_FOLDER).iterdir()} - set(names)
        for name in sorted(made, key=lambda name: (name == CHECKPOINT_HINT, name)):
            path, content = f"{LOG_FOLDER}/{name}", Path(folder, LOG_FOLDER, name).read_bytes()
            table.overwrite_object(path, content)
            if is_checkpoint(name) and has_copies(table):
                write_copy(table, str(opened.metadata().id), path, content)
        if made and has_copies(table):
            keep_copies_from(table, opened.version())
