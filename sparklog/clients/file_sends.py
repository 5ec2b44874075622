"""Files on their way: named to the leaders in whose inboxes they lie, answered, sent again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import tenacity

from sparklog.clients.connection import Connection
from sparklog.clients.produce import (
    Acks,
    PendingProduce,
    ProduceClient,
    ProduceResponse,
    RequestedBatch,
    acks_number,
)
from sparklog.clients.stream_writes import Files, SentFile, StreamWrites
from sparklog.errors import ERROR_CODES, ProtocolError
from sparklog.logger import get_logger
from sparklog.model import TopicIdPartition, batch_id, new_batch_path
from sparklog.storage.copying import Copy
from sparklog.storage.metadata import PartitionState

if TYPE_CHECKING:
    from sparklog.broker.fetch import Copier

_log = get_logger(__name__)


class MicroBatch(NamedTuple):
    """Which micro-batch of which streaming query a DataFrame is."""

    query_id: str
    batch_id: int


class FileSender:
    """Sends files that lie in leaders' inboxes to the cluster that `connection` is of.

    `copier` brings them to other leaders, where the first ones lead no more.
    """

    def __init__(self, connection: Connection, copier: Copier, client_id: str) -> None:
        self._connection = connection
        self._copier = copier
        self._client = ProduceClient(connection, client_id=client_id)
        self._stream_writes = StreamWrites(connection)

    def begun(self, topic: str, once: MicroBatch) -> Files | None:
        """Return the files of a micro-batch that was begun before, `None` where it was not.

        Raises as `StreamWrites.find` does.
        """
        topic_id = self._connection.metadata().topic(topic).topic_id
        write = self._stream_writes.find(once.query_id, topic_id, once.batch_id)
        return None if write is None else write.files

    def send(
        self,
        topic: str,
        files: Files,
        states: Mapping[int, PartitionState],
        acks: Acks,
        timeout_ms: int,
        once: MicroBatch | None = None,
    ) -> PendingSend:
        """Send new files of one topic in one request.

        `states` are the partitions as they were when the files were written to their leaders'
        inboxes. As a micro-batch the files are noted first; where another run of it was faster,
        its files are sent instead.
        """
        if once is not None:
            topic_id = self._connection.metadata().topic(topic).topic_id
            write = self._stream_writes.begin(once.query_id, topic_id, once.batch_id, files)
            if write.files is not files:
                return self.send_again(topic, write.files, acks, timeout_ms, once)
        return PendingSend(self, topic, acks, timeout_ms, files, states, once)

    def gather(self, files: Files, states: Mapping[int, PartitionState]) -> Files:
        """Return the files as they lie with the leaders of `states`, moved where they did not."""
        logs = {
            key: self._connection.leader_location(states[key.partition]).child("log")
            for key in files
        }
        elsewhere = {
            key: [sent for sent in members if sent.log != logs[key]]
            for key, members in files.items()
        }
        moved = iter([sent for of in self.move(elsewhere, states).values() for sent in of])
        return {
            key: [sent if sent.log == logs[key] else next(moved) for sent in members]
            for key, members in files.items()
        }

    def send_again(
        self, topic: str, files: Files, acks: Acks, timeout_ms: int, once: MicroBatch
    ) -> PendingSend:
        """Send the files of a micro-batch that was begun before, to whoever leads now."""
        states = self.partitions(topic)
        moved = self.move(files, states)
        return PendingSend(self, topic, acks, timeout_ms, moved, states, once)

    def finish(self, topic: str, once: MicroBatch) -> None:
        """Note that a micro-batch is stored: another run of it has nothing to do."""
        topic_id = self._connection.metadata().topic(topic).topic_id
        self._stream_writes.finish(once.query_id, topic_id, once.batch_id)

    def submit(
        self,
        files: Mapping[TopicIdPartition, list[SentFile]],
        states: Mapping[int, PartitionState],
        acks: Acks,
        timeout_ms: int,
    ) -> PendingProduce:
        """Name files to the leaders in whose inboxes they lie."""
        batches = [
            RequestedBatch(states[key.partition], sent.file)
            for key, members in files.items()
            for sent in members
        ]
        return self._client.send(batches, acks, timeout_ms)

    def partitions(self, topic: str) -> dict[int, PartitionState]:
        """Return the topic's partitions as they are now."""
        metadata = self._connection.metadata()
        count = metadata.topic(topic).partitions
        return {number: metadata.partition(topic, number) for number in range(count)}

    def move(
        self, files: Mapping[TopicIdPartition, list[SentFile]], states: Mapping[int, PartitionState]
    ) -> dict[TopicIdPartition, list[SentFile]]:
        """Bring files, under new paths, to the inboxes of the leaders that lead now.

        A copy keeps the batch's id, so a leader that has the batch already recognises it, also
        where there is nothing left to copy: the machine on which it lay may be gone.
        """
        moved: dict[TopicIdPartition, list[SentFile]] = {}
        copies: list[Copy] = []
        for key, members in files.items():
            log = self._connection.leader_location(states[key.partition]).child("log")
            for sent in members:
                file = sent.file._replace(path=new_batch_path(batch_id(sent.file.path)))
                copies.append(
                    Copy(
                        sent.log,
                        sent.file.path,
                        log,
                        file.path,
                        file.size_bytes,
                        file.checksum,
                    )
                )
                moved.setdefault(key, []).append(SentFile(log, file))
        for copy, fault in zip(copies, self._copier.copy(copies), strict=True):
            if fault is not None:
                _log.warning("batch not moved to its leader", path=copy.source_path, fault=fault)
        return moved


