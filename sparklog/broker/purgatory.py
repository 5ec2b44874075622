"""The purgatory: produce requests that wait for the high watermark, as a table (rules 4.1-4.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sparklog.broker.replicas import overwrite
from sparklog.model import DELAYED_OPERATIONS
from sparklog.protocol.rules import Rules
from sparklog.storage.roots import BrokerRoot

DELAYED_PRODUCE = "DelayedProduce"

Operation = dict[str, Any]
"""One row of `delayed_operations`: one partition of one request."""


class Purgatory:
    """The delayed operations of one broker root. Each is completed once, or expires once."""

    def __init__(self, root: BrokerRoot, rules: Rules) -> None:
        self._root = root
        self._rules = rules
        rows = root.delayed_operations.rows().to_pylist()
        self._operations: dict[str, Operation] = {row["operation_id"]: row for row in rows}
        self._written = set(self._operations)

    def __len__(self) -> int:
        return len(self._operations)

    def next_deadline_ms(self) -> int | None:
        """Return when the next operation expires, on the broker's own clock."""
        return min((one["deadline_ms"] for one in self._operations.values()), default=None)

    def watch(self, operations: Iterable[Operation]) -> None:
        """Delay operations; one that waits already, as a retry does, goes on waiting once."""
        for operation in operations:
            self._operations.setdefault(operation["operation_id"], operation)

    def complete(
        self, now_ms: int, standing: Callable[[Operation], dict[str, Any]]
    ) -> list[tuple[Operation, str]]:
        """Take out what is complete or expired, each with the name of its error.

        `standing` says of an operation's partition: is_leader, high_watermark, isr_size,
        min_isr, replica_count.
        """
        if not self._operations:
            return []
        rows = [one | standing(one) | {"now_ms": now_ms} for one in self._operations.values()]
        completed = self._rules.run("completed_operations", operations=rows)
        expired = self._rules.run("expired_operations", operations=rows)
        results = []
        for row in (*completed, *expired):
            operation = self._operations.pop(row["operation_id"], None)
            if operation is not None:
                results.append((operation, row["error"]))
        return results

    def write(self) -> bool:
        """Write the table if it has changed; say whether it had."""
        if set(self._operations) == self._written:
            return False
        rows = DELAYED_OPERATIONS.rows(list(self._operations.values()))
        overwrite(self._root.delayed_operations, rows, self._root.fence)
        self._written = set(self._operations)
        return True
