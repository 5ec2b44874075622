"""The errors of sparklog: Kafka's codes in one table, and the exceptions that carry them.

A protocol error has Kafka's number and name, so that users of Kafka recognise it. Each expected
error is a `SparklogError`; its message states in one sentence what failed, where, and what to do.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple


class ErrorCode(NamedTuple):
    """One of Kafka's error codes.

    Attributes
    ----------
    number : int
        Kafka's number.
    name : str
        Kafka's name.
    retriable : bool
        Whether the same request may succeed later without being changed.
    sentence : str
        The error in one sentence.

    Examples
    --------
    >>> from sparklog.errors import ERROR_CODES
    >>> code = ERROR_CODES["NOT_ENOUGH_REPLICAS"]
    >>> code.number, code.retriable
    (19, True)
    """

    number: int
    name: str
    retriable: bool
    sentence: str


_TABLE = (
    ErrorCode(
        -1,
        "UNKNOWN_SERVER_ERROR",
        False,
        "The broker failed with an unknown error.",
    ),
    ErrorCode(0, "NONE", False, "No error."),
    ErrorCode(1, "OFFSET_OUT_OF_RANGE", False, "The offset is outside the replica's log."),
    ErrorCode(
        2, "CORRUPT_MESSAGE", True, "The batch file is unreadable or does not match the request."
    ),
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
    ErrorCode(22, "ILLEGAL_GENERATION", False, "The group has a newer generation."),
    ErrorCode(
        23, "INCONSISTENT_GROUP_PROTOCOL", False, "The members share no assignment strategy."
    ),
    ErrorCode(24, "INVALID_GROUP_ID", False, "There is no group, or its name is not usable."),
    ErrorCode(25, "UNKNOWN_MEMBER_ID", False, "The member is no longer part of the group."),
    ErrorCode(27, "REBALANCE_IN_PROGRESS", False, "The group is rebalancing its partitions."),
    ErrorCode(35, "UNSUPPORTED_VERSION", False, "The cluster's format does not have this."),
    ErrorCode(36, "TOPIC_ALREADY_EXISTS", False, "A topic of this name exists already."),
    ErrorCode(37, "INVALID_PARTITIONS", False, "The number of partitions must be at least 1."),
    ErrorCode(
        38, "INVALID_REPLICATION_FACTOR", False, "The replication factor fits no live brokers."
    ),
    ErrorCode(39, "INVALID_REPLICA_ASSIGNMENT", False, "The replica assignment is not valid."),
    ErrorCode(40, "INVALID_CONFIG", False, "A configuration key or value is not valid."),
    ErrorCode(42, "INVALID_REQUEST", False, "The request is malformed."),
    ErrorCode(45, "OUT_OF_ORDER_SEQUENCE_NUMBER", False, "The producer's sequence has a gap."),
    ErrorCode(47, "INVALID_PRODUCER_EPOCH", False, "A newer producer with this id exists."),
    ErrorCode(56, "KAFKA_STORAGE_ERROR", True, "The replica's storage failed."),
    ErrorCode(68, "NON_EMPTY_GROUP", False, "The group has live members."),
    ErrorCode(69, "GROUP_ID_NOT_FOUND", False, "There is no group of this name."),
    ErrorCode(73, "TOPIC_DELETION_DISABLED", False, "The cluster does not delete topics."),
    ErrorCode(74, "FENCED_LEADER_EPOCH", True, "The leader epoch is older than the broker's."),
    ErrorCode(75, "UNKNOWN_LEADER_EPOCH", True, "The leader epoch is newer than the broker's."),
    ErrorCode(78, "OFFSET_NOT_AVAILABLE", True, "The new leader has not caught up yet."),
    ErrorCode(80, "PREFERRED_LEADER_NOT_AVAILABLE", True, "The preferred leader cannot lead."),
    ErrorCode(82, "FENCED_INSTANCE_ID", False, "A newer consumer has this group.instance.id."),
    ErrorCode(83, "ELIGIBLE_LEADERS_NOT_AVAILABLE", True, "No replica is able to lead."),
    ErrorCode(84, "ELECTION_NOT_NEEDED", True, "The partition already has this leader."),
    ErrorCode(
        85, "NO_REASSIGNMENT_IN_PROGRESS", False, "No partition reassignment is in progress."
    ),
    ErrorCode(
        87, "INVALID_RECORD", False, "A record is not valid: in a compacted topic each needs a key."
    ),
    ErrorCode(89, "THROTTLING_QUOTA_EXCEEDED", True, "The broker has too many requests at once."),
    ErrorCode(101, "DUPLICATE_BROKER_REGISTRATION", False, "A live broker has this id."),
    ErrorCode(102, "BROKER_ID_NOT_REGISTERED", False, "No broker of this id is registered."),
    ErrorCode(107, "INELIGIBLE_REPLICA", False, "The replica may not join the in-sync set."),
)

ERROR_CODES: dict[str, ErrorCode] = {code.name: code for code in _TABLE}
"""Kafka's error codes by name; tables and responses store the names."""


