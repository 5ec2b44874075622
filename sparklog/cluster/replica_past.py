"""The past of the replicas of a broker root, in the form of its table `replica_history`.

The commits of a journal are cleaned up after an hour. Before that, the root's owner copies them to
`replica_history`, at a grain that becomes coarser with age. Readers of the past add the commits
since then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparklog.cluster.root_format import read_format
from sparklog.errors import DamagedError
from sparklog.model import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG,
    REPLICA_HISTORY,
)
from sparklog.storage.commits import LOG_VERSION, Commit, read_commit
from sparklog.storage.control_table import ControlTable
from sparklog.storage.delta_log_files import has_version
from sparklog.storage.journal import answers_in, rows_in
from sparklog.storage.location import Location
from sparklog.storage.parallel import map_in_parallel
from sparklog.storage.table_history import NoVersionError

GRAIN_MS = 60_000
"""The grain of the newest rows in ms: a replica's last state in each such time is kept."""

COARSER_GRAINS_MS = {6 * 3_600_000: 600_000, 48 * 3_600_000: 3_600_000}
"""The grains in ms of rows that are older than an age in ms."""

MOST_ROWS = 1_000_000
"""The number of rows that `replica_history` keeps, the newest ones."""

_REPLICA = ("topic_id", "partition")
_STATE = ("role", "leader_epoch", "log_start_offset", "log_end_offset", "high_watermark")


def replica_past(root: Location) -> pa.Table:
    """Return the rows of `replica_history` with those that only the journal has, by version."""
    rows, covered = _stored(root)
    newer = rows_of(journal_commits(root, covered + 1), _topics(root))
    return coarser(pa.concat_tables([rows, newer]), None)


def states_as_of(root: Location, time_ms: int) -> pa.Table:
    """Return the rows of `high_watermark_checkpoint` as of a time, in ms since 1970.

    They are exact as far as the journal's commits are kept, and older ones as coarse as
    `replica_history`: a replica's last row that is not younger. Columns that the history does not
    have are null.

    Raises `NoVersionError` if the earliest row that is kept is younger.
    """
    rows, _ = _stored(root)
    commits = [*journal_commits(root, 0)]
    earlier = (one for one in commits if (one.made_at_ms or 0) <= time_ms)
    both = pa.concat_tables([rows, rows_of(earlier, {})])
    states = _states(both.filter(pc.less_equal(both["at_ms"], time_ms)))
    if not states.num_rows:
        kept_ms = _states(pa.concat_tables([rows, rows_of(commits, {})]))["at_ms"]
        if len(kept_ms):
            uri = root.child(HIGH_WATERMARK_CHECKPOINT.name).uri
            raise NoVersionError(uri, pc.min(kept_ms).as_py(), is_created_later=False)
    last = _grouped(states, list(_REPLICA))
    columns = {
        "log_version": last["version"],
        "reported_at_ms": last["at_ms"],
        **{name: last[name] for name in ("topic_id", "topic", "partition", *_STATE)},
    }
    schema = HIGH_WATERMARK_CHECKPOINT.columns
    return pa.table(
        [
            columns.get(field.name, pa.nulls(last.num_rows, field.type)).cast(field.type)
            for field in schema
        ],
        schema=schema,
    )


def journal_commits(root: Location, first: int, last: int | None = None) -> Iterator[Commit]:
    """Yield the commits of a journal from `first` to `last` that exist and can be read."""
    log = root.child(LOG.name)
    names = (name for name in log.names("_delta_log") if name[20:] == ".json")
    found = sorted(int(name[:20]) for name in names if has_version(name))
    versions = [one for one in found if first <= one and (last is None or one <= last)]

    def read(version: int) -> Commit | None:
        try:
            return read_commit(log, version, lambda _: True)
        except DamagedError:
            return None

    commits = map_in_parallel(read, versions, 0, is_local=log.is_local)
    yield from (commit for commit in commits if commit is not None)


