"""A consumer without Spark: subscribe or assign, poll, commit, like Kafka's."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast

from sparklog.clock import SystemClock, wait_until
from sparklog.cluster.arguments import (
    by_partition,
    milliseconds,
    partition_arguments,
    partition_name,
    partition_names,
    whole_number,
)
from sparklog.cluster.arguments import callback as check_callback
from sparklog.cluster.committed_logs import CommittedLogs
from sparklog.cluster.connection import Connection, connection_of
from sparklog.cluster.naming import ClusterName
from sparklog.cluster.offsets import OffsetAndTimestamp, Offsets
from sparklog.cluster.replica_selection import RackAwareReplicaSelector
from sparklog.config import ConsumerConfig, OffsetReset, parse
from sparklog.consumer.assigned_partition import AssignedPartition, ConsumerRecord
from sparklog.consumer.async_commits import CommitCallback
from sparklog.consumer.commits import ConsumerCommits, GroupOffsets, positions
from sparklog.consumer.deserializers import Deserializers
from sparklog.consumer.fetch_quota import FetchQuota
from sparklog.consumer.fetcher import Fetcher
from sparklog.errors import ProtocolError, SparklogError
from sparklog.groups.committed_offsets import CommittedOffsets, OffsetAndMetadata, names_of
from sparklog.groups.coordinator import ConsumerCoordinator
from sparklog.groups.group import ConsumerGroups
from sparklog.groups.heartbeats import process_heartbeats
from sparklog.groups.member import GroupMember
from sparklog.groups.subscription import Callbacks, Rebalanced, Subscription
from sparklog.model import TopicIdPartition, TopicPartition
from sparklog.storage.location import StorageOptions

if TYPE_CHECKING:
    from typing_extensions import Self

_FIRST_WAIT_MS, _LONGEST_WAIT_MS = 3, 50
"""Shortest and longest interval between polls for records, in ms.

