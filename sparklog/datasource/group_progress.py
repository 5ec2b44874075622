"""The progress of a stream, published as the committed offsets of a group.

The stream does not read them: it continues from its checkpoint. They show its lag to others.
"""

from __future__ import annotations

import warnings

from sparklog.cluster.connection import Connection
from sparklog.datasource.offsets import StreamOffset
from sparklog.datasource.options import ReadOptions
from sparklog.errors import SparklogError
from sparklog.groups.committed_offsets import (
    CommittedOffsets,
    OffsetAndMetadata,
    commit_as_no_member,
)
from sparklog.groups.group import ConsumerGroups
from sparklog.model import TopicIdPartition, new_id
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.location import one_line


class GroupProgress:
    """The group of one stream, if its options name one.

    `kafka.group.id` is its name; `groupIdPrefix` is followed by the stream's own id, which its
    checkpoint keeps. As in Spark's Kafka connector the former takes precedence.
    """

    def __init__(self, options: ReadOptions, connection: Connection) -> None:
        self._options = options
        self._groups = ConsumerGroups(connection.root.consumer_groups)
        self._committed = CommittedOffsets(connection.root.consumer_offsets)
        self._tried: StreamOffset | None = None
        self._published: StreamOffset | None = None

    def stream_id(self, begun: StreamOffset | None = None) -> str:
        """Return the id of the stream at `begun`, or a new one; empty if it needs none."""
        if begun is not None and begun.stream_id:
            return begun.stream_id
        return new_id() if self._options.group_id_prefix is not None else ""

    def group_id(self, reached: StreamOffset) -> str | None:
        """Return the group's name, or `None` if nothing is to be published."""
        prefix = self._options.group_id_prefix
        if self._options.group_id is not None or prefix is None:
            return self._options.group_id
        return f"{prefix}-{reached.stream_id}" if reached.stream_id else None

    def note(self, reached: StreamOffset) -> None:
        """Publish a reached offset at most once; after a failure, a later offset is published."""
        if reached != self._tried:
            self.publish(reached)

    def publish(self, reached: StreamOffset) -> None:
        """Commit the reached offset, as an application that is no member of the group does.

        The offset at which a stream begins is not published. A failure is a warning.
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
