"""The activity of a broker, carried by the commits of its journals, for `sparklog status`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from sparklog.broker.broker_counts import BrokerCounts
from sparklog.clock import Clock
from sparklog.cluster.formats import FORMAT_WITH_ACTIVITY
from sparklog.cluster.roots import BrokerRoot, ClusterRoot
from sparklog.counts import STORE_REQUESTS
from sparklog.storage.journal import Activity

_WINDOW_MS = 60_000
_SAMPLE_MS = 5_000


class RequestRate:
    """The requests of this process to object stores over the last minute; threads may share it.

    Parameters: `clock`, whose monotonic time is used; `total`, a function that returns the number
    of requests since the process started.
    """

    def __init__(self, clock: Clock, total: Callable[[], int]) -> None:
        self._clock = clock
        self._total = total
        self._lock = threading.Lock()
        # Times on the monotonic clock in ms, with the requests until then.
        self._samples: deque[tuple[int, int]] = deque([(clock.monotonic_ms(), total())])

    def per_minute(self) -> int:
        """Return the requests per minute; of the time since the start while it is shorter."""
        now_ms, total = self._clock.monotonic_ms(), self._total()
        with self._lock:
            if now_ms - self._samples[-1][0] >= _SAMPLE_MS:
                self._samples.append((now_ms, total))
            while len(self._samples) > 2 and now_ms - self._samples[1][0] >= _WINDOW_MS:
                self._samples.popleft()
            since_ms, before = self._samples[0]
        return round((total - before) * _WINDOW_MS / max(now_ms - since_ms, 1_000))


def carry_activity(
    root: BrokerRoot, cluster: ClusterRoot, counts: BrokerCounts, clock: Clock
) -> None:
    """Make the commits of a broker's journal carry what it does; nothing is requested for it."""
    rate = RequestRate(clock, lambda: sum(STORE_REQUESTS.totals().values()))

    def activity() -> Activity | None:
        """Return the activity; called by all threads that commit."""
        if cluster.format_version < FORMAT_WITH_ACTIVITY:
            return None
        return Activity(round(1000 * sum(counts.last_tick_seconds.values())), rate.per_minute())

    root.log.activity = activity
