"""Deterministic mutation of valid inputs: an input is a function of the samples and of a `Random`.

A JSON input is changed as a tree, or as bytes where that is asked for. JSON within a text of it, as
Delta has in `stats`, is changed as a tree, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Literal

Form = Literal["bytes", "text", "json"]
"""The form of a target's samples: any bytes, text in UTF-8, or JSON values, one a line."""

MOST_BYTES = 200_000
"""The largest input: a parser that takes time for each byte is slow for long inputs only."""

_DEEP = {f"@deep{depth}@": depth for depth in (100, 190, 400, 900, 980, 3_000)}
_DIGITS = "@digits@"
"""Placeholders of values that `json.dumps` cannot write."""

TEXTS = (
    "",
    " ",
    ".",
    "..",
    "../../../canary/file",
    "%2e%2e%2f%2e%2e%2fcanary",
    "..\\..\\canary",
    "/etc/passwd",
    "file:///etc/passwd",
    "s3://bucket/%00",
    "s3://[",
    "~nobody-of-this-name/x",
    "\0",
    "a\0b",
    "a\nb\r\nc",
    "'; DROP TABLE topics; --",
    '" OR ""="',
    "${HOME}",
    "${file:/etc/passwd}",
    "{{secrets/a/b}}",
    "\ud800",
    "\N{PILE OF POO}\N{COMBINING ACUTE ACCENT}",
    "\N{ARABIC-INDIC DIGIT SEVEN}",
    "\N{SUPERSCRIPT TWO}",
    "1_000",
    "0x10",
    "1e400",
    "-0",
    "NaN",
    "null",
    "true",
    "2001-13-45",
    "0000-00-00T00:00:00Z",
    "x" * 300,
    "[" * 2_000,
)
NUMBERS = (
    0,
    -1,
    1,
    -2,
    127,
    (1 << 31) - 1,
    1 << 31,
    -(1 << 31) - 1,
    (1 << 53) + 1,
    (1 << 63) - 1,
    1 << 63,
    -(1 << 63) - 1,
    1 << 64,
    10**30,
    0.5,
    -0.0,
    1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    [],
    {},
    [[]],
    {"": None},
    [None, None],
    [{}],
    {"a": {"b": {"c": []}}},
    *_DEEP,
    _DIGITS,
)
_EXTREMES = tuple(
    number.to_bytes(size, "little", signed=number < 0)
    for size in (1, 2, 4, 8)
    for number in (0, -1, 1, (1 << (8 * size - 1)) - 1, -(1 << (8 * size - 1)))
)
_RAW_TEXTS = tuple(text.encode("utf-8", "surrogatepass") for text in TEXTS)
_NUMBER = re.compile(rb"\d+")


class Mutator:
    """Makes inputs from samples; `random` is the only source of choices.

    Parameters: `finish`, applied to most inputs, restores properties that chance seldom does, such
    as a checksum.
    """

    def __init__(
        self,
        samples: Sequence[bytes],
        form: Form,
        finish: Callable[[Random, bytes], bytes] | None = None,
    ) -> None:
        self._samples = samples
        self._form = form
        self._finish = finish

    def input(self, random: Random) -> bytes:
        """Return the next input."""
        content = random.choice(self._samples)
        if self._form == "json" and random.random() < 0.8:
            content = _changed_lines(random, content)
        else:
            content = self._changed_bytes(random, content)
        if self._finish is not None and random.random() < 0.8:
            content = self._finish(random, content)
        return content[:MOST_BYTES]

    def _changed_bytes(self, random: Random, content: bytes) -> bytes:
        for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
            content = random.choice(_OF_BYTES)(random, content, random.choice(self._samples))
            content = content[:MOST_BYTES]
        if self._form != "bytes" and random.random() < 0.8:
            content = content.decode("utf-8", "replace").encode()
        return content


# --- bytes --------------------------------------------------------------------------------------


def _place(random: Random, content: bytes) -> tuple[int, int]:
    """Return the bounds of a part of the content, mostly a short one."""
    first = random.randint(0, len(content))
    longest = random.choice((1, 4, 16, len(content)))
    return first, min(len(content), first + random.randint(0, longest))


def _flip(random: Random, content: bytes, _: bytes) -> bytes:
    if not content:
        return b"\0"
    at = random.randrange(len(content))
    return content[:at] + bytes([content[at] ^ (1 << random.randrange(8))]) + content[at + 1 :]


def _cut(random: Random, content: bytes, _: bytes) -> bytes:
    first, last = _place(random, content)
    return content[:first] + content[last:] if random.random() < 0.7 else content[:first]


