"""The configuration of Spark and Delta; no other module sets it.

`spark_session()` starts Spark in this process, uses the JVM that spark-submit started, or returns
the existing session (Databricks, notebooks).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sparklog.errors import SparklogError
from sparklog.jars import DELTA_PACKAGE, resolve_jars
from sparklog.java import java_option, launching, python_for_spark, with_environment

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Delta's default of 50 makes every read of a small table a job of 50 tasks.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # 10 % faster than 64 MiB: JVM and Python work in parallel, within their caches.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(4 << 20),
    "spark.python.worker.reuse": "true",
    "spark.ui.showConsoleProgress": "false",
}
"""The settings of each session that sparklog starts, on any master."""

LOCAL_SETTINGS = {
    # Loopback: needs no resolvable host name, and opens no port to the network.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
}
"""The additional settings of sessions on a local master."""

DEFAULT_MASTER = "local[*]"
DEFAULT_MEMORY = "2g"

_SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set by spark-submit for the Python it runs
_LACKS_DELTA = (
    f"This Spark lacks Delta Lake: start it with --packages {DELTA_PACKAGE}, "
    "or let sparklog start it"
)


def spark_session(
    app_name: str = "sparklog",
    *,
    master: str | None = None,
    memory: str | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the Spark session to use, with Delta Lake.

    An active session is returned unchanged, regardless of the arguments. Under spark-submit, its
    settings take precedence over the arguments, and the arguments over the defaults here.

    Parameters
    ----------
    app_name : str, default "sparklog"
        Spark's application name.
    master : str, optional
        Spark's master URL; `local[*]` by default.
    memory : str, optional
        The driver's heap in Spark's notation, such as `2g`; no effect under spark-submit.
    config : dict of str to str, optional
        Further Spark settings, by their full keys. `spark.jars` and `spark.jars.packages` are added
        to Delta's; `spark.jars.ivy` is the folder for fetched JARs.

    Returns
    -------
    SparkSession
        The session.

    Raises
    ------
    SparklogError
        pyspark, Java or Delta Lake is missing, or the JARs cannot be fetched.

    Examples
    --------
    >>> from sparklog import spark_session
    >>> spark = spark_session("orders", config={"spark.sql.shuffle.partitions": "8"})
    >>> spark.range(3).count()
    3
    """
    try:
        from pyspark import SparkContext
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparklogError(
            "pyspark is not installed: on Databricks use the cluster's Python; elsewhere "
            "install it with: pip install 'sparklog[local]'"
        ) from error

    if SparkContext._active_spark_context is not None or "DATABRICKS_RUNTIME_VERSION" in os.environ:
        return _with_delta(SparkSession.builder.getOrCreate())
    wanted = {"spark.app.name": app_name, **(config or {})}
    if master is not None:
        wanted["spark.master"] = master
    if memory is not None:
        wanted["spark.driver.memory"] = memory
    if SparkContext._gateway is not None or _SUBMITTED in os.environ:
        conf = _launched_conf(wanted)
        with with_environment({"PYSPARK_PYTHON": python_for_spark()}):
            return SparkSession.builder.config(conf=conf).getOrCreate()
    conf = _launch_conf(wanted)
    try:
        with launching(local=_is_local(_master(conf))):
            return SparkSession.builder.config(conf=conf).getOrCreate()
    except PySparkRuntimeError as error:
        raise SparklogError(
            f"Spark did not start ({error}): see what Java printed above"
        ) from error


def _launch_conf(wanted: Mapping[str, str]) -> SparkConf:
    """Return the settings of a JVM that this process will start."""
    from pyspark import SparkConf

    settings = {"spark.master": DEFAULT_MASTER, "spark.driver.memory": DEFAULT_MEMORY}
    settings |= _defaults(wanted.get("spark.master", DEFAULT_MASTER))
    settings |= wanted
    further = [name for name in settings.pop("spark.jars.packages", "").split(",") if name]
    jars = [str(jar) for jar in resolve_jars([DELTA_PACKAGE, *further], wanted)]
    jars += [jar for jar in wanted.get("spark.jars", "").split(",") if jar]
    settings["spark.jars"] = ",".join(jars)
    if not _has_own_log_settings():
        logging = Path(__file__).resolve().with_name("log4j2.properties")
        logging_option = java_option("log4j2.configurationFile", logging.as_uri())
        options = wanted.get("spark.driver.extraJavaOptions", "")
        settings["spark.driver.extraJavaOptions"] = f"{logging_option} {options}".strip()
    return SparkConf(loadDefaults=False).setAll(list(settings.items()))


def _launched_conf(wanted: Mapping[str, str]) -> SparkConf:
    """Return the settings of a JVM that is already running."""
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    assert SparkContext._jvm is not None
    try:
        thread = SparkContext._jvm.java.lang.Thread.currentThread()
        thread.getContextClassLoader().loadClass(SETTINGS["spark.sql.extensions"])
    except Py4JJavaError as error:
        raise SparklogError(_LACKS_DELTA) from error
    conf = SparkConf()
    # Settings of spark-submit take precedence; those of an earlier session here are replaced.
    put = conf.setIfMissing if _SUBMITTED in os.environ else conf.set
    # Without a given name spark-submit names an application after its file.
    if conf.get("spark.app.name", None) == Path(sys.argv[0]).name:
        conf.setAppName(wanted["spark.app.name"])
    put("spark.master", wanted.get("spark.master", DEFAULT_MASTER))
    for key, value in {**_defaults(_master(conf)), **wanted}.items():
        put(key, value)
    return conf


def _defaults(master: str) -> dict[str, str]:
    settings = SETTINGS | {"spark.pyspark.python": python_for_spark()}
    return settings | LOCAL_SETTINGS if _is_local(master) else settings


def _master(conf: SparkConf) -> str:
    return conf.get("spark.master", DEFAULT_MASTER) or DEFAULT_MASTER


def _is_local(master: str) -> bool:
    return master.startswith("local")


def _has_own_log_settings() -> bool:
    folder = os.environ.get("SPARK_CONF_DIR")
    return folder is not None and (Path(folder) / "log4j2.properties").is_file()


def _with_delta(session: SparkSession) -> SparkSession:
    """Return `session` if it can read and write Delta tables, or raise SparklogError."""
    try:
        # If Delta is available, it handles the missing path; its answer depends on the platform.
        session.read.format("delta").load("file:///sparklog/there-is-no-such-table")
    except Exception as error:
        if "DATA_SOURCE_NOT_FOUND" in str(error):
            raise SparklogError(_LACKS_DELTA) from error
        if "DELTA_CONFIGURE_SPARK_SESSION" in str(error):
            needed = " and ".join(f"{key}={SETTINGS[key]}" for key in list(SETTINGS)[:2])
            raise SparklogError(
                f"This Spark session has Delta Lake's JARs but is not set up for them: set {needed}"
            ) from error
    return session
