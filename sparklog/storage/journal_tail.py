"""The state of a root's replicas for those who watch it: rows without batches and histories.

Opening a `Journal` reads the batches of the whole log. The rows alone are the checkpoint and the
commits after the version that it describes, and they are all that a status needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from sparklog.errors import DamagedError, StorageError
from sparklog.model import HIGH_WATERMARK_CHECKPOINT, LOG, TRUNCATIONS, Row, TopicIdPartition
from sparklog.storage.commits import LOG_VERSION, Commit, parse_commit
from sparklog.storage.delta_log_files import (
    commit_path,
    log_names,
    names_from,
    newest_in,
)
from sparklog.storage.errors import UNREADABLE_CONTENT
from sparklog.storage.journal import (
    Activity,
    Changes,
    activity_in,
    changes_in,
)
from sparklog.storage.location import Location, one_line
from sparklog.storage.newest_rows import newest_rows
from sparklog.storage.parallel import reading_threads

_ATTEMPTS = 3
"""The number of attempts to read the checkpoint while clean-up removes the commits after it."""

_SAMPLES = 16
"""The number of newest commits by which a clock is judged: one may have been stored late."""


_BEFORE = 8
"""The number of commits before those that were read among which one with activity is searched."""

_CHUNK = 64
"""The number of earlier commits that are read in parallel."""


class DatedCommit(NamedTuple):
    """A commit, and the time in ms since 1970 at which its store or file system has stored it."""

    commit: Commit
    stored_at_ms: int

    @property
    def made_at_ms(self) -> int:
        """The time in ms since 1970 on its broker's clock; `stored_at_ms` if it names none."""
        return self.commit.made_at_ms or self.stored_at_ms

    @property
    def changes(self) -> Changes:
        """The changes of replicas in it."""
        return self.commit.derived(changes_in)


