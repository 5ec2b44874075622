"""The purgatory: operations that wait for an event at their partition (rules 4.1-4.4).

A delayed operation is watched under its partition and tried again when a `Trigger` fires there. The
steps in which it begins and ends commit this to the journal, so it survives its process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeAlias, TypeVar, get_type_hints

from sparklog.cluster.roots import BrokerRoot
from sparklog.logger import get_logger
from sparklog.model import DELAYED_OPERATIONS, Row, TopicIdPartition
from sparklog.protocol.produce.completed_operations import may_be_complete
from sparklog.protocol.produce.expired_operations import may_have_expired
from sparklog.protocol.rules import RowTuples, Rules

_log = get_logger(__name__)


class DelayedProduce(NamedTuple):
    """One partition of a produce request that waits until the high watermark has passed it.

    `leader_epoch` is that of the leader that began the operation. Together with the offset it
    identifies the last record, at `required_offset` - 1. `deadline_ms` is on the broker's clock.
    """

    operation_id: str
    request_id: str
    topic_id: str
    topic: str
    partition: int
    leader_epoch: int
    base_offset: int
    required_offset: int
    deadline_ms: int

    @property
    def last_offset(self) -> int:
        """The offset of the last record of the request in this partition."""
        return self.required_offset - 1


class ProduceProgress(NamedTuple):
    """The state of a partition on which a delayed produce request depends.

    The other values are `None` if the broker does not lead the partition, or if its log no longer
    has the records of the request. It leads no partition of a deleted topic.
    """

    is_leader: bool
    is_topic_deleted: bool = False
    high_watermark: int | None = None
    isr_size: int | None = None
    min_isr: int | None = None
    replica_count: int | None = None


class DelayedFetch(NamedTuple):
    """One partition of a follower's fetch that waits until there are `min_bytes` in all of them.

    `leader_epoch` is that of the leader, `base_offset` the follower's log end offset when the fetch
    began. `deadline_ms` is on the broker's clock.
    """

    operation_id: str
    request_id: str
    topic_id: str
    topic: str
    partition: int
    leader_epoch: int
    base_offset: int
    min_bytes: int
    deadline_ms: int


class FetchProgress(NamedTuple):
    """The state of a partition on which a delayed fetch depends."""

    is_leader: bool
    available_bytes: int


Operation: TypeAlias = "DelayedProduce | DelayedFetch"
"""A delayed operation."""

Kind: TypeAlias = "type[DelayedProduce | DelayedFetch]"

_Delayed = TypeVar("_Delayed", DelayedProduce, DelayedFetch)

_COMPLETED_BY: dict[Kind, str] = {
    DelayedProduce: "completed_operations",
    DelayedFetch: "completed_fetches",
}

_KINDS: dict[object, Kind] = {kind.__name__: kind for kind in _COMPLETED_BY}

_TYPES: dict[Kind, tuple[type, ...]] = {
    kind: tuple(get_type_hints(kind).values()) for kind in _COMPLETED_BY
}

_ROWS: dict[Kind, dict[str, Any]] = {
    kind: dict.fromkeys(DELAYED_OPERATIONS.columns.names)
    | {"kind": kind.__name__, "state": "pending"}
    for kind in _COMPLETED_BY
}
"""The row of each kind of operation before it has the operation's values."""


def to_row(operation: Operation) -> Row:
    """Return an operation as a row of `delayed_operations`, which is its form in the journal."""
    return {**_ROWS[type(operation)], **operation._asdict()}


def from_row(row: Row) -> Operation:
    """Return the operation in a row of `delayed_operations`.

    Raises `ValueError` if its kind is unknown, or if a value is missing or not valid. Columns that
    its kind does not have are ignored.
    """
    kind = _KINDS.get(row.get("kind"))
    if kind is None:
        raise ValueError(f"the kind {row.get('kind')!r} is unknown")
    values = tuple(map(row.get, kind._fields))
    if tuple(map(type, values)) != _TYPES[kind]:
        raise ValueError(f"a value is missing or has another type: {dict(row)}")
    operation: Operation = kind._make(values)
    if min(operation.partition, operation.leader_epoch, operation.base_offset) < 0:
        raise ValueError(f"its partition, leader epoch or offset is negative: {dict(row)}")
    if isinstance(operation, DelayedProduce) and operation.last_offset < operation.base_offset:
        raise ValueError(f"its offsets are not those of a batch: {dict(row)}")
    return operation


