"""Compares the model's decisions with those of the shipped SQL rules: one query per rule, with each
case as a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from sparklog.protocol.rules import Rules
from tests.model.decisions import DECISIONS

Case = tuple[tuple[Any, ...], Any]
Rows = list[dict[str, Any]]

NOW, LAG = 1_000_000, 30_000
PLENTY = 1 << 40


class Question(NamedTuple):
    """A rule's inputs, its answer to each case, and the model's answers."""

    rule: str
    inputs: Mapping[str, Rows]
    read: Callable[[Rows], dict[int, Hashable]]
    expected: dict[int, Hashable]


def collected_cases() -> dict[str, list[Case]]:
    """Return every distinct input of the model's decisions so far, with the decision."""
    return {decision.name: list(decision.cases.items()) for decision in DECISIONS}


def forget_cases() -> None:
    """Clear the collected cases."""
    for decision in DECISIONS:
        decision.cases.clear()


def differences(rules: Rules, name: str, cases: Sequence[Case]) -> list[str]:
    """Return the cases in which the rule decides differently from the model."""
    question = QUESTIONS[name](cases)
    given = question.read(rules.run(question.rule, **question.inputs))
    return [
        f"{name}{args}: the model says {question.expected.get(number)}, "
        f"the rule {question.rule} {given.get(number)}"
        for number, (args, _) in enumerate(cases)
        if given.get(number) != question.expected.get(number)
    ]


def _at(number: int) -> dict[str, Any]:
    return {"topic_id": "t", "partition": number}


def _known(value: int) -> int | None:
    return None if value < 0 else value


def _entries(cases: Sequence[Case], place: int) -> Rows:
    return [
        _at(number) | {"epoch": epoch, "start_offset": start}
        for number, (args, _) in enumerate(cases)
        for epoch, start in args[place]
    ]


def _batches(cases: Sequence[Case], place: int) -> Rows:
    return [
        _at(number)
        | {
            "path": f"{offset}.parquet",
            "base_offset": offset,
            "last_offset": offset,
            "last_offset_delta": 0,
            "leader_epoch": epoch,
            "size_bytes": 1,
            "batch_id": str(record),
            "producer_id": -1,
            "producer_epoch": -1,
            "base_sequence": -1,
            "last_sequence": -1,
        }
        for number, (args, _) in enumerate(cases)
        for offset, (epoch, record) in enumerate(args[place])
    ]


def _decided(cases: Sequence[Case]) -> dict[int, Hashable]:
    return {number: decided for number, (_, decided) in enumerate(cases)}


def _one(*columns: str) -> Callable[[Rows], dict[int, Hashable]]:
    """Return one row per partition with these columns, nulls as -1."""

    def read(rows: Rows) -> dict[int, Hashable]:
        found: dict[int, Hashable] = {}
        for row in rows:
            values = tuple(-1 if row[column] is None else row[column] for column in columns)
            found[row["partition"]] = values[0] if len(values) == 1 else values
        return found

    return read


def _sets(*columns: str) -> Callable[[Rows], dict[int, Hashable]]:
    """Return several rows per partition as the set of these columns; no rows, no answer."""

    def read(rows: Rows) -> dict[int, Hashable]:
        found: dict[int, frozenset[Any]] = {}
        for row in rows:
            values = frozenset({tuple(row[column] for column in columns)})
            found[row["partition"]] = found.get(row["partition"], frozenset()) | values
        return dict(found)

    return read


def _expected_sets(sets: Sequence[set[tuple[Any, ...]]]) -> dict[int, Hashable]:
    return {number: frozenset(values) for number, values in enumerate(sets) if values}


def _brokers(mask: int) -> set[tuple[Any, ...]]:
    return {(broker,) for broker in range(mask.bit_length()) if mask >> broker & 1}


# -- One question per decision
# -----------------------------------------------------------------------


def _epoch_entries(cases: Sequence[Case]) -> Question:
    assigned = [
        _at(number) | {"epoch": epoch, "start_offset": start}
        for number, ((_, epoch, start), _) in enumerate(cases)
    ]
    return Question(
        "epoch_entries",
        {"entries": _entries(cases, 0), "assigned": assigned},
        _sets("epoch", "start_offset"),
        _expected_sets([set(decided) for _, decided in cases]),
    )


def _end_offset_for(cases: Sequence[Case]) -> Question:
    asked = [
        _at(number) | {"asked_epoch": epoch, "log_end_offset": end}
        for number, ((epoch, _, end), _) in enumerate(cases)
    ]
    return Question(
        "end_offset_for_epoch",
        {"asked": asked, "entries": _entries(cases, 1)},
        _one("epoch", "end_offset"),
        _decided(cases),
    )


