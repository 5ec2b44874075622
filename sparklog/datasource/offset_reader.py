"""The partitions that a reader's options select, and the offsets that may be read of them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping

import tenacity

from sparklog.cluster.committed_logs import CommittedLogs
from sparklog.cluster.connection import Visible
from sparklog.cluster.metadata import Metadata
from sparklog.cluster.offsets import Offsets
from sparklog.datasource.options import Assign, ReadOptions, Subscribe
from sparklog.datasource.replicas import ReplicaChoice
from sparklog.errors import ProtocolError, SparklogError, StorageError
from sparklog.model import INTERNAL_TOPICS, TopicPartition

_PASSING = ("LEADER_NOT_AVAILABLE", "OFFSET_NOT_AVAILABLE", "REPLICA_NOT_AVAILABLE")
"""Errors that end with a failover."""

Seen = Mapping[TopicPartition, Visible]


class OffsetReader:
    """The logs of a cluster, as selected by a reader's options."""

    def __init__(self, options: ReadOptions, logs: CommittedLogs) -> None:
        self.options = options
        self.logs = logs
        self.connection = logs.connection
        self._choice = ReplicaChoice(self.connection, options)

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions that the options name, in order.

        Raises UNKNOWN_TOPIC_OR_PARTITION if one of them, or its topic, does not exist.
        """
        metadata = self.logs.metadata(max_age_ms=0)
        named = self._named(metadata)
        for key in named:
            metadata.partition(*key)
        return named

    def existing_partitions(self) -> list[TopicPartition]:
        """Return those partitions that the options name and that exist, in order."""
        metadata = self.logs.metadata(max_age_ms=0)
        counts = {one.topic: one.partitions for one in metadata.topics.values()}
        named = self._named(metadata, counts)
        return [key for key in named if key.partition < counts.get(key.topic, 0)]

    def _named(
        self, metadata: Metadata, known: Collection[str] | None = None
    ) -> list[TopicPartition]:
        """Return the partitions that the options name, of all topics or only of `known` ones."""
        topics = self.options.topics
        if isinstance(topics, Assign):
            return sorted(
                TopicPartition(topic, number)
                for topic, numbers in topics.partitions.items()
                for number in numbers
            )
        if isinstance(topics, Subscribe):
            names = [one for one in topics.topics if known is None or one in known]
        else:
            names = [
                one.topic
                for one in metadata.topics.values()
                if re.fullmatch(topics.pattern, one.topic) and one.topic not in INTERNAL_TOPICS
            ]
        return sorted(
            TopicPartition(name, number)
            for name in names
            for number in range(metadata.topic(name).partitions)
        )

    def visible(
        self, keys: Collection[TopicPartition], needed: Mapping[TopicPartition, int] | None = None
    ) -> Seen:
        """Return the offsets that may be read of these partitions, once new leaders caught up.

        `needed`: the offsets that a follower must have reached to be read. Raises the error that
        keeps a partition from being read, such as LEADER_NOT_AVAILABLE, OFFSET_NOT_AVAILABLE or
        REPLICA_NOT_AVAILABLE, if it lasts longer than the options allow.
        """
        trying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_passes),
            stop=tenacity.stop_after_attempt(self.options.retries + 1),
            wait=tenacity.wait_fixed(self.options.retry_interval_ms / 1_000),
            reraise=True,
        )
        return trying(self._all_visible, keys, needed or {})

    def available(self, keys: Collection[TopicPartition]) -> Seen:
        """Return the offsets that may be read now, without partitions whose leader has to catch up.

        Raises errors that do not end with a failover.
        """
        found = self._poll(keys, {})
        for key, one in found.items():
            if isinstance(one, SparklogError):
                if not _passes(one):
                    raise one
                warnings.warn(f"{key} is skipped until it can be read: {one}", stacklevel=2)
        return {key: one for key, one in found.items() if isinstance(one, Visible)}

    def _all_visible(
        self, keys: Collection[TopicPartition], needed: Mapping[TopicPartition, int]
    ) -> Seen:
        found = self._poll(keys, needed)
        for one in found.values():
            if isinstance(one, SparklogError):
                raise one
        return {key: one for key, one in found.items() if isinstance(one, Visible)}

    def _poll(
        self, keys: Collection[TopicPartition], needed: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Visible | SparklogError]:
        metadata = self.logs.metadata(max_age_ms=0)
        by_id = {metadata.partition(*key).key: key for key in keys}
        leaders = self.logs.visible(by_id)
        return {
            key: self._replica(one, metadata, needed.get(key))
            if isinstance(one := leaders[of_id], Visible)
            else one
            for of_id, key in by_id.items()
        }

    def _replica(
        self, leader: Visible, metadata: Metadata, needed: int | None
    ) -> Visible | SparklogError:
        try:
            # A read that ends below the high watermark needs no latest offset (rule 10.2).
            if needed is None or not 0 <= needed <= leader.high_watermark:
                leader.check_latest()
            return self._choice.replica(leader, metadata, needed or 0)
        except (ProtocolError, StorageError) as error:
            return error

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int | None]:
        """Return the first offset of each partition at or after a time, or `None`."""
        timeout_ms = self.options.retries * self.options.retry_interval_ms
        found = Offsets(self.logs, timeout_ms).for_times(times_ms)
        return {key: None if one is None else one.offset for key, one in found.items()}


def _passes(error: BaseException) -> bool:
    """Return whether an error ends with a failover."""
    if isinstance(error, ProtocolError):
        return error.code.name in _PASSING
    return isinstance(error, StorageError)
