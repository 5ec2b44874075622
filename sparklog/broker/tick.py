"""The report of a tick, and the points at which tests stop a tick between two effects."""

from __future__ import annotations

from dataclasses import dataclass

from sparklog.errors import SparklogError


class StoppedError(SparklogError):
    """The tick was stopped at the point that a test named, as a crash there would."""


@dataclass
class TickReport:
    """The changes and the cost of one tick; the counts do not depend on the machine.

    Attributes
    ----------
    changed : bool
        Whether the tick has committed anything.
    has_traffic : bool
        Whether records, positions or epochs have moved: more than the time of a report.
    commits : int
        The number of commits.
    spark_jobs : int
        The number of Spark jobs.
    files_copied : int
        The number of batch files that were copied.
    bytes_copied : int
        Their size in bytes.
    has_more : bool
        Whether this broker may have more to do immediately. False after a leader's commit that only
        completes requests.

    Examples
    --------
    >>> from sparklog.testing import LocalCluster
    >>> cluster = LocalCluster("ticking", brokers=[0])
    >>> cluster.tick_until_idle()
    >>> cluster.leader_tick(0)
    TickReport(changed=False, has_traffic=False, commits=0, spark_jobs=0, files_copied=0, ...)
    """

    changed: bool = False
    has_traffic: bool = False
    commits: int = 0
    spark_jobs: int = 0
    files_copied: int = 0
    bytes_copied: int = 0
    has_more: bool = False

    def add(self, other: TickReport) -> None:
        """Add the report of another tick.

        Parameters
        ----------
        other : TickReport
            The report to be added.
        """
        self.changed |= other.changed
        self.has_traffic |= other.has_traffic
        self.has_more |= other.has_more
        self.commits += other.commits
        self.spark_jobs += other.spark_jobs
        self.files_copied += other.files_copied
        self.bytes_copied += other.bytes_copied


@dataclass(frozen=True)
class Effects:
    """The effects of a tick, in order; the tick ends after the one that `stop_after` names."""

    stop_after: str | None = None

    def done(self, effect: str) -> None:
        """Mark an effect as done; raise `StoppedError` if the tick is to end there."""
        if effect == self.stop_after:
            raise StoppedError(f"stopped after {effect}")
