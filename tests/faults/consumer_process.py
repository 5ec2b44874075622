"""A process with one member of a group: it polls, logs, and commits by hand until SIGTERM.

python -m tests.faults.consumer_process CLUSTER TOPIC GROUP SESSION_MS LOG
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from sparklog.consumer.consumer import Consumer
from sparklog.errors import ProtocolError, StorageError
from sparklog.model import TopicPartition
from tests.faults.client_logs import ClientLog

_POLL_MS = 500


def main(cluster: str, topic: str, group: str, session_ms: str, file: str) -> None:
    """Poll, log the records, commit the position behind them, log the answer."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    log = ClientLog(Path(file))

    def assigned(partitions: Iterable[TopicPartition]) -> None:
        log.write("assigned", sorted(one.partition for one in partitions))

    with Consumer(
        cluster,
        group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=int(session_ms),
        heartbeat_interval_ms=int(session_ms) // 3,
    ) as consumer:
        consumer.subscribe([topic], on_assign=assigned)
        while not stopping.is_set():
            try:
                polled = consumer.poll(_POLL_MS, max_records=5_000)
            except (ProtocolError, StorageError) as error:
                log.write("failed", str(error))
                stopping.wait(_POLL_MS / 1_000)
                continue
            if not polled:
                continue
            for (_, partition), records in polled.items():
                pairs = [(one.offset, (one.value or b"").decode()) for one in records]
                log.write("polled", partition, pairs)
            offsets = {one: records[-1].offset + 1 for one, records in polled.items()}
            log.write("committing", {one.partition: of for one, of in offsets.items()})
            try:
                consumer.commit(offsets)
            except ProtocolError as error:
                log.write("committed", error.code.name)
            except StorageError as error:
                # The commit may have been carried out.
                log.write("committed", str(error))
            else:
                log.write("committed", "NONE")


if __name__ == "__main__":
    main(*sys.argv[1:])
