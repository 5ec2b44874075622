"""The configuration of Spark and Delta, and the differences between classic and Connect sessions.

`spark_session()` starts Spark in this process, connects to a server of Spark Connect, uses the JVM
that spark-submit started, or returns the existing session (Databricks, notebooks). The clients use
neither RDDs nor the JVM: Spark Connect has neither.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

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
    # Rules on Spark compile some 200 classes; with Spark's 100, each run compiles them again.
    "spark.sql.codegen.cache.maxEntries": "1000",
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


_REMOTE = "SPARK_REMOTE"  # Spark's own variable for the address of a server of Spark Connect
_CONNECT_MODULE = "pyspark.sql.connect"

_PROBE_SECONDS = 10.0
"""Seconds between two requests by which `has_ended` checks a server of Spark Connect."""

ANSWER_SECONDS = 30.0
"""Seconds without an answer after which such a server counts as ended."""


def spark_session(
    app_name: str = "sparklog",
    *,
    master: str | None = None,
    remote: str | None = None,
    memory: str | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the Spark session to use, with Delta Lake.

    An active session, classic or of Spark Connect, is returned unchanged, regardless of the
    arguments. Under spark-submit, its settings take precedence over the arguments, and the
    arguments over the defaults here.

    Parameters
    ----------
    app_name : str, default "sparklog"
        Spark's application name.
    master : str, optional
        Spark's master URL; `local[*]` by default.
    remote : str, optional
        The address of a server of Spark Connect, `sc://host:port`, or a local master such as
        `local[2]`, with which a server is started; that of the variable SPARK_REMOTE by default. A
        process has sessions of one kind.
    memory : str, optional
        The driver's heap in Spark's notation, such as `2g`; no effect under spark-submit.
    config : dict of str to str, optional
        Further Spark settings, by their full keys. `spark.jars` and `spark.jars.packages` are added
        to Delta's; `spark.jars.ivy` is the folder for fetched JARs. Those whose names contain
        secret, password, token or access.key are not in the command line of a classic session's
        JVM.

    Returns
    -------
    SparkSession
        The session.

    Raises
    ------
    SparklogError
        pyspark, Java or Delta Lake is missing, or the JARs cannot be fetched; for Spark Connect,
        one of its packages is missing.

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

    connected = _connected()
    if connected is not None:
        return _with_delta(connected)
    if SparkContext._active_spark_context is not None or "DATABRICKS_RUNTIME_VERSION" in os.environ:
        return _with_sources(_with_delta(SparkSession.builder.getOrCreate()))
    wanted = {"spark.app.name": app_name, **(config or {})}
    remote = remote or os.environ.get(_REMOTE)
    if remote is not None:
        return _connect(remote, wanted, memory)
    if master is not None:
        wanted["spark.master"] = master
    if memory is not None:
        wanted["spark.driver.memory"] = memory
    if SparkContext._gateway is not None or _SUBMITTED in os.environ:
        conf = _launched_conf(wanted)
        with with_environment({"PYSPARK_PYTHON": python_for_spark()}):
            return _with_sources(SparkSession.builder.config(conf=conf).getOrCreate())
    conf = _launch_conf(wanted)
    try:
        with launching(local=_is_local(_master(conf))):
            _launch(conf)
            return SparkSession.builder.config(conf=conf).getOrCreate()
    except PySparkRuntimeError as error:
        raise SparklogError(
            f"Spark did not start ({error}): see what Java printed above"
        ) from error


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect, which has neither RDDs nor a JVM."""
    return type(spark).__module__.startswith(_CONNECT_MODULE)


def spark_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that a query of either kind of session raises."""
    from pyspark.errors import PySparkException

    try:
        from py4j.protocol import Py4JError
    except ImportError:  # the package pyspark-client has Spark Connect alone
        return (PySparkException,)
    return (PySparkException, Py4JError)


def hadoop_version(spark: SparkSession) -> str:
    """Return the version of a session's Hadoop, as the JARs of its file systems are numbered."""
    query = "select java_method('org.apache.hadoop.util.VersionInfo', 'getVersion')"
    try:
        [row] = spark.sql(query).collect()
    except spark_errors():
        return "VERSION-OF-HADOOP"  # where calls of Java's methods are forbidden
    return str(row[0])


