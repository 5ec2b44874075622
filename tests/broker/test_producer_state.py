"""Producers are recognised by batches that are no longer in the log (rules 3.6, 8.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sparklog.broker.following.leader_roots import LeaderRoot
from sparklog.model import PRODUCER_STATE
from sparklog.producer.produce_requests import PendingProduce
from sparklog.testing import LocalCluster
from sparklog.testing.local_producer import LocalProducer
from tests.broker.states import check_at_rest, log, rows, values

Start = Callable[..., LocalCluster]
DAY_MS = 86_400_000
LAG_MS = 120_000


@pytest.fixture
def cluster(start: Start) -> LocalCluster:
    return start(0, 1, log_merger_min_batches=2)


@pytest.fixture
def producer(cluster: LocalCluster) -> LocalProducer:
    return cluster.idempotent_producer()


def send(cluster: LocalCluster, producer: LocalProducer, *texts: str) -> list[PendingProduce]:
    """Send each text in a batch of its own."""
    sent = [cluster.produce("t", 0, [text.encode()], producer=producer) for text in texts]
    cluster.tick_until_idle()
    assert [error for error, _, _ in map(answer, sent)] == ["NONE"] * len(texts)
    return sent


def answer(pending: PendingProduce) -> tuple[str, int, int]:
    assert pending.response is not None
    return pending.response.error, pending.response.base_offset, pending.response.last_offset


def retried(
    cluster: LocalCluster, producer: LocalProducer, sent: list[PendingProduce]
) -> list[tuple[str, int, int]]:
    """Send the same batches again, as a client without an answer does; return the answers.

    They have new ids, so they can be recognised only by their sequences.
    """
    again = []
    for pending in sent:
        again.append(cluster.retry(pending, new_batch_id=True))
        cluster.tick_until_idle()
    return [answer(one) for one in again]


def merge(cluster: LocalCluster, broker: int) -> int:
    """Merge all batches, once they are old enough; return the number of merged batches."""
    cluster.clock.advance(LAG_MS)
    cluster.tick_until_idle()
    return cluster.merge(broker).batches


def told(cluster: LocalCluster, broker: int) -> list[int]:
    """Return the base offsets of the batches in a broker's `producer_state`."""
    return sorted(row["base_offset"] for row in rows(cluster, broker, PRODUCER_STATE))


class TestARetryOfAMergedBatch:
    def test_is_answered_with_its_own_offsets(
        self, cluster: LocalCluster, producer: LocalProducer
    ) -> None:
        """A retry of a batch that was merged is answered with the batch's own offsets."""
        sent = send(cluster, producer, *"abc")
        assert merge(cluster, 0) == 3
        assert retried(cluster, producer, sent) == [("NONE", n, n) for n in range(3)]
        check_at_rest(cluster, *"abc")

    def test_is_known_after_a_restart(self, cluster: LocalCluster, producer: LocalProducer) -> None:
        """A retry of a batch that was merged is recognised after a restart."""
        sent = send(cluster, producer, *"abc")
        merge(cluster, 0)
        cluster.crash(0)
        cluster.restart(0)
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).leader == 0
        assert retried(cluster, producer, sent) == [("NONE", n, n) for n in range(3)]
        check_at_rest(cluster, *"abc")

    def test_is_known_to_a_follower_that_copied_nothing_but_merged_batches(
        self, start: Start
    ) -> None:
        """A follower that copied only merged batches recognises the retry of an original batch."""
        cluster = start(0, 1, 2, log_merger_min_batches=2)
        producer = cluster.idempotent_producer()
        cluster.crash(2)
        cluster.fence(2)
        sent = send(cluster, producer, *"abc")
        merge(cluster, 0)
        cluster.restart(2)
        cluster.tick_until_idle()
        assert told(cluster, 2) == [0, 1, 2]
        for broker in (0, 1):
            cluster.crash(broker)
            cluster.fence(broker)
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).leader == 2
        assert retried(cluster, producer, sent) == [("NONE", n, n) for n in range(3)]
        send(cluster, producer, "d")
        assert log(cluster, 2) == ["a", "b", "c", "d"]

    def test_is_known_with_those_that_were_not_merged_yet(
        self, cluster: LocalCluster, producer: LocalProducer
    ) -> None:
        """The last five are recognised, in the log or not; an older one is out of order."""
        first = send(cluster, producer, *"abc")
        merge(cluster, 0)
        later = send(cluster, producer, *"def")
        sent = [*first, *later]
        assert retried(cluster, producer, sent[1:]) == [("NONE", n, n) for n in range(1, 6)]
        assert retried(cluster, producer, sent[:1])[0][0] == "OUT_OF_ORDER_SEQUENCE_NUMBER"
        check_at_rest(cluster, *"abcdef")

    def test_is_known_when_it_was_merged_again(
        self, cluster: LocalCluster, producer: LocalProducer
    ) -> None:
        """A retry is recognised after its batch was merged a second time."""
        sent = send(cluster, producer, *"ab")
        merge(cluster, 0)
        sent += send(cluster, producer, *"cd")
        assert merge(cluster, 0) == 3
        assert told(cluster, 0) == [0, 1, 2, 3]
        assert retried(cluster, producer, sent) == [("NONE", n, n) for n in range(4)]


