"""The command line as the tests run it: in this process, with captured output."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from typer.testing import CliRunner

from sparklog.cli import app


class Finished(NamedTuple):
    """A command that has ended."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def printed(self) -> str:
        """The output of a successful command, with ids, which differ each time, masked."""
        assert (self.exit_code, self.stderr) == (0, "")
        return re.sub(r"(?<![\w-])[\w-]{22}(?![\w-])", "<id>", self.stdout)

    @property
    def refusal(self) -> str:
        """The only line of output of a command that refuses its input."""
        assert (self.exit_code, self.stdout) == (2, "")
        [line] = self.stderr.splitlines()
        assert line.startswith("sparklog: ")
        return line.removeprefix("sparklog: ")


def run(*arguments: str | Path, cluster: str | Path | None = None) -> Finished:
    """Run `sparklog` with `arguments`; `cluster` is the value of SPARKLOG_CLUSTER, if any."""
    # Variables that make rich assume a terminal would wrap the lines.
    environment: dict[str, str | None] = dict.fromkeys(("FORCE_COLOR", "TTY_COMPATIBLE"))
    environment["SPARKLOG_CLUSTER"] = None if cluster is None else str(cluster)
    result = CliRunner(env=environment).invoke(app, [str(one) for one in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Finished(result.exit_code, result.stdout, result.stderr)


def files_in(folder: Path) -> dict[str, bytes]:
    """Return every file below `folder` with its content, for a check that a command changed
    none.
    """
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
