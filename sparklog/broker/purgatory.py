"""The purgatory: operations that wait for something to happen to their partition (rules 4.1-4.4).

A delayed operation is watched under its partition and tried again when a trigger fires there; what
a trigger is, and for whom, `Trigger` says. The commit of the step in which it begins to wait, or
waits no more, says so, so it survives its process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Literal

from sparklog.model import TopicIdPartition
from sparklog.protocol.rules import Rules
from sparklog.storage.roots import BrokerRoot

Kind = Literal["DelayedProduce", "DelayedFetch"]

Operation = dict[str, Any]
"""One row of `delayed_operations`: one partition of one request."""

Standing = Callable[[Operation], dict[str, Any]]
"""How things stand for an operation: the columns that its kind's rule takes beside its own."""

_COMPLETED_BY: dict[Kind, str] = {
    "DelayedProduce": "completed_operations",
    "DelayedFetch": "completed_fetches",
}


class Trigger(Enum):
    """What lets something that waits go on, by its number in rule 4.3 (4.4 for the last).

    Nothing is sent: a broker sees a trigger as a difference between two looks at the tables, so
    none is lost on the way, and whoever was away finds it on its next look.
    """

    HIGH_WATERMARK_MOVED = "A.1, B.1"
    """Fetches of consumers, which see it in the leader's journal; produces."""
    LEADER_APPENDED = "A.2"
    """Fetches of followers, which see it in the leader's journal."""
    FOLLOWER_REPORTED = "B.2"
    """Produces."""
    ISR_CHANGED = "C.1"
    """The high watermark."""
    LOG_END_OFFSET_CHANGED = "C.2"
    """The high watermark: the leader's own log has grown, or a follower's by its report."""
    LEADERSHIP_CHANGED = "4.4"
    """Whatever waits on the old leader."""


class Purgatory:
    """The delayed operations of one broker root. Each is completed once, or expires once.

    What a step changes is staged until it is committed: see `staged`.
    """

    def __init__(self, root: BrokerRoot, rules: Rules) -> None:
        self._journal = root.log
        self._rules = rules
        self._operations: dict[str, Operation] = {}
        self._watched: dict[tuple[Kind, TopicIdPartition], set[str]] = defaultdict(set)
        self._staged: dict[str, Operation | None] = {}
        for row in self._journal.operations.values():
            self._watch(dict(row))

    def staged(self) -> Mapping[str, Operation | None]:
        """Return the operations that begin to wait in this step, and `None` for those that end."""
        known = self._journal.operations
        return {of: one for of, one in self._staged.items() if one is not None or of in known}

    def committed(self) -> None:
        """Take what is staged for committed."""
        self._staged.clear()

    def settle(self) -> None:
        """Discard what is staged: the journal says what waits."""
        if not self._staged:
            return
        for of in self._staged:
            if of in self._operations:
                self._unwatch(of)
            if of in self._journal.operations:
                self._watch(dict(self._journal.operations[of]))
        self._staged.clear()

    def reload(self) -> None:
        """Take over what waits by the journal, after it was read again."""
        for of in list(self._operations):
            self._unwatch(of)
        for row in self._journal.operations.values():
            self._watch(dict(row))
        self._staged.clear()

    def waiting(self, kind: Kind) -> list[Operation]:
        """Return the operations of a kind that wait."""
        return [one for one in self._operations.values() if one["kind"] == kind]

    def watched(self, kind: Kind) -> dict[TopicIdPartition, int]:
        """Return the partitions under which operations of a kind wait, and when the first of each
        expires, on the broker's own clock.
        """
        return {
            key: min(self._operations[one]["deadline_ms"] for one in ids)
            for (of_kind, key), ids in self._watched.items()
            if of_kind == kind
        }

    def try_complete_else_watch(
        self, operations: Iterable[Operation], standing: Standing
    ) -> list[tuple[Operation, str]]:
        """Try operations of one kind; watch those that are not complete under their partitions.

        One that waits already, as a retry's does, goes on waiting once. Returns what is complete,
        each with the name of its error. What happens to a partition afterwards is for
        `check_and_complete`, which the same tick calls when it has looked at the followers: that
        is the second attempt of rule 4.1, and nothing can come between watching and looking.
        """
        fresh = [one for one in operations if one["operation_id"] not in self._operations]
        complete = dict(self._completed(fresh, standing))
        for operation in fresh:
            if operation["operation_id"] not in complete:
                self._begin(operation)
        return [
            (one, complete[one["operation_id"]]) for one in fresh if one["operation_id"] in complete
        ]

    def check_and_complete(
        self, kind: Kind, keys: Iterable[TopicIdPartition], standing: Standing
    ) -> list[tuple[Operation, str]]:
        """Try again what is watched under `keys`, at which a trigger has fired (rule 4.3).

        Takes out what is complete, and returns it with the name of its error.
        """
        ids = {one for key in keys for one in self._watched.get((kind, key), ())}
        tried = [self._operations[one] for one in sorted(ids)]
        return [(self._forget(one), error) for one, error in self._completed(tried, standing)]

    def expire(self, kind: Kind, now_ms: int) -> list[tuple[Operation, str]]:
        """Take out what has waited too long, with the name of its error (rule 4.2)."""
        if not self.has_expired(kind, now_ms):
            return []
        rows = [one | {"now_ms": now_ms} for one in self.waiting(kind)]
        expired = self._rules.run("expired_operations", operations=rows)
        return [(self._forget(row["operation_id"]), row["error"]) for row in expired]

    def has_expired(self, kind: Kind, now_ms: int) -> bool:
        """Say whether anything of a kind is to expire."""
        return any(now_ms >= deadline_ms for deadline_ms in self.watched(kind).values())

    def _completed(self, operations: list[Operation], standing: Standing) -> list[tuple[str, str]]:
        if not operations:
            return []
        rule = _COMPLETED_BY[operations[0]["kind"]]
        rows = [one | standing(one) for one in operations]
        completed = self._rules.run(rule, operations=rows)
        return [(row["operation_id"], row["error"]) for row in completed]

    def _begin(self, operation: Operation) -> None:
        self._staged[operation["operation_id"]] = operation
        self._watch(operation)

    def _forget(self, operation_id: str) -> Operation:
        self._staged[operation_id] = None
        return self._unwatch(operation_id)

    def _watch(self, operation: Operation) -> None:
        self._operations[operation["operation_id"]] = operation
        self._watched[_watched_under(operation)].add(operation["operation_id"])

    def _unwatch(self, operation_id: str) -> Operation:
        operation = self._operations.pop(operation_id)
        watched = self._watched[_watched_under(operation)]
        watched.discard(operation_id)
        if not watched:
            del self._watched[_watched_under(operation)]
        return operation


def _watched_under(operation: Operation) -> tuple[Kind, TopicIdPartition]:
    return operation["kind"], TopicIdPartition(operation["topic_id"], operation["partition"])
