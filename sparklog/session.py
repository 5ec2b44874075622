"""The one place that configures Spark and Delta.

`spark_session()` starts Spark in this process, uses the JVM that spark-submit started, or returns
the session that is already there (Databricks, notebooks). `resolve_jars()` fetches Delta's JARs
into a folder of the project's own, once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from sparklog.errors import SparklogError
from sparklog.java import find_java

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"

SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Delta's default of 50 makes every read of a small table a job of 50 tasks.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.worker.reuse": "true",
    "spark.ui.showConsoleProgress": "false",
}
"""What every session of sparklog's is given, on any master."""

LOCAL_SETTINGS = {
    # Loopback: works without a resolvable host name and offers nothing to the network.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
}
"""What a session on a local master is given besides."""

DEFAULT_MASTER = "local[*]"
DEFAULT_MEMORY = "2g"

_PACKAGE_FOLDER = Path(__file__).resolve().parent
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
    """Return the Spark session to use, with Delta Lake in it.

    A session that is already active is returned as it is, whatever the arguments say. Under
    spark-submit, settings given there win over the arguments, and these over the defaults here.

    Args:
        app_name: Spark's application name.
        master: Spark's master URL; `local[*]` by default.
        memory: the driver's heap in Spark's form, such as `2g`; no effect under spark-submit.
        config: further Spark settings, by their full keys. `spark.jars` and
            `spark.jars.packages` come in addition to Delta's; `spark.jars.ivy` is the folder
            that JARs are fetched into.

    Raises:
        SparklogError: pyspark, Java or Delta Lake is missing, or the JARs cannot be fetched.
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
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        conf = _launched_conf(wanted)
        with _environment(_python_environment()):
            return SparkSession.builder.config(conf=conf).getOrCreate()
    conf = _launch_conf(wanted)
    try:
        with _environment(_launch_environment(local=_is_local(_master(conf)))):
            return SparkSession.builder.config(conf=conf).getOrCreate()
    except PySparkRuntimeError as error:
        raise SparklogError(
            f"Spark did not start ({error}): see what Java printed above"
        ) from error


def ivy_folder() -> Path:
    """Return the folder JARs are fetched into: `.ivy` of the checkout, or the user's cache."""
    checkout = _PACKAGE_FOLDER.parent
    if (checkout / "pyproject.toml").is_file():
        return checkout / ".ivy"
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "sparklog" / "ivy"


def resolve_jars(
    packages: Sequence[str] = (DELTA_PACKAGE,), config: Mapping[str, str] | None = None
) -> list[Path]:
    """Return the JARs of `packages` that Spark does not bring itself, fetched once.

    Spark's own resolver runs in a JVM of its own the first time; its result is noted beside the
    JARs, so that later sessions name the files and start 2.5 s sooner, without a network.

    Args:
        packages: Maven coordinates, `group:artifact:version`.
        config: Spark's settings for its resolver (`spark.jars.ivy`, `spark.jars.repositories`,
            `spark.jars.ivySettings`); other keys are ignored.

    Raises:
        SparklogError: the JARs cannot be fetched.
    """
    import pyspark

    config = config or {}
    ivy = Path(config.get("spark.jars.ivy") or ivy_folder()).absolute()
    key = hashlib.sha256("\n".join([pyspark.__version__, *packages]).encode()).hexdigest()[:16]
    note = ivy / "resolved" / f"{key}.json"
    if note.is_file():
        jars = [ivy / "jars" / name for name in json.loads(note.read_text())["jars"]]
        if all(jar.is_file() for jar in jars):
            return jars
    jars = _fetch_jars(packages, ivy, config)
    note.parent.mkdir(parents=True, exist_ok=True)
    unfinished = note.with_suffix(f".{os.getpid()}")
    found = {"packages": list(packages), "jars": [jar.name for jar in jars]}
    unfinished.write_text(json.dumps(found, indent=2))
    unfinished.replace(note)
    return jars


