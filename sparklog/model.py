"""The nouns of sparklog, and the schema of each table.

Offsets are exclusive ends: a log end offset is the offset of the next record, and a high watermark
is the offset after the last committed record. Times are ms since 1970 on the writer's clock. A
topic is identified by its id; its name is for display.
"""

from __future__ import annotations

import base64
import re
import secrets
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.errors import ProtocolError

SCHEMA_VERSION = 3
"""The newest format of roots that this release knows: the tables below, and what commits carry.

A new root has it. A root of an earlier release gets it by `sparklog upgrade`.
"""

OLDEST_SCHEMA_VERSION = 2
"""The oldest format that this release reads and writes. Until the upgrade it runs with it."""

ALL = -1
"""acks=all: answered when every in-sync replica has the batch (rule 3.2)."""

NOBODY = -1
"""The `broker_id` of a released lease."""

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})


Row = Mapping[str, Any]
"""A row of a table, by the names of its columns."""


class TopicIdPartition(NamedTuple):
    """A partition, identified by its topic's id; a tuple (topic_id, partition).

    Attributes
    ----------
    topic_id : str
        The id of the topic (KIP-516).
    partition : int
        The number of the partition, from 0.

    Examples
    --------
    >>> from sparklog import Connection
    >>> state = Connection("sparklog-data/cluster").metadata().partition("clicks", 1)
    >>> state.key.partition
    1
    """

    topic_id: str
    partition: int


class TopicPartition(NamedTuple):
    """A partition, identified by its topic's name; a tuple (topic, partition).

    Parameters
    ----------
    topic : str
        The name of the topic.
    partition : int
        The number of the partition, from 0.

    Examples
    --------
    >>> from sparklog import TopicPartition
    >>> partition = TopicPartition("clicks", 0)
    >>> str(partition), partition == ("clicks", 0)
    ('clicks-0', True)
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Batch(NamedTuple):
    """A record batch: one immutable Parquet file, and its header in the log.

    `path` is relative to the log table. `base_offset + last_offset_delta` is the offset of its last
    record. `checksum` covers the file's bytes. Times are ms since 1970.
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
        """The partition of the batch."""
        return TopicIdPartition(self.topic_id, self.partition)

    @property
    def next_offset(self) -> int:
        """The offset after the batch's last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def has_all_offsets(self) -> bool:
        """Whether a record has each offset; compaction removes some (8.3)."""
        return self.record_count == self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The last record's sequence number; numbers of idempotent producers wrap to 0 at 2^31."""
        return (self.base_sequence + self.last_offset_delta) % (1 << 31)

    @property
    def batch_id(self) -> str:
        """The part of the path that is the same in each copy and each retry of the batch."""
        return batch_id(self.path)


class ProducerBatch(NamedTuple):
    """An idempotent producer's batch that is no longer in the log (rule 3.6).

    `timestamp_ms` is the time of its commit to this log, on the broker's clock. `snapshot_offset`
    is the end offset of the batch that has replaced it.
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
        """The partition that the batch belonged to."""
        return TopicIdPartition(self.topic_id, self.partition)


class Record(NamedTuple):
    """A record of a replica's log.

    Attributes
    ----------
    offset : int
        Its offset.
    leader_epoch : int
        The epoch of the leader that appended it.
    key : bytes or None
        Its key.
    value : bytes or None
        Its value; `None` is a tombstone.
    timestamp : int
        Its time in ms since 1970.

    Examples
    --------
    >>> from sparklog.testing import LocalCluster
    >>> cluster = LocalCluster("records", brokers=[0])
    >>> cluster.create_topic("t")
    >>> sent = cluster.produce("t", 0, [b"a"], keys=[b"k"])
    >>> cluster.tick_until_idle()
    >>> cluster.log(0, "t", 0)
    [Record(offset=0, leader_epoch=0, key=b'k', value=b'a', timestamp=1000000)]
    """

    offset: int
    leader_epoch: int
    key: bytes | None
    value: bytes | None
    timestamp: int


class EpochEntry(NamedTuple):
    """An entry of a replica's leader-epoch history (rule 6.1)."""

    epoch: int
    start_offset: int


