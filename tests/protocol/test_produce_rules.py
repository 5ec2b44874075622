"""The stages of a produce request: refused, numbered, delayed, completed (3.1-3.7, 4.2-4.4)."""

from __future__ import annotations

from typing import Any

import pytest

from sparklog.errors import ERROR_CODES
from sparklog.protocol.rules import Rules


def request(position: int = 0, **changes: Any) -> dict[str, Any]:
    """Return a request that is to be appended."""
    return {
        "position": position,
        "request_id": "r",
        "topic_id": "t",
        "partition": 0,
        "acks": -1,
        "is_topic_known": True,
        "is_internal": False,
        "is_leader": True,
        "named_leader_epoch": 4,
        "leader_epoch": 4,
        "waited_ms": 0,
        "age_ms": None,
        "timeout_ms": 1000,
        "clock_skew_ms": 10,
        "is_duplicate": False,
        "isr_size": 2,
        "min_isr": 2,
        "replica_count": 3,
        "byte_size": 100,
        "max_message_bytes": 100,
        "requests_before": 0,
        "queued_max_requests": 3,
        "recent_bytes": 0,
        "window_ms": 2000,
        "byte_rate": None,
        "is_throttled": False,
        "lacks_keys": False,
        "file_fault": None,
        **changes,
    }


def errors(rules: Rules, *requests: dict[str, Any]) -> list[str | None]:
    found = rules.run("request_errors", requests=list(requests), repeats=[])
    return [row["error"] for row in sorted(found, key=lambda row: int(row["position"]))]


FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("INVALID_REQUIRED_ACKS", {"acks": 2}),
    ("INVALID_TOPIC_EXCEPTION", {"is_internal": True}),
    ("UNKNOWN_TOPIC_OR_PARTITION", {"is_topic_known": False}),
    ("NOT_LEADER_OR_FOLLOWER", {"is_leader": False}),
    ("FENCED_LEADER_EPOCH", {"named_leader_epoch": 3}),
    ("REQUEST_TIMED_OUT", {"waited_ms": 1001}),
    ("NOT_ENOUGH_REPLICAS", {"isr_size": 1}),
    ("MESSAGE_TOO_LARGE", {"byte_size": 101}),
    ("INVALID_RECORD", {"lacks_keys": True}),
    ("CORRUPT_MESSAGE", {"file_fault": "its checksum is another"}),
]
"""Reasons for which a leader refuses a request, the most severe first."""


@pytest.mark.parametrize(("error", "fault"), FAULTS, ids=[error for error, _ in FAULTS])
def test_what_a_leader_refuses(rules: Rules, error: str, fault: dict[str, Any]) -> None:
    """Rules 3.1-3.5: each fault on its own, with Kafka's error code."""
    assert error in ERROR_CODES
    assert errors(rules, request()) == [None]
    assert errors(rules, request(**fault)) == [error]


def test_the_gravest_fault_is_answered(rules: Rules) -> None:
    """Rules 3.1-3.5: faults of the request precede faults of its batch."""
    everything: dict[str, Any] = {}
    for error, fault in reversed(FAULTS):
        everything |= fault
        if error == "INVALID_REQUIRED_ACKS":
            # Without acks=all too few replicas are no fault, so this one cannot be added.
            everything["acks"] = 5
        assert errors(rules, request(**everything)) == [error]


def test_a_newer_leader_epoch_is_unknown(rules: Rules) -> None:
    """Rules 3.1, 6.4."""
    assert errors(rules, request(named_leader_epoch=5)) == ["UNKNOWN_LEADER_EPOCH"]


def test_where_the_broker_leads_nothing_its_state_may_be_missing(rules: Rules) -> None:
    """Rule 3.1: every broker answers such requests."""
    unknown: dict[str, Any] = dict.fromkeys(["leader_epoch", "isr_size", "replica_count"])
    unknown["is_leader"] = False
    assert errors(rules, request(**unknown)) == ["NOT_LEADER_OR_FOLLOWER"]
    assert errors(rules, request(**unknown, is_topic_known=False)) == ["UNKNOWN_TOPIC_OR_PARTITION"]


@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_acks_may_be_all_none_or_one(rules: Rules, acks: int) -> None:
    """Rule 3.2."""
    assert errors(rules, request(acks=acks)) == [None]


@pytest.mark.parametrize("acks", [-99, -2, 2, 3])
def test_any_other_acks_are_refused(rules: Rules, acks: int) -> None:
    """Rule 3.2."""
    assert errors(rules, request(acks=acks)) == ["INVALID_REQUIRED_ACKS"]