def error_code(number: int) -> ErrorCode:
    """Return the code with Kafka's `number`; UNKNOWN_SERVER_ERROR for one of a later release."""
    unknown = ERROR_CODES["UNKNOWN_SERVER_ERROR"]
    return next((code for code in _TABLE if code.number == number), unknown)


class SparklogError(Exception):
    """The base class of all expected errors of sparklog.

    Examples
    --------
    >>> from sparklog import Connection, SparklogError
    >>> try:
    ...     Connection("no-such-folder")
    ... except SparklogError as error:
    ...     print(type(error).__name__)
    StorageError
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the message and the attributes when the error is sent between processes.

        By default, an exception is restored by a call of its class with its message, which fails
        for a class with other parameters.
        """
        return _restored, (type(self), self.args), vars(self)


def _restored(kind: type[SparklogError], arguments: tuple[Any, ...]) -> SparklogError:
    return kind.__new__(kind, *arguments)


class ConfigError(SparklogError):
    """A configuration key, value or file is not usable; the message names it.

    Examples
    --------
    >>> from sparklog import Producer
    >>> Producer("sparklog-data/cluster", lingerms=5)
    Traceback (most recent call last):
    sparklog.errors.ConfigError: unknown configuration key lingerms in Producer(...): ...
    """


class StorageError(SparklogError):
    """A folder or table is missing, foreign, or in an unexpected state.

    Examples
    --------
    >>> from sparklog import Connection
    >>> Connection("no-such-folder")
    Traceback (most recent call last):
    sparklog.errors.StorageError: ...
    """


class AccessDeniedError(StorageError, PermissionError):
    """A store (401, 403) or a file system (EACCES, EPERM) refuses an operation on a path.

    The message names the path and the operation. A later attempt does not help until the
    credentials or permissions are changed.

    Examples
    --------
    >>> from sparklog.errors import AccessDeniedError, StorageError
    >>> issubclass(AccessDeniedError, StorageError)
    True
    """

    uri = ""
    """The URI or path of the file or folder."""


class UnreachableError(StorageError):
    """A root cannot be read or written now, as when its store does not answer.

    Its contents are unknown. A later attempt may succeed.
    """


class DamagedError(StorageError):
    """A table, a commit or a file differs from what was written: empty, cut, changed, or missing.

    Parameters
    ----------
    path : str
        The URI of the damaged object.
    fault : str
        A clause that describes the damage.
    remedy : str
        A clause that says what to do.

    Examples
    --------
    >>> from sparklog.errors import DamagedError
    >>> print(DamagedError("/data/t/_delta_log/00000000000000000007.json", "it is empty", "see X"))
    /data/t/_delta_log/00000000000000000007.json is damaged: it is empty; see X
    """

    def __init__(self, path: str, fault: str, remedy: str) -> None:
        super().__init__(f"{path} is damaged: {fault}; {remedy}")
        self.path = path
        self.fault = fault
        self.remedy = remedy


class TableReplacedError(StorageError):
    """Another table has replaced the one that was opened; open it again to read that one."""


class NewerFormatError(StorageError):
    """A root has a format that only a later release knows; this process must stop.

    Examples
    --------
    >>> from sparklog.errors import NewerFormatError, StorageError
    >>> issubclass(NewerFormatError, StorageError)
    True
    """


