"""The cases: a file of a cluster, a kind of damage, and whether the brokers run.

Every file belongs to one kind of file of its table. A case names the kind, not the file: running
brokers write new files, so the file is found in the tree when it is damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import NamedTuple
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from sparklog.model import FORMAT, LOG, REQUEST_TABLES
from sparklog.storage.delta_log_files import CHECKPOINT_HINT, LOG_FOLDER
from sparklog.storage.local_files import StoredFile
from sparklog.storage.location import Location
from tests.faults.bit_flips import flipped
from tests.faults.damage.sound_cluster import AGES

FILE_KINDS = (
    "first commit",
    "a commit",
    "newest commit",
    "checkpoint",
    "checkpoint hint",
    "live file",
    "a batch file",
    "merged batch file",
    "newest batch file",
    "replaced file",
    "copy of a file",
)
"""The kinds of files of a table. A replaced file is named by earlier versions of the table only."""

UNREAD_KINDS = ("replaced file", "checkpoint hint", "copy of a file")
"""The kinds that nobody needs at the newest version of a table: readers list a log without a hint.
"""

ANOTHER_BROKERS = "replaced by another broker's"
"""The damage by the file of the table with the same name, and so the same columns."""

STATES = ("at rest", "at work")
"""At rest, all brokers are stopped, the file is damaged, and they are started. At work they run."""

ROOTS = ("cluster", "broker-0", "broker-1")
"""The roots whose files are damaged. Of the controller's broker, 0, only `log` and `format` are:
its other tables are those of broker 1, and broker 2 is as broker 1.
"""

_REQUEST_TABLES = frozenset(one.name for one in REQUEST_TABLES)


class FileOfTable(NamedTuple):
    """A file of a table of a cluster: its root, its table, its path below the table, its kind."""

    root: str
    table: str
    path: str
    kind: str


class Case(NamedTuple):
    """A file, its damage, and the state and age of the cluster."""

    age: str
    state: str
    root: str
    table: str
    kind: str
    damage: str

    def __str__(self) -> str:
        return "/".join(self).replace(" ", "-")


# --- the files of a cluster -----------------------------------------------------------------------


def files_of(cluster: Location, root: str) -> list[FileOfTable]:
    """Return every file below a root, with its kind; raises `ValueError` for one without a kind."""
    of_tables: dict[str, list[StoredFile]] = {}
    for file in cluster.child(root).files():
        table, slash, path = file.path.partition("/")
        if not slash:
            raise ValueError(f"{file.path} in {root} belongs to no table")
        of_tables.setdefault(table, []).append(file._replace(path=path))
    return [
        FileOfTable(root, table, path, kind)
        for table in sorted(of_tables)
        for path, kind in _kinds(cluster.child(root).child(table), of_tables[table])
    ]


def _kinds(table: Location, files: Iterable[StoredFile]) -> Iterator[tuple[str, str]]:
    """Yield the paths of the files of a table with their kinds."""
    files = sorted(files, key=lambda one: one.path.split("/"))
    commits = [one.path for one in files if _is_commit(one.path)]
    live = _live(table)
    batches = [one for one in files if _is_batch(one.path) and live.get(one.path) == 1]
    newest = max(batches, key=lambda one: one.modified_at_ms, default=None)
    for file in files:
        yield file.path, _kind(file, commits, live, newest)


def _is_commit(path: str) -> bool:
    return path.startswith(f"{LOG_FOLDER}/") and path.endswith(".json")


def _kind(
    file: StoredFile, commits: Sequence[str], live: Mapping[str, int], newest: StoredFile | None
) -> str:
    path = file.path
    if path.startswith("_second_copies/"):
        return "copy of a file"
    if path.startswith(f"{LOG_FOLDER}/"):
        if path == f"{LOG_FOLDER}/{CHECKPOINT_HINT}":
            return "checkpoint hint"
        if path.endswith(".checkpoint.parquet"):
            return "checkpoint"
        if path not in commits:
            raise ValueError(f"{path} is no file of a Delta log")
        if path == commits[-1]:
            return "newest commit"
        return "first commit" if path == commits[0] else "a commit"
    if path not in live:
        return "replaced file"
    if not _is_batch(path):
        return "live file"
    if live[path] > 1:
        return "merged batch file"
    return "newest batch file" if file == newest else "a batch file"


def _is_batch(path: str) -> bool:
    return path.startswith("_inbox/")


def _live(table: Location) -> dict[str, int]:
    """Return the numbers of records of a table's live files by path."""
    if table.uri.rsplit("/", 1)[-1] in _REQUEST_TABLES:
        return {}
    opened = DeltaTable(table.uri, storage_options=table.store_options)
    actions = opened.get_add_actions(flatten=True)
    names = actions.schema.names
    return {
        unquote(path): count
        for path, count in zip(
            actions.column(names.index("path")).to_pylist(),
            actions.column(names.index("num_records")).to_pylist(),
            strict=True,
        )
    }


# --- damage ---------------------------------------------------------------------------------------


