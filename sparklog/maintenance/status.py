"""The health of a cluster at one time, read from its tables; no broker has to run.

Load, then judge: `StatusReader.read` reads the tables, `ClusterStatus.problems` says what is wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from sparklog.clock import Clock, SystemClock
from sparklog.cluster.admin import Admin
from sparklog.cluster.broker_admin import BrokerDescription
from sparklog.cluster.connection import Connection
from sparklog.cluster.isr import min_isr
from sparklog.cluster.metadata import AssignedReplica, Metadata, PartitionState
from sparklog.config import Settings
from sparklog.groups.group import ConsumerGroups
from sparklog.model import TopicIdPartition
from sparklog.storage.commits import read_commit
from sparklog.storage.errors import UNREADABLE_CONTENT
from sparklog.storage.journal import Activity, Journal, newest_activity
from sparklog.storage.location import Location, one_line
from sparklog.storage.parallel import map_in_parallel

CLOCK_TOLERANCE_MS = 5_000
"""The difference of clocks in ms up to which a status does not warn of it."""


class Severity(IntEnum):
    """The severity of a problem; `sparklog status` exits with the highest one."""

    OK = 0
    """Nothing is wrong."""
    WARNING = 1
    """Every partition can be read and written, with less redundancy or speed than configured."""
    CRITICAL = 2
    """A partition cannot be read or written, or nothing replaces a broker that fails."""


class Problem(NamedTuple):
    """Something that is wrong, in one sentence."""

    severity: Severity
    text: str


class BrokerStatus(NamedTuple):
    """A broker and the signs of its life.

    `silent_ms` is the time in ms since the newest commit of its log directories, by the clocks of
    the broker and of this process; `None` if none can be read. `ahead_ms` is the least time in ms
    by which the broker's clock is ahead, and 0 if that does not show. `unreadable` are its log
    directories that cannot be read here, each with the reason. `activity` is what its newest
    commits say that it does; `None` if they say nothing, as those of earlier releases.
    """

    description: BrokerDescription
    silent_ms: int | None
    ahead_ms: int
    activity: Activity | None
    unreadable: Mapping[str, str]

    def is_silent(self, timeout_ms: int) -> bool:
        """Whether it counts as alive and has committed nothing for more than `timeout_ms`."""
        broker = self.description.broker
        runs = broker.is_alive and not broker.is_parked
        return runs and self.silent_ms is not None and self.silent_ms > timeout_ms

    def shown_state(self, timeout_ms: int) -> str:
        """Return its state in `brokers`, or silent if it counts as alive and is silent."""
        return "silent" if self.is_silent(timeout_ms) else self.description.broker.state


class ReplicaStatus(NamedTuple):
    """A replica; `lag` is its distance in offsets from the leader's log end.

    `log_end_offset` and `lag` are `None` if its log or the leader's cannot be read.
    """

    assigned: AssignedReplica
    log_end_offset: int | None
    lag: int | None


class PartitionStatus(NamedTuple):
    """A partition and its replicas; Kafka's tools use the same four terms for its condition."""

    state: PartitionState
    min_isr: int
    high_watermark: int | None
    replicas: tuple[ReplicaStatus, ...]

    @property
    def is_offline(self) -> bool:
        """Whether it has no leader."""
        return self.state.leader is None

    @property
    def is_under_replicated(self) -> bool:
        """Whether a replica, other than one that is being added, is not in sync."""
        return any(not one.in_isr and not one.adding for one in self.state.replicas)

    @property
    def is_under_min_isr(self) -> bool:
        """Whether requests with acks=all are refused."""
        return len(self.state.isr) < self.min_isr

    @property
    def is_at_min_isr(self) -> bool:
        """Whether the loss of one in-sync replica would have requests with acks=all refused."""
        return len(self.state.isr) == self.min_isr < len(self.state.replicas)

    @property
    def lag(self) -> int:
        """The largest lag of a replica that can be read, in offsets."""
        return max((one.lag for one in self.replicas if one.lag is not None), default=0)

    @property
    def name(self) -> str:
        """The topic and the number, as in Kafka's tools."""
        return f"{self.state.topic}-{self.state.partition}"


class GroupStatus(NamedTuple):
    """A consumer group; `lag` is the sum over its partitions that can be read, in offsets."""

    group_id: str
    state: str
    members: int
    partitions: int
    lag: int


