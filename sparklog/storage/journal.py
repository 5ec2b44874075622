"""A broker's journal: the commits of its `log` table, which record all effects of each step.

A commit adds and removes batches. As JSON in `userMetadata` it carries the step's other changes:
rows of replicas, leader-epoch histories, delayed operations, answers to requests, and the position
up to which requests are taken. Invariant: a step happens with all of its effects or not at all.

The state is the content of the checkpoint tables, plus the commits after the version of the log
that each of them describes (rule 7.0). Readers of the state follow the journal. The tables serve
recovery, operators and SQL.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from sparklog.errors import ERROR_CODES, DamagedError, StorageError, error_code
from sparklog.model import (
    DELAYED_OPERATIONS,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    PRODUCE_REQUESTS,
    Batch,
    EpochEntry,
    Row,
    TopicIdPartition,
)
from sparklog.storage.batch_actions import has_damaged_header
from sparklog.storage.commits import LOG_VERSION, Commit, read_commit, read_commits
from sparklog.storage.control_table import ControlTable
from sparklog.storage.damaged_commits import COMMIT_REMEDY, MALFORMED
from sparklog.storage.delta_log import DeltaLog
from sparklog.storage.fence import Fence
from sparklog.storage.json_text import json_bytes, json_value
from sparklog.storage.location import Location, one_line
from sparklog.storage.parallel import map_in_parallel
from sparklog.storage.record_log import RecordLog
from sparklog.storage.seen_versions import SeenVersions

_FORMAT, _ROWS, _EPOCHS, _OPERATIONS = "sparklog", "replicas", "epochs", "operations"
_REQUESTS, _ANSWERS, _REMOVED = "requests", "answers", "removed"
_TRUNCATIONS = "truncations"
_CONTROLLER = "controller"
"""The member of a commit that names the controller epoch whose lease the commit renews."""

_SEEN = "seen"
"""The member of a commit with the versions of other tables that its broker has seen."""

_ACTIVITY = "activity"
"""The member of a commit with what its broker does, for those who watch it."""

_MOST_WITHOUT = 64
"""The number of newest commits among which one with seen versions is: fences, merges and changes by
other tools carry none."""

_OF_HEARTBEATS = frozenset({_FORMAT, _CONTROLLER, _SEEN, _ACTIVITY})
"""The members of a commit that changes nothing."""

_FORMAT_VERSION = 1
"""The version of the format of commits. Its member comes first, which distinguishes it from other
writers' text.
"""

_Value = TypeVar("_Value")

_VERSIONS = frozenset({"log_version", "epochs_version"})
"""The columns of a table's row that the journal's rows do not have."""

CHECKPOINTS = HIGH_WATERMARK_CHECKPOINT, LEADER_EPOCH_CHECKPOINT, DELAYED_OPERATIONS
"""The tables that describe the state at a version of the journal."""

_NO_OPERATION = dict.fromkeys(DELAYED_OPERATIONS.columns.names)

_NULLS = dict.fromkeys(("damaged_offset", "damage", "leader_damaged_offset", "parked_lags"))
"""The columns of a row that commits omit if they are null."""

_ATTEMPTS = 3
"""The number of attempts to read the checkpoints while clean-up removes the commits after them."""


class InboxPosition(NamedTuple):
    """The position up to which requests of the request table with this id are taken.

    All requests added up to `version` are taken. Of later ones those in `beyond` are: pairs of the
    table's version and the position in its commit.
    """

    table_id: str
    version: int
    beyond: tuple[tuple[int, int], ...] = ()


class ProduceAnswer(NamedTuple):
    """The answer for one partition of a produce request.

    `error` is Kafka's name, NONE for success. The offsets are those of the first and the last
    record of its batches in the log, -1 if they were not appended. `throttle_time_ms` is the time
    in ms for which the client id, which is over its quota, sends nothing (KIP-219).
    """

    request_id: str
    topic_id: str
    partition: int
    error: str
    base_offset: int = -1
    last_offset: int = -1
    throttle_time_ms: int = 0

    def to_row(self) -> Row:
        """Return the answer in the journal's form, with Kafka's number of the error.

        Earlier releases ignore the throttle time, which only answers to throttled clients have.
        """
        throttled = {"throttle_time_ms": self.throttle_time_ms} if self.throttle_time_ms else {}
        return throttled | {
            "request_id": self.request_id,
            "topic_id": self.topic_id,
            "partition": self.partition,
            "error_code": ERROR_CODES[self.error].number,
            "base_offset": self.base_offset,
            "last_offset": self.last_offset,
        }

    @classmethod
    def from_row(cls, row: Row) -> ProduceAnswer:
        """Return the answer in a row of the journal; `ValueError` if a value is not valid.

        An error of a later release is UNKNOWN_SERVER_ERROR. Other members are ignored.
        """
        values: tuple[Any, ...] = ()
        if isinstance(row, Mapping):
            values = tuple(map(row.get, _ANSWER_TYPES))
        if tuple(map(type, values)) != tuple(_ANSWER_TYPES.values()):
            raise ValueError(f"a member of an answer is missing or has another type: {row}")
        request_id, topic_id, partition, number, base_offset, last_offset = values
        if not -1 <= base_offset <= last_offset:
            raise ValueError(f"the offsets of an answer are not those of a batch: {row}")
        throttle_time_ms = row.get("throttle_time_ms", 0)
        if type(throttle_time_ms) is not int or throttle_time_ms < 0:
            raise ValueError(f"the throttle time of an answer is not a time in ms: {row}")
        error = error_code(number).name
        offsets = base_offset, last_offset
        return cls(request_id, topic_id, partition, error, *offsets, throttle_time_ms)


_ANSWER_TYPES: Mapping[str, type] = {
    "request_id": str,
    "topic_id": str,
    "partition": int,
    "error_code": int,
    "base_offset": int,
    "last_offset": int,
}
"""The members of an answer in the journal."""


class Step(NamedTuple):
    """The changes of a broker's step other than batches.

    `rows`, new rows of replicas; `histories`, new leader-epoch histories; `operations`, rows of new
    delayed operations by id, and `None` for those that are no longer delayed; `answers`, to
    requests;
    `inbox_positions`, the new positions of the request tables; `removed`, replicas of deleted
    topics, of which neither a row nor a history is left; `truncations`, rows of the table
    `truncations` without the version, for people.
    """

    rows: Sequence[Row] = ()
    histories: Mapping[TopicIdPartition, Histories] = {}
    operations: Mapping[str, Row | None] = {}
    answers: Sequence[ProduceAnswer] = ()
    inbox_positions: Sequence[InboxPosition] = ()
    removed: Sequence[TopicIdPartition] = ()
    truncations: Sequence[Row] = ()


class Histories(NamedTuple):
    """A change of a replica's leader-epoch history: its topic and all entries, oldest first."""

    topic: str
    entries: tuple[EpochEntry, ...]


