"""The options that name the cluster that a command acts on, and the connection to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from sparklog.errors import AccessDeniedError, ConfigError, StorageError
from sparklog.storage.location import Location, StorageOptions

if TYPE_CHECKING:
    from sparklog.cluster.connection import Connection
    from sparklog.config import Settings

_CLUSTER = typer.Option(
    "--cluster",
    envvar="SPARKLOG_CLUSTER",
    metavar="URI",
    help="The cluster's root, a path or URI, or a configuration file (*.yaml) that names it.",
)

ClusterOption = Annotated[str, _CLUSTER]
OptionalClusterOption = Annotated[str | None, _CLUSTER]


StorageOptionsOption = Annotated[
    str | None,
    typer.Option(
        "--storage-options",
        envvar="SPARKLOG_STORAGE_OPTIONS",
        metavar="JSON",
        help="Options of object stores by URI prefix, which take precedence over those of a "
        "configuration file. Secrets are references: ${NAME} or ${file:/path}.",
    ),
]

given_storage_options: ContextVar[str | None] = ContextVar("given_storage_options", default=None)
"""The storage options of the command that runs."""


class Cluster(NamedTuple):
    """A cluster as the command line names it: its root, and a configuration file's settings."""

    root: str
    storage_options: StorageOptions
    settings: Settings | None

    def __repr__(self) -> str:
        """Leave out the storage options, which may contain credentials."""
        return f"Cluster({self.root!r})"

    @classmethod
    def of(cls, text: str) -> Cluster:
        """Return the cluster whose root, or whose configuration file, is `text`.

        Raises `ConfigError` if `text` is empty, if the file is missing or not usable, or if
        --storage-options is not usable.
        """
        from sparklog.cluster.naming import named_cluster

        if not text.strip():
            raise ConfigError("--cluster is empty: name a cluster's root or configuration file")
        named = named_cluster(text, given_storage_options.get())
        return cls(named.root, named.storage_options, named.settings)

    def location(self, uri: str | None = None) -> Location:
        """Return the location at `uri`, by default that of the cluster's root."""
        from sparklog.storage.location import Location

        return Location.of(uri or self.root, self.storage_options)

    def connect(self) -> Connection:
        """Connect to the cluster; raises `StorageError` if it is missing or unreachable."""
        from sparklog.cluster.connection import Connection

        with reaching(self.root):
            return Connection(self.root, storage_options=self.storage_options)


@contextmanager
def reaching(uri: str) -> Iterator[None]:
    """Convert a failure of the store behind `uri` into a `StorageError` of one sentence."""
    import pyarrow as pa

    from sparklog.storage.errors import STORE_ERRORS

    try:
        yield
    except AccessDeniedError:
        raise
    except (*STORE_ERRORS, pa.ArrowException) as error:
        raise StorageError(f"{uri} cannot be reached: {_plain(error)}") from error


def _plain(error: Exception) -> str:
    """Return an error's text without delta-rs's colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", str(error))
