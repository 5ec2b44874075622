"""A broker's journal: the commits of its `log` table, which say what every step has changed.

A commit carries, beside the batches that it adds and removes, what else the step has changed, as
JSON in `userMetadata`: rows of replicas, leader-epoch histories, delayed operations, answers to
requests, and how far the requests are taken. A step has happened with all of its effects, or not
at all. The state is what the checkpoint tables say, and the commits after the version of the log
that each of them describes (rule 7.0).

Whoever reads the state follows the journal; the tables are for recovery, for people and for SQL.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.errors import DamagedError, StorageError
from sparklog.model import (
    DELAYED_OPERATIONS,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    PRODUCE_REQUESTS,
    Batch,
    EpochEntry,
    TopicIdPartition,
)
from sparklog.storage.batch_actions import has_damaged_header
from sparklog.storage.control_table import ControlTable, Fence
from sparklog.storage.delta_log import LOG_VERSION, Commit, DeltaLog, read_commits
from sparklog.storage.json_text import json_bytes, json_value
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog

_FORMAT, _ROWS, _EPOCHS, _OPERATIONS = "sparklog", "replicas", "epochs", "operations"
_REQUESTS, _ANSWERS = "requests", "answers"
_CONTROLLER = "controller"
"""The member with the controller epoch whose lease the commit renews."""

_OF_HEARTBEATS = frozenset({_FORMAT, _CONTROLLER})
"""The members of a commit that changes nothing."""

_FORMAT_VERSION = 1
"""The version of what commits carry; it stands first, so that other writers' text is known by it.
"""

_VERSIONS = frozenset({"log_version", "epochs_version"})
"""The columns of a row of the table that no row of the journal has."""

CHECKPOINTS = HIGH_WATERMARK_CHECKPOINT, LEADER_EPOCH_CHECKPOINT, DELAYED_OPERATIONS
"""The tables that describe the state as of a version of the journal."""

_NO_OPERATION = dict.fromkeys(DELAYED_OPERATIONS.columns.names)

_NULLS = dict.fromkeys(("damaged_offset", "damage", "leader_damaged_offset", "parked_lags"))
"""The columns of a row that commits leave out where they are null."""

_ATTEMPTS = 3
"""How often a reader reads the checkpoints again after clean-up has taken the commits after them.
"""

Row = Mapping[str, Any]
"""A row of a checkpoint table; of high_watermark_checkpoint without the columns of versions."""


class Taken(NamedTuple):
    """How far the requests are taken, of the request table with this id.

    All that were added up to `version` are, and of later ones those in `beyond`: each a version of
    the table and a place in its commit.
    """

    table_id: str
    version: int
    beyond: tuple[tuple[int, int], ...] = ()


class Step(NamedTuple):
    """What a step of a broker changes beside the batches.

    `rows`, the new rows of replicas; `histories`, new leader-epoch histories; `operations`, delayed
    operations that begin to wait, by their ids, and `None` for those that wait no more; `answers`,
    to requests; `taken`, how far the requests of some tables are taken now.
    """

    rows: Sequence[Row] = ()
    histories: Mapping[TopicIdPartition, Histories] = {}
    operations: Mapping[str, Row | None] = {}
    answers: Sequence[Row] = ()
    taken: Sequence[Taken] = ()


class Histories(NamedTuple):
    """A change of leader-epoch histories: of each replica its topic and all entries, in order."""

    topic: str
    entries: tuple[EpochEntry, ...]


class Renewal(NamedTuple):
    """The newest commit of a journal that renews the controller's lease, and for which epoch."""

    controller_epoch: int
    version: int


