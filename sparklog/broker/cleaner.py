"""The log cleaner: compaction of the logs of topics with cleanup.policy=compact (rule 8.3).

As Kafka's cleaner, each broker cleans its own replicas, whether it leads or follows, and keeps the
last record of each key. A log has a clean part, which was cleaned before, and a dirty part after
it. The keys of the dirty part are read first; then each batch from the log start to the end of the
dirty part is written without the records that are superseded. The order of effects is: files,
producer state, journal, checkpoint of the cleaner. A record is only removed if a later one with its
key is in the log below the high watermark, so a crash between two effects leaves a log in which a
part is cleaned, and the next run cleans it again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from sparklog.broker.checkpoints import overwrite
from sparklog.broker.micro_batch_files import awaited_batch_ids
from sparklog.broker.producer_state import ProducerState
from sparklog.broker.replicas import Replicas
from sparklog.broker.tick import Effects
from sparklog.clock import Clock, clocks
from sparklog.config import Settings, TopicConfig
from sparklog.errors import CommitConflictError, StorageError
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.model import CLEANER_OFFSET_CHECKPOINT, Batch, TopicIdPartition, new_batch_path
from sparklog.protocol.replication.mergeable_batches import is_below_high_watermark
from sparklog.protocol.rules import Rules
from sparklog.storage.compaction import Compaction, record_keys
from sparklog.storage.control_table import ControlTable
from sparklog.storage.execution import Execution
from sparklog.storage.new_file import check_present, discard_file

_log = get_logger(__name__)

_MOST_BATCHES = 1_000
"""The maximum number of batches that one commit replaces."""

_BYTES_PER_KEY = 256
"""Bytes of log.cleaner.dedupe.buffer.size for each record of the dirty part."""

_RETRY_MS = 300_000
"""The time in ms for which a partition with an unreadable batch is skipped."""


class CleanReport(NamedTuple):
    """The numbers of records in cleaned batches before and after.

    Attributes
    ----------
    partitions : int
        The number of replicas that were cleaned.
    records : int
        The number of records in the batches that were rewritten.
    retained : int
        The number of these that stay.

    Examples
    --------
    >>> from sparklog.testing import LocalCluster
    >>> LocalCluster("cleaning", brokers=[0]).clean(0)
    CleanReport(partitions=0, records=0, retained=0)
    """

    partitions: int = 0
    records: int = 0
    retained: int = 0


class Pass(NamedTuple):
    """A pass of the cleaner over a log, up to `end_offset`, at `cleaned_at_ms`."""

    end_offset: int
    cleaned_at_ms: int


class Cleaned(NamedTuple):
    """The clean part of a replica: its end, and the passes whose tombstones stay.

    Invariant: the tombstones below a pass's end were first cleaned by it or by an earlier one.
    """

    first_dirty_offset: int = 0
    passes: tuple[Pass, ...] = ()


_Value = TypeVar("_Value")


def _own(own: _Value | None, of_cluster: _Value) -> _Value:
    return of_cluster if own is None else own


class _Policy(NamedTuple):
    """The settings of a compacted topic: its own, or the cluster's."""

    min_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int

    @classmethod
    def of(cls, config: TopicConfig, settings: Settings) -> _Policy | None:
        """Return the settings of a topic, `None` if it is not compacted."""
        if not config.is_compacted(settings):
            return None
        return cls(
            _own(config.min_cleanable_dirty_ratio, settings.log_cleaner_min_cleanable_ratio),
            _own(config.min_compaction_lag_ms, settings.log_cleaner_min_compaction_lag_ms),
            _own(config.max_compaction_lag_ms, settings.log_cleaner_max_compaction_lag_ms),
            _own(config.delete_retention_ms, settings.log_cleaner_delete_retention_ms),
        )


class _Window(NamedTuple):
    """A replica with batches to clean.

    `dirty` are the batches of the dirty part that may be cleaned, `clean_bytes` the size of the
    clean part in bytes. Tombstones below `tombstones_below` may go.
    """

    key: TopicIdPartition
    dirty: list[Batch]
    clean_bytes: int
    tombstones_below: int
    policy: _Policy


