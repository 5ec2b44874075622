"""Fetching: which of the leaders' batches a follower lacks, and copying them into its own root."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from sparklog.broker.copies_ahead import CopiesAhead
from sparklog.broker.delayed_fetch import Fetch, delayed_fetches
from sparklog.broker.leader_roots import LeaderRoot, LeaderRoots
from sparklog.broker.purgatory import Purgatory
from sparklog.broker.replicas import Replicas
from sparklog.broker.tick import TickReport
from sparklog.config import Settings
from sparklog.errors import StorageError
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.model import Batch, TopicIdPartition, new_batch_path
from sparklog.protocol.rules import Rules
from sparklog.storage.batch_files import file_damage, rewrite_slice
from sparklog.storage.batch_merging import Merge
from sparklog.storage.copying import Copy
from sparklog.storage.metadata import PartitionState
from sparklog.storage.new_file import discard_file

_log = get_logger(__name__)


_Work: TypeAlias = list[tuple[Batch, bool]]
"""The batches to be fetched from a root, each with whether it has to be cut."""


class Copier(Protocol):
    """What copies and merges batch files: this process, or the tasks of a Spark job."""

    jobs: int

    def copy(self, copies: list[Copy]) -> list[str | None]:
        """Copy all; return what went wrong with each, or `None`."""
        ...

    def merge(self, merges: Sequence[Merge]) -> list[Batch | str]:
        """Merge batches; return what they became, or what went wrong."""
        ...


class Followed(NamedTuple):
    """One partition to be followed: what the controller says and the leader's row."""

    key: TopicIdPartition
    state: PartitionState
    root: LeaderRoot
    row: Mapping[str, Any]


_FIRST_WAIT_MS, _LONGEST_WAIT_MS = 1_000, 30_000
"""The wait after the second failure in a row to copy a partition's batches; then it doubles."""


class _Backoff(NamedTuple):
    """The failures in a row of one partition, and when it is fetched again."""

    failures: int
    until_ms: int


