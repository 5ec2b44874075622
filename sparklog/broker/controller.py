"""The controller role: one broker at a time holds the lease, fences the silent and elects.

Every broker watches; the holder of the lease acts. Its writes bear its controller epoch, so that
one that was replaced without noticing can write nothing (rules 7.1, 7.2, 7.3, 7.5, 7.6).
"""

from __future__ import annotations

import json
import threading
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.broker.abandoned_topics import AbandonedTopics, with_known_topics
from sparklog.broker.election import Elections
from sparklog.broker.leader_roots import UNREADABLE
from sparklog.broker.observations import Observations
from sparklog.broker.registration import check_registered
from sparklog.broker.signs_of_life import SignsOfLife
from sparklog.broker.tick import Effects, TickReport
from sparklog.config import Settings
from sparklog.errors import CommitConflictError, FencedError
from sparklog.logger import get_logger
from sparklog.model import BROKERS, CONTROLLER
from sparklog.protocol.rules import Rules
from sparklog.storage.control_table import Fence
from sparklog.storage.delta_log import CONTROLLER_EPOCH
from sparklog.storage.metadata import Metadata, MetadataReader, Versions
from sparklog.storage.roots import ClusterRoot
from sparklog.storage.shard_rewrites import RowChanges
from sparklog.storage.shards import ShardedRows, changed_units

_log = get_logger(__name__)

NOBODY = -1
"""The holder of a lease that was given back."""

_VERSIONS_MS = 60_000
"""The time between two commits of the versions that were seen of the brokers' logs, in ms."""


