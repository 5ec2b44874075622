"""Fixtures of the jobs' tests: a cluster in a local folder, whose processes end with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.processes import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of three brokers without any process yet."""
    cluster = Cluster(tmp_path / "data")
    yield cluster
    cluster.close()
