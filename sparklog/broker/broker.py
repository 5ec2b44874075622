"""A broker: the order in which its roles act, and its heartbeats.

A broker is the state of one process over its roots. The tables in the roots outlive the process and
contain all that is needed after a crash.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial, wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar

from sparklog.broker.activity import carry_activity
from sparklog.broker.broker_counts import BrokerCounts
from sparklog.broker.cleaner import Cleaner, CleanReport
from sparklog.broker.cluster_root_age import check_not_older
from sparklog.broker.controller import Controller
from sparklog.broker.damage import Repairs
from sparklog.broker.failed_directories import FailedDirectories
from sparklog.broker.following.follower import Follower
from sparklog.broker.following.replication_throttle import ReplicationThrottle
from sparklog.broker.heartbeats import Heartbeats
from sparklog.broker.journal_waits import JournalWaits, NewestVersion
from sparklog.broker.leading.leader import Leader
from sparklog.broker.leading.led_partitions import FollowerReports
from sparklog.broker.log_directories import (
    faults_at_start,
    number_log_directories,
    open_log_directories,
)
from sparklog.broker.log_starts import LogStarts
from sparklog.broker.merger import Merger, MergeReport
from sparklog.broker.metadata_polls import MetadataPoll, MetadataPolls
from sparklog.broker.moved_directories import fence_copies, left_copies
from sparklog.broker.pace import TickStep
from sparklog.broker.peers import Peer, Peers
from sparklog.broker.producer_state import ProducerState
from sparklog.broker.purgatory import DelayedFetch, DelayedProduce, Purgatory
from sparklog.broker.registration import (
    LastProcess,
    change_state,
    check_registered,
    register,
)
from sparklog.broker.replicas import Replicas
from sparklog.broker.restored_roots import witnesses
from sparklog.broker.running_settings import RunningSettings, dynamic_values
from sparklog.broker.seen_by_broker import carry_seen_versions
from sparklog.broker.signs_of_life import SignsOfLife
from sparklog.broker.tick import Effects, TickReport
from sparklog.broker.tracing import TickSpans
from sparklog.broker.transactional_ids import TransactionalIds
from sparklog.broker.vacuum import Vacuuming
from sparklog.clock import Clock
from sparklog.cluster.dynamic_configs import DynamicConfigs
from sparklog.cluster.formats import THIS_RELEASE, Formats
from sparklog.cluster.metadata import Metadata, MetadataReader
from sparklog.cluster.observations import Observations
from sparklog.cluster.replica_rows import ReplicaRows
from sparklog.cluster.root_format import check_distinct
from sparklog.cluster.roots import BrokerRoot, ClusterRoot
from sparklog.config import Settings
from sparklog.errors import CommitConflictError
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.model import BROKERS, TopicIdPartition
from sparklog.protocol.rules import Rules
from sparklog.spark_jobs import jobs_started, role
from sparklog.states import BrokerEvent
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.execution import Execution
from sparklog.storage.location import Location, StorageOptions
from sparklog.storage.parallel import in_parallel
from sparklog.storage.vacuum import VacuumReport

_log = get_logger(__name__)

_Worker = TypeVar("_Worker")
_Report = TypeVar("_Report")


class BrokerState(NamedTuple):
    """The state of a broker that metrics report.

    `metadata` are `None` before the first load. `delayed_produce` and `delayed_fetch` are numbers
    of delayed operations; `max_lag` is the largest number of offsets by which a followed replica is
    behind its leader; `offline_log_dirs` is the number of log directories that have failed.
    """

    metadata: Metadata | None
    is_controller: bool
    delayed_produce: int
    delayed_fetch: int
    max_lag: int
    offline_log_dirs: int


class Polled(NamedTuple):
    """The part of the tables that `Broker.poll_ahead` has polled for the ticks of a round."""

    is_ahead: bool = False
    """Whether object stores were polled ahead of the ticks: metadata are loaded only if due."""
    reads_journals: bool = True
    """Whether the round reads the journals of other brokers."""
    high_watermarks_wait_ms: int = 0
    """The time in ms that a follower delays a commit of high watermarks alone. Its next commit with
    other changes makes that one unnecessary."""


_Arguments = ParamSpec("_Arguments")
_Tick: TypeAlias = "Callable[Concatenate[Broker, _Arguments], TickReport]"


def _plays(name: str) -> Callable[[_Tick[_Arguments]], _Tick[_Arguments]]:
    """Name the Spark jobs of a tick after its role, and count them in the tick's report."""

    def named(tick: _Tick[_Arguments]) -> _Tick[_Arguments]:
        @wraps(tick)
        def played(
            broker: Broker, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
        ) -> TickReport:
            before, began = jobs_started(), time.perf_counter()
            try:
                with role(f"broker {broker.broker_id}, {name}"):
                    report = tick(broker, *args, **kwargs)
            except Exception as error:
                broker.note_tick(name, time.perf_counter() - began, error)
                raise
            report.spark_jobs = jobs_started() - before
            broker.note_tick(name, time.perf_counter() - began, report)
            return report

        return played

    return named


