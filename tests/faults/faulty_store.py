"""The S3 API server of the benchmarks with faults, and buckets that are away.

`python -m tests.faults.faulty_store PORT MS SHARE SEED SECONDS` fails that share of requests by
503, 500, a closed connection or no answer for SECONDS; half of them before and half of them after
the request was carried out. Beside the server's own control paths:

    POST /_faults?share=0     set the share of requests that fail
    POST /_away?bucket=NAME   answer 503 for that bucket; an empty name ends it
    POST /_lists?lag=5        half of the lists leave out the objects of the last 5 s
    GET  /_faults             the number of faults so far by kind
"""

from __future__ import annotations

import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from urllib.request import Request as Call
from urllib.request import urlopen

from benchmarks.s3_server import Connection, Request, Response, S3Api, run
from benchmarks.s3_store import Store, running_server

KINDS = {"503": 10, "500": 5, "reset": 4, "hang": 1}
"""The kinds of faults and their weights; a hang costs much more time than its share."""

_CODES = {"503": "SlowDown", "500": "InternalError"}


class Faults:
    """The faults of the server, which all connections share."""

    def __init__(self, share: float, seed: int, hang_seconds: float = 10.0) -> None:
        self.share = share
        self.hang_seconds = hang_seconds
        self.away = ""
        self.list_lag_seconds = 0.0
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

    def lag_of_list(self) -> float:
        """Return the age in seconds from which on objects are in the next list."""
        if not self.list_lag_seconds or self._random.random() < 0.5:
            return 0.0
        self.counts["late list after"] += 1
        return self.list_lag_seconds


class FaultyApi(S3Api):
    """Buckets whose lists lag as `Faults` says."""

    def __init__(self, latency_ms: float, faults: Faults) -> None:
        super().__init__(latency_ms)
        self._faults = faults

    def respond(self, request: Request) -> Response:
        """Execute a request; a list may leave out the newest objects."""
        response = super().respond(request)
        if request.kind != "LIST" or request.bucket.startswith("_") or response.status != 200:
            return response
        lag = self._faults.lag_of_list()
        if not lag:
            return response
        newest = datetime.fromtimestamp(time.time() - lag, timezone.utc).isoformat()
        shown = _OBJECT.sub(
            lambda found: b"" if found[1].decode() > newest else found[0], bytes(response.content)
        )
        return response._replace(content=shown)


_OBJECT = re.compile(
    rb"<Contents><Key>[^<]*</Key><LastModified>([^<]*)</LastModified>.*?</Contents>"
)


class FaultyConnection(Connection):
    """A connection whose requests fail as `Faults` says."""

    def __init__(self, api: S3Api, faults: Faults) -> None:
        super().__init__(api)
        self._faults = faults

    def _execute(self, request: Request) -> None:
        if request.bucket in ("_faults", "_away", "_lists"):
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
        elif request.bucket == "_lists":
            self._faults.list_lag_seconds = float(request.query["lag"])
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

    def set_list_lag(self, seconds: float) -> None:
        """Let half of the lists leave out the objects of the last seconds."""
        self._control(f"_lists?lag={seconds}")

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
    given = (latency_ms, share, seed, hang_seconds)
    with running_server(log, "tests.faults.faulty_store", *given) as port:
        yield FaultyStore(port)


def main(port: str, latency_ms: str, share: str, seed: str, hang_seconds: str) -> None:
    """Serve until the process or its parent ends."""
    faults = Faults(float(share), int(seed), float(hang_seconds))
    api = FaultyApi(float(latency_ms), faults)
    run(int(port), lambda: FaultyConnection(api, faults))


if __name__ == "__main__":
    main(*sys.argv[1:])
