"""A broker: the order in which its roles act, and its heartbeats.

A broker is a process's worth of state over its roots. Its tables outlive it: what it needs after
a crash is in them.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from sparklog.broker.cluster_root_age import check_not_older
from sparklog.broker.controller import Controller
from sparklog.broker.damage import Repairs
from sparklog.broker.fetch import Copier
from sparklog.broker.follower import Follower
from sparklog.broker.heartbeats import Heartbeats
from sparklog.broker.leader import Leader
from sparklog.broker.leader_roots import UNREADABLE
from sparklog.broker.led_partitions import FollowerReports
from sparklog.broker.log_directories import LogDirectory, number_log_directories
from sparklog.broker.merger import Merger, MergeReport
from sparklog.broker.metadata_looks import Look, MetadataLooks
from sparklog.broker.observations import Observations
from sparklog.broker.pace import Step
from sparklog.broker.peers import Peer, Peers
from sparklog.broker.producer_state import ProducerState
from sparklog.broker.purgatory import Purgatory
from sparklog.broker.registration import change_state, check_registered, register
from sparklog.broker.replicas import Replicas
from sparklog.broker.signs_of_life import SignsOfLife
from sparklog.broker.tick import Effects, TickReport
from sparklog.broker.transactional_ids import TransactionalIds
from sparklog.clock import Clock
from sparklog.config import Settings
from sparklog.errors import CommitConflictError
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.model import BROKERS, BrokerState, TopicIdPartition
from sparklog.protocol.rules import Rules
from sparklog.storage.control_table import ControlTable
from sparklog.storage.location import Location, StorageOptions
from sparklog.storage.metadata import Metadata, MetadataReader
from sparklog.storage.replica_rows import ReplicaRows
from sparklog.storage.roots import BrokerRoot, ClusterRoot, check_distinct

_log = get_logger(__name__)


class Broker:
    """One broker, registered and with its state recovered.

    Parameters: `cluster_root` and `roots`, where the cluster's and this broker's tables lie
    (created where they are not there yet); `rules`, what runs the rules; `copier`, what copies
    files; `observations`, what is known of the others' silence. The caller knows that the broker's
    last process is gone.
    """

    # A follower's commit of a high watermark alone is a request that the next commit saves.
    _high_watermarks_wait_ms = 0
    # Whether the journals of other brokers are polled in this round.
    _reads_journals = True

    def __init__(
        self,
        broker_id: int,
        cluster_root: Location,
        roots: Sequence[Location],
        *,
        rules: Rules,
        copier: Copier,
        clock: Clock,
        settings: Settings,
        storage_options: StorageOptions | None = None,
        rack: str | None = None,
        observations: Observations | None = None,
    ) -> None:
        self.broker_id = broker_id
        self._clock = clock
        self._settings = settings
        check_distinct([cluster_root, *roots])
        cluster = self._cluster = ClusterRoot.create(cluster_root, roots)
        check_not_older(cluster, broker_id, roots)
        for root in roots:
            BrokerRoot.create(root, cluster.cluster_id, broker_id)
        self._directories = number_log_directories(cluster.brokers, broker_id, roots)
        reader = MetadataReader(cluster, storage_options or {})
        damaged = _damaged_tables(broker_id, self._directories)
        self.broker_epoch = register(
            reader, cluster, broker_id, self._directories, rack, clock.now_ms(), damaged
        )
        # The row is changed beside the ticks, which may be long, by a handle of its own.
        self._registration = ControlTable(cluster_root, BROKERS)
        self._reader = MetadataReader(cluster, storage_options or {})
        self._peers = Peers(self._reader.location)
        self._roots: dict[int, BrokerRoot] = {}
        self._heartbeats = Heartbeats(self._roots, settings)
        self._signs = SignsOfLife(
            broker_id,
            self._roots,
            self._peers,
            lambda uri: Location.of(uri, storage_options),
        )
        self._controller = Controller(
            broker_id,
            self.broker_epoch,
            cluster,
            MetadataReader(cluster, storage_options or {}),
            rules,
            settings,
            observations or Observations(),
            self._signs,
        )
        # The peers that follow what this broker leads.
        self._followers_of: dict[Peer, ReplicaRows] = {}
        self._metadata_looks = MetadataLooks(settings.tick_interval_ms)
        self._root_checked_at_ms = clock.monotonic_ms()
        self._is_looked = False
        self._is_metadata_due = True
        self._transactional_ids = TransactionalIds(cluster, rules, settings)
        self._state: BrokerState = "alive"
        self._replicas: list[Replicas] = []
        self._repairs: list[Repairs] = []
        self._leaders: list[Leader] = []
        self._followers: list[Follower] = []
        self._mergers: list[Merger] = []
        # Merging goes on beside the ticks; what it looks at and commits it does between two.
        self._lock = threading.RLock()
        for number, directory in enumerate(self._directories):
            if directory.location is None:
                continue
            opened = BrokerRoot(directory.location, self.broker_epoch, damaged[number])
            self._roots[number] = opened
            interval_ms = settings.checkpoint_interval_ms(is_local=opened.location.is_local)
            purgatory = Purgatory(opened, rules)
            replicas = Replicas(opened, number, purgatory, rules, interval_ms)
            now_ms = clock.now_ms()
            known = ProducerState(replicas, rules, settings)
            self._replicas.append(replicas)
            self._repairs.append(Repairs(broker_id, cluster, replicas, known, settings, now_ms))
            self._leaders.append(
                Leader(broker_id, cluster, replicas, known, purgatory, rules, settings, now_ms)
            )
            self._followers.append(
                Follower(
                    broker_id,
                    self._reader,
                    cluster.partition_state,
                    replicas,
                    known,
                    purgatory,
                    rules,
                    settings,
                    copier,
                    self._peers,
                )
            )
            self._mergers.append(
                Merger(
                    replicas,
                    known,
                    lambda: cluster.stream_writes,
                    rules,
                    settings,
                    copier,
                    clock,
                    self._lock,
                )
            )
        # What has changed in them since the last leader tick that was completed.
        self._reported: set[TopicIdPartition] = set()
        self._failures = RepeatedFailures(_log)
        self.is_paused = False
        """Whether ticks begin with what was loaded last, as those of a paused process would."""
        _log.info("broker started", broker=broker_id, broker_epoch=self.broker_epoch)

    @property
    def is_controller(self) -> bool:
        """Whether the broker is the active controller, as far as it knows."""
        return self._controller.is_active

    def has_news(self) -> bool:
        """Say whether somebody has certainly written what the next tick will look at.

        Cheap enough to be asked all the time; tables on an object store, where each look is a
        request, are not looked at. May run beside a tick.
        """
        return (
            any(root.request_tables.has_news() for root in self._roots.values())
            or self._peers.have_news()
            or self._cluster.partition_state.has_news()
        )

    def look_ahead(
        self, *, to_end: bool = False, step: Step = Step.WHOLE, is_busy: bool = False
    ) -> None:
        """Ask object stores, side by side, for what the next ticks look at: one tick of each role.

        So a round of ticks waits for one request, not for one after another. The metadata are
        looked at as `MetadataLooks` says: a leader and a follower act on what they have seen, as
        one that is slow does, and are fenced. Of journals a part of the new commits may be seen,
        the rest in later rounds. With `to_end` everything is looked at, and seen up to its end: a
        round that changes nothing shows then that there is nothing to do. Otherwise followers hold
        new high watermarks back for two tick.interval.ms, or until they commit more. A `step` asks
        for its part; where it `is_busy`, for two commits of each journal at a time. Does nothing
        for roots in folders.
        """
        self._reads_journals = step is not Step.REQUESTS
        if not self.is_on_store:
            return
        self._high_watermarks_wait_ms = 0 if to_end else 2 * self._settings.tick_interval_ms
        partitions = self._cluster.partition_state.state
        look = self._metadata_looks.next(
            partitions, self._clock.monotonic_ms(), is_between=step is Step.JOURNALS
        )
        if to_end or self._cluster.location.is_local:
            look = Look.ALL
        if look is not Look.NONE:
            self._is_metadata_due = True
            self._signs.look_ahead()
        if look is Look.ALL:
            self._reader.look_ahead()
            self._cluster.controller.look_ahead()
        elif look is Look.PARTITIONS:
            self._reader.look_ahead_at_partitions()
        if step is not Step.JOURNALS:
            for root in self._roots.values():
                root.request_tables.look_ahead(to_end=to_end)
        if self._reads_journals:
            # Between two ticks all are read, so that a tick completes what it has taken: mostly a
            # commit, after which there is none.
            least = 2 if step is Step.JOURNALS and is_busy else 1
            self._peers.look_ahead(to_end=to_end or step is Step.JOURNALS, least=least)
        self._is_looked = True

    def copy_ahead(self) -> None:
        """Copy, beside the rounds, what waits for the leaders that this broker follows."""
        for follower in self._followers:
            follower.copy_ahead()

    @property
    def is_on_store(self) -> bool:
        """Whether a root that the broker looks at lies on an object store."""
        locations = [self._cluster.location, *(root.location for root in self._roots.values())]
        return not all(location.is_local for location in locations)

    @property
    def awaits_news(self) -> bool:
        """Whether a request waits that others' commits will complete."""
        return any(leader.has_waiting for leader in self._leaders)

    def leader_tick(self, stop_after: str | None = None) -> TickReport:
        """Play the leader: take requests, advance high watermarks and in-sync sets, answer.

        Damaged replicas are found and repaired before that. `stop_after` ends the tick at a point,
        as a crash there would: damage_isr, damage_cut, epoch_entry, log_commit (the commit of the
        journal, with answers), isr_change, checkpoint (the commit of what the new in-sync sets have
        committed), responses (the end of the tick, before tables are kept). Raises `FencedError`
        where a newer process plays this broker; the caller must then drop it.
        """
        with self._lock:
            metadata = self._load()
            versions = self._reader.versions
            reports = self._follower_reports(metadata)
            now_ms, effects = self._clock.now_ms(), Effects(stop_after)
            is_repairing = self._repair(metadata, reports, now_ms, effects)
            if is_repairing:
                self._is_metadata_due = True
                metadata, versions = self._load(), self._reader.versions
            report = self._each_root(
                partial(leader.tick, metadata, versions, reports, now_ms, effects)
                for leader in self._leaders
            )
            report.changed |= is_repairing
            self._reported.clear()
            return report

    def _repair(
        self, metadata: Metadata, reports: FollowerReports, now_ms: int, effects: Effects
    ) -> bool:
        """Find and repair damaged replicas; return whether anything was written."""
        is_changed = False
        for repairs in self._repairs:
            try:
                is_changed |= repairs.tick(metadata, reports, now_ms, effects)
            except UNREADABLE as error:
                # The other roots go on; the replica neither leads nor follows meanwhile.
                _log.warning("replica not repaired", broker=self.broker_id, error=str(error))
        return is_changed

    def follower_tick(self, stop_after: str | None = None) -> TickReport:
        """Play the follower: agree with the leaders, copy what they have, report.

        `stop_after`: truncate, copy, log_commit, checkpoint. Raises as `leader_tick` does.
        """
        with self._lock:
            metadata = self._load()
            now_ms, effects = self._clock.now_ms(), Effects(stop_after)
            report = self._each_root(
                partial(follower.tick, metadata, now_ms, effects, self._high_watermarks_wait_ms)
                for follower in self._followers
            )
            # Truncated to where the logs agree, or copied as much as one tick may.
            report.follows_up |= report.changed
            return report

    def controller_tick(self, stop_after: str | None = None) -> TickReport:
        """Play the controller, or watch whoever does. `stop_after`: lease, fence, election.

        Raises as `leader_tick` does.
        """
        self._check_cluster_root()
        self._check_cluster_root_on_store()
        report = self._controller.tick(
            self._clock.monotonic_ms(), self._clock.now_ms(), Effects(stop_after)
        )
        if self._controller.is_active:
            self._transactional_ids.expire(self._clock.now_ms())
        # The broker may be elected.
        report.follows_up |= report.changed
        return report

    def merge(self, stop_after: str | None = None) -> MergeReport:
        """Merge small batches of the broker's replicas, once; may run beside a tick (rule 8.4).

        Returns how many batches were merged into how many; where that is none there is nothing to
        merge. `stop_after`: files, producer_state, log_commit, checkpoint. Raises as `leader_tick`
        does.
        """
        effects = Effects(stop_after)
        reports = [MergeReport()]
        failure: Exception | None = None
        for merger in self._mergers:
            try:
                reports.append(merger.merge(effects))
            except UNREADABLE as error:
                failure = error
        if failure is not None:
            raise failure
        return MergeReport(*map(sum, zip(*reports, strict=True)))

    def heartbeat(self) -> None:
        """Show that the broker lives, and renew the lease if it holds it; may run beside a tick.

        It lives as long as one of its journals goes on: an empty commit is made where nothing was
        committed since the last heartbeat, or the lease is to be renewed. On an object store it is
        made when it is due, so this is called twice in broker.heartbeat.interval.ms there. Raises
        as `leader_tick` does.
        """
        self._check_cluster_root()
        if not self._is_heartbeat_due(holds_lease=self._controller.is_active):
            return
        controller_epoch: int | None = None
        failure: Exception | None = None
        try:
            controller_epoch = self._controller.epoch_to_renew()
        except UNREADABLE as error:
            # The lease is not renewed; the broker lives all the same.
            failure = error
        self._beat(controller_epoch)
        if failure is not None:
            raise failure

    def heartbeat_without_lease(self) -> None:
        """Show that the broker lives, but not that its controller does."""
        if self._is_heartbeat_due(holds_lease=False):
            self._beat(None)

    def _is_heartbeat_due(self, *, holds_lease: bool) -> bool:
        is_due = self._heartbeats.is_due(self._clock.monotonic_ms(), holds_lease=holds_lease)
        return is_due or self._is_fenced

    def _beat(self, controller_epoch: int | None) -> None:
        self._heartbeats.beat(controller_epoch, self._clock.monotonic_ms())
        if self._is_fenced:
            # It is alive again.
            self._change_state(self._state, from_state="fenced")

    @property
    def _is_fenced(self) -> bool:
        """Whether its row says so, as loaded last: a heartbeat reads nothing there."""
        rows = self._cluster.brokers.rows().to_pylist()
        mine = next((row for row in rows if row["broker_id"] == self.broker_id), None)
        return mine is not None and mine["state"] == "fenced"

    def look(self) -> None:
        """Note the requests, the others' rows and journals, before time passes."""
        self._heartbeats.note()
        self._controller.observe(self._clock.monotonic_ms())
        for leader in self._leaders:
            leader.appends.inbox.look(self._clock.now_ms())

    def park(self) -> None:
        """End for now, as between two scheduled runs: the broker keeps what it leads.

        It does so for parked.session.timeout.ms (7.2).
        """
        now_ms = self._clock.now_ms()
        with self._lock:
            for leader in self._leaders:
                try:
                    leader.park(now_ms)
                except UNREADABLE as error:
                    _log.warning("lags not kept", broker=self.broker_id, error=str(error))
        self._write_checkpoints()
        self._change_state("parked", self._clean_stop() | {"parked_at_ms": now_ms})

    def prepare_to_stop(self) -> None:
        """Ask the controller to let others lead what this broker leads: controlled shutdown."""
        self._state = "stopping"
        self._change_state(self._state)

    @property
    def can_hand_over(self) -> bool:
        """Whether, by what was loaded last, another could lead something that this one leads."""
        metadata = self._reader.metadata
        return any(
            state.leader == self.broker_id
            and any(metadata.brokers[one].can_take_over for one in state.isr)
            for state in metadata.partitions.values()
        )

    def stop(self) -> None:
        """End for good: it is in sync and leads nowhere from the controller's next tick on."""
        self._controller.resign()
        self._write_checkpoints()
        self._change_state("stopped", self._clean_stop())

    def _write_checkpoints(self) -> None:
        """Write the checkpoint tables of all roots as they are now."""
        with self._lock:
            for replicas in self._replicas:
                replicas.checkpoints.write_last(self._clock.now_ms())

    def _clean_stop(self) -> dict[str, Any]:
        """Return the mark of a clean stop: digests, by which the logs are recognised (7.2).

        Without a mark where a commit's outcome is unknown and the log cannot be read now.
        """
        try:
            with self._lock:
                for root in self._roots.values():
                    if root.log.is_uncertain:
                        root.log.refresh()
        except UNREADABLE as error:
            _log.warning("no mark of a clean stop", broker=self.broker_id, error=str(error))
            return {}
        digests = [
            self._roots[number].log.digest() if number in self._roots else None
            for number in range(len(self._directories))
        ]
        return {"log_digest": json.dumps(digests)}

    def _change_state(
        self,
        state: BrokerState,
        mark: Mapping[str, Any] | None = None,
        from_state: BrokerState | None = None,
    ) -> None:
        # By its log's version a broker that comes back with an older copy is recognised (7.2).
        versions = [
            self._roots[number].log.version if number in self._roots else one.log_version
            for number, one in enumerate(self._directories)
        ]
        changes = {"log_version": json.dumps(versions), **(mark or {})}
        change_state(
            self._registration,
            self.broker_id,
            self.broker_epoch,
            state,
            changes,
            from_state=from_state,
        )

    def _check_cluster_root(self) -> None:
        """Raise `StorageError` where the cluster root is gone or another cluster's.

        Only in local folders; see `_check_cluster_root_on_store`.
        """
        if self._cluster.location.is_local:
            self._cluster.check_in_place()

    def _check_cluster_root_on_store(self) -> None:
        """Check the cluster root on an object store, where that costs a request, at intervals.

        The interval is broker.heartbeat.interval.ms.
        """
        now_ms = self._clock.monotonic_ms()
        is_due = now_ms - self._root_checked_at_ms >= self._settings.broker_heartbeat_interval_ms
        if is_due and not self._cluster.location.is_local:
            self._cluster.check_in_place()
            self._root_checked_at_ms = now_ms

    def _load(self) -> Metadata:
        """Return the newest metadata; `FencedError` where it names a newer process."""
        if self.is_paused and self._reader.versions is not None:
            return self._reader.metadata
        if self._is_looked and self._reader.versions is not None and not self._is_metadata_due:
            return self._reader.metadata
        self._is_metadata_due = False
        self._check_cluster_root()
        metadata = self._reader.load()
        self._peers.keep({(of, one.broker_epoch) for of, one in metadata.brokers.items()})
        mine = metadata.brokers.get(self.broker_id)
        check_registered(mine and mine.broker_epoch, self.broker_id, self.broker_epoch)
        return metadata

    def _each_root(self, ticks: Iterable[Callable[[], TickReport]]) -> TickReport:
        """Run every root's tick; one that fails is raised when all have run (rule 1.5)."""
        report = TickReport()
        failure: Exception | None = None
        for tick in ticks:
            try:
                report.add(tick())
            except CommitConflictError as conflict:
                # Maintenance of the same broker was faster; the next tick looks again.
                _log.info("tick repeated", broker=self.broker_id, reason=str(conflict))
                report.changed = report.follows_up = True
            except UNREADABLE as error:
                failure = error
        if failure is not None:
            raise failure
        return report

    def _follower_reports(self, metadata: Metadata) -> FollowerReports:
        """Follow the journals of those that follow what this broker leads."""
        if self.is_paused:
            # It acts on what it had read, whether or not it has done so before.
            return FollowerReports(self._report_rows(), set().union(*self._followers_of.values()))
        wanted = {
            Peer(replica.broker_id, replica.root, metadata.brokers[replica.broker_id].broker_epoch)
            for state in metadata.partitions.values()
            if state.leader == self.broker_id
            for replica in state.replicas
            if replica.broker_id != self.broker_id
        }
        self._followers_of = {of: one for of, one in self._followers_of.items() if of in wanted}
        for of in sorted(wanted):
            try:
                rows = self._peers.rows(of)
                if self._reads_journals:
                    rows.refresh()
            except UNREADABLE as error:
                self._failures.warning(of, "follower not readable", broker=of[0], error=str(error))
                # What it has reported counts again when it is read again.
                lost = self._followers_of.pop(of, None)
                self._reported |= lost.keys() if lost is not None else set()
                self._peers.let_go(of)
                continue
            if self._followers_of.get(of) is not rows:
                self._followers_of[of] = rows
                self._reported |= rows.keys()
            self._reported |= rows.take_changed()
            self._failures.over(of)
        return FollowerReports(self._report_rows(), frozenset(self._reported))

    def _report_rows(self) -> dict[int, list[ReplicaRows]]:
        rows: dict[int, list[ReplicaRows]] = defaultdict(list)
        for (broker_id, _, _), read in self._followers_of.items():
            rows[broker_id].append(read)
        return rows


def _damaged_tables(
    broker_id: int, directories: Sequence[LogDirectory]
) -> dict[int, frozenset[str]]:
    """Return the names of the damaged tables of each root, by its number; they are logged."""
    damaged: dict[int, frozenset[str]] = {}
    for number, directory in enumerate(directories):
        if directory.location is not None:
            errors = BrokerRoot.damage(directory.location)
            for error in errors.values():
                _log.error("table starts again empty", broker=broker_id, error=str(error))
            damaged[number] = frozenset(errors)
    return damaged


def round_of_ticks(brokers: Sequence[Broker]) -> TickReport:
    """Tick every broker once: controllers, then leaders, then followers; report the sum."""
    report = TickReport()
    for broker in sorted(brokers, key=lambda broker: not broker.is_controller):
        report.add(broker.controller_tick())
    for broker in brokers:
        report.add(broker.leader_tick())
    for broker in brokers:
        report.add(broker.follower_tick())
    return report
