"""Options of reads: accepted values, and refusals that name the option."""

from __future__ import annotations

from typing import Any

import pytest

from sparklog.datasource.offsets import Position
from sparklog.datasource.options import (
    KNOWN,
    Assign,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Everywhere,
    Mode,
    ReadOptions,
    Subscribe,
    SubscribePattern,
    parse_read_options,
)
from sparklog.errors import ConfigError
from sparklog.model import TopicPartition

LEAST = {"cluster": "/data/cluster", "subscribe": "t"}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def parse(mode: Mode | None = "stream", **given: str) -> ReadOptions:
    return parse_read_options(LEAST | given, mode)


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    """Defaults equal those of Spark's Kafka source."""
    stream, batch = parse("stream"), parse("batch")
    assert (stream.starting, batch.starting) == (Everywhere(-1), Everywhere(-2))
    assert batch.ending == Everywhere(-1)
    assert stream.fail_on_data_loss
    assert not stream.include_headers
    assert stream.max_trigger_delay_ms == 15 * 60 * 1000
    assert stream.replica == "leader"


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("startingOffsets", "Earliest", "starting", Everywhere(-2)),
        ("startingOffsets", "LATEST", "starting", Everywhere(-1)),
        (
            "startingOffsets",
            '{"t":{"0":23,"1":-2}}',
            "starting",
            AtOffsets({T0: Position(23), T1: Position(-2)}),
        ),
        (
            "startingOffsets",
            '{"t":{"0":23},"@sparklog":{"topic_ids":{"t":"id"},"leader_epochs":{"t":{"0":4}}}}',
            "starting",
            AtOffsets({T0: Position(23, "id", 4)}),
        ),
        ("startingTimestamp", "1000", "starting", AtTimestamp(1000)),
        ("startingOffsetsByTimestamp", '{"t":{"0":7}}', "starting", AtTimestamps({T0: 7})),
        ("startingOffsetsByTimestampStrategy", "latest", "latest_where_no_timestamp_matches", True),
        ("startingOffsetsByTimestampStrategy", "error", "latest_where_no_timestamp_matches", False),
        ("failOnDataLoss", "FALSE", "fail_on_data_loss", False),
        ("includeHeaders", "true", "include_headers", True),
        ("minPartitions", "8", "min_partitions", 8),
        ("maxRecordsPerPartition", "100", "max_records_per_partition", 100),
        ("maxOffsetsPerTrigger", "100", "max_offsets_per_trigger", 100),
        ("minOffsetsPerTrigger", "10", "min_offsets_per_trigger", 10),
        ("groupIdPrefix", "mine", "group_id_prefix", "mine"),
        ("kafka.group.id", "mine", "group_id", "mine"),
        ("replica", "Leader", "replica", "leader"),
        ("replica", "2", "replica", "2"),
        ("fetchOffset.numRetries", "3", "retries", 3),
        ("fetchOffset.retryIntervalMs", "10", "retry_interval_ms", 10),
    ],
)
def test_an_option_is_understood_whatever_its_case(
    name: str, value: str, field: str, expected: Any
) -> None:
    """Names of options are case-insensitive."""
    for written in (name, name.lower(), name.upper()):
        assert getattr(parse("stream", **{written: value}), field) == expected


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        *[("250ms", 250), ("30s", 30_000), ("2m", 120_000), ("2min", 120_000), ("1h", 3_600_000)],
        *[("1d", 86_400_000), ("500", 500), ("15 m", 900_000)],
    ],
)
def test_durations_are_written_as_in_spark(text: str, milliseconds: int) -> None:
    """Durations have Spark's format."""
    parsed = parse(minOffsetsPerTrigger="1", maxTriggerDelay=text)
    assert parsed.max_trigger_delay_ms == milliseconds


@pytest.mark.parametrize(
    ("name", "value", "topics"),
    [
        ("assign", '{"a":[0,2],"b":[1]}', Assign({"a": (0, 2), "b": (1,)})),
        ("assign", '{"a":[2,0,2]}', Assign({"a": (0, 2)})),
        ("subscribe", " a, b ,,a", Subscribe(("a", "b"))),
        ("subscribePattern", "a.*", SubscribePattern("a.*")),
    ],
)
def test_there_are_three_ways_to_name_topics(name: str, value: str, topics: Any) -> None:
    """Topics can be named by `assign`, `subscribe` and `subscribePattern`."""
    assert parse_read_options({"cluster": "c", name: value}).topics == topics