class TestAGap:
    def test_after_merged_batches_is_refused(
        self, cluster: LocalCluster, producer: LocalProducer
    ) -> None:
        """A sequence gap after merged batches is refused with OUT_OF_ORDER_SEQUENCE_NUMBER."""
        send(cluster, producer, *"abc")
        merge(cluster, 0)
        key = cluster.connection.metadata().partition("t", 0).key
        producer._next_sequence[key] += 1
        pending = cluster.produce("t", 0, [b"e"], producer=producer)
        cluster.tick_until_idle()
        assert answer(pending)[0] == "OUT_OF_ORDER_SEQUENCE_NUMBER"

    def test_of_an_expired_producer_is_accepted(
        self, cluster: LocalCluster, producer: LocalProducer
    ) -> None:
        """A sequence gap of an expired producer is accepted; a tick with other work removes its
        rows.
        """
        send(cluster, producer, *"abc")
        merge(cluster, 0)
        cluster.clock.advance(DAY_MS)
        cluster.tick_until_idle()
        key = cluster.connection.metadata().partition("t", 0).key
        producer._next_sequence[key] += 1
        assert told(cluster, 0) == []
        send(cluster, producer, "e")
        cluster.clock.advance(DAY_MS)
        other = cluster.idempotent_producer()
        send(cluster, other, *"fg")
        merge(cluster, 0)
        assert told(cluster, 0) == [4, 5]


