"""Fixtures of the broker's tests: clusters in local folders, and actions in the middle of a
tick.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparklog.cluster.roots import BrokerRoot, ClusterRoot
from sparklog.protocol.driver_rules import DriverRules
from sparklog.protocol.rules import _ONE_JOB
from sparklog.storage.control_table import ControlTable
from sparklog.storage.delta_log import DeltaLog
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog
from sparklog.storage.request_table import RequestTable
from sparklog.testing import LocalCluster
from tests.broker.failing_disk import FailingDisk

Action = Callable[[], object]


@pytest.fixture(scope="session")
def empty_roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The roots of a newly created cluster of four brokers; copying them is faster than creating
    them.
    """
    folder = tmp_path_factory.mktemp("roots")
    cluster = ClusterRoot.create(Location.of(str(folder / "cluster")))
    for broker in range(4):
        root = Location.of(str(folder / f"broker-{broker}"))
        BrokerRoot.create(root, cluster.cluster_id, broker)
    return folder


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules on Spark are interpreted: most run once or twice, and compiling takes as long as that.

    tests/protocol runs the same texts compiled.
    """
    for key, value in {"wholeStage": "false", "factoryMode": "NO_CODEGEN"}.items():
        monkeypatch.setitem(_ONE_JOB, f"spark.sql.codegen.{key}", value)


@pytest.fixture
def start(tmp_path: Path, empty_roots: Path) -> Callable[..., LocalCluster]:
    """Start a cluster with a topic `t` of one partition on all brokers, led by the first one."""

    def make(
        *brokers: int,
        min_isr: int = 1,
        assignment: dict[int, list[int]] | None = None,
        **config: Any,
    ) -> LocalCluster:
        kafka_keys = {key.replace("_", "."): value for key, value in config.items()}
        for name in ("cluster", *(f"broker-{broker}" for broker in brokers)):
            shutil.copytree(empty_roots / name, tmp_path / "cluster" / name)
        cluster = LocalCluster(tmp_path / "cluster", brokers=brokers, config=kafka_keys)
        cluster.create_topic(
            "t",
            assignment=assignment or {0: list(brokers)},
            configs={"min.insync.replicas": str(min_isr)},
        )
        cluster.tick_until_idle()
        return cluster

    return make


@pytest.fixture
def before_rule(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, Action], None]]:
    """Run an action once within a tick, just before a rule runs next; the test fails if none does.

    Rules that can have no result are not run.
    """
    run = DriverRules.run
    waiting: dict[str, Action] = {}

    def interposed(self: DriverRules, name: str, **inputs: Any) -> list[dict[str, Any]]:
        action = waiting.pop(name, None)
        if action is not None:
            action()
        return run(self, name, **inputs)

    monkeypatch.setattr(DriverRules, "run", interposed)
    yield waiting.__setitem__
    assert not waiting, f"rules that have not run: {', '.join(waiting)}"


@pytest.fixture
def fail_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Make the next access to a table fail once, as on an unavailable store.

    Called with "write" or the name of a method of the table's class, and the end of its URI.
    """

    def arrange(action: str, table: str) -> None:
        owners = {"log": RecordLog, "produce_requests": RequestTable}
        owner: Any = owners.get(table.rsplit("/", 1)[-1], ControlTable)
        if action == "write":
            owner = DeltaLog
        name = "commit" if action == "write" else action
        original = getattr(owner, name)
        left = [1]

        def failing(of: Any, *args: Any, **options: Any) -> Any:
            is_meant = of.location.uri.endswith(table) and args[:1] != ("FENCE",)
            if left and is_meant:
                left.pop()
                raise OSError(f"{table} is away")
            return original(of, *args, **options)

        monkeypatch.setattr(owner, name, failing)

    return arrange


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingDisk:
    """The local file system, of which folders can be made to fail."""
    return FailingDisk(monkeypatch)


@pytest.fixture
def rules_run(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the rules that have run since the fixture was requested, in order."""
    run = DriverRules.run
    names: list[str] = []

    def noted(self: DriverRules, name: str, **inputs: Any) -> list[dict[str, Any]]:
        names.append(name)
        return run(self, name, **inputs)

    monkeypatch.setattr(DriverRules, "run", noted)
    return names
