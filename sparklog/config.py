"""Configuration: Kafka's keys, their defaults and their descriptions.

A file has Kafka's keys in the spelling of `server.properties`, as YAML. Everything is checked when
it is loaded: an unknown key, a missing key or a malformed value raises a `ConfigError` that names
it. Relative paths in a file are relative to the file's folder.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from sparklog.errors import ConfigError

_MEBIBYTE = 1 << 20
_GIBIBYTE = 1 << 30


def _kafka_list(value: object) -> object:
    """Accept Kafka's comma-separated lists in addition to YAML's."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _text(value: object) -> object:
    """Accept YAML's numbers and booleans as the text of a store's option."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else value


_Uri = Annotated[str, Field(min_length=1)]
_LogDirs = Annotated[list[_Uri], BeforeValidator(_kafka_list)]
_StoreOptions = dict[str, Annotated[str, BeforeValidator(_text)]]


def _kafka_key(name: str) -> str:
    """Return the key of a field: Kafka's, with dots in the place of the field's underscores."""
    return name.replace("_", ".")


class _Keys(BaseModel):
    model_config = ConfigDict(
        alias_generator=_kafka_key, frozen=True, extra="forbid", allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: object, info: ValidationInfo) -> object:
        """Refuse a boolean, YAML's value of an unquoted yes or on, which would count as 1."""
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and kind in (int, int | None):
            raise ValueError("a number is required")
        return value


