"""A broker that kills itself, as kill -9 would, between two effects of the tick of a leader.

    python -m tests.jobs.dying_broker <configuration> <folder>

It runs until a file with the name of a point lies in the folder, and a batch is appended then.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparklog.broker.appends import Appends
from sparklog.broker.tick import Effects
from sparklog.cli.application import configure_logging, run_application
from sparklog.config import BrokerConfig, load
from sparklog.storage.record_log import RecordLog

POINTS = ("before_append", "log_commit", "checkpoint", "before_answer", "responses")
"""Before the append; after it and before the answer, with the followers yet to copy the batch or
having done so; after the answer."""


class Death:
    """Wraps what a leader does, in order: append, effects, answer, effects."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._has_appended = False
        self._has_answered = False
        self._commit, self._respond, self._done = RecordLog.commit, Appends.respond, Effects.done

    def lie_in_wait(self) -> None:
        """Put itself between the broker and its effects."""
        death = self

        def commit(log: RecordLog, batches: Sequence[Any] = (), *rest: Any, **of: Any) -> Any:
            if batches:
                death.at("before_append")
            result = death._commit(log, batches, *rest, **of)
            death._has_appended |= bool(batches) and death.is_near
            return result

        def respond(appends: Appends, answers: Sequence[Any], now_ms: int) -> bool:
            is_due = death._has_appended and any(one["error_code"] == 0 for one in answers)
            if is_due:
                death.at("before_answer")
            result = death._respond(appends, answers, now_ms)
            death._has_answered |= is_due
            return result

        def done(effects: Effects, effect: str) -> None:
            death._done(effects, effect)
            is_next = death._has_answered if effect == "responses" else death._has_appended
            if is_next and effect in POINTS:
                death.at(effect)

        RecordLog.commit = commit  # type: ignore[assignment, method-assign]
        Appends.respond = respond  # type: ignore[assignment, method-assign]
        Effects.done = done  # type: ignore[assignment, method-assign]

    @property
    def is_near(self) -> bool:
        """Whether a point was named."""
        return any((self._folder / point).exists() for point in POINTS)

    def at(self, point: str) -> None:
        """Die, if this is the point."""
        if (self._folder / point).exists():
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    configure_logging("info")
    Death(Path(sys.argv[2])).lie_in_wait()
    run_application(load(BrokerConfig, sys.argv[1]), until_idle=False, with_spark=False)
