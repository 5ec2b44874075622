"""Administration of existing topics: further partitions, settings, deletion."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from sparklog.clock import Clock
from sparklog.cluster.arguments import names_list, whole_number
from sparklog.cluster.assignments import checked_assignment, partition_rows
from sparklog.cluster.connection import Connection
from sparklog.cluster.dynamic_configs import DEFAULT_ENTITY, Configs, stored_configs
from sparklog.cluster.election import Elections
from sparklog.cluster.metadata import Metadata, TopicInfo
from sparklog.cluster.topic_changes import (
    change_configs,
    delete_topic,
    grow_topic,
    topics_being_deleted,
)
from sparklog.cluster.topic_creation import check_min_isr
from sparklog.config import Settings, TopicConfig, parse
from sparklog.errors import ConfigError, ProtocolError
from sparklog.model import TopicIdPartition
from sparklog.protocol.placement import MOST_PARTITIONS, place_replicas

ConfigSource = Literal["topic", "dynamic broker", "dynamic default", "broker", "default"]
"""The origin of a value: the topic's own, one that was set for a broker or for all brokers while
they run, the configuration file of the brokers, or Kafka's default."""

_BROKER_FIELDS = {"max_message_bytes": "message_max_bytes"}
"""The fields of `Settings` for those of `TopicConfig`, where the names differ."""


class ConfigSynonym(NamedTuple):
    """A value that a setting has, or would have if those before it were removed.

    Attributes
    ----------
    source : {"topic", "dynamic broker", "dynamic default", "broker", "default"}
        The origin of the value.
    name : str
        Kafka's key there; brokers have other names for some keys.
    value : str
        The value as text.

    Examples
    --------
    >>> from sparklog import Admin
    >>> entry = Admin("sparklog-data/cluster").describe_configs("clicks")["max.message.bytes"]
    >>> entry.synonyms[-1]
    ConfigSynonym(source='default', name='message.max.bytes', value='1073741824')
    """

    source: ConfigSource
    name: str
    value: str


class ConfigEntry(NamedTuple):
    """A setting of a topic.

    Attributes
    ----------
    name : str
        Kafka's key.
    value : str or None
        The value as text; `None` if nothing sets it and it has no default.
    source : {"topic", "dynamic broker", "dynamic default", "broker", "default"}
        The origin of the value.
    synonyms : tuple of ConfigSynonym
        The value, and those that would take its place; the valid one first.

    Examples
    --------
    >>> from sparklog import Admin
    >>> Admin("sparklog-data/cluster").describe_configs("clicks")["producer_byte_rate"]
    ConfigEntry(name='producer_byte_rate', value=None, source='default', synonyms=())
    """

    name: str
    value: str | None
    source: ConfigSource
    synonyms: tuple[ConfigSynonym, ...]