class Settings(_Keys):
    """The settings of a whole cluster, in Kafka's keys.

    Parameters
    ----------
    **values
        Kafka's keys, such as `{"min.insync.replicas": 2}`, as keyword arguments;
        `Settings.model_fields` has each with its default and description. A field's name is the key
        with underscores.

    Raises
    ------
    pydantic.ValidationError
        A key is unknown or a value is not usable; of `load` it is a `ConfigError`.

    Examples
    --------
    >>> from sparklog.config import Settings
    >>> settings = Settings(**{"min.insync.replicas": 2})
    >>> settings.min_insync_replicas, settings.broker_session_timeout_ms
    (2, 9000)
    >>> Settings.model_fields["tick_interval_ms"].default
    50
    """

    replica_lag_time_max_ms: int = Field(
        30_000,
        gt=0,
        description="ms for which a follower in the in-sync set may lag at most.",
    )
    replica_lag_max_messages: int | None = Field(
        None,
        gt=0,
        description="Records by which a follower in the in-sync set may lag at most; off.",
    )
    replica_fetch_max_bytes: int = Field(
        256 * _MEBIBYTE,
        gt=0,
        description="Bytes that a follower copies of a partition per tick, at least one batch.",
    )
    replica_fetch_response_max_bytes: int = Field(
        _GIBIBYTE,
        gt=0,
        description="Bytes that a follower copies of all partitions per tick, at least one batch.",
    )
    replica_fetch_min_bytes: int = Field(
        1,
        ge=0,
        description="Bytes for which a follower waits before it copies from a leader; 0: it never "
        "waits.",
    )
    replica_fetch_wait_max_ms: int = Field(
        500,
        ge=0,
        description="ms for which a follower waits for replica.fetch.min.bytes; on object stores "
        "also those for which it waits for a commit of an idle leader in the same process.",
    )
    replica_high_watermark_checkpoint_interval_ms: int = Field(
        5_000,
        gt=0,
        description="ms between writes of a broker's checkpoint tables if replicas have changed; "
        "if it is not set, 60000 on object stores.",
    )
    min_insync_replicas: int = Field(
        1,
        ge=1,
        description="In-sync replicas that acks=all requires, unless the topic overrides it.",
    )
    message_max_bytes: int = Field(
        _GIBIBYTE,
        gt=0,
        description="The largest batch file, in bytes, unless the topic overrides it.",
    )
    queued_max_requests: int = Field(
        500,
        gt=0,
        description="Produce requests that a leader accepts per tick; others must be sent again.",
    )
    producer_id_expiration_ms: int = Field(
        86_400_000,
        gt=0,
        description="ms after which an inactive idempotent producer expires in a partition.",
    )
    transactional_id_expiration_ms: int = Field(
        604_800_000,
        ge=7_200_000,
        description="ms after which an unused transactional id expires; producers renew it hourly.",
    )
    log_retention_ms: int | None = Field(
        None,
        ge=-1,
        description="ms for which records are kept at least; -1: forever. Takes precedence over "
        "log.retention.minutes and log.retention.hours; a topic may override it.",
    )
    log_retention_minutes: int | None = Field(
        None,
        ge=-1,
        description="Minutes for which records are kept; takes precedence over "
        "log.retention.hours.",
    )
    log_retention_hours: int = Field(
        168, ge=-1, description="Hours for which records are kept; -1: forever."
    )
    log_retention_bytes: int = Field(
        -1,
        ge=-1,
        description="Bytes of batch files that a partition keeps at least; -1: no limit. A topic "
        "may override it.",
    )
    log_retention_check_interval_ms: int = Field(
        300_000,
        gt=0,
        description="ms between a leader's checks for records that are to be deleted.",
    )
    log_scrub_bytes_per_second: int = Field(
        4 * _MEBIBYTE,
        ge=0,
        description="Bytes of batch files that a broker verifies per second in local folders; on "
        "object stores only if the key is set, since each file is a request.",
    )
    log_merger_enable: bool = Field(
        True,
        description="Whether small batches of a log are merged in the background.",
    )
    log_merger_backoff_ms: int = Field(
        15_000,
        gt=0,
        description="ms for which the merger waits if there is nothing to merge.",
    )
    log_merger_min_lag_ms: int = Field(
        120_000,
        ge=0,
        description="The least age in ms of merged batches; younger ones may still be sent again.",
    )
    log_merger_min_batches: int = Field(
        32,
        ge=2,
        description="The least number of adjacent small batches that are merged into one.",
    )
    log_merger_max_batch_bytes: int = Field(
        16 * _MEBIBYTE,
        gt=0,
        description="Bytes of a merged batch at most; batches over a quarter of it are not merged.",
    )
    log_vacuum_enable: bool = Field(
        True,
        description="Whether files that no table names any more are removed in the background.",
    )
    log_vacuum_interval_ms: int = Field(
        600_000,
        gt=0,
        description="ms between two searches for such files; if it is not set, 3600000 on object "
        "stores.",
    )
    log_vacuum_unknown_file_retention_ms: int = Field(
        604_800_000,
        ge=3_600_000,
        description="The least age in ms of a removed file that no known commit has named, such as "
        "an upload whose request was never made.",
    )
    file_delete_delay_ms: int = Field(
        3_600_000,
        ge=0,
        description="ms for which a file stays after a commit has removed it from its table; "
        "readers of older versions need it until then.",
    )
    metadata_history_retention_ms: int = Field(
        604_800_000,
        ge=60_000,
        description="ms for which earlier versions of topics, partition_state, configs and "
        "consumer_groups can be read; leadership_history has the leaders of all times.",
    )
    log_cleanup_policy: Annotated[
        list[Literal["delete", "compact"]], BeforeValidator(_kafka_list), Field(min_length=1)
    ] = Field(
        ["delete"],
        description="The policy of topics that set none: delete, compact, or both.",
    )
    log_cleaner_enable: bool = Field(
        True, description="Whether logs of topics with cleanup.policy=compact are cleaned."
    )
    log_cleaner_backoff_ms: int = Field(
        15_000, gt=0, description="ms for which the cleaner waits if there is nothing to clean."
    )
    log_cleaner_min_cleanable_ratio: float = Field(
        0.5,
        ge=0,
        le=1,
        description="The part of a log's bytes that must be dirty before it is cleaned, unless "
        "the topic overrides it.",
    )
    log_cleaner_min_compaction_lag_ms: int = Field(
        0,
        ge=0,
        description="The least age in ms of a batch that is cleaned; log.merger.min.lag.ms is one, "
        "too.",
    )
    log_cleaner_max_compaction_lag_ms: int = Field(
        (1 << 63) - 1,
        gt=0,
        description="The age in ms of a dirty batch from which on its log is cleaned in any case.",
    )
    log_cleaner_delete_retention_ms: int = Field(
        86_400_000,
        ge=0,
        description="ms for which a tombstone stays after it was cleaned first.",
    )
    log_cleaner_dedupe_buffer_size: int = Field(
        134_217_728,
        ge=1_048_576,
        description="Bytes of memory for the keys of one pass of the cleaner over a log in the "
        "driver; 256 for each key of the dirty part.",
    )
    quota_window_num: int = Field(
        11, gt=0, description="The number of windows over which a rate is measured."
    )
    quota_window_size_seconds: int = Field(
        1, gt=0, description="The length of a window of quota.window.num in seconds."
    )
    unclean_leader_election_enable: bool = Field(
        False,
        description="Whether a replica outside the in-sync set may lead if no other is live.",
    )
    delete_topic_enable: bool = Field(
        True, description="Whether `sparklog topics delete` and Admin.delete_topic delete topics."
    )
    num_partitions: int = Field(1, ge=1, description="The default number of partitions of a topic.")
    default_replication_factor: int = Field(
        1,
        ge=1,
        description="The default replication factor of a topic.",
    )
    auto_leader_rebalance_enable: bool = Field(
        True,
        description="Whether preferred replicas regain leadership automatically.",
    )
    leader_imbalance_check_interval_seconds: int = Field(
        300,
        gt=0,
        description="Seconds between checks for brokers that lead less than their share.",
    )
    leader_imbalance_per_broker_percentage: int = Field(
        10,
        ge=0,
        description="Percentage of its preferred partitions that a broker may not lead.",
    )
    broker_session_timeout_ms: int = Field(
        9_000,
        gt=0,
        description="ms without heartbeat until a broker is fenced; also the controller's lease.",
    )
    parked_session_timeout_ms: int = Field(
        172_800_000,
        gt=0,
        description="ms after which a broker parked between two scheduled runs is fenced.",
    )
    request_clock_skew_ms: int = Field(
        1_000,
        ge=0,
        description="ms by which the clocks of producers and brokers may differ; a request that "
        "waited while its leader did not run is refused that much before its time is over.",
    )
    broker_heartbeat_interval_ms: int = Field(
        2_000,
        gt=0,
        description="ms between empty commits of a broker that makes no others; twice as long on "
        "object stores.",
    )
    controlled_shutdown_timeout_ms: int = Field(
        25_000,
        gt=0,
        description="ms within which a stop is completed; after that the process ends as it is.",
    )
    tick_failure_timeout_ms: int | None = Field(
        60_000,
        gt=0,
        description="ms for which ticks of all brokers of an application fail until it ends; null "
        "to go on.",
    )
    auto_create_cluster_enable: bool = Field(
        True,
        description="Whether brokers create the cluster root if it is missing and their own log "
        "directories are new.",
    )
    tick_interval_ms: int = Field(
        50,
        ge=0,
        description="ms for which a resident application waits after a round that changed nothing; "
        "from 1,000 on, ticks on object stores begin at multiples of it, at all brokers.",
    )
    execution: Literal["auto", "driver", "spark"] = Field(
        "auto",
        description="The place of the work on record bytes: a leader's check of batch files, a "
        "follower's copies, truncation within a batch, merging, compaction. driver: its threads; "
        "spark: always in Spark tasks; auto: in tasks where Spark has executors and it is worth a "
        "job; large merges and compactions on any master.",
    )
    execution_spark_min_bytes: int = Field(
        128 * _MEBIBYTE,
        ge=0,
        description="Bytes from which on a tick's work is worth a Spark job with execution=auto.",
    )
    execution_spark_bytes_per_task: int = Field(
        32 * _MEBIBYTE,
        gt=0,
        description="Bytes for which a Spark job starts a task; with execution=auto also those "
        "from which on a merge or the compaction of a log is a job.",
    )
    rules_engine: Literal["duckdb", "spark"] = Field(
        "duckdb",
        description="The engine of the rules: duckdb, in the driver (SQLite for few rows), or "
        "spark, one job for each rule.",
    )

    metrics_http_port: int | None = Field(
        None,
        ge=0,
        le=65_535,
        description="The port of the HTTP endpoint with metrics for Prometheus, 0 for any free "
        "one; off.",
    )
    metrics_http_host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="The address that the HTTP endpoint is bound to.",
    )
    metrics_textfile: str | None = Field(
        None,
        pattern=r"\.prom$",
        description="The file of metrics for node_exporter's textfile collector, .prom, written "
        "every 15 s and at the end; off.",
    )
    tracing_enable: bool = Field(
        False,
        description="Whether ticks that change something are spans of OpenTelemetry.",
    )

    @field_validator("log_retention_ms", "log_retention_minutes", "log_retention_hours")
    @classmethod
    def _some_retention(cls, value: int | None) -> int | None:
        """Refuse 0, as Kafka does: all records would be deleted."""
        if value == 0:
            raise ValueError("must be -1 (forever), or 1 or more")
        return value

    @property
    def retention_ms(self) -> int:
        """The ms for which records are kept, -1 for ever: of Kafka's three keys the finest."""
        if self.log_retention_ms is not None:
            return self.log_retention_ms
        if self.log_retention_minutes is not None:
            return max(self.log_retention_minutes * 60_000, -1)
        return max(self.log_retention_hours * 3_600_000, -1)

    @model_validator(mode="after")
    def _fetch_within_lag(self) -> Settings:
        waits = self.replica_fetch_min_bytes > 1
        if waits and self.replica_fetch_wait_max_ms > self.replica_lag_time_max_ms:
            raise ValueError(
                "replica.fetch.wait.max.ms must be at most replica.lag.time.max.ms: "
                "followers that wait would leave the in-sync set"
            )
        return self

    @model_validator(mode="after")
    def _heartbeat_within_session(self) -> Settings:
        if self.broker_heartbeat_interval_ms >= self.broker_session_timeout_ms:
            raise ValueError("broker.heartbeat.interval.ms must be below broker.session.timeout.ms")
        if self.parked_session_timeout_ms < self.broker_session_timeout_ms:
            raise ValueError("parked.session.timeout.ms must be at least broker.session.timeout.ms")
        return self

    def checkpoint_interval_ms(self, *, is_local: bool) -> int:
        """Return the interval of a root's checkpoint tables: Kafka's key.

        If the key is not set, the interval is 60 s on an object store. Each checkpoint takes two or
        more PUTs there, and the commits after it are read in parallel.

        Parameters
        ----------
        is_local : bool
            Whether the root is a local folder.

        Returns
        -------
        int
            The interval in ms.

        Examples
        --------
        >>> Settings().checkpoint_interval_ms(is_local=True)
        5000
        >>> Settings().checkpoint_interval_ms(is_local=False)
        60000
        """
        key = "replica_high_watermark_checkpoint_interval_ms"
        return self._of_store(key, 60_000, is_local=is_local)

    def vacuum_interval_ms(self, *, is_local: bool) -> int:
        """Return the ms between two searches for files of a root that no table names any more.

        If the key is not set, the interval is an hour on an object store, where listing a log takes
        a request for 1,000 files.

        Parameters
        ----------
        is_local : bool
            Whether the root is a local folder.

        Returns
        -------
        int
            The interval in ms.

        Examples
        --------
        >>> Settings().vacuum_interval_ms(is_local=True)
        600000
        """
        return self._of_store("log_vacuum_interval_ms", 3_600_000, is_local=is_local)

    def _of_store(self, name: str, on_store: int, *, is_local: bool) -> int:
        """Return a key's value, or `on_store` for an object store if the key is not set."""
        is_set = is_local or name in self.model_fields_set
        return int(getattr(self, name)) if is_set else on_store

    def scrub_bytes_per_second(self, *, is_local: bool) -> int:
        """Return the bytes of batch files that a broker verifies per second in a root.

        Parameters
        ----------
        is_local : bool
            Whether the root is a local folder.

        Returns
        -------
        int
            log.scrub.bytes.per.second; 0 on an object store if the key is not set.

        Examples
        --------
        >>> Settings().scrub_bytes_per_second(is_local=True)
        4194304
        >>> Settings().scrub_bytes_per_second(is_local=False)
        0
        """
        return self._of_store("log_scrub_bytes_per_second", 0, is_local=is_local)


