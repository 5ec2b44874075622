"""Quotas of client ids: producer_byte_rate, and the throttle times in a leader's answers (3.9)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparklog.cluster.admin import Admin
from sparklog.producer.produce_requests import Acks, PendingProduce
from sparklog.testing import LocalCluster

Start = Callable[..., LocalCluster]

WINDOW_MS = 2_000
CLIENT = "local"


@pytest.fixture
def cluster(start: Start) -> LocalCluster:
    """Two brokers with windows of two seconds; broker 0 leads `t-0`, broker 1 `t-1`."""
    assignment = {0: [0, 1], 1: [1, 0]}
    made = start(0, 1, assignment=assignment, quota_window_num=2, quota_window_size_seconds=1)
    made.tick_until_idle()
    return made


def limit(cluster: LocalCluster, client_id: str | None, byte_rate: int) -> None:
    Admin(cluster.connection).alter_client_quotas(client_id, {"producer_byte_rate": byte_rate})
    cluster.tick_until_idle()


def sent(cluster: LocalCluster, partition: int = 0, acks: Acks = "all") -> tuple[str | None, int]:
    """Send a batch; return the error and the throttle time in its answer."""
    pending: PendingProduce = cluster.produce("t", partition, [b"m" * 500], acks=acks)
    cluster.tick_until_idle()
    error = pending.response.error if pending.response is not None else None
    return error, max(pending.throttle_times_ms.values(), default=0)


def batch_bytes(cluster: LocalCluster) -> int:
    """Return the bytes of the newest batch in `t-0`, as quotas count them."""
    log = cluster.brokers[0]._roots[0].log
    [key] = [of for of in log.partitions() if of.partition == 0]
    return int(list(log.batches(key))[-1].size_bytes)


@pytest.mark.parametrize("acks", [1, "all"])
def test_an_answer_to_a_client_over_its_quota_has_a_throttle_time(
    cluster: LocalCluster, acks: Acks
) -> None:
    """Kafka's time: after it, the bytes of the window are at the quota. The batch is stored."""
    limit(cluster, CLIENT, 300)
    error, throttle_ms = sent(cluster, acks=acks)
    assert error == "NONE"
    assert throttle_ms == batch_bytes(cluster) * 1000 // 300 - WINDOW_MS + 1
    assert len(cluster.log(0, "t", 0)) == 1


def test_within_the_quota_nobody_waits(cluster: LocalCluster) -> None:
    """The quota is bytes per second over the window."""
    limit(cluster, CLIENT, 1_000_000)
    assert [sent(cluster) for _ in range(3)] == [("NONE", 0)] * 3


def test_a_client_that_does_not_wait_is_refused(cluster: LocalCluster) -> None:
    """Each refusal names the time that is left; after it the client is served again."""
    limit(cluster, CLIENT, 300)
    _, throttle_ms = sent(cluster)
    assert sent(cluster) == ("THROTTLING_QUOTA_EXCEEDED", throttle_ms)
    cluster.clock.advance(throttle_ms - 1)
    assert sent(cluster) == ("THROTTLING_QUOTA_EXCEEDED", 1)
    cluster.clock.advance(1)
    error, again_ms = sent(cluster)
    assert error == "NONE"
    assert again_ms > 0
    assert len(cluster.log(0, "t", 0)) == 2


def test_with_acks_0_nothing_is_lost(cluster: LocalCluster) -> None:
    """Nobody would send a refused batch again, so it counts and is appended."""
    limit(cluster, CLIENT, 300)
    assert [sent(cluster, acks=0) for _ in range(2)] == [(None, 0)] * 2
    assert len(cluster.log(0, "t", 0)) == 2
    assert sent(cluster)[0] == "THROTTLING_QUOTA_EXCEEDED"


def test_a_quota_is_that_of_each_broker(cluster: LocalCluster) -> None:
    """A client that one broker throttles may write to another, as in Kafka."""
    limit(cluster, CLIENT, 300)
    sent(cluster, partition=0)
    assert sent(cluster, partition=1)[0] == "NONE"
    assert sent(cluster, partition=1)[0] == "THROTTLING_QUOTA_EXCEEDED"


def test_the_default_is_the_quota_of_each_other_client(cluster: LocalCluster) -> None:
    """A client id with a quota of its own is not concerned."""
    limit(cluster, None, 300)
    assert sent(cluster)[1] > 0
    limit(cluster, CLIENT, 1_000_000)
    cluster.clock.advance(10_000)
    assert sent(cluster) == ("NONE", 0)
    Admin(cluster.connection).alter_client_quotas(CLIENT, delete=["producer_byte_rate"])
    cluster.tick_until_idle()
    assert sent(cluster)[1] > 0


def test_a_removed_quota_ends_the_throttle_time(cluster: LocalCluster) -> None:
    """The client is served at once."""
    limit(cluster, CLIENT, 300)
    assert sent(cluster)[1] > 0
    Admin(cluster.connection).alter_client_quotas(CLIENT, delete=["producer_byte_rate"])
    cluster.tick_until_idle()
    assert sent(cluster) == ("NONE", 0)


def test_a_retry_of_a_stored_batch_is_answered_all_the_same(cluster: LocalCluster) -> None:
    """A retry adds no bytes (3.6)."""
    limit(cluster, CLIENT, 300)
    producer = cluster.idempotent_producer()
    first = cluster.produce("t", 0, [b"m" * 500], producer=producer)
    cluster.tick_until_idle()
    again = producer.retry(first)
    cluster.tick_until_idle()
    assert again.response == first.response
    assert again.throttle_times_ms == first.throttle_times_ms


def test_a_restarted_leader_measures_again(cluster: LocalCluster) -> None:
    """Crash point: bytes and throttle times are in memory, the quota is not."""
    limit(cluster, CLIENT, 300)
    sent(cluster)
    cluster.crash(0)
    cluster.restart(0)
    cluster.tick_until_idle()
    assert sent(cluster)[0] == "NONE"
    assert sent(cluster)[0] == "THROTTLING_QUOTA_EXCEEDED"


def test_a_step_that_fails_counts_no_bytes(cluster: LocalCluster) -> None:
    """Crash point: the batch counts once, with the commit that appends it."""
    limit(cluster, CLIENT, 300)
    pending = cluster.produce("t", 0, [b"m" * 500])
    log = cluster.brokers[0]._roots[0].log
    commit = log.commit
    failures = []

    def fail(*_: object, **__: object) -> None:
        failures.append(1)
        raise OSError("the disk is full")

    log.commit = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="the disk is full"):
        cluster.leader_tick(0)
    log.commit = commit  # type: ignore[method-assign]
    cluster.tick_until_idle()
    assert failures
    assert pending.is_done
    [time_ms] = pending.throttle_times_ms.values()
    assert time_ms == batch_bytes(cluster) * 1000 // 300 - WINDOW_MS + 1
