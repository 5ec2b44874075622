"""The times at which a producer polls its leaders for answers.

Each poll of an object store is a request.
"""

from __future__ import annotations

from collections import deque

_LEAST_SECONDS, _SOON_SECONDS, _SHARE = 0.003, 0.5, 0.1
"""The minimum pause between two polls, in s; the time since the request, in s, for which it is
made; the pause after that, as a share of the time beyond."""

_FIRST_SHARE, _MOST_USUAL_SECONDS = 0.5, 5.0
"""The time of the first poll, as a share of the usual duration of a request, and the maximum of
that duration, in s. A later poll finds more commits before the answer and reads them one by one:
with a share of 0.7 a record took 350 ms, with 0.5 it took 290 ms."""

_LEADERS_SHARE = 0.5
"""The maximum age of metadata while answers are awaited, as a share of the same duration."""


def pause_seconds(waited_seconds: float) -> float:
    """Return the pause before the next poll for an answer, in s."""
    return max(_LEAST_SECONDS, _SHARE * (waited_seconds - _SOON_SECONDS))


class AnswerPolls:
    """The poll times of one producer, derived from the durations of its requests.

    The shorter duration of the last two requests counts. A single long one, for example during an
    election, does not predict the next.

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
        """Note the time in s from a request to its last answer."""
        self._taken_seconds.append(seconds)

    @property
    def first_seconds(self) -> float:
        """The time in s from a request to the first poll for its answers."""
        return self._usual_seconds * _FIRST_SHARE

    def leaders_ms(self, least_ms: int) -> int:
        """Return the maximum age of metadata in ms: `least_ms`, or more if answers take seconds.

        The metadata show whether the leaders that have to answer still lead.
        """
        return max(least_ms, round(self._usual_seconds * _LEADERS_SHARE * 1000))

    @property
    def _usual_seconds(self) -> float:
        return min(*self._taken_seconds, _MOST_USUAL_SECONDS)