class TopicConfig(_Keys):
    """The settings that a topic may override; `None` stands for the cluster's value.

    Attributes
    ----------
    min_insync_replicas : int or None
        In-sync replicas that acks=all requires (min.insync.replicas).
    max_message_bytes : int or None
        The largest batch file, in bytes (max.message.bytes).
    producer_byte_rate : int or None
        Bytes per second that producers may append to the topic at each broker, together
        (producer_byte_rate).
    unclean_leader_election_enable : bool or None
        Whether a replica outside the in-sync set may lead if no other is live
        (unclean.leader.election.enable).
    retention_ms : int or None
        ms for which records are kept at least; -1 is forever (retention.ms).
    retention_bytes : int or None
        Bytes of batch files that a partition keeps at least; -1 is no limit (retention.bytes).
    cleanup_policy : list of str or None
        delete, compact, or both (cleanup.policy).
    min_cleanable_dirty_ratio : float or None
        The part of a log's bytes that must be dirty before it is cleaned
        (min.cleanable.dirty.ratio).
    min_compaction_lag_ms : int or None
        The least age in ms of a batch that is cleaned (min.compaction.lag.ms).
    max_compaction_lag_ms : int or None
        The age in ms of a dirty batch from which on its log is cleaned in any case
        (max.compaction.lag.ms).
    delete_retention_ms : int or None
        The ms for which a tombstone stays after it was cleaned first (delete.retention.ms).

    Examples
    --------
    >>> from sparklog import Admin
    >>> created = Admin("sparklog-data/cluster").create_topic(
    ...     "receipts", configs={"max.message.bytes": 1_000_000}
    ... )
    >>> created.topic.config.max_message_bytes
    1000000
    """

    min_insync_replicas: int | None = Field(None, ge=1)
    max_message_bytes: int | None = Field(None, gt=0)
    producer_byte_rate: int | None = Field(None, gt=0, alias="producer_byte_rate")
    unclean_leader_election_enable: bool | None = None
    retention_ms: int | None = Field(None, ge=-1)
    retention_bytes: int | None = Field(None, ge=-1)
    cleanup_policy: (
        Annotated[
            list[Literal["delete", "compact"]], BeforeValidator(_kafka_list), Field(min_length=1)
        ]
        | None
    ) = None
    min_cleanable_dirty_ratio: float | None = Field(None, ge=0, le=1)
    min_compaction_lag_ms: int | None = Field(None, ge=0)
    max_compaction_lag_ms: int | None = Field(None, gt=0)
    delete_retention_ms: int | None = Field(None, ge=0)

    def is_compacted(self, settings: Settings) -> bool:
        """Return whether the topic's logs are cleaned, so that all of its records need keys.

        Parameters
        ----------
        settings : Settings
            The cluster's settings.

        Returns
        -------
        bool
            Whether cleanup.policy, of the topic or else of the cluster, has compact.

        Examples
        --------
        >>> from sparklog.config import Settings, TopicConfig
        >>> TopicConfig(**{"cleanup.policy": "compact,delete"}).is_compacted(Settings())
        True
        """
        return "compact" in (self.cleanup_policy or settings.log_cleanup_policy)

    def has_retention(self, settings: Settings) -> bool:
        """Return whether retention.ms and retention.bytes apply to the topic.

        Parameters
        ----------
        settings : Settings
            The cluster's settings.

        Returns
        -------
        bool
            Whether cleanup.policy, of the topic or else of the cluster, has delete.

        Examples
        --------
        >>> from sparklog.config import Settings, TopicConfig
        >>> TopicConfig(**{"cleanup.policy": "compact"}).has_retention(Settings())
        False
        """
        return "delete" in (self.cleanup_policy or settings.log_cleanup_policy)


