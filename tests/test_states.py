"""The transitions of brokers and groups: the document, the rules and the code agree with them."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import ProtocolError
from sparklog.groups.group import Group, Member, assigned, deleted, joined, without
from sparklog.model import BROKERS
from sparklog.protocol.driver_rules import DriverRules
from sparklog.states import (
    ANY_STATE,
    BROKER_TRANSITIONS,
    GROUP_TRANSITIONS,
    LIVE_STATES,
    BrokerEvent,
    BrokerState,
    GroupEvent,
    GroupState,
    as_markdown,
    broker_state_after,
    group_state_after,
    has_effect,
)
from sparklog.storage.control_table import ControlTable
from sparklog.testing import LocalCluster

DOCUMENT = Path(__file__).parents[1] / "docs" / "states.md"


def test_the_document_is_as_generated() -> None:
    """docs/states.md is what `as_markdown` returns."""
    if os.environ.get("REWRITE"):
        DOCUMENT.write_text(as_markdown(), encoding="utf-8")
    assert DOCUMENT.read_text(encoding="utf-8") == as_markdown(), "run this test with REWRITE=1"


@pytest.mark.parametrize(
    ("transitions", "events", "states"),
    [
        (BROKER_TRANSITIONS, BrokerEvent, BrokerState),
        (GROUP_TRANSITIONS, GroupEvent, GroupState),
    ],
)
def test_every_event_is_there_and_every_state_is_entered_and_left(
    transitions: Any, events: Any, states: Any
) -> None:
    """The transitions have all events, and each state stands on both sides."""
    assert set(transitions) == set(get_args(events))
    assert {one.after for one in transitions.values()} == set(get_args(states))
    before = {state for one in transitions.values() for state in one.before}
    assert before - set(ANY_STATE) <= set(get_args(states))
    assert before >= set(get_args(states)) - {"unregistered"}


@pytest.mark.parametrize("state", get_args(BrokerState))
def test_the_rule_fences_brokers_in_the_states_that_have_a_session(state: BrokerState) -> None:
    """`silent_brokers` names the states of event session_timeout, and no others."""
    row = {
        "broker_id": 3,
        "state": state,
        "last_changed_ms": 0,
        "now_ms": 1_000,
        "session_timeout_ms": 999,
        "parked_at_ms": 0,
        "wall_clock_ms": 1_000,
        "parked_session_timeout_ms": 999,
    }
    found = DriverRules().run("silent_brokers", brokers=[row])
    assert (found == [{"broker_id": 3}]) == (state in LIVE_STATES)


def test_a_broker_moves_by_its_transitions_only(tmp_path: Path) -> None:
    """Two brokers stop, park, are fenced and return; each version of `brokers` is one step."""
    cluster = LocalCluster(tmp_path, brokers=[0, 1, 2])
    cluster.create_topic("t", partitions=1, replication_factor=3)
    cluster.tick_until_idle()
    cluster.pause(1)
    cluster.fence(1)
    cluster.resume(1)
    cluster.tick_until_idle()
    for end in ("stop", "park"):
        cluster.brokers[2].prepare_to_stop()
        getattr(cluster.brokers[2], end)()
        cluster.crash(2)
        cluster.restart(2)
        cluster.tick_until_idle()
    cluster.close()
    folder = tmp_path / "cluster" / "brokers"
    versions = [
        {
            row["broker_id"]: row["state"]
            for row in DeltaTable(folder, version=version).to_pyarrow_table().to_pylist()
        }
        for version in range(DeltaTable(folder).version() + 1)
    ]
    steps = {
        (before.get(of), state)
        for before, after in pairwise(versions)
        for of, state in after.items()
        if before.get(of) != state
    }
    assert steps == {
        (None, "alive"),
        ("alive", "fenced"),
        ("fenced", "alive"),
        ("alive", "stopping"),
        ("stopping", "stopped"),
        ("stopped", "alive"),
        ("stopping", "parked"),
        ("parked", "alive"),
    }


def test_an_event_without_an_effect_is_an_error() -> None:
    """A parked broker does not return by a heartbeat, but by a registration."""
    assert not has_effect("return", "parked")
    with pytest.raises(ValueError, match="return has no effect on a broker that is parked"):
        broker_state_after("return", "parked")
    assert broker_state_after("register", "parked") == "alive"


@pytest.mark.parametrize("state", [None, "a state of a later release"])
def test_a_broker_registers_from_any_state(state: str | None) -> None:
    """A row that this release does not understand is replaced, and never left without a state."""
    assert broker_state_after("register", state) == "alive"
    assert broker_state_after("unregister", state) == "unregistered"
    assert not has_effect("session_timeout", state)


def test_a_broker_starts_with_a_row_in_a_state_of_a_later_release(tmp_path: Path) -> None:
    """The controller could run no rule over a row without a state."""
    cluster = LocalCluster(tmp_path, brokers=[0, 1])
    cluster.crash(1)
    cluster.connection.root.brokers.update(
        lambda rows: (with_state(rows, 1, "of a later release"), None)
    )
    cluster.restart(1)
    cluster.tick_until_idle()
    assert cluster.connection.metadata().brokers[1].state == "alive"
    cluster.close()


def test_heartbeats_of_a_broker_that_stops_are_no_commits_of_brokers(tmp_path: Path) -> None:
    """A fenced broker that stops changes its row once, although it knows the row as it was."""
    cluster = LocalCluster(tmp_path, brokers=[0, 1, 2])
    cluster.pause(1)
    cluster.fence(1)
    cluster.resume(1)
    broker = cluster.brokers[1]
    broker.prepare_to_stop()
    # As the broker knows the row before it has read the metadata again.
    known = broker._cluster.brokers
    fenced = with_state(known.rows(), 1, "fenced")
    table = ControlTable(cluster.location(), BROKERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known, "rows", lambda: fenced)
        before = table.version
        for _ in range(3):
            broker.heartbeat()
        table.refresh()
    assert table.version == before
    cluster.close()


def with_state(rows: pa.Table, broker_id: int, state: str) -> pa.Table:
    changed = [
        row | {"state": state} if row["broker_id"] == broker_id else row for row in rows.to_pylist()
    ]
    return BROKERS.rows(changed)


def test_an_event_that_a_group_cannot_have_is_an_error() -> None:
    """Partitions are assigned only to a group that completes a rebalance."""
    with pytest.raises(ValueError, match="assign has no effect on a consumer group that is Empty"):
        group_state_after("assign", "Empty")


MEMBERS = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), MEMBERS, st.sampled_from([None, "static"])),
        st.tuples(st.just("leave"), MEMBERS),
        st.tuples(st.just("assign")),
        st.tuples(st.just("delete")),
    ),
    max_size=12,
)


EVENTS: dict[str, list[list[GroupEvent]]] = {
    "join": [["join"], ["join", "all_joined"], ["replace_member"]],
    "leave": [[], ["leave"], ["leave", "all_joined"], ["empty"]],
    "assign": [[], ["assign"]],
    "delete": [[], ["delete"]],
}
"""The events that a step of a member or an operator may be, in order."""


def states_after(group: Group, step: str) -> set[str]:
    """Return the states to which a step may bring a group."""
    found: set[str] = set()
    for events in EVENTS[step]:
        state: GroupState = group.state
        try:
            for event in events:
                state = group_state_after(event, state)
        except ValueError:
            continue
        found.add(state)
    return found


@given(STEPS)
def test_a_group_moves_by_its_transitions_only(steps: list[tuple[Any, ...]]) -> None:
    """After any steps of members, the state is one that the events of the step lead to."""
    group = Group("g")
    for step in steps:
        allowed = states_after(group, step[0])
        match step:
            case ("join", name, instance):
                member = Member(name, instance, "client", 0, ("t",), ("range",), (), 1, 1)
                group = joined(group, member)
            case ("leave", name):
                group = without(group, [name])
            case ("assign",):
                if group.state == "CompletingRebalance":
                    group = assigned(group, {})
            case _ if group.members:
                with pytest.raises(ProtocolError):
                    deleted(group)
            case _:
                group = deleted(group)
        assert group.state in allowed
