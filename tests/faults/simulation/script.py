"""The script of a simulation: a list of steps that replays one history exactly."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Event(NamedTuple):
    """The outcome of a storage operation of a step.

    It is the operation with a number among those of a kind: one of the calls, `commit` for the
    commit of a journal, `own journal read` for a broker's read of its own one, or `any`.
    """

    number: int
    outcome: str
    kind: str = "any"

    def __str__(self) -> str:
        kind = "operation" if self.kind == "any" else self.kind
        return f"at {kind} {self.number}: {self.outcome}"


class Step(NamedTuple):
    """One decision of the scheduler.

    `what` is an action of a process, or "resume", "kill", "advance", "jump", "power", "clean up",
    "rest" or "cast". The process is a broker's, a client's, or an actor's: see `Disturbances`.
    A step that makes no sense, such as an action of a suspended process, does nothing, so any
    sublist of a script is a script.
    """

    process: str
    what: str
    arguments: tuple[int, ...] = ()
    events: tuple[Event, ...] = ()

    def __str__(self) -> str:
        given = " ".join(map(str, self.arguments))
        events = "".join(f"; {event}" for event in self.events)
        return f"{self.process} {self.what} {given}".rstrip() + events


def save(steps: Iterable[Step], file: Path) -> None:
    """Write a script as JSON, one step a line."""
    lines = ",\n".join(json.dumps(step) for step in steps)
    file.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def load(file: Path) -> list[Step]:
    """Return the script in a file that `save` wrote."""
    return [
        Step(process, what, tuple(arguments), tuple(Event(*event) for event in events))
        for process, what, arguments, events in json.loads(file.read_text(encoding="utf-8"))
    ]
