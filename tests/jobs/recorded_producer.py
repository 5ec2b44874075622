"""A process that produces until it is stopped, and records the sent records and their answers.

python -m tests.jobs.recorded_producer <cluster root> <topic> <name> <history file>
"""

from __future__ import annotations

import signal
import sys
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from sparklog.errors import ProtocolError
from sparklog.producer.accumulator import RecordMetadata
from sparklog.producer.plain import Producer
from sparklog.testing.history import History, RecordedProducer

_UNANSWERED = 60
"""The maximum number of records in flight: the answers limit the rate, also during failovers."""


def main(cluster: str, topic: str, name: str, file: str) -> None:
    """Send records with keys, all different, until SIGTERM; then deliver the records in flight."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    history = History()
    waiting: deque[Future[RecordMetadata]] = deque()
    sent = 0
    with Producer(cluster, client_id=name, linger_ms=100) as producer:
        recorded = RecordedProducer(producer, name, history)
        while not stopping.is_set():
            key = b"key-%d" % (sent % 11)
            waiting.append(recorded.send(topic, f"{name}-{sent}".encode(), key=key))
            sent += 1
            if len(waiting) > _UNANSWERED:
                # Errors are recorded as such; the next records are sent all the same.
                with suppress(ProtocolError):
                    waiting.popleft().result()
                if sent == _UNANSWERED + 1:
                    print("delivered", flush=True)  # the parent process may wait for it
    history.save(Path(file))


if __name__ == "__main__":
    main(*sys.argv[1:])
