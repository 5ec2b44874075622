"""The bytes of batch files compared with the headers in the log: the kinds of damage.

A file is read once, from its beginning to its end, by one request. Its size, its checksum and its
first and last bytes are enough to distinguish the kinds, so the reading may run in a Spark task and
the comparison elsewhere.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import xxhash

from sparklog.model import Batch
from sparklog.storage.location import Location, one_line
from sparklog.storage.parallel import map_in_parallel, process_threads

_READERS = 32
"""Files of object stores that are read in parallel, of which each holds 4 MiB at most."""

FileFault = Literal["damaged_file", "truncated_file", "missing_file", "foreign_file"]
"""The kinds of damage to a batch's file.

damaged_file: the file has other bytes than the batch, but may be the batch's.
truncated_file: the file begins as a batch does and ends too early.
missing_file: there is no file of this name.
foreign_file: the file is another batch's, another Parquet file or no Parquet file.
"""

FILE_FAULTS: tuple[FileFault, ...] = (
    "damaged_file",
    "truncated_file",
    "missing_file",
    "foreign_file",
)

_MAGIC = b"PAR1"
"""The first and last bytes of a Parquet file."""


class NamedFile(NamedTuple):
    """A file to be read: its log, its path there, and its expected size in bytes."""

    log: Location
    path: str
    size_bytes: int


class FileState(NamedTuple):
    """The state of a file as it was read.

    `head` and `tail` are its first and last 4 bytes. `failure` is the reason why it could not be
    read, or `None`.
    """

    size_bytes: int = 0
    checksum: str = ""
    head: bytes = b""
    tail: bytes = b""
    is_missing: bool = False
    is_broken: bool = False
    """Whether the disk cannot read the file (EIO)."""
    failure: str | None = None


def file_state(file: NamedFile) -> FileState:
    """Read a file to its end; a failure is part of the result."""
    digest = xxhash.xxh3_64()
    head = tail = b""
    size_bytes = 0
    try:
        with file.log.open(file.path) as source:
            while chunk := source.read(file.log.chunk_bytes):
                digest.update(chunk)
                size_bytes += len(chunk)
                head = (head + chunk[:4])[:4]
                tail = (tail + chunk[-4:])[-4:]
    except FileNotFoundError:
        return FileState(is_missing=True)
    except OSError as error:
        is_broken = error.errno == errno.EIO
        return FileState(size_bytes, is_broken=is_broken, failure=one_line(error))
    return FileState(size_bytes, digest.hexdigest(), head, tail)


def read_files(files: Sequence[NamedFile]) -> list[FileState]:
    """Read files in parallel in this process; return their states in the same order."""
    is_local = all(file.log.is_local for file in files)
    size_bytes = sum(file.size_bytes for file in files)
    if is_local:
        return map_in_parallel(file_state, files, size_bytes, is_local=True)
    return list(process_threads("scrub", _READERS).map(file_state, files))


def find_fault(
    batch: Batch, state: FileState, known: Mapping[str, Batch]
) -> tuple[FileFault, str] | None:
    """Return the damage to a batch's file and its description, or `None` if the file is sound.

    Parameters: `known`, batches by the checksums of their files, which identify a file under
    another batch's name. Raises `OSError` if the file could not be read for a reason that is not
    damage, such as an unreachable store.
    """
    if state.is_missing:
        return "missing_file", "it is missing"
    if state.failure is not None:
        if not state.is_broken:
            raise OSError(state.failure)
        return "damaged_file", f"it cannot be read: {state.failure}"
    if state.checksum == batch.checksum:
        return None
    of = f"its bytes have checksum {state.checksum}, its header names {batch.checksum}"
    other = known.get(state.checksum)
    if other is not None:
        offsets = f"offsets {other.base_offset} to {other.next_offset - 1}"
        return "foreign_file", f"it has the bytes of {other.topic}-{other.partition}, {offsets}"
    begins, ends = state.head == _MAGIC, state.tail == _MAGIC
    if state.size_bytes < batch.size_bytes and not ends and (begins or not state.size_bytes):
        fault = f"it has {state.size_bytes} bytes of {batch.size_bytes}"
        return "truncated_file", fault
    if not begins and not ends:
        return "foreign_file", f"it is no Parquet file of {batch.size_bytes} bytes"
    if state.size_bytes != batch.size_bytes and begins and ends:
        fault = f"it is another Parquet file, of {state.size_bytes} bytes, not {batch.size_bytes}"
        return "foreign_file", fault
    return "damaged_file", of
