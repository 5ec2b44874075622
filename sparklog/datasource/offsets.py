"""Offsets as JSON: in options, and in Spark's checkpoints.

Both are the JSON of Spark's Kafka connector, `{"topic": {"0": 23, "1": -2}}`, with one more member,
`@sparklog`, which cannot be a topic's name. It holds the topics' ids, the leader epoch of the
record before each offset, and the offset at which that epoch began. By these a recreated topic and
a truncation are detected (KIP-320).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sparklog.errors import ConfigError, StorageError
from sparklog.model import TopicPartition
from sparklog.storage.json_text import json_value

LATEST = -1
"""In JSON: the high watermark."""

EARLIEST = -2
"""In JSON: the log start offset."""

IDENTITY = "@sparklog"
"""The member of an offset's JSON with topic ids and leader epochs."""

NO_EPOCH = -1
"""The leader epoch of a position that is not known to follow any record."""

NO_OFFSET = -1
"""The start offset of a leader epoch whose start is not known."""


class Position(NamedTuple):
    """A reader's position in a partition: all records below `offset` were read.

    `leader_epoch` is that of the record before it and `epoch_start` the first offset of that epoch,
    -1 if it is not known; `topic_id` is empty if it is not known.
    """

    offset: int
    topic_id: str = ""
    leader_epoch: int = NO_EPOCH
    epoch_start: int = NO_OFFSET

    @property
    def known_epoch_start(self) -> int | None:
        """`epoch_start`, or `None` if it is unknown."""
        return None if self.epoch_start == NO_OFFSET else self.epoch_start


Positions = Mapping[TopicPartition, Position]

_MAX_PARTITION, _MAX_NUMBER = (1 << 31) - 1, (1 << 63) - 1

_MALFORMED = (AttributeError, TypeError, ValueError, OverflowError)
"""The exceptions of `_positions` for JSON of another form."""


