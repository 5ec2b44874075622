"""The checks of the state machine detect errors: if a rule's result is wrong, a check fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sparklog.model import LOG, EpochEntry, TopicIdPartition
from sparklog.protocol.driver_rules import DriverRules
from sparklog.protocol.invariants import Invariant
from sparklog.storage.commits import BROKER_EPOCH
from sparklog.storage.delta_log import DeltaLog
from sparklog.storage.fence import Fence
from sparklog.storage.journal import Histories, Journal, Step
from tests.maintenance.damage import batches, commit_row, replace_batches, rewritten, root
from tests.state_machine.checked_cluster import TOPIC, CheckedCluster
from tests.state_machine.invariants import Invariants

Row = dict[str, Any]
Lie = Callable[[Row, list[Row]], "Row | None"]
Told = list[str]


@pytest.fixture
def let_lie(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Lie], None]:
    """Let a rule give other rows from now on: each row is changed or omitted."""

    def arrange(rule: str, lie: Lie) -> None:
        run = DriverRules.run

        def lying(of: DriverRules, name: str, **inputs: Any) -> list[Row]:
            rows = run(of, name, **inputs)
            if name != rule:
                return rows
            taken = [*next(iter(inputs.values()))]
            return [told for row in rows if (told := lie(row, taken)) is not None]

        monkeypatch.setattr(DriverRules, "run", lying)

    return arrange


@pytest.fixture
def told() -> Told:
    """The scripts that clusters report when a check fails."""
    return []


@pytest.fixture
def cluster(told: Told) -> Iterator[CheckedCluster]:
    cluster = CheckedCluster(2, 1, 1, on_failure=told.append)
    yield cluster
    cluster.close()


def one_of_two_records_reported(cluster: CheckedCluster) -> None:
    """Let the next tick of the leader append a second record, and read a report of the first one.

    Without a report beyond the high watermark its rule does not run.
    """
    cluster.produce(0, 1)
    cluster.leader_tick(0)
    cluster.follower_tick(1)
    cluster.produce(0, 1)


def test_a_record_that_only_the_leader_has_is_not_committed(
    cluster: CheckedCluster, let_lie: Callable[[str, Lie], None]
) -> None:
    """A high watermark above the log end of an in-sync follower violates 9.1, 9.2 and 9.7."""
    let_lie(
        "high_watermark",
        lambda row, taken: row | {"high_watermark": taken[0]["leader_log_end_offset"]},
    )
    one_of_two_records_reported(cluster)
    with pytest.raises(AssertionError, match=r"9\.1, 9\.2, 9\.7: broker 1 is in sync"):
        cluster.leader_tick(0)


def test_a_high_watermark_does_not_go_back(
    cluster: CheckedCluster, let_lie: Callable[[str, Lie], None]
) -> None:
    """A high watermark that decreases violates 9.3."""
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
    """A consumer that can read less than before violates 9.3."""
    cluster.produce(0, 2)
    cluster.tick_until_idle()
    let_lie("visible_offsets", lambda row, _: row | {"high_watermark": 1})
    with pytest.raises(AssertionError, match=r"9\.3: a consumer of 0 sees 1 after 2"):
        cluster.tick_until_idle()


def test_nobody_leads_uncleanly_where_it_is_not_allowed(
    cluster: CheckedCluster, let_lie: Callable[[str, Lie], None]
) -> None:
    """An unclean election that is not allowed violates 7.5."""
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
    """Two logs continue with different records at the same offset and in the same epoch."""
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
    """A batch that is appended twice violates 9.1."""
    cluster.produce(0, 2, 1)
    cluster.leader_tick(0)
    let_lie("duplicate_batches", lambda _, __: None)
    cluster.retry(0)
    with pytest.raises(AssertionError, match=r"9\.1: written twice by broker 0"):
        cluster.leader_tick(0)


def test_the_story_of_a_failure_is_a_script_that_repeats_it(
    cluster: CheckedCluster, let_lie: Callable[[str, Lie], None], told: Told
) -> None:
    """The story of a failure is a script that repeats the failure."""
    let_lie(
        "high_watermark",
        lambda row, taken: row | {"high_watermark": taken[0]["leader_log_end_offset"]},
    )
    one_of_two_records_reported(cluster)
    with pytest.raises(AssertionError) as first:
        cluster.leader_tick(0, stop_after="checkpoint")
    [script] = told
    names: dict[str, Any] = {}
    with pytest.raises(AssertionError) as again:
        exec(script, names)
    names["cluster"].close()
    assert str(again.value).splitlines()[0] == str(first.value).splitlines()[0]


def other_records(folder: Path, key: TopicIdPartition) -> None:
    """Replace the last batch of the follower by one with another record."""
    last = batches(folder, 1, key)[-1:]
    replace_batches(folder, 1, last, [rewritten(folder, 1, last, [b"another"])])


def a_second_leader(folder: Path, key: TopicIdPartition) -> None:
    commit_row(folder, 1, key, role="leader")


def a_gap(folder: Path, key: TopicIdPartition) -> None:
    replace_batches(folder, 1, batches(folder, 1, key)[1:2])


def an_epoch_before_its_batches(folder: Path, key: TopicIdPartition) -> None:
    location = root(folder, 1)
    epoch = DeltaLog(location.child(LOG.name)).transactions[BROKER_EPOCH]
    journal = Journal(location, Fence(BROKER_EPOCH, epoch))
    history = (EpochEntry(0, 2), EpochEntry(1, 1))
    journal.commit_step([], [], Step(histories={key: Histories(TOPIC, history)}), 0)


def a_high_watermark_beyond_the_logs(folder: Path, key: TopicIdPartition) -> None:
    commit_row(folder, 0, key, high_watermark=4)


DAMAGE = {
    Invariant.IN_SYNC_REPLICAS_AGREE: other_records,
    Invariant.ONE_LEADER_PER_EPOCH: a_second_leader,
    Invariant.OFFSETS_ARE_DENSE: a_gap,
    Invariant.EPOCH_HISTORIES_INCREASE: an_epoch_before_its_batches,
    Invariant.HIGH_WATERMARK_IS_BELOW_KNOWN_ENDS: a_high_watermark_beyond_the_logs,
}
"""For each invariant that the audit checks a change of the tables that violates it."""


def test_every_invariant_of_the_audit_is_violated_by_some_damage() -> None:
    assert set(DAMAGE) == set(Invariants.audit.checked_invariants)  # type: ignore[attr-defined]


@pytest.mark.parametrize("invariant", DAMAGE, ids=str)
def test_the_audit_of_a_step_finds_damage(cluster: CheckedCluster, invariant: Invariant) -> None:
    """The audit finds damage in tables, and other checks of the same step find it or not."""
    for _ in range(3):
        cluster.produce(0, 1)
        cluster.tick_until_idle()
    invariants = Invariants(cluster.root, cluster.ids, allows_unclean=False)
    invariants.check()
    [key] = Journal(root(cluster.root, 1)).rows
    DAMAGE[invariant](cluster.root, key)
    with suppress(AssertionError):
        invariants.check()
    with pytest.raises(AssertionError, match=rf"\b{invariant.number}: "):
        invariants.audit()


def test_a_checkpoint_table_that_its_broker_has_recreated_is_opened_again(
    cluster: CheckedCluster,
) -> None:
    """A broker recreates a table that it cannot read; the checks failed then (seed 6630)."""
    cluster.produce(0, 1)
    cluster.tick_until_idle()
    log = cluster.root / "broker-0" / "high_watermark_checkpoint" / "_delta_log"
    (log / f"{0:020}.json").write_bytes(b"")
    cluster.crash(0)
    cluster.restart(0)
    cluster.produce(0, 1)
    cluster.come_to_rest()
