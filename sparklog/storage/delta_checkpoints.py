"""Delta's checkpoints of tables: when they are due, and writing them in parallel to commits.

delta-rs reads each commit four times to open a table and write its checkpoint. Here each object of
an object store is read once, into a local folder, where delta-rs makes the checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from sparklog.errors import StorageError
from sparklog.logger import get_logger
from sparklog.storage.delta_log_files import CHECKPOINT_HINT, LOG_FOLDER, fetch_log, write_log
from sparklog.storage.delta_snapshots import open_delta_table
from sparklog.storage.location import Location, one_line
from sparklog.storage.parallel import background_thread

_log = get_logger(__name__)

CHECKPOINT_INTERVAL = "delta.checkpointInterval"
"""The table property with the number of commits between two checkpoints."""

DEFAULT_CHECKPOINT_INTERVAL = 100

_LARGEST_CHECKPOINT_INTERVAL = 1_000_000


def checkpoint_interval(text: str | None) -> int | None:
    """Return the value of `CHECKPOINT_INTERVAL`, or `None` if it is not usable."""
    if text is None or not text.isdecimal() or len(text) > len(str(_LARGEST_CHECKPOINT_INTERVAL)):
        return None
    interval = int(text)
    return interval if 0 < interval <= _LARGEST_CHECKPOINT_INTERVAL else None


# One at a time, in parallel to commits: a checkpoint takes as long as a hundred commits.
_checkpoints = background_thread("delta-checkpoints")


def start_checkpoint(table: Location) -> None:
    """Start writing Delta's checkpoint of a table in another thread; it cleans up old commits."""
    _checkpoints.submit(_write_checkpoint, table)


def await_checkpoints() -> None:
    """Wait until the checkpoints that this process has started are written."""
    _checkpoints.submit(int).result()


def _write_checkpoint(table: Location) -> None:
    """Write a checkpoint, which makes opening the table cheaper, and clean up old commits."""
    try:
        write_checkpoint(table)
        open_delta_table(table).cleanup_metadata()
    except (StorageError, DeltaError, OSError) as error:
        # The commits are valid without a checkpoint, and the next one covers them, too.
        _log.warning("no checkpoint", table=table.uri, error=one_line(error))


def write_checkpoint(table: Location) -> None:
    """Write Delta's checkpoint of the newest version of `table`; all commits remain.

    Any process may call it at any time. Raises `StorageError`, `DeltaError` or `OSError` if the log
    cannot be read or the checkpoint cannot be written.
    """
    if not table.is_local:
        write_store_checkpoint(table)
        return
    open_delta_table(table).create_checkpoint()
    if table.is_synced:
        # Synced before a clean-up removes the commits that the checkpoint replaces.
        names = Path(table.uri, LOG_FOLDER).glob("*checkpoint*")
        table.sync(f"{LOG_FOLDER}/{name.name}" for name in names)


def write_store_checkpoint(table: Location) -> None:
    """Write Delta's checkpoint of the newest version of `table`.

    Raises `DeltaError` or `OSError` if the log cannot be read or the checkpoint cannot be written.
    The table's version and rows are unchanged in that case; files of the checkpoint may remain,
    without a hint that names them.
    """
    with TemporaryDirectory(prefix="sparklog-") as folder:
        names = write_log(Path(folder), fetch_log(table))
        DeltaTable(folder).create_checkpoint()
        # Empty if the newest version has a checkpoint already. The hint is written last, since it
        # names the checkpoint's files.
        made = {path.name for path in Path(folder, LOG_FOLDER).iterdir()} - set(names)
        for name in sorted(made, key=lambda name: (name == CHECKPOINT_HINT, name)):
            table.overwrite_object(
                f"{LOG_FOLDER}/{name}", Path(folder, LOG_FOLDER, name).read_bytes()
            )
