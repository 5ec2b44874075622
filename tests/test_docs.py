"""The examples and tables of docs/ are true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.config import ConsumerConfig
from sparklog.datasource import options, write_options
from tests.cli.command_line import run
from tests.examples import CHECKOUT, commands, example_cluster, examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_examples_of_writing_reading_and_consuming_run_as_they_stand(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spark: SparkSession,
) -> None:
    monkeypatch.chdir(tmp_path)
    with example_cluster(tmp_path):
        admin = Admin(Connection("sparklog-data/cluster"))
        for topic in ("clicks", "copied-clicks"):
            admin.create_topic(topic, partitions=2, replication_factor=2)
        said: dict[str, str] = {}
        scope: dict[str, Any] = {"spark": spark}
        for document in (
            "docs/writing.md",
            "docs/reading.md",
            "docs/consuming.md",
            "docs/connecting.md",
        ):
            for text in examples(document):
                # Spark resolves paths against its start folder, which was another one.
                example = re.sub('"(sparklog-data|checkpoints)/', rf'"{tmp_path}/\1/', text)
                exec(compile(example, document, "exec"), scope)
            said[document] = capsys.readouterr().out
        for arguments in commands("docs/consuming.md"):
            assert run(*arguments).printed

    def count(topic: str) -> int:
        frame = spark.read.format("sparklog").option("cluster", f"{tmp_path}/sparklog-data/cluster")
        return frame.option("subscribe", topic).load().count()

    assert (count("clicks"), count("copied-clicks")) == (2 * 1000 + 10, 1000 + 2 + 1)
    assert "RecordMetadata(topic='clicks'" in said["docs/writing.md"]
    assert re.search(
        r"^clicks-\d 0 \d+ b'\d+' b'click \d+'$", said["docs/consuming.md"], re.MULTILINE
    )
    assert scope["frame"].isStreaming


def table(document: str, heading: str) -> dict[str, str]:
    """Return the first two cells of each row of the table below a heading, by key."""
    text = (CHECKOUT / document).read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.+?`) \| *`?(.*?)`? *\|", section, re.MULTILINE)
    return {key: value for keys, value in rows for key in re.findall(r"`(.+?)`", keys)}


def test_the_consumers_settings_are_all_described_with_their_defaults() -> None:
    expected = {}
    for name, field in ConsumerConfig.model_fields.items():
        default = field.default
        text = ",".join(default) if isinstance(default, list) else str(default)
        expected[field.alias or name] = "" if default is None else text
    expected["enable.auto.commit"] = "true"
    assert table("docs/consuming.md", "Settings") == expected


def test_the_sinks_options_are_all_described() -> None:
    told = table("docs/writing.md", "The sink")
    assert told.keys() | {"includeHeaders"} == set(write_options.KNOWN)
    defaults = write_options.WriteOptions("c")
    assert told["kafka.request.timeout.ms"] == str(defaults.request_timeout_ms)
    assert told["kafka.delivery.timeout.ms"] == str(defaults.delivery_timeout_ms)
    assert told["kafka.client.id"] == defaults.client_id


def test_the_own_options_that_reading_describes_exist() -> None:
    text = (CHECKOUT / "docs/reading.md").read_text(encoding="utf-8")
    assert {"groupIdPrefix", "kafka.group.id", "replica", "clientRack"} <= set(options.KNOWN)
    assert options.ReadOptions.retries == 60
    assert all(f"`{name}`" in text for name in ("groupIdPrefix", "kafka.group.id", "replica"))


def test_the_rule_that_contributing_shows_is_the_one_that_runs() -> None:
    text = (CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    [path] = re.findall(r"\((sparklog/protocol/\w+/\w+\.sql)\)", text)
    [shown] = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    assert shown == (CHECKOUT / path).read_text(encoding="utf-8")
