"""Spark reads a cluster on S3 by settings that are derived from the cluster's storage options."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from benchmarks.s3_store import Store, running_store
from sparklog import Admin, Application, ClusterConfig, Producer
from sparklog.config import load
from tests.connect.conftest import ConnectServer, run_program
from tests.s3a_jars import s3a_jars

KEY_ID, SECRET = "spark-key", "hush-hush"
ENVIRONMENT = {"STORE_KEY_ID": KEY_ID, "STORE_SECRET": SECRET}
RECORDS = 10


class OnStore(NamedTuple):
    """A running cluster on a store, and the configuration file of its clients."""

    store: Store
    file: Path


def options(store: Store, key_id: str, secret: str) -> dict[str, dict[str, str]]:
    given = dict(store.options()["s3://"])
    return {"s3://": {**given, "AWS_ACCESS_KEY_ID": key_id, "AWS_SECRET_ACCESS_KEY": secret}}


@pytest.fixture(scope="module")
def on_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnStore]:
    """A cluster that is named by s3a://, with log directories at s3://, and clients whose
    credentials are variables of their environment.
    """
    folder = tmp_path_factory.mktemp("store")
    with running_store(folder / "log") as store:
        bucket = store.bucket("logs")
        values = {
            "cluster.root": f"{bucket}/cluster".replace("s3://", "s3a://"),
            "brokers": [{"broker.id": one, "log.dirs": f"{bucket}/{one}"} for one in (0, 1)],
            "tick.interval.ms": 500,
        }
        own = folder / "brokers.yaml"
        own.write_text(yaml.safe_dump({**values, "storage.options": options(store, "b", "s")}))
        file = folder / "cluster.yaml"
        referred = options(store, "${STORE_KEY_ID}", "${STORE_SECRET}")
        file.write_text(yaml.safe_dump({**values, "storage.options": referred}))
        application = Application(load(ClusterConfig, own))
        application.start()
        rounds = threading.Thread(target=application.run)
        rounds.start()
        try:
            admin = Admin(own)
            for topic in ("t", "u"):
                admin.create_topic(topic, partitions=2, replication_factor=2)
            with Producer(own) as producer:
                sent = [producer.send("t", b"a record", partition=n % 2) for n in range(RECORDS)]
            assert [one.result(60).topic for one in sent] == ["t"] * RECORDS
            yield OnStore(store, file)
        finally:
            application.stop()
            rounds.join()


def check(found: dict[str, Any], store: Store) -> None:
    """Check what Spark has read, that it signed by the variables, and that no plan shows them."""
    plans = found.pop("plans")
    assert found["sparklog.read"] == RECORDS
    assert found["format"] % 20 == 0
    assert found["format"] > 0
    assert (found["records"], found["brokers"]) == (2 * RECORDS, 2)
    assert SECRET not in plans
    assert KEY_ID not in plans
    assert store.counts(KEY_ID)["GET"] > 0


def test_a_classic_session_reads_s3_with_nothing_set_by_hand(on_store: OnStore) -> None:
    """A classic session reads s3:// and s3a:// with the storage options of the cluster's file."""
    found = run_program("stores.py", on_store.file, *s3a_jars(), **ENVIRONMENT)
    check(found, on_store.store)


def test_a_session_of_spark_connect_reads_s3_with_nothing_set_by_hand(
    on_store: OnStore, tmp_path: Path
) -> None:
    """The server resolves the references, in the variables of its own environment."""
    server = ConnectServer(tmp_path / "log", *s3a_jars(), environment=ENVIRONMENT)
    try:
        check(server.run("stores.py", on_store.file, **ENVIRONMENT), on_store.store)
    finally:
        server.close()


def test_a_missing_file_system_is_one_line_with_the_package(
    on_store: OnStore, server: ConnectServer
) -> None:
    """Without hadoop-aws the error names the package of Spark's version of Hadoop."""
    for found in (
        run_program("stores.py", on_store.file, **ENVIRONMENT),
        server.run("stores.py", on_store.file, **ENVIRONMENT),
    ):
        assert "this Spark has no file system for s3a://: start it with" in found["refused"]
        assert "--packages org.apache.hadoop:hadoop-aws:3." in found["refused"]
        assert "\n" not in found["refused"]