class ProducerConfig(_Keys):
    """The settings of a plain producer, in Kafka's keys.

    Parameters
    ----------
    **values
        Kafka's keys as keyword arguments; `ProducerConfig.model_fields` has each with its default
        and description. `Producer` takes them with underscores in place of dots.

    Raises
    ------
    pydantic.ValidationError
        A key is unknown or a value is not usable; of `Producer` it is a `ConfigError`.

    Examples
    --------
    >>> from sparklog.config import ProducerConfig
    >>> ProducerConfig(**{"linger.ms": 20}).linger_ms
    20
    >>> ProducerConfig.model_fields["acks"].default
    'all'
    """

    acks: Literal["all", 0, 1, -1] = Field(
        "all",
        description="Required acknowledgements: 0 none, 1 the leader, all every in-sync replica.",
    )
    batch_size: int = Field(
        1 * _MEBIBYTE,
        ge=0,
        description="Bytes of a partition's records from which on they are sent without lingering.",
    )
    linger_ms: int = Field(
        5,
        ge=0,
        description="ms for which a record waits for others to share its batch.",
    )
    buffer_memory: int = Field(
        32 * _MEBIBYTE,
        gt=0,
        description="Bytes of records that may be unacknowledged; send blocks beyond that.",
    )
    max_block_ms: int = Field(
        60_000, ge=0, description="ms for which send may block because of buffer.memory."
    )
    max_request_size: int = Field(1 * _MEBIBYTE, gt=0, description="The largest record, in bytes.")
    enable_idempotence: bool | None = Field(
        None,
        description="Whether a record is stored once even if it is sent repeatedly; with acks=all.",
    )
    transactional_id: str | None = Field(
        None,
        min_length=1,
        description="A name under which a newer producer fences an older one.",
    )
    request_timeout_ms: int = Field(
        30_000,
        gt=0,
        description="ms to wait for an answer before the batch is sent again.",
    )
    delivery_timeout_ms: int = Field(
        120_000,
        gt=0,
        description="ms after send within which a record is delivered or fails.",
    )
    retry_backoff_ms: int = Field(100, gt=0, description="ms before the first retry.")
    retry_backoff_max_ms: int = Field(1_000, gt=0, description="The most ms before later retries.")
    client_id: str = Field(
        "", description="The client's name in the broker's tables, to which quotas apply."
    )

    @model_validator(mode="after")
    def _consistent(self) -> ProducerConfig:
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise ValueError("delivery.timeout.ms must be at least linger.ms + request.timeout.ms")
        if self.enable_idempotence and not self._awaits_all:
            raise ValueError("enable.idempotence needs acks=all: set it to false otherwise")
        if self.transactional_id is not None and not self.is_idempotent:
            raise ValueError("transactional.id needs enable.idempotence and acks=all")
        return self

    @property
    def is_idempotent(self) -> bool:
        """Whether batches carry a producer id and sequence numbers."""
        return self._awaits_all if self.enable_idempotence is None else self.enable_idempotence

    @property
    def _awaits_all(self) -> bool:
        return self.acks in ("all", -1)


