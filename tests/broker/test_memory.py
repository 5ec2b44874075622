"""Containers that live as long as a process: their sizes do not grow with its age."""

from __future__ import annotations

import gc
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from sparklog.cluster.observations import FORGOTTEN_MS, Observations
from sparklog.logger import MOST_FAILURES, RepeatedFailures, get_logger
from sparklog.producer.produce_requests import PendingProduce
from sparklog.storage import delta_checkpoints
from sparklog.storage.content_cache import ContentCache
from sparklog.storage.delta_checkpoints import DueCheckpoints, await_checkpoints
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster
from sparklog.testing.local_cluster import round_of_ticks
from tests.broker.states import error

ROUNDS = 3_400
"""Rounds of two brokers; each has three ticks a broker: 20,400 ticks."""

BOUND_OTHERWISE = {
    "RecordLog._removed",
    "Journal._removed",
    "ContentCache._values",
    "Observations._versions",
}
"""The paths of all batches that were ever removed (rule 3.7); a cache with a bound in bytes; what
is forgotten by the tests below."""

CONTAINERS = (dict, list, set, frozenset, deque)


def sizes(*roots: object) -> dict[str, int]:
    """Return the largest size of each container that is reachable, by its class and attribute."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    waiting: list[tuple[str, object]] = [("", one) for one in roots]
    while waiting:
        name, one = waiting.pop()
        if id(one) in seen or isinstance(one, (str, bytes, int, float, type, ModuleType)):
            continue
        seen.add(id(one))
        if isinstance(one, CONTAINERS):
            found[name] = max(found.get(name, 0), len(one))
            members = [*one.keys(), *one.values()] if isinstance(one, dict) else list(one)
            waiting += ((f"{name}[]", member) for member in members)
        elif isinstance(one, tuple):
            waiting += ((name, member) for member in one)
        else:
            waiting += attributes(one)
    return found


def attributes(one: object) -> Iterator[tuple[str, object]]:
    """Yield the attributes of an object of this package, and the variables of its closures."""
    if isinstance(one, Callable) and hasattr(one, "__closure__"):  # type: ignore[arg-type]
        for cell in one.__closure__ or ():
            yield one.__qualname__, cell.cell_contents  # type: ignore[attr-defined]
    if type(one).__module__.startswith("sparklog"):
        for name, value in vars(one).items() if hasattr(one, "__dict__") else ():
            yield f"{type(one).__name__}.{name}", value


def modules() -> list[object]:
    """Return the global containers of the package's modules, and the objects that hold some."""
    return [
        value
        for name, module in list(sys.modules.items())
        if name.startswith("sparklog") and module is not None
        for value in vars(module).values()
        if isinstance(value, CONTAINERS) or type(value).__module__.startswith("sparklog")
    ]


def test_no_container_grows_in_20000_ticks(tmp_path: Path) -> None:
    """Producers come and go, batches are merged, a broker restarts; the state stays small."""
    config = {
        "producer.id.expiration.ms": 60_000,
        "log.merger.min.lag.ms": 0,
    }
    options = {"/": {"sync": "false"}}
    cluster = LocalCluster(tmp_path, [0, 1], config=config, storage_options=options)
    cluster.create_topic("t", assignment={0: [0, 1]})
    cluster.tick_until_idle()
    pending: PendingProduce | None = None
    measured: list[dict[str, int]] = []
    for number in range(ROUNDS):
        if number % 10 == 0:
            assert pending is None or error(pending) == "NONE"
            producer = cluster.idempotent_producer()
            pending = cluster.produce("t", 0, [b"v"], producer=producer)
        cluster.clock.advance(1_000)
        round_of_ticks(list(cluster.brokers.values()))
        if number % 200 == 199:
            cluster.tick_until_idle()
            for broker in (0, 1):
                cluster.merge(broker)
            cluster.crash(1)
            cluster.restart(1)
            cluster.tick_until_idle()
        if number + 1 in (1_800, ROUNDS):
            await_checkpoints()
            measured.append(sizes(cluster, *modules()))
    before, after = measured
    grown = {
        name: (before.get(name, 0), size)
        for name, size in after.items()
        if size > max(16, 1.25 * before.get(name, 0)) and name not in BOUND_OTHERWISE
    }
    assert grown == {}
    caches = [one for one in gc.get_objects() if isinstance(one, ContentCache)]
    assert caches
    assert all(one._kept_bytes <= one._most_bytes for one in caches)


def test_an_observation_that_is_not_made_any_more_is_forgotten() -> None:
    """Registrations and leases have ever new epochs; those that are observed keep their times."""
    observations = Observations()
    largest = 0
    for epoch in range(5_000):
        now_ms = epoch * 10_000
        observations.observe(("broker", epoch), "row", now_ms)
        observations.observe_version(("lease", epoch), 1, now_ms)
        assert observations.observe("controller", "the same", now_ms) == 0
        assert observations.observe_version("journal", 7, now_ms) == 0
        largest = max(largest, observations.count)
    assert largest <= 8 * FORGOTTEN_MS // 10_000


def test_failures_with_ever_new_texts_are_forgotten() -> None:
    """The ones that were logged longest ago go; a failure that repeats is logged once a minute."""
    now = [0.0]
    failures = RepeatedFailures(get_logger("sparklog.test"), lambda: now[0])
    for number in range(3 * MOST_FAILURES):
        now[0] += 1
        failures.warning(f"version {number}", "failed")
        failures.warning("the same", "failed")
    assert len(failures._known) == MOST_FAILURES
    assert failures.over("the same")
    assert not failures.over("version 0")


def test_a_table_waits_for_its_checkpoint_at_most_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a slow checkpoint is written, others become due again and again."""
    begun, go_on = threading.Event(), threading.Event()
    written: list[str] = []

    def slow(table: Location) -> None:
        begun.set()
        go_on.wait()
        written.append(Path(table.uri).name)

    monkeypatch.setattr(delta_checkpoints, "_write_checkpoint", slow)
    due = DueCheckpoints()
    tables = [Location.of(str(tmp_path / name)) for name in "abc"]
    due.start(tables[0])
    begun.wait()
    for _ in range(100):
        for table in tables:
            due.start(table)
    assert len(due) == 3
    go_on.set()
    due.wait()
    assert written == ["a", "a", "b", "c"]
    assert len(due) == 0
