"""A clock that stands still until it is told to move."""

from __future__ import annotations

from collections.abc import Callable


class ManualClock:
    """Time in the test's hand, in ms; a `Clock`.

    `before_move` and `after_move` are called around every `advance`.
    """

    def __init__(
        self,
        start_ms: int = 1_000_000,
        before_move: Callable[[], None] = lambda: None,
        after_move: Callable[[], None] = lambda: None,
    ) -> None:
        self._now_ms = start_ms
        self._before_move = before_move
        self._after_move = after_move

    def now_ms(self) -> int:
        """Return the time."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Return the time."""
        return self._now_ms

    def advance(self, ms: int) -> None:
        """Move the time forward by `ms`, which is not negative."""
        if ms < 0:
            raise ValueError(f"time does not go back: advance by 0 ms or more, not {ms}")
        self._before_move()
        self._now_ms += ms
        self._after_move()