class TopicAdmin:
    """Changes existing topics; the part of `Admin` that does so.

    Parameters: `settings`, those of the cluster, or `None` if they are not known.
    """

    def __init__(
        self, connection: Connection, elections: Elections, settings: Settings | None, clock: Clock
    ) -> None:
        self._connection = connection
        self._elections = elections
        self._settings = settings
        self._clock = clock

    def create_partitions(
        self, name: str, partitions: int, assignment: Mapping[int, Sequence[int]] | None
    ) -> None:
        """Raise the number of partitions of a topic; see `Admin.create_partitions`."""
        partitions = whole_number(partitions, "partitions")
        metadata = self._connection.metadata()
        topic = metadata.topic(name)
        added = partitions - topic.partitions
        if added <= 0:
            raise ProtocolError(
                "INVALID_PARTITIONS",
                f"topic {name!r} has {topic.partitions} partitions already, and their number can "
                f"only be raised: give more than {topic.partitions}, not {partitions}",
            )
        if partitions > MOST_PARTITIONS:
            raise ProtocolError(
                "INVALID_PARTITIONS",
                f"a topic has {MOST_PARTITIONS:,} partitions at most, not {partitions:,}: lower it",
            )
        live = {one.broker_id: one.rack for one in metadata.brokers.values() if one.is_alive}
        first = metadata.partitions[TopicIdPartition(topic.topic_id, 0)]
        factor = len(first.target)
        if assignment is None:
            start = _start_index(live, first.replicas[0].broker_id)
            placed = place_replicas(live, added, factor, start, start, topic.partitions)
        else:
            placed = checked_assignment(
                name,
                assignment,
                added,
                factor,
                live,
                metadata,
                topic.partitions,
            )
        rows = partition_rows(topic.topic_id, name, placed, live, metadata, first.min_isr)
        elected = self._elections.elect_first(rows, metadata)
        grow_topic(self._connection.root, topic, partitions, elected, self._clock.now_ms())

    def delete_topic(self, name: str) -> None:
        """Delete a topic; see `Admin.delete_topic`."""
        if not (self._settings or Settings()).delete_topic_enable:
            raise ProtocolError(
                "TOPIC_DELETION_DISABLED",
                f"topic {name!r} cannot be deleted, since delete.topic.enable is false: set it in "
                "the configuration file that names the cluster",
            )
        delete_topic(self._connection.root, name)

    def marked_for_deletion(self) -> list[TopicInfo]:
        """Return the deleted topics whose rows are yet to be removed, by name."""
        found = topics_being_deleted(self._connection.root)
        return sorted(found, key=lambda one: (one.topic, one.topic_id))

    def alter_configs(
        self, name: str, configs: Mapping[str, Any] | None, delete: Collection[str]
    ) -> None:
        """Change settings of a topic; see `Admin.alter_configs`."""
        if configs is not None and not isinstance(configs, Mapping):
            raise ConfigError(
                f"configs of topic {name} must be a dict of its keys, not {configs!r}"
            )
        new = dict(configs or {})
        removed = names_list(delete, "the keys to delete")
        source = f"topic {name}"
        if twice := sorted(new.keys() & set(removed)):
            raise ConfigError(
                f"configuration key {twice[0]} of {source} is both set and deleted: choose one"
            )
        parse(TopicConfig, new | dict.fromkeys(removed), source)

        def changed(stored: Mapping[str, Any], replication_factor: int) -> TopicConfig:
            kept = {key: value for key, value in stored.items() if key not in removed}
            config = parse(TopicConfig, {**kept, **new}, source)
            check_min_isr(name, config.min_insync_replicas, replication_factor)
            return config

        change_configs(self._connection.root, name, changed)

    def describe_configs(self, name: str) -> dict[str, ConfigEntry]:
        """Return all settings of a topic; see `Admin.describe_configs`."""
        metadata = self._connection.metadata()
        topic = metadata.topic(name)
        stored = stored_configs(self._connection.root)
        shared = stored.get(("brokers", DEFAULT_ENTITY), {})
        entries = {}
        for field, info in TopicConfig.model_fields.items():
            key = str(info.alias)
            synonyms = (
                *synonyms_of("topic", key, getattr(topic.config, field)),
                *self._of_cluster(field, key, topic, metadata, shared),
            )
            first = synonyms[0] if synonyms else ConfigSynonym("default", key, "")
            value = first.value if synonyms else None
            entries[key] = ConfigEntry(key, value, first.source, synonyms)
        return entries

    def _of_cluster(
        self, field: str, key: str, topic: TopicInfo, metadata: Metadata, shared: Configs
    ) -> list[ConfigSynonym]:
        """Return the values of a setting in the brokers' configuration, and by default.

        Parameters: `shared`, the values that were set for all brokers while they run.
        """
        names = (_BROKER_FIELDS.get(field), field, f"log_{field}")
        name = next((one for one in names if one in Settings.model_fields), None)
        if name is None:
            return []
        info = Settings.model_fields[name]
        found = synonyms_of("default", str(info.alias), info.default)
        alias = str(info.alias)
        dynamic = synonyms_of("dynamic default", alias, shared.get(alias))
        if self._settings is not None:
            if name in self._settings.model_fields_set:
                found = synonyms_of("broker", alias, getattr(self._settings, name)) + found
            return dynamic + found
        if dynamic:
            return dynamic + found
        if field == "min_insync_replicas" and topic.config.min_insync_replicas is None:
            # The brokers' configuration is not known here, but the controller has published the
            # value by which the leaders act.
            published = metadata.partitions[TopicIdPartition(topic.topic_id, 0)].min_isr
            if published not in (None, info.default):
                return synonyms_of("broker", key, published) + found
        return found


def synonyms_of(source: ConfigSource, name: str, value: object) -> list[ConfigSynonym]:
    """Return a value of a source as a list, which is empty if it is `None`."""
    if value is None:
        return []
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, list):
        text = ",".join(map(str, value))
    return [ConfigSynonym(source, name, text)]


def _start_index(live: Mapping[int, str | None], preferred: int) -> int:
    """Return the index at which Kafka continues the placement of a topic.

    It is that of the first broker whose id is at least `preferred`, the first replica of partition
    0; 0 if there is none.
    """
    return next((at for at, one in enumerate(sorted(live)) if one >= preferred), 0)
