"""Fetching: finding the leaders' batches that a follower lacks, and copying them into its root."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from sparklog.broker.following.copies_ahead import CopiesAhead
from sparklog.broker.following.delayed_fetch import Fetch, delayed_fetches, may_be_delayed
from sparklog.broker.following.fetch_pace import FetchPace
from sparklog.broker.following.fetch_plan import FoundBatch, fetch_plan
from sparklog.broker.following.leader_roots import LeaderRoot, LeaderRoots
from sparklog.broker.following.replication_throttle import ReplicationThrottle
from sparklog.broker.purgatory import Purgatory
from sparklog.broker.replicas import Replicas
from sparklog.broker.tick import TickReport
from sparklog.cluster.metadata import PartitionState
from sparklog.config import Settings
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.model import Batch, TopicIdPartition, new_batch_path
from sparklog.protocol.replication.fetch import may_return_batches
from sparklog.protocol.rules import RowTuples, Rules
from sparklog.storage.batch_files import file_damage
from sparklog.storage.copying import Copied, Copy
from sparklog.storage.execution import BatchSlice, Execution
from sparklog.storage.new_file import discard_file

_log = get_logger(__name__)


_Work: TypeAlias = list[tuple[Batch, bool]]
"""The batches to fetch from a root, each with whether it has to be cut."""

_Behind: TypeAlias = dict[LeaderRoot, dict[TopicIdPartition, int]]
"""The partitions that are behind their leaders, by root, with this root's log end offsets."""


class Followed(NamedTuple):
    """A partition to follow: its state from the controller, and its leader's row."""

    key: TopicIdPartition
    state: PartitionState
    root: LeaderRoot
    row: Mapping[str, Any]


_UNLIMITED = (1 << 63) - 1
"""The bytes of a partition without a throttle."""

_FIRST_WAIT_MS, _LONGEST_WAIT_MS = 1_000, 30_000
"""The wait in ms after the second consecutive failure to copy a partition's batches, and the
longest wait. The wait doubles with each further failure."""


class _Backoff(NamedTuple):
    """The consecutive failures of one partition, and the time when it is fetched again."""

    failures: int
    until_ms: int


