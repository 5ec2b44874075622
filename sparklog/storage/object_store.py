"""Objects of a store (S3, GCS, Azure) by obstore, one request per call.

obstore repeats a request that fails (503, timeout) up to 10 times within 3 minutes, after waits of
0.1 s to 15 s; the storage options `max_retries`, `retry_timeout`, `init_backoff`, `max_backoff` and
`base` change that.

A request that gets no byte of an answer for `PROMPT_TIMEOUT` is given up: a store or a load
balancer that accepts a request and never answers must not cost a broker its session of 9 s. A read
is repeated, and the rest of a response that was interrupted is requested by its range. A
conditional PUT is not repeated: its outcome is unknown to the caller. Large objects are put with
the store client's 30 s. The storage option `timeout` sets the time of all requests instead.

Errors that a store returns, and failures to reach it, are raised as `OSError`; a missing object is
a `FileNotFoundError`, a refused request an `AccessDeniedError`. Error messages contain no
credentials.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import IO, Any, TypeVar, cast
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import AzureStore, GCSStore, S3Store

from sparklog.counts import STORE_REQUESTS
from sparklog.errors import StorageError
from sparklog.storage.local_files import StoredFile
from sparklog.storage.refusals import READ, REMOVE, WRITE, Operation, refused

PART_BYTES = 8 << 20
"""Bytes of an object that are written by one request; a larger object is put in such parts."""

_READ_BYTES = 4 << 20
"""Bytes of an object that are read at a time, from the response to a single request."""

PAGE_NAMES = 1_000
"""The most names of objects that a store returns to one request."""

PROMPT_TIMEOUT = "4s"
"""The time without a byte after which a request is given up: two of them fit into a session."""

_SMALL_BYTES = 1 << 20
"""The largest object that is put as a small request."""

_STORES: Mapping[str, type[S3Store | GCSStore | AzureStore]] = {
    "s3": S3Store,
    "s3a": S3Store,
    "gs": GCSStore,
    "az": AzureStore,
    "adl": AzureStore,
    "azure": AzureStore,
    "abfs": AzureStore,
    "abfss": AzureStore,
}

_SAME_STORE = {"s3a": "s3", "abfs": "abfss", "adl": "az", "azure": "az"}
"""Schemes of the same store, and the one that stands for them."""

_DURATION = re.compile(r"(\d+)(ms|s|m)")
_Page = TypeVar("_Page")

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}


_REFUSALS = re.compile(r"status code: 40[13]\b|\(code: (AccessDenied)\)")
"""Refusals in errors that obstore does not classify: those of listings and of removals."""

_CODE = re.compile(r"<Code>(\w+)</Code>")
_BODY = re.compile(r"\s*(?:<\?xml[^>]*>)?\s*<Error\b.*(?:</Error>|$)|\s*<\?xml.*", re.DOTALL)
"""A response in XML within an error's text."""
_USER = re.compile(r"//[^/@\s]*:[^/@\s]*@")
"""The user and the password of a URL."""
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")

_OPERATIONS: Mapping[str, Operation] = {
    "get": READ,
    "head": READ,
    "list": "list",
    "put": WRITE,
    "put_new": WRITE,
    "multipart": WRITE,
    "delete": REMOVE,
}
"""The operations by the kinds of requests that are counted."""


