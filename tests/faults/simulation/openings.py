"""Opening a Delta table once for each content of its log: a third of a simulation's time otherwise.

What delta-rs reads is determined by the files of the log, and the simulated failures are not among
its reads. The content is compared, since repairs and flipped bits change files in place.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from deltalake import DeltaTable

from sparklog.storage import delta_snapshots
from sparklog.storage.location import Location
from tests.faults.simulation.simulated_store import ROOT

_KEPT = 1_000
"""The number of opened tables that are kept; a cluster has about 60, each in several versions."""


class Openings:
    """The tables that processes of a simulation have opened, by the content of their logs.

    Parameters: `root`, the folder that has the objects of a simulated store.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._opened: OrderedDict[bytes, tuple[int, DeltaTable]] = OrderedDict()
        self._open = delta_snapshots.open_in_place

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let the product open each content of a log once."""
        with mock.patch.object(delta_snapshots, "open_in_place", self.open_in_place):
            yield

    def open_in_place(self, table: Location, version: int | None = None) -> DeltaTable:
        """Return the table as `delta_snapshots.open_in_place` does; raises as it does."""
        if not table.is_local:
            table = Location(table.uri.replace(ROOT, str(self._root), 1))
        key = _content_of(table, version)
        version_and_table = self._opened.get(key)
        if version_and_table is not None:
            expected, found = version_and_table
            self._opened.move_to_end(key)
            # A table that delta-rs writes to is brought up to date in place.
            if found.version() == expected:
                return found
        opened = self._open(table, version)
        self._opened[key] = opened.version(), opened
        if len(self._opened) > _KEPT:
            self._opened.popitem(last=False)
        return opened


def _content_of(table: Location, version: int | None) -> bytes:
    """Return a checksum of the files of a table's log."""
    checksum = hashlib.blake2b(f"{table.uri} {version}".encode())
    folder = f"{table.uri}/_delta_log"
    # A Path for each file takes as long as reading it.
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():  # noqa: PTH112, PTH208
        if os.path.isfile(path := f"{folder}/{name}"):  # noqa: PTH113
            with open(path, "rb") as file:  # noqa: PTH123
                content = file.read()
            checksum.update(f"/{name} {len(content)} ".encode())
            checksum.update(content)
    return checksum.digest()
