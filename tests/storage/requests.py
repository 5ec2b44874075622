"""Requests for tests, and tables that contain them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sparklog.model import PRODUCE_REQUESTS, REQUEST_INDEX, new_batch_path
from sparklog.storage.control_table import create_table
from sparklog.storage.location import Location
from sparklog.storage.request_appends import RequestAppends
from sparklog.storage.request_files import ProduceRequest
from sparklog.storage.request_table import RequestTable

ALL = -2
"""A version below that of every request, including one whose commit was cleaned up."""


def request(request_id: str, **values: Any) -> ProduceRequest:
    """Return a request with a path of its own; its file does not exist."""
    made = ProduceRequest(
        request_id=request_id,
        topic_id="a-topic-id",
        topic="t",
        partition=0,
        named_leader_epoch=3,
        path=new_batch_path(),
        record_count=10,
        byte_size=1_000,
        checksum="00000000deadbeef",
        min_timestamp_ms=1_000,
        max_timestamp_ms=2_000,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        acks=1,
        timeout_ms=30_000,
        client_id="a-client",
        created_at_ms=5_000,
    )
    return made._replace(**values)


def row_of(of: ProduceRequest) -> dict[str, Any]:
    """Return a request as a row of `REQUEST_INDEX`."""
    row = of._asdict()
    row["leader_epoch"] = row["named_leader_epoch"]
    return {name: row[name] for name in REQUEST_INDEX.names}


def appending(root: Location) -> RequestAppends:
    """Create the request table of a root if it is missing; return a producer's handle."""
    create_table(root, PRODUCE_REQUESTS)
    return RequestAppends(root)


def ids(requests: Iterable[ProduceRequest]) -> list[str]:
    return [one.request_id for one in requests]


def ids_in(table: RequestTable, after: int = ALL) -> list[str]:
    """Return the ids of the requests that were added after a version, in order."""
    return ids(table.requests_after(after).values())


def commit_file(root: Location, version: int) -> Path:
    return Path(root.uri, PRODUCE_REQUESTS.name, "_delta_log", f"{version:020}.json")
