"""Administration: creating and describing topics, electing leaders by hand, ending brokers."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.broker.abandoned_topics import with_known_topics
from sparklog.broker.election import Elections, ElectionType
from sparklog.clients.arguments import numbers_list, partition_names, whole_number
from sparklog.clients.broker_admin import BrokerAdmin, BrokerDescription
from sparklog.clients.connection import Connection, connection_of
from sparklog.clients.topic_creation import store_topic
from sparklog.clock import Clock, SystemClock
from sparklog.config import Settings, TopicConfig, parse
from sparklog.errors import ConfigError, ProtocolError, SparklogError
from sparklog.model import TopicIdPartition, check_topic_name, new_id
from sparklog.protocol.placement import place_replicas
from sparklog.storage.metadata import Metadata, PartitionState, TopicInfo
from sparklog.storage.shard_rewrites import RowChanges


class TopicDescription(NamedTuple):
    """A topic as Kafka's tool describes it; `str()` gives the tool's text."""

    topic: TopicInfo
    partitions: tuple[PartitionState, ...]

    def __str__(self) -> str:
        configs = self.topic.config.model_dump(by_alias=True, exclude_none=True)
        listed = ",".join(f"{key}={_text(value)}" for key, value in sorted(configs.items()))
        lines = [
            (
                f"Topic: {self.topic.topic}\tTopicId: {self.topic.topic_id}\t"
                f"PartitionCount: {self.topic.partitions}\t"
                f"ReplicationFactor: {self.topic.replication_factor}\tConfigs: {listed}"
            )
        ]
        for state in self.partitions:
            replicas = [one.broker_id for one in state.replicas]
            isr = [one.broker_id for one in state.replicas if one.in_isr]
            elr = [one.broker_id for one in state.replicas if one.in_elr]
            lines.append(
                f"\tTopic: {state.topic}\tPartition: {state.partition}\t"
                f"Leader: {'none' if state.leader is None else state.leader}\t"
                f"Replicas: {_list(replicas)}\tIsr: {_list(isr)}\tElr: {_list(elr)}\t"
                # Kafka's memory of who led before the ISR emptied, which it never does here.
                "LastKnownElr: "
            )
        return "\n".join(lines)


class Admin:
    """Administers a cluster through its tables; the brokers need not be at hand.

    Parameters: `settings`, those of the cluster; left out, a new topic takes min.insync.replicas
    from the controller.
    """

    def __init__(
        self,
        connection: Connection | str | os.PathLike[str],
        *,
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._connection = connection_of(connection)
        self._settings = settings or Settings()
        self._knows_settings = settings is not None
        self._clock = clock or SystemClock()
        self._elections = Elections(self._connection.rules, self._settings)
        self._brokers = BrokerAdmin(self._connection, self._elections, self._settings, self._clock)

    def create_topic(
        self,
        topic: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        *,
        assignment: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, Any] | None = None,
    ) -> TopicDescription:
        """Create a topic: its replicas are placed, its leaders elected (rules 7.4, 7.5).

        Parameters: `partitions`, `replication_factor`, the cluster's defaults where left out;
        `assignment`, the brokers of each partition, the preferred leader first, instead of
        Kafka's placement; `configs`, Kafka's topic keys. Raises `ProtocolError` with Kafka's code
        and `ConfigError`; nothing is created then. Of several admins that create one topic at the
        same time one succeeds, the others raise TOPIC_ALREADY_EXISTS.
        """
        check_topic_name(topic)
        if configs is not None and not isinstance(configs, Mapping):
            raise ConfigError(f"configs of topic {topic} are a dict of its keys, not {configs!r}")
        if partitions is not None:
            partitions = whole_number(partitions, "partitions")
        if replication_factor is not None:
            replication_factor = whole_number(replication_factor, "replication_factor")
        config = parse(TopicConfig, configs or {}, f"topic {topic}")
        metadata = self._connection.metadata()
        live = {one.broker_id: one.rack for one in metadata.brokers.values() if one.is_alive}
        if assignment is None:
            placed = place_replicas(
                live,
                self._settings.num_partitions if partitions is None else partitions,
                self._settings.default_replication_factor
                if replication_factor is None
                else replication_factor,
            )
        else:
            placed = _checked_assignment(assignment, partitions, replication_factor, live, metadata)
        topic_id = new_id()
        min_isr = config.min_insync_replicas
        if min_isr is None and self._knows_settings:
            min_isr = self._settings.min_insync_replicas
        rows = _partition_rows(topic_id, topic, placed, live, metadata, min_isr)
        entry = {
            "topic_id": topic_id,
            "topic": topic,
            "partitions": len(placed),
            "replication_factor": len(placed[0]),
            "configs": json.dumps(config.model_dump(by_alias=True, exclude_none=True)),
            "state": "live",
            "created_at_ms": self._clock.now_ms(),
        }
        store_topic(self._connection.root, entry, rows, config.min_insync_replicas)
        return self.describe_topic(topic)

    def elect_leaders(
        self, election_type: ElectionType, partitions: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], str]:
        """Elect leaders by hand, at once (rules 7.5, 7.6).

        Parameters: `election_type`, "preferred" gives the first assigned replica its leadership
        back, "unclean" lets any live replica lead what is offline, at the price of its committed
        records; `partitions`, (topic, partition) each. Returns Kafka's error name for each: NONE,
        ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE.
        """
        if election_type not in ("preferred", "unclean"):
            raise ProtocolError(
                "INVALID_REQUEST",
                f"an election is 'preferred' or 'unclean', not {election_type!r}",
            )
        before = self._connection.metadata()
        asked: dict[TopicIdPartition, tuple[str, int]] = {
            before.partition(*name).key: name for name in partition_names(partitions)
        }

        def decide(rows: pa.Table) -> RowChanges | None:
            metadata = self._connection.metadata()
            if election_type == "preferred":
                elect = partial(self._elections.elect_preferred, partitions=asked)
            else:
                elect = partial(self._elections.elect, unclean=asked)
            return with_known_topics(rows, metadata, elect)

        self._connection.root.partition_state.change_rows(decide, asked)
        after = self._connection.metadata()
        return {
            partition: _election_error(election_type, before.partitions[key], after.partitions[key])
            for key, partition in asked.items()
        }

    def describe_topic(self, topic: str) -> TopicDescription:
        """Describe a topic; UNKNOWN_TOPIC_OR_PARTITION where there is none of this name."""
        metadata = self._connection.metadata()
        found = metadata.topic(topic)
        states = [state for key, state in metadata.partitions.items() if key[0] == found.topic_id]
        return TopicDescription(found, tuple(sorted(states, key=lambda state: state.partition)))

    def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return sorted(topic.topic for topic in self._connection.metadata().topics.values())

    def list_brokers(self) -> list[BrokerDescription]:
        """Return the registered brokers, by id, and in how many partitions each leads."""
        return self._brokers.list_brokers()

    def fence_broker(self, broker_id: int) -> None:
        """Fence a broker that does not run: it leaves in-sync sets, and others lead what it led.

        Waits for broker.session.timeout.ms where its row says that it is alive. Raises
        BROKER_ID_NOT_REGISTERED, and INVALID_REQUEST where it runs.
        """
        self._brokers.fence(broker_id)

    def unregister_broker(self, broker_id: int, *, force: bool = False) -> int:
        """Unregister a broker that does not run; return how many replicas stay assigned to it.

        Raises as `fence_broker` does, and INELIGIBLE_REPLICA where it has a partition's only
        replica that is in sync; with `force` the records that it alone has are given up.
        """
        return self._brokers.unregister(broker_id, force=force)


def _election_error(
    election_type: ElectionType, before: PartitionState, after: PartitionState
) -> str:
    """Say with Kafka's name what came of an election by hand."""
    if after.leader_epoch != before.leader_epoch and after.leader is not None:
        return "NONE"
    if election_type == "unclean":
        is_led = after.leader is not None
        return "ELECTION_NOT_NEEDED" if is_led else "ELIGIBLE_LEADERS_NOT_AVAILABLE"
    is_preferred = after.leader == after.replicas[0].broker_id
    return "ELECTION_NOT_NEEDED" if is_preferred else "PREFERRED_LEADER_NOT_AVAILABLE"