class CommitConflictError(StorageError):
    """A compare-and-set failed: the table has changed since it was loaded.

    The rows to be changed may be unchanged: reload them, and if they are, try again.
    """


class FencedError(SparklogError):
    """A newer process has taken over this role; the process with this error must stop writing.

    Examples
    --------
    >>> from sparklog.errors import FencedError, SparklogError
    >>> issubclass(FencedError, SparklogError)
    True
    """


class ApplicationFailedError(SparklogError):
    """An application of brokers cannot go on: a part of it has failed. A restart may help.

    Examples
    --------
    >>> from sparklog.errors import ApplicationFailedError, SparklogError
    >>> issubclass(ApplicationFailedError, SparklogError)
    True
    """


class ProtocolError(SparklogError):
    """An error of the protocol, with Kafka's code.

    Parameters
    ----------
    name : str
        The name of Kafka's error, a key of `sparklog.errors.ERROR_CODES`.
    detail : str, optional
        One sentence with what failed, where, and what to do; the code's own sentence by default.

    Attributes
    ----------
    code : ErrorCode
        Kafka's number and name.

    Examples
    --------
    >>> from sparklog import Admin, ProtocolError
    >>> try:
    ...     Admin("sparklog-data/cluster").describe_topic("nothing")
    ... except ProtocolError as error:
    ...     print(error.code.name, error.code.number, error.retriable)
    UNKNOWN_TOPIC_OR_PARTITION 3 True
    """

    def __init__(self, name: str, detail: str | None = None) -> None:
        self.code = ERROR_CODES[name]
        super().__init__(f"{name}: {detail or self.code.sentence}")

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later without being changed."""
        return self.code.retriable


class NoOffsetForPartitionError(SparklogError):
    """A consumer has no position, and auto.offset.reset=none forbids choosing one.

    Examples
    --------
    >>> from sparklog import Consumer
    >>> with Consumer("sparklog-data/cluster", auto_offset_reset="none") as consumer:
    ...     consumer.assign([("clicks", 0)])
    ...     consumer.poll()
    Traceback (most recent call last):
    sparklog.errors.NoOffsetForPartitionError: clicks-0 has no committed offset and ...
    """


class LogTruncationError(ProtocolError):
    """Records below a consumer's position were lost in an unclean election (rule 8.2, KIP-320).

    Parameters
    ----------
    detail : str
        The message.
    divergent_offset : int or None
        The first offset at which the log differs from the records that were read; `None` if it is
        unknown.

    Examples
    --------
    >>> from sparklog.errors import LogTruncationError
    >>> LogTruncationError("clicks-0 was truncated below the position 7", 5).divergent_offset
    5
    """

    def __init__(self, detail: str, divergent_offset: int | None) -> None:
        super().__init__("OFFSET_OUT_OF_RANGE", detail)
        self.divergent_offset = divergent_offset


class RecordDeserializationError(SparklogError):
    """A deserializer of a consumer failed; the position stays before the record.

    `__cause__` is the deserializer's own error.

    Parameters
    ----------
    topic : str
        The name of the topic.
    partition : int
        The number of the partition.
    offset : int
        The record's offset.
    part : str
        The failed part, `key` or `value`.
    cause : Exception
        The deserializer's error.

    Examples
    --------
    >>> from sparklog.errors import RecordDeserializationError
    >>> RecordDeserializationError("clicks", 0, 7, "value", ValueError("no JSON"))
    RecordDeserializationError('the value of clicks-0 at offset 7 is not deserializable ...')
    """

    def __init__(self, topic: str, partition: int, offset: int, part: str, cause: Exception):
        super().__init__(
            f"the {part} of {topic}-{partition} at offset {offset} is not deserializable "
            f"({type(cause).__name__}: {cause}): correct {part}_deserializer, or seek to offset "
            f"{offset + 1} to skip the record"
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset


def show_in_one_line(error: BaseException) -> None:
    """Hide the stack of `error` in Spark if it is a `SparklogError` of a Python worker.

    Call it before the error leaves the worker's code. Spark reads SPARK_HIDE_TRACEBACK when it
    reports the exception. The worker's process ends right after that, so no other error loses its
    stack. In any other process this does nothing.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if isinstance(error, SparklogError) and main and main.name.startswith("pyspark."):
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
