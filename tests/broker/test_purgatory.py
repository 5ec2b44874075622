"""The purgatory: delayed operations, their triggers, and completion exactly once (rules
4.1-4.4).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from sparklog.broker.purgatory import DelayedFetch, DelayedProduce, Operation, from_row, to_row
from sparklog.model import DELAYED_OPERATIONS
from sparklog.producer.produce_requests import PendingProduce
from sparklog.protocol.driver_rules import DriverRules
from sparklog.storage.journal import Step
from sparklog.testing import LocalCluster
from tests.broker import states

Start = Callable[..., LocalCluster]
Seen = list[tuple[str, list[int]]]

COMPLETES = "completed_operations"
LARGE = 8000
"""Bytes of a record whose batch is larger than two small ones."""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """The rules that have run since, in order, each with the partitions of its input."""
    run = DriverRules.run
    rules: Seen = []

    def noted(self: DriverRules, name: str, **inputs: Any) -> list[dict[str, Any]]:
        rows = [row for rows in inputs.values() for row in rows]
        rules.append((name, sorted({row["partition"] for row in rows if "partition" in row})))
        return run(self, name, **inputs)

    monkeypatch.setattr(DriverRules, "run", noted)
    return rules


def of(seen: Seen, rule: str) -> list[list[int]]:
    """Return the partitions of each run of a rule."""
    return [partitions for name, partitions in seen if name == rule]


def waiting(cluster: LocalCluster, broker: int) -> list[tuple[str, int, int]]:
    """Return the delayed operations in the journal: kind, partition, and ms until they expire."""
    rows = states.rows(cluster, broker, DELAYED_OPERATIONS)
    now_ms = cluster.clock.now_ms()
    return sorted((row["kind"], row["partition"], row["deadline_ms"] - now_ms) for row in rows)


def error(pending: PendingProduce) -> str | None:
    """Return the error code of a request's response, or `None` while it is unanswered."""
    return pending.response.error if pending.response else None


