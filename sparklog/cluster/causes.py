"""The causes of changes of partitions, as Delta's history of `partition_state` shows them.

A commit names its operation, and as parameters the cause of the change of each partition. They are
for people and for the views of the past: no decision depends on them.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from sparklog.storage.commits import Cause
from sparklog.storage.json_text import json_value

_CAUSE, _OTHERS, _DETAILS = "cause", "otherCauses", "details"


class CauseOfChange(NamedTuple):
    """The cause of one partition's change: the operation, and what the commit says beyond it."""

    operation: str | None
    cause: str | None = None
    detail: str | None = None


class PartitionCauses:
    """Collects the causes while a change is decided, and returns them for its commit.

    A partition that is decided again replaces its cause. Parameters: `operation`, the operation's
    name in capitals, as Delta's are; `parameters`, further ones of the whole commit.
    """

    def __init__(self, operation: str, parameters: Mapping[str, str] | None = None) -> None:
        self._operation = operation
        self._parameters = dict(parameters or {})
        self._causes: dict[str, str] = {}
        self._details: dict[str, str] = {}

    def note(self, topic: str, partition: int, cause: str, detail: str | None = None) -> None:
        """Note the cause of a partition's change."""
        self._causes[f"{topic}-{partition}"] = cause
        if detail is not None:
            self._details[f"{topic}-{partition}"] = detail

    def has(self, topic: str, partition: int) -> bool:
        """Return whether a cause of this partition's change is noted."""
        return f"{topic}-{partition}" in self._causes

    def __call__(self) -> Cause:
        """Return the cause of the commit; partitions without the most frequent one are listed."""
        parameters = dict(self._parameters)
        if self._causes:
            [(usual, _)] = Counter(self._causes.values()).most_common(1)
            parameters[_CAUSE] = usual
            others: dict[str, list[str]] = defaultdict(list)
            for name, cause in self._causes.items():
                if cause != usual:
                    others[cause].append(name)
            if others:
                parameters[_OTHERS] = json.dumps(others)
        if self._details:
            parameters[_DETAILS] = json.dumps(self._details)
        return Cause(self._operation, parameters)


def causes_in(cause: Cause) -> Mapping[str, CauseOfChange]:
    """Return the causes of a commit by partition, `<topic>-<partition>`; "" has the usual one."""
    usual = CauseOfChange(cause.operation, cause.parameters.get(_CAUSE))
    found: dict[str, CauseOfChange] = {"": usual}
    for of, names in _object(cause.parameters.get(_OTHERS)).items():
        for name in names if isinstance(names, list) else ():
            found[str(name)] = usual._replace(cause=of)
    for name, detail in _object(cause.parameters.get(_DETAILS)).items():
        found[name] = found.get(name, usual)._replace(detail=str(detail))
    return found


def _object(text: str | None) -> dict[str, Any]:
    try:
        found = json_value(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
