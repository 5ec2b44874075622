"""Administration: creating and describing topics, electing leaders, fencing brokers."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.clock import Clock, SystemClock
from sparklog.cluster.abandoned_topics import with_known_topics
from sparklog.cluster.arguments import partition_names, whole_number
from sparklog.cluster.assignments import checked_assignment, partition_rows
from sparklog.cluster.broker_admin import BrokerAdmin, BrokerDescription
from sparklog.cluster.config_admin import ConfigAdmin
from sparklog.cluster.connection import Connection, connection_of
from sparklog.cluster.election import Elections, ElectionType, log_changes
from sparklog.cluster.log_dirs import LogDirDescription, LogDirReader
from sparklog.cluster.metadata import PartitionState, TopicInfo
from sparklog.cluster.naming import ClusterName
from sparklog.cluster.reassignment_admin import (
    AddingReplica,
    AlteredReassignment,
    PartitionReassignment,
    ReassignmentAdmin,
)
from sparklog.cluster.record_deletion import DeletedRecords, RecordDeletion
from sparklog.cluster.topic_admin import ConfigEntry, TopicAdmin
from sparklog.cluster.topic_creation import store_topic
from sparklog.config import Settings, TopicConfig, parse
from sparklog.errors import ConfigError, ProtocolError
from sparklog.model import TopicIdPartition, TopicPartition, check_topic_name, new_id
from sparklog.protocol.placement import place_replicas
from sparklog.storage.commits import Cause
from sparklog.storage.location import StorageOptions
from sparklog.storage.shard_rewrites import RowChanges


class TopicDescription(NamedTuple):
    """A topic as Kafka's topic tool describes it; `str()` returns the tool's text.

    Attributes
    ----------
    topic : TopicInfo
        The topic and its own configuration.
    partitions : tuple of PartitionState
        The partitions, by number; none of a topic that is marked for deletion.
    is_marked_for_deletion : bool
        Whether the topic is deleted, and the controller has yet to remove its rows.

    Examples
    --------
    >>> from sparklog import Admin
    >>> description = Admin("sparklog-data/cluster").describe_topic("clicks")
    >>> print(description)
    Topic: clicks TopicId: ... PartitionCount: 2 ReplicationFactor: 3 Configs:...
        Topic: clicks Partition: 0 Leader: ... Replicas: ... Isr: ... Elr:... LastKnownElr:
        Topic: clicks Partition: 1 Leader: ... Replicas: ... Isr: ... Elr:... LastKnownElr:
    """

    topic: TopicInfo
    partitions: tuple[PartitionState, ...]
    is_marked_for_deletion: bool = False

    def __str__(self) -> str:
        configs = self.topic.config.model_dump(by_alias=True, exclude_none=True)
        listed = ",".join(f"{key}={_text(value)}" for key, value in sorted(configs.items()))
        factor = self.topic.replication_factor
        if self.partitions:
            # As in Kafka, without the replicas that are being added.
            factor = sum(not one.adding for one in self.partitions[0].replicas)
        lines = [
            (
                f"Topic: {self.topic.topic}\tTopicId: {self.topic.topic_id}\t"
                f"PartitionCount: {self.topic.partitions}\t"
                f"ReplicationFactor: {factor}\tConfigs: {listed}"
            )
            + ("\tMarkedForDeletion: true" if self.is_marked_for_deletion else "")
        ]
        for state in self.partitions:
            replicas = [one.broker_id for one in state.replicas]
            isr = [one.broker_id for one in state.replicas if one.in_isr]
            elr = [one.broker_id for one in state.replicas if one.in_elr]
            adding = [one.broker_id for one in state.replicas if one.adding]
            removing = [one.broker_id for one in state.replicas if one.removing]
            moving = f"\tAdding Replicas: {_list(adding)}\tRemoving Replicas: {_list(removing)}"
            lines.append(
                f"\tTopic: {state.topic}\tPartition: {state.partition}\t"
                f"Leader: {'none' if state.leader is None else state.leader}\t"
                f"Replicas: {_list(replicas)}\tIsr: {_list(isr)}"
                f"{moving if state.is_reassigning else ''}\tElr: {_list(elr)}\t"
                # Kafka keeps the last leaders here while the ISR is empty. The ISR is never empty
                # here.
                "LastKnownElr: "
            )
        return "\n".join(lines)


class Admin:
    """Administers a cluster through its tables; no broker has to run.

    Parameters
    ----------
    connection : Connection, str or os.PathLike
        The cluster: a connection, the path or URI of its root, or its configuration file (*.yaml).
    settings : Settings, optional
        The cluster's configuration; by default that of the configuration file. Without any, a new
        topic takes min.insync.replicas from the controller, and other settings have Kafka's
        defaults.
    storage_options : dict of str to dict, optional
        The options of object stores by URI prefix, unless `connection` is a Connection; see there.
    clock : Clock, optional
        The source of time; the system's by default.

    Raises
    ------
    ConfigError
        The configuration file or a storage option is not usable.
    StorageError
        There is no cluster at that root.

    Examples
    --------
    >>> from sparklog import Admin
    >>> admin = Admin("sparklog-data/cluster")
    >>> description = admin.create_topic("payments", partitions=2, replication_factor=3)
    >>> [state.isr for state in description.partitions]
    [[0, 1, 2], [0, 1, 2]]
    >>> admin.list_topics()
    ['clicks', 'orders', 'payments']
    """

    def __init__(
        self,
        connection: Connection | ClusterName,
        *,
        settings: Settings | None = None,
        storage_options: StorageOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._connection = connection_of(connection, storage_options)
        settings = settings or self._connection.settings
        self._settings = settings or Settings()
        self._knows_settings = settings is not None
        self._clock = clock or SystemClock()
        self._elections = Elections(self._connection.rules, self._settings)
        self._brokers = BrokerAdmin(self._connection, self._elections, self._settings, self._clock)
        self._topics = TopicAdmin(self._connection, self._elections, settings, self._clock)
        self._reassignments = ReassignmentAdmin(self._connection, self._elections)
        self._configs = ConfigAdmin(self._connection, settings, self._clock)

    def create_topic(
        self,
        topic: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        *,
        assignment: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, Any] | None = None,
    ) -> TopicDescription:
        """Create a topic: place its replicas and elect its leaders (rules 7.4, 7.5).

        If several admins create a topic at the same time, one succeeds and the others raise
        TOPIC_ALREADY_EXISTS. Nothing is created if an error is raised.

        Parameters
        ----------
        topic : str
            The name: letters, digits, `.`, `_` and `-`; 249 characters at most.
        partitions : int, optional
            The number of partitions; the cluster's num.partitions by default.
        replication_factor : int, optional
            The number of replicas of each partition; default.replication.factor by default.
        assignment : dict of int to list of int, optional
            The broker ids of each partition, the preferred leader first, in place of Kafka's
            placement. Then `partitions` and `replication_factor` may be left out.
        configs : dict of str to object, optional
            Kafka's topic keys: min.insync.replicas, max.message.bytes, retention.ms,
            retention.bytes, unclean.leader.election.enable, and producer_byte_rate (bytes per
            second).

        Returns
        -------
        TopicDescription
            The topic as it was created.

        Raises
        ------
        ProtocolError
            TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS,
            INVALID_REPLICATION_FACTOR or INVALID_REPLICA_ASSIGNMENT.
        ConfigError
            A key in `configs` is unknown or has an unusable value.

        Examples
        --------
        >>> created = admin.create_topic(
        ...     "invoices", assignment={0: [2, 0], 1: [1, 2]}, configs={"min.insync.replicas": 1}
        ... )
        >>> [state.leader for state in created.partitions]
        [2, 1]
        """
        check_topic_name(topic)
        if configs is not None and not isinstance(configs, Mapping):
            raise ConfigError(
                f"configs of topic {topic} must be a dict of its keys, not {configs!r}"
            )
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
            placed = checked_assignment(
                topic, assignment, partitions, replication_factor, live, metadata
            )
        topic_id = new_id()
        min_isr = config.min_insync_replicas
        if min_isr is None and self._knows_settings:
            min_isr = self._settings.min_insync_replicas
        rows = partition_rows(topic_id, topic, placed, live, metadata, min_isr)
        entry = {
            "topic_id": topic_id,
            "topic": topic,
            "partitions": len(placed),
            "replication_factor": len(placed[0]),
            "configs": json.dumps(config.model_dump(by_alias=True, exclude_none=True)),
            "state": "live",
            "created_at_ms": self._clock.now_ms(),
        }
        elected = self._elections.elect_first(rows, metadata)
        store_topic(self._connection.root, entry, elected, config.min_insync_replicas)
        return self.describe_topic(topic)

    def create_partitions(
        self,
        topic: str,
        partitions: int,
        *,
        assignment: Mapping[int, Sequence[int]] | None = None,
    ) -> TopicDescription:
        """Raise the number of partitions of a topic.

        Brokers, producers, consumers and streaming queries use the new partitions when they read
        the metadata next. Records with a key may go to another partition than before.

        Parameters
        ----------
        topic : str
            The name of the topic.
        partitions : int
            The new number of partitions, above the current one.
        assignment : dict of int to list of int, optional
            The broker ids of each new partition, by its number, the preferred leader first. By
            default Kafka's placement is continued.

        Returns
        -------
        TopicDescription
            The topic with its new partitions.

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION; INVALID_PARTITIONS if the number is not above the current
            one, or if another process is creating partitions; INVALID_REPLICATION_FACTOR if too few
            brokers are alive; INVALID_REPLICA_ASSIGNMENT.

        Examples
        --------
        >>> grown = admin.create_partitions("invoices", 4, assignment={2: [0, 1], 3: [1, 2]})
        >>> grown.topic.partitions
        4
        """
        self._topics.create_partitions(topic, partitions, assignment)
        return self.describe_topic(topic)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with all of its records, for good.

        Brokers and clients that read the metadata after that do not see it. Its name may be used
        again at once; the new topic has another id. The controller removes its committed
        offsets, and each broker its replicas, also one that does not run now. The files of the
        records stay until a clean-up.

        Parameters
        ----------
        topic : str
            The name of the topic.

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION; TOPIC_DELETION_DISABLED if delete.topic.enable is false.

        Examples
        --------
        >>> admin.delete_topic("invoices")
        >>> "invoices" in admin.list_topics()
        False
        """
        self._topics.delete_topic(topic)

    def list_topics_marked_for_deletion(self) -> list[TopicDescription]:
        """Return the deleted topics whose rows the controller has yet to remove.

        Returns
        -------
        list of TopicDescription
            The topics, by name, without their partitions.
        """
        return [
            TopicDescription(one, (), is_marked_for_deletion=True)
            for one in self._topics.marked_for_deletion()
        ]

    def alter_configs(
        self,
        topic: str,
        configs: Mapping[str, Any] | None = None,
        *,
        delete: Collection[str] = (),
    ) -> None:
        """Change settings of a topic; others stay (Kafka's incrementalAlterConfigs, KIP-339).

        Parameters
        ----------
        topic : str
            The name of the topic.
        configs : dict of str to object, optional
            The keys to set; see `create_topic`. They are valid from the next tick of the brokers
            on.
        delete : collection of str, optional
            The keys to remove, so that the cluster's values are valid again.

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION; INVALID_CONFIG if min.insync.replicas is above the
            replication factor.
        ConfigError
            A key is unknown, is both set and removed, or has an unusable value. Nothing is changed
            then.

        Examples
        --------
        >>> admin.alter_configs("payments", {"min.insync.replicas": 2})
        >>> admin.describe_configs("payments")["min.insync.replicas"].value
        '2'
        """
        self._topics.alter_configs(topic, configs, delete)

    def describe_configs(self, topic: str) -> dict[str, ConfigEntry]:
        """Return all settings of a topic, by key.

        Parameters
        ----------
        topic : str
            The name of the topic.

        Returns
        -------
        dict of str to ConfigEntry
            The value of each key, and its source.

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION.

        Examples
        --------
        >>> admin.describe_configs("payments")["unclean.leader.election.enable"]
        ConfigEntry(name='unclean.leader.election.enable', value='false', source='default', ...)
        """
        return self._topics.describe_configs(topic)

    def alter_broker_configs(
        self,
        broker_id: int | None,
        configs: Mapping[str, Any] | None = None,
        *,
        delete: Collection[str] = (),
    ) -> None:
        """Change settings of a broker, or of all brokers, while they run; others stay.

        Parameters
        ----------
        broker_id : int or None
            The id of the broker; `None` for the default of all brokers.
        configs : dict of str to object, optional
            The keys to set. Brokers take them in their next tick, on an object store within 4 s.
        delete : collection of str, optional
            The keys to remove, so that the values of the next source are valid again: those of all
            brokers, those of the configuration file, Kafka's defaults.

        Raises
        ------
        ProtocolError
            BROKER_ID_NOT_REGISTERED; INVALID_CONFIG if a key is read only at the start, cannot be
            set for one broker, or is to be removed and is not set.
        ConfigError
            A key is unknown, is both set and removed, or has an unusable value. Nothing is changed
            then.

        Examples
        --------
        >>> admin.alter_broker_configs(None, {"log.retention.ms": 86_400_000})
        >>> admin.describe_broker_configs(0)["log.retention.ms"].source
        'dynamic default'
        >>> admin.alter_broker_configs(None, delete=["log.retention.ms"])
        """
        self._configs.alter_broker(broker_id, configs, delete)

    def describe_broker_configs(self, broker_id: int | None = None) -> dict[str, ConfigEntry]:
        """Return all settings of a broker, by key.

        Parameters
        ----------
        broker_id : int, optional
            The id of the broker; `None`, the default, for what is valid for all brokers.

        Returns
        -------
        dict of str to ConfigEntry
            The value of each key, and its source. Values of the configuration file are known only
            if the cluster is named by that file.

        Raises
        ------
        ProtocolError
            BROKER_ID_NOT_REGISTERED.

        Examples
        --------
        >>> admin.describe_broker_configs(0)["log.cleaner.backoff.ms"].value
        '15000'
        """
        return self._configs.describe_broker(broker_id)

    def alter_client_quotas(
        self,
        client_id: str | None,
        quotas: Mapping[str, Any] | None = None,
        *,
        delete: Collection[str] = (),
    ) -> None:
        """Change the quotas of a client id, or of all other client ids, while they run.

        Parameters
        ----------
        client_id : str or None
            The client id (client.id); `None` for the default of all client ids.
        quotas : dict of str to int, optional
            producer_byte_rate, consumer_byte_rate: bytes per second.
        delete : collection of str, optional
            The quotas to remove.

        Raises
        ------
        ProtocolError
            INVALID_CONFIG if a quota is to be removed and is not set.
        ConfigError
            A key is unknown, is both set and removed, or has an unusable value.

        Examples
        --------
        >>> admin.alter_client_quotas("app", {"producer_byte_rate": 1_000_000})
        >>> admin.describe_client_quotas()
        {'app': {'producer_byte_rate': 1000000}}
        >>> admin.alter_client_quotas("app", delete=["producer_byte_rate"])
        """
        self._configs.alter_client_quotas(client_id, quotas, delete)

    def describe_client_quotas(self) -> dict[str | None, dict[str, int]]:
        """Return the quotas by client id; those of `None` are the default of all others.

        Returns
        -------
        dict of (str or None) to dict of str to int
            producer_byte_rate and consumer_byte_rate, where they are set.
        """
        return self._configs.client_quotas()

    def elect_leaders(
        self, election_type: ElectionType, partitions: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], str]:
        """Elect leaders on request, without waiting for the controller (rules 7.5, 7.6; KIP-460).

        Parameters
        ----------
        election_type : {"preferred", "unclean"}
            "preferred" makes the first assigned replica the leader. "unclean" lets any live replica
            lead an offline partition, which may lose committed records.
        partitions : collection of (str, int)
            The partitions, as pairs (topic, number).

        Returns
        -------
        dict of (str, int) to str
            The name of Kafka's error for each partition: NONE, ELECTION_NOT_NEEDED,
            PREFERRED_LEADER_NOT_AVAILABLE or ELIGIBLE_LEADERS_NOT_AVAILABLE.

        Raises
        ------
        ProtocolError
            INVALID_REQUEST for another type of election, UNKNOWN_TOPIC_OR_PARTITION.

        Examples
        --------
        >>> admin.elect_leaders("preferred", [("payments", 0)])
        {TopicPartition(topic='payments', partition=0): 'ELECTION_NOT_NEEDED'}
        """
        if election_type not in ("preferred", "unclean"):
            raise ProtocolError(
                "INVALID_REQUEST",
                f"election_type must be 'preferred' or 'unclean', not {election_type!r}",
            )
        before = self._connection.metadata()
        asked: dict[TopicIdPartition, tuple[str, int]] = {
            before.partition(*name).key: name for name in partition_names(partitions)
        }

        # The causes are noted where leaders are elected; this is the administrator's own.
        cause = Cause("ELECT LEADERS", {"cause": "requested", "electionType": election_type})

        def decide(rows: pa.Table) -> RowChanges | None:
            metadata = self._connection.metadata()
            if election_type == "preferred":
                elect = partial(self._elections.elect_preferred, partitions=asked)
            else:
                elect = partial(self._elections.elect, unclean=asked)
            return with_known_topics(rows, metadata, elect)

        partition_state = self._connection.root.partition_state
        log_changes(partition_state.change_rows(decide, asked, cause=cause))
        after = self._connection.metadata()
        return {
            partition: _election_error(election_type, before.partitions[key], after.partitions[key])
            for key, partition in asked.items()
        }

    def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int] | None],
        *,
        throttle: int | None = None,
    ) -> dict[TopicPartition, AlteredReassignment]:
        """Move partitions to other brokers, or cancel that (KIP-455).

        New replicas begin empty and copy the leader's log. When all replicas of the target are in
        sync, the controller ends the reassignment and brokers remove the other replicas. A new
        target replaces the one of a reassignment in progress.

        Parameters
        ----------
        reassignments : dict of (str, int) to list of int or None
            The brokers of each partition, the preferred leader first; `None` cancels the
            reassignment in progress, so that the partition has its earlier replicas.
        throttle : int, optional
            The bytes per second that a broker copies into replicas that are being added, and that
            a leader is read by them. By default without a limit.

        Returns
        -------
        dict of (str, int) to AlteredReassignment
            For each partition the name of Kafka's error: NONE, INVALID_REPLICA_ASSIGNMENT,
            NO_REASSIGNMENT_IN_PROGRESS or UNKNOWN_TOPIC_OR_PARTITION.

        Raises
        ------
        ProtocolError
            UNSUPPORTED_VERSION if the cluster has to be upgraded first.
        SparklogError
            An argument is not usable.

        Examples
        --------
        >>> altered = admin.alter_partition_reassignments({("payments", 0): [0, 1]})
        >>> altered["payments", 0].error
        'NONE'
        >>> admin.alter_partition_reassignments({("payments", 0): None})["payments", 0].error
        'NONE'
        """
        return self._reassignments.alter(reassignments, throttle)

    def list_partition_reassignments(
        self, partitions: Collection[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """Return the reassignments in progress.

        Parameters
        ----------
        partitions : collection of (str, int), optional
            The partitions, as pairs (topic, number); all by default.

        Returns
        -------
        dict of (str, int) to PartitionReassignment
            The replicas of each partition that is being reassigned.

        Examples
        --------
        >>> admin.list_partition_reassignments([("payments", 0)])
        {}
        """
        return self._reassignments.in_progress(partitions)

    def list_adding_replicas(self) -> list[AddingReplica]:
        """Return the progress of the replicas that reassignments are adding.

        Returns
        -------
        list of AddingReplica
            The offsets, and the bytes left to copy, by partition and broker.

        Examples
        --------
        >>> admin.list_adding_replicas()
        []
        """
        return self._reassignments.adding()

    def alter_replication_throttle(self, rate: int | None) -> int:
        """Set the throttle of the reassignments in progress, or remove all throttles.

        Parameters
        ----------
        rate : int or None
            The bytes per second; `None` removes the throttles of all partitions.

        Returns
        -------
        int
            The number of partitions that were changed.

        Raises
        ------
        SparklogError
            The rate is not usable.

        Examples
        --------
        >>> admin.alter_replication_throttle(None)
        0
        """
        return self._reassignments.set_throttle(rate)

    def propose_reassignment(
        self, topics: Collection[str], brokers: Sequence[int], *, rack_aware: bool = True
    ) -> dict[TopicPartition, list[int]]:
        """Propose other brokers for the partitions of topics, by Kafka's placement (rule 7.4).

        Nothing is changed: pass the result to `alter_partition_reassignments`.

        Parameters
        ----------
        topics : collection of str
            The names of the topics.
        brokers : sequence of int
            The brokers to place them on; those that are not alive are left out.
        rack_aware : bool, default True
            Whether racks are considered.

        Returns
        -------
        dict of (str, int) to list of int
            The brokers of each partition, the preferred leader first.

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION; INVALID_REPLICATION_FACTOR if there are too few brokers;
            INVALID_REPLICA_ASSIGNMENT if only some of them have a rack.

        Examples
        --------
        >>> [sorted(one) for one in admin.propose_reassignment(["payments"], [0, 1, 2]).values()]
        [[0, 1, 2], [0, 1, 2]]
        """
        return self._reassignments.propose(topics, brokers, is_rack_aware=rack_aware)

    def drain_broker(
        self, broker_id: int, *, throttle: int | None = None
    ) -> dict[TopicPartition, list[int]]:
        """Move every replica away from a broker, by reassignments.

        The broker may run or not. Call it again to see whether anything is left: reassignments in
        progress are in `list_partition_reassignments`.

        Parameters
        ----------
        broker_id : int
            The id of the broker.
        throttle : int, optional
            As for `alter_partition_reassignments`.

        Returns
        -------
        dict of (str, int) to list of int
            The new brokers of each partition whose reassignment was started.

        Raises
        ------
        ProtocolError
            BROKER_ID_NOT_REGISTERED; INVALID_REPLICATION_FACTOR if a partition has too many
            replicas for the other live brokers. Nothing is moved then.
        """
        plan = self._reassignments.drained(broker_id)
        for name, altered in self._reassignments.alter(plan, throttle).items():
            if altered.error not in ("NONE", "UNKNOWN_TOPIC_OR_PARTITION"):
                raise ProtocolError(altered.error, f"{name} was not moved: {altered.detail}")
        return plan

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, timeout_ms: float = 60_000
    ) -> dict[TopicPartition, DeletedRecords]:
        """Delete the records before an offset of each partition (rule 8.3; Kafka's DeleteRecords).

        The request is stored. Leaders serve it in their next ticks, and followers take it over.
        This method waits for that in every live replica, parked ones included.

        Parameters
        ----------
        offsets : dict of TopicPartition to int
            The new first offset of each partition; -1 stands for its high watermark. Pairs (topic,
            number) may be used as well.
        timeout_ms : float, default 60000
            The time in ms to wait. With 0 the replicas are read once.

        Returns
        -------
        dict of TopicPartition to DeletedRecords
            The low watermark of each partition, or the name of Kafka's error: OFFSET_OUT_OF_RANGE
            above the high watermark, UNKNOWN_TOPIC_OR_PARTITION, or REQUEST_TIMED_OUT. A request
            that has timed out is served later if it was stored; see `DeletedRecords.detail`.

        Raises
        ------
        SparklogError
            An offset or a partition is not usable.

        Examples
        --------
        >>> admin.delete_records({("payments", 0): -1})
        {TopicPartition(topic='payments', partition=0): DeletedRecords(low_watermark=0, ...)}
        """
        return RecordDeletion(self._connection, offsets).run(timeout_ms)

    def describe_topic(self, topic: str) -> TopicDescription:
        """Describe a topic.

        Parameters
        ----------
        topic : str
            The name of the topic.

        Returns
        -------
        TopicDescription
            The topic and the state of its partitions; `str()` returns the text of Kafka's topic
            tool.

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION if the topic does not exist.

        Examples
        --------
        >>> admin.describe_topic("payments").topic.replication_factor
        3
        """
        metadata = self._connection.metadata()
        found = metadata.topic(topic)
        states = [state for key, state in metadata.partitions.items() if key[0] == found.topic_id]
        return TopicDescription(found, tuple(sorted(states, key=lambda state: state.partition)))

    def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return sorted(topic.topic for topic in self._connection.metadata().topics.values())

    def list_brokers(self) -> list[BrokerDescription]:
        """Return the brokers, by id, with their partitions and their share of leadership.

        Unregistered brokers are included only while replicas are assigned to them.

        Returns
        -------
        list of BrokerDescription
            One description for each broker.

        Examples
        --------
        >>> [(one.broker.broker_id, one.broker.state) for one in admin.list_brokers()]
        [(0, 'alive'), (1, 'alive'), (2, 'alive')]
        """
        return self._brokers.list_brokers()

    def describe_log_dirs(
        self, broker_ids: Collection[int] | None = None, topics: Collection[str] | None = None
    ) -> dict[int, list[LogDirDescription]]:
        """Return the log directories of brokers, with the sizes and lags of their replicas.

        Parameters
        ----------
        broker_ids : collection of int, optional
            The ids of the brokers; all registered ones by default.
        topics : collection of str, optional
            The topics whose replicas are described; all by default.

        Returns
        -------
        dict of int to list of LogDirDescription
            The log directories of each broker, by number.

        Raises
        ------
        ProtocolError
            BROKER_ID_NOT_REGISTERED.

        Examples
        --------
        >>> [one.is_online for one in admin.describe_log_dirs([0])[0]]
        [True]
        """
        return LogDirReader(self._connection).describe(broker_ids, topics)

    def fence_broker(self, broker_id: int) -> None:
        """Fence a broker that does not run: remove it from ISRs and elect other leaders.

        Waits for broker.session.timeout.ms if its row says that it is alive.

        Parameters
        ----------
        broker_id : int
            The id of the broker.

        Raises
        ------
        ProtocolError
            BROKER_ID_NOT_REGISTERED, or INVALID_REQUEST if the broker runs.
        """
        self._brokers.fence(broker_id)

    def unregister_broker(self, broker_id: int, *, force: bool = False) -> int:
        """Unregister a broker that does not run.

        Waits for broker.session.timeout.ms if its row says that it is alive.

        Parameters
        ----------
        broker_id : int
            The id of the broker.
        force : bool, default False
            Whether its replicas are given up, with the records that only this broker has.

        Returns
        -------
        int
            The number of replicas that stay assigned to the broker.

        Raises
        ------
        ProtocolError
            BROKER_ID_NOT_REGISTERED; INVALID_REQUEST if the broker runs. If `force` is false:
            INELIGIBLE_REPLICA if the broker has the only in-sync replica of a partition, and
            INVALID_REQUEST if it has any replica; see `drain_broker`.
        """
        return self._brokers.unregister(broker_id, force=force)


def _election_error(
    election_type: ElectionType, before: PartitionState, after: PartitionState
) -> str:
    """Return the name of Kafka's error for the outcome of a requested election."""
    if after.leader_epoch != before.leader_epoch and after.leader is not None:
        return "NONE"
    if election_type == "unclean":
        is_led = after.leader is not None
        return "ELECTION_NOT_NEEDED" if is_led else "ELIGIBLE_LEADERS_NOT_AVAILABLE"
    is_preferred = after.leader == after.replicas[0].broker_id
    return "ELECTION_NOT_NEEDED" if is_preferred else "PREFERRED_LEADER_NOT_AVAILABLE"


def _list(broker_ids: Sequence[int]) -> str:
    return ",".join(map(str, broker_ids))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
