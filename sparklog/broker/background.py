"""Work of an application's brokers beside their ticks: merging, cleaning and vacuuming."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from sparklog.broker.broker import Broker


class Work(NamedTuple):
    """One kind of work.

    `action` returns whether a broker may have more of it at once, and its name is that of the work
    in messages. `interval_s` returns the seconds between two rounds without any, which may change
    while brokers run.
    """

    thread_name: str
    interval_s: Callable[[], float]
    action: Callable[[Broker], bool]


class BackgroundWork:
    """A thread that does one kind of work for all brokers, until the application ends.

    Parameters: `brokers`, returns those that run; `attempt`, which runs an action of a broker and
    notes its failure; `ended`, which ends the thread.
    """

    def __init__(
        self,
        work: Work,
        brokers: Callable[[], list[Broker]],
        attempt: Callable[[Callable[[Broker], None], Broker], object],
        ended: threading.Event,
    ) -> None:
        self._work = work
        self._brokers = brokers
        self._attempt = attempt
        self._ended = ended
        self._lock = threading.Lock()
        self.thread = threading.Thread(target=self._run, name=work.thread_name, daemon=True)

    def _run(self) -> None:
        while not self._ended.wait(self._work.interval_s()):
            while not self._ended.is_set() and self.round():
                pass

    def round(self) -> bool:
        """Do the work of every broker once; return whether there may be more. Any thread may."""
        more: list[bool] = []

        def act(broker: Broker) -> None:
            more.append(self._work.action(broker))

        act.__name__ = self._work.action.__name__
        with self._lock:
            for broker in self._brokers():
                self._attempt(act, broker)
        return any(more)
