"""Produce requests in bulk, for clusters whose ticks the benchmark controls.

`LocalCluster.produce` names one file per request, which costs a commit each. Here one request names
many files, as a client's request may, and files of the same records are encoded once.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.clock import Clock
from sparklog.cluster.connection import Connection
from sparklog.model import new_batch_path
from sparklog.producer.produce_requests import PendingProduce, ProduceClient, RequestedBatch
from sparklog.storage.batch_files import BatchFile, BatchFileWriter, records_table


class BulkProducer:
    """Sends batches of the same values to the partitions of one topic."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self._connection = connection
        self._client = ProduceClient(connection, client_id="benchmark", clock=clock)
        self._clock = clock
        self._encoded: dict[int, tuple[BatchFile, bytes]] = {}

    def send(
        self, topic: str, partitions: Sequence[int], values: Sequence[bytes]
    ) -> PendingProduce:
        """Send a batch of `values` to each of `partitions`, all in one request, with acks=all.

        A partition may be named repeatedly. A list of values that is passed again is encoded once.
        """
        return self._client.send(self._batches(topic, partitions, values), "all")

    def send_each(
        self, topic: str, partitions: Sequence[int], values: Sequence[bytes]
    ) -> list[PendingProduce]:
        """Send a batch to each of `partitions`, with one request each."""
        batches = self._batches(topic, partitions, values)
        return [self._client.send([batch], "all") for batch in batches]

    def _batches(
        self, topic: str, partitions: Sequence[int], values: Sequence[bytes]
    ) -> list[RequestedBatch]:
        metadata = self._connection.metadata()
        batches = []
        for number in partitions:
            state = metadata.partition(topic, number)
            log = self._connection.leader_location(state).child("log")
            if id(values) not in self._encoded:
                writer = BatchFileWriter(log, new_batch_path())
                writer.write(records_table(values, None, self._clock.now_ms()))
                file = writer.close()
                self._encoded[id(values)] = file, log.read_bytes(file.path)
            file, content = self._encoded[id(values)]
            path = new_batch_path()
            with log.create(path) as target:
                target.write(content)
            batches.append(RequestedBatch(state, file._replace(path=path)))
        return batches
