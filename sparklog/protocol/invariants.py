"""The invariants of docs/protocol.md, section 9: their numbers and names, and marks of checkers.

An invariant is checked in up to four places: on the states of the model (`tests/model`), on the
tables of a running cluster in random stories (`tests/state_machine`), on a user's tables
(`sparklog audit`) and on the histories of clients (`sparklog.testing.history_check`). A checker is
marked with the invariants that it checks, so that a test can compare the marks with the document.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

_Checker = TypeVar("_Checker", bound=Callable[..., Any])


class Invariant(Enum):
    """An invariant; its value is the number of its rule."""

    ACKNOWLEDGED_RECORDS_SURVIVE = "9.1"
    IN_SYNC_REPLICAS_AGREE = "9.2"
    HIGH_WATERMARK_NEVER_GOES_BACK = "9.3"
    ONE_LEADER_PER_EPOCH = "9.4"
    OFFSETS_ARE_DENSE = "9.5"
    EPOCH_HISTORIES_INCREASE = "9.6"
    HIGH_WATERMARK_IS_BELOW_KNOWN_ENDS = "9.7"

    @property
    def number(self) -> str:
        """The number of the rule, such as 9.1."""
        return str(self.value)

    def __str__(self) -> str:
        return f"{self.number} {self.name.lower()}"


def checks(*invariants: Invariant) -> Callable[[_Checker], _Checker]:
    """Mark a function as a checker of these invariants."""

    def mark(checker: _Checker) -> _Checker:
        checker.__dict__["checked_invariants"] = invariants
        return checker

    return mark


def checkers(holder: object) -> dict[Invariant, list[str]]:
    """Return the names of the marked functions in a module or class, by invariant."""
    found: dict[Invariant, list[str]] = {}
    for name, member in vars(holder).items():
        for invariant in getattr(member, "checked_invariants", ()):
            found.setdefault(invariant, []).append(name)
    return found
