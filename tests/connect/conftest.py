"""Programs that run against a server of Spark Connect, each in a process of its own.

Classic sessions and sessions of Spark Connect exclude each other in one process.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.s3_store import await_port

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"


class ConnectServer:
    """A running server, and the programs that are its clients."""

    def __init__(self, log: Path, *jars: Path, environment: dict[str, str] | None = None) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"sc://127.0.0.1:{port}"
        self._environment = environment or {}
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "tests/connect/server.py", str(port), *map(str, jars)],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)} | self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
            )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != b"ready\n":
            raise AssertionError(log.read_text())
        await_port(port, self.process, log)

    def run(self, program: str, *arguments: object, **environment: str) -> Any:
        """Run a program of `tests/connect/programs`, and return the JSON that it prints."""
        return run_program(program, *arguments, SPARK_REMOTE=self.url, **environment)

    def start(self, program: str) -> subprocess.Popen[str]:
        """Start a program, and return its process."""
        return subprocess.Popen(
            [sys.executable, PROGRAMS / program],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "SPARK_REMOTE": self.url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """Stop the server."""
        self.process.communicate()


def run_program(program: str, *arguments: object, **environment: str) -> Any:
    """Run a program in a process of its own, and return the JSON in its last line of output."""
    answer = subprocess.run(
        [sys.executable, PROGRAMS / program, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return json.loads(answer.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """The server of this test process, started at the first use."""
    running = ConnectServer(tmp_path_factory.mktemp("connect") / "log")
    yield running
    running.close()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run these tests in one process, which starts one server; skip them without its packages."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("connect"))
            if find_spec("grpc_status") is None or find_spec("zstandard") is None:
                item.add_marker(pytest.mark.skip("the packages of the extra `connect` are missing"))
