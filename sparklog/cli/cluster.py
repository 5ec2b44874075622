"""The `--cluster` option: the cluster that a command acts on, and the connection to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from sparklog.errors import ConfigError, StorageError
from sparklog.storage.location import Location, StorageOptions

if TYPE_CHECKING:
    from sparklog.cluster.connection import Connection
    from sparklog.config import Settings

ClusterOption = Annotated[
    str,
    typer.Option(
        "--cluster",
        envvar="SPARKLOG_CLUSTER",
        metavar="URI",
        help="The cluster's root, a path or URI, or a configuration file (*.yaml) that names it.",
    ),
]


class Cluster(NamedTuple):
    """A cluster as the command line names it: its root, and a configuration file's settings."""

    root: str
    storage_options: StorageOptions
    settings: Settings | None

    @classmethod
    def of(cls, text: str) -> Cluster:
        """Return the cluster whose root, or whose configuration file, is `text`.

        Raises `ConfigError` if `text` is empty, or if the file is missing or not usable.
        """
        from sparklog.config import is_configuration_file, load_either

        if not text.strip():
            raise ConfigError("--cluster is empty: name a cluster's root or configuration file")
        if not is_configuration_file(text):
            return cls(text, {}, None)
        config = load_either(text)
        return cls(config.cluster_root, config.storage_options, config)

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
    except (*STORE_ERRORS, pa.ArrowException) as error:
        raise StorageError(f"{uri} cannot be reached: {_plain(error)}") from error


def _plain(error: Exception) -> str:
    """Return an error's text without delta-rs's colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", str(error))
