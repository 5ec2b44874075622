"""Configuration: Kafka's keys, their defaults and what they mean, in one place.

A file holds Kafka's keys as they are written in `server.properties`, as YAML. Everything is
checked when it is loaded: an unknown key, a missing one or a malformed value is one
`ConfigError` that names it. Relative paths in a file are relative to the file's folder.
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
    """Accept Kafka's comma-separated lists beside YAML's."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _text(value: object) -> object:
    """Accept YAML's numbers and truth values where a store's option is meant as text."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else value


_Uri = Annotated[str, Field(min_length=1)]
_LogDirs = Annotated[list[_Uri], BeforeValidator(_kafka_list)]
_StoreOptions = dict[str, Annotated[str, BeforeValidator(_text)]]


class _Keys(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: object, info: ValidationInfo) -> object:
        """Refuse what YAML makes of an unquoted yes or on: it would be taken for 1."""
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and kind in (int, int | None):
            raise ValueError("a number is wanted")
        return value


class Settings(_Keys):
    """What holds for a whole cluster. Field names are Kafka's keys with underscores."""

    replica_lag_time_max_ms: int = Field(
        30_000,
        gt=0,
        alias="replica.lag.time.max.ms",
        description="A follower not caught up for longer leaves the in-sync set.",
    )
    replica_lag_max_messages: int | None = Field(
        None,
        gt=0,
        alias="replica.lag.max.messages",
        description="The old criterion: a follower further behind leaves the in-sync set; off.",
    )
    replica_fetch_max_bytes: int = Field(
        256 * _MEBIBYTE,
        gt=0,
        alias="replica.fetch.max.bytes",
        description="Bytes a follower copies of one partition in one tick, one batch at least.",
    )
    replica_fetch_response_max_bytes: int = Field(
        _GIBIBYTE,
        gt=0,
        alias="replica.fetch.response.max.bytes",
        description="Bytes a follower copies of all partitions in one tick, one batch at least.",
    )
    replica_fetch_min_bytes: int = Field(
        1,
        ge=0,
        alias="replica.fetch.min.bytes",
        description="Bytes that a follower waits for before it copies from a leader.",
    )
    replica_fetch_wait_max_ms: int = Field(
        500,
        ge=0,
        alias="replica.fetch.wait.max.ms",
        description="How long it waits for them.",
    )
    replica_high_watermark_checkpoint_interval_ms: int = Field(
        5_000,
        gt=0,
        alias="replica.high.watermark.checkpoint.interval.ms",
        description="Interval of a broker's checkpoint tables, where replicas have changed, ms; "
        "60000 on object stores, where it is not set.",
    )
    min_insync_replicas: int = Field(
        1,
        ge=1,
        alias="min.insync.replicas",
        description="In-sync replicas that acks=all needs, unless the topic says otherwise.",
    )
    message_max_bytes: int = Field(
        _GIBIBYTE,
        gt=0,
        alias="message.max.bytes",
        description="The largest batch file, in bytes, unless the topic says otherwise.",
    )
    queued_max_requests: int = Field(
        500,
        gt=0,
        alias="queued.max.requests",
        description="Produce requests that a leader takes in one tick; more are to be sent again.",
    )
    producer_id_expiration_ms: int = Field(
        86_400_000,
        gt=0,
        alias="producer.id.expiration.ms",
        description="An idempotent producer silent for longer is forgotten in a partition.",
    )
    transactional_id_expiration_ms: int = Field(
        604_800_000,
        ge=7_200_000,
        alias="transactional.id.expiration.ms",
        description="A transactional id unused for longer is forgotten; producers renew it hourly.",
    )
    log_scrub_bytes_per_second: int = Field(
        4 * _MEBIBYTE,
        ge=0,
        alias="log.scrub.bytes.per.second",
        description="Bytes of its batch files that a broker verifies a second, in local folders.",
    )
    log_merger_enable: bool = Field(
        True,
        alias="log.merger.enable",
        description="Whether small batches of a log are merged in the background.",
    )
    log_merger_backoff_ms: int = Field(
        15_000,
        gt=0,
        alias="log.merger.backoff.ms",
        description="How long the merger waits when there is nothing to merge.",
    )
    log_merger_min_lag_ms: int = Field(
        120_000,
        ge=0,
        alias="log.merger.min.lag.ms",
        description="How long a batch stays as it was sent: as long as it may be sent again.",
    )
    log_merger_min_batches: int = Field(
        32,
        ge=2,
        alias="log.merger.min.batches",
        description="How many adjacent small batches are merged into one, at least.",
    )
    log_merger_max_batch_bytes: int = Field(
        16 * _MEBIBYTE,
        gt=0,
        alias="log.merger.max.batch.bytes",
        description="The largest merged batch; one larger than a quarter of it is not merged.",
    )
    quota_window_num: int = Field(
        11, gt=0, alias="quota.window.num", description="Windows over which a rate is measured."
    )
    quota_window_size_seconds: int = Field(
        1, gt=0, alias="quota.window.size.seconds", description="The length of such a window."
    )
    unclean_leader_election_enable: bool = Field(
        False,
        alias="unclean.leader.election.enable",
        description="Whether a replica outside the in-sync set may lead when none else lives.",
    )
    num_partitions: int = Field(
        1, ge=1, alias="num.partitions", description="Partitions of a topic that names none."
    )
    default_replication_factor: int = Field(
        1,
        ge=1,
        alias="default.replication.factor",
        description="Replication factor of a topic that names none.",
    )
    auto_leader_rebalance_enable: bool = Field(
        True,
        alias="auto.leader.rebalance.enable",
        description="Whether preferred replicas get their leadership back by themselves.",
    )
    leader_imbalance_check_interval_seconds: int = Field(
        300,
        gt=0,
        alias="leader.imbalance.check.interval.seconds",
        description="How often the controller looks for brokers that do not lead their share.",
    )
    leader_imbalance_per_broker_percentage: int = Field(
        10,
        ge=0,
        alias="leader.imbalance.per.broker.percentage",
        description="Percent of its preferred partitions that a broker may be without leading.",
    )
    broker_session_timeout_ms: int = Field(
        9_000,
        gt=0,
        alias="broker.session.timeout.ms",
        description="A broker silent for longer is fenced; also the controller's lease.",
    )
    parked_session_timeout_ms: int = Field(
        172_800_000,
        gt=0,
        alias="parked.session.timeout.ms",
        description="A broker that ended between two scheduled runs for longer is fenced.",
    )
    broker_heartbeat_interval_ms: int = Field(
        2_000,
        gt=0,
        alias="broker.heartbeat.interval.ms",
        description="Interval of empty commits of a broker that makes no others, ms; twice as long "
        "on object stores.",
    )
    tick_interval_ms: int = Field(
        50,
        ge=0,
        alias="tick.interval.ms",
        description="How long a resident application waits after a round that changed nothing; "
        "from 1,000 on, ticks on object stores begin at multiples of it, at all brokers.",
    )
    rules_engine: Literal["duckdb", "spark"] = Field(
        "duckdb",
        alias="rules.engine",
        description="What runs the rules: DuckDB in the driver (SQLite for a few rows), or Spark.",
    )

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
        """Return the interval of a root's checkpoint tables: Kafka's key, in ms.

        Where it is not set, 60 s on an object store: a write is two PUTs and more there, and the
        commits after it are read in parallel.

        >>> Settings().checkpoint_interval_ms(is_local=True)
        5000
        >>> Settings().checkpoint_interval_ms(is_local=False)
        60000
        """
        key = "replica_high_watermark_checkpoint_interval_ms"
        if is_local or key in self.model_fields_set:
            return self.replica_high_watermark_checkpoint_interval_ms
        return 60_000


