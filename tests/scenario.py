"""Plays the scenario files of the protocol, step by step, on a `LocalCluster`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from sparklog.cluster.election import ElectionType
from sparklog.testing import LocalCluster
from sparklog.testing.local_producer import LocalProducer

SCENARIOS = Path(__file__).parent / "scenarios"
TOPIC = "t"


class Scenario:
    """Runs the steps of one scenario."""

    def __init__(self, case: dict[str, Any], cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.pending: dict[str, Any] = {}
        self.observed: list[dict[str, Any]] = []
        """The values found at each expectation so far, in its form."""
        self.producers: dict[str, LocalProducer] = {}
        self.producer_of: dict[str, LocalProducer] = {}
        topic = case["topic"]
        cluster.create_topic(TOPIC, assignment={0: topic["replicas"]}, configs=topic.get("configs"))

    def step(self, step: dict[str, Any]) -> None:
        [(name, argument)] = step.items()
        getattr(self, f"do_{name}")(argument)

    def do_produce(self, argument: dict[str, Any]) -> None:
        if "retry" in argument:
            name = argument["retry"]
            pending = self.producer_of[name].retry(self.pending[name])
            self.producer_of[argument["as"]] = self.producer_of[name]
        else:
            options: dict[str, Any] = {}
            if "producer" in argument:
                name = argument["producer"]
                if name not in self.producers:
                    self.producers[name] = self.cluster.idempotent_producer()
                options["producer"] = self.producers[name]
                self.producer_of[argument["as"]] = self.producers[name]
            values = [value.encode() for value in argument["values"]]
            pending = self.cluster.produce(TOPIC, 0, values, acks=argument["acks"], **options)
        if "as" in argument:
            self.pending[argument["as"]] = pending

    def do_leader_tick(self, broker: int) -> None:
        self.cluster.leader_tick(broker)

    def do_follower_tick(self, broker: int) -> None:
        self.cluster.follower_tick(broker)

    def do_controller_tick(self, _: object) -> None:
        self.cluster.controller_tick()

    def do_advance_ms(self, ms: int) -> None:
        self.cluster.clock.advance(ms)

    def do_crash(self, broker: int) -> None:
        self.cluster.crash(broker)

    def do_fence(self, broker: int) -> None:
        self.cluster.fence(broker)

    def do_restart(self, broker: int) -> None:
        self.cluster.restart(broker)

    def do_elect(self, kind: ElectionType) -> None:
        self.cluster.elect_leaders(kind, [(TOPIC, 0)])

    def do_idle(self, _: object) -> None:
        self.cluster.tick_until_idle()

    def do_expect(self, expected: dict[str, Any]) -> None:
        observe: dict[str, Callable[[Any], Any]] = {
            "replica": self._replica,
            "log": self._log,
            "epochs": self._epochs,
            "partition": self._partition,
            "response": self._response,
            "committed": self._committed,
        }
        self.observed.append({name: observe[name](view) for name, view in expected.items()})
        if not is_rewriting():
            assert self.observed[-1] == expected

    def _replica(self, expected: dict[int, dict[str, int]]) -> dict[int, dict[str, int]]:
        found = {}
        for broker, view in expected.items():
            replica = self.cluster.replica(broker, TOPIC, 0)
            known = {"leo": replica.log_end_offset, "hw": replica.high_watermark}
            found[broker] = {name: known[name] for name in view}
        return found

    def _log(self, expected: dict[int, list[str]]) -> dict[int, list[str]]:
        found = {}
        for broker in expected:
            records = self.cluster.log(broker, TOPIC, 0)
            assert [record.offset for record in records] == list(range(len(records)))
            found[broker] = [(record.value or b"").decode() for record in records]
        return found

    def _epochs(self, expected: dict[int, list[list[int]]]) -> dict[int, list[list[int]]]:
        return {
            broker: [list(entry) for entry in self.cluster.leader_epochs(broker, TOPIC, 0)]
            for broker in expected
        }

    def _partition(self, expected: dict[str, Any]) -> dict[str, Any]:
        partition = self.cluster.partition(TOPIC, 0)
        return {name: getattr(partition, name) for name in expected}

    def _response(self, expected: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, view in expected.items():
            response = self.pending[name].response
            names = ("error", "base_offset") if view == "pending" else view
            found[name] = (
                "pending"
                if response is None
                else {member: getattr(response, member) for member in names}
            )
        return found

    def _committed(self, _: list[str]) -> list[str]:
        return [(record.value or b"").decode() for record in self.cluster.consume(TOPIC, 0)]


def scenario_file() -> Path:
    """Return the file of scenarios, from the folder in SPARKLOG_CASES if it is set."""
    return Path(os.environ.get("SPARKLOG_CASES", SCENARIOS)) / "replication.yaml"


def is_rewriting() -> bool:
    """Return whether expectations are replaced by the values found: SPARKLOG_REWRITE=1."""
    return os.environ.get("SPARKLOG_REWRITE") == "1"


def rewritten(text: str, name: str, observed: list[dict[str, Any]]) -> str:
    """Return a file of scenarios with the expectations of one replaced; the rest is unchanged.

    Each expectation has a line of its own.
    """
    lines = text.splitlines()
    document = yaml.compose(text, yaml.SafeLoader)
    assert document is not None, "the file is empty"
    [scenario] = [
        one for one in document.value if yaml.safe_load(yaml.serialize(one))["name"] == name
    ]
    steps = next(value for key, value in scenario.value if key.value == "steps").value
    nodes = [value for step in steps for key, value in step.value if key.value == "expect"]
    for node, found in zip(nodes, observed, strict=True):
        flow = yaml.safe_dump(found, default_flow_style=True, sort_keys=False, width=10_000)
        start, end = node.start_mark, node.end_mark
        assert start.line == end.line, f"line {start.line + 1}: an expectation takes one line"
        line = lines[start.line]
        lines[start.line] = line[: start.column] + flow.strip() + line[end.column :]
    return "\n".join(lines) + "\n"


def scenarios() -> list[dict[str, Any]]:
    return list(yaml.safe_load(scenario_file().read_text(encoding="utf-8")))


def play(case: dict[str, Any], cluster: LocalCluster) -> list[dict[str, Any]]:
    """Run every step of a scenario; check its expectations, or return the values found instead."""
    scenario = Scenario(case, cluster)
    for step in case["steps"]:
        scenario.step(step)
    cluster.close()
    return scenario.observed
