"""The answers in a leader's journal, as a producer reads them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparklog.model import TopicIdPartition
from sparklog.producer.produce_requests import ProduceResponse, Responses
from sparklog.storage.delta_log_files import commit_path
from sparklog.storage.journal import Journal, ProduceAnswer, Step
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster
from tests.state_machine.roots import clean_up

KEY = TopicIdPartition("t", 0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path, brokers=[0])
    yield made
    made.close()


def answer(journal: Journal, *answers: ProduceAnswer) -> None:
    journal.commit_step((), (), Step(answers=answers), 1)


def test_an_invalid_answer_is_skipped(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged; the other answers of its commit, and those of later commits, are read."""
    responses = Responses(Location.of(str(cluster.root / "broker-0")))
    responses.expect("r")
    responses.expect("beside")
    journal = cluster.brokers[0]._leaders[0]._root.log
    answer(
        journal,
        ProduceAnswer("r", "t", 0, "NONE", 7, 3),
        ProduceAnswer("beside", "t", 0, "NONE", 4, 4),
    )
    answer(
        journal,
        ProduceAnswer("other", "t", 0, "NONE", 0, 0),
        ProduceAnswer("r", "t", 0, "NONE", 7, 8),
    )
    responses.poll()
    assert responses.pop("r", KEY) == ProduceResponse("NONE", 7, 8)
    assert responses.pop("r", KEY) is None
    assert responses.pop("beside", KEY) == ProduceResponse("NONE", 4, 4)
    assert responses.pop("other", KEY) is None
    assert [one.levelname for one in caplog.records if "answers lost" in one.message] == ["WARNING"]


def test_the_first_of_two_answers_counts(cluster: LocalCluster) -> None:
    """A request that was sent twice may be answered twice."""
    responses = Responses(Location.of(str(cluster.root / "broker-0")))
    responses.expect("r")
    journal = cluster.brokers[0]._leaders[0]._root.log
    answer(
        journal,
        ProduceAnswer("r", "t", 0, "NOT_ENOUGH_REPLICAS"),
        ProduceAnswer("r", "t", 0, "NONE", 7, 8),
    )
    responses.poll()
    assert responses.pop("r", KEY) == ProduceResponse("NOT_ENOUGH_REPLICAS", -1, -1)


def test_an_answer_after_a_pause_that_clean_up_has_overtaken_is_read(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first poll skipped it: the reader went on at the journal's end, which had the answer."""
    root = cluster.root / "broker-0"
    responses = Responses(Location.of(str(root)))
    journal = cluster.brokers[0]._leaders[0]._root.log
    for _ in range(3):
        answer(journal, ProduceAnswer("other", "t", 0, "NONE", 0, 0))
    cluster.brokers[0]._write_checkpoints()
    clean_up(root)
    passed = time.monotonic() + 3_600
    monkeypatch.setattr(time, "monotonic", lambda: passed)
    responses.expect("r")
    answer(journal, ProduceAnswer("r", "t", 0, "NONE", 7, 8))
    responses.poll()
    assert responses.pop("r", KEY) == ProduceResponse("NONE", 7, 8)


def test_an_answer_behind_a_lost_commit_is_read(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that had not read the commit got no answer from its leader any more, although a
    checkpoint had taken the place of the commit for all others.
    """
    root = cluster.root / "broker-0"
    responses = Responses(Location.of(str(root)))
    journal = cluster.brokers[0]._leaders[0]._root.log
    lost = journal.version + 1
    responses.expect("r")
    for _ in range(2):
        answer(journal, ProduceAnswer("other", "t", 0, "NONE", 0, 0))
    answer(journal, ProduceAnswer("r", "t", 0, "NONE", 7, 8))
    for version in (lost, lost + 1):
        Location.of(str(root)).child("log").remove(commit_path(version))
    responses.poll()
    assert responses.pop("r", KEY) is None
    passed = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: passed)
    responses.poll()
    responses.poll()
    assert responses.pop("r", KEY) == ProduceResponse("NONE", 7, 8)
