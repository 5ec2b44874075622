"""The cost of a tick by the number of partitions that a broker leads and follows."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.bench import Bench, seconds
from benchmarks.figures import Figures, Target
from benchmarks.requests import BulkProducer
from benchmarks.work import Work
from sparklog.cluster.connection import Connection
from sparklog.model import HIGH_WATERMARK_CHECKPOINT
from sparklog.protocol.rules import DuckDBRules, rule
from sparklog.storage.control_table import ControlTable, create_table
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster

FEW, MANY = "4 partitions", "1,000 partitions"
FOUR, ALL = "written to four of them", "written to all of them"
CONTROL = "10,000 partitions: rules and checkpoint of a leader's tick"
SPARKLOG = "sparklog"

_BROKERS = (0, 1, 2)
_FEW, _MANY, _CONTROL = 4, 1000, 10_000
_TICK_BYTES = 1 << 20
_TICKS, _WIDE_TICKS = 10, 3
_RULES = (
    "follower_progress",
    "isr_shrink",
    "isr_fence",
    "high_watermark",
    "isr_expand",
    "high_watermark",
)
"""The rules that a leader's tick runs for all partitions, in their order."""


def run(bench: Bench, figures: Figures) -> None:
    """Measure ticks over few and many partitions in turn; then rules and a checkpoint alone."""
    many = bench.scaled(_MANY, least=12)
    ticks, wide_ticks = bench.scaled(_TICKS, least=2), bench.scaled(_WIDE_TICKS)
    with bench.temporary("partitions") as folder:
        clusters = {FEW: _Cluster(folder / "few", _FEW), MANY: _Cluster(folder / "many", many)}
        for _ in range(2):
            for cluster in clusters.values():
                cluster.tick(range(_FEW))
        for one in range(bench.runs):
            for name, cluster in clusters.items():
                _measure(figures, name, FOUR, [cluster.tick(range(_FEW)) for _ in range(ticks)])
            # A few or many batches with the same bytes in total, one per partition.
            for name, cluster in clusters.items():
                _measure(
                    figures, name, ALL, [cluster.tick(cluster.numbers) for _ in range(wide_ticks)]
                )
            bench.say(f"  run {one + 1}: {_told(figures)}")
    _control_state(bench, figures)


def _measure(figures: Figures, name: str, how: str, taken: list[float]) -> None:
    figures.add(f"{name}, {how}", SPARKLOG, "ms", sum(taken) / len(taken) * 1000)


def _told(figures: Figures) -> str:
    return ", ".join(f"{one.what} {one.values[-1]:.0f} ms" for one in figures)


