"""A local file system for tests: its calls fail on request, and a power loss takes unsynced data.

`FaultyFiles` replaces `sparklog.storage.local_files.FILES` while it is installed. Writes by
delta-rs (table creation, checkpoints) do not pass through it and count as synced.

Example:
    files = FaultyFiles(stash)
    with files.installed():
        files.fail(f"{root}/log/_delta_log", "landed")
        cluster.leader_tick(0)
        cluster.crash(0)
        files.lose_power(root, names="none")
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from sparklog.broker.tick import StoppedError
from sparklog.storage import local_files
from sparklog.storage.local_files import LocalFiles
from sparklog.storage.location import Location

Failure = Literal[
    "refused", "full", "torn", "unsynced", "landed", "repeated", "unknown", "dies", "died", "unread"
]
"""The ways in which a write to a folder fails.

refused: `link` raises EIO and does nothing.
full: `create` raises ENOSPC and does nothing.
torn: a write stores half of its bytes and raises ENOSPC.
unsynced: `sync` raises EIO and does nothing.
landed: `link` takes effect and raises EIO, as if its answer was lost.
repeated: `link` takes effect and raises FileExistsError, as NFS does when it repeats the call.
unknown: `link` takes effect and raises EIO, and the next read of the file raises EIO as well.
dies, died: the process ends before or after `link`, with `StoppedError`.
unread: a read raises EIO.
"""

LANDING: tuple[Failure, ...] = ("landed", "repeated", "unknown", "died")
"""The failures in which a commit takes effect."""

Kept = Literal["none", "half", "all"]
"""The unsynced part that a power loss leaves; "half" is the older half."""

_CALLS: dict[Failure, str] = {
    "full": "create",
    "torn": "write",
    "unsynced": "sync",
    "unread": "read",
}
"""The call that fails, if it is not `link`."""

_DELTA_LOG = "/_delta_log"


@dataclass
class _Fault:
    """The failure of one call in `folder`, after `skip` others."""

    call: str
    folder: str
    failure: Failure
    skip: int


@dataclass
class _Content:
    """A file's bytes, which two names may share; `synced_bytes` is -1 before the first sync."""

    synced_bytes: int = -1


@dataclass
class _NameChange:
    """A name that was added to a folder or removed from it, which is not synced since.

    `stash` is the removed file under another name, by which a power loss brings it back.
    """

    path: str
    stash: str | None = None


