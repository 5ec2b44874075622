"""Test support for the project and its users: a cluster in a local folder, with a manual clock."""

from sparklog.testing.history import History, RecordedProducer
from sparklog.testing.history_check import Violation, check
from sparklog.testing.local_cluster import LocalCluster
from sparklog.testing.manual_clock import ManualClock

__all__ = ["History", "LocalCluster", "ManualClock", "RecordedProducer", "Violation", "check"]
