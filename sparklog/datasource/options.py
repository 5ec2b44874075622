"""The options of `format("sparklog")` for reading: those of Spark's Kafka connector, checked.

Unknown and unsupported options are refused by name: no option is ignored. Names are
case-insensitive, as everywhere in Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar

from sparklog.datasource import option_values as values
from sparklog.datasource.given_options import STORAGE_OPTIONS, GivenOptions
from sparklog.datasource.offsets import (
    EARLIEST,
    LATEST,
    Position,
    Positions,
    parse_assignment,
    parse_offsets,
    parse_timestamps,
)
from sparklog.errors import ConfigError
from sparklog.model import TopicPartition

if TYPE_CHECKING:
    from sparklog.storage.location import StorageOptions

Mode = Literal["batch", "stream"]


@dataclass(frozen=True)
class Assign:
    """Read these partitions, by topic."""

    partitions: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Subscribe:
    """Read all partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True)
class SubscribePattern:
    """Read all partitions of topics whose whole name matches a Python regular expression."""

    pattern: str


@dataclass(frozen=True)
class Everywhere:
    """The same point in every partition: EARLIEST or LATEST."""

    offset: int


@dataclass(frozen=True)
class AtOffsets:
    """An offset for each partition, EARLIEST and LATEST among them."""

    positions: Positions


@dataclass(frozen=True)
class AtTimestamps:
    """The first record of each partition at or after a time in ms since 1970."""

    timestamps: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class AtTimestamp:
    """The first record of every partition at or after one time in ms since 1970."""

    timestamp: int


Topics = Assign | Subscribe | SubscribePattern
OffsetLimit = Everywhere | AtOffsets | AtTimestamps | AtTimestamp


@dataclass(frozen=True)
class ReadOptions:
    """The checked options of a batch or a stream; `cluster` is the cluster's root."""

    cluster: str
    topics: Topics
    starting: OffsetLimit
    ending: OffsetLimit = Everywhere(LATEST)
    latest_where_no_timestamp_matches: bool = False
    fail_on_data_loss: bool = True
    include_headers: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    replica: str = "leader"
    client_rack: str | None = None
    group_id: str | None = None
    group_id_prefix: str | None = None
    retries: int = 60
    retry_interval_ms: int = 1_000
    storage_options: StorageOptions = field(default_factory=dict, repr=False)


_STRATEGIES = ("assign", "subscribe", "subscribePattern")
_STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
KNOWN = (
    "cluster",
    STORAGE_OPTIONS,
    *_STRATEGIES,
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    *_BATCH_ONLY,
    "failOnDataLoss",
    *_STREAM_ONLY,
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "groupIdPrefix",
    "kafka.group.id",
    "replica",
    "clientRack",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
"""The supported options, as they are written."""

_INSTEAD = {
    "path": "load() takes no path here, name topics in option subscribe",
    "topic": "it is an option of the sink, a reader names topics in option subscribe",
    "kafkaconsumer.polltimeoutms": "no Kafka consumer polls, leave it out",
    "kafka.bootstrap.servers": "name the cluster's root, or its configuration file, in option "
    "cluster",
    "kafka.client.rack": "use option clientRack, with replica=nearest",
    "kafka.auto.offset.reset": "use option startingOffsets",
    "kafka.isolation.level": "only committed records are ever read, leave it out",
    "kafka.key.deserializer": "key is binary, cast the column",
    "kafka.value.deserializer": "value is binary, cast the column",
    "kafka.enable.auto.commit": "a stream's offsets are in its checkpoint, leave it out",
    "kafka.interceptor.classes": "transform the DataFrame",
    "kafka.max.poll.records": "use option maxOffsetsPerTrigger",
}
"""The alternatives to unsupported options, by name in lower case."""


def parse_read_options(options: Mapping[str, str], mode: Mode | None = None) -> ReadOptions:
    """Check the options of a reader.

    `mode` is the kind of read; without it only the checks that hold for both are made. Raises
    `ConfigError` that names the wrong option.
    """
    given = GivenOptions(options, KNOWN, _INSTEAD)
    cluster = given.cluster()
    for names, other in [(_BATCH_ONLY, "stream"), (_STREAM_ONLY, "batch")]:
        unfit = next((name for name in names if name in given), None)
        if mode == other and unfit is not None:
            raise ConfigError(f"option {unfit} has no meaning for a {mode} query: leave it out")
    parsed = ReadOptions(
        cluster=cluster.root,
        topics=_topics(given),
        starting=_limit(given, "starting", EARLIEST if mode == "batch" else LATEST),
        ending=_limit(given, "ending", LATEST),
        latest_where_no_timestamp_matches=given.get(
            "startingOffsetsByTimestampStrategy", values.choice("error", "latest"), "error"
        )
        == "latest",
        fail_on_data_loss=given.get("failOnDataLoss", values.boolean, default=True),
        include_headers=given.get("includeHeaders", values.boolean, default=False),
        min_partitions=given.get("minPartitions", values.positive, None),
        max_records_per_partition=given.get("maxRecordsPerPartition", values.positive, None),
        max_offsets_per_trigger=given.get("maxOffsetsPerTrigger", values.positive, None),
        min_offsets_per_trigger=given.get("minOffsetsPerTrigger", values.positive, None),
        max_trigger_delay_ms=given.get(
            "maxTriggerDelay", values.duration_ms, ReadOptions.max_trigger_delay_ms
        ),
        replica=given.get("replica", values.replica, "leader"),
        client_rack=given.get("clientRack", values.text, None),
        group_id=given.get("kafka.group.id", values.text, None),
        group_id_prefix=given.get("groupIdPrefix", values.text, None),
        retries=given.get("fetchOffset.numRetries", values.number, ReadOptions.retries),
        retry_interval_ms=given.get(
            "fetchOffset.retryIntervalMs", values.number, ReadOptions.retry_interval_ms
        ),
        storage_options=cluster.storage_options,
    )
    _check_together(given, parsed)
    if mode is not None:
        _check_limits(parsed, mode)
    return parsed


def _topics(given: GivenOptions) -> Topics:
    named = [name for name in _STRATEGIES if name in given]
    if len(named) != 1:
        what = "none is" if not named else f"{' and '.join(named)} are"
        raise ConfigError(f"one of the options {', '.join(_STRATEGIES)} is required: {what} given")
    if named == ["assign"]:
        return Assign(parse_assignment(given.text("assign"), "assign"))
    if named == ["subscribe"]:
        topics = [one.strip() for one in given.text("subscribe").split(",") if one.strip()]
        if not topics:
            raise ConfigError("option subscribe names no topic: write topicA,topicB")
        return Subscribe(tuple(dict.fromkeys(topics)))
    pattern = given.text("subscribePattern")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"option subscribePattern has {pattern!r}, which is not a Python regular expression "
            f"({error}): correct it"
        ) from None
    return SubscribePattern(pattern)


