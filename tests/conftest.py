"""Fixtures of all tests: one Spark session per test process, a server of the S3 API."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.s3_store import Store, running_store
from sparklog.session import spark_session
from tests.spark_classes import use_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OF_FORMAT = {"datasource", "kafka_comparison"}
"""The folders of tests that use Spark for about as long as all others together."""

_MEMORY = Path("/dev/shm")
_OWN = "sparklog-tests-"
_OWN_MEMORY = _MEMORY / f"{_OWN}{os.getpid()}"
_ROOM_BYTES = 8 << 30
"""More than twice what all tests write."""


def pytest_configure(config: pytest.Config) -> None:
    """Write to memory if it has room, and let Spark load its classes from the archive.

    Each process of the tests inherits both by its environment. A cluster of three brokers syncs 300
    files before its first record, and most tests make one: on a disk that is half of their time.
    """
    if _is_worker(config):
        return
    use_archive()
    for left in _MEMORY.glob(f"{_OWN}*"):
        if not Path("/proc", left.name.removeprefix(_OWN)).exists():
            shutil.rmtree(left, ignore_errors=True)
    if _MEMORY.is_dir() and _has_room():
        _OWN_MEMORY.mkdir()
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_OWN_MEMORY))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Free the memory; the files of failed tests stay until the next run."""
    if exitstatus == 0 and not _is_worker(session.config):
        shutil.rmtree(_OWN_MEMORY, ignore_errors=True)


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _has_room() -> bool:
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(shutil.disk_usage(_MEMORY).free, memory_bytes // 2) >= _ROOM_BYTES


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark session of this test process: two cores, with a UI, started at the first use."""
    config = {
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        # On a free port of the loopback address.
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
    }
    session = spark_session("sparklog-tests", master="local[2]", config=config)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The project's own server of the S3 API, without latency, for the tests of a module."""
    with running_store(tmp_path_factory.mktemp("store") / "log") as running:
        yield running


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use Spark, and run them in two processes, because a JVM starts slowly."""
    for item in items:
        if isinstance(item, pytest.Function) and "spark" in item.fixturenames:
            item.add_marker(pytest.mark.spark)
            is_of_format = _OF_FORMAT & set(item.path.parts)
            item.add_marker(pytest.mark.xdist_group("format" if is_of_format else "spark"))
