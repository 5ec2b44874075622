"""No secret of a storage option is in an output of Spark: plans, UI, event log, errors, streams.

One program uses a cluster on S3 in a session of its own, with secrets that are written out in the
configuration file, and with references to variables and files. Requests of clients and brokers are
refused by responses that quote them. All outputs are searched for the marks of the secrets.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.access.marks import CONTROL, MARK, excerpts
from tests.access.policy_store import PolicyStore, running_policy_store
from tests.jobs.processes import Process
from tests.s3a_jars import s3a_jars

pytestmark = pytest.mark.xdist_group("spark-secrets")

PROGRAM = Path(__file__).parent / "programs" / "spark_outputs.py"
ROOT = Path(__file__).parents[2]
SECRET, TOKEN = f"SECRET{MARK}", f"TOKEN{MARK}"
KEYS = {
    "AWS_ACCESS_KEY_ID": "LOGS_SECRET_ID",
    "AWS_SECRET_ACCESS_KEY": "LOGS_SECRET",
    "AWS_SESSION_TOKEN": "LOGS_TOKEN",
}
"""The credentials in delta-rs's keys, and the environment variables that the tests refer to."""


def secrets(name: str) -> list[str]:
    """Return the credentials of a client; its access key names it to the store."""
    return [f"{name}{MARK}", SECRET, TOKEN]


class Configuration:
    """The files of the cluster, of its clients, and of options that are refused."""

    def __init__(self, folder: Path, store: PolicyStore) -> None:
        self._folder, self._url = folder, store.url
        self._root = f"{store.bucket('logs')}/cluster"

    def write(self) -> None:
        """Write all files."""
        self._cluster("brokers", secrets("broker"), **{"tick.interval.ms": 500})
        self._cluster("inline", secrets("inline"))
        self._cluster("variable", [f"${{{one}}}" for one in KEYS.values()])
        files = [self._folder / one for one in KEYS.values()]
        for file, secret in zip(files, secrets("file"), strict=True):
            file.write_text(secret)
        self._cluster("file", [f"${{file:{file}}}" for file in files])
        self._cluster("inline-lost", secrets("inline"), AWS_ENDPOINT_URL="http://127.0.0.1:9")
        self._cluster("variable-lost", [*secrets("variable")[:2], "${LOGS_MISSING}"])
        self._cluster("file-lost", [*secrets("file")[:2], f"${{file:{self._folder}/missing}}"])
        self._options("option", {"s3://": self._store(secrets("option"))})
        account = {"azure_storage_account_name": "account", "azure_storage_account_key": SECRET}
        self._options("option-azure", {"az://c": account}, cluster="az://c/cluster")
        refer = [f"${{{one}}}" for one in KEYS.values()]
        for name, further in {
            "option-sse": {"aws_sse_customer_key_base64": SECRET},
            "option-url": {"AWS_ENDPOINT_URL": f"http://user:{SECRET}@127.0.0.1:9"},
        }.items():
            self._options(name, {"s3://": self._store(refer, **further)})

    def _store(self, credentials: list[str], **other: str) -> dict[str, str]:
        given = {
            "AWS_ENDPOINT_URL": self._url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "max_retries": "0",
        }
        return {**given, **dict(zip(KEYS, credentials, strict=True)), **other}

    def _cluster(self, name: str, credentials: list[str], **other: Any) -> None:
        further = {key: other.pop(key) for key in [*other] if key.startswith("AWS")}
        bucket = self._root.rpartition("/")[0]
        values = {
            "cluster.root": self._root,
            "brokers": [{"broker.id": one, "log.dirs": f"{bucket}/{one}"} for one in (0, 1)],
            "storage.options": {"s3://": self._store(credentials, **further)},
            **other,
        }
        (self._folder / f"{name}.yaml").write_text(yaml.safe_dump(values))

    def _options(
        self, name: str, options: Mapping[str, Mapping[str, str]], cluster: str | None = None
    ) -> None:
        given = {"cluster": cluster or self._root, "storageOptions": json.dumps(options)}
        (self._folder / f"{name}.json").write_text(json.dumps(given))


