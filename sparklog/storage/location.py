"""Where things lie: a folder, or a prefix of an object store, and how to reach it."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake.fs import DeltaStorageHandler

from sparklog.errors import StorageError
from sparklog.storage import local_files
from sparklog.storage.side_by_side import side_by_side

StorageOptions = Mapping[str, Mapping[str, str]]
"""Options of object stores in delta-rs's keys, by URI prefix; the longest prefix wins."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_NO_TABLES_BELOW = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]\\|^\x00-\x1f\x7f]")
"""What delta-rs misreads, or dies of, in the path of a folder."""

SYNC = "sync"
"""The option of a local folder that says whether its files are synced to the disk: true, false."""

_PART_BYTES = 1 << 20

_STORE_CHUNK_BYTES = 4 << 20
"""What is read of an object at once: each time is a request."""

_CHUNK_BYTES = 256 << 10
"""What is read or written of a file at once, which stays in a processor's cache.

From larger writes Linux makes large pages of its cache, which takes several times as long where it
has none free, as in virtual machines that give free memory back to their host.
"""


_SYNC_BYTES = 64 << 10
"""Bytes read in about the time in which a file is synced: what makes several threads worth it."""


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

    def filesystem(self) -> pa_fs.FileSystem:
        """Return an Arrow file system whose paths are relative to this location.

        The store's client is the one that delta-rs itself uses, with the same options.
        """
        if self.is_local:
            return pa_fs.SubTreeFileSystem(self.uri, pa_fs.LocalFileSystem())
        return _object_store(self.uri, tuple(sorted(self.options.items())))

    def exists(self, path: str) -> bool:
        """Say whether there is a file at `path`, relative to this location."""
        if self.is_local:
            return os.path.exists(f"{self.uri}/{path}")
        try:
            # One look at the object; to ask what kind of entry it is would list the prefix, too.
            self.filesystem().open_input_file(path).close()
        except FileNotFoundError:
            return False
        return True

    def read_bytes(self, path: str) -> bytes:
        """Return a file's bytes; `FileNotFoundError` where there is none."""
        if self.is_local:
            with open(f"{self.uri}/{path}", "rb") as local:
                return local.read()
        with self.filesystem().open_input_file(path) as file:
            # Arrow would read to an unknown end in very small pieces, each a request.
            return bytes(file.read(file.size()))

    def open(self, path: str) -> IO[bytes]:
        """Open a file for reading; `FileNotFoundError` where there is none."""
        if self.is_local:
            return open(f"{self.uri}/{path}", "rb")
        stream: IO[bytes] = self.filesystem().open_input_file(path)
        return stream

    def create(self, path: str) -> IO[bytes]:
        """Open a new file for writing; `FileExistsError` where there is one (rule 3.7)."""
        if self.is_local:
            target = f"{self.uri}/{path}"
            try:
                return local_files.FILES.create(target)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                if self.is_synced:
                    local_files.FILES.sync(os.path.dirname(os.path.dirname(target)))
                return local_files.FILES.create(target)
        # Names are unique, so that nobody else's file is met; this is against one's own mistakes.
        if self.exists(path):
            raise FileExistsError(f"{self.uri}/{path} exists already")
        return self._open_object(path)

    def overwrite_object(self, path: str, content: bytes) -> None:
        """Put `content` in the place of what an object store has at `path`."""
        with self._open_object(path) as target:
            target.write(content)

    def _open_object(self, path: str) -> IO[bytes]:
        stream = self.filesystem().open_output_stream(
            path, compression=None, buffer_size=2 * _PART_BYTES
        )
        return cast(IO[bytes], _ObjectWriter(stream))

    def remove(self, path: str) -> None:
        """Remove a file; nothing happens where there is none."""
        if self.is_local:
            local_files.FILES.remove(f"{self.uri}/{path}")
            return
        try:
            self.filesystem().delete_file(path)
        except FileNotFoundError:
            return

    def sync(self, paths: Iterable[str]) -> None:
        """Return after these files and the folders that name them are on the disk.

        Returns at once where the location is not synced. Raises `OSError` where the disk fails;
        the files may be lost then, whatever is read from them.
        """
        if not self.is_synced:
            return
        files = [f"{self.uri}/{path}" for path in paths]
        side_by_side(local_files.FILES.sync, files, len(files) * _SYNC_BYTES, is_local=True)
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


class _ObjectWriter(io.RawIOBase):
    """An object that is written front to back.

    delta-rs's stream takes nothing but `bytes`, and Arrow hands on whatever is as large as its
    buffer as it is: so no piece may be that large.
    """

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _PART_BYTES):
            self._stream.write(view[start : start + _PART_BYTES])
        return len(view)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


@lru_cache(maxsize=256)
def _object_store(uri: str, options: tuple[tuple[str, str], ...]) -> pa_fs.FileSystem:
    """Return the file system of a store; it is kept, for each has its own connections."""
    return pa_fs.PyFileSystem(DeltaStorageHandler(uri, dict(options)))


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
