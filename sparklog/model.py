"""The nouns of sparklog, and every table's schema, once.

Offsets are exclusive ends: a log end offset is the offset that the next record will get, a
high watermark is the offset after the last committed record. Times are ms since 1970 on the
writer's clock. A topic is known by its id; its name is for people.
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from sparklog.errors import ProtocolError

SCHEMA_VERSION = 2
"""The version of the table layout below, kept in every root's `format` table."""

ALL = -1
"""acks=all: answered when every in-sync replica has the batch (rule 3.2)."""

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})

BrokerState = Literal["alive", "fenced", "parked", "stopping", "stopped", "unregistered"]


class TopicIdPartition(NamedTuple):
    """A partition, by its topic's id."""

    topic_id: str
    partition: int


class TopicPartition(NamedTuple):
    """A partition, by its topic's name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Batch(NamedTuple):
    """A record batch: one immutable Parquet file and the header that the log gives it.

    `path` is relative to the log table; `base_offset + last_offset_delta` is the offset of its
    last record; `checksum` is that of the file's bytes; times are ms since 1970.
    """

    path: str
    size_bytes: int
    topic_id: str
    topic: str
    partition: int
    leader_epoch: int
    base_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    checksum: str
    record_count: int
    last_offset_delta: int
    min_timestamp_ms: int
    max_timestamp_ms: int

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        """The partition that the batch belongs to."""
        return TopicIdPartition(self.topic_id, self.partition)

    @property
    def next_offset(self) -> int:
        """The offset after the batch's last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence number of an idempotent producer's last record; they begin anew at 2^31."""
        return (self.base_sequence + self.last_offset_delta) % (1 << 31)

    @property
    def batch_id(self) -> str:
        """What stays the same in every copy and every retry of the batch."""
        return batch_id(self.path)


class ProducerBatch(NamedTuple):
    """What is known of a batch of an idempotent producer that is no longer in the log (rule 3.6).

    `timestamp_ms` is when it was committed to this log, on the broker's clock; `snapshot_offset`
    the end of the batch that has taken its place.
    """

    topic_id: str
    partition: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    timestamp_ms: int
    snapshot_offset: int

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        """The partition that the batch was part of."""
        return TopicIdPartition(self.topic_id, self.partition)


class Record(NamedTuple):
    """One record as a replica's log holds it; `timestamp` is ms since 1970."""

    offset: int
    leader_epoch: int
    key: bytes | None
    value: bytes | None
    timestamp: int


class EpochEntry(NamedTuple):
    """One entry of a replica's leader-epoch history (rule 6.1)."""

    epoch: int
    start_offset: int


def new_id() -> str:
    """Return a new random id in the 22 characters that Kafka prints its ids in."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        # Kafka avoids a leading dash, which command lines would take for an option.
        if not text.startswith("-"):
            return text


def new_batch_path(of_batch_id: str | None = None) -> str:
    """Return a path that was never used: `_inbox/<batch id>.<attempt>.parquet` (rule 3.7).

    The batch id stays the same in every copy and retry, which is how a repeated request is
    recognised; the attempt differs, so that no writer ever meets another's file.
    """
    return f"_inbox/{of_batch_id or uuid.uuid4().hex}.{uuid.uuid4().hex[:12]}.parquet"


_BATCH_PATH = re.compile(r"_inbox/([0-9a-f]{32})\.([0-9a-f]{12})\.parquet")


def is_batch_path(path: str) -> bool:
    """Say whether `path` is one that `new_batch_path` makes, which keeps it in the inbox."""
    return _BATCH_PATH.fullmatch(path) is not None


def batch_id(path: str) -> str:
    """Return the id of the batch whose file is at `path`."""
    return path.removeprefix("_inbox/").split(".", 1)[0]


_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(topic: str) -> None:
    """Refuse a name that breaks Kafka's rule: `ProtocolError` INVALID_TOPIC_EXCEPTION."""
    if not isinstance(topic, str):
        raise ProtocolError("INVALID_TOPIC_EXCEPTION", f"a topic's name is text, not {topic!r}")
    if topic in ("", ".", "..") or len(topic) > 249 or not _TOPIC_NAME.fullmatch(topic):
        raise ProtocolError(
            "INVALID_TOPIC_EXCEPTION",
            f"topic name {topic!r} is not valid: use 1 to 249 of the characters a-z, A-Z, "
            "0-9, '.', '_' and '-', and neither '.' nor '..' alone",
        )


