"""Short rounds of the torture of processes: in a folder, and on S3 with 30 ms and 5% faults."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.faults.__main__ import app
from tests.faults.parts import PARTS
from tests.faults.rounds import Configuration, run_round

_SMALL = Configuration(session_ms=3_000, producers=1, consumers=1, hang_seconds=1.0)


@pytest.mark.parametrize(
    ("configuration", "actions"),
    [
        (_SMALL, ("kill leader", "kill producer", "suspend leader", "kill consumer")),
        (_SMALL._replace(storage="s3", list_lag_seconds=2.0), ("kill leader",)),
        (
            _SMALL._replace(is_compacted=True),
            ("kill producer", "reassign", "kill leader", "damage file"),
        ),
        (_SMALL, ("kill repair",)),
    ],
    ids=["folder", "s3", "compacted", "repair"],
)
def test_a_round_shows_no_anomaly_to_its_clients(
    tmp_path: Path, configuration: Configuration, actions: tuple[str, ...]
) -> None:
    """No record is lost, duplicated, moved, skipped or unseen, and the audit is clean."""
    result = run_round(tmp_path / "round", configuration, seed=1, seconds=0, actions=actions)
    assert result["anomalies"] == 0, result
    # A killed repair is the damage, four commands, and the broker.
    deeds = len(actions) + 5 * actions.count("kill repair")
    assert sum(result["deeds"].values()) == deeds
    assert result["acknowledged"] > 0
    assert configuration.storage == "folder" or result["faults"]
    assert bool(result["compacted"]) == configuration.is_compacted


def test_a_relative_folder_is_below_the_folder_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers and clients run in folders of their own: they found no cluster root."""
    folders: list[Path] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PARTS, "processes", lambda folder, *_: folders.append(folder))
    CliRunner().invoke(app, ["--only", "processes"])
    assert folders == [tmp_path / "sparklog-torture" / "processes"]
