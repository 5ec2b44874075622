"""Answers to produce requests: part of the commit that decides them, from which clients read
them.
"""

from __future__ import annotations

from collections.abc import Callable

from sparklog.model import PRODUCE_REQUESTS
from sparklog.testing import LocalCluster
from tests.broker.states import answers, error, log, rows

Start = Callable[..., LocalCluster]


def test_an_answer_is_in_the_commit_that_appends(start: Start) -> None:
    """A crash leaves both the batch and its answer, or neither."""
    cluster = start(0, 1)
    pending = cluster.produce("t", 0, [b"a"], acks=1)
    before = cluster.brokers[0]._roots[0].log.version
    cluster.leader_tick(0, stop_after="log_commit")
    assert error(pending) == "NONE"
    assert cluster.connection.journal(cluster.location(0)).version == before + 1


def test_clients_that_poll_late_find_their_answers(start: Start) -> None:
    """A client that reads its answer many commits later still finds it."""
    cluster = start(0, 1)
    pending = []
    for n in range(10):
        pending.append(cluster.produce("t", 0, [b"%d" % n], acks=1))
        cluster.leader_tick(0)
    assert [(error(one), one.response and one.response.base_offset) for one in pending] == [
        ("NONE", n) for n in range(10)
    ]


def test_a_request_that_was_answered_is_not_served_again(start: Start) -> None:
    """The process died before it removed the request; the journal records that it was taken
    (3.1).
    """
    cluster = start(0, 1)
    cluster.clock.advance(5_000)
    cluster.produce("t", 0, [b"last"], acks=1)
    cluster.produce("t", 0, [b"too late"], acks=1, timeout_ms=-1)
    cluster.leader_tick(0, stop_after="responses")
    assert len(rows(cluster, 0, PRODUCE_REQUESTS)) == 2
    cluster.restart(0)
    cluster.tick_until_idle()
    assert rows(cluster, 0, PRODUCE_REQUESTS) == []
    assert log(cluster, 0) == ["last"]
    assert len(answers(cluster, 0)) == 2


def test_a_request_that_was_answered_is_known_also_by_the_checkpoint_alone(start: Start) -> None:
    """The commit of the answer may be cleaned up after the checkpoint, before the request is
    removed.
    """
    cluster = start(0, 1)
    # The first removal is due at once.
    cluster.produce("t", 0, [b"removed"], acks=0)
    cluster.leader_tick(0)
    cluster.produce("t", 0, [b"a"], acks=1)
    cluster.leader_tick(0)
    replicas = cluster.brokers[0]._leaders[0]._replicas
    assert replicas.checkpoints.write()
    assert len(rows(cluster, 0, PRODUCE_REQUESTS)) == 1
    cluster.crash(0)
    cluster.restart(0)
    cluster.tick_until_idle()
    assert log(cluster, 0) == ["removed", "a"]
    assert len(answers(cluster, 0)) == 1


def test_requests_are_removed_together_after_a_while(start: Start) -> None:
    """Removing each request at once would cost a commit per tick."""
    cluster = start(0, 1)
    cluster.produce("t", 0, [b"a"], acks=1)
    cluster.leader_tick(0)
    for n in range(3):
        cluster.produce("t", 0, [b"%d" % n], acks=1)
        cluster.leader_tick(0)
    left = len(rows(cluster, 0, PRODUCE_REQUESTS))
    assert left >= 3
    cluster.clock.advance(5_000)
    cluster.leader_tick(0)
    assert rows(cluster, 0, PRODUCE_REQUESTS) == []