class FaultyFiles(LocalFiles):
    """The local file system, with pending faults and a record of synced data.

    Parameters: `stash`, a folder on the same file system for removed files. Threads may share it.
    """

    def __init__(self, stash: Path) -> None:
        stash.mkdir(parents=True, exist_ok=True)
        self._stash = stash
        self._faults: list[_Fault] = []
        self._actions: list[tuple[str, Callable[[], object]]] = []
        self._contents: dict[str, _Content] = {}
        self._changes: list[_NameChange] = []
        self._stashed = 0
        self._lock = threading.RLock()
        self.failed: list[str] = []
        """The paths of the calls that failed on request."""

    @contextmanager
    def installed(self) -> Iterator[FaultyFiles]:
        """Replace the local file system; reads can fail, too."""
        real = local_files.FILES
        read_bytes, open_ = Location.read_bytes, Location.open_with_size

        def faulty_read_bytes(location: Location, path: str) -> bytes:
            self._read(f"{location.uri}/{path}")
            return read_bytes(location, path)

        def faulty_open(location: Location, path: str) -> tuple[IO[bytes], int]:
            self._read(f"{location.uri}/{path}")
            return open_(location, path)

        local_files.FILES = self
        Location.read_bytes = faulty_read_bytes  # type: ignore[method-assign]
        Location.open_with_size = faulty_open  # type: ignore[method-assign]
        try:
            yield self
        finally:
            local_files.FILES = real
            Location.read_bytes = read_bytes  # type: ignore[method-assign]
            Location.open_with_size = open_  # type: ignore[method-assign]

    # --- faults ---------------------------------------------------------------------------------

    def fail(self, folder: str, failure: Failure, skip: int = 0) -> None:
        """Let one call in `folder` fail, after `skip` others of its kind.

        The commits of a table are in its `_delta_log`; other folders are named without it, and
        stand for all folders below them.
        """
        self._faults.append(_Fault(_CALLS.get(failure, "link"), folder, failure, skip))

    def before_link(self, folder: str, action: Callable[[], object]) -> None:
        """Run `action` once, just before the next file is linked into `folder`."""
        self._actions.append((folder, action))

    def calm(self) -> None:
        """Cancel the failures and actions that have not happened."""
        self._faults.clear()
        self._actions.clear()

    def _take(self, call: str, path: str) -> Failure | None:
        """Return the failure of this call, if any."""
        with self._lock:
            for fault in self._faults:
                if fault.call != call or not _is_in(path, fault.folder):
                    continue
                if fault.skip:
                    fault.skip -= 1
                    continue
                self._faults.remove(fault)
                self.failed.append(path)
                return fault.failure
        return None

    def _read(self, path: str) -> None:
        if self._faults and self._take("read", path) is not None:
            raise OSError(errno.EIO, "read failed on request", path)

    # --- calls ----------------------------------------------------------------------------------

    def create(self, path: str) -> IO[bytes]:
        if self._take("create", path) is not None:
            raise OSError(errno.ENOSPC, "create failed on request", path)
        try:
            created = _File(path, self._write)
        except FileNotFoundError:
            # The caller creates the folder next, which is then a name that is not synced.
            with self._lock:
                self._changes.append(_NameChange(str(Path(path).parent)))
            raise
        with self._lock:
            self._contents[path] = _Content()
            self._changes.append(_NameChange(path))
        return created

    def link(self, source: str, target: str) -> None:
        for folder, action in self._actions:
            if _is_in(target, folder):
                self._actions.remove((folder, action))
                action()
                break
        failure = self._take("link", target)
        if failure == "refused":
            raise OSError(errno.EIO, "link failed on request", target)
        if failure == "dies":
            raise StoppedError(f"the process ended before the link of {target}")
        super().link(source, target)
        with self._lock:
            if source in self._contents:
                self._contents[target] = self._contents[source]
            self._changes.append(_NameChange(target))
        if failure == "died":
            raise StoppedError(f"the process ended after the link of {target}")
        if failure == "repeated":
            raise FileExistsError(errno.EEXIST, "link was repeated on request", target)
        if failure is not None:
            if failure == "unknown":
                self.fail(target, "unread")
            raise OSError(errno.EIO, "the answer to link was lost on request", target)

    def sync(self, path: str) -> None:
        if self._take("sync", path) is not None:
            raise OSError(errno.EIO, "sync failed on request", path)
        size_bytes = Path(path).stat().st_size
        with self._lock:
            if path in self._contents:
                self._contents[path].synced_bytes = size_bytes
            self._forget([one for one in self._changes if one.path.rpartition("/")[0] == path])

    def remove(self, path: str) -> None:
        self._take("remove", path)
        with self._lock:
            self._stashed += 1
            stash = str(self._stash / str(self._stashed))
            try:
                os.link(path, stash)
            except FileNotFoundError:
                return
            super().remove(path)
            self._changes.append(_NameChange(path, stash))

    def _write(self, path: str, data: memoryview, write: Callable[[Any], int]) -> int:
        if self._take("write", path) is not None:
            write(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "write failed on request", path)
        return write(data)

    # --- power loss -----------------------------------------------------------------------------

    def unsynced(self, folder: str) -> list[str]:
        """Return the names below `folder` whose adding or removal is not synced."""
        with self._lock:
            return [one.path for one in self._changes if _is_below(one.path, folder)]

    def write_back(self, folder: str) -> None:
        """Write everything below `folder` to the disk, as the kernel does after some seconds."""
        with self._lock:
            self._forget([one for one in self._changes if _is_below(one.path, folder)])
            for path, content in self._contents.items():
                if _is_below(path, folder):
                    content.synced_bytes = 1 << 62

    def lose_power(self, folder: str, names: Kept = "none", content: Kept = "none") -> None:
        """Leave below `folder` a state that a file system may have after a power loss.

        The processes that use it must have ended. Synced names and synced bytes stay.

        Parameters: `names`, the unsynced changes of names that stay, in the order in which they
        were made, as a journal keeps them; `content`, the unsynced bytes of each file that stay: a
        file without any has 0 bytes.
        """
        with self._lock:
            changes = [one for one in self._changes if _is_below(one.path, folder)]
            count = {"none": 0, "half": len(changes) // 2, "all": len(changes)}[names]
            for change in reversed(changes[count:]):
                self._undo(change)
            for path in [path for path in self._contents if _is_below(path, folder)]:
                synced_bytes = self._contents.pop(path).synced_bytes
                try:
                    size_bytes = Path(path).stat().st_size
                except FileNotFoundError:
                    continue
                kept = {"none": 0, "half": size_bytes // 2, "all": size_bytes}[content]
                if size_bytes > max(kept, synced_bytes):
                    os.truncate(path, max(kept, synced_bytes))
            self._forget(changes)

    def _undo(self, change: _NameChange) -> None:
        path = Path(change.path)
        if change.stash is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(change.stash, path)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def _forget(self, changes: list[_NameChange]) -> None:
        done = set(map(id, changes))
        for change in changes:
            if change.stash is not None:
                Path(change.stash).unlink()
        self._changes = [one for one in self._changes if id(one) not in done]


class _File(io.FileIO):
    """A new file whose writes pass through its file system."""

    def __init__(self, path: str, write: Callable[[str, memoryview, Any], int]) -> None:
        super().__init__(path, "xb")
        self._path = path
        self._through = write

    def write(self, data: Any) -> int:
        return self._through(self._path, memoryview(data).cast("B"), super().write)


def _is_in(path: str, folder: str) -> bool:
    """Return whether `path` is `folder` or below it; commits count only for a `_delta_log`."""
    if path != folder and not path.startswith(f"{folder}/"):
        return False
    return _DELTA_LOG in folder or _DELTA_LOG not in path[len(folder) :]


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/")