_Damage = Callable[[bytes, Iterable[bytes], Random], bytes | None]
"""Returns the new content of a file from its content, those of others of its kind, and a random
generator; `None` removes the file.
"""


def _cut(content: bytes, _: Iterable[bytes], __: Random) -> bytes:
    return content[: len(content) // 2]


def _flip(content: bytes, _: Iterable[bytes], random: Random) -> bytes:
    return flipped(content, random)


def _replace(content: bytes, others: Iterable[bytes], random: Random) -> bytes:
    different = [one for one in others if one != content]
    return random.choice(different) if different else content


DAMAGES: dict[str, _Damage] = {
    "removed": lambda *_: None,
    "emptied": lambda *_: b"",
    "cut": _cut,
    "flipped": _flip,
    "replaced by an older one": _replace,
    "replaced by another table's": _replace,
    ANOTHER_BROKERS: _replace,
}
"""The kinds of damage."""


def replacements(files: Sequence[FileOfTable], file: FileOfTable, damage: str) -> list[FileOfTable]:
    """Return the files of the same kind that may take a file's place.

    Those of the same table first: an older version of it is the hardest to recognise.
    """
    group = _replacement_group(file.kind)
    others = [one for one in files if _replacement_group(one.kind) == group and one != file]
    same = [one for one in others if (one.root, one.table) == (file.root, file.table)]
    if damage == "replaced by an older one":
        return [one for one in same if one.path < file.path] or same
    if damage == ANOTHER_BROKERS:
        named = [one for one in others if one not in same and one.table == file.table]
        return [one for one in named if one.path == file.path] or named
    return [one for one in others if one not in same]


def _replacement_group(kind: str) -> str:
    if "commit" in kind:
        return "commit"
    if "batch" in kind:
        return "batch"
    return "data" if kind in ("live file", "replaced file") else kind


def all_files(cluster: Location) -> list[FileOfTable]:
    """Return every file of the roots whose files are damaged, with its kind."""
    return [one for root in ROOTS for one in files_of(cluster, root)]


def inflict(
    cluster: Location, case: Case, seed: int, files: Sequence[FileOfTable]
) -> FileOfTable | None:
    """Damage one of the cluster's `files` that is of the case's kind; return it.

    Returns `None` if there is no such file, or if the damage did not change it.
    """
    fitting = [
        one
        for one in files
        if (one.root, one.table, one.kind) == (case.root, case.table, case.kind)
    ]
    if not fitting:
        return None
    random = Random(f"{seed}/{case}")
    file = fitting[random.randrange(len(fitting))]
    before = read(cluster, file)
    others = (read(cluster, one) for one in replacements(files, file, case.damage))
    after = DAMAGES[case.damage](before, others, random)
    if after == before:
        return None
    if after is None:
        table_of(cluster, file).remove(file.path)
    else:
        table_of(cluster, file).replace(file.path, after)
    return file


def is_needed(cluster: Location, file: FileOfTable) -> bool:
    """Return whether a file that was damaged before belongs to the newest version of its table.

    A table that cannot be opened needs it. Requests are not read again once they are taken.
    """
    if file.kind in UNREAD_KINDS or file.table in _REQUEST_TABLES:
        return False
    table = table_of(cluster, file)
    checkpoints = [one for one in table.names(LOG_FOLDER) if ".checkpoint" in one]
    newest = max((int(one[:20]) for one in checkpoints if one.endswith(".parquet")), default=-1)
    name = file.path.rsplit("/", 1)[-1]
    if file.kind == "checkpoint":
        return int(name[:20]) >= newest
    if file.path.startswith(f"{LOG_FOLDER}/"):
        return int(name[:20]) > newest
    try:
        return file.path in _live(table)
    except (DeltaError, OSError):
        return True


def table_of(cluster: Location, file: FileOfTable) -> Location:
    """Return the location of the table of a file."""
    return cluster.child(file.root).child(file.table)


def read(cluster: Location, file: FileOfTable) -> bytes:
    """Return the content of a file."""
    return table_of(cluster, file).read_bytes(file.path)


def all_cases(trees: Mapping[str, Location]) -> list[Case]:
    """Return every case of the sound clusters, whose locations are `trees` by age."""
    cases: dict[Case, None] = {}
    for age in AGES:
        for root in ROOTS:
            files = files_of(trees[age], root)
            kinds = dict.fromkeys(
                (one.table, one.kind)
                for one in files
                if root != "broker-0" or one.table in (LOG.name, FORMAT.name)
            )
            for table, kind in sorted(kinds, key=lambda one: (one[0], FILE_KINDS.index(one[1]))):
                if age == "grown" and kind not in ("checkpoint", "checkpoint hint"):
                    # As in the young cluster, where all commits are there.
                    continue
                damages = tuple(DAMAGES)
                if kind == "replaced file":
                    damages = ("removed", "flipped")
                elif root == "cluster":
                    damages = tuple(one for one in DAMAGES if one != ANOTHER_BROKERS)
                for state in STATES:
                    for damage in damages:
                        cases[Case(age, state, root, table, kind, damage)] = None
    return list(cases)
