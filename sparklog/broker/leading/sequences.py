"""Idempotence: batches that a log already has, and batches out of sequence (rules 3.6, 3.7).

The state of a producer is in its last batches in the log, and is copied, cut and recovered with
them. Batches that were merged or dropped since are in `ProducerState`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sparklog.broker.leading.inbox import PendingRequest
from sparklog.broker.producer_state import ProducerState
from sparklog.config import Settings
from sparklog.model import Batch, ProducerBatch, TopicIdPartition
from sparklog.protocol.rules import RowTuples, Rules
from sparklog.storage.record_log import REMEMBERED_BATCHES, RecordLog


class BatchOffsets(NamedTuple):
    """The offsets of a batch in the log."""

    base_offset: int
    last_offset: int


class KnownBatch(NamedTuple):
    """A batch that the log has or had, as the rules on duplicates and sequences take it.

    `batch_id` is `None` if the batch was removed: its file's name is unknown then.
    """

    topic_id: str
    partition: int
    batch_id: str | None
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class Sequences:
    """The producers' sequences in one log."""

    def __init__(
        self, log: RecordLog, producer_state: ProducerState, rules: Rules, settings: Settings
    ) -> None:
        self._log = log
        self._producer_state = producer_state
        self._rules = rules
        self._settings = settings

    def duplicates(
        self, pending: Sequence[PendingRequest], remembered: Sequence[KnownBatch]
    ) -> dict[int, BatchOffsets]:
        """Return, by position, the offsets of requested batches that are in the log already."""
        live = self._log.find(one.request.batch_id for one in pending)
        batches = [_known(batch) for batch in live] + list(remembered)
        if not batches:
            return {}
        requests = [
            (
                one.position,
                *(request := one.request).topic_id_partition,
                request.batch_id,
                request.producer_id,
                request.producer_epoch,
                request.base_sequence,
                request.record_count,
            )
            for one in pending
        ]
        found = self._rules.run(
            "duplicate_batches",
            requests=RowTuples(_OF_REQUEST, requests),
            batches=RowTuples(KnownBatch._fields, batches),
        )
        return {
            row["position"]: BatchOffsets(row["base_offset"], row["last_offset"]) for row in found
        }

    def remembered(self, pending: Iterable[PendingRequest], now_ms: int) -> list[KnownBatch]:
        """Return the remembered batches of the idempotent producers among the requests (3.6)."""
        producers = {
            (one.request.topic_id_partition, one.request.producer_id)
            for one in pending
            if one.request.is_idempotent
        }
        batches = {producer: self._last_batches(*producer) for producer in producers}
        expiration_ms = self._settings.producer_id_expiration_ms
        appended = [
            (*partition, producer_id, appended_at_ms, now_ms, expiration_ms)
            for (partition, producer_id), known in batches.items()
            for _, appended_at_ms in known
        ]
        if not appended:
            return []
        expired = self._rules.run("expired_producers", batches=RowTuples(_OF_APPENDED, appended))
        for row in expired:
            partition = TopicIdPartition(row["topic_id"], row["partition"])
            del batches[partition, row["producer_id"]]
        return [batch for known in batches.values() for batch, _ in known]

    def _last_batches(
        self, partition: TopicIdPartition, producer_id: int
    ) -> list[tuple[KnownBatch, int]]:
        """Return a producer's last batches, whether or not they are still in the log.

        Each with the time in ms when it was appended here.
        """
        by_offset = {
            batch.base_offset: (_removed(batch), batch.timestamp_ms)
            for batch in self._producer_state.batches(partition, producer_id)
        }
        for live in self._log.producer_batches(partition, producer_id):
            by_offset[live.base_offset] = _known(live), self._log.appended_at_ms(live)
        return [by_offset[offset] for offset in sorted(by_offset)[-REMEMBERED_BATCHES:]]

    def refused(
        self,
        pending: Sequence[PendingRequest],
        errors: Mapping[int, str | None],
        duplicates: Mapping[int, BatchOffsets],
        remembered: Sequence[KnownBatch],
    ) -> dict[int, str]:
        """Return the errors of refused batches of idempotent producers, by position (3.6)."""
        requests = [
            (
                one.position,
                *(request := one.request).topic_id_partition,
                request.producer_id,
                request.producer_epoch,
                request.base_sequence,
                request.record_count,
                errors[one.position],
            )
            for one in pending
            if one.request.is_idempotent and one.position not in duplicates
        ]
        if not requests:
            return {}
        refused = self._rules.run(
            "producer_sequences",
            requests=RowTuples(_OF_SEQUENCE, requests),
            batches=RowTuples(KnownBatch._fields, remembered),
        )
        of_position = {one.position: one.request.request_partition for one in pending}
        # One bad batch refuses the whole partition of its request, whichever rule found it.
        answered = {of_position[row["position"]]: row["error"] for row in refused}
        return {position: answered[of] for position, of in of_position.items() if of in answered}


def _known(batch: Batch) -> KnownBatch:
    return KnownBatch(
        batch.topic_id,
        batch.partition,
        batch.batch_id,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.last_sequence,
        batch.base_offset,
        batch.next_offset - 1,
    )


def _removed(batch: ProducerBatch) -> KnownBatch:
    return KnownBatch(
        batch.topic_id,
        batch.partition,
        None,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.last_sequence,
        batch.base_offset,
        batch.last_offset,
    )


_OF_REQUEST = (
    "position",
    "topic_id",
    "partition",
    "batch_id",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "record_count",
)
"""The columns of a request's row for the rule `duplicate_batches`."""

_OF_SEQUENCE = (
    "position",
    "topic_id",
    "partition",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "record_count",
    "refusal",
)
"""The columns of a request's row for the rule `producer_sequences`."""

_OF_APPENDED = (
    "topic_id",
    "partition",
    "producer_id",
    "appended_at_ms",
    "now_ms",
    "producer_id_expiration_ms",
)
"""The columns of a batch's row for the rule `expired_producers`."""