class TopicConfig(_Keys):
    """What one topic may set for itself; `None` leaves it to the cluster."""

    min_insync_replicas: int | None = Field(None, ge=1, alias="min.insync.replicas")
    max_message_bytes: int | None = Field(None, gt=0, alias="max.message.bytes")
    producer_byte_rate: int | None = Field(None, gt=0, alias="producer_byte_rate")
    unclean_leader_election_enable: bool | None = Field(
        None, alias="unclean.leader.election.enable"
    )


class ProducerConfig(_Keys):
    """What a plain producer may be told. Field names are Kafka's keys with underscores."""

    acks: Literal["all", 0, 1, -1] = Field(
        "all", description="Whose writing is awaited: 0 nobody's, 1 the leader's, all the ISR's."
    )
    batch_size: int = Field(
        1 * _MEBIBYTE,
        ge=0,
        alias="batch.size",
        description="Bytes of a partition's records that are sent without lingering.",
    )
    linger_ms: int = Field(
        5,
        ge=0,
        alias="linger.ms",
        description="How long a record waits for others to share its batch.",
    )
    buffer_memory: int = Field(
        32 * _MEBIBYTE,
        gt=0,
        alias="buffer.memory",
        description="Bytes of records that may be on their way; send blocks when they are.",
    )
    max_block_ms: int = Field(
        60_000, ge=0, alias="max.block.ms", description="How long send may block for that."
    )
    max_request_size: int = Field(
        1 * _MEBIBYTE, gt=0, alias="max.request.size", description="The largest record, in bytes."
    )
    enable_idempotence: bool | None = Field(
        None,
        alias="enable.idempotence",
        description="Whether a record is written once however often it is sent; with acks=all.",
    )
    transactional_id: str | None = Field(
        None,
        min_length=1,
        alias="transactional.id",
        description="A name under which a newer producer fences an older one.",
    )
    request_timeout_ms: int = Field(
        30_000,
        gt=0,
        alias="request.timeout.ms",
        description="How long an answer is awaited before the batch is sent again.",
    )
    delivery_timeout_ms: int = Field(
        120_000,
        gt=0,
        alias="delivery.timeout.ms",
        description="How long after send a record may be delivered, or has failed.",
    )
    retry_backoff_ms: int = Field(
        100, gt=0, alias="retry.backoff.ms", description="The wait before a first retry."
    )
    retry_backoff_max_ms: int = Field(
        1_000, gt=0, alias="retry.backoff.max.ms", description="The wait before later ones."
    )
    client_id: str = Field("", alias="client.id", description="A name for the broker's tables.")

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
        """Whether batches bear a producer id and sequences."""
        return self._awaits_all if self.enable_idempotence is None else self.enable_idempotence

    @property
    def _awaits_all(self) -> bool:
        return self.acks in ("all", -1)


