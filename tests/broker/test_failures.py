"""A tick that fails in the middle leaves no partial state in memory: the next tick completes it.

The store is unavailable for one call, or another process was faster. No process is restarted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from sparklog.cluster.replica_rows import ReplicaRows
from sparklog.errors import CommitConflictError
from sparklog.model import PARTITION_STATE
from sparklog.testing import LocalCluster
from tests.broker.states import check_at_rest, error, high_watermark, log, report, table, values

Start = Callable[..., LocalCluster]
FailOnce = Callable[[str, str], None]


@pytest.mark.parametrize("failing", ["log", "delayed_operations", "produce_requests"])
def test_an_answer_that_could_not_be_written_is_written_by_the_next_tick(
    start: Start, fail_once: FailOnce, failing: str
) -> None:
    """The content of a failed commit has no effect, and a failed write of a checkpoint fails no
    tick.
    """
    cluster = start(0, 1)
    cluster.produce("t", 0, [b"waits"])
    cluster.leader_tick(0)
    cluster.clock.advance(5_000)
    at_once, waits = cluster.produce("t", 0, [b"a"], acks=1), cluster.produce("t", 0, [b"b"])
    refused = cluster.produce("t", 0, [b"c"], timeout_ms=-1)
    fail_once("remove" if failing == "produce_requests" else "write", f"broker-0/{failing}")
    if failing == "log":
        with pytest.raises(OSError, match="is away"):
            cluster.leader_tick(0)
        assert (error(at_once), error(waits), error(refused)) == (None, None, None)
    cluster.leader_tick(0)
    assert (error(at_once), error(waits)) == ("NONE", None)
    assert error(refused) == "REQUEST_TIMED_OUT"
    cluster.tick_until_idle()
    assert error(waits) == "NONE"
    check_at_rest(cluster, "waits", "a", "b")


def test_a_completed_operation_whose_answer_could_not_be_written(
    start: Start, fail_once: FailOnce
) -> None:
    """A delayed produce whose answer could not be written is answered by the next tick."""
    cluster = start(0, 1)
    waits = cluster.produce("t", 0, [b"a"])
    cluster.leader_tick(0)
    cluster.follower_tick(1)
    fail_once("write", "broker-0/log")
    with pytest.raises(OSError, match="is away"):
        cluster.leader_tick(0)
    cluster.leader_tick(0)
    assert error(waits) == "NONE"


@pytest.mark.parametrize(
    ("action", "table"),
    [("write", "log"), ("refresh", "produce_requests")],
)
def test_a_report_is_not_forgotten_when_the_tick_that_read_it_fails(
    start: Start, fail_once: FailOnce, action: str, table: str
) -> None:
    """The follower's row does not change again, so forgetting it would stop the high watermark."""
    cluster = start(0, 1)
    waits = cluster.produce("t", 0, [b"a"])
    cluster.leader_tick(0)
    cluster.follower_tick(1)
    fail_once(action, f"broker-0/{table}")
    with pytest.raises(OSError, match="is away"):
        cluster.leader_tick(0)
    cluster.leader_tick(0)
    assert error(waits) == "NONE"
    assert report(cluster, 0)["high_watermark"] == 1