class ClusterStatus(NamedTuple):
    """The state of a cluster; `read_at_ms` is the time of reading in ms since 1970.

    `session_timeout_ms` is broker.session.timeout.ms as this process knows it.
    """

    root: str
    cluster_id: str
    read_at_ms: int
    session_timeout_ms: int
    brokers: tuple[BrokerStatus, ...]
    partitions: tuple[PartitionStatus, ...]
    groups: tuple[GroupStatus, ...]

    @property
    def controller(self) -> BrokerDescription | None:
        """The broker that holds the lease of the controller, or `None`."""
        return next(
            (one.description for one in self.brokers if one.description.is_controller), None
        )

    @property
    def is_parked(self) -> bool:
        """Whether no broker runs and all have been stopped in order, as between scheduled runs."""
        states = {one.description.broker.state for one in self.brokers}
        return "parked" in states and states <= {"parked", "stopped", "unregistered"}

    @property
    def severity(self) -> Severity:
        """That of the worst problem."""
        return max((one.severity for one in self.problems()), default=Severity.OK)

    def problems(self) -> list[Problem]:
        """Return what is wrong, the worst first."""
        found = [*self._of_processes(), *self._of_partitions(), *self._of_controller()]
        for one in self.brokers:
            found += self._of_broker(one)
        return sorted(found, key=lambda problem: -problem.severity)

    def _of_processes(self) -> list[Problem]:
        running = [
            one
            for one in self.brokers
            if one.description.broker.is_alive
            and not one.description.broker.is_parked
            and not one.is_silent(self.session_timeout_ms)
        ]
        if running or self.is_parked:
            return []
        text = "no broker runs, so no record can be written: the rest is the state when they ended"
        return [Problem(Severity.CRITICAL, text)]

    def _of_partitions(self) -> list[Problem]:
        conditions = (
            (Severity.CRITICAL, "offline", [one for one in self.partitions if one.is_offline]),
            (
                Severity.CRITICAL,
                "under min.insync.replicas",
                [one for one in self.partitions if one.is_under_min_isr and not one.is_offline],
            ),
            (
                Severity.WARNING,
                "under-replicated",
                [one for one in self.partitions if one.is_under_replicated],
            ),
        )
        return [
            Problem(severity, f"{_counted(len(found), 'partition')} {condition}: {_named(found)}")
            for severity, condition, found in conditions
            if found
        ]

    def _of_controller(self) -> list[Problem]:
        if self.controller is not None or self.is_parked:
            return []
        return [Problem(Severity.CRITICAL, "no broker is the controller: start a broker")]

    def _of_broker(self, one: BrokerStatus) -> list[Problem]:
        broker = one.description.broker
        name = f"broker {broker.broker_id}"
        found = []
        if broker.state == "fenced":
            found.append(Problem(Severity.WARNING, f"{name} is fenced: start it again"))
        elif one.is_silent(self.session_timeout_ms):
            text = (
                f"{name} counts as alive and has committed nothing for "
                f"{(one.silent_ms or 0) / 1000:.0f} s: check that it and a controller run"
            )
            found.append(Problem(Severity.CRITICAL, text))
        if one.ahead_ms > CLOCK_TOLERANCE_MS:
            text = (
                f"the clock of {name} is {one.ahead_ms / 1000:.0f} s ahead of this machine's: set "
                "both by NTP; until then this machine notices its silence later by as much"
            )
            found.append(Problem(Severity.WARNING, text))
        if broker.offline_log_dirs:
            dirs = _counted(len(broker.offline_log_dirs), "log directory", "log directories")
            found.append(
                Problem(Severity.WARNING, f"{name} has {dirs} that failed: see sparklog log-dirs")
            )
        for uri, reason in one.unreadable.items():
            found.append(Problem(Severity.WARNING, f"{name}: {uri} cannot be read here: {reason}"))
        return found


_MOST_NAMED = 5


def _counted(count: int, one: str, several: str | None = None) -> str:
    return f"{count} {one if count == 1 else several or one + 's'}"


def _named(partitions: list[PartitionStatus]) -> str:
    names = [one.name for one in partitions[:_MOST_NAMED]]
    left = len(partitions) - len(names)
    return ", ".join(names) + (f" and {left} more" if left else "")


class _ReadJournal(NamedTuple):
    """A journal and the signs of life in its newest commit.

    `made_at_ms` is the commit's time by its broker's clock, in ms since 1970; 0 if it cannot be
    read.
    """

    journal: Journal
    made_at_ms: int
    activity: Activity | None


