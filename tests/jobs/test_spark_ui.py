"""Names of jobs in Spark's UI, and the picture of them in docs/running.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobs import spark_ui
from jobs.headless_browser import find_chromium
from sparklog.errors import SparklogError
from tests.examples import CHECKOUT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def replicated(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names of the jobs of three brokers, as the UI's REST API lists them."""
    folder = tmp_path_factory.mktemp("spark-ui")
    return [job.name for job in spark_ui.replicate(spark, folder)]


def described() -> str:
    """Return the section about the UI of docs/running.md."""
    text = (CHECKOUT / "docs" / "running.md").read_text(encoding="utf-8")
    return text.split("\n## Jobs in the Spark UI\n")[1].split("\n## ")[0]


def test_the_ui_lists_the_jobs_of_all_roles_by_the_names_in_the_document(
    replicated: list[str],
) -> None:
    promised = set(re.findall(r"`(broker \d, [^`]+)`", described()))
    assert len(promised) == 4
    assert promised <= set(replicated)
    roles = {re.sub(": .*", "", name) for name in replicated}
    assert roles == {"broker 0, controller", "broker 1, leader", "broker 2, follower"}
    assert "broker 2, follower: fetch" in replicated


def test_chromium_takes_the_picture(spark: SparkSession, replicated: list[str]) -> None:
    try:
        chromium = find_chromium()
    except SparklogError as error:
        pytest.skip(str(error))
    png = spark_ui.picture(chromium, spark_ui.ui(spark), len(replicated))
    assert png.startswith(PNG)
    assert len(png) > 10_000


def test_a_missing_chromium_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHROMIUM", str(tmp_path / "chromium"))
    with pytest.raises(SystemExit):
        spark_ui.main(tmp_path / "picture.png")
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("sparklog: Chromium is missing: the variable CHROMIUM names ")
    assert not list(tmp_path.iterdir())


def test_the_last_words_of_a_browser_that_ends_are_in_the_error(tmp_path: Path) -> None:
    program = tmp_path / "chromium"
    program.write_text("#!/bin/sh\necho no display >&2\n")
    program.chmod(0o700)
    with pytest.raises(SparklogError, match=r"^Chromium ended: no display$"):
        spark_ui.picture(str(program), "http://127.0.0.1:1", 1)


def test_the_picture_of_the_document_is_a_small_png() -> None:
    [path] = re.findall(r"!\[.*\]\((images/.+)\)", described())
    picture = (CHECKOUT / "docs" / path).read_bytes()
    assert picture.startswith(PNG)
    assert len(picture) < 200_000
    assert CHECKOUT / "docs" / path == spark_ui.PICTURE
