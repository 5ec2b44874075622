"""A cluster whose roots are in three object stores, each with its own account."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import obstore
import pytest
from obstore.store import S3Store
from typer.testing import CliRunner

from benchmarks.s3_store import Store, running_store
from sparklog import Admin, Consumer, Producer
from sparklog.broker.application import Application
from sparklog.cli.main import app
from sparklog.cluster.connection import Connection
from sparklog.config import ClusterConfig, parse
from sparklog.errors import SparklogError
from sparklog.maintenance.audit import audit
from sparklog.storage.file_copies import await_copies
from sparklog.storage.location import Location, StorageOptions

BUCKETS = ("cluster", "first", "second")


class Accounts(NamedTuple):
    """The stores by their buckets, and the configuration of a cluster over them."""

    stores: dict[str, Store]
    options: StorageOptions
    config: ClusterConfig

    def secrets(self) -> list[str]:
        return [one["AWS_SECRET_ACCESS_KEY"] for one in self.options.values()]


@pytest.fixture
def accounts(tmp_path: Path) -> Iterator[Accounts]:
    """Broker 0 is in the cluster's store; brokers 1 and 2 have a store each."""
    with ExitStack() as stack:
        stores, options = {}, {}
        for name in BUCKETS:
            store = stack.enter_context(running_store(tmp_path / f"{name}.log"))
            given = store.options(f"account-of-{name}")["s3://"]
            secret = {"AWS_SECRET_ACCESS_KEY": f"secret-of-{name}-7f3a"}
            options[f"{store.bucket(name)}/"] = {**given, **secret}
            stores[name] = store
        brokers = [
            {"broker.id": one, "log.dirs": [f"s3://{name}/broker-{one}"]}
            for one, name in enumerate(BUCKETS)
        ]
        values: dict[str, Any] = {
            "cluster.root": "s3://cluster/root",
            "brokers": brokers,
            "storage.options": options,
        }
        yield Accounts(stores, options, parse(ClusterConfig, values, "the test's configuration"))


def run(accounts: Accounts, records: int) -> None:
    """Start the brokers, send records one after the other, and stop once all are replicated."""
    application = Application(accounts.config)
    application.start()
    connection = Connection("s3://cluster/root", storage_options=accounts.options)
    if not connection.metadata().topics:
        Admin(connection).create_topic("t", 3, 3, configs={"min.insync.replicas": "2"})
    with Producer(connection) as producer:
        sent = [producer.send("t", b"%d" % one, partition=one % 3) for one in range(records)]
        while not all(one.done() for one in sent):
            application.round()
        assert {one.result(0).partition for one in sent} == {0, 1, 2}
    application.stop()
    application.run_until_idle()


def objects(accounts: Accounts, name: str) -> Iterator[tuple[str, bytes]]:
    """Return the keys and contents of all objects of a bucket."""
    given = accounts.options[f"s3://{name}/"]
    store = S3Store(
        name,
        config={
            "endpoint": given["AWS_ENDPOINT_URL"],
            "access_key_id": "reader",
            "secret_access_key": "any",
            "region": "us-east-1",
        },
        client_options={"allow_http": True},
    )
    for page in obstore.list(store):
        for one in page:
            yield one["path"], bytes(obstore.get(store, one["path"]).bytes())


def test_each_store_is_asked_under_its_own_account(accounts: Accounts) -> None:
    """Copies from another broker's root and the reads of clients use the store's own account as
    well.
    """
    run(accounts, 9)
    connection = Connection("s3://cluster/root", storage_options=accounts.options)
    with Consumer(connection, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"])
        found: list[bytes | None] = []
        while len(found) < 9:
            found += [one.value for of in consumer.poll(1_000).values() for one in of]
    assert sorted(found, key=str) == [b"%d" % one for one in range(9)]
    assert list(audit(connection)) == []
    for name, store in accounts.stores.items():
        counts = {one: store.counts(f"account-of-{one}").total() for one in BUCKETS}
        assert counts.pop(name) > 100
        assert set(counts.values()) == {0}


def test_no_secret_is_stored_logged_or_shown(
    accounts: Accounts,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """No secret appears in stored objects, logs, messages or representations."""
    caplog.set_level(logging.DEBUG)
    run(accounts, 3)
    run(accounts, 3)
    # A thread that removes copies would come between a list and its reads.
    await_copies()
    stored = [one for name in BUCKETS for one in objects(accounts, name)]
    assert len(stored) > 30
    # A missing bucket without options, a store that does not answer, an unknown option.
    told = [
        str(_error(lambda: Connection("s3://elsewhere/root", storage_options=accounts.options)))
    ]
    away = {
        of: {**one, "max_retries": "0", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
        for of, one in accounts.options.items()
    }
    told.append(str(_error(lambda: Connection("s3://cluster/root", storage_options=away))))
    wrong = {
        of: {**one, "no_option": one["AWS_SECRET_ACCESS_KEY"]}
        for of, one in accounts.options.items()
    }
    told.append(str(_error(lambda: Connection("s3://cluster/root", storage_options=wrong))))
    told.append(repr(Location.of("s3://first/broker-1", accounts.options)))
    told.append(repr(accounts.config))
    file = tmp_path / "cluster.yaml"
    file.write_text(accounts.config.model_dump_json(by_alias=True))
    commands = (
        ["query", "select * from brokers"],
        ["query", "select * from no_table"],
        ["brokers", "list"],
        ["audit", "--verify-files"],
    )
    results = [CliRunner().invoke(app, [*command, "--cluster", str(file)]) for command in commands]
    assert [result.exit_code == 0 for result in results] == [True, False, True, True]
    told += [result.output for result in results]
    captured = capfd.readouterr()
    told += [caplog.text, captured.out, captured.err]
    for secret in accounts.secrets():
        assert [key for key, content in stored if secret.encode() in content or secret in key] == []
        assert [one for one in told if secret in one] == []


def _error(action: Any) -> Exception:
    with pytest.raises((SparklogError, OSError)) as raised:
        action()
    return raised.value