class Journal(RecordLog):
    """The log of one broker root, with the state of its replicas.

    Parameters: `checkpoints`, the tables of `CHECKPOINTS`, in their order, where the owner has
    opened them; `damaged`, the names of those that count as empty; `with_operations`, whether the
    delayed operations are loaded, too.

    Raises `DamagedError` where a checkpoint is damaged, or a commit is missing or damaged that
    follows the version that it describes.
    """

    def __init__(
        self,
        root: Location,
        fence: Fence | None = None,
        checkpoints: Sequence[ControlTable] | None = None,
        damaged: Collection[str] = (),
        *,
        with_operations: bool = False,
    ) -> None:
        self._root = root
        self._schemas = CHECKPOINTS if with_operations or checkpoints else CHECKPOINTS[:2]
        self.operations: dict[str, Row] = {}
        """The delayed operations, by their ids."""
        self.taken: dict[str, Taken] = {}
        """How far the requests are taken, by the ids of their tables.

        As far as commits after the checkpoints say it.
        """
        self.renewal: Renewal | None = None
        """The newest renewal of the controller's lease, as far as commits that were read say it."""
        self._checkpoints = checkpoints
        self._damaged = damaged
        self._topics: dict[TopicIdPartition, str] = {}
        self.rows: dict[TopicIdPartition, Row] = {}
        """The rows of the replicas, as of the loaded version."""
        self.epochs: dict[TopicIdPartition, tuple[EpochEntry, ...]] = {}
        """The leader-epoch histories of the replicas, oldest entry first."""
        self.described_version = 0
        """The newest version of the log that a checkpoint described when the log was opened."""
        super().__init__(root, fence)
        # The owner writes them before it opens the log again, which reads them then.
        self._damaged = ()

    def has_news(self) -> bool:
        """Say whether there is certainly a newer version; only told of logs in a folder."""
        return self._log.has_news()

    def commit_step(
        self, added: Sequence[Batch], removed: Sequence[Batch], step: Step, now_ms: int
    ) -> None:
        """Commit a step: batches and what else it changes, all or nothing.

        Raises as `commit` does; the state is as before then.
        """
        entry = _entry_of(step)
        self.commit(added, removed, now_ms, json_bytes(entry).decode())
        self._take(_changes_of(entry), (-1, -1, -1), self.version)

    def heartbeat(self, controller_epoch: int | None = None) -> bool:
        """Make an empty commit, which shows that the broker lives; return whether it was made.

        `controller_epoch`: the epoch of the controller's lease that the broker holds and renews.
        Raises as `commit_empty` does.
        """
        entry = {_FORMAT: _FORMAT_VERSION}
        if controller_epoch is not None:
            entry[_CONTROLLER] = controller_epoch
        with self._lock:
            is_made = self.commit_empty(json_bytes(entry).decode())
            if is_made and controller_epoch is not None:
                self.renewal = Renewal(controller_epoch, self.version)
        return is_made

    def row_table(self, version: int | None = None) -> pa.Table:
        """Return the rows as a table with the columns of `high_watermark_checkpoint`.

        `version` is the one that the rows name, the loaded one by default: empty commits may
        follow. `epochs_version` is null: only a checkpoint has a version of the histories beside
        it.
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
        """Whether Delta's checkpoint is due, after which commits are cleaned up."""
        return self._log.is_checkpoint_due

    def write_due_checkpoint(self) -> None:
        """Have Delta's checkpoint written where that is due, after which commits are cleaned up.

        Called when all checkpoint tables describe the loaded version, or empty commits follow.
        """
        with self._lock:
            self._log.write_due_checkpoint()

    # --- loading --------------------------------------------------------------------------------

    def _opened(self, version: int | None) -> DeltaLog:
        """Open the log, after the checkpoints: what they describe is part of the log then."""
        attempt = 1
        while True:
            described = self._described()
            # Its owner lets commits be cleaned up when the checkpoints describe them.
            opened = DeltaLog(self.location, version, has_damaged_header, cleans_up=False)
            before = self.rows.keys() | self.epochs.keys()
            try:
                self._load_state(described, opened.version)
            except DamagedError:
                if attempt == _ATTEMPTS:
                    raise
                attempt += 1
                continue
            self._moved |= before | self.rows.keys() | self.epochs.keys()
            return opened

    def _described(self) -> list[_Described]:
        described = []
        for number, schema in enumerate(self._schemas):
            if schema.name in self._damaged:
                described.append(_Described(schema.columns.empty_table(), None))
                continue
            if self._checkpoints is not None:
                table = self._checkpoints[number]
                table.refresh()
            else:
                table = ControlTable(self._root, schema)
            described.append(_Described(table.rows(), table.held_by(LOG_VERSION)))
        return described

    def _load_state(self, described: list[_Described], version: int) -> None:
        self.rows, self.epochs, self._topics, self.operations = {}, {}, {}, {}
        self.taken = {}
        rows, epochs, *operations = described
        self.described_version = max(rows.log_version or 0, epochs.log_version or 0)
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
        # The tables of an earlier release name no version: they were written with each step.
        versions = [version if one.log_version is None else one.log_version for one in described]
        for commit in read_commits(self.location, min(versions) + 1, version):
            self._take(commit.derived(_changes_in), versions, commit.version)

    def _apply(self, commit: Commit) -> AbstractSet[TopicIdPartition]:
        return self._take(commit.derived(_changes_in), (-1, -1, -1), commit.version)

    def _is_empty(self, commit: Commit) -> bool:
        entry = _entry(commit)
        return (
            bool(entry)
            and entry.keys() <= _OF_HEARTBEATS
            and not (commit.added or commit.removed or commit.transactions)
        )

    def _take(
        self, changes: _Changes, described: Sequence[int], version: int
    ) -> AbstractSet[TopicIdPartition]:
        """Take over what a commit says that the checkpoints did not describe."""
        named: set[TopicIdPartition] = set()
        if version > described[0]:
            self.rows |= changes.rows
            self._topics |= {key: row["topic"] for key, row in changes.rows.items()}
            named |= changes.rows.keys()
        if version > described[1]:
            self.epochs |= {key: one.entries for key, one in changes.histories.items()}
            self._topics |= {key: one.topic for key, one in changes.histories.items()}
            named |= changes.histories.keys()
        if len(self._schemas) > 2 and version > described[2]:
            for operation_id, operation in changes.operations.items():
                if operation is None:
                    self.operations.pop(operation_id, None)
                else:
                    self.operations[operation_id] = operation
        self.taken |= changes.taken
        if changes.controller_epoch is not None:
            self.renewal = Renewal(changes.controller_epoch, version)
        return named


