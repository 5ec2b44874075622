"""Storage locations: a local folder or a prefix of an object store, and its storage options."""

from __future__ import annotations

import errno
import os
import re
import stat
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

from sparklog.errors import StorageError
from sparklog.storage import local_files
from sparklog.storage.exhausted import with_remedy
from sparklog.storage.object_store import (
    ObjectStore,
    object_store,
    same_scheme,
    without_secrets,
)
from sparklog.storage.parallel import reading_threads, sync_in_parallel
from sparklog.storage.references import check_references, resolved
from sparklog.storage.refusals import READ, REMOVE, WRITE, naming_refusals, refused

StorageOptions = Mapping[str, Mapping[str, str]]
"""Options of object stores in delta-rs's keys, by URI prefix; the longest prefix applies.

A value may refer to a variable or file of the process that uses it; see `storage.references`.
"""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_NO_TABLES_BELOW = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]\\|^\x00-\x1f\x7f]")
"""Characters in a local folder's path that delta-rs misreads or crashes on."""

SYNC = "sync"
"""The option of a local folder that decides whether files are synced to the disk: true, false."""

SECOND_COPIES = "second_copies"
"""The option of a root on an object store that decides whether files of its tables have second
copies: true, false.
"""

_STORE_CHUNK_BYTES = 4 << 20
"""Bytes of an object that are read or written at once."""

_CHUNK_BYTES = 256 << 10
"""Bytes of a local file that are read or written at once; they fit in a processor's cache.

For larger writes Linux allocates large pages in its page cache. This takes several times as long if
no large page is free, as in virtual machines that return free memory to their host.
"""


