"""Kafka's error codes, and errors that are sent between processes."""

from __future__ import annotations

import pickle

import pytest

from sparklog.errors import (
    ERROR_CODES,
    DamagedError,
    LogTruncationError,
    ProtocolError,
    SparklogError,
    StorageError,
    error_code,
)
from sparklog.model import TopicIdPartition
from sparklog.producer.in_flight import DeletedTopicError


def test_each_code_has_a_number_of_its_own() -> None:
    assert [error_code(one.number) for one in ERROR_CODES.values()] == list(ERROR_CODES.values())


def test_a_code_of_a_later_release_is_an_unknown_server_error() -> None:
    """A request that is answered with it fails, because no retry would help."""
    code = error_code(32_000)
    assert (code.name, code.retriable) == ("UNKNOWN_SERVER_ERROR", False)


@pytest.mark.parametrize(
    "error",
    [
        ProtocolError("UNKNOWN_TOPIC_OR_PARTITION", "topic t does not exist"),
        ProtocolError("REQUEST_TIMED_OUT"),
        LogTruncationError("records are lost", 7),
        LogTruncationError("records are lost", None),
        DamagedError("/data/x", "it is empty", "see X"),
        StorageError("it is foreign"),
        DeletedTopicError(TopicIdPartition("id", 3)),
    ],
)
def test_an_error_is_the_same_after_it_was_sent_between_processes(error: SparklogError) -> None:
    """Errors of Python workers and of process pools are pickled."""
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
