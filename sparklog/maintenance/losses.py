"""Past losses: unclean elections, and the committed records that replicas have lost by them.

An unclean election makes the log of a replica that lacks records the truth. The records are lost at
that time; a replica that has them shows how many, by its truncation, once it follows.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from sparklog.model import TopicIdPartition

_Row = Mapping[str, Any]

Outcome = Literal["lost", "pending", "none", "uncommitted", "unknown"]
"""The outcome of an unclean election for the committed records.

lost
    A replica has removed some.
pending
    A replica that was in the ISR before has not been in sync since: it may have some.
none
    All of them have been in sync since, and have removed nothing: no record was lost.
uncommitted
    As `none`, but they have removed records that they did not know as committed.
unknown
    The log of one of them may not be the one of then, or the ISR before is not known.
"""


class Loss(NamedTuple):
    """An unclean election of a partition, and the records that are lost by it.

    `at_ms` is the time of the election in ms since 1970, or that of the first truncation if the
    election is no longer known. `leader` is the broker whose log became the truth, `leader_epoch`
    its epoch. `records` is the number of committed records that are known to be lost: the most that
    a replica has removed. `brokers` are the ones that have removed some. `isr_before` are the
    brokers in the ISR before the election, of which each had all committed records. `removed` is
    the most records that one of these has removed before it was in sync again.
    """

    at_ms: int
    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    is_unclean_election_known: bool
    records: int
    brokers: tuple[int, ...]
    isr_before: tuple[int, ...] = ()
    removed: int = 0
    outcome: Outcome = "pending"

    @property
    def name(self) -> str:
        """The topic and the number, as in Kafka's tools."""
        return f"{self.topic}-{self.partition}"


HasKeptLog = Callable[[TopicIdPartition, int, int], bool]
"""Whether a broker still has the log of a replica that it had at a time in ms since 1970."""


class LossReader:
    """Collects losses from rows of `partition_history`, in their order, and of `truncations`.

    Truncations are assigned to the newest unclean election up to their leader epoch, since a
    replica may return only after further elections.
    """

    def __init__(self) -> None:
        self._elections: dict[TopicIdPartition, dict[int, _Row]] = defaultdict(dict)
        self._truncations: dict[TopicIdPartition, dict[tuple[int, int], _Row]] = defaultdict(dict)
        self._returns: dict[TopicIdPartition, dict[int, dict[int, int | None]]] = defaultdict(dict)
        """By partition, epoch of the election and broker: the leader epoch in which the replica was
        first in sync after the election, `None` if it was removed before.
        """

    def add_elections(self, rows: Iterable[_Row]) -> None:
        """Add rows of `partition_history`; those that are no unclean elections are ignored."""
        for row in rows:
            if row["is_unclean"]:
                self._elections[_key(row)][row["leader_epoch"]] = row

    @property
    def topic_ids(self) -> list[str]:
        """The ids of the topics with an unclean election, whose changes show its outcome."""
        return sorted({key.topic_id for key in self._elections})

    def add_changes(self, rows: Iterable[_Row]) -> None:
        """Add rows of `partition_history` from the first unclean election of a partition on."""
        for row in rows:
            of_partition = self._elections.get(_key(row), {})
            for epoch, election in of_partition.items():
                if row["partition_epoch"] <= election["partition_epoch"]:
                    continue
                returned = self._returns[_key(row)].setdefault(epoch, {})
                in_sync, assigned = json.loads(row["isr"]), json.loads(row["replicas"])
                for broker_id in _isr_before(election):
                    if broker_id in in_sync:
                        returned.setdefault(broker_id, row["leader_epoch"])
                    elif broker_id not in assigned:
                        returned.setdefault(broker_id, None)

    def add_truncations(self, broker_id: int, rows: Iterable[_Row]) -> None:
        """Add rows of `truncations` of a broker; those that removed no record are ignored."""
        for row in rows:
            if row["records_lost"] or row["records_removed"]:
                self._truncations[_key(row)][broker_id, row["version"]] = row

    def losses(self, has_kept_log: HasKeptLog) -> tuple[Loss, ...]:
        """Return the losses, the newest first."""
        found: list[Loss] = []
        for key in self._elections.keys() | self._truncations.keys():
            found += self._of_partition(key, has_kept_log)
        return tuple(sorted(found, reverse=True))

    def _of_partition(self, key: TopicIdPartition, has_kept_log: HasKeptLog) -> Iterable[Loss]:
        elections = self._elections.get(key, {})
        removed: dict[int, dict[tuple[int, int], _Row]] = defaultdict(dict)
        for of, row in self._truncations.get(key, {}).items():
            earlier = [epoch for epoch in elections if epoch <= row["leader_epoch"]]
            removed[max(earlier, default=row["leader_epoch"])][of] = row
        for epoch in elections.keys() | removed.keys():
            rows = {of: row for of, row in removed.get(epoch, {}).items() if row["records_lost"]}
            if not rows and epoch not in elections:
                continue
            first = elections.get(epoch) or min(rows.values(), key=lambda row: row["at_ms"])
            loss = Loss(
                first["at_ms"],
                first["topic"],
                first["partition"],
                first["leader"],
                epoch,
                epoch in elections,
                max((row["records_lost"] for row in rows.values()), default=0),
                tuple(sorted({broker_id for broker_id, _ in rows})),
            )
            yield loss._replace(outcome="lost") if rows else self._judged(key, loss, has_kept_log)

    def _judged(self, key: TopicIdPartition, loss: Loss, has_kept_log: HasKeptLog) -> Loss:
        """Return a loss of no known record with its outcome."""
        isr_before = _isr_before(self._elections[key][loss.leader_epoch])
        returned = self._returns[key].get(loss.leader_epoch, {})
        if any(broker_id not in returned for broker_id in isr_before):
            return loss._replace(isr_before=isr_before, outcome="pending")
        is_known = isr_before and all(
            returned[broker_id] is not None and has_kept_log(key, broker_id, loss.at_ms)
            for broker_id in isr_before
        )
        if not is_known:
            return loss._replace(isr_before=isr_before, outcome="unknown")
        removed = max(
            (
                row["records_removed"]
                for (broker_id, _), row in self._truncations.get(key, {}).items()
                if loss.leader_epoch <= row["leader_epoch"] <= (returned.get(broker_id) or -1)
            ),
            default=0,
        )
        outcome: Outcome = "uncommitted" if removed else "none"
        return loss._replace(isr_before=isr_before, removed=removed, outcome=outcome)


def _isr_before(election: _Row) -> tuple[int, ...]:
    """Return the brokers of the ISR before an election; none if it is not known."""
    names = ("isr", "joined_isr", "left_isr")
    now, joined, left = (set(json.loads(election[name] or "null") or ()) for name in names)
    return tuple(sorted((now - joined) | left)) if election["left_isr"] is not None else ()


def _key(row: _Row) -> TopicIdPartition:
    return TopicIdPartition(row["topic_id"], row["partition"])
