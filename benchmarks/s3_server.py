"""An S3 API server in memory that adds latency, counts requests by price class, and logs them.

`python -m benchmarks.s3_server PORT [MS]` serves until its standard input is closed. A request
takes effect after half its latency and is answered after the other half; requests in parallel wait
in parallel. Signatures are not checked: the access key of a request names its sender. A request
costs the server 0.1 ms of CPU time.

Beside S3's API, below names that no bucket has:

    GET  /_counts          {"counts": {sender: {kind: requests}}, "cpu_seconds": CPU time so far}
    POST /_latency?ms=30   set the latency of the requests that arrive from now on
    POST /_copy?bucket=a&to=b  replace bucket b by a copy of a, with the times of its objects
    POST /_log             forget the log and log from now on
    GET  /_log             stop logging and return the log: fields of `Logged`, in order of effect
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from email.utils import formatdate
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from benchmarks.s3_buckets import Bucket, S3Error, StoredObject

KINDS = ("PUT", "GET", "LIST", "HEAD", "DELETE")
"""The price classes of requests."""

NOT_FOUND = "GET, nothing found"
REFUSED = "PUT, refused"
BYTES = "bytes put"
BYTES_READ = "bytes got"

_HEAD_END = b"\r\n\r\n"
_JOINED_BYTES = 64 << 10
"""The largest content in bytes that is copied after its head, to be sent by one call."""
_MOST_KEYS = 1000
_TIMER_SECONDS = 0.001
"""The event loop rounds waits up to whole ms, so a response is due this much earlier."""
_REASONS = {200: "OK", 204: "No Content", 206: "Partial Content", 304: "Not Modified"}
_XML_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
_NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


class Logged(NamedTuple):
    """A request in the log: `at_ms` since the start of the log; `size_bytes` put or read."""

    at_ms: float
    sender: str
    kind: str
    key: str
    status: int
    size_bytes: int


class Request(NamedTuple):
    """A request; `bucket` and `key` are decoded, and header names are in lower case."""

    method: str
    bucket: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    content: bytes

    @property
    def kind(self) -> str:
        """The kind of `KINDS` that S3 charges for the request."""
        return charged_as(self.method, self.key, self.query)

    @property
    def sender(self) -> str:
        """The access key that has signed the request."""
        before, _, after = self.headers.get("authorization", "").partition("Credential=")
        return after.partition("/")[0] if before else ""


class Response(NamedTuple):
    """A response; `size_bytes` is Content-Length if that differs from `content`, as for HEAD."""

    status: int
    headers: Mapping[str, str] = {}
    content: bytes | memoryview = b""
    size_bytes: int | None = None

    def head(self) -> bytes:
        """Return the status line and the headers."""
        size_bytes = len(self.content) if self.size_bytes is None else self.size_bytes
        lines = [f"HTTP/1.1 {self.status} {_REASONS.get(self.status, 'Error')}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if self.status not in (204, 304):
            lines.append(f"Content-Length: {size_bytes}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


def charged_as(method: str, key: str, query: Mapping[str, str]) -> str:
    """Return the price class of a request; a POST that begins or completes an upload is a PUT."""
    if method == "GET" and not key:
        return "LIST"
    if method == "POST":
        return "DELETE" if "delete" in query else "PUT"
    return method


class S3Api:
    """The buckets with their counts and log; each call of `respond` is atomic."""

    def __init__(self, latency_ms: float = 0.0) -> None:
        self.latency_ms = latency_ms
        self._buckets: dict[str, Bucket] = {}
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._log: list[Logged] | None = None
        self._log_began = 0.0

    def respond(self, request: Request) -> Response:
        """Execute a request, count it, and return its response."""
        if request.bucket.startswith("_"):
            return self._control(request)
        try:
            response = self._answered(request)
        except S3Error as error:
            text = f"<Code>{error.code}</Code><Message>{escape(str(error))}</Message>"
            response = _xml(f"<Error>{text}</Error>", error.status)
            if request.method == "HEAD":
                response = response._replace(content=b"", size_bytes=0)
        self._count(request, response)
        return response

    def _answered(self, request: Request) -> Response:
        if request.headers.get("x-amz-content-sha256", "").startswith("STREAMING"):
            raise S3Error(501, "NotImplemented", "content in signed chunks (aws-chunked)")
        if not request.key:
            return self._of_bucket(request)
        bucket = self._bucket(request.bucket)
        if "uploadId" in request.query or "uploads" in request.query:
            return _of_upload(bucket, request)
        if request.method in ("GET", "HEAD"):
            return _read(bucket.get(request.key), request)
        if request.method == "DELETE":
            bucket.remove(request.key)
            return Response(204)
        if request.method == "PUT" and "x-amz-copy-source" not in request.headers:
            return Response(
                200, {"ETag": bucket.put(request.key, request.content, request.headers)}
            )
        raise _not_implemented(request)

    def _of_bucket(self, request: Request) -> Response:
        if request.method == "PUT":
            self._buckets.setdefault(request.bucket, Bucket())
            return Response(200)
        bucket = self._bucket(request.bucket)
        if request.method == "HEAD":
            return Response(200)
        if request.method == "GET" and request.query.get("list-type") == "2":
            return _listing(bucket, request)
        if request.method == "POST" and "delete" in request.query:
            keys = [element.text or "" for element in _elements(request.content, "Key")]
            for key in keys:
                bucket.remove(key)
            deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            return _xml(f"<DeleteResult {_NAMESPACE}>{deleted}</DeleteResult>")
        if request.method == "DELETE":
            del self._buckets[request.bucket]
            return Response(204)
        raise _not_implemented(request)

    def _bucket(self, name: str) -> Bucket:
        found = self._buckets.get(name)
        if found is None:
            raise S3Error(404, "NoSuchBucket", f"there is no bucket {name}")
        return found

    def _count(self, request: Request, response: Response) -> None:
        kind = request.kind
        counts = self._counts[request.sender]
        counts[kind] += 1
        if kind == "PUT":
            size_bytes = len(request.content)
            counts[BYTES] += size_bytes
            counts[REFUSED] += response.status == 412
        else:
            size_bytes = len(response.content) if kind == "GET" and response.status < 300 else 0
            counts[BYTES_READ] += size_bytes
            counts[NOT_FOUND] += kind == "GET" and response.status == 404
        if self._log is not None:
            at_ms = round((time.monotonic() - self._log_began) * 1000, 1)
            path = f"{request.bucket}/{_logged_key(request)}"
            self._log.append(Logged(at_ms, request.sender, kind, path, response.status, size_bytes))

    def _control(self, request: Request) -> Response:
        asked = request.method, request.bucket
        if asked == ("GET", "_counts"):
            return _json({"counts": self._counts, "cpu_seconds": time.process_time()})
        if asked == ("POST", "_latency"):
            self.latency_ms = float(request.query["ms"])
            return Response(204)
        if asked == ("POST", "_copy"):
            self._buckets[request.query["to"]] = self._buckets[request.query["bucket"]].copy()
            return Response(204)
        if asked == ("POST", "_log"):
            self._log, self._log_began = [], time.monotonic()
            return Response(204)
        if asked == ("GET", "_log"):
            log, self._log = self._log, None
            return _json(log or [])
        return Response(404)


def _logged_key(request: Request) -> str:
    """Return the key of a request, the prefix of a listing, or the first key of DeleteObjects."""
    if request.method == "POST" and "delete" in request.query:
        return next((one.text or "" for one in _elements(request.content, "Key")), "")
    return request.key or request.query.get("prefix", "")


def _read(found: StoredObject, request: Request) -> Response:
    """Return the response to GET or HEAD of an object, or of a range of its bytes."""
    headers = {
        "ETag": found.etag,
        "Last-Modified": formatdate(found.modified, usegmt=True),
        "Accept-Ranges": "bytes",
        "Content-Type": "application/octet-stream",
    }
    if_match = request.headers.get("if-match")
    if if_match is not None and if_match != found.etag:
        raise S3Error(412, "PreconditionFailed", f"{request.key} has another ETag (If-Match)")
    if request.headers.get("if-none-match") == found.etag:
        return Response(304, headers)
    size_bytes = len(found.content)
    if request.method == "HEAD":
        return Response(200, headers, b"", size_bytes)
    given = request.headers.get("range")
    extent = None if given is None else _range(given, size_bytes)
    if extent is None:
        return Response(200, headers, found.content)
    start, end = extent
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{size_bytes}"
    return Response(206, headers, memoryview(found.content)[start:end])


def _range(given: str, size_bytes: int) -> tuple[int, int] | None:
    """Return start and end of a Range header, or `None` if S3 ignores the header.

    Raises `S3Error` InvalidRange (416) if no byte is within it.
    """
    unit, _, extent = given.partition("=")
    first, dash, last = extent.partition("-")
    is_number = all(not text or text.isdecimal() for text in (first, last))
    if unit != "bytes" or not dash or not is_number or not (first or last):
        return None
    if first:
        start, end = int(first), min(int(last) + 1, size_bytes) if last else size_bytes
        if last and int(last) < int(first):
            return None
    else:
        start, end = max(size_bytes - int(last), 0), size_bytes
    if start >= end:
        raise S3Error(416, "InvalidRange", f"{given} is not within {size_bytes} bytes")
    return start, end


def _of_upload(bucket: Bucket, request: Request) -> Response:
    """Return the response to a request of a multipart upload."""
    key, query = request.key, request.query
    upload_id = query.get("uploadId", "")
    names = f"<Key>{escape(key)}</Key>"
    if request.method == "POST" and "uploads" in query:
        upload_id = bucket.begin_upload(key)
        text = f"<Bucket>{request.bucket}</Bucket>{names}<UploadId>{upload_id}</UploadId>"
        kind = "InitiateMultipartUploadResult"
        return _xml(f"<{kind} {_NAMESPACE}>{text}</{kind}>")
    if request.method == "PUT" and "partNumber" in query:
        etag = bucket.put_part(key, upload_id, int(query["partNumber"]), request.content)
        return Response(200, {"ETag": etag})
    if request.method == "POST":
        numbers = [int(one.text or 0) for one in _elements(request.content, "PartNumber")]
        etags = [one.text or "" for one in _elements(request.content, "ETag")]
        if len(numbers) != len(etags):
            raise S3Error(400, "MalformedXML", "each part has a PartNumber and an ETag")
        parts = list(zip(numbers, etags, strict=True))
        etag = bucket.complete_upload(key, upload_id, parts, request.headers)
        text = f"<Bucket>{request.bucket}</Bucket>{names}<ETag>{escape(etag)}</ETag>"
        kind = "CompleteMultipartUploadResult"
        return _xml(f"<{kind} {_NAMESPACE}>{text}</{kind}>")
    if request.method == "DELETE":
        bucket.abort_upload(key, upload_id)
        return Response(204)
    raise _not_implemented(request)


def _listing(bucket: Bucket, request: Request) -> Response:
    """Return the response to ListObjectsV2."""
    query = request.query
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    most = min(int(query.get("max-keys", _MOST_KEYS)), _MOST_KEYS)
    token = query.get("continuation-token")
    begin = None if token is None else base64.urlsafe_b64decode(token).decode()
    page = bucket.list(prefix, delimiter, query.get("start-after", ""), begin, most)
    is_encoded = query.get("encoding-type") == "url"

    def name(key: str) -> str:
        return quote(key, safe="/") if is_encoded else escape(key)

    lines = [
        f"<Name>{request.bucket}</Name><Prefix>{name(prefix)}</Prefix><MaxKeys>{most}</MaxKeys>",
        f"<KeyCount>{len(page.objects) + len(page.prefixes)}</KeyCount>",
        f"<IsTruncated>{str(page.next_key is not None).lower()}</IsTruncated>",
    ]
    if is_encoded:
        lines.append("<EncodingType>url</EncodingType>")
    if delimiter:
        lines.append(f"<Delimiter>{name(delimiter)}</Delimiter>")
    if page.next_key is not None:
        encoded = base64.urlsafe_b64encode(page.next_key.encode()).decode()
        lines.append(f"<NextContinuationToken>{encoded}</NextContinuationToken>")
    for key, stored in page.objects:
        modified = datetime.fromtimestamp(stored.modified, timezone.utc)
        lines.append(
            f"<Contents><Key>{name(key)}</Key>"
            f"<LastModified>{modified:%Y-%m-%dT%H:%M:%S}.{modified.microsecond // 1000:03}Z"
            f"</LastModified><ETag>{escape(stored.etag)}</ETag><Size>{len(stored.content)}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )
    lines += [
        f"<CommonPrefixes><Prefix>{name(one)}</Prefix></CommonPrefixes>" for one in page.prefixes
    ]
    return _xml(f"<ListBucketResult {_NAMESPACE}>{''.join(lines)}</ListBucketResult>")


def _elements(content: bytes, name: str) -> list[ET.Element]:
    """Return all elements with a name, regardless of their namespace."""
    try:
        return ET.fromstring(content).findall(f".//{{*}}{name}")
    except ET.ParseError as error:
        raise S3Error(400, "MalformedXML", f"the request is not XML: {error}") from error


def _xml(text: str, status: int = 200) -> Response:
    return Response(status, {"Content-Type": "application/xml"}, (_XML_HEAD + text).encode())


def _json(value: object) -> Response:
    return Response(200, {"Content-Type": "application/json"}, json.dumps(value).encode())


def _not_implemented(request: Request) -> S3Error:
    return S3Error(501, "NotImplemented", f"{request.method} {dict(request.query)} is not offered")


class Connection(asyncio.Protocol):
    """A persistent HTTP/1.1 connection; its requests are executed one at a time."""

    def __init__(self, api: S3Api) -> None:
        self._api = api
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._pending: tuple[Request, int] | None = None
        self._is_busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport for responses."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Stop responding; pending requests of the sender still take effect, as in S3."""
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """Buffer bytes; begin a request when it is complete."""
        self._received += data
        if not self._is_busy:
            self._begin()

    def _begin(self) -> None:
        """Begin the next request if it was received completely."""
        if self._pending is None:
            end = self._received.find(_HEAD_END)
            if end < 0:
                return
            request = _parsed(bytes(self._received[:end]))
            del self._received[: end + len(_HEAD_END)]
            self._pending = request, int(request.headers.get("content-length", 0))
            if request.headers.get("expect") == "100-continue" and self._transport is not None:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request, size_bytes = self._pending
        if len(self._received) < size_bytes:
            return
        with memoryview(self._received) as view:
            content = bytes(view[:size_bytes])
        del self._received[:size_bytes]
        self._pending = None
        self._is_busy = True
        self._execute(request._replace(content=content))

    def _execute(self, request: Request) -> None:
        """Carry a request out after half of the latency, and answer it after the other half."""
        latency = self._api.latency_ms / 1000
        if not latency or request.bucket.startswith("_"):
            self._send(self._api.respond(request))
            return
        now = self._loop.time()
        due = now + latency - _TIMER_SECONDS
        self._loop.call_at(now + latency / 2, self._carry_out, request, due)

    def _carry_out(self, request: Request, at: float) -> None:
        self._loop.call_at(at, self._send, self._api.respond(request))

    def _send(self, response: Response) -> None:
        self._is_busy = False
        if self._transport is None:
            return
        head = response.head()
        if len(response.content) <= _JOINED_BYTES:
            self._transport.write(head + response.content)
        else:
            self._transport.write(head)
            self._transport.write(response.content)
        if self._received:
            self._loop.call_soon(self._begin_again)

    def _begin_again(self) -> None:
        if not self._is_busy:
            self._begin()


