"""The scenario files of the protocol, run step by step against `LocalCluster`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sparklog.testing import LocalCluster
from tests.scenario import is_rewriting, play, rewritten, scenario_file, scenarios


@pytest.mark.parametrize("case", scenarios(), ids=lambda case: case["name"])
def test_scenario(case: dict[str, Any], tmp_path: Path) -> None:
    """Every step of the scenario has the effect that the protocol's text describes."""
    cluster = LocalCluster(tmp_path, brokers=case["brokers"], config=case.get("config"))
    observed = play(case, cluster)
    if is_rewriting():
        file = scenario_file()
        text = rewritten(file.read_text(encoding="utf-8"), case["name"], observed)
        file.write_text(text, encoding="utf-8")


def test_a_rewriting_changes_only_expectations_that_do_not_hold(tmp_path: Path) -> None:
    """The expectations of one scenario change; comments, order and the form of the file stay."""
    text = """# A comment.
- name: first
  brokers: [0]
  topic: {replicas: [0]}
  steps:
    - produce: {values: [m0], acks: all, as: p1}
    - leader_tick: 0   # appends
    - expect: {replica: {0: {leo: 7, hw: 1}}, response: {p1: pending}}  # wrong twice
    - expect: {committed: [m0], log: {0: [m0]}, partition: {leader: 0}, epochs: {0: [[0, 0]]}}

- name: second
  brokers: [0]
  topic: {replicas: [0]}
  steps:
    - expect: {committed: [never]}
"""
    [first, _] = yaml.safe_load(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARKLOG_REWRITE", "1")
        observed = play(first, LocalCluster(tmp_path, brokers=[0]))
    assert rewritten(text, "first", observed) == text.replace("leo: 7", "leo: 1").replace(
        "p1: pending", "p1: {error: NONE, base_offset: 0}"
    )
    with pytest.raises(AssertionError):
        play(first, LocalCluster(tmp_path / "again", brokers=[0]))
