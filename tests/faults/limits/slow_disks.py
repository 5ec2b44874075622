"""Slow disks: each sync of one broker, or of all, takes up to five seconds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.faults.broker_processes import BrokerProcesses
from tests.faults.limits.load import Load, events, running_load

Row = dict[str, Any]

SESSION_MS = 9_000
_SECONDS = 25.0
_SHOWN = ("broker fenced", "became leader", "partition changed", "isr shrink", "failed")


class SlowBrokers(BrokerProcesses):
    """Brokers whose syncs take as many seconds as a file of each says."""

    def start_broker(self, broker_id: int) -> None:
        """Start the process of a broker; an earlier one of the same broker may still run."""
        config = str(self.folder / f"broker-{broker_id}.yaml")
        self.slow_down(broker_id, 0.0)
        file = str(self.folder / f"seconds-{broker_id}")
        self.brokers[broker_id] = self.run("tests.faults.limits.slow_broker", config, file)

    def slow_down(self, broker_id: int, seconds: float) -> None:
        """Set the seconds that each sync of a broker takes from now on."""
        (self.folder / f"seconds-{broker_id}").write_text(str(seconds), "ascii")


def run(folder: Path) -> Iterator[Row]:
    """Yield the outcome for one slow disk, and for all, at several delays; then the verdict."""
    roots = [folder / "roots" / name for name in ("cluster", "b0", "b1", "b2")]
    slow = {(0,): (0.5, 2.0, 5.0), (0, 1, 2): (0.5, 2.0, 5.0)}
    with running_load(
        folder, roots, records_per_second=200.0, session_ms=SESSION_MS, kind=SlowBrokers
    ) as load:
        for brokers, delays in slow.items():
            for seconds in delays:
                yield _slow(load, brokers, seconds)
        yield {"limit": "slow disk", "what": "verdict", **load.verdict()}


def _slow(load: Load, slow: tuple[int, ...], seconds: float) -> Row:
    brokers = load.brokers
    assert isinstance(brokers, SlowBrokers)
    before, events_before = load.acknowledged(), _events(load)
    for one in slow:
        brokers.slow_down(one, seconds)
    alive = []
    began = time.monotonic()
    while time.monotonic() - began < _SECONDS:
        time.sleep(1.0)
        alive.append(len(brokers.alive()))
    acknowledged = load.acknowledged() - before
    in_sync = brokers.is_in_sync()
    for one in slow:
        brokers.slow_down(one, 0.0)
    began = time.monotonic()
    load.await_progress()
    brokers.await_in_sync()
    happened = _events(load) - events_before
    return {
        "limit": "slow disk",
        "what": f"each sync of brokers {list(slow)} takes {seconds} s, for {_SECONDS:.0f} s",
        "acknowledged": acknowledged,
        "least_alive": min(alive),
        "in_sync": in_sync,
        "back_after_s": round(time.monotonic() - began, 1),
        "events": {name: happened[name] for name in _SHOWN if happened[name]},
    }


def _events(load: Load) -> Counter[str]:
    processes = load.brokers.brokers.values()
    return Counter(one["event"] for process in processes for one in events(process))
