"""The rows of another broker's high-watermark checkpoint, by partition, followed as they change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.model import HIGH_WATERMARK_CHECKPOINT, TopicIdPartition
from sparklog.storage.control_table import ControlTable
from sparklog.storage.location import Location

_VERSIONS = ["log_version", "epochs_version"]
"""What changes in all rows with every commit, and is no news of any."""


class CheckpointRows(dict[TopicIdPartition, dict[str, Any]]):
    """The rows of the checkpoint at `root`, as of the last look.

    A look turns into Python what has changed, since a root may hold thousands of partitions.
    """

    def __init__(self, root: Location) -> None:
        super().__init__()
        self._table = ControlTable(root, HIGH_WATERMARK_CHECKPOINT)
        self._seen = HIGH_WATERMARK_CHECKPOINT.columns.empty_table()
        self._version = -1

    def has_news(self) -> bool:
        """Say whether the checkpoint has certainly been written anew."""
        return self._table.has_news()

    def refresh(self) -> set[TopicIdPartition]:
        """Load the newest rows; return the partitions whose rows are others than before."""
        self._table.refresh()
        if self._table.version == self._version:
            return set()
        rows = self._table.rows().combine_chunks()
        changed = self._changed(rows)
        self._seen, self._version = rows, self._table.version
        return changed

    def _changed(self, rows: pa.Table) -> set[TopicIdPartition]:
        if _keys(rows) != _keys(self._seen):
            before = set(self)
            self.clear()
            self._put(rows.to_pylist())
            return before | self.keys()
        same = pa.array(np.ones(rows.num_rows, dtype=bool))
        for name in set(rows.column_names) - set(_VERSIONS):
            old, new = self._seen[name], rows[name]
            if new.equals(old):
                continue
            both_null = pc.and_(pc.is_null(old), pc.is_null(new))
            equal = pc.or_(pc.fill_null(pc.equal(old, new), False), both_null)
            same = pc.and_(same, equal)
        for row, versions in zip(self.values(), rows.select(_VERSIONS).to_pylist(), strict=True):
            row.update(versions)
        return self._put(rows.filter(pc.invert(same)).to_pylist())

    def _put(self, rows: Iterable[dict[str, Any]]) -> set[TopicIdPartition]:
        found = {TopicIdPartition(row["topic_id"], row["partition"]): row for row in rows}
        self.update(found)
        return set(found)


def _keys(rows: pa.Table) -> pa.Table:
    return rows.select(["topic_id", "partition"])
