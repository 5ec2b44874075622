"""An object store of a simulation: the scheduler decides the outcome of each request.

The objects are files below the simulation's folder, where the invariants read them. Their times are
those of the simulation. A request reads or writes the whole object, and one of a thread that is not
a simulated process always succeeds.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast
from unittest import mock

from sparklog.broker.tick import StoppedError
from sparklog.storage import location, object_store
from sparklog.storage.local_files import StoredFile

if TYPE_CHECKING:
    from tests.faults.simulation.scheduler import Scheduler

ROOT = "s3://simulation"
"""The URI that stands for the simulation's folder."""

_GIVEN_UP_MS = 4_000
"""The time after which a request without an answer is given up, in ms."""
_LATE_MS = (0, 1_000, 4_000, 20_000)
"""The times after that at which the store carries out a PUT that was given up, in ms."""
_OUTDATED_MS = 5_000
"""The time for which an outdated list lags behind, in ms."""

_CARRIED_OUT = {"landed", "repeated", "unknown", "died"}
"""The outcomes with which a request takes effect."""


class _LatePut(NamedTuple):
    """A PUT that the store carries out after its sender has given it up."""

    at_ms: int
    path: str
    content: bytes


class _Removed(NamedTuple):
    """An object that was removed a short time ago."""

    path: str
    at_ms: int
    was: StoredFile


