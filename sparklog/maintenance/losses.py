"""Past losses: unclean elections, and the committed records that replicas have lost by them.

An unclean election makes the log of a replica that lacks records the truth. The records are lost at
that time; a replica that has them shows how many, by its truncation, once it follows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sparklog.model import TopicIdPartition

_Row = Mapping[str, Any]


class Loss(NamedTuple):
    """An unclean election of a partition, and the records that are lost by it.

    `at_ms` is the time of the election in ms since 1970, or that of the first truncation if the
    election is no longer known. `leader` is the broker whose log became the truth, `leader_epoch`
    its epoch. `records` is the number of committed records that are known to be lost: the most that
    a replica has removed. `brokers` are the ones that have removed some.
    """

    at_ms: int
    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    is_unclean_election_known: bool
    records: int
    brokers: tuple[int, ...]

    @property
    def name(self) -> str:
        """The topic and the number, as in Kafka's tools."""
        return f"{self.topic}-{self.partition}"


class LossReader:
    """Collects losses from rows of `partition_history` and `truncations`, in any order.

    Truncations are assigned to the newest unclean election up to their leader epoch, since a
    replica may return only after further elections.
    """

    def __init__(self) -> None:
        self._elections: dict[TopicIdPartition, dict[int, _Row]] = defaultdict(dict)
        self._truncations: dict[TopicIdPartition, dict[tuple[int, int], _Row]] = defaultdict(dict)

    def add_elections(self, rows: Iterable[_Row]) -> None:
        """Add rows of `partition_history`; those that are no unclean elections are ignored."""
        for row in rows:
            if row["is_unclean"]:
                self._elections[_key(row)][row["leader_epoch"]] = row

    def add_truncations(self, broker_id: int, rows: Iterable[_Row]) -> None:
        """Add rows of `truncations` of a broker; those that lost no record are ignored."""
        for row in rows:
            if row["records_lost"]:
                self._truncations[_key(row)][broker_id, row["version"]] = row

    def losses(self) -> tuple[Loss, ...]:
        """Return the losses, the newest first."""
        found: list[Loss] = []
        for key in self._elections.keys() | self._truncations.keys():
            found += self._of_partition(key)
        return tuple(sorted(found, reverse=True))

    def _of_partition(self, key: TopicIdPartition) -> Iterable[Loss]:
        elections = self._elections.get(key, {})
        removed: dict[int, dict[tuple[int, int], _Row]] = defaultdict(dict)
        for of, row in self._truncations.get(key, {}).items():
            earlier = [epoch for epoch in elections if epoch <= row["leader_epoch"]]
            removed[max(earlier, default=row["leader_epoch"])][of] = row
        for epoch in elections.keys() | removed.keys():
            rows = removed.get(epoch, {})
            first = elections.get(epoch) or min(rows.values(), key=lambda row: row["at_ms"])
            yield Loss(
                first["at_ms"],
                first["topic"],
                first["partition"],
                first["leader"],
                epoch,
                epoch in elections,
                max((row["records_lost"] for row in rows.values()), default=0),
                tuple(sorted({broker_id for broker_id, _ in rows})),
            )


def _key(row: _Row) -> TopicIdPartition:
    return TopicIdPartition(row["topic_id"], row["partition"])
