"""The bundle, built once for all tests, and an environment without the package."""

from __future__ import annotations

import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.bundle import Bundle, build
from tests.jobs.processes import Cluster


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The files of `make bundle`."""
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has pyspark and all dependencies, but not sparklog.

    The packages are those of this environment. Python reads the files *.pth of a folder only if it
    is an environment's own, so that the checkout, which is installed by such a file, is not on the
    path.
    """
    folder = tmp_path_factory.mktemp("environment") / "bare"
    venv.create(folder)
    major, minor = sys.version_info[:2]
    packages = folder / "lib" / f"python{major}.{minor}" / "site-packages"
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of three brokers without any process yet."""
    cluster = Cluster(tmp_path / "data")
    yield cluster
    cluster.close()
