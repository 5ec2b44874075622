"""SQL over a cluster's state, on DuckDB in this process."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.cli.cluster import Cluster, reaching
from sparklog.cli.times import time_text
from sparklog.cluster.past import BROKER_PAST, CLUSTER_PAST
from sparklog.cluster.replica_past import states_as_of
from sparklog.cluster.views import BROKER_VIEWS, SQL_VIEWS
from sparklog.errors import SparklogError, StorageError
from sparklog.model import (
    BROKER_TABLES,
    CLUSTER_TABLES,
    DELAYED_OPERATIONS,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG,
    PRODUCE_REQUESTS,
    TableSchema,
)
from sparklog.storage.control_table import ControlTable
from sparklog.storage.journal import Journal
from sparklog.storage.location import Location
from sparklog.storage.parallel import map_in_parallel
from sparklog.storage.record_log import RecordLog, index_table
from sparklog.storage.request_files import read_requests
from sparklog.storage.table_history import NoVersionError, rows_as_of, version_as_of

_READING = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
"""The permitted statements; DuckDB types DESCRIBE, SUMMARIZE, SHOW, FROM and WITH as SELECT."""


_WITHOUT_A_PAST = (
    *(LEADER_EPOCH_CHECKPOINT.name, DELAYED_OPERATIONS.name),
    PRODUCE_REQUESTS.name,
)
"""The tables of broker roots that are known at their newest version only."""

_FURTHER_BACK = {
    "partition_state": ("partition_history", "partition_history"),
    "controller": ("controller_history", "controller_history"),
    "batches": ("high_watermark_history", "high_watermark_history"),
    # A statement on the view `lag` may need only the part of it that the other view has.
    "consumer_offsets": ("replica_progress", "partition_state"),
}
"""Of tables the view with similar rows that reaches further back, and a table that it needs."""

_EMPTY_WITHOUT = {
    "batches": "lag_seconds, and last_caught_up_ms of replicas that are behind, are null",
    "high_watermark_checkpoint": "positions and lags are null",
}
"""The columns that views cannot compute without a table."""

SPARKS_FUNCTIONS = (
    "unix_millis(time) as epoch_ms(time)",
    "timestamp_millis(ms) as to_timestamp(ms / 1000)",
)
"""Functions that DuckDB lacks: texts of the views and of docs/questions.md run on both engines."""

_TAKES_MS_FOR_A_TIME = re.compile(
    r"Cannot (compare|mix|combine) (values|types) of .*BIGINT and .*(DATE|TIME|INTERVAL|VARCHAR)"
    # A text is converted to the type of the column, if it is compared as it stands.
    r"|Could not convert string '\S*\d[-:/]\d.*' to INT64"
    r"|No function matches .* '[-+]\((BIGINT, (INTERVAL|DATE|TIME)"
    r"|(INTERVAL|DATE|TIME).*, BIGINT\))"
)
"""The errors of DuckDB for a number of ms that is used with a time, a text or an interval."""

_TIMES_ARE_NUMBERS = (
    "; the columns *_ms are ms since 1970: write unix_millis(timestamp '2026-01-31 12:00:00Z') for "
    "a time, unix_millis(current_timestamp - interval '1' day) for one before now"
)


class QueryResult(NamedTuple):
    """The rows of a statement, and a sentence for all that is missing in them.

    That is a broker root that could not be read, or a table without rows of the time that is asked
    for.
    """

    rows: pa.Table
    left_out: list[str]


class AsOf(NamedTuple):
    """The time as of which tables are read; messages name times in UTC or the local zone."""

    time_ms: int
    utc: bool


def query(statement: str, cluster: Cluster, as_of: AsOf | None = None) -> QueryResult:
    """Run one SELECT statement over the tables of `cluster`; only tables that it names are read.

    With `as_of` the tables are read as they were at that time, by the commits of each table.

    Raises `SparklogError` if the statement cannot be run, `StorageError` if the cluster cannot be
    reached, or if a table that the statement names has no rows of the time that is asked for.
    """
    tables = _Tables(cluster, as_of)
    missing: list[str] = []
    # An unknown table must be an error, and not be searched among this program's variables.
    with duckdb.connect(config={"python_enable_replacements": False}) as connection:
        for name, table in tables.by_name.items():
            connection.register(name, table)
        for macro in SPARKS_FUNCTIONS:
            connection.execute(f"create macro {macro}")
        for name, text in SQL_VIEWS.items():
            connection.execute(f"create view {name} as {_ending(text, as_of)}")
        try:
            statements = connection.extract_statements(statement)
            if len(statements) != 1 or statements[0].type not in _READING:
                raise SparklogError("only one SELECT statement is run: give one, and nothing else")
            rows = connection.sql(statement).to_arrow_table()
        except duckdb.Error as error:
            for name, table in tables.by_name.items():
                if isinstance(table.failure, NoVersionError) and as_of is not None:
                    refused = _PastReach(tables, as_of, statement).of_cluster(name, table.failure)
                    raise StorageError(refused) from None
                if table.failure is not None:
                    raise table.failure from None
            raise _refusal(error, [*tables.by_name, *SQL_VIEWS]) from None
    if as_of is not None and tables.later:
        missing = _PastReach(tables, as_of, statement).missing()
    return QueryResult(rows, [*tables.left_out.values(), *missing])


def _named_in(statement: str) -> set[str]:
    """Return the tables and views that a statement names itself, in small letters."""
    # Without the views DuckDB does not replace their names by those of their tables.
    with duckdb.connect() as connection:
        for macro in SPARKS_FUNCTIONS:
            connection.execute(f"create macro {macro}")
        try:
            return {name.lower() for name in connection.get_table_names(statement)}
        except duckdb.Error:
            return set()


def _refusal(error: duckdb.Error, names: list[str]) -> SparklogError:
    unknown = re.search(r"Table with name (.+?) does not exist", str(error))
    if unknown is None:
        # The rest of the message lists functions, and shows the statement on several lines.
        sentence = re.split(r"\n\nLINE |\n\tCandidate functions:", str(error), maxsplit=1)[0]
        hint = _TIMES_ARE_NUMBERS if _TAKES_MS_FOR_A_TIME.search(sentence) else ""
        return SparklogError(f"the statement cannot be run: {sentence}{hint}")
    name = unknown[1].strip('"')
    if name.lower() in ("records", "log"):
        return SparklogError(
            "records are read with Spark: see the view `records` of sparklog.cluster.views, or "
            "query `batches`"
        )
    return SparklogError(f"there is no table {name!r}; the tables are: {', '.join(sorted(names))}")


def _ending(view: str, as_of: AsOf | None) -> str:
    """Return the text of a view, whose lags in seconds end at the time that is asked for."""
    now = "unix_millis(current_timestamp)"
    return view if as_of is None else view.replace(now, str(as_of.time_ms))


class _LazyTable:
    """A table that is loaded when a statement reads it: DuckDB requests Arrow's C stream then."""

    def __init__(self, columns: pa.Schema, load: Callable[[], pa.Table]) -> None:
        self._columns = columns
        self._load = load
        self._rows: pa.Table | None = None
        self.failure: SparklogError | None = None
        """The error of loading the table; DuckDB keeps only the text of an exception."""

    def __arrow_c_schema__(self) -> Any:
        return self._columns.__arrow_c_schema__()

    def rows(self) -> pa.Table:
        """Return the rows, which are loaded once."""
        if self._rows is None:
            self._rows = self._load()
        return self._rows

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        try:
            rows = self.rows()
        except SparklogError as error:
            self.failure = error
            raise
        return rows.__arrow_c_stream__(requested_schema)


