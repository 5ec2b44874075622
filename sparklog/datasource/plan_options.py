"""The options that name a cluster in Spark's plans: no secret is written out in them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sparklog.cluster.naming import ClusterName, named_cluster
from sparklog.datasource.given_options import STORAGE_OPTIONS
from sparklog.errors import ConfigError
from sparklog.storage.location import StorageOptions
from sparklog.storage.references import literal_secrets


def cluster_options(
    cluster: ClusterName, *, storage_options: StorageOptions | None = None
) -> dict[str, str]:
    """Return the options of `format("sparklog")` that name a cluster.

    They replace the cluster's configuration file where Spark cannot read it: with Spark Connect,
    the server would read the file.

    Parameters
    ----------
    cluster : str or os.PathLike
        The path or URI of the cluster root, or its configuration file (*.yaml).
    storage_options : dict of str to dict, optional
        The options of object stores by URI prefix; see `Connection`.

    Returns
    -------
    dict of str to str
        The options `cluster` and, if there are storage options, `storageOptions`.

    Raises
    ------
    ConfigError
        The file is not usable, or a credential is written out, which Spark's UI would show.

    Examples
    --------
    >>> from sparklog import cluster_options
    >>> options = cluster_options("conf/cluster.yaml")
    >>> reader = spark.read.format("sparklog").options(**options)
    >>> reader.option("subscribe", "clicks").load().count()
    3
    """
    named = named_cluster(cluster, storage_options)
    check_no_secret(named.storage_options)
    options = {"cluster": named.root}
    if named.storage_options:
        options[STORAGE_OPTIONS] = json.dumps(named.storage_options)
    return options


def check_plan_options(options: Mapping[str, str]) -> None:
    """Raise `ConfigError` if the options of a DataFrame have a credential that is written out."""
    for name, value in options.items():
        if name.lower() == STORAGE_OPTIONS.lower():
            check_no_secret(named_cluster("", value).storage_options)


def check_no_secret(storage_options: StorageOptions) -> None:
    """Raise `ConfigError` if storage options have a credential that is written out."""
    for prefix, options in storage_options.items():
        literal = literal_secrets(options)
        if literal:
            raise ConfigError(
                f"the storage option {literal[0]} of {prefix} is a secret, and Spark's UI would "
                "show it in the query's plan: refer to an environment variable, as ${NAME}"
            )