class ClientQuotas(_Keys):
    """The quotas of a client id; `None` stands for those of all client ids, or for none.

    Attributes
    ----------
    producer_byte_rate : int or None
        Bytes per second that the producers of the client id may append at each broker.
    consumer_byte_rate : int or None
        Bytes per second that each consumer of the client id may fetch.

    Examples
    --------
    >>> from sparklog.config import ClientQuotas
    >>> ClientQuotas(producer_byte_rate=1_000_000).producer_byte_rate
    1000000
    """

    producer_byte_rate: int | None = Field(None, gt=0, alias="producer_byte_rate")
    consumer_byte_rate: int | None = Field(None, gt=0, alias="consumer_byte_rate")


Assignor = Literal["range", "roundrobin", "sticky"]
OffsetReset = Literal["earliest", "latest", "none"]


class ConsumerConfig(_Keys):
    """The settings of a plain consumer, in Kafka's keys.

    Parameters
    ----------
    **values
        Kafka's keys as keyword arguments; `ConsumerConfig.model_fields` has each with its default
        and description. `Consumer` takes them with underscores in place of dots.

    Raises
    ------
    pydantic.ValidationError
        A key is unknown or a value is not usable; of `Consumer` it is a `ConfigError`.

    Examples
    --------
    >>> from sparklog.config import ConsumerConfig
    >>> ConsumerConfig(**{"max.poll.records": 10}).max_poll_records
    10
    >>> ConsumerConfig.model_fields["auto_offset_reset"].default
    'latest'
    """

    auto_offset_reset: OffsetReset = Field(
        "latest",
        description="The start position without a usable position; none raises an error.",
    )
    enable_auto_commit: bool = Field(
        True,
        description="Whether poll and close commit the records of earlier polls; with a group.",
    )
    auto_commit_interval_ms: int = Field(
        5_000, ge=0, description="ms between these commits of poll."
    )
    max_poll_records: int = Field(500, gt=0, description="The most records that one poll returns.")
    max_poll_interval_ms: int = Field(
        300_000,
        gt=0,
        description="ms without a poll after which a member leaves its group.",
    )
    session_timeout_ms: int = Field(
        45_000,
        gt=0,
        description="ms without heartbeat until the others remove a member from the group.",
    )
    heartbeat_interval_ms: int = Field(
        3_000,
        gt=0,
        description="ms between a member's heartbeats, which also check the others' heartbeats; "
        "more in groups of more than 20 processes, up to a third of session.timeout.ms.",
    )
    fetch_min_bytes: int = Field(1, ge=1, description="Bytes for which a fetch waits.")
    fetch_max_wait_ms: int = Field(
        500, ge=0, description="ms for which a fetch waits for fetch.min.bytes."
    )
    fetch_max_bytes: int = Field(
        50 * _MEBIBYTE,
        gt=0,
        description="Bytes that one fetch returns of all partitions, at least one batch.",
    )
    max_partition_fetch_bytes: int = Field(
        1 * _MEBIBYTE,
        gt=0,
        description="Bytes that one fetch returns of one partition, at least one batch.",
    )
    partition_assignment_strategy: Annotated[list[Assignor], BeforeValidator(_kafka_list)] = Field(
        ["range"],
        min_length=1,
        description="The strategies of assigning partitions to members, the preferred one first.",
    )
    group_instance_id: str | None = Field(
        None,
        min_length=1,
        description="A name under which a member may restart without a rebalance.",
    )
    isolation_level: Literal["read_uncommitted"] = Field(
        "read_uncommitted",
        description="Only read_uncommitted: there are no transactions to wait for.",
    )
    default_api_timeout_ms: int = Field(
        60_000,
        ge=0,
        description="ms for which calls that need a leader wait for it; poll does not.",
    )
    client_id: str = Field(
        "", description="The client's name in the group's table, to which quotas apply."
    )
    client_rack: str = Field(
        "",
        description="The consumer's rack; a replica in the same rack is read if one exists.",
    )

    @model_validator(mode="after")
    def _heartbeat_within_session(self) -> ConsumerConfig:
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError("heartbeat.interval.ms must be below session.timeout.ms")
        return self


