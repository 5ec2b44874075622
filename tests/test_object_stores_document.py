"""docs/object-stores.md: its configurations load, and its commands run on S3 API servers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.s3_store import Store, running_store
from sparklog.config import ClusterConfig, load
from sparklog.storage.location import Location
from sparklog.storage.object_store import ObjectStore
from tests.azurite import running_azurite
from tests.cli.command_line import run
from tests.examples import CHECKOUT, commands, examples, running_brokers

DOCUMENT = "docs/object-stores.md"


def configurations() -> dict[str, str]:
    """Return the YAML files of the document by their names."""
    text = (CHECKOUT / DOCUMENT).read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    return {re.findall(r"# (\S+)\n", block)[0]: block for block in blocks}


@contextmanager
def running_cluster(
    file: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Store]]:
    """Run the brokers of a file of the document, with a store, and an account, for each bucket.

    Only the endpoints are added to the file. The key id of a bucket is its name.
    """
    values: dict[str, Any] = yaml.safe_load(configurations()[file])
    stores = {}
    with ExitStack() as stack:
        for prefix, options in values["storage.options"].items():
            bucket = prefix.removeprefix("s3://")
            stores[bucket] = stack.enter_context(running_store(folder / f"{bucket}.log"))
            stores[bucket].bucket(bucket)
            for key, value in {
                "AWS_ACCESS_KEY_ID": bucket,
                "AWS_SECRET_ACCESS_KEY": "a-secret",
            }.items():
                monkeypatch.setenv(options[key][2:-1], value)
            options |= {"AWS_ENDPOINT_URL": stores[bucket].url, "AWS_ALLOW_HTTP": "true"}
        (folder / file).write_text(yaml.safe_dump(values), encoding="utf-8")
        with running_brokers(folder / file):
            yield stores


def commands_on(file: str) -> list[list[str]]:
    """Return the commands of the document that name a file, but for the brokers, in order."""
    of_file = [one for one in commands(DOCUMENT) if one[-1] == file]
    return [shlex.split(" ".join(arguments)) for arguments in of_file]


def check_commands_for_s3(capsys: pytest.CaptureFixture[str]) -> None:
    """Run the commands and the example of the section about S3 on running brokers."""
    create, describe, brokers, offsets, audit = commands_on("logs.yaml")
    run(*create)
    assert "ReplicationFactor: 3" in run(*describe).printed
    assert run(*brokers).printed.count("alive") == 3
    capsys.readouterr()
    [example] = examples(DOCUMENT)
    exec(compile(example, DOCUMENT, "exec"), {})
    assert "[b'a click']" in capsys.readouterr().out
    assert re.search(r"clicks +\d +1\n", run(*offsets).printed)
    assert run(*audit).exit_code == 0


def test_the_commands_for_s3_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with running_cluster("logs.yaml", tmp_path, monkeypatch):
        check_commands_for_s3(capsys)


def test_three_regions_are_asked_with_credentials_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with running_cluster("regions.yaml", tmp_path, monkeypatch) as stores:
        create, describe, query, audit = commands_on("regions.yaml")
        run(*create)
        assert run(*describe).printed.count("Isr: ") == 3
        assert "eu-north-1" in run(*query).printed
        assert run(*audit).exit_code == 0
        for bucket, store in stores.items():
            used = {one for one in stores if store.counts(one).total() > 0}
            assert used == {bucket}


@pytest.mark.xdist_group("azurite")  # one process installs it
@pytest.mark.parametrize("root", ["abfss://logs@myaccount.dfs.core.windows.net", "az://logs"])
def test_the_commands_for_s3_and_those_of_operators_run_on_azure(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The emulator of Azure's blobs has the account key of the page in place of a tenant."""
    monkeypatch.chdir(tmp_path)
    text = configurations()["azure.yaml"].replace(
        "abfss://logs@myaccount.dfs.core.windows.net", root
    )
    values: dict[str, Any] = yaml.safe_load(text)
    [broker] = values["brokers"]
    values["brokers"] = [
        {"broker.id": one, "log.dirs": broker["log.dirs"].replace("broker-0", f"broker-{one}")}
        for one in range(3)
    ]
    values |= {"min.insync.replicas": 2, "default.replication.factor": 3}
    with running_azurite(tmp_path, "logs") as options:
        values["storage.options"] = {root: options | {"azure_storage_account_key": "${AZURE_KEY}"}}
        monkeypatch.setenv("AZURE_KEY", options["azure_storage_account_key"])
        # The commands and the example of the page name this file.
        file = tmp_path / "logs.yaml"
        file.write_text(yaml.safe_dump(values), encoding="utf-8")
        with running_brokers(file):
            check_commands_for_s3(capsys)
        cluster = ("--cluster", str(file))
        with running_brokers(file):
            assert run("scrub", *cluster).exit_code == 0
            assert run("maintain", *cluster).exit_code == 0
            query = "select broker_id, sum(record_count) from batches group by all order by all"
            counted = run("query", query, "--csv", *cluster).printed
            assert counted.splitlines()[1:] == ["0,1", "1,1", "2,1"]
        assert run("backup", "--to", f"{root}/backup", *cluster).exit_code == 0


@pytest.mark.parametrize("file", ["azure.yaml", "google.yaml"])
def test_the_configurations_of_other_stores_are_accepted_by_their_clients(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = configurations()[file]
    monkeypatch.setenv("AZURE_SECRET", "a-secret")
    key = tmp_path / "service-account.json"
    key.write_text(
        '{"client_email": "a@b", "private_key": "", "private_key_id": "1", "disable_oauth": true,'
        ' "gcs_base_url": "https://localhost"}'
    )
    text = text.replace("/etc/sparklog/service-account.json", str(key))
    (tmp_path / file).write_text(text, encoding="utf-8")
    config = load(ClusterConfig, tmp_path / file)
    location = Location.of(config.cluster_root, config.storage_options)
    [options] = config.storage_options.values()
    ObjectStore(location.uri, options)
