"""Batch files of micro-batches that are not done: they may be sent again, at any age."""

from __future__ import annotations

from sparklog.cluster.noted_files import noted_files
from sparklog.model import batch_id
from sparklog.storage.control_table import ControlTable


def awaited_batch_ids(stream_writes: ControlTable) -> set[str]:
    """Return the ids of the batches that are noted in the newest version of `stream_writes`.

    Such a batch is recognised by the name of its file, so it is neither merged nor cleaned before
    its micro-batch is done (rule 3.7).
    """
    stream_writes.refresh()
    return {
        batch_id(noted.path)
        for row in stream_writes.rows().to_pylist()
        if not row["is_done"]
        for noted in noted_files(row)
    }
