"""Short rounds of the torture of processes: in a folder, and on S3 with 30 ms and 5% faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.rounds import Configuration, run_round


@pytest.mark.parametrize(
    ("storage", "actions"),
    [
        ("folder", ("kill leader", "kill producer", "suspend leader", "kill consumer")),
        ("s3", ("kill leader",)),
    ],
)
def test_a_round_shows_no_anomaly_to_its_clients(
    tmp_path: Path, storage: str, actions: tuple[str, ...]
) -> None:
    """No record is lost, duplicated, moved, skipped or unseen, and the audit is clean."""
    configuration = Configuration(
        "s3" if storage == "s3" else "folder",
        session_ms=3_000,
        producers=1,
        consumers=1,
        hang_seconds=1.0,
    )
    result = run_round(tmp_path / "round", configuration, seed=1, seconds=0, actions=actions)
    assert result["anomalies"] == 0, result
    assert sum(result["deeds"].values()) == len(actions)
    assert result["acknowledged"] > 0
    assert storage == "folder" or result["faults"]
