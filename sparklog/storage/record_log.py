"""The log table of a broker root: batches by reference, one fenced compare-and-set per commit.

The table contains all replicas of its broker root; a replica is the slice of one topic id and
partition. A commit adds and removes file references and never rewrites a batch. Only this module
writes to a log table; Spark never does.
"""

from __future__ import annotations

import bisect
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from itertools import chain, pairwise
from operator import attrgetter
from typing import TypeAlias

import pyarrow as pa
import xxhash
from deltalake.exceptions import DeltaError

from sparklog.clock import clocks, is_ago
from sparklog.errors import CommitConflictError, DamagedError, FencedError, StorageError
from sparklog.model import BATCH_INDEX, LOG, Batch, TopicIdPartition
from sparklog.storage.batch_actions import (
    added_batches,
    added_file,
    has_damaged_header,
    header_checksum,
    live_batches,
    removed_file,
)
from sparklog.storage.commits import Commit, check_commits
from sparklog.storage.damaged_commits import COMMIT_REMEDY
from sparklog.storage.delta_log import LONG_AGO_S, DeltaLog
from sparklog.storage.delta_log_files import (
    LOG_FOLDER,
    has_commit,
    newest_behind_lost,
    newest_checkpoint,
)
from sparklog.storage.fence import Fence, check_fence, check_held, take_fence
from sparklog.storage.location import Location
from sparklog.storage.new_file import discard_file
from sparklog.storage.recovered_checkpoint import write_recovered_checkpoint
from sparklog.storage.soundness import first_fault

REMEMBERED_BATCHES = 5
"""The number of an idempotent producer's last batches that detect duplicates (rule 3.6)."""

REMOVED_S = 7_200
"""The seconds for which a log's owner remembers the paths of removed batches. A request that names
such a path later is refused for its age (rule 3.1), or because its file is gone.
"""

_LONGEST_UNEXAMINED_S = 600.0
"""The longest time in s between two searches for a lost commit in a log that does not move."""

_ByProducer: TypeAlias = "defaultdict[tuple[TopicIdPartition, int], list[Batch]]"

_base_offset = attrgetter("base_offset")
_next_offset = attrgetter("next_offset")
_leader_epoch = attrgetter("leader_epoch")


