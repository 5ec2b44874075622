"""The rate at which a producer polls its leaders: each poll of an object store is a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from sparklog.model import TopicIdPartition
from sparklog.producer.answer_polls import AnswerPolls, pause_seconds
from sparklog.producer.produce_requests import (
    PendingProduce,
    ProduceResponse,
    Responses,
    poll_leaders,
)

POLL_SECONDS = 0.03


def polls_until(polls: AnswerPolls, seconds: float) -> int:
    """Return the number of polls without an answer of a request that takes this time, and note the
    time.
    """
    at, count = polls.first_seconds, 0
    while at < seconds:
        count += 1
        at += POLL_SECONDS + pause_seconds(at)
    polls.note(at)
    return count


def counts(times: Sequence[float]) -> list[int]:
    polls = AnswerPolls()
    return [polls_until(polls, seconds) for seconds in times]


def test_answers_that_take_long_are_polled_for_seldom() -> None:
    """For the first request no time is known, and for the second one too few."""
    first, second, *others = counts([4.0] * 5)
    assert (first, second) == (42, 42)
    assert max(others) <= 8


def test_answers_that_come_soon_are_polled_for_at_once() -> None:
    """With answers after 0.3 s, each of four requests is polled at most ten times before its
    answer.
    """
    assert counts([0.3] * 4) == [10, 10, 5, 5]


def test_one_that_took_long_delays_no_later_one() -> None:
    """One slow answer, for example during an election, does not delay the polls of later
    requests.
    """
    polls = AnswerPolls()
    for seconds in (0.3, 0.3, 30.0):
        polls.note(seconds)
    assert polls.first_seconds == pytest.approx(0.15)
    polls.note(30.0)
    assert polls.first_seconds == pytest.approx(2.5)


class Leader:
    """Counts the polls of its responses, and answers every request."""

    is_local = False

    def __init__(self) -> None:
        self.polls = 0

    def poll(self) -> None:
        self.polls += 1

    def pop(self, _request_id: str, _key: TopicIdPartition) -> ProduceResponse | None:
        return ProduceResponse("NONE", 0, 0) if self.polls else None

    def throttle_time_ms(self, _request_id: str) -> int:
        return 0

    def forget(self, _request_id: str) -> None:
        pass


def test_a_leader_is_polled_once_for_all_of_its_requests() -> None:
    """One poll of a leader covers all of its requests."""
    leaders = Leader(), Leader()
    keys = [TopicIdPartition("t", number) for number in range(4)]
    of = {key: cast("Responses", leaders[key.partition % 2]) for key in keys}
    requests = [PendingProduce(f"{number}", dict(of), {}, (), "all", 30_000) for number in range(3)]
    poll_leaders(requests)
    assert [leader.polls for leader in leaders] == [1, 1]
    assert [set(request.found()) for request in requests] == [set(keys)] * 3
    poll_leaders(requests)
    assert [leader.polls for leader in leaders] == [1, 1]
