"""The state of replicas as a data source, for the views of `sparklog.clients.views`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from pyspark_sparklog import errors_in_one_line

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from sparklog.storage.location import StorageOptions

NAME = "sparklog_replica_state"


class StateSource(DataSource):
    """Reads a checkpoint table of one broker root together with what its journal says since.

    Options: `table`, its name; `root`, the root's path or URI; `storage_options`, as JSON.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    @errors_in_one_line()
    def schema(self) -> str:
        """Return the columns of the table."""
        from sparklog.datasource.replica_state import JOURNALED, ddl

        return ddl(JOURNALED[self.options["table"]])

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's
        """Return the reader of a query."""
        options = json.loads(self.options["storage_options"])
        return StateReader(self.options["table"], self.options["root"], options)


class StateReader(DataSourceReader):
    """Reads the table in one task, when the query runs."""

    def __init__(self, table: str, root: str, storage_options: StorageOptions) -> None:
        self._table = table
        self._root = root
        self._storage_options = storage_options

    def partitions(self) -> list[InputPartition]:
        """Return the one partition."""
        return [InputPartition(0)]

    @errors_in_one_line()
    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002 - Spark's
        """Return the rows, as Arrow's record batches."""
        from sparklog.datasource.replica_state import read_state

        return iter(read_state(self._table, self._root, self._storage_options).to_batches())
