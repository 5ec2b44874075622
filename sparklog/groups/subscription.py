"""A consumer's subscription: topics by name or by pattern, and callbacks for rebalances."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from sparklog.cluster.arguments import names_list
from sparklog.cluster.metadata import Metadata, TopicInfo
from sparklog.errors import SparklogError
from sparklog.model import TopicPartition

Rebalanced = Callable[[list[TopicPartition]], None]
"""A callback; it receives the partitions that are assigned, revoked or lost."""

Topics = Mapping[str, tuple[str, int]]
"""Topics by name, each with its id and its number of partitions."""


class Callbacks(NamedTuple):
    """The callbacks for partitions that are assigned, revoked or lost."""

    assigned: Rebalanced | None = None
    revoked: Rebalanced | None = None
    lost: Rebalanced | None = None


class Subscription:
    """A subscription to topics by name, or by a Python regular expression for whole names.

    Raises `SparklogError` unless exactly one of the two is given, and for an invalid pattern.
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
                f"a pattern must be a regular expression as text, not {pattern!r}"
            ) from None
        except re.error as error:
            raise SparklogError(
                f"the pattern {pattern!r} is not a regular expression ({error}): correct it"
            ) from None
        self._found: tuple[Mapping[str, TopicInfo], Topics] | None = None

    def topics(self, metadata: Metadata) -> Topics:
        """Return the subscribed topics that exist."""
        # Every poll asks again, usually with the same metadata.
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
