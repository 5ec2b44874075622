"""docs/migration.md: its names of sparklog exist, and its program runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparklog import Admin, Connection, Consumer, ConsumerRecord, Producer
from sparklog.groups.admin import GroupAdmin
from tests.examples import CHECKOUT, example_cluster, examples

DOCUMENT = "docs/migration.md"

CLASSES = {
    "producer": Producer,
    "consumer": Consumer,
    "admin": Admin,
    "group_admin": GroupAdmin,
    "record": ConsumerRecord,
}


def test_the_names_of_sparklog_exist() -> None:
    """They are in the last column of the tables."""
    text = (CHECKOUT / DOCUMENT).read_text(encoding="utf-8")
    cells = re.findall(r"^\| .* \| (.*) \|$", text, re.MULTILINE)
    names = {
        found
        for cell in cells
        for found in re.findall(
            r"(?<![\w.])(producer|consumer|admin|group_admin|record)\.(\w+)", cell
        )
    }
    assert len(names) > 35
    missing = {(kind, name) for kind, name in names if not hasattr(CLASSES[kind], name)}
    assert missing == set()


def test_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    [example] = examples(DOCUMENT)
    with example_cluster(tmp_path):
        Admin(Connection("sparklog-data/cluster")).create_topic("orders", partitions=2)
        exec(compile(example, DOCUMENT, "exec"), {})
    assert capsys.readouterr().out == "0\n"