class Renewal(NamedTuple):
    """A renewal of the controller's lease: its controller epoch and its version of the journal."""

    controller_epoch: int
    version: int


class Activity(NamedTuple):
    """The activity of a broker: for people who watch it, no decision depends on it.

    `tick_ms` is the duration of its last tick of all roles in ms; `requests_per_minute` are its
    process's requests to object stores, over the last minute or since its start.
    """

    tick_ms: int
    requests_per_minute: int


class Journal(RecordLog):
    """The log of one broker root, with the state of its replicas.

    Parameters: `checkpoints`, the tables of `CHECKPOINTS` in their order, if the owner has opened
    them; `damaged`, the names of tables that count as empty and may be missing; `with_operations`,
    whether the delayed operations are loaded, too.

    Raises `DamagedError` if a checkpoint is damaged. Raises it also if a commit is missing or
    damaged that follows the version described by a checkpoint.
    """

    def __init__(
        self,
        root: Location,
        fence: Fence | None = None,
        checkpoints: Sequence[ControlTable | None] | None = None,
        damaged: Collection[str] = (),
        *,
        with_operations: bool = False,
    ) -> None:
        self._root = root
        self._schemas = CHECKPOINTS if with_operations or checkpoints else CHECKPOINTS[:2]
        self.operations: dict[str, Row] = {}
        """The delayed operations, by their ids."""
        self.inbox_positions: dict[str, InboxPosition] = {}
        """The positions up to which requests are taken, by request table id.

        Contains only tables that are named by commits after the checkpoints.
        """
        self.truncations: list[Row] = []
        """The rows of `truncations` in the commits after the checkpoints, oldest first."""
        self.renewal: Renewal | None = None
        """The newest renewal of the controller's lease in the commits that were read."""
        self.seen: Callable[[], SeenVersions | None] = lambda: None
        """Returns the versions that each commit of the owner carries, or `None` for none."""
        self.activity: Callable[[], Activity | None] = lambda: None
        """Returns the activity that each commit of the owner carries, or `None` for none."""
        self._checkpoints = checkpoints
        self._damaged = damaged
        self._topics: dict[TopicIdPartition, str] = {}
        self.rows: dict[TopicIdPartition, Row] = {}
        """The rows of the replicas at the loaded version."""
        self.epochs: dict[TopicIdPartition, tuple[EpochEntry, ...]] = {}
        """The leader-epoch histories of the replicas, oldest entry first."""
        self.described_version = 0
        """The newest version of the log that a checkpoint described when the log was opened."""
        self.lacks_described = False
        """Whether that version was later than the newest one of the log: commits were lost."""
        super().__init__(root, fence)

    def take_over(self, fence: Fence, checkpoints: Sequence[ControlTable]) -> None:
        """Become the owner's journal, with its checkpoints; damaged ones have been recreated."""
        self._checkpoints = checkpoints
        self._damaged = ()
        self.take_fence(fence)

    def __contains__(self, key: TopicIdPartition) -> bool:
        """Whether the loaded version has anything of a replica: a row, a history or batches."""
        return (
            key in self.rows
            or key in self.epochs
            or bool(self.batches(key) or self.unsound_batches(key))
        )

    def has_news(self) -> bool:
        """Return True if a newer version exists. Always False on object stores (a request)."""
        return self._log.has_news()

    def commit_step(
        self,
        added: Sequence[Batch],
        removed: Sequence[Batch],
        step: Step,
        now_ms: int,
        transactions: Mapping[str, int] | None = None,
    ) -> None:
        """Commit a step, batches and other changes, all or nothing.

        Raises as `commit` does; the state is unchanged in that case.
        """
        entry = _entry_of(step) | self._members_of_all()
        self.commit(added, removed, now_ms, json_bytes(entry).decode(), transactions)
        self._apply_changes(_changes_of(entry), (-1, -1, -1), self.version)

    def heartbeat(self, controller_epoch: int | None = None) -> bool:
        """Make an empty commit, which shows that the broker is alive; return whether it was made.

        Parameters: `controller_epoch`, the epoch of the controller's lease that the broker holds
        and renews. Raises as `commit_empty` does.
        """
        entry: dict[str, Any] = {_FORMAT: _FORMAT_VERSION}
        if controller_epoch is not None:
            entry[_CONTROLLER] = controller_epoch
        entry |= self._members_of_all()
        with self._lock:
            is_made = self.commit_empty(json_bytes(entry).decode())
            if is_made and controller_epoch is not None:
                self.renewal = Renewal(controller_epoch, self.version)
        return is_made

    def _members_of_all(self) -> dict[str, Any]:
        """Return the members that each commit of the owner carries, whatever it changes."""
        members: dict[str, Any] = {}
        if (seen := self.seen()) is not None:
            members[_SEEN] = seen.to_json()
        if (activity := self.activity()) is not None:
            members[_ACTIVITY] = list(activity)
        return members

    def row_table(self, version: int | None = None) -> pa.Table:
        """Return the rows as a table with the columns of `high_watermark_checkpoint`.

        Parameters: `version`, the value of `log_version`, by default the loaded version; it may be
        older if only empty commits follow it. `epochs_version` is null: only a stored checkpoint is
        paired with a version of the histories.
        """
        rows = [self.rows[key] for key in sorted(self.rows)]
        columns: dict[str, list[Any]] = {
            name: [row.get(name) for row in rows]
            for name in HIGH_WATERMARK_CHECKPOINT.columns.names
        }
        columns["log_version"] = [self.version if version is None else version] * len(rows)
        return pa.table(columns, schema=HIGH_WATERMARK_CHECKPOINT.columns)

    def epoch_table(self) -> pa.Table:
        """Return the histories as a table with the columns of `leader_epoch_checkpoint`."""
        entries = [(key, entry) for key in sorted(self.epochs) for entry in self.epochs[key]]
        columns: dict[str, list[Any]] = {
            "topic_id": [key.topic_id for key, _ in entries],
            "topic": [self._topics.get(key) for key, _ in entries],
            "partition": [key.partition for key, _ in entries],
            "epoch": [entry.epoch for _, entry in entries],
            "start_offset": [entry.start_offset for _, entry in entries],
        }
        return pa.table(columns, schema=LEADER_EPOCH_CHECKPOINT.columns)

    def operation_table(self) -> pa.Table:
        """Return the operations as a table with the columns of `delayed_operations`."""
        return DELAYED_OPERATIONS.rows([dict(row) for row in self.operations.values()])

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether Delta's checkpoint is due; writing it cleans up commits."""
        return self._log.is_checkpoint_due

    def write_due_checkpoint(self) -> None:
        """Start writing Delta's checkpoint if it is due; this cleans up commits.

        Call it only if all checkpoint tables describe the loaded version, or only empty commits
        follow the version that they describe.
        """
        with self._lock:
            self._log.write_due_checkpoint()

    # --- loading --------------------------------------------------------------------------------

    def _opened(self, version: int | None) -> DeltaLog:
        """Open the log after reading the checkpoints, so that it has the described versions."""
        attempt = 1
        while True:
            described = self._described()
            # Commits are cleaned up only after the checkpoints describe them; the owner triggers
            # that.
            opened = DeltaLog(self.location, version, has_damaged_header, cleans_up=False)
            before = self.rows.keys() | self.epochs.keys()
            try:
                self._load_state(described, opened)
            except DamagedError:
                if attempt == _ATTEMPTS:
                    raise
                attempt += 1
                continue
            self._moved |= before | self.rows.keys() | self.epochs.keys()
            return opened

    def _described(self) -> list[_Described]:
        def describe(number: int) -> _Described:
            schema = self._schemas[number]
            if schema.name in self._damaged:
                return _Described(schema.columns.empty_table(), None)
            table = self._checkpoints[number] if self._checkpoints is not None else None
            if table is None:
                table = ControlTable(self._root, schema)
            else:
                table.refresh()
            return _Described(table.rows(), table.held_by(LOG_VERSION))

        return map_in_parallel(describe, range(len(self._schemas)), 0, is_local=self._root.is_local)

    def _load_state(self, described: list[_Described], opened: DeltaLog) -> None:
        version = opened.version
        self.rows, self.epochs, self._topics, self.operations = {}, {}, {}, {}
        self.inbox_positions = {}
        self.truncations = []
        rows, epochs, *operations = described
        self.described_version = max(one.log_version or 0 for one in described)
        self.lacks_described = self.described_version > version
        for row in rows.table.to_pylist():
            self.rows[_key(row)] = _row_of(row)
            self._topics[_key(row)] = row["topic"]
        histories: dict[TopicIdPartition, list[EpochEntry]] = defaultdict(list)
        for row in epochs.table.to_pylist():
            histories[_key(row)].append(EpochEntry(row["epoch"], row["start_offset"]))
            self._topics[_key(row)] = row["topic"]
        self.epochs = {key: tuple(sorted(entries)) for key, entries in histories.items()}
        for of in operations:
            self.operations = {row["operation_id"]: row for row in of.table.to_pylist()}
        # Checkpoints of an earlier release carry no version: they were written with each step.
        versions = [version if one.log_version is None else one.log_version for one in described]
        first = min(versions) + 1
        for commit in read_commits(self.location, first, version, opened.table_id):
            self._apply_changes(commit.derived(changes_in), versions, commit.version)

    def _apply(self, commit: Commit) -> AbstractSet[TopicIdPartition]:
        return self._apply_changes(commit.derived(changes_in), (-1, -1, -1), commit.version)

    def _is_empty(self, commit: Commit) -> bool:
        entry = _entry(commit)
        return (
            bool(entry)
            and entry.keys() <= _OF_HEARTBEATS
            and not (commit.added or commit.removed or commit.transactions)
        )

    def _apply_changes(
        self, changes: Changes, described: Sequence[int], version: int
    ) -> AbstractSet[TopicIdPartition]:
        """Apply a commit's changes that the checkpoints do not include; return the replicas."""
        named: set[TopicIdPartition] = set()
        if version > described[0]:
            self.rows |= changes.rows
            self._topics |= {key: row["topic"] for key, row in changes.rows.items()}
            for key in changes.removed:
                self.rows.pop(key, None)
            named |= changes.rows.keys() | changes.removed
            self.truncations += [{**row, "version": version} for row in changes.truncations]
        if version > described[1]:
            self.epochs |= {key: one.entries for key, one in changes.histories.items()}
            self._topics |= {key: one.topic for key, one in changes.histories.items()}
            for key in changes.removed:
                self.epochs.pop(key, None)
                self._topics.pop(key, None)
            named |= changes.histories.keys() | changes.removed
        if len(self._schemas) > 2 and version > described[2]:
            for operation_id, operation in changes.operations.items():
                if operation is None:
                    self.operations.pop(operation_id, None)
                else:
                    self.operations[operation_id] = operation
        self.inbox_positions |= changes.inbox_positions
        if changes.controller_epoch is not None:
            self.renewal = Renewal(changes.controller_epoch, version)
        return named