Assignor = Literal["range", "roundrobin", "sticky"]
OffsetReset = Literal["earliest", "latest", "none"]


class ConsumerConfig(_Keys):
    """What a plain consumer may be told. Field names are Kafka's keys with underscores."""

    auto_offset_reset: OffsetReset = Field(
        "latest",
        alias="auto.offset.reset",
        description="Where to begin without a usable position; none raises an error instead.",
    )
    enable_auto_commit: bool = Field(
        True,
        alias="enable.auto.commit",
        description="Whether poll and close commit what earlier polls returned; with a group.",
    )
    auto_commit_interval_ms: int = Field(
        5_000, ge=0, alias="auto.commit.interval.ms", description="How often poll does so."
    )
    max_poll_records: int = Field(
        500, gt=0, alias="max.poll.records", description="Records that one poll returns at most."
    )
    max_poll_interval_ms: int = Field(
        300_000,
        gt=0,
        alias="max.poll.interval.ms",
        description="A member that does not poll for longer leaves its group.",
    )
    session_timeout_ms: int = Field(
        45_000,
        gt=0,
        alias="session.timeout.ms",
        description="A member silent for longer is removed from its group by the others.",
    )
    heartbeat_interval_ms: int = Field(
        3_000,
        gt=0,
        alias="heartbeat.interval.ms",
        description="How often a member says that it lives, and looks whether the others do.",
    )
    fetch_min_bytes: int = Field(
        1, ge=1, alias="fetch.min.bytes", description="Bytes that a fetch waits for."
    )
    fetch_max_wait_ms: int = Field(
        500, ge=0, alias="fetch.max.wait.ms", description="How long a fetch waits for them."
    )
    fetch_max_bytes: int = Field(
        50 * _MEBIBYTE,
        gt=0,
        alias="fetch.max.bytes",
        description="Bytes that one fetch takes of all partitions, one batch at least.",
    )
    max_partition_fetch_bytes: int = Field(
        1 * _MEBIBYTE,
        gt=0,
        alias="max.partition.fetch.bytes",
        description="Bytes that one fetch takes of one partition, one batch at least.",
    )
    partition_assignment_strategy: Annotated[list[Assignor], BeforeValidator(_kafka_list)] = Field(
        ["range"],
        min_length=1,
        alias="partition.assignment.strategy",
        description="How a group shares its partitions, the preferred way first.",
    )
    group_instance_id: str | None = Field(
        None,
        min_length=1,
        alias="group.instance.id",
        description="A name under which a member may restart without a rebalance.",
    )
    isolation_level: Literal["read_uncommitted"] = Field(
        "read_uncommitted",
        alias="isolation.level",
        description="There are no transactions that read_committed could wait for.",
    )
    default_api_timeout_ms: int = Field(
        60_000,
        ge=0,
        alias="default.api.timeout.ms",
        description="How long calls that need a leader wait for one, but for poll.",
    )
    client_id: str = Field("", alias="client.id", description="A name for the group's table.")
    client_rack: str = Field(
        "",
        alias="client.rack",
        description="Where the consumer runs: a replica in the same rack is read, if there is one.",
    )

    @model_validator(mode="after")
    def _heartbeat_within_session(self) -> ConsumerConfig:
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError("heartbeat.interval.ms must be below session.timeout.ms")
        return self


