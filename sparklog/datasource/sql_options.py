"""The options of `CREATE TEMPORARY VIEW` and `CREATE TABLE ... USING sparklog` in Spark's SQL."""

from __future__ import annotations

from collections.abc import Mapping

from sparklog.datasource.write_options import parse_write_options
from sparklog.errors import ConfigError

_READ = frozenset({"assign", "subscribe", "subscribepattern"})

_SINK_DDL = (
    "key binary, value binary, partition int, headers array<struct<key: string, value: binary>>"
)


def refuse_table(options: Mapping[str, str]) -> None:
    """Raise `ConfigError` for the options of CREATE TABLE, which Spark also prefixes."""
    if any(name.lower().startswith("option.") for name in options):
        raise ConfigError(
            "CREATE TABLE ... USING sparklog is not supported: Spark 4.2 creates the table, but "
            "does not pass its options to a Python source that is queried: use CREATE TEMPORARY "
            "VIEW ... USING sparklog with the same options"
        )


def sink_ddl(options: Mapping[str, str]) -> str | None:
    """Return the columns of a view to insert into, or `None` for a view to read.

    A view to insert into has the option `topic` and names no topics to read. Raises `ConfigError`
    for an invalid option of a sink.
    """
    given = {name.lower() for name in options}
    if "topic" not in given or given & _READ:
        return None
    parse_write_options(options)
    return _SINK_DDL
