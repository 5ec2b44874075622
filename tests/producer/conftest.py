"""A cluster that runs in parallel with the tests."""

from __future__ import annotations

from tests.running_cluster import running_cluster

__all__ = ["running_cluster"]
