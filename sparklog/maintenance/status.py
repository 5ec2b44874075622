"""The health of a cluster at one time, judged; `status_reader` reads it from the tables."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from sparklog.cluster.broker_admin import BrokerDescription
from sparklog.cluster.metadata import AssignedReplica, PartitionState
from sparklog.maintenance.losses import Loss
from sparklog.states import RUNNING_STATES
from sparklog.storage.journal import Activity

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

    `silent_ms` is the time in ms since the newest commit of its log directories was stored, by the
    clocks of the store and of this process; `None` if none can be read. `clock_offset_ms` is the
    time in ms by which the broker's clock is ahead of the store's, which gives objects their times:
    negative if it is behind, 0 if it is not known. `activity` is what its newest commits say that
    it does; `None` if they say nothing, as those of earlier releases. `unreadable` are its log
    directories that cannot be read here, each with the reason.
    """

    description: BrokerDescription
    silent_ms: int | None
    clock_offset_ms: int
    activity: Activity | None
    unreadable: Mapping[str, str]

    def is_silent(self, timeout_ms: int) -> bool:
        """Whether it counts as alive and has committed nothing for more than `timeout_ms`."""
        return self._counts_as_running and (self.silent_ms or 0) > timeout_ms

    def runs(self, timeout_ms: int) -> bool:
        """Whether it counts as alive and is not silent."""
        return self._counts_as_running and not self.is_silent(timeout_ms)

    @property
    def _counts_as_running(self) -> bool:
        return self.description.broker.state in RUNNING_STATES

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

    `session_timeout_ms` is broker.session.timeout.ms as this process knows it, `max_parked_ms` the
    longest time between two scheduled runs. `reader_behind_ms` is the least time in ms by which
    this machine's clock is behind those of the stores. `losses` are past ones, the newest first;
    they are no problem of the present state.
    """

    root: str
    cluster_id: str
    read_at_ms: int
    session_timeout_ms: int
    max_parked_ms: int
    reader_behind_ms: int
    brokers: tuple[BrokerStatus, ...]
    partitions: tuple[PartitionStatus, ...]
    groups: tuple[GroupStatus, ...]
    losses: tuple[Loss, ...]

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
        found += self._of_this_machine()
        for one in self.brokers:
            found += self._of_broker(one)
        return sorted(found, key=lambda problem: -problem.severity)

    def _of_processes(self) -> list[Problem]:
        running = any(one.runs(self.session_timeout_ms) for one in self.brokers)
        if running:
            return []
        if self.is_parked:
            parked = [one for one in self.brokers if one.description.broker.state == "parked"]
            idle_ms = min(one.silent_ms or 0 for one in parked)
            if idle_ms <= self.max_parked_ms:
                return []
            text = (
                f"all brokers are parked, and none has run for {idle_ms / 1000:.0f} s: check that "
                "their scheduler starts them, or start them"
            )
            return [Problem(Severity.CRITICAL, text)]
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
        found += self._of_clock(one)
        if broker.offline_log_dirs:
            dirs = _counted(len(broker.offline_log_dirs), "log directory", "log directories")
            found.append(
                Problem(Severity.WARNING, f"{name} has {dirs} that failed: see sparklog log-dirs")
            )
        for uri, reason in one.unreadable.items():
            found.append(Problem(Severity.WARNING, f"{name}: {uri} cannot be read here: {reason}"))
        return found

    def _of_clock(self, one: BrokerStatus) -> list[Problem]:
        """Return the problem of a running broker's clock; a stopped one's matters to nobody."""
        offset_ms = one.clock_offset_ms
        if not one.runs(self.session_timeout_ms) or abs(offset_ms) <= CLOCK_TOLERANCE_MS:
            return []
        text = (
            f"the clock of broker {one.description.broker.broker_id} is {abs(offset_ms) / 1000:.0f}"
            f" s {'ahead of' if offset_ms > 0 else 'behind'} its store's: set it by NTP; the times "
            "that the broker notes are wrong by as much"
        )
        return [Problem(Severity.WARNING, text)]

    def _of_this_machine(self) -> list[Problem]:
        if self.reader_behind_ms <= CLOCK_TOLERANCE_MS:
            return []
        text = (
            f"the clock of this machine is at least {self.reader_behind_ms / 1000:.0f} s behind "
            "the store's: set it by NTP; until then it notices later by as much that a broker is "
            "silent"
        )
        return [Problem(Severity.WARNING, text)]


_MOST_NAMED = 5


def _counted(count: int, one: str, several: str | None = None) -> str:
    return f"{count} {one if count == 1 else several or one + 's'}"


def _named(partitions: list[PartitionStatus]) -> str:
    names = [one.name for one in partitions[:_MOST_NAMED]]
    left = len(partitions) - len(names)
    return ", ".join(names) + (f" and {left} more" if left else "")