Row = dict[str, Any]


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
    ) -> None:
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
        self._fence: Fence | None = None
        # The lease is renewed beside the ticks, which may be long.
        self._lease_lock = threading.Lock()
        self._seen: _Seen | None = None
        self._rebalance_at_ms = 0
        self._versions_at_ms = 0
        # The rows of `brokers` as observed last.
        self._observed: list[Row] = []

    @property
    def is_active(self) -> bool:
        """Whether this broker held the lease when it last looked."""
        return self._fence is not None

    def tick(self, now_ms: int, wall_clock_ms: int, effects: Effects) -> TickReport:
        """Watch; with the lease: fence who is silent, clean the in-sync sets, elect.

        `now_ms` is the broker's monotonic clock, `wall_clock_ms` ms since 1970. Raises
        `FencedError` where a newer process plays this broker; a controller that another one has
        replaced only steps down.
        """
        before = self._commits()
        self.observe(now_ms)
        took_over = False
        try:
            with self._lease_lock:
                took_over = self._take_lease(now_ms)
                # The lease may be found lost beside the tick; the tables' fences hold then.
                fence = self._fence
            if fence is None:
                return TickReport()
            effects.done("lease")
            self._keep_brokers(now_ms, wall_clock_ms, fence)
            effects.done("fence")
            self._elect(fence)
            effects.done("election")
            self._abandoned.remove(now_ms, fence)
            self._rebalance(now_ms, fence)
        except FencedError as error:
            _log.warning("no controller any more", broker=self._broker_id, reason=str(error))
            self._fence = None
        commits = self._commits() - before
        return TickReport(changed=took_over or commits > 0, commits=commits)

    def observe(self, now_ms: int) -> None:
        """Note the rows, journals and lease that are there at `now_ms`; raises as `tick` does."""
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
            # The brokers are observed all the same.
            failure = error
        self._observed = rows
        self._signs.read(rows, lease["broker_id"] if lease else None, now_ms)
        for row in rows:
            self._last_sign_ms(row, now_ms)
        if lease is not None:
            self._renewed_ms(lease, now_ms)
        if failure is not None:
            raise failure

    def epoch_to_renew(self) -> int | None:
        """Return the controller epoch of the lease, if this broker holds it, after a look at it.

        A heartbeat that carries the epoch renews the lease. It does so only after a look: another
        broker may have taken over (rule 10.7).
        """
        with self._lease_lock:
            lease = self._looked_up_lease()
            return int(lease["controller_epoch"]) if lease is not None else None

    def resign(self) -> None:
        """Give the lease back, so that nobody has to wait until it lapses."""
        with self._lease_lock:
            lease = self._looked_up_lease()
            if lease is None:
                return
            given_back = {"broker_id": NOBODY, "lease_sequence": lease["lease_sequence"] + 1}
            try:
                self._cluster.controller.compare_and_set(CONTROLLER.rows([lease | given_back]))
            except CommitConflictError:
                # Another broker took over; the next tick sees which one.
                _log.warning("lease lost", broker=self._broker_id)

    def _looked_up_lease(self) -> Row | None:
        """Return the lease as it is now, if this process holds it; else it is lost."""
        if self._fence is None:
            return None
        # Never by memory alone, nor by what a round has seen just before.
        self._cluster.controller.look_ahead(to_end=True)
        self._cluster.controller.refresh()
        lease = self._held_lease()
        if lease is None:
            _log.warning("lease lost", broker=self._broker_id)
            self._fence = None
        return lease

    def _held_lease(self) -> Row | None:
        """Return the lease as it was last loaded, if this process holds it."""
        for lease in self._cluster.controller.rows().to_pylist():
            held = (lease["broker_id"], lease["controller_epoch"])
            if self._fence is not None and held == (self._broker_id, self._fence.epoch):
                return dict(lease)
        return None

    def _last_sign_ms(self, row: Row, now_ms: int) -> int:
        """Return when the broker's row or one of its journals was last seen to change."""
        of = ("broker", row["broker_id"])
        changed = self._observations.observe(of, (row["broker_epoch"], row["heartbeat"]), now_ms)
        signs = self._signs.of(row).items()
        seen = (
            self._observations.observe_version(("journal", *peer), sign.version, now_ms)
            for peer, sign in signs
        )
        return max((changed, *seen))

    def _renewed_ms(self, lease: Row, now_ms: int) -> int:
        """Return when the lease's row, or a renewal in a journal of its holder, was first seen."""
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

    def _take_lease(self, now_ms: int) -> bool:
        """Hold, take over or leave the lease alone; say whether it was taken over."""
        if self._held_lease() is not None:
            return False
        self._fence = None
        table = self._cluster.controller
        lease = next(iter(table.rows().to_pylist()), None)
        if lease is not None:
            renewed_ms = self._renewed_ms(lease, now_ms)
            is_free = lease["broker_id"] in (self._broker_id, NOBODY)
            if not is_free and now_ms - renewed_ms <= self._settings.broker_session_timeout_ms:
                return False
        epoch = lease["controller_epoch"] + 1 if lease else 1
        row = {"broker_id": self._broker_id, "controller_epoch": epoch, "lease_sequence": 0}
        try:
            table.compare_and_set(CONTROLLER.rows([row]))
        except CommitConflictError:
            return False
        fence = Fence(CONTROLLER_EPOCH, epoch)
        # After this an older controller cannot write. Where it fails half-way, the next tick takes
        # a higher epoch.
        for written in (self._cluster.brokers, self._cluster.partition_state):
            written.take_fence(fence, may_hold=False)
        self._fence = fence
        self._seen = None
        self._rebalance_at_ms = now_ms + self._rebalance_interval_ms
        self._versions_at_ms = now_ms + _VERSIONS_MS
        _log.info("became controller", broker=self._broker_id, controller_epoch=epoch)
        return True

    def _keep_brokers(self, now_ms: int, wall_clock_ms: int, fence: Fence) -> None:
        """Fence the silent brokers; note the versions of the logs, where that is due (7.2)."""
        is_due = now_ms >= self._versions_at_ms

        def change(rows: pa.Table) -> tuple[pa.Table | None, None]:
            result = rows.to_pylist()
            observed = [
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
            found = self._rules.run("silent_brokers", brokers=observed)
            silent = {row["broker_id"] for row in found}
            is_changed = bool(silent)
            for row in result:
                if row["broker_id"] in silent:
                    row["state"] = "fenced"
                    _log.warning("broker fenced", broker=row["broker_id"])
                if is_due or row["broker_id"] in silent:
                    versions = self._seen_versions(row)
                    is_changed |= versions != row["log_version"]
                    row["log_version"] = versions
            return (BROKERS.rows(result) if is_changed else None), None

        self._cluster.brokers.update(change, fence)
        if is_due:
            self._versions_at_ms = now_ms + _VERSIONS_MS

    def _seen_versions(self, row: Row) -> str:
        """Return `log_version` of a row, raised to the versions that were seen of the logs.

        The newest version that was seen may not be on the disk yet; the one before it is, as its
        successor shows. A root that lacks it was restored.
        """
        versions = json.loads(row["log_version"])
        for peer, sign in self._signs.of(row).items():
            versions[peer.root] = max(versions[peer.root], sign.version - 1)
        return json.dumps(versions)

    def _elect(self, fence: Fence) -> None:
        """Take fenced brokers out of in-sync sets and give every partition its leader."""
        # Not within the update, so that the versions are those that were decided upon.
        metadata = self._reader.load()
        versions = self._reader.versions
        seen = self._seen
        if seen is not None and versions == seen.versions:
            return
        rows = self._cluster.partition_state.sharded_rows()
        units = None
        if seen is not None and versions is not None and versions[:2] == seen.versions[:2]:
            # With the same brokers and topics an unchanged partition needs no election, either.
            units = changed_units(seen.rows, rows)

        def elect(rows: pa.Table, metadata: Metadata) -> RowChanges | None:
            return self._elections.elect(rows, metadata, fence.epoch)

        self._cluster.partition_state.change_rows(
            lambda rows: with_known_topics(rows, metadata, elect), units, fence
        )
        # Not what is there by now: somebody may have come or gone since.
        self._seen = _Seen(versions, rows) if versions is not None else None

    def _rebalance(self, now_ms: int, fence: Fence) -> None:
        """Let preferred replicas lead again where brokers are too far from their share (7.6)."""
        if not self._settings.auto_leader_rebalance_enable or now_ms < self._rebalance_at_ms:
            return
        metadata = self._reader.load()

        def elect(rows: pa.Table, metadata: Metadata) -> RowChanges | None:
            return self._elections.elect_preferred(rows, metadata, fence.epoch)

        self._cluster.partition_state.change_rows(
            lambda rows: with_known_topics(rows, metadata, elect), None, fence, is_unit_wise=False
        )
        self._rebalance_at_ms = now_ms + self._rebalance_interval_ms

    @property
    def _rebalance_interval_ms(self) -> int:
        return self._settings.leader_imbalance_check_interval_seconds * 1000

    def _commits(self) -> int:
        cluster = self._cluster
        tables = (cluster.brokers, cluster.controller, cluster.partition_state, cluster.topics)
        return sum(table.commits for table in tables)
