"""docs/quickstart.md: its commands and its program run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import CHECKOUT, example_cluster, examples

DOCUMENT = "docs/quickstart.md"


def test_the_quickstart_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (CHECKOUT / DOCUMENT).read_text(encoding="utf-8")
    lines = re.findall(r"^\$ (.*--cluster conf/cluster\.yaml)$", text, re.MULTILINE)
    program = f"{sys.executable} -c 'from sparklog.cli import main; main()'"
    search_path = os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])
    with example_cluster(tmp_path):
        printed = [
            subprocess.run(
                line.replace(".venv/bin/sparklog", program),
                shell=True,
                env=os.environ | {"PYTHONPATH": search_path},
                stdout=subprocess.PIPE,
                text=True,
                timeout=120,
                check=True,
            ).stdout
            for line in lines
        ]
        [example] = examples(DOCUMENT)
        exec(compile(example, DOCUMENT, "exec"), {})
    _, _, consumed, described, queried = printed
    assert sorted(consumed.splitlines()) == ["anna\tcart", "anna\thome", "bert\tshop"]
    assert "ReplicationFactor: 3" in described
    assert "(6 rows)" in queried
    assert "(b'anna', b'checkout'), (b'anna', b'home')" in capsys.readouterr().out