class PendingSend:
    """A DataFrame on its way: the files are written, the answers are awaited."""

    def __init__(
        self,
        sender: FileSender,
        topic: str,
        acks: Acks,
        timeout_ms: int,
        files: Files,
        states: Mapping[int, PartitionState],
        once: MicroBatch | None = None,
    ) -> None:
        self._once = once
        self._sender = sender
        self._topic = topic
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._files = files
        self._states = states
        self._results: dict[TopicIdPartition, ProduceResponse] = {}
        self._pending = sender.submit(files, states, acks, timeout_ms)

    @property
    def record_count(self) -> int:
        """How many records are being sent."""
        return sum(sent.file.record_count for of in self._files.values() for sent in of)

    @property
    def is_done(self) -> bool:
        """Whether every answer has arrived, errors included; with acks=0 none is awaited."""
        return self._pending.is_done

    def responses(self) -> dict[int, ProduceResponse]:
        """Return the answers that have arrived, by partition; errors are not retried here."""
        answered = self._results | self._pending.poll()
        return {key.partition: response for key, response in answered.items()}

    def retry(self) -> None:
        """Send what has failed or was not answered again, to the current leaders.

        The same files go again under the same batch ids, so that a leader that has a batch
        already does not write it twice (rule 3.7).
        """
        answered = self._pending.poll()
        self._results |= {
            key: response for key, response in answered.items() if response.error == "NONE"
        }
        failed = {key: of for key, of in self._files.items() if key not in self._results}
        self._states = self._sender.partitions(self._topic)
        moved = self._sender.move(failed, self._states)
        self._files |= moved
        self._pending = self._sender.submit(moved, self._states, self._acks, self._timeout_ms)

    def result(self, delivery_timeout_ms: int = 120_000) -> dict[int, ProduceResponse]:
        """Wait until every partition is answered with NONE, retrying what may be retried.

        Returns the answers by partition. Raises the first `ProtocolError` that a retry would not
        mend, or the last one when `delivery_timeout_ms` has passed.
        """
        if acks_number(self._acks) == 0:
            return {}
        deadline = time.monotonic() + delivery_timeout_ms / 1000
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_is_retriable),
            wait=tenacity.wait_random_exponential(multiplier=0.05, max=1),
            stop=tenacity.stop_after_delay(delivery_timeout_ms / 1000),
            reraise=True,
        )
        is_first = True
        for attempt in retrying:
            with attempt:
                if not is_first:
                    self.retry()
                is_first = False
                self._await(deadline)
        if self._once is not None:
            self._sender.finish(self._topic, self._once)
        return self.responses()

    def _await(self, deadline: float) -> None:
        """Wait for the answers; raise the first error, or that the leader has moved."""
        while not self._pending.is_done and time.monotonic() < deadline:
            self._check_leaders()
            time.sleep(0.005)
        for partition, response in self.responses().items():
            if response.error != "NONE":
                raise _error(response.error, self._topic, partition)
        if not self._pending.is_done:
            raise _error("REQUEST_TIMED_OUT", self._topic, min(self._waiting()))

    def _waiting(self) -> set[int]:
        answered = self.responses()
        return {key.partition for key in self._files if key.partition not in answered}

    def _check_leaders(self) -> None:
        """A request that names a past leader epoch may never be answered: do not wait for it."""
        current = self._sender.partitions(self._topic)
        for partition in self._waiting():
            if current[partition].leader_epoch != self._states[partition].leader_epoch:
                raise _error("NOT_LEADER_OR_FOLLOWER", self._topic, partition)


def _is_retriable(error: BaseException) -> bool:
    return isinstance(error, ProtocolError) and error.retriable


def _error(name: str, topic: str, partition: int) -> ProtocolError:
    sentence = ERROR_CODES[name].sentence
    return ProtocolError(name, f"partition {partition} of topic {topic}: {sentence}")
