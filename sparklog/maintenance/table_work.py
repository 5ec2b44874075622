"""Work on all tables of a cluster: in parallel where requests to an object store take the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from sparklog.cluster.connection import Connection
from sparklog.model import LOG
from sparklog.storage.location import Location
from sparklog.storage.parallel import map_in_parallel

_Result = TypeVar("_Result")


def online_broker_roots(connection: Connection) -> list[tuple[Location, int]]:
    """Return the online log directories of all brokers, each with the broker's id."""
    return [
        (Location.of(uri, connection.storage_options), broker.broker_id)
        for broker in connection.metadata().brokers.values()
        for uri in broker.online_roots.values()
    ]


def map_tables(
    act: Callable[[Location], _Result], tables: Sequence[Location], *, is_local: bool
) -> list[_Result]:
    """Call `act` with each table; return the results in their order.

    Tables on an object store are worked on in parallel, except for logs: the checkpoint of a log
    may take a large part of the memory. With `is_local` each comes after the one before.
    """
    logs = [table for table in tables if table.uri.endswith(f"/{LOG.name}")]
    others = [table for table in tables if table not in logs]
    done = dict(zip(others, map_in_parallel(act, others, 0, is_local=is_local), strict=True))
    done |= {log: act(log) for log in logs}
    return [done[table] for table in tables]