class Changes(NamedTuple):
    """The changes of a commit other than batches, in the form that readers apply."""

    rows: Mapping[TopicIdPartition, Row]
    histories: Mapping[TopicIdPartition, Histories]
    operations: Mapping[str, Row | None]
    inbox_positions: Mapping[str, InboxPosition]
    controller_epoch: int | None
    removed: AbstractSet[TopicIdPartition]
    truncations: Sequence[Row]


def changes_in(commit: Commit) -> Changes:
    """Return the changes in a commit of a journal, computed once: `commit.derived(changes_in)`.

    Raises `DamagedError` for a commit of this format that its owner cannot have written.
    """
    return _read(commit, _changes_of)


def _changes_of(entry: Mapping[str, Any]) -> Changes:
    return Changes(
        {_key(row): {**_NULLS, **row} for row in entry.get(_ROWS, ())},
        {
            _key(one): Histories(one["topic"], tuple(_epoch_entry(*at) for at in one["entries"]))
            for one in entry.get(_EPOCHS, ())
        },
        {
            operation_id: operation and {**_NO_OPERATION, **operation}
            for operation_id, operation in entry.get(_OPERATIONS, {}).items()
        },
        {
            table_id: InboxPosition(
                table_id, _int(version), tuple((_int(at), _int(place)) for at, place in beyond)
            )
            for table_id, version, beyond in entry.get(_REQUESTS, ())
        },
        _controller_epoch(entry),
        frozenset(_partition(*one) for one in entry.get(_REMOVED, ())),
        [{**row} for row in entry.get(_TRUNCATIONS, ())],
    )