class _Cluster:
    """Three brokers that lead a third of the partitions each, and follow the others."""

    def __init__(self, folder: Path, partitions: int) -> None:
        self.numbers = range(partitions)
        self._cluster = LocalCluster(folder, _BROKERS)
        assignment = {one: [(one + next_) % 3 for next_ in range(3)] for one in self.numbers}
        self._cluster.create_topic("t", assignment=assignment)
        self._cluster.tick_until_idle()
        connection = Connection(str(folder / "cluster"))
        self._producer = BulkProducer(connection, self._cluster.clock)
        self._values: dict[int, list[bytes]] = {}

    def tick(self, partitions: range) -> float:
        """Return the duration of a broker's busy tick in s: a third of a round of all three."""
        if len(partitions) not in self._values:
            value = random.Random(7).randbytes(_TICK_BYTES // len(partitions))
            self._values[len(partitions)] = [value]
        pending = self._producer.send("t", partitions, self._values[len(partitions)])
        taken = seconds(self._round)
        assert pending.is_done
        self._cluster.tick_until_idle()
        return taken / len(_BROKERS)

    def _round(self) -> None:
        for role in (self._cluster.leader_tick, self._cluster.follower_tick):
            for broker in _BROKERS:
                role(broker)
        for broker in _BROKERS:
            self._cluster.leader_tick(broker)


def _control_state(bench: Bench, figures: Figures) -> None:
    partitions = bench.scaled(_CONTROL, least=100)
    rules = DuckDBRules()
    inputs = {name: _inputs(name, partitions) for name in _RULES}
    with bench.temporary("checkpoint") as folder:
        root = Location.of(str(folder))
        create_table(root, HIGH_WATERMARK_CHECKPOINT)
        table = ControlTable(root, HIGH_WATERMARK_CHECKPOINT)
        rows = _rows(HIGH_WATERMARK_CHECKPOINT.columns, partitions, 1)
        steps: list[tuple[str, Callable[[], object]]] = [
            (name, lambda name=name: rules.run(name, **inputs[name]))  # type: ignore[misc]
            for name in _RULES
        ]
        steps.append(("checkpoint", lambda: table.compare_and_set(rows)))
        for one in range(-1, bench.runs):
            taken = [
                (name, sum(seconds(step) for _ in range(_TICKS)) / _TICKS * 1000)
                for name, step in steps
            ]
            if one < 0:
                continue
            figures.add(CONTROL, SPARKLOG, "ms", sum(ms for _, ms in taken))
            for name in dict(taken):
                total = sum(ms for step, ms in taken if step == name)
                figures.add(f"10,000 partitions: {name}", SPARKLOG, "ms", total)
            bench.say(f"  run {one + 1}: rules and checkpoint {sum(ms for _, ms in taken):.0f} ms")


def _inputs(name: str, partitions: int) -> dict[str, pa.Table]:
    """Return the input of a rule, for three replicas of each partition."""
    return {table: _rows(schema, partitions, 3) for table, schema in rule(name).takes.items()}


def _rows(schema: pa.Schema, partitions: int, replicas: int) -> pa.Table:
    """Return plausible rows: all in sync except one in ten, which lags."""
    rows = []
    for partition in range(partitions):
        for broker in range(replicas):
            lags = broker == 2 and partition % 10 == 0
            row: dict[str, Any] = {
                field.name: _VALUES_OF_TYPE[str(field.type)](partition) for field in schema
            }
            known = {
                "topic_id": "a-topic-id",
                "partition": partition,
                "broker_id": broker,
                "is_leader": broker == 0,
                "role": "leader",
                "leader_epoch": 1,
                "broker_epoch": 1,
                "reported_leader_epoch": 1,
                "reported_broker_epoch": 1,
                "min_isr": 2,
                "log_end_offset": partition - lags,
                "reported_log_end_offset": partition - lags,
                "now_ms": 1_000_000,
                "lag_time_max_ms": 30_000,
                "lag_max_messages": None,
                "last_caught_up_ms": 960_000 if lags else 1_000_000,
                "epoch_start_offset": 0,
            }
            row |= {name: value for name, value in known.items() if name in row}
            rows.append(row)
    return pa.Table.from_pylist(rows, schema=schema)


_VALUES_OF_TYPE: dict[str, Callable[[int], Any]] = {
    "string": lambda partition: f"text-{partition}",
    "int32": lambda partition: partition,
    "int64": lambda partition: partition,
    "bool": lambda _: True,
}

WORK = Work(
    "partitions",
    "As partitions grow",
    "Three brokers in one process without Spark, RF 3, leaders spread evenly; 1 MiB a tick in all "
    "cases, acks=all, until it is answered: leader ticks, follower ticks and the leader ticks that "
    "answer; a third of the round is a broker's tick. Written to four partitions, the rest is "
    "state; written to all, a tick has as many batches as there are partitions. Control "
    "state of 10,000 partitions with three replicas each: the rules that a leader's tick asks, "
    "over Arrow tables, and the overwrite of the high-watermark checkpoint.",
    run,
    (
        Target(f"{MANY}, {FOUR}", SPARKLOG, 3, against_what=f"{FEW}, {FOUR}"),
        Target(f"{MANY}, {ALL}", SPARKLOG, 8, against_what=f"{FEW}, {ALL}"),
        Target(CONTROL, SPARKLOG, 150),
    ),
)
