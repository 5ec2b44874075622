"""The S3 API server of the benchmarks with faults, and buckets that are away.

`python -m tests.faults.faulty_store PORT MS SHARE SEED SECONDS` fails that share of requests by
503, 500, a closed connection or no answer for SECONDS; half of them before and half of them after
the request was carried out. Beside the server's own control paths:

    POST /_faults?share=0     set the share of requests that fail
    POST /_away?bucket=NAME   answer 503 for that bucket; an empty name ends it
    GET  /_faults             the number of faults so far by kind
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request as Call
from urllib.request import urlopen

from benchmarks.s3_server import Connection, Request, Response, S3Api
from benchmarks.s3_store import Store, await_port

KINDS = {"503": 10, "500": 5, "reset": 4, "hang": 1}
"""The kinds of faults and their weights; a hang costs much more time than its share."""

_CODES = {"503": "SlowDown", "500": "InternalError"}


class Faults:
    """The faults of the server, which all connections share."""

    def __init__(self, share: float, seed: int, hang_seconds: float = 10.0) -> None:
        self.share = share
        self.hang_seconds = hang_seconds
        self.away = ""
        self.counts: Counter[str] = Counter()
        self._random = random.Random(seed)

    def draw(self) -> tuple[str, bool] | None:
        """Return the kind of the next request's fault, and whether it is carried out; or `None`."""
        if self._random.random() >= self.share:
            return None
        [kind] = self._random.choices(list(KINDS), list(KINDS.values()))
        is_carried_out = self._random.random() < 0.5
        self.counts[f"{kind} {'after' if is_carried_out else 'before'}"] += 1
        return kind, is_carried_out


class FaultyConnection(Connection):
    """A connection whose requests fail as `Faults` says."""

    def __init__(self, api: S3Api, faults: Faults) -> None:
        super().__init__(api)
        self._faults = faults

    def _execute(self, request: Request) -> None:
        if request.bucket in ("_faults", "_away"):
            self._send(self._control(request))
            return
        if request.bucket.startswith("_") or (not request.key and request.method == "PUT"):
            super()._execute(request)  # control, and the creation of buckets
            return
        if request.bucket == self._faults.away:
            self._fail("503")
            return
        fault = self._faults.draw()
        if fault is None:
            super()._execute(request)
            return
        kind, is_carried_out = fault
        if is_carried_out:
            self._api.respond(request)
        self._loop.call_later(self._api.latency_ms / 1000, self._fail, kind)

    def _control(self, request: Request) -> Response:
        if request.method == "GET":
            return Response(200, {}, json.dumps(self._faults.counts).encode())
        if request.bucket == "_faults":
            self._faults.share = float(request.query["share"])
        else:
            self._faults.away = request.query["bucket"]
        return Response(204)

    def _fail(self, kind: str) -> None:
        if kind in _CODES:
            text = f"<Error><Code>{_CODES[kind]}</Code><Message>a fault</Message></Error>"
            self._send(Response(int(kind), {"Content-Type": "application/xml"}, text.encode()))
        elif kind == "hang":
            self._loop.call_later(self._faults.hang_seconds, self._fail, "reset")
        elif self._transport is not None:
            self._transport.abort()


class FaultyStore(Store):
    """A client's view of the running server, and its faults."""

    def set_share(self, share: float) -> None:
        """Set the share of requests that fail."""
        self._control(f"_faults?share={share}")

    def set_away(self, bucket: str) -> None:
        """Let a bucket be away; an empty name ends it."""
        self._control(f"_away?bucket={bucket}")

    def faults(self) -> dict[str, int]:
        """Return the number of faults so far by kind."""
        with urlopen(f"{self.url}/_faults", timeout=60) as answer:
            found: dict[str, int] = json.loads(answer.read())
        return found

    def _control(self, path: str) -> None:
        urlopen(Call(f"{self.url}/{path}", method="POST"), timeout=60).close()


@contextmanager
def running_faulty_store(
    log: Path, latency_ms: float, share: float, seed: int, hang_seconds: float = 10.0
) -> Iterator[FaultyStore]:
    """Run a server in a process of its own within the context."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = [str(one) for one in (port, latency_ms, share, seed, hang_seconds)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.faulty_store", *given],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        await_port(port, process, log)
        yield FaultyStore(port)
    finally:
        process.kill()
        process.wait()


async def serve(port: int, latency_ms: float, faults: Faults) -> None:
    """Serve until the process ends."""
    api = S3Api(latency_ms)
    server = await asyncio.get_running_loop().create_server(
        lambda: FaultyConnection(api, faults), "127.0.0.1", port, backlog=1024
    )
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    gc.disable()  # as the server of the benchmarks does
    port, latency_ms, *given = sys.argv[1:]
    share, seed, hang_seconds = given
    asyncio.run(
        serve(int(port), float(latency_ms), Faults(float(share), int(seed), float(hang_seconds)))
    )