def test_a_time_wins_over_times_of_partitions_and_those_over_offsets() -> None:
    """A time precedes times of partitions, and these precede offsets."""
    given = {
        "startingOffsets": "earliest",
        "startingOffsetsByTimestamp": '{"t":{"0":7}}',
        "startingTimestamp": "9",
    }
    assert parse("batch", **given).starting == AtTimestamp(9)
    del given["startingTimestamp"]
    assert parse("batch", **given).starting == AtTimestamps({T0: 7})
    ending = {"endingOffsets": "latest", "endingTimestamp": "9"}
    assert parse("batch", **ending).ending == AtTimestamp(9)


@pytest.mark.parametrize(
    ("mode", "given", "said"),
    [
        # names
        ("stream", {"kafka.bootstrap.servers": "h:1"}, r"kafka\.bootstrap\.servers .* cluster"),
        ("stream", {"kafka.group.id": ""}, r"kafka\.group\.id is empty"),
        ("stream", {"kafka.auto.offset.reset": "earliest"}, "auto.offset.reset .* startingOffsets"),
        ("stream", {"kafka.security.protocol": "SSL"}, "kafka.security.protocol is not supported"),
        ("stream", {"kafka.client.rack": "r"}, "clientRack"),
        ("stream", {"kafkaConsumer.pollTimeoutMs": "1"}, "pollTimeoutMs is not supported"),
        ("stream", {"startingOffset": "earliest"}, "did you mean startingOffsets"),
        ("stream", {"path": "/x"}, "load.. takes no path"),
        ("stream", {"topic": "t"}, "sink"),
        ("stream", {"frobnicate": "1"}, "frobnicate is unknown: known options are cluster"),
        # topics
        ("stream", {"assign": '{"t":[0]}'}, "assign and subscribe are given"),
        ("stream", {"subscribe": " , "}, "subscribe names no topic"),
        ("stream", {"subscribe": ""}, "subscribe is empty"),
        # limits of a batch, limits of a stream
        ("batch", {"startingOffsets": "latest"}, "startingOffsets can't be latest"),
        ("batch", {"startingOffsets": '{"t":{"0":-1}}'}, "can't be latest .*t-0"),
        ("batch", {"endingOffsets": "earliest"}, "endingOffsets can't be earliest"),
        ("batch", {"endingOffsets": '{"t":{"0":-2}}'}, "can't be earliest.*t-0"),
        ("stream", {"endingOffsets": "latest"}, "endingOffsets has no meaning for a stream"),
        ("stream", {"endingTimestamp": "1"}, "endingTimestamp has no meaning for a stream"),
        ("stream", {"endingOffsetsByTimestamp": "{}"}, "has no meaning for a stream"),
        ("batch", {"maxOffsetsPerTrigger": "1"}, "maxOffsetsPerTrigger has no meaning for a batch"),
        ("batch", {"minOffsetsPerTrigger": "1"}, "minOffsetsPerTrigger has no meaning for a batch"),
        ("batch", {"maxTriggerDelay": "1s"}, "maxTriggerDelay has no meaning for a batch"),
        ("batch", {"startingTimestamp": "9", "endingTimestamp": "8"}, "start 9 .* beyond its end"),
        (
            "batch",
            {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":4}}'},
            "start 5 of t-0 is beyond its end 4",
        ),
        (
            "batch",
            {
                "startingOffsetsByTimestamp": '{"t":{"0":5}}',
                "endingOffsetsByTimestamp": '{"t":{"0":4}}',
            },
            "start 5 of t-0 is beyond its end 4",
        ),
        # values
        ("stream", {"startingOffsets": "newest"}, "startingOffsets has the value 'newest'"),
        ("stream", {"startingOffsets": "{"}, "startingOffsets must have the form"),
        ("stream", {"startingOffsets": "{}"}, "startingOffsets must have the form"),
        ("stream", {"startingOffsets": '{"t":3}'}, "startingOffsets must have the form"),
        ("stream", {"startingOffsets": '{"t":{"0":-3}}'}, "got -3 for t-0"),
        ("stream", {"startingOffsets": '{"t":{"0":true}}'}, "got True for t-0"),
        ("stream", {"startingOffsets": '{"t":{"x":1}}'}, "got 1 for t-x"),
        ("stream", {"startingOffsets": '{"t":{"0":1},"@sparklog":7}'}, "@sparklog is damaged"),
        ("stream", {"startingTimestamp": "-1"}, "an integer of at least 0"),
        ("stream", {"startingTimestamp": "yesterday"}, "startingTimestamp has the value"),
        ("stream", {"startingOffsetsByTimestamp": '{"t":{"0":-1}}'}, "got -1 for t-0"),
        ("stream", {"startingOffsetsByTimestampStrategy": "x"}, "use error or latest"),
        ("stream", {"failOnDataLoss": "maybe"}, "use true or false"),
        ("stream", {"includeHeaders": "1"}, "use true or false"),
        ("stream", {"minPartitions": "0"}, "an integer of at least 1"),
        ("stream", {"maxRecordsPerPartition": "-4"}, "an integer of at least 1"),
        ("stream", {"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger has the value 'many'"),
        ("stream", {"maxTriggerDelay": "1 fortnight", "minOffsetsPerTrigger": "1"}, "like 30s"),
        ("stream", {"replica": "follower"}, "use leader, nearest or a broker id"),
        # together
        ("stream", {"maxTriggerDelay": "1s"}, "give both or neither"),
        (
            "stream",
            {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "minOffsetsPerTrigger .5. is above maxOffsetsPerTrigger .4.",
        ),
        ("stream", {"replica": "nearest"}, "clientRack belong together"),
        ("stream", {"clientRack": "a"}, "clientRack belong together"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    mode: Mode, given: dict[str, str], said: str
) -> None:
    """Options with invalid values, names or combinations are refused by name."""
    with pytest.raises(ConfigError, match=said):
        parse(mode, **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscribe": "t"}, "option cluster is missing"),
        ({"cluster": " ", "subscribe": "t"}, "option cluster is empty"),
        ({"cluster": "c"}, "one of the options assign, subscribe, subscribePattern is required"),
        ({"cluster": "c", "assign": "t"}, "assign must have the form"),
        ({"cluster": "c", "assign": '{"t":[]}'}, "names no partition"),
        ({"cluster": "c", "assign": '{"t":[-1]}'}, r"got \[-1\] as the partitions of t"),
        ({"cluster": "c", "subscribePattern": "("}, "not a Python regular expression"),
    ],
)
def test_cluster_and_topics_must_be_named(given: dict[str, str], said: str) -> None:
    """A missing cluster, and missing or ambiguous topics, are refused."""
    with pytest.raises(ConfigError, match=said):
        parse_read_options(given)


def test_without_a_mode_only_what_holds_for_both_is_checked() -> None:
    """Without a mode only the checks that apply to batches and streams are made."""
    for given in ({"startingOffsets": "latest"}, {"maxOffsetsPerTrigger": "1"}):
        parse(None, **given)
    with pytest.raises(ConfigError):
        parse(None, minPartitions="0")


def test_every_reader_option_of_the_kafka_connector_is_known_or_refused_by_name() -> None:
    """Every reader option of Spark's Kafka connector is known, as supported or refused."""
    of_connector = (
        "assign subscribe subscribePattern startingTimestamp startingOffsetsByTimestamp "
        "startingOffsets endingTimestamp endingOffsetsByTimestamp endingOffsets failOnDataLoss "
        "fetchOffset.numRetries fetchOffset.retryIntervalMs maxOffsetsPerTrigger "
        "minOffsetsPerTrigger maxTriggerDelay minPartitions maxRecordsPerPartition groupIdPrefix "
        "includeHeaders startingOffsetsByTimestampStrategy"
    )
    assert set(of_connector.split()) <= set(KNOWN)
