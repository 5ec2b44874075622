"""Copying of batch files, byte for byte, with their checksums verified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import xxhash

from sparklog.storage.location import Location, one_line
from sparklog.storage.new_file import new_file
from sparklog.storage.parallel import map_in_parallel


class Copy(NamedTuple):
    """A file to be copied from one log table to another, byte for byte."""

    source: Location
    source_path: str
    target: Location
    target_path: str
    size_bytes: int
    checksum: str


class Copied(NamedTuple):
    """The outcome of a copy: the path of the new file, and the failure if there is none."""

    path: str
    fault: str | None


class _ChecksumError(Exception):
    """A file's checksum differs from the one in the log."""


def copy_file(copy: Copy) -> str | None:
    """Copy one file and verify its checksum in the same pass; return the failure, or `None`.

    A failed copy is removed, so that repeated attempts do not fill the disk.
    """
    digest = xxhash.xxh3_64()
    try:
        with (
            copy.source.open(copy.source_path) as source,
            new_file(copy.target, copy.target_path) as target,
        ):
            while chunk := source.read(copy.source.chunk_bytes):
                digest.update(chunk)
                target.write(chunk)
            _check(digest.hexdigest() == copy.checksum)
    except _ChecksumError:
        return f"{copy.source.uri}/{copy.source_path} does not have its checksum {copy.checksum}"
    except OSError as error:
        return f"{copy.source.uri}/{copy.source_path} was not copied: {one_line(error)}"
    return None


def _check(has_checksum: bool) -> None:
    if not has_checksum:
        raise _ChecksumError


def copy_files(copies: Sequence[Copy]) -> list[Copied]:
    """Copy files in the threads of this process; return their outcomes in the order of `copies`."""
    is_local = all(copy.source.is_local and copy.target.is_local for copy in copies)
    size_bytes = sum(copy.size_bytes for copy in copies)
    faults = map_in_parallel(copy_file, copies, size_bytes, is_local=is_local)
    return [Copied(copy.target_path, fault) for copy, fault in zip(copies, faults, strict=True)]
