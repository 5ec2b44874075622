"""The scenario files of the protocol, run step by step against `LocalCluster`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparklog.testing import LocalCluster
from tests.scenario import cases, play


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["name"])
def test_scenario(case: dict[str, Any], tmp_path: Path) -> None:
    """Every step of the scenario has the effect that the protocol's text gives it."""
    play(case, LocalCluster(tmp_path, brokers=case["brokers"], config=case.get("config")))
