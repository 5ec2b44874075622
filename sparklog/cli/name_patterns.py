"""Names and regular expressions in one argument, as Kafka's tools take them for topics."""

from __future__ import annotations

import re
from collections.abc import Collection

from sparklog.errors import ConfigError, ProtocolError

_NAME = re.compile(r"[a-zA-Z0-9._-]+")
"""The characters of a topic's name. A dot is one of them, so `a.b` never matches a topic `aXb`."""


def is_name(text: str) -> bool:
    """Return whether `text` is a name: any other text is a regular expression."""
    return _NAME.fullmatch(text) is not None


def matching(pattern: str, names: Collection[str]) -> list[str]:
    """Return those of the names that are `pattern`, or that it matches as a whole, sorted.

    A comma stands for `|`, as in Kafka's tools. Raises `ConfigError` if `pattern` is neither a name
    nor a regular expression.
    """
    if is_name(pattern):
        return [pattern] if pattern in names else []
    compiled = re.compile(expression(pattern))
    return sorted(one for one in names if compiled.fullmatch(one))


def expression(pattern: str) -> str:
    """Return the regular expression that `pattern` is in Python's form; raises as `matching`."""
    found = re.sub(r"\s*,\s*", "|", pattern.strip())
    try:
        re.compile(found)
    except re.error as error:
        raise ConfigError(f"{pattern!r} is not a regular expression: {error}") from None
    return found


def topics_matching(pattern: str, names: Collection[str], *, if_exists: bool) -> list[str]:
    """Return the topics that a command acts on.

    A name that does not exist is returned as well: the command refuses it with its own error. With
    `if_exists` it is left out. Raises UNKNOWN_TOPIC_OR_PARTITION if a regular expression matches no
    topic and `if_exists` is not set, and as `matching` does.
    """
    found = matching(pattern, names)
    if found or if_exists:
        return found
    if is_name(pattern):
        return [pattern]
    raise ProtocolError(
        "UNKNOWN_TOPIC_OR_PARTITION", f"no topic matches {pattern!r}: see `sparklog topics list`"
    )