def rows_of(commits: Iterable[Commit], topics: dict[tuple[str, int], str]) -> pa.Table:
    """Return the rows of `replica_history` for commits of a journal, oldest first, by version.

    Parameters: `topics`, the names of the topics of partitions that are known, which is extended.
    """
    rows: dict[tuple[str, int, str | None, int], dict[str, Any]] = {}
    for commit in commits:
        at_ms = commit.made_at_ms or 0
        of_commit = {"at_ms": at_ms, "version": commit.version}
        for changed in rows_in(commit):
            replica = changed["topic_id"], changed["partition"]
            topics[replica] = changed["topic"]
            state = {name: changed.get(name) for name in ("topic", *_REPLICA, *_STATE)}
            minute = at_ms // GRAIN_MS
            rows[replica[0], replica[1], None, minute] = state | of_commit
        for answer in answers_in(commit, lambda _: None):
            if answer.error == "NONE":
                continue
            replica = answer.topic_id, answer.partition
            key = (*replica, answer.error, at_ms // GRAIN_MS)
            rows[key] = {
                "topic_id": answer.topic_id,
                "topic": topics.get(replica),
                "partition": answer.partition,
                "error": answer.error,
                "requests": rows[key]["requests"] + 1 if key in rows else 1,
                **of_commit,
            }
    return _by_version(REPLICA_HISTORY.rows(list(rows.values())))


def coarser(rows: pa.Table, now_ms: int | None) -> pa.Table:
    """Return rows by version, of a replica or an error one in each time of its age's grain.

    Parameters: `rows`, in any order; `now_ms`, the time in ms since 1970 from which ages are, or
    `None` to join only the rows of equal minutes.
    """
    at_ms = rows["at_ms"]
    grain = pa.chunked_array([pa.repeat(pa.scalar(GRAIN_MS, pa.int64()), rows.num_rows)])
    if now_ms is not None:
        for age_ms, grain_ms in COARSER_GRAINS_MS.items():
            grain = pc.if_else(pc.less(at_ms, now_ms - age_ms), grain_ms, grain)
    begins = pc.multiply(pc.divide(at_ms, grain), grain)
    marked = rows.append_column("begins_ms", begins).append_column("grain_ms", grain)
    grouped = _grouped(marked, [*_REPLICA, "error", "begins_ms", "grain_ms"])
    return _by_version(grouped.select(REPLICA_HISTORY.columns.names))


def kept(
    rows: pa.Table, now_ms: int, retention_ms: int, replicas: AbstractSet[tuple[str, int]]
) -> pa.Table:
    """Return those of the rows that are kept, with the grains of their ages, by version.

    Parameters: `replicas`, the topic ids and partitions of those that the root has. Rows older than
    the retention are removed, but for the last state of each of them.
    """
    rows = coarser(rows, now_ms)
    old = rows.filter(pc.less(rows["at_ms"], now_ms - retention_ms))
    rows = rows.filter(pc.greater_equal(rows["at_ms"], now_ms - retention_ms))
    if old.num_rows:
        last = _grouped(_states(old), list(_REPLICA))
        left = replicas - set(_replicas(_states(rows)))
        is_kept = pa.array([one in left for one in _replicas(last)], pa.bool_())
        rows = pa.concat_tables([_by_version(last.filter(is_kept)), rows])
    return rows.slice(max(0, rows.num_rows - MOST_ROWS))


def _stored(root: Location) -> tuple[pa.Table, int]:
    """Return the rows of the table, and the version of the journal up to which it is complete."""
    found = read_format(root)
    # A root that is older than the table does not have it.
    if found is None or REPLICA_HISTORY.name not in found.tables:
        return REPLICA_HISTORY.columns.empty_table(), -1
    table = ControlTable(root, REPLICA_HISTORY)
    return table.rows(), covered_by(table)


def covered_by(table: ControlTable) -> int:
    """Return the version of the journal up to which `replica_history` is complete, or -1."""
    covered = table.transaction(LOG_VERSION)
    return -1 if covered is None else covered


def _topics(root: Location) -> dict[tuple[str, int], str]:
    rows = ControlTable(root, HIGH_WATERMARK_CHECKPOINT).rows().to_pylist()
    return {(row["topic_id"], row["partition"]): row["topic"] for row in rows}


def _states(rows: pa.Table) -> pa.Table:
    """Return the rows without an error: those with the state of a replica."""
    return rows.filter(pc.is_null(rows["error"]))


def _replicas(rows: pa.Table) -> list[tuple[str, int]]:
    topic_ids, partitions = (rows[name].to_pylist() for name in _REPLICA)
    return list(zip(topic_ids, partitions, strict=True))


def _by_version(rows: pa.Table) -> pa.Table:
    order = [(name, "ascending") for name in ("version", *_REPLICA, "error")]
    return rows.sort_by(order)


def _grouped(rows: pa.Table, keys: list[str]) -> pa.Table:
    """Return of each group the row of the newest version, with the sum of its requests."""
    columns = REPLICA_HISTORY.columns
    aggregations = {name: ("sum" if name == "requests" else "last") for name in columns.names}
    options = {
        "last": pc.ScalarAggregateOptions(skip_nulls=False, min_count=0),
        "sum": pc.ScalarAggregateOptions(skip_nulls=True, min_count=1),
    }
    groups = pa.TableGroupBy(_by_version(rows), keys, use_threads=False)
    found = groups.aggregate(
        [(name, how, options[how]) for name, how in aggregations.items() if name not in keys]
    )
    names = [name if name in keys else f"{name}_{how}" for name, how in aggregations.items()]
    return found.select(names).rename_columns(columns.names).cast(columns)
