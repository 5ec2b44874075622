"""The script of a simulation: a list of steps that replays one history exactly."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

Event = tuple[int, str]
"""The outcome of a storage operation of a step, which is given by its number in the step."""


class Step(NamedTuple):
    """One decision of the scheduler.

    `what` is an action of a process, or "resume", "suspend", "kill", "advance", "jump" or "power".
    A step that makes no sense, such as an action of a suspended process, does nothing, so any
    sublist of a script is a script.
    """

    process: str
    what: str
    arguments: tuple[int, ...] = ()
    events: tuple[Event, ...] = ()

    def __str__(self) -> str:
        given = " ".join(map(str, self.arguments))
        events = "".join(f"; at operation {number}: {event}" for number, event in self.events)
        return f"{self.process} {self.what} {given}".rstrip() + events


def save(steps: Iterable[Step], file: Path) -> None:
    """Write a script as JSON, one step a line."""
    lines = ",\n".join(json.dumps(step) for step in steps)
    file.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def load(file: Path) -> list[Step]:
    """Return the script in a file that `save` wrote."""
    return [
        Step(process, what, tuple(arguments), tuple((number, event) for number, event in events))
        for process, what, arguments, events in json.loads(file.read_text(encoding="utf-8"))
    ]