def test_min_isr_binds_acks_all_only(rules: Rules) -> None:
    """Rule 3.3; the effective value is at most the number of replicas (2.3)."""
    assert errors(rules, request(isr_size=1)) == ["NOT_ENOUGH_REPLICAS"]
    assert errors(rules, request(isr_size=1, acks=1)) == [None]
    assert errors(rules, request(isr_size=1, acks=0)) == [None]
    assert errors(rules, request(isr_size=1, replica_count=1)) == [None]


def test_a_request_may_wait_as_long_as_its_timeout(rules: Rules) -> None:
    """Rule 3.1: later the client has given up, and an append would be without its knowledge."""
    assert errors(rules, request(waited_ms=1000)) == [None]
    assert errors(rules, request(waited_ms=1001)) == ["REQUEST_TIMED_OUT"]


@pytest.mark.parametrize(
    ("age_ms", "is_in_time"),
    [(-11, False), (-10, True), (0, True), (990, True), (991, False), (None, False)],
)
@pytest.mark.parametrize("waited_ms", [None, -1, 1001])
def test_a_request_that_waited_unseen_is_judged_by_its_age(
    rules: Rules, waited_ms: int | None, age_ms: int | None, is_in_time: bool
) -> None:
    """Rule 10.1: with clocks that differ by the allowance its producer has not given up yet. One
    from further in the future shows that they differ by more.
    """
    found = errors(rules, request(waited_ms=waited_ms, age_ms=age_ms))
    assert found == [None if is_in_time else "REQUEST_TIMED_OUT"]


def test_a_request_that_was_seen_to_arrive_needs_no_clock(rules: Rules) -> None:
    """Rule 10.1: its producer's clock may be years off."""
    assert errors(rules, request(age_ms=1 << 45)) == [None]
    assert errors(rules, request(age_ms=-(1 << 45))) == [None]


def test_a_batch_is_in_time_if_one_of_its_requests_is(rules: Rules) -> None:
    """Rule 10.1: a producer sends a batch again while it waits for the next run of the leader."""
    times = ("position", "waited_ms", "age_ms", "timeout_ms", "clock_skew_ms")
    requests = [request(at, request_id=str(at), waited_ms=None, age_ms=2000) for at in (0, 1)]
    late = {name: requests[1][name] for name in times}
    for repeat, expected in ((late, "REQUEST_TIMED_OUT"), (late | {"age_ms": 0}, None)):
        found = rules.run("request_errors", requests=requests, repeats=[late, repeat])
        by_position = {row["position"]: row["error"] for row in found}
        assert by_position == {0: "REQUEST_TIMED_OUT", 1: expected}


def test_a_duplicate_is_not_refused_for_what_concerns_appending(rules: Rules) -> None:
    """Rule 3.6: it is in the log, so epoch, time, ISR and file do not matter any more."""
    late: dict[str, Any] = {}
    for _, fault in FAULTS[4:]:
        late |= fault
    assert errors(rules, request(is_duplicate=True, **late)) == [None]


@pytest.mark.parametrize(("error", "fault"), FAULTS[:4], ids=[error for error, _ in FAULTS[:4]])
def test_a_duplicate_is_refused_where_nothing_can_be_answered(
    rules: Rules, error: str, fault: dict[str, Any]
) -> None:
    """Rules 3.1, 3.2, 3.5."""
    assert errors(rules, request(is_duplicate=True, **fault)) == [error]


def test_one_bad_batch_refuses_its_partition_of_its_request_and_nothing_else(rules: Rules) -> None:
    """Rules 3.4, 3.7."""
    found = errors(
        rules,
        request(0),
        request(1, file_fault="unreadable"),
        request(2, partition=1),
        request(3, topic_id="u"),
        request(4, request_id="s"),
    )
    assert found == ["CORRUPT_MESSAGE", "CORRUPT_MESSAGE", None, None, None]


def test_base_offsets_go_on_from_the_log_end_in_order_of_arrival(rules: Rules) -> None:
    """Rule 3.4: prefix sums of the record counts, for each partition independently."""
    arrived = [(0, "t", 0, 2), (1, "t", 1, 7), (2, "t", 0, 3), (3, "u", 0, 1), (4, "t", 0, 1)]
    batches = [
        {
            "position": position,
            "topic_id": topic,
            "partition": partition,
            "record_count": records,
            "log_end_offset": {"t": 10, "u": 0}[topic] + 90 * partition,
        }
        for position, topic, partition, records in reversed(arrived)
    ]
    found = rules.run("assigned_offsets", batches=batches)
    offsets = {row["position"]: row["base_offset"] for row in found}
    assert offsets == {0: 10, 1: 100, 2: 12, 3: 0, 4: 15}


