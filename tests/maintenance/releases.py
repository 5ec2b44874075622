"""Clusters whose brokers are of several releases, simulated by the formats that they know."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparklog.broker.broker import Broker
from sparklog.cluster.formats import THIS_RELEASE, Formats
from sparklog.cluster.root_format import create_root
from sparklog.model import CLUSTER_TABLES, OLDEST_SCHEMA_VERSION, TableSchema, new_id
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster

EARLIER = Formats(1, OLDEST_SCHEMA_VERSION, "0.0.9")
"""The release before this one."""

LATER = Formats(THIS_RELEASE.newest, THIS_RELEASE.newest + 1, "0.2.0")
"""The release after this one."""


class MixedCluster(LocalCluster):
    """A local cluster in which each broker is of the release that `formats` names for it."""

    def __init__(self, root: Path, formats: dict[int, Formats], **config: Any) -> None:
        self.formats = formats
        super().__init__(root, list(formats), config=config)

    def _start(self, broker_id: int) -> None:
        self.brokers[broker_id] = Broker(
            broker_id,
            self.location(),
            [self.location(broker_id)],
            rules=self._rules,
            execution=self._execution,
            clock=self.clock,
            settings=self.settings,
            observations=self._observations,
            formats=self.formats[broker_id],
        )

    def upgrade_broker(self, broker_id: int, formats: Formats) -> None:
        """Stop a broker, and start it with another release."""
        self.brokers[broker_id].park()
        self.crash(broker_id)
        self.formats[broker_id] = formats
        self.restart(broker_id)
        self.tick_until_idle()


def earlier_cluster_root(location: Location, left_out: Sequence[str] = ()) -> None:
    """Create a cluster root as the release before this one did.

    It has neither the columns that later formats add, nor the tables `left_out`.
    """
    tables = [_without_added(one) for one in CLUSTER_TABLES if one.name not in left_out]
    create_root(location, tables, new_id(), None, OLDEST_SCHEMA_VERSION)


def _without_added(schema: TableSchema) -> TableSchema:
    columns = schema.columns
    for name in schema.added:
        columns = columns.remove(columns.get_field_index(name))
    return schema._replace(columns=columns)
