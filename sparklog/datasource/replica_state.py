"""The state of a broker root's replicas, exact as of the moment at which Spark asks for it."""

from __future__ import annotations

import pyarrow as pa

from sparklog.model import (
    DELAYED_OPERATIONS,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    TableSchema,
)
from sparklog.storage.journal import CHECKPOINTS, Journal
from sparklog.storage.location import Location, StorageOptions

JOURNALED = {schema.name: schema for schema in CHECKPOINTS}
"""The tables whose newest rows the journal has, by their names."""

_TYPES = {pa.string(): "string", pa.int32(): "int", pa.int64(): "bigint"}


def read_state(table: str, root: str, storage_options: StorageOptions) -> pa.Table:
    """Return the rows of one of `JOURNALED` in the broker root at `root`, as the journal has them.

    Raises `StorageError` where the root cannot be read.
    """
    journal = Journal(Location.of(root, storage_options), with_operations=True)
    tables = {
        HIGH_WATERMARK_CHECKPOINT.name: journal.row_table,
        LEADER_EPOCH_CHECKPOINT.name: journal.epoch_table,
        DELAYED_OPERATIONS.name: journal.operation_table,
    }
    return tables[table]()


def ddl(schema: TableSchema) -> str:
    """Return the columns of a table in Spark's words."""
    return ", ".join(f"{column.name} {_TYPES[column.type]}" for column in schema.columns)