class BrokerEntry(_Keys):
    """One broker of a cluster's configuration.

    Attributes
    ----------
    broker_id : int
        The broker's id (broker.id), at least 0.
    log_dirs : list of str
        The paths or URIs of its log directories (log.dirs).
    rack : str or None
        Its rack (broker.rack).

    Examples
    --------
    >>> from sparklog.config import BrokerEntry
    >>> BrokerEntry.model_validate({"broker.id": 0, "log.dirs": "/data/a,/data/b"}).log_dirs
    ['/data/a', '/data/b']
    """

    broker_id: int = Field(ge=0)
    log_dirs: _LogDirs = Field(min_length=1)
    rack: str | None = Field(None, alias="broker.rack")


class ClusterConfig(Settings):
    """A cluster: the location of its root, its brokers and its settings.

    `sparklog.config.load` reads it from a file, with paths relative to that file.

    Parameters
    ----------
    cluster_root : str
        The path or URI of the cluster root (cluster.root).
    brokers : list of BrokerEntry
        The brokers: broker.id, log.dirs and, if wanted, broker.rack.
    storage_options : dict of str to dict, optional
        The options of object stores by URI prefix (storage.options), in delta-rs's keys; the
        longest prefix applies. A value may refer to an environment variable, `${NAME}`, or to a
        file, `${file:/path}`, of the process that opens the store.
    **values
        The settings of the cluster, see `Settings`. All names are given as Kafka's keys, with dots.

    Raises
    ------
    pydantic.ValidationError
        A key is unknown or a value is not usable; of `load` it is a `ConfigError`.

    Examples
    --------
    >>> from sparklog import ClusterConfig
    >>> from sparklog.config import load
    >>> config = load(ClusterConfig, "conf/cluster.yaml")
    >>> [broker.broker_id for broker in config.brokers], config.min_insync_replicas
    ([0, 1, 2], 2)
    """

    cluster_root: _Uri
    brokers: list[BrokerEntry] = Field(min_length=1)
    storage_options: dict[str, _StoreOptions] = Field(default_factory=dict, repr=False)
    # Not part of the representation, since it contains the stores' credentials.

    @model_validator(mode="after")
    def _distinct(self) -> ClusterConfig:
        _check_distinct(self.cluster_root, self.brokers)
        return self