def has_ended(spark: SparkSession) -> bool:
    """Return whether a session was stopped, or its JVM or server is gone.

    Returns at once. A server of Spark Connect is checked by a request every 10 s, in a thread of
    its own; it counts as gone 30 s after a request that it has not answered, or if it has closed
    the session.
    """
    if is_connect(spark):
        return bool(cast(Any, spark).is_stopped) or server_probe(spark).has_failed()
    from py4j.protocol import Py4JError

    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except (AttributeError, Py4JError, OSError):
        return True


class ServerProbe:
    """Requests to a server of Spark Connect, whose client repeats failed requests for minutes.

    Attributes: `answers`, the number of requests that the server has answered.
    """

    def __init__(self, spark: SparkSession) -> None:
        # Probes are kept by session, and must not keep the session.
        self._spark = weakref.ref(spark)
        self._lock = threading.Lock()
        self._asked_at: float | None = None
        self._ended_at = float("-inf")
        self._is_refused = False
        self.answers = 0

    def has_failed(
        self, every_seconds: float = _PROBE_SECONDS, answer_seconds: float = ANSWER_SECONDS
    ) -> bool:
        """Return whether a request has failed or is overdue; begin another one if it is due."""
        with self._lock:
            now = time.monotonic()
            if self._is_refused:
                return True
            if self._asked_at is not None:
                return now - self._asked_at > answer_seconds
            if now - self._ended_at >= every_seconds:
                self._asked_at = now
                threading.Thread(target=self._ask, name="spark-probe", daemon=True).start()
            return False

    def _ask(self) -> None:
        spark = self._spark()
        is_answered = spark is not None and _answers(spark)
        with self._lock:
            self._asked_at, self._ended_at = None, time.monotonic()
            self.answers += is_answered
            self._is_refused = not is_answered


def _answers(spark: SparkSession) -> bool:
    try:
        spark.conf.get("spark.sql.session.timeZone")
    except Exception:  # noqa: BLE001 - any failure of such a request means the same
        return False
    return True


_probes: weakref.WeakKeyDictionary[SparkSession, ServerProbe] = weakref.WeakKeyDictionary()


def server_probe(spark: SparkSession) -> ServerProbe:
    """Return the probe of the server to which a session of Spark Connect belongs."""
    return _probes.setdefault(spark, ServerProbe(spark))


def _connected() -> SparkSession | None:
    """Return this process's session of Spark Connect, or `None` without one."""
    connect = sys.modules.get(f"{_CONNECT_MODULE}.session")
    if connect is None:
        return None
    of_thread = connect.SparkSession.getActiveSession()
    found: SparkSession | None = of_thread or connect.SparkSession._get_default_session()
    return found


def _connect(remote: str, wanted: Mapping[str, str], memory: str | None) -> SparkSession:
    """Return a new session of Spark Connect; for a local master, its server is started first."""
    from pyspark.errors import PySparkException, PySparkImportError
    from pyspark.sql import SparkSession

    try:
        if not _is_local(remote):
            _await_server(remote)
            settings = {key: value for key, value in SETTINGS.items() if _is_of_session(key)}
            builder = SparkSession.builder.remote(remote)
            for key, value in {**settings, **wanted}.items():
                builder = builder.config(key, value)
            return _with_delta(builder.getOrCreate())
        wanted = {**wanted, "spark.master": remote}
        if memory is not None:
            wanted["spark.driver.memory"] = memory
        conf = dict(_launch_conf(wanted).getAll())
        builder = SparkSession.builder.remote(conf.pop("spark.master"))
        for key, value in conf.items():
            builder = builder.config(key, value)
        with launching(local=True):
            return builder.getOrCreate()
    except (ImportError, PySparkImportError) as error:
        raise SparklogError(
            f"Spark Connect lacks a package ({error}): install it with: pip install "
            "'sparklog[connect]'"
        ) from error
    except PySparkException as error:
        [reason, *_] = str(error).splitlines()
        raise SparklogError(
            f"there is no connection to Spark Connect at {remote} ({reason}): start its server, or "
            "correct SPARK_REMOTE"
        ) from error


