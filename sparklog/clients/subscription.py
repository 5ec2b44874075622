"""What a consumer subscribes to: topics by name or by pattern, and whom it tells of changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from sparklog.clients.arguments import names_list
from sparklog.errors import SparklogError
from sparklog.model import TopicPartition
from sparklog.storage.metadata import Metadata, TopicInfo

Rebalanced = Callable[[list[TopicPartition]], None]
"""What is called with the partitions that are assigned, revoked or lost."""

Topics = Mapping[str, tuple[str, int]]
"""Topics by name, each with its id and its number of partitions."""


class Callbacks(NamedTuple):
    """Who is told of partitions that come and go."""

    assigned: Rebalanced | None = None
    revoked: Rebalanced | None = None
    lost: Rebalanced | None = None


class Subscription:
    """Topics that are named, or whose whole names match a regular expression of Python's.

    Raises `SparklogError` unless one of the two is given, and for a pattern that is none.
    """

    def __init__(self, topics: Iterable[str], pattern: str | None, callbacks: Callbacks) -> None:
        self.callbacks = callbacks
        self._names = frozenset(names_list(topics, "topics"))
        if bool(self._names) == (pattern is not None):
            raise SparklogError("subscribe to topics or to a pattern: give one of the two")
        try:
            self._pattern = None if pattern is None else re.compile(pattern)
        except TypeError:
            raise SparklogError(
                f"a pattern is a regular expression as text, not {pattern!r}"
            ) from None
        except re.error as error:
            raise SparklogError(
                f"the pattern {pattern!r} is no regular expression: {error}"
            ) from None
        self._found: tuple[Mapping[str, TopicInfo], Topics] | None = None

    def topics(self, metadata: Metadata) -> Topics:
        """Return those of the topics that are there."""
        # The same look at the cluster is asked for again with every poll.
        if self._found is None or self._found[0] is not metadata.topics:
            found = {
                one.topic: (one.topic_id, one.partitions)
                for one in metadata.topics.values()
                if self._is_wanted(one.topic)
            }
            self._found = metadata.topics, found
        return self._found[1]

    def _is_wanted(self, topic: str) -> bool:
        if self._pattern is not None:
            return self._pattern.fullmatch(topic) is not None
        return topic in self._names
