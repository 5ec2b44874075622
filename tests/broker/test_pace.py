"""The steps of ticks, where ticks are several seconds apart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparklog.broker.metadata_polls import MetadataPoll, MetadataPolls
from sparklog.broker.pace import STEP_MS, Pace, TickStep

TICK_MS = 5_000


def steps(
    pace: Pace, now_ms: int, *, round_ms: int = 50, changes: int = 0, is_waiting: bool = False
) -> Iterator[tuple[int, TickStep]]:
    """The times and kinds of an application's rounds; the first `changes` rounds have many
    changes.
    """
    for number in range(100):
        wait_ms, step = pace.next(now_ms, has_more=number < changes, is_waiting=is_waiting)
        now_ms += wait_ms
        yield now_ms, step
        now_ms += round_ms


def until(ends_ms: int, found: Iterator[tuple[int, TickStep]]) -> list[tuple[int, TickStep]]:
    return [one for one in found if one[0] < ends_ms]


@pytest.mark.parametrize("started_ms", [TICK_MS, 12_345, 14_999])
def test_all_brokers_tick_at_the_same_times(started_ms: int) -> None:
    """An idle tick has one step of each kind, at multiples of the interval and shortly after."""
    found = [one for one in steps(Pace(TICK_MS), started_ms) if 20_000 <= one[0] < 30_000]
    assert found == [
        (20_000, TickStep.REQUESTS),
        (20_000 + STEP_MS, TickStep.JOURNALS),
        (25_000, TickStep.REQUESTS),
        (25_000 + STEP_MS, TickStep.JOURNALS),
    ]


def test_steps_follow_while_the_journals_have_news() -> None:
    """Further steps follow as long as the journals have news."""
    found = until(TICK_MS + 5_000, steps(Pace(TICK_MS), TICK_MS, changes=4))
    assert found[0] == (TICK_MS, TickStep.REQUESTS)
    assert found[1:] == [(TICK_MS + one * STEP_MS, TickStep.JOURNALS) for one in (1, 2, 3)]


@pytest.mark.parametrize(("interval_ms", "most"), [(1_000, 4), (5_000, 9), (60_000, 9)])
def test_requests_that_wait_for_followers_cost_few_steps(interval_ms: int, most: int) -> None:
    """Requests that wait for followers cost few steps, until a missing follower leaves the ISR."""
    found = until(2 * interval_ms, steps(Pace(interval_ms), interval_ms, is_waiting=True))
    assert 2 < len(found) <= most
    assert found[1:4] == [(interval_ms + one * STEP_MS, TickStep.JOURNALS) for one in (1, 2, 3)]


@pytest.mark.parametrize("round_ms", [STEP_MS, 900, TICK_MS, 3 * TICK_MS])
def test_followers_act_in_every_tick_however_long_a_round_takes(round_ms: int) -> None:
    """Followers act in every tick, also if a round takes longer than the interval."""
    found = [step for _, step in steps(Pace(TICK_MS), TICK_MS, round_ms=round_ms)]
    assert found == [TickStep.REQUESTS, TickStep.JOURNALS] * 50


def test_a_clock_that_is_set_back_begins_a_tick() -> None:
    """If the clock is set back, a new tick begins."""
    pace = Pace(TICK_MS)
    pace.next(TICK_MS)
    pace.next(TICK_MS)
    assert pace.next(1_000) == (0, TickStep.REQUESTS)
    assert pace.next(1_050) == (150, TickStep.JOURNALS)


class TestLooksAtTheMetadata:
    """Polls of the cluster root, where ticks are several seconds apart."""

    def test_are_made_at_the_beginning_of_every_other_second(self) -> None:
        """The metadata is polled at the beginning of every other second."""
        looks = MetadataPolls(1_000)
        found = [
            (ms, looks.next((0, 1), ms, is_between=ms % 1_000 > 0))
            for ms in range(20_000)
            if ms % 1_000 in (0, STEP_MS, 2 * STEP_MS)
        ]
        made = [(ms, look) for ms, look in found if look is not MetadataPoll.NONE and ms >= 10_000]
        assert made == [
            (10_000, MetadataPoll.PARTITIONS),
            (12_000, MetadataPoll.ALL),
            (14_000, MetadataPoll.PARTITIONS),
            (16_000, MetadataPoll.ALL),
            (18_000, MetadataPoll.PARTITIONS),
        ]

    def test_are_made_between_ticks_after_a_change(self) -> None:
        """After a change the metadata is polled between ticks as well."""
        looks = MetadataPolls(5_000)
        assert looks.next((0, 1), 20_000) is MetadataPoll.ALL
        assert looks.next((0, 2), 20_600, is_between=True) is MetadataPoll.ALL
        assert looks.next((0, 2), 20_900, is_between=True) is MetadataPoll.NONE
        assert looks.next((0, 2), 21_200, is_between=True) is MetadataPoll.ALL
        assert looks.next((0, 2), 24_900, is_between=True) is MetadataPoll.NONE
