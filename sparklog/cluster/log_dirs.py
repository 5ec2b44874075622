"""The log directories of brokers with the sizes and lags of their replicas, as DescribeLogDirs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from sparklog.cluster.connection import Connection
from sparklog.cluster.metadata import BrokerInfo, Metadata
from sparklog.errors import ProtocolError
from sparklog.model import TopicIdPartition, TopicPartition
from sparklog.storage.errors import UNREADABLE_CONTENT
from sparklog.storage.journal import Journal
from sparklog.storage.location import Location, one_line


class ReplicaSize(NamedTuple):
    """A replica in a log directory.

    Attributes
    ----------
    size : int
        The bytes of its live batch files.
    offset_lag : int
        The number of offsets by which its log ends before the leader's, or before its own high
        watermark if the leader cannot be read.

    Examples
    --------
    >>> from sparklog import Admin
    >>> first = Admin("sparklog-data/cluster").describe_log_dirs([0])[0][0]
    >>> {replica.offset_lag for replica in first.replicas.values()}
    {0}
    """

    size: int
    offset_lag: int


class LogDirDescription(NamedTuple):
    """A log directory of a broker.

    Attributes
    ----------
    number : int
        Its number, by which `partition_state` assigns replicas to it.
    path : str or None
        Its URI; `None` if log.dirs does not have it now.
    directory_id : str
        Its id, which is the id of its table `log`.
    is_online : bool
        False if it has failed, or log.dirs does not have it now.
    error : str or None
        The reason why its replicas are not described; `None` if they are.
    replicas : mapping of TopicPartition to ReplicaSize
        The replicas with a row or batches in it.

    Examples
    --------
    >>> from sparklog import Admin
    >>> first = Admin("sparklog-data/cluster").describe_log_dirs()[0][0]
    >>> first.number, first.is_online, first.error
    (0, True, None)
    """

    number: int
    path: str | None
    directory_id: str
    is_online: bool
    error: str | None
    replicas: Mapping[TopicPartition, ReplicaSize]


class LogDirReader:
    """Describes log directories by reading their journals; no broker has to run."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._metadata: Metadata = connection.metadata()
        self._ends: dict[TopicIdPartition, int | None] = {}

    def describe(
        self, broker_ids: Collection[int] | None, topics: Collection[str] | None
    ) -> dict[int, list[LogDirDescription]]:
        """Return the log directories of brokers, by default of all registered ones.

        Raises BROKER_ID_NOT_REGISTERED.
        """
        registered = {
            one.broker_id: one for one in self._metadata.brokers.values() if one.is_registered
        }
        unknown = sorted(set(broker_ids or ()) - registered.keys())
        if unknown:
            raise ProtocolError(
                "BROKER_ID_NOT_REGISTERED",
                f"there is no broker {unknown[0]}: name one of the registered brokers "
                f"{', '.join(map(str, sorted(registered)))}",
            )
        asked = sorted(registered if broker_ids is None else set(broker_ids))
        return {one: self._of_broker(registered[one], topics) for one in asked}

    def _of_broker(
        self, broker: BrokerInfo, topics: Collection[str] | None
    ) -> list[LogDirDescription]:
        found = []
        for number, path in enumerate(broker.roots):
            directory_id, is_online = broker.log_table_ids[number], broker.has_online(number)
            error = None
            replicas: dict[TopicPartition, ReplicaSize] = {}
            if path is None:
                error = "KAFKA_STORAGE_ERROR: it is not in log.dirs"
            elif not is_online:
                error = "KAFKA_STORAGE_ERROR: it has failed"
            else:
                try:
                    journal = self._connection.journal(
                        Location.of(path, self._connection.storage_options)
                    )
                    replicas = self._replicas(journal, topics)
                except UNREADABLE_CONTENT as unreadable:
                    error = f"KAFKA_STORAGE_ERROR: {one_line(unreadable)}"
            found.append(LogDirDescription(number, path, directory_id, is_online, error, replicas))
        return found

    def _replicas(
        self, journal: Journal, topics: Collection[str] | None
    ) -> dict[TopicPartition, ReplicaSize]:
        found = {}
        for key in sorted({*journal.partitions(), *journal.rows}):
            state = self._metadata.partitions.get(key)
            if state is None or (topics is not None and state.topic not in topics):
                continue
            row = journal.rows.get(key)
            end = journal.log_end_offset(key, row["log_start_offset"] if row else 0)
            size = sum(batch.size_bytes for batch in journal.batches(key))
            leader_end = self._leader_end(key)
            if leader_end is None:
                leader_end = row["high_watermark"] if row else 0
            replica = ReplicaSize(size, max(leader_end - end, 0))
            found[TopicPartition(state.topic, key.partition)] = replica
        return found

    def _leader_end(self, key: TopicIdPartition) -> int | None:
        """Return the log end offset of a partition's leader, or `None` if it cannot be read."""
        if key not in self._ends:
            try:
                location = self._connection.leader_location(self._metadata.partitions[key])
                journal = self._connection.journal(location)
                row = journal.rows.get(key)
                start = row["log_start_offset"] if row else 0
                self._ends[key] = journal.log_end_offset(key, start)
            except UNREADABLE_CONTENT:
                self._ends[key] = None
        return self._ends[key]
