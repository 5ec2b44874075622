"""A server that speaks S3's API (moto) and counts the requests it gets, by what S3 charges for.

python -m benchmarks.s3_server PORT serves until it is ended; GET /_counts tells the counts so far.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs
from urllib.request import Request, urlopen

from sparklog.errors import SparklogError
from sparklog.storage.location import StorageOptions

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

KINDS = ("PUT", "GET", "LIST", "HEAD", "DELETE")
BYTES = "bytes put"

_COUNTS = "/_counts"
_START_SECONDS = 60


class CountingApplication:
    """Passes requests on to `application` and counts them."""

    def __init__(self, application: WSGIApplication) -> None:
        self._application = application
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        if environ["PATH_INFO"] == _COUNTS:
            with self._lock:
                content = json.dumps(self._counts).encode()
            start_response("200 OK", [("Content-Type", "application/json")])
            return [content]
        found = kind(environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"])
        with self._lock:
            self._counts[found] += 1
            if found == "PUT":
                self._counts[BYTES] += int(environ.get("CONTENT_LENGTH") or 0)
        return self._application(environ, start_response)


def kind(method: str, path: str, query: str) -> str:
    """Return which of `KINDS` a request is charged as; one that copies or posts parts is a PUT."""
    asked = parse_qs(query, keep_blank_values=True)
    if method == "GET" and ("list-type" in asked or "/" not in path.strip("/")):
        return "LIST"
    if method == "POST":
        return "DELETE" if "delete" in asked else "PUT"
    return method


class Store:
    """A running server, as its clients see it."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def bucket(self, name: str) -> str:
        """Make a bucket and return its URI."""
        urlopen(Request(f"{self._url}/{name}", method="PUT")).close()
        return f"s3://{name}"

    def options(self) -> StorageOptions:
        """Return the options of the store, in delta-rs's keys."""
        return {
            "s3://": {
                "AWS_ENDPOINT_URL": self._url,
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "an-id",
                "AWS_SECRET_ACCESS_KEY": "a-secret",
            }
        }

    def counts(self) -> Counter[str]:
        """Return how many requests of each kind have been made so far."""
        with urlopen(f"{self._url}{_COUNTS}") as answer:
            return Counter(json.loads(answer.read()))


@contextmanager
def running_store(log: Path) -> Iterator[Store]:
    """Run a server in a process of its own, as one within this process would be starved."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.s3_server", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=Path(__file__).parents[1], stdout=output, stderr=output
        )
    try:
        _await_answer(port, process, log)
        yield Store(port)
    finally:
        process.terminate()
        process.wait()


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


def main() -> None:
    """Serve until the process is ended."""
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import run_simple

    dispatcher: Any = DomainDispatcherApplication(create_backend_app)
    application = CountingApplication(dispatcher)
    port = int(sys.argv[1])
    run_simple("127.0.0.1", port, application, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main()
