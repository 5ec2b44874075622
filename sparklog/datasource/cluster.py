"""The `cluster` option: which cluster is read, and how its stores are reached."""

from __future__ import annotations

import re
from pathlib import Path

from sparklog.clients.connection import Connection
from sparklog.config import BrokerConfig, ClusterConfig, load


def connect(cluster: str) -> Connection:
    """Connect to the cluster whose root (a path or URI) or configuration file is `cluster`.

    A configuration file ends in .yaml or .yml; it says which options the stores need. Raises
    `ConfigError` where it is not usable, `StorageError` where there is no cluster.
    """
    if not cluster.endswith((".yaml", ".yml")):
        return Connection(cluster)
    file = Path(cluster)
    config: BrokerConfig | ClusterConfig
    config = load(BrokerConfig, file) if _is_of_one_broker(file) else load(ClusterConfig, file)
    return Connection(config.cluster_root, storage_options=config.storage_options)


def _is_of_one_broker(file: Path) -> bool:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return re.search(r"^broker\.id\s*:", text, re.MULTILINE) is not None
