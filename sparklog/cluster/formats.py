"""The formats of roots that a release knows, and the refusal of others.

Every root names its format in its table `format`. Of a running process, the cluster root's format
is announced in the table `brokers`, which each process follows anyway.
"""

from __future__ import annotations

from typing import NamedTuple

import sparklog
from sparklog import model
from sparklog.errors import NewerFormatError, StorageError
from sparklog.storage.location import Location

FORMAT_WITH_SEEN_VERSIONS = 3
"""The first format in which commits of journals carry the versions that their broker has seen."""

FORMAT_WITH_ACTIVITY = 3
"""The first format in which commits of journals carry what their broker does."""


class Formats(NamedTuple):
    """The formats that a release reads and writes, from `oldest` to `newest`.

    Two releases run together in a cluster whose format both know. `release` is for messages.
    """

    oldest: int
    newest: int
    release: str

    def check(self, root: Location, found: int) -> None:
        """Raise an error if the release does not know the format of `root`.

        It is a `NewerFormatError` for a later format, and a `StorageError` for one that is too old.
        """
        knows = f"{root.uri} has format {found}, and sparklog {self.release} knows formats "
        knows += f"{self.oldest} to {self.newest}"
        if found > self.newest:
            raise NewerFormatError(
                f"{knows}: start the release that upgraded the cluster, or a later one"
            )
        if found < self.oldest:
            raise StorageError(
                f"{knows}: first upgrade the cluster by a release that knows format {found}"
            )


THIS_RELEASE = Formats(model.OLDEST_SCHEMA_VERSION, model.SCHEMA_VERSION, sparklog.__version__)
"""The formats that this release knows."""
