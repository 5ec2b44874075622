"""The counts of one broker since its process started; `sparklog.broker.metrics` reports them."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparklog.broker.tick import TickReport
from sparklog.counts import Counts, Histogram

_TICK_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_LATENCY_MS = (1, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000)


_ROLES = ("controller", "leader", "follower")


def _tick_times() -> dict[str, Histogram]:
    return {role: Histogram(_TICK_SECONDS) for role in _ROLES}


def _no_ticks() -> dict[str, float]:
    # With every role from the start: threads iterate over it while ticks set values.
    return dict.fromkeys(_ROLES, 0.0)


@dataclass
class BrokerCounts:
    """The counts of one broker; its roles add to them, and any thread may read them.

    Attributes
    ----------
    bytes_in : Counts
        Bytes of appended batch files, by topic.
    messages_in : Counts
        Appended records, by topic.
    produce_answers : Counts
        Partitions of produce requests that were answered, by error.
    produce_ms : Histogram
        ms between the load of a produce request by this process and its answer.
    isr_changes : Counts
        Partitions whose in-sync set this broker changed as leader, by rule; `failed` are changes
        that another one preceded.
    elections_ms : Histogram
        ms of each step of the controller that changed a leader.
    elections : Counts
        Partitions that got another leader or none, by kind: clean, unclean, none.
    tick_seconds : dict of str to Histogram
        Durations of ticks in s, by role.
    last_tick_seconds : dict of str to float
        The duration of the last tick in s, by role; 0 before the first.
    work : Counts
        Of ticks, by kind: commits, spark_jobs, files_copied, bytes_copied.
    """

    bytes_in: Counts = field(default_factory=Counts)
    messages_in: Counts = field(default_factory=Counts)
    produce_answers: Counts = field(default_factory=Counts)
    produce_ms: Histogram = field(default_factory=lambda: Histogram(_LATENCY_MS))
    isr_changes: Counts = field(default_factory=Counts)
    elections_ms: Histogram = field(default_factory=lambda: Histogram(_LATENCY_MS))
    elections: Counts = field(default_factory=Counts)
    tick_seconds: dict[str, Histogram] = field(default_factory=_tick_times)
    last_tick_seconds: dict[str, float] = field(default_factory=_no_ticks)
    work: Counts = field(default_factory=Counts)

    def note_tick(self, role: str, seconds: float) -> None:
        """Add a tick of a role."""
        self.tick_seconds[role].observe(seconds)
        self.last_tick_seconds[role] = seconds

    def note_work(self, report: TickReport) -> None:
        """Add the work of a tick."""
        for kind in ("commits", "spark_jobs", "files_copied", "bytes_copied"):
            self.work.add(kind, getattr(report, kind))
