"""Log directories that were moved to another URI, and copies of them that are out of date.

A directory is known by its id, so a copy of it has the same id. The broker's row in `brokers` names
the URI of the one that was used last. A start with another URI is a move if that copy has
everything of the one that was used last, and is refused if the latter has gone on.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping

from sparklog.cluster.roots import BrokerRoot
from sparklog.errors import StorageError
from sparklog.logger import get_logger
from sparklog.model import LOG, Row
from sparklog.states import RUNNING_STATES
from sparklog.storage.commits import commit_content
from sparklog.storage.delta_log_files import LOG_FOLDER, newest_version
from sparklog.storage.delta_snapshots import table_identity
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.fence import Fence
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog

_log = get_logger(__name__)


def left_copies(
    row: Row | None,
    opened: Mapping[int, BrokerRoot],
    locate: Callable[[str], Location],
) -> list[Location]:
    """Return the directories that were used last, where the broker starts with copies of them.

    Parameters: `row`, the broker's row in `brokers`; `opened`, the roots of its log.dirs by number;
    `locate`, returns the location of a URI. Directories that are gone, or cannot be read, are left
    out. Raises `StorageError` if a copy lacks what the directory that was used last has.
    """
    uris = json.loads(row["roots"]) if row is not None else []
    left = []
    for number, root in opened.items():
        uri = uris[number] if number < len(uris) else None
        if uri is None or locate(uri).identity == root.location.identity:
            continue
        used = locate(uri)
        try:
            if not _is_copy(used, root):
                continue
            version = newest_version(used.child(LOG.name))
            has_all = _commit(used, version) == _commit(root.location, version)
        except UNREADABLE as error:
            _log.info("earlier log directory not compared", root=uri, error=str(error))
            continue
        if not has_all:
            raise StorageError(
                f"{root.location.uri} is a copy of {uri}, which broker {row and row['broker_id']} "
                f"has used since (its log has version {version}, the copy {root.log.version}): "
                f"name {uri} in log.dirs, or copy it again while the broker is stopped; if the "
                "copy is meant nevertheless, move the other one away"
            )
        _log.info("log directory moved", number=number, root=root.location.uri, before=uri)
        left.append(used)
    return left


def fence_copies(row: Row | None, left: Iterable[Location], broker_epoch: int) -> None:
    """Fence the process that may still use the copies that were left, by the new broker epoch.

    A process that ended cleanly uses them no more: nothing is written then. A failure is logged,
    since the process also finds the new registration, when it reads `brokers` next.
    """
    if row is None or row["state"] not in RUNNING_STATES:
        return
    for root in left:
        try:
            RecordLog(root).take_fence(Fence("broker_epoch", broker_epoch))
        except UNREADABLE as error:
            _log.warning("earlier log directory not fenced", root=root.uri, error=str(error))


def _is_copy(used: Location, root: BrokerRoot) -> bool:
    """Return whether `used` has the id of `root`, and is another directory."""
    if table_identity(used.child(LOG.name))[0] != root.log.table_id:
        return False
    # One directory may have two names: a link, another mount, another endpoint of the store.
    name = f"{LOG_FOLDER}/.{uuid.uuid4().hex}.tmp"
    log = root.location.child(LOG.name)
    try:
        log.put_new(name, b"names of a log directory are compared; may be removed\n")
        return not used.child(LOG.name).exists(name)
    finally:
        log.remove(name)


def _commit(root: Location, version: int) -> bytes | None:
    return commit_content(root.child(LOG.name), version)