class TestTriggers:
    """Rule 4.3: an operation is tried again when its partition has changed, and no other is."""

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
        """A consumer reads a record once the leader has raised the high watermark."""
        cluster.follower_tick(1)
        assert cluster.consume("t", 0) == []
        cluster.leader_tick(0)
        assert [record.value for record in cluster.consume("t", 0)] == [b"m"]

    def test_a2_a_follower_fetches_when_the_leader_has_appended(
        self, cluster: LocalCluster
    ) -> None:
        """A follower copies a batch once the leader has appended it."""
        cluster.tick_until_idle()
        assert not cluster.follower_tick(1).changed
        cluster.produce("t", 1, [b"n"])
        assert not cluster.follower_tick(1).changed
        cluster.leader_tick(0)
        assert cluster.follower_tick(1).files_copied == 1

    def test_b1_b2_c2_a_report_moves_the_high_watermark_and_completes_delayed_operations(
        self, cluster: LocalCluster, seen: Seen
    ) -> None:
        """The partition without a report is not evaluated."""
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
        self, start: Start, seen: Seen
    ) -> None:
        """Delayed operations of other partitions are not evaluated."""
        cluster = start(0, 1, 2, assignment={0: [0, 1], 1: [0, 2]}, broker_heartbeat_interval_ms=1)
        # Alone in the in-sync set, the leader advances the high watermark by its own append.
        cluster.crash(2)
        cluster.fence(2)
        cluster.tick_until_idle()
        cluster.produce("t", 0, [b"m"])
        cluster.leader_tick(0)
        seen.clear()
        cluster.produce("t", 1, [b"n"], acks=1)
        cluster.leader_tick(0)
        assert of(seen, "high_watermark") == [[1]]
        assert of(seen, COMPLETES) == []

    def test_c1_a_shrunk_in_sync_set_moves_the_high_watermark(self, start: Start) -> None:
        """C.1: a smaller ISR raises the high watermark and completes requests that waited for the
        removed follower.
        """
        cluster = start(0, 1, replica_lag_time_max_ms=5000)
        pending = cluster.produce("t", 0, [b"m"])
        cluster.leader_tick(0)
        cluster.clock.advance(5001)
        assert error(pending) is None
        cluster.leader_tick(0)
        assert cluster.partition("t", 0).isr == [0]
        assert error(pending) == "NONE"

    def test_44_a_lost_leadership_completes_its_delayed_operations(
        self, start: Start, seen: Seen
    ) -> None:
        """One request waits in a partition that the preferred leader takes back, another in one
        whose leader stays.
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
        """A retry of a committed batch is answered at once, because no later event would complete
        it.
        """
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
        """An incomplete operation is added by the commit that appends its batch, until it is
        complete.
        """
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"m"], timeout_ms=700)
        # One commit of the journal, and one that removes the request.
        assert cluster.leader_tick(0).commits == 2
        assert waiting(cluster, 0) == [("DelayedProduce", 0, 700)]
        cluster.clock.advance(199)
        assert cluster.leader_tick(0).commits == 0
        cluster.tick_until_idle()
        assert waiting(cluster, 0) == []

    @pytest.mark.parametrize("waited_ms", [0, 5_000])
    def test_delayed_operations_are_answered_after_a_crash(
        self, start: Start, waited_ms: int
    ) -> None:
        """The operation is in the journal or the checkpoint. The next process leads in a later
        epoch and still has the records (4.4).
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
        """A delayed produce is completed by the next tick if the commit of its answer fails."""
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
    """A follower with replica.fetch.min.bytes above one waits for them, for a limited time."""

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
        """A delayed fetch is stored in a table, for all partitions of one leader."""
        report = cluster.follower_tick(1)
        assert (report.files_copied, waiting(cluster, 1)) == (
            0,
            [("DelayedFetch", 0, 400), ("DelayedFetch", 1, 400)],
        )
        cluster.clock.advance(100)
        assert cluster.follower_tick(1).commits == 0
        assert waiting(cluster, 1) == [("DelayedFetch", 0, 300), ("DelayedFetch", 1, 300)]

    def test_is_complete_when_its_leader_has_enough_in_all(self, cluster: LocalCluster) -> None:
        """A.2: a delayed fetch is complete once its leader has enough bytes in all partitions;
        others do not count.
        """
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
        """After replica.fetch.wait.max.ms a delayed fetch copies the available batches."""
        cluster.follower_tick(1)
        cluster.clock.advance(399)
        assert cluster.follower_tick(1).files_copied == 0
        cluster.clock.advance(1)
        assert cluster.follower_tick(1).files_copied == 1
        assert waiting(cluster, 1) == []
        cluster.produce("t", 0, [b"b"], acks=1)
        cluster.leader_tick(0)
        assert cluster.follower_tick(1).files_copied == 0, "the next fetch waits again"

    def test_goes_on_waiting_after_a_restart(self, cluster: LocalCluster) -> None:
        """A delayed fetch keeps its deadline over a restart, because it is stored in the table
        (4.4).
        """
        cluster.follower_tick(1)
        cluster.clock.advance(300)
        cluster.crash(1)
        cluster.restart(1)
        assert cluster.follower_tick(1).files_copied == 0
        cluster.clock.advance(100)
        assert cluster.follower_tick(1).files_copied == 1

    def test_is_forgotten_when_another_leads(self, cluster: LocalCluster) -> None:
        """A delayed fetch is forgotten when another broker, here the follower itself, becomes the
        leader (4.4).
        """
        cluster.follower_tick(1)
        cluster.crash(0)
        cluster.fence(0)
        for broker in (1, 2):
            cluster.leader_tick(broker)
        assert cluster.partition("t", 0).leader == 1
        cluster.follower_tick(1)
        assert waiting(cluster, 1) == []

    def test_acks_all_is_answered_within_its_wait(self, cluster: LocalCluster) -> None:
        """An acks=all request is answered within the follower's wait."""
        pending = cluster.produce("t", 0, [b"b"])
        cluster.tick_until_idle()
        assert error(pending) is None
        cluster.clock.advance(400)
        cluster.tick_until_idle()
        assert error(pending) == "NONE"


PRODUCE = DelayedProduce("r/t/0", "r", "t", "topic", 0, 3, 5, 9, 1_000)
FETCH = DelayedFetch("f/t/0/3", "f", "t", "topic", 0, 3, 5, 100, 1_000)


