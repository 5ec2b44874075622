"""Growth of a broker's work: CPU times of one run compared with each other, with ample tolerance.

Eight times as many partitions take at most 8 times as long if the work is linear, and 64 times as
long if it is quadratic.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from sparklog.cluster.isr import change_isr
from sparklog.model import PARTITION_STATE
from sparklog.protocol.driver_rules import DriverRules
from sparklog.storage.location import Location
from sparklog.storage.sharded_table import ShardedTable
from sparklog.testing import LocalCluster

FEW, MANY = 250, 2000
MOST_TIMES = 24


def cpu_s(work: Callable[[], object]) -> float:
    """Return the CPU time of this process that `work` takes, in seconds."""
    began = time.process_time()
    work()
    return time.process_time() - began


def failover(folder: Path, partitions: int) -> tuple[float, float]:
    """End one of three brokers; return the CPU time of the elections and of the take-over."""
    cluster = LocalCluster(folder, brokers=[0, 1, 2])
    replicas = {n: [n % 3, (n + 1) % 3, (n + 2) % 3] for n in range(partitions)}
    cluster.create_topic("t", assignment=replicas)
    cluster.tick_until_idle()
    cluster.crash(0)
    cluster.clock.advance(cluster.settings.broker_session_timeout_ms + 1)

    def take_over() -> None:
        for broker in (1, 2):
            cluster.leader_tick(broker)

    took = cpu_s(cluster.controller_tick), cpu_s(take_over)
    states = cluster.connection.metadata().partitions.values()
    assert len(states) == partitions
    assert all(state.isr == [1, 2] for state in states)
    led = [len(list(cluster.brokers[broker]._leaders[0].led())) for broker in (1, 2)]
    assert sum(led) == partitions
    return took


def test_a_failover_grows_with_the_number_of_partitions(tmp_path: Path) -> None:
    """Every partition changes its leader or its ISR (7.2, 7.5), each individually."""
    few = failover(tmp_path / "few", FEW)
    many = failover(tmp_path / "many", MANY)
    for of_few, of_many in zip(few, many, strict=True):
        assert of_many < MOST_TIMES * of_few


def test_an_isr_change_of_one_partition_converts_no_other(tmp_path: Path) -> None:
    """A change that reads every row and builds it in Python is slower than reading alone.

    With more partitions it would lose its compare-and-set to other writers more often.
    """
    cluster = LocalCluster(tmp_path, brokers=[0, 1, 2])
    cluster.create_topic("t", assignment={n: [0, 1, 2] for n in range(5000)})
    states = list(cluster.connection.metadata().partitions.values())
    table = ShardedTable(Location.of(str(tmp_path / "cluster")), PARTITION_STATE)
    rules = DriverRules()

    def shrink(number: int) -> None:
        state = states[number]
        isr = frozenset([0, 1])
        assert change_isr(table, rules, {state.key: state}, {state.key: isr}, {state.key: 3})

    changed = range(5)
    took = min(cpu_s(lambda n=n: shrink(n)) for n in changed)  # type: ignore[misc]
    rows = table.rows()
    reading = min(cpu_s(rows.to_pylist) for _ in changed)
    assert took < reading
    for row in rows.to_pylist():
        is_out = row["partition"] in changed and row["broker_id"] == 2
        assert (row["in_isr"], row["in_elr"]) == (not is_out, is_out)
        assert row["partition_epoch"] == (row["partition"] in changed)
