"""The journal's rows: answers to requests, as brokers commit and clients read them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparklog.errors import ERROR_CODES, DamagedError
from sparklog.model import LOG, Row
from sparklog.storage.commits import Commit, read_commit
from sparklog.storage.control_table import create_table
from sparklog.storage.journal import (
    CHECKPOINTS,
    Journal,
    ProduceAnswer,
    Step,
    answers_in,
    changes_in,
    seen_in,
)
from sparklog.storage.location import Location
from tests.storage.batches import FENCE

APPENDED = ProduceAnswer("r", "t", 0, "NONE", 5, 9)
REFUSED = ProduceAnswer("r", "t", -1, "UNKNOWN_TOPIC_OR_PARTITION")
ROW: Row = APPENDED.to_row()


@pytest.fixture
def journal(root: Location) -> Journal:
    for schema in (LOG, *CHECKPOINTS):
        create_table(root, schema)
    return Journal(root, FENCE)


def committed(journal: Journal, *answers: ProduceAnswer) -> Commit:
    """Commit answers, and return the commit as another process reads it."""
    journal.commit_step((), (), Step(answers=answers), 1)
    commit = read_commit(journal.location, journal.version)
    assert commit is not None
    return commit


def test_the_form_of_answers_in_a_commit_is_that_of_every_release(journal: Journal) -> None:
    """An answer is a JSON object with Kafka's number of the error."""
    commit = committed(journal, APPENDED, REFUSED)
    expected = [
        {
            "request_id": "r",
            "topic_id": "t",
            "partition": 0,
            "error_code": 0,
            "base_offset": 5,
            "last_offset": 9,
        },
        {
            "request_id": "r",
            "topic_id": "t",
            "partition": -1,
            "error_code": 3,
            "base_offset": -1,
            "last_offset": -1,
        },
    ]
    assert json.loads(commit.user_metadata or "")["answers"] == expected


def test_answers_come_back_from_their_commit(journal: Journal) -> None:
    """Readers get the answers that were committed; other commits have none."""
    assert answers_in(committed(journal, APPENDED, REFUSED)) == [APPENDED, REFUSED]
    journal.heartbeat()
    heartbeat = read_commit(journal.location, journal.version)
    assert heartbeat is not None
    assert answers_in(heartbeat) == []


@pytest.mark.parametrize("error", ERROR_CODES)
def test_every_error_comes_back_from_its_row(error: str) -> None:
    """The number of an error identifies it."""
    answer = ProduceAnswer("r", "t", 0, error, 5, 9)
    assert ProduceAnswer.from_row(answer.to_row()) == answer


def test_an_error_and_a_member_of_a_later_release_are_read() -> None:
    """A client of this release understands the answers of a later one."""
    later = ProduceAnswer.from_row({**ROW, "error_code": 9999, "error_message": "later"})
    assert later == APPENDED._replace(error="UNKNOWN_SERVER_ERROR")


def test_only_answers_to_throttled_clients_have_a_throttle_time() -> None:
    """The rows of other answers are those of earlier releases."""
    assert "throttle_time_ms" not in APPENDED.to_row()
    throttled = APPENDED._replace(throttle_time_ms=7)
    assert ProduceAnswer.from_row(throttled.to_row()) == throttled


@pytest.mark.parametrize("value", [None, True, 1.5, "7", -1])
def test_a_throttle_time_that_is_no_time_is_not_valid(value: Any) -> None:
    """A hostile or damaged answer must not stop a producer for ever."""
    with pytest.raises(ValueError, match="throttle time"):
        ProduceAnswer.from_row({**ROW, "throttle_time_ms": value})


@pytest.mark.parametrize("name", ROW)
@pytest.mark.parametrize("value", [None, True, 1.5, [], "missing"])
def test_a_member_that_is_missing_or_of_another_type_is_not_valid(name: str, value: Any) -> None:
    """A bool is no number, and a text no number."""
    row = {**ROW, name: value}
    if value == "missing" and isinstance(ROW[name], str):
        del row[name]
    with pytest.raises(ValueError, match="missing or has another type"):
        ProduceAnswer.from_row(row)


@pytest.mark.parametrize(("first", "last"), [(5, 4), (-2, 0), (0, -1)])
def test_offsets_that_are_not_those_of_a_batch_are_not_valid(first: int, last: int) -> None:
    """The last offset is not below the first, and -1 stands for no batch."""
    with pytest.raises(ValueError, match="not those of a batch"):
        ProduceAnswer.from_row({**ROW, "base_offset": first, "last_offset": last})


def test_an_invalid_answer_damages_its_commit(journal: Journal) -> None:
    """The error names the commit."""
    commit = committed(journal, APPENDED, APPENDED._replace(last_offset=1))
    with pytest.raises(DamagedError, match=f"commit {commit.version} of a log is damaged"):
        answers_in(commit)


def test_an_answer_is_immutable() -> None:
    """No field of an answer can be set."""
    for name in ProduceAnswer._fields:
        with pytest.raises(AttributeError):
            setattr(APPENDED, name, 1)


@pytest.mark.parametrize(
    "members",
    [
        '"sparklog":',
        '"sparklog":"1"',
        '"sparklog":1,"replicas":[{"topic_id":"a"}]',
        '"sparklog":1,"replicas":[["a"]]',
        '"sparklog":1,"replicas":[{"topic":"t","topic_id":"a","partition":0.0}]',
        '"sparklog":1,"replicas":7',
        '"sparklog":1,"epochs":[{"topic":"t","topic_id":"a","partition":0,"entries":[[0]]}]',
        '"sparklog":1,"operations":[]',
        '"sparklog":1,"requests":[["a",0,true]]',
        '"sparklog":1,"removed":[["a"]]',
        '"sparklog":1,"controller":"1"',
        '"sparklog":1,"truncations":[5]',
        '"sparklog":1,"a":' + "[" * 5_000,
    ],
    ids=lambda one: one[:60],
)
def test_members_that_no_broker_writes_damage_their_commit(members: str) -> None:
    """The reader of a journal gets a `DamagedError`, as for other damage.

    Found by hostile input: KeyError, TypeError, AttributeError, ValueError and RecursionError left
    the follower's tick, and a number that is a float became a key of another replica.
    """
    commit = Commit(5, user_metadata="{" + members + "}")
    with pytest.raises(DamagedError, match="commit 5 of a log is damaged"):
        changes_in(commit)


@pytest.mark.parametrize("answers", ["7", "null", '{"a":1}', '[["a"]]', '["a"]'])
def test_answers_that_are_no_list_of_objects_damage_their_commit(answers: str) -> None:
    """Found by hostile input: TypeError and AttributeError were raised at the producer."""
    commit = Commit(5, user_metadata=f'{{"sparklog":1,"answers":{answers}}}')
    with pytest.raises(DamagedError, match="commit 5 of a log is damaged"):
        answers_in(commit)


def test_seen_versions_that_are_no_numbers_are_ignored() -> None:
    """Found by hostile input: Infinity raised OverflowError."""
    seen = '{"journals":[[0,0,1,Infinity]],"tables":{}}'
    assert seen_in(Commit(5, user_metadata=f'{{"sparklog":1,"seen":{seen}}}')) is None
