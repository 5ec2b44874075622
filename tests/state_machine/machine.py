"""Any sequence of steps of a cluster; Hypothesis shortens a sequence that fails.

One rule draws every step: with many rules Hypothesis omits some of them from a whole story, and a
story without a leader's tick or without a restart shows nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.faulty_files import Failure, Kept
from tests.state_machine.checked_cluster import LAG_MS, SESSION_MS, CheckedCluster

LEADER_POINTS = (
    *("epoch_entry", "producer_state", "log_start"),
    *("log_commit", "removal", "isr_change", "checkpoint", "responses"),
)
FOLLOWER_POINTS = ("truncate", "copy", "producer_state", "log_commit", "checkpoint")
CONTROLLER_POINTS = ("lease", "fence", "election", "reassignment")
MERGER_POINTS = ("files", "producer_state", "log_commit", "checkpoint")
RULES = {
    "leader_tick": ("follower_progress", "isr_shrink", "high_watermark", "isr_expand"),
    "follower_tick": ("truncation_point", "fetch", "follower_high_watermark"),
}
"""Rules that run within a tick, between its reads of the tables."""

_COMMITS = "/_delta_log"

FOLDERS: Mapping[str, Sequence[str]] = {
    "leader_tick": (
        "log/_delta_log",
        "log/_delta_log",
        "log/_delta_log",
        "leader_epoch_checkpoint/_delta_log",
        "high_watermark_checkpoint/_delta_log",
        "delayed_operations/_delta_log",
        "produce_requests/_delta_log",
        "partition_state/_delta_log",
        "high_watermark_checkpoint",
        "log",
    ),
    "follower_tick": (
        "log/_delta_log",
        "log/_delta_log",
        "log/_delta_log",
        "leader_epoch_checkpoint/_delta_log",
        "high_watermark_checkpoint/_delta_log",
        "partition_state/_delta_log",
        "log",
        "high_watermark_checkpoint",
    ),
    "merge": (
        "log/_delta_log",
        "producer_state/_delta_log",
        "log",
    ),
    "controller_tick": (
        "controller/_delta_log",
        "brokers/_delta_log",
        "partition_state/_delta_log",
    ),
    "heartbeat": ("log/_delta_log",),
}
"""The folders that each role writes to, as `CheckedCluster.faulty_tick` takes them."""

COMMIT_FAILURES: Sequence[Failure] = (
    "refused",
    "full",
    "torn",
    "unsynced",
    "landed",
    "repeated",
    "unknown",
    "unknown",
    "dies",
    "died",
)
FILE_FAILURES: Sequence[Failure] = ("full", "torn", "unread")
KEPT: Sequence[Kept] = ("none", "half", "all")

WEIGHTS = {
    "produce": 5,
    "replicate": 4,
    "leader_tick": 5,
    "follower_tick": 5,
    "controller_tick": 3,
    "tick_until_idle": 2,
    "merge": 3,
    "merge_during": 2,
    "delete_records": 3,
    "tick_during": 3,
    "retry": 3,
    "consume": 1,
    "advance": 3,
    "restart": 5,
    "resume": 3,
    "fence": 3,
    "elect": 2,
    "reassign": 3,
    "cancel": 1,
    "crash": 2,
    "pause": 2,
    "replace_process": 1,
    "zombie_tick": 3,
    "lose_root": 1,
    "faulty_tick": 8,
    "suspend": 3,
    "clean_up": 1,
    "lose_power": 2,
}
"""The weights of the steps among the possible ones; the harmless steps come first."""

_Drawn = TypeVar("_Drawn")


class ClusterMachine(RuleBasedStateMachine):
    """Runs a cluster; every step is checked by `CheckedCluster`."""

    last_failure = ""
    """The script of the last story that failed."""

    cluster: CheckedCluster
    _data: st.DataObject
    _has_failed = False

    @initialize(
        brokers=st.sampled_from([2, 3, 3]),
        partitions=st.sampled_from([1, 1, 2]),
        min_isr=st.sampled_from([1, 2]),
        unclean=st.sampled_from([False, False, True]),
        syncs=st.sampled_from([True, True, False]),
    )
    def start(
        self, brokers: int, partitions: int, min_isr: int, unclean: bool, syncs: bool
    ) -> None:
        self.cluster = CheckedCluster(
            brokers, partitions, min_isr, unclean, self._tell, syncs=syncs
        )
        # So that some records can be lost.
        for partition in self.cluster.partitions:
            self.cluster.produce(partition, 2)
        self.cluster.tick_until_idle()

    def _tell(self, script: str) -> None:
        self._has_failed = True
        ClusterMachine.last_failure = script
        hypothesis.note(script)

    def teardown(self) -> None:
        if not hasattr(self, "cluster"):
            return
        try:
            if not self._has_failed:
                self.cluster.come_to_rest()
        finally:
            self.cluster.close()

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Make one possible step."""
        self._data, who = data, self._who()
        possible = [
            kind for kind, weight in WEIGHTS.items() for _ in range(weight) if who.get(kind, True)
        ]
        happen: Callable[[], None] = getattr(self, f"_{self._one_of(possible)}")
        happen()

    def _who(self) -> dict[str, Sequence[int]]:
        """Return the brokers for which a step is possible; a step that is missing here always
        is.
        """
        cluster = self.cluster
        return {
            "produce": cluster.producible(),
            "consume": cluster.producible(),
            "delete_records": cluster.producible(),
            "retry": cluster.sendable(),
            "leader_tick": cluster.running(),
            "follower_tick": cluster.running(),
            "replicate": cluster.awake(),
            "merge": cluster.running(),
            "merge_during": cluster.running(),
            "tick_during": cluster.running()[1:],
            "restart": cluster.crashed(),
            "resume": sorted(cluster.paused),
            "fence": sorted({*cluster.crashed(), *cluster.paused}),
            "crash": cluster.running(),
            "pause": cluster.awake(),
            "replace_process": cluster.awake(),
            "zombie_tick": sorted(cluster.zombies),
            "lose_root": [] if cluster.lost else cluster.ids,
            "faulty_tick": cluster.running(),
            "suspend": cluster.awake(),
            "lose_power": [one for one in cluster.ids if one not in cluster.lost],
        }

    def _one_of(self, choices: Sequence[_Drawn]) -> _Drawn:
        return self._data.draw(st.sampled_from(choices))

    def _whom(self, kind: str) -> int:
        return self._one_of(self._who()[kind])

    def _stop(self, points: Sequence[str]) -> str | None:
        """Prefer no crash, and choose every point with equal probability."""
        return self._one_of([*[None] * 2 * len(points), *points])

    # --- clients --------------------------------------------------------------------------------

    def _produce(self) -> None:
        acks: Any = self._one_of(["all", "all", "all", 1, 1, 0])
        count, producer = self._one_of([1, 2, 3]), self._one_of([None, 0, 1])
        self.cluster.produce(self._whom("produce"), count, acks, producer=producer)

    def _retry(self) -> None:
        # Prefer a late request: a request that was answered long ago is rarely sent again.
        self.cluster.retry(self._one_of(self._who()["retry"][-4:]))

    def _consume(self) -> None:
        self.cluster.consume(self._whom("consume"))

    def _delete_records(self) -> None:
        partition = self._whom("delete_records")
        committed = self.cluster.committed(partition)
        self.cluster.delete_records(partition, self._one_of([-1, *range(1, committed + 1)]))

    # --- ticks ----------------------------------------------------------------------------------

    def _leader_tick(self) -> None:
        self.cluster.leader_tick(self._whom("leader_tick"), stop_after=self._stop(LEADER_POINTS))

    def _follower_tick(self) -> None:
        broker = self._whom("follower_tick")
        self.cluster.follower_tick(broker, stop_after=self._stop(FOLLOWER_POINTS))

    def _controller_tick(self) -> None:
        self.cluster.controller_tick(stop_after=self._stop(CONTROLLER_POINTS))

    def _tick_until_idle(self) -> None:
        self.cluster.tick_until_idle()

    def _replicate(self) -> None:
        """All leaders, one follower, all leaders: an incomplete round, and its outcome."""
        awake = self.cluster.awake()
        for broker in awake:
            self.cluster.leader_tick(broker)
        self.cluster.follower_tick(self._one_of(awake))
        for broker in awake:
            self.cluster.leader_tick(broker)

    def _have_small_batches(self) -> None:
        """Create small batches, because stories are short and would mostly have nothing to merge.
        After the merge a retry can be recognised only by its sequences.
        """
        for partition in self._who()["produce"]:
            for producer in (0, 1):
                self.cluster.produce(partition, self._one_of([1, 2]), producer=producer)
        self.cluster.tick_until_idle()

    def _merge(self) -> None:
        if self._one_of([True, False]):
            self._have_small_batches()
        self.cluster.merge(self._whom("merge"), stop_after=self._stop(MERGER_POINTS))
        # A late retry is a case that merging may break.
        requests = self._who()["retry"][-4:]
        if self._one_of([True, False]) and requests:
            self.cluster.retry(self._one_of(requests))
            self.cluster.tick_until_idle()

    def _merge_during(self) -> None:
        if self._one_of([True, False]):
            self._have_small_batches()
        broker, other = self._whom("merge_during"), self._one_of(self.cluster.running())
        self.cluster.merge_during(broker, self._one_of(sorted(RULES)), other)

    def _tick_during(self) -> None:
        role = self._one_of(sorted(RULES))
        before_rule = self._one_of(RULES[role])
        broker = self._whom("tick_during")
        other = self._one_of([one for one in self.cluster.running() if one != broker])
        other_role = self._one_of([*sorted(RULES), "controller_tick"])
        self.cluster.tick_during(role, broker, before_rule, other_role, other)

    # --- time and misfortune --------------------------------------------------------------------

    def _advance(self) -> None:
        self.cluster.advance(self._one_of([1, LAG_MS // 3, LAG_MS + 1, SESSION_MS + 1, 300_001]))

    def _crash(self) -> None:
        self.cluster.crash(self._whom("crash"))

    def _restart(self) -> None:
        self.cluster.restart(self._whom("restart"))

    def _pause(self) -> None:
        self.cluster.pause(self._whom("pause"))

    def _resume(self) -> None:
        self.cluster.resume(self._whom("resume"))

    def _fence(self) -> None:
        self.cluster.fence(self._whom("fence"))

    def _replace_process(self) -> None:
        self.cluster.replace_process(self._whom("replace_process"))

    def _zombie_tick(self) -> None:
        action = self._one_of([*sorted(RULES), "merge"])
        self.cluster.zombie_tick(self._whom("zombie_tick"), action)

    def _lose_root(self) -> None:
        self.cluster.lose_root(self._whom("lose_root"))

    def _elect(self) -> None:
        election_type: Any = self._one_of(["preferred", "preferred", "preferred", "unclean"])
        self.cluster.elect(election_type, self._one_of(self.cluster.partitions))

    def _reassign(self) -> None:
        """Request any brokers in any order; half of the time let some of it happen."""
        ids = self.cluster.ids
        order = self._data.draw(st.permutations(ids))
        target = order[: self._one_of(range(1, len(ids) + 1))]
        self.cluster.reassign(self._one_of(self.cluster.partitions), target)
        lets_happen = self._one_of([True, False])
        if lets_happen and self.cluster.awake():
            for _ in range(self._one_of([1, 2])):
                self._replicate()

    def _cancel(self) -> None:
        self.cluster.reassign(self._one_of(self.cluster.partitions), None)

    # --- disks ----------------------------------------------------------------------------------

    def _busy(self, role: str) -> None:
        """Create work for the writes of a role."""
        if role in ("leader_tick", "follower_tick"):
            for partition in self.cluster.producible():
                self.cluster.produce(partition, 1)
        if role == "follower_tick":
            for broker in self.cluster.awake():
                self.cluster.leader_tick(broker)

    def _writer(self, kind: str) -> tuple[str, int]:
        """Draw a role, and a broker that has something to write in it."""
        # Half of the writes are those of the logs, which matter most.
        role = self._one_of([*sorted(FOLDERS), *sorted(RULES) * 2])
        if self._one_of([True, True, True, False]):
            self._busy(role)
        brokers = self._who()[kind]
        leaders = {self.cluster.leader(partition) for partition in self.cluster.partitions}
        fitting = [one for one in brokers if (one in leaders) == (role == "leader_tick")]
        return role, self._one_of([*brokers, *fitting * 2])

    def _faulty_tick(self) -> None:
        role, broker = self._writer("faulty_tick")
        folders = FOLDERS[role]
        folder = self._one_of([*folders, *[folders[0]] * len(folders)])
        is_commit = folder.endswith(_COMMITS)
        failure = self._one_of(COMMIT_FAILURES if is_commit else FILE_FAILURES)
        self.cluster.faulty_tick(role, broker, folder, failure, self._one_of([0, 0, 0, 1, 2]))

    def _suspend(self) -> None:
        role, broker = self._writer("suspend")
        commits = [folder for folder in FOLDERS[role] if folder.endswith(_COMMITS)]
        folder = self._one_of([*commits, *[commits[0]] * len(commits)])
        takes_over, cleans_up = self._one_of([False, True]), self._one_of([False, True])
        self.cluster.suspend(role, broker, folder, takes_over=takes_over, cleans_up=cleans_up)

    def _clean_up(self) -> None:
        there = [one for one in self.cluster.ids if one not in self.cluster.lost]
        self.cluster.clean_up(self._one_of(["cluster", *(f"broker-{one}" for one in there)]))

    def _lose_power(self) -> None:
        broker = self._whom("lose_power")
        self.cluster.lose_power(broker, self._one_of(KEPT), self._one_of(KEPT))