class JournalTail:
    """The rows of a broker root's replicas, at the newest version of its journal.

    Opening costs the requests for a checkpoint, a listing, and the commits after the checkpoint;
    `refresh` costs one request, and one for each new commit. Raises `StorageError` or `OSError` if
    the journal cannot be read, and `DamagedError` if a commit or the checkpoint is damaged.
    """

    def __init__(self, root: Location) -> None:
        self.root = root
        self._log = root.child(LOG.name)
        self.rows: dict[TopicIdPartition, Row] = {}
        """The rows of the replicas, as in `high_watermark_checkpoint`."""
        self.truncations: list[Row] = []
        """The rows of `truncations` in the table and in the commits, each once."""
        self.activity: Activity | None = None
        """The activity of the broker in its newest commit that carries one."""
        version, found = self._opened(_ATTEMPTS)
        self.newest = found[-1]
        self.recent = deque(found, _SAMPLES)
        """The newest commits, oldest first."""
        self._opening = found
        self._apply([one for one in found if one.commit.version > version])
        self.truncations_fault = self._read_truncations()
        """The reason why the table `truncations` cannot be read, or `None`."""
        if self.activity is None:
            # The newest commits may be fences or merges, which carry none.
            version = found[0].commit.version
            before = self._read(range(version - 1, max(version - _BEFORE, 0) - 1, -1))
            known = (activity_in(one.commit) for one in [self.newest, *before])
            self.activity = next((one for one in known if one is not None), None)

    def _opened(self, attempts: int) -> tuple[int, list[DatedCommit]]:
        try:
            return self._read_all()
        except DamagedError:
            # Clean-up removes the commits that a newer checkpoint describes.
            if attempts == 1:
                raise
        return self._opened(attempts - 1)

    def _read_all(self) -> tuple[int, list[DatedCommit]]:
        """Read the checkpoint; return the version that it describes, and the commits after it.

        The newest commit is returned in any case.
        """
        described = newest_rows(self.root, HIGH_WATERMARK_CHECKPOINT, LOG_VERSION)
        rows = [] if described is None else described.rows.to_pylist()
        self.rows = {_key(row): row for row in rows}
        version = None if described is None else described.transaction
        newest = self._newest_version(version or 0)
        # A checkpoint of an earlier release has no version: it was written with each commit.
        version = newest if version is None else version
        first = min(version + 1, newest)
        found = self._read(range(first, newest + 1))
        if len(found) < newest + 1 - first:
            path = f"{self._log.uri}/{commit_path(first + len(found))}"
            raise DamagedError(path, "it is missing", "restore the root, or repair it")
        return version, found

    def _read_truncations(self) -> str | None:
        """Add the rows of `truncations`; return the reason if that table cannot be read.

        Called after the checkpoint was read: truncations up to its version are in the table.
        """
        try:
            stored = newest_rows(self.root, TRUNCATIONS)
        except UNREADABLE_CONTENT as error:
            return one_line(error)
        in_commits, self.truncations = self.truncations, []
        self._add_truncations([] if stored is None else stored.rows.to_pylist())
        self._add_truncations(in_commits)
        return None

    def _newest_version(self, version: int) -> int:
        log = self._log
        names = log_names(log) if log.is_local else names_from(log, version)
        newest = newest_in(names)
        if newest < 0:
            raise StorageError(
                f"there is no table at {log.uri}: check the root, or create the cluster first"
            )
        return newest

    def refresh(self) -> list[DatedCommit]:
        """Apply the new commits, and return them, oldest first.

        Raises as the constructor does; the state is unchanged in that case.
        """
        found: list[DatedCommit] = []
        count = 1
        while True:
            first = self.newest.commit.version + 1 + len(found)
            read = self._read(range(first, first + count))
            found += read
            if len(read) < count:
                break
            count = min(2 * count, _SAMPLES)
        if found:
            self.newest = found[-1]
            self.recent += found
            self._apply(found)
            self._opening = []
        return found

    def earlier(self, since_ms: int) -> list[DatedCommit]:
        """Return the commits up to the newest that were stored since a time, oldest first.

        Clean-up and damage end them earlier. Costs a request for each that was not read at the
        opening, and for up to `_CHUNK` older ones. Parameters: `since_ms`, in ms since 1970.
        """
        found = self._opening or [self.newest]
        while found[0].stored_at_ms >= since_ms and (end := found[0].commit.version) > 0:
            versions = range(max(end - _CHUNK, 0), end)
            try:
                read = self._read(range(versions[-1], versions[0] - 1, -1))
            except UNREADABLE_CONTENT:
                break
            found = [*reversed(read), *found]
            if len(read) < len(versions):
                break
        return [one for one in found if one.stored_at_ms >= since_ms]

    @property
    def clock_offset_ms(self) -> int:
        """The time in ms by which the broker's clock is ahead of the store's; negative if behind.

        A commit is stored after it is made, so the largest difference is the nearest one.
        """
        return max(one.made_at_ms - one.stored_at_ms for one in self.recent)

    def is_in_place(self) -> bool:
        """Return whether the newest commit is the one that was read: the root was not replaced."""
        version = self.newest.commit.version
        return [one.commit for one in self._read(range(version, version + 1))] == [
            self.newest.commit
        ]

    def _read(self, versions: range) -> list[DatedCommit]:
        """Return the commits of `versions` before the first that does not exist."""

        def read(version: int) -> DatedCommit | None:
            try:
                content, stored_at_ms = self._log.read_with_time(commit_path(version))
            except FileNotFoundError:
                return None
            commit = parse_commit(self._log, version, content, lambda _: True)
            return DatedCommit(commit, stored_at_ms)

        in_parallel = len(versions) > 1 and not self._log.is_local
        found = []
        for one in (reading_threads().map if in_parallel else map)(read, versions):
            if one is None:
                break
            found.append(one)
        return found

    def _apply(self, commits: Sequence[DatedCommit]) -> None:
        for one in commits:
            changes, commit = one.changes, one.commit
            self.rows |= changes.rows
            for key in changes.removed:
                self.rows.pop(key, None)
            new = [{**row, "version": commit.version} for row in changes.truncations]
            self._add_truncations(new)
            self.activity = activity_in(commit) or self.activity

    def _add_truncations(self, rows: Sequence[Row]) -> None:
        if rows:
            known = {tuple(row[name] for name in TRUNCATIONS.key) for row in self.truncations}
            self.truncations += [
                row for row in rows if tuple(row[name] for name in TRUNCATIONS.key) not in known
            ]


def _key(row: Row) -> TopicIdPartition:
    return TopicIdPartition(row["topic_id"], row["partition"])
