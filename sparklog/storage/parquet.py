"""Reading Parquet files that are in memory, without Arrow's threads.

Those threads may abort a short process when it ends, and a file is small enough to take longer to
hand to them than to read.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq


class ParquetContent:
    """A Parquet file; its footer is read at once, its rows when they are asked for.

    Raises `pa.ArrowException` (an `OSError` or a `ValueError` among them) where it is none.
    """

    def __init__(self, content: bytes) -> None:
        self._file = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False)

    @property
    def columns(self) -> pa.Schema:
        """The columns, as Arrow's types."""
        return self._file.schema_arrow

    @property
    def row_count(self) -> int:
        """How many rows the footer names."""
        return int(self._file.metadata.num_rows)

    def read(self, columns: list[str] | None = None) -> pa.Table:
        """Return the rows, of all columns or of these."""
        return self._file.read(columns, use_threads=False)
