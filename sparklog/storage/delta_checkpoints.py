"""Delta's checkpoints: the newest one of a table, and a new one of a table on an object store.

delta-rs reads each commit four times to open a table and write its checkpoint. On an object store
each is read once, into a local folder, where delta-rs makes the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from deltalake import DeltaTable

from sparklog.storage.location import Location
from sparklog.storage.side_by_side import side_by_side

_LOG = "_delta_log"
_HINT = "_last_checkpoint"
_DIGITS = 20


def newest_checkpoint(names: Iterable[str], last: int | None = None) -> int:
    """Return the version of the newest checkpoint, up to version `last`; -1 if there is none.

    `names`, of the files in `_delta_log`.
    """
    found = (int(name[:_DIGITS]) for name in names if _is_checkpoint(name))
    return max((one for one in found if last is None or one <= last), default=-1)


def write_store_checkpoint(table: Location) -> None:
    """Write Delta's checkpoint of the newest version of `table`.

    Raises `DeltaError` or `OSError` where the log cannot be read or the checkpoint not be written;
    the table is as it was then.
    """
    names = _newest(table.names(_LOG))
    with TemporaryDirectory(prefix="sparklog-") as folder:
        log = Path(folder, _LOG)
        log.mkdir()

        def fetch(name: str) -> None:
            (log / name).write_bytes(table.read_bytes(f"{_LOG}/{name}"))

        side_by_side(fetch, names, 0, is_local=False)
        DeltaTable(folder).create_checkpoint()
        # None where the newest version has a checkpoint. The hint comes last: it names the others.
        made = {path.name for path in log.iterdir()} - set(names)
        for name in sorted(made, key=lambda name: (name == _HINT, name)):
            table.overwrite_object(f"{_LOG}/{name}", (log / name).read_bytes())


def _newest(names: list[str]) -> list[str]:
    """Return the files of the newest checkpoint, and the commits from its version on."""
    newest = newest_checkpoint(names)

    def is_needed(name: str) -> bool:
        if _is_checkpoint(name):
            return int(name[:_DIGITS]) == newest
        is_commit = name[:_DIGITS].isdigit() and name[_DIGITS:] == ".json"
        return is_commit and int(name[:_DIGITS]) >= newest

    return [name for name in names if is_needed(name)]


def _is_checkpoint(name: str) -> bool:
    return name[:_DIGITS].isdigit() and name[_DIGITS:].startswith(".checkpoint")
