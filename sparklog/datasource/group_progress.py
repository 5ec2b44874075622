"""How far a stream has come, published as the committed offsets of a group.

Nothing is read from them: a stream goes on from its checkpoint. They let others see its lag.
"""

from __future__ import annotations

import warnings

from sparklog.broker.leader_roots import UNREADABLE
from sparklog.clients.committed_offsets import (
    CommittedOffsets,
    OffsetAndMetadata,
    commit_as_no_member,
)
from sparklog.clients.connection import Connection
from sparklog.clients.consumer_group import ConsumerGroups
from sparklog.datasource.offsets import StreamOffset
from sparklog.datasource.options import ReadOptions
from sparklog.errors import SparklogError
from sparklog.model import TopicIdPartition, new_id
from sparklog.storage.location import one_line


class GroupProgress:
    """The group of one stream, if its options want one.

    `kafka.group.id` names it; `groupIdPrefix` is followed by an id of the stream's own, which its
    checkpoint keeps. As in Spark's Kafka connector the former wins.
    """

    def __init__(self, options: ReadOptions, connection: Connection) -> None:
        self._options = options
        self._groups = ConsumerGroups(connection.root.consumer_groups)
        self._committed = CommittedOffsets(connection.root.consumer_offsets)
        self._tried: StreamOffset | None = None
        self._published: StreamOffset | None = None

    def stream_id(self, begun: StreamOffset | None = None) -> str:
        """Return the id of the stream that has come to `begun`, a new one where it needs one."""
        if begun is not None and begun.stream_id:
            return begun.stream_id
        return new_id() if self._options.group_id_prefix is not None else ""

    def group_id(self, reached: StreamOffset) -> str | None:
        """Return the group's name, or `None` where nothing is to be published."""
        prefix = self._options.group_id_prefix
        if self._options.group_id is not None or prefix is None:
            return self._options.group_id
        return f"{prefix}-{reached.stream_id}" if reached.stream_id else None

    def note(self, reached: StreamOffset) -> None:
        """Publish what was reached, once: what fails is left to the next micro-batch."""
        if reached != self._tried:
            self.publish(reached)

    def publish(self, reached: StreamOffset) -> None:
        """Commit what was reached as an application does that is no member of the group.

        Where a stream begins is nothing that was reached. What fails is a warning.
        """
        self._tried = reached
        group_id = self.group_id(reached)
        if group_id is None or reached.is_initial or reached == self._published:
            return
        offsets = {
            TopicIdPartition(one.topic_id, key.partition): (
                key.topic,
                OffsetAndMetadata(one.offset, leader_epoch=one.leader_epoch),
            )
            for key, one in reached.positions.items()
            if one.topic_id
        }
        try:
            commit_as_no_member(self._groups, self._committed, group_id, offsets)
            self._published = reached
        except (SparklogError, *UNREADABLE) as error:
            warnings.warn(
                f"progress is not published as group {group_id}: {one_line(error)}", stacklevel=2
            )
