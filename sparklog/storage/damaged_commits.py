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

METADATA_CHECKSUM = "sparklogMetadataChecksum"
"""The field of `commitInfo` with the checksum of the writer's own text."""

COMMIT_REMEDY = (
    "restore it from a copy of the root, or, in a broker's root, stop the broker, move the root "
    "away and start the broker: it copies its replicas from the other brokers"
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


def check_commit_text(text: bytes) -> None:
    """Raise `ValueError` if a commit differs from what was written."""
    check_written(text, json_value(text.partition(b"\n")[0]) if text else {})


def check_written(text: bytes, first: Mapping[str, Any]) -> None:
    """Raise `ValueError` if a commit with this first action differs from what was written."""
    if not text:
        raise ValueError("it is empty")
    lines = text.partition(b"\n")[2]
    info = first.get("commitInfo") or {}
    check_metadata(info)
    checksum = info.get(CHECKSUM)
    if checksum is not None and xxhash.xxh3_64_hexdigest(lines) != checksum:
        raise ValueError("it is cut or changed: its lines do not match their checksum")
    if checksum is None:
        # A commit of another writer has no checksum. Its last line must be complete JSON.
        json_value(text[text.rstrip().rfind(b"\n") + 1 :])


def check_metadata(info: Mapping[str, Any]) -> None:
    """Raise `ValueError` if the writer's own text in a commit does not match its checksum."""
    checksum = info.get(METADATA_CHECKSUM)
    written = str(info.get(USER_METADATA)).encode()
    if checksum is not None and xxhash.xxh3_64_hexdigest(written) != checksum:
        raise ValueError("it is changed: its userMetadata does not match its checksum")


def matches_checksum(text: bytes) -> bool:
    """Return whether a commit is as it was written."""
    try:
        check_commit_text(text)
    except MALFORMED:
        return False
    return True


def damaged_commit(table: Location, path: str, error: Exception) -> DamagedError:
    """Return the error for a commit of which reading raised `error`."""
    fault = one_line(error)
    if not isinstance(error, (ValueError, OSError)):
        fault = f"an action is malformed ({type(error).__name__}: {fault})"
    return DamagedError(f"{table.uri}/{path}", fault, COMMIT_REMEDY)
