"""Control of the S3 API server: starting it, buckets, latency, counts and log."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

from benchmarks.s3_server import Logged
from sparklog.clock import wait_until
from sparklog.errors import SparklogError
from sparklog.storage.location import StorageOptions

CLIENT = "client"
"""The access key of clients; brokers in separate processes have separate keys."""

_START_MS = 60_000
_TIMEOUT_SECONDS = 60


class Store:
    """A client's view of a running server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def bucket(self, name: str) -> str:
        """Create a bucket and return its URI."""
        self._call("PUT", name)
        return f"s3://{name}"

    def remove_bucket(self, name: str) -> None:
        """Remove a bucket with all of its objects, which the server keeps in memory."""
        self._call("DELETE", name)

    def copy_bucket(self, name: str, to: str) -> str:
        """Replace a bucket by a copy of another one, with the times of its objects; return its URI.

        The objects are shared in the server's memory, so a copy takes less than 1 ms for 1,000.
        """
        self._call("POST", f"_copy?bucket={name}&to={to}")
        return f"s3://{to}"

    def options(self, sender: str = CLIENT) -> StorageOptions:
        """Return the storage options in delta-rs's keys; requests are counted for `sender`."""
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
        """Return the number of requests so far by kind, of one sender or of all."""
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
        """Yield a list that is filled with all requests of the block when the block ends."""
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
    """Run a server within the block; raises `SparklogError` if it does not start."""
    with running_server(log, "benchmarks.s3_server", latency_ms) as port:
        yield Store(port)


@contextmanager
def running_server(log: Path, module: str, *arguments: object) -> Iterator[int]:
    """Run a server in a separate process, since one in this process would be starved.

    Its arguments are its port and `arguments`; the port is returned. The server ends with the
    block, or with this process. Raises `SparklogError` if it does not start.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", module, str(port), *map(str, arguments)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
        )
    try:
        await_port(port, process, log)
        yield port
    finally:
        process.kill()
        process.communicate()


def await_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a started server accepts connections.

    Raises `SparklogError` with the end of its log if it ends, or after 60 s.
    """
    is_open, _ = wait_until(
        lambda: (_is_open(port), process.poll() is not None), _START_MS, pause_ms=50, until=any
    )
    if not is_open:
        raise SparklogError(f"the S3 server does not answer: {log.read_text()[-1000:]}")


def _is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