class ObjectStore:
    """The client of one bucket or container.

    Parameters: `uri`, any URI within it; `options`, in delta-rs's keys. Raises `StorageError` if an
    option or the URI's scheme is unknown.
    """

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        parts = urlsplit(uri)
        kind = _STORES.get(parts.scheme)
        if kind is None:
            raise StorageError(
                f"{uri} is not in a known store: use one of {', '.join(f'{s}://' for s in _STORES)}"
            )
        root = self._root = f"{parts.scheme}://{parts.netloc}"
        given = _given(options, root)
        try:
            if kind is AzureStore and parts.scheme in ("abfs", "abfss"):
                # container@account.host
                self._store = AzureStore.from_url(root, **given)
                self._prompt = AzureStore.from_url(root, **_prompt(given))
            else:
                self._store = kind(parts.netloc, **given)
                self._prompt = kind(parts.netloc, **_prompt(given))
        except UnknownConfigurationKeyError as error:
            raise StorageError(
                f"a storage option of {root} is not supported ({_first_line(error)}): remove it; "
                "sparklog commits by conditional PUT, without locks"
            ) from None
        except (BaseError, ValueError) as error:
            raise StorageError(
                f"{root} cannot be used: correct it or its storage options ({_first_line(error)})"
            ) from None

    def uri(self, path: str) -> str:
        """Return the URI of an object or folder."""
        return f"{self._root}/{path}"

    def errors_of(self, kind: str, path: str) -> AbstractContextManager[None]:
        """Raise the failures of a part of a request as this module says."""
        return _as_os_error(self.uri(path), kind)

    def _request(self, kind: str, path: str) -> AbstractContextManager[None]:
        """Count a request, and raise its failure as `errors_of` does."""
        STORE_REQUESTS.add(kind)
        return self.errors_of(kind, path)

    def get(self, path: str) -> bytes:
        """Return an object's bytes."""
        with self._request("get", path):
            return bytes(obstore.get(self._prompt, path).bytes())

    def get_with_time(self, path: str) -> tuple[bytes, int]:
        """Return an object's bytes, and the time in ms since 1970 at which the store stored it."""
        with self._request("get", path):
            result = obstore.get(self._prompt, path)
            return bytes(result.bytes()), int(result.meta["last_modified"].timestamp() * 1000)

    def size_bytes(self, path: str) -> int:
        """Return an object's size in bytes, by a HEAD request."""
        with self._request("head", path):
            return obstore.head(self._prompt, path)["size"]

    def open_with_size(self, path: str) -> tuple[IO[bytes], int]:
        """Open an object for sequential reading by one request; return it and its size in bytes."""
        with self._request("get", path):
            result = obstore.get(self._prompt, path)
        reader = io.BufferedReader(_Reader(self.uri(path), result), buffer_size=_READ_BYTES)
        return reader, result.meta["size"]

    def put(self, path: str, content: bytes) -> None:
        """Store an object, and replace an existing one."""
        with self._request("put", path):
            obstore.put(self._writer(content), path, content, use_multipart=False)

    def put_new(self, path: str, content: bytes) -> None:
        """Create an object atomically; raises `FileExistsError` if it exists.

        The existing object may be the caller's: a request is repeated if its response was lost.
        """
        with self._request("put_new", path):
            obstore.put(self._writer(content), path, content, mode="create")

    def create(self, path: str) -> IO[bytes]:
        """Open a new object for writing; it is stored on closing.

        Closing raises `FileExistsError` if a different object exists.
        """
        return cast(IO[bytes], _Writer(self, path))

    def put_parts(self, path: str) -> Any:
        """Return obstore's writer of a large object."""
        with self._request("multipart", path):
            return obstore.open_writer(self._store, path, buffer_size=PART_BYTES)

    def remove(self, path: str) -> None:
        """Remove an object; does nothing if it does not exist."""
        try:
            with self._request("delete", path):
                obstore.delete(self._prompt, path)
        except FileNotFoundError:
            return

    def remove_all(self, paths: Sequence[str]) -> None:
        """Remove objects, up to 1,000 in one request where the store can; missing ones are ignored.

        Raises `OSError` if some could not be removed.
        """
        try:
            with self._request("delete", paths[0] if paths else ""):
                obstore.delete(self._prompt, paths)
        except FileNotFoundError:
            # A store without requests for several objects stops at a missing one.
            for path in paths:
                self.remove(path)

    def files(self, folder: str) -> Iterator[StoredFile]:
        """Yield the objects below `folder` at any depth, by one request for `PAGE_NAMES` of them.

        Their paths are relative to `folder`.
        """
        with _as_os_error(self.uri(folder), "list"):
            found = obstore.list(self._prompt, f"{folder}/", chunk_size=PAGE_NAMES)
            for page in _counted(found):
                for one in page:
                    path = str(one["path"])[len(folder) + 1 :]
                    modified_at_ms = int(one["last_modified"].timestamp() * 1000)
                    yield StoredFile(path, one["size"], modified_at_ms)

    def names(self, folder: str) -> list[str]:
        """Return the sorted names of the objects and folders directly below `folder`."""
        with self._request("list", folder):
            found = obstore.list_with_delimiter(self._prompt, folder or None)
        paths = [*found["common_prefixes"], *(str(one["path"]) for one in found["objects"])]
        return sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in paths)

    def pages(self, folder: str, after: str | None = None) -> Iterator[list[str]]:
        """Yield the names of the objects in `folder` that sort after a name, in ascending order.

        Each page is a request and has `PAGE_NAMES` names, except for the last one.
        """
        offset = None if after is None else f"{folder}/{after}"
        with _as_os_error(self.uri(folder), "list"):
            found = obstore.list(self._prompt, f"{folder}/", offset=offset, chunk_size=PAGE_NAMES)
            for page in _counted(found):
                yield [str(one["path"])[len(folder) + 1 :] for one in page]

    def _writer(self, content: bytes) -> Any:
        return self._prompt if len(content) <= _SMALL_BYTES else self._store


