"""The cases: a file of a cluster, a kind of damage, and whether the brokers run.

Every file belongs to one kind of file of its table. A case names the kind, not the file: running
brokers write new files, so the file is found in the tree when it is damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from sparklog.model import FORMAT, LOG, REQUEST_TABLES
from tests.faults.bit_flips import flip_bit
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


def files_of(cluster: Path, root: str) -> list[FileOfTable]:
    """Return every file below a root, with its kind; raises `ValueError` for one without a kind."""
    found: list[FileOfTable] = []
    for table in sorted((cluster / root).iterdir()):
        if table.is_file():
            raise ValueError(f"{table} belongs to no table")
        found += _files_of_table(root, table)
    return found


def _files_of_table(root: str, table: Path) -> Iterator[FileOfTable]:
    commits = sorted((table / "_delta_log").glob("[0-9]*.json"))
    live = _live(table)
    batches = [table / one for one, count in live.items() if _is_batch(one) and count == 1]
    newest = max(batches, key=lambda one: one.stat().st_mtime_ns, default=None)
    for file in sorted(table.rglob("*")):
        if file.is_dir():
            continue
        path = str(file.relative_to(table))
        yield FileOfTable(root, table.name, path, _kind(path, file, commits, live, newest))


def _kind(
    path: str, file: Path, commits: Sequence[Path], live: dict[str, int], newest: Path | None
) -> str:
    if path.startswith("_second_copies/"):
        return "copy of a file"
    if path.startswith("_delta_log/"):
        if file.name == "_last_checkpoint":
            return "checkpoint hint"
        if file.name.endswith(".checkpoint.parquet"):
            return "checkpoint"
        if file not in commits:
            raise ValueError(f"{file} is no file of a Delta log")
        if file == commits[-1]:
            return "newest commit"
        return "first commit" if file == commits[0] else "a commit"
    if path not in live:
        return "replaced file"
    if not _is_batch(path):
        return "live file"
    if live[path] > 1:
        return "merged batch file"
    return "newest batch file" if file == newest else "a batch file"


def _is_batch(path: str) -> bool:
    return path.startswith("_inbox/")


def _live(table: Path) -> dict[str, int]:
    """Return the numbers of records of a table's live files by path."""
    if table.name in {one.name for one in REQUEST_TABLES}:
        return {}
    actions = DeltaTable(str(table)).get_add_actions(flatten=True)
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


def _remove(file: Path, _: Sequence[Path], __: Random) -> None:
    file.unlink()


def _empty(file: Path, _: Sequence[Path], __: Random) -> None:
    file.write_bytes(b"")


def _cut(file: Path, _: Sequence[Path], __: Random) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def _flip(file: Path, _: Sequence[Path], random: Random) -> None:
    flip_bit(file, random)


def _replace(file: Path, others: Sequence[Path], random: Random) -> None:
    content = file.read_bytes()
    different = [one for one in others if one.read_bytes() != content]
    if different:
        file.write_bytes(random.choice(different).read_bytes())


DAMAGES: dict[str, Callable[[Path, Sequence[Path], Random], None]] = {
    "removed": _remove,
    "emptied": _empty,
    "cut": _cut,
    "flipped": _flip,
    "replaced by an older one": _replace,
    "replaced by another table's": _replace,
    ANOTHER_BROKERS: _replace,
}
"""The kinds of damage: functions of the file, of others of its kind, and of a random generator."""


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


def inflict(cluster: Path, case: Case, seed: int) -> FileOfTable | None:
    """Damage a file of the case's kind; return it, or `None` if there is no such file."""
    files = [one for root in ROOTS for one in files_of(cluster, root)]
    fitting = [
        one
        for one in files
        if (one.root, one.table, one.kind) == (case.root, case.table, case.kind)
    ]
    if not fitting:
        return None
    random = Random(f"{seed}/{case}")
    file = fitting[random.randrange(len(fitting))]
    path = path_of(cluster, file)
    others = [path_of(cluster, one) for one in replacements(files, file, case.damage)]
    before = path.read_bytes()
    DAMAGES[case.damage](path, others, random)
    is_changed = not path.exists() or path.read_bytes() != before
    return file if is_changed else None


def is_needed(cluster: Path, file: FileOfTable) -> bool:
    """Return whether a file that was damaged before belongs to the newest version of its table.

    A table that cannot be opened needs it. Requests are not read again once they are taken.
    """
    log = cluster / file.root / file.table / "_delta_log"
    if file.kind in UNREAD_KINDS or file.table in {one.name for one in REQUEST_TABLES}:
        return False
    newest = max((int(one.name[:20]) for one in log.glob("*.checkpoint*.parquet")), default=-1)
    if file.kind == "checkpoint":
        return int(Path(file.path).name[:20]) >= newest
    if file.path.startswith("_delta_log/"):
        return int(Path(file.path).name[:20]) > newest
    try:
        return file.path in _live(log.parent)
    except (DeltaError, OSError):
        return True


def path_of(cluster: Path, file: FileOfTable) -> Path:
    """Return the path of a file."""
    return cluster / file.root / file.table / file.path


def all_cases(trees: dict[str, Path]) -> list[Case]:
    """Return every case of the sound clusters, whose folders are `trees` by age."""
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