def _await_server(remote: str) -> None:
    """Wait until the port of a server is open; Spark's client would try for ten minutes."""
    import grpc
    from pyspark.sql.connect.client import DefaultChannelBuilder

    channel = DefaultChannelBuilder(remote).toChannel()
    try:
        grpc.channel_ready_future(channel).result(timeout=ANSWER_SECONDS)
    except grpc.FutureTimeoutError as error:
        raise SparklogError(
            f"no server of Spark Connect answers at {remote} within {ANSWER_SECONDS:g} s: start "
            "it, or correct the address or SPARK_REMOTE"
        ) from error
    finally:
        channel.close()


def _is_of_session(key: str) -> bool:
    """Return whether a setting may be changed in a session of a running Spark."""
    is_static = re.search(r"\.(extensions|spark_catalog|maxEntries)$", key)
    return key.startswith("spark.sql.") and not is_static


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


def _launch(conf: SparkConf) -> None:
    """Start the JVM without settings that are secrets; the context gets all settings afterwards.

    PySpark writes the settings into the command line of the JVM, which each user of the machine can
    read.
    """
    from pyspark import SparkConf, SparkContext

    public = [one for one in conf.getAll() if not _SECRET_SETTING.search(one[0])]
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(public))


_SECRET_SETTING = re.compile("(?i)secret|password|token|access[.]?key")
"""The names of settings that are secrets: the default of Spark's spark.redaction.regex."""


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
        # Spark Connect asks its server when the columns are read.
        missing = session.read.format("delta").load("file:///sparklog/there-is-no-such-table")
        _ = missing.schema
    except Exception as error:
        if "DATA_SOURCE_NOT_FOUND" in str(error):
            raise SparklogError(_LACKS_DELTA) from error
        if "DELTA_CONFIGURE_SPARK_SESSION" in str(error):
            needed = " and ".join(f"{key}={SETTINGS[key]}" for key in list(SETTINGS)[:2])
            raise SparklogError(
                f"This Spark session has Delta Lake's JARs but is not set up for them: set {needed}"
            ) from error
    return session


def _with_sources(session: SparkSession) -> SparkSession:
    """Return `session` with the data sources in the zip of --py-files that has this package.

    Spark registers modules `pyspark_*` on the path of its own Python workers, which lacks the zip.
    """
    from pyspark.errors import AnalysisException

    archive = getattr(sys.modules[__name__].__loader__, "archive", None)
    if archive is None or is_connect(session) or session in _with_all_sources:
        return session
    for module in pkgutil.iter_modules([archive]):
        if module.name.startswith("pyspark_"):
            # Spark has found another copy of the source if its name is taken.
            with _on_path(session, archive), suppress(AnalysisException):
                session.dataSource.register(importlib.import_module(module.name).DefaultSource)
    _with_all_sources.add(session)
    return session


@contextmanager
def _on_path(session: SparkSession, archive: str) -> Iterator[None]:
    """Put a zip on the Python path of functions that the block passes to Spark.

    Spark gives the files of --py-files to tasks, but not to the workers that plan a stream.
    """
    environment = session.sparkContext.environment
    before = environment.get(_PYTHONPATH)
    environment[_PYTHONPATH] = os.pathsep.join(filter(None, [before, archive]))
    try:
        yield
    finally:
        if before is None:
            del environment[_PYTHONPATH]
        else:
            environment[_PYTHONPATH] = before


_PYTHONPATH = "PYTHONPATH"


_with_all_sources: weakref.WeakSet[SparkSession] = weakref.WeakSet()
