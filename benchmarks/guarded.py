"""Run a module that ends with its parent: `python -m benchmarks.guarded MODULE ARGUMENT...`.

The parent holds a pipe to standard input, which is closed however the parent ends. The whole
process group is then killed.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Run the module; the process must lead its own process group."""
    del sys.argv[0]
    threading.Thread(target=_end_with_parent, name="guard", daemon=True).start()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