def _parsed(head: bytes) -> Request:
    """Return the request with a head, without its content."""
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    path, _, query = target.partition("?")
    bucket, _, key = path.lstrip("/").partition("/")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    asked = dict(parse_qsl(query, keep_blank_values=True)) if query else {}
    return Request(method, unquote(bucket), unquote(key), asked, headers, b"")


def run(port: int, connection: Callable[[], asyncio.Protocol]) -> None:
    """Serve on a local port until a signal, or the end of the parent process."""
    # Objects are not part of cycles, and a collection would visit all of them.
    gc.disable()
    asyncio.run(_serve(port, connection))


async def _serve(port: int, connection: Callable[[], asyncio.Protocol]) -> None:
    ended = asyncio.Event()
    _end_with_parent(ended)
    server = await asyncio.get_running_loop().create_server(
        connection, "127.0.0.1", port, backlog=1024
    )
    async with server:
        await ended.wait()


def _end_with_parent(ended: asyncio.Event) -> None:
    """Set the event when standard input is closed, which the end of the parent causes."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)

    def read() -> None:
        if not os.read(sys.stdin.fileno(), 1024):
            loop.remove_reader(sys.stdin.fileno())
            ended.set()

    loop.add_reader(sys.stdin.fileno(), read)


def main() -> None:
    """Serve until the process ends."""
    api = S3Api(float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)
    run(int(sys.argv[1]), lambda: Connection(api))


if __name__ == "__main__":
    main()
