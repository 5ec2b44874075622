"""Requests for tests: rows of `REQUEST_INDEX`, and tables that have them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sparklog.model import PRODUCE_REQUESTS, new_batch_path
from sparklog.storage.control_table import create_table
from sparklog.storage.location import Location
from sparklog.storage.request_appends import RequestAppends
from sparklog.storage.request_files import Request
from sparklog.storage.request_table import RequestTable

ALL = -2
"""The version after which every request was added, also one whose commit was cleaned up."""


def request(request_id: str, **values: Any) -> Request:
    """Return a row with a path of its own; its file is not there."""
    row: Request = {
        "request_id": request_id,
        "topic_id": "a-topic-id",
        "topic": "t",
        "partition": 0,
        "leader_epoch": 3,
        "path": new_batch_path(),
        "record_count": 10,
        "byte_size": 1_000,
        "checksum": "00000000deadbeef",
        "min_timestamp_ms": 1_000,
        "max_timestamp_ms": 2_000,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "acks": 1,
        "timeout_ms": 30_000,
        "client_id": "a-client",
        "created_at_ms": 5_000,
    }
    return row | values


def appending(root: Location) -> RequestAppends:
    """Create the request table of a root, if it has none; return a producer's handle."""
    create_table(root, PRODUCE_REQUESTS)
    return RequestAppends(root)


def ids(requests: Iterable[Request]) -> list[str]:
    return [one["request_id"] for one in requests]


def ids_in(table: RequestTable, after: int = ALL) -> list[str]:
    """Return the ids of the requests that were added after a version, in order."""
    return ids(table.requests_after(after).values())


def commit_file(root: Location, version: int) -> Path:
    return Path(root.uri, PRODUCE_REQUESTS.name, "_delta_log", f"{version:020}.json")