# Every commit since the last checkpoint makes opening a table slower; a checkpoint costs as much as
# ten commits.
_PROPERTIES = {"delta.checkpointInterval": "100"}


def _kept_for(interval: str) -> dict[str, str]:
    # Every commit that is kept makes opening the table slower, which lists them.
    return _PROPERTIES | {
        "delta.logRetentionDuration": f"interval {interval}",
        "delta.deletedFileRetentionDuration": f"interval {interval}",
    }


class TableSchema(NamedTuple):
    """A table's name, columns, partition columns, Delta properties, primary and conflict key.

    `key` names the columns that identify a row; it is empty where only all of them do.
    `conflict_key` names the leading columns of `key` that rows have in common which are read and
    changed together, such as the replicas of one partition. Two writers conflict only where both
    change rows with equal values in these columns. It is empty where any two writers conflict.
    """

    name: str
    columns: pa.Schema
    partition_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = _PROPERTIES
    key: tuple[str, ...] = ()
    conflict_key: tuple[str, ...] = ()

    def rows(self, rows: list[dict[str, Any]]) -> pa.Table:
        """Return `rows` as an Arrow table of exactly this schema."""
        return pa.Table.from_pylist(rows, schema=self.columns)


_STRING, _INT, _LONG, _BOOL = pa.string(), pa.int32(), pa.int64(), pa.bool_()

RECORD_COLUMNS = pa.schema(
    [
        ("offset_delta", _INT),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", _STRING), ("value", pa.binary())]))),
    ]
)
"""What a batch's Parquet file holds; a record's offset is base_offset + offset_delta."""

HEADER_COLUMNS = pa.schema(
    [
        ("topic_id", _STRING),
        ("topic", _STRING),
        ("partition", _INT),
        ("leader_epoch", _INT),
        ("base_offset", _LONG),
        ("producer_id", _LONG),
        ("producer_epoch", _INT),
        ("base_sequence", _INT),
        ("checksum", _STRING),
        ("header_checksum", _STRING),
    ]
)
"""A batch's header: the partition values of its file in the log table.

`header_checksum` covers the others and the file's size and statistics; a `Batch` does not carry it.
"""

BATCH_INDEX = pa.schema(
    [
        ("path", _STRING),
        ("size_bytes", _LONG),
        *(field for field in HEADER_COLUMNS if field.name != "header_checksum"),
        ("record_count", _LONG),
        ("last_offset_delta", _INT),
        ("min_timestamp_ms", _LONG),
        ("max_timestamp_ms", _LONG),
    ]
)
"""The columns of a log's batch index, in the order of `Batch`."""


def _table(name: str, key: tuple[str, ...] = (), /, **columns: pa.DataType) -> TableSchema:
    return TableSchema(name, pa.schema(list(columns.items())), key=key)


def _busy_table(name: str, key: tuple[str, ...] = (), /, **columns: pa.DataType) -> TableSchema:
    """Return the schema of a table that is written in most ticks and whose past nobody asks for."""
    return _table(name, key, **columns)._replace(properties=_kept_for("10 minutes"))