class BrokerConfig(Settings):
    """One broker that is a separate application, and the cluster that it belongs to.

    `sparklog.config.load` reads it from a file, with paths relative to that file.

    Parameters
    ----------
    cluster_root : str
        The path or URI of the cluster root (cluster.root).
    broker_id : int
        The broker's id (broker.id), at least 0.
    log_dirs : list of str
        The paths or URIs of its log directories (log.dirs).
    rack : str, optional
        Its rack (broker.rack).
    storage_options : dict of str to dict, optional
        The options of object stores by URI prefix (storage.options), in delta-rs's keys; the
        longest prefix applies. A value may refer to an environment variable, `${NAME}`, or to a
        file, `${file:/path}`, of the process that opens the store.
    **values
        The settings of the cluster, see `Settings`. All names are given as Kafka's keys, with dots.

    Raises
    ------
    pydantic.ValidationError
        A key is unknown or a value is not usable; of `load` it is a `ConfigError`.

    Examples
    --------
    >>> from sparklog import BrokerConfig
    >>> config = BrokerConfig.model_validate(
    ...     {"cluster.root": "/data/cluster", "broker.id": 0, "log.dirs": "/data/broker-0"}
    ... )
    >>> config.brokers[0].log_dirs
    ['/data/broker-0']
    """

    cluster_root: _Uri
    broker_id: int = Field(ge=0)
    log_dirs: _LogDirs = Field(min_length=1)
    rack: str | None = Field(None, alias="broker.rack")
    storage_options: dict[str, _StoreOptions] = Field(default_factory=dict, repr=False)
    # Not part of the representation, since it contains the stores' credentials.

    @property
    def brokers(self) -> list[BrokerEntry]:
        """The broker in the form of a cluster's configuration."""
        own = {name: getattr(self, name) for name in BrokerEntry.model_fields}
        return [BrokerEntry.model_construct(**own)]

    @model_validator(mode="after")
    def _distinct(self) -> BrokerConfig:
        _check_distinct(self.cluster_root, self.brokers)
        return self


def _check_distinct(cluster_root: str, brokers: Sequence[BrokerEntry]) -> None:
    ids = [str(broker.broker_id) for broker in brokers]
    roots = [cluster_root, *(root for broker in brokers for root in broker.log_dirs)]
    for what, values in (("broker.id", ids), ("folder", [root.rstrip("/") for root in roots])):
        twice = [value for value in values if values.count(value) > 1]
        if twice:
            raise ValueError(f"{what} {twice[0]} is given twice: each must be unique")


_Model = TypeVar("_Model", bound=_Keys)