class RecordLog:
    """The log table of one broker root, with its batch index in memory.

    The index follows the table commit by commit, so a tick costs O(new commits). The broker that
    owns the log opens it with a `fence`; readers open it without one.

    A replica is damaged if it has a damaged header, a gap, an overlap or a decreasing leader epoch.
    Only its batches before the first fault are offered, to the owner and to readers alike (rule
    9.5). The others stay live until the owner removes them.

    The owner's heartbeats make empty commits in parallel to its steps. Both use one lock, which is
    held during the requests of a commit. Invariant: an empty commit changes nothing but the
    version.
    """

    def __init__(self, root: Location, fence: Fence | None = None) -> None:
        self.location = root.child(LOG.name)
        self.fence: Fence | None = None
        self.commits = 0
        """The number of commits made through this instance, without empty ones."""
        self.heartbeats = 0
        """The number of empty commits made through this instance."""
        self._lock = threading.RLock()
        # The prefix of the ids of this instance's empty commits.
        self._empty_id = uuid.uuid4().hex
        self._empty_attempts = 0
        self._moved: set[TopicIdPartition] = set()
        self._log = self._opened(None)
        self._moved_to, self._moved_at = self._log.version, clocks()
        self._examined_after_s: float = LONG_AGO_S
        self.content_version = self._log.version
        """The version of the newest commit that is not empty; initially the opened version."""
        self._slices: dict[TopicIdPartition, list[Batch]] = defaultdict(list)
        self._live: dict[str, Batch] = {}
        # Built at their first use: readers of other brokers' logs have no use for them, and their
        # entries take a third of the memory of a batch.
        self._by_batch_id: dict[str, Batch] | None = None
        self._by_producer: _ByProducer | None = None
        self._appended_at_ms: dict[str, int] = {}
        # By path, the monotonic time in s at which the batch was removed, oldest first.
        self._removed: dict[str, float] = {}
        # Of damaged replicas: the batches at or after the first fault, and all with a wrong header.
        self._unsound: dict[TopicIdPartition, list[Batch]] = {}
        self._wrong_headers: dict[TopicIdPartition, dict[str, tuple[Batch, str]]] = {}
        self.damaged: dict[TopicIdPartition, DamagedError] = {}
        """The damaged replicas, each with its first fault."""
        self._load()
        if fence is not None:
            self.take_fence(fence)

    def take_fence(self, fence: Fence) -> None:
        """Fence the log for the broker that holds `fence`; see the function `take_fence`."""
        self.fence = fence
        take_fence(self.location, fence, self._refreshed)
        self.content_version = self._log.version

    def held_by(self, transaction: str) -> int | None:
        """Return the epoch of a fence that the loaded version carries, or `None`."""
        return self._log.transactions.get(transaction)

    @property
    def version(self) -> int:
        """The version that the index describes."""
        return self._log.version

    @property
    def progress(self) -> int:
        """The version, with some empty commits counted as one; see `DeltaLog.progress`."""
        return self._log.progress

    @property
    def table_id(self) -> str:
        """The id that Delta gave the table when it was created."""
        return self._log.table_id

    def digest(self) -> str:
        """Return a digest of the live batches: files, partitions, offsets and epochs.

        Invariant: its definition is the same in all releases, since it identifies a stopped broker
        of an earlier release.
        """
        digest = xxhash.xxh3_64()
        for path in sorted(self._live):
            one = self._live[path]
            offsets = one.base_offset, one.next_offset
            held = path, one.checksum, one.topic_id, one.partition, one.leader_epoch, *offsets
            digest.update("\n".join(map(str, held)).encode() + b"\0")
        return digest.hexdigest()

    def refresh(self, to_version: int | None = None) -> None:
        """Bring the index to `to_version`, or to the newest version.

        Raises `StorageError` if the table does not have `to_version`, or no longer has it.
        """
        with self._lock:
            if to_version is not None and to_version < self.version:
                self._reopen(to_version)
                return
            self._follow(to_version)
            if to_version is not None:
                if self.version < to_version:
                    self._reopen(to_version)
            elif self._log.is_lost or self._is_next_lost():
                # The next commits were cleaned up or lost, or the root was lost or restored.
                self._reopen()

    def _is_next_lost(self) -> bool:
        """Return whether the next commit is gone although later ones are there.

        A reader would wait for the commit for ever. Brokers that run commit every few seconds, so
        this is examined, by a list, only if no commit came for `LONG_AGO_S`; each time without a
        finding doubles the time until the next one.
        """
        if self.fence is not None:
            # Nobody else commits to its log.
            return False
        if self._log.version != self._moved_to:
            self._moved_to, self._moved_at = self._log.version, clocks()
            self._examined_after_s = LONG_AGO_S
        if not is_ago(self._moved_at, self._examined_after_s):
            return False
        self._examined_after_s = min(2 * self._examined_after_s, _LONGEST_UNEXAMINED_S)
        self._moved_at = clocks()
        return newest_behind_lost(self.location, self._log.version) is not None

    def poll_ahead(self, *, to_end: bool = False, least: int = 1) -> None:
        """Request the next commits from an object store without waiting; `refresh` applies them."""
        with self._lock:
            self._log.poll_ahead(to_end=to_end, least=least)

    @property
    def is_uncertain(self) -> bool:
        """Whether the outcome of the last commit is unknown: refresh before deciding anything."""
        return self._log.is_uncertain

    @property
    def may_land_late(self) -> bool:
        """Whether an abandoned commit may still become the next version."""
        return self._log.may_land_late

    def pop_moved(self) -> set[TopicIdPartition]:
        """Return the replicas that changed other than by a `commit` that returned.

        They include those of a commit whose response was lost, once it is found in the log. Each
        change is returned once.
        """
        moved, self._moved = self._moved, set()
        return moved

    def _follow(self, to_version: int | None = None) -> None:
        for commit in self._log.follow(to_version):
            self._moved |= self._apply(commit)
            if self._is_empty(commit):
                self._log.empty_commits += 1
            else:
                self.content_version = commit.version
            changed: dict[TopicIdPartition, list[int]] = defaultdict(list)
            for path in commit.removed:
                if (batch := self._live.get(path)) is not None:
                    changed[batch.topic_id_partition].append(batch.base_offset)
                self._forget(path)
            for read in added_batches(commit):
                batch = read.batch
                if read.is_sound:
                    self._remember(batch, read.modified_at_ms)
                else:
                    batch = self._set_aside(batch, read.modified_at_ms, read.header_checksum)
                changed[batch.topic_id_partition].append(batch.base_offset)
            self._moved |= changed.keys()
            for key, offsets in changed.items():
                self._check_sound(key, min(offsets), max(offsets))

    def _apply(self, commit: Commit) -> AbstractSet[TopicIdPartition]:  # noqa: ARG002
        """Apply a commit's changes other than batches; return the replicas that it names."""
        return set()

    def _is_empty(self, _commit: Commit) -> bool:
        """Return whether a commit is known to change nothing, as a heartbeat does."""
        return False

    def is_in_place(self) -> bool:
        """Return whether the loaded version's commit exists: the root is neither gone nor empty."""
        return has_commit(self.location, self.version)

    def verify_commits(self) -> None:
        """Raise `DamagedError` if a commit is damaged that opening the table now would read.

        Checks only local folders; see `check_commits`.
        """
        check_commits(self.location, self.version, has_damaged_header, self.table_id)

    def write_recovered_checkpoint(self, now_ms: int) -> None:
        """Write Delta's checkpoint from memory, so that a damaged file is not read again.

        The owner has read the log before it was damaged. Raises `StorageError` if headers are
        damaged: their values are unknown. Raises `OSError` or `DeltaError` if the checkpoint cannot
        be written.
        """
        if self._unsound:
            raise StorageError(f"{self.location.uri} has damaged headers as well")
        with self._lock:
            check_fence(self._log, self.fence)
            live = {
                path: added_file(batch, self._appended_at_ms[path])
                for path, batch in self._live.items()
            }
            transactions = self._log.transactions
            write_recovered_checkpoint(
                self.location,
                self._log.snapshot,
                self.version,
                live,
                transactions,
                now_ms,
                [*self._removed],
            )

    def partitions(self) -> list[TopicIdPartition]:
        """Return the replicas with at least one batch in this log."""
        return [key for key, batches in self._slices.items() if batches]

    def log_end_offset(self, partition: TopicIdPartition, log_start_offset: int = 0) -> int:
        """Return the offset of the replica's next record."""
        batches = self._slices.get(partition)
        return max(batches[-1].next_offset, log_start_offset) if batches else log_start_offset

    def batches(self, partition: TopicIdPartition, from_offset: int = 0) -> Sequence[Batch]:
        """Return the batches that contain `from_offset` or later offsets, by ascending offset."""
        batches = self._slices.get(partition, [])
        return batches[bisect.bisect_right(batches, from_offset, key=_next_offset) :]

    def first_batch(self, partition: TopicIdPartition) -> Batch | None:
        """Return the first batch of a replica, or `None`; costs O(1)."""
        batches = self._slices.get(partition)
        return batches[0] if batches else None

    def unsound_batches(self, partition: TopicIdPartition) -> Sequence[Batch]:
        """Return the live batches of a damaged replica that are not offered.

        The replica is damaged until all of them are removed.
        """
        return list(self._unsound.get(partition, ()))

    def batch_at(self, partition: TopicIdPartition, offset: int) -> Batch | None:
        """Return the batch that contains `offset`, or `None`."""
        batches = self._slices.get(partition, [])
        index = bisect.bisect_right(batches, offset, key=_next_offset)
        found = batches[index] if index < len(batches) else None
        return found if found is not None and found.base_offset <= offset else None

    def batch_index(
        self, from_offsets: Mapping[TopicIdPartition, int], most: int | None = None
    ) -> pa.Table:
        """Return the index of the batches at or after each replica's offset, as `BATCH_INDEX`.

        The batch that ends at the offset is included. Its epoch shows whether a follower at this
        offset agrees with this log (rule 6.4). Parameters: `most`, the number of batches of each
        replica after that one; all by default.
        """

        def indexed(partition: TopicIdPartition, offset: int) -> Sequence[Batch]:
            batches = self._slices.get(partition, [])
            first = bisect.bisect_right(batches, offset - 1, key=_next_offset)
            return batches[first : None if most is None else first + 1 + most]

        return index_table(
            batch for key, offset in from_offsets.items() for batch in indexed(key, offset)
        )

    def epoch_starts(self, partitions: Iterable[TopicIdPartition]) -> pa.Table:
        """Return the index of the first batch of each epoch in these replicas, as `BATCH_INDEX`.

        The epochs of a replica's batches do not decrease, so each is found by bisection.
        """
        return index_table(
            batch for key in partitions for batch in _epoch_starts(self._slices.get(key, []))
        )

    def find(self, batch_ids: Iterable[str]) -> list[Batch]:
        """Return the live batches that have one of these ids (rule 3.7)."""
        if self._by_batch_id is None:
            self._by_batch_id = {batch.batch_id: batch for batch in self._offered()}
        known = self._by_batch_id
        return [known[key] for key in batch_ids if key in known]

    def producer_batches(self, partition: TopicIdPartition, producer_id: int) -> list[Batch]:
        """Return the last `REMEMBERED_BATCHES` batches of an idempotent producer (3.6)."""
        if self._by_producer is None:
            self._by_producer = defaultdict(list)
            for batch in self._offered():
                if batch.producer_id >= 0:
                    self._by_producer[batch.topic_id_partition, batch.producer_id].append(batch)
        return self._by_producer.get((partition, producer_id), [])[-REMEMBERED_BATCHES:]

    def _offered(self) -> Iterator[Batch]:
        """Yield the batches that are offered, those of each replica by ascending offset."""
        return chain.from_iterable(self._slices.values())

    def appended_at_ms(self, batch: Batch) -> int:
        """Return the time when a live batch was committed here, in ms on the broker's clock."""
        return self._appended_at_ms[batch.path]

    def is_live(self, batch: Batch) -> bool:
        """Return whether a batch is part of the loaded version."""
        return self._live.get(batch.path) == batch

    def was_committed(self, path: str) -> bool:
        """Return whether `path` is in the log, or was in the last `REMOVED_S` seconds (3.7).

        Batches that were removed before the owner opened the log do not count.
        """
        return path in self._live or path in self._removed

    def commit(
        self,
        added: Sequence[Batch] = (),
        removed: Sequence[Batch] = (),
        now_ms: int | None = None,
        user_metadata: str | None = None,
        transactions: Mapping[str, int] | None = None,
    ) -> None:
        """Add and remove batches of any replicas, as the version after the loaded one.

        Parameters: `now_ms`, the time on the broker's clock, by default the system's;
        `user_metadata`, a text to be stored in the commit; `transactions`, the versions of app
        transactions to be set in it.

        Raises `FencedError` if another process has taken over the broker, and `CommitConflictError`
        if another commit has the next version; nothing is written in both cases. Raises `OSError`
        or `DeltaError` if the commit failed or its outcome is unknown (`is_uncertain`).

        Programming errors are checked by assertions: delta-rs would silently add a path twice,
        ignore an unknown one, leave a gap or write an unreadable number.
        """
        self._check(added, removed)
        system_ms = time.time_ns() // 1_000_000
        now_ms = system_ms if now_ms is None else now_ms
        files = [added_file(batch, now_ms) for batch in added]
        # Delta's own clean-up uses the system's clock.
        gone = [removed_file(batch, system_ms) for batch in removed]
        operation = "WRITE" if added or not removed else "DELETE"
        with self._lock:
            check_fence(self._log, self.fence)
            while not self._log.commit(operation, files, gone, transactions, user_metadata):
                if self._step_over(self._log.taken_by):
                    continue
                self.refresh()
                check_fence(self._log, self.fence)
                raise CommitConflictError(
                    f"{self.location.uri} moved: another writer has committed; decide on its "
                    "newest version and try again"
                )
            self.commits += 1
            self.content_version = self._log.version
            for batch in removed:
                self._forget(batch.path)
            for batch in added:
                self._remember(batch, now_ms)

    def commit_empty(self, user_metadata: str) -> bool:
        """Make a commit that changes nothing but the version; return whether it was made.

        May run in parallel to a step of the owner, which is not affected. No commit is made if
        another one has the next version, or may have it. The owner's next `refresh` applies that
        one, which must not happen within a step. Raises as `commit` does, except for conflicts.
        """
        with self._lock:
            if self._log.is_uncertain:
                found = self._log.next_commit()
                if found is not None and not self._step_over(found):
                    self._check_taken_over(found)
                    return False
            check_fence(self._log, self.fence)
            self._empty_attempts += 1
            commit_id = f"{self._empty_id}.{self._empty_attempts}"
            while not self._log.commit(
                "HEARTBEAT", user_metadata=user_metadata, commit_id=commit_id
            ):
                if self._step_over(self._log.taken_by):
                    continue
                if self._log.taken_by is not None:
                    # The owner has to follow the log; following detects lost commits.
                    self._log.is_uncertain = True
                    self._check_taken_over(self._log.taken_by)
                return False
            self._log.empty_commits += 1
            self.heartbeats += 1
            return True

    def _step_over(self, commit: Commit | None) -> bool:
        """Advance to an own empty commit with a lost response; return whether `commit` is one."""
        commit_id = commit.commit_id if commit is not None else None
        if commit_id is None or not commit_id.startswith(f"{self._empty_id}."):
            return False
        self._log.step_over()
        self._log.empty_commits += 1
        return True

    def check_fence(self) -> None:
        """Raise `FencedError` if the loaded version carries the fence of another process."""
        check_fence(self._log, self.fence)

    def _check_taken_over(self, commit: Commit) -> None:
        """Raise `FencedError` if a commit is the fence of another process."""
        if self.fence is not None and self.fence.transaction in commit.transactions:
            check_held(self.location, self.fence, commit.transactions[self.fence.transaction])

    @contextmanager
    def discarding(self, batches: Collection[Batch]) -> Iterator[None]:
        """Remove the files of new batches if the block fails: attempts must not fill the disk.

        Parameters: `batches`, those that the block commits. Their files stay if the commit may
        exist.
        """
        try:
            yield
        except (StorageError, DeltaError, OSError, FencedError) as error:
            is_refused = isinstance(error, (CommitConflictError, FencedError))
            # An existing commit may be this one, if only its response was lost: keep its files.
            following = self.version + 1
            if is_refused or (self.location.is_local and not has_commit(self.location, following)):
                for batch in batches:
                    if not self.was_committed(batch.path):
                        discard_file(self.location, batch.path)
            raise

    def _check(self, added: Sequence[Batch], removed: Sequence[Batch]) -> None:
        assert self.fence is not None, "only the broker that owns a log commits to it"
        # Converts each number to the type of its column, or raises.
        index_table(added)
        gone = {batch.path for batch in removed}
        assert len(gone) == len(removed), "a batch is removed twice"
        assert len({batch.path for batch in added}) == len(added), "a path is added twice"
        for batch in removed:
            assert self._live.get(batch.path) == batch, f"{batch.path} is not in the log"
        arriving: dict[TopicIdPartition, list[Batch]] = defaultdict(list)
        for batch in added:
            assert not self.was_committed(batch.path), f"{batch.path} was committed before"
            arriving[batch.topic_id_partition].append(batch)
        shrinking = {batch.topic_id_partition for batch in removed}
        for key in arriving.keys() | shrinking:
            batches = self._slices.get(key, [])
            new = sorted(arriving.get(key, []), key=_base_offset)
            if key in shrinking:
                kept = [batch for batch in batches if batch.path not in gone]
                after = sorted([*kept, *new], key=_base_offset)
            else:
                after = [*batches[-1:], *new]
            for one, following in pairwise(after):
                assert one.next_offset == following.base_offset, (
                    f"{following.path} does not begin at {one.next_offset}, where {one.path} ends"
                )

    def _reopen(self, version: int | None = None) -> None:
        opened = self._opened(version)
        is_older = version is None and opened.version < self.version
        if self.fence is not None and (opened.table_id != self.table_id or is_older):
            raise StorageError(
                f"the log at {self.location.uri} is not the one that was opened: its root was lost "
                "or restored; restart the broker"
            )
        self._moved |= set(self.partitions())
        self._log = opened
        self.content_version = opened.version
        self._slices.clear()
        self._live.clear()
        self._by_batch_id = self._by_producer = None
        self._appended_at_ms.clear()
        self._unsound.clear()
        self._wrong_headers.clear()
        self.damaged.clear()
        self._load()
        self._moved |= set(self.partitions())

    def _opened(self, version: int | None) -> DeltaLog:
        return DeltaLog(self.location, version, has_damaged_header)

    def _refreshed(self) -> DeltaLog:
        self.refresh()
        return self._log

    def _load(self) -> None:
        self._check_metadata()
        wrong = []
        for read in live_batches(self._log.snapshot):
            batch, modified_at_ms, _, is_sound = read
            if not is_sound:
                wrong.append(read)
                continue
            self._live[batch.path] = batch
            self._appended_at_ms[batch.path] = modified_at_ms
            self._slices[batch.topic_id_partition].append(batch)
        for batches in self._slices.values():
            batches.sort(key=_base_offset)
        for batch, modified_at_ms, checksum, _ in wrong:
            self._set_aside(batch, modified_at_ms, checksum)
        for key in self._slices.keys() | self._wrong_headers.keys():
            self._check_sound(key)

    def _check_metadata(self) -> None:
        """Raise `DamagedError` if the table's metadata are those of another table.

        A checkpoint of another table is one that can be read, and delta-rs trusts it.
        """
        if not {*LOG.partition_by} <= {*self._log.snapshot.metadata().partition_columns}:
            newest = newest_checkpoint(self.location.names(LOG_FOLDER))
            raise DamagedError(
                f"{self.location.uri}/{LOG_FOLDER}/{newest:020}.checkpoint.parquet",
                "it is the checkpoint of another table",
                COMMIT_REMEDY,
            )

    def _set_aside(self, batch: Batch, appended_at_ms: int, checksum: str) -> Batch:
        """Register a live batch with a damaged header; return it as a batch of its replica."""
        batch = self._attributed(batch, checksum)
        self._live[batch.path] = batch
        self._appended_at_ms[batch.path] = appended_at_ms
        wrong = self._wrong_headers.setdefault(batch.topic_id_partition, {})
        wrong[batch.path] = batch, checksum
        return batch

    def _check_sound(
        self, key: TopicIdPartition, from_offset: int = 0, to_offset: int | None = None
    ) -> None:
        """Offer the sound prefix of a replica that has changed between two base offsets."""
        batches = self._slices[key]
        wrong = self._wrong_headers.get(key, {})
        if key in self.damaged or wrong:
            for batch in self._unsound.pop(key, []):
                if batch.path not in wrong:
                    self._offer(batch)
            from_offset, to_offset = 0, None
        first = max(bisect.bisect_left(batches, from_offset, key=_base_offset) - 1, 0)
        last = None
        if to_offset is not None:
            last = bisect.bisect_right(batches, to_offset, key=_base_offset) + 1
            last = min(last, len(batches))
        found = first_fault(batches, list(wrong.values()), first, last)
        if found is None:
            self.damaged.pop(key, None)
            return
        unsound = batches[found.sound_count :]
        for batch in unsound:
            self._withhold(batch)
        self._unsound[key] = [*unsound, *(batch for batch, _ in wrong.values())]
        self.damaged[key] = DamagedError(
            self.location.uri,
            found.fault,
            f"partition {key.partition} of the topic with id {key.topic_id} is offered below "
            f"offset {self.log_end_offset(key)}; its broker copies the rest again from its leader",
        )

    def _remember(self, batch: Batch, appended_at_ms: int) -> None:
        self._live[batch.path] = batch
        self._appended_at_ms[batch.path] = appended_at_ms
        self._offer(batch)

    def _offer(self, batch: Batch) -> None:
        if self._by_batch_id is not None:
            self._by_batch_id[batch.batch_id] = batch
        _insert(self._slices[batch.topic_id_partition], batch)
        if batch.producer_id >= 0 and self._by_producer is not None:
            _insert(self._by_producer[batch.topic_id_partition, batch.producer_id], batch)

    def _withhold(self, batch: Batch) -> None:
        """Stop offering a live batch."""
        batches = self._slices[batch.topic_id_partition]
        # Two overlapping batches may have the same base offset.
        at = bisect.bisect_left(batches, batch.base_offset, key=_base_offset)
        del batches[batches.index(batch, at)]
        if batch.producer_id >= 0 and self._by_producer is not None:
            of = batch.topic_id_partition, batch.producer_id
            self._by_producer[of].remove(batch)
            if not self._by_producer[of]:
                # There may be a new producer for each run of a program.
                del self._by_producer[of]
        if self._by_batch_id is not None and self._by_batch_id.get(batch.batch_id) == batch:
            del self._by_batch_id[batch.batch_id]

    def _forget(self, path: str) -> None:
        if self.fence is not None:
            # Only the owner asks for it, and a reader may follow a log for months.
            now_s = time.monotonic()
            self._removed[path] = now_s
            while (oldest := next(iter(self._removed))) != path:
                if self._removed[oldest] >= now_s - REMOVED_S:
                    break
                del self._removed[oldest]
        batch = self._live.pop(path, None)
        if batch is None:
            return
        del self._appended_at_ms[path]
        key = batch.topic_id_partition
        if batch not in self._unsound.get(key, ()):
            self._withhold(batch)
            return
        self._wrong_headers.get(key, {}).pop(path, None)
        self._unsound[key].remove(batch)
        if not self._unsound[key]:
            del self._unsound[key], self.damaged[key]
            self._wrong_headers.pop(key, None)

    def _attributed(self, batch: Batch, checksum: str) -> Batch:
        """Return a batch with a damaged header as a batch of the replica that it belongs to.

        That is the replica with whose identity the header matches its checksum, or else the replica
        that the header names.
        """
        owners = {
            (one.topic_id, one.topic, one.partition)
            for batches in self._slices.values()
            for one in batches[:1]
        }
        for topic_id, topic, partition in owners:
            named = batch._replace(topic_id=topic_id, topic=topic, partition=partition)
            if header_checksum(named) == checksum:
                return named
        return batch


def _epoch_starts(batches: Sequence[Batch]) -> Iterator[Batch]:
    """Yield the first batch of each leader epoch of a replica."""
    at = 0
    while at < len(batches):
        yield batches[at]
        at = bisect.bisect_right(batches, batches[at].leader_epoch, at, key=_leader_epoch)


def _insert(batches: list[Batch], batch: Batch) -> None:
    """Insert a batch by ascending base offset."""
    if batches and batch.base_offset < batches[-1].base_offset:
        bisect.insort(batches, batch, key=_base_offset)
    else:
        batches.append(batch)


def index_table(batches: Iterable[Batch]) -> pa.Table:
    """Return `batches` as an Arrow table with the columns of `BATCH_INDEX`."""
    columns = list(zip(*batches, strict=True)) or [()] * len(BATCH_INDEX)
    arrays = [
        pa.array(column, field.type) for column, field in zip(columns, BATCH_INDEX, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=BATCH_INDEX)
