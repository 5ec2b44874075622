"""The engines of a broker: where its rules run (`rules.engine`) and its record work (`execution`).

Both are decided once, at the start of an application.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sparklog.config import Settings
from sparklog.errors import ApplicationFailedError, ConfigError
from sparklog.logger import get_logger
from sparklog.protocol.driver_rules import DriverRules
from sparklog.protocol.rules import Rules, SparkRules
from sparklog.session import spark_errors
from sparklog.spark_jobs import has_executors
from sparklog.storage.execution import (
    DriverExecution,
    Execution,
    executors_fault,
    spark_execution,
)
from sparklog.storage.location import one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = get_logger(__name__)


def rules_of(settings: Settings, spark: SparkSession | None) -> Rules:
    """Return the engine of the rules; `ConfigError` if it is Spark and there is none."""
    if settings.rules_engine == "duckdb":
        return DriverRules()
    return SparkRules(_required(spark, "rules.engine"))


def execution_of(
    settings: Settings,
    spark: SparkSession | None,
    storage_options: Mapping[str, Mapping[str, str]] | None = None,
) -> Execution:
    """Return the place of the work on record bytes.

    Executors are checked by one job. If they cannot run this package, or resolve the references of
    `storage_options`, execution=auto logs it and stays in the driver.

    Raises `ConfigError` if execution is spark and there is no Spark, or its executors cannot do it;
    `ApplicationFailedError` if execution is spark and the check fails for a reason that may pass.
    """
    is_always = settings.execution == "spark"
    if is_always:
        _required(spark, "execution")
    if settings.execution == "driver" or spark is None:
        return DriverExecution()
    if is_always or has_executors(spark):
        try:
            fault = executors_fault(spark, storage_options or {})
        except spark_errors() as error:
            reason = one_line(error)
            if is_always:
                message = f"the check of the executors has failed: {reason}: restart"
                raise ApplicationFailedError(message) from error
            # Each job that fails is done in the driver.
            _log.warning("check of the executors failed", error=reason)
            fault = None
        if fault is not None and is_always:
            raise ConfigError(f"execution=spark is not possible: {fault}")
        if fault is not None:
            _log.warning("record work stays in the driver", fault=fault)
            return DriverExecution()
    return spark_execution(
        spark,
        is_always=is_always,
        min_bytes=settings.execution_spark_min_bytes,
        bytes_per_task=settings.execution_spark_bytes_per_task,
    )


def _required(spark: SparkSession | None, key: str) -> SparkSession:
    if spark is None:
        raise ConfigError(
            f"configuration key {key} is spark, but this application runs without Spark: start it "
            f"with Spark, or remove {key}"
        )
    return spark