LOG = TableSchema(
    "log",
    pa.schema([*HEADER_COLUMNS, *RECORD_COLUMNS]),
    tuple(HEADER_COLUMNS.names),
    _kept_for("1 hours"),
)
HIGH_WATERMARK_CHECKPOINT = _busy_table(
    "high_watermark_checkpoint",
    ("topic_id", "partition"),
    topic_id=_STRING,
    topic=_STRING,
    partition=_INT,
    leader_epoch=_INT,
    broker_epoch=_LONG,
    role=_STRING,
    log_start_offset=_LONG,
    log_end_offset=_LONG,
    high_watermark=_LONG,
    log_version=_LONG,
    epochs_version=_LONG,
    reported_at_ms=_LONG,
    damaged_offset=_LONG,
    damage=_STRING,
    leader_damaged_offset=_LONG,
    parked_lags=_STRING,
)
LEADER_EPOCH_CHECKPOINT = _table(
    "leader_epoch_checkpoint",
    ("topic_id", "partition", "epoch"),
    topic_id=_STRING,
    topic=_STRING,
    partition=_INT,
    epoch=_INT,
    start_offset=_LONG,
)
PRODUCER_STATE = _busy_table(
    "producer_state",
    topic_id=_STRING,
    partition=_INT,
    producer_id=_LONG,
    producer_epoch=_INT,
    base_sequence=_INT,
    last_sequence=_INT,
    base_offset=_LONG,
    last_offset=_LONG,
    leader_epoch=_INT,
    timestamp_ms=_LONG,
    snapshot_offset=_LONG,
)
_REQUEST_HEADER = pa.schema(
    [
        ("request_id", _STRING),
        ("topic_id", _STRING),
        ("topic", _STRING),
        ("partition", _INT),
        ("leader_epoch", _INT),
        ("checksum", _STRING),
        ("producer_id", _LONG),
        ("producer_epoch", _INT),
        ("base_sequence", _INT),
        ("acks", _INT),
        ("timeout_ms", _LONG),
        ("client_id", _STRING),
        ("created_at_ms", _LONG),
    ]
)
PRODUCE_REQUESTS = TableSchema(
    "produce_requests",
    pa.schema([*_REQUEST_HEADER, *RECORD_COLUMNS]),
    tuple(_REQUEST_HEADER.names),
    _kept_for("10 minutes"),
)
"""The batches that wait for the leaders of this root: a file of the log's inbox is one row of
`REQUEST_INDEX`, most of which are the file's partition values."""
REQUEST_TABLES = (
    PRODUCE_REQUESTS,
    *(PRODUCE_REQUESTS._replace(name=f"{PRODUCE_REQUESTS.name}_{one}") for one in range(1, 8)),
)
"""The request tables that a broker root may have: a store takes one commit of a table each round
trip. All but the first are created, all at once, where producers on an object store compete."""
REQUEST_INDEX = pa.schema(
    [
        *(_REQUEST_HEADER.field(name) for name in _REQUEST_HEADER.names[:5]),
        ("path", _STRING),
        ("record_count", _LONG),
        ("byte_size", _LONG),
        _REQUEST_HEADER.field("checksum"),
        ("min_timestamp_ms", _LONG),
        ("max_timestamp_ms", _LONG),
        *(_REQUEST_HEADER.field(name) for name in _REQUEST_HEADER.names[6:]),
    ]
)
"""The columns of what is known of a batch that waits: one batch of a request, for one partition."""
DELAYED_OPERATIONS = _busy_table(
    "delayed_operations",
    ("operation_id",),
    operation_id=_STRING,
    kind=_STRING,
    request_id=_STRING,
    topic_id=_STRING,
    topic=_STRING,
    partition=_INT,
    leader_epoch=_INT,
    base_offset=_LONG,
    required_offset=_LONG,
    min_bytes=_LONG,
    deadline_ms=_LONG,
    state=_STRING,
)
FORMAT = _table(
    "format",
    schema_version=_INT,
    cluster_id=_STRING,
    created_by=_STRING,
    broker_id=_INT,
    tables=_STRING,
)
BROKERS = _busy_table(
    "brokers",
    ("broker_id",),
    broker_id=_INT,
    broker_epoch=_LONG,
    roots=_STRING,
    rack=_STRING,
    log_table_id=_STRING,
    log_version=_STRING,
    log_digest=_STRING,
    boot_id=_STRING,
    state=_STRING,
    registered_at_ms=_LONG,
    heartbeat=_LONG,
    parked_at_ms=_LONG,
)
CONTROLLER = _busy_table("controller", broker_id=_INT, controller_epoch=_INT, lease_sequence=_LONG)
TOPICS = _table(
    "topics",
    ("topic_id",),
    topic_id=_STRING,
    topic=_STRING,
    partitions=_INT,
    replication_factor=_INT,
    configs=_STRING,
    state=_STRING,
    created_at_ms=_LONG,
)
PARTITION_STATE = _table(
    "partition_state",
    ("topic_id", "partition", "broker_id"),
    topic_id=_STRING,
    topic=_STRING,
    partition=_INT,
    broker_id=_INT,
    root=_INT,
    replica_index=_INT,
    in_isr=_BOOL,
    in_elr=_BOOL,
    adding=_BOOL,
    removing=_BOOL,
    leader=_INT,
    leader_broker_epoch=_LONG,
    leader_epoch=_INT,
    partition_epoch=_INT,
    controller_epoch=_INT,
    min_isr=_INT,
)._replace(conflict_key=("topic_id", "partition"))
PRODUCER_IDS = _table(
    "producer_ids",
    ("transactional_id",),
    next_producer_id=_LONG,
    transactional_id=_STRING,
    producer_id=_LONG,
    producer_epoch=_INT,
    used_at_ms=_LONG,
)
STREAM_WRITES = _busy_table(
    "stream_writes",
    ("query_id", "topic_id"),
    query_id=_STRING,
    topic_id=_STRING,
    batch_id=_LONG,
    files=_STRING,
    is_done=_BOOL,
)
CONSUMER_GROUPS = _table(
    "consumer_groups",
    ("group_id", "member_id"),
    group_id=_STRING,
    state=_STRING,
    generation=_INT,
    protocol=_STRING,
    leader=_STRING,
    member_id=_STRING,
    group_instance_id=_STRING,
    client_id=_STRING,
    joined_generation=_INT,
    topics=_STRING,
    protocols=_STRING,
    assignment=_STRING,
    session_timeout_ms=_LONG,
    rebalance_timeout_ms=_LONG,
    group_epoch=_LONG,
)._replace(conflict_key=("group_id",))
CONSUMER_GROUP_HEARTBEATS = _busy_table(
    "consumer_group_heartbeats",
    ("group_id", "member_id"),
    group_id=_STRING,
    member_id=_STRING,
    heartbeat=_LONG,
)
CONSUMER_OFFSETS = _busy_table(
    "consumer_offsets",
    ("group_id", "topic_id", "partition"),
    group_id=_STRING,
    topic_id=_STRING,
    topic=_STRING,
    partition=_INT,
    committed_offset=_LONG,
    leader_epoch=_INT,
    metadata=_STRING,
    generation=_INT,
    committed_at_ms=_LONG,
    group_epoch=_LONG,
)._replace(conflict_key=("group_id",))

BROKER_TABLES = (
    LOG,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    PRODUCER_STATE,
    PRODUCE_REQUESTS,
    DELAYED_OPERATIONS,
)
"""The tables of a broker root, beside `format`."""

CLUSTER_TABLES = (
    BROKERS,
    CONTROLLER,
    TOPICS,
    PARTITION_STATE,
    PRODUCER_IDS,
    STREAM_WRITES,
    CONSUMER_GROUPS,
    CONSUMER_GROUP_HEARTBEATS,
    CONSUMER_OFFSETS,
)
"""The tables of the cluster root, beside `format`."""

UNLISTED_BROKER_TABLES = frozenset(
    {
        "log",
        "high_watermark_checkpoint",
        "leader_epoch_checkpoint",
        "producer_state",
        "produce_requests",
        "produce_responses",
        "delayed_operations",
    }
)
UNLISTED_CLUSTER_TABLES = frozenset(
    {
        "brokers",
        "controller",
        "topics",
        "partition_state",
        "producer_ids",
        "stream_writes",
        "consumer_groups",
        "consumer_offsets",
    }
)
"""The tables of a root whose `format` has no list of tables: those of the first release.

Invariant: no release adds a name here; each lists the tables that a root has in its `format`.
"""
