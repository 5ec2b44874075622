"""The controller role: the lease, fencing of silent brokers, and leader elections.

Every broker observes; only the holder of the lease acts. Its writes carry its controller epoch, so
a controller that was replaced without noticing cannot write (rules 7.1, 7.2, 7.3, 7.5, 7.6).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import pyarrow as pa

from sparklog.broker.broker_counts import BrokerCounts
from sparklog.broker.reassignment_completion import ReassignmentCompletion
from sparklog.broker.registration import check_registered
from sparklog.broker.signs_of_life import SignsOfLife
from sparklog.broker.tick import Effects, TickReport
from sparklog.broker.topic_deletions import TopicDeletions
from sparklog.cluster.abandoned_topics import AbandonedTopics, with_known_topics
from sparklog.cluster.causes import PartitionCauses
from sparklog.cluster.election import Elections, log_changes
from sparklog.cluster.metadata import Metadata, MetadataReader, Versions
from sparklog.cluster.observations import Observations, is_silent
from sparklog.cluster.reassignment import Reassigner
from sparklog.cluster.roots import ClusterRoot
from sparklog.config import Settings
from sparklog.errors import CommitConflictError, FencedError, StorageError
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.model import BROKERS, CONTROLLER, NOBODY, Row, TopicIdPartition
from sparklog.protocol.controller.silent_brokers import may_be_silent
from sparklog.protocol.rules import Rules
from sparklog.states import RUNNING_STATES, broker_state_after
from sparklog.storage.commits import CONTROLLER_EPOCH, Cause
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.fence import Fence
from sparklog.storage.location import one_line
from sparklog.storage.shard_rewrites import RowChanges
from sparklog.storage.shards import ShardedRows, changed_units

_log = get_logger(__name__)

_VERSIONS_MS = 60_000
"""The time in ms between two commits of the versions that were seen of the brokers' logs."""


class _Seen(NamedTuple):
    """The versions of the metadata and the rows of `partition_state` at the last election."""

    versions: Versions
    rows: ShardedRows