class Trigger(Enum):
    """Events that may complete delayed operations or advance the high watermark.

    The values are the numbers in rule 4.3. Its other triggers need no name: followers and consumers
    read the appends and changes of leaders themselves. No message is sent: a broker detects a
    trigger as a difference between two polls of the tables. So no trigger is lost, and a broker
    that was away detects it at its next poll.
    """

    HIGH_WATERMARK_MOVED = "A.1, B.1"
    """Concerns produce requests, and consumers' fetches, which read it in the leader's journal."""
    FOLLOWER_REPORTED = "B.2"
    """Concerns produce requests."""
    ISR_CHANGED = "C.1"
    """Concerns the high watermark."""


class Purgatory:
    """The delayed operations of one broker root. Each is completed once, or expires once.

    The changes of a step are staged until they are committed: see `staged`.
    """

    def __init__(self, root: BrokerRoot, rules: Rules) -> None:
        self._journal = root.log
        self._rules = rules
        self._operations: dict[str, Operation] = {}
        self._watched: dict[tuple[Kind, TopicIdPartition], set[str]] = defaultdict(set)
        self._staged: dict[str, Operation | None] = {}
        for operation_id in self._journal.operations:
            self._restore(operation_id)

    def staged(self) -> Mapping[str, Row | None]:
        """Return this step's changes: rows of new operations by id, and `None` for ended ones."""
        known = self._journal.operations
        return {
            of: None if one is None else to_row(one)
            for of, one in self._staged.items()
            if one is not None or of in known
        }

    def committed(self) -> None:
        """Note that the staged changes are committed."""
        self._staged.clear()

    def settle(self) -> None:
        """Discard the staged changes, and restore the delayed operations of the journal."""
        if not self._staged:
            return
        for of in self._staged:
            if of in self._operations:
                self._unwatch(of)
            if of in self._journal.operations:
                self._restore(of)
        self._staged.clear()

    def reload(self) -> None:
        """Reload the delayed operations from the journal, after it was read again."""
        for of in list(self._operations):
            self._unwatch(of)
        for of in self._journal.operations:
            self._restore(of)
        self._staged.clear()

    def _restore(self, operation_id: str) -> None:
        """Watch an operation of the journal.

        An invalid one, such as of a later release, is logged and stays in the journal. Its client
        sends the request again after its timeout.
        """
        try:
            operation = from_row(self._journal.operations[operation_id])
        except ValueError as error:
            _log.error(
                "delayed operation not valid",
                root=self._journal.location.uri,
                operation=operation_id,
                error=str(error),
            )
            return
        self._watch(operation)

    def waiting(self, kind: type[_Delayed]) -> list[_Delayed]:
        """Return the pending operations of a kind."""
        return [one for one in self._operations.values() if isinstance(one, kind)]

    def size(self, kind: Kind) -> int:
        """Return the number of pending operations of a kind; any thread may call it."""
        return sum(isinstance(one, kind) for one in list(self._operations.values()))

    def watched(self, kind: Kind) -> dict[TopicIdPartition, int]:
        """Return the partitions with pending operations of a kind, and the first deadline of each.

        Deadlines are in ms on the broker's own clock.
        """
        return {
            key: min(self._operations[one].deadline_ms for one in ids)
            for (of_kind, key), ids in self._watched.items()
            if of_kind is kind
        }

    def try_complete_else_watch(
        self, operations: Iterable[_Delayed], progress: Callable[[_Delayed], tuple[Any, ...]]
    ) -> list[tuple[_Delayed, str]]:
        """Try operations of one kind; watch the incomplete ones under their partitions.

        Parameters: `progress`, a function that returns the state on which an operation depends.

        An operation that is pending already, such as that of a retry, is pending once. Returns the
        complete operations, each with the name of its error. Later events at a partition are for
        `check_and_complete`, which the same tick calls after reading the followers' reports. That
        is the second attempt of rule 4.1, and no event can occur between watching and that attempt.
        """
        fresh = [one for one in operations if one.operation_id not in self._operations]
        complete = self._completed(fresh, progress)
        for operation in fresh:
            if operation.operation_id not in complete:
                self._staged[operation.operation_id] = operation
                self._watch(operation)
        return [(one, complete[one.operation_id]) for one in fresh if one.operation_id in complete]

    def check_and_complete(
        self,
        kind: type[_Delayed],
        keys: Iterable[TopicIdPartition],
        progress: Callable[[_Delayed], tuple[Any, ...]],
    ) -> list[tuple[_Delayed, str]]:
        """Try again the operations watched under `keys`, where a trigger has fired (rule 4.3).

        Removes the complete operations, and returns each with the name of its error.
        """
        ids = {one for key in keys for one in self._watched.get((kind, key), ())}
        found = (self._operations[of] for of in sorted(ids))
        tried = {one.operation_id: one for one in found if isinstance(one, kind)}
        complete = self._completed(list(tried.values()), progress)
        self._forget(complete)
        return [(tried[of], error) for of, error in complete.items()]

    def expire(self, kind: type[_Delayed], now_ms: int) -> list[tuple[_Delayed, str]]:
        """Remove the expired operations of a kind; return each with its error (rule 4.2)."""
        if not self.may_have_expired_operations(kind, now_ms):
            return []
        waiting = {one.operation_id: one for one in self.waiting(kind)}
        rows = [(one.operation_id, one.deadline_ms, now_ms) for one in waiting.values()]
        expired = self._rules.run("expired_operations", operations=RowTuples(_OF_EXPIRED, rows))
        self._forget(row["operation_id"] for row in expired)
        return [(waiting[row["operation_id"]], row["error"]) for row in expired]

    def may_have_expired_operations(self, kind: Kind, now_ms: int) -> bool:
        """Return whether an operation of a kind may have expired."""
        deadlines = self.watched(kind).values()
        return any(may_have_expired(deadline_ms, now_ms) for deadline_ms in deadlines)

    def _completed(
        self, operations: list[_Delayed], progress: Callable[[_Delayed], tuple[Any, ...]]
    ) -> dict[str, str]:
        """Return the errors of the complete ones of some operations of one kind, by their ids."""
        if not operations:
            return {}
        kind = type(operations[0])
        tried = [(one, progress(one)) for one in operations]
        rows = [one + state for one, state in tried if _may_be_complete(one, state)]
        if not rows:
            return {}
        inputs = RowTuples(_OF_KIND[kind], rows)
        completed = self._rules.run(_COMPLETED_BY[kind], operations=inputs)
        return {row["operation_id"]: row["error"] for row in completed}

    def _forget(self, operation_ids: Iterable[str]) -> None:
        for of in operation_ids:
            self._staged[of] = None
            self._unwatch(of)

    def _watch(self, operation: Operation) -> None:
        self._operations[operation.operation_id] = operation
        self._watched[_watched_under(operation)].add(operation.operation_id)

    def _unwatch(self, operation_id: str) -> None:
        key = _watched_under(self._operations.pop(operation_id))
        watched = self._watched[key]
        watched.discard(operation_id)
        if not watched:
            del self._watched[key]


def _may_be_complete(operation: Operation, progress: tuple[Any, ...]) -> bool:
    """Return False only if the rule does not complete this operation."""
    if not isinstance(operation, DelayedProduce) or not isinstance(progress, ProduceProgress):
        # A fetch completes with the others of its request.
        return True
    required_offset = operation.required_offset
    return may_be_complete(progress.is_leader, progress.high_watermark, required_offset)


_OF_KIND: dict[Kind, tuple[str, ...]] = {
    DelayedProduce: DelayedProduce._fields + ProduceProgress._fields,
    DelayedFetch: DelayedFetch._fields + FetchProgress._fields,
}
"""The columns of an operation's row for the rule that completes its kind."""

_OF_EXPIRED = "operation_id", "deadline_ms", "now_ms"
"""The columns of an operation's row for the rule `expired_operations`."""


def _watched_under(operation: Operation) -> tuple[Kind, TopicIdPartition]:
    return type(operation), TopicIdPartition(operation.topic_id, operation.partition)
