"""Idempotence: which batches are in a log already, and which do not follow their producer's last
(rules 3.6, 3.7).

What is known of a producer is its last batches in the log, which is copied, cut and recovered with
them, and those that were merged or dropped since, of which `ProducerState` tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sparklog.broker.inbox import group
from sparklog.broker.producer_state import ProducerState
from sparklog.config import Settings
from sparklog.model import Batch, TopicIdPartition
from sparklog.protocol.rules import Rules
from sparklog.storage.record_log import REMEMBERED_BATCHES, RecordLog


class Offsets(NamedTuple):
    """Where a batch lies in the log."""

    base_offset: int
    last_offset: int


class Sequences:
    """What one log knows of its producers."""

    def __init__(
        self, log: RecordLog, producer_state: ProducerState, rules: Rules, settings: Settings
    ) -> None:
        self._log = log
        self._producer_state = producer_state
        self._rules = rules
        self._settings = settings

    def duplicates(
        self, rows: list[dict[str, Any]], remembered: list[dict[str, Any]]
    ) -> dict[int, Offsets]:
        """Return where the batches of the requests lie that are in the log already."""
        live = self._log.find(row["batch_id"] for row in rows)
        batches = [_appended_row(batch) for batch in live] + remembered
        if not batches:
            return {}
        found = self._rules.run("duplicate_batches", requests=rows, batches=batches)
        return {row["position"]: Offsets(row["base_offset"], row["last_offset"]) for row in found}

    def remembered(self, rows: list[dict[str, Any]], now_ms: int) -> list[dict[str, Any]]:
        """Return the remembered batches of the idempotent producers among the requests (3.6)."""
        producers = {
            (TopicIdPartition(row["topic_id"], row["partition"]), row["producer_id"])
            for row in rows
            if row["producer_id"] >= 0
        }
        batches = [
            row
            | {
                "now_ms": now_ms,
                "producer_id_expiration_ms": self._settings.producer_id_expiration_ms,
            }
            for producer in producers
            for row in self._last_batches(*producer)
        ]
        if not batches:
            return []
        expired = self._rules.run("expired_producers", batches=batches)
        forgotten = {tuple(row.values()) for row in expired}
        return [
            row
            for row in batches
            if (row["topic_id"], row["partition"], row["producer_id"]) not in forgotten
        ]

    def _last_batches(self, partition: TopicIdPartition, producer_id: int) -> list[dict[str, Any]]:
        """Return a producer's last batches, be they in the log or no longer."""
        # What was removed cannot be known by its file's name any more.
        by_offset = {
            batch.base_offset: batch._asdict()
            | {"batch_id": None, "appended_at_ms": batch.timestamp_ms}
            for batch in self._producer_state.batches(partition, producer_id)
        }
        for batch in self._log.producer_batches(partition, producer_id):
            appended_at_ms = self._log.appended_at_ms(batch)
            by_offset[batch.base_offset] = _appended_row(batch) | {"appended_at_ms": appended_at_ms}
        return [by_offset[offset] for offset in sorted(by_offset)[-REMEMBERED_BATCHES:]]

    def refused(
        self,
        rows: list[dict[str, Any]],
        errors: Mapping[int, str | None],
        duplicates: Mapping[int, Offsets],
        remembered: list[dict[str, Any]],
    ) -> dict[int, str]:
        """Return why batches of idempotent producers are refused, by position (3.6)."""
        sequenced = [
            row | {"refusal": errors[row["position"]]}
            for row in rows
            if row["producer_id"] >= 0 and row["position"] not in duplicates
        ]
        if not sequenced:
            return {}
        refused = self._rules.run("producer_sequences", requests=sequenced, batches=remembered)
        of_position = {row["position"]: group(row) for row in rows}
        # One bad batch refuses its partition of its request, whichever rule found it.
        groups = {of_position[row["position"]]: row["error"] for row in refused}
        return {position: groups[of] for position, of in of_position.items() if of in groups}


def _appended_row(batch: Batch) -> dict[str, Any]:
    return batch._asdict() | {
        "batch_id": batch.batch_id,
        "last_sequence": batch.last_sequence,
        "last_offset": batch.next_offset - 1,
    }
