"""`sparklog --version`, and completion in shells."""

from __future__ import annotations

import os
import subprocess
import sys

import sparklog
from tests.cli.command_line import run

MAIN = "from sparklog.cli import main; main()"


def completed(line: str) -> list[str]:
    """Return the words that bash offers at the end of a line."""
    environment = {
        "_SPARKLOG_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    found = subprocess.run(
        [sys.executable, "-c", MAIN],
        env=dict(os.environ) | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, "")
    return found.stdout.split()


def test_the_version_needs_no_command_and_no_cluster() -> None:
    assert run("--version").printed == f"sparklog {sparklog.__version__}\n"


def test_commands_and_options_are_completed() -> None:
    assert completed("sparklog topics de") == ["delete", "describe"]
    offered = completed("sparklog topics describe --under")
    assert offered == ["--under-replicated-partitions", "--under-min-isr-partitions"]


def test_help_offers_to_install_completion() -> None:
    said = run("--help").stdout
    assert "--install-completion" in said
    assert "--show-completion" in said
