"""A broker's log directories: their ids, and the numbers by which the cluster knows them.

A directory's id is the id that Delta gave its `log` table, as Kafka's is `directory.id` (KIP-858).
The broker's row in `brokers` lists the ids; a directory's number is its index in that list, and
`partition_state` assigns replicas to numbers. Invariant: a directory keeps its number as long as
its broker is registered with it, whatever its position in log.dirs and its path.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from sparklog.cluster.root_format import read_format, unusable
from sparklog.cluster.roots import BrokerRoot, ClusterRoot
from sparklog.errors import DamagedError, StorageError
from sparklog.logger import get_logger
from sparklog.storage.control_table import ControlTable
from sparklog.storage.directory_probe import probe
from sparklog.storage.errors import STORE_ERRORS
from sparklog.storage.location import Location, one_line
from sparklog.storage.parallel import map_in_parallel

_log = get_logger(__name__)


class LogDirectory(NamedTuple):
    """A log directory of a broker; `location` is `None` if log.dirs does not have it now.

    `log_version` is the newest version of its log, or the last known one. `has_failed`: whether it
    is in log.dirs and cannot be used, so that its replicas are offline.
    """

    location: Location | None
    table_id: str
    log_version: int
    has_failed: bool = False


def faults_at_start(
    locations: Sequence[Location], owner: tuple[str, int] | None = None
) -> dict[Location, str]:
    """Return the log directories of a broker that cannot be used now, each with the reason.

    Parameters: `owner`, the ids of the cluster and of the broker, whose directories are probed, by
    a file that is written and removed; without it they are only read.
    Raises `StorageError` if none can be used, or if one of several cannot and no other has been
    used yet: at its first start a broker needs all of its directories, since one that is not known
    cannot be distinguished from a typo. A single directory is not examined, and neither is an
    empty place: a new directory is created there.
    """
    if len(locations) == 1:
        return {}

    def fault(location: Location) -> StorageError | bool:
        """Return the fault, or whether there is a log directory at `location`."""
        try:
            found = read_format(location)
            if found is None:
                return False
            if (found.cluster_id, found.broker_id) == owner:
                probe(location)
        except DamagedError:
            # The start is refused with this error when the directory is opened.
            return True
        except StorageError as error:
            return error
        except STORE_ERRORS as error:
            return unusable(f"{location.uri} cannot be used: {one_line(error)}", error)
        return True

    is_local = all(location.is_local for location in locations)
    found = map_in_parallel(fault, locations, 0, is_local=is_local)
    failed = {
        location: one
        for location, one in zip(locations, found, strict=True)
        if isinstance(one, StorageError)
    }
    if failed and True not in found:
        raise next(iter(failed.values()))
    return {location: str(error) for location, error in failed.items()}


def open_log_directories(
    locations: Sequence[Location], cluster: ClusterRoot, broker_id: int
) -> list[BrokerRoot]:
    """Open a broker's log directories, or create them; log which of their tables were damaged.

    A directory whose format is lower than that of `cluster` gets that one.
    """
    version = cluster.format_version

    def create(location: Location) -> BrokerRoot:
        return BrokerRoot.create(location, cluster.cluster_id, broker_id, cluster.formats, version)

    is_local = all(location.is_local for location in locations)
    roots = map_in_parallel(create, locations, 0, is_local=is_local)
    for error in (error for root in roots for error in root.damage.values()):
        _log.error("table starts again empty", broker=broker_id, error=str(error))
    return roots


def number_log_directories(
    brokers: ControlTable,
    broker_id: int,
    roots: Sequence[BrokerRoot],
    failed: Mapping[Location, str] = MappingProxyType({}),
) -> list[LogDirectory]:
    """Return the log directories of a broker, each at its number.

    Parameters: `brokers`, the loaded table of this name; `roots`, the opened roots of the broker's
    log.dirs; `failed`, those that cannot be opened, with the reasons: their paths show which ones
    they are, and they keep their numbers. A directory with a new id takes the number of a missing
    one, preferably of the one that was at its path: the replicas there are copied again. Otherwise
    it gets the next number.
    Raises `StorageError` if two directories have the same id.
    """
    rows: list[dict[str, Any]] = brokers.rows().to_pylist()
    row = next((row for row in rows if row["broker_id"] == broker_id), {})
    found = {root.location: (root.log.table_id, root.log.version) for root in roots}
    _check_distinct_ids({root: table_id for root, (table_id, _) in found.items()})
    known = _known(row)
    numbered: list[LogDirectory] = [
        one._replace(has_failed=True) if one.location in failed else one._replace(location=None)
        for one in known
    ]
    for location, reason in failed.items():
        _log.error("log directory offline", broker=broker_id, root=location.uri, error=reason)
    ids = [one.table_id for one in known]
    new = [root for root in found if found[root][0] not in ids]
    for root, identity in found.items():
        if root not in new:
            numbered[ids.index(identity[0])] = LogDirectory(root, *identity)
    paths = [one.location.uri if one.location else None for one in known]
    # Directories at a known path first, so that no other takes their number.
    for root in sorted(new, key=lambda root: root.uri not in paths):
        missing = [number for number, one in enumerate(numbered) if one.location is None]
        at_path = [number for number in missing if paths[number] == root.uri]
        directory = LogDirectory(root, *found[root])
        if missing:
            number = (at_path or missing)[0]
            _log.warning("log directory replaced", broker=broker_id, number=number, by=root.uri)
            numbered[number] = directory
        else:
            numbered.append(directory)
    for number, one in enumerate(numbered):
        if one.location is None:
            _log.warning("log directory missing", broker=broker_id, number=number)
    return numbered


def _known(row: dict[str, Any]) -> list[LogDirectory]:
    """Return the directories that a broker's row lists, with their last paths as locations."""
    ids = json.loads(row.get("log_table_id") or "[]")
    uris = json.loads(row.get("roots") or "[]")
    versions = json.loads(row.get("log_version") or "[]")
    return [
        LogDirectory(Location(uri) if uri is not None else None, table_id, version)
        for uri, table_id, version in zip(uris, ids, versions, strict=False)
    ]


def _check_distinct_ids(ids: dict[Location, str]) -> None:
    first_with: dict[str, Location] = {}
    for root, table_id in ids.items():
        other = first_with.setdefault(table_id, root)
        if other is not root:
            raise StorageError(
                f"{other.uri} and {root.uri} hold the same log directory (id {table_id}), since "
                "one is a copy of the other: name one of them in log.dirs"
            )
