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

_CAUSE, _OTHERS, _DETAIL, _DETAILS = "cause", "otherCauses", "detail", "details"


class CauseOfChange(NamedTuple):
    """The cause of one partition's change: the operation, and what the commit says beyond it."""

    operation: str | None
    cause: str | None = None
    detail: str | None = None


class PartitionCauses:
    """Collects the causes while a change is decided, and returns them for its commit.

    A partition that is decided again replaces its cause. Parameters: `operation`, the operation's
    name in capitals, as Delta's are; `parameters`, further ones of the whole commit; `fenced`, what
    is known about fenced brokers, by id.
    """

    def __init__(
        self,
        operation: str,
        parameters: Mapping[str, str] | None = None,
        fenced: Mapping[int, str] | None = None,
    ) -> None:
        self.fenced = fenced or {}
        self._operation = operation
        self._parameters = dict(parameters or {})
        self._causes: dict[str, str] = {}
        self._details: dict[str, str | None] = {}

    def note(self, topic: str, partition: int, cause: str, detail: str | None = None) -> None:
        """Note the cause of a partition's change."""
        self._causes[f"{topic}-{partition}"] = cause
        self._details[f"{topic}-{partition}"] = detail

    def has(self, topic: str, partition: int) -> bool:
        """Return whether a cause of this partition's change is noted."""
        return f"{topic}-{partition}" in self._causes

    def __call__(self) -> Cause:
        """Return the cause of the commit.

        The most frequent cause and detail are there once; partitions with others are listed.
        """
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
            [(detail, _)] = Counter(self._details.values()).most_common(1)
            if detail is not None:
                parameters[_DETAIL] = detail
            details = {name: one for name, one in self._details.items() if one != detail}
            if details:
                parameters[_DETAILS] = json.dumps(details)
        return Cause(self._operation, parameters)


def causes_in(cause: Cause) -> Mapping[str, CauseOfChange]:
    """Return the causes of a commit by partition, `<topic>-<partition>`; "" has the usual one."""
    of_all = cause.parameters.get(_CAUSE), cause.parameters.get(_DETAIL)
    usual = CauseOfChange(cause.operation, *of_all)
    found: dict[str, CauseOfChange] = {"": usual}
    for of, names in _object(cause.parameters.get(_OTHERS)).items():
        for name in names if isinstance(names, list) else ():
            found[str(name)] = usual._replace(cause=of)
    for name, detail in _object(cause.parameters.get(_DETAILS)).items():
        text = None if detail is None else str(detail)
        found[name] = found.get(name, usual)._replace(detail=text)
    return found


def _object(text: str | None) -> dict[str, Any]:
    try:
        found = json_value(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
