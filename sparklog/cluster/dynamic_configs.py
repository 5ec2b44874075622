"""Settings of brokers and quotas of clients that change while they run: the table `configs`.

A change is one commit of `configs`, and then its announcement: the version of that commit, as an
app transaction of `brokers`. Every process follows `brokers` anyway, so a process without news
sends no request for them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Final, Literal

import pyarrow as pa

from sparklog.cluster.roots import ClusterRoot
from sparklog.errors import CommitConflictError
from sparklog.model import CONFIGS
from sparklog.storage.commit_retries import retrying
from sparklog.storage.commits import CONFIGS_VERSION, Cause
from sparklog.storage.control_table import ControlTable

EntityType = Literal["brokers", "clients"]
"""Kafka's names of what has settings, except topics, which have theirs in `topics`."""

DEFAULT_ENTITY: Final = "<default>"
"""The name under which the settings of all entities of a type are stored, as in Kafka."""

DYNAMIC_BROKER_KEYS: Final = frozenset(
    {
        "log.cleanup.policy",
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.delete.retention.ms",
        "log.cleaner.max.compaction.lag.ms",
        "log.cleaner.min.cleanable.ratio",
        "log.cleaner.min.compaction.lag.ms",
        "log.retention.bytes",
        "log.retention.ms",
        "message.max.bytes",
        "min.insync.replicas",
        "producer.id.expiration.ms",
        "unclean.leader.election.enable",
    }
)
"""The keys of `Settings` that Kafka's brokers take while they run (cluster-wide and per broker)."""

CLUSTER_WIDE_KEYS: Final = frozenset({"min.insync.replicas", "unclean.leader.election.enable"})
"""The keys that no single broker may set: the controller decides by them for all partitions."""

Configs = Mapping[str, str]
"""Values by Kafka's key, as text."""


class DynamicConfigs:
    """The stored settings, as this process has loaded them. May be used from any thread."""

    def __init__(self, cluster: ClusterRoot) -> None:
        self._cluster = cluster
        self._announced: int | None = None
        self._lock = threading.Lock()
        self._configs: dict[tuple[str, str], Configs] = {}

    def refresh(self) -> bool:
        """Load the settings if a change was announced since; return whether one was.

        Reads the announcement in `brokers` as that table was loaded last.
        """
        announced = self._cluster.brokers.transaction(CONFIGS_VERSION)
        if announced == self._announced:
            return False
        with self._lock:
            self._configs = stored_configs(self._cluster)
            self._announced = announced
        return True

    def of(self, entity_type: EntityType, entity_name: str) -> Configs:
        """Return the values that an entity sets; none if it sets none."""
        return self._configs.get((entity_type, entity_name), {})


def stored_configs(cluster: ClusterRoot) -> dict[tuple[str, str], Configs]:
    """Read the values of all entities, by entity type and name.

    Costs nothing if none was ever announced in `brokers`, as that table was loaded last.
    """
    if cluster.brokers.transaction(CONFIGS_VERSION) is None:
        return {}
    cluster.configs.refresh()
    rows = cluster.configs.rows().to_pylist()
    return {(row["entity_type"], row["entity_name"]): json.loads(row["configs"]) for row in rows}


def change_configs(
    cluster: ClusterRoot,
    entity_type: EntityType,
    entity_name: str,
    changed: Callable[[Configs], Configs],
    now_ms: int,
) -> None:
    """Change the values of an entity, and announce that; `changed` raises to refuse the change.

    If the process ends in between, running processes learn of the change with the next one, which
    may be the same once more.
    """

    def change(rows: pa.Table) -> tuple[pa.Table | None, None]:
        found = {(row["entity_type"], row["entity_name"]): row for row in rows.to_pylist()}
        of = entity_type, entity_name
        before = json.loads(found[of]["configs"]) if of in found else {}
        after = changed(before)
        if after == before:
            return None, None
        found.pop(of, None)
        if after:
            found[of] = {
                "entity_type": entity_type,
                "entity_name": entity_name,
                "configs": json.dumps(dict(sorted(after.items()))),
                "changed_at_ms": now_ms,
            }
        return CONFIGS.rows([found[one] for one in sorted(found)]), None

    of = {"entityType": entity_type, "entityName": entity_name}
    cluster.configs.update(change, cause=Cause("ALTER CONFIGS", of))
    _announce(cluster.brokers, cluster.configs.version)


def _announce(brokers: ControlTable, version: int) -> None:
    def attempt() -> None:
        brokers.refresh()
        if (brokers.transaction(CONFIGS_VERSION) or 0) < version:
            brokers.compare_and_set(
                brokers.rows(), None, {CONFIGS_VERSION: version}, Cause("ANNOUNCE CONFIGS")
            )

    retrying(CommitConflictError)(attempt)


def byte_rate_of(
    configs: DynamicConfigs,
    client_id: str,
    key: Literal["producer_byte_rate", "consumer_byte_rate"],
) -> int | None:
    """Return a quota of a client id in bytes per second: its own, or that of all client ids.

    `None` without one, and for a value that this release does not know.
    """
    shared = configs.of("clients", DEFAULT_ENTITY).get(key)
    value = configs.of("clients", client_id).get(key, shared) if client_id else shared
    return int(value) if value is not None and value.isdecimal() and int(value) > 0 else None
