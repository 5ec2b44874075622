"""The last hours of a cluster, followed beside its status: a further reading reads what is new.

Load only: which incidents there were is decided by those who show them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sparklog.cluster.partition_changes import OF_CONTROLLER
from sparklog.maintenance.followed_past import FollowedPast
from sparklog.maintenance.status_reader import StatusReader
from sparklog.model import TopicIdPartition
from sparklog.storage.journal_tail import DatedCommit

GRAIN_MS = 10_000
"""The grain of positions in ms: the last one of a replica in each such time is kept."""

_Row = dict[str, Any]


class PastPosition(NamedTuple):
    """The log end offset of a replica at a time in ms since 1970."""

    at_ms: int
    broker_id: int
    leads: bool
    leader_epoch: int
    log_end_offset: int


class PastRows(NamedTuple):
    """The past between two times in ms since 1970.

    `changes` are rows of `partition_history` in the order of changes, `changes_before` the last one
    of each partition before `since_ms`. `truncations` are rows of `truncations` with `broker_id`,
    `controllers` those of `controller_history`. `positions` are those of the replicas of each
    partition, in the order of times.
    """

    since_ms: int
    until_ms: int
    changes: list[_Row]
    changes_before: list[_Row]
    truncations: list[_Row]
    controllers: list[_Row]
    positions: Mapping[TopicIdPartition, list[PastPosition]]


class ClusterPast:
    """Reads the past of the cluster of a `StatusReader`.

    Parameters: `hours`, the time before now that is kept.
    """

    def __init__(self, reader: StatusReader, hours: float) -> None:
        self._reader = reader
        self._kept_ms = round(hours * 3_600_000)
        self._controllers = FollowedPast(OF_CONTROLLER, ())
        self._leases: list[_Row] = []
        self._changes: list[_Row] = []
        self._before: dict[TopicIdPartition, _Row] = {}
        self._journals: dict[str, object] = {}
        self._positions: dict[tuple[TopicIdPartition, int, int], PastPosition] = {}

    def read(self, now_ms: int) -> PastRows:
        """Return the past until `now_ms`; call it after each `StatusReader.read`, once.

        Raises `StorageError` or `OSError` if the cluster root cannot be read.
        """
        since_ms = now_ms - self._kept_ms
        self._follow_changes(self._reader.new_changes, since_ms)
        root = self._reader.connection.root
        self._leases += self._controllers.new_rows(
            root.location, root.controller, now_ms
        ).to_pylist()
        self._leases = [row for row in self._leases if row["at_ms"] > since_ms]
        self._follow_positions(since_ms)
        positions: dict[TopicIdPartition, list[PastPosition]] = {}
        for (key, _, _), one in self._positions.items():
            positions.setdefault(key, []).append(one)
        return PastRows(
            since_ms,
            now_ms,
            self._changes,
            list(self._before.values()),
            [
                {**row, "broker_id": one.broker_id}
                for one in self._reader.roots
                if one.tail is not None
                for row in one.tail.truncations
                if row["at_ms"] > since_ms
            ],
            self._leases,
            {key: sorted(found) for key, found in positions.items()},
        )

    def _follow_changes(self, new: pa.Table, since_ms: int) -> None:
        # Only the newest row of each partition and those of the last hours are converted.
        is_recent = pc.greater(new["at_ms"], since_ms)
        names = ["topic_id", "partition"]
        earlier = new.filter(pc.invert(is_recent))
        keys = zip(*(earlier[name].to_pylist() for name in names), strict=True)
        last = sorted({key: index for index, key in enumerate(keys)}.values())
        self._put_before(earlier.take(pa.array(last, pa.int64())).to_pylist())
        self._changes += new.filter(is_recent).to_pylist()
        self._put_before(row for row in self._changes if row["at_ms"] <= since_ms)
        self._changes = [row for row in self._changes if row["at_ms"] > since_ms]

    def _put_before(self, rows: Iterable[_Row]) -> None:
        for row in rows:
            self._before[TopicIdPartition(row["topic_id"], row["partition"])] = row

    def _follow_positions(self, since_ms: int) -> None:
        for one in self._reader.roots:
            if one.tail is None:
                continue
            is_known = self._journals.get(one.uri) is one.tail
            self._journals[one.uri] = one.tail
            commits = one.new if is_known else one.tail.earlier(since_ms)
            self._add_positions(one.broker_id, commits)
        self._positions = {
            of: position for of, position in self._positions.items() if position.at_ms > since_ms
        }

    def _add_positions(self, broker_id: int, commits: Iterable[DatedCommit]) -> None:
        for one in commits:
            for key, row in one.changes.rows.items():
                self._positions[key, broker_id, one.made_at_ms // GRAIN_MS] = PastPosition(
                    one.made_at_ms,
                    broker_id,
                    row["role"] == "leader",
                    row["leader_epoch"],
                    row["log_end_offset"],
                )
