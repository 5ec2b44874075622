"""Produce requests as any client may commit them to a broker's request table, valid or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparklog.model import PRODUCE_REQUESTS
from sparklog.storage.batch_actions import file_statistics
from sparklog.storage.commits import AddedFile
from sparklog.storage.delta_log import DeltaLog
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster

Row = dict[str, Any]


def append(cluster: LocalCluster, broker: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """Commit rows of `REQUEST_INDEX` in one commit, without validating their values."""
    root = Location.of(str(cluster.root / f"broker-{broker}"))
    log = DeltaLog(root.child(PRODUCE_REQUESTS.name))
    assert log.commit("WRITE", [added(row) for row in rows], syncs_files=False)


def added(row: Mapping[str, Any]) -> AddedFile:
    """Return the add action of a row with any values; columns that are left out are null."""
    values = {
        name: None if row.get(name) is None else str(row[name])
        for name in PRODUCE_REQUESTS.partition_by
    }
    path = f"../log/{row.get('path') or ''}"
    return AddedFile(path, row.get("byte_size") or 0, 0, values, statistics(row))


def statistics(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statistics of a row; a time outside Delta's range stays a number."""
    count = row.get("record_count")
    first_ms, last_ms = row.get("min_timestamp_ms"), row.get("max_timestamp_ms")
    if count is not None and first_ms is not None and last_ms is not None:
        try:
            return file_statistics(count, 0, first_ms, last_ms)
        except OverflowError:
            pass
    return {
        "numRecords": count,
        "minValues": {"timestamp": first_ms},
        "maxValues": {"timestamp": last_ms},
    }
