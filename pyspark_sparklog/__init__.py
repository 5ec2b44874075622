"""Makes `format("sparklog")` known to Spark.

Spark looks for modules called `pyspark_...` by itself and registers their `DefaultSource`. Where it
does not, say `spark.dataSource.register(pyspark_sparklog.DefaultSource)`.

What a reader does is in `sparklog.datasource`; here is only what Spark's classes ask for. Every
Spark application imports this module once it reads any Python source, so it imports little itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from sparklog.datasource.write_options import WriteOptions


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Let Spark show an error of sparklog as its sentence, without the stack of the worker."""
    try:
        yield
    except Exception as error:
        from sparklog.errors import show_in_one_line

        show_in_one_line(error)
        raise


class DefaultSource(DataSource):
    """`format("sparklog")` of `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "sparklog"

    @errors_in_one_line()
    def schema(self) -> str:
        """Return the columns of Spark's Kafka source.

        Raises `ConfigError` for options that are wrong whatever is read.
        """
        from sparklog.datasource.columns import ddl
        from sparklog.datasource.options import parse_read_options
        from sparklog.datasource.replica_state import asks_for_state, state_ddl

        if asks_for_state(self.options):
            return state_ddl(self.options)
        return ddl(include_headers=parse_read_options(self.options).include_headers)

    @errors_in_one_line()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query; `ConfigError` for options that are wrong there."""
        from pyspark_sparklog.readers import BatchReader, StateReader
        from sparklog.datasource.columns import check_schema
        from sparklog.datasource.options import parse_read_options
        from sparklog.datasource.replica_state import asks_for_state

        if asks_for_state(self.options):
            return StateReader(dict(self.options))
        options = parse_read_options(self.options, "batch")
        check_schema(schema.simpleString(), include_headers=options.include_headers)
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of a stream; its methods raise what is wrong with its options."""
        from pyspark_sparklog.readers import RefusedStreamReader, stream_reader
        from sparklog.datasource.columns import check_schema
        from sparklog.datasource.options import parse_read_options
        from sparklog.errors import SparklogError

        try:
            options = parse_read_options(self.options, "stream")
            check_schema(schema.simpleString(), include_headers=options.include_headers)
            return stream_reader(options)
        except SparklogError as error:
            return RefusedStreamReader(error)

    @errors_in_one_line()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a DataFrame; `ConfigError` for wrong options or columns."""
        from pyspark_sparklog.writers import BatchWriter

        return BatchWriter(self._write_options(schema, overwrite))

    @errors_in_one_line()
    def streamWriter(  # noqa: N802 - Spark's
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return the writer of a stream; `ConfigError` for wrong options or columns."""
        from pyspark_sparklog.writers import StreamWriter

        return StreamWriter(self._write_options(schema, overwrite))

    def _write_options(self, schema: StructType, overwrite: bool) -> WriteOptions:
        from sparklog.datasource.write_options import parse_write_options
        from sparklog.datasource.write_schema import check_write_schema
        from sparklog.errors import ConfigError

        if overwrite:
            raise ConfigError(
                "a log is only appended to: use mode('append'), or outputMode('append')"
            )
        options = parse_write_options(self.options)
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        check_write_schema(types, options)
        return options
