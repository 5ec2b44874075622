"""Converters of option values: each takes the text, and the option's name for the error.

All raise `ConfigError` if the text is not of their form.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from sparklog.errors import ConfigError

_MILLISECONDS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000}
_MILLISECONDS |= {"h": 3_600_000, "d": 86_400_000}


def text(value: str, _name: str) -> str:
    """Return the value as it is."""
    return value


def boolean(text: str, name: str) -> bool:
    """Return the boolean that `text` names."""
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"option {name} has the value {text!r}: use true or false")
    return text.lower() == "true"


def number(text: str, name: str) -> int:
    """Return an integer of at least 0."""
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise ConfigError(f"option {name} has the value {text!r}: use an integer of at least 0")
    return int(text)


def positive(text: str, name: str) -> int:
    """Return an integer of at least 1."""
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII) or int(text) == 0:
        raise ConfigError(f"option {name} has the value {text!r}: use an integer of at least 1")
    return int(text)


def duration_ms(text: str, name: str) -> int:
    """Return a duration in ms; the text is written as in Spark."""
    match = re.fullmatch(r"(\d{1,12})\s*([a-z]*)", text.lower(), re.ASCII)
    if match is None or match[2] not in _MILLISECONDS:
        raise ConfigError(f"option {name} has the value {text!r}: write it like 30s, 15m or 1h")
    return int(match[1]) * _MILLISECONDS[match[2]]


def replica(text: str, name: str) -> str:
    """Return leader, nearest, or a broker id."""
    if text.lower() in ("leader", "nearest"):
        return text.lower()
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise ConfigError(
            f"option {name} has the value {text!r}: use leader, nearest or a broker id"
        )
    return str(int(text))


def choice(*choices: str) -> Callable[[str, str], str]:
    """Return a converter that accepts one of `choices`."""

    def read(text: str, name: str) -> str:
        if text.lower() not in choices:
            raise ConfigError(f"option {name} has the value {text!r}: use {' or '.join(choices)}")
        return text.lower()

    return read
