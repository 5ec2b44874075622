"""Buckets of an S3 API in memory: objects, conditional writes, listings, multipart uploads.

Invariant: one thread makes all calls, the server's event loop, so that each call is atomic.
"""

from __future__ import annotations

import time
import uuid
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import xxhash

LEAST_PART_BYTES = 5 << 20
"""The least size in bytes of each part of a multipart upload except the last."""


class S3Error(Exception):
    """An error response: an HTTP status and one of S3's error codes."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class StoredObject(NamedTuple):
    """An object; `etag` is quoted and depends only on the content, as in S3."""

    content: bytes
    etag: str
    modified: float


class Listing(NamedTuple):
    """One page of a listing; `next_key` is the start of the next page, `None` on the last."""

    objects: list[tuple[str, StoredObject]]
    prefixes: list[str]
    next_key: str | None


class _Upload(NamedTuple):
    key: str
    parts: dict[int, StoredObject]


class Bucket:
    """The objects of a bucket by key, and its open multipart uploads."""

    def __init__(self) -> None:
        self._objects: dict[str, StoredObject] = {}
        self._keys: list[str] = []
        self._uploads: dict[str, _Upload] = {}

    def get(self, key: str) -> StoredObject:
        """Return an object; raises `S3Error` NoSuchKey if it does not exist."""
        found = self._objects.get(key)
        if found is None:
            raise S3Error(404, "NoSuchKey", f"there is no object {key}")
        return found

    def put(self, key: str, content: bytes, conditions: Mapping[str, str]) -> str:
        """Store an object and return its ETag.

        Parameters: `conditions`, headers in lower case. `if-none-match: *` stores only a new
        object, `if-match: ETag` only replaces the object with this ETag. Raises `S3Error`
        PreconditionFailed (412) otherwise.
        """
        self._check(key, conditions)
        return self._store(key, StoredObject(content, f'"{_digest(content)}"', time.time()))

    def remove(self, key: str) -> None:
        """Remove an object; does nothing if it does not exist, as in S3."""
        if self._objects.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def list(
        self, prefix: str, delimiter: str, start_after: str, begin: str | None, most: int
    ) -> Listing:
        """Return a page of at most `most` keys and common prefixes, sorted.

        Parameters: `begin`, the `next_key` of the page before, which takes precedence over
        `start_after`.
        """
        keys = self._keys
        listing = Listing([], [], None)
        first = prefix if begin is None else begin
        index = bisect_left(keys, max(first, prefix))
        if begin is None and start_after >= first:
            index = bisect_left(keys, _after(start_after))
        while index < len(keys) and keys[index].startswith(prefix):
            key = keys[index]
            if len(listing.objects) + len(listing.prefixes) >= most:
                return listing._replace(next_key=key)
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            if end < 0:
                listing.objects.append((key, self._objects[key]))
                index += 1
                continue
            common = key[: end + len(delimiter)]
            listing.prefixes.append(common)
            index = bisect_left(keys, common[:-1] + chr(ord(common[-1]) + 1), index)
        return listing

    def copy(self) -> Bucket:
        """Return a bucket with the same objects and no open uploads."""
        other = Bucket()
        other._objects = dict(self._objects)
        other._keys = list(self._keys)
        return other

    def age(self, seconds: float) -> None:
        """Set the times of all objects back."""
        for key, one in self._objects.items():
            self._objects[key] = one._replace(modified=one.modified - seconds)

    def begin_upload(self, key: str) -> str:
        """Begin a multipart upload; return its id."""
        upload_id = uuid.uuid4().hex
        self._uploads[upload_id] = _Upload(key, {})
        return upload_id

    def put_part(self, key: str, upload_id: str, number: int, content: bytes) -> str:
        """Store a part, and replace one with the same number; return its ETag."""
        part = StoredObject(content, f'"{_digest(content)}"', time.time())
        self._upload(key, upload_id).parts[number] = part
        return part.etag

    def complete_upload(
        self,
        key: str,
        upload_id: str,
        parts: Sequence[tuple[int, str]],
        conditions: Mapping[str, str],
    ) -> str:
        """Store the object that consists of `parts` (number and ETag each); return its ETag.

        Raises `S3Error` InvalidPartOrder, InvalidPart, EntityTooSmall, and PreconditionFailed as
        `put` does; the upload stays open in these cases.
        """
        upload = self._upload(key, upload_id)
        numbers = [number for number, _ in parts]
        if numbers != sorted(set(numbers)):
            raise S3Error(400, "InvalidPartOrder", f"parts {numbers} are out of order")
        found = [upload.parts.get(number) for number in numbers]
        for part, (number, etag) in zip(found, parts, strict=True):
            if part is None or part.etag.strip('"') != etag.strip('"'):
                raise S3Error(400, "InvalidPart", f"part {number} was not uploaded with {etag}")
        contents = [part.content for part in found if part is not None]
        if not contents:
            raise S3Error(400, "MalformedXML", "an upload has at least one part")
        if any(len(content) < LEAST_PART_BYTES for content in contents[:-1]):
            raise S3Error(400, "EntityTooSmall", f"a part is below {LEAST_PART_BYTES} bytes")
        self._check(key, conditions)
        del self._uploads[upload_id]
        content = b"".join(contents)
        etag = f'"{_digest(content)}-{len(contents)}"'
        return self._store(key, StoredObject(content, etag, time.time()))

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Discard an upload and its parts; raises `S3Error` NoSuchUpload if it does not exist."""
        self._upload(key, upload_id)
        del self._uploads[upload_id]

    def _upload(self, key: str, upload_id: str) -> _Upload:
        found = self._uploads.get(upload_id)
        if found is None or found.key != key:
            raise S3Error(404, "NoSuchUpload", f"there is no upload {upload_id} of {key}")
        return found

    def _check(self, key: str, conditions: Mapping[str, str]) -> None:
        """Raise `S3Error` unless the stored object meets the conditions of a write."""
        found = self._objects.get(key)
        if_none_match, if_match = conditions.get("if-none-match"), conditions.get("if-match")
        if if_none_match is not None:
            if if_none_match != "*":
                raise S3Error(501, "NotImplemented", "If-None-Match of a write is * or absent")
            if found is not None:
                raise S3Error(412, "PreconditionFailed", f"{key} exists (If-None-Match)")
        if if_match is not None:
            if found is None:
                raise S3Error(404, "NoSuchKey", f"there is no object {key} (If-Match)")
            if if_match.strip('"') != found.etag.strip('"'):
                raise S3Error(412, "PreconditionFailed", f"{key} has another ETag (If-Match)")

    def _store(self, key: str, stored: StoredObject) -> str:
        if key not in self._objects:
            insort(self._keys, key)
        self._objects[key] = stored
        return stored.etag


def _digest(content: bytes) -> str:
    """Return a digest of 32 hex digits, like S3's MD5, in a twentieth of its time."""
    return xxhash.xxh3_128_hexdigest(content)


def _after(key: str) -> str:
    """Return the least key that is greater than `key`."""
    return f"{key}\0"
