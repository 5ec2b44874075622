"""What several real processes do to the same tables at the same time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa

from sparklog.errors import FencedError
from sparklog.model import CONTROLLER, PRODUCE_REQUESTS, TableSchema
from sparklog.storage.control_table import ControlTable, Fence, create_table
from sparklog.storage.location import Location
from sparklog.storage.roots import BrokerRoot, ClusterRoot

MOST_APPENDS = 2_000

_barrier: Barrier


class Processes:
    """Four processes, started once, that set off together. delta-rs does not survive a fork."""

    count = 4

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(
            self.count, context, _keep, initargs=(context.Barrier(self.count),)
        )

    def start(self, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Let each process do `work(number, *arguments)`; return their futures."""
        numbers = range(self.count)
        return [self._pool.submit(_together, work, number, arguments) for number in numbers]

    def run(self, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Let each process do `work(number, *arguments)`; return what each returned."""
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


def append_until(number: int, root: str, end: str) -> list[str]:
    """Append requests one by one until the file `end` is there; return their ids."""
    table = ControlTable(Location.of(root), PRODUCE_REQUESTS)
    ids: list[str] = []
    while not Path(end).exists():
        assert len(ids) < MOST_APPENDS, "the other side was kept away"
        ids.append(f"{number}-{len(ids)}")
        table.append(PRODUCE_REQUESTS.rows([{"request_id": ids[-1]}]))
    return ids


def append_or_fence(number: int, root: str, end: str, name: str) -> int:
    """Fence the table, in one process, while the others append until that is done."""
    if number:
        return len(append_until(number, root, end))
    table = ControlTable(Location.of(root), PRODUCE_REQUESTS)
    while table.version < Processes.count:
        table.refresh()
    table.take_fence(Fence(name, 1))
    Path(end).touch()
    return table.commits


def fence(number: int, root: str, name: str) -> int | None:
    """Take the fence with an epoch of one's own; return it, or `None` where one was refused."""
    taken = Fence(name, number + 1)
    try:
        ControlTable(Location.of(root), CONTROLLER).take_fence(taken)
    except FencedError:
        return None
    return taken.epoch


def create(_: int, root: str, schemas: list[TableSchema]) -> list[str]:
    """Create tables; return the id that each has."""
    location = Location.of(root)
    for schema in schemas:
        create_table(location, schema)
    return [ControlTable(location, schema).table_id for schema in schemas]


def create_cluster(_: int, root: str) -> str:
    return ClusterRoot.create(Location.of(root)).cluster_id


def create_broker(number: int, root: str, is_own: bool) -> str:
    """Create a broker root; return what was said against it."""
    try:
        BrokerRoot.create(Location.of(root), "cluster", 7 if is_own else number)
    except Exception as error:  # noqa: BLE001 - the parent looks at what it was
        return f"{type(error).__name__}: {error}"
    return ""
