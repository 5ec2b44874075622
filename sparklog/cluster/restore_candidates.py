"""The replicas from which a batch of another replica can be restored."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sparklog.cluster.metadata import PartitionState
from sparklog.model import Batch
from sparklog.storage.record_log import RecordLog
from sparklog.storage.restoring import Candidate


def restore_candidates(
    state: PartitionState,
    broker_id: int,
    batch: Batch,
    committed: int,
    log_of: Callable[[PartitionState, int], RecordLog | None],
) -> Iterator[Candidate]:
    """Yield the other replicas with batches at the offsets of a broker's batch, in sync first.

    Parameters: `committed`, a high watermark of the partition: in-sync replicas have equal records
    below it (9.2); `log_of`, the log of a broker's replica, or `None` if it cannot be read.
    """
    for one in sorted(state.replicas, key=lambda one: not one.in_isr):
        if one.broker_id == broker_id:
            continue
        log = log_of(state, one.broker_id)
        if log is None:
            continue
        batches = [
            other
            for other in log.batches(state.key, batch.base_offset)
            if other.base_offset < batch.next_offset
        ]
        if batches:
            is_in_sync = one.in_isr and batch.next_offset <= committed
            yield Candidate(one.broker_id, log.location, batches, is_in_sync)
