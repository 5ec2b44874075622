"""An idempotent producer in a test's hand: it retries when it is told to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from sparklog.clients.produce import PendingProduce, RequestedBatch
from sparklog.clients.producer_ids import ProducerId
from sparklog.model import TopicIdPartition


class LocalProducer:
    """A producer id with its sequences, as `LocalCluster.produce(producer=...)` takes it."""

    def __init__(
        self, identity: ProducerId, send_again: Callable[[PendingProduce], PendingProduce]
    ) -> None:
        self.producer_id = identity.producer_id
        self.producer_epoch = identity.producer_epoch
        self._send_again = send_again
        self._next_sequence: dict[TopicIdPartition, int] = defaultdict(int)

    def stamp(self, batch: RequestedBatch) -> RequestedBatch:
        """Return `batch` as the next one of this producer in its partition."""
        sequence = self._next_sequence[batch.state.key]
        self._next_sequence[batch.state.key] = (sequence + batch.file.record_count) % (1 << 31)
        return batch._replace(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence,
        )

    def retry(self, pending: PendingProduce) -> PendingProduce:
        """Send the same batch again, to the leader that its partition has now."""
        return self._send_again(pending)
