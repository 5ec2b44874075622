"""Fuzzing by coverage, where atheris is installed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.faults.hostile.guided import app, run_guided


def test_a_target_that_does_not_exist_is_refused() -> None:
    result = CliRunner().invoke(app, ["--target", "nobody"])
    assert result.exit_code == 2
    assert "there is no target nobody" in result.stderr


def test_inputs_that_reach_new_branches_are_kept(tmp_path: Path) -> None:
    """A next run begins with them, and with the valid samples."""
    pytest.importorskip("atheris", reason="atheris is an extra of its own: sparklog[fuzz]")
    found = run_guided("commit_fault", 3, 1, tmp_path)
    assert found.findings == []
    assert found.inputs >= 100
    assert found.kept > 0
    assert len([*(tmp_path / "commit_fault").iterdir()]) > found.kept
