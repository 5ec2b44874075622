"""The past of partitions and of the controller, from the commits of their tables.

The commits of `partition_state` and `controller` are cleaned up after some time. Before that, the
active controller copies them to `partition_history` and `controller_history`. Readers of the past
add the commits since then.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.cluster.causes import CauseOfChange, causes_in
from sparklog.errors import DamagedError
from sparklog.logger import get_logger
from sparklog.model import (
    CONTROLLER,
    CONTROLLER_HISTORY,
    NOBODY,
    PARTITION_HISTORY,
    PARTITION_STATE,
    Row,
    TableSchema,
    TopicIdPartition,
)
from sparklog.storage.commits import Commit, read_commit, read_commits
from sparklog.storage.control_table import ControlTable
from sparklog.storage.delta_log_files import has_version
from sparklog.storage.location import Location

_log = get_logger(__name__)

MOST_CHANGES = 1_000_000
"""The number of changes that `partition_history` keeps, the newest ones."""

_Rows = list[dict[str, Any]]


class PastOfTable(NamedTuple):
    """A table `schema` with the past of the table `source`.

    `in_commits` returns the rows of the commits of the source from a version to another one, and
    whether all of these commits could be read; `now`, those of its current rows. Both receive the
    rows of the past that are known. `fill` sets columns that depend on earlier rows where they are
    null, as in rows of an earlier release.
    """

    schema: TableSchema
    source: TableSchema
    in_commits: Callable[[pa.Table, ControlTable, int, int], tuple[_Rows, bool]]
    now: Callable[[pa.Table, _Rows, Commit], _Rows]
    fill: Callable[[pa.Table], pa.Table] = lambda rows: rows


def further_rows(
    history: PastOfTable, rows: pa.Table, covered: int | None, source: ControlTable, now_ms: int
) -> pa.Table | None:
    """Return the `rows` of a table with those of the commits of `source` after `covered`.

    Parameters: `now_ms`, the time in ms since 1970 for changes whose commit is no longer known.
    Returns `None` if the source has no newer commit.
    """
    newest = source.version
    if covered is not None and covered >= newest:
        return None
    found, is_complete = history.in_commits(rows, source, (covered or 0) + 1, newest)
    both = pa.concat_tables([rows, history.schema.rows(found)])
    if not is_complete:
        _log.warning("history has a gap", table=history.schema.name, source=source.location.uri)
        current = history.now(both, source.rows().to_pylist(), Commit(newest, made_at_ms=now_ms))
        unexplained = [row | {"operation": None} for row in current]
        both = pa.concat_tables([both, history.schema.rows(unexplained)])
    return history.fill(both.slice(max(0, both.num_rows - MOST_CHANGES)))


def commits_between(source: ControlTable, first: int, last: int) -> Iterator[Commit]:
    """Yield the commits from `first` on that exist and can be read."""
    try:
        yield from read_commits(source.location, first, last)
    except DamagedError:
        for version in _versions(source.location, first, last):
            try:
                commit = read_commit(source.location, version, lambda _: True)
            except DamagedError:
                continue
            if commit is not None:
                yield commit


def _versions(table: Location, first: int, last: int) -> list[int]:
    """Return the versions from `first` to `last` whose commits exist."""
    names = table.names("_delta_log")
    found = (int(name[:20]) for name in names if name[20:] == ".json" and has_version(name))
    return sorted(version for version in found if first <= version <= last)


def rows_added_by(source: ControlTable, commit: Commit) -> _Rows | None:
    """Return the rows in the files that a commit has added; `None` if one has been removed."""
    try:
        return [row for file in commit.added for row in source.read_file(file.path).to_pylist()]
    except DamagedError:
        return None


# --- partitions ---------------------------------------------------------------------------------


class _Known(NamedTuple):
    """The last known change of a partition; `is_last`, whether no later one is missing."""

    partition_epoch: int
    leader: int | None
    leader_epoch: int
    isr: frozenset[int]
    elr: frozenset[int]
    is_last: bool = True


def _partition_changes(
    rows: pa.Table, source: ControlTable, first: int, last: int
) -> tuple[_Rows, bool]:
    known = _known_partitions(rows)
    found: _Rows = []
    seen = first - 1
    is_complete = True
    for commit in commits_between(source, first, last):
        if commit.version <= seen:
            continue
        stored = rows_added_by(source, commit)
        if commit.version != seen + 1 or stored is None:
            is_complete = False
            known = {key: one._replace(is_last=False) for key, one in known.items()}
        seen = commit.version
        found += _changes(known, stored or [], commit)
    return found, is_complete and seen == last


def _known_partitions(rows: pa.Table) -> dict[TopicIdPartition, _Known]:
    known: dict[TopicIdPartition, _Known] = {}
    columns = ("topic_id", "partition", *_Known._fields[:-1])
    for topic_id, partition, *values in zip(
        *(rows[name].to_pylist() for name in columns), strict=True
    ):
        epoch, leader, leader_epoch, isr, elr = values
        key = TopicIdPartition(topic_id, partition)
        if key not in known or known[key].partition_epoch < epoch:
            ids = frozenset(json.loads(isr)), frozenset(json.loads(elr))
            known[key] = _Known(epoch, leader, leader_epoch, *ids)
    return known


def _changes(
    known: dict[TopicIdPartition, _Known], stored: Iterable[Row], commit: Commit
) -> Iterator[dict[str, Any]]:
    """Yield a row for each partition epoch that is newer than the known one, which it replaces."""
    of_partitions: dict[TopicIdPartition, list[Row]] = defaultdict(list)
    for row in stored:
        key = TopicIdPartition(row["topic_id"], row["partition"])
        if key not in known or row["partition_epoch"] > known[key].partition_epoch:
            of_partitions[key].append(row)
    causes = causes_in(commit.cause) if of_partitions else {}
    for key, rows in sorted(of_partitions.items()):
        rows.sort(key=lambda row: (row["replica_index"], row["broker_id"]))
        first = rows[0]
        name = f"{first['topic']}-{key.partition}"
        yield _change(key, rows, known.get(key), commit, causes.get(name) or causes[""])
        known[key] = _known_of(rows)


def _known_of(rows: list[Row]) -> _Known:
    first = rows[0]
    return _Known(
        first["partition_epoch"],
        first["leader"],
        first["leader_epoch"],
        frozenset(row["broker_id"] for row in rows if row["in_isr"]),
        frozenset(row["broker_id"] for row in rows if row["in_elr"]),
    )


def _change(
    key: TopicIdPartition,
    rows: list[Row],
    before: _Known | None,
    commit: Commit,
    cause: CauseOfChange,
) -> dict[str, Any]:
    first, now = rows[0], _known_of(rows)
    # The first change of a new partition has the first partition epoch.
    is_new = before is None and now.partition_epoch == 0
    is_known = before is not None and before.is_last
    isr_before = before.isr if before is not None else frozenset()
    eligible = isr_before | (before.elr if before is not None else frozenset())
    is_elected = is_new or before is None or now.leader_epoch > before.leader_epoch
    is_unclean = is_elected and not is_new and now.leader is not None and now.leader not in eligible
    return {
        **key._asdict(),
        "topic": first["topic"],
        "partition_epoch": now.partition_epoch,
        "at_ms": commit.made_at_ms,
        "version": commit.version,
        **cause._asdict(),
        "leader": now.leader,
        "leader_before": before.leader if before is not None else None,
        "leader_epoch": now.leader_epoch,
        "leader_broker_epoch": first["leader_broker_epoch"],
        "controller_epoch": first["controller_epoch"],
        "is_elected": is_elected,
        "is_unclean": is_unclean if is_known or is_new else None,
        "replicas": json.dumps([row["broker_id"] for row in rows]),
        "isr": json.dumps(sorted(now.isr)),
        "elr": json.dumps(sorted(now.elr)),
        "joined_isr": json.dumps(sorted(now.isr - isr_before)) if is_known or is_new else None,
        "left_isr": json.dumps(sorted(isr_before - now.isr)) if is_known or is_new else None,
    }


def _partitions_now(rows: pa.Table, stored: _Rows, commit: Commit) -> _Rows:
    known = {key: one._replace(is_last=False) for key, one in _known_partitions(rows).items()}
    return list(_changes(known, stored, commit))


# --- the controller -----------------------------------------------------------------------------


def _controller_changes(
    rows: pa.Table, source: ControlTable, first: int, last: int
) -> tuple[_Rows, bool]:
    known = _last_lease(rows)
    found: _Rows = []
    seen = first - 1
    is_complete = True
    for commit in commits_between(source, first, last):
        if commit.version <= seen:
            continue
        stored = rows_added_by(source, commit)
        is_complete &= commit.version == seen + 1 and stored is not None
        seen = commit.version
        for row in _leases(known, stored or [], commit):
            found.append(row)
            known = row["controller_epoch"], row["broker_id"]
    return found, is_complete and seen == last


def _last_lease(rows: pa.Table) -> tuple[int, int] | None:
    if not rows.num_rows:
        return None
    last = rows.slice(rows.num_rows - 1).to_pylist()[0]
    return last["controller_epoch"], last["broker_id"]


def _leases(known: tuple[int, int] | None, stored: Iterable[Row], commit: Commit) -> _Rows:
    return [
        {
            "controller_epoch": row["controller_epoch"],
            "broker_id": row["broker_id"],
            "at_ms": commit.made_at_ms,
            "version": commit.version,
            "operation": commit.cause.operation,
            "cause": commit.cause.parameters.get("cause"),
            "detail": commit.cause.parameters.get("detail"),
        }
        for row in stored
        if (row["controller_epoch"], row["broker_id"]) != known
    ]


def _controller_now(rows: pa.Table, stored: _Rows, commit: Commit) -> _Rows:
    return _leases(_last_lease(rows), stored, commit)


def _with_controllers_before(rows: pa.Table) -> pa.Table:
    """Return the rows with the last controller before each, where that is null."""
    before: list[int | None] = []
    last: int | None = None
    for broker_id, known in zip(
        rows["broker_id"].to_pylist(), rows["broker_before"].to_pylist(), strict=True
    ):
        before.append(last if known is None else known)
        last = before[-1] if broker_id == NOBODY else broker_id
    number = rows.schema.get_field_index("broker_before")
    return rows.set_column(number, rows.field(number), pa.array(before, rows.field(number).type))


OF_PARTITIONS = PastOfTable(PARTITION_HISTORY, PARTITION_STATE, _partition_changes, _partitions_now)
OF_CONTROLLER = PastOfTable(
    CONTROLLER_HISTORY,
    CONTROLLER,
    _controller_changes,
    _controller_now,
    _with_controllers_before,
)
