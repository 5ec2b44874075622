"""Merging small batches of one broker root's logs in the background (rule 8.4).

Every broker merges its own replicas, as leader or follower, independently of other brokers. Below
the high watermark all replicas have the same records, even if their batches differ. Batches are
chosen between two ticks, written in parallel with ticks, and committed between two ticks. The order
of effects is: files, producer state, journal. A crash between two effects leaves the log either
unchanged or merged.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from functools import partial
from itertools import islice, takewhile
from operator import attrgetter
from typing import Any, NamedTuple

from sparklog.broker.micro_batch_files import awaited_batch_ids
from sparklog.broker.rewriter import Rewriter
from sparklog.broker.tick import Effects
from sparklog.clock import clocks
from sparklog.logger import get_logger
from sparklog.model import Batch, TopicIdPartition, new_batch_path
from sparklog.protocol.replication.mergeable_batches import (
    first_open_offset,
    may_be_merged,
    may_have_run,
)
from sparklog.storage.batch_merging import Merge

_log = get_logger(__name__)

_base_offset = attrgetter("base_offset")

_MOST_BATCHES = 1_000
"""The maximum number of batches that are checked and committed at once, so that a tick does not
wait long for the commit."""

_MOST_BYTES = 256 << 20
"""The maximum number of bytes that are rewritten at once; a single run may exceed it."""


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


class Merger(Rewriter[Merge]):
    """Merges batches in one broker root."""

    def __init__(self, *shared: Any) -> None:
        super().__init__(*shared)
        self._looked: dict[TopicIdPartition, _Looked] = {}
        self._begin_after: TopicIdPartition | None = None
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
        replaced = self._replace(merged, began, effects)
        if not replaced:
            return MergeReport()
        report = MergeReport(sum(len(merge.batches) for merge, _ in replaced), len(replaced))
        _log.info("batches merged", root=self._replicas.root.location.uri, **report._asdict())
        return report

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
            if self._is_left_alone(key, now_ms):
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
                "is_settled": batch.batch_id not in awaited and batch.has_all_offsets,
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
            _log.error("batches not merged", topic=of.topic, partition=of.partition, fault=result)
            self._leave_alone(of.topic_id_partition, merge.batches, result, now_ms)
        return merged

    def _commit(
        self, standing: Sequence[tuple[Merge, Batch]], now_ms: int, effects: Effects
    ) -> None:
        """See `Rewriter._commit`; a merged batch is as old as the youngest of those it replaces."""
        merged_of = {
            batch.path: (max(map(self._appended_at_ms, merge.batches)), now_ms)
            for merge, batch in standing
        }
        super()._commit(standing, now_ms, effects)
        self._merged = {
            path: times
            for path, times in (self._merged | merged_of).items()
            # After that time a merged batch is old enough by its own commit time.
            if now_ms - times[1] < self._settings.log_merger_min_lag_ms
        }
        self._replicas.checkpoints.keep()
        effects.done("checkpoint")

    def _stands(self, one: Merge) -> bool:
        """See `Rewriter._stands`; a batch before the log start offset is soon deleted."""
        first = one.batches[0]
        return super()._stands(one) and (
            first.base_offset >= self._replicas[first.topic_id_partition].log_start_offset
        )
