"""For tests, the project's own and its users': a cluster in a folder, and time in one's hand."""

from sparklog.testing.history import History, RecordedProducer
from sparklog.testing.history_check import Violation, check
from sparklog.testing.local_cluster import LocalCluster
from sparklog.testing.manual_clock import ManualClock

__all__ = ["History", "LocalCluster", "ManualClock", "RecordedProducer", "Violation", "check"]
