"""A broker whose disk is slow: each sync of a file or folder takes as long as a file says.

python -m tests.faults.limits.slow_broker CONFIG FILE_WITH_SECONDS
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from sparklog.cli import app
from sparklog.storage import local_files
from sparklog.storage.local_files import LocalFiles


class SlowFiles(LocalFiles):
    """A local file system whose syncs are delayed by the seconds in `file`."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def sync(self, path: str) -> None:
        """Wait, then sync the file or folder."""
        time.sleep(float(self._file.read_text("ascii") or 0))
        super().sync(path)


if __name__ == "__main__":
    local_files.FILES = SlowFiles(Path(sys.argv[2]))
    app(["broker", "--config", sys.argv[1], "--without-spark"], prog_name="sparklog")
