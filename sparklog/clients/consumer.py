"""A consumer without Spark: subscribe or assign, poll, commit, as Kafka's."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast

from sparklog.clients.arguments import (
    by_partition,
    callback,
    milliseconds,
    partition_arguments,
    partition_name,
    partition_names,
    whole_number,
)
from sparklog.clients.assigned_partitions import AssignedPartition, ConsumerRecord
from sparklog.clients.committed_logs import CommittedLogs
from sparklog.clients.committed_offsets import CommittedOffsets, OffsetAndMetadata, names_of
from sparklog.clients.connection import Connection, connection_of
from sparklog.clients.consumer_commits import ConsumerCommits
from sparklog.clients.consumer_coordinator import ConsumerCoordinator
from sparklog.clients.consumer_group import ConsumerGroups
from sparklog.clients.fetcher import Fetcher
from sparklog.clients.group_heartbeats import process_heartbeats
from sparklog.clients.group_member import GroupMember
from sparklog.clients.offsets import OffsetAndTimestamp, Offsets
from sparklog.clients.replica_selection import RackAwareReplicaSelector
from sparklog.clients.subscription import Callbacks, Rebalanced, Subscription
from sparklog.clock import SystemClock
from sparklog.config import ConsumerConfig, OffsetReset, parse
from sparklog.errors import ProtocolError, SparklogError
from sparklog.model import TopicIdPartition, TopicPartition

if TYPE_CHECKING:
    from typing_extensions import Self

_FIRST_WAIT_MS, _LONGEST_WAIT_MS = 3, 50
"""Between two looks for records. A look is a few small reads, about a millisecond on a disk and
tens of them on an object store: at first it is repeated as often as brokers tick, and it doubles
to what an idle consumer may cost and a record may wait."""

_ITERATION_MS = 1_000


class Consumer:
    """Reads committed records of the cluster that `connection` is of; for one thread.

    Parameters: `connection`, or the URI of the cluster root; `group_id`, the group whose
    committed offsets are used and, with `subscribe`, whose members share the partitions; `config`,
    Kafka's keys with underscores, see `ConsumerConfig`. Raises `ConfigError`.
    """

    def __init__(
        self,
        connection: Connection | str | os.PathLike[str],
        group_id: str | None = None,
        **config: Any,
    ) -> None:
        keys = {name.replace("_", "."): value for name, value in config.items()}
        self.config = parse(ConsumerConfig, keys, "Consumer(...)")
        if group_id is not None and not isinstance(group_id, str):
            raise ProtocolError("INVALID_GROUP_ID", f"a group's name is text, not {group_id!r}")
        if group_id == "":
            raise ProtocolError("INVALID_GROUP_ID", "a group's name is not empty: give it one")
        self.group_id = group_id
        # Its own: a connection's tables are one reader's.
        given = connection_of(connection)
        own = (
            Connection(given.cluster, storage_options=given.storage_options)
            if given is connection
            else given
        )
        self._clock = SystemClock()
        self._logs = CommittedLogs(own, self._clock)
        self._offsets = Offsets(self._logs, self.config.default_api_timeout_ms)
        self._committed = CommittedOffsets(own.root.consumer_offsets, self._clock)
        groups = ConsumerGroups(own.root.consumer_groups)
        self._commits = ConsumerCommits(group_id, self._committed, groups, self.config, self._clock)
        rack = self.config.client_rack
        selector = RackAwareReplicaSelector(own, rack) if rack else None
        self._fetcher = Fetcher(self._logs, self.config, self._clock, selector)
        self._root = own.root
        self._coordinator: ConsumerCoordinator | None = None
        self._subscription: Subscription | None = None
        self._assigned: dict[TopicPartition, AssignedPartition] = {}
        self._is_closed = False

    # --- what is read ---------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | None = None,
        on_assign: Rebalanced | None = None,
        on_revoke: Rebalanced | None = None,
        on_lost: Rebalanced | None = None,
    ) -> None:
        """Read these topics together with the other members of the group.

        Parameters: `topics`, or `pattern`, a Python regular expression that a topic's whole name
        matches; topics that come later are read from then on. The callbacks run inside `poll` and
        `close`: `on_revoke` may still commit; `on_lost`, by default `on_revoke`, is called where
        others may read the partitions already. Raises INVALID_GROUP_ID without a group.
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
            callback(one, name)
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
        """Read these partitions, in place of those before, whatever other consumers read.

        With a group its committed offsets are used. Raises UNKNOWN_TOPIC_OR_PARTITION.
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
        """Read nothing any more; leave the group."""
        if self._coordinator is not None:
            self._coordinator.leave()
        else:
            self._commits.commit_by_itself(self._assigned.values())
        self._commits.coordinator = None
        self._subscription = None
        self._assigned = {}

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that are read at the moment."""
        return list(self._assigned)

    def partitions_for_topic(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic; raises UNKNOWN_TOPIC_OR_PARTITION."""
        count = self._logs.metadata(max_age_ms=0).topic(topic).partitions
        return [TopicPartition(topic, number) for number in range(count)]

    def pause(self, *partitions: tuple[str, int] | Collection[TopicPartition]) -> None:
        """Let poll return nothing of these partitions, until they are resumed."""
        for one in self._find(partition_arguments(partitions)):
            one.is_paused = True

    def resume(self, *partitions: tuple[str, int] | Collection[TopicPartition]) -> None:
        """Let poll return records of these partitions again."""
        for one in self._find(partition_arguments(partitions)):
            one.is_paused = False

    def paused(self) -> list[TopicPartition]:
        """Return the partitions that are paused."""
        return [name for name, one in self._assigned.items() if one.is_paused]

    # --- records --------------------------------------------------------------------------------

    def poll(
        self, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return committed records, in order in each partition; wait for some if there are none.

        Parameters: `timeout_ms`, how long at most; `max_records`, max.poll.records by default.
        What the previous poll returned counts as processed: it is committed now and then
        (enable.auto.commit). Raises `LogTruncationError` and OFFSET_OUT_OF_RANGE where
        auto.offset.reset is none, `NoOffsetForPartitionError`, UNKNOWN_TOPIC_OR_PARTITION for an
        assigned partition that is gone, CORRUPT_MESSAGE and KAFKA_STORAGE_ERROR where no in-sync
        replica has a sound copy of the records at a position, FENCED_INSTANCE_ID,
        INCONSISTENT_GROUP_PROTOCOL, and what callbacks raise; a partition without a leader is
        waited for.
        """
        self._check_open()
        if self._subscription is None and not self._assigned:
            raise SparklogError("nothing is read: subscribe to topics, or assign partitions")
        count = self.config.max_poll_records
        if max_records is not None:
            count = whole_number(max_records, "max_records")
            if count < 1:
                raise SparklogError(f"max_records is 1 or more, not {count}")
        deadline_ms = self._clock.monotonic_ms() + milliseconds(timeout_ms, "timeout_ms")
        longest_ms = min(_LONGEST_WAIT_MS, max(self.config.fetch_max_wait_ms, 1))
        wait_ms = min(_FIRST_WAIT_MS, longest_ms)
        self._commits.commit_if_due(self._assigned.values())
        while True:
            if self._coordinator is not None and self._subscription is not None:
                self._coordinator.poll(self._subscription.topics(self._logs.metadata()))
            self._commits.use(self._assigned.values())
            partitions = [one for one in self._assigned.values() if not one.wants_committed]
            self._fetcher.look(partitions, is_assigned_by_user=self._subscription is None)
            records = self._fetcher.take(partitions, count)
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if records or left_ms <= 0:
                return records
            time.sleep(min(wait_ms, left_ms) / 1000)
            wait_ms = min(2 * wait_ms, longest_ms)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yield records until the consumer is closed; the position is after the one yielded."""
        while not self._is_closed:
            for records in self.poll(_ITERATION_MS, max_records=1).values():
                yield from records

    # --- positions ------------------------------------------------------------------------------

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Go on at `offset` of a partition; one outside its log is noticed by the next poll."""
        offset = whole_number(offset, "an offset")
        if offset < 0:
            raise ProtocolError("OFFSET_OUT_OF_RANGE", f"{offset} is no offset: give 0 or more")
        for one in self._find([partition]):
            one.seek(offset)

    def seek_to_beginning(self, *partitions: tuple[str, int] | Collection[TopicPartition]) -> None:
        """Go on at the earliest offsets, of all partitions where none is named."""
        self._seek_to("earliest", partitions)

    def seek_to_end(self, *partitions: tuple[str, int] | Collection[TopicPartition]) -> None:
        """Go on at the latest offsets, of all partitions where none is named.

        The latest is the high watermark when it is looked up: by the next poll, or `position`.
        """
        self._seek_to("latest", partitions)

    def position(self, partition: tuple[str, int]) -> int:
        """Return the offset of the record that poll returns next.

        Raises REQUEST_TIMED_OUT where it cannot be found within default.api.timeout.ms.
        """
        [one] = self._find([partition])
        deadline_ms = self._clock.monotonic_ms() + self.config.default_api_timeout_ms
        while one.position is None:
            self._commits.use(self._assigned.values())
            if not one.wants_committed:
                self._fetcher.find_positions([one])
            if one.position is None:
                if self._clock.monotonic_ms() > deadline_ms:
                    raise ProtocolError(
                        "REQUEST_TIMED_OUT",
                        f"the position of {one.name.topic}-{one.name.partition} was not found "
                        f"within default.api.timeout.ms={self.config.default_api_timeout_ms}",
                    )
                time.sleep(_FIRST_WAIT_MS / 1000)
        return one.position

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None
    ) -> None:
        """Commit these offsets, or the positions of all partitions; all or none.

        An offset is that of the record to be read next. Raises INVALID_GROUP_ID without a group,
        UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION and FENCED_INSTANCE_ID where the group has gone on
        without this consumer, REBALANCE_IN_PROGRESS, OFFSET_METADATA_TOO_LARGE; nothing is
        changed then.
        """
        self._check_open()
        if offsets is None:
            self._commits.commit_positions(self._assigned.values())
            return
        metadata = self._logs.metadata()
        self._commits.commit(
            {
                metadata.partition(*name).key: (name.topic, _committable(given))
                for name, given in by_partition(offsets, "offsets to commit").items()
            }
        )

    def committed(self, partition: tuple[str, int]) -> OffsetAndMetadata | None:
        """Return what the group has committed of a partition; raises as `commit`."""
        key = self._logs.metadata().partition(*partition_name(partition)).key
        return self._commits.find(key)

    def lag(self, partition: tuple[str, int]) -> int:
        """Return how many offsets the position is before the high watermark, as it is now."""
        [one] = self._find([partition])
        behind = self._offsets.end([one.name])[one.name] - self.position(partition)
        return max(behind, 0)

    def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Return the earliest offsets; see `Offsets.beginning`."""
        return self._offsets.beginning(partition_names(partitions))

    def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Return the high watermarks; see `Offsets.end`."""
        return self._offsets.end(partition_names(partitions))

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first offsets at or after these times; see `Offsets.for_times`."""
        times = by_partition(times_ms, "times in ms since 1970")
        return self._offsets.for_times(
            {
                name: whole_number(time_ms, "a time in ms since 1970")
                for name, time_ms in times.items()
            }
        )

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Commit (enable.auto.commit), leave the group and read nothing more."""
        if self._is_closed:
            return
        try:
            if self._coordinator is not None:
                self._coordinator.close()
            else:
                self._commits.commit_by_itself(self._assigned.values())
        finally:
            self._is_closed = True
            self._assigned = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- the parts ------------------------------------------------------------------------------

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

    def _seek_to(self, end: OffsetReset, partitions: Collection[Any]) -> None:
        for one in self._find(partition_arguments(tuple(partitions)) or self._assigned):
            one.seek_to(end)

    def _assign(self, keys: Collection[TopicIdPartition]) -> None:
        # The leader may have seen a topic that is newer than what was looked up here.
        self._logs.metadata(max_age_ms=0)
        names = {name: key for key, name in names_of(self._logs, keys).items()}
        self._assigned = {
            name: AssignedPartition(name, key, wants_committed=True) for name, key in names.items()
        }
        self._tell("assigned")

    def _revoke(self, is_lost: bool) -> None:
        if not is_lost:
            self._commits.commit_by_itself(self._assigned.values())
        try:
            self._tell("lost" if is_lost else "revoked")
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
    # Kafka's clients have `None` for what is not given.
    offset, metadata, leader_epoch = cast("tuple[object, ...]", given)
    if metadata is not None and not isinstance(metadata, str):
        raise SparklogError(f"metadata to commit is text, not {metadata!r}")
    return OffsetAndMetadata(
        whole_number(offset, "an offset to commit"),
        metadata or "",
        -1 if leader_epoch is None else whole_number(leader_epoch, "a leader epoch to commit"),
    )
