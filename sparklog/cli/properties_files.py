"""Java's properties files, which Kafka's tools read keys of clients and settings from."""

from __future__ import annotations

import re
from pathlib import Path

from sparklog.errors import ConfigError

_ENTRY = re.compile(r"([^=:\s]+)\s*[=:]\s*(.*)")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(file: Path) -> dict[str, str]:
    r"""Return the values of a properties file by key.

    Lines that begin with # or ! are comments. A backslash continues a line, or escapes a character
    as in `\t`. Raises `ConfigError` for a file that cannot be read, for another line, and for a key
    that is given twice, which Java would take from its last line.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} cannot be read: it is not UTF-8") from None
    found: dict[str, str] = {}
    for line in re.sub(r"\\\r?\n[ \t]*", "", text).splitlines():
        stripped = line.lstrip(" \t")
        if not stripped or stripped[0] in "#!":
            continue
        entry = _ENTRY.fullmatch(stripped)
        if entry is None:
            raise ConfigError(f"{file} has the line {line!r}: write it as key=value")
        key, value = entry[1], re.sub(r"\\(.)", lambda one: _ESCAPES.get(one[1], one[1]), entry[2])
        if key in found:
            raise ConfigError(f"{file} has {key} twice: give it once")
        found[key] = value
    return found