class _Tables:
    """The tables of a cluster, by their names in statements."""

    def __init__(self, cluster: Cluster, as_of: AsOf | None) -> None:
        self._as_of = as_of
        self._cluster = cluster
        self._connection = cluster.connect()
        self.left_out: dict[str, str] = {}
        """The reason why a broker root was left out, by its URI."""
        self.later: dict[str, dict[tuple[int, str], int]] = {}
        """Of each table the broker roots without rows of the time, and that of their first rows."""
        self.found: set[str] = set()
        """The tables that could be read from at least one broker root."""
        self.by_name: dict[str, _LazyTable] = {
            schema.name: _LazyTable(schema.columns, partial(self._cluster_table, schema))
            for schema in CLUSTER_TABLES
        }
        for name, past in CLUSTER_PAST.items():
            self.by_name[name] = _LazyTable(past.columns, partial(self._cluster_past, past.read))
        readers: dict[str, Callable[[Location], pa.Table]] = {
            schema.name: partial(_read_table, schema, as_of=as_of) for schema in BROKER_TABLES
        }
        readers |= {name: partial(self._past, past.read) for name, past in BROKER_PAST.items()}
        readers[HIGH_WATERMARK_CHECKPOINT.name] = lambda root: Journal(root).row_table()
        readers[LEADER_EPOCH_CHECKPOINT.name] = lambda root: Journal(root).epoch_table()
        readers[DELAYED_OPERATIONS.name] = _read_operations
        readers[PRODUCE_REQUESTS.name] = read_requests
        readers["batches"] = _read_batches
        if as_of is not None:
            readers[HIGH_WATERMARK_CHECKPOINT.name] = partial(states_as_of, time_ms=as_of.time_ms)
            readers["batches"] = partial(_read_batches_as_of, as_of=as_of)
        for name, columns in BROKER_VIEWS.items():
            load = partial(self._broker_table, name, columns, readers[name])
            if as_of is not None and name in _WITHOUT_A_PAST:
                load = partial(_refuse_as_of, name)
            self.by_name[name] = _LazyTable(columns, load)

    def _cluster_table(self, schema: TableSchema) -> pa.Table:
        location = self._connection.root.location
        with reaching(location.uri):
            return _read_table(schema, location, as_of=self._as_of)

    def _cluster_past(self, read: Callable[[Location], pa.Table]) -> pa.Table:
        location = self._connection.root.location
        with reaching(location.uri):
            return self._past(read, location)

    def _past(self, read: Callable[[Location], pa.Table], root: Location) -> pa.Table:
        """Read a table of the past; as of a time it ends there."""
        rows = read(root)
        if self._as_of is None:
            return rows
        began = "at_ms" if "at_ms" in rows.column_names else "since_ms"
        return rows.filter(pc.less_equal(rows[began], self._as_of.time_ms))

    def _broker_table(
        self, name: str, columns: pa.Schema, read: Callable[[Location], pa.Table]
    ) -> pa.Table:
        """Read one table of all broker roots in parallel, and prepend the column `broker_id`."""
        with reaching(self._cluster.root):
            brokers = self._connection.metadata().brokers.values()
        roots = [
            (one.broker_id, self._cluster.location(uri))
            for one in brokers
            for uri in one.online_roots.values()
        ]
        # Whole tables are opened and read, which takes long on a local file system as well.
        parts = map_in_parallel(
            lambda root: self._part(name, columns, read, *root), roots, 0, is_local=False
        )
        found = [part for part in parts if part is not None]
        if found:
            self.found.add(name)
        return pa.concat_tables(found) if found else columns.empty_table()

    def _part(
        self,
        name: str,
        columns: pa.Schema,
        read: Callable[[Location], pa.Table],
        broker_id: int,
        root: Location,
    ) -> pa.Table | None:
        try:
            with reaching(root.uri):
                rows = read(root)
        except NoVersionError as error:
            self.later.setdefault(name, {})[broker_id, root.uri] = error.earliest_ms
            return None
        except StorageError as error:
            reason = " ".join(str(error).split())
            self.left_out[root.uri] = (
                f"broker {broker_id} is left out, its root cannot be read: {reason}"
            )
            return None
        of_broker = pa.repeat(pa.scalar(broker_id, columns.field(0).type), rows.num_rows)
        return pa.table([of_broker, *rows.columns], schema=columns)


