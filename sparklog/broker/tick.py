"""What a tick reports, and how tests stop one between two effects."""

from __future__ import annotations

from dataclasses import dataclass

from sparklog.errors import SparklogError


class StoppedError(SparklogError):
    """The tick was stopped at the point that a test named, as a crash there would."""


@dataclass
class TickReport:
    """What one tick did; the counts are what a tick costs, whatever the machine."""

    changed: bool = False
    has_traffic: bool = False
    """Whether records, positions or epochs have moved: more than the time of a report."""
    commits: int = 0
    spark_jobs: int = 0
    files_copied: int = 0
    bytes_copied: int = 0
    follows_up: bool = False
    """Whether this broker may have more to do at once; not so after what a leader completes."""

    def add(self, other: TickReport) -> None:
        """Add what another tick did."""
        self.changed |= other.changed
        self.has_traffic |= other.has_traffic
        self.follows_up |= other.follows_up
        self.commits += other.commits
        self.spark_jobs += other.spark_jobs
        self.files_copied += other.files_copied
        self.bytes_copied += other.bytes_copied


@dataclass(frozen=True)
class Effects:
    """The effects of a tick, in order; `stop_after` names the one after which it ends."""

    stop_after: str | None = None

    def done(self, effect: str) -> None:
        """Mark an effect as done; `StoppedError` where the tick is to end there."""
        if effect == self.stop_after:
            raise StoppedError(f"stopped after {effect}")
