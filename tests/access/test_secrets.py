"""No secret of a storage option is in a message, a log, a table, a plan or the UI of Spark.

Secrets are marked, and each output is searched for the marks.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from sparklog import (
    Admin,
    Application,
    BrokerConfig,
    ClusterConfig,
    Connection,
    Consumer,
    Producer,
)
from sparklog.cli.exit_codes import ExitCode
from sparklog.config import load
from sparklog.errors import ConfigError, SparklogError
from sparklog.storage.location import Location, one_line
from tests.access.policy_store import ECHO, PolicyStore, running_policy_store
from tests.cli.command_line import run
from tests.jobs.processes import Process, wait_for

MARK = "MARKED7f3a"
KEY, SECRET, TOKEN = f"KEY{MARK}", f"SECRET{MARK}", f"TOKEN{MARK}"
BROKER_KEY = f"BROKER{MARK}"
UNREACHABLE = "http://127.0.0.1:9"


def options(endpoint: str, **other: str) -> dict[str, dict[str, str]]:
    """Return storage options with marked secrets."""
    given = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": TOKEN,
        "max_retries": "0",
    }
    return {"s3://": {**given, **other}}


def raised(action: Callable[[], Any]) -> str:
    """Return the traceback of the expected error of an action, with all of its causes."""
    with pytest.raises((SparklogError, OSError)) as caught:
        action()
    return "".join(traceback.format_exception(caught.value))


def connect(uri: str = "s3://logs/cluster", **given: Any) -> Callable[[], Connection]:
    return lambda: Connection(uri, storage_options=options(UNREACHABLE, **given))


class TestAMessage:
    """A traceback has the messages of an error and of all its causes."""

    @pytest.mark.parametrize(
        "uri",
        [
            f"s3://key:{MARK}@bucket/cluster",
            f"s3://bucket/cluster?X-Amz-Signature={MARK}",
            f"az://container/cluster?sig={MARK}",
            f"abfss://c@account.dfs.core.windows.net/cluster?sig={MARK}",
            f"gs://bucket/cluster#{MARK}",
        ],
    )
    def test_of_a_uri_with_credentials_does_not_show_them(self, uri: str) -> None:
        told = raised(lambda: Location.of(uri))
        assert MARK not in told
        assert "write the bucket and the path only" in told

    def test_of_an_endpoint_with_a_password_does_not_show_it(self) -> None:
        assert MARK not in raised(connect(AWS_ENDPOINT_URL=f"http://user:{MARK}@127.0.0.1:9"))

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("max_retries", MARK),
            ("no_such_option", MARK),
            ("AWS_SECRET_ACCESS_KEY", f"${{{MARK}-x}}"),
            ("AWS_SECRET_ACCESS_KEY", f"{{{{secrets/scope/{MARK}}}}}"),
            ("AWS_ENDPOINT_URL", f"not a URL {MARK}"),
        ],
    )
    def test_of_an_unusable_option_does_not_show_its_value(self, option: str, value: str) -> None:
        assert MARK not in raised(connect(**{option: value}))

    @pytest.mark.parametrize("option", ["AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"])
    def test_of_a_secret_with_a_line_break_names_the_option(self, option: str) -> None:
        """The store's client would panic, which no handler of exceptions catches."""
        told = raised(connect(**{option: f"{MARK}\n"}))
        assert MARK not in told
        assert f"{option} of s3://logs has a line break" in told

    @pytest.mark.parametrize(
        "line",
        [
            f"{{AWS_SECRET_ACCESS_KEY: {MARK}: x]",
            f"{{AWS_SECRET_ACCESS_KEY: @{MARK}}}",
            f'{{AWS_SECRET_ACCESS_KEY: "{MARK}}}',
            f"{{AWS_SECRET_ACCESS_KEY: *{MARK}}}",
            f"{{AWS_SECRET_ACCESS_KEY: [{MARK}]}}",
            f"{{AWS_SECRET_ACCESS_KEY: !!bool {MARK}}}",
            MARK,
        ],
    )
    def test_of_a_malformed_file_has_no_excerpt(self, line: str, tmp_path: Path) -> None:
        file = tmp_path / "cluster.yaml"
        file.write_text(f"cluster.root: s3://logs/x\nstorage.options:\n  s3://logs: {line}\n")
        with pytest.raises(ConfigError) as caught:
            load(ClusterConfig, file)
        assert MARK not in "".join(traceback.format_exception(caught.value))

    def test_of_a_refusal_has_the_code_of_a_response_that_quotes_the_request(
        self, marked: Marked
    ) -> None:
        """S3 quotes the headers of a request with a wrong signature, with the session token."""
        with marked.echoed():
            location = Location.of(marked.root, marked.options)
            told = raised(lambda: location.read_bytes("format/_delta_log/x"))
            told += raised(lambda: Connection(marked.root, storage_options=marked.options))
        assert MARK not in told
        assert "(SignatureDoesNotMatch)" in told

    def test_of_delta_rs_has_no_response(self) -> None:
        body = f"<?xml version='1.0'?>\n<Error><Code>X</Code><Request>{MARK}</Request></Error>"
        assert one_line(OSError(f"Generic S3 error: 403 Forbidden: {body}")) == (
            "Generic S3 error: 403 Forbidden: X"
        )


