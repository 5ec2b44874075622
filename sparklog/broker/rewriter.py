"""The commit of batches that were rewritten in the background, by the merger and the cleaner.

Batches are chosen between two ticks, written in parallel with ticks, and committed between two
ticks in place of the old ones. The order of effects is: files, producer state, journal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from sparklog.broker.producer_state import ProducerState
from sparklog.broker.replicas import Replicas
from sparklog.broker.tick import Effects
from sparklog.clock import Clock
from sparklog.config import Settings
from sparklog.errors import CommitConflictError
from sparklog.logger import get_logger
from sparklog.model import Batch, TopicIdPartition
from sparklog.protocol.replication.mergeable_batches import is_below_high_watermark
from sparklog.protocol.rules import Rules
from sparklog.storage.batch_rewriting import BatchRewrite
from sparklog.storage.control_table import ControlTable
from sparklog.storage.execution import Execution
from sparklog.storage.new_file import check_present, discard_file

_log = get_logger(__name__)

_RETRY_MS = 300_000
"""The time in ms for which a partition with an unreadable batch is skipped."""

OfRewrite = TypeVar("OfRewrite", bound=BatchRewrite)


class Rewriter(Generic[OfRewrite]):
    """The common part of the merger and the cleaner of one broker root.

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
        self._left_alone_until_ms: dict[TopicIdPartition, int] = {}

    def _is_left_alone(self, key: TopicIdPartition, now_ms: int) -> bool:
        return now_ms < self._left_alone_until_ms.get(key, 0)

    def _leave_alone(
        self, key: TopicIdPartition, batches: Sequence[Batch], fault: str, now_ms: int
    ) -> None:
        """Skip a replica for a while after a fault; the next tick repairs damage (rule 10.8).

        The batches whose files the fault names are verified.
        """
        self._left_alone_until_ms[key] = now_ms + _RETRY_MS
        with self._lock:
            any(self._replicas.check_batch(batch) for batch in batches if batch.path in fault)

    def _replace(
        self,
        written: Sequence[tuple[OfRewrite, Batch]],
        began: tuple[float, float],
        effects: Effects,
    ) -> list[tuple[OfRewrite, Batch]]:
        """Commit new batches in place of the old ones; return those that were committed.

        The files of others, whose old batches are no longer live, are removed. Parameters: `began`,
        the `clocks` before the files were written.
        """
        with self._lock:
            try:
                with self._log.discarding([batch for _, batch in written]):
                    check_present(self._log.location, (one.path for _, one in written), began)
                    self._replicas.settle()
                    standing = self._standing(written)
                    if standing:
                        self._commit(standing, self._clock.now_ms(), effects)
                    return standing
            except CommitConflictError as conflict:
                # The broker's own maintenance has committed first.
                _log.info("batches not replaced", reason=str(conflict))
                return []

    def _standing(
        self, written: Sequence[tuple[OfRewrite, Batch]]
    ) -> list[tuple[OfRewrite, Batch]]:
        is_written = self._replicas.is_written
        standing = []
        for one, batch in written:
            if is_written and self._stands(one):
                standing.append((one, batch))
            else:
                discard_file(self._log.location, batch.path)
        return standing

    def _commit(
        self, standing: Sequence[tuple[OfRewrite, Batch]], now_ms: int, effects: Effects
    ) -> None:
        """Replace batches by new ones in one commit, after the state of their producers."""
        told = [
            said
            for one, batch in standing
            for said in self._producer_state.said_by(one.batches, batch.next_offset)
        ]
        self._producer_state.add(told, now_ms)
        effects.done("producer_state")
        removed = [batch for one, _ in standing for batch in one.batches]
        self._replicas.commit(now_ms, [batch for _, batch in standing], removed)
        effects.done("log_commit")

    def _stands(self, one: OfRewrite) -> bool:
        """Return whether the chosen batches are still in the log and below the high watermark."""
        first, last = one.batches[0], one.batches[-1]
        key = first.topic_id_partition
        found = self._log.batches(key, first.base_offset)[: len(one.batches)]
        return (
            tuple(found) == one.batches
            and key in self._replicas
            and is_below_high_watermark(last.next_offset, self._replicas[key].high_watermark)
        )
