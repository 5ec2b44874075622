"""Control of the S3 API server: start it, make buckets, set its latency, read counts and log."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

from benchmarks.s3_server import Logged
from sparklog.errors import SparklogError
from sparklog.storage.location import StorageOptions

CLIENT = "client"
"""The access key of clients; brokers in processes of their own have their own keys."""

_START_SECONDS = 60
_TIMEOUT_SECONDS = 60


class Store:
    """A running server, as its clients see it."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def bucket(self, name: str) -> str:
        """Make a bucket and return its URI."""
        self._call("PUT", name)
        return f"s3://{name}"

    def options(self, sender: str = CLIENT) -> StorageOptions:
        """Return the options of the store in delta-rs's keys; requests are counted for `sender`."""
        return {
            "s3://": {
                "AWS_ENDPOINT_URL": self.url,
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": sender,
                "AWS_SECRET_ACCESS_KEY": "a-secret",
            }
        }

    def set_latency(self, milliseconds: float) -> None:
        """Set the latency of the requests that arrive from now on."""
        self._call("POST", f"_latency?ms={milliseconds:g}")

    def counts(self, sender: str | None = None) -> Counter[str]:
        """Return how many requests of each kind one sender, or all, have made so far."""
        found: dict[str, dict[str, int]] = json.loads(self._call("GET", "_counts"))["counts"]
        counts: Counter[str] = Counter()
        for name, one in found.items():
            if sender in (None, name):
                counts.update(one)
        return counts

    def cpu_seconds(self) -> float:
        """Return the CPU time that the server has used so far."""
        return float(json.loads(self._call("GET", "_counts"))["cpu_seconds"])

    @contextmanager
    def logged(self) -> Iterator[list[Logged]]:
        """Give a list that has every request of the `with` block when the block has ended."""
        log: list[Logged] = []
        self._call("POST", "_log")
        try:
            yield log
        finally:
            log += [Logged(*one) for one in json.loads(self._call("GET", "_log"))]

    def _call(self, method: str, path: str) -> bytes:
        request = Request(f"{self.url}/{path}", method=method)
        with urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
            return bytes(answer.read())


@contextmanager
def running_store(log: Path, latency_ms: float = 0.0) -> Iterator[Store]:
    """Run a server in a process of its own, as one within this process would be starved.

    The server ends with the block, and with this process however that ends. Raises
    `SparklogError` if it does not start.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.s3_server", str(port), str(latency_ms)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
        )
    try:
        _await_answer(port, process, log)
        yield Store(port)
    finally:
        process.kill()
        process.communicate()


def _await_answer(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                message = f"the S3 server does not answer: {log.read_text()[-1000:]}"
                raise SparklogError(message) from None
            time.sleep(0.05)
        else:
            return
