"""The states of brokers, topics and consumer groups, and the events that change them.

The tables here are what the code runs by. docs/states.md is generated from them, by
`REWRITE=1 python -m pytest tests/test_states.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, cast

BrokerState = Literal["alive", "fenced", "parked", "stopping", "stopped", "unregistered"]

BrokerEvent = Literal[
    "register",
    "register_in_doubt",
    "return",
    "begin_stop",
    "return_to_stop",
    "stop",
    "park",
    "session_timeout",
    "fence",
    "unregister",
    "replace_checkpoints",
]

TopicState = Literal["creating", "growing", "live", "deleting", "deleted", "(no row)"]
"""The states of a row of `topics`.

`creating` and `growing` are administrators' claims: on the name of a new topic, and on the further
partitions of a topic. `deleted` is the record of a deletion, by which brokers remove replicas.
"""

TopicEvent = Literal["create", "publish", "grow", "end_claim", "delete", "clean_up", "forget"]

GroupState = Literal["Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"]
"""Kafka's names for the states of a group.

A deleted group is dead and keeps a row: its generation must not restart while a commit of an old
member may be delayed.
"""

GroupEvent = Literal["join", "all_joined", "assign", "replace_member", "leave", "empty", "delete"]


class Transition(NamedTuple):
    """The effect of an event: from each of the states `before`, the state `after`.

    In other states the event has no effect. `actor` causes the event, and `condition` is a sentence
    about when. `before` may be `ANY_STATE`.
    """

    actor: str
    before: tuple[str, ...]
    after: str
    condition: str


ANY_STATE = ("any",)
"""Every state of a broker, also one of a later release, and no row."""

_MAY_HAVE_PROCESS = ("alive", "fenced", "stopping")

BROKER_TRANSITIONS: Mapping[BrokerEvent, Transition] = {
    "register": Transition(
        "broker",
        ANY_STATE,
        "alive",
        "A process starts, and its logs are at least as new as they were when the last one ended.",
    ),
    "register_in_doubt": Transition(
        "broker",
        ANY_STATE,
        "fenced",
        "A process starts whose logs are lost, restored or may lack files (rule 7.2).",
    ),
    "return": Transition(
        "broker",
        ("fenced",),
        "alive",
        "A fenced process sends a heartbeat, or its replicas in doubt have left the in-sync sets.",
    ),
    "begin_stop": Transition(
        "broker",
        _MAY_HAVE_PROCESS,
        "stopping",
        "Controlled shutdown: the process hands over the partitions that it leads.",
    ),
    "return_to_stop": Transition(
        "broker",
        ("fenced",),
        "stopping",
        "A fenced process that is stopping sends a heartbeat.",
    ),
    "stop": Transition(
        "broker",
        (*_MAY_HAVE_PROCESS, "parked", "stopped"),
        "stopped",
        "A controlled shutdown is complete: the broker leads nothing and leaves every ISR in which "
        "others remain.",
    ),
    "park": Transition(
        "broker",
        (*_MAY_HAVE_PROCESS, "parked"),
        "parked",
        "The process ends between two scheduled runs; the broker keeps its partitions.",
    ),
    "session_timeout": Transition(
        "controller",
        ("alive", "stopping", "parked"),
        "fenced",
        "`alive` and `stopping`: neither the row nor a journal has changed for longer than "
        "broker.session.timeout.ms. `parked`: for longer than parked.session.timeout.ms.",
    ),
    "fence": Transition(
        "operator",
        ANY_STATE,
        "fenced",
        "`sparklog brokers fence`, for a broker that does not run.",
    ),
    "unregister": Transition(
        "operator",
        ANY_STATE,
        "unregistered",
        "`sparklog brokers unregister`, for a broker that does not run.",
    ),
    "replace_checkpoints": Transition(
        "operator",
        ANY_STATE,
        "stopped",
        "`sparklog checkpoints import`, for a broker that does not run.",
    ),
}
"""The transitions of a broker, in the column `state` of `brokers`."""

LIVE_STATES = frozenset(BROKER_TRANSITIONS["session_timeout"].before)
"""The states of a broker that may lead and be in sync."""

RUNNING_STATES = LIVE_STATES - {"parked"}
"""The states of a broker with a process, unless that was killed within the session timeout.

