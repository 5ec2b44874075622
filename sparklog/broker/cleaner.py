"""The log cleaner: compaction of the logs of topics with cleanup.policy=compact (rule 8.3).

As Kafka's cleaner, each broker cleans its own replicas, whether it leads or follows, and keeps the
last record of each key. A log has a clean part, which was cleaned before, and a dirty part after
it. The keys of the dirty part are read first; then each batch from the log start to the end of the
dirty part is written without the records that are superseded: in this process, or as one Spark job
(`cleaning_plan`). The order of effects is: files, producer state, journal, checkpoint of the
cleaner. A record is only removed if a later one with its
key is in the log below the high watermark, so a crash between two effects leaves a log in which a
part is cleaned, and the next run cleans it again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property, partial
from itertools import chain, takewhile
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from sparklog.broker.checkpoints import overwrite
from sparklog.broker.cleaning_plan import cleaning_plan
from sparklog.broker.micro_batch_files import awaited_batch_ids
from sparklog.broker.rewriter import Rewriter
from sparklog.broker.tick import Effects
from sparklog.clock import clocks
from sparklog.cluster.metadata import TopicInfo
from sparklog.config import Settings, TopicConfig
from sparklog.errors import StorageError
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.model import CLEANER_OFFSET_CHECKPOINT, Batch, TopicIdPartition, new_batch_path
from sparklog.protocol.driver_rules import DriverRules
from sparklog.protocol.replication.mergeable_batches import is_below_high_watermark
from sparklog.storage.compaction import (
    RECORD_KEYS,
    Compaction,
    compact_batches,
    compact_retained,
    key_offsets,
)
from sparklog.storage.control_table import ControlTable
from sparklog.storage.new_file import discard_file
from sparklog.storage.parallel import map_in_parallel

_log = get_logger(__name__)

_MOST_BATCHES = 1_000
"""The maximum number of batches that one commit replaces."""

_BYTES_PER_KEY = 256
"""Bytes of log.cleaner.dedupe.buffer.size for each key of the dirty part."""

_RECORDS_AT_ONCE = 200_000
"""Records of the dirty part whose keys are read at once."""

_FOR_EVER = 1 << 63
"""A time in ms that does not come."""


_Written: TypeAlias = "list[tuple[Compaction, Batch]]"
"""The batches that were rewritten for one commit, each with the new one."""


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


class _Idle(NamedTuple):
    """A replica that is not to be cleaned as long as its log, by `state`, and its policy stay.

    At `until_ms` time alone may change that.
    """

    state: tuple[object, ...]
    until_ms: int


class _Window(NamedTuple):
    """A replica with batches to clean.

    `dirty` are the batches of the dirty part that may be cleaned, `clean_bytes` the size of the
    clean part in bytes. Tombstones below `tombstones_below` may go. `idle` holds if the log is not
    dirty enough, unless the dirty part `is_cut` at a batch that a micro-batch may send again.
    """

    key: TopicIdPartition
    dirty: list[Batch]
    clean_bytes: int
    tombstones_below: int
    policy: _Policy
    idle: _Idle
    is_cut: bool = False


class Cleaner(Rewriter[Compaction]):
    """Cleans the replicas in one broker root.

    Parameters: `topics`, returns the topics by id, as the same object as long as none has changed.
    """

    def __init__(self, topics: Callable[[], Mapping[str, TopicInfo]], *shared: Any) -> None:
        super().__init__(*shared)
        self._topics = topics
        self._seen_topics: Mapping[str, TopicInfo] | None = None
        self._compacted: dict[str, _Policy] = {}
        self._idle: dict[TopicIdPartition, _Idle] = {}
        self._plan = cleaning_plan(self._execution)
        # Their rows are records, so `rules.engine` does not apply to the rules of keys.
        self._rules_of_keys = DriverRules()
        self._failures = RepeatedFailures(_log)
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
        compacted = self._policies()
        if not compacted:
            return CleanReport()
        now_ms = self._clock.now_ms()
        with self._lock:
            self._replicas.settle()
            windows = list(self._windows(compacted, now_ms)) if self._replicas.is_written else []
        windows = self._without_awaited(windows)
        chosen = self._dirty_enough(windows, now_ms)
        self._note_idle(windows, chosen)
        report = CleanReport()
        for window in chosen:
            done = self._clean(window, now_ms, effects)
            report = CleanReport(*(one + two for one, two in zip(report, done, strict=True)))
        return report

    # --- selection ------------------------------------------------------------------------------

    def _policies(self) -> dict[str, _Policy]:
        """Return the settings of the compacted topics, by id; read only if a topic has changed."""
        topics = self._topics()
        if topics is not self._seen_topics:
            of_topics = {key: _Policy.of(one.config, self._settings) for key, one in topics.items()}
            self._compacted = {key: policy for key, policy in of_topics.items() if policy}
            self._seen_topics = topics
        return self._compacted

    def _windows(self, compacted: Mapping[str, _Policy], now_ms: int) -> Iterator[_Window]:
        """Yield the batches that may be cleaned, of each replica in which that may have changed."""
        keys = [
            key
            for key in self._log.partitions()
            if key.topic_id in compacted and key in self._replicas
        ]
        for key in sorted(keys):
            policy, replica = compacted[key.topic_id], self._replicas[key]
            batches = self._log.batches(key, replica.log_start_offset)
            first_and_last = (batches[0].path, batches[-1].path) if batches else ()
            state = replica.log_start_offset, replica.high_watermark, policy, first_and_last
            idle = self._idle.get(key)
            is_idle = idle is not None and idle.state == state and now_ms < idle.until_ms
            if is_idle or self._is_left_alone(key, now_ms):
                continue
            lag_ms = max(self._settings.log_merger_min_lag_ms, policy.min_compaction_lag_ms)
            cleaned = self._clean_part(key)
            start = max(cleaned.first_dirty_offset, replica.log_start_offset)
            dirty: list[Batch] = []
            until_ms = _FOR_EVER
            for batch in self._log.batches(key, start):
                if not is_below_high_watermark(batch.next_offset, replica.high_watermark):
                    break
                may_be_cleaned_at_ms = self._log.appended_at_ms(batch) + lag_ms
                if now_ms < may_be_cleaned_at_ms:
                    until_ms = may_be_cleaned_at_ms
                    break
                dirty.append(batch)
            if not dirty:
                self._idle[key] = _Idle(state, until_ms)
                continue
            overdue_at_ms = self._log.appended_at_ms(dirty[0]) + policy.max_compaction_lag_ms + 1
            expired_ms = now_ms - policy.delete_retention_ms
            ends = [one.end_offset for one in cleaned.passes if one.cleaned_at_ms <= expired_ms]
            clean_bytes = self._clean_bytes(key, replica.log_start_offset, dirty[0])
            idle = _Idle(state, min(until_ms, overdue_at_ms))
            yield _Window(key, dirty, clean_bytes, max(ends, default=0), policy, idle)

    def _note_idle(self, windows: Sequence[_Window], chosen: Sequence[_Window]) -> None:
        """Note the replicas that are not dirty enough, so that they are not searched again."""
        keys = {window.key for window in chosen}
        for window in windows:
            self._idle.pop(window.key, None)
            if window.key not in keys and not window.is_cut:
                self._idle[window.key] = window.idle

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
        left = []
        for window in windows:
            dirty = list(takewhile(lambda one: one.batch_id not in awaited, window.dirty))
            if dirty:
                is_cut = len(dirty) < len(window.dirty)
                left.append(window._replace(dirty=dirty, is_cut=is_cut))
        return left

    def _clean_part(self, key: TopicIdPartition) -> Cleaned:
        """Return what was cleaned of a replica, as far as its log still has it.

        Batches that were appended after the last pass are not clean: the replica was truncated, and
        filled again from a leader that may have been cleaned less far.
        """
        cleaned = self._cleaned.get(key, Cleaned())
        end = min(cleaned.first_dirty_offset, self._log.log_end_offset(key))
        if cleaned.passes:
            last_ms = cleaned.passes[-1].cleaned_at_ms
            batches = takewhile(lambda one: one.base_offset < end, self._log.batches(key))
            refilled = (one for one in batches if self._log.appended_at_ms(one) > last_ms)
            first = next(refilled, None)
            end = end if first is None else first.base_offset
        passes = [one._replace(end_offset=min(one.end_offset, end)) for one in cleaned.passes]
        return Cleaned(end, tuple(passes))

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
        key = window.key
        with self._lock:
            start = self._replicas[key].log_start_offset if key in self._replicas else 0
            end_offset = window.dirty[-1].next_offset
            batches = [
                one for one in self._log.batches(key, start) if one.next_offset <= end_offset
            ]
        report = CleanReport(1)
        began = clocks()
        try:
            planned = self._planned(window, batches)
            end_offset, slabs = planned or self._in_driver(window, batches)
            with closing(slabs):
                for written in slabs:
                    effects.done("files")
                    replaced = self._replace(written, began, effects)
                    report = report._replace(
                        records=report.records + sum(one.record_count for one, _ in replaced),
                        retained=report.retained + sum(batch.record_count for _, batch in replaced),
                    )
                    if len(replaced) < len(written):
                        return report
                    if planned is None:
                        began = clocks()
        except StorageError as error:
            self._failures.error(key, "log not cleaned", topic_id=key.topic_id, fault=str(error))
            self._leave_alone(key, batches, str(error), now_ms)
            return CleanReport()
        self._note(window, end_offset, self._clock.now_ms())
        effects.done("cleaner_checkpoint")
        _log.info(
            "log cleaned",
            topic=window.dirty[0].topic,
            partition=key.partition,
            end_offset=end_offset,
            records=report.records,
            retained=report.retained,
        )
        return report

    def _planned(
        self, window: _Window, batches: Sequence[Batch]
    ) -> tuple[int, Generator[_Written]] | None:
        """Write the new batches as one Spark job, if that pays; `None` if none has done it.

        Returns the end of the part that is clean then, and the new batches of each commit.
        """
        size_bytes = sum(batch.size_bytes for batch in batches)
        if self._plan is None or not self._plan.takes(size_bytes):
            return None
        slabs = list(self._slabs(batches))
        compactions = [one for slab in slabs for one in slab]
        dirty_offset = window.dirty[0].base_offset
        found = self._plan.run(compactions, dirty_offset, window.tombstones_below)
        if found is None:
            return None
        # Those that retain no record need no reading.
        emptied = [one for one in compactions if one.base_offset not in found]
        none = np.array([], dtype=np.int64)
        results = map_in_parallel(
            partial(compact_retained, retained=none),
            emptied,
            0,
            is_local=self._log.location.is_local,
        )
        found |= {one.base_offset: result for one, result in zip(emptied, results, strict=True)}
        written = [self._intact((one, found[one.base_offset]) for one in slab) for slab in slabs]
        return batches[-1].next_offset, self._by_commit(written)

    def _by_commit(self, written: Sequence[_Written]) -> Generator[_Written]:
        """Yield the new batches of each commit; remove the files of those not asked for."""
        left = [one for one in written if one]
        try:
            while left:
                yield left.pop(0)
        finally:
            for _, batch in chain.from_iterable(left):
                discard_file(self._log.location, batch.path)

    def _in_driver(
        self, window: _Window, batches: Sequence[Batch]
    ) -> tuple[int, Generator[_Written]]:
        """Write the new batches in this process, those of one commit after the other.

        Returns as `_planned` does. The keys of the dirty part that fit into the buffer decide how
        far it gets.
        """
        latest, end_offset = self._latest(window.dirty)
        inside = [batch for batch in batches if batch.next_offset <= end_offset]
        retain = partial(self._retained, latest, window.tombstones_below)

        def written() -> Generator[_Written]:
            for slab in self._slabs(inside):
                done = self._intact((one, compact_batches(one, retain)) for one in slab)
                if done:
                    yield done

        return end_offset, written()

    def _intact(
        self, results: Iterable[tuple[Compaction, Batch | str | None]]
    ) -> list[tuple[Compaction, Batch]]:
        """Return the new batches; if one could not be written, remove all and raise its failure."""
        written: list[tuple[Compaction, Batch]] = []
        fault: str | None = None
        for one, result in results:
            if isinstance(result, Batch):
                written.append((one, result))
            elif result is not None:
                fault = result
                break
        if fault is not None:
            for _, batch in written:
                discard_file(self._log.location, batch.path)
            raise StorageError(fault)
        return written

    def _latest(self, dirty: Sequence[Batch]) -> tuple[pa.Table, int]:
        """Return the last offset of each key in the first dirty batches, and the end of these.

        They have as many keys as fit into nine tenths of the buffer, as in Kafka; at least one
        batch is read.
        """
        room = self._settings.log_cleaner_dedupe_buffer_size // _BYTES_PER_KEY
        keys = RECORD_KEYS.empty_table().select(["key_digest", "record_offset"])
        latest: list[dict[str, Any]] = []
        end_offset, number = dirty[0].base_offset, 0
        while number < len(dirty) and (not number or (room - len(latest)) * 10 > room):
            few = [dirty[number]]
            left = min(_RECORDS_AT_ONCE, room - len(latest)) - few[0].record_count
            for batch in dirty[number + 1 :]:
                left -= batch.record_count
                if left < 0:
                    break
                few.append(batch)
            number += len(few)
            records = pa.concat_tables([keys, key_offsets(self._log.location, few)])
            latest = self._rules_of_keys.run("latest_keys", records=records)
            keys = pa.table(
                {
                    "key_digest": pa.array([row["key_digest"] for row in latest], pa.string()),
                    "record_offset": pa.array([row["last_offset"] for row in latest], pa.int64()),
                }
            )
            end_offset = few[-1].next_offset
        return keys.rename_columns(["key_digest", "last_offset"]), end_offset

    def _retained(self, latest: pa.Table, tombstones_below: int, records: pa.Table) -> Any:
        """Return the offsets of the records that stay."""
        below = pa.array(np.full(records.num_rows, tombstones_below, dtype=np.int64))
        records = records.append_column("tombstones_below", below)
        found = self._rules_of_keys.run("retained_records", records=records, latest=latest)
        return np.array([row["record_offset"] for row in found], dtype=np.int64)

    def _slabs(self, batches: Sequence[Batch]) -> Iterator[list[Compaction]]:
        """Yield groups of adjacent batches that become one batch each, one commit's at once."""
        slab: list[Compaction] = []
        group: list[Batch] = []
        count = size = 0
        limit = self._settings.log_merger_max_batch_bytes
        for batch in batches:
            is_other = bool(group) and (
                batch.leader_epoch != group[0].leader_epoch or size + batch.size_bytes > limit
            )
            if is_other or count >= _MOST_BATCHES:
                slab.append(self._compaction(group))
                group, size = [], 0
                if count >= _MOST_BATCHES:
                    yield slab
                    slab, count = [], 0
            group.append(batch)
            size += batch.size_bytes
            count += 1
        if group:
            slab.append(self._compaction(group))
        if slab:
            yield slab

    def _compaction(self, group: Sequence[Batch]) -> Compaction:
        return Compaction(self._log.location, tuple(group), new_batch_path())

    def _note(self, window: _Window, end_offset: int, now_ms: int) -> None:
        """Write the checkpoint: the log is clean below `end_offset`."""
        before = self._clean_part(window.key)
        passes = [one for one in before.passes if one.end_offset > window.tombstones_below]
        if not passes or passes[-1].end_offset < end_offset:
            passes.append(Pass(end_offset, now_ms))
        self._cleaned[window.key] = Cleaned(end_offset, tuple(passes))
        for known in (self._cleaned, self._sizes, self._left_alone_until_ms, self._idle):
            for key in [key for key in known if key not in self._replicas]:
                del known[key]
        rows = [
            {**key._asdict(), "first_dirty_offset": one[0], "passes": json.dumps(one.passes)}
            for key, one in sorted(self._cleaned.items())
        ]
        with self._lock:
            table = CLEANER_OFFSET_CHECKPOINT.rows(rows)
            overwrite(self._checkpoint, table, self._replicas.root.fence)