def without_secrets(text: str) -> str:
    """Return an error's text without a store's response, except its code, and without passwords.

    S3 quotes the headers of a request whose signature is wrong, and with them a session token. The
    URL of an endpoint or a proxy may have a user and a password.
    """

    def code(body: re.Match[str]) -> str:
        found = _CODE.search(body[0])
        return f" {found[1]}" if found else ""

    return _USER.sub("//", _BODY.sub(code, text))


def _prompt(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client's arguments with the timeout of answers, unless one is configured."""
    client = given["client_options"] or {}
    if "timeout" not in client:
        client = {"read_timeout": PROMPT_TIMEOUT} | client
    return {**given, "client_options": client}


def same_scheme(uri: str) -> str:
    """Return a URI with the scheme that stands for all names of its store, such as s3 for s3a."""
    scheme, separator, rest = uri.partition("://")
    return f"{_SAME_STORE.get(scheme, scheme)}{separator}{rest}"


@lru_cache(maxsize=256)
def object_store(uri: str, options: tuple[tuple[str, str], ...]) -> ObjectStore:
    """Return the client of a bucket; it is cached, since it keeps connections."""
    return ObjectStore(uri, dict(options))


class _Reader(io.RawIOBase):
    """An object that is read sequentially."""

    def __init__(self, uri: str, result: obstore.GetResult) -> None:
        self._uri = uri
        self._stream = iter(result.stream(min_chunk_size=_READ_BYTES))
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            with _as_os_error(self._uri, "get"):
                self._rest = memoryview(next(self._stream, b""))
        target = memoryview(buffer).cast("B")
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


class _Writer(io.RawIOBase):
    """An object that is written sequentially, by one request if it has `PART_BYTES` at most."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        self._store, self._path = store, path
        self._content = bytearray()
        self._parts: Any = None
        self._has_failed = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._parts is None and len(self._content) + len(view) > PART_BYTES:
            self._parts = self._store.put_parts(self._path)
            self._write_part(bytes(self._content))
            self._content.clear()
        if self._parts is None:
            self._content += view
        else:
            self._write_part(bytes(view))
        return len(view)

    def _write_part(self, content: bytes) -> None:
        try:
            with self._store.errors_of("multipart", self._path):
                self._parts.write(content)
        except BaseException:
            # obstore's writer has lost its path, and would put the rest to the bucket itself.
            self._has_failed = True
            raise

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if self._has_failed:
            return
        if self._parts is not None:
            with self._store.errors_of("multipart", self._path):
                self._parts.close()
            return
        content = bytes(self._content)
        try:
            self._store.put_new(self._path, content)
        except FileExistsError:
            # The response may have been lost and the request repeated: an equal object is this one.
            if self._store.get(self._path) != content:
                raise


@contextmanager
def _as_os_error(uri: str, kind: str) -> Iterator[None]:
    """Raise the failure of a request for the object or folder at `uri` as this module says."""
    try:
        yield
    except (AlreadyExistsError, PreconditionError) as error:
        raise FileExistsError(f"{uri} exists already") from error
    except FileNotFoundError as error:
        raise FileNotFoundError(_first_line(error)) from None
    except NotSupportedError as error:
        raise OSError(
            f"the store cannot put an object only where there is none ({_first_line(error)}): use "
            "one that can, or set conditional_put"
        ) from error
    except (BaseError, OSError) as error:
        # obstore's reader and writer raise `OSError`.
        text = str(error)
        refusal = _REFUSALS.search(text)
        if refusal or isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
            # The response may quote the request with its session token, so only its code is shown.
            code = _CODE.search(text) or refusal
            reason = (code and code[1]) or "no permission, or wrong credentials"
            raise refused(uri, _OPERATIONS[kind], reason) from None
        raise OSError(_first_line(error)) from None


def _counted(pages: Iterable[_Page]) -> Iterator[_Page]:
    """Yield the pages of a listing, and count the requests; a listing of nothing is one request."""
    STORE_REQUESTS.add("list")
    for number, page in enumerate(pages):
        if number:
            STORE_REQUESTS.add("list")
        yield page


def _first_line(error: Exception) -> str:
    """Return the first line of an error, without URL queries, which may contain signatures.

    The body of a response is left out, except its code: some stores quote the request in it.
    """
    return re.sub(r"\?[^\s)]*", "", without_secrets(str(error).strip()).split("\n", 1)[0])


def _given(options: Mapping[str, str], root: str) -> dict[str, Any]:
    """Return obstore's arguments for options in delta-rs's keys: store, client and retries."""
    retries: dict[str, Any] = {}
    backoff: dict[str, Any] = {}
    client: dict[str, Any] = {}
    config: dict[str, Any] = {}
    for name, value in options.items():
        _check_value(name, value, root)
        key = _PREFIX.sub("", name.lower())
        try:
            if key == "max_retries":
                retries[key] = int(value)
            elif key == "retry_timeout":
                retries[key] = _duration(value)
            elif key in ("init_backoff", "max_backoff"):
                backoff[key] = _duration(value)
            elif key == "base":
                backoff[key] = float(value)
            elif key in _CLIENT_OPTIONS:
                client[key] = value
            else:
                config[name] = value
        except ValueError:
            # The value is not shown: it may be a secret under a wrong name.
            raise StorageError(
                f"the storage option {name} of {root} is not usable: give a number, or a time as "
                "10s"
            ) from None
    if backoff:
        retries["backoff"] = backoff
    return {
        "config": config,
        "client_options": client or None,
        "retry_config": retries or None,
    }


def _check_value(name: str, value: str, root: str) -> None:
    """Raise `StorageError` for a value on which the store's client would panic."""
    if _UNPRINTABLE.search(value) and not name.lower().endswith("service_account_key"):
        raise StorageError(
            f"the storage option {name} of {root} has a line break or a control character: remove "
            "it from the value, or from the variable that is referred to"
        )
    if name.lower().endswith(("endpoint", "endpoint_url")):
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.netloc or " " in value:
            raise StorageError(
                f"the storage option {name} of {root} is not a URL: write it as https://host:port"
            )


_PREFIX = re.compile(r"^(aws_|azure_|google_|backoff_config\.)")
_CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_max_frame_size",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "timeout",
        "user_agent",
    }
)
"""The options of the HTTP client, without the prefix that delta-rs accepts."""


def _duration(text: str) -> timedelta:
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    return timedelta(seconds=int(match[1]) * _UNITS[match[2]])
