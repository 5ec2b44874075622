"""Answers to produce requests: read by clients, kept for ten minutes, in few files."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparklog.broker.answers import RESPONSE_RETENTION_MS
from sparklog.clients.produce import PendingProduce
from sparklog.model import PRODUCE_REQUESTS, PRODUCE_RESPONSES
from sparklog.testing import LocalCluster
from tests.broker.states import error, log, rows, table

Start = Callable[..., LocalCluster]

MERGED_FILES = 4


@pytest.fixture(autouse=True)
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge after four files already."""
    monkeypatch.setattr("sparklog.broker.answers.MERGED_FILES", MERGED_FILES)


def answered(cluster: LocalCluster, count: int) -> list[PendingProduce]:
    """Send requests whose answers are a file each; their clients do not look yet."""
    pending = []
    for n in range(count):
        pending.append(cluster.produce("t", 0, [b"%d" % n], acks=1))
        cluster.leader_tick(0)
    return pending


def files(cluster: LocalCluster) -> int:
    return len(table(cluster, 0, PRODUCE_RESPONSES).new_files(-1))


def test_answers_of_many_ticks_are_few_files(start: Start) -> None:
    """Whoever reads the table, a broker that starts or a view, pays for files, not for rows."""
    cluster = start(0, 1)
    count = 3 * MERGED_FILES + 2
    pending = answered(cluster, count)
    assert files(cluster) == 3 + 2
    offsets = sorted(row["base_offset"] for row in rows(cluster, 0, PRODUCE_RESPONSES))
    assert offsets == list(range(count))
    # Clients that looked only now find their answers in the merged files.
    assert [(error(one), one.response and one.response.base_offset) for one in pending] == [
        ("NONE", n) for n in range(count)
    ]


def test_merged_files_are_merged_again(start: Start) -> None:
    cluster = start(0, 1)
    answers = cluster._brokers[0]._leaders[0].appends.answers
    for n in range(MERGED_FILES**2 + 1):
        answers.append([answer_of(n)], cluster.clock.now_ms())
    assert files(cluster) == 2
    found = [row["request_id"] for row in rows(cluster, 0, PRODUCE_RESPONSES)]
    assert sorted(found, key=int) == [str(n) for n in range(MERGED_FILES**2 + 1)]


def answer_of(number: int) -> dict[str, object]:
    return {"request_id": str(number), "topic_id": "t", "partition": 0, "error_code": 0}


def test_merged_answers_stay_until_the_newest_of_them_is_old(start: Start) -> None:
    cluster = start(0, 1)
    answered(cluster, MERGED_FILES - 1)
    cluster.clock.advance(RESPONSE_RETENTION_MS - 1)
    answered(cluster, 1)
    assert files(cluster) == 1
    cluster.clock.advance(RESPONSE_RETENTION_MS)
    answered(cluster, 1)
    assert len(rows(cluster, 0, PRODUCE_RESPONSES)) == MERGED_FILES + 1
    cluster.clock.advance(1)
    answered(cluster, 1)
    assert len(rows(cluster, 0, PRODUCE_RESPONSES)) == 2


def test_a_request_whose_answer_was_merged_is_not_served_again(start: Start) -> None:
    """The process died before it removed the request; the next one knows the answer (3.1)."""
    cluster = start(0, 1)
    answered(cluster, MERGED_FILES - 1)
    cluster.produce("t", 0, [b"last"], acks=1)
    cluster.leader_tick(0, stop_after="responses")
    assert files(cluster) == 1
    assert len(rows(cluster, 0, PRODUCE_REQUESTS)) == 1
    cluster.restart(0)
    cluster.tick_until_idle()
    assert len(rows(cluster, 0, PRODUCE_REQUESTS)) == 0
    assert log(cluster, 0)[-1] == "last"
    assert len(rows(cluster, 0, PRODUCE_RESPONSES)) == MERGED_FILES
