"""The JARs of a Kafka broker and of Spark's Kafka connector, fetched once by Spark's resolver."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sparklog.errors import SparklogError
from sparklog.jars import _resolve, _spark_artifacts, ivy_folder
from sparklog.java import java_option, spark_home

KAFKA = "4.3.1"
CONNECTOR = "4.2.0"

_SERVER = (
    f"org.apache.kafka:kafka_2.13:{KAFKA}",
    f"org.apache.kafka:kafka-tools:{KAFKA}",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.1",
    "org.apache.logging.log4j:log4j-core:2.25.1",
)
_CONNECTOR = (f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR}",)
# Not every registry has the connector's version of this package. It contains only helpers for
# delegation tokens, which no record passes, so a version that all registries have replaces it.
_TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
_TOKEN_PROVIDER = (f"{_TOKENS}:4.1.0-preview1",)


class KafkaJars(NamedTuple):
    """A folder with the JARs of a broker, and the JARs for Spark."""

    server: Path
    connector: list[Path]


def kafka_jars() -> KafkaJars:
    """Return the JARs; they are fetched into `.ivy` on the first call.

    Raises `SparklogError` if they cannot be fetched.
    """
    folder = ivy_folder() / f"kafka-{KAFKA}"
    # A broker gets the versions that it is published with, except for Scala's own library, which
    # Spark's resolver always excludes.
    scala = sorted((spark_home() / "jars").glob("scala-library-*.jar"))
    _gather([*_fetch(_SERVER, ()), *scala], folder)
    sparks = [f"*:{artifact}" for artifact in _spark_artifacts()]
    connector = _fetch(_CONNECTOR, [*sparks, _TOKENS])
    tokens = _fetch(_TOKEN_PROVIDER, [*sparks, "org.apache.kafka:kafka-clients"])
    return KafkaJars(folder, [*connector, *tokens])


def jars_in(server: Path, connector: Path) -> KafkaJars:
    """Return the JARs in two existing folders."""
    return KafkaJars(server.absolute(), sorted(connector.absolute().glob("*.jar")))


def _gather(jars: Sequence[Path], folder: Path) -> None:
    """Fill `folder` with exactly these JARs: Java accepts a folder as class path."""
    if folder.is_dir() and {one.name for one in folder.iterdir()} == {one.name for one in jars}:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for jar in jars:
        (folder / jar.name).symlink_to(jar)


def _fetch(packages: Sequence[str], excludes: Sequence[str]) -> list[Path]:
    """Return the JARs of `packages`; unlike in `resolve_jars`, the caller names the exclusions.

    `resolve_jars` excludes each JAR with the name of one of Spark's, and a broker needs some of
    them.
    """
    ivy = ivy_folder().absolute()
    note = ivy / "resolved" / f"{packages[0].replace(':', '_')}.json"
    if note.is_file():
        jars = [ivy / "jars" / name for name in json.loads(note.read_text())]
        if all(jar.is_file() for jar in jars):
            return jars
    settings = {
        "spark.jars.ivy": str(ivy),
        "spark.jars.packages": ",".join(packages),
        "spark.jars.excludes": ",".join(excludes),
    }
    options = [java_option("user.home", str(ivy))]
    if (ivy / "trusted.jks").is_file():
        options.append(java_option("javax.net.ssl.trustStore", str(ivy / "trusted.jks")))
    log = ivy / "resolve.log"
    found = _resolve(settings, options, log)
    if found is None:
        raise SparklogError(
            f"Spark could not fetch {', '.join(packages)}: check the network, or go without Kafka "
            f"(--without-kafka). The resolver's output is in {log}"
        )
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(found, indent=1))
    return [ivy / "jars" / name for name in found]