class SimulatedStore:
    """Stands for `sparklog.storage.object_store.ObjectStore`, with the same methods.

    A PUT or DELETE is refused, or carried out without an answer; a PUT also twice, or late, after
    its sender has given it up. A GET fails. A list fails, or is outdated: it lacks the objects of
    the last 5 s, and has those that were removed in them.
    """

    def __init__(self, scheduler: Scheduler, folder: Path) -> None:
        self._scheduler = scheduler
        self._folder = folder
        self._late: list[_LatePut] = []
        self._late_puts = 0
        self._removed: list[_Removed] = []
        self._unread: set[str] = set()
        """The objects of which the next GET fails."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let all object stores be this one."""
        with mock.patch.object(location, "object_store", return_value=self):
            yield

    def uri(self, path: str) -> str:
        """Return the URI of an object or folder."""
        return f"{ROOT}/{path}"

    def errors_of(self, _kind: str, _path: str) -> AbstractContextManager[None]:
        """Raise failures as they are."""
        return nullcontext()

    # --- requests -------------------------------------------------------------------------------

    def get(self, path: str) -> bytes:
        """Return an object's bytes."""
        failure = self._request("read", path)
        if path in self._unread and self._scheduler.is_in_a_process:
            self._unread.discard(path)
            failure = "unread"
        if failure is not None:
            raise OSError(f"the request for {self.uri(path)} failed")
        return self._existing(path).read_bytes()

    def get_with_time(self, path: str) -> tuple[bytes, int]:
        """Return an object's bytes, and the time in ms at which it was stored."""
        content = self.get(path)
        return content, _stored(path, self._file(path)).modified_at_ms

    def size_bytes(self, path: str) -> int:
        """Return an object's size in bytes."""
        if self._request("read", path) is not None:
            raise OSError(f"the request for {self.uri(path)} failed")
        return self._existing(path).stat().st_size

    def open_with_size(self, path: str) -> tuple[IO[bytes], int]:
        """Open an object for reading; return it and its size in bytes."""
        content = self.get(path)
        return io.BytesIO(content), len(content)

    def put(self, path: str, content: bytes) -> None:
        """Store an object, and replace an existing one."""
        self._write("put", path, lambda: self._store(path, content))

    def put_new(self, path: str, content: bytes) -> None:
        """Create an object; raises `FileExistsError` if it exists.

        It is a `link` to the scheduler, as in a local folder.
        """
        failure = self._request("link", path)
        if failure == "dies":
            raise StoppedError(f"the process ended before {self.uri(path)} was put")
        if failure == "late":
            self._give_up(path, content)
        elif failure is None or failure in _CARRIED_OUT:
            self._create(path, content)
        if failure == "died":
            raise StoppedError(f"the process ended after {self.uri(path)} was put")
        if failure == "repeated":
            raise FileExistsError(f"{self.uri(path)} exists already")
        if failure is not None:
            if failure == "unknown":
                self._unread.add(path)
            raise OSError(f"{self.uri(path)} was put without an answer")

    def create(self, path: str) -> IO[bytes]:
        """Open a new object for writing; it is stored on closing."""
        return cast(IO[bytes], object_store._Writer(cast(object_store.ObjectStore, self), path))

    def put_parts(self, path: str) -> Any:
        """Raise an error: the objects of a simulation are small."""
        raise AssertionError(f"{self.uri(path)} is too large for a simulation")

    def remove(self, path: str) -> None:
        """Remove an object; does nothing if it does not exist."""
        self.remove_all([path])

    def remove_all(self, paths: Sequence[str]) -> None:
        """Remove objects by one request; missing ones are ignored."""

        def remove_each() -> None:
            for path in paths:
                file = self._file(path)
                if file.is_file():
                    now_ms = self._scheduler.now_ms
                    self._removed.append(_Removed(path, now_ms, _stored(path, file)))
                    file.unlink()

        self._write("remove", paths[0] if paths else "", remove_each)

    def files(self, folder: str) -> Iterator[StoredFile]:
        """Yield the objects below `folder` at any depth, by their paths relative to it."""
        for one in self._listed(folder):
            yield one._replace(path=one.path[len(folder) + 1 :])

    def names(self, folder: str) -> list[str]:
        """Return the sorted names of the objects and folders directly below `folder`."""
        first = len(folder) + 1 if folder else 0
        return sorted({one.path[first:].split("/", 1)[0] for one in self._listed(folder)})

    def pages(self, folder: str, after: str | None = None) -> Iterator[list[str]]:
        """Yield the names of the objects in `folder` that sort after a name."""
        names = sorted(one.path[len(folder) + 1 :] for one in self._listed(folder))
        yield [name for name in names if after is None or name > after]

    # --- their parts ----------------------------------------------------------------------------

    def _request(self, call: str, path: str) -> str | None:
        """Carry out the late PUTs that are due, and return the failure of a request, if any."""
        due = [one for one in self._late if one.at_ms <= self._scheduler.now_ms]
        self._late = [one for one in self._late if one not in due]
        for one in due:
            if not self._file(one.path).exists():
                self._scheduler.note(f"late {one.path}")
                self._scheduler.counts["put late"] += 1
                self._store(one.path, one.content)
        if not self._scheduler.is_in_a_process:
            return None
        return self._scheduler.at_request(call, str(self._file(path)))

    def _write(self, call: str, path: str, write: Any) -> None:
        failure = self._request(call, path)
        if failure is None or failure in _CARRIED_OUT:
            write()
        if failure is not None and failure != "repeated":
            raise OSError(f"the request to {call} {self.uri(path)} has no answer")

    def _give_up(self, path: str, content: bytes) -> None:
        """Let a PUT be carried out after its sender has given it up."""
        self._late_puts += 1
        after_ms = _LATE_MS[self._late_puts % len(_LATE_MS)]
        self._scheduler.now_ms += _GIVEN_UP_MS
        self._late.append(_LatePut(self._scheduler.now_ms + after_ms, path, content))

    def _create(self, path: str, content: bytes) -> None:
        if self._file(path).exists():
            raise FileExistsError(f"{self.uri(path)} exists already")
        self._store(path, content)

    def _store(self, path: str, content: bytes) -> None:
        file = self._file(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        now_ns = self._scheduler.now_ms * 1_000_000
        os.utime(file, ns=(now_ns, now_ns))

    def _file(self, path: str) -> Path:
        return self._folder / path

    def _existing(self, path: str) -> Path:
        file = self._file(path)
        if not file.is_file():
            raise FileNotFoundError(f"there is no object {self.uri(path)}")
        return file

    def _listed(self, folder: str) -> list[StoredFile]:
        """Return the objects below a folder as the store lists them: all, or an outdated list."""
        failure = self._request("list", folder)
        if failure == "unread":
            raise OSError(f"{self.uri(folder)} cannot be listed")
        base = self._file(folder)
        found = [
            _stored(str(file.relative_to(self._folder)), file)
            for file in sorted(base.rglob("*"))
            if file.is_file()
        ]
        if failure is None:
            return found
        since_ms = self._scheduler.now_ms - _OUTDATED_MS
        self._removed = [one for one in self._removed if one.at_ms > since_ms]
        found = [one for one in found if one.modified_at_ms <= since_ms]
        kept = {one.path for one in found}
        removed = {
            one.path: one.was
            for one in self._removed
            if one.path.startswith(f"{folder}/") and one.was.modified_at_ms <= since_ms
        }
        return [*found, *(was for path, was in removed.items() if path not in kept)]


def _stored(path: str, file: Path) -> StoredFile:
    found = file.stat()
    return StoredFile(path, found.st_size, found.st_mtime_ns // 1_000_000)
