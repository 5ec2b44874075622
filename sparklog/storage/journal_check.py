"""Verification of a broker's journal: its log, and the commits that the replicas' state needs.

A process that derives that state reads the commits after the version that the oldest of the
checkpoint tables describes. `sparklog maintain` may have written a newer Delta checkpoint, with
which the log alone is opened without them.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparklog.errors import DamagedError
from sparklog.model import LOG
from sparklog.storage.commits import LOG_VERSION, commit_contents
from sparklog.storage.control_table import ControlTable
from sparklog.storage.control_table_damage import commit_fault
from sparklog.storage.damaged_commits import place_of
from sparklog.storage.delta_log_check import (
    DamagedLogFile,
    LogCheck,
    check_log,
    named_id,
)
from sparklog.storage.delta_log_files import LOG_FOLDER, commit_path, complete_checkpoint
from sparklog.storage.journal import CHECKPOINTS
from sparklog.storage.location import Location


def check_journal(root: Location) -> LogCheck:
    """Read what opening the journal of a log directory needs; return the files that are damaged.

    Raises `FileNotFoundError` if there is no log, and `OSError`, `StorageError` or `DeltaError` if
    it or a checkpoint table cannot be read.
    """
    check = check_log(root.child(LOG.name))
    known = {one.path for one in check.damaged}
    before = [one for one in _before_the_checkpoint(root) if one.path not in known]
    return check._replace(damaged=[*check.damaged, *before])


def _before_the_checkpoint(root: Location) -> Iterator[DamagedLogFile]:
    """Yield the damaged commits up to Delta's checkpoint that the checkpoint tables lack."""
    table = root.child(LOG.name)
    checkpoint, _ = complete_checkpoint(table.names(LOG_FOLDER), None)
    first = _described(root, checkpoint) + 1
    if first > checkpoint:
        return
    table_id = named_id(table)
    contents = commit_contents(table, first, checkpoint)
    # Clean-up removes a commit once all tables describe later ones.
    described = _described(root, checkpoint) if None in contents else first - 1
    for version, content in enumerate(contents, first):
        path = commit_path(version)
        if content is None:
            if version > described:
                yield DamagedLogFile("missing_commit", path, "it is missing")
            continue
        fault = commit_fault(content, place_of(table, version), table_id)
        if fault is not None:
            yield DamagedLogFile("damaged_commit", path, fault)


def _described(root: Location, newest: int) -> int:
    """Return the version that the sound checkpoint tables describe, at most `newest`.

    A table of an earlier release names no version: it describes the newest one.
    """
    described = newest
    for schema in CHECKPOINTS:
        try:
            version = ControlTable(root, schema).held_by(LOG_VERSION)
        except DamagedError:
            continue
        if version is not None:
            described = min(described, version)
    return described
