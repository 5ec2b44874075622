"""Given options: names are checked, and unsupported ones are refused by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from sparklog.errors import ConfigError

if TYPE_CHECKING:
    from sparklog.cluster.naming import NamedCluster

STORAGE_OPTIONS = "storageOptions"
"""The option with the storage options of a cluster, as JSON."""

_Value = TypeVar("_Value")


class GivenOptions:
    """The options that were given, by canonical name; names are case-insensitive, as in Spark.

    Parameters: `known`, the supported options in their spelling; `instead`, the alternatives to
    unsupported options, by name in lower case. Raises `ConfigError` for options that are not known.
    """

    def __init__(
        self, options: Mapping[str, str], known: Sequence[str], instead: Mapping[str, str]
    ) -> None:
        canonical = {name.lower(): name for name in known}
        for name in options:
            if name.lower() not in canonical:
                raise ConfigError(_refusal(name, known, instead))
        self._values = {canonical[name.lower()]: value for name, value in options.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str:
        """Return an option's value; `ConfigError` if it is empty."""
        value = self._values[name].strip()
        if not value:
            raise ConfigError(f"option {name} is empty: give it a value or leave it out")
        return value

    def get(self, name: str, read: Callable[[str, str], _Value], default: _Value) -> _Value:
        """Return an option's value as converted by `read`, or `default` if it is not given."""
        return read(self.text(name), name) if name in self else default

    def cluster(self) -> NamedCluster:
        """Return the cluster that the options name; `ConfigError` if it is missing or not usable.

        A configuration file is read here, where the query is planned, and not by Spark's tasks.
        """
        # Imported only here: the modules of options are loaded by each task.
        from sparklog.cluster.naming import named_cluster

        if "cluster" not in self:
            raise ConfigError(
                "option cluster is missing: name the cluster's root (a path or URI) or its "
                "configuration file (*.yaml)"
            )
        options = self.text(STORAGE_OPTIONS) if STORAGE_OPTIONS in self else None
        return named_cluster(self.text("cluster"), options)


def _refusal(name: str, known: Sequence[str], instead: Mapping[str, str]) -> str:
    lower = name.lower()
    if lower in instead:
        return f"option {name} is not supported: {instead[lower]}"
    if lower.startswith("kafka."):
        return (
            f"option {name} is not supported, since no Kafka client is used: leave it out, or use "
            "the option of format('sparklog') for the same purpose"
        )
    canonical = {one.lower(): one for one in known}
    close = difflib.get_close_matches(lower, list(canonical), n=1)
    hint = (
        f"did you mean {canonical[close[0]]}?" if close else f"known options are {', '.join(known)}"
    )
    return f"option {name} is unknown: {hint}"