class _Changes(NamedTuple):
    """The changes that a commit carries beside its batches, as readers take them over."""

    rows: Mapping[TopicIdPartition, Row]
    histories: Mapping[TopicIdPartition, Histories]
    operations: Mapping[str, Row | None]
    taken: Mapping[str, Taken]
    controller_epoch: int | None


def _changes_in(commit: Commit) -> _Changes:
    return _changes_of(_entry(commit))


def _changes_of(entry: Mapping[str, Any]) -> _Changes:
    return _Changes(
        {_key(row): {**_NULLS, **row} for row in entry.get(_ROWS, ())},
        {
            _key(one): Histories(one["topic"], tuple(EpochEntry(*pair) for pair in one["entries"]))
            for one in entry.get(_EPOCHS, ())
        },
        {
            operation_id: operation and {**_NO_OPERATION, **operation}
            for operation_id, operation in entry.get(_OPERATIONS, {}).items()
        },
        {
            table_id: Taken(table_id, version, tuple((at, place) for at, place in beyond))
            for table_id, version, beyond in entry.get(_REQUESTS, ())
        },
        entry.get(_CONTROLLER),
    )


class _Described(NamedTuple):
    """The rows of a checkpoint table, and which version of the log they describe."""

    table: pa.Table
    log_version: int | None


def _entry_of(step: Step) -> dict[str, Any]:
    """Return what a commit is to say of a step."""
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
        entry[_ANSWERS] = list(step.answers)
    if step.taken:
        entry[_REQUESTS] = list(step.taken)
    return entry


def taken_transaction(table_id: str) -> str:
    """Return the app transaction of a checkpoint that says how far the requests are taken."""
    return f"{PRODUCE_REQUESTS.name}/{table_id}"


def answers_in(commit: Commit) -> Sequence[Row]:
    """Return the answers to requests that a commit of a journal carries."""
    answers: Sequence[Row] = _entry(commit).get(_ANSWERS, ())
    return answers


def renewal_in(commit: Commit) -> Renewal | None:
    """Return the renewal of the controller's lease that a commit of a journal carries."""
    epoch = _entry(commit).get(_CONTROLLER)
    return None if epoch is None else Renewal(epoch, commit.version)


def _row_of(row: Row) -> Row:
    """Return a row of the table as the journal has it."""
    return {name: value for name, value in row.items() if name not in _VERSIONS}


def _without_nulls(row: Row) -> Row:
    return {name: value for name, value in row.items() if value is not None}


def _entry(commit: Commit) -> Mapping[str, Any]:
    """Return what a commit says of replicas; nothing where another tool has made it."""
    return commit.derived(_parsed_entry)


def _parsed_entry(commit: Commit) -> Mapping[str, Any]:
    if not (commit.user_metadata or "").startswith(_BEGINNING):
        return {}
    entry: Mapping[str, Any] = json_value(str(commit.user_metadata))
    if entry[_FORMAT] > _FORMAT_VERSION:
        raise StorageError(
            f"commit {commit.version} of a log was made by a later release: its format is "
            f"{entry[_FORMAT]}, this sparklog knows {_FORMAT_VERSION}"
        )
    return entry


_BEGINNING = f'{{"{_FORMAT}":'


def _key(row: Mapping[str, Any]) -> TopicIdPartition:
    return TopicIdPartition(row["topic_id"], row["partition"])