class _Described(NamedTuple):
    """The rows of a checkpoint table, and the version of the log that they describe."""

    table: pa.Table
    log_version: int | None


def _entry_of(step: Step) -> dict[str, Any]:
    """Return the JSON members of the commit of a step."""
    entry: dict[str, Any] = {_FORMAT: _FORMAT_VERSION}
    if step.rows:
        entry[_ROWS] = [_without_nulls(row) for row in step.rows]
    if step.histories:
        entry[_EPOCHS] = [
            {**key._asdict(), "topic": history.topic, "entries": history.entries}
            for key, history in step.histories.items()
        ]
    if step.operations:
        entry[_OPERATIONS] = {
            operation_id: operation and _without_nulls(operation)
            for operation_id, operation in step.operations.items()
        }
    if step.answers:
        entry[_ANSWERS] = [answer.to_row() for answer in step.answers]
    if step.inbox_positions:
        entry[_REQUESTS] = list(step.inbox_positions)
    if step.removed:
        entry[_REMOVED] = list(step.removed)
    if step.truncations:
        entry[_TRUNCATIONS] = list(step.truncations)
    return entry


def inbox_transaction(table_id: str) -> str:
    """Return the app transaction of a checkpoint that holds a request table's taken position."""
    return f"{PRODUCE_REQUESTS.name}/{table_id}"


