"""Plays the scenario files of the protocol, step by step, on a `LocalCluster`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from sparklog.broker.election import ElectionType
from sparklog.testing import LocalCluster
from sparklog.testing.local_producer import LocalProducer

CASES = Path(__file__).parent / "cases"
TOPIC = "t"


class Scenario:
    """Runs the steps of one scenario."""

    def __init__(self, case: dict[str, Any], cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.pending: dict[str, Any] = {}
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
        cluster = self.cluster
        for broker, view in expected.get("replica", {}).items():
            replica = cluster.replica(broker, TOPIC, 0)
            found = {"leo": replica.log_end_offset, "hw": replica.high_watermark}
            assert {key: found[key] for key in view} == view, f"replica {broker}"
        for broker, values in expected.get("log", {}).items():
            records = cluster.log(broker, TOPIC, 0)
            assert [(record.value or b"").decode() for record in records] == values
            assert [record.offset for record in records] == list(range(len(values)))
        for broker, epochs in expected.get("epochs", {}).items():
            assert cluster.leader_epochs(broker, TOPIC, 0) == [tuple(one) for one in epochs]
        partition = cluster.partition(TOPIC, 0)
        for key, value in expected.get("partition", {}).items():
            assert getattr(partition, key) == value, f"partition {key}"
        for name, view in expected.get("response", {}).items():
            response = self.pending[name].response
            if view == "pending":
                assert response is None
            else:
                assert response is not None, f"{name} is still delayed"
                assert {key: getattr(response, key) for key in view} == view
        if "committed" in expected:
            records = cluster.consume(TOPIC, 0)
            found_values = [(record.value or b"").decode() for record in records]
            assert found_values == expected["committed"]


def cases() -> list[dict[str, Any]]:
    folder = Path(os.environ.get("SPARKLOG_CASES", CASES))
    return list(yaml.safe_load((folder / "replication.yaml").read_text(encoding="utf-8")))


def play(case: dict[str, Any], cluster: LocalCluster) -> None:
    """Run every step of a scenario; the expectations among them are asserted."""
    scenario = Scenario(case, cluster)
    for step in case["steps"]:
        scenario.step(step)
    cluster.close()
