"""A broker that dies between any two effects of a tick causes neither loss nor duplicates.

After every crash point the broker restarts, or another one takes over. A client without an answer
learns the outcome from its retry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from sparklog.producer.produce_requests import PendingProduce
from sparklog.testing import LocalCluster
from tests.broker.states import check_at_rest, error, log, values

LEADER_POINTS = ("epoch_entry", "log_commit", "isr_change", "checkpoint", "responses")
FOLLOWER_POINTS = ("truncate", "copy", "log_commit", "checkpoint")
CONTROLLER_POINTS = ("lease", "fence", "election")

Start = Callable[..., LocalCluster]


def retry_until_stored(cluster: LocalCluster, pending: PendingProduce) -> None:
    """Send the same batch again until it is stored, as a client does after an error or no
    answer.
    """
    for _ in range(3):
        if error(pending) == "NONE":
            return
        pending = cluster.retry(pending)
        cluster.tick_until_idle()
    raise AssertionError(f"not stored after three retries: {pending.response}")


def come_back(cluster: LocalCluster, broker: int, *, fails_over: bool) -> None:
    if fails_over:
        cluster.fence(broker)
        cluster.tick_until_idle()
    cluster.restart(broker)
    cluster.tick_until_idle()


@pytest.mark.parametrize("fails_over", [False, True], ids=["restarts", "fails over"])
@pytest.mark.parametrize("point", LEADER_POINTS)
def test_leader(start: Start, point: str, fails_over: bool) -> None:
    """A leader that dies after any effect of its tick loses no record that it acknowledged with
    acks=all.
    """
    cluster = start(0, 1)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    if point == "epoch_entry":
        cluster.crash(0)
        cluster.restart(0)
        cluster.controller_tick()
    waits = cluster.produce("t", 0, [b"b1", b"b2"], acks="all")
    at_once = cluster.produce("t", 0, [b"c"], acks=1)
    cluster.produce("t", 0, [b"d"], acks=0)
    cluster.leader_tick(0, stop_after=point)
    assert 0 not in cluster.brokers
    told = error(waits), error(at_once)

    come_back(cluster, 0, fails_over=fails_over)
    if not fails_over and point in ("log_commit", "isr_change", "checkpoint"):
        assert error(at_once) is not None, "the next process answers what the last one left"
    stored = values(cluster.consume("t", 0))
    if told[0] == "NONE":
        assert {"b1", "b2"} <= set(stored)
    retry_until_stored(cluster, waits)
    if told[1] is None:
        retry_until_stored(cluster, at_once)
    stored = values(cluster.consume("t", 0))
    assert max(Counter(stored).values()) == 1
    # A record that was acknowledged after the leader's own append alone may be lost with the
    # leader.
    lost = {"c"} if told[1] is not None and fails_over else set()
    assert {"a", "b1", "b2", "c"} - lost <= set(stored) <= {"a", "b1", "b2", "c", "d"}
    assert stored.index("b2") == stored.index("b1") + 1
    check_at_rest(cluster, *stored)


@pytest.mark.parametrize("point", LEADER_POINTS[1:4])
def test_a_leader_that_dies_while_the_in_sync_set_shrinks(start: Start, point: str) -> None:
    """The smaller ISR, the higher high watermark and the answer may each be missing."""
    cluster = start(0, 1, 2, replica_lag_time_max_ms=5000)
    cluster.crash(2)
    pending = cluster.produce("t", 0, [b"a"])
    cluster.leader_tick(0)
    cluster.follower_tick(1)
    cluster.clock.advance(5001)
    cluster.leader_tick(0, stop_after=point)
    assert cluster.partition("t", 0).isr == ([0, 1] if point != "log_commit" else [0, 1, 2])
    come_back(cluster, 0, fails_over=False)
    cluster.clock.advance(5001)
    cluster.tick_until_idle()
    assert cluster.partition("t", 0).isr == [0, 1]
    assert values(cluster.consume("t", 0)) == ["a"]
    retry_until_stored(cluster, pending)
    cluster.restart(2)
    check_at_rest(cluster, "a")


@pytest.mark.parametrize("leads_next", [False, True], ids=["restarts", "leads next"])
@pytest.mark.parametrize("point", FOLLOWER_POINTS)
def test_follower(start: Start, point: str, leads_next: bool) -> None:
    """A deposed leader truncates uncommitted records, copies the missing ones, and dies in
    between.
    """
    cluster = start(0, 1)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    cluster.produce("t", 0, [b"x", b"x"], acks=1)
    cluster.leader_tick(0)
    cluster.crash(0)
    cluster.fence(0)
    cluster.produce("t", 0, [b"b"], acks=1)
    cluster.leader_tick(1)
    cluster.produce("t", 0, [b"c"])
    cluster.leader_tick(1)
    assert log(cluster, 0) == ["a", "x", "x"]
    cluster.restart(0)

    cluster.follower_tick(0, stop_after=point)
    assert 0 not in cluster.brokers
    expected = {"truncate": ["a"], "copy": ["a"]}.get(point, ["a", "b", "c"])
    assert log(cluster, 0) == expected
    come_back(cluster, 0, fails_over=False)
    if leads_next:
        cluster.crash(1)
        cluster.fence(1)
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).leader == 0
        assert values(cluster.consume("t", 0)) == ["a", "b", "c"]
        cluster.restart(1)
    check_at_rest(cluster, "a", "b", "c")
    assert cluster.leader_epochs(0, "t", 0)[:2] == [(0, 0), (1, 1)]


@pytest.mark.parametrize("point", ["copy", "log_commit"])
def test_a_follower_that_dies_with_its_leader(start: Start, point: str) -> None:
    """A record that either of them acknowledged is available when one of them returns."""
    cluster = start(0, 1)
    waits = cluster.produce("t", 0, [b"a"])
    cluster.leader_tick(0)
    cluster.follower_tick(1, stop_after=point)
    cluster.crash(0)
    cluster.restart(1)
    cluster.fence(0)
    cluster.tick_until_idle()
    assert log(cluster, 1) == (["a"] if point == "log_commit" else [])
    cluster.restart(0)
    cluster.tick_until_idle()
    retry_until_stored(cluster, waits)
    check_at_rest(cluster, "a")


@pytest.mark.parametrize("fails_over", [False, True], ids=["restarts", "fails over"])
@pytest.mark.parametrize("point", CONTROLLER_POINTS)
def test_controller(start: Start, point: str, fails_over: bool) -> None:
    """A controller dies in the middle of a failover, and the next one completes it."""
    cluster = start(0, 1, 2, min_isr=1)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    cluster.crash(0)
    cluster.clock.advance(cluster.settings.broker_session_timeout_ms + 1)
    cluster.controller_tick(stop_after=point)
    [dead] = {1, 2} - cluster.brokers.keys()
    assert (cluster.partition("t", 0).leader == 0) == (point != "election")

    come_back(cluster, dead, fails_over=fails_over)
    state = cluster.partition("t", 0)
    assert state.leader in (1, 2)
    assert state.leader_epoch <= 3
    assert 0 not in state.isr
    pending = cluster.produce("t", 0, [b"b"])
    cluster.tick_until_idle()
    assert error(pending) == "NONE"
    cluster.restart(0)
    check_at_rest(cluster, "a", "b")
