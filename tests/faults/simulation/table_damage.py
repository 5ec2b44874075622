"""Damage to the log of a table, as a disk or a person does it: one file at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from sparklog.model import BROKER_TABLES, CLUSTER_TABLES, FORMAT, LOG, REQUEST_TABLES
from sparklog.storage.delta_log_files import LOG_FOLDER, has_version
from sparklog.storage.file_copies import (
    WITHOUT_COPIES,
    WITHOUT_COPIES_ON_STORES,
    copy_path,
)
from sparklog.storage.location import Location
from tests.faults.bit_flips import flipped

_REQUESTS = {one.name for one in REQUEST_TABLES}
TABLES_OF_BROKERS = [
    *(LOG.name,) * 8,
    *(one.name for one in (FORMAT, *BROKER_TABLES) if one.name not in _REQUESTS),
]
"""The journal is as likely as the other tables together. A damaged table of requests may be created
again, so that its requests have no answer.
"""

TABLES_OF_CLUSTERS = [one.name for one in (FORMAT, *CLUSTER_TABLES)]

_DAMAGES: dict[str, Callable[[bytes, Random], bytes | None]] = {
    "removed": lambda *_: None,
    "emptied": lambda *_: b"",
    "cut": lambda content, _: content[: len(content) // 2],
    "flipped": flipped,
}
"""Returns the new content of a file, or `None` if it is removed."""


class TableDamage(NamedTuple):
    """A damaged file of a table, its content before, and the kind of damage."""

    table: Location
    path: str
    content: bytes
    kind: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.table.uri.rsplit('/', 1)[-1]}/{self.path}"

    def restore(self) -> None:
        """Put the file back, as an operator does with an earlier version of an object."""
        self.table.replace(self.path, self.content)


def damage_a_table(
    root: Location, tables: Sequence[str], random: Random, *, is_on_store: bool
) -> TableDamage | None:
    """Damage a commit or a checkpoint of one of the `tables` of a root.

    The newest commit of a table with several writers is changed, but not removed: a writer that has
    not read it would commit in its place.

    A process may have ended before the copy of its commit was written. Such a file, and one of
    which the copy is not needed any more, stays: nothing could restore it. Returns `None` if no
    file of the drawn table may be damaged.
    """
    table = root.child(random.choice(tables))
    name = table.uri.rsplit("/", 1)[-1]
    files = [one for one in sorted(table.names(LOG_FOLDER)) if has_version(one)]
    if name not in (WITHOUT_COPIES_ON_STORES if is_on_store else WITHOUT_COPIES):
        files = [one for one in files if table.exists(copy_path(one))]
    if not files:
        return None
    # The newest one is that which its writer may still be working with.
    file = random.choice([*files, files[-1], files[-1]])
    damage = random.choice([*_DAMAGES])
    if damage == "removed" and tables is TABLES_OF_CLUSTERS and file == files[-1]:
        return None
    path = f"{LOG_FOLDER}/{file}"
    before = table.read_bytes(path)
    content = _DAMAGES[damage](before, random)
    if content is None:
        table.remove(path)
    else:
        table.replace(path, content)
    return TableDamage(table, path, before, damage)