class Fetcher:
    """Fetches into one broker root."""

    def __init__(
        self,
        replicas: Replicas,
        roots: LeaderRoots,
        purgatory: Purgatory,
        rules: Rules,
        settings: Settings,
        copier: Copier,
        ahead: CopiesAhead,
    ) -> None:
        self._ahead = ahead
        self._purgatory = purgatory
        self._replicas = replicas
        self._roots = roots
        self._rules = rules
        self._settings = settings
        self._copier = copier
        # By partition, the number of the fetch that last gave it something.
        self._last_served: dict[TopicIdPartition, int] = {}
        self._fetches = 0
        self._backoffs: dict[TopicIdPartition, _Backoff] = {}
        self._failures = RepeatedFailures(_log)

    def fetch(
        self,
        followed: list[Followed],
        now_ms: int,
        report: TickReport,
        while_copying: Callable[[], None],
    ) -> list[Batch]:
        """Join the positions with the leaders' batches and copy what the join gives.

        What was copied ahead is taken. `while_copying` is called before files are copied, if any
        are.

        Partitions take turns where replica.fetch.response.max.bytes does not suffice for all: the
        ones that are served go to the end, also where a copy fails. A partition whose batches
        cannot be copied is tried again at once, and then after longer and longer waits. Returns
        the batches that arrived, to be committed.
        """
        works = self._works([one for one in followed if not self._is_backing_off(one.key, now_ms)])
        waiting = self._waiting(followed, works, now_ms)
        copies: list[Copy] = []
        copied: list[Batch] = []
        sources: list[tuple[LeaderRoot, Batch]] = []
        ready: list[Batch] = []
        sliced: list[Batch] = []
        stopped: set[TopicIdPartition] = set()
        # After one that has to be copied now, and that may fail, no copy counts that is ready.
        copying: set[TopicIdPartition] = set()
        self._fetches += 1
        for root, work in works.items():
            for batch, straddles in work if root.fetch_id not in waiting else ():
                key = batch.topic_id_partition
                self._last_served[key] = self._fetches
                if straddles:
                    part = self._slice(root, batch, self._replicas.log_end_offset(key))
                    if part is None:
                        stopped.add(key)
                        self._check_source(root, batch)
                        self._back_off(key, now_ms)
                    else:
                        sliced.append(part)
                elif (
                    key not in stopped
                    and key not in copying
                    and (path := self._ahead.take(root.location, batch))
                ):
                    ready.append(batch._replace(path=path))
                elif key not in stopped:
                    copying.add(key)
                    copy = self._copy(root, batch)
                    copies.append(copy)
                    copied.append(batch._replace(path=copy.target_path))
                    sources.append((root, batch))
        if copies:
            while_copying()
        faults = self._copier.copy(copies)
        report.files_copied += len(copies) + len(ready)
        report.bytes_copied += sum(batch.size_bytes for batch in (*copied, *ready))
        for key in {batch.topic_id_partition for batch in ready} - copying:
            self._backoffs.pop(key, None)
        intact = sliced + ready + self._intact(copied, faults, now_ms)
        for batch in intact:
            self._replicas.note_leader_fault(batch.topic_id_partition, None)
        checked: set[TopicIdPartition] = set()
        for (root, batch), fault in zip(sources, faults, strict=True):
            if fault is not None and batch.topic_id_partition not in checked:
                checked.add(batch.topic_id_partition)
                self._check_source(root, batch)
        return intact

    def _is_backing_off(self, key: TopicIdPartition, now_ms: int) -> bool:
        return key in self._backoffs and now_ms < self._backoffs[key].until_ms

    def _back_off(self, key: TopicIdPartition, now_ms: int) -> None:
        failures = self._backoffs[key].failures + 1 if key in self._backoffs else 1
        wait_ms = 0 if failures == 1 else _FIRST_WAIT_MS << min(failures - 2, 10)
        self._backoffs[key] = _Backoff(failures, now_ms + min(wait_ms, _LONGEST_WAIT_MS))

    def _works(self, followed: list[Followed]) -> dict[LeaderRoot, _Work]:
        """Return what is to be fetched from each leader's root that has anything.

        Each batch with whether it has to be cut. All roots in one look, whose bytes are bounded
        together.
        """
        behind: dict[LeaderRoot, list[Followed]] = defaultdict(list)
        for one in followed:
            if one.row["log_end_offset"] > self._replicas.log_end_offset(one.key):
                behind[one.root].append(one)
        logs: dict[TopicIdPartition, LeaderRoot] = {}
        self._last_served = {
            one.key: self._last_served[one.key] for one in followed if one.key in self._last_served
        }
        positions: list[dict[str, Any]] = []
        batches: list[pa.Table] = []
        for root, members in behind.items():
            for one in members:
                if one.key in root.log.damaged:
                    # Copied up to there; the leader verifies its log when it reads this report.
                    self._replicas.note_leader_fault(one.key, root.log.log_end_offset(one.key))
            ends = {one.key: self._replicas.log_end_offset(one.key) for one in members}
            batches.append(root.log.batch_index(ends))
            positions += [self._position(one) for one in members]
            logs |= dict.fromkeys(ends, root)
        works: dict[LeaderRoot, _Work] = {root: [] for root in logs.values()}
        if positions:
            found = self._rules.run("fetch", positions=positions, batches=pa.concat_tables(batches))
            for row in found:
                key = TopicIdPartition(row["topic_id"], row["partition"])
                [batch, *_] = logs[key].log.batches(key, row["base_offset"])
                works[logs[key]].append((batch, row["straddles"]))
        return works

    def _waiting(
        self, followed: list[Followed], works: Mapping[LeaderRoot, _Work], now_ms: int
    ) -> Collection[str]:
        """Return which fetches wait for more, by the ids of their roots (4.1)."""
        fetches = {}
        for root, work in works.items():
            bytes_of: dict[TopicIdPartition, int] = defaultdict(int)
            for batch, _ in work:
                bytes_of[batch.topic_id_partition] += batch.size_bytes
            members = [one for one in followed if one.root is root]
            states = [one.state for one in members]
            positions = {one.key: self._replicas.log_end_offset(one.key) for one in members}
            fetches[root.fetch_id] = Fetch(states, positions, bytes_of)
        return delayed_fetches(self._purgatory, fetches, self._settings, now_ms)

    def _copy(self, root: LeaderRoot, batch: Batch) -> Copy:
        return Copy(
            root.log.location,
            batch.path,
            self._replicas.root.log.location,
            new_batch_path(batch.batch_id),
            batch.size_bytes,
            batch.checksum,
        )

    def _slice(self, root: LeaderRoot, batch: Batch, from_offset: int) -> Batch | None:
        target = self._replicas.root.log.location
        try:
            return rewrite_slice(root.log.location, batch, from_offset, batch.next_offset, target)
        except StorageError as error:
            self._not_copied(batch, str(error))
            return None

    def _not_copied(self, batch: Batch, fault: str) -> None:
        of = batch.topic_id_partition
        self._failures.warning(
            of, "batch not copied", topic=batch.topic, partition=of.partition, fault=fault
        )

    def _intact(self, batches: list[Batch], faults: list[str | None], now_ms: int) -> list[Batch]:
        """Return the batches that arrived; a bad one stops its partition only (8.4).

        Files of a stopped partition that arrived are removed: they are copied again.
        """
        stopped: set[TopicIdPartition] = set()
        intact = []
        target = self._replicas.root.log.location
        for batch, fault in zip(batches, faults, strict=True):
            key = batch.topic_id_partition
            if fault is not None:
                if key not in stopped:
                    self._back_off(key, now_ms)
                stopped.add(key)
                self._not_copied(batch, fault)
            elif key not in stopped:
                intact.append(batch)
            else:
                discard_file(target, batch.path)
        for key in {batch.topic_id_partition for batch in intact} - stopped:
            self._backoffs.pop(key, None)
            if self._failures.over(key):
                _log.info("batches copied again", topic_id=key.topic_id, partition=key.partition)
        return intact

    def _check_source(self, root: LeaderRoot, batch: Batch) -> None:
        """Report to the leader a batch that was not copied, where its file there is damaged."""
        try:
            is_damaged = file_damage(root.log, batch) is not None
        except OSError as error:
            _log.warning("leader's batch not readable", path=batch.path, error=str(error))
            return
        if is_damaged:
            self._replicas.note_leader_fault(batch.topic_id_partition, batch.base_offset)

    def _position(self, one: Followed) -> dict[str, Any]:
        return {
            "topic_id": one.key.topic_id,
            "partition": one.key.partition,
            "fetch_offset": self._replicas.log_end_offset(one.key),
            "last_fetched_epoch": self._replicas.last_record_epoch(one.key),
            "leader_epoch": one.state.leader_epoch,
            "max_bytes": self._settings.replica_fetch_max_bytes,
            "max_total_bytes": self._settings.replica_fetch_response_max_bytes,
            "last_served": self._last_served.get(one.key, 0),
        }
