"""Fixtures of all tests: one Spark session per test process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from sparklog.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OF_FORMAT = {"datasource", "kafka_comparison"}
"""The folders of tests that use Spark for about as long as all others together."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark session of this test process: two cores, with a UI, started at the first use."""
    config = {
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        # Tests run many small jobs once: they end sooner with the quick compiler alone.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        # On a free port of the loopback address.
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
    }
    session = spark_session("sparklog-tests", master="local[2]", config=config)
    yield session
    session.stop()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use Spark, and run them in two processes, because a JVM starts slowly."""
    for item in items:
        if isinstance(item, pytest.Function) and "spark" in item.fixturenames:
            item.add_marker(pytest.mark.spark)
            is_of_format = _OF_FORMAT & set(item.path.parts)
            item.add_marker(pytest.mark.xdist_group("format" if is_of_format else "spark"))
