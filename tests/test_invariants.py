"""The invariants of docs/protocol.md, section 9: each place checks those that the document names.

The conditions that the model and the state machine share agree with the rules of the audit.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.maintenance import audit_checks
from sparklog.protocol.invariants import Invariant, checkers, checks
from sparklog.protocol.rules import rule
from sparklog.protocol.sqlite_rules import SQLiteRules
from sparklog.testing import history_check
from tests.log_conditions import (
    agree_below,
    epochs_never_decrease,
    has_each_value_once,
    history_has_epochs,
    history_increases,
)
from tests.model import invariants as model
from tests.state_machine import invariants as state_machine
from tests.test_architecture import ROOT

SECTION = (
    (ROOT / "docs" / "protocol.md")
    .read_text(encoding="utf-8")
    .partition("## 9. Invariants")[2]
    .partition("## 10.")[0]
)
PLACES = ("model", "state machine", "audit", "histories")

Checkers = dict[Invariant, set[str]]


def documented(place: str) -> Checkers:
    """Return the checkers that the table of section 9 names for a place, by invariant."""
    found = {}
    for row in re.findall(r"^\| (9\.\d) \|(.*)\|$", SECTION, re.MULTILINE):
        cell = row[1].split("|")[PLACES.index(place)]
        names = {Path(name).stem for name in re.findall(r"`([^`]+)`", cell)}
        if names:
            found[Invariant(row[0])] = names
    return found


def marked(holder: object) -> Checkers:
    return {invariant: set(names) for invariant, names in checkers(holder).items()}


def rules_run(module: ModuleType) -> dict[str, set[str]]:
    """Return the rules that each function of a module runs."""
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    return {
        function.name: {
            str(node.args[0].value)
            for node in ast.walk(function)
            if isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("rules.run")
            and isinstance(node.args[0], ast.Constant)
        }
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
    }


def audited() -> Checkers:
    """Return the rules that the marked checks of the audit run, by invariant."""
    run = rules_run(audit_checks)
    return {
        invariant: {name for check in names for name in run[check]}
        for invariant, names in checkers(audit_checks._Checks).items()
    }


def uncalled(module: ModuleType, names: Sequence[str]) -> list[str]:
    """Return the functions that a module defines and does not use."""
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    return [name for name in names if len(re.findall(rf"\b{name}\b", text)) < 2]


def test_the_document_has_the_names_of_the_invariants() -> None:
    """Section 9 has the number and the name of every invariant, in order."""
    named = re.findall(r"^- \*\*(9\.\d)\*\* `(\w+)`: ", SECTION, re.MULTILINE)
    assert [f"{number} {name}" for number, name in named] == [str(one) for one in Invariant]


def test_every_invariant_has_a_checker_in_each_place_that_the_document_names() -> None:
    """The table of section 9 names the checkers of each place that are marked in the code."""
    assert documented("model") == marked(model)
    assert documented("state machine") == marked(state_machine.Invariants)
    assert documented("audit") == audited()
    assert documented("histories") == marked(history_check)


def test_every_invariant_is_checked_on_states_and_on_tables() -> None:
    """The model and the state machine check all invariants, the audit those of a single state."""
    assert set(documented("model")) == set(documented("state machine")) == set(Invariant)
    of_the_past = {
        Invariant.ACKNOWLEDGED_RECORDS_SURVIVE,
        Invariant.HIGH_WATERMARK_NEVER_GOES_BACK,
    }
    assert set(Invariant) - set(documented("audit")) == of_the_past


def test_every_marked_checker_is_run() -> None:
    """A checker that nothing calls would hold nothing."""
    run = {one.__name__ for one in (*model.INVARIANTS, *model.TRANSITION_INVARIANTS)}
    assert {name for names in marked(model).values() for name in names} <= run
    places: list[tuple[ModuleType, object]] = [
        (state_machine, state_machine.Invariants),
        (audit_checks, audit_checks._Checks),
        (history_check, history_check),
    ]
    for module, holder in places:
        assert (
            uncalled(module, [name for names in checkers(holder).values() for name in names]) == []
        )


def test_a_rule_of_the_audit_cites_the_invariants_that_it_checks() -> None:
    """The head of each rule names the number of its invariant."""
    for invariant, names in audited().items():
        assert names
        for name in names:
            head = rule(name).text.partition("-- takes")[0]
            assert re.search(rf"\b{re.escape(invariant.number)}\b", head), (name, invariant)


def test_marks_are_found() -> None:
    """A marked function is found under each of its invariants, another one is not."""

    class Holder:
        @checks(Invariant.ONE_LEADER_PER_EPOCH, Invariant.OFFSETS_ARE_DENSE)
        def both(self) -> None: ...

        def other(self) -> None: ...

    found = {Invariant.ONE_LEADER_PER_EPOCH: ["both"], Invariant.OFFSETS_ARE_DENSE: ["both"]}
    assert checkers(Holder) == found


# --- shared conditions ----------------------------------------------------------------------------

Log = list[tuple[int, str]]
History = list[tuple[int, int]]

OF = {"topic_id": "t", "partition": 0}

logs = st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab")), max_size=4)
logs_in_order = logs.map(lambda log: sorted(log, key=lambda record: record[0]))
histories = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=3)


def run(name: str, **inputs: Any) -> list[dict[str, Any]]:
    return SQLiteRules().run(name, **inputs)


def batches(log: Log, broker_id: int = 0) -> list[dict[str, Any]]:
    """The batches of a log, each of one record, with the columns of all rules."""
    return [
        {
            **OF,
            "broker_id": broker_id,
            "path": f"{broker_id}/{offset}",
            "base_offset": offset,
            "last_offset_delta": 0,
            "leader_epoch": epoch,
            "checksum": value,
            "log_start_offset": 0,
            "is_led": True,
        }
        for offset, (epoch, value) in enumerate(log)
    ]


def entries(history: History) -> list[dict[str, Any]]:
    return [
        {**OF, "broker_id": 0, "epoch": epoch, "start_offset": start} for epoch, start in history
    ]


@given(histories.map(sorted))
@settings(deadline=None)
def test_the_audit_agrees_which_histories_increase(history: History) -> None:
    """9.6: a history that increases has no finding, any other has one."""
    found = run("audit_epoch_histories", entries=entries(history))
    assert (found == []) == history_increases(history)


@given(histories.map(sorted).filter(history_increases), logs_in_order)
@settings(deadline=None)
def test_the_audit_agrees_which_histories_have_the_epochs_of_a_log(
    history: History, log: Log
) -> None:
    """9.6: a history with the epoch of every record has no finding, any other has one."""
    found = run("audit_batch_epochs", batches=batches(log), entries=entries(history))
    assert (found == []) == history_has_epochs(history, log)


@given(logs, logs)
@settings(deadline=None)
def test_the_audit_agrees_which_logs_agree(one: Log, other: Log) -> None:
    """9.2: two replicas with the same records have no finding, others have one."""
    end = min(len(one), len(other))
    replicas = [
        {**OF, "broker_id": broker, "leader": 0, "compared_from": 0, "compared_below": end}
        for broker in (0, 1)
    ]
    both = [*batches(one), *batches(other, 1)]
    found = run("audit_replica_agreement", batches=both, replicas=replicas)
    assert (found == []) == agree_below(one, other, end)


@pytest.mark.parametrize(
    ("holds", "fails"),
    [
        (has_each_value_once([(0, "a"), (1, "b")]), has_each_value_once([(0, "a"), (1, "a")])),
        (epochs_never_decrease([(0, "a"), (0, "b")]), epochs_never_decrease([(1, "a"), (0, "b")])),
        (history_increases([(0, 0), (2, 3)]), history_increases([(0, 0), (2, 0)])),
        (history_increases([(0, 0), (1, 1)]), history_increases([(0, 0), (0, 1)])),
        (history_has_epochs([(0, 0)], [(0, "a")]), history_has_epochs([(0, 1)], [(0, "a")])),
        (
            history_has_epochs([(0, 0), (1, 1)], [(0, "a"), (1, "b")]),
            history_has_epochs([(0, 0), (1, 1)], [(0, "a"), (0, "b")]),
        ),
        (agree_below([(0, "a"), (0, "b")], [(0, "a")], 1), agree_below([(0, "a")], [(1, "a")], 1)),
        (agree_below([(0, "a")], [(0, "a")], 2), agree_below([(0, "a")], [(0, "a"), (0, "b")], 2)),
    ],
)
def test_every_condition_can_fail(holds: bool, fails: bool) -> None:
    """Each condition accepts an example that satisfies it, and no example that violates it."""
    assert (holds, fails) == (True, False)
