"""Every error of sparklog: Kafka's codes in one table, and the exceptions that carry them.

A protocol error has Kafka's number and name, so that whoever knows Kafka knows what to do.
Everything raised on purpose descends from `SparklogError` and says in one sentence what is
wrong, where, and what to do about it.
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple


class ErrorCode(NamedTuple):
    """One of Kafka's error codes.

    `retriable` says whether the same request may succeed later without being changed.
    """

    number: int
    name: str
    retriable: bool
    sentence: str


_TABLE = (
    ErrorCode(-1, "UNKNOWN_SERVER_ERROR", False, "The broker failed in an unforeseen way."),
    ErrorCode(0, "NONE", False, "No error."),
    ErrorCode(1, "OFFSET_OUT_OF_RANGE", False, "The offset is outside the replica's log."),
    ErrorCode(2, "CORRUPT_MESSAGE", True, "The batch file is unreadable or not what it claims."),
    ErrorCode(3, "UNKNOWN_TOPIC_OR_PARTITION", True, "There is no such topic or partition."),
    ErrorCode(5, "LEADER_NOT_AVAILABLE", True, "The partition has no leader at the moment."),
    ErrorCode(6, "NOT_LEADER_OR_FOLLOWER", True, "The broker does not lead the partition."),
    ErrorCode(7, "REQUEST_TIMED_OUT", True, "The request was not completed within its timeout."),
    ErrorCode(9, "REPLICA_NOT_AVAILABLE", True, "The broker has no such replica at the moment."),
    ErrorCode(10, "MESSAGE_TOO_LARGE", False, "The batch is larger than max.message.bytes."),
    ErrorCode(12, "OFFSET_METADATA_TOO_LARGE", False, "The metadata of a commit is too long."),
    ErrorCode(17, "INVALID_TOPIC_EXCEPTION", False, "The topic's name may not be used here."),
    ErrorCode(19, "NOT_ENOUGH_REPLICAS", True, "Fewer replicas are in sync than required."),
    ErrorCode(
        20,
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        True,
        "The batch was appended, but fewer replicas are in sync than required.",
    ),
    ErrorCode(21, "INVALID_REQUIRED_ACKS", False, "acks must be 0, 1 or all."),
    ErrorCode(22, "ILLEGAL_GENERATION", False, "The group has gone on to a newer generation."),
    ErrorCode(
        23, "INCONSISTENT_GROUP_PROTOCOL", False, "The members share no assignment strategy."
    ),
    ErrorCode(24, "INVALID_GROUP_ID", False, "There is no group, or its name is not usable."),
    ErrorCode(25, "UNKNOWN_MEMBER_ID", False, "The group does not count this member any more."),
    ErrorCode(27, "REBALANCE_IN_PROGRESS", False, "The group is assigning its partitions anew."),
    ErrorCode(36, "TOPIC_ALREADY_EXISTS", False, "A topic of this name exists already."),
    ErrorCode(37, "INVALID_PARTITIONS", False, "The number of partitions must be at least 1."),
    ErrorCode(
        38, "INVALID_REPLICATION_FACTOR", False, "The replication factor fits no live brokers."
    ),
    ErrorCode(39, "INVALID_REPLICA_ASSIGNMENT", False, "The replica assignment is not valid."),
    ErrorCode(40, "INVALID_CONFIG", False, "A configuration key or value is not valid."),
    ErrorCode(41, "NOT_CONTROLLER", True, "The broker is not the active controller."),
    ErrorCode(42, "INVALID_REQUEST", False, "The request is malformed."),
    ErrorCode(45, "OUT_OF_ORDER_SEQUENCE_NUMBER", False, "The producer's sequence has a gap."),
    ErrorCode(47, "INVALID_PRODUCER_EPOCH", False, "A newer producer with this id has begun."),
    ErrorCode(56, "KAFKA_STORAGE_ERROR", True, "The replica's storage failed."),
    ErrorCode(59, "UNKNOWN_PRODUCER_ID", False, "The broker knows nothing of this producer."),
    ErrorCode(68, "NON_EMPTY_GROUP", False, "The group has members that live."),
    ErrorCode(69, "GROUP_ID_NOT_FOUND", False, "There is no group of this name."),
    ErrorCode(74, "FENCED_LEADER_EPOCH", True, "The leader epoch is older than the broker's."),
    ErrorCode(75, "UNKNOWN_LEADER_EPOCH", True, "The leader epoch is newer than the broker's."),
    ErrorCode(77, "STALE_BROKER_EPOCH", False, "A newer process plays this broker."),
    ErrorCode(78, "OFFSET_NOT_AVAILABLE", True, "The new leader has not caught up yet."),
    ErrorCode(80, "PREFERRED_LEADER_NOT_AVAILABLE", True, "The preferred leader cannot lead."),
    ErrorCode(82, "FENCED_INSTANCE_ID", False, "A newer consumer has this group.instance.id."),
    ErrorCode(83, "ELIGIBLE_LEADERS_NOT_AVAILABLE", True, "No replica is able to lead."),
    ErrorCode(84, "ELECTION_NOT_NEEDED", True, "The partition has the leader asked for."),
    ErrorCode(89, "THROTTLING_QUOTA_EXCEEDED", True, "The broker has too many requests at once."),
    ErrorCode(101, "DUPLICATE_BROKER_REGISTRATION", False, "A live broker has this id."),
    ErrorCode(102, "BROKER_ID_NOT_REGISTERED", False, "No broker of this id is registered."),
    ErrorCode(107, "INELIGIBLE_REPLICA", False, "The replica may not join the in-sync set."),
)

ERROR_CODES: dict[str, ErrorCode] = {code.name: code for code in _TABLE}
"""Kafka's error codes by name; the names are what tables and responses hold."""


