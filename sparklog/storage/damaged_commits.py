"""Recognition of damaged commits: empty, cut or changed since they were written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import xxhash

from sparklog.errors import DamagedError
from sparklog.storage.json_text import json_value
from sparklog.storage.location import Location, one_line

USER_METADATA = "userMetadata"
"""The field of `commitInfo` with the writer's own text."""

CHECKSUM = "sparklogChecksum"
"""The field of `commitInfo` with the checksum of the lines after it."""

PLACE = "sparklogPlace"
"""The field of `commitInfo` with the commit's table and version, such as `topics/7`."""

TABLE_ID = "sparklogTable"
"""The field of `commitInfo` with the id of the commit's table: each broker has tables of the same
names, and their versions are the same."""

INFO_CHECKSUM = "sparklogInfoChecksum"
"""The last field of `commitInfo`, with the checksum of the line before the field."""

METADATA_CHECKSUM = "sparklogMetadataChecksum"
"""The field of `commitInfo` with the checksum of the writer's own text."""

_CREATION = "CREATE TABLE"
"""The operation of the commit that creates a table, which is version 0."""

COMMIT_REMEDY = (
    "run sparklog repair, or restore it from a copy of the root or an earlier version of the file "
    "(docs/damaged-tables.md), or, in a broker's root, stop the broker, move the root away and "
    "start the broker: it copies its replicas from the other brokers"
)

MALFORMED = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
    OverflowError,
)
"""The exceptions that reading a malformed commit may raise."""


class MisplacedCommitError(ValueError):
    """A commit that was written as another version, or to another table."""


def place_of(table: Location, version: int) -> str:
    """Return the value of `PLACE` in a commit of a table."""
    return f"{table.uri.rsplit('/', 1)[-1]}/{version}"


def check_commit_text(text: bytes, place: str | None = None, table_id: str | None = None) -> None:
    """Raise `ValueError` if a commit differs from what was written.

    Parameters: `place` and `table_id`, those of the commit, if they are known.
    """
    first = json_value(text.partition(b"\n")[0]) if text else {}
    check_written(text, first, place)
    check_table((first.get("commitInfo") or {}).get(TABLE_ID), table_id)


def check_written(text: bytes, first: Mapping[str, Any], place: str | None = None) -> None:
    """Raise `ValueError` if a commit with this first action differs from what was written."""
    if not text:
        raise ValueError("it is empty")
    lines = text.partition(b"\n")[2]
    info = first.get("commitInfo") or {}
    check_metadata(info)
    if (PLACE in info or INFO_CHECKSUM in info) and not _is_info_sound(text):
        raise ValueError("it is changed: its first line does not match its checksum")
    written_at = info.get(PLACE)
    if place is not None and written_at is not None and written_at != place:
        raise MisplacedCommitError(f"it is another commit: that of {written_at}")
    if place is not None and info.get("operation") == _CREATION and not place.endswith("/0"):
        # delta-rs writes it, without a place.
        raise MisplacedCommitError("it is another commit: that which creates a table")
    checksum = info.get(CHECKSUM)
    if checksum is not None and xxhash.xxh3_64_hexdigest(lines) != checksum:
        raise ValueError("it is cut or changed: its lines do not match their checksum")
    if checksum is None:
        # A commit of another writer has no checksum. Its last line must be complete JSON.
        json_value(text[text.rstrip().rfind(b"\n") + 1 :])


def check_table(found: object, table_id: str | None) -> None:
    """Raise `MisplacedCommitError` if a commit was written to another table than that of the id.

    Parameters: `found`, the value of `TABLE_ID`, `None` in commits of earlier releases.
    """
    if found is not None and table_id is not None and found != table_id:
        raise MisplacedCommitError(
            f"it is of the table with id {found}, and the log of the one with id {table_id}"
        )


def with_info_checksum(first: bytes) -> bytes:
    """Return the first line of a commit, `{"commitInfo":{...}}`, with a checksum at its end."""
    checksum = xxhash.xxh3_64_hexdigest(first)
    return first.removesuffix(b"}}") + f',"{INFO_CHECKSUM}":"{checksum}"}}}}'.encode()


def _is_info_sound(text: bytes) -> bool:
    first = text.partition(b"\n")[0]
    return first == with_info_checksum(first[: first.rfind(_INFO_FIELD)] + b"}}")


_INFO_FIELD = f',"{INFO_CHECKSUM}":'.encode()


def names_its_place(text: bytes) -> bool:
    """Return whether a commit names its table and version; delta-rs's own commits do not."""
    return f'"{PLACE}"'.encode() in text.partition(b"\n")[0]


def check_metadata(info: Mapping[str, Any]) -> None:
    """Raise `ValueError` if the writer's own text in a commit does not match its checksum."""
    checksum = info.get(METADATA_CHECKSUM)
    written = str(info.get(USER_METADATA)).encode()
    if checksum is not None and xxhash.xxh3_64_hexdigest(written) != checksum:
        raise ValueError("it is changed: its userMetadata does not match its checksum")


def matches_checksum(text: bytes, place: str | None = None, table_id: str | None = None) -> bool:
    """Return whether a commit is as it was written; the parameters are `check_commit_text`'s."""
    try:
        check_commit_text(text, place, table_id)
    except MALFORMED:
        return False
    return True


def damaged_commit(table: Location, path: str, error: Exception) -> DamagedError:
    """Return the error for a commit of which reading raised `error`."""
    fault = one_line(error)
    if not isinstance(error, (ValueError, OSError)):
        fault = f"an action is malformed ({type(error).__name__}: {fault})"
    return DamagedError(f"{table.uri}/{path}", fault, COMMIT_REMEDY)