def new_id() -> str:
    """Return a new random id, in Kafka's format of 22 characters."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        # As in Kafka, no id starts with a dash: command lines would parse it as an option.
        if not text.startswith("-"):
            return text


INBOX_FOLDER = "_inbox"
"""The folder in the log's with the batch files of producers."""


def new_batch_path(of_batch_id: str | None = None) -> str:
    """Return a path that was never used: `_inbox/<batch id>.<attempt>.parquet` (rule 3.7).

    The batch id is the same in each copy and retry, and identifies a repeated request. The attempt
    differs, so that two writers never use one file.
    """
    return f"_inbox/{of_batch_id or uuid.uuid4().hex}.{secrets.token_hex(6)}.parquet"


_BATCH_PATH = re.compile(r"_inbox/([0-9a-f]{32})\.([0-9a-f]{12})\.parquet")


def is_batch_path(path: str) -> bool:
    """Return whether `path` has the format of `new_batch_path`, which is within the inbox."""
    return _BATCH_PATH.fullmatch(path) is not None


def batch_id(path: str) -> str:
    """Return the id of the batch with the file at `path`."""
    return path.removeprefix("_inbox/").split(".", 1)[0]


_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(topic: str) -> None:
    """Raise `ProtocolError` INVALID_TOPIC_EXCEPTION for a name that breaks Kafka's rule."""
    if not isinstance(topic, str):
        raise ProtocolError(
            "INVALID_TOPIC_EXCEPTION", f"a topic's name must be text, not {topic!r}"
        )
    if topic in ("", ".", "..") or len(topic) > 249 or not _TOPIC_NAME.fullmatch(topic):
        raise ProtocolError(
            "INVALID_TOPIC_EXCEPTION",
            f"topic name {topic!r} is not valid: use 1 to 249 of the characters a-z, A-Z, "
            "0-9, '.', '_' and '-', and neither '.' nor '..' alone",
        )


# Each commit since the last checkpoint slows down opening a table. A checkpoint costs as much as
# ten commits.
_PROPERTIES = {"delta.checkpointInterval": "100"}


def _kept_for(commits: str, removed_files: str = "2 hours") -> dict[str, str]:
    """Return the properties of a table whose commits are kept for an interval of time.

    Checkpoints name removed files for `removed_files`. It is twice the time for which the files
    stay (file.delete.delay.ms), so that they are removed while they are known as removed.
    """
    # Each retained commit slows down opening the table, which lists them.
    return _PROPERTIES | {
        "delta.logRetentionDuration": f"interval {commits}",
        "delta.deletedFileRetentionDuration": f"interval {removed_files}",
    }


_HISTORY = _kept_for("7 days", "8 days")
"""The properties of tables with a history for people (metadata.history.retention.ms)."""


class TableSchema(NamedTuple):
    """A table's name, columns, partition columns, Delta properties, primary and conflict key.

    `key` names the columns that identify a row; it is empty if a row is identified only by all
    columns. `conflict_key` names leading columns of `key`. Rows with equal values in them are read
    and changed together, such as the replicas of one partition. Two writers conflict only if both
    change rows with equal values in these columns. If it is empty, any two writers conflict.

    `added` are the columns that the oldest format does not have. A table may lack them: they are
    null then, and the first write or `sparklog upgrade` adds them. A table that lacks another
    column is damaged.
    """

    name: str
    columns: pa.Schema
    partition_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = _PROPERTIES
    key: tuple[str, ...] = ()
    conflict_key: tuple[str, ...] = ()
    added: frozenset[str] = frozenset()

    def rows(self, rows: list[dict[str, Any]]) -> pa.Table:
        """Return `rows` as an Arrow table with exactly this schema."""
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
"""The columns of a batch's Parquet file; a record's offset is base_offset + offset_delta."""

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

