"""The rounds of brokers on object stores with sparse ticks, where each poll is a request."""

from __future__ import annotations

from enum import Enum

SPARSE_MS = 1_000
"""The tick.interval.ms from which ticks are sparse: they are meant to cost less."""

STEP_MS = 300
"""Time in ms between two steps of a tick: a leader or follower reads, copies and commits in it."""

_SOON_STEPS, _WAITING_SHARE = 3, 0.2
"""The number of steps of a tick without a pause while requests wait for followers, and the pause
between later steps as a share of tick.interval.ms."""


class TickStep(Enum):
    """The part of a tick that a round makes: the tables it polls and the roles that act."""

    WHOLE = 0
    """All roles, on all tables: a whole tick in one round."""
    REQUESTS = 1
    """Leaders only, on the metadata and their inboxes: the first step of a tick."""
    JOURNALS = 2
    """All roles, on the journals of the other brokers: a later step."""


class Pace:
    """The steps of an application's ticks; all times are ms.

    A tick begins at a multiple of `interval_ms` of the system clock, at all brokers: leaders take
    requests. 300 ms later followers copy, and 300 ms after that leaders answer. So a request is
    answered within the tick that takes it, whichever broker leads, and no broker polls for others
    in between. Brokers whose clocks differ by more than a step take one or two ticks longer.

    >>> pace = Pace(5_000)
    >>> pace.next(10_000)
    (0, <TickStep.REQUESTS: 1>)
    >>> pace.next(10_080)
    (220, <TickStep.JOURNALS: 2>)
    >>> pace.next(10_350)
    (4650, <TickStep.REQUESTS: 1>)
    """

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        # The beginning of the newest tick, and whether its journals were read.
        self._begun_ms, self._has_read = -1, True

    def next(
        self, now_ms: int, *, has_more: bool = False, is_waiting: bool = False
    ) -> tuple[int, TickStep]:
        """Return the time until the next round, and its step.

        Parameters, about the previous round: `has_more`, whether its brokers may have more to do;
        `is_waiting`, whether requests wait for followers.
        """
        since_ms = now_ms % self._interval_ms
        step = since_ms // STEP_MS + 1
        if not self._has_read:
            # In every tick, even if a round takes longer than a tick.
            self._has_read = True
            return step * STEP_MS - since_ms, TickStep.JOURNALS
        if now_ms - since_ms != self._begun_ms:
            # Rounds took longer than a tick, or the clock was set back.
            self._begun_ms, self._has_read = now_ms - since_ms, False
            return 0, TickStep.REQUESTS
        if is_waiting and not has_more and step > _SOON_STEPS:
            step += max(int(_WAITING_SHARE * self._interval_ms) // STEP_MS, 1) - 1
        if (has_more or is_waiting) and step * STEP_MS < self._interval_ms:
            return step * STEP_MS - since_ms, TickStep.JOURNALS
        self._begun_ms, self._has_read = self._begun_ms + self._interval_ms, False
        return self._interval_ms - since_ms, TickStep.REQUESTS