def answers_in(
    commit: Commit, on_invalid: Callable[[ValueError], None] | None = None
) -> list[ProduceAnswer]:
    """Return the valid answers to requests in a commit of a journal.

    `on_invalid` is called with the fault of each answer that is not valid; without it, such an
    answer is a `DamagedError`. So is a commit whose member is not a list.
    """
    answers = []
    for row in _read(commit, lambda entry: [*entry.get(_ANSWERS, ())]):
        try:
            answers.append(ProduceAnswer.from_row(row))
        except ValueError as error:
            if on_invalid is None:
                path = f"commit {commit.version} of a log"
                remedy = "clients send such a request again"
                raise DamagedError(path, str(error), remedy) from error
            on_invalid(error)
    return answers


def rows_in(commit: Commit) -> Sequence[Row]:
    """Return the changed rows of replicas in a commit of a journal; raises as `changes_in` does."""
    return _read(commit, lambda entry: [{**row} for row in entry.get(_ROWS, ())])


def renewal_in(commit: Commit) -> Renewal | None:
    """Return the renewal of the controller's lease in a commit of a journal, or `None`.

    Raises as `changes_in` does.
    """
    epoch = _read(commit, _controller_epoch)
    return None if epoch is None else Renewal(epoch, commit.version)


def seen_in(commit: Commit) -> SeenVersions | None:
    """Return the versions that a commit of a journal carries, or `None` if it carries none."""
    value = _entry(commit).get(_SEEN)
    try:
        return None if value is None else SeenVersions.from_json(value)
    except ValueError:
        # Of a later release: nothing else depends on it.
        return None


