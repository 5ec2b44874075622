"""A broker that kills itself, like kill -9, between two effects of a leader's tick.

    python -m tests.jobs.dying_broker <configuration> <folder>

It runs until the folder has a file with the name of a point, and a batch is appended then.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparklog.broker.tick import Effects
from sparklog.cli.application import configure_logging, run_application
from sparklog.config import BrokerConfig, load
from sparklog.storage.journal import Journal, Step

POINTS = ("before_append", "log_commit", "checkpoint", "before_answer", "responses")
"""Before the append; after it, before the followers copy the batch; before the commit with the high
watermark and the answer; after it.
"""


class Death:
    """Wraps a leader's effects, in order: append, effects, answer, effects."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._has_appended = False
        self._has_answered = False
        self._commit_step, self._done = Journal.commit_step, Effects.done

    def lie_in_wait(self) -> None:
        """Install the wrappers between the broker and its effects."""
        death = self

        def commit_step(
            journal: Journal,
            added: Sequence[Any],
            removed: Sequence[Any],
            step: Step,
            *others: Any,
            **named: Any,
        ) -> None:
            answers = death._has_appended and any(one.error == "NONE" for one in step.answers)
            if added:
                death.at("before_append")
            if answers:
                death.at("before_answer")
            death._commit_step(journal, added, removed, step, *others, **named)
            death._has_appended |= bool(added) and death.is_near
            death._has_answered |= answers

        def done(effects: Effects, effect: str) -> None:
            death._done(effects, effect)
            is_next = death._has_answered if effect == "responses" else death._has_appended
            if is_next and effect in POINTS:
                death.at(effect)

        Journal.commit_step = commit_step  # type: ignore[assignment, method-assign]
        Effects.done = done  # type: ignore[assignment, method-assign]

    @property
    def is_near(self) -> bool:
        """Whether a point was named."""
        return any((self._folder / point).exists() for point in POINTS)

    def at(self, point: str) -> None:
        """End the process if this is the point."""
        if (self._folder / point).exists():
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    configure_logging("info")
    Death(Path(sys.argv[2])).lie_in_wait()
    run_application(load(BrokerConfig, sys.argv[1]), until_idle=False, with_spark=False)
