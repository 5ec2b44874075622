"""Every write of every role fails in a live process, or takes effect and loses its answer.

The process goes on, or ends in the call and is restarted. The invariants hold, and in the end all
replicas are equal and all requests are answered (rules 9 and 10.6).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.faulty_files import Failure
from tests.state_machine.checked_cluster import LAG_MS, SESSION_MS, CheckedCluster

CHECKPOINT_INTERVAL_MS = 5_000

FAILURES: tuple[Failure, ...] = ("refused", "unsynced", "landed", "repeated", "unknown", "died")


class Write(NamedTuple):
    """A write: the preparation, the role and the broker that make it, and its folder.

    `prepare` returns the broker. `skip` counts the writes to the folder before this one.
    """

    prepare: Callable[[CheckedCluster], int]
    role: str
    folder: str
    failures: tuple[Failure, ...] = FAILURES
    skip: int = 0


def leader_with_a_request(cluster: CheckedCluster) -> int:
    leader = cluster.leader(0)
    cluster.produce(0, 1, acks=1, producer=0)
    return leader


def leader_with_a_copied_record(cluster: CheckedCluster) -> int:
    leader = cluster.leader(0)
    cluster.produce(0, 1)
    cluster.leader_tick(leader)
    cluster.follower_tick(1 - leader)
    return leader


def new_leader(cluster: CheckedCluster) -> int:
    old = cluster.leader(0)
    cluster.pause(old)
    cluster.fence(old)
    cluster.resume(old)
    return cluster.leader(0)


def leader_of_a_silent_follower(cluster: CheckedCluster) -> int:
    leader = cluster.leader(0)
    cluster.pause(1 - leader)
    cluster.produce(0, 1)
    cluster.leader_tick(leader)
    cluster.advance(LAG_MS + 1)
    return leader


def leader_with_a_due_checkpoint(cluster: CheckedCluster) -> int:
    leader = leader_with_a_request(cluster)
    cluster.advance(CHECKPOINT_INTERVAL_MS)
    return leader


def new_leader_with_a_due_checkpoint(cluster: CheckedCluster) -> int:
    leader = new_leader(cluster)
    cluster.advance(CHECKPOINT_INTERVAL_MS)
    return leader


def follower_of_a_longer_log(cluster: CheckedCluster) -> int:
    leader = cluster.leader(0)
    cluster.produce(0, 1)
    cluster.leader_tick(leader)
    return 1 - leader


def follower_with_a_foreign_tail(cluster: CheckedCluster) -> int:
    old = cluster.leader(0)
    cluster.produce(0, 1, acks=1)
    cluster.leader_tick(old)
    cluster.pause(old)
    cluster.fence(old)
    cluster.leader_tick(1 - old)
    cluster.produce(0, 1)
    cluster.leader_tick(1 - old)
    cluster.resume(old)
    return old


def broker_with_small_batches(cluster: CheckedCluster) -> int:
    for producer in (0, 1):
        cluster.produce(0, 1, producer=producer)
        cluster.tick_until_idle()
    return cluster.leader(0)


def controller(cluster: CheckedCluster) -> int:
    return cluster.controller()


def idle_broker(cluster: CheckedCluster) -> int:
    """The broker has committed nothing for some time."""
    cluster.advance(1)
    return 1 - cluster.controller()


def fenced_broker_that_woke(cluster: CheckedCluster) -> int:
    """The broker has read that it is fenced."""
    fenced = 1 - cluster.controller()
    cluster.pause(fenced)
    cluster.fence(fenced)
    cluster.wake(fenced)
    return fenced


def controller_with_due_versions(cluster: CheckedCluster) -> int:
    cluster.advance(60_000)
    return cluster.controller()


def controller_of_a_silent_broker(cluster: CheckedCluster) -> int:
    holder = cluster.controller()
    cluster.pause(1 - holder)
    cluster.advance(SESSION_MS + 1)
    return holder


def watcher_of_a_silent_controller(cluster: CheckedCluster) -> int:
    holder = cluster.controller()
    cluster.pause(holder)
    cluster.advance(SESSION_MS + 1)
    return 1 - holder


WRITES = {
    "append": Write(leader_with_a_request, "leader_tick", "log/_delta_log"),
    "append without space": Write(
        leader_with_a_request, "leader_tick", "log/_delta_log", ("full", "torn", "dies")
    ),
    "answer": Write(leader_with_a_copied_record, "leader_tick", "log/_delta_log"),
    "removal of a request": Write(
        leader_with_a_due_checkpoint, "leader_tick", "produce_requests/_delta_log"
    ),
    "leader's checkpoint": Write(
        leader_with_a_due_checkpoint, "leader_tick", "high_watermark_checkpoint/_delta_log"
    ),
    "leader's checkpoint of epochs": Write(
        new_leader_with_a_due_checkpoint, "leader_tick", "leader_epoch_checkpoint/_delta_log"
    ),
    "reading of a batch": Write(leader_with_a_request, "leader_tick", "log", ("unread",)),
    "epoch entry": Write(new_leader, "leader_tick", "log/_delta_log"),
    "ISR shrink": Write(leader_of_a_silent_follower, "leader_tick", "partition_state/_delta_log"),
    "copy of a file": Write(follower_of_a_longer_log, "follower_tick", "log", ("full", "torn")),
    "commit of copies": Write(follower_of_a_longer_log, "follower_tick", "log/_delta_log"),
    "truncation": Write(follower_with_a_foreign_tail, "follower_tick", "log/_delta_log"),
    "commit of copies after a truncation": Write(
        follower_with_a_foreign_tail, "follower_tick", "log/_delta_log", skip=1
    ),
    "merge": Write(broker_with_small_batches, "merge", "log/_delta_log"),
    "producer state": Write(broker_with_small_batches, "merge", "producer_state/_delta_log"),
    "heartbeat": Write(idle_broker, "heartbeat", "log/_delta_log"),
    "renewal of the lease": Write(controller, "heartbeat", "log/_delta_log"),
    "end of fencing": Write(fenced_broker_that_woke, "heartbeat", "brokers/_delta_log"),
    "versions of the logs": Write(
        controller_with_due_versions, "controller_tick", "brokers/_delta_log"
    ),
    "take-over of the lease": Write(
        watcher_of_a_silent_controller, "controller_tick", "controller/_delta_log"
    ),
    "fencing": Write(controller_of_a_silent_broker, "controller_tick", "brokers/_delta_log"),
    "election": Write(
        watcher_of_a_silent_controller, "controller_tick", "partition_state/_delta_log"
    ),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_fails_in_every_way(name: str) -> None:
    """After each kind of failure of a write the invariants hold, and all requests are answered."""
    write = WRITES[name]
    cluster = CheckedCluster(2, 1, 1)
    cluster.produce(0, 2)
    cluster.tick_until_idle()
    for failure in write.failures:
        broker = write.prepare(cluster)
        before = cluster.failures
        skip = write.skip * 2 if failure == "unsynced" else write.skip
        cluster.faulty_tick(write.role, broker, write.folder, failure, skip)
        assert cluster.failures > before, f"no write failed: {failure}"
        cluster.bring_back()
    cluster.come_to_rest()
    cluster.close()
