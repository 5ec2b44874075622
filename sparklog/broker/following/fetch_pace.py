"""The size of a follower's fetches: about two seconds of copying, by the measured rate.

The other duties of a broker wait for its fetch: the requests to its leaders, and the copies of
partitions in sync, whose producers wait for them. A follower that was away for days lacks more than
can be copied meanwhile, in bytes or in numbers of files.
"""

from __future__ import annotations

TARGET_SECONDS = 2.0
"""The intended duration of a fetch. A commit and a poll for each take a few percent of it."""

FIRST_BYTES, FIRST_BATCHES = 64 << 20, 512
"""The bounds of the first fetch."""

_LEAST_BYTES, _LEAST_BATCHES = 4 << 20, 16
_MOST_TIMES = 4.0


class FetchPace:
    """The bounds of the next fetch, in bytes and in batches.

    Parameters: `most_bytes`, replica.fetch.response.max.bytes.

    Attributes: `max_bytes` and `max_batches`, of all partitions together.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.max_bytes = min(FIRST_BYTES, most_bytes)
        self.max_batches = FIRST_BATCHES

    def batches_of_each(self, partitions: int) -> int:
        """Return the bound of batches of each partition if so many are behind; at least 1."""
        return max(self.max_batches // max(partitions, 1), 1)

    def note(self, batches: int, size_bytes: int, seconds: float) -> None:
        """Take the size and duration of a fetch into account.

        A fetch that used less than half of both bounds does not show that more would be too slow or
        fast enough, unless it took too long itself.
        """
        times = min(TARGET_SECONDS / seconds, _MOST_TIMES) if seconds > 0 else _MOST_TIMES
        is_full = 2 * batches >= self.max_batches or 2 * size_bytes >= self.max_bytes
        if times >= 1 and not is_full:
            return
        of_bytes, of_batches = self.max_bytes, self.max_batches
        if times < 1:
            of_bytes, of_batches = min(of_bytes, size_bytes), min(of_batches, batches)
        least = min(_LEAST_BYTES, self._most_bytes)
        self.max_bytes = min(max(int(of_bytes * times), least), self._most_bytes)
        self.max_batches = max(int(of_batches * times), _LEAST_BATCHES)
