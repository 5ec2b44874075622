"""The ways to name a cluster: its root, its configuration file, and options of object stores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparklog.config import Settings, is_configuration_file, load_either, parse_storage_options
from sparklog.errors import ConfigError, SparklogError
from sparklog.storage.json_text import json_value

if TYPE_CHECKING:
    from sparklog.storage.location import StorageOptions

ClusterName = str | os.PathLike[str]
"""The path or URI of a cluster root, or the path of a configuration file (*.yaml, *.yml)."""


@dataclass(frozen=True)
class NamedCluster:
    """A cluster: the path or URI of its root, its storage options, and the file's settings.

    The representation has no storage options, since they may contain credentials.
    """

    root: str
    storage_options: StorageOptions = field(default_factory=dict, repr=False)
    settings: Settings | None = field(default=None, repr=False)


def named_cluster(
    cluster: ClusterName, storage_options: Mapping[str, object] | str | None = None
) -> NamedCluster:
    """Return the cluster that is named by its root or its configuration file.

    `storage_options`, a mapping or its JSON, take precedence over the file's, prefix by prefix.
    Raises `ConfigError` if the file or an option is not usable.
    """
    if not isinstance(cluster, str | os.PathLike):
        raise SparklogError(
            "a cluster is named by its root, a path or URI, or by its configuration file, not by "
            f"{cluster!r}: give one of them or a Connection"
        )
    given = _storage_options(storage_options)
    text = os.fspath(cluster)
    if not is_configuration_file(text):
        return NamedCluster(text, given)
    config = load_either(text)
    return NamedCluster(config.cluster_root, {**config.storage_options, **given}, config)


def _storage_options(given: Mapping[str, object] | str | None) -> StorageOptions:
    if given is None:
        return {}
    if isinstance(given, str):
        try:
            given = json_value(given)
        except ValueError:
            raise ConfigError(
                "the storage options are not JSON: write them like "
                '{"s3://bucket": {"AWS_REGION": "eu-central-1"}}'
            ) from None
    return parse_storage_options(given)