class _PastReach:
    """Sentences about tables without rows of the time that is asked for."""

    def __init__(self, tables: _Tables, as_of: AsOf, statement: str) -> None:
        self._tables = tables
        self._as_of = as_of
        self._named = _named_in(statement)

    def missing(self) -> list[str]:
        """Return a sentence for each table that has no rows of the time, or not of all brokers.

        Raises `StorageError` if that is a table that the statement names, and no broker has rows.
        """
        return [self._of_brokers(*one) for one in [*self._tables.later.items()]]

    def of_cluster(self, name: str, error: NoVersionError) -> str:
        """Return the sentence of a table of the cluster root."""
        reason = "did not exist yet at" if error.is_created_later else "no longer has its rows of"
        return (
            f"the table at {error.uri} {reason} {self._time(self._as_of.time_ms)}: "
            f"{self._earliest(name, error.earliest_ms)}"
        )

    def _of_brokers(self, name: str, later: Mapping[tuple[int, str], int]) -> str:
        text = f"{name} has no rows of {self._time(self._as_of.time_ms)}"
        if name in self._tables.found:
            roots = (
                f"{uri} of broker {broker_id}, whose first are of {self._time(first_ms)}"
                for (broker_id, uri), first_ms in sorted(later.items())
            )
            text = f"{text} in {'; in '.join(roots)}{self._further(name)}"
        else:
            text = f"{text}: {self._earliest(name, min(later.values()))}"
            if name in self._named:
                raise StorageError(text)
        if name in _EMPTY_WITHOUT and name not in self._named:
            text = f"{text}; without them {_EMPTY_WITHOUT[name]}"
        return text

    def _earliest(self, name: str, earliest_ms: int) -> str:
        earliest = self._time(earliest_ms)
        return f"the earliest time that can be asked for is {earliest}{self._further(name)}"

    def _further(self, name: str) -> str:
        """Return a clause with the table that has rows of the time, if there is one."""
        further, needed = _FURTHER_BACK.get(name, ("", ""))
        if not further or (further != needed and name in self._named):
            return ""
        try:
            is_there = self._tables.by_name[needed].rows().num_rows > 0
        except SparklogError:
            return ""
        return f"; {further} reaches back further" if is_there else ""

    def _time(self, time_ms: int) -> str:
        return time_text(time_ms, utc=self._as_of.utc)


def _read_table(schema: TableSchema, root: Location, *, as_of: AsOf | None) -> pa.Table:
    if as_of is None:
        return ControlTable(root, schema).rows()
    return rows_as_of(root, schema, as_of.time_ms)


def _refuse_as_of(name: str) -> pa.Table:
    raise SparklogError(
        f"{name} has no past: leave it out of a query with --as-of; high_watermark_checkpoint, "
        "replica_history, truncations and elections have one"
    )


def _read_operations(root: Location) -> pa.Table:
    return Journal(root, with_operations=True).operation_table()


def _read_batches_as_of(root: Location, as_of: AsOf) -> pa.Table:
    """Return the batch index of a log as it was; its versions are kept for an hour at least."""
    return _read_batches(root, version_as_of(root.child(LOG.name), as_of.time_ms))


def _read_batches(root: Location, version: int | None = None) -> pa.Table:
    """Return the batch index of a whole log, with each batch's next offset."""
    log = RecordLog(root)
    if version is not None:
        log.refresh(version)
    index = index_table(batch for key in log.partitions() for batch in log.batches(key))
    last_offset = pc.add(index["base_offset"], index["last_offset_delta"])
    return index.append_column("next_offset", pc.add(last_offset, 1))
