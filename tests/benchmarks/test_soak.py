"""Soaks run at a small scale, and end with an error if a record is lost, repeated or changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak.plots import plot_samples
from benchmarks.soak.processes import RealTime
from benchmarks.soak.samples import load
from benchmarks.soak.simulation import Simulation
from benchmarks.soak.workload import ViolationError, Written, check_retained
from sparklog.model import TopicPartition
from sparklog.testing import LocalCluster

TICKS = 1_500
"""So many that brokers crash, logs are cleaned and a member of the group is replaced."""


def test_a_simulation_ends_with_a_clean_audit(tmp_path: Path) -> None:
    """Everything happens at least once; the samples are plotted."""
    file, said = tmp_path / "samples.jsonl", list[str]()
    simulation = Simulation(tmp_path / "soak", 0, file, said.append)
    simulation.run(TICKS)
    simulation.close()
    assert said[-1].endswith("the audit is clean")
    wanted = {"records read", "batches merged", "replicas cleaned", "members replaced"}
    assert wanted <= simulation.counts.keys()
    assert {"brokers crashed", "brokers suspended"} & simulation.counts.keys()
    samples = load(file)
    assert [one.at for one in samples] == sorted({one.at for one in samples})
    assert all(min(one.live_files, one.log_files, one.journal_commits) > 0 for one in samples)
    target = tmp_path / "soak.svg"
    plot_samples(samples, "a soak", "ticks", target)
    assert "Resident memory" in target.read_text(encoding="utf-8")


def test_a_run_with_processes_ends_with_a_clean_audit(tmp_path: Path) -> None:
    """Brokers in processes of their own take all records, and each is read once."""
    said: list[str] = []
    soak = RealTime(tmp_path / "soak", 0, tmp_path / "samples.jsonl", said.append)
    try:
        soak.run(seconds=10, records_per_second=20)
        soak.sample()
    finally:
        soak.close()
    assert soak.records > 0
    assert said == [
        f"{soak.records} records acknowledged, {soak.records} retained: the audit is clean"
    ]
    [sample] = load(tmp_path / "samples.jsonl")
    assert sample.records == soak.records


def test_a_record_that_is_not_where_it_was_acknowledged_ends_a_soak(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, brokers=[0])
    cluster.create_topic("t")
    cluster.produce("t", 0, [b"0", b"1"])
    cluster.tick_until_idle()
    partition = TopicPartition("t", 0)
    written = Written()
    written.add(partition, 0, [(None, b"0"), (None, b"1")])
    assert check_retained(tmp_path / "cluster", partition, written) == 2
    with pytest.raises(ViolationError, match="t-0: acknowledged at 3, not 2"):
        written.add(partition, 3, [(None, b"3")])
    written.add(partition, 2, [(None, b"2")])
    with pytest.raises(ViolationError, match="t-0: ends at 2, not 3"):
        check_retained(tmp_path / "cluster", partition, written)
    cluster.produce("t", 0, [b"another"])
    cluster.tick_until_idle()
    with pytest.raises(ViolationError, match="b'another' is at offset 2"):
        check_retained(tmp_path / "cluster", partition, written)
