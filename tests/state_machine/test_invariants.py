"""The checks of the state machine see what goes wrong: where a rule lies, each of them speaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparklog.protocol.driver_rules import DriverRules
from tests.state_machine.checked_cluster import CheckedCluster

Row = dict[str, Any]
Lie = Callable[[Row, list[Row]], "Row | None"]
Told = list[str]


@pytest.fixture
def let_lie(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Lie], None]:
    """Let a rule give other rows from now on: each is changed or left out."""

    def arrange(rule: str, lie: Lie) -> None:
        run = DriverRules.run

        def lying(of: DriverRules, name: str, **inputs: Any) -> list[Row]:
            rows = run(of, name, **inputs)
            if name != rule:
                return rows
            taken = next(iter(inputs.values()))
            return [told for row in rows if (told := lie(row, taken)) is not None]

        monkeypatch.setattr(DriverRules, "run", lying)

    return arrange


@pytest.fixture
def told() -> Told:
    """The scripts that clusters tell where a check fails."""
    return []


@pytest.fixture
def cluster(told: Told) -> Iterator[CheckedCluster]:
    cluster = CheckedCluster(2, 1, 1, on_failure=told.append)
    yield cluster
    cluster.close()


def test_a_record_that_only_the_leader_has_is_not_committed(
    cluster: CheckedCluster, let_lie: Callable[[str, Lie], None]
) -> None:
    let_lie(
        "high_watermark",
        lambda row, taken: row | {"high_watermark": taken[0]["leader_log_end_offset"]},
    )
    cluster.produce(0, 1)
    with pytest.raises(AssertionError, match=r"9\.1, 9\.2, 9\.7: broker 1 is in sync"):
        cluster.leader_tick(0)


def test_a_high_watermark_does_not_go_back(
    cluster: CheckedCluster, let_lie: Callable[[str, Lie], None]
) -> None:
    cluster.produce(0, 2)
    cluster.tick_until_idle()
    let_lie("follower_high_watermark", lambda row, _: row | {"high_watermark": 1})
    cluster.produce(0, 1)
    cluster.leader_tick(0)
    with pytest.raises(AssertionError, match=r"9\.3: the replica 0 of broker 1 went from 2 to 1"):
        cluster.follower_tick(1)


def test_a_consumer_is_not_shown_less(
    cluster: CheckedCluster, let_lie: Callable[[str, Lie], None]
) -> None:
    cluster.produce(0, 2)
    cluster.tick_until_idle()
    let_lie("visible_offsets", lambda row, _: row | {"high_watermark": 1})
    with pytest.raises(AssertionError, match=r"9\.3: a consumer of 0 sees 1 after 2"):
        cluster.tick_until_idle()


def test_nobody_leads_uncleanly_where_it_is_not_allowed(
    cluster: CheckedCluster, let_lie: Callable[[str, Lie], None]
) -> None:
    cluster.crash(1)
    cluster.fence(1)
    cluster.crash(0)
    cluster.restart(1)

    def elect(row: Row, _: list[Row]) -> Row:
        is_elected = row["broker_id"] == 1
        epoch = row["leader_epoch"] + (not row["is_changed"])
        return row | {
            "leader": 1,
            "leader_epoch": epoch,
            "in_isr": is_elected,
            "is_changed": True,
        }

    let_lie("leader_election", elect)
    with pytest.raises(AssertionError, match=r"7\.5: broker 1 leads 0 in epoch 1"):
        cluster.fence(0)


def test_a_follower_keeps_nothing_that_its_leader_does_not_have(
    cluster: CheckedCluster, let_lie: Callable[[str, Lie], None]
) -> None:
    """Two logs that go on from different records: the same place, written in the same epoch."""
    cluster.pause(0)
    cluster.produce(0, 1, 1)
    cluster.fence(0)
    cluster.leader_tick(0)
    let_lie("truncation_point", lambda row, _: row | {"truncate_to": None})
    cluster.produce(0, 1, 1)
    cluster.tick_until_idle()
    cluster.resume(0)
    with pytest.raises(AssertionError, match=r"9\."):
        cluster.come_to_rest()


def test_a_batch_is_not_written_twice(
    cluster: CheckedCluster, let_lie: Callable[[str, Lie], None]
) -> None:
    cluster.produce(0, 2, 1)
    cluster.leader_tick(0)
    let_lie("duplicate_batches", lambda _, __: None)
    cluster.retry(0)
    with pytest.raises(AssertionError, match=r"9\.1: written twice by broker 0"):
        cluster.leader_tick(0)


def test_the_story_of_a_failure_is_a_script_that_tells_it_again(
    cluster: CheckedCluster, let_lie: Callable[[str, Lie], None], told: Told
) -> None:
    let_lie(
        "high_watermark",
        lambda row, taken: row | {"high_watermark": taken[0]["leader_log_end_offset"]},
    )
    cluster.produce(0, 1, producer=0)
    with pytest.raises(AssertionError) as first:
        cluster.leader_tick(0, stop_after="checkpoint")
    [script] = told
    names: dict[str, Any] = {}
    with pytest.raises(AssertionError) as again:
        exec(script, names)
    names["cluster"].close()
    assert str(again.value).splitlines()[0] == str(first.value).splitlines()[0]
