"""A clock that moves only when `advance` is called."""

from __future__ import annotations

from collections.abc import Callable


class ManualClock:
    """A clock that a test controls: its time moves only when `advance` is called.

    Parameters
    ----------
    start_ms : int, default 1000000
        The time at the start in ms.
    before_move : callable, optional
        Called before each `advance`.
    after_move : callable, optional
        Called after each `advance`.

    Examples
    --------
    >>> from sparklog.testing import ManualClock
    >>> clock = ManualClock(start_ms=1_000)
    >>> clock.advance(500)
    >>> clock.now_ms(), clock.monotonic_ms()
    (1500, 1500)
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
        """Return the time in ms."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Return the time in ms."""
        return self._now_ms

    def advance(self, ms: int) -> None:
        """Advance the time.

        Parameters
        ----------
        ms : int
            The time in ms by which the clock advances, at least 0.

        Raises
        ------
        ValueError
            `ms` is negative.
        """
        if ms < 0:
            raise ValueError(f"time does not go back: advance by 0 ms or more, not {ms}")
        self._before_move()
        self._now_ms += ms
        self._after_move()