def _truncation_point(cases: Sequence[Case]) -> Question:
    followed = [
        _at(number)
        | {
            "leader_epoch": epoch,
            "log_start_offset": 0,
            "log_end_offset": own_end,
            "leader_log_start_offset": 0,
            "leader_log_end_offset": leader_end,
        }
        for number, ((epoch, _, own_end, _, leader_end), _) in enumerate(cases)
    ]
    return Question(
        "truncation_point",
        {
            "followed": followed,
            "own_entries": _entries(cases, 1),
            "leader_entries": _entries(cases, 3),
        },
        _one("truncate_to", "waits"),
        _decided(cases),
    )


def _recovered_epochs(cases: Sequence[Case]) -> Question:
    replicas = [
        _at(number) | {"log_end_offset": len(log)} for number, ((_, log), _) in enumerate(cases)
    ]
    return Question(
        "recovered_epochs",
        {"entries": _entries(cases, 0), "batches": _batches(cases, 1), "replicas": replicas},
        _sets("epoch", "start_offset"),
        _expected_sets([set(decided) for _, decided in cases]),
    )


def _fetched_end(cases: Sequence[Case]) -> Question:
    positions = [
        _at(number)
        | {
            "fetch_offset": position,
            "last_fetched_epoch": _known(last_epoch),
            "leader_epoch": epoch,
            "max_bytes": PLENTY,
            "max_total_bytes": PLENTY,
            "last_served": 0,
        }
        for number, ((position, last_epoch, epoch, _), _) in enumerate(cases)
    ]
    return Question(
        "fetch",
        {"positions": positions, "batches": _batches(cases, 3)},
        _sets("base_offset", "straddles"),
        _expected_sets(
            [{(offset, False) for offset in range(args[0], end)} for args, end in cases]
        ),
    )


def _follower_high_watermark(cases: Sequence[Case]) -> Question:
    followed = [
        _at(number) | {"high_watermark": own, "leader_high_watermark": mark, "log_end_offset": end}
        for number, ((own, mark, end), _) in enumerate(cases)
    ]
    return Question(
        "follower_high_watermark", {"followed": followed}, _one("high_watermark"), _decided(cases)
    )


def _recovered_high_watermark(cases: Sequence[Case]) -> Question:
    replicas = [
        _at(number)
        | {
            "log_start_offset": _known(min(mark, 0)),
            "checkpointed_high_watermark": _known(mark),
            "log_end_offset": end,
        }
        for number, ((mark, end), _) in enumerate(cases)
    ]
    return Question(
        "recovered_replicas", {"replicas": replicas}, _one("high_watermark"), _decided(cases)
    )


def _believed_log_end_offset(cases: Sequence[Case]) -> Question:
    followers = [
        _at(number)
        | {
            "broker_id": 1,
            "leader_epoch": epoch,
            "broker_epoch": broker_epoch,
            "reported_leader_epoch": _known(row_epoch),
            "reported_broker_epoch": _known(row_broker_epoch),
            "reported_log_end_offset": end if row_epoch >= 0 else None,
            "is_new": True,
            "leader_log_end_offset": end,
            "previous_leader_log_end_offset": None,
            "previous_report_ms": None,
            "last_caught_up_ms": None,
            "now_ms": NOW,
        }
        for number, ((epoch, broker_epoch, row_epoch, row_broker_epoch, end), _) in enumerate(cases)
    ]
    return Question(
        "follower_progress", {"followers": followers}, _one("log_end_offset"), _decided(cases)
    )


def _high_watermark(cases: Sequence[Case]) -> Question:
    replicas = [
        _at(number)
        | {
            "high_watermark": current,
            "min_isr": min_isr,
            "in_isr": in_isr,
            "in_proposed_isr": in_proposed,
            # A replica at the log end that does not count must be fenced.
            "is_alive": joins or end != known[0][3],
            "log_end_offset": _known(end),
            "leader_log_end_offset": known[0][3],
            "last_caught_up_ms": NOW if joins else NOW - LAG - 1,
            "now_ms": NOW,
            "lag_time_max_ms": LAG,
            "lag_max_messages": _known(max_messages),
        }
        for number, ((current, min_isr, max_messages, known), _) in enumerate(cases)
        for in_isr, in_proposed, joins, end in known
    ]
    return Question(
        "high_watermark", {"replicas": replicas}, _one("high_watermark"), _decided(cases)
    )


