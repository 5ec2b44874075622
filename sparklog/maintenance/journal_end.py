"""The journal of a stopped broker, ended before damage that nothing can restore.

A broker does not start with a damaged journal, and what it had in memory is gone. The commits
before the damage are an earlier state of the log directory. A broker that starts with one takes the
directory for a restored one, leaves every ISR, and copies from the leaders what it lacks (decision
36). So no record is lost as long as each of its partitions has another replica in sync that runs.
"""

from __future__ import annotations

from sparklog.cluster.metadata import Metadata
from sparklog.errors import StorageError
from sparklog.model import LOG
from sparklog.states import RUNNING_STATES
from sparklog.storage.control_table import first_commit
from sparklog.storage.delta_log_check import check_log
from sparklog.storage.delta_log_files import (
    CHECKPOINT_HINT,
    LOG_FOLDER,
    commit_path,
    has_version,
)
from sparklog.storage.file_copies import remove_copies
from sparklog.storage.location import Location

SET_ASIDE = "_set_aside"
"""The folder in `log` of the files that were part of the journal."""

_HINT = f"{LOG_FOLDER}/{CHECKPOINT_HINT}"


def end_before_damage(root: Location, broker_id: int, metadata: Metadata, now_ms: int) -> str:
    """End a journal before its first damaged commit; return what was done, as a clause.

    The files from there on are set aside in the table's folder `_set_aside`. They are removed from
    the newest to the oldest, so a process that dies in between leaves a journal that is still
    damaged at the same commit, or at the next one. Without a sound commit the journal begins again:
    the commit of a new table takes the place of the first one before others are removed.

    Parameters: `root`, a log directory of a broker that does not run; `now_ms`, the present time,
    which is part of the names of the files that are set aside. Raises `StorageError` if a partition
    has no other replica in sync that runs, and `OSError` if the store fails.
    """
    table = root.child(LOG.name)
    # Without a hint that names a missing checkpoint the log is listed.
    damaged = [
        file for file in check_log(table).damaged if not file.is_dispensable and file.path != _HINT
    ]
    if not damaged:
        return "the journal can be opened"
    running = {one for one, row in metadata.brokers.items() if row.state in RUNNING_STATES}
    others = running - {broker_id}
    alone = [
        f"{state.topic}-{state.partition}"
        for state in metadata.partitions.values()
        if state.replica(broker_id) is not None and others.isdisjoint(state.isr)
    ]
    if alone:
        raise StorageError(
            f"broker {broker_id} may be the only one with the records of {', '.join(alone[:5])}"
            f"{f' and {len(alone) - 5} other partitions' if len(alone) > 5 else ''}: start their "
            f"other replicas in sync, or restore {root.uri}/{LOG.name}/{damaged[0].path}"
        )
    first = min(int(file.path.removeprefix(f"{LOG_FOLDER}/")[:20]) for file in damaged)
    _set_aside_from(table, first, now_ms)
    return (
        f"the journal ends before the damage, at version {first - 1}; its rest is in "
        f"{table.uri}/{SET_ASIDE}. When broker {broker_id} is started, its replicas leave the ISR "
        "and are refilled from their leaders"
    )


def _set_aside_from(table: Location, first: int, now_ms: int) -> None:
    """Set aside the files of a log from a version on, the newest first."""
    names = [name for name in table.names(LOG_FOLDER) if has_version(name)]
    later = sorted((name for name in names if int(name[:20]) >= first), reverse=True)
    for name in later:
        content = table.read_bytes(f"{LOG_FOLDER}/{name}")
        # Those of an attempt at the same time are replaced.
        table.remove(f"{SET_ASIDE}/{name}.{now_ms}")
        with table.create(f"{SET_ASIDE}/{name}.{now_ms}") as file:
            file.write(content)
    table.sync(f"{SET_ASIDE}/{name}.{now_ms}" for name in later)
    # A copy without its file counts as that of a lost one, which a repair would restore.
    remove_copies(table, (f"{LOG_FOLDER}/{name}" for name in later))
    table.remove_durably(_HINT)
    if first == 0:
        table.replace(commit_path(0), first_commit(LOG))
    for name in later:
        if f"{LOG_FOLDER}/{name}" != commit_path(0):
            table.remove_durably(f"{LOG_FOLDER}/{name}")
