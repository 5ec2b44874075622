"""Idempotence: which batches are in a log already, and which do not follow their producer's last
(rules 3.6, 3.7).

What is known of a producer is its last batches in the log, so it is copied, cut and recovered with
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sparklog.broker.inbox import group
from sparklog.config import Settings
from sparklog.model import Batch, TopicIdPartition
from sparklog.protocol.rules import Rules
from sparklog.storage.record_log import RecordLog


class Offsets(NamedTuple):
    """Where a batch lies in the log."""

    base_offset: int
    last_offset: int


class Sequences:
    """What one log knows of its producers."""

    def __init__(self, log: RecordLog, rules: Rules, settings: Settings) -> None:
        self._log = log
        self._rules = rules
        self._settings = settings

    def duplicates(
        self, rows: list[dict[str, Any]], remembered: list[dict[str, Any]]
    ) -> dict[int, Offsets]:
        """Return where the batches of the requests lie that are in the log already."""
        live = self._log.find(row["batch_id"] for row in rows)
        batches = [_appended_row(batch) for batch in live] + remembered
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
            _appended_row(batch)
            | {
                "appended_at_ms": self._log.appended_at_ms(batch),
                "now_ms": now_ms,
                "producer_id_expiration_ms": self._settings.producer_id_expiration_ms,
            }
            for partition, producer_id in producers
            for batch in self._log.producer_batches(partition, producer_id)
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
    last_sequence = (batch.base_sequence + batch.last_offset_delta) % (1 << 31)
    return batch._asdict() | {
        "batch_id": batch.batch_id,
        "last_sequence": last_sequence,
        "last_offset": batch.next_offset - 1,
    }