class TestTheTable:
    def test_forgets_silent_producers_although_nothing_idempotent_follows(
        self, cluster: LocalCluster, producer: LocalProducer
    ) -> None:
        """The leader's and the follower's rows are removed, and not before
        producer.id.expiration.ms.
        """
        send(cluster, producer, *"abc")
        merge(cluster, 0)
        merge(cluster, 1)
        cluster.clock.advance(DAY_MS - 2 * LAG_MS - 1)
        cluster.tick_until_idle()
        assert [told(cluster, broker) for broker in (0, 1)] == [[0, 1, 2]] * 2
        cluster.clock.advance(600_000)
        cluster.produce("t", 0, [b"plain"])
        cluster.tick_until_idle()
        assert [told(cluster, broker) for broker in (0, 1)] == [[]] * 2

    def test_keeps_the_last_five_of_a_producer(
        self, cluster: LocalCluster, producer: LocalProducer
    ) -> None:
        """The table keeps the last five batches of each producer."""
        other = cluster.idempotent_producer()
        send(cluster, other, "x")
        send(cluster, producer, *"abcdefg")
        merge(cluster, 0)
        assert told(cluster, 0) == [0, 3, 4, 5, 6, 7]

    def test_loses_what_was_truncated(self, start: Start) -> None:
        """The truncation is below the high watermark, after an unclean election (6.5)."""
        cluster = start(0, 1, log_merger_min_batches=2)
        producer = cluster.idempotent_producer()
        send(cluster, producer, *"ab")
        cluster.crash(1)
        cluster.fence(1)
        sent = send(cluster, producer, *"cd")
        assert merge(cluster, 0) == 4
        cluster.crash(0)
        cluster.restart(1)
        cluster.fence(0)
        cluster.elect_leaders("unclean", [("t", 0)])
        cluster.tick_until_idle()
        # The new leader does not know the lost batches.
        assert retried(cluster, producer, sent[1:])[0][0] == "OUT_OF_ORDER_SEQUENCE_NUMBER"
        cluster.restart(0)
        cluster.tick_until_idle()
        assert log(cluster, 0) == ["a", "b"]
        assert told(cluster, 0) == [0, 1]
        assert [one[0] for one in retried(cluster, producer, sent)] == ["NONE", "NONE"]
        check_at_rest(cluster, *"abcd")

    def test_that_was_written_ahead_of_a_truncation_counts_for_nothing(self, start: Start) -> None:
        """A follower dies between its producer state and its log's commit, and so does the
        leader.
        """
        cluster = start(0, 1, 2, log_merger_min_batches=2)
        producer = cluster.idempotent_producer()
        send(cluster, producer, "a")
        cluster.crash(2)
        cluster.fence(2)
        send(cluster, producer, *"bc")
        merge(cluster, 0)
        cluster.restart(2)
        die_before_the_commit(cluster, 2)
        assert told(cluster, 2) == [1, 2]
        cluster.crash(0)
        cluster.crash(1)
        cluster.restart(2)
        cluster.fence(0)
        cluster.elect_leaders("unclean", [("t", 0)])
        cluster.tick_until_idle()
        other = cluster.idempotent_producer()
        send(cluster, other, *"xy")
        cluster.crash(2)
        cluster.restart(2)
        cluster.tick_until_idle()
        key = cluster.connection.metadata().partition("t", 0).key
        producer._next_sequence[key] = 1
        send(cluster, producer, "b2")
        assert log(cluster, 2) == ["a", "x", "y", "b2"]

    def test_is_taken_over_by_a_follower_that_begins_again(self, start: Start) -> None:
        """The leader's log start offset has increased; the producers of the removed batches are
        known (6.7).
        """
        cluster = start(0, 1, 2, log_merger_min_batches=2)
        producer = cluster.idempotent_producer()
        send(cluster, producer, "a")
        cluster.crash(2)
        cluster.fence(2)
        sent = send(cluster, producer, *"bc")
        for broker in (0, 1):
            merge(cluster, broker)
        other = cluster.idempotent_producer()
        send(cluster, other, "x")
        key = cluster.connection.metadata().partition("t", 0).key
        for broker in (0, 1):
            # This is the effect of retention.
            replicas = cluster.brokers[broker]._leaders[0]._replicas
            replicas.put(key, "t", log_start_offset=3)
            replicas.commit(0, removed=replicas.root.log.batches(key)[:1])
        cluster.restart(2)
        cluster.tick_until_idle()
        assert cluster.replica(2, "t", 0).log_start_offset == 3
        assert told(cluster, 2) == [0, 1, 2]
        for broker in (0, 1):
            cluster.crash(broker)
            cluster.fence(broker)
        cluster.crash(2)
        cluster.restart(2)
        cluster.tick_until_idle()
        assert retried(cluster, producer, sent) == [("NONE", 1, 1), ("NONE", 2, 2)]
        assert values(cluster.consume("t", 0)) == ["x"]


def die_before_the_commit(cluster: LocalCluster, broker: int) -> None:
    """End a follower's tick between its producer state and its log's commit."""
    process: Any = cluster.brokers[broker]
    log_of = process._followers[0]._root.log

    def dies(*_: Any, **__: Any) -> None:
        raise OSError("the machine is gone")

    log_of.commit = dies
    with pytest.raises(OSError, match="gone"):
        cluster.follower_tick(broker)
    cluster.crash(broker)


class TestAFollower:
    def test_does_not_copy_merged_batches_of_a_leader_that_reports_no_producers(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A follower copies no merged batch while the leader's producer state is unreadable, and
        goes on later.
        """
        cluster = start(0, 1, 2, log_merger_min_batches=2)
        producer = cluster.idempotent_producer()
        cluster.crash(2)
        cluster.fence(2)
        send(cluster, producer, *"ab")
        merge(cluster, 0)
        cluster.restart(2)
        ask = LeaderRoot.producer_batches

        def away(_: LeaderRoot) -> None:
            raise OSError("away")

        monkeypatch.setattr(LeaderRoot, "producer_batches", away)
        cluster.tick_until_idle()
        assert log(cluster, 2) == []
        monkeypatch.setattr(LeaderRoot, "producer_batches", ask)
        check_at_rest(cluster, "a", "b")
        assert told(cluster, 2) == [0, 1]

    def test_that_keeps_up_asks_nobody(
        self, cluster: LocalCluster, producer: LocalProducer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A follower that copies every batch itself does not read its leader's producer state."""

        def asked(_: LeaderRoot) -> None:
            raise AssertionError("asked")

        monkeypatch.setattr(LeaderRoot, "producer_batches", asked)
        send(cluster, producer, *"ab")
        cluster.produce("t", 0, [b"c"])
        check_at_rest(cluster, *"abc")