class Broker:
    """One broker, registered and with its state recovered.

    Parameters: `cluster_root` and `roots`, the locations of the cluster's and this broker's tables
    (created if missing); `rules`, the engine that runs the rules; `execution`, the place of the
    work on record bytes; `observations`, the observed liveness of the other brokers; `formats`, the
    formats of roots that the release knows; `newest_version`, of the journals of brokers in the
    same process. The caller must know that the broker's last process is gone; with `last_process`
    no later one is taken over.
    """

    def __init__(
        self,
        broker_id: int,
        cluster_root: Location,
        roots: Sequence[Location],
        *,
        rules: Rules,
        execution: Execution,
        clock: Clock,
        settings: Settings,
        storage_options: StorageOptions | None = None,
        rack: str | None = None,
        observations: Observations | None = None,
        last_process: LastProcess | None = None,
        formats: Formats = THIS_RELEASE,
        newest_version: NewestVersion = lambda _: None,
    ) -> None:
        self.broker_id = broker_id
        # Of this process, for metrics.
        self.counts = BrokerCounts()
        self._spans = TickSpans(broker_id, settings)
        self._failures = RepeatedFailures(_log)
        self._clock = clock
        check_distinct([cluster_root, *roots])
        cluster = self._cluster = ClusterRoot.create(cluster_root, roots, formats)
        settings = self._open_settings(settings)
        failed = faults_at_start(roots, (cluster.cluster_id, broker_id))
        own = open_log_directories(
            [root for root in roots if root not in failed], cluster, broker_id
        )
        found = witnesses(
            cluster.brokers.rows().to_pylist(),
            broker_id,
            own,
            lambda uri: Location.of(uri, storage_options),
        )
        check_not_older(cluster, broker_id, own, found)
        self._directories = number_log_directories(cluster.brokers, broker_id, own, failed)
        self._roots = {
            number: root
            for number, directory in enumerate(self._directories)
            for root in own
            if root.location == directory.location
        }
        before = next(
            (row for row in cluster.brokers.rows().to_pylist() if row["broker_id"] == broker_id),
            None,
        )
        left = left_copies(before, self._roots, lambda uri: Location.of(uri, storage_options))
        self.broker_epoch = register(
            MetadataReader(cluster, storage_options or {}),
            cluster,
            broker_id,
            self._directories,
            self._roots,
            rack,
            clock.now_ms(),
            last_process,
            found,
        )
        in_parallel(
            [*(partial(one.take_fence, self.broker_epoch) for one in own), self._open_registration],
            is_local=not self.is_on_store,
        )
        fence_copies(before, left, self.broker_epoch)
        self._reader = MetadataReader(cluster, storage_options or {})
        self._peers = Peers(self._reader.location)
        self._failed = FailedDirectories(
            broker_id,
            self.broker_epoch,
            self._roots,
            settings.broker_session_timeout_ms,
            self._take_offline,
        )
        self._heartbeats = Heartbeats(self._roots, settings, self._failed.suspect)
        self._signs = SignsOfLife(
            broker_id,
            self._roots,
            self._peers,
            lambda uri: Location.of(uri, storage_options),
        )
        carry_seen_versions(own, cluster, self._reader, self._signs, self._peers, found)
        self._controller = Controller(
            broker_id,
            self.broker_epoch,
            cluster,
            MetadataReader(cluster, storage_options or {}),
            rules,
            settings,
            observations or Observations(),
            self._signs,
            self.counts,
        )
        # The peers that follow partitions of this broker.
        self._followers_of: dict[Peer, ReplicaRows] = {}
        # Those by the metadata, and the partitions and brokers of these metadata.
        self._followers_wanted: Mapping[Peer, None] = {}
        self._followers_wanted_for: tuple[object, object] | None = None
        self._metadata_polls = MetadataPolls(settings.tick_interval_ms)
        self._journal_waits = JournalWaits(newest_version, settings)
        self._root_checked_at_ms = clock.monotonic_ms()
        self._polled = Polled()
        self._is_metadata_due = True
        self._transactional_ids = TransactionalIds(cluster, rules, settings, clock)
        self._is_stopping = False
        self._replicas: list[Replicas] = []
        self._repairs: list[Repairs] = []
        self._leaders: list[Leader] = []
        self._followers: list[Follower] = []
        self._throttle = ReplicationThrottle(broker_id)
        self._mergers: list[Merger] = []
        self._cleaners: list[Cleaner] = []
        # Merging and the vacuum run in parallel to the ticks. Their reads of shared state and their
        # commits happen between two ticks.
        self._lock = threading.RLock()
        self._vacuuming = Vacuuming(
            broker_id, cluster, self._roots, self._controller, settings, self._lock
        )
        for number, root in self._roots.items():
            self._play_in(number, root, rules, execution)
        # The partitions whose follower rows have changed since the last completed leader tick.
        self._reported: set[TopicIdPartition] = set()
        self.is_paused = False
        """Whether ticks begin with the metadata loaded last, as those of a paused process would."""
        _log.info("broker started", broker=broker_id, broker_epoch=self.broker_epoch)

    def _play_in(self, number: int, root: BrokerRoot, rules: Rules, execution: Execution) -> None:
        """Create the roles of the replicas in one root."""
        broker_id, cluster = self.broker_id, self._cluster
        clock, settings = self._clock, self._settings
        carry_activity(root, cluster, self.counts, clock)
        interval_ms = settings.checkpoint_interval_ms(is_local=root.location.is_local)
        purgatory = Purgatory(root, rules)
        replicas = Replicas(root, number, purgatory, rules, clock, interval_ms)
        known = ProducerState(replicas, rules, settings, clock)
        log_starts = LogStarts(replicas, known)
        self._replicas.append(replicas)
        self._repairs.append(
            Repairs(broker_id, cluster, replicas, known, settings, clock, self._reader.location)
        )
        self._leaders.append(
            Leader(
                broker_id,
                cluster,
                replicas,
                known,
                log_starts,
                purgatory,
                rules,
                settings,
                execution,
                self._configs,
                clock,
                self.counts,
            )
        )
        self._followers.append(
            Follower(
                broker_id,
                self._reader,
                cluster.partition_state,
                replicas,
                known,
                log_starts,
                purgatory,
                rules,
                settings,
                execution,
                self._peers,
                self._throttle,
            )
        )
        streams = partial(getattr, cluster, "stream_writes")
        shared = replicas, known, streams, rules, settings, execution, clock, self._lock
        self._mergers.append(Merger(*shared))
        self._cleaners.append(Cleaner(lambda: self._reader.metadata.topics, *shared))

    def _take_offline(self, number: int) -> None:
        """Drop the roles of the replicas in a root that has failed; the others go on."""
        root = self._roots[number]
        index = list(self._roots).index(number)
        version = root.log.version
        self._directories[number] = self._directories[number]._replace(
            log_version=version, has_failed=True
        )
        # New lists: other threads iterate over the old ones.
        self._replicas = _without(self._replicas, index)
        self._repairs = _without(self._repairs, index)
        self._leaders = _without(self._leaders, index)
        self._followers = _without(self._followers, index)
        self._mergers = _without(self._mergers, index)
        self._cleaners = _without(self._cleaners, index)
        del self._roots[number]

    def _settle_failures(self, effects: Effects) -> bool:
        """Take failed log directories offline and announce them; return whether one was."""
        return self._failed.settle(self._registration, self._clock.monotonic_ms(), effects)

    def failure_of_last_directory(self) -> str | None:
        """Probe the only log directory that is left; return why it has failed, otherwise `None`.

        It is not taken offline, so that the broker goes on if it can be used again.
        """
        return self._failed.last_failure()

    def note_tick(self, name: str, seconds: float, outcome: TickReport | Exception) -> None:
        """Add a tick of a role to the counts and, if it is not idle, to the spans."""
        self.counts.note_tick(name, seconds)
        if isinstance(outcome, TickReport) and (outcome.changed or outcome.commits):
            self.counts.note_work(outcome)
        self._spans.note(name, seconds, outcome)

    def state(self) -> BrokerState:
        """Return the state that metrics report, from memory alone; any thread may call it.

        It is that of the last ticks: the metadata that were loaded last, the positions that were
        read last.
        """
        metadata = self._reader.metadata if self._reader.versions is not None else None
        return BrokerState(
            metadata,
            self.is_controller,
            sum(leader.purgatory_size(DelayedProduce) for leader in self._leaders),
            sum(leader.purgatory_size(DelayedFetch) for leader in self._leaders),
            max((follower.max_lag() for follower in self._followers), default=0),
            len(self._directories) - len(self._roots),
        )

    @property
    def is_controller(self) -> bool:
        """Whether the broker is the active controller, as far as it knows."""
        return self._controller.is_active

    def has_news(self) -> bool:
        """Return True if a table that the next tick reads certainly has a new commit.

        Cheap enough to be called continuously: tables on an object store, where each check is a
        request, are not checked. May run during a tick.
        """
        return (
            any(root.request_tables.has_news() for root in list(self._roots.values()))
            or self._peers.have_news()
            or self._cluster.partition_state.has_news()
        )

    def poll_ahead(
        self, *, to_end: bool = False, step: TickStep = TickStep.WHOLE, is_busy: bool = False
    ) -> None:
        """Poll object stores in parallel for the tables that the next tick of each role reads.

        A round of ticks then waits for one request instead of several in sequence. The metadata are
        polled at the intervals of `MetadataPolls`: with outdated metadata a leader or follower acts
        as a slow one does, and is fenced. A round may read only some of a journal's new commits;
        later rounds read the rest. With `to_end` every table is read up to its end, so that a round
        without a change shows that nothing is left to do. Otherwise followers delay new high
        watermarks for two tick.interval.ms, or until they commit more. With a `step` only its
        part of the tables is polled. With `is_busy` two commits of each journal are requested at a
        time. Does nothing for roots on local file systems.
        """
        reads_journals = step is not TickStep.REQUESTS
        if not self.is_on_store:
            self._polled = Polled(reads_journals=reads_journals)
            return
        wait_ms = 0 if to_end else 2 * self._settings.tick_interval_ms
        self._polled = Polled(True, reads_journals, wait_ms)
        partitions = self._cluster.partition_state.state
        poll = self._metadata_polls.next(
            partitions, self._clock.monotonic_ms(), is_between=step is TickStep.JOURNALS
        )
        if to_end or self._cluster.location.is_local:
            poll = MetadataPoll.ALL
        if poll is not MetadataPoll.NONE:
            self._is_metadata_due = True
            self._signs.poll_ahead()
        if poll is MetadataPoll.ALL:
            self._reader.poll_ahead()
            self._cluster.controller.poll_ahead()
        elif poll is MetadataPoll.PARTITIONS:
            self._reader.poll_ahead_at_partitions()
        if step is not TickStep.JOURNALS:
            for root in self._roots.values():
                root.request_tables.poll_ahead(to_end=to_end)
        if reads_journals:
            # Between two ticks each journal is read to its end, so that a tick completes the
            # requests that it has taken. Usually there is one new commit, and the second GET finds
            # that nothing follows.
            least = 2 if step is TickStep.JOURNALS and is_busy else 1
            now_ms = self._clock.monotonic_ms()
            self._peers.poll_ahead(
                to_end=to_end or step is TickStep.JOURNALS,
                least=least,
                is_due=partial(self._journal_waits.is_over, now_ms=now_ms),
            )
            self._journal_waits.keep({*self._peers})

    def copy_ahead(self) -> None:
        """Copy, in parallel to the rounds, batches that leaders have not appended yet."""
        for follower in self._followers:
            follower.copy_ahead()

    def journal_version(self, of: Peer) -> int | None:
        """Return the newest version of one of its journals; `None` if another process has it.

        May be called from any thread.
        """
        root = self._roots.get(of.root)
        if root is None or (of.broker_id, of.broker_epoch) != (self.broker_id, self.broker_epoch):
            return None
        return root.log.version

    @property
    def is_on_store(self) -> bool:
        """Whether the cluster root or one of the broker's roots is on an object store."""
        roots = list(self._roots.values())
        locations = [self._cluster.location, *(root.location for root in roots)]
        return not all(location.is_local for location in locations)

    @property
    def awaits_news(self) -> bool:
        """Whether a request is pending that commits of other brokers will complete."""
        return any(leader.has_waiting for leader in self._leaders)

    @_plays("leader")
    def leader_tick(self, stop_after: str | None = None) -> TickReport:
        """Play the leader: take requests, advance high watermarks and in-sync sets, answer.

        Damaged replicas are found and repaired before that. `stop_after` ends the tick at a point,
        as a crash there would: log_dir_offline (a failed log directory was announced), repair_file,
        repair_commit, repair_checkpoint, repair_rows (requested repairs), damage_isr, damage_cut,
        epoch_entry, producer_state and log_start (a deletion of old records), log_commit (the
        commit of the journal, with answers), removal (of the producers of removed replicas),
        isr_change, checkpoint (the commit of high watermarks and answers after changes of in-sync
        sets), responses (before taken requests are removed and checkpoints written). Raises
        `FencedError` if a newer process plays this broker; the caller must then drop it.
        """
        with self._lock:
            now_ms, effects = self._clock.now_ms(), Effects(stop_after)
            has_failed = self._settle_failures(effects)
            metadata = self._load()
            versions = self._reader.versions
            reports = self._follower_reports(metadata)
            is_repairing = self._repair(metadata, reports, now_ms, effects)
            if is_repairing:
                self._is_metadata_due = True
                metadata, versions = self._load(), self._reader.versions
            report = self._each_root(
                [
                    partial(leader.tick, metadata, versions, reports, now_ms, effects)
                    for leader in self._leaders
                ],
                effects,
            )
            report.changed |= is_repairing or has_failed
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
                # The other roots continue. Meanwhile the replica neither leads nor follows.
                self._failures.warning(
                    ("repair", repairs),
                    "replica not repaired",
                    broker=self.broker_id,
                    error=str(error),
                )
            else:
                self._failures.over(("repair", repairs))
        return is_changed

    @_plays("follower")
    def follower_tick(self, stop_after: str | None = None) -> TickReport:
        """Play the follower: truncate to where logs agree, copy the leaders' batches, report.

        `stop_after`: log_dir_offline, truncate, copy, producer_state (of batches below the log
        start offset), log_commit, checkpoint. Raises as `leader_tick` does.
        """
        with self._lock:
            metadata = self._load()
            now_ms, effects = self._clock.now_ms(), Effects(stop_after)
            wait_ms = self._polled.high_watermarks_wait_ms
            report = self._each_root(
                [
                    partial(follower.tick, metadata, now_ms, effects, wait_ms)
                    for follower in self._followers
                ],
                effects,
            )
            # The tick has truncated logs, or copied as much as one tick may: there may be more.
            report.has_more |= report.changed
            return report

    @_plays("controller")
    def controller_tick(self, stop_after: str | None = None) -> TickReport:
        """Play the controller, or observe the active one. `stop_after`: lease, fence, election,
        reassignment (its end), partitions_removal, offsets_removal (of deleted topics).

        Raises as `leader_tick` does.
        """
        self._check_cluster_root()
        self._check_cluster_root_on_store()
        report = self._controller.tick(
            self._clock.monotonic_ms(), self._clock.now_ms(), Effects(stop_after)
        )
        # `brokers`, which announces changes, was read in the tick. The next one decides by them.
        report.changed |= self._change_settings()
        if self._controller.is_active:
            self._transactional_ids.expire(self._clock.now_ms())
        # The broker may have been elected.
        report.has_more |= report.changed
        return report

    def merge(self, stop_after: str | None = None) -> MergeReport:
        """Merge small batches of the broker's replicas once; may run during a tick (rule 8.4).

        Returns the number of merged batches, and into how many; 0 means that nothing could be
        merged. `stop_after`: files, producer_state, log_commit, checkpoint. Raises as `leader_tick`
        does.
        """
        merge = partial(Merger.merge, effects=Effects(stop_after))
        reports = self._in_background("merger", merge, self._mergers)
        return MergeReport(*map(sum, zip(MergeReport(), *reports, strict=True)))

    def clean(self, stop_after: str | None = None) -> CleanReport:
        """Clean the logs of compacted topics that are dirty enough, once; may run during a tick.

        Returns the numbers of cleaned replicas and of their records, all 0 if nothing was to be
        cleaned (rule 8.3). `stop_after`: files, producer_state, log_commit, cleaner_checkpoint.
        Raises as `leader_tick` does.
        """
        clean = partial(Cleaner.clean, effects=Effects(stop_after))
        reports = self._in_background("cleaner", clean, self._cleaners)
        return CleanReport(*map(sum, zip(CleanReport(), *reports, strict=True)))

    def _in_background(
        self, name: str, work: Callable[[_Worker], _Report], workers: Sequence[_Worker]
    ) -> list[_Report]:
        """Do work in each root; a root that cannot be read delays its failure to the end."""
        reports = []
        failure: Exception | None = None
        with role(f"broker {self.broker_id}, {name}"):
            for worker in workers:
                try:
                    reports.append(work(worker))
                except UNREADABLE as error:
                    failure = error
        if failure is not None:
            raise failure
        return reports

    def vacuum(
        self,
        is_stopping: Callable[[], bool] = lambda: False,
        stop_after: str | None = None,
        after_ms: int | None = None,
    ) -> VacuumReport:
        """Remove files that no table of the broker's roots names any more; may run during a tick.

        A root is searched if log.vacuum.interval.ms have passed since it was. The controller's
        broker also searches the cluster root. `is_stopping` ends the search early; `stop_after`:
        replica_history, retention, files, history, past, cluster_retention, cluster_files;
        `after_ms` sets the clock forward for tests. Raises as `leader_tick` does.
        """
        with role(f"broker {self.broker_id}, vacuum"):
            return self._vacuuming.run(Effects(stop_after), is_stopping, after_ms)

    def heartbeat(self) -> None:
        """Show that the broker is alive, and renew the lease if it holds it; may run during a tick.

        A broker is alive as long as one of its journals gets commits. An empty commit is made if
        nothing was committed since the last heartbeat, or if the lease is to be renewed. On an
        object store it is made only when due, so callers call this twice per
        broker.heartbeat.interval.ms there. Raises as `leader_tick` does.
        """
        self._check_cluster_root()
        if not self._is_heartbeat_due(holds_lease=self._controller.is_active):
            return
        controller_epoch: int | None = None
        failure: Exception | None = None
        try:
            controller_epoch = self._controller.epoch_to_renew()
        except UNREADABLE as error:
            # The lease is not renewed; the broker still shows that it is alive.
            failure = error
        self._beat(controller_epoch)
        if failure is not None:
            raise failure

    def heartbeat_without_lease(self) -> None:
        """Show that the broker is alive, without renewing its lease of the controller role."""
        if self._is_heartbeat_due(holds_lease=False):
            self._beat(None)

    def _is_heartbeat_due(self, *, holds_lease: bool) -> bool:
        is_due = self._heartbeats.is_due(self._clock.monotonic_ms(), holds_lease=holds_lease)
        return is_due or self._is_fenced

    def _beat(self, controller_epoch: int | None) -> None:
        self._heartbeats.beat(controller_epoch, self._clock.monotonic_ms())
        if self._is_fenced:
            # The broker is alive again.
            self._change_state("return_to_stop" if self._is_stopping else "return")

    @property
    def _is_fenced(self) -> bool:
        """Whether its row, as loaded last, says so: heartbeats do not read the row."""
        rows = self._cluster.brokers.rows().to_pylist()
        mine = next((row for row in rows if row["broker_id"] == self.broker_id), None)
        return mine is not None and mine["state"] == "fenced"

    def awaits_signs(self, own: AbstractSet[int]) -> bool:
        """Return whether a broker that should run has shown no sign of life to this process yet.

        It may have died, which shows after broker.session.timeout.ms; a run that ended earlier each
        time would never find out. Of another controller only the lease is awaited. `own` are the
        brokers of the same application.
        """
        return self._controller.awaits_signs(own, self._clock.monotonic_ms())

    def poll(self) -> None:
        """Note the requests, and the other brokers' rows and journals, before time passes."""
        self._heartbeats.note()
        self._controller.observe(self._clock.monotonic_ms())
        for number, leader in zip(list(self._roots), self._leaders, strict=True):
            try:
                leader.appends.inbox.poll(self._clock.now_ms())
            except UNREADABLE as error:
                if len(self._roots) == 1:
                    raise
                self._failed.suspect(number, error)

    def park(self) -> None:
        """End for now, as between two scheduled runs: the broker keeps its partitions.

        It stays their leader for parked.session.timeout.ms (7.2). It does not keep the controller
        role: another broker's run may be shorter than the lease.
        """
        now_ms = self._clock.now_ms()
        with self._lock:
            for leader in self._leaders:
                try:
                    leader.park(now_ms)
                except UNREADABLE as error:
                    _log.warning(
                        "follower lags not persisted", broker=self.broker_id, error=str(error)
                    )
        self._write_checkpoints()
        self._change_state("park", self._clean_stop() | {"parked_at_ms": now_ms})
        try:
            self._controller.resign()
        except UNREADABLE as error:
            # The lease lapses, as that of a broker that has died.
            _log.warning("lease not given back", broker=self.broker_id, error=str(error))

    def prepare_to_stop(self) -> None:
        """Ask the controller to elect leaders in its place: controlled shutdown."""
        self._is_stopping = True
        self._change_state("begin_stop")

    @property
    def can_hand_over(self) -> bool:
        """Whether, by the metadata loaded last, another broker could take over a partition."""
        metadata = self._reader.metadata
        return any(
            state.leader == self.broker_id
            and any(metadata.brokers[one].can_take_over for one in state.isr)
            for state in metadata.partitions.values()
        )

    def stop(self) -> None:
        """End for good: from the controller's next tick on, it is in no ISR and leads nothing."""
        self._controller.resign()
        self._write_checkpoints()
        self._change_state("stop", self._clean_stop())

    def _write_checkpoints(self) -> None:
        """Write the checkpoint tables of all roots."""
        with self._lock:
            for replicas in self._replicas:
                replicas.checkpoints.write_last()

    def _clean_stop(self) -> dict[str, Any]:
        """Return the mark of a clean stop: digests that identify the logs at the next start (7.2).

        Empty if a commit's outcome is unknown and the log cannot be read now.
        """
        try:
            with self._lock:
                for root in self._roots.values():
                    if root.log.is_uncertain:
                        root.log.refresh()
        except UNREADABLE as error:
            _log.warning("clean stop not marked", broker=self.broker_id, error=str(error))
            return {}
        digests = [
            self._roots[number].log.digest() if number in self._roots else None
            for number in range(len(self._directories))
        ]
        return {"log_digest": json.dumps(digests)}

    def _change_state(self, event: BrokerEvent, mark: Mapping[str, Any] | None = None) -> None:
        # A broker that returns with an older copy of its log is recognised by this version (7.2).
        versions = [
            self._roots[number].log.version if number in self._roots else one.log_version
            for number, one in enumerate(self._directories)
        ]
        changes = {"log_version": json.dumps(versions), **(mark or {})}
        change_state(self._registration, self.broker_id, self.broker_epoch, event, changes)

    def _check_cluster_root(self) -> None:
        """Raise `StorageError` if the cluster root is gone or belongs to another cluster.

        Only on local file systems; see `_check_cluster_root_on_store`.
        """
        if self._cluster.location.is_local:
            self._cluster.check_in_place()

    def _check_cluster_root_on_store(self) -> None:
        """Check the cluster root on an object store every broker.heartbeat.interval.ms.

        Each check costs a request.
        """
        now_ms = self._clock.monotonic_ms()
        is_due = now_ms - self._root_checked_at_ms >= self._settings.broker_heartbeat_interval_ms
        if is_due and not self._cluster.location.is_local:
            self._cluster.check_in_place()
            self._root_checked_at_ms = now_ms

    def _load(self) -> Metadata:
        """Return the newest metadata, or those loaded last if a load is not due.

        Raises `FencedError` if they name a newer process of this broker.
        """
        if self.is_paused and self._reader.versions is not None:
            return self._reader.metadata
        is_due = self._is_metadata_due or not self._polled.is_ahead
        if not is_due and self._reader.versions is not None:
            return self._reader.metadata
        self._is_metadata_due = False
        self._check_cluster_root()
        metadata = self._reader.load()
        self._change_settings()
        self._peers.keep({(of, one.broker_epoch) for of, one in metadata.brokers.items()})
        mine = metadata.brokers.get(self.broker_id)
        check_registered(mine and mine.broker_epoch, self.broker_id, self.broker_epoch)
        return metadata

    def _open_registration(self) -> None:
        # The row is changed during ticks, which may be long, so it has a handle of its own.
        self._registration = self._cluster.open_table(BROKERS)

    def _open_settings(self, settings: Settings) -> RunningSettings:
        """Return the settings of the configuration file with the dynamic ones."""
        self._static_settings = settings
        self._settings = RunningSettings.of(settings)
        self._configs = DynamicConfigs(self._cluster)
        self._take_configs()
        return self._settings

    def _change_settings(self) -> bool:
        """Take changed dynamic configs, and let the controller decide by them; return if any."""
        is_changed = bool(self._take_configs())
        if is_changed:
            self._controller.decide_again()
        return is_changed

    def _take_configs(self) -> Mapping[str, object]:
        """Take the dynamic configs if a change was announced; return the values that changed.

        Configs that cannot be read are read again in the next tick; the broker goes on as it is.
        """
        try:
            if not self._configs.refresh():
                return {}
        except UNREADABLE as error:
            self._failures.warning(
                "configs", "configs not readable", broker=self.broker_id, error=str(error)
            )
            return {}
        self._failures.over("configs")
        changed = self._settings.apply(
            self._static_settings, dynamic_values(self._configs, self.broker_id)
        )
        if changed:
            _log.info("settings changed", broker=self.broker_id, settings=changed)
        return changed

    @property
    def settings(self) -> Settings:
        """The settings that are valid now."""
        return self._settings

    def _each_root(self, ticks: Sequence[Callable[[], TickReport]], effects: Effects) -> TickReport:
        """Run every root's tick; a failure is raised after all have run (rule 1.5).

        A root that has failed is taken offline, and its failure is not raised.
        """
        report = TickReport()
        failures: dict[int, Exception] = {}
        for number, tick in zip(list(self._roots), ticks, strict=True):
            try:
                report.add(tick())
            except CommitConflictError as conflict:
                # Maintenance of the same broker committed first; the next tick reads its commit.
                _log.info("tick repeated", broker=self.broker_id, reason=str(conflict))
                report.changed = report.has_more = True
            except UNREADABLE as error:
                failures[number] = error
                self._failed.suspect(number, error)
        if failures:
            is_changed = self._settle_failures(effects)
            report.changed |= is_changed
            report.has_more |= is_changed
        for number, failure in failures.items():
            if number in self._roots:
                raise failure
        return report

    def _follower_reports(self, metadata: Metadata) -> FollowerReports:
        """Read the journals of the brokers that follow this one's partitions."""
        if self.is_paused:
            # A paused broker acts on all it had read, including what it has acted on before.
            return FollowerReports(self._report_rows(), set().union(*self._followers_of.values()))
        wanted = self._wanted_followers(metadata)
        self._followers_of = {of: one for of, one in self._followers_of.items() if of in wanted}
        for of in wanted:
            try:
                rows = self._peers.rows(of)
                if self._polled.reads_journals:
                    rows.refresh()
            except UNREADABLE as error:
                self._failures.warning(of, "follower not readable", broker=of[0], error=str(error))
                # Its reports count again when it can be read again.
                lost = self._followers_of.pop(of, None)
                self._reported |= lost.keys() if lost is not None else set()
                self._peers.release(of)
                continue
            if self._followers_of.get(of) is not rows:
                self._followers_of[of] = rows
                self._reported |= rows.keys()
            self._reported |= rows.pop_changed()
            self._failures.over(of)
        return FollowerReports(self._report_rows(), frozenset(self._reported))

    def _wanted_followers(self, metadata: Metadata) -> Mapping[Peer, None]:
        """Return the peers that follow partitions of this broker, sorted; kept for the metadata."""
        of = self._followers_wanted_for
        if of is None or of[0] is not metadata.partitions or of[1] is not metadata.brokers:
            found = {
                Peer(one.broker_id, one.root, metadata.brokers[one.broker_id].broker_epoch)
                for state in metadata.partitions.values()
                if state.leader == self.broker_id
                for one in state.replicas
                if one.broker_id != self.broker_id
                and metadata.brokers[one.broker_id].has_online(one.root)
            }
            self._followers_wanted = dict.fromkeys(sorted(found))
            self._followers_wanted_for = metadata.partitions, metadata.brokers
        return self._followers_wanted

    def _report_rows(self) -> dict[int, list[ReplicaRows]]:
        rows: dict[int, list[ReplicaRows]] = defaultdict(list)
        for (broker_id, _, _), read in self._followers_of.items():
            rows[broker_id].append(read)
        return rows


_Role = TypeVar("_Role")


def _without(roles: Sequence[_Role], index: int) -> list[_Role]:
    return [role for at, role in enumerate(roles) if at != index]
