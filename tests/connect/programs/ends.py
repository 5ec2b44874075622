"""Wait for the end of the server of Spark Connect; print `ready` first, and how the wait ended."""

from __future__ import annotations

import json
import os
import sys

from sparklog.clock import wait_until
from sparklog.session import has_ended, server_probe, spark_session


def main() -> None:
    spark = spark_session()
    probe = server_probe(spark)
    # Two requests at least: the second begins after the answer to the first.
    answered = wait_until(
        lambda: probe.answers if not probe.has_failed(0.01, 30) else -1,
        60_000,
        pause_ms=10,
        until=lambda answers: answers < 0 or answers > 1,
    )
    before = has_ended(spark)
    print("ready", flush=True)
    sys.stdin.readline()
    is_gone = wait_until(lambda: probe.has_failed(0.01, 1), 60_000, pause_ms=10, until=bool)
    print(json.dumps({"answered": answered, "before": before, "is gone": is_gone}), flush=True)
    # The client would repeat the requests of closing the session for minutes.
    os._exit(0)


if __name__ == "__main__":
    main()
