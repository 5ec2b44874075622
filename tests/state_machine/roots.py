"""Operations on the folders of roots: clean-up of old commits, and a search for damaged files."""

from __future__ import annotations

import math
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from sparklog.errors import StorageError
from sparklog.model import CLEANER_OFFSET_CHECKPOINT, FORMAT, LOG, REPLICA_HISTORY, TRUNCATIONS
from sparklog.storage.batch_files import file_damage
from sparklog.storage.commits import LOG_VERSION
from sparklog.storage.delta_log_check import check_log
from sparklog.storage.journal import CHECKPOINTS
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog

_NOT_DERIVED = TRUNCATIONS, REPLICA_HISTORY, CLEANER_OFFSET_CHECKPOINT


def clean_up(root: Path, until_ms: float = math.inf) -> None:
    """Write Delta's checkpoint of every table of a root and remove the commits before it.

    Of a journal only the commits are removed that the checkpoint tables describe. `until_ms`: the
    time after which commits stay, in ms since 1970.
    """
    for log in sorted(root.glob("*/_delta_log")):
        if log.parent.name == FORMAT.name:
            # Its single commit is never followed by a checkpoint.
            continue
        table = DeltaTable(str(log.parent))
        table.create_checkpoint()
        last = table.version()
        if log.parent.name == LOG.name:
            # A journal is cleaned up only up to the checkpoints.
            last = min(last, _described_version(root))
        for commit in log.glob("*.json"):
            is_before = commit.stem.isdigit() and int(commit.stem) < last
            if is_before and commit.stat().st_mtime * 1000 <= until_ms:
                commit.unlink()


def has_damaged_file(root: Path) -> bool:
    """Whether a power loss has damaged an unsynced root beyond what a broker replaces at its start.

    It has if the log names a damaged batch file, or if a table has a damaged commit that the broker
    neither reads at its start nor can derive from the log (seed 28643).
    """
    try:
        log = RecordLog(Location.of(str(root)))
    except (StorageError, DeltaError):
        return False
    batches = (batch for key in log.partitions() for batch in log.batches(key))
    try:
        return any(file_damage(log, batch) is not None for batch in batches) or any(
            check_log(Location.of(str(root / schema.name))).damaged for schema in _NOT_DERIVED
        )
    except FileNotFoundError:
        # The power loss took a file, and the marks that identify the log as well.
        return True


def _described_version(root: Path) -> int:
    """The newest journal version that all checkpoints of a broker describe."""
    tables = (DeltaTable(str(root / schema.name)) for schema in CHECKPOINTS)
    return min(table.transaction_version(LOG_VERSION) or 0 for table in tables)
