"""A process that produces until SIGTERM and logs each call and each answer.

python -m tests.faults.producer_process CLUSTER TOPIC PARTITIONS RECORDS_PER_SECOND LOG
"""

from __future__ import annotations

import signal
import sys
import threading
from collections import deque
from concurrent.futures import Future
from pathlib import Path

from sparklog.errors import ProtocolError
from sparklog.producer.accumulator import RecordMetadata
from sparklog.producer.plain import Producer
from tests.faults.client_logs import ClientLog
from tests.faults.compaction import key_of, value_of

CHUNK = 100
"""Records of one partition that are sent in a row, as one batch or a few."""
_UNANSWERED_CHUNKS = 16
_DELIVERY_MS = 600_000

Chunk = tuple[int, int, "list[Future[RecordMetadata]]"]


def take_answers(log: ClientLog, chunk: Chunk) -> None:
    """Wait for a chunk's answers and log them as runs of one error, or of adjacent offsets."""
    partition, first, futures = chunk
    run: tuple[int, int, str, int] | None = None
    for number, future in enumerate(futures, first):
        try:
            error, offset = "NONE", future.result().offset
        except ProtocolError as failed:
            error, offset = failed.code.name, -1
        if run is not None:
            begin, count, before, base = run
            if error == before and offset == (base + count if error == "NONE" else -1):
                run = begin, count + 1, error, base
                continue
            log.write("answered", partition, begin, count, before, base)
        run = number, 1, error, offset
    if run is not None:
        log.write("answered", partition, *run)


def main(cluster: str, topic: str, partitions: str, rate: str, file: str) -> None:
    """Send chunks to the partitions in turn; then deliver the records in flight."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    path = Path(file)
    log = ClientLog(path)
    waiting: deque[Chunk] = deque()
    pause_seconds = CHUNK / float(rate)
    sent = 0
    with Producer(
        cluster, client_id=path.stem, linger_ms=20, delivery_timeout_ms=_DELIVERY_MS
    ) as producer:
        while not stopping.is_set():
            partition = sent // CHUNK % int(partitions)
            log.write("sent", partition, sent, CHUNK)
            futures = [
                producer.send(topic, value, key_of(value), partition=partition)
                for value in (value_of(path.stem, one) for one in range(sent, sent + CHUNK))
            ]
            waiting.append((partition, sent, futures))
            sent += CHUNK
            # Answers arrive in any order of partitions, in the order of sends within each.
            for chunk in list(waiting):
                if all(future.done() for future in chunk[2]):
                    waiting.remove(chunk)
                    take_answers(log, chunk)
            if len(waiting) > _UNANSWERED_CHUNKS:
                take_answers(log, waiting.popleft())
            stopping.wait(pause_seconds)
        producer.flush()
        while waiting:
            take_answers(log, waiting.popleft())


if __name__ == "__main__":
    main(*sys.argv[1:])