class Cleaner:
    """Cleans the replicas in one broker root.

    Parameters: `topics`, returns the configurations of the topics by id; `lock`, which excludes the
    broker's ticks; `stream_writes`, which opens the cluster's table of micro-batches.
    """

    def __init__(
        self,
        replicas: Replicas,
        producer_state: ProducerState,
        topics: Callable[[], Mapping[str, TopicConfig]],
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
        self._topics = topics
        self._stream_writes = stream_writes
        self._rules = rules
        self._settings = settings
        self._execution = execution
        self._clock = clock
        self._lock = lock
        self._failures = RepeatedFailures(_log)
        self._left_alone_until_ms: dict[TopicIdPartition, int] = {}
        # The bounds of each clean part, and its size in bytes.
        self._sizes: dict[TopicIdPartition, tuple[tuple[int, int], int]] = {}

    @cached_property
    def _checkpoint(self) -> ControlTable:
        return self._replicas.root.cleaner_offset_checkpoint

    @cached_property
    def _cleaned(self) -> dict[TopicIdPartition, Cleaned]:
        """The parts of the replicas that are clean, as the checkpoint has them."""
        return {
            TopicIdPartition(row["topic_id"], row["partition"]): Cleaned(
                row["first_dirty_offset"], tuple(Pass(*one) for one in json.loads(row["passes"]))
            )
            for row in self._checkpoint.rows().to_pylist()
        }

    def clean(self, effects: Effects) -> CleanReport:
        """Clean each replica that is dirty enough, up to the keys that fit into the buffer.

        Raises `FencedError` if a newer process runs this broker, and the errors of reading and
        writing the root's tables.
        """
        now_ms = self._clock.now_ms()
        with self._lock:
            self._replicas.settle()
            windows = list(self._windows(now_ms)) if self._replicas.is_written else []
        windows = self._without_awaited(windows)
        report = CleanReport()
        for window in self._dirty_enough(windows, now_ms):
            done = self._clean(window, now_ms, effects)
            report = CleanReport(*(one + two for one, two in zip(report, done, strict=True)))
        return report

    # --- selection ------------------------------------------------------------------------------

    def _windows(self, now_ms: int) -> Iterator[_Window]:
        """Yield the batches that may be cleaned, of each replica of a compacted topic."""
        policies = {
            topic_id: _Policy.of(config, self._settings)
            for topic_id, config in self._topics().items()
        }
        compacted = {topic_id: policy for topic_id, policy in policies.items() if policy}
        keys = [
            key
            for key in self._log.partitions()
            if key.topic_id in compacted and key in self._replicas
        ]
        if not keys:
            return
        for key in sorted(keys):
            if now_ms < self._left_alone_until_ms.get(key, 0):
                continue
            policy, replica = compacted[key.topic_id], self._replicas[key]
            lag_ms = max(self._settings.log_merger_min_lag_ms, policy.min_compaction_lag_ms)
            cleaned = self._clean_part(key)
            start = max(cleaned.first_dirty_offset, replica.log_start_offset)

            def may_be_cleaned(
                batch: Batch,
                high_watermark: int = replica.high_watermark,
                before_ms: int = now_ms - lag_ms,
            ) -> bool:
                return (
                    is_below_high_watermark(batch.next_offset, high_watermark)
                    and self._log.appended_at_ms(batch) <= before_ms
                )

            dirty = list(takewhile(may_be_cleaned, self._log.batches(key, start)))
            if dirty:
                expired_ms = now_ms - policy.delete_retention_ms
                ends = [one.end_offset for one in cleaned.passes if one.cleaned_at_ms <= expired_ms]
                clean_bytes = self._clean_bytes(key, replica.log_start_offset, dirty[0])
                yield _Window(key, dirty, clean_bytes, max(ends, default=0), policy)

    def _clean_bytes(self, key: TopicIdPartition, log_start_offset: int, dirty: Batch) -> int:
        """Return the size of the clean part; it is added up again only if its bounds have moved."""
        bounds = log_start_offset, dirty.base_offset
        known = self._sizes.get(key)
        if known is None or known[0] != bounds:
            batches = takewhile(
                lambda one: one.base_offset < dirty.base_offset,
                self._log.batches(key, log_start_offset),
            )
            known = self._sizes[key] = bounds, sum(batch.size_bytes for batch in batches)
        return known[1]

    def _without_awaited(self, windows: list[_Window]) -> list[_Window]:
        """Return the windows up to the first batch that a micro-batch may send again.

        Read after the log: a micro-batch is noted before any of its files is in a log.
        """
        if not windows:
            return []
        awaited = awaited_batch_ids(self._stream_writes())
        cut = (
            window._replace(
                dirty=list(takewhile(lambda one: one.batch_id not in awaited, window.dirty))
            )
            for window in windows
        )
        return [window for window in cut if window.dirty]

    def _clean_part(self, key: TopicIdPartition) -> Cleaned:
        """Return what was cleaned of a replica, as far as its log still has it."""
        end = self._log.log_end_offset(key)
        cleaned = self._cleaned.get(key, Cleaned())
        passes = [one._replace(end_offset=min(one.end_offset, end)) for one in cleaned.passes]
        return Cleaned(min(cleaned.first_dirty_offset, end), tuple(passes))

    def _dirty_enough(self, windows: Sequence[_Window], now_ms: int) -> list[_Window]:
        """Return the logs that the rule chooses, the dirtiest first."""
        rows = []
        for window in windows:
            policy = window.policy
            rows.append(
                {
                    **window.key._asdict(),
                    "clean_bytes": window.clean_bytes,
                    "dirty_bytes": sum(batch.size_bytes for batch in window.dirty),
                    "dirty_since_ms": self._log.appended_at_ms(window.dirty[0]),
                    "now_ms": now_ms,
                    "min_dirty_millionths": round(policy.min_dirty_ratio * 1_000_000),
                    "max_lag_ms": policy.max_compaction_lag_ms,
                }
            )
        if not rows:
            return []
        by_key = {window.key: window for window in windows}
        found = self._rules.run("cleanable_logs", logs=rows)
        return [by_key[TopicIdPartition(row["topic_id"], row["partition"])] for row in found]

    # --- cleaning -------------------------------------------------------------------------------

    def _clean(self, window: _Window, now_ms: int, effects: Effects) -> CleanReport:
        """Clean one replica; nothing is removed of it if a file cannot be read."""
        dirty = self._fitting(window.dirty)
        end_offset = dirty[-1].next_offset
        with self._lock:
            start = (
                self._replicas[window.key].log_start_offset if window.key in self._replicas else 0
            )
            batches = [
                one for one in self._log.batches(window.key, start) if one.next_offset <= end_offset
            ]
        report = CleanReport(1)
        try:
            latest = self._latest(dirty)
            for slab in self._slabs(batches):
                compactions = self._compactions(slab, latest, window.tombstones_below)
                done = self._write(compactions, effects)
                if done is None:
                    return report
                report = report._replace(
                    records=report.records + done.records, retained=report.retained + done.retained
                )
        except StorageError as error:
            self._leave_alone(window.key, batches, str(error), now_ms)
            return CleanReport()
        self._note(window, end_offset, now_ms)
        effects.done("cleaner_checkpoint")
        _log.info(
            "log cleaned",
            topic=dirty[0].topic,
            partition=window.key.partition,
            end_offset=end_offset,
            records=report.records,
            retained=report.retained,
        )
        return report

    def _fitting(self, dirty: Sequence[Batch]) -> Sequence[Batch]:
        """Return the first dirty batches, as many as have room in the buffer; at least one."""
        left = self._settings.log_cleaner_dedupe_buffer_size // _BYTES_PER_KEY
        for number, batch in enumerate(dirty):
            left -= batch.record_count
            if left < 0 and number:
                return dirty[:number]
        return dirty

    def _latest(self, dirty: Sequence[Batch]) -> pa.Table:
        keys = record_keys(self._log.location, dirty)
        rows = self._rules.run("latest_keys", records=keys)
        return pa.table(
            {
                "key_digest": pa.array([row["key_digest"] for row in rows], pa.string()),
                "last_offset": pa.array([row["last_offset"] for row in rows], pa.int64()),
            }
        )

    def _slabs(self, batches: Sequence[Batch]) -> Iterator[list[tuple[Batch, ...]]]:
        """Yield groups of adjacent batches that become one batch each, one commit's at once."""
        slab: list[tuple[Batch, ...]] = []
        group: list[Batch] = []
        count = size = 0
        limit = self._settings.log_merger_max_batch_bytes
        for batch in batches:
            is_other = bool(group) and (
                batch.leader_epoch != group[0].leader_epoch or size + batch.size_bytes > limit
            )
            if is_other or count >= _MOST_BATCHES:
                slab.append(tuple(group))
                group, size = [], 0
                if count >= _MOST_BATCHES:
                    yield slab
                    slab, count = [], 0
            group.append(batch)
            size += batch.size_bytes
            count += 1
        if group:
            slab.append(tuple(group))
        if slab:
            yield slab

    def _compactions(
        self, slab: Sequence[tuple[Batch, ...]], latest: pa.Table, tombstones_below: int
    ) -> list[Compaction]:
        """Return the groups that lose records or batches, each with the records that it keeps."""
        compactions = []
        for group in slab:
            records = record_keys(self._log.location, group)
            below = pa.array(np.full(records.num_rows, tombstones_below, dtype=np.int64))
            records = records.append_column("tombstones_below", below)
            found = self._rules.run("retained_records", records=records, latest=latest)
            retained = np.array([row["record_offset"] for row in found], dtype=np.int64)
            if len(group) > 1 or len(retained) < records.num_rows:
                path = new_batch_path()
                compactions.append(Compaction(self._log.location, group, retained, path))
        return compactions

    def _write(self, compactions: list[Compaction], effects: Effects) -> CleanReport | None:
        """Write new batches and put them in the place of the old ones; `None` if some have gone."""
        if not compactions:
            return CleanReport()
        began = clocks()
        results = self._execution.compact(compactions)
        effects.done("files")
        failed = [one for one in results if not isinstance(one, Batch)]
        batches = [one for one in results if isinstance(one, Batch)]
        if failed:
            for batch in batches:
                discard_file(self._log.location, batch.path)
            raise StorageError(failed[0])
        with self._lock:
            try:
                with self._log.discarding(batches):
                    check_present(self._log.location, (one.path for one in batches), began)
                    return self._commit(compactions, batches, effects)
            except CommitConflictError as conflict:
                _log.info("not cleaned", reason=str(conflict))
                return None

    def _commit(
        self,
        compactions: Sequence[Compaction],
        batches: Sequence[Batch],
        effects: Effects,
    ) -> CleanReport | None:
        self._replicas.settle()
        if not self._replicas.is_written or not all(map(self._stands, compactions)):
            for batch in batches:
                discard_file(self._log.location, batch.path)
            return None
        removed = [batch for one in compactions for batch in one.batches]
        told = [
            said
            for one, batch in zip(compactions, batches, strict=True)
            for said in self._producer_state.said_by(one.batches, batch.next_offset)
        ]
        now_ms = self._clock.now_ms()
        self._producer_state.add(told, now_ms)
        effects.done("producer_state")
        self._replicas.commit(now_ms, batches, removed)
        effects.done("log_commit")
        records = sum(batch.record_count for batch in removed)
        return CleanReport(0, records, sum(batch.record_count for batch in batches))

    def _stands(self, compaction: Compaction) -> bool:
        """Return whether the chosen batches are still in the log and below the high watermark."""
        first, last = compaction.batches[0], compaction.batches[-1]
        key = first.topic_id_partition
        found = self._log.batches(key, first.base_offset)[: len(compaction.batches)]
        return (
            tuple(found) == compaction.batches
            and key in self._replicas
            and is_below_high_watermark(last.next_offset, self._replicas[key].high_watermark)
        )

    def _leave_alone(
        self, key: TopicIdPartition, batches: Sequence[Batch], fault: str, now_ms: int
    ) -> None:
        """Skip a replica with an unreadable batch for a while; the next tick repairs it (10.8)."""
        self._left_alone_until_ms[key] = now_ms + _RETRY_MS
        self._failures.error(key, "log not cleaned", topic_id=key.topic_id, fault=fault)
        with self._lock:
            any(self._replicas.check_batch(batch) for batch in batches)

    def _note(self, window: _Window, end_offset: int, now_ms: int) -> None:
        """Write the checkpoint: the log is clean below `end_offset`."""
        before = self._clean_part(window.key)
        passes = [one for one in before.passes if one.end_offset > window.tombstones_below]
        if not passes or passes[-1].end_offset < end_offset:
            passes.append(Pass(end_offset, now_ms))
        self._cleaned[window.key] = Cleaned(end_offset, tuple(passes))
        for known in (self._cleaned, self._sizes, self._left_alone_until_ms):
            for key in [key for key in known if key not in self._replicas]:
                del known[key]
        rows = [
            {**key._asdict(), "first_dirty_offset": one[0], "passes": json.dumps(one.passes)}
            for key, one in sorted(self._cleaned.items())
        ]
        with self._lock:
            table = CLEANER_OFFSET_CHECKPOINT.rows(rows)
            overwrite(self._checkpoint, table, self._replicas.root.fence)
