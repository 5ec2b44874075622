"""The benchmark of commands about a whole cluster on an object store."""

from __future__ import annotations

import pytest

from benchmarks import command_requests


def test_each_command_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second backup copies nothing, and needs less than half of the requests."""
    monkeypatch.setattr(command_requests, "BATCHES", 12)
    command_requests.main(latency_ms=0)
    lines = capsys.readouterr().out.splitlines()[2:]
    cells = [line.strip("| ").split(" | ") for line in lines]
    requests = {name: int(count.replace(",", "")) for name, count, _ in cells}
    assert len(requests) == 8
    assert requests["`sparklog audit`"] < requests["`sparklog audit --verify-files`"]
    assert 2 * requests["`sparklog backup` again"] < requests["`sparklog backup`"]
