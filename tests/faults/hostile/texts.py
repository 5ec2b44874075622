"""Targets: configuration, options, names, and files and lines of the command line."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sparklog.cli import delete_records, elect_leaders, reassign_partitions
from sparklog.cli.record_lines import LineReader, client_config
from sparklog.cli.times import read_past_time_ms
from sparklog.cluster import arguments
from sparklog.cluster.naming import named_cluster
from sparklog.config import (
    ClientQuotas,
    ConsumerConfig,
    ProducerConfig,
    Settings,
    TopicConfig,
    load_either,
    parse,
)
from sparklog.datasource.offsets import (
    StreamOffset,
    parse_assignment,
    parse_offsets,
    parse_timestamps,
)
from sparklog.datasource.options import parse_read_options
from sparklog.datasource.write_options import parse_write_options
from sparklog.errors import ConfigError, SparklogError
from sparklog.maintenance import checkpoint_files
from sparklog.model import batch_id, check_topic_name, is_batch_path, new_batch_path
from sparklog.storage.json_text import json_bytes
from sparklog.storage.location import Location
from sparklog.storage.references import check_references, literal_secrets, resolved
from tests.faults.hostile.target import Target

_CONFIGURATION = b"""cluster.root: data/cluster
min.insync.replicas: 2
log.retention.hours: -1
log.cleanup.policy: [delete, compact]
tick.failure.timeout.ms: null
storage.options:
  s3://bucket/prefix: {AWS_REGION: eu-central-1, AWS_SECRET_ACCESS_KEY: "${SECRET}"}
