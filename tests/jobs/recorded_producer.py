"""A process that produces until it is asked to end, and writes down what it sent and was told.

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

from sparklog.clients.accumulator import RecordMetadata
from sparklog.clients.producer import Producer
from sparklog.errors import ProtocolError
from sparklog.testing.history import History, RecordedProducer

_UNANSWERED = 60
"""How many records may be on their way: the answers set the pace, through failovers too."""


def main(cluster: str, topic: str, name: str, file: str) -> None:
    """Send records with keys, all different, until SIGTERM; then deliver what is on its way."""
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
                # What fails is recorded as such; the next records are sent all the same.
                with suppress(ProtocolError):
                    waiting.popleft().result()
                if sent == _UNANSWERED + 1:
                    print("delivered", flush=True)  # whoever has started this process may wait
    history.save(Path(file))


if __name__ == "__main__":
    main(*sys.argv[1:])
