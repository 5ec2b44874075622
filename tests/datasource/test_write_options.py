"""The options and columns of a sink: accepted ones, and refusals that name the option."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sparklog.datasource.write_options import WriteOptions, make_partitioner, parse_write_options
from sparklog.datasource.write_schema import check_write_schema
from sparklog.errors import ConfigError
from sparklog.producer.partitioner import DefaultPartitioner


def parsed(**options: str) -> WriteOptions:
    given = {name.replace("_", "."): value for name, value in options.items()}
    return parse_write_options({"cluster": "/c"} | given)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, WriteOptions("/c")),
        ({"TOPIC": "t"}, WriteOptions("/c", topic="t")),
        ({"acks": "1"}, WriteOptions("/c", acks=1)),
        ({"kafka_acks": "-1"}, WriteOptions("/c", acks="all")),
        ({"kafka_client_id": "me"}, WriteOptions("/c", client_id="me")),
        ({"kafka_request_timeout_ms": "7"}, WriteOptions("/c", request_timeout_ms=7)),
        ({"kafka_delivery_timeout_ms": "7"}, WriteOptions("/c", delivery_timeout_ms=7)),
        ({"includeHeaders": "true", "queryName": "q"}, WriteOptions("/c")),
    ],
)
def test_what_is_honoured(options: dict[str, str], expected: WriteOptions) -> None:
    """Names are case-insensitive; defaults are those of Kafka's producer."""
    assert parsed(**options) == expected
    assert (WriteOptions("/c").request_timeout_ms, WriteOptions("/c").delivery_timeout_ms) == (
        30_000,
        120_000,
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kafka_bootstrap_servers": "h:1"}, "kafka.bootstrap.servers is not supported: name the"),
        ({"kafka_linger_ms": "5"}, "kafka.linger.ms is not supported: a task writes whole files"),
        ({"kafka_ssl_key_password": "x"}, "kafka.ssl.key.password is not supported, since"),
        ({"subscribe": "t"}, "subscribe is not supported: it is an option of a reader"),
        ({"topics": "t"}, "topics is unknown: did you mean topic?"),
        ({"acks": "2"}, "acks has the value '2': use 0, 1 or all"),
        ({"acks": "1", "kafka_acks": "1"}, "acks and kafka.acks are the same: give one"),
        ({"topic": " "}, "topic is empty: give it a value or leave it out"),
        ({"includeHeaders": "false"}, "includeHeaders is false, but a sink writes the column"),
        ({"partitioner": "nowhere:None"}, "partitioner has the value 'nowhere:None', which cannot"),
        ({"partitioner": "json:dumper"}, "write it as package.module:Class"),
    ],
)
def test_what_is_refused(options: dict[str, str], sentence: str) -> None:
    """Unsupported and invalid options are refused by name."""
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        parsed(**options)


def test_without_a_cluster_there_is_nowhere_to_write() -> None:
    """A missing option `cluster` is refused."""
    with pytest.raises(ConfigError, match="option cluster is missing: name the cluster's root"):
        parse_write_options({"topic": "t"})


def test_a_partitioner_is_a_class_by_name() -> None:
    """A partitioner is named by its class."""
    options = parsed(partitioner="sparklog.producer.partitioner:DefaultPartitioner")
    assert isinstance(make_partitioner(options, 3), DefaultPartitioner)


_HEADERS = "array<struct<key:string,value:binary>>"


@pytest.mark.parametrize(
    ("types", "sentence"),
    [
        ({"key": "binary"}, "the required column value is missing"),
        ({"value": "int"}, "the column value is of type int: cast it to string or binary"),
        ({"value": "string", "key": "bigint"}, "key is of type bigint"),
        ({"value": "string", "partition": "bigint"}, "partition is of type bigint: cast it to int"),
        ({"value": "string", "topic": "binary"}, "topic is of type binary: cast it to string"),
        ({"value": "string", "headers": "map<string,binary>"}, "headers is of type map"),
        ({"value": "string"}, None),
        ({"value": "binary", "key": "string", "partition": "int", "headers": _HEADERS}, None),
        ({"value": "binary", "offset": "bigint", "timestamp": "date"}, None),
    ],
)
def test_columns_are_those_of_kafkas_sink(types: dict[str, Any], sentence: str | None) -> None:
    """Other columns are ignored, as in Kafka's sink."""
    options = WriteOptions("/c", topic="t")
    if sentence is None:
        check_write_schema(types, options)
    else:
        with pytest.raises(ConfigError, match=sentence):
            check_write_schema(types, options)


def test_a_topic_comes_from_the_option_or_from_a_column() -> None:
    """The topic comes from the option `topic` or from the column `topic`."""
    check_write_schema({"value": "string", "topic": "string"}, WriteOptions("/c"))
    with pytest.raises(ConfigError, match="the column topic is missing: give option topic"):
        check_write_schema({"value": "string"}, WriteOptions("/c"))