class TestRows:
    """The rows of delayed operations in the journal and in `delayed_operations`."""

    def test_have_the_columns_of_the_table(self) -> None:
        """A column that a kind of operation does not have is null."""
        expected = {
            "operation_id": "r/t/0",
            "kind": "DelayedProduce",
            "request_id": "r",
            "topic_id": "t",
            "topic": "topic",
            "partition": 0,
            "leader_epoch": 3,
            "base_offset": 5,
            "required_offset": 9,
            "min_bytes": None,
            "deadline_ms": 1_000,
            "state": "pending",
        }
        assert to_row(PRODUCE) == expected
        of_fetch = {"operation_id": "f/t/0/3", "kind": "DelayedFetch", "request_id": "f"}
        assert to_row(FETCH) == expected | of_fetch | {"required_offset": None, "min_bytes": 100}
        for operation in (PRODUCE, FETCH):
            assert list(to_row(operation)) == DELAYED_OPERATIONS.columns.names

    @pytest.mark.parametrize("operation", [PRODUCE, FETCH])
    def test_come_back(self, operation: Operation) -> None:
        """An operation is read back unchanged; columns of a later release are ignored."""
        assert from_row(to_row(operation)) == operation
        assert type(from_row({**to_row(operation), "later": 1})) is type(operation)

    @pytest.mark.parametrize("operation", [PRODUCE, FETCH])
    def test_are_not_valid_with_a_missing_value_or_another_type(self, operation: Operation) -> None:
        """Each value has exactly the type of its field."""
        for name in operation._fields:
            values: list[Any] = [None, True, 1.5, []]
            for value in values:
                with pytest.raises(ValueError, match="missing or has another type"):
                    from_row({**to_row(operation), name: value})

    @pytest.mark.parametrize("kind", [None, "DelayedJoin", "", 1, ("DelayedProduce",)])
    def test_are_not_valid_with_an_unknown_kind(self, kind: object) -> None:
        """A later release may add kinds."""
        with pytest.raises(ValueError, match="is unknown"):
            from_row({**to_row(PRODUCE), "kind": kind})

    @pytest.mark.parametrize("name", ["partition", "leader_epoch", "base_offset"])
    def test_are_not_valid_with_negative_numbers(self, name: str) -> None:
        """Partitions, leader epochs and offsets begin at 0."""
        with pytest.raises(ValueError, match="is negative"):
            from_row({**to_row(FETCH), name: -1})

    def test_are_not_valid_without_a_record(self) -> None:
        """A produce request waits for at least one record."""
        assert from_row({**to_row(PRODUCE), "required_offset": 6}) == PRODUCE._replace(
            required_offset=6
        )
        with pytest.raises(ValueError, match="not those of a batch"):
            from_row({**to_row(PRODUCE), "required_offset": 5})

    @pytest.mark.parametrize("operation", [PRODUCE, FETCH])
    def test_are_of_immutable_operations(self, operation: Operation) -> None:
        """No field of an operation can be set."""
        for name in operation._fields:
            with pytest.raises(AttributeError):
                setattr(operation, name, 1)

    def test_that_are_not_valid_stop_no_broker(
        self, start: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The broker logs and keeps a row that it cannot read, and completes the others."""
        cluster = start(0, 1)
        pending = cluster.produce("t", 0, [b"m"])
        cluster.leader_tick(0)
        damaged = {**to_row(PRODUCE), "deadline_ms": None}
        later = {**to_row(FETCH), "kind": "DelayedJoin"}
        journal = cluster.brokers[0]._leaders[0]._root.log
        journal.commit_step((), (), Step(operations={"damaged": damaged, "later": later}), 1)
        cluster.crash(0)
        cluster.restart(0)
        told = [one.message for one in caplog.records if "operation not valid" in one.message]
        assert [name for name in ("damaged", "later") for one in told if name in one] == [
            "damaged",
            "later",
        ]
        cluster.tick_until_idle()
        assert error(pending) == "NONE"
        rows = states.rows(cluster, 0, DELAYED_OPERATIONS)
        assert sorted(row["kind"] for row in rows) == ["DelayedJoin", "DelayedProduce"]
