"""Fixtures: roots in local folders, clusters controlled by the test, and a cluster that runs in
parallel.
"""

from __future__ import annotations

from tests.broker.conftest import empty_roots, start
from tests.running_cluster import running_cluster
from tests.storage.conftest import after_next, processes, root

__all__ = ["after_next", "empty_roots", "processes", "root", "running_cluster", "start"]
