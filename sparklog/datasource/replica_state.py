"""The state and the past of a root, exact as of the moment of Spark's read."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa

from sparklog.cluster.past import BROKER_PAST, CLUSTER_PAST
from sparklog.cluster.views import READ_BY_SPARKLOG, STATE_OF_ROOT, STATE_STORE, STATE_TABLE
from sparklog.model import (
    DELAYED_OPERATIONS,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    PRODUCE_REQUESTS,
)
from sparklog.storage.journal import Journal
from sparklog.storage.location import Location
from sparklog.storage.request_files import read_requests

_TYPES = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.bool_(): "boolean",
}


def asks_for_state(options: Mapping[str, str]) -> bool:
    """Return whether the options are those of a view over replica state."""
    return STATE_TABLE in options


def read_state(options: Mapping[str, str]) -> pa.Table:
    """Return the rows of the table that the options name, from the root.

    Raises `StorageError` if the root cannot be read.
    """
    root = Location.of(options[STATE_OF_ROOT], json.loads(options[STATE_STORE]))
    if options[STATE_TABLE] == PRODUCE_REQUESTS.name:
        return read_requests(root)
    past = (CLUSTER_PAST | BROKER_PAST).get(options[STATE_TABLE])
    if past is not None:
        return past.read(root)
    journal = Journal(root, with_operations=True)
    tables = {
        HIGH_WATERMARK_CHECKPOINT.name: journal.row_table,
        LEADER_EPOCH_CHECKPOINT.name: journal.epoch_table,
        DELAYED_OPERATIONS.name: journal.operation_table,
    }
    return tables[options[STATE_TABLE]]()


def state_ddl(options: Mapping[str, str]) -> str:
    """Return the columns of the table that the options name, in Spark's DDL."""
    columns = READ_BY_SPARKLOG[options[STATE_TABLE]]
    return ", ".join(f"{column.name} {_TYPES[column.type]}" for column in columns)