def test_representations_have_no_secrets() -> None:
    values = {"cluster.root": "s3://logs/x", "storage.options": options(UNREACHABLE)}
    listed = [{"broker.id": 0, "log.dirs": "s3://logs/y"}]
    config = ClusterConfig.model_validate({**values, "brokers": listed})
    one = BrokerConfig.model_validate({**values, **listed[0]})
    location = Location.of("s3://logs/x", options(UNREACHABLE))
    for thing in (config, one, Application(config), location):
        assert MARK not in repr(thing) + str(thing)


class Marked(NamedTuple):
    """A cluster of one broker on a store, whose processes have the marked secrets."""

    store: PolicyStore
    folder: Path
    root: str
    options: Mapping[str, Mapping[str, str]]
    broker: Process

    def echoed(self, key: str = KEY) -> Any:
        """Refuse the requests within the block, with responses that quote them."""
        return self.store.refusing(key, ECHO)


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Marked]:
    folder = tmp_path_factory.mktemp("marked")
    with running_policy_store(folder / "store.log") as store:
        bucket = store.bucket("logs")
        given = options(store.url)
        values: dict[str, Any] = {
            "cluster.root": f"{bucket}/cluster",
            "broker.id": 0,
            "log.dirs": f"{bucket}/broker-0",
            "storage.options": options(store.url, AWS_ACCESS_KEY_ID=BROKER_KEY),
        }
        config = folder / "config"
        config.mkdir()
        (config / "broker.yaml").write_text(yaml.safe_dump(values))
        file = str(config / "broker.yaml")
        command = [sys.executable, "-m", "jobs.broker", "--config", file]
        arguments = ["--without-spark", "--log-level", "debug"]
        broker = Process([*command, *arguments], folder / "broker")
        try:
            broker.wait_for_event("became controller")
            Admin(values["cluster.root"], storage_options=given).create_topic("t", 1, 1)
            yield Marked(store, folder, str(values["cluster.root"]), given, broker)
        finally:
            broker.close()


def test_logs_tables_and_commands_have_no_secrets(
    marked: Marked,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Brokers and clients work, are refused, work again, and lose the store."""
    caplog.set_level(logging.DEBUG)
    with (
        Producer(marked.root, storage_options=marked.options) as producer,
        Consumer(
            marked.root, storage_options=marked.options, group_id="g", auto_offset_reset="earliest"
        ) as consumer,
    ):
        consumer.subscribe(["t"])
        producer.send("t", b"a").result(60)
        wait_for(lambda: consumer.poll(500), "records")
        consumer.commit()
        told = [repr(consumer), repr(producer), repr(consumer.metrics())]
        with marked.echoed():
            told.append(raised(lambda: producer.send("t", b"b").result(60)))
            told.append(raised(lambda: [consumer.poll(500) for _ in range(20)]))
    monkeypatch.setenv("SPARKLOG_STORAGE_OPTIONS", json.dumps(marked.options))
    page = marked.folder / "status.html"
    commands = (
        ["query", "select * from brokers"],
        ["query", "select no from brokers"],
        ["audit", "--verify-files"],
        ["status"],
        ["status", "--html", str(page)],
        ["configs", "describe", "--entity-type", "brokers", "--entity-name", "0"],
        ["topics", "describe"],
    )
    for command in commands:
        finished = run(*command, cluster=marked.root)
        told += [finished.stdout, finished.stderr]
    with marked.echoed():
        finished = run("topics", "describe", cluster=marked.root)
        assert finished.exit_code == 2
        assert len(finished.stderr.splitlines()) == 1
        told.append(finished.stderr)
    with marked.echoed(BROKER_KEY):
        marked.broker.wait_for_event("failed")
        assert marked.broker.exit_code() == ExitCode.FAILED
    told += [caplog.text, *capfd.readouterr(), marked.broker.stderr, marked.broker.stdout]
    told += [" ".join(line) for line in command_lines()]
    assert [text[max(text.find(MARK) - 200, 0) :][:400] for text in told if MARK in text] == []
    assert page.read_text().find(MARK) < 0
    assert [key for key, content in objects(marked) if MARK.encode() in content] == []


def objects(marked: Marked) -> Iterator[tuple[str, bytes]]:
    """Yield the keys and contents of all objects: tables, checkpoints and batch files."""
    location = Location.of("s3://logs", marked.options)
    for file in [*location.child("cluster").files(), *location.child("broker-0").files()]:
        for root in ("cluster", "broker-0"):
            if location.child(root).exists(file.path):
                yield file.path, location.child(root).read_bytes(file.path)


def command_lines() -> Iterator[list[str]]:
    """Yield the command lines of all processes of this machine, which each user may read."""
    for one in Path("/proc").glob("[0-9]*"):
        try:
            yield (one / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
