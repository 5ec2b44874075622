"""The storage of the cluster that is damaged, and of saved copies of it: folders, or buckets.

The tables of a cluster name the URIs of its roots, so each saved copy is put back at the same URI.
Files are read, damaged and removed by `Location`, which is the same for both.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol

from benchmarks.s3_store import Store, running_store
from sparklog.storage.location import Location, StorageOptions

StorageKind = Literal["folder", "s3"]
"""folder: a local folder. s3: buckets of the project's own server of the S3 API, in memory."""

MEMORY = Path("/dev/shm")
"""A file system in memory, where it exists: clusters are copied once for each case."""

_PLACE = "cluster"


class Storage(Protocol):
    """The place of one cluster, and saved copies of clusters by name."""

    @property
    def kind(self) -> StorageKind:
        """The kind of storage."""

    @property
    def options(self) -> StorageOptions | None:
        """The storage options of all clusters."""

    @property
    def place(self) -> Location:
        """The location of the roots of the cluster: `cluster`, `broker-0` and so on."""

    def saved(self, name: str) -> Location:
        """Return the location of a saved copy, which is read only."""

    def save(self, name: str) -> None:
        """Move the cluster from its place to a saved copy."""

    def restore(self, name: str) -> None:
        """Replace the cluster at its place by a saved copy, with the times of its files."""


class Folder:
    """Storage in a local folder."""

    kind: StorageKind = "folder"
    options: StorageOptions | None = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def place(self) -> Location:
        """The folder of the cluster."""
        return self.saved(_PLACE)

    def saved(self, name: str) -> Location:
        """Return the folder of a saved copy."""
        return Location.of(str(self._folder / name))

    def save(self, name: str) -> None:
        """Rename the folder of the cluster."""
        (self._folder / _PLACE).rename(self._folder / name)

    def restore(self, name: str) -> None:
        """Copy the folder of a saved copy."""
        shutil.rmtree(self._folder / _PLACE, ignore_errors=True)
        shutil.copytree(self._folder / name, self._folder / _PLACE)


class Buckets:
    """Storage in buckets of a server of the S3 API."""

    kind: StorageKind = "s3"

    def __init__(self, store: Store) -> None:
        self._store = store
        self.options: StorageOptions | None = store.options()
        store.bucket(_PLACE)

    @property
    def place(self) -> Location:
        """The bucket of the cluster."""
        return self.saved(_PLACE)

    def saved(self, name: str) -> Location:
        """Return the bucket of a saved copy."""
        return Location.of(f"s3://{name}", self.options)

    def save(self, name: str) -> None:
        """Copy the bucket of the cluster, and empty it."""
        self._store.copy_bucket(_PLACE, name)
        self._store.remove_bucket(_PLACE)
        self._store.bucket(_PLACE)

    def restore(self, name: str) -> None:
        """Copy the bucket of a saved copy."""
        self._store.copy_bucket(name, _PLACE)


@contextmanager
def new_storage(kind: StorageKind) -> Iterator[Storage]:
    """Yield an empty storage of a kind, which is removed when the block ends."""
    within = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(
        prefix="sparklog-damage-", dir=within, ignore_cleanup_errors=True
    ) as folder:
        if kind == "folder":
            yield Folder(Path(folder))
        else:
            with running_store(Path(folder, "server.log")) as store:
                yield Buckets(store)