def _limit(given: GivenOptions, edge: str, default: int) -> OffsetLimit:
    """Return the start or the end; as in Spark, a time takes precedence over offsets."""
    timestamp, by_timestamp = f"{edge}Timestamp", f"{edge}OffsetsByTimestamp"
    offsets = f"{edge}Offsets"
    if timestamp in given:
        return AtTimestamp(values.number(given.text(timestamp), timestamp))
    if by_timestamp in given:
        return AtTimestamps(parse_timestamps(given.text(by_timestamp), by_timestamp))
    if offsets not in given:
        return Everywhere(default)
    text = given.text(offsets)
    if text.lower() in ("earliest", "latest"):
        return Everywhere(EARLIEST if text.lower() == "earliest" else LATEST)
    if not text.startswith("{"):
        raise ConfigError(
            f"option {offsets} has the value {text!r}: use earliest, latest or JSON like "
            '{"topicA":{"0":23,"1":-1}}'
        )
    return AtOffsets(parse_offsets(text, offsets))


def _check_together(given: GivenOptions, options: ReadOptions) -> None:
    lowest, highest = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if lowest is not None and highest is not None and lowest > highest:
        raise ConfigError(
            f"option minOffsetsPerTrigger ({lowest}) is above maxOffsetsPerTrigger ({highest}): "
            "lower one or raise the other"
        )
    if "maxTriggerDelay" in given and lowest is None:
        raise ConfigError(
            "option maxTriggerDelay bounds the wait for minOffsetsPerTrigger: give both or neither"
        )
    if (options.replica == "nearest") != (options.client_rack is not None):
        raise ConfigError(
            "options replica=nearest and clientRack belong together: nearest is the replica in the "
            "rack that clientRack names: give both or neither"
        )


def _check_limits(options: ReadOptions, mode: Mode) -> None:
    starting, ending = options.starting, options.ending
    if mode == "batch":
        _refuse_everywhere(starting, LATEST, "startingOffsets can't be latest in a batch query")
        _refuse_everywhere(ending, EARLIEST, "endingOffsets can't be earliest")
    if isinstance(starting, AtTimestamp) and isinstance(ending, AtTimestamp):
        _check_order({"every partition": starting.timestamp}, {"every partition": ending.timestamp})
    if isinstance(starting, AtTimestamps) and isinstance(ending, AtTimestamps):
        _check_order(starting.timestamps, ending.timestamps)
    if isinstance(starting, AtOffsets) and isinstance(ending, AtOffsets):
        _check_order(_offsets(starting.positions), _offsets(ending.positions))


def _refuse_everywhere(limit: OffsetLimit, refused: int, sentence: str) -> None:
    if limit == Everywhere(refused):
        raise ConfigError(f"option {sentence}: give an offset, or leave it out")
    if isinstance(limit, AtOffsets):
        for key, position in limit.positions.items():
            if position.offset == refused:
                raise ConfigError(f"option {sentence}, but it is {refused} for {key}: give another")


def _offsets(positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, int]:
    return {key: one.offset for key, one in positions.items() if one.offset >= 0}


_Key = TypeVar("_Key")


def _check_order(starts: Mapping[_Key, int], ends: Mapping[_Key, int]) -> None:
    for key, start in starts.items():
        if key in ends and ends[key] < start:
            raise ConfigError(
                f"the start {start} of {key} is beyond its end {ends[key]}: swap or correct them"
            )
