"""Work of several real processes on the same tables at the same time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa

from sparklog.cluster.roots import BrokerRoot, ClusterRoot
from sparklog.errors import CommitConflictError, FencedError
from sparklog.model import CONTROLLER, TableSchema
from sparklog.storage.control_table import ControlTable, create_table
from sparklog.storage.delta_checkpoints import await_checkpoints
from sparklog.storage.fence import Fence
from sparklog.storage.location import Location
from sparklog.storage.request_appends import RequestAppends
from sparklog.storage.request_table import Added, RequestTable
from tests.storage.requests import request

MOST_WRITES = 2_000

_barrier: Barrier


class Processes:
    """Four processes that are started once and begin their work together; delta-rs does not survive
    a fork.
    """

    count = 4

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(
            self.count, context, _keep, initargs=(context.Barrier(self.count),)
        )

    def start(self, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run `work(number, *arguments)` in each process; return their futures."""
        numbers = range(self.count)
        return [self._pool.submit(_together, work, number, arguments) for number in numbers]

    def run(self, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run `work(number, *arguments)` in each process; return the results."""
        return [future.result() for future in self.start(work, *arguments)]

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown()


def _keep(barrier: Barrier) -> None:
    global _barrier  # noqa: PLW0603 - the pool's processes have no other place for it
    _barrier = barrier


def _together(work: Callable[..., Any], number: int, arguments: tuple[Any, ...]) -> Any:
    _barrier.wait()
    return work(number, *arguments)


def increment(_: int, root: str, times: int) -> None:
    table = ControlTable(Location.of(root), CONTROLLER)

    def change(rows: pa.Table) -> tuple[pa.Table, None]:
        [row] = rows.to_pylist()
        return CONTROLLER.rows([row | {"lease_sequence": row["lease_sequence"] + 1}]), None

    for _ in range(times):
        table.update(change)


def append(number: int, root: str, times: int) -> list[str]:
    """Append this number of requests one by one; return their ids."""
    appends = RequestAppends(Location.of(root))
    ids = [f"{number}-{index}" for index in range(times)]
    for one in ids:
        appends.append([request(one)])
    return ids


def append_requests(number: int, root: str, times: int) -> list[str]:
    """Append this number of requests, each of two batches; return their ids."""
    appends = RequestAppends(Location.of(root))
    ids = [f"{number}-{index}" for index in range(times)]
    for one in ids:
        appends.append([request(one, partition=0), request(one, partition=1)])
    await_checkpoints()
    return ids


def append_or_remove(number: int, root: str, times: int, ends: str) -> list[str]:
    """Append requests in two processes, while the two others remove the requests that they find.

    Return the ids of the requests that this process has appended. A process that has appended all
    of its `times` requests creates a file in the folder `ends`.
    """
    if number > 1:
        ids = append(number, root, times)
        Path(ends, str(number)).touch()
        return ids
    owner = RequestTable(Location.of(root))
    found: Collection[Added] = ()
    are_all_there = False
    while found or not are_all_there:
        are_all_there = len(list(Path(ends).iterdir())) == 2
        owner.refresh()
        found = owner.requests_after(-1).keys()
        # Appends without a pause may preempt a removal each time.
        with suppress(CommitConflictError):
            owner.remove(found)
    return []


def update_or_fence(number: int, root: str, end: str, name: str) -> int:
    """Fence the table in one process, while the others write to it until that is done."""
    table = ControlTable(Location.of(root), CONTROLLER)
    if number:
        while not Path(end).exists():
            assert table.commits < MOST_WRITES, "the fence was kept away"
            table.update(lambda rows: (rows, None))
        return table.commits
    while table.version < Processes.count:
        table.refresh()
    table.take_fence(Fence(name, 1))
    Path(end).touch()
    return table.commits


def fence(number: int, root: str, name: str) -> int | None:
    """Take the fence with an epoch of its own; return the epoch, or `None` if it was refused."""
    taken = Fence(name, number + 1)
    try:
        ControlTable(Location.of(root), CONTROLLER).take_fence(taken)
    except FencedError:
        return None
    return taken.epoch


def create(_: int, root: str, schemas: list[TableSchema]) -> list[str]:
    """Create tables; return the id of each."""
    location = Location.of(root)
    for schema in schemas:
        create_table(location, schema)
    return [ControlTable(location, schema).table_id for schema in schemas]


def create_cluster(_: int, root: str) -> str:
    return ClusterRoot.create(Location.of(root)).cluster_id


def create_broker(number: int, root: str, is_own: bool) -> str:
    """Create a broker root; return the error, or an empty string."""
    try:
        BrokerRoot.create(Location.of(root), "cluster", 7 if is_own else number)
    except Exception as error:  # noqa: BLE001 - the parent process checks it
        return f"{type(error).__name__}: {error}"
    return ""
