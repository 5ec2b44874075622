"""A Delta checkpoint of a table with a damaged commit, from the state that its owner has in memory.

The owner has read the commit before it was damaged. A checkpoint of a later version has its effect,
so no process reads the commit again when it opens the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from deltalake import DeltaTable

from sparklog.errors import StorageError
from sparklog.storage.commits import AddedFile, Cause, RemovedFile, commit_content, commit_text
from sparklog.storage.control_table_damage import commit_fault
from sparklog.storage.damaged_commits import place_of
from sparklog.storage.delta_log_files import (
    CHECKPOINT_HINT,
    LOG_FOLDER,
    commit_path,
    complete_checkpoint,
)
from sparklog.storage.location import Location


def write_recovered_checkpoint(
    table: Location,
    table_id: str,
    version: int,
    live: Mapping[str, AddedFile],
    transactions: Mapping[str, int],
    now_ms: int,
) -> None:
    """Write the checkpoint of `version` although a commit after the last checkpoint is damaged.

    Parameters: `table_id`, the id of the table; `live`, its files at `version` by path;
    `transactions`, its app transactions. The damaged commits are replaced, in a temporary copy of
    the log, by one with the difference between the other commits and this state. Raises
    `StorageError` if no commit is damaged, or the first one is, which has the table's schema.
    """
    names = table.names(LOG_FOLDER)
    base, parts = complete_checkpoint(names, version)
    with TemporaryDirectory(prefix="sparklog-") as folder:
        log = Path(folder, LOG_FOLDER)
        log.mkdir()
        for part in parts:
            Path(log, part).write_bytes(table.read_bytes(f"{LOG_FOLDER}/{part}"))
        damaged = []
        # Delta needs a commit at the checkpoint's version in some cases, and it is harmless.
        for number in range(max(base, 0), version + 1):
            content = commit_content(table, number)
            if number > base and (
                content is None
                or commit_fault(content, place_of(table, number), table_id) is not None
            ):
                damaged.append(number)
                content = commit_text(Cause("REPAIR"), [], [], {}, "", None, now_ms)
            if content is not None:
                Path(folder, commit_path(number)).write_bytes(content)
        if not damaged or damaged[0] == 0:
            what = "its first commit is damaged" if damaged else "none of its commits is damaged"
            raise StorageError(f"no checkpoint of {table.uri} was written from memory: {what}")
        actions = pa.table(DeltaTable(folder).get_add_actions(flatten=True))
        others = set(actions.column("path").to_pylist())
        added = [file for path, file in live.items() if path not in others]
        removed = [RemovedFile(path, now_ms) for path in sorted(others - live.keys())]
        text = commit_text(Cause("REPAIR"), added, removed, transactions, "", None, now_ms)
        Path(folder, commit_path(damaged[-1])).write_bytes(text)
        before = {path.name for path in log.iterdir()}
        DeltaTable(folder).create_checkpoint()
        made = {path.name for path in log.iterdir()} - before
        # The hint is written last, since it names the checkpoint's files.
        for name in sorted(made, key=lambda name: (name == CHECKPOINT_HINT, name)):
            table.replace(f"{LOG_FOLDER}/{name}", Path(log, name).read_bytes())
