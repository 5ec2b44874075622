"""A consumer's deserializers: functions of the user that convert keys and values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sparklog.cluster.arguments import conversion
from sparklog.consumer.assigned_partition import ConsumerRecord
from sparklog.errors import RecordDeserializationError


class Deserializers:
    """Converts the keys and values of records, which are `bytes` or `None` before.

    Parameters: `key` and `value`, each a function of the bytes, or an object with the method
    `deserialize(topic, bytes)`, or `None`. They are also called for `None`, as in kafka-python.
    """

    def __init__(self, key: object = None, value: object = None) -> None:
        self._key = conversion(key, "key_deserializer", "deserialize")
        self._value = conversion(value, "value_deserializer", "deserialize")

    def apply(
        self, records: Iterable[ConsumerRecord]
    ) -> tuple[list[ConsumerRecord], RecordDeserializationError | None]:
        """Return the converted records up to the first that fails, and the error of that one."""
        if self._key is None and self._value is None:
            return list(records), None
        converted: list[ConsumerRecord] = []
        for record in records:
            part = "key"
            try:
                key = _converted(self._key, record.topic, record.key)
                part = "value"
                value = _converted(self._value, record.topic, record.value)
            except Exception as error:  # noqa: BLE001 - a deserializer is the user's
                failure = RecordDeserializationError(
                    record.topic, record.partition, record.offset, part, error
                )
                failure.__cause__ = error
                return converted, failure
            converted.append(record._replace(key=key, value=value))
        return converted, None


def _converted(
    convert: Callable[[str, Any], Any] | None, topic: str, content: bytes | None
) -> object:
    return content if convert is None else convert(topic, content)
