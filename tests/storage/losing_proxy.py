"""A proxy before an S3 API that executes requests and loses the answers of some of them.

It is a process of its own, because delta-rs holds the interpreter's lock while it waits for some
answers. `python -m tests.storage.losing_proxy URL` prints its own URL and serves until it is ended.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

Way = Literal["500", "reset", "hang"]
"""An internal error in place of the answer, a connection that ends without an answer, or one that
stays open without an answer until the client closes it."""

_PATIENCE_S = 20
"""Seconds that a client may wait for an answer before the proxy counts it as patient."""

_LOSE, _LOST, _GIVEN_UP = "/_lose/", "/_lost", "/_given-up"
_PASSED_ON = ("content-type", "etag", "last-modified", "x-amz-request-id", "content-range")


class LosingProxy:
    """The proxy as a test controls it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def lose_next(self, way: Way, what: str = "_delta_log", method: str = "PUT") -> None:
        """Lose the answer of the next conditional PUT, or of the next GET, below a folder `what`.

        The request is executed. By default that is the next commit.
        """
        urlopen(Request(f"{self.url}{_LOSE}{way}/{what}/{method}", method="POST")).close()

    @property
    def lost(self) -> int:
        """The number of lost answers."""
        with urlopen(f"{self.url}{_LOST}") as answer:
            return int(answer.read())

    @property
    def given_up(self) -> int:
        """The number of requests without an answer of which the client has closed the connection
        within 20 s.
        """
        with urlopen(f"{self.url}{_GIVEN_UP}") as answer:
            return int(answer.read())


@contextmanager
def losing_proxy(url: str) -> Iterator[LosingProxy]:
    """Run a proxy before the store at `url` within the context."""
    command = [sys.executable, "-m", "tests.storage.losing_proxy", url]
    checkout = Path(__file__).parents[2]
    process = subprocess.Popen(command, cwd=checkout, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield LosingProxy(process.stdout.readline().strip())
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = urlsplit(target).netloc
        self.way: str | None = None
        self.what = self.method = ""
        self.lost = 0
        self.given_up = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        return

    def __getattr__(self, name: str) -> Callable[[], None]:
        # The server asks for do_GET, do_PUT and so on.
        if not name.startswith("do_"):
            raise AttributeError(name)
        return partial(self._serve, name.removeprefix("do_"))

    def _serve(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path.startswith(_LOSE):
            asked = self.path.removeprefix(_LOSE).split("/")
            self.server.way, self.server.what, self.server.method = asked
            self._answer(200, {}, b"")
        elif self.path == _LOST:
            self._answer(200, {}, str(self.server.lost).encode())
        elif self.path == _GIVEN_UP:
            self._answer(200, {}, str(self.server.given_up).encode())
        else:
            self._pass_on(method, body)

    def _pass_on(self, method: str, body: bytes) -> None:
        connection = http.client.HTTPConnection(self.server.target, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name != "host"}
        connection.request(method, self.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        kept = {name: answer.headers[name] for name in _PASSED_ON if name in answer.headers}
        is_of_kind = method == "GET" or (method == "PUT" and "if-none-match" in self.headers)
        is_meant = method == self.server.method and f"/{self.server.what}/" in self.path
        if is_of_kind and is_meant and answer.status == 200 and self.server.way is not None:
            way, self.server.way = self.server.way, None
            self.server.lost += 1
            if way == "hang":
                self.connection.settimeout(_PATIENCE_S)
                with suppress(TimeoutError):
                    self.server.given_up += self.connection.recv(1) == b""
            if way in ("reset", "hang"):
                self.close_connection = True
                self.connection.close()
                return
            self._answer(500, {}, b"<Error><Code>InternalError</Code></Error>")
        elif method == "HEAD":
            self._answer(answer.status, kept, b"", answer.headers.get("content-length", "0"))
        else:
            self._answer(answer.status, kept, content)

    def _answer(
        self, status: int, headers: dict[str, str], content: bytes, length: str | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", length or str(len(content)))
        self.end_headers()
        self.wfile.write(content)


if __name__ == "__main__":
    served = _Server(sys.argv[1])
    print(f"http://127.0.0.1:{served.server_port}", flush=True)
    served.serve_forever()