def _isr_shrink(cases: Sequence[Case]) -> Question:
    replicas = []
    for number, ((leader_end, max_messages, followers), _) in enumerate(cases):
        standing = [*followers, (True, leader_end, False)]
        for broker, (in_isr, end, lags) in enumerate(standing):
            replicas.append(
                _at(number)
                | {
                    "broker_id": broker,
                    "is_leader": broker == len(followers),
                    "in_isr": in_isr,
                    "log_end_offset": _known(end),
                    "leader_log_end_offset": leader_end,
                    "last_caught_up_ms": NOW - LAG - 1 if lags else NOW,
                    "now_ms": NOW,
                    "lag_time_max_ms": LAG,
                    "lag_max_messages": _known(max_messages),
                }
            )
    expected = _expected_sets([_brokers(mask) for _, mask in cases])
    return Question("isr_shrink", {"replicas": replicas}, _sets("broker_id"), expected)


def _isr_expand(cases: Sequence[Case]) -> Question:
    replicas = [
        _at(number)
        | {
            "broker_id": broker,
            "in_isr": in_isr,
            "is_alive": is_alive,
            "log_end_offset": _known(end),
            "leader_log_end_offset": leader_end,
            "high_watermark": mark,
            "epoch_start_offset": start,
            "previous_report_ms": NOW if end >= 0 else None,
            "now_ms": NOW,
            "lag_time_max_ms": LAG,
            "lag_max_messages": _known(max_messages),
        }
        for number, ((mark, start, leader_end, max_messages, followers), _) in enumerate(cases)
        for broker, (in_isr, is_alive, end) in enumerate(followers)
    ]
    expected = _expected_sets([_brokers(mask) for _, mask in cases])
    return Question("isr_expand", {"replicas": replicas}, _sets("broker_id"), expected)


def _isr_fence(cases: Sequence[Case]) -> Question:
    replicas = [
        _at(number) | {"broker_id": broker, "in_isr": in_isr, "is_alive": is_alive}
        for number, ((standing,), _) in enumerate(cases)
        for broker, (in_isr, is_alive) in enumerate(standing)
    ]
    expected = _expected_sets([_brokers(mask) for _, mask in cases])
    return Question("isr_fence", {"replicas": replicas}, _sets("broker_id"), expected)


def _elected(cases: Sequence[Case]) -> Question:
    replicas = [
        _at(number)
        | {
            "broker_id": place,
            "replica_index": place,
            "in_isr": in_isr,
            "in_elr": in_elr,
            "is_alive": is_alive,
            "is_stopping": is_stopping,
            "leader": _known(leader),
            "leader_is_valid": is_valid,
            "leader_epoch": 0,
            "allows": "unclean" if allows_unclean else "clean",
        }
        for number, ((standing, leader, is_valid, allows_unclean), _) in enumerate(cases)
        for place, (in_isr, in_elr, is_alive, is_stopping) in enumerate(standing)
    ]

    def read(rows: Rows) -> dict[int, Hashable]:
        found: dict[int, Hashable] = {}
        isr: dict[int, int] = {}
        for row in rows:
            number = row["partition"]
            isr[number] = isr.get(number, 0) | row["in_isr"] << row["broker_id"]
            leader = -1 if row["leader"] is None else row["leader"]
            assert row["leader_epoch"] == int(row["is_changed"])
            found[number] = (leader, row["is_changed"], row["is_unclean"], isr[number])
        return found

    return Question("leader_election", {"replicas": replicas}, read, _decided(cases))


def _eligible_replicas(cases: Sequence[Case]) -> Question:
    replicas = [
        _at(number)
        | {
            "broker_id": broker,
            "was_in_isr": was_in_isr,
            "in_isr": in_isr,
            "in_elr": in_elr,
            "is_unclean": is_unclean,
            "min_isr": min_isr,
        }
        for number, ((standing, is_unclean, min_isr), _) in enumerate(cases)
        for broker, (was_in_isr, in_isr, in_elr) in enumerate(standing)
    ]

    def read(rows: Rows) -> dict[int, Hashable]:
        return _sets("broker_id")([row for row in rows if row["in_elr"]])

    expected = _expected_sets([_brokers(mask) for _, mask in cases])
    return Question("eligible_replicas", {"replicas": replicas}, read, expected)


def _gets_leadership_back(cases: Sequence[Case]) -> Question:
    replicas = [
        _at(number)
        | {
            "broker_id": 0,
            "replica_index": 0,
            "in_isr": in_isr,
            "is_alive": is_alive,
            "is_stopping": is_stopping,
            "leader": 0 if leads else 1,
        }
        for number, ((in_isr, is_alive, is_stopping, leads), _) in enumerate(cases)
    ]
    return Question(
        "preferred_election",
        {"replicas": replicas},
        _one("leader"),
        {number: 0 for number, (_, is_given_back) in enumerate(cases) if is_given_back},
    )


