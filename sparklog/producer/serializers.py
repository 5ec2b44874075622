"""A producer's serializers: functions of the user that convert keys and values to bytes."""

from __future__ import annotations

from typing import Any

from sparklog.cluster.arguments import conversion
from sparklog.errors import SparklogError


class Serializers:
    """Converts the key and the value of a record to bytes, before it is sent.

    Parameters: `key` and `value`, each a function of the object, or an object with the method
    `serialize(topic, object)`, or `None`. They are also called for `None`, as in kafka-python.
    """

    def __init__(self, key: object = None, value: object = None) -> None:
        self._by_part = {
            "key": conversion(key, "key_serializer", "serialize"),
            "value": conversion(value, "value_serializer", "serialize"),
        }

    def key(self, topic: str, given: Any) -> Any:
        """Return the bytes of a key; raises `SparklogError` if its serializer fails."""
        return self._serialized("key", topic, given)

    def value(self, topic: str, given: Any) -> Any:
        """Return the bytes of a value; raises `SparklogError` if its serializer fails."""
        return self._serialized("value", topic, given)

    def _serialized(self, part: str, topic: str, given: Any) -> Any:
        convert = self._by_part[part]
        if convert is None:
            return given
        try:
            made = convert(topic, given)
        except Exception as error:
            raise SparklogError(
                f"{part}_serializer failed for a record of topic {topic!r} "
                f"({type(error).__name__}: {error}): the record was not sent"
            ) from error
        if not (made is None or isinstance(made, bytes | bytearray | memoryview)):
            raise SparklogError(
                f"{part}_serializer returned {type(made).__name__} for a record of topic "
                f"{topic!r}: it must return bytes or None"
            )
        return made