def error_code(number: int) -> ErrorCode:
    """Return the code with Kafka's `number`; `KeyError` where there is none."""
    return next(code for code in _TABLE if code.number == number)


class SparklogError(Exception):
    """The root of all errors that sparklog raises on purpose."""


class ConfigError(SparklogError):
    """A configuration key, value or file is not usable; the message names it."""


class StorageError(SparklogError):
    """A folder or table is missing, foreign, or not in the state it must be in."""


class DamagedError(StorageError):
    """A table, a commit or a file is not as it was written: empty, cut, changed, or missing.

    Parameters: `path`, the URI of the damaged thing; `fault`, a clause that says what is wrong
    with it; `remedy`, a clause that says what to do.

    >>> print(DamagedError("/data/t/_delta_log/00000000000000000007.json", "it is empty", "see X"))
    /data/t/_delta_log/00000000000000000007.json is damaged: it is empty; see X
    """

    def __init__(self, path: str, fault: str, remedy: str) -> None:
        super().__init__(f"{path} is damaged: {fault}; {remedy}")
        self.path = path
        self.fault = fault
        self.remedy = remedy

    def __reduce__(self) -> tuple[type[DamagedError], tuple[str, str, str]]:
        """Keep the parts when the error travels between processes."""
        return type(self), (self.path, self.fault, self.remedy)


class TableReplacedError(StorageError):
    """Another table has the place of the one that was opened; a new handle reads that one."""


class CommitConflictError(StorageError):
    """A compare-and-set lost: the table moved since it was loaded.

    It says nothing about the rows one acts on: reload, and if they are unchanged, try again.
    """


class FencedError(SparklogError):
    """A newer process plays this role; the one that meets this error must stop writing."""


class ProtocolError(SparklogError):
    """An error of the protocol, with Kafka's code.

    Parameters: `name`, a key of `ERROR_CODES`; `detail`, one sentence of what, where and what
    to do (the code's own sentence where it is left out).
    """

    def __init__(self, name: str, detail: str | None = None) -> None:
        self.code = ERROR_CODES[name]
        super().__init__(f"{name}: {detail or self.code.sentence}")

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later without being changed."""
        return self.code.retriable


class NoOffsetForPartitionError(SparklogError):
    """A consumer has no position and auto.offset.reset=none does not let it choose one."""


class LogTruncationError(ProtocolError):
    """Records that a consumer was past are gone after an unclean election (rule 8.2, KIP-320).

    Parameters: `divergent_offset`, where the log now differs from what was read; `None` where
    that is not known. `detail`, the sentence.
    """

    def __init__(self, detail: str, divergent_offset: int | None) -> None:
        super().__init__("OFFSET_OUT_OF_RANGE", detail)
        self.divergent_offset = divergent_offset


def show_in_one_line(error: BaseException) -> None:
    """Let Spark show `error` without its stack if it is a `SparklogError` of a Python worker.

    Call it before the error leaves the worker's code. Spark reads SPARK_HIDE_TRACEBACK when it
    reports the exception, and the worker's process ends right after that, so that no other
    error loses its stack. In any other process this does nothing.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if isinstance(error, SparklogError) and main and main.name.startswith("pyspark."):
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