class Controller:
    """Plays the controller role for one broker."""

    def __init__(
        self,
        broker_id: int,
        broker_epoch: int,
        cluster: ClusterRoot,
        reader: MetadataReader,
        rules: Rules,
        settings: Settings,
        observations: Observations,
        signs: SignsOfLife,
        counts: BrokerCounts,
    ) -> None:
        self._counts = counts
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._cluster = cluster
        self._reader = reader
        self._rules = rules
        self._settings = settings
        self._observations = observations
        self._signs = signs
        self._elections = Elections(rules, settings)
        self._abandoned = AbandonedTopics(cluster, observations)
        self._deletions = TopicDeletions(cluster)
        self._failures = RepeatedFailures(_log)
        # By broker that this process has fenced and that has not returned, for how long it was
        # silent.
        self._silences: dict[int, str] = {}
        self._reassignments = ReassignmentCompletion(cluster, Reassigner(self._elections, rules))
        self._fence: Fence | None = None
        # The lease is renewed in parallel with ticks, which may take long.
        self._lease_lock = threading.Lock()
        self._seen: _Seen | None = None
        self._rebalance_at_ms = 0
        self._versions_at_ms = 0
        # The last observed rows of `brokers`.
        self._observed: list[Row] = []
        # On the monotonic clock.
        self._began_ms: int | None = None

    @property
    def is_active(self) -> bool:
        """Whether this broker held the lease when it last read it."""
        return self._fence is not None

    @property
    def fence(self) -> Fence | None:
        """The fence of this broker's controller epoch, `None` if it does not hold the lease."""
        return self._fence

    def tick(self, now_ms: int, wall_clock_ms: int, effects: Effects) -> TickReport:
        """Observe; with the lease: fence silent brokers, remove them from ISRs, elect leaders.

        `now_ms` is the broker's monotonic clock, `wall_clock_ms` ms since 1970. Raises
        `FencedError` if a newer process runs this broker. A controller that was replaced by another
        one steps down without an error.
        """
        before = self._commits()
        self.observe(now_ms)
        took_over = False
        try:
            with self._lease_lock:
                took_over = self._take_lease(now_ms, wall_clock_ms)
                # A heartbeat may find the lease lost during the tick; then the fences of the tables
                # refuse the writes.
                fence = self._fence
            if fence is None:
                return TickReport()
            effects.done("lease")
            self._keep_brokers(now_ms, wall_clock_ms, fence)
            effects.done("fence")
            self._elect(fence)
            effects.done("election")
            self._complete_reassignments(fence, effects)
            self._finish_deletions(fence, effects)
            self._abandoned.remove(now_ms, fence)
            self._rebalance(now_ms, fence)
        except FencedError as error:
            _log.warning("no controller any more", broker=self._broker_id, reason=str(error))
            self._fence = None
        commits = self._commits() - before
        return TickReport(changed=took_over or commits > 0, commits=commits)

    def decide_again(self) -> None:
        """Decide on all partitions in the next tick, since the settings have changed."""
        self._seen = None

    def observe(self, now_ms: int) -> None:
        """Note the state of rows, journals and lease at `now_ms`; raises the errors of `tick`."""
        if self._began_ms is None:
            self._began_ms = now_ms
        self._cluster.brokers.refresh()
        rows = self._cluster.brokers.rows().to_pylist()
        mine = next((row for row in rows if row["broker_id"] == self._broker_id), None)
        check_registered(mine and mine["broker_epoch"], self._broker_id, self._broker_epoch)
        failure: Exception | None = None
        lease: Row | None = None
        try:
            with self._lease_lock:
                self._cluster.controller.refresh()
                lease = next(iter(self._cluster.controller.rows().to_pylist()), None)
        except UNREADABLE as error:
            # The brokers are observed nevertheless.
            failure = error
        self._observed = rows
        self._signs.read(rows, lease["broker_id"] if lease else None, now_ms)
        for row in rows:
            self._last_sign_ms(row, now_ms)
        if lease is not None:
            self._renewed_ms(lease, now_ms)
        if failure is not None:
            raise failure

    def awaits_signs(self, own: AbstractSet[int], now_ms: int) -> bool:
        """Return whether a broker that should run, or the lease, has not changed since the start.

        The active controller awaits brokers, others await the lease. The brokers `own` are known to
        be alive.
        """
        began_ms = self._began_ms
        if began_ms is None:
            return False
        if self.is_active:
            return any(
                self._last_sign_ms(row, now_ms) <= began_ms
                for row in self._observed
                if row["state"] in RUNNING_STATES and row["broker_id"] not in own
            )
        return any(
            self._renewed_ms(lease, now_ms) <= began_ms
            for lease in self._cluster.controller.rows().to_pylist()
            if lease["broker_id"] not in own | {NOBODY}
        )

    def epoch_to_renew(self) -> int | None:
        """Poll the lease; return its controller epoch if this broker holds it.

        A heartbeat that carries the epoch renews the lease. The lease is polled before, because
        another broker may have taken over (rule 10.7).
        """
        with self._lease_lock:
            lease = self._read_lease()
            return int(lease["controller_epoch"]) if lease is not None else None

    def resign(self) -> None:
        """Release the lease, so that no broker has to wait until it lapses."""
        with self._lease_lock:
            lease = self._read_lease()
            if lease is None:
                return
            given_back = {"broker_id": NOBODY, "lease_sequence": lease["lease_sequence"] + 1}
            try:
                self._cluster.controller.compare_and_set(
                    CONTROLLER.rows([{**lease, **given_back}]),
                    cause=self._cause("RESIGN CONTROLLER", lease["controller_epoch"]),
                )
            except CommitConflictError:
                # Another broker took over; the next tick reads which one.
                _log.warning("lease lost", broker=self._broker_id)

    def _read_lease(self) -> Row | None:
        """Poll the lease and return it if this process holds it; otherwise step down."""
        if self._fence is None:
            return None
        # Always polled: the state in memory, or polled earlier in the round, may be outdated.
        self._cluster.controller.poll_ahead(to_end=True)
        self._cluster.controller.refresh()
        lease = self._held_lease()
        if lease is None:
            _log.warning("lease lost", broker=self._broker_id)
            self._fence = None
        return lease

    def _held_lease(self) -> Row | None:
        """Return the last loaded lease if this process holds it."""
        for lease in self._cluster.controller.rows().to_pylist():
            held = (lease["broker_id"], lease["controller_epoch"])
            if self._fence is not None and held == (self._broker_id, self._fence.epoch):
                return dict(lease)
        return None

    def _last_sign_ms(self, row: Row, now_ms: int) -> int:
        """Return the time in ms at which a change of the broker's row or journals was last seen."""
        of = ("broker", row["broker_id"])
        changed = self._observations.observe(of, (row["broker_epoch"], row["heartbeat"]), now_ms)
        signs = self._signs.of(row).items()
        seen = (
            self._observations.observe_version(("journal", *peer), sign.version, now_ms)
            for peer, sign in signs
        )
        return max((changed, *seen))

    def _renewed_ms(self, lease: Row, now_ms: int) -> int:
        """Return the time in ms at which the lease's row or its newest renewal was first seen."""
        held = self._observations.observe("controller", lease, now_ms)
        epoch = lease["controller_epoch"]
        signs = (
            (("lease", epoch, *peer), sign.renewal)
            for row in self._observed
            if row["broker_id"] == lease["broker_id"]
            for peer, sign in self._signs.of(row).items()
        )
        renewed = (
            self._observations.observe_version(
                of, renewal.version if renewal and renewal.controller_epoch == epoch else -1, now_ms
            )
            for of, renewal in signs
        )
        return max((held, *renewed))

    def _take_lease(self, now_ms: int, wall_clock_ms: int) -> bool:
        """Keep the lease, or take it over if it is free; return whether it was taken over."""
        if self._held_lease() is not None:
            return False
        self._fence = None
        table = self._cluster.controller
        lease = next(iter(table.rows().to_pylist()), None)
        renewed_ms = now_ms
        if lease is not None:
            renewed_ms = self._renewed_ms(lease, now_ms)
            has_lapsed = is_silent(
                now_ms,
                since_ms=renewed_ms,
                timeout_ms=self._settings.broker_session_timeout_ms,
            )
            if lease["broker_id"] not in (self._broker_id, NOBODY) and not has_lapsed:
                return False
        epoch = lease["controller_epoch"] + 1 if lease else 1
        detail = None
        if lease is None:
            cause = "first_controller"
        elif lease["broker_id"] == NOBODY:
            cause = "lease_released"
        else:
            is_own = lease["broker_id"] == self._broker_id
            cause = "broker_restarted" if is_own else "lease_lapsed"
            if not is_own:
                detail = _silence(lease["broker_id"], now_ms - renewed_ms)
        row = {
            "broker_id": self._broker_id,
            "controller_epoch": epoch,
            "lease_sequence": 0,
            "elected_ms": wall_clock_ms,
        }
        try:
            table.compare_and_set(
                CONTROLLER.rows([row]),
                cause=self._cause("ELECT CONTROLLER", epoch, cause, detail),
            )
        except CommitConflictError:
            return False
        fence = Fence(CONTROLLER_EPOCH, epoch)
        # After this an older controller cannot write. If it fails half-way, the next tick takes a
        # higher epoch.
        for written in (self._cluster.brokers, self._cluster.partition_state):
            written.take_fence(fence, may_hold=False)
        self._fence = fence
        self._seen = None
        self._reassignments.reset()
        self._rebalance_at_ms = now_ms + self._rebalance_interval_ms
        self._versions_at_ms = now_ms + _VERSIONS_MS
        _log.info("became controller", broker=self._broker_id, controller_epoch=epoch)
        return True

    def _cause(
        self, operation: str, epoch: int, cause: str | None = None, detail: str | None = None
    ) -> Cause:
        of = {"brokerId": str(self._broker_id), "controllerEpoch": str(epoch)}
        why = {"cause": cause, "detail": detail}
        return Cause(operation, of | {name: text for name, text in why.items() if text})

    def _keep_brokers(self, now_ms: int, wall_clock_ms: int, fence: Fence) -> None:
        """Fence the silent brokers; note the versions of the logs if that is due (rule 7.2)."""
        is_due = now_ms >= self._versions_at_ms
        fenced: set[int] = set()

        def change(rows: pa.Table) -> tuple[pa.Table | None, None]:
            result = rows.to_pylist()
            brokers = [
                row
                | {
                    "last_changed_ms": self._last_sign_ms(row, now_ms),
                    "now_ms": now_ms,
                    "session_timeout_ms": self._settings.broker_session_timeout_ms,
                    "wall_clock_ms": wall_clock_ms,
                    "parked_session_timeout_ms": self._settings.parked_session_timeout_ms,
                }
                for row in result
            ]
            observed = [
                one for one in brokers if may_be_silent(*(one[name] for name in _OF_SILENCE))
            ]
            found = self._rules.run("silent_brokers", brokers=observed) if observed else []
            silent = {row["broker_id"] for row in found}
            fenced.clear()
            fenced.update(silent)
            for row in brokers:
                if row["broker_id"] in silent:
                    text = _silence(row["broker_id"], now_ms - row["last_changed_ms"])
                    self._silences[row["broker_id"]] = text
                elif row["state"] in RUNNING_STATES:
                    self._silences.pop(row["broker_id"], None)
            is_changed = bool(silent)
            for row in result:
                if row["broker_id"] in silent:
                    row["state"] = broker_state_after("session_timeout", row["state"])
                    _log.warning("broker fenced", broker=row["broker_id"])
                if is_due or row["broker_id"] in silent:
                    versions = self._seen_versions(row)
                    is_changed |= versions != row["log_version"]
                    row["log_version"] = versions
            return (BROKERS.rows(result) if is_changed else None), None

        def cause() -> Cause:
            if not fenced:
                return Cause("NOTE LOG VERSIONS")
            brokers = {"cause": "session_timeout", "brokerIds": json.dumps(sorted(fenced))}
            return Cause("FENCE BROKERS", brokers)

        self._cluster.brokers.update(change, fence, cause)
        if is_due:
            self._versions_at_ms = now_ms + _VERSIONS_MS

    def _seen_versions(self, row: Row) -> str:
        """Return `log_version` of a row, raised to the versions before the newest that were seen.

        The newest version may not be synced to the disk yet. The version before it is, since it has
        a successor. A root that lacks it was restored.
        """
        versions = json.loads(row["log_version"])
        for peer, sign in self._signs.of(row).items():
            versions[peer.root] = max(versions[peer.root], sign.version - 1)
        return json.dumps(versions)

    def _elect(self, fence: Fence) -> None:
        """Remove fenced brokers from in-sync sets, and elect the leader of every partition."""
        # Loaded before the update, so that the versions are those on which the election is based.
        metadata = self._reader.load()
        versions = self._reader.versions
        seen = self._seen
        if seen is not None and versions == seen.versions:
            return
        rows = self._cluster.partition_state.sharded_rows()
        units = None
        if seen is not None and versions is not None and versions[:2] == seen.versions[:2]:
            # If brokers and topics are the same, an unchanged partition needs no election.
            units = changed_units(seen.rows, rows)

        epoch = {"controllerEpoch": str(fence.epoch)}
        causes = PartitionCauses("ELECT LEADERS", epoch, self._silences)

        def elect(rows: pa.Table, metadata: Metadata) -> RowChanges | None:
            return self._elections.elect(rows, metadata, fence.epoch, (), causes)

        began = time.perf_counter()
        changes = self._cluster.partition_state.change_rows(
            lambda rows: with_known_topics(rows, metadata, elect), units, fence, cause=causes
        )
        self._note_elections(changes, metadata, began)
        # The loaded versions, not the current ones: brokers may have joined or left since.
        self._seen = _Seen(versions, rows) if versions is not None else None

    def _note_elections(self, changes: RowChanges, before: Metadata, began: float) -> None:
        """Log the partitions that a commit has changed, and count those with another leader.

        A leader is elected uncleanly if it was in neither the ISR nor the ELR.
        """
        log_changes(changes)
        elected: dict[TopicIdPartition, tuple[int, int | None]] = {}
        for row in changes.rows.to_pylist():
            key = TopicIdPartition(row["topic_id"], row["partition"])
            elected[key] = row["leader_epoch"], row["leader"]
        kinds = []
        for key, (leader_epoch, leader) in elected.items():
            state = before.partitions.get(key)
            if state is None or (state.leader_epoch, state.leader) == (leader_epoch, leader):
                continue
            own = state.replica(leader) if leader is not None else None
            is_clean = own is not None and (own.in_isr or own.in_elr)
            kinds.append("none" if own is None else "clean" if is_clean else "unclean")
        for kind in kinds:
            self._counts.elections.add(kind)
        if kinds:
            self._counts.elections_ms.observe((time.perf_counter() - began) * 1000)

    def _complete_reassignments(self, fence: Fence, effects: Effects) -> None:
        """End reassignments whose target is in sync (rule 7.8)."""
        if self._reassignments.is_due():
            self._reassignments.complete(self._reader.metadata, fence)
            effects.done("reassignment")
        self._reassignments.correct_factors(self._reader.metadata, fence)

    def _finish_deletions(self, fence: Fence, effects: Effects) -> None:
        """Remove what the cluster root still has of deleted topics (rule 7.9)."""
        deleted = self._deletions.pending()
        if not deleted:
            return
        self._deletions.remove_partitions(deleted, fence)
        effects.done("partitions_removal")
        try:
            self._deletions.remove_offsets(deleted)
        except (StorageError, pa.ArrowException) as error:
            # Clients write to the table. A damaged one must not end the controller's ticks: the
            # deletion is finished when the table is restored.
            self._failures.warning(
                "offsets", "committed offsets not removed", error=one_line(error)
            )
            return
        self._failures.over("offsets")
        effects.done("offsets_removal")
        self._deletions.finish(deleted, fence)

    def _rebalance(self, now_ms: int, fence: Fence) -> None:
        """Elect preferred replicas of brokers too far from leading their share (rule 7.6)."""
        if not self._settings.auto_leader_rebalance_enable or now_ms < self._rebalance_at_ms:
            return
        metadata = self._reader.load()

        def elect(rows: pa.Table, metadata: Metadata) -> RowChanges | None:
            return self._elections.elect_preferred(rows, metadata, fence.epoch)

        began = time.perf_counter()
        changes = self._cluster.partition_state.change_rows(
            lambda rows: with_known_topics(rows, metadata, elect),
            None,
            fence,
            is_unit_wise=False,
            cause=Cause("BALANCE LEADERS", {"cause": "preferred_leader"}),
        )
        self._note_elections(changes, metadata, began)
        self._rebalance_at_ms = now_ms + self._rebalance_interval_ms

    @property
    def _rebalance_interval_ms(self) -> int:
        return self._settings.leader_imbalance_check_interval_seconds * 1000

    def _commits(self) -> int:
        cluster = self._cluster
        tables = (cluster.brokers, cluster.controller, cluster.partition_state, cluster.topics)
        return sum(table.commits for table in tables)


_OF_SILENCE = (
    "state",
    "last_changed_ms",
    "now_ms",
    "session_timeout_ms",
    "parked_at_ms",
    "wall_clock_ms",
    "parked_session_timeout_ms",
)
"""The columns of a broker's row that `may_be_silent` takes."""


def _silence(broker_id: int, silent_ms: int) -> str:
    """Return the detail of a cause: for how long a broker was silent."""
    return f"broker {broker_id} was silent for {silent_ms / 1000:.1f} s"