A poll is a few small reads: about 1 ms on a disk, tens of ms on an object store. The first interval
is that of the brokers' ticks. It doubles up to the longest, which limits the cost of an idle
consumer and the delay of a record.
"""

_ITERATION_MS = 1_000


class Consumer:
    """Reads committed records of a cluster, like Kafka's consumer; for one thread.

    At the end of a `with` block it is closed.

    Parameters
    ----------
    connection : Connection, str or os.PathLike
        The cluster: a connection, the path or URI of its root, or its configuration file (*.yaml).
    group_id : str, optional
        The group whose committed offsets are used (group.id) and, with `subscribe`, whose members
        share the partitions.
    key_deserializer, value_deserializer : callable, optional
        Functions of a record's key and value, as bytes or `None`, whose results `poll` returns; or
        objects with the method `deserialize(topic, content)`. The content stays bytes by default.
    storage_options : dict of str to dict, optional
        The options of object stores by URI prefix, unless `connection` is a Connection; see there.
    **config
        Kafka's keys with underscores, such as `auto_offset_reset="earliest"`; see `ConsumerConfig`.

    Attributes
    ----------
    config : ConsumerConfig
        All settings.
    group_id : str or None
        The group.

    Raises
    ------
    ConfigError
        A key is unknown or a value is not usable.
    ProtocolError
        INVALID_GROUP_ID if `group_id` is empty or not text.
    StorageError
        There is no cluster at that root.

    Examples
    --------
    >>> from sparklog import Consumer
    >>> consumer = Consumer("sparklog-data/cluster", "totals", auto_offset_reset="earliest")
    >>> consumer.assign([("clicks", 0)])
    >>> for partition, records in consumer.poll(timeout_ms=10_000).items():
    ...     print(partition, [(record.offset, record.value) for record in records])
    clicks-0 [(0, b'first'), (1, b'second'), (2, b'third')]
    """

    def __init__(
        self,
        connection: Connection | ClusterName,
        group_id: str | None = None,
        *,
        key_deserializer: object = None,
        value_deserializer: object = None,
        storage_options: StorageOptions | None = None,
        **config: Any,
    ) -> None:
        deserializers = Deserializers(key_deserializer, value_deserializer)
        keys = {name.replace("_", "."): value for name, value in config.items()}
        self.config = parse(ConsumerConfig, keys, "Consumer(...)")
        if group_id is not None and not isinstance(group_id, str):
            raise ProtocolError("INVALID_GROUP_ID", f"group_id must be text, not {group_id!r}")
        if group_id == "":
            raise ProtocolError(
                "INVALID_GROUP_ID", "group_id is empty: name the group, or leave it out"
            )
        self.group_id = group_id
        # The consumer has a connection of its own, because a connection's tables are for one
        # reader.
        given = connection_of(connection, storage_options)
        own = (
            Connection(given.cluster, storage_options=given.storage_options)
            if given is connection
            else given
        )
        self._clock = SystemClock()
        self._logs = CommittedLogs(own, self._clock)
        self._offsets = Offsets(self._logs, self.config.default_api_timeout_ms)
        self._root = own.root
        self._commits = ConsumerCommits(
            group_id,
            lambda: self._committed,
            lambda: ConsumerGroups(self._root.consumer_groups),
            self.config,
            self._clock,
            lambda: Connection(own.cluster, storage_options=own.storage_options).root,
        )
        rack = self.config.client_rack
        selector = RackAwareReplicaSelector(own, rack) if rack else None
        quota = FetchQuota(own, self.config.client_id)
        self._fetcher = Fetcher(
            self._logs, self.config, self._clock, selector, quota, deserializers
        )
        if group_id is not None:
            # Opened now, so that the first poll does not wait for them.
            _ = self._committed, self._root.consumer_groups
        self._coordinator: ConsumerCoordinator | None = None
        self._subscription: Subscription | None = None
        self._assigned: dict[TopicPartition, AssignedPartition] = {}
        self._is_closed = False

    @cached_property
    def _committed(self) -> CommittedOffsets:
        return CommittedOffsets(self._root.consumer_offsets, self._clock)

    # --- subscription ---------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | None = None,
        on_assign: Rebalanced | None = None,
        on_revoke: Rebalanced | None = None,
        on_lost: Rebalanced | None = None,
    ) -> None:
        """Read topics together with the other members of the group.

        Topics that are created later are included. The callbacks run inside `poll`, `unsubscribe`
        and `close`, and take the list of partitions.

        Parameters
        ----------
        topics : iterable of str, optional
            The names of the topics.
        pattern : str, optional
            In place of `topics`: a Python regular expression that a topic's whole name matches.
        on_assign : callable, optional
            Called with the partitions that this consumer has been assigned.
        on_revoke : callable, optional
            Called before partitions are given up; it may still commit.
        on_lost : callable, optional
            Called if others may read the partitions already; `on_revoke` by default.

        Raises
        ------
        ProtocolError
            INVALID_GROUP_ID without a group.
        SparklogError
            Partitions were assigned by hand, or both or neither of `topics` and `pattern` are
            given.

        Examples
        --------
        >>> member = Consumer("sparklog-data/cluster", "shared", auto_offset_reset="earliest")
        >>> with member:
        ...     member.subscribe(["clicks"], on_assign=lambda partitions: print(len(partitions)))
        ...     while not (polled := member.poll(timeout_ms=10_000)):
        ...         pass
        2
        >>> [record.value for records in polled.values() for record in records]
        [b'first', b'second', b'third']
        """
        self._check_open()
        if self.group_id is None:
            raise ProtocolError(
                "INVALID_GROUP_ID", "subscribe shares topics with a group: give a group_id"
            )
        for name, one in {
            "on_assign": on_assign,
            "on_revoke": on_revoke,
            "on_lost": on_lost,
        }.items():
            check_callback(one, name)
        callbacks = Callbacks(on_assign, on_revoke, on_lost or on_revoke)
        wanted = Subscription(topics, pattern, callbacks)
        if self._subscription is None and self._assigned:
            raise SparklogError("partitions were assigned by hand: unsubscribe first")
        self._subscription = wanted
        if self._coordinator is None:
            heartbeats = process_heartbeats(self._root, self.group_id, self._clock)
            self._coordinator = ConsumerCoordinator(
                GroupMember(self._root, self.group_id, self.config, self._clock, heartbeats.beats),
                heartbeats,
                self._committed,
                self._logs,
                self.config,
                self._clock,
                self._revoke,
                self._assign,
            )
        self._commits.coordinator = self._coordinator

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read these partitions in place of the earlier ones, independently of other consumers.

        With a group, its committed offsets are used.

        Parameters
        ----------
        partitions : iterable of (str, int)
            The partitions, as pairs (topic, number).

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION.
        SparklogError
            Topics are subscribed to.
        """
        self._check_open()
        if self._subscription is not None:
            raise SparklogError("topics are subscribed to: unsubscribe first")
        metadata = self._logs.metadata(max_age_ms=0)
        names = partition_names(partitions)
        keys = {name: metadata.partition(*name).key for name in names}
        self._commits.commit_by_itself(self._assigned.values())
        before = self._assigned
        self._assigned = {
            name: before[name]
            if name in before and before[name].key == key
            else AssignedPartition(name, key, wants_committed=self.group_id is not None)
            for name, key in keys.items()
        }

    def unsubscribe(self) -> None:
        """Stop reading, and leave the group."""
        self._commits.finish()
        if self._coordinator is not None:
            self._coordinator.leave()
        else:
            self._commits.commit_by_itself(self._assigned.values())
        self._commits.coordinator = None
        self._subscription = None
        self._assigned = {}

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that are read currently."""
        return list(self._assigned)

    def subscription(self) -> set[str] | None:
        """Return the names of the subscribed topics that exist, or `None` without a subscription.

        Returns
        -------
        set of str or None
            The names.
        """
        if self._subscription is None:
            return None
        return set(self._subscription.topics(self._logs.metadata()))

    def topics(self) -> set[str]:
        """Return the names of all topics, as of now.

        Returns
        -------
        set of str
            The names.

        Examples
        --------
        >>> {"clicks", "orders"} <= consumer.topics()
        True
        """
        return {one.topic for one in self._logs.metadata(max_age_ms=0).topics.values()}

    def partitions_for_topic(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic.

        Parameters
        ----------
        topic : str
            The name of the topic.

        Returns
        -------
        list of TopicPartition
            The partitions, by number.

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION.
        """
        count = self._logs.metadata(max_age_ms=0).topic(topic).partitions
        return [TopicPartition(topic, number) for number in range(count)]

    def pause(self, *partitions: tuple[str, int] | Collection[TopicPartition]) -> None:
        """Exclude partitions from `poll`, until they are resumed.

        Parameters
        ----------
        *partitions : (str, int) or collection of (str, int)
            Assigned partitions, as pairs (topic, number).

        Raises
        ------
        SparklogError
            A partition is not assigned.

        Examples
        --------
        >>> consumer.pause(("clicks", 0))
        >>> consumer.paused()
        [TopicPartition(topic='clicks', partition=0)]
        """
        for one in self._find(partition_arguments(partitions)):
            one.is_paused = True

    def resume(self, *partitions: tuple[str, int] | Collection[TopicPartition]) -> None:
        """Include partitions in `poll` again.

        Parameters
        ----------
        *partitions : (str, int) or collection of (str, int)
            Assigned partitions, as pairs (topic, number).

        Raises
        ------
        SparklogError
            A partition is not assigned.

        Examples
        --------
        >>> consumer.resume(("clicks", 0))
        >>> consumer.paused()
        []
        """
        for one in self._find(partition_arguments(partitions)):
            one.is_paused = False

    def paused(self) -> list[TopicPartition]:
        """Return the partitions that are paused."""
        return [name for name, one in self._assigned.items() if one.is_paused]

    # --- records --------------------------------------------------------------------------------

    def poll(
        self, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return committed records, in order in each partition; wait if there are no records.

        The records that the previous poll returned count as processed. With enable.auto.commit
        their offsets are committed every auto.commit.interval.ms. A partition without a leader
        raises no error; it is polled again.

        Parameters
        ----------
        timeout_ms : int, default 0
            The longest wait in ms.
        max_records : int, optional
            The most records to return; max.poll.records by default.

        Returns
        -------
        dict of TopicPartition to list of ConsumerRecord
            The records by partition; an empty dict if there were none within `timeout_ms`.

        Raises
        ------
        LogTruncationError
            Records before the position were lost, with auto.offset.reset=none.
        NoOffsetForPartitionError
            A partition has no position, with auto.offset.reset=none.
        RecordDeserializationError
            A deserializer failed at the first record to return. Earlier records were returned by
            the previous call, and the position stays before the record: `seek` skips it.
        ProtocolError
            OFFSET_OUT_OF_RANGE with auto.offset.reset=none; UNKNOWN_TOPIC_OR_PARTITION for an
            assigned partition that no longer exists; CORRUPT_MESSAGE and KAFKA_STORAGE_ERROR if no
            in-sync replica has a sound copy of the records at a position; FENCED_INSTANCE_ID;
            INCONSISTENT_GROUP_PROTOCOL.
        SparklogError
            Nothing is subscribed to or assigned, or the consumer is closed. Errors of callbacks are
            raised unchanged.

        Examples
        --------
        >>> consumer.seek_to_beginning()
        >>> polled = consumer.poll(timeout_ms=10_000, max_records=2)
        >>> [record.offset for records in polled.values() for record in records]
        [0, 1]
        """
        self._check_open()
        if self._subscription is None and not self._assigned:
            raise SparklogError("nothing is read: subscribe to topics, or assign partitions")
        count = self.config.max_poll_records
        if max_records is not None:
            count = whole_number(max_records, "max_records")
            if count < 1:
                raise SparklogError(f"max_records must be 1 or more, not {count}")
        deadline_ms = self._clock.monotonic_ms() + milliseconds(timeout_ms, "timeout_ms")
        longest_ms = min(_LONGEST_WAIT_MS, max(self.config.fetch_max_wait_ms, 1))
        wait_ms = min(_FIRST_WAIT_MS, longest_ms)
        self._commits.commit_if_due(self._assigned.values())
        while True:
            self._commits.call_back()
            if self._coordinator is not None and self._subscription is not None:
                self._coordinator.poll(self._subscription.topics(self._logs.metadata()))
            self._commits.use(self._assigned.values())
            partitions = [one for one in self._assigned.values() if not one.wants_committed]
            self._fetcher.poll(partitions, is_assigned_by_user=self._subscription is None)
            records = self._fetcher.drain(partitions, count)
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if records or left_ms <= 0:
                return records
            time.sleep(min(wait_ms, left_ms) / 1000)
            wait_ms = min(2 * wait_ms, longest_ms)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yield records until the consumer is closed; the position is after the yielded record."""
        while not self._is_closed:
            for records in self.poll(_ITERATION_MS, max_records=1).values():
                yield from records

    # --- positions ------------------------------------------------------------------------------

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Continue at an offset of a partition; the next poll checks that it is in the log.

        Parameters
        ----------
        partition : (str, int)
            An assigned partition, as a pair (topic, number).
        offset : int
            The offset of the next record to read, at least 0.

        Raises
        ------
        ProtocolError
            OFFSET_OUT_OF_RANGE for a negative offset.
        SparklogError
            The partition is not assigned.

        Examples
        --------
        >>> consumer.seek(("clicks", 0), 2)
        >>> [record.value for records in consumer.poll(10_000).values() for record in records]
        [b'third']
        """
        offset = whole_number(offset, "an offset")
        if offset < 0:
            raise ProtocolError(
                "OFFSET_OUT_OF_RANGE",
                f"the offset {offset} for {partition!r} is negative: give 0 or more",
            )
        for one in self._find([partition]):
            one.seek(offset)

    def seek_to_beginning(self, *partitions: tuple[str, int] | Collection[TopicPartition]) -> None:
        """Continue at the earliest offsets.

        Parameters
        ----------
        *partitions : (str, int) or collection of (str, int)
            Assigned partitions, as pairs (topic, number); all by default.

        Raises
        ------
        SparklogError
            A partition is not assigned.
        """
        self._seek_to("earliest", partitions)

    def seek_to_end(self, *partitions: tuple[str, int] | Collection[TopicPartition]) -> None:
        """Continue at the latest offsets.

        The latest offset is the high watermark when it is looked up, by the next `poll` or
        `position`.

        Parameters
        ----------
        *partitions : (str, int) or collection of (str, int)
            Assigned partitions, as pairs (topic, number); all by default.

        Raises
        ------
        SparklogError
            A partition is not assigned.
        """
        self._seek_to("latest", partitions)

    def position(self, partition: tuple[str, int]) -> int:
        """Return the offset of the record that poll returns next.

        Parameters
        ----------
        partition : (str, int)
            An assigned partition, as a pair (topic, number).

        Returns
        -------
        int
            The offset.

        Raises
        ------
        ProtocolError
            REQUEST_TIMED_OUT if it cannot be found within default.api.timeout.ms.
        SparklogError
            The partition is not assigned.

        Examples
        --------
        >>> consumer.seek_to_end()
        >>> consumer.position(("clicks", 0))
        3
        """
        [one] = self._find([partition])

        def found() -> int | None:
            if one.position is None:
                self._commits.use(self._assigned.values())
                if not one.wants_committed:
                    self._fetcher.find_positions([one])
            return one.position

        position = wait_until(
            found,
            self.config.default_api_timeout_ms,
            pause_ms=_FIRST_WAIT_MS,
            until=lambda position: position is not None,
            clock=self._clock,
        )
        if position is None:
            raise ProtocolError(
                "REQUEST_TIMED_OUT",
                f"the position of {one.name.topic}-{one.name.partition} was not found "
                f"within default.api.timeout.ms={self.config.default_api_timeout_ms}: "
                "see that its leader runs",
            )
        return position

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None
    ) -> None:
        """Commit offsets, all or none; a committed offset is that of the next record to read.

        Nothing is changed if an error is raised.

        Parameters
        ----------
        offsets : dict of TopicPartition to int or OffsetAndMetadata, optional
            The offsets; the positions of all assigned partitions by default.

        Raises
        ------
        ProtocolError
            INVALID_GROUP_ID without a group; UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION and
            FENCED_INSTANCE_ID if the group has continued without this consumer;
            REBALANCE_IN_PROGRESS; OFFSET_OUT_OF_RANGE; OFFSET_METADATA_TOO_LARGE (4,096 bytes).
        UnreachableError
            The cluster root cannot be written now, because its disk is full for example.

        Examples
        --------
        >>> from sparklog import OffsetAndMetadata, TopicPartition
        >>> consumer.commit({TopicPartition("clicks", 0): OffsetAndMetadata(2, "by hand")})
        >>> consumer.committed(("clicks", 0))
        OffsetAndMetadata(offset=2, metadata='by hand', leader_epoch=-1)
        """
        self._commits.commit(self._to_commit(offsets))

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        callback: CommitCallback | None = None,
    ) -> Future[None]:
        """Commit offsets in the background, in the order of the calls; without retries.

        `commit`, `unsubscribe`, `close` and a rebalance wait for these commits. Commits that gather
        while one is written are written in one step.

        Parameters
        ----------
        offsets : dict of TopicPartition to int or OffsetAndMetadata, optional
            The offsets; the positions of all assigned partitions by default.
        callback : callable, optional
            Called with (offsets, error) inside a later `poll`, `commit`, `unsubscribe` or `close`;
            the error is `None` for a commit that succeeded. Without it an error is logged.

        Returns
        -------
        Future of None
            If the commit fails, the future has the error that `commit` would have raised.

        Raises
        ------
        ProtocolError
            INVALID_GROUP_ID without a group, UNKNOWN_TOPIC_OR_PARTITION.
        SparklogError
            The consumer is closed, or an argument is not valid.

        Examples
        --------
        >>> sent = consumer.commit_async(callback=lambda offsets, error: print(error))
        >>> sent.result(timeout=60)
        >>> polled = consumer.poll()
        None
        """
        check_callback(callback, "callback")
        return self._commits.commit_async(self._to_commit(offsets), callback)

    def committed(self, partition: tuple[str, int]) -> OffsetAndMetadata | None:
        """Return the group's committed offset of a partition.

        Parameters
        ----------
        partition : (str, int)
            The partition, as a pair (topic, number).

        Returns
        -------
        OffsetAndMetadata or None
            `None` if the group has committed no offset there.

        Raises
        ------
        ProtocolError
            INVALID_GROUP_ID without a group, UNKNOWN_TOPIC_OR_PARTITION.
        """
        key = self._logs.metadata().partition(*partition_name(partition)).key
        return self._commits.find(key)

    def lag(self, partition: tuple[str, int]) -> int:
        """Return the number of offsets from the position to the current high watermark.

        Parameters
        ----------
        partition : (str, int)
            An assigned partition, as a pair (topic, number).

        Returns
        -------
        int
            The lag in offsets, at least 0.

        Raises
        ------
        ProtocolError
            REQUEST_TIMED_OUT if the position cannot be found; LEADER_NOT_AVAILABLE or
            OFFSET_NOT_AVAILABLE if the partition has no leader that has caught up, each after
            default.api.timeout.ms.
        SparklogError
            The partition is not assigned.

        Examples
        --------
        >>> consumer.seek(("clicks", 0), 1)
        >>> consumer.lag(("clicks", 0))
        2
        """
        [one] = self._find([partition])
        behind = self._offsets.end([one.name])[one.name] - self.position(partition)
        return max(behind, 0)

    def highwater(self, partition: tuple[str, int]) -> int | None:
        """Return the high watermark of a partition as of its last fetch; costs no request.

        It is the offset after the last committed record; `end_offsets` reads the current one.

        Parameters
        ----------
        partition : (str, int)
            An assigned partition, as a pair (topic, number).

        Returns
        -------
        int or None
            `None` before the first fetch.

        Raises
        ------
        SparklogError
            The partition is not assigned.

        Examples
        --------
        >>> consumer.highwater(("clicks", 0))
        3
        """
        [one] = self._find([partition])
        return one.high_watermark

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return counts of this consumer since its creation, by Kafka's groups and names.

        Returns
        -------
        dict of str to dict of str to float
            `consumer-fetch-manager-metrics`: `records-consumed-total`, `bytes-consumed-total` (of
            batch files), `fetch-total`, `fetch-size-avg` and `-max` in bytes,
            `records-per-request-avg` and `-max`, `records-lag-max` (of assigned partitions, as of
            their last fetches). `consumer-coordinator-metrics`: `assigned-partitions`,
            `commit-total`, `rebalance-total`.

        Examples
        --------
        >>> consumer.metrics()["consumer-coordinator-metrics"]["assigned-partitions"]
        1
        """
        lags = [
            one.high_watermark - one.position
            for one in self._assigned.values()
            if one.high_watermark is not None and one.position is not None
        ]
        fetches = {"records-lag-max": max(0, *lags) if lags else 0}
        return {
            "consumer-fetch-manager-metrics": self._fetcher.metrics.values() | fetches,
            "consumer-coordinator-metrics": self._commits.metrics.values()
            | {"assigned-partitions": len(self._assigned)},
        }

    def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Return the earliest offsets: the log start offsets.

        Parameters
        ----------
        partitions : iterable of (str, int)
            The partitions, as pairs (topic, number).

        Returns
        -------
        dict of TopicPartition to int
            The offset of each partition.

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION, and LEADER_NOT_AVAILABLE after default.api.timeout.ms.
        """
        return self._offsets.beginning(partition_names(partitions))

    def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Return the latest offsets: the high watermarks.

        Parameters
        ----------
        partitions : iterable of (str, int)
            The partitions, as pairs (topic, number).

        Returns
        -------
        dict of TopicPartition to int
            For each partition the offset after its last committed record.

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION; LEADER_NOT_AVAILABLE or OFFSET_NOT_AVAILABLE after
            default.api.timeout.ms.

        Examples
        --------
        >>> consumer.end_offsets([("clicks", 0)])
        {TopicPartition(topic='clicks', partition=0): 3}
        """
        return self._offsets.end(partition_names(partitions))

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first offsets at or after given times.

        Parameters
        ----------
        times_ms : dict of TopicPartition to int
            The time of each partition in ms since 1970.

        Returns
        -------
        dict of TopicPartition to OffsetAndTimestamp or None
            `None` if all records of the partition are older.

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION; LEADER_NOT_AVAILABLE or OFFSET_NOT_AVAILABLE after
            default.api.timeout.ms.
        SparklogError
            A time is negative.

        Examples
        --------
        >>> found = consumer.offsets_for_times({TopicPartition("clicks", 0): 1_500})
        >>> found[TopicPartition("clicks", 0)].offset
        1
        """
        times = by_partition(times_ms, "times in ms since 1970")
        return self._offsets.for_times(
            {
                name: whole_number(time_ms, "a time in ms since 1970")
                for name, time_ms in times.items()
            }
        )

    # --- closing --------------------------------------------------------------------------------

    def close(self) -> None:
        """Commit (enable.auto.commit), leave the group and stop reading.

        Examples
        --------
        >>> consumer.close()
        """
        if self._is_closed:
            return
        try:
            try:
                self._commits.finish()
            finally:
                if self._coordinator is not None:
                    self._coordinator.close()
                else:
                    self._commits.commit_by_itself(self._assigned.values())
        finally:
            self._is_closed = True
            self._assigned = {}
            self._commits.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- internals ------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise SparklogError("the consumer is closed: make another one")

    def _find(self, partitions: Iterable[tuple[str, int]]) -> list[AssignedPartition]:
        self._check_open()
        names = [partition_name(one) for one in partitions]
        for name in names:
            if name not in self._assigned:
                raise SparklogError(f"{name.topic}-{name.partition} is not assigned: assign it")
        return [self._assigned[name] for name in names]

    def _to_commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None
    ) -> GroupOffsets:
        """Return the offsets to commit: those given, or the positions of all partitions."""
        self._check_open()
        if offsets is None:
            return positions(self._assigned.values())
        metadata = self._logs.metadata()
        return {
            metadata.partition(*name).key: (name.topic, _committable(given))
            for name, given in by_partition(offsets, "offsets to commit").items()
        }

    def _seek_to(self, end: OffsetReset, partitions: Collection[Any]) -> None:
        for one in self._find(partition_arguments(tuple(partitions)) or self._assigned):
            one.seek_to(end)

    def _assign(self, keys: Collection[TopicIdPartition]) -> None:
        # The group's leader may know a topic that is newer than the metadata loaded here.
        self._logs.metadata(max_age_ms=0)
        names = {name: key for key, name in names_of(self._logs, keys).items()}
        self._assigned = {
            name: AssignedPartition(name, key, wants_committed=True) for name, key in names.items()
        }
        self._commits.metrics.add("rebalance")
        self._tell("assigned")

    def _revoke(self, is_lost: bool) -> None:
        if not is_lost:
            self._commits.finish()
            # Committed offsets of deleted topics have been removed.
            existing = self._logs.metadata().partitions
            kept = [one for one in self._assigned.values() if one.key in existing]
            self._commits.commit_by_itself(kept)
        try:
            self._tell("lost" if is_lost else "revoked")
            if not is_lost:
                # The callback may have requested commits; they are refused after the rebalance.
                self._commits.finish()
        finally:
            self._assigned = {}

    def _tell(self, what: Literal["assigned", "revoked", "lost"]) -> None:
        if self._subscription is not None and self._assigned:
            callback = getattr(self._subscription.callbacks, what)
            if callback is not None:
                callback(list(self._assigned))


def _committable(given: object) -> OffsetAndMetadata:
    if not isinstance(given, OffsetAndMetadata):
        return OffsetAndMetadata(whole_number(given, "an offset to commit"))
    # Kafka's clients use `None` for values that are not given.
    offset, metadata, leader_epoch = cast("tuple[object, ...]", given)
    if metadata is not None and not isinstance(metadata, str):
        raise SparklogError(f"metadata to commit must be text, not {metadata!r}")
    return OffsetAndMetadata(
        whole_number(offset, "an offset to commit"),
        metadata or "",
        -1 if leader_epoch is None else whole_number(leader_epoch, "a leader epoch to commit"),
    )
