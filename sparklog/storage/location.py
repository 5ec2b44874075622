"""Where things lie: a folder, or a prefix of an object store, and how to reach it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow.fs as pa_fs
from deltalake.fs import DeltaStorageHandler

from sparklog.errors import StorageError

StorageOptions = Mapping[str, Mapping[str, str]]
"""Options of object stores in delta-rs's keys, by URI prefix; the longest prefix wins."""


@dataclass(frozen=True)
class Location:
    """A URI and the options of the store behind it.

    A folder's `uri` is an absolute path without a scheme, so that every engine and Python itself
    take it as it is. Locations are picklable: they travel to Spark tasks.
    """

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, uri: str, storage_options: StorageOptions | None = None) -> Location:
        """Return the location at `uri` (a path, or scheme://...) with the options that fit it.

        Raises `StorageError` where `uri` is not usable.
        """
        if "://" not in uri:
            return cls(str(Path(uri).expanduser().absolute()))
        parts = urlsplit(uri)
        if parts.scheme == "file":
            if parts.netloc not in ("", "localhost"):
                raise StorageError(f"root {uri} names a host; write file:///path for a folder")
            return cls(str(Path(unquote(parts.path)).absolute()))
        prefixes = [prefix for prefix in storage_options or {} if uri.startswith(prefix)]
        options = (storage_options or {}).get(max(prefixes, key=len, default=""), {})
        return cls(uri.rstrip("/"), dict(options))

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine."""
        return "://" not in self.uri

    def child(self, name: str) -> Location:
        """Return the location called `name` below this one."""
        return Location(f"{self.uri}/{name}", self.options)

    def filesystem(self) -> pa_fs.FileSystem:
        """Return an Arrow file system whose paths are relative to this location.

        The store's client is the one that delta-rs itself uses, with the same options.
        """
        if self.is_local:
            return pa_fs.SubTreeFileSystem(self.uri, pa_fs.LocalFileSystem())
        return pa_fs.PyFileSystem(DeltaStorageHandler(self.uri, dict(self.options)))

    def read_bytes(self, path: str) -> bytes:
        """Return a file's bytes; `FileNotFoundError` where there is none."""
        if self.is_local:
            return Path(self.uri, path).read_bytes()
        with self.filesystem().open_input_stream(path) as stream:
            return bytes(stream.read())