def activity_in(commit: Commit) -> Activity | None:
    """Return the activity that a commit of a journal carries, or `None` if it carries none."""
    value = _entry(commit).get(_ACTIVITY)
    if isinstance(value, list) and [*map(type, value)] == [int, int]:
        return Activity(value[0], value[1])
    # Another form is that of a later release.
    return None


def newest_seen(log: Location, version: int) -> SeenVersions:
    """Return the versions in the newest commit up to `version` that carries some; else none.

    Raises `OSError` or `StorageError` if a commit cannot be read.
    """
    for at in range(version, max(version - _MOST_WITHOUT, -1), -1):
        commit = read_commit(log, at, lambda _: True)
        if commit is None:
            # Cleaned up, as all earlier ones are.
            break
        if (seen := seen_in(commit)) is not None:
            return seen
    return SeenVersions()


def _row_of(row: Row) -> Row:
    """Return a row of the table in the journal's form."""
    return {name: value for name, value in row.items() if name not in _VERSIONS}


def _without_nulls(row: Row) -> Row:
    return {name: value for name, value in row.items() if value is not None}


def _entry(commit: Commit) -> Mapping[str, Any]:
    """Return the JSON members of a commit; empty if another tool has made it."""
    return commit.derived(_parsed_entry)


def _read(commit: Commit, read: Callable[[Mapping[str, Any]], _Value]) -> _Value:
    """Return a part of a commit's members; raises `DamagedError` if it is malformed."""
    try:
        return read(_entry(commit))
    except MALFORMED as error:
        raise _malformed(commit, error) from error


def _malformed(commit: Commit, error: Exception) -> DamagedError:
    fault = f"its userMetadata is malformed ({type(error).__name__}: {one_line(error)})"
    return DamagedError(f"commit {commit.version} of a log", fault, COMMIT_REMEDY)


def _parsed_entry(commit: Commit) -> Mapping[str, Any]:
    if not (commit.user_metadata or "").startswith(_BEGINNING):
        return {}
    try:
        entry: Mapping[str, Any] = json_value(str(commit.user_metadata))
        is_later = _int(entry[_FORMAT]) > _FORMAT_VERSION
    except MALFORMED as error:
        raise _malformed(commit, error) from error
    if is_later:
        raise StorageError(
            f"commit {commit.version} of a log was made by a later release: its format is "
            f"{entry[_FORMAT]}, this sparklog knows {_FORMAT_VERSION}"
        )
    return entry


_BEGINNING = f'{{"{_FORMAT}":'


def _key(row: Mapping[str, Any]) -> TopicIdPartition:
    """Return the replica of a row or a history, which has the topic's name, too."""
    if not isinstance(row["topic"], str):
        raise TypeError(f"the name of a topic is {row['topic']!r}")
    return _partition(row["topic_id"], row["partition"])


def _partition(topic_id: Any, partition: Any) -> TopicIdPartition:
    if not isinstance(topic_id, str):
        raise TypeError(f"a topic id is {topic_id!r}")
    return TopicIdPartition(topic_id, _int(partition))


def _epoch_entry(epoch: Any, start_offset: Any) -> EpochEntry:
    return EpochEntry(_int(epoch), _int(start_offset))


def _controller_epoch(entry: Mapping[str, Any]) -> int | None:
    epoch = entry.get(_CONTROLLER)
    return None if epoch is None else _int(epoch)


def _int(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"a number is {value!r}")
    return value
