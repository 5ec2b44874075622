"""What the tests of the broker share: clusters in a folder, and a hand inside a tick."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from sparklog.protocol.rules import DuckDBRules
from sparklog.storage.control_table import ControlTable
from sparklog.testing import LocalCluster

Action = Callable[[], object]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., LocalCluster]:
    """Start a cluster with a topic `t` of one partition on all brokers, the first one leading."""

    def make(
        *brokers: int,
        min_isr: int = 1,
        assignment: dict[int, list[int]] | None = None,
        **config: Any,
    ) -> LocalCluster:
        kafka_keys = {key.replace("_", "."): value for key, value in config.items()}
        cluster = LocalCluster(tmp_path / "cluster", brokers=brokers or (0, 1), config=kafka_keys)
        cluster.create_topic(
            "t",
            assignment=assignment or {0: list(brokers or (0, 1))},
            configs={"min.insync.replicas": str(min_isr)},
        )
        cluster.tick_until_idle()
        return cluster

    return make


@pytest.fixture
def before_rule(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Action], None]:
    """Let something happen once, inside a tick: just before a rule runs next."""
    run = DuckDBRules.run
    waiting: dict[str, Action] = {}

    def interposed(self: DuckDBRules, name: str, **inputs: Any) -> list[dict[str, Any]]:
        action = waiting.pop(name, None)
        if action is not None:
            action()
        return run(self, name, **inputs)

    monkeypatch.setattr(DuckDBRules, "run", interposed)
    return waiting.__setitem__


@pytest.fixture
def fail_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Let the next write (or read) of a table fail once, as a store that is away does.

    Called with the method of `ControlTable` and the end of the table's URI.
    """

    def arrange(method: str, uri: str) -> None:
        original = getattr(ControlTable, method)
        left = [1]

        def failing(self: ControlTable, *args: Any, **options: Any) -> Any:
            if left and self.location.uri.endswith(uri):
                left.pop()
                raise OSError(f"{uri} is away")
            return original(self, *args, **options)

        monkeypatch.setattr(ControlTable, method, failing)

    return arrange


@pytest.fixture
def rules_run(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the rules that have run since, in order."""
    run = DuckDBRules.run
    names: list[str] = []

    def noted(self: DuckDBRules, name: str, **inputs: Any) -> list[dict[str, Any]]:
        names.append(name)
        return run(self, name, **inputs)

    monkeypatch.setattr(DuckDBRules, "run", noted)
    return names
