"""Administration of the settings of brokers and the quotas of clients, while the cluster runs."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from sparklog.clock import Clock
from sparklog.cluster.arguments import names_list
from sparklog.cluster.connection import Connection
from sparklog.cluster.dynamic_configs import (
    CLUSTER_WIDE_KEYS,
    DEFAULT_ENTITY,
    DYNAMIC_BROKER_KEYS,
    Configs,
    EntityType,
    change_configs,
    stored_configs,
)
from sparklog.cluster.topic_admin import ConfigEntry, ConfigSynonym, synonyms_of
from sparklog.config import BrokerConfig, ClientQuotas, ClusterConfig, Settings, parse
from sparklog.errors import ConfigError, ProtocolError

_READ_ONLY = {
    str(field.alias)
    for model in (Settings, ClusterConfig, BrokerConfig)
    for field in model.model_fields.values()
} - DYNAMIC_BROKER_KEYS


class ConfigAdmin:
    """Describes and changes dynamic settings; the part of `Admin` that does so.

    Parameters: `settings`, those of the brokers' file, or `None` if they are not known.
    """

    def __init__(self, connection: Connection, settings: Settings | None, clock: Clock) -> None:
        self._connection = connection
        self._settings = settings
        self._clock = clock

    def describe_broker(self, broker_id: int | None) -> dict[str, ConfigEntry]:
        """Return the settings of a broker; see `Admin.describe_broker_configs`."""
        self._check_broker(broker_id)
        stored = stored_configs(self._connection.root)
        shared = stored.get(("brokers", DEFAULT_ENTITY), {})
        own = stored.get(("brokers", str(broker_id)), {}) if broker_id is not None else {}
        entries = {}
        for field, info in Settings.model_fields.items():
            key = str(info.alias)
            synonyms = [
                *(ConfigSynonym("dynamic broker", key, own[key]) for _ in [0] if key in own),
                *(ConfigSynonym("dynamic default", key, shared[key]) for _ in [0] if key in shared),
            ]
            if self._settings is not None and field in self._settings.model_fields_set:
                synonyms += synonyms_of("broker", key, getattr(self._settings, field))
            synonyms += synonyms_of("default", key, info.default)
            first = synonyms[0] if synonyms else None
            entries[key] = ConfigEntry(
                key,
                first.value if first else None,
                first.source if first else "default",
                tuple(synonyms),
            )
        return entries

    def alter_broker(
        self, broker_id: int | None, configs: Mapping[str, Any] | None, delete: Collection[str]
    ) -> None:
        """Change dynamic settings; see `Admin.alter_broker_configs`."""
        self._check_broker(broker_id)
        name = DEFAULT_ENTITY if broker_id is None else str(broker_id)
        source = "the cluster's brokers" if broker_id is None else f"broker {broker_id}"
        new, removed = _given(configs, delete, source)
        _check_dynamic({*new, *removed}, source)
        if broker_id is not None and (shared := sorted(CLUSTER_WIDE_KEYS & new.keys())):
            raise ProtocolError(
                "INVALID_CONFIG",
                f"{shared[0]} cannot be set for one broker, since the controller decides by it "
                "for all partitions: set it for all brokers, with --entity-default",
            )
        parsed = parse(Settings, new, source)
        values = {key: _text(getattr(parsed, _FIELDS[key])) for key in new}
        self._change("brokers", name, values, removed, source)

    def client_quotas(self) -> dict[str | None, dict[str, int]]:
        """Return the quotas; see `Admin.describe_client_quotas`."""
        self._connection.metadata()
        stored = stored_configs(self._connection.root)
        return {
            None if name == DEFAULT_ENTITY else name: {key: int(of[key]) for key in of}
            for (entity_type, name), of in sorted(stored.items())
            if entity_type == "clients"
        }

    def alter_client_quotas(
        self, client_id: str | None, quotas: Mapping[str, Any] | None, delete: Collection[str]
    ) -> None:
        """Change quotas of a client id; see `Admin.alter_client_quotas`."""
        if client_id == "":
            raise ConfigError("a client id must not be empty")
        if client_id == DEFAULT_ENTITY:
            raise ConfigError(
                f"{DEFAULT_ENTITY} is no client id: give --entity-default for all others"
            )
        name = DEFAULT_ENTITY if client_id is None else client_id
        source = "all clients" if client_id is None else f"client {client_id}"
        new, removed = _given(quotas, delete, source)
        parse(ClientQuotas, new | dict.fromkeys(removed), source)
        parsed = parse(ClientQuotas, new, source)
        values = {key: _text(getattr(parsed, key)) for key in new}
        self._change("clients", name, values, removed, source)

    def _change(
        self,
        entity_type: EntityType,
        name: str,
        new: Mapping[str, str],
        removed: Collection[str],
        source: str,
    ) -> None:
        def changed(stored: Configs) -> Configs:
            absent = [key for key in removed if key not in stored]
            if absent:
                raise ProtocolError(
                    "INVALID_CONFIG",
                    f"{source} does not set {absent[0]}: leave it out of the keys to delete",
                )
            kept = {key: value for key, value in stored.items() if key not in removed}
            return {**kept, **new}

        root = self._connection.root
        change_configs(root, entity_type, name, changed, self._clock.now_ms())

    def _check_broker(self, broker_id: int | None) -> None:
        brokers = self._connection.metadata().brokers
        if broker_id is None or (broker_id in brokers and brokers[broker_id].is_registered):
            return
        raise ProtocolError("BROKER_ID_NOT_REGISTERED", f"there is no broker {broker_id}")


_FIELDS = {str(field.alias): name for name, field in Settings.model_fields.items()}


def _given(
    configs: Mapping[str, Any] | None, delete: Collection[str], source: str
) -> tuple[dict[str, Any], list[str]]:
    if configs is not None and not isinstance(configs, Mapping):
        raise ConfigError(f"configs of {source} must be a dict of keys, not {configs!r}")
    new, removed = dict(configs or {}), names_list(delete, "the keys to delete")
    if twice := sorted(new.keys() & set(removed)):
        raise ConfigError(
            f"configuration key {twice[0]} of {source} is both set and deleted: choose one"
        )
    return new, removed


def _check_dynamic(keys: Collection[str], source: str) -> None:
    """Raise an error if brokers do not take one of these keys while they run."""
    read_only = sorted(_READ_ONLY.intersection(keys))
    if read_only:
        raise ProtocolError(
            "INVALID_CONFIG",
            f"Cannot update these configs dynamically: {', '.join(read_only)}; change the "
            "configuration file and restart the brokers",
        )
    for key in sorted(keys):
        if key not in DYNAMIC_BROKER_KEYS:
            close = difflib.get_close_matches(key, DYNAMIC_BROKER_KEYS, n=1)
            known = ", ".join(sorted(DYNAMIC_BROKER_KEYS))
            hint = f"did you mean {close[0]}?" if close else f"known keys: {known}"
            raise ConfigError(f"unknown configuration key {key} of {source}: {hint}")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