brokers:
  - {broker.id: 0, log.dirs: data/a, broker.rack: r1}
  - broker.id: 1
    log.dirs: &dirs ["/data/b", s3://bucket/prefix/b]
"""
_OF_ONE_BROKER = b"""# one broker
cluster.root: s3://bucket/cluster
broker.id: 3
log.dirs: ~/data/a,/data/b
storage.options: {"s3://bucket": {"AWS_ALLOW_HTTP": true, "timeout": 5}}
"""
_STREAM_OFFSET = {
    "t": {"0": 23, "1": -1},
    "@sparklog": {
        "topic_ids": {"t": "abc"},
        "leader_epochs": {"t": {"0": 3}},
        "epoch_starts": {"t": {"0": 20}},
        "is_initial": True,
        "stream_id": "s",
        "started_at": {"t": {"0": 5}, "@sparklog": {"topic_ids": {"t": "abc"}}},
    },
}
_READ = {
    "cluster": "/data/cluster",
    "storageOptions": '{"s3://bucket": {"AWS_REGION": "eu"}}',
    "subscribe": "a,b",
    "startingOffsets": '{"a":{"0":23,"1":-2}}',
    "maxOffsetsPerTrigger": "1000",
    "minOffsetsPerTrigger": "10",
    "maxTriggerDelay": "15m",
    "failOnDataLoss": "false",
    "replica": "nearest",
    "clientRack": "r",
}
_READ_BATCH = {
    "cluster": "s3://bucket/cluster",
    "assign": '{"a":[0,1],"b":[2]}',
    "startingTimestamp": "1000",
    "endingOffsetsByTimestamp": '{"a":{"0":2000}}',
}
_READ_PATTERN = {"cluster": "file:///data", "subscribePattern": "a.*", "replica": "3"}
_WRITE = {
    "cluster": "/data/cluster",
    "topic": "t",
    "acks": "all",
    "kafka.request.timeout.ms": "1000",
    "kafka.client.id": "c",
    "includeHeaders": "true",
}
_URIS = (
    b"/data/cluster",
    b"data/../cluster",
    b"~/cluster",
    b"file:///data/a%20b",
    b"file://localhost/data",
    b"s3://bucket/prefix/",
    b"s3a://bucket:80/x",
    b"abfss://container@account.dfs.core.windows.net/p",
    b"gs://b",
    b"az://[::1]/x",
)
_REASSIGNMENT = {
    "version": 1,
    "partitions": [
        {"topic": "t", "partition": 0, "replicas": [0, 1], "log_dirs": ["any", "any"]},
        {"topic": "t", "partition": 1, "replicas": [1, 2]},
    ],
}
_DELETION = {"version": 1, "partitions": [{"topic": "t", "partition": 0, "offset": 7}]}
_LINES = (
    b"h1:v1,h2:v2\tkey\tvalue\n",
    b"key\tvalue\r\n",
    b"\t\t",
    b"h:NULL\tNULL\tNULL\n",
)
_ARGUMENTS: tuple[Any, ...] = (
    ["t", 0],
    [["t", 0], ["t", 1]],
    {"0": 5},
    5,
    "t",
    [0, 1],
)


def text_targets(folder: Path) -> list[Target]:
    """Return the targets about texts; `folder` is theirs."""
    topics = {"version": 1, "topics": [{"topic": "a"}, {"topic": "b"}]}
    values = [json_bytes(one) for one in _values()]
    offsets = [b'{"a":{"0":23,"1":-1}}', json_bytes(_STREAM_OFFSET)]
    options = [json_bytes(one) for one in (_READ, _READ_BATCH, _READ_PATTERN, _WRITE)]
    on_file = _on_file(folder)
    epochs = [b"0\n2\n0 0\n3 17\n", b"0\r\n1\r\n5 9223372036854775807\r\n"]
    kafka = [b"0\n2\nt 0 5\na.b-c_d 1 17\n", b"0\n0\n"]
    store = [json_bytes({"s3://bucket/a": {"AWS_REGION": "${REGION}", "timeout": 5, "x": True}})]
    return [
        Target(
            "configuration",
            _configuration(folder),
            [_CONFIGURATION, _OF_ONE_BROKER],
            "text",
            (ConfigError,),
            weight=8,
        ),
        Target("config_values", _parsed, values, "json", (ConfigError,), weight=60),
        Target("storage_options", _storage_options, store, "json", (ConfigError,), weight=40),
        Target(
            "references",
            _references,
            [b"${HOME}", b"${file:/dev/null}x", b"a${HOME}c"],
            "text",
            (ConfigError,),
            weight=30,
        ),
        Target("location", _location, _URIS, "text", weight=40),
        Target("topic_name", _topic_name, [b"a.b_c-D9", b"x" * 249], "text", weight=40),
        Target("batch_path", _batch_path, [new_batch_path().encode()], "text", weight=30),
        Target("arguments", _arguments, [json_bytes(one) for one in _ARGUMENTS], "json", weight=30),
        Target("read_offsets", _read_offsets, offsets, "json", (ConfigError,), weight=40),
        Target("stream_offset", _stream_offset, offsets, "json", weight=40),
        Target("data_source_options", _options, options, "json", (ConfigError,), weight=40),
        Target("offset_checkpoint", on_file(checkpoint_files.read_offsets), kafka, weight=20),
        Target("epoch_checkpoint", on_file(checkpoint_files.read_epochs), epochs, weight=20),
        Target(
            "reassignment",
            on_file(reassign_partitions._assignment),
            [json_bytes(_REASSIGNMENT)],
            "json",
            weight=20,
        ),
        Target(
            "reassigned_topics",
            on_file(reassign_partitions._topics),
            [json_bytes(topics)],
            "json",
            weight=10,
        ),
        Target("election", on_file(elect_leaders._partitions), [json_bytes(_DELETION)], "json"),
        Target("deletion", on_file(delete_records._offsets), [json_bytes(_DELETION)], "json"),
        Target("broker_list", _brokers, [b"0,1,2", b"7"], "text", weight=20),
        Target("record_lines", _lines, _LINES, weight=60),
        Target(
            "command_property",
            _command_property,
            [b"linger.ms=5", b"client.id=[a, {b: c}]"],
            "text",
            weight=15,
        ),
        Target(
            "past_time",
            _time,
            [b"2026-01-31T12:00:00+01:00", b"10 minutes ago", b"1700000000000"],
            "text",
            weight=20,
        ),
    ]


def _text(content: bytes) -> str:
    """Return an input as text; bytes that are not UTF-8 are as Python has them in arguments."""
    return content.decode("utf-8", "surrogateescape")


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _on_file(folder: Path) -> Callable[[Callable[[Path], object]], Callable[[bytes], object]]:
    path = folder / "given"

    def of(read: Callable[[Path], object]) -> Callable[[bytes], object]:
        def run(content: bytes) -> None:
            path.write_bytes(content)
            read(path)

        return run

    return of


def _configuration(folder: Path) -> Callable[[bytes], object]:
    path = folder / "conf.yaml"

    def run(content: bytes) -> None:
        path.write_bytes(content)
        config = load_either(path)
        for broker in config.brokers:
            for uri in broker.log_dirs:
                _permitting_refusal(uri, config.storage_options)

    return run


def _permitting_refusal(uri: str, options: Mapping[str, Mapping[str, str]]) -> None:
    with contextlib.suppress(SparklogError):
        Location.of(uri, options)


_MODELS = (Settings, TopicConfig, ProducerConfig, ConsumerConfig, ClientQuotas)


def _values() -> list[dict[str, Any]]:
    return [
        {"min.insync.replicas": 2, "log.cleaner.min.cleanable.ratio": 0.5, "execution": "auto"},
        {"cleanup.policy": "delete,compact", "retention.ms": "-1", "max.message.bytes": 5},
        {"acks": "all", "linger.ms": 5, "client.id": "x", "transactional.id": "t"},
        {"auto.offset.reset": "earliest", "partition.assignment.strategy": "range,sticky"},
        {"producer_byte_rate": 5},
    ]


def _parsed(content: bytes) -> None:
    values = _json(content)
    if not isinstance(values, dict):
        return
    for model in _MODELS:
        try:
            parse(model, values, "the input")
        except ConfigError as error:
            str(error).encode("utf-8", "backslashreplace")


def _storage_options(content: bytes) -> None:
    named = named_cluster("/data/cluster", _text(content))
    for prefix, options in named.storage_options.items():
        assert all(isinstance(one, str) for one in options.values())
        literal_secrets(options)
        _permitting_refusal(prefix, named.storage_options)


def _references(content: bytes) -> None:
    options = {"key": _text(content)}
    check_references(options, "s3://bucket")
    resolved(options, "s3://bucket")


def _location(content: bytes) -> None:
    location = Location.of(_text(content), {"/data": {"sync": "false"}, "s3://bucket": {"a": "b"}})
    assert location.uri
    if location.is_local:
        # Python can name it to the operating system.
        location.exists("_delta_log")
        with contextlib.suppress(OSError):
            location.names("x")
    else:
        location.identity  # noqa: B018
    location.child("log")


def _topic_name(content: bytes) -> None:
    name = _text(content)
    check_topic_name(name)
    assert 0 < len(name) <= 249
    assert name.isascii()
    assert not set(name) & set("/\\'\"\0\n;%$ ")
    assert name not in (".", "..")


def _batch_path(content: bytes) -> None:
    path = _text(content)
    if is_batch_path(path):
        assert path.startswith("_inbox/")
        assert path.count("/") == 1
        assert ".." not in path
        assert path.isascii()
        assert len(path) == len(new_batch_path())
    batch_id(path)


def _arguments(content: bytes) -> None:
    given = _json(content)
    checks: tuple[Callable[[], object], ...] = (
        lambda: arguments.partition_name(tuple(given) if isinstance(given, list) else given),
        lambda: arguments.partition_names(
            [tuple(one) if isinstance(one, list) else one for one in given]
            if isinstance(given, list)
            else given
        ),
        lambda: arguments.by_partition(given, "offsets"),
        lambda: arguments.whole_number(given, "a number"),
        lambda: arguments.milliseconds(given, "timeout"),
        lambda: arguments.numbers_list(given, "brokers"),
        lambda: arguments.numbers_by_number(given, "offsets"),
        lambda: arguments.names_list(given, "topics"),
        lambda: arguments.conversion(given, "serializer", "serialize"),
        lambda: arguments.callback(given, "callback"),
    )
    for check in checks:
        with contextlib.suppress(SparklogError):
            check()


def _read_offsets(content: bytes) -> None:
    text = _text(content)
    for parse_text in (parse_offsets, parse_timestamps, parse_assignment):
        with contextlib.suppress(ConfigError):
            parse_text(text, "startingOffsets")


def _stream_offset(content: bytes) -> None:
    values = _json(content)
    if isinstance(values, dict):
        StreamOffset.from_json(values).to_json()


def _options(content: bytes) -> None:
    given = _json(content)
    if not isinstance(given, dict):
        return
    options = {name: one if isinstance(one, str) else str(one) for name, one in given.items()}
    if "partitioner" in {name.lower() for name in options}:
        # It imports a module of the user's choice.
        return
    for read in (
        lambda: parse_read_options(options, "batch"),
        lambda: parse_read_options(options, "stream"),
        lambda: parse_write_options(options),
    ):
        with contextlib.suppress(ConfigError):
            read()


def _brokers(content: bytes) -> None:
    assert all(isinstance(one, int) for one in reassign_partitions._brokers(_text(content)))


_READERS = (
    LineReader({"parse.key": "true", "parse.headers": "true", "null.marker": "NULL"}),
    LineReader({"parse.key": "true", "ignore.error": "true"}),
    LineReader({"parse.headers": "true", "headers.separator": "\N{PILE OF POO}"}),
)


def _lines(content: bytes) -> None:
    for reader in _READERS:
        try:
            record = reader.read(content, 1)
        except SparklogError:
            continue
        for name, _ in record.headers:
            name.encode()


def _command_property(content: bytes) -> None:
    client_config([_text(content)])


def _time(content: bytes) -> None:
    read_past_time_ms(_text(content), "--as-of", 1_700_000_000_000, utc=True)