def _request_error(cases: Sequence[Case]) -> Question:
    requests = [
        _at(number)
        | {
            "position": number,
            "request_id": str(number),
            "acks": acks,
            "is_topic_known": True,
            "is_internal": False,
            "is_leader": True,
            "named_leader_epoch": named,
            "leader_epoch": epoch,
            "waited_ms": 0,
            "age_ms": None,
            "timeout_ms": LAG,
            "clock_skew_ms": 0,
            "is_duplicate": False,
            "isr_size": isr_size,
            "min_isr": min_isr,
            "replica_count": replicas,
            "byte_size": 1,
            "max_message_bytes": PLENTY,
            "requests_before": 0,
            "queued_max_requests": 1,
            "recent_bytes": 0,
            "window_ms": 1000,
            "byte_rate": None,
            "is_throttled": False,
            "lacks_keys": False,
            "file_fault": None,
        }
        for number, ((named, epoch, acks, isr_size, min_isr, replicas), _) in enumerate(cases)
    ]
    return Question(
        "request_errors",
        {"requests": requests, "repeats": []},
        lambda rows: {row["position"]: row["error"] or "" for row in rows},
        _decided(cases),
    )


def _duplicate_offset(cases: Sequence[Case]) -> Question:
    requests = [
        _at(number)
        | {
            "position": number,
            "batch_id": str(record),
            "producer_id": -1,
            "producer_epoch": -1,
            "base_sequence": -1,
            "record_count": 1,
        }
        for number, ((record, _), _) in enumerate(cases)
    ]
    return Question(
        "duplicate_batches",
        {"requests": requests, "batches": _batches(cases, 1)},
        lambda rows: {row["position"]: row["base_offset"] for row in rows},
        {number: offset for number, (_, offset) in enumerate(cases) if offset >= 0},
    )


def _completed(cases: Sequence[Case]) -> Question:
    operations = [
        {
            "operation_id": str(number),
            "required_offset": required,
            "is_leader": is_leader,
            # The model's topic is never deleted.
            "is_topic_deleted": False,
            "high_watermark": mark,
            "isr_size": isr_size,
            "min_isr": min_isr,
            "replica_count": replicas,
        }
        for number, ((required, is_leader, mark, isr_size, min_isr, replicas), _) in enumerate(
            cases
        )
    ]
    return Question(
        "completed_operations",
        {"operations": operations},
        lambda rows: {int(row["operation_id"]): row["error"] for row in rows},
        {number: answer for number, (_, answer) in enumerate(cases) if answer},
    )


def _fetchable_end(cases: Sequence[Case]) -> Question:
    partitions = [
        _at(number)
        | {
            "leader": _known(leader),
            "leader_epoch": epoch,
            "is_as_elected": is_as_elected,
            "reported_leader_epoch": _known(row_epoch),
            "high_watermark": mark,
            "log_start_offset": 0,
            "epoch_start_offset": None,
        }
        for number, ((leader, epoch, is_as_elected, row_epoch, mark), _) in enumerate(cases)
    ]
    return Question(
        "visible_offsets",
        {"partitions": partitions},
        lambda rows: {
            row["partition"]: -1 if row["error"] else row["high_watermark"] for row in rows
        },
        _decided(cases),
    )


def _visible_end(cases: Sequence[Case]) -> Question:
    partitions = [
        _at(number)
        | {
            "leader": _known(leader),
            "leader_epoch": epoch,
            "is_as_elected": is_as_elected,
            "reported_leader_epoch": _known(row_epoch),
            "high_watermark": mark,
            "log_start_offset": 0,
            "epoch_start_offset": start,
        }
        for number, ((leader, epoch, is_as_elected, row_epoch, mark, start), _) in enumerate(cases)
    ]
    return Question(
        "visible_offsets",
        {"partitions": partitions},
        lambda rows: {
            row["partition"]: -1 if row["latest_error"] else row["high_watermark"] for row in rows
        },
        _decided(cases),
    )


QUESTIONS: Mapping[str, Callable[[Sequence[Case]], Question]] = {
    "epoch_entries": _epoch_entries,
    "end_offset_for": _end_offset_for,
    "truncation_point": _truncation_point,
    "recovered_epochs": _recovered_epochs,
    "fetched_end": _fetched_end,
    "follower_high_watermark": _follower_high_watermark,
    "recovered_high_watermark": _recovered_high_watermark,
    "believed_log_end_offset": _believed_log_end_offset,
    "high_watermark": _high_watermark,
    "isr_shrink": _isr_shrink,
    "isr_expand": _isr_expand,
    "isr_fence": _isr_fence,
    "elected": _elected,
    "eligible_replicas": _eligible_replicas,
    "gets_leadership_back": _gets_leadership_back,
    "request_error": _request_error,
    "duplicate_offset": _duplicate_offset,
    "completed": _completed,
    "fetchable_end": _fetchable_end,
    "visible_end": _visible_end,
}
