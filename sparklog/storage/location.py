"""Where things lie: a folder, or a prefix of an object store, and how to reach it."""

from __future__ import annotations

import os
import re
import stat
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

from sparklog.errors import StorageError
from sparklog.storage import local_files
from sparklog.storage.object_store import ObjectStore, object_store
from sparklog.storage.side_by_side import sync_side_by_side

StorageOptions = Mapping[str, Mapping[str, str]]
"""Options of object stores in delta-rs's keys, by URI prefix; the longest prefix wins."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_NO_TABLES_BELOW = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]\\|^\x00-\x1f\x7f]")
"""What delta-rs misreads, or dies of, in the path of a folder."""

SYNC = "sync"
"""The option of a local folder that says whether its files are synced to the disk: true, false."""

_STORE_CHUNK_BYTES = 4 << 20
"""What is read or written of an object at once."""

_CHUNK_BYTES = 256 << 10
"""What is read or written of a file at once, which stays in a processor's cache.

From larger writes Linux makes large pages of its cache, which takes several times as long where it
has none free, as in virtual machines that give free memory back to their host.
"""


@dataclass(frozen=True)
class Location:
    """A URI and the options of the store behind it.

    A folder's `uri` is an absolute path without a scheme, so that every engine and Python itself
    take it as it is. Locations are picklable: they travel to Spark tasks.
    """

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, uri: str, storage_options: StorageOptions | None = None) -> Location:
        """Return the location at `uri` (a path, or scheme://...) with the options that fit it.

        Raises `StorageError` where `uri` is not usable.
        """
        if not _SCHEME.match(uri):
            return cls._of_folder(uri, storage_options)
        parts = urlsplit(uri)
        if parts.scheme == "file":
            if parts.netloc not in ("", "localhost"):
                raise StorageError(f"root {uri} names a host; write file:///path for a folder")
            return cls._of_folder(unquote(parts.path), storage_options)
        if not parts.netloc:
            raise StorageError(f"root {uri} names no bucket: write {parts.scheme}://bucket/path")
        return cls(uri.rstrip("/"), _fitting(uri, storage_options))

    @classmethod
    def _of_folder(cls, path: str, storage_options: StorageOptions | None) -> Location:
        folder = _folder(path)
        options = _fitting(folder, storage_options)
        if options.get(SYNC, "true") not in ("true", "false"):
            raise StorageError(
                f"the storage option {SYNC} of {folder} is {options[SYNC]!r}: write true or false"
            )
        return cls(folder, {SYNC: options[SYNC]} if SYNC in options else {})

    @property
    def is_synced(self) -> bool:
        """Whether files count as written only after they are synced to the disk.

        An object store answers when it has stored an object, so this is about local folders.
        """
        return self.is_local and self.options.get(SYNC) != "false"

    @property
    def store_options(self) -> dict[str, str] | None:
        """The options of the object store, in delta-rs's keys; `None` where there are none."""
        return None if self.is_local else dict(self.options) or None

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine."""
        return "://" not in self.uri

    @property
    def chunk_bytes(self) -> int:
        """How many bytes of a long file are best read or written at once."""
        return _CHUNK_BYTES if self.is_local else _STORE_CHUNK_BYTES

    def child(self, name: str) -> Location:
        """Return the location called `name` below this one."""
        return Location(f"{self.uri.rstrip('/')}/{name}", self.options)

    def _object(self, path: str) -> tuple[ObjectStore, str]:
        """Return the client of the store, and the key of what is at `path`."""
        parts = urlsplit(self.uri)
        bucket = f"{parts.scheme}://{parts.netloc}"
        store = object_store(bucket, tuple(sorted(self.options.items())))
        return store, "/".join(part for part in (parts.path.strip("/"), path) if part)

    def exists(self, path: str) -> bool:
        """Say whether there is a file at `path`, relative to this location."""
        if self.is_local:
            return os.path.exists(f"{self.uri}/{path}")
        store, key = self._object(path)
        try:
            store.size_bytes(key)
        except FileNotFoundError:
            return False
        return True

    def is_regular_file(self, path: str) -> bool:
        """Return whether a local folder has a file at `path`, not a link, folder or pipe.

        Raises `FileNotFoundError` where it has nothing there.
        """
        return stat.S_ISREG(os.lstat(f"{self.uri}/{path}").st_mode)

    def names(self, path: str = "") -> list[str]:
        """Return the names of the files and folders that are directly in a folder, sorted.

        Empty where there is no such folder.
        """
        if not self.is_local:
            store, key = self._object(path)
            return store.names(key)
        try:
            return sorted(os.listdir(f"{self.uri}/{path}"))
        except FileNotFoundError:
            return []

    def read_bytes(self, path: str) -> bytes:
        """Return a file's bytes; `FileNotFoundError` where there is none."""
        if self.is_local:
            with open(f"{self.uri}/{path}", "rb") as local:
                return local.read()
        store, key = self._object(path)
        return store.get(key)

    def open(self, path: str) -> IO[bytes]:
        """Open a file for reading from front to back; `FileNotFoundError` where there is none."""
        return self.open_with_size(path)[0]

    def open_with_size(self, path: str) -> tuple[IO[bytes], int]:
        """Open a file as `open` does; return it with its size in bytes, before it is read."""
        if self.is_local:
            local = open(f"{self.uri}/{path}", "rb")  # noqa: SIM115 - the caller closes it
            return local, os.fstat(local.fileno()).st_size
        store, key = self._object(path)
        return store.open_with_size(key)

    def open_at_random(self, path: str) -> IO[bytes]:
        """Open a file of which parts are read; `FileNotFoundError` where there is none."""
        if self.is_local:
            return open(f"{self.uri}/{path}", "rb")
        store, key = self._object(path)
        return store.open_at_random(key)

    def create(self, path: str) -> IO[bytes]:
        """Open a new file for writing; `FileExistsError` where there is one (rule 3.7).

        An object is stored, or that error raised, when the file is closed.
        """
        if not self.is_local:
            store, key = self._object(path)
            return store.create(key)
        target = f"{self.uri}/{path}"
        try:
            return local_files.FILES.create(target)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if self.is_synced:
                local_files.FILES.sync(os.path.dirname(os.path.dirname(target)))
            return local_files.FILES.create(target)

    def put_new(self, path: str, content: bytes) -> None:
        """Put a file where there is none: whole or not at all, and on the disk.

        That is a compare-and-set. `FileExistsError` where there is a file of this name, which may
        be this one: what was asked is repeated by some stores and file systems when its answer was
        lost.
        """
        if not self.is_local:
            store, key = self._object(path)
            store.put_new(key, content)
            return
        files = local_files.FILES
        target = f"{self.uri}/{path}"
        folder = os.path.dirname(target)
        unfinished = f"{folder}/.{uuid.uuid4().hex}.tmp"
        try:
            with files.create(unfinished) as file:
                file.write(content)
            if self.is_synced:
                files.sync(unfinished)
            files.link(unfinished, target)
            if self.is_synced:
                files.sync(folder)
        finally:
            files.remove(unfinished)

    def overwrite_object(self, path: str, content: bytes) -> None:
        """Put `content` in the place of what an object store has at `path`."""
        store, key = self._object(path)
        store.put(key, content)

    def remove(self, path: str) -> None:
        """Remove a file; nothing happens where there is none."""
        if self.is_local:
            local_files.FILES.remove(f"{self.uri}/{path}")
            return
        store, key = self._object(path)
        store.remove(key)

    def remove_durably(self, path: str) -> None:
        """Remove a file, and return after that is on the disk: a power loss does not undo it."""
        self.remove(path)
        if self.is_synced:
            local_files.FILES.sync(os.path.dirname(f"{self.uri}/{path}"))

    def sync(self, paths: Iterable[str]) -> None:
        """Return after these files and the folders that name them are on the disk.

        Returns at once where the location is not synced. Raises `OSError` where the disk fails;
        the files may be lost then, whatever is read from them.
        """
        if not self.is_synced:
            return
        files = [f"{self.uri}/{path}" for path in paths]
        sync_side_by_side(local_files.FILES.sync, files)
        for folder in sorted({os.path.dirname(file) for file in files}):
            local_files.FILES.sync(folder)

    def sync_folders(self) -> None:
        """Return after the folders that lead to this one are on the disk, its own name included.

        Folders that this process may not read are left out.
        """
        if not self.is_synced:
            return
        for folder in (Path(self.uri), *Path(self.uri).parents):
            with suppress(PermissionError):
                local_files.FILES.sync(str(folder))


def one_line(error: Exception) -> str:
    """Return the text of an error, which delta-rs colours and spreads over many lines.

    A stack trace of delta-rs, which begins with frame 0, is left out.
    """
    text = " ".join(re.sub(r"\x1b\[\d*m", "", str(error)).split())
    return re.split(r" (?:stack backtrace: )?0: (?:<unknown>|[\w:<])", text)[0]


def _folder(path: str) -> str:
    folder = str(Path(path).expanduser().absolute())
    if not path or _NO_TABLES_BELOW.search(folder):
        raise StorageError(
            f"root {path!r} cannot hold tables: name a folder without any of [ ] \\ | ^, control "
            "characters, and '%' before two hexadecimal digits"
        )
    return folder


def _fitting(uri: str, storage_options: StorageOptions | None) -> dict[str, str]:
    """Return the options of the longest prefix that `uri` is within."""
    fitting = [prefix for prefix in storage_options or {} if _is_within(uri, prefix)]
    return dict((storage_options or {}).get(max(fitting, key=len, default=""), {}))


def _is_within(uri: str, prefix: str) -> bool:
    """Say whether `prefix` ends where a part of `uri` does: one bucket's key is no other's."""
    return uri == prefix or uri.startswith(prefix if prefix.endswith("/") else f"{prefix}/")