@dataclass(frozen=True)
class StreamOffset:
    """The position of a stream, which Spark writes to the checkpoint for each micro-batch.

    `is_initial` marks the offset at which a query begins. The end of its first micro-batch carries
    that offset as `started_at`: Spark does not keep it, and would ask for it again after a crash.
    `stream_id` makes the name of the stream's group unique (groupIdPrefix); it is empty if it was
    not needed yet.
    """

    positions: Positions
    is_initial: bool = False
    started_at: Positions | None = field(default=None)
    stream_id: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object."""
        result = _offsets_json(self.positions)
        result[IDENTITY] = _identity_json(self.positions)
        if self.is_initial:
            result[IDENTITY]["is_initial"] = True
        if self.stream_id:
            result[IDENTITY]["stream_id"] = self.stream_id
        if self.started_at is not None:
            result[IDENTITY]["started_at"] = {
                **_offsets_json(self.started_at),
                IDENTITY: _identity_json(self.started_at),
            }
        return result

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StreamOffset:
        """Return the offset that `to_json` made `values` of; the Kafka connector's is valid.

        Raises `StorageError` for other values: the query's checkpoint is damaged.
        """
        try:
            identity = values.get(IDENTITY, {})
            started_at = identity.get("started_at")
            return cls(
                _positions(values),
                bool(identity.get("is_initial", False)),
                None if started_at is None else _positions(started_at),
                str(identity.get("stream_id", "")),
            )
        except _MALFORMED as error:
            raise StorageError(
                f"an offset in the query's checkpoint is malformed ({error}): restore the "
                "checkpoint, or start the query with another one and startingOffsets"
            ) from error


def parse_assignment(text: str, option: str) -> dict[str, tuple[int, ...]]:
    """Return the partitions by topic of `{"topic": [0, 1]}`; `ConfigError` for another form."""
    wanted = f'option {option} must have the form {{"topicA":[0,1],"topicB":[2,4]}}'
    result = {}
    for topic, partitions in _object(text, wanted).items():
        if not isinstance(partitions, list) or not all(map(_is_offset, partitions)):
            raise ConfigError(f"{wanted}: got {partitions!r} as the partitions of {topic}")
        result[topic] = tuple(sorted(set(partitions)))
    if not any(result.values()):
        raise ConfigError(f"{wanted}: it names no partition")
    return result


def parse_offsets(text: str, option: str) -> Positions:
    """Return the positions of `{"topic": {"0": 23, "1": -1}}`; `ConfigError` for another form.

    An offset copied from a query's progress or checkpoint is valid.
    """
    wanted = (
        f'option {option} must have the form {{"topicA":{{"0":23,"1":-1}},"topicB":{{"0":-2}}}}'
    )
    values = _object(text, wanted)
    _numbers({key: one for key, one in values.items() if key != IDENTITY}, wanted, lowest=EARLIEST)
    try:
        return _positions(values)
    except _MALFORMED:
        raise ConfigError(f"{wanted}: its member {IDENTITY} is damaged, leave it out") from None


def parse_timestamps(text: str, option: str) -> dict[TopicPartition, int]:
    """Return the times, in ms since 1970, of `{"topic": {"0": 1000}}`.

    Raises `ConfigError` for another form.
    """
    wanted = (
        f'option {option} must have the form {{"topicA":{{"0":1000,"1":1000}}}}, in ms since 1970'
    )
    return _numbers(_object(text, wanted), wanted, lowest=0)


def _object(text: str, wanted: str) -> dict[str, Any]:
    try:
        values = json_value(text)
    except ValueError:
        raise ConfigError(f"{wanted}: got {text!r}") from None
    if not isinstance(values, dict) or not values:
        raise ConfigError(f"{wanted}: got {text!r}")
    return values


def _numbers(values: Mapping[str, Any], wanted: str, lowest: int) -> dict[TopicPartition, int]:
    result = {}
    for topic, of_topic in values.items():
        if not isinstance(of_topic, dict):
            raise ConfigError(f"{wanted}: got {of_topic!r} for {topic}")
        for partition, number in of_topic.items():
            if not _is_partition(partition) or not _is_offset(number, lowest):
                raise ConfigError(f"{wanted}: got {number!r} for {topic}-{partition}")
            result[TopicPartition(topic, int(partition))] = int(number)
    return result


def _is_partition(text: str) -> bool:
    # Checked before the conversion: Python refuses to convert very long numbers.
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(_MAX_PARTITION))
    return is_number and int(text) <= _MAX_PARTITION


def _is_offset(value: object, lowest: int = 0) -> bool:
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return lowest <= value <= _MAX_NUMBER


def _offsets_json(positions: Positions) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, position in sorted(positions.items()):
        result.setdefault(key.topic, {})[str(key.partition)] = position.offset
    return result


def _identity_json(positions: Positions) -> dict[str, Any]:
    epochs: dict[str, dict[str, int]] = {}
    starts: dict[str, dict[str, int]] = {}
    for key, position in sorted(positions.items()):
        if position.leader_epoch != NO_EPOCH:
            epochs.setdefault(key.topic, {})[str(key.partition)] = position.leader_epoch
        if position.epoch_start != NO_OFFSET:
            starts.setdefault(key.topic, {})[str(key.partition)] = position.epoch_start
    ids = {key.topic: one.topic_id for key, one in sorted(positions.items()) if one.topic_id}
    identity = {"topic_ids": ids, "leader_epochs": epochs}
    return identity | {"epoch_starts": starts} if starts else identity


def _positions(values: Mapping[str, Any]) -> dict[TopicPartition, Position]:
    """Return the positions in the JSON of an offset; raises `_MALFORMED`."""
    identity = values.get(IDENTITY, {})
    ids = identity.get("topic_ids", {})
    epochs = identity.get("leader_epochs", {})
    starts = identity.get("epoch_starts", {})
    return {
        TopicPartition(topic, int(partition)): Position(
            int(offset),
            str(ids.get(topic, "")),
            int(epochs.get(topic, {}).get(partition, NO_EPOCH)),
            int(starts.get(topic, {}).get(partition, NO_OFFSET)),
        )
        for topic, of_topic in values.items()
        if topic != IDENTITY
        for partition, offset in of_topic.items()
    }