class ReplicaFetcher:
    """Fetches into one broker root."""

    def __init__(
        self,
        replicas: Replicas,
        roots: LeaderRoots,
        purgatory: Purgatory,
        rules: Rules,
        settings: Settings,
        execution: Execution,
        ahead: CopiesAhead,
        throttle: ReplicationThrottle,
    ) -> None:
        self._ahead = ahead
        self._throttle = throttle
        # The bytes that may be copied of throttled partitions in the current fetch.
        self._limits: dict[TopicIdPartition, int] = {}
        self._purgatory = purgatory
        self._replicas = replicas
        self._roots = roots
        self._rules = rules
        self._settings = settings
        self._execution = execution
        self._plan = fetch_plan(rules, execution, replicas.root.log.location)
        # By partition, the number of the fetch that last returned something for it.
        self._last_served: dict[TopicIdPartition, int] = {}
        self._fetches = 0
        self._pace = FetchPace(settings.replica_fetch_response_max_bytes)
        self._backoffs: dict[TopicIdPartition, _Backoff] = {}
        self._failures = RepeatedFailures(_log)

    def fetch(
        self,
        followed: list[Followed],
        now_ms: int,
        report: TickReport,
        while_copying: Callable[[], None],
    ) -> list[Batch]:
        """Join the positions with the leaders' batches and copy the batches found.

        Copies ahead are used. `while_copying` is called before files are copied, if there may be
        any.

        A fetch takes about two seconds at most (`FetchPace`), and no more bytes than
        replica.fetch.response.max.bytes. Partitions take turns if that does not suffice for all:
        those that are served go to the end, even if a copy fails. A partition whose batches cannot
        be copied is tried again at once, and then after increasing waits. Returns the batches that
        arrived, to be committed.
        """
        began = monotonic()
        self._limits = self._throttle.limits(self._behind(followed), now_ms)
        works, made = self._works(
            [one for one in followed if not self._is_held_back(one.key, now_ms)], while_copying
        )
        waiting = self._waiting(followed, works, now_ms)
        served = [
            (root, batch, straddles)
            for root, work in works.items()
            if root.fetch_id not in waiting
            for batch, straddles in work
        ]
        self._fetches += 1
        for _, batch, _ in served:
            self._last_served[batch.topic_id_partition] = self._fetches
        straddling = [(root, batch) for root, batch, straddles in served if straddles]
        sliced, stopped = self._cut(straddling, now_ms)
        sources: list[tuple[LeaderRoot, Batch]] = []
        ready: list[Batch] = []
        # Partitions with a batch that is copied now, and may fail: no copy ahead after it is used.
        copying: set[TopicIdPartition] = set()
        for root, batch, straddles in served:
            key = batch.topic_id_partition
            if straddles or key in stopped:
                continue
            is_needed = key not in copying and batch not in made
            if is_needed and (path := self._ahead.pop(root.location, batch)):
                ready.append(batch._replace(path=path))
                continue
            copying.add(key)
            sources.append((root, batch))
        results = self._copied(sources, made, while_copying)
        copied = [
            batch._replace(path=result.path)
            for (_, batch), result in zip(sources, results, strict=True)
        ]
        faults = [result.fault for result in results]
        if served:
            size_bytes = sum(batch.size_bytes for _, batch, _ in served)
            self._pace.note(len(served), size_bytes, monotonic() - began)
        self._throttle.copied((*copied, *ready, *sliced))
        report.files_copied += len(sources) + len(ready)
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

    def forget(self, keys: Iterable[TopicIdPartition]) -> None:
        """Forget partitions that are no longer followed."""
        for key in keys:
            self._last_served.pop(key, None)
            self._backoffs.pop(key, None)

    def _is_held_back(self, key: TopicIdPartition, now_ms: int) -> bool:
        """Return whether a partition waits after a failure, or for its throttle."""
        is_backing_off = key in self._backoffs and now_ms < self._backoffs[key].until_ms
        return is_backing_off or self._limits.get(key, 1) == 0

    def _behind(self, followed: list[Followed]) -> list[TopicIdPartition]:
        """Return the throttled partitions with batches to copy."""
        return [
            one.key
            for one in followed
            if self._throttle.is_throttled(one.key)
            and may_return_batches(
                self._replicas.log_end_offset(one.key), one.row["log_end_offset"]
            )
        ]

    def _back_off(self, key: TopicIdPartition, now_ms: int) -> None:
        failures = self._backoffs[key].failures + 1 if key in self._backoffs else 1
        wait_ms = 0 if failures == 1 else _FIRST_WAIT_MS << min(failures - 2, 10)
        self._backoffs[key] = _Backoff(failures, now_ms + min(wait_ms, _LONGEST_WAIT_MS))

    def _works(
        self, followed: list[Followed], while_copying: Callable[[], None]
    ) -> tuple[dict[LeaderRoot, _Work], dict[Batch, Copied]]:
        """Return the batches to fetch from each leader's root that has any, and copies of these.

        Each batch with whether it has to be cut. One run of the rule for all roots, since their
        bytes are bounded together. The batches are copied already if the rule and the copies were
        one plan.
        """
        behind: _Behind = defaultdict(dict)
        epochs: dict[TopicIdPartition, int] = {}
        for one in followed:
            end = self._replicas.log_end_offset(one.key)
            if may_return_batches(end, one.row["log_end_offset"]):
                behind[one.root][one.key] = end
                epochs[one.key] = one.state.leader_epoch
        logs: dict[TopicIdPartition, LeaderRoot] = {}
        positions: list[tuple[Any, ...]] = []
        for root, ends in behind.items():
            for key, end in ends.items():
                if key in root.log.damaged:
                    # Copied up to the damage; the leader verifies its log when it reads this
                    # report.
                    self._replicas.note_leader_fault(key, root.log.log_end_offset(key))
                positions.append(self._position(key, epochs[key], end))
            logs |= dict.fromkeys(ends, root)
        works: dict[LeaderRoot, _Work] = {root: [] for root in behind}
        made: dict[Batch, Copied] = {}
        if not positions:
            return works, made
        found = self._found(behind, RowTuples(_OF_POSITION, positions), while_copying)
        for key, base_offset, straddles, copied in found:
            batch = logs[key].log.batch_at(key, base_offset)
            assert batch is not None, f"the rule gave no batch of {key} at {base_offset}"
            works[logs[key]].append((batch, straddles))
            if copied is not None:
                made[batch] = copied
        return works, made

    def _found(
        self, behind: _Behind, positions: RowTuples, while_copying: Callable[[], None]
    ) -> list[FoundBatch]:
        """Return the batches that the rule gives; with their copies, if one plan made both."""
        most = self._pace.batches_of_each(sum(map(len, behind.values())))
        files = [
            (root.log.location, root.log.batch_index(ends, most)) for root, ends in behind.items()
        ]
        if self._plan is not None and not self._needs_two_steps(behind):
            while_copying()
            found = self._plan.run(positions, files, self._pace.max_bytes)
            if found is not None:
                return found
        batches = pa.concat_tables(index for _, index in files)
        rows = self._rules.run("fetch", positions=positions, batches=batches)
        return [
            FoundBatch(
                TopicIdPartition(row["topic_id"], row["partition"]),
                row["base_offset"],
                row["straddles"],
            )
            for row in rows
        ]

    def _needs_two_steps(self, behind: _Behind) -> bool:
        """Return whether the driver may have to decide between the rule and the copies.

        Cases: a fetch may wait for more bytes; batches may be copied ahead; a batch has to be cut,
        and later ones are copied only if that succeeds.
        """
        return may_be_delayed(self._purgatory, self._settings) or any(
            self._ahead.has_copies(root.location)
            or any(
                (batch := root.log.batch_at(key, end)) is not None and batch.base_offset < end
                for key, end in ends.items()
            )
            for root, ends in behind.items()
        )

    def _waiting(
        self, followed: list[Followed], works: Mapping[LeaderRoot, _Work], now_ms: int
    ) -> Collection[str]:
        """Return the ids of the fetches that wait for more bytes (4.1)."""
        if not may_be_delayed(self._purgatory, self._settings):
            return ()
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

    def _copied(
        self,
        sources: Sequence[tuple[LeaderRoot, Batch]],
        made: Mapping[Batch, Copied],
        while_copying: Callable[[], None],
    ) -> list[Copied]:
        """Return the copies of these batches: those that one plan has made, or new ones."""
        if made:
            return [made[batch] for _, batch in sources]
        if sources:
            while_copying()
        return self._execution.copy([self._copy(root, batch) for root, batch in sources])

    def _copy(self, root: LeaderRoot, batch: Batch) -> Copy:
        return Copy(
            root.log.location,
            batch.path,
            self._replicas.root.log.location,
            new_batch_path(batch.batch_id),
            batch.size_bytes,
            batch.checksum,
        )

    def _cut(
        self, straddling: Sequence[tuple[LeaderRoot, Batch]], now_ms: int
    ) -> tuple[list[Batch], set[TopicIdPartition]]:
        """Write what this root lacks of batches that straddle its log end offset (6.3).

        Returns the new batches, and the partitions of which the leader's batch cannot be read.
        """
        slices = [
            BatchSlice(
                root.log.location,
                batch,
                self._replicas.log_end_offset(batch.topic_id_partition),
                batch.next_offset,
                self._replicas.root.log.location,
            )
            for root, batch in straddling
        ]
        written: list[Batch] = []
        stopped: set[TopicIdPartition] = set()
        for (root, batch), part in zip(straddling, self._execution.cut(slices), strict=True):
            if isinstance(part, Batch):
                written.append(part)
                continue
            stopped.add(batch.topic_id_partition)
            self._not_copied(batch, part)
            self._check_source(root, batch)
            self._back_off(batch.topic_id_partition, now_ms)
        return written, stopped

    def _not_copied(self, batch: Batch, fault: str) -> None:
        of = batch.topic_id_partition
        self._failures.warning(
            of, "batch not copied", topic=batch.topic, partition=of.partition, fault=fault
        )

    def _intact(self, batches: list[Batch], faults: list[str | None], now_ms: int) -> list[Batch]:
        """Return the batches that arrived; a bad one stops only its partition (8.4).

        Later files of a stopped partition are removed: they are copied again.
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
        """Check the leader's file of a batch that was not copied; report damage to the leader."""
        try:
            is_damaged = file_damage(root.log, batch) is not None
        except OSError as error:
            _log.warning("leader's batch not readable", path=batch.path, error=str(error))
            return
        if is_damaged:
            self._replicas.note_leader_fault(batch.topic_id_partition, batch.base_offset)

    def _position(self, key: TopicIdPartition, leader_epoch: int, end: int) -> tuple[Any, ...]:
        """Return the row of a replica whose log ends at `end`, with the columns `_OF_POSITION`."""
        return (
            *key,
            end,
            self._replicas.last_record_epoch(key),
            leader_epoch,
            min(self._settings.replica_fetch_max_bytes, self._limits.get(key, _UNLIMITED)),
            self._pace.max_bytes,
            self._last_served.get(key, 0),
        )


_OF_POSITION = (
    "topic_id",
    "partition",
    "fetch_offset",
    "last_fetched_epoch",
    "leader_epoch",
    "max_bytes",
    "max_total_bytes",
    "last_served",
)
"""The columns of a follower's position for the rule `fetch`."""
