"""Requests as anybody may commit them to a broker's request table, sound or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparklog.model import PRODUCE_REQUESTS
from sparklog.storage.batch_actions import file_statistics
from sparklog.storage.delta_log import AddedFile, DeltaLog
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster

Row = dict[str, Any]


def append(cluster: LocalCluster, broker: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """Commit rows of `REQUEST_INDEX` in one commit, whatever values they have."""
    root = Location.of(str(cluster._root / f"broker-{broker}"))
    log = DeltaLog(root.child(PRODUCE_REQUESTS.name))
    assert log.commit("WRITE", [added(row) for row in rows], syncs_files=False)


def added(row: Mapping[str, Any]) -> AddedFile:
    """Return the add action of a row of any values; nothing stands for what is left out."""
    values = {
        name: None if row.get(name) is None else str(row[name])
        for name in PRODUCE_REQUESTS.partition_by
    }
    path = f"../log/{row.get('path') or ''}"
    return AddedFile(path, row.get("byte_size") or 0, 0, values, statistics(row))


def statistics(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statistics of a row; a time that Delta cannot name stays a number."""
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
