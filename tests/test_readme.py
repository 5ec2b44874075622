"""The README's Python examples run as they stand."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparklog.broker.application import Application
from sparklog.config import ClusterConfig, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKOUT = Path(__file__).parents[1]


def examples() -> list[str]:
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def test_the_testing_example_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [example] = [text for text in examples() if "LocalCluster" in text]
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
    [example] = [text for text in examples() if "SparkProducer" in text]
    [plain] = [text for text in examples() if "import Producer" in text]
    [consumer] = [text for text in examples() if "import Consumer" in text]
    [stream] = [text for text in examples() if "readStream" in text]
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "cluster.yaml").write_text((CHECKOUT / "conf" / "cluster.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    application = Application(load(ClusterConfig, conf / "cluster.yaml"), spark)
    application.start()
    rounds = threading.Thread(target=application.run)
    rounds.start()
    try:
        scope: dict[str, object] = {}
        exec(compile(example, "README.md", "exec"), scope)
        capsys.readouterr()
        exec(compile(plain, "README.md", "exec"), {})
        exec(compile(consumer, "README.md", "exec"), {})
        said = capsys.readouterr().out
        # Spark resolves paths where it was started, which was elsewhere.
        stream = stream.replace('"sparklog-data', f'"{tmp_path}/sparklog-data')
        exec(compile(stream, "README.md", "exec"), scope)
        loud = scope["SparkConsumer"](scope["connection"], spark).read("loud-clicks")  # type: ignore[operator]
        loud_clicks = {bytes(row.value) for row in loud.collect()}
    finally:
        application.stop()
        rounds.join()

    assert scope["committed"].count() == 1000  # type: ignore[attr-defined]
    assert "RecordMetadata(topic='clicks', partition=" in said
    assert re.search(r"^0 b'\d+' b'click \d+'$", said, re.MULTILINE)
    assert loud_clicks == {*(b"CLICK %d" % number for number in range(1000)), b"CLICK"}
