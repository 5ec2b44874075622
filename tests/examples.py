"""The examples of documents, and a cluster like that of conf/cluster.yaml to run them on."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sparklog.broker.application import Application
from sparklog.config import ClusterConfig, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKOUT = Path(__file__).parents[1]


def examples(document: str) -> list[str]:
    """Return the Python examples of a document, with names relative to the checkout's root."""
    return _fenced(document, "python")


def commands(document: str) -> list[list[str]]:
    """Return the arguments of each call of the `sparklog` command in a document."""
    lines = [line for text in _fenced(document, "console") for line in text.splitlines()]
    return [line.split()[2:] for line in lines if line.startswith("$ .venv/bin/sparklog ")]


@contextmanager
def example_cluster(folder: Path, spark: SparkSession | None = None) -> Iterator[None]:
    """Run the cluster of conf/cluster.yaml below `folder`, where the examples expect it."""
    conf = folder / "conf"
    conf.mkdir()
    (conf / "cluster.yaml").write_text((CHECKOUT / "conf" / "cluster.yaml").read_text())
    with running_brokers(conf / "cluster.yaml", spark):
        yield


@contextmanager
def running_brokers(file: Path, spark: SparkSession | None = None) -> Iterator[None]:
    """Run the brokers of a configuration file in this process."""
    application = Application(load(ClusterConfig, file), spark)
    application.start()
    rounds = threading.Thread(target=application.run)
    rounds.start()
    try:
        yield
    finally:
        application.stop()
        rounds.join()


def _fenced(document: str, language: str) -> list[str]:
    text = (CHECKOUT / document).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)