def test_a_report_is_not_forgotten_when_another_one_makes_the_tick_fail(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected error ends the tick between the two reports, and the row does not change
    again.
    """
    cluster = start(0, 1, 2, assignment={0: [0, 1], 1: [0, 2]})
    waits = cluster.produce("t", 0, [b"a"])
    cluster.leader_tick(0)
    cluster.follower_tick(1)
    refresh = ReplicaRows.refresh
    read: list[ReplicaRows] = []

    def failing(rows: ReplicaRows) -> None:
        if read:
            raise RuntimeError("unforeseen")
        read.append(rows)
        refresh(rows)

    monkeypatch.setattr(ReplicaRows, "refresh", failing)
    with pytest.raises(RuntimeError, match="unforeseen"):
        cluster.leader_tick(0)
    monkeypatch.undo()
    cluster.leader_tick(0)
    assert error(waits) == "NONE"


def test_an_isr_that_grew_after_the_metadata_were_read_holds_after_a_failed_tick(
    start: Start, fail_once: FailOnce
) -> None:
    """The leader took the older ISR from its metadata again, without the follower it had added.

    It answered a record that the follower did not have, and an election of that follower lost it.
    On an object store the metadata are read every 500 ms (simulation, seed 20807).
    """
    cluster = start(0, 1)
    cluster.crash(1)
    cluster.clock.advance(10_000)
    cluster.controller_tick()
    cluster.restart(1)
    cluster.follower_tick(1)
    cluster.leader_tick(0)
    assert cluster.partition("t", 0).isr == [0, 1]
    cluster.pause(0)
    waits = cluster.produce("t", 0, [b"a"])
    fail_once("write", "broker-0/log")
    with pytest.raises(OSError, match="is away"):
        cluster.leader_tick(0)
    cluster.leader_tick(0)
    assert error(waits) is None
    assert report(cluster, 0)["high_watermark"] == 0
    cluster.resume(0)
    cluster.follower_tick(1)
    cluster.leader_tick(0)
    assert error(waits) == "NONE"


def test_a_follower_that_cannot_be_read_for_one_tick_counts_again_in_the_next(
    start: Start, fail_once: FailOnce
) -> None:
    """Its row does not change meanwhile, but the leader has dropped its cached copy."""
    cluster = start(0, 1, 2)
    waits = cluster.produce("t", 0, [b"a"])
    cluster.leader_tick(0)
    cluster.follower_tick(1)
    cluster.leader_tick(0)
    cluster.follower_tick(2)
    fail_once("refresh", "broker-1/log")
    cluster.leader_tick(0)
    assert error(waits) is None
    cluster.leader_tick(0)
    assert error(waits) == "NONE"


def test_a_follower_reports_in_the_new_epoch_although_its_first_tick_in_it_failed(
    start: Start, fail_once: FailOnce
) -> None:
    """Its leader has no further commits, yet waits for the report."""
    cluster = start(0, 1, 2)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    cluster.crash(0)
    cluster.fence(0)
    cluster.leader_tick(1)
    fail_once("write", "broker-2/log")
    with pytest.raises(OSError, match="is away"):
        cluster.follower_tick(2)
    cluster.follower_tick(2)
    assert report(cluster, 2)["leader_epoch"] == 1


def test_a_leader_that_cannot_be_read_is_read_again_by_the_next_tick(
    start: Start, fail_once: FailOnce
) -> None:
    """Nothing is truncated without the leader's epochs, and the partitions of other leaders go
    on.
    """
    cluster = start(0, 1, 2, assignment={0: [0, 1, 2], 1: [1, 0, 2]})
    cluster.produce("t", 0, [b"a"], acks=1)
    cluster.produce("t", 1, [b"b"], acks=1)
    cluster.leader_tick(0)
    cluster.leader_tick(1)
    # A new process has to determine where its logs diverge from the leaders' (6.3).
    cluster.crash(2)
    cluster.restart(2)
    fail_once("refresh", "broker-0/log")
    cluster.follower_tick(2)
    assert (log(cluster, 2), log(cluster, 2, partition=1)) == ([], ["b"])
    cluster.follower_tick(2)
    assert log(cluster, 2) == ["a"]


def test_an_in_sync_set_that_could_not_be_written_is_tried_again(
    start: Start, fail_once: FailOnce
) -> None:
    """An ISR change that could not be written is repeated by the next tick."""
    cluster = start(0, 1, replica_lag_time_max_ms=5000)
    cluster.crash(1)
    waits = cluster.produce("t", 0, [b"a"])
    cluster.leader_tick(0)
    cluster.clock.advance(5001)
    fail_once("write", "cluster/partition_state")
    with pytest.raises(OSError, match="is away"):
        cluster.leader_tick(0)
    assert high_watermark(cluster, 0) == 0
    cluster.leader_tick(0)
    assert cluster.partition("t", 0).isr == [0]
    assert error(waits) == "NONE"


class TestAnInSyncSetOfUnknownOutcome:
    """The commit that adds broker 1 may land later: an object store may execute it after a timeout.

    Until then broker 1 counts for the high watermark (rule 2.4), although it is fenced by now.
    """

    @pytest.fixture
    def cluster(self, start: Start, fail_once: FailOnce) -> LocalCluster:
        cluster = start(0, 1, replica_lag_time_max_ms=5000)
        cluster.crash(1)
        cluster.fence(1)
        cluster.tick_until_idle()
        cluster.produce("t", 0, [b"a"], acks=1)
        cluster.leader_tick(0)
        cluster.restart(1)
        cluster.follower_tick(1)
        fail_once("write", "cluster/partition_state")
        with pytest.raises(OSError, match="is away"):
            cluster.leader_tick(0)
        cluster.crash(1)
        cluster.fence(1)
        assert cluster.partition("t", 0).isr == [0]
        return cluster

    @staticmethod
    def late_commit(cluster: LocalCluster) -> Callable[[], None]:
        """Return a function that makes the commit land, if its version is still free."""
        behind = table(cluster, None, PARTITION_STATE)
        rows = behind.rows().to_pylist()
        for row in rows:
            row |= {"in_isr": True, "in_elr": False, "partition_epoch": row["partition_epoch"] + 1}
        return partial(behind.compare_and_set, PARTITION_STATE.rows(rows))

    def test_is_settled_before_anything_is_committed_without_the_new_member(
        self, cluster: LocalCluster
    ) -> None:
        """The leader takes the version of the pending commit before it commits without the new
        member.
        """
        land = self.late_commit(cluster)
        waits = cluster.produce("t", 0, [b"b"])
        cluster.leader_tick(0)
        assert error(waits) == "NONE"
        with pytest.raises(CommitConflictError):
            land()

    def test_that_lands_within_a_tick_keeps_the_high_watermark_back(
        self, cluster: LocalCluster, before_rule: Callable[[str, Callable[[], object]], None]
    ) -> None:
        """An ISR change that lands within a tick holds the high watermark back."""
        before_rule("isr_shrink", self.late_commit(cluster))
        waits = cluster.produce("t", 0, [b"b"])
        cluster.leader_tick(0)
        assert cluster.partition("t", 0).isr == [0, 1]
        assert high_watermark(cluster, 0) == 1
        assert error(waits) is None


def test_an_election_that_could_not_be_written_is_tried_again(
    start: Start, fail_once: FailOnce
) -> None:
    """An election that could not be written is repeated by the next tick."""
    cluster = start(1, 0)
    cluster.crash(1)
    fail_once("write", "cluster/partition_state")
    with pytest.raises(OSError, match="is away"):
        cluster.fence(1)
    cluster.controller_tick()
    assert cluster.partition("t", 0).leader == 0


def test_a_controller_that_could_not_fence_every_table_at_its_take_over(
    start: Start, fail_once: FailOnce
) -> None:
    """The controller holds the lease but has not fenced the tables: it takes over once more."""
    cluster = start(0, 1, 2)
    cluster.crash(0)
    fail_once("take_fence", "cluster/partition_state")
    with pytest.raises(OSError, match="is away"):
        cluster.fence(0)
    cluster.controller_tick()
    cluster.controller_tick()
    assert cluster.partition("t", 0).leader == 1


def test_a_leader_that_could_not_write_its_epoch_entry_appends_nothing_before_it(
    start: Start, fail_once: FailOnce
) -> None:
    """Followers wait for the entry, and go on as soon as it is written (6.1, 6.3)."""
    cluster = start(0, 1, 2)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    cluster.crash(0)
    cluster.fence(0)
    cluster.produce("t", 0, [b"b"], acks=1)
    fail_once("write", "broker-1/log")
    with pytest.raises(OSError, match="is away"):
        cluster.leader_tick(1)
    assert values(cluster.log(1, "t", 0)) == ["a"]
    cluster.follower_tick(1)
    cluster.follower_tick(2)
    cluster.leader_tick(1)
    assert cluster.leader_epochs(1, "t", 0) == [(0, 0), (1, 1)]
    cluster.follower_tick(2)
    assert values(cluster.log(2, "t", 0)) == ["a", "b"]
