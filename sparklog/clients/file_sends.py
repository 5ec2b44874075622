"""Delivery of batch files: produce requests, responses, retries, and rows that are sent again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import tenacity

from sparklog.broker.leader_roots import UNREADABLE
from sparklog.clients.answer_polls import pause_seconds
from sparklog.clients.arguments import whole_number
from sparklog.clients.connection import Connection
from sparklog.clients.lost_rows import OtherRowsError, lost_rows, read_sent
from sparklog.clients.produce import (
    METADATA_MS,
    Acks,
    PendingProduce,
    ProduceClient,
    ProduceResponse,
    RequestedBatch,
    acks_number,
)
from sparklog.clients.stream_writes import Files, MicroBatch, SentFile, StreamWrites
from sparklog.errors import ERROR_CODES, ProtocolError, SparklogError, StorageError
from sparklog.logger import get_logger
from sparklog.model import Batch, TopicIdPartition, batch_id, new_batch_path
from sparklog.storage.batch_files import BatchFile
from sparklog.storage.copying import Copy
from sparklog.storage.location import Location, one_line
from sparklog.storage.metadata import PartitionState
from sparklog.storage.record_log import RecordLog

if TYPE_CHECKING:
    from sparklog.broker.fetch import Copier

_log = get_logger(__name__)

States = Mapping[TopicIdPartition, PartitionState]

Rewrite = Callable[[], Files]
"""Writes the rows of a micro-batch to new files and returns these."""


class Moved(NamedTuple):
    """Files on their way to other leaders.

    `requested` are the files as they are named to these; `files` those that are there, which are
    the same but for files that could not be copied; `missing` the batch ids of the latter.
    """

    requested: Files
    files: Files
    missing: frozenset[str]


class FileSender:
    """Sends files that lie in leaders' inboxes to the cluster that `connection` is of.

    `copier` brings them to other leaders, where the first ones lead no more.
    """

    def __init__(self, connection: Connection, copier: Copier, client_id: str) -> None:
        self._connection = connection
        self._copier = copier
        self._client = ProduceClient(connection, client_id=client_id)
        self.stream_writes = StreamWrites(connection)

    def send(
        self,
        files: Files,
        acks: Acks,
        timeout_ms: int,
        once: MicroBatch | None = None,
        rewrite: Rewrite | None = None,
    ) -> PendingSend:
        """Send new files in one request; those in other inboxes are moved to the leaders first.

        As a micro-batch the files are noted before the request; where another run of it was
        faster, its files are sent instead. `rewrite` as for `send_again`. Raises
        UNKNOWN_TOPIC_OR_PARTITION and LEADER_NOT_AVAILABLE.
        """
        states = self.states(files)
        for key in files.keys() - states.keys():
            raise _gone(key)
        gathered = self._gather(files, states)
        if once is not None:
            write = self.stream_writes.begin(once, gathered)
            if write.files is not gathered:
                return self.send_again(write.files, acks, timeout_ms, once, rewrite)
        sent = PendingSend(self, gathered, acks, timeout_ms, once, rewrite)
        sent.begin(lambda: sent.submit(gathered, states))
        return sent

    def send_again(
        self,
        files: Files,
        acks: Acks,
        timeout_ms: int,
        once: MicroBatch,
        rewrite: Rewrite | None = None,
    ) -> PendingSend:
        """Send the noted files of a micro-batch to the current leaders.

        `rewrite` is called for the rows of files that are lost and that no leader has, as when the
        disk of a leader died before it appended them.
        """
        sent = PendingSend(self, files, acks, timeout_ms, once, rewrite)
        sent.begin(sent.retry)
        return sent

    def states(
        self, keys: Iterable[TopicIdPartition], max_age_ms: int = 0
    ) -> dict[TopicIdPartition, PartitionState]:
        """Return these partitions without those of deleted topics.

        They are as they are now; on an object store, as they were at most `max_age_ms` ago.
        """
        partitions = self._connection.metadata(max_age_ms).partitions
        return {key: partitions[key] for key in keys if key in partitions}

    def submit(self, files: Files, states: States, acks: Acks, timeout_ms: int) -> PendingProduce:
        """Name files to the leaders in whose inboxes they lie.

        Raises KAFKA_STORAGE_ERROR where a leader's root cannot be read; the requests to the others
        may have been sent.
        """
        batches = [RequestedBatch(states[key], sent.file) for key, sent in _each(files)]
        try:
            return self._client.send(batches, acks, timeout_ms)
        except UNREADABLE as error:
            raise _away(error) from error

    def move(self, files: Files, states: States) -> Moved:
        """Bring files, under new paths, to the inboxes of the leaders that lead now.

        A copy keeps the batch's id, so a leader that has the batch already recognises it, also
        where there is nothing left to copy because the source's disk is gone.
        """
        requested: Files = {}
        origins: list[tuple[TopicIdPartition, SentFile]] = []
        copies: list[Copy] = []
        for key, members in files.items():
            log = self._leader_log(states[key])
            for sent in members:
                file = sent.file._replace(path=new_batch_path(batch_id(sent.file.path)))
                requested.setdefault(key, []).append(SentFile(log, file))
                origins.append((key, sent))
                copies.append(
                    Copy(sent.log, sent.file.path, log, file.path, file.size_bytes, file.checksum)
                )
        there: Files = {}
        missing: set[str] = set()
        targets = iter([sent for members in requested.values() for sent in members])
        for (key, sent), target, fault in zip(
            origins, targets, self._copier.copy(copies), strict=True
        ):
            if fault is not None:
                _log.warning("batch not moved to its leader", path=sent.file.path, fault=fault)
                missing.add(batch_id(sent.file.path))
            there.setdefault(key, []).append(sent if fault is not None else target)
        return Moved(requested, there, frozenset(missing))

    def known(self, state: PartitionState, batch_ids: Iterable[str]) -> dict[str, SentFile]:
        """Return the batches that the leader's log has, by batch id.

        Raises KAFKA_STORAGE_ERROR where its log cannot be read.
        """
        root = self._connection.leader_location(state)
        try:
            log = RecordLog(root)
        except UNREADABLE as error:
            raise _away(error) from error
        return {
            batch.batch_id: SentFile(log.location, _file(batch)) for batch in log.find(batch_ids)
        }

    def _gather(self, files: Files, states: States) -> Files:
        """Return the files as they lie with the leaders of `states`, moved where they did not."""
        elsewhere = {
            key: away
            for key, members in files.items()
            if (away := [one for one in members if one.log != self._leader_log(states[key])])
        }
        if not elsewhere:
            return files
        moved = {
            batch_id(sent.file.path): sent
            for members in self.move(elsewhere, states).requested.values()
            for sent in members
        }
        return {
            key: [moved.get(batch_id(sent.file.path), sent) for sent in members]
            for key, members in files.items()
        }

    def _leader_log(self, state: PartitionState) -> Location:
        return self._connection.leader_location(state).child("log")


class PendingSend:
    """Files on their way: they are written, the answers are awaited."""

    def __init__(
        self,
        sender: FileSender,
        files: Files,
        acks: Acks,
        timeout_ms: int,
        once: MicroBatch | None,
        rewrite: Rewrite | None,
    ) -> None:
        self._sender = sender
        self._noted = files
        self._files = dict(files)
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._once = once
        self._rewrite = rewrite
        self._states: States = {}
        self._missing: frozenset[str] = frozenset()
        self._results: dict[TopicIdPartition, ProduceResponse] = {}
        self._pending: PendingProduce | None = None

    @property
    def record_count(self) -> int:
        """How many records are being sent."""
        return sum(sent.file.record_count for _, sent in _each(self._files))

    @property
    def is_done(self) -> bool:
        """Whether every answer has arrived, errors included; with acks=0 none is awaited.

        True also after a first attempt that failed: `result` and `retry` send the files again.
        """
        if self._pending is None:
            return self._results.keys() >= self._files.keys()
        return self._pending.is_done

    def responses(self) -> dict[int, ProduceResponse]:
        """Return the answers that have arrived, by partition; errors are not retried here.

        Files of several topics have one answer for all partitions of a number.
        """
        return {key.partition: response for key, response in self._answers().items()}

    def begin(self, send: Callable[[], None]) -> None:
        """Send the files for the first time; a failure that may pass is left to `result`.

        With acks=0, where `result` waits for nothing and retries nothing, each failure is raised.
        """
        try:
            send()
        except ProtocolError as error:
            if not _is_retriable(error) or acks_number(self._acks) == 0:
                raise
            _log.info("files not sent yet", error=str(error))
            failed = ProduceResponse(error.code.name, -1, -1)
            self._results = dict.fromkeys(self._files, failed)

    def submit(self, files: Files, states: States) -> None:
        """Name files to the leaders in whose inboxes they lie."""
        self._states = states
        self._pending = self._sender.submit(files, states, self._acks, self._timeout_ms)

    def retry(self) -> None:
        """Send what has failed or was not answered again, to the current leaders.

        The same files go again under the same batch ids, so that a leader that has a batch
        already does not write it twice (rule 3.7). The rows of files that are lost go in new ones,
        where this is a micro-batch. Raises `SparklogError` where these rows cannot be told.
        """
        answered = self._answers()
        self._results = {
            key: response for key, response in answered.items() if response.error == "NONE"
        }
        if self._once is not None and self._rewrite is not None and (lost := self._lost()):
            self._send_rows_of(lost, self._once, self._rewrite)
        self._send_waiting()

    def result(self, delivery_timeout_ms: int = 120_000) -> dict[int, ProduceResponse]:
        """Wait until every partition is answered with NONE, retrying what may be retried.

        Returns the answers by partition. Raises the first `ProtocolError` that a retry would not
        mend, or the last one when `delivery_timeout_ms` has passed, and as `retry` does.
        """
        delivery_timeout_ms = whole_number(delivery_timeout_ms, "delivery_timeout_ms")
        if acks_number(self._acks) == 0:
            return {}
        deadline = time.monotonic() + delivery_timeout_ms / 1000
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_is_retriable),
            wait=tenacity.wait_random_exponential(multiplier=0.05, max=1),
            stop=tenacity.stop_after_delay(delivery_timeout_ms / 1000),
            reraise=True,
        )
        is_sent = self._pending is not None or not self._files
        for attempt in retrying:
            with attempt:
                if not is_sent:
                    self.retry()
                is_sent = False
                self._await(deadline)
        if self._once is not None:
            self._sender.stream_writes.finish(self._once)
        return self.responses()

    # --- the parts ------------------------------------------------------------------------------

    def _answers(self) -> dict[TopicIdPartition, ProduceResponse]:
        return self._results | (self._pending.poll() if self._pending is not None else {})

    def _send_waiting(self) -> None:
        """Bring the files that are not answered to the current leaders, and name them there."""
        waiting = {key: of for key, of in self._files.items() if key not in self._results}
        if not waiting:
            return
        states = self._sender.states(waiting)
        for key in waiting.keys() - states.keys():
            raise _gone(key)
        if self._once is not None:
            # An older run of the query must not send what a newer one has replaced.
            self._sender.stream_writes.check(self._once, self._noted)
        moved = self._sender.move(waiting, states)
        self._files |= moved.files
        self._missing = moved.missing
        self.submit(moved.requested, states)

    def _lost(self) -> Files:
        """Return the files whose rows are nowhere: neither in an inbox nor in a leader's log.

        A leader that refuses a batch has taken every earlier request for it before, so that what
        is in its log then decides.
        """
        lost: Files = {}
        for key, members in self._files.items():
            answer = self._pending.poll().get(key) if self._pending is not None else None
            away = [sent for sent in members if batch_id(sent.file.path) in self._missing]
            if answer is None or answer.error != "CORRUPT_MESSAGE" or not away:
                continue
            ids = [batch_id(sent.file.path) for sent in away]
            known = self._sender.known(self._states[key], ids)
            nowhere = [sent for sent in away if batch_id(sent.file.path) not in known]
            if nowhere:
                lost[key] = nowhere
        return lost

    def _send_rows_of(self, lost: Files, once: MicroBatch, rewrite: Rewrite) -> None:
        """Note files with the rows of lost ones in place of these."""
        gone = {sent.file.path for _, sent in _each(lost)}
        kept: Files = {}
        for key, sent in _each(self._files):
            if sent.file.path not in gone:
                kept.setdefault(key, []).append(sent)
        count = sum(sent.file.record_count for _, sent in _each(lost))
        _log.warning("rows of lost files are sent again", micro_batch=str(once), records=count)
        try:
            found = lost_rows(rewrite(), self._rows(kept), count)
        except OtherRowsError as error:
            [_, example], *_ = _each(lost)
            raise SparklogError(
                f"{once} cannot be completed, since {example.log.uri}/{example.file.path} is lost "
                f"and this run of the micro-batch has other rows than the first ({error}): start "
                "the query with a new checkpoint, which writes its records again"
            ) from error
        after = {key: list(members) for key, members in kept.items()}
        for key, sent in _each(found):
            after.setdefault(key, []).append(sent)
        self._sender.stream_writes.replace(once, self._noted, after)
        self._noted = after
        self._files = dict(after)
        self._results = {key: one for key, one in self._results.items() if key not in found}

    def _rows(self, files: Files) -> Iterator[tuple[TopicIdPartition, pa.Table]]:
        """Yield the rows of files, from their inboxes or from the leaders' logs."""
        states = self._sender.states(files)
        for key, sent in _each(files):
            try:
                yield key, read_sent(sent.log, sent.file.path)
            except (OSError, pa.ArrowException) as error:
                found = self._sender.known(states[key], [batch_id(sent.file.path)])
                if not found:
                    raise StorageError(
                        f"{sent.log.uri}/{sent.file.path} cannot be read: {one_line(error)}"
                    ) from error
                [batch] = found.values()
                yield key, read_sent(batch.log, batch.file.path)

    def _await(self, deadline: float) -> None:
        """Wait for the answers; raise the first error, or that the leader has moved."""
        began = time.monotonic()
        answers = self._answers()
        while unanswered := self._files.keys() - answers.keys():
            now = time.monotonic()
            if now > deadline:
                break
            self._check_leaders(unanswered)
            time.sleep(pause_seconds(now - began))
            answers = self._answers()
        for key, response in answers.items():
            if response.error != "NONE":
                raise self._error(response.error, key)
        if unanswered:
            raise self._error("REQUEST_TIMED_OUT", min(unanswered))

    def _check_leaders(self, unanswered: Collection[TopicIdPartition]) -> None:
        """A request that names a past leader epoch may never be answered: do not wait for it."""
        current = self._sender.states(unanswered, METADATA_MS)
        for key in unanswered:
            if key not in current:
                raise _gone(key)
            if current[key].leader_epoch != self._states[key].leader_epoch:
                raise self._error("NOT_LEADER_OR_FOLLOWER", key)

    def _error(self, name: str, key: TopicIdPartition) -> ProtocolError:
        away = [sent for sent in self._files[key] if batch_id(sent.file.path) in self._missing]
        sentence = ERROR_CODES[name].sentence
        if name == "CORRUPT_MESSAGE" and away:
            sentence = (
                f"{away[0].log.uri}/{away[0].file.path} is lost, and the leader does not have its "
                "records: write them again, as another run of the same micro-batch does"
            )
        of = f"partition {key.partition} of topic {self._states[key].topic}"
        return ProtocolError(name, f"{of}: {sentence}")


class _DeletedTopicError(ProtocolError):
    """The topic of files that are to be sent was deleted; a retry does not bring it back."""


def _gone(key: TopicIdPartition) -> ProtocolError:
    return _DeletedTopicError(
        "UNKNOWN_TOPIC_OR_PARTITION",
        f"the topic with id {key.topic_id} was deleted before records for its partition "
        f"{key.partition} were stored: write them again to a topic that exists",
    )


def _away(error: Exception) -> ProtocolError:
    return ProtocolError("KAFKA_STORAGE_ERROR", f"a leader's root is away: {one_line(error)}")


def _each(files: Files) -> Iterator[tuple[TopicIdPartition, SentFile]]:
    return ((key, sent) for key, members in files.items() for sent in members)


def _file(batch: Batch) -> BatchFile:
    return BatchFile(
        batch.path,
        batch.size_bytes,
        batch.checksum,
        batch.record_count,
        batch.min_timestamp_ms,
        batch.max_timestamp_ms,
    )


def _is_retriable(error: BaseException) -> bool:
    is_passing = isinstance(error, ProtocolError) and error.retriable
    return is_passing and not isinstance(error, _DeletedTopicError)
