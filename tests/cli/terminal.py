"""The command line in a terminal: a process whose standard streams are a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from contextlib import ExitStack
from pathlib import Path


def run_in_terminal(
    *arguments: str | Path,
    cluster: Path,
    columns: int = 80,
    lines: int = 24,
    stdin: Path | None = None,
    stdout: Path | None = None,
    **environment: str,
) -> str:
    """Run `sparklog` in a terminal of some size; return all that it printed there.

    Parameters: `stdin` and `stdout`, files in place of the terminal, as by a shell's `<` and `>`.
    """
    of_terminal, of_process = pty.openpty()
    fcntl.ioctl(of_process, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PAGER", "TTY_COMPATIBLE")
    }
    files = ExitStack()
    process = subprocess.Popen(
        [sys.executable, "-c", "from sparklog.cli import main; main()", *map(str, arguments)],
        stdin=of_process if stdin is None else files.enter_context(stdin.open("rb")),
        stdout=of_process if stdout is None else files.enter_context(stdout.open("wb")),
        stderr=of_process,
        env=inherited
        | {"TERM": "xterm", "TZ": "Asia/Kolkata", "SPARKLOG_CLUSTER": str(cluster)}
        | environment,
        close_fds=True,
    )
    os.close(of_process)
    files.close()
    printed = b""
    try:
        while chunk := os.read(of_terminal, 65536):
            printed += chunk
    except OSError:
        # Linux ends a terminal that no process has open any more with an error.
        pass
    finally:
        os.close(of_terminal)
        code = process.wait()
    assert code == 0, printed.decode()
    return printed.decode().replace("\r\n", "\n")