def _checked_assignment(
    assignment: Mapping[int, Sequence[int]],
    partitions: int | None,
    replication_factor: int | None,
    live: Mapping[int, str | None],
    metadata: Metadata,
) -> dict[int, list[int]]:

    def refuse(reason: str) -> ProtocolError:
        return ProtocolError("INVALID_REPLICA_ASSIGNMENT", f"the assignment {reason}")

    try:
        placed = {
            whole_number(partition, "a partition's number"): numbers_list(brokers, "brokers")
            for partition, brokers in assignment.items()
        }
    except (AttributeError, SparklogError):
        raise refuse(
            f"is a dict of brokers by partition, such as {{0: [1, 2, 3]}}, not {assignment!r}"
        ) from None

    if sorted(placed) != list(range(len(placed))) or not placed:
        raise refuse(f"must number its partitions from 0 without a gap, not {sorted(placed)}")
    if partitions is not None and partitions != len(placed):
        raise refuse(f"has {len(placed)} partitions, but {partitions} were asked for")
    sizes = {len(brokers) for brokers in placed.values()}
    if len(sizes) != 1 or 0 in sizes:
        raise refuse("must give every partition the same number of replicas, at least one")
    if replication_factor is not None and sizes != {replication_factor}:
        raise refuse(f"has {sizes.pop()} replicas, but {replication_factor} were asked for")
    for partition, brokers in placed.items():
        if len(set(brokers)) < len(brokers):
            raise refuse(f"names a broker twice for partition {partition}: {brokers}")
        known = {one.broker_id for one in metadata.brokers.values() if one.is_registered}
        unknown = sorted(set(brokers) - known)
        if unknown:
            raise refuse(f"names broker {unknown[0]}, which is not registered")
        if not set(brokers) & live.keys():
            raise refuse(f"leaves partition {partition} without a live broker: {brokers}")
    return placed


