"""What the tests of the jobs share: a cluster in a folder, whose processes end with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.processes import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of three brokers that nobody plays yet."""
    cluster = Cluster(tmp_path / "data")
    yield cluster
    cluster.close()
