"""The probe of a log directory: whether its files can be written, read and removed now.

A failed operation does not say where its fault is: the cluster root, another broker's root or a
single file may be unreadable. The probe asks the directory itself. It is run only after a failure,
and takes four requests on an object store.
"""

from __future__ import annotations

import errno
import uuid
from contextlib import suppress

from sparklog.errors import AccessDeniedError
from sparklog.model import FORMAT, LOG
from sparklog.storage.commits import first_commit
from sparklog.storage.delta_log_files import LOG_FOLDER
from sparklog.storage.errors import STORE_ERRORS
from sparklog.storage.location import Location, one_line

_CONTENT = b"probe of a log directory; may be removed\n"

_TRANSIENT = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EAGAIN,
        errno.EINTR,
        errno.ETIMEDOUT,
        errno.EBUSY,
    }
)
"""Errors of a file system that may be over with the next attempt: no space, memory, descriptor."""


class ProbeError(OSError):
    """A log directory cannot be used; `is_lasting` if no later attempt is expected to succeed."""

    def __init__(self, message: str, *, is_lasting: bool) -> None:
        super().__init__(message)
        self.is_lasting = is_lasting


def probe(root: Location) -> None:
    """Write, read and remove a file in the log of the log directory at `root`.

    Raises `ProbeError`. Lasting errors: the directory, its `format` or its `log` is missing or was
    replaced by a file, access is denied, or the disk reports an error (EIO, a read-only file
    system). Not lasting are a full disk, and errors of a store that its client has retried.
    """
    path = f"{LOG_FOLDER}/.{uuid.uuid4().hex}.tmp"
    log = root.child(LOG.name)
    try:
        has_format = first_commit(root.child(FORMAT.name)) is not None
        try:
            log.put_new(path, _CONTENT)
            is_whole = log.read_bytes(path) == _CONTENT
        except STORE_ERRORS:
            # The write may have taken effect.
            with suppress(*STORE_ERRORS):
                log.remove(path)
            raise
        log.remove(path)
    except STORE_ERRORS as error:
        raise ProbeError(one_line(error), is_lasting=_is_lasting(root, error)) from error
    if not has_format:
        raise ProbeError(f"there is no table format in {root.uri} any more", is_lasting=True)
    if not is_whole:
        raise ProbeError(f"{root.uri} returns other bytes than were written", is_lasting=True)


def _is_lasting(root: Location, error: Exception) -> bool:
    if not root.is_local:
        return isinstance(error, (AccessDeniedError, FileNotFoundError))
    return isinstance(error, OSError) and error.errno not in _TRANSIENT
