"""Logs that a query has opened, kept for the next query of the process.

Opening a cluster takes 130 ms, polling it 1 ms.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from sparklog.cluster.committed_logs import CommittedLogs
from sparklog.cluster.connection import Connection
from sparklog.cluster.naming import named_cluster
from sparklog.logger import get_logger
from sparklog.storage.location import Location, StorageOptions, one_line

_log = get_logger(__name__)

_Result = TypeVar("_Result")

_MOST = 4
"""Maximum number of clusters that are kept open; each holds the headers of the batches read."""


class _Place(NamedTuple):
    """The identity of an open cluster; a process that was forked opens its own."""

    process: int
    root: str
    storage_options: str


_kept: OrderedDict[_Place, CommittedLogs] = OrderedDict()
_lock = threading.Lock()


def with_logs(
    cluster: str,
    use: Callable[[CommittedLogs], _Result],
    storage_options: StorageOptions | None = None,
) -> _Result:
    """Return the result of `use` for the logs of `cluster`, a root or a configuration file.

    The logs may be open since an earlier query. If `use` fails with those, it is called again with
    reopened logs, so `use` must not leave anything half done. Raises as `Connection`,
    `named_cluster` and `use` do.
    """
    named = named_cluster(cluster, storage_options)
    root, options = Location.of(named.root).identity, dict(named.storage_options)
    place = _Place(os.getpid(), root, json.dumps(options, sort_keys=True))
    with _lock:
        logs = _kept.pop(place, None)
    if logs is not None:
        try:
            if logs.connection.root.is_in_place():
                return _used(place, logs, use)
        except Exception as error:  # noqa: BLE001 - any error may be due to the open logs
            _log.info("cluster reopened", cluster=root, error=one_line(error))
    connection = Connection(named.root, storage_options=named.storage_options)
    return _used(place, CommittedLogs(connection), use)


def _used(place: _Place, logs: CommittedLogs, use: Callable[[CommittedLogs], _Result]) -> _Result:
    result = use(logs)
    with _lock:
        # Of two concurrent queries, the logs of the later one are kept.
        _kept[place] = logs
        while len(_kept) > _MOST:
            _kept.popitem(last=False)
    return result