@dataclass(frozen=True)
class Location:
    """A URI and the options of the store behind it.

    The `uri` of a local folder is an absolute path without a scheme, which each engine and Python
    accept. Locations are picklable, since they are sent to Spark tasks. References in `options` are
    resolved by each use of the store.
    """

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, uri: str, storage_options: StorageOptions | None = None) -> Location:
        """Return the location at `uri`, a path or scheme://..., with the options that apply to it.

        Raises `StorageError` if `uri` or an option is not usable, and `ConfigError` for a malformed
        reference.
        """
        if not _SCHEME.match(uri):
            return cls._of_folder(uri, storage_options)
        try:
            parts = urlsplit(uri)
        except ValueError as error:
            raise StorageError(f"root {uri!r} is not a URI: {error}") from None
        if parts.scheme == "file":
            if parts.netloc not in ("", "localhost"):
                raise StorageError(
                    f"root {uri} names a host: write file:///path for a local folder"
                )
            return cls._of_folder(unquote(parts.path), storage_options)
        if not parts.netloc:
            raise StorageError(f"root {uri} names no bucket: write {parts.scheme}://bucket/path")
        if parts.password is not None or parts.query or parts.fragment:
            # The rest of the URI is not shown: it may be a password or a signature.
            raise StorageError(
                f"a root at {parts.scheme}://{parts.hostname} has a password, a query or a "
                "fragment in its URI: write the bucket and the path only, and credentials in "
                "storage.options"
            )
        options = _fitting(uri, storage_options)
        check_references(options, uri)
        _check_flag(SECOND_COPIES, options, uri)
        return cls(uri.rstrip("/"), options)

    @classmethod
    def _of_folder(cls, path: str, storage_options: StorageOptions | None) -> Location:
        folder = _folder(path)
        options = _fitting(folder, storage_options)
        _check_flag(SYNC, options, folder)
        return cls(folder, {SYNC: options[SYNC]} if SYNC in options else {})

    @property
    def is_synced(self) -> bool:
        """Whether files count as written only after they are synced to the disk.

        Applies to local folders only: an object store responds after it has stored an object.
        """
        return self.is_local and self.options.get(SYNC) != "false"

    @property
    def store_options(self) -> dict[str, str] | None:
        """The options of the object store in delta-rs's keys, or `None` if no options are set.

        Raises `ConfigError` if the variable or file of a reference is missing.
        """
        return None if self.is_local else self._of_store(self.uri) or None

    def _of_store(self, uri: str) -> dict[str, str]:
        """Return the options of the object store, without those of sparklog."""
        given = {name: value for name, value in self.options.items() if name != SECOND_COPIES}
        return resolved(given, uri)

    @property
    def is_local(self) -> bool:
        """Whether this is a folder of a local file system."""
        return "://" not in self.uri

    @property
    def identity(self) -> str:
        """The URI in the form that all spellings of it share: s3:// for s3a://, for example."""
        return self.uri if self.is_local else same_scheme(self.uri)

    @property
    def chunk_bytes(self) -> int:
        """The recommended number of bytes of a long file to read or write at once."""
        return _CHUNK_BYTES if self.is_local else _STORE_CHUNK_BYTES

    def child(self, name: str) -> Location:
        """Return the location `name` below this one."""
        return Location(f"{self.uri.rstrip('/')}/{name}", self.options)

    def _object(self, path: str) -> tuple[ObjectStore, str]:
        """Return the client of the store, and the key of the object at `path`."""
        parts = urlsplit(self.uri)
        bucket = f"{parts.scheme}://{parts.netloc}"
        store = object_store(bucket, tuple(sorted(self._of_store(bucket).items())))
        return store, "/".join(part for part in (parts.path.strip("/"), path) if part)

    @naming_refusals(READ)
    def exists(self, path: str) -> bool:
        """Return whether a file exists at `path`, relative to this location."""
        try:
            if self.is_local:
                os.stat(f"{self.uri}/{path}")
            else:
                store, key = self._object(path)
                store.size_bytes(key)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return False
            raise
        return True

    @naming_refusals(READ)
    def is_regular_file(self, path: str) -> bool:
        """Return whether a local folder has a regular file at `path`: not a link, folder or pipe.

        Raises `FileNotFoundError` if `path` does not exist.
        """
        return stat.S_ISREG(os.lstat(f"{self.uri}/{path}").st_mode)

    def names(self, path: str = "") -> list[str]:
        """Return the sorted names of the files and folders directly in a folder.

        Returns an empty list if the folder does not exist.
        """
        if not self.is_local:
            store, key = self._object(path)
            return store.names(key)
        try:
            return sorted(os.listdir(f"{self.uri}/{path}"))
        except FileNotFoundError:
            return []
        except PermissionError as error:
            raise refused(f"{self.uri}/{path}".rstrip("/"), "list", str(error.strerror)) from error

    def files(self) -> Iterator[local_files.StoredFile]:
        """Yield all files below this location, at any depth, by their paths relative to it."""
        if self.is_local:
            yield from local_files.files_below(self.uri)
        else:
            store, key = self._object("")
            yield from store.files(key)

    def pages(self, path: str, after: str | None = None) -> Iterator[list[str]]:
        """Yield the names of the files in a folder of an object store; see `ObjectStore.pages`."""
        store, key = self._object(path)
        return store.pages(key, after)

    @naming_refusals(READ)
    def read_bytes(self, path: str) -> bytes:
        """Return a file's bytes; raises `FileNotFoundError` if it does not exist."""
        if self.is_local:
            with open(f"{self.uri}/{path}", "rb") as local:
                return local.read()
        store, key = self._object(path)
        return store.get(key)

    @naming_refusals(READ)
    def read_with_time(self, path: str) -> tuple[bytes, int]:
        """Return a file's bytes, and the time in ms since 1970 at which it was stored.

        The time is that of the store's or the file system's clock, and comes with the same request;
        stores give whole seconds. Raises `FileNotFoundError` if the file does not exist.
        """
        if self.is_local:
            with open(f"{self.uri}/{path}", "rb") as local:
                return local.read(), os.fstat(local.fileno()).st_mtime_ns // 1_000_000
        store, key = self._object(path)
        return store.get_with_time(key)

    def read_files(self, paths: Sequence[str]) -> list[bytes]:
        """Return the bytes of some files; an object store is read in parallel.

        Must not run in `reading_threads`. Raises the error of the first file that cannot be read.
        """
        if self.is_local or len(paths) < 2:
            return [self.read_bytes(path) for path in paths]
        return list(reading_threads().map(self.read_bytes, paths))

    def read_present(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return the bytes of some files as `read_files` does, and `None` for those missing."""
        if self.is_local or len(paths) < 2:
            return [self._read_if_present(path) for path in paths]
        return list(reading_threads().map(self._read_if_present, paths))

    def _read_if_present(self, path: str) -> bytes | None:
        try:
            return self.read_bytes(path)
        except FileNotFoundError:
            return None

    def open(self, path: str) -> IO[bytes]:
        """Open a file for sequential reading; raises `FileNotFoundError` if it does not exist."""
        return self.open_with_size(path)[0]

    @naming_refusals(READ)
    def open_with_size(self, path: str) -> tuple[IO[bytes], int]:
        """Open a file as `open` does; return it and its size in bytes."""
        if self.is_local:
            local = open(f"{self.uri}/{path}", "rb")  # noqa: SIM115 - the caller closes it
            return local, os.fstat(local.fileno()).st_size
        store, key = self._object(path)
        return store.open_with_size(key)

    @naming_refusals(WRITE)
    def create(self, path: str) -> IO[bytes]:
        """Create a file and open it for writing; raises `FileExistsError` if it exists (rule 3.7).

        On an object store the object is stored, or this error raised, when the file is closed.
        """
        if not self.is_local:
            store, key = self._object(path)
            return store.create(key)
        target = f"{self.uri}/{path}"
        try:
            return local_files.FILES.create(target)
        except FileNotFoundError:
            local_files.make_folders(os.path.dirname(target))
            if self.is_synced:
                local_files.FILES.sync(os.path.dirname(os.path.dirname(target)))
            return local_files.FILES.create(target)

    @naming_refusals(WRITE)
    def put_new(self, path: str, content: bytes) -> None:
        """Create a file atomically and durably: a compare-and-set on its name.

        Raises `FileExistsError` if a file of this name exists. That file may be the caller's: some
        stores and file systems repeat a request whose response was lost.
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

    @naming_refusals(WRITE)
    def replace(self, path: str, content: bytes) -> None:
        """Store `content` at `path` atomically and durably, in place of any existing file."""
        if not self.is_local:
            self.overwrite_object(path, content)
            return
        files = local_files.FILES
        target = f"{self.uri}/{path}"
        unfinished = f"{os.path.dirname(target)}/.{uuid.uuid4().hex}.tmp"
        try:
            with files.create(unfinished) as file:
                file.write(content)
            if self.is_synced:
                files.sync(unfinished)
            files.replace(unfinished, target)
            if self.is_synced:
                files.sync(os.path.dirname(target))
        finally:
            files.remove(unfinished)

    def overwrite_object(self, path: str, content: bytes) -> None:
        """Store `content` at `path` of an object store, and replace an existing object."""
        store, key = self._object(path)
        store.put(key, content)

    @naming_refusals(REMOVE)
    def remove(self, path: str) -> None:
        """Remove a file; does nothing if it does not exist."""
        if self.is_local:
            local_files.FILES.remove(f"{self.uri}/{path}")
            return
        store, key = self._object(path)
        store.remove(key)

    def remove_all(self, paths: Sequence[str]) -> None:
        """Remove files; missing ones are ignored. An object store gets one request for 1,000."""
        if self.is_local:
            for path in paths:
                self.remove(path)
        elif paths:
            store = self._object("")[0]
            store.remove_all([self._object(path)[1] for path in paths])

    def remove_durably(self, path: str) -> None:
        """Remove a file and sync its folder to the disk, so that a power loss does not undo it."""
        self.remove(path)
        if self.is_synced:
            local_files.FILES.sync(os.path.dirname(f"{self.uri}/{path}"))

    def sync(self, paths: Iterable[str]) -> None:
        """Sync these files and the folders that contain them to the disk.

        Does nothing if the location is not synced. Raises `OSError` if the disk fails; the files
        may then be lost even if they can still be read.
        """
        if not self.is_synced:
            return
        files = [f"{self.uri}/{path}" for path in paths]
        sync_in_parallel(local_files.FILES.sync, files)
        for folder in sorted({os.path.dirname(file) for file in files}):
            local_files.FILES.sync(folder)

    def sync_folders(self) -> None:
        """Sync this folder and all of its parent folders to the disk.

        Folders that this process may not read are skipped.
        """
        if not self.is_synced:
            return
        for folder in (Path(self.uri), *Path(self.uri).parents):
            with suppress(PermissionError):
                local_files.FILES.sync(str(folder))


def one_line(error: Exception) -> str:
    """Return the text of an error on one line, without colours and without delta-rs's stack trace.

    The body of a store's response is reduced to its code. A stack trace starts at frame 0. A limit
    of the process or of a disk is followed by its remedy.
    """
    text = " ".join(without_secrets(re.sub(r"\x1b\[\d*m", "", str(error))).split())
    text = re.split(r" (?:stack backtrace: )?0: (?:<unknown>|[\w:<])", text)[0]
    return with_remedy(text)


def _folder(path: str) -> str:
    try:
        folder = "" if _NO_TABLES_BELOW.search(path) else str(Path(path).expanduser().absolute())
        os.fsencode(folder)
    except (RuntimeError, UnicodeEncodeError) as error:
        # The home folder of nobody, or text that no file name can have.
        raise StorageError(f"root {path!r} cannot be a folder: {error}") from None
    if not path or not folder or _NO_TABLES_BELOW.search(folder):
        raise StorageError(
            f"root {path!r} cannot hold tables: name a folder without any of [ ] \\ | ^, control "
            "characters, and '%' before two hexadecimal digits"
        )
    return folder


def _check_flag(name: str, options: Mapping[str, str], root: str) -> None:
    """Raise `StorageError` if an option is neither true nor false."""
    if options.get(name, "true") not in ("true", "false"):
        raise StorageError(
            f"the storage option {name} of {root} is {options[name]!r}: write true or false"
        )


def _fitting(uri: str, storage_options: StorageOptions | None) -> dict[str, str]:
    """Return the options of the longest prefix of `uri`."""
    fitting = [prefix for prefix in storage_options or {} if _is_within(uri, prefix)]
    return dict((storage_options or {}).get(max(fitting, key=len, default=""), {}))


def _is_within(uri: str, prefix: str) -> bool:
    """Return whether `uri` equals `prefix` or is below it; compares whole path components."""
    uri, prefix = same_scheme(uri), same_scheme(prefix)
    return uri == prefix or uri.startswith(prefix if prefix.endswith("/") else f"{prefix}/")