A fenced broker may have a process, which returns by its next heartbeat.
"""

GROUP_TRANSITIONS: Mapping[GroupEvent, Transition] = {
    "join": Transition(
        "member",
        ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"),
        "PreparingRebalance",
        "A consumer joins, or joins again with another subscription or after it gave up its "
        "partitions.",
    ),
    "all_joined": Transition(
        "member",
        ("PreparingRebalance",),
        "CompletingRebalance",
        "All members have joined: the next generation begins.",
    ),
    "assign": Transition(
        "leader",
        ("CompletingRebalance",),
        "Stable",
        "The group's leader has assigned the partitions.",
    ),
    "replace_member": Transition(
        "member",
        ("Stable",),
        "Stable",
        "A consumer joins with the group.instance.id and the subscription of a member (KIP-345).",
    ),
    "leave": Transition(
        "member",
        ("PreparingRebalance", "CompletingRebalance", "Stable"),
        "PreparingRebalance",
        "A member leaves or was silent for its session.timeout.ms, and others remain.",
    ),
    "empty": Transition(
        "member",
        ("PreparingRebalance", "CompletingRebalance", "Stable"),
        "Empty",
        "The last member leaves or was silent for its session.timeout.ms.",
    ),
    "delete": Transition(
        "operator",
        ("Empty",),
        "Dead",
        "`sparklog consumer-groups delete`, for a group without members.",
    ),
}
"""The transitions of a consumer group, in the column `state` of `consumer_groups`."""


TOPIC_TRANSITIONS: Mapping[TopicEvent, Transition] = {
    "create": Transition(
        "operator",
        ("(no row)",),
        "creating",
        "`sparklog topics create`: no live topic and no claim has the name.",
    ),
    "publish": Transition(
        "operator",
        ("creating",),
        "live",
        "The partitions of the new topic are stored.",
    ),
    "grow": Transition(
        "operator",
        ("(no row)",),
        "growing",
        "`sparklog topics alter --partitions`: a row of its own, beside that of the topic.",
    ),
    "end_claim": Transition(
        "operator, controller",
        ("creating", "growing"),
        "(no row)",
        "`growing`: the new partitions are stored, and the same commit raises the number of "
        "partitions. Both: the creation has failed; or its administrator has died, by which the "
        "controller removes the claim after 60 s.",
    ),
    "delete": Transition(
        "operator",
        ("live",),
        "deleting",
        "`sparklog topics delete`: no client, leader or follower sees the topic any more. Its name "
        "may be used again.",
    ),
    "clean_up": Transition(
        "controller",
        ("deleting",),
        "deleted",
        "Its rows of partition_state and its committed offsets are removed.",
    ),
    "forget": Transition(
        "controller",
        ("deleted",),
        "(no row)",
        "10,000 topics were deleted later.",
    ),
}
"""The transitions of a topic, in the column `state` of `topics`.

Brokers remove their replicas in `deleting` and in `deleted`, at any time.
"""


def topic_state_after(event: TopicEvent, state: TopicState) -> TopicState:
    """Return the state of a topic after an event; raises `ValueError` if it has no effect."""
    transition = TOPIC_TRANSITIONS[event]
    if state not in transition.before:
        raise ValueError(f"event {event} has no effect on a topic that is {state}")
    return cast(TopicState, transition.after)


def has_effect(event: BrokerEvent, state: str | None) -> bool:
    """Return whether an event changes, or confirms, the state of a broker."""
    before = BROKER_TRANSITIONS[event].before
    return before is ANY_STATE or state in before


def broker_state_after(event: BrokerEvent, state: str | None) -> BrokerState:
    """Return the state of a broker after an event; raises `ValueError` if it has no effect.

    Example: `broker_state_after("park", "alive")` is "parked".
    """
    if not has_effect(event, state):
        raise ValueError(f"event {event} has no effect on a broker that is {state}")
    return cast(BrokerState, BROKER_TRANSITIONS[event].after)


def group_state_after(event: GroupEvent, state: GroupState) -> GroupState:
    """Return the state of a group after an event; raises `ValueError` if it has no effect."""
    transition = GROUP_TRANSITIONS[event]
    if state not in transition.before:
        raise ValueError(f"event {event} has no effect on a consumer group that is {state}")
    return cast(GroupState, transition.after)


def as_markdown() -> str:
    """Return docs/states.md."""
    return "\n".join(
        [
            "<!-- Generated from sparklog/states.py by",
            "     REWRITE=1 python -m pytest tests/test_states.py -->",
            "# States",
            "",
            "An event has no effect in states that are not listed as `from`.",
            "",
            "## Brokers (rule 7.2)",
            "",
            "The column `state` of [`brokers`](tables.md).",
            "",
            *_lines(BROKER_TRANSITIONS),
            "",
            "## Topics (rules 7.3, 7.9)",
            "",
            "The column `state` of [`topics`](tables.md).",
            "",
            *_lines(TOPIC_TRANSITIONS),
            "",
            "## Consumer groups (rule 8.1)",
            "",
            "The column `state` of [`consumer_groups`](tables.md).",
            "",
            *_lines(GROUP_TRANSITIONS),
            "",
        ]
    )


def _lines(transitions: Mapping[Any, Transition]) -> Iterable[str]:
    yield "| event | caused by | from | to | condition |"
    yield "|---|---|---|---|---|"
    for event, (actor, before, after, condition) in transitions.items():
        names = "any" if before is ANY_STATE else ", ".join(f"`{state}`" for state in before)
        yield f"| {event} | {actor} | {names} | `{after}` | {condition} |"