def _repeat(random: Random, content: bytes, _: bytes) -> bytes:
    first, last = _place(random, content)
    return content[:last] + content[first:last] * random.choice((1, 2, 50)) + content[last:]


def _splice(random: Random, content: bytes, other: bytes) -> bytes:
    first, last = _place(random, other)
    at, end = _place(random, content)
    return content[:at] + other[first:last] + content[end:]


def _insert(random: Random, content: bytes, _: bytes) -> bytes:
    at, end = _place(random, content)
    return content[:at] + random.choice(_RAW_TEXTS) + content[end:]


def _overwrite(random: Random, content: bytes, _: bytes) -> bytes:
    number = random.choice(_EXTREMES)
    at = random.randint(0, len(content))
    return content[:at] + number + content[at + len(number) :]


def _renumber(random: Random, content: bytes, _: bytes) -> bytes:
    found = list(_NUMBER.finditer(content))
    if not found:
        return content
    match = random.choice(found)
    number = str(random.choice(NUMBERS)).encode() if random.random() < 0.95 else b"9" * 5_000
    return content[: match.start()] + number + content[match.end() :]


_OF_BYTES = (_flip, _flip, _cut, _repeat, _splice, _insert, _overwrite, _renumber)


# --- JSON ---------------------------------------------------------------------------------------


def _changed_lines(random: Random, content: bytes) -> bytes:
    """Change one line of JSON, or the order and number of the lines."""
    lines = content.split(b"\n")
    if len(lines) > 1 and random.random() < 0.15:
        at = random.randrange(len(lines))
        how = random.randrange(4)
        if how == 0:
            del lines[at]
        elif how == 1:
            lines.insert(at, lines[at])
        elif how == 2:
            random.shuffle(lines)
        else:
            lines.insert(at, random.choice(_RAW_TEXTS))
        return b"\n".join(lines)
    at = random.choice([number for number, line in enumerate(lines) if line])
    value = json.loads(lines[at])
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        value = changed_value(random, value)
    lines[at] = _line(value)
    return b"\n".join(lines)


def _line(value: Any) -> bytes:
    line = json.dumps(value, separators=(",", ":")).encode()
    for name, depth in _DEEP.items() if b"@deep" in line else ():
        line = line.replace(b'"%s"' % name.encode(), b"[" * depth + b"]" * depth)
    return line.replace(b'"%s"' % _DIGITS.encode(), b"9" * 5_000)


def changed_value(random: Random, value: Any) -> Any:
    """Return a value of JSON's types with a change at one place."""
    inner = _nested(value)
    if inner is not None and random.random() < 0.8:
        return _line(changed_value(random, inner)).decode()
    if isinstance(value, dict) and value and random.random() < 0.85:
        key = random.choice(list(value))
        return value | {key: changed_value(random, value[key])}
    if isinstance(value, list) and value and random.random() < 0.75:
        at = random.randrange(len(value))
        return [*value[:at], changed_value(random, value[at]), *value[at + 1 :]]
    if random.random() < 0.4:
        return random.choice(random.choice((TEXTS, NUMBERS, VALUES)))
    return _altered(random, value)


def _nested(value: Any) -> Any:
    """Return the JSON object or list that a text holds, or `None`."""
    if not isinstance(value, str) or value[:1] not in ("{", "["):
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _altered(random: Random, value: Any) -> Any:
    """Return another value of the same kind, or the value in another kind's place."""
    how = random.randrange(4)
    if how == 0:
        count = 2 if isinstance(value, dict | list) else 500
        return random.choice(([value], {"a": value}, str(value), [value] * count))
    if isinstance(value, dict):
        return _altered_object(random, value)
    if isinstance(value, list) and value:
        at = random.randrange(len(value))
        if how == 1:
            return value[:at] + value[at + 1 :]
        return [*value, value[at]] if how == 2 else random.sample(value, len(value))
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogatepass")
        changed = random.choice(_OF_BYTES)(random, raw, random.choice(_RAW_TEXTS))
        return changed.decode("utf-8", "replace")
    if isinstance(value, int) and not isinstance(value, bool):
        return value + random.choice((-1, 1, 1 << 31, -(1 << 63), 0.5))
    return random.choice(TEXTS)


def _altered_object(random: Random, value: dict[str, Any]) -> dict[str, Any]:
    name = random.choice(list(value)) if value else "a"
    how = random.randrange(3)
    if how == 0:
        return {key: one for key, one in value.items() if key != name}
    if how == 1:
        return value | {random.choice(TEXTS): random.choice(VALUES)}
    renamed = random.choice((name.upper(), name + " ", name[:-1], random.choice(TEXTS)))
    return {renamed if key == name else key: one for key, one in value.items()}