class BrokerEntry(_Keys):
    """One broker of a cluster: its id, its log directories (URIs) and its rack."""

    broker_id: int = Field(alias="broker.id", ge=0)
    log_dirs: _LogDirs = Field(alias="log.dirs", min_length=1)
    rack: str | None = Field(None, alias="broker.rack")


class ClusterConfig(Settings):
    """Where a cluster lives, its brokers, and its settings.

    `storage_options` maps a URI prefix to the options of the store behind it, in delta-rs's
    keys; the longest prefix wins.
    """

    cluster_root: _Uri = Field(alias="cluster.root")
    brokers: list[BrokerEntry] = Field(min_length=1)
    storage_options: dict[str, _StoreOptions] = Field(
        default_factory=dict, alias="storage.options", repr=False
    )
    # Not shown where a configuration is: it has the stores' credentials.

    @model_validator(mode="after")
    def _distinct(self) -> ClusterConfig:
        _check_distinct(self.cluster_root, self.brokers)
        return self


class BrokerConfig(Settings):
    """One broker that is an application of its own, and the cluster that it belongs to."""

    cluster_root: _Uri = Field(alias="cluster.root")
    broker_id: int = Field(alias="broker.id", ge=0)
    log_dirs: _LogDirs = Field(alias="log.dirs", min_length=1)
    rack: str | None = Field(None, alias="broker.rack")
    storage_options: dict[str, _StoreOptions] = Field(
        default_factory=dict, alias="storage.options", repr=False
    )
    # Not shown where a configuration is: it has the stores' credentials.

    @property
    def brokers(self) -> list[BrokerEntry]:
        """The one broker, as a cluster's configuration would list it."""
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
    """Check `values` (Kafka's keys) against `model`.

    `source` says where they come from, for the message of the `ConfigError` that the first
    unknown key, missing key or malformed value raises.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(_sentence(model, error, source)) from None


def load(model: type[_Model], path: str | Path) -> _Model:
    """Load and check a YAML file; its relative `log.dirs` and `cluster.root` become absolute.

    Raises `ConfigError` where the file is missing, is not YAML, or does not fit `model`.
    """
    file = Path(path)
    try:
        values = yaml.load(file.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ConfigError(
            f"configuration file {path} cannot be read ({error.strerror}): name an existing file"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = str(error).replace("\n", " ")
        raise ConfigError(f"configuration file {path} is not YAML: {where}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"configuration file {path} must hold 'key: value' lines")
    return parse(model, _absolute(values, file.parent.resolve(), str(path)), str(path))


def load_either(path: str | Path) -> ClusterConfig | BrokerConfig:
    """Load a file that describes a cluster, or one broker of it; raises as `load`."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    is_of_one_broker = re.search(r"^broker\.id\s*:", text, re.MULTILINE) is not None
    return load(BrokerConfig, path) if is_of_one_broker else load(ClusterConfig, path)


def is_configuration_file(cluster: str) -> bool:
    """Say whether what names a cluster is a configuration file, not its root."""
    return cluster.endswith((".yaml", ".yml"))


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice, of which YAML would silently take the last."""

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
            raise ConfigError(f"{uri} in {source} is no path and no URI: write scheme://...")
        return os.path.normpath(folder / os.path.expanduser(uri))  # noqa: PTH111 - raises nothing

    result = dict(values)
    if "cluster.root" in result:
        result["cluster.root"] = absolute(result["cluster.root"])
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
    # An unknown key first: it is often the misspelled name of one that is then missing.
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
        message = "'key: value' lines are wanted"
    # A store's options may be secrets.
    is_secret = key.startswith("storage.options")
    value = "an unusable value" if is_secret else f"the value {problem['input']!r}"
    return f"configuration key {key} in {source} has {value}: {message}"
