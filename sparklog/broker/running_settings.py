"""The settings of a running broker: those of its file, below those set while it runs."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ConfigDict

from sparklog.cluster.dynamic_configs import (
    CLUSTER_WIDE_KEYS,
    DEFAULT_ENTITY,
    DYNAMIC_BROKER_KEYS,
    DynamicConfigs,
)
from sparklog.config import Settings, parse
from sparklog.errors import ConfigError
from sparklog.logger import get_logger

_log = get_logger(__name__)

_FIELDS = {str(field.alias): name for name, field in Settings.model_fields.items()}


class RunningSettings(Settings):
    """The settings that all parts of a broker hold, and read when they act.

    Changed only between two steps of the broker. Precedence: the broker's own dynamic value, the
    cluster's dynamic default, the file's value, Kafka's default.
    """

    model_config = ConfigDict(frozen=False)

    @classmethod
    def of(cls, static: Settings) -> RunningSettings:
        """Return the settings of a file, with its values that are set."""
        values = {name: getattr(static, name) for name in Settings.model_fields}
        return cls.model_construct(
            _fields_set=static.model_fields_set & Settings.model_fields.keys(), **values
        )

    def apply(self, static: Settings, dynamic: Mapping[str, str]) -> dict[str, object]:
        """Set all dynamic keys: to these values, or else to those of `static`.

        Returns the keys whose values have changed, with the new ones. A key or value that this
        release does not know is logged and left out.
        """
        usable = {key: value for key, value in dynamic.items() if _is_usable(key, value)}
        given = parse(Settings, usable, "the dynamic configs")
        changed: dict[str, object] = {}
        for key in sorted(DYNAMIC_BROKER_KEYS):
            name = _FIELDS[key]
            value = getattr(given if key in usable else static, name)
            if value != getattr(self, name):
                setattr(self, name, value)
                changed[key] = value
        return changed


def dynamic_values(configs: DynamicConfigs, broker_id: int) -> dict[str, str]:
    """Return the dynamic values that are valid for a broker."""
    own = configs.of("brokers", str(broker_id))
    return {
        **configs.of("brokers", DEFAULT_ENTITY),
        **{key: value for key, value in own.items() if key not in CLUSTER_WIDE_KEYS},
    }


def _is_usable(key: str, value: str) -> bool:
    if key not in DYNAMIC_BROKER_KEYS:
        _log.error("dynamic config not known", key=key)
        return False
    try:
        parse(Settings, {key: value}, "the dynamic configs")
    except ConfigError as error:
        _log.error("dynamic config not usable", key=key, error=str(error))
        return False
    return True