def variables() -> dict[str, str]:
    """Return the environment of the program: the variables that the cluster's file refers to."""
    given = dict(zip(KEYS.values(), secrets("variable"), strict=True))
    return {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1", **given}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The outputs by their names."""
    folder = tmp_path_factory.mktemp("outputs")
    jars = s3a_jars()
    with running_policy_store(folder / "store.log") as store:
        Configuration(folder, store).write()
        # The documented way to set variables for executors.
        given = {f"spark.executorEnv.{name}": value for name, value in variables().items()}
        (folder / "spark.json").write_text(json.dumps(given))
        command: list[str | Path] = [sys.executable, PROGRAM, folder, str(store.port), *jars]
        process = Process(command, folder / "log", variables())
        try:
            code = process.popen.wait(900)
            found = {"log.out": process.stdout, "log.err": process.stderr}
        finally:
            process.close()
    assert code == 0
    for kind in ("outputs", "events", "checkpoints"):
        for file in sorted((folder / kind).rglob("*")):
            if file.is_file():
                name = str(file.relative_to(folder / kind))
                found[f"{kind} {name}"] = file.read_text(errors="replace")
    return found


def test_outputs_of_spark_have_no_secrets(outputs: Mapping[str, str]) -> None:
    found = {name: excerpts(text, MARK) for name, text in outputs.items()}
    assert {name: texts for name, texts in found.items() if texts} == {}


def test_secrets_are_settings_of_spark(outputs: Mapping[str, str]) -> None:
    """Variables for executors are settings of the session, but not in its JVM's command line."""
    [shown] = [text for name, text in outputs.items() if name.endswith("-environment.txt")]
    settings = dict(json.loads(shown)["sparkProperties"])
    for name in KEYS.values():
        assert settings[f"spark.executorEnv.{name}"] == "*********(redacted)"


def test_all_refusals_happened(outputs: Mapping[str, str]) -> None:
    """Tasks and streams have failed by responses that quote the secrets; options were refused."""
    assert outputs.get("outputs not-refused.txt") is None
    for shown in ("error-inline-format-python", "broker-work"):
        assert "(SignatureDoesNotMatch)" in outputs[f"outputs {shown}.txt"]
    # Spark's own readers show the message of the response.
    native = outputs["outputs error-inline-records-parts.txt"]
    assert "does not match the signature you provided" in native
    for shown in ("error-option-url-view-parts", "error-option-stream-of-columns-python"):
        assert "is a secret, and Spark's UI would show it" in outputs[f"outputs {shown}.txt"]


@pytest.mark.parametrize(
    "shown",
    [
        *(f"outputs plan-control-{one}.txt" for one in ("extended", "formatted", "cost")),
        *(f"outputs plan-control-{one}.txt" for one in ("java", "json")),
        "outputs error-control-python.txt",
        "outputs error-control-stream-parts.txt",
        "outputs stream-inline-sink.txt",
        *(f"outputs ui-api-v1-*-{one}" for one in ("environment.txt", "sql-*", "jobs.txt")),
        "outputs ui-api-v1-*-stages-*",
        "outputs ui-SQL-execution-*",
        "outputs ui-jobs-.txt",
        "outputs ui-StreamingQuery-statistics-*",
        "events *",
        "checkpoints *offsets*",
        "outputs command-lines.txt",
        "log.err",
    ],
)
def test_the_search_finds_what_is_shown(outputs: Mapping[str, str], shown: str) -> None:
    """Each kind of output has the text that the program gives deliberately."""
    assert any(CONTROL in text for name, text in outputs.items() if fnmatchcase(name, shown))


@pytest.mark.parametrize("before", range(4))
def test_the_search_finds_encoded_marks(before: int) -> None:
    """A mark is found within Base64, hexadecimal digits and numbers of bytes."""
    content = b"-" * before + MARK.encode() + b"-" * before
    for text in (base64.b64encode(content).decode(), content.hex(), str(list(content))):
        assert excerpts(f"a text with {text}", MARK)
    assert not excerpts(base64.b64encode(b"another text").decode(), MARK)