`header_checksum` covers the other columns and the file's size and statistics. It is not part of
`Batch`.
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
    """Return the schema of a table that needs no history."""
    return _table(name, key, **columns)._replace(properties=_kept_for("10 minutes"))


def _history_table(name: str, key: tuple[str, ...] = (), /, **columns: pa.DataType) -> TableSchema:
    """Return the schema of a table whose history people ask for, by time travel."""
    return _table(name, key, **columns)._replace(properties=_HISTORY)


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
LEADER_EPOCH_CHECKPOINT = _busy_table(
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
CLEANER_OFFSET_CHECKPOINT = _busy_table(
    "cleaner_offset_checkpoint",
    ("topic_id", "partition"),
    topic_id=_STRING,
    partition=_INT,
    first_dirty_offset=_LONG,
    passes=_STRING,
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
"""The batches that are pending for the leaders in this root. Each file in the log's inbox is one
row of `REQUEST_INDEX`, with most columns stored as the file's partition values.
"""
REQUEST_TABLES = (
    PRODUCE_REQUESTS,
    *(PRODUCE_REQUESTS._replace(name=f"{PRODUCE_REQUESTS.name}_{one}") for one in range(1, 8)),
)
"""The request tables that a broker root may have. A store accepts one commit of a table per round
trip. All tables except the first are created together, when producers on an object store compete.
"""
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
"""The columns of a pending batch: one batch of a request, for one partition."""
TRUNCATIONS = _busy_table(
    "truncations",
    ("topic_id", "partition", "version"),
    topic_id=_STRING,
    topic=_STRING,
    partition=_INT,
    version=_LONG,
    at_ms=_LONG,
    cause=_STRING,
    leader=_INT,
    leader_epoch=_INT,
    from_offset=_LONG,
    to_offset=_LONG,
    high_watermark=_LONG,
    records_removed=_LONG,
    records_lost=_LONG,
)
REPLICA_HISTORY = _busy_table(
    "replica_history",
    ("topic_id", "partition", "at_ms", "error"),
    topic_id=_STRING,
    topic=_STRING,
    partition=_INT,
    at_ms=_LONG,
    version=_LONG,
    role=_STRING,
    leader_epoch=_INT,
    log_start_offset=_LONG,
    log_end_offset=_LONG,
    high_watermark=_LONG,
    error=_STRING,
    requests=_LONG,
)
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
    newest_format=_INT,
    repair_requests=_LONG,
    offline_log_dirs=_STRING,
)._replace(added=frozenset({"newest_format", "repair_requests", "offline_log_dirs"}))
CONTROLLER = _busy_table(
    "controller",
    broker_id=_INT,
    controller_epoch=_INT,
    lease_sequence=_LONG,
    elected_ms=_LONG,
)._replace(added=frozenset({"elected_ms"}))
TOPICS = _history_table(
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
PARTITION_STATE = _history_table(
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
    delete_records_offset=_LONG,
    delete_records_epoch=_INT,
    removed_replicas=_STRING,
    replication_throttled_rate=_LONG,
)._replace(
    conflict_key=("topic_id", "partition"),
    added=frozenset(
        {
            "delete_records_offset",
            "delete_records_epoch",
            "removed_replicas",
            "replication_throttled_rate",
        }
    ),
)
CONFIGS = _history_table(
    "configs",
    ("entity_type", "entity_name"),
    entity_type=_STRING,
    entity_name=_STRING,
    configs=_STRING,
    changed_at_ms=_LONG,
)
LEADERSHIP_HISTORY = _busy_table(
    "leadership_history",
    ("topic_id", "partition", "leader_epoch"),
    topic_id=_STRING,
    topic=_STRING,
    partition=_INT,
    leader_epoch=_INT,
    leader=_INT,
    leader_broker_epoch=_LONG,
    controller_epoch=_INT,
    version=_LONG,
    since_ms=_LONG,
)
PARTITION_HISTORY = _busy_table(
    "partition_history",
    ("topic_id", "partition", "partition_epoch"),
    topic_id=_STRING,
    topic=_STRING,
    partition=_INT,
    partition_epoch=_INT,
    at_ms=_LONG,
    version=_LONG,
    operation=_STRING,
    cause=_STRING,
    detail=_STRING,
    leader=_INT,
    leader_before=_INT,
    leader_epoch=_INT,
    leader_broker_epoch=_LONG,
    controller_epoch=_INT,
    is_elected=_BOOL,
    is_unclean=_BOOL,
    replicas=_STRING,
    isr=_STRING,
    elr=_STRING,
    joined_isr=_STRING,
    left_isr=_STRING,
)
CONTROLLER_HISTORY = _busy_table(
    "controller_history",
    ("controller_epoch", "broker_id"),
    controller_epoch=_INT,
    broker_id=_INT,
    at_ms=_LONG,
    version=_LONG,
    operation=_STRING,
    cause=_STRING,
    detail=_STRING,
    broker_before=_INT,
)._replace(added=frozenset({"detail", "broker_before"}))
PRODUCER_IDS = _busy_table(
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
CONSUMER_GROUPS = _history_table(
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
)._replace(
    conflict_key=("group_id",),
    added=frozenset(
        {
            "state",
            "leader",
            "group_instance_id",
            "client_id",
            "joined_generation",
            "topics",
            "protocols",
            "session_timeout_ms",
            "rebalance_timeout_ms",
            "group_epoch",
        }
    ),
)
CONSUMER_GROUP_HEARTBEATS = _busy_table(
    "consumer_group_heartbeats",
    ("group_id", "member_id"),
    group_id=_STRING,
    member_id=_STRING,
    heartbeat=_LONG,
)._replace(conflict_key=("group_id",))
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
SCRUBS = _table(
    "scrubs",
    ("scrub_id",),
    scrub_id=_STRING,
    run_id=_STRING,
    state=_STRING,
    phase=_STRING,
    root=_STRING,
    topic_id=_STRING,
    partition=_INT,
    broker_id=_INT,
    next_offset=_LONG,
    files=_LONG,
    bytes=_LONG,
    findings=_LONG,
    started_at_ms=_LONG,
    changed_at_ms=_LONG,
)
REPAIRS = _table(
    "repairs",
    ("repair_id",),
    repair_id=_STRING,
    state=_STRING,
    fault=_STRING,
    detail=_STRING,
    broker_id=_INT,
    root=_STRING,
    table_name=_STRING,
    path=_STRING,
    topic_id=_STRING,
    topic=_STRING,
    partition=_INT,
    first_offset=_LONG,
    last_offset=_LONG,
    source_broker_id=_INT,
    remedy=_STRING,
    outcome=_STRING,
    found_at_ms=_LONG,
    changed_at_ms=_LONG,
)

BROKER_TABLES = (
    LOG,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    PRODUCER_STATE,
    PRODUCE_REQUESTS,
    CLEANER_OFFSET_CHECKPOINT,
    DELAYED_OPERATIONS,
    TRUNCATIONS,
    REPLICA_HISTORY,
)
"""The tables of a broker root, in addition to `format`."""

CLUSTER_TABLES = (
    BROKERS,
    CONTROLLER,
    TOPICS,
    PARTITION_STATE,
    LEADERSHIP_HISTORY,
    PARTITION_HISTORY,
    CONTROLLER_HISTORY,
    PRODUCER_IDS,
    STREAM_WRITES,
    CONSUMER_GROUPS,
    CONSUMER_GROUP_HEARTBEATS,
    CONSUMER_OFFSETS,
    SCRUBS,
    REPAIRS,
    CONFIGS,
)
"""The tables of the cluster root, in addition to `format`."""

CLIENT_TABLES = frozenset(
    schema.name
    for schema in (
        PRODUCER_IDS,
        STREAM_WRITES,
        CONSUMER_GROUPS,
        CONSUMER_GROUP_HEARTBEATS,
        CONSUMER_OFFSETS,
    )
)
"""The names of the tables of the cluster root that producers and consumers write to."""

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

Invariant: no release adds a name here; each stores the list of a root's tables in its `format`.
"""
