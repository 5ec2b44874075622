"""An idempotent producer for tests, which retries only when a method is called."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from sparklog.model import TopicIdPartition
from sparklog.producer.produce_requests import PendingProduce, RequestedBatch
from sparklog.producer.producer_ids import ProducerId


class LocalProducer:
    """A producer id with its sequence numbers, for `LocalCluster.produce(producer=...)`.

    Parameters
    ----------
    identity : ProducerId
        The producer id and epoch; `LocalCluster.idempotent_producer` allots them (KIP-98).
    send_again : callable
        The function that sends a pending request again.

    Attributes
    ----------
    producer_id : int
        The producer's id.
    producer_epoch : int
        Its epoch, which rises with each producer of the same transactional.id.

    Examples
    --------
    >>> from sparklog.testing import LocalCluster
    >>> cluster = LocalCluster("idempotent", brokers=[0])
    >>> first = cluster.idempotent_producer("a name")
    >>> second = cluster.idempotent_producer("a name")
    >>> second.producer_epoch - first.producer_epoch
    1
    """

    def __init__(
        self, identity: ProducerId, send_again: Callable[[PendingProduce], PendingProduce]
    ) -> None:
        self.producer_id = identity.producer_id
        self.producer_epoch = identity.producer_epoch
        self._send_again = send_again
        self._next_sequence: dict[TopicIdPartition, int] = defaultdict(int)

    def stamp(self, batch: RequestedBatch) -> RequestedBatch:
        """Return a batch as the next one of this producer in its partition.

        Parameters
        ----------
        batch : RequestedBatch
            The batch without a producer.

        Returns
        -------
        RequestedBatch
            The batch with the producer's id, epoch and next sequence number.
        """
        sequence = self._next_sequence[batch.state.key]
        self._next_sequence[batch.state.key] = (sequence + batch.file.record_count) % (1 << 31)
        return batch._replace(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence,
        )

    def retry(self, pending: PendingProduce) -> PendingProduce:
        """Send the same batch again, to the current leader of its partition.

        Parameters
        ----------
        pending : PendingProduce
            The request with the batch.

        Returns
        -------
        PendingProduce
            The new request; the batch keeps its id and sequence numbers.

        Raises
        ------
        SparklogError
            The batch file cannot be read any more.
        """
        return self._send_again(pending)
