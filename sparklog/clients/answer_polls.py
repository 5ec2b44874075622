"""When a producer polls its leaders for answers; each poll of an object store is a request."""

from __future__ import annotations

from collections import deque

_LEAST_SECONDS, _SOON_SECONDS, _SHARE = 0.003, 0.5, 0.1
"""The least pause between two polls; how long it is made; and the pause after that, as a share of
the time since then."""

_FIRST_SHARE, _MOST_USUAL_SECONDS = 0.5, 5.0
"""When answers are polled for first, as a share of the usual time of a request, and the most that
this time counts for. A later poll would find more commits before the answer, and read them one by
one: with 0.7 a record took 350 ms and not 290 ms."""

_LEADERS_SHARE = 0.5
"""How old metadata may be at most where answers are awaited, as a share of the same time."""


def pause_seconds(waited_seconds: float) -> float:
    """Return the pause before the next poll for an answer."""
    return max(_LEAST_SECONDS, _SHARE * (waited_seconds - _SOON_SECONDS))


class AnswerPolls:
    """The polls of one producer, by the times that its requests have taken.

    The shorter one of the last two requests counts: one that took long, as by an election, says
    nothing about the next.

    >>> polls = AnswerPolls()
    >>> found = [polls.first_seconds]
    >>> for seconds in (0.3, 9.0, 4.5):
    ...     polls.note(seconds)
    ...     found.append(polls.first_seconds)
    >>> found
    [0.0, 0.0, 0.15, 2.25]
    """

    def __init__(self) -> None:
        self._taken_seconds = deque([0.0], maxlen=2)

    def note(self, seconds: float) -> None:
        """Note how long a request has taken until all of its answers were there."""
        self._taken_seconds.append(seconds)

    @property
    def first_seconds(self) -> float:
        """The time from a request to the first poll for its answers."""
        return self._usual_seconds * _FIRST_SHARE

    def leaders_ms(self, least_ms: int) -> int:
        """Return the maximum age of metadata, in ms: `least_ms`, more where answers take seconds.

        The metadata show whether the leaders that have to answer still lead.
        """
        return max(least_ms, round(self._usual_seconds * _LEADERS_SHARE * 1000))

    @property
    def _usual_seconds(self) -> float:
        return min(*self._taken_seconds, _MOST_USUAL_SECONDS)
