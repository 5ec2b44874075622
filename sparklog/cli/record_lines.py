"""Records as lines of text, with the properties of Kafka's console tools.

`LineReader` reads them as kafka-console-producer does (--reader-property), `LineFormatter` writes
them as kafka-console-consumer does (--formatter-property).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from sparklog.cli.properties_files import read_properties
from sparklog.consumer.assigned_partition import ConsumerRecord
from sparklog.errors import ConfigError, SparklogError
from sparklog.storage.damaged_commits import MALFORMED

Headers = list[tuple[str, bytes | None]]

READER_PROPERTIES = {
    "parse.key": "false",
    "key.separator": "\t",
    "parse.headers": "false",
    "headers.delimiter": "\t",
    "headers.separator": ",",
    "headers.key.separator": ":",
    "ignore.error": "false",
    "null.marker": "",
}
"""The properties of kafka-console-producer's reader, with their defaults; no marker if empty."""

FORMATTER_PROPERTIES = {
    "print.timestamp": "false",
    "print.partition": "false",
    "print.offset": "false",
    "print.epoch": "false",
    "print.headers": "false",
    "print.key": "false",
    "print.value": "true",
    "key.separator": "\t",
    "line.separator": "\n",
    "headers.separator": ",",
    "null.literal": "null",
}
"""The properties of kafka-console-consumer's formatter, with their defaults."""


class LineRecord(NamedTuple):
    """A record that was read from a line."""

    key: bytes | None
    value: bytes | None
    headers: Headers


def key_values(texts: Sequence[str], option: str) -> dict[str, str]:
    """Return the values by key of a repeated option KEY=VALUE.

    Raises `ConfigError` for a text without a key, and for a key that is given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ConfigError(f"{option} {text!r} is not KEY=VALUE: write it as key=value")
        if key in found:
            raise ConfigError(f"{option} {key} is given twice: give it once")
        found[key] = value
    return found


def with_file(file: Path | None, texts: Sequence[str], option: str) -> dict[str, str]:
    """Return the values of a properties file and of an option KEY=VALUE, which has precedence.

    Raises `ConfigError` as `read_properties` and `key_values` do.
    """
    given = key_values(texts, option)
    return given if file is None else {**read_properties(file), **given}


def client_config(texts: Sequence[str], file: Path | None = None) -> dict[str, Any]:
    """Return the keywords of a client, Kafka's keys with YAML's values.

    `texts` are those of --command-property, `file` is that of --command-config.
    """
    given = with_file(file, texts, "--command-property")
    values: dict[str, Any] = {}
    for key, text in given.items():
        try:
            values[key.replace(".", "_")] = yaml.safe_load(text)
        except (yaml.YAMLError, *MALFORMED):
            # PyYAML raises the errors of Python's own conversions for numbers, dates and nesting.
            values[key.replace(".", "_")] = text
    return values


class LineReader:
    """Reads lines as records; raises `ConfigError` for a property that is unknown or not usable."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        known = _with_defaults(properties, READER_PROPERTIES, "--reader-property")
        self._has_key = _flag(known, "parse.key")
        self._has_headers = _flag(known, "parse.headers")
        self._ignores_errors = _flag(known, "ignore.error")
        self._key_separator = _separator(known, "key.separator")
        self._headers_delimiter = _separator(known, "headers.delimiter")
        self._headers_separator = _separator(known, "headers.separator")
        self._header_separator = _separator(known, "headers.key.separator")
        self._null_marker = known["null.marker"].encode() or None

    def read(self, line: bytes, number: int) -> LineRecord:
        """Return the record of a line, which ends with a line break or not.

        Raises `SparklogError` if a separator is missing and ignore.error is false. `number` is the
        line's number in that message, from 1.
        """
        rest = line.removesuffix(b"\n").removesuffix(b"\r")
        headers: Headers = []
        key = None
        if self._has_headers:
            text, rest = self._split(rest, self._headers_delimiter, "headers.delimiter", number)
            headers = self._headers(text, number) if text else []
        if self._has_key:
            key, rest = self._split(rest, self._key_separator, "key.separator", number)
        return LineRecord(self._or_null(key), self._or_null(rest), headers)

    def _split(
        self, text: bytes, separator: bytes, name: str, number: int
    ) -> tuple[bytes | None, bytes]:
        before, found, after = text.partition(separator)
        if found:
            return before, after
        if self._ignores_errors:
            return None, text
        raise SparklogError(
            f"line {number} has no {name} {separator.decode()!r}: correct it, set the property "
            f"{name}, or set ignore.error=true to read the whole line as a value"
        )

    def _headers(self, text: bytes, number: int) -> Headers:
        pairs: Headers = []
        for one in text.split(self._headers_separator):
            name, value = self._split(one, self._header_separator, "headers.key.separator", number)
            if name is None:
                name, value = value, b""
            pairs.append((name.decode("utf-8", "backslashreplace"), self._or_null(value)))
        return pairs

    def _or_null(self, text: bytes | None) -> bytes | None:
        return None if text == self._null_marker else text


class LineFormatter:
    """Formats records as lines; raises `ConfigError` as `LineReader` does."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        known = _with_defaults(properties, FORMATTER_PROPERTIES, "--formatter-property")
        self._printed = {
            name.removeprefix("print.")
            for name in known
            if name.startswith("print.") and _flag(known, name)
        }
        self._separator = known["key.separator"].encode()
        self._line_separator = known["line.separator"].encode()
        self._headers_separator = known["headers.separator"].encode()
        self._null = known["null.literal"].encode()

    def format(self, record: ConsumerRecord) -> bytes:
        """Return the line of a record, in the order of fields of Kafka's formatter."""
        fields = {
            "timestamp": b"CreateTime:%d" % record.timestamp_ms,
            "partition": b"Partition:%d" % record.partition,
            "offset": b"Offset:%d" % record.offset,
            "epoch": b"Epoch:%d" % record.leader_epoch,
            "headers": self._headers(record),
            "key": self._or_literal(record.key),
            "value": self._or_literal(record.value),
        }
        printed = [text for name, text in fields.items() if name in self._printed]
        return self._separator.join(printed) + self._line_separator

    def _headers(self, record: ConsumerRecord) -> bytes:
        if not record.headers:
            return b"NO_HEADERS"
        pairs = (name.encode() + b":" + self._or_literal(value) for name, value in record.headers)
        return self._headers_separator.join(pairs)

    def _or_literal(self, text: bytes | None) -> bytes:
        return self._null if text is None else text


def as_json(record: ConsumerRecord) -> dict[str, Any]:
    """Return a record as an object of JSON; bytes that are not UTF-8 are escaped by backslashes."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(value)] for name, value in record.headers],
    }


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")


def _with_defaults(
    properties: Mapping[str, str], defaults: Mapping[str, str], option: str
) -> dict[str, str]:
    for name in properties:
        if name not in defaults:
            close = difflib.get_close_matches(name, defaults, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(defaults)}"
            raise ConfigError(f"{option} {name} is unknown: {hint}")
    return {**defaults, **properties}


def _flag(properties: Mapping[str, str], name: str) -> bool:
    text = properties[name].strip().lower()
    if text not in ("true", "false"):
        raise ConfigError(f"property {name} is {properties[name]!r}: set it to true or false")
    return text == "true"


def _separator(properties: Mapping[str, str], name: str) -> bytes:
    if not properties[name]:
        raise ConfigError(f"property {name} is empty: set it to the text between two fields")
    return properties[name].encode()
