"""The filters of `sparklog topics` by a partition's health, as those of kafka-topics.sh."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.errors import ConfigError

if TYPE_CHECKING:
    from sparklog.cluster.admin import Admin
    from sparklog.cluster.metadata import PartitionState

UnderReplicated = Annotated[
    bool,
    typer.Option(
        "--under-replicated-partitions", help="Only partitions with replicas that are not in sync."
    ),
]
UnderMinIsr = Annotated[
    bool,
    typer.Option(
        "--under-min-isr-partitions",
        help="Only partitions with fewer in-sync replicas than min.insync.replicas.",
    ),
]
AtMinIsr = Annotated[
    bool,
    typer.Option(
        "--at-min-isr-partitions",
        help="Only partitions with exactly min.insync.replicas in-sync replicas.",
    ),
]
Unavailable = Annotated[
    bool, typer.Option("--unavailable-partitions", help="Only partitions without a live leader.")
]


class Health(Enum):
    """The kinds of partitions that an operator searches for; the values are the options."""

    UNDER_REPLICATED = "--under-replicated-partitions"
    UNDER_MIN_ISR = "--under-min-isr-partitions"
    AT_MIN_ISR = "--at-min-isr-partitions"
    UNAVAILABLE = "--unavailable-partitions"

    @classmethod
    def chosen(cls, given: Mapping[Health, bool]) -> Health | None:
        """Return the given filter, if any; raises `ConfigError` for several, as Kafka's tool."""
        chosen = [one for one, is_given in given.items() if is_given]
        if len(chosen) > 1:
            names = " and ".join(one.value for one in chosen)
            raise ConfigError(f"{names} are given: give one of them")
        return chosen[0] if chosen else None


class PartitionFilter:
    """Keeps the partitions of one kind; the live brokers are loaded once."""

    def __init__(self, admin: Admin, health: Health) -> None:
        self._admin = admin
        self._health = health
        self._live = {one.broker.broker_id for one in admin.list_brokers() if one.broker.is_alive}

    def of_topic(self, partitions: tuple[PartitionState, ...]) -> tuple[PartitionState, ...]:
        """Return those of a topic's partitions that are of the kind."""
        return tuple(one for one in partitions if self._keeps(one))

    def _keeps(self, state: PartitionState) -> bool:
        in_sync = len(state.isr)
        if self._health is Health.UNAVAILABLE:
            return state.leader not in self._live
        if self._health is Health.UNDER_REPLICATED:
            # As in Kafka, without the replicas that are being added.
            return in_sync < sum(not one.adding for one in state.replicas)
        if self._health is Health.UNDER_MIN_ISR:
            return state.leader is None or in_sync < self._min_isr(state)
        return state.leader is not None and in_sync == self._min_isr(state)

    def _min_isr(self, state: PartitionState) -> int:
        if state.min_isr is not None:
            return state.min_isr
        # No controller has published it since the topic was created.
        return int(self._admin.describe_configs(state.topic)["min.insync.replicas"].value or 1)