@pytest.mark.parametrize(
    ("byte_rate", "recent_bytes", "error"),
    [
        (None, 2**62, None),
        (100, 200, None),
        (100, 201, "THROTTLING_QUOTA_EXCEEDED"),
        (2**62, 2**62, None),
    ],
)
def test_a_topic_may_bound_how_fast_it_is_written(
    rules: Rules, byte_rate: int | None, recent_bytes: int, error: str | None
) -> None:
    """The limit is in bytes per second over a window of 2 s; no number is too large."""
    assert errors(rules, request(byte_rate=byte_rate, recent_bytes=recent_bytes)) == [error]


def appended(request_id: str, acks: int, base: int, last: int, **changes: Any) -> dict[str, Any]:
    return {
        "request_id": request_id,
        "topic_id": "t",
        "partition": 0,
        "acks": acks,
        "base_offset": base,
        "last_offset": last,
        "timeout_ms": 100,
        "now_ms": 5000,
        **changes,
    }


def delayed(rules: Rules, *rows: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    found = rules.run("delayed_operations", appended=list(rows))
    return {(row["request_id"], row["partition"]): row for row in found}


def test_acks_decide_what_is_answered_when(rules: Rules) -> None:
    """Rule 3.2: `all` waits for the high watermark, 1 for the append, and 0 gets no answer."""
    found = delayed(rules, appended("a", -1, 4, 6), appended("b", 1, 7, 7), appended("c", 0, 8, 8))
    assert {of: row["is_delayed"] for of, row in found.items()} == {("a", 0): True, ("b", 0): False}
    waiting = found["a", 0]
    assert (waiting["base_offset"], waiting["required_offset"]) == (4, 7)
    assert waiting["deadline_ms"] == 5100


def test_a_request_waits_for_the_last_batch_of_each_partition(rules: Rules) -> None:
    """Rule 3.4: each partition has its own base offset and its own required offset."""
    found = delayed(
        rules,
        appended("a", -1, 4, 6),
        appended("a", -1, 7, 9),
        appended("a", -1, 0, 1, partition=1),
    )
    offsets = {of: (row["base_offset"], row["required_offset"]) for of, row in found.items()}
    assert offsets == {("a", 0): (4, 10), ("a", 1): (0, 2)}


def test_the_strictest_acks_of_a_request_count(rules: Rules) -> None:
    """Rule 3.2: a request with acks=all is not answered before all have the records."""
    found = delayed(rules, appended("a", -1, 4, 6), appended("a", 1, 7, 9))
    assert found["a", 0]["is_delayed"]


def test_no_timeout_is_too_large(rules: Rules) -> None:
    """Rule 3.7: a number in one request never makes a tick fail."""
    found = delayed(rules, appended("a", -1, 4, 6, timeout_ms=2**63 - 1))
    assert found["a", 0]["deadline_ms"] == 5000 + 2**31 - 1


def completed(rules: Rules, **changes: Any) -> str | None:
    operation = {
        "operation_id": "o",
        "required_offset": 7,
        "is_leader": True,
        "is_topic_deleted": False,
        "high_watermark": 7,
        "isr_size": 2,
        "min_isr": 2,
        "replica_count": 3,
        **changes,
    }
    found = rules.run("completed_operations", operations=[operation])
    assert all(row["operation_id"] == "o" for row in found)
    return found[0]["error"] if found else None


def test_an_operation_is_complete_when_the_high_watermark_has_passed_it(rules: Rules) -> None:
    """Rules 3.2, 4.3: HW >= last offset + 1."""
    assert completed(rules) == "NONE"
    assert completed(rules, high_watermark=6) is None


def test_too_few_in_sync_by_then_is_answered_as_such(rules: Rules) -> None:
    """Rule 3.3: only when the high watermark has reached it; until then it is delayed."""
    assert completed(rules, isr_size=1) == "NOT_ENOUGH_REPLICAS_AFTER_APPEND"
    assert completed(rules, isr_size=1, high_watermark=6) is None
    assert completed(rules, isr_size=1, replica_count=1) == "NONE"


def test_the_deletion_of_the_topic_completes_what_was_delayed(rules: Rules) -> None:
    """Rule 7.9: the broker leads the partition no longer, and no other broker does."""
    of_deleted = {"is_leader": False, "is_topic_deleted": True, "high_watermark": None}
    assert completed(rules, **of_deleted) == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_change_of_leadership_completes_what_was_delayed(rules: Rules) -> None:
    """Rule 4.4: the old leader does not know the new leader's records at that offset."""
    gone = dict.fromkeys(["high_watermark", "isr_size", "min_isr", "replica_count"])
    assert completed(rules, is_leader=False, **gone) == "NOT_LEADER_OR_FOLLOWER"
    assert completed(rules, is_leader=False) == "NOT_LEADER_OR_FOLLOWER"


@pytest.mark.parametrize(("now_ms", "is_expired"), [(4999, False), (5000, True), (5001, True)])
def test_an_operation_expires_at_its_deadline(rules: Rules, now_ms: int, is_expired: bool) -> None:
    """Rule 4.2: REQUEST_TIMED_OUT."""
    operation = {"operation_id": "o", "deadline_ms": 5000, "now_ms": now_ms}
    expected = [{"operation_id": "o", "error": "REQUEST_TIMED_OUT"}] if is_expired else []
    assert rules.run("expired_operations", operations=[operation]) == expected


@pytest.mark.parametrize(
    ("log_start", "checkpointed", "log_end", "expected"),
    [
        pytest.param(0, 5, 8, (0, 8, 5), id="the log may be ahead of the checkpoint"),
        pytest.param(0, 5, 3, (0, 3, 3), id="behind it, the high watermark is lowered"),
        pytest.param(None, None, 8, (0, 8, 0), id="no checkpoint entry means 0"),
        pytest.param(4, 2, 8, (4, 8, 4), id="the high watermark is not below the log start"),
        pytest.param(6, 6, 0, (6, 6, 6), id="an empty log ends at its start"),
    ],
)
def test_the_state_a_broker_starts_with(
    rules: Rules,
    log_start: int | None,
    checkpointed: int | None,
    log_end: int,
    expected: tuple[int, int, int],
) -> None:
    """Rules 1.2, 1.4, 7.0: log start <= high watermark <= log end, with the log taking
    precedence.
    """
    row = {
        "topic_id": "t",
        "partition": 0,
        "log_start_offset": log_start,
        "checkpointed_high_watermark": checkpointed,
        "log_end_offset": log_end,
    }
    [found] = rules.run("recovered_replicas", replicas=[row])
    offsets = (found["log_start_offset"], found["log_end_offset"], found["high_watermark"])
    assert offsets == expected


def completed_fetches(rules: Rules, *rows: tuple[str, int, bool, int]) -> dict[str, str]:
    operations = [
        {
            "operation_id": f"{request}/{partition}",
            "request_id": request,
            "min_bytes": 10,
            "is_leader": is_leader,
            "available_bytes": available,
        }
        for request, partition, is_leader, available in rows
    ]
    found = rules.run("completed_fetches", operations=operations)
    return {row["operation_id"]: row["error"] for row in found}


def test_a_fetch_is_complete_when_there_is_enough_in_all_its_partitions(rules: Rules) -> None:
    """Rule 4.3, A.2: partitions without new batches are included."""
    assert completed_fetches(rules, ("a", 0, True, 9), ("b", 0, True, 9)) == {}
    both = {"a/0": "NONE", "a/1": "NONE"}
    assert completed_fetches(rules, ("a", 0, True, 10), ("a", 1, True, 0)) == both


def test_a_fetch_goes_on_without_partitions_that_another_leads(rules: Rules) -> None:
    """Rule 4.4: the old leader's batches are not waited for, and do not count."""
    lost = {"a/0": "NOT_LEADER_OR_FOLLOWER"}
    assert completed_fetches(rules, ("a", 0, False, 9), ("a", 1, True, 9)) == lost


@pytest.mark.parametrize(("acks", "error"), [(1, "THROTTLING_QUOTA_EXCEEDED"), (0, None)])
def test_a_throttled_client_is_refused_if_it_can_send_again(
    rules: Rules, acks: int, error: str | None
) -> None:
    """Rule 3.9: with acks=0 a refused batch would be lost."""
    assert errors(rules, request(is_throttled=True, acks=acks)) == [error]


@pytest.mark.parametrize(
    ("recent_bytes", "byte_rate", "time_ms"),
    [(200, 100, None), (201, 100, 11), (400, 100, 2_001), (1 << 40, 1, (1 << 40) * 1000 - 1_999)],
)
def test_a_throttle_time_brings_the_rate_back_to_the_quota(
    rules: Rules, recent_bytes: int, byte_rate: int, time_ms: int | None
) -> None:
    """Rule 3.9: no time within the quota, which is in bytes per second over a window of 2 s."""
    client = {
        "client_id": "c",
        "recent_bytes": recent_bytes,
        "window_ms": 2_000,
        "byte_rate": byte_rate,
    }
    found = rules.run("throttle_times", clients=[client])
    expected = [] if time_ms is None else [{"client_id": "c", "throttle_time_ms": time_ms}]
    assert found == expected