def _fetch_jars(packages: Sequence[str], ivy: Path, config: Mapping[str, str]) -> list[Path]:
    from pyspark import SparkConf
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    ivy.mkdir(parents=True, exist_ok=True)
    conf = SparkConf(loadDefaults=False)
    for name in ("spark.jars.repositories", "spark.jars.ivySettings"):
        if name in config:
            conf.set(name, config[name])
    conf.set("spark.jars.ivy", str(ivy))
    conf.set("spark.jars.packages", ",".join(packages))
    # Spark's own class loader comes first, so its version of a JAR would shadow ours anyway.
    conf.set("spark.jars.excludes", ",".join(f"*:{artifact}" for artifact in _spark_artifacts()))
    # The resolver also looks into ~/.m2, where a half-fetched package would make it fail.
    conf.set("spark.driver.extraJavaOptions", _java_option("user.home", str(ivy)))
    log_path = ivy / "resolve.log"
    with _environment(_launch_environment(local=True)), log_path.open("w") as log:
        try:
            output = {"stdout": log, "stderr": subprocess.STDOUT}
            gateway = launch_gateway(conf, output)  # type: ignore[no-untyped-call]
        except PySparkRuntimeError as error:
            raise SparklogError(
                f"Spark could not fetch {', '.join(packages)}: check the network; behind a proxy "
                "set JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT'. "
                f"The resolver's output is in {log_path}"
            ) from error
        found = gateway.jvm.java.lang.System.getProperty("spark.jars")
        gateway.shutdown()
        gateway.proc.communicate()
    return [ivy / "jars" / Path(unquote(urlsplit(uri).path)).name for uri in found.split(",")]


def _spark_artifacts() -> list[str]:
    """Return the Maven artifact names of the JARs that pyspark brings."""
    matches = (re.match(r"(.+?)-\d", jar.name) for jar in (_spark_home() / "jars").glob("*.jar"))
    return sorted({match[1] for match in matches if match})


def _spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def _launch_conf(wanted: Mapping[str, str]) -> SparkConf:
    """Return the settings for a JVM that this process is about to start."""
    from pyspark import SparkConf

    settings = {"spark.master": DEFAULT_MASTER, "spark.driver.memory": DEFAULT_MEMORY}
    settings |= _defaults(wanted.get("spark.master", DEFAULT_MASTER))
    settings |= wanted
    further = [name for name in settings.pop("spark.jars.packages", "").split(",") if name]
    jars = [str(jar) for jar in resolve_jars([DELTA_PACKAGE, *further], wanted)]
    jars += [jar for jar in wanted.get("spark.jars", "").split(",") if jar]
    settings["spark.jars"] = ",".join(jars)
    if not _has_own_log_settings():
        logging = _java_option(
            "log4j2.configurationFile", (_PACKAGE_FOLDER / "log4j2.properties").as_uri()
        )
        options = wanted.get("spark.driver.extraJavaOptions", "")
        settings["spark.driver.extraJavaOptions"] = f"{logging} {options}".strip()
    return SparkConf(loadDefaults=False).setAll(list(settings.items()))


def _launched_conf(wanted: Mapping[str, str]) -> SparkConf:
    """Return the settings for a JVM that runs already, started by spark-submit as a rule."""
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
    # spark-submit names an application after its file unless it is told a name.
    if conf.get("spark.app.name", None) == Path(sys.argv[0]).name:
        conf.setAppName(wanted["spark.app.name"])
    for key, value in wanted.items():
        conf.setIfMissing(key, value)
    conf.setIfMissing("spark.master", DEFAULT_MASTER)
    for key, value in _defaults(_master(conf)).items():
        conf.setIfMissing(key, value)
    return conf


def _defaults(master: str) -> dict[str, str]:
    settings = SETTINGS | {"spark.pyspark.python": _python()}
    return settings | LOCAL_SETTINGS if _is_local(master) else settings


def _master(conf: SparkConf) -> str:
    return conf.get("spark.master", DEFAULT_MASTER) or DEFAULT_MASTER


def _is_local(master: str) -> bool:
    return master.startswith("local")


def _has_own_log_settings() -> bool:
    folder = os.environ.get("SPARK_CONF_DIR")
    return folder is not None and (Path(folder) / "log4j2.properties").is_file()


def _java_option(name: str, value: str) -> str:
    return f'"-D{name}={value}"'


def _python() -> str:
    return os.environ.get("PYSPARK_PYTHON", sys.executable)


def _python_environment() -> dict[str, str]:
    # Spark plans Python data sources with this interpreter; its fall-back is any `python3`.
    return {"PYSPARK_PYTHON": _python()}


def _launch_environment(*, local: bool) -> dict[str, str]:
    environment = _python_environment() | find_java().launch_environment()
    # A SPARK_HOME of another version could not talk to this pyspark.
    if (_spark_home() / "jars").is_dir():
        environment["SPARK_HOME"] = str(_spark_home())
    if local:
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    return environment


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables while a JVM is launched, and no longer."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _with_delta(session: SparkSession) -> SparkSession:
    """Return `session` if it can read and write Delta tables, or raise SparklogError."""
    try:
        # Delta answers for a path that does not exist; what it answers depends on the platform.
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
