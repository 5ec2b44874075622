"""Waiting for conditions, and times that have come."""

from __future__ import annotations

import pytest

from sparklog.clock import Interval, wait_until
from sparklog.testing import ManualClock


@pytest.fixture
def manual() -> ManualClock:
    return ManualClock()


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch, manual: ManualClock) -> list[int]:
    """The pauses of this test in ms; they advance the manual clock."""
    found: list[int] = []

    def sleep(seconds: float) -> None:
        found.append(round(seconds * 1000))
        manual.advance(found[-1])

    monkeypatch.setattr("sparklog.clock.time.sleep", sleep)
    return found


def test_the_first_true_result_is_returned(pauses: list[int]) -> None:
    results = iter(["", "", "found", "later"])
    assert wait_until(lambda: next(results), pause_ms=20) == "found"
    assert pauses == [20, 20]


def test_a_condition_that_holds_is_not_waited_for(pauses: list[int]) -> None:
    assert wait_until(lambda: "there", 0, pause_ms=20) == "there"
    assert pauses == []


def test_until_decides_about_results_that_are_false(pauses: list[int]) -> None:
    results = iter([None, 0])
    assert wait_until(lambda: next(results), pause_ms=1, until=lambda one: one is not None) == 0
    assert pauses == [1]


@pytest.mark.parametrize(("pause_ms", "polls"), [(10, 5), (15, 4), (31, 2)])
def test_the_last_result_is_returned_after_the_timeout(
    pause_ms: int, polls: int, manual: ManualClock, pauses: list[int]
) -> None:
    """At exactly 30 ms a timeout of 30 ms has not passed."""
    results = iter(range(1, 10))
    last = wait_until(
        lambda: next(results), 30, pause_ms=pause_ms, until=lambda one: one > 9, clock=manual
    )
    assert last == polls
    assert pauses == [pause_ms] * (polls - 1)


def test_the_pause_may_depend_on_the_time_that_has_passed(
    manual: ManualClock, pauses: list[int]
) -> None:
    results = iter([False, False, False, True])
    assert wait_until(lambda: next(results), pause_ms=lambda passed: 5 + passed, clock=manual)
    assert pauses == [5, 10, 20]


def test_an_error_of_a_poll_is_raised_at_once(pauses: list[int]) -> None:
    def poll() -> bool:
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        wait_until(poll, 1_000, pause_ms=5)
    assert pauses == []


def test_work_is_due_after_an_interval_of_the_monotonic_clock(manual: ManualClock) -> None:
    """It is due at first, and whatever the wall clock shows."""
    interval = Interval(manual)
    found = [interval.is_over]
    interval.begin(500)
    for ms in (499, 1):
        manual.advance(ms)
        found.append(interval.is_over)
    assert found == [True, False, True]
