"""Merging small batches of one broker root's logs in the background (rule 8.4).

Every broker merges its own replicas, as leader or follower, independently of other brokers. Below
the high watermark all replicas have the same records, even if their batches differ. Batches are
chosen between two ticks, written in parallel with ticks, and committed between two ticks. The order
of effects is: files, producer state, journal. A crash between two effects leaves the log either
unchanged or merged.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice, takewhile
from operator import attrgetter
from typing import Any, NamedTuple

from sparklog.broker.micro_batch_files import awaited_batch_ids
from sparklog.broker.producer_state import ProducerState
from sparklog.broker.replicas import Replicas
from sparklog.broker.tick import Effects
from sparklog.clock import Clock, clocks
from sparklog.config import Settings
from sparklog.errors import CommitConflictError
from sparklog.logger import get_logger
from sparklog.model import Batch, TopicIdPartition, new_batch_path
from sparklog.protocol.replication.mergeable_batches import (
    first_open_offset,
    is_below_high_watermark,
    may_be_merged,
    may_have_run,
)
from sparklog.protocol.rules import Rules
from sparklog.storage.batch_merging import Merge
from sparklog.storage.control_table import ControlTable
from sparklog.storage.execution import Execution
from sparklog.storage.new_file import check_present, discard_file

_log = get_logger(__name__)

_base_offset = attrgetter("base_offset")

_MOST_BATCHES = 1_000
"""The maximum number of batches that are checked and committed at once, so that a tick does not
wait long for the commit."""

_MOST_BYTES = 256 << 20
"""The maximum number of bytes that are rewritten at once; a single run may exceed it."""

_RETRY_MS = 300_000
"""The time in ms for which a partition with an unreadable batch is skipped."""


class MergeReport(NamedTuple):
    """The number of batches that were merged, and of the batches that replace them.

    Attributes
    ----------
    batches : int
        The number of merged batches, 0 if there was nothing to merge.
    into : int
        The number of batches that replace them.

    Examples
    --------
    >>> from sparklog.testing import LocalCluster
    >>> LocalCluster("merging", brokers=[0]).merge(0)
    MergeReport(batches=0, into=0)
    """

    batches: int = 0
    into: int = 0


class _Looked(NamedTuple):
    """The offsets up to which a replica was checked.

    Batches before `settled_offset` can never be merged again. Batches before `seen_offset` contain
    no mergeable run until a batch is appended. Invariant: settled_offset <= seen_offset.
    """

    settled_offset: int = 0
    seen_offset: int = 0


class _Window(NamedTuple):
    """Adjacent batches of a replica that may be merged, and the commit time of each in ms."""

    high_watermark: int
    batches: list[Batch]
    appended_at_ms: list[int]


_Windows = dict[TopicIdPartition, _Window]


class Merger:
    """Merges batches in one broker root.

    Parameters: `lock`, which excludes the broker's ticks; `stream_writes`, which opens the
    cluster's table of micro-batches. The files of a micro-batch may be sent again until it is done
    (rule 3.7).
    """

    def __init__(
        self,
        replicas: Replicas,
        producer_state: ProducerState,
        stream_writes: Callable[[], ControlTable],
        rules: Rules,
        settings: Settings,
        execution: Execution,
        clock: Clock,
        lock: AbstractContextManager[Any],
    ) -> None:
        self._replicas = replicas
        self._log = replicas.root.log
        self._producer_state = producer_state
        self._stream_writes = stream_writes
        self._rules = rules
        self._settings = settings
        self._execution = execution
        self._clock = clock
        self._lock = lock
        self._looked: dict[TopicIdPartition, _Looked] = {}
        self._begin_after: TopicIdPartition | None = None
        self._left_alone_until_ms: dict[TopicIdPartition, int] = {}
        # By the path of a merged batch: the newest commit time of the batches it replaces, which
        # counts as its own, and the time of the merge.
        self._merged: dict[str, tuple[int, int]] = {}

    def merge(self, effects: Effects) -> MergeReport:
        """Merge the batches that can be merged, up to a limit per call.

        Raises `FencedError` if a newer process runs this broker, and the errors of reading and
        writing the root's tables.
        """
        now_ms, began = self._clock.now_ms(), clocks()
        with self._lock:
            self._replicas.settle()
            windows = self._windows(now_ms)
        merges = self._choose(windows, now_ms)
        if not merges:
            return MergeReport()
        results = self._execution.merge(merges)
        effects.done("files")
        merged = self._intact(merges, results, now_ms)
        with self._lock:
            try:
                with self._log.discarding([batch for _, batch in merged]):
                    check_present(self._log.location, (one.path for _, one in merged), began)
                    return self._commit(merged, self._clock.now_ms(), effects)
            except CommitConflictError as conflict:
                # The broker's own maintenance has committed first.
                _log.info("not merged", reason=str(conflict))
                return MergeReport()

    # --- selection ------------------------------------------------------------------------------

    def _windows(self, now_ms: int) -> _Windows:
        """Return the batches to be checked, of partitions in which batches have become old enough.

        So the cost depends on the batches that have become old enough since the last call.
        """
        windows: _Windows = {}
        left = _MOST_BATCHES
        for key in self._in_turn():
            looked = self._looked.get(key, _Looked())
            end = self._log.log_end_offset(key)
            if looked.seen_offset > end:
                # The log was truncated.
                looked = _Looked(min(looked.settled_offset, end), min(looked.settled_offset, end))
            unseen_offset = max(looked.seen_offset, self._replicas[key].log_start_offset)
            unseen = self._log.batch_at(key, unseen_offset)
            if unseen is None or not self._is_old(unseen, now_ms):
                continue
            if now_ms < self._left_alone_until_ms.get(key, 0):
                continue
            # A batch that begins before the log start offset is only waiting to be deleted.
            log_start_offset = self._replicas[key].log_start_offset
            batches = self._log.batches(key, max(looked.settled_offset, log_start_offset))
            if batches and batches[0].base_offset < log_start_offset:
                batches = batches[1:]
            old = list(islice(takewhile(partial(self._is_old, now_ms=now_ms), batches), left))
            if not may_have_run(len(old), self._settings.log_merger_min_batches):
                continue
            times = [self._appended_at_ms(batch) for batch in old]
            windows[key] = _Window(self._replicas[key].high_watermark, old, times)
            self._looked[key] = looked
            self._begin_after = key
            left -= len(old)
            if not may_have_run(left, self._settings.log_merger_min_batches):
                break
        # A tick that failed half-way is completed first.
        return windows if windows and self._replicas.is_written else {}

    def _in_turn(self) -> list[TopicIdPartition]:
        """Return the partitions in order, beginning after the one that was checked last."""
        keys = sorted(key for key in self._log.partitions() if key in self._replicas)
        if self._begin_after is None:
            return keys
        later = [key for key in keys if key > self._begin_after]
        return later + keys[: len(keys) - len(later)]

    def _is_old(self, batch: Batch, now_ms: int) -> bool:
        return may_be_merged(
            batch.next_offset,
            self._replicas[batch.topic_id_partition].high_watermark,
            self._appended_at_ms(batch),
            now_ms,
            self._settings.log_merger_min_lag_ms,
        )

    def _appended_at_ms(self, batch: Batch) -> int:
        written_at_ms, _ = self._merged.get(batch.path, (None, None))
        return self._log.appended_at_ms(batch) if written_at_ms is None else written_at_ms

    def _choose(self, windows: _Windows, now_ms: int) -> list[Merge]:
        """Return the merges that the rule gives; note the offsets below which none is possible."""
        if not windows:
            return []
        # Read after the batches: a micro-batch is noted before any of its files is in a log.
        awaited = awaited_batch_ids(self._stream_writes())
        settings = self._settings
        rows = [
            batch._asdict()
            | {
                "appended_at_ms": appended_at_ms,
                # A merge renumbers records, so batches with gaps from compaction are excluded.
                "is_settled": batch.batch_id not in awaited
                and batch.record_count == batch.last_offset_delta + 1,
                "high_watermark": window.high_watermark,
                "now_ms": now_ms,
                "min_lag_ms": settings.log_merger_min_lag_ms,
                "min_batches": settings.log_merger_min_batches,
                "max_batch_bytes": settings.log_merger_max_batch_bytes,
            }
            for window in windows.values()
            for batch, appended_at_ms in zip(window.batches, window.appended_at_ms, strict=True)
        ]
        runs = self._rules.run("mergeable_batches", batches=rows)
        merges: list[Merge] = []
        left = _MOST_BYTES
        for run in runs:
            window = windows[TopicIdPartition(run["topic_id"], run["partition"])]
            first = bisect.bisect_left(window.batches, run["base_offset"], key=_base_offset)
            batches = window.batches[first : first + run["batch_count"]]
            merge = Merge(self._log.location, tuple(batches), new_batch_path())
            if merges and merge.size_bytes > left:
                break
            merges.append(merge)
            left -= merge.size_bytes
        with_runs = {TopicIdPartition(run["topic_id"], run["partition"]) for run in runs}
        for key in windows.keys() - with_runs:
            self._looked[key] = self._nothing_in(windows[key].batches)
        return merges

    def _nothing_in(self, window: list[Batch]) -> _Looked:
        """Return the offsets below which no merge is possible, after the rule found no run."""
        settled_offset = first_open_offset(window, self._settings.log_merger_max_batch_bytes)
        if len(window) >= _MOST_BATCHES // 2:
            # Otherwise a window full of unmergeable batches would be checked again and again.
            settled_offset = max(settled_offset, window[len(window) // 2].base_offset)
        return _Looked(settled_offset, window[-1].next_offset)

    # --- commit ---------------------------------------------------------------------------------

    def _intact(
        self, merges: list[Merge], results: list[Batch | str], now_ms: int
    ) -> list[tuple[Merge, Batch]]:
        """Return the merged batches; partitions with unreadable ones are skipped (rule 8.4)."""
        merged = []
        for merge, result in zip(merges, results, strict=True):
            if isinstance(result, Batch):
                merged.append((merge, result))
                continue
            of = merge.batches[0]
            self._left_alone_until_ms[of.topic_id_partition] = now_ms + _RETRY_MS
            _log.error("batches not merged", topic=of.topic, partition=of.partition, fault=result)
            with self._lock:
                # The next tick repairs the replica (rule 10.8).
                any(self._replicas.check_batch(batch) for batch in merge.batches)
        return merged

    def _commit(
        self, merged: list[tuple[Merge, Batch]], now_ms: int, effects: Effects
    ) -> MergeReport:
        """Replace batches by the merged ones in one commit, if they are still in the log."""
        self._replicas.settle()
        is_written = self._replicas.is_written
        standing = []
        for merge, batch in merged:
            if is_written and self._stands(merge):
                standing.append((merge, batch))
            else:
                discard_file(self._log.location, batch.path)
        if not standing:
            return MergeReport()
        added = [batch for _, batch in standing]
        removed = [batch for merge, _ in standing for batch in merge.batches]
        told = [
            one
            for merge, batch in standing
            for one in self._producer_state.said_by(merge.batches, batch.next_offset)
        ]
        self._producer_state.add(told, now_ms)
        effects.done("producer_state")
        merged_of = {
            batch.path: (max(map(self._appended_at_ms, merge.batches)), now_ms)
            for merge, batch in standing
        }
        self._replicas.commit(now_ms, added, removed)
        effects.done("log_commit")
        self._merged = {
            path: times
            for path, times in (self._merged | merged_of).items()
            # After that time a merged batch is old enough by its own commit time.
            if now_ms - times[1] < self._settings.log_merger_min_lag_ms
        }
        self._replicas.checkpoints.keep(now_ms)
        effects.done("checkpoint")
        report = MergeReport(len(removed), len(added))
        _log.info("batches merged", root=self._replicas.root.location.uri, **report._asdict())
        return report

    def _stands(self, merge: Merge) -> bool:
        """Return whether the chosen batches are still in the log and below the high watermark."""
        first, last = merge.batches[0], merge.batches[-1]
        key = first.topic_id_partition
        found = self._log.batches(key, first.base_offset)[: len(merge.batches)]
        replica = self._replicas[key]
        return (
            tuple(found) == merge.batches
            and first.base_offset >= replica.log_start_offset
            and is_below_high_watermark(last.next_offset, replica.high_watermark)
        )