def parse(model: type[_Model], values: Mapping[str, Any], source: str) -> _Model:
    """Return `values` (Kafka's keys) as a `model`.

    Parameters: `source`, the origin of the values, which error messages name. Raises `ConfigError`
    for the first unknown key, missing key or malformed value.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(_sentence(model, error, source)) from None


class _WithStorageOptions(_Keys):
    """The storage options alone, as clients take them."""

    storage_options: dict[str, _StoreOptions]


def parse_storage_options(given: object) -> dict[str, dict[str, str]]:
    """Return a client's storage options: options of object stores by URI prefix.

    Numbers and booleans count as text, as in a file. Raises `ConfigError` if `given` has another
    form; the message has no value, which may be a secret.
    """
    values = {"storage.options": given}
    return parse(_WithStorageOptions, values, "the given storage options").storage_options


def load(model: type[_Model], path: str | Path) -> _Model:
    """Load and check a YAML file; its relative `log.dirs` and `cluster.root` become absolute.

    Raises `ConfigError` if the file is missing, is not YAML, or does not match `model`.
    """
    file = Path(path)
    try:
        values = yaml.load(file.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ConfigError(
            f"configuration file {path} cannot be read ({error.strerror}): name an existing file"
        ) from None
    except (yaml.YAMLError, *_OF_YAML) as error:
        raise ConfigError(f"configuration file {path} is not YAML: {_fault(error)}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"configuration file {path} must have 'key: value' lines")
    return parse(model, _absolute(values, file.parent.resolve(), str(path)), str(path))


def _fault(error: Exception) -> str:
    """Return a fault of a file and its place, without an excerpt, which may have a secret."""
    if not isinstance(error, yaml.YAMLError):
        return f"a value cannot be converted ({type(error).__name__})"
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return str(error).replace("\n", " ")
    mark = error.problem_mark
    problem = re.sub(r"(undefined alias) '.*'", r"\1", error.problem or "it cannot be parsed")
    return f"{problem}, in line {mark.line + 1}, column {mark.column + 1}"


def load_either(path: str | Path) -> ClusterConfig | BrokerConfig:
    """Load a configuration file of a cluster or of one broker; raises as `load` does."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    is_of_one_broker = re.search(r"^broker\.id\s*:", text, re.MULTILINE) is not None
    return load(BrokerConfig, path) if is_of_one_broker else load(ClusterConfig, path)


def is_configuration_file(cluster: str) -> bool:
    """Return whether a `--cluster` argument names a configuration file rather than a root."""
    return cluster.endswith((".yaml", ".yml"))


_OF_YAML = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""The exceptions of PyYAML for malformed numbers, dates and tags, and for deep nesting."""


class _Loader(yaml.SafeLoader):
    """Refuses a duplicate key, for which YAML would silently use the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = []
        for key, _ in node.value:
            if key.value in seen:
                problem = f"the key {key.value} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.append(key.value)
        return super().construct_mapping(node, deep)


def _absolute(values: dict[str, Any], folder: Path, source: str) -> dict[str, Any]:
    def absolute(uri: object) -> object:
        if not isinstance(uri, str) or not uri or "://" in uri:
            return uri
        if re.match(r"[A-Za-z][\w+.-]+:/", uri):
            raise ConfigError(f"{uri} in {source} is neither a path nor a URI: write scheme://...")
        return os.path.normpath(folder / os.path.expanduser(uri))  # noqa: PTH111 - raises nothing

    result = dict(values)
    if "cluster.root" in result:
        result["cluster.root"] = absolute(result["cluster.root"])
    if "metrics.textfile" in result:
        result["metrics.textfile"] = absolute(result["metrics.textfile"])
    for entry in _entries(result):
        roots = _kafka_list(entry.get("log.dirs"))
        if isinstance(roots, list):
            entry["log.dirs"] = [absolute(root) for root in roots]
    return result


def _entries(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield values
    brokers = values.get("brokers")
    if isinstance(brokers, list):
        yield from (entry for entry in brokers if isinstance(entry, dict))


def _sentence(model: type[BaseModel], error: ValidationError, source: str) -> str:
    # Unknown keys are reported first: one is often the misspelling of a key that is then missing.
    problem = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    where = [str(part) for part in problem["loc"]]
    if where[0:1] == ["brokers"] and len(where) > 1:
        where[0:2] = [f"brokers[{where[1]}]"]
    key = ".".join(where)
    if problem["type"] == "extra_forbidden":
        of = BrokerEntry if problem["loc"][0] == "brokers" else model
        known = [field.alias or name for name, field in of.model_fields.items()]
        close = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known keys: {', '.join(known)}"
        return f"unknown configuration key {key} in {source}: {hint}"
    if problem["type"] == "missing":
        return f"configuration key {key} is missing in {source}: add it"
    message = problem["msg"].removeprefix("Value error, ")
    if not key:
        return f"{source}: {message}"
    if problem["type"] == "model_type":
        message = "'key: value' lines are required"
    # The options of a store may be secrets.
    is_secret = key.startswith("storage.options")
    value = "an unusable value" if is_secret else f"the value {problem['input']!r}"
    return f"configuration key {key} in {source} has {value}: {message}"