class StatusReader:
    """Reads the status of a cluster; a further `read` reads only what is new.

    Parameters: `connection`, the cluster; `settings`, its configuration, by default that of the
    connection or Kafka's defaults; `clock`, the source of `read_at_ms`.
    """

    def __init__(
        self, connection: Connection, settings: Settings | None = None, clock: Clock | None = None
    ) -> None:
        self._connection = connection
        self._settings = settings or connection.settings or Settings()
        self._clock = clock or SystemClock()
        self._admin = Admin(connection, settings=self._settings, clock=self._clock)

    def read(self) -> ClusterStatus:
        """Return the status now.

        Raises `StorageError` if the cluster root cannot be read. A broker root that cannot be read
        is named in its broker's status.
        """
        described = self._admin.list_brokers()
        metadata = self._connection.metadata()
        journals, unreadable = self._journals(described)
        now_ms = self._clock.now_ms()
        partitions = tuple(
            self._partition(metadata, state, journals)
            for _, state in sorted(
                metadata.partitions.items(), key=lambda one: (one[1].topic, one[1].partition)
            )
        )
        return ClusterStatus(
            self._connection.root.location.uri,
            self._connection.root.cluster_id,
            now_ms,
            self._settings.broker_session_timeout_ms,
            tuple(
                _broker(one, journals, unreadable.get(one.broker.broker_id, {}), now_ms)
                for one in described
            ),
            partitions,
            self._groups({one.state.key: one.high_watermark for one in partitions}),
        )

    def _journals(
        self, described: list[BrokerDescription]
    ) -> tuple[dict[tuple[int, int], _ReadJournal], dict[int, dict[str, str]]]:
        """Return the journals by broker and log directory, and the reasons of unreadable ones.

        Journals on object stores are read in parallel.
        """
        roots = [
            (one.broker.broker_id, number, Location.of(uri, self._connection.storage_options))
            for one in described
            for number, uri in one.broker.online_roots.items()
        ]
        is_local = all(location.is_local for _, _, location in roots)
        results = map_in_parallel(
            self._read_journal, [location for _, _, location in roots], 0, is_local=is_local
        )
        found: dict[tuple[int, int], _ReadJournal] = {}
        unreadable: dict[int, dict[str, str]] = defaultdict(dict)
        for (broker_id, number, location), result in zip(roots, results, strict=True):
            if isinstance(result, str):
                unreadable[broker_id][location.uri] = result
            else:
                found[broker_id, number] = result
        return found, unreadable

    def _read_journal(self, location: Location) -> _ReadJournal | str:
        """Return the journal of a log directory, or the reason that it cannot be read."""
        try:
            journal = self._connection.journal(location)
        except UNREADABLE_CONTENT as error:
            return one_line(error)
        try:
            commit = read_commit(journal.location, journal.version, lambda _: True)
            if commit is not None:
                activity = newest_activity(journal.location, commit)
                return _ReadJournal(journal, commit.made_at_ms or 0, activity)
        except UNREADABLE_CONTENT:
            # A clean-up has removed it since; the next reading finds a later one.
            pass
        return _ReadJournal(journal, 0, None)

    def _partition(
        self,
        metadata: Metadata,
        state: PartitionState,
        journals: Mapping[tuple[int, int], _ReadJournal],
    ) -> PartitionStatus:
        leads = next((one for one in state.replicas if one.broker_id == state.leader), None)
        ends = {
            one.broker_id: _log_end_offset(journals.get((one.broker_id, one.root)), state.key)
            for one in state.replicas
        }
        leader_end = high_watermark = None
        if leads is not None:
            leader_end = ends[leads.broker_id]
            read = journals.get((leads.broker_id, leads.root))
            if read is not None and state.key in read.journal.rows:
                high_watermark = read.journal.rows[state.key]["high_watermark"]
        replicas = []
        for one in state.replicas:
            end = ends[one.broker_id]
            lag = None if end is None or leader_end is None else max(leader_end - end, 0)
            replicas.append(ReplicaStatus(one, end, lag))
        return PartitionStatus(
            state, min_isr(metadata, state, self._settings), high_watermark, tuple(replicas)
        )

    def _groups(
        self, high_watermarks: Mapping[TopicIdPartition, int | None]
    ) -> tuple[GroupStatus, ...]:
        offsets = self._connection.root.consumer_offsets
        offsets.refresh()
        committed: dict[str, dict[TopicIdPartition, int]] = defaultdict(dict)
        for row in offsets.rows().to_pylist():
            if row["committed_offset"] is not None:
                key = TopicIdPartition(row["topic_id"], row["partition"])
                committed[row["group_id"]][key] = row["committed_offset"]
        groups = {
            one.group_id: one for one in ConsumerGroups(self._connection.root.consumer_groups).all()
        }
        found = []
        for group_id in sorted(committed.keys() | groups.keys()):
            group, of_group = groups.get(group_id), committed.get(group_id, {})
            lags = [
                max(end - offset, 0)
                for key, offset in of_group.items()
                if (end := high_watermarks.get(key)) is not None
            ]
            found.append(
                GroupStatus(
                    group_id,
                    group.state if group else "Empty",
                    len(group.members) if group else 0,
                    len(of_group),
                    sum(lags),
                )
            )
        return tuple(found)


def _log_end_offset(read: _ReadJournal | None, key: TopicIdPartition) -> int | None:
    if read is None:
        return None
    journal = read.journal
    row = journal.rows.get(key)
    return journal.log_end_offset(key, row["log_start_offset"] if row else 0)


def _broker(
    described: BrokerDescription,
    journals: Mapping[tuple[int, int], _ReadJournal],
    unreadable: Mapping[str, str],
    now_ms: int,
) -> BrokerStatus:
    """Return a broker's status by the newest commit of its log directories."""
    read = [
        one for (broker_id, _), one in journals.items() if broker_id == described.broker.broker_id
    ]
    newest = max(read, key=lambda one: one.made_at_ms, default=None)
    if newest is None or not newest.made_at_ms:
        return BrokerStatus(described, None, 0, None, unreadable)
    since_ms = now_ms - newest.made_at_ms
    return BrokerStatus(described, max(since_ms, 0), max(-since_ms, 0), newest.activity, unreadable)
