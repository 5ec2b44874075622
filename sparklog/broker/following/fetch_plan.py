"""Fetch as one Spark job, where the rules and the work on records are Spark's.

The batches that the rule `fetch` gives are the work list of the tasks that copy them, in one plan:
they do not pass through the driver in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from sparklog.model import TopicIdPartition
from sparklog.protocol.rules import RuleInput, Rules, SparkRules, checked_output, rule
from sparklog.storage.copying import Copied
from sparklog.storage.execution import Execution, ListedFile, SparkExecution
from sparklog.storage.location import Location


class FoundBatch(NamedTuple):
    """A leader's batch that the rule `fetch` gives, and the outcome of its copy if it was tried."""

    key: TopicIdPartition
    base_offset: int
    straddles: bool
    copied: Copied | None = None


class FetchPlan:
    """Finds and copies batches into the log at `target`."""

    def __init__(self, rules: SparkRules, execution: SparkExecution, target: Location) -> None:
        self._rules = rules
        self._execution = execution
        self._target = target

    def run(
        self, positions: RuleInput, logs: Sequence[tuple[Location, pa.Table]], max_bytes: int
    ) -> list[FoundBatch] | None:
        """Return the batches that the rule gives, in its order, each copied or with its failure.

        Parameters: `positions`, as the rule takes them; `logs`, the leaders' logs, each with the
        index of its batches; `max_bytes`, the limit of the fetch, which one batch may exceed.
        Precondition: no batch has to be cut, since files are copied whole.

        `None`: the job has failed, with a warning, or jobs are paused after another failure. Copies
        that a failed job made are named by no commit.
        """
        if self._execution.is_paused:
            return None
        files = pa.concat_tables(table for _, table in logs)
        sources = [number for number, (_, table) in enumerate(logs) for _ in range(len(table))]
        columns = (files[name].to_pylist() for name in ("size_bytes", "checksum", "path"))
        listed = [ListedFile(*of) for of in zip(_ranks(files), sources, *columns, strict=True)]
        names, task_count = self._execution.work_list(listed, max_bytes)
        # The rule passes paths on as they are.
        at = files.schema.get_field_index("path")
        batches = files.set_column(at, "path", pa.array(names, pa.string()))
        with self._rules.planned("fetch", positions=positions, batches=batches) as found:
            locations = [location for location, _ in logs]
            copied = self._execution.copy_found(found, task_count, locations, self._target)
        return None if copied is None else _batches(copied)


def _ranks(files: pa.Table) -> list[int]:
    """Return the place of each file in its partition, by offset."""
    names = ("topic_id", "partition", "base_offset")
    rows = list(zip(*(files[name].to_pylist() for name in names), strict=True))
    ranks = [0] * len(rows)
    of_partition: Counter[tuple[str, int]] = Counter()
    for number in sorted(range(len(rows)), key=lambda number: rows[number][2]):
        key = rows[number][:2]
        ranks[number] = of_partition[key]
        of_partition[key] += 1
    return ranks


def _batches(copied: pa.Table) -> list[FoundBatch]:
    """Return the rows of the plan as batches, in the order in which the rule gives them."""
    of_rule = rule("fetch")
    columns = [copied[name].to_pylist() for name in of_rule.gives.names]
    rows = checked_output(of_rule, of_rule.gives.names, list(zip(*columns, strict=True)))
    outcomes = map(Copied, copied["copied_path"].to_pylist(), copied["fault"].to_pylist())
    return sorted(
        FoundBatch(
            TopicIdPartition(row["topic_id"], row["partition"]),
            row["base_offset"],
            row["straddles"],
            outcome,
        )
        for row, outcome in zip(rows, outcomes, strict=True)
    )


def fetch_plan(rules: Rules, execution: Execution, target: Location) -> FetchPlan | None:
    """Return the plan if both engines are Spark (`rules.engine` and `execution`), else `None`."""
    if (
        isinstance(rules, SparkRules)
        and isinstance(execution, SparkExecution)
        and execution.is_always_in_tasks
    ):
        return FetchPlan(rules, execution, target)
    return None
