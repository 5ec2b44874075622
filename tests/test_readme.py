"""The README's Python examples run unchanged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.examples import example_cluster, examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_testing_example_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [example] = [text for text in examples("README.md") if "LocalCluster" in text]
    monkeypatch.chdir(tmp_path)

    exec(compile(example, "README.md", "exec"), {})

    said = re.findall(r"print\(.*\) +# (.*)", example)
    assert capsys.readouterr().out.splitlines() == said


def test_the_examples_produce_and_consume_on_the_example_configuration(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spark: SparkSession,
) -> None:
    [example] = [text for text in examples("README.md") if "SparkProducer" in text]
    [plain] = [text for text in examples("README.md") if "import Producer" in text]
    [consumer] = [text for text in examples("README.md") if "import Consumer" in text]
    [stream] = [text for text in examples("README.md") if "readStream" in text]
    monkeypatch.chdir(tmp_path)
    with example_cluster(tmp_path, spark):
        scope: dict[str, object] = {}
        exec(compile(example, "README.md", "exec"), scope)
        capsys.readouterr()
        exec(compile(plain, "README.md", "exec"), {})
        exec(compile(consumer, "README.md", "exec"), {})
        said = capsys.readouterr().out
        # Spark resolves paths against its start folder, which was another one.
        stream = stream.replace('"sparklog-data', f'"{tmp_path}/sparklog-data')
        exec(compile(stream, "README.md", "exec"), scope)
        loud = scope["SparkConsumer"](scope["connection"], spark).read("loud-clicks")  # type: ignore[operator]
        loud_clicks = {bytes(row.value) for row in loud.collect()}

    assert scope["committed"].count() == 1000  # type: ignore[attr-defined]
    assert "RecordMetadata(topic='clicks', partition=" in said
    assert re.search(r"^0 b'\d+' b'click \d+'$", said, re.MULTILINE)
    assert loud_clicks == {*(b"CLICK %d" % number for number in range(1000)), b"CLICK"}