def _partition_rows(
    topic_id: str,
    topic: str,
    placed: Mapping[int, Sequence[int]],
    live: Mapping[int, str | None],
    metadata: Metadata,
    min_isr: int | None,
) -> list[dict[str, Any]]:
    rows = []
    loads = dict.fromkeys(metadata.brokers, 0)
    for state in metadata.partitions.values():
        for one in state.replicas:
            loads[one.broker_id] = loads.get(one.broker_id, 0) + 1
    for partition, brokers in placed.items():
        leader = next(broker for broker in brokers if broker in live)
        for index, broker in enumerate(brokers):
            # A broker's log directories take turns.
            online = list(metadata.brokers[broker].online_roots)
            root = online[loads[broker] % len(online)]
            loads[broker] += 1
            rows.append(
                {
                    "topic_id": topic_id,
                    "topic": topic,
                    "partition": partition,
                    "broker_id": broker,
                    "root": root,
                    "replica_index": index,
                    "in_isr": broker in live,
                    "in_elr": False,
                    "adding": False,
                    "removing": False,
                    "leader": leader,
                    "leader_broker_epoch": metadata.brokers[leader].broker_epoch,
                    "leader_epoch": 0,
                    "partition_epoch": 0,
                    "controller_epoch": 0,
                    "min_isr": min_isr,
                }
            )
    return rows


def _list(broker_ids: Sequence[int]) -> str:
    return ",".join(map(str, broker_ids))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
