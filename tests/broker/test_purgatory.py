"""The purgatory: what waits, what wakes it, and that it is completed once (rules 4.1-4.4)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from sparklog.clients.produce import PendingProduce
from sparklog.model import DELAYED_OPERATIONS
from sparklog.protocol.driver_rules import DriverRules
from sparklog.testing import LocalCluster
from tests.broker import states

Start = Callable[..., LocalCluster]
Seen = list[tuple[str, list[int]]]

COMPLETES = "completed_operations"
LARGE = 8000
"""Bytes that make a batch larger than two small ones."""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """The rules that have run since, in order, each with the partitions that it was shown."""
    run = DriverRules.run
    rules: Seen = []

    def noted(self: DriverRules, name: str, **inputs: Any) -> list[dict[str, Any]]:
        rows = [row for rows in inputs.values() for row in rows]
        rules.append((name, sorted({row["partition"] for row in rows if "partition" in row})))
        return run(self, name, **inputs)

    monkeypatch.setattr(DriverRules, "run", noted)
    return rules


def of(seen: Seen, rule: str) -> list[list[int]]:
    """What a rule was shown, run by run."""
    return [partitions for name, partitions in seen if name == rule]


def waiting(cluster: LocalCluster, broker: int) -> list[tuple[str, int, int]]:
    """What waits, as the journal says: kind, partition, and when it expires from now."""
    rows = states.rows(cluster, broker, DELAYED_OPERATIONS)
    now_ms = cluster.clock.now_ms()
    return sorted((row["kind"], row["partition"], row["deadline_ms"] - now_ms) for row in rows)


def error(pending: PendingProduce) -> str | None:
    """How a request was answered, or that it was not yet."""
    return pending.response.error if pending.response else None


class TestTriggers:
    """Rule 4.3: a partition is tried again when something has happened to it, and no other is."""

    @pytest.fixture
    def cluster(self, start: Start) -> LocalCluster:
        """Three partitions led by broker 0, each with a request that waits for broker 1."""
        cluster = start(
            0, 1, assignment={n: [0, 1] for n in range(3)}, broker_heartbeat_interval_ms=1
        )
        for partition in range(3):
            cluster.produce("t", partition, [b"m"])
        cluster.leader_tick(0)
        return cluster

    def test_a1_a_consumer_sees_more_when_the_high_watermark_has_moved(
        self, cluster: LocalCluster
    ) -> None:
        cluster.follower_tick(1)
        assert cluster.consume("t", 0) == []
        cluster.leader_tick(0)
        assert [record.value for record in cluster.consume("t", 0)] == [b"m"]

    def test_a2_a_follower_fetches_when_the_leader_has_appended(
        self, cluster: LocalCluster
    ) -> None:
        cluster.tick_until_idle()
        assert not cluster.follower_tick(1).changed
        cluster.produce("t", 1, [b"n"])
        assert not cluster.follower_tick(1).changed
        cluster.leader_tick(0)
        assert cluster.follower_tick(1).files_copied == 1

    def test_b1_b2_c2_a_report_moves_the_high_watermark_and_completes_what_waits_there(
        self, cluster: LocalCluster, seen: Seen
    ) -> None:
        """And the partition of which there is no report is not looked at."""
        cluster.tick_until_idle()
        pending = [cluster.produce("t", partition, [b"n"]) for partition in (1, 2)]
        cluster.leader_tick(0)
        cluster.follower_tick(1)
        seen.clear()
        cluster.leader_tick(0)
        assert of(seen, "high_watermark") == [[1, 2]]
        assert of(seen, COMPLETES) == [[1, 2]]
        assert [error(one) for one in pending] == ["NONE", "NONE"]

    def test_c2_an_append_asks_for_the_high_watermark_of_its_partition_only(
        self, cluster: LocalCluster, seen: Seen
    ) -> None:
        """And nothing that waits elsewhere is looked at."""
        seen.clear()
        cluster.produce("t", 1, [b"n"], acks=1)
        cluster.leader_tick(0)
        assert of(seen, "high_watermark") == [[1]]
        assert of(seen, COMPLETES) == []

    def test_c1_a_shrunk_in_sync_set_moves_the_high_watermark(self, start: Start) -> None:
        """And so completes what waited for the follower that has left."""
        cluster = start(0, 1, replica_lag_time_max_ms=5000)
        pending = cluster.produce("t", 0, [b"m"])
        cluster.leader_tick(0)
        cluster.clock.advance(5001)
        assert error(pending) is None
        cluster.leader_tick(0)
        assert cluster.partition("t", 0).isr == [0]
        assert error(pending) == "NONE"

    def test_44_a_lost_leadership_completes_what_waits_there(
        self, start: Start, seen: Seen
    ) -> None:
        """A request waits in a partition that the preferred leader takes back, another in one
        that stays.
        """
        cluster = start(0, 1, assignment={0: [0, 1], 1: [1, 0]})
        cluster.crash(1)
        cluster.fence(1)
        cluster.tick_until_idle()
        cluster.restart(1)
        cluster.tick_until_idle()
        assert cluster.partition("t", 1).leader == 0
        pending = [cluster.produce("t", partition, [b"m"]) for partition in (0, 1)]
        cluster.leader_tick(0)
        cluster.elect_leaders("preferred", [("t", 1)])
        seen.clear()
        cluster.leader_tick(0)
        assert of(seen, COMPLETES) == [[1]]
        assert [error(one) for one in pending] == [None, "NOT_LEADER_OR_FOLLOWER"]


class TestTryCompleteElseWatch:
    """Rule 4.1."""

    def test_what_is_complete_already_is_not_watched(self, start: Start, seen: Seen) -> None:
        """A retry of a batch that is committed: nothing will happen to wake it."""
        cluster = start(0, 1)
        producer = cluster.idempotent_producer()
        first = cluster.produce("t", 0, [b"m"], producer=producer)
        cluster.tick_until_idle()
        again = producer.retry(first)
        seen.clear()
        cluster.leader_tick(0)
        assert again.response == first.response
        assert of(seen, COMPLETES) == [[0]]
        assert waiting(cluster, 0) == []

    def test_what_is_not_waits_in_the_journal_until_it_is(self, start: Start) -> None:
        """It begins to wait in the commit that appends."""
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"m"], timeout_ms=700)
        # One of the journal, and one by which the request is removed.
        assert cluster.leader_tick(0).commits == 2
        assert waiting(cluster, 0) == [("DelayedProduce", 0, 700)]
        cluster.clock.advance(199)
        assert cluster.leader_tick(0).commits == 0
        cluster.tick_until_idle()
        assert waiting(cluster, 0) == []

    @pytest.mark.parametrize("waited_ms", [0, 5_000])
    def test_what_waits_is_answered_after_a_crash(self, start: Start, waited_ms: int) -> None:
        """The journal has it, or the checkpoint; the next process leads in a later epoch and still
        has the records (4.4).
        """
        cluster = start(0, 1)
        pending = cluster.produce("t", 0, [b"m"])
        cluster.leader_tick(0)
        cluster.clock.advance(waited_ms)
        cluster.leader_tick(0)
        cluster.crash(0)
        cluster.restart(0)
        cluster.tick_until_idle()
        assert error(pending) == "NONE"
        assert [record.value for record in cluster.consume("t", 0)] == [b"m"]

    def test_a_tick_that_fails_after_watching_tries_again(
        self, start: Start, fail_once: Callable[[str, str], None]
    ) -> None:
        cluster = start(0, 1)
        pending = cluster.produce("t", 0, [b"m"])
        cluster.leader_tick(0)
        cluster.follower_tick(1)
        fail_once("write", "broker-0/log")
        with pytest.raises(OSError, match="is away"):
            cluster.leader_tick(0)
        assert error(pending) is None
        cluster.leader_tick(0)
        assert error(pending) == "NONE"


class TestDelayedFetch:
    """A follower with replica.fetch.min.bytes above one waits for them, but not for long."""

    @pytest.fixture
    def cluster(self, start: Start) -> LocalCluster:
        cluster = start(
            0,
            1,
            2,
            assignment={0: [0, 1], 1: [0, 1], 2: [2, 1]},
            replica_fetch_min_bytes=LARGE,
            replica_fetch_wait_max_ms=400,
        )
        cluster.produce("t", 0, [b"a"], acks=1)
        cluster.leader_tick(0)
        return cluster

    def test_waits_in_a_table_for_all_partitions_of_its_leader(self, cluster: LocalCluster) -> None:
        report = cluster.follower_tick(1)
        assert (report.files_copied, waiting(cluster, 1)) == (
            0,
            [("DelayedFetch", 0, 400), ("DelayedFetch", 1, 400)],
        )
        cluster.clock.advance(100)
        assert cluster.follower_tick(1).commits == 0
        assert waiting(cluster, 1) == [("DelayedFetch", 0, 300), ("DelayedFetch", 1, 300)]

    def test_is_complete_when_its_leader_has_enough_in_all(self, cluster: LocalCluster) -> None:
        """A.2; other leaders' bytes do not count."""
        cluster.follower_tick(1)
        cluster.produce("t", 2, [Random(1).randbytes(LARGE)], acks=1)
        cluster.leader_tick(2)
        assert cluster.follower_tick(1).files_copied == 1
        assert cluster.log(1, "t", 0) == []
        cluster.produce("t", 1, [Random(2).randbytes(LARGE)], acks=1)
        cluster.leader_tick(0)
        assert cluster.follower_tick(1).files_copied == 2
        assert waiting(cluster, 1) == []

    def test_takes_what_there_is_when_it_has_waited_long_enough(
        self, cluster: LocalCluster
    ) -> None:
        cluster.follower_tick(1)
        cluster.clock.advance(399)
        assert cluster.follower_tick(1).files_copied == 0
        cluster.clock.advance(1)
        assert cluster.follower_tick(1).files_copied == 1
        assert waiting(cluster, 1) == []
        cluster.produce("t", 0, [b"b"], acks=1)
        cluster.leader_tick(0)
        assert cluster.follower_tick(1).files_copied == 0, "the next fetch waits anew"

    def test_goes_on_waiting_after_a_restart(self, cluster: LocalCluster) -> None:
        """Its deadline is in the table (4.4)."""
        cluster.follower_tick(1)
        cluster.clock.advance(300)
        cluster.crash(1)
        cluster.restart(1)
        assert cluster.follower_tick(1).files_copied == 0
        cluster.clock.advance(100)
        assert cluster.follower_tick(1).files_copied == 1

    def test_is_forgotten_when_another_leads(self, cluster: LocalCluster) -> None:
        """Rule 4.4; here the follower itself."""
        cluster.follower_tick(1)
        cluster.crash(0)
        cluster.fence(0)
        for broker in (1, 2):
            cluster.leader_tick(broker)
        assert cluster.partition("t", 0).leader == 1
        cluster.follower_tick(1)
        assert waiting(cluster, 1) == []

    def test_acks_all_is_answered_within_its_wait(self, cluster: LocalCluster) -> None:
        pending = cluster.produce("t", 0, [b"b"])
        cluster.tick_until_idle()
        assert error(pending) is None
        cluster.clock.advance(400)
        cluster.tick_until_idle()
        assert error(pending) == "NONE"
