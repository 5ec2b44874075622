"""A cluster that kills itself, like kill -9, between two effects of the log cleaner.

    python -m tests.jobs.dying_cleaner <configuration> <folder>

It runs until the folder has a file with the name of an effect, which the cleaner reaches then.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from sparklog.broker.broker import Broker
from sparklog.broker.cleaner import CleanReport
from sparklog.broker.tick import Effects
from sparklog.cli.application import configure_logging, run_application
from sparklog.config import ClusterConfig, load

POINTS = ("files", "producer_state", "log_commit", "cleaner_checkpoint")


class _Deadly(Effects):
    """Effects of the cleaner; the process ends after the one that a file names."""

    def done(self, effect: str) -> None:
        point = Path(sys.argv[2], effect)
        if point.exists():
            point.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def clean(broker: Broker, stop_after: str | None = None) -> CleanReport:
    """Clean as `Broker.clean` does."""
    reports = [cleaner.clean(_Deadly(stop_after)) for cleaner in broker._cleaners]
    return CleanReport(*map(sum, zip(CleanReport(), *reports, strict=True)))


if __name__ == "__main__":
    configure_logging("info")
    Broker.clean = clean  # type: ignore[assignment, method-assign]
    run_application(load(ClusterConfig, sys.argv[1]), until_idle=False, with_spark=False)
