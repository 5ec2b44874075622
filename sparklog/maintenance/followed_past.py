"""The past of partitions and of the controller, followed: a further reading reads new commits only.

Which rows there are is decided in `sparklog.cluster.partition_changes`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from sparklog.cluster.partition_changes import PastOfTable, further_rows
from sparklog.storage.control_table import ControlTable
from sparklog.storage.location import Location
from sparklog.storage.newest_rows import newest_rows


class FollowedPast:
    """The rows of a table with the past of a cluster root, and those that it does not have yet.

    Parameters: `history`, the table and its source; `key`, the columns that name a thing whose
    changes the rows are, none if there is one thing only.
    """

    def __init__(self, history: PastOfTable, key: Sequence[str]) -> None:
        self._history = history
        self._key = key
        self._last: pa.Table | None = None
        self._covered = -1

    def new_rows(self, root: Location, source: ControlTable, now_ms: int) -> pa.Table:
        """Return the rows since the last call, in order; all rows at the first call.

        Parameters: `source`, at its newest version; `now_ms`, the time in ms since 1970 for changes
        whose commit is no longer known. Costs no request while the source has no newer version. All
        rows are returned again if the source is older than at the last call, as after a restore.
        Raises `StorageError` or `OSError` if a table cannot be read.
        """
        version = source.version
        known, covered = self._last, self._covered
        if known is None or version < covered:
            known, stored_up_to = self._stored(root)
            returned = known
            # The table may have been extended after the source was read.
            covered = max(stored_up_to or 0, version)
        else:
            returned, stored_up_to = known.schema.empty_table(), covered
            covered = version
        rows = further_rows(self._history, known, stored_up_to, source, now_ms)
        if rows is not None:
            returned = pa.concat_tables([returned, rows.slice(known.num_rows)])
            known = self._newest_of_each(rows)
        self._last, self._covered = known, covered
        return returned

    def _stored(self, root: Location) -> tuple[pa.Table, int | None]:
        """Return the rows of the table, and the version of the source up to which it has them."""
        stored = newest_rows(root, self._history.schema, self._history.source.name)
        # A root of an earlier format does not have the table.
        return (self._history.schema.columns.empty_table(), None) if stored is None else stored

    def _newest_of_each(self, rows: pa.Table) -> pa.Table:
        """Return the last row of each thing: what a further change is compared with."""
        if not self._key:
            return rows.slice(max(0, rows.num_rows - 1))
        keys = zip(*(rows[name].to_pylist() for name in self._key), strict=True)
        last = {key: index for index, key in enumerate(keys)}
        return rows.take(pa.array(sorted(last.values()), pa.int64()))
