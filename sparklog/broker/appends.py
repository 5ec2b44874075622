"""Taking produce requests: refusing, numbering the batches of a tick, answering."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sparklog.broker.byte_rates import ByteRates
from sparklog.broker.inbox import Group, Inbox
from sparklog.broker.isr import min_isr
from sparklog.broker.producer_state import ProducerState
from sparklog.broker.purgatory import Operation
from sparklog.broker.sequences import Offsets, Sequences
from sparklog.config import Settings
from sparklog.errors import ERROR_CODES
from sparklog.model import INTERNAL_TOPICS, Batch, TopicIdPartition
from sparklog.protocol.rules import Rules
from sparklog.storage.batch_files import BatchFile, PassingFault, files_faults
from sparklog.storage.metadata import Metadata, PartitionState
from sparklog.storage.roots import BrokerRoot

Answer = dict[str, Any]
"""The answer for one partition of a request."""


class Standing(NamedTuple):
    """What this root leads at the moment, and where each of these logs ends."""

    metadata: Metadata
    led: Mapping[TopicIdPartition, PartitionState]
    log_end_offset: Callable[[TopicIdPartition], int]


class Taken(NamedTuple):
    """What is to become of a tick's requests.

    Answers that are due at once, operations that wait, and the batches to be appended, of each
    partition in order of their offsets.
    """

    answers: list[Answer]
    delayed: list[Operation]
    batches: list[Batch]

    @property
    def appended(self) -> set[TopicIdPartition]:
        """The partitions to which batches are appended."""
        return {batch.topic_id_partition for batch in self.batches}


class Appends:
    """The produce requests of one broker root, from the inbox to the answer."""

    def __init__(
        self,
        root: BrokerRoot,
        producer_state: ProducerState,
        rules: Rules,
        settings: Settings,
        looked_at_ms: int,
    ) -> None:
        self._root = root
        self._rules = rules
        self._settings = settings
        self.inbox = Inbox(root, looked_at_ms)
        self._sequences = Sequences(root.log, producer_state, rules, settings)
        window_s = settings.quota_window_num * settings.quota_window_size_seconds
        self._byte_rates = ByteRates(window_s * 1000)

    def load(self, now_ms: int, standing: Standing) -> Taken:
        """Decide what becomes of every waiting request: it is refused, or appended.

        The caller commits all of it at once, and how far `inbox` is taken, and calls `note` then.
        """
        rows = self.inbox.load(now_ms)
        if not rows:
            return Taken([], [], [])
        queue: dict[str, int] = {}
        for row in rows:
            row["requests_before"] = queue.setdefault(row["request_id"], len(queue))
            row["queued_max_requests"] = self._settings.queued_max_requests
        first = [row for row in rows if row["repeats"] is None]
        remembered = self._sequences.remembered(first, now_ms)
        duplicates = self._sequences.duplicates(first, remembered)
        checked = self._check(first, now_ms, standing, duplicates)
        late = {row["position"] for row in first if _is_late(row)}
        if late:
            # Also what shares its fate.
            self.inbox.leave(row for row in rows if {row["position"], row["repeats"]} & late)
            rows = [row for row in rows if not {row["position"], row["repeats"]} & late]
            first = [row for row in first if row["position"] not in late]
        errors = {row["position"]: row["error"] for row in checked}
        errors |= self._sequences.refused(first, errors, duplicates, remembered)
        fresh = [
            row
            for row in first
            if errors[row["position"]] is None and row["position"] not in duplicates
        ]
        batches = self._numbered(fresh, standing)
        appended = {
            row["position"]: Offsets(batch.base_offset, batch.next_offset - 1)
            for row, batch in zip(fresh, batches, strict=True)
        }
        appended |= duplicates
        for row in rows:
            if row["repeats"] is not None:
                errors[row["position"]] = errors[row["repeats"]]
                if row["repeats"] in appended:
                    appended[row["position"]] = appended[row["repeats"]]
        answers, delayed = self._results(rows, errors, appended, now_ms, standing)
        return Taken(answers, delayed, sorted(batches, key=lambda batch: batch.base_offset))

    def note(self, taken: Taken, now_ms: int) -> None:
        """Note for the quotas which batches were committed."""
        for batch in taken.batches:
            self._byte_rates.note(batch.topic_id, batch.size_bytes, now_ms)

    def _check(
        self,
        rows: list[dict[str, Any]],
        now_ms: int,
        standing: Standing,
        duplicates: Mapping[int, Offsets],
    ) -> list[dict[str, Any]]:
        for row in rows:
            row.update(self._partition_columns(row, now_ms, standing))
            row["is_duplicate"] = row["position"] in duplicates
        readable = [
            row
            for row in rows
            if row["is_leader"]
            and not row["is_duplicate"]
            and row["requests_before"] < row["queued_max_requests"]
            and row["byte_size"] <= row["max_message_bytes"]
        ]
        files = [
            BatchFile(
                row["path"],
                row["byte_size"],
                row["checksum"],
                row["record_count"],
                row["min_timestamp_ms"],
                row["max_timestamp_ms"],
            )
            for row in readable
        ]
        faults = files_faults(self._root.log.location, files)
        for row, fault in zip(readable, faults, strict=True):
            is_used = self._root.log.was_committed(row["path"])
            used_fault = "its path was committed before" if is_used else None
            row["file_fault"] = row["claim_fault"] or used_fault or fault
        return self._rules.run("request_errors", requests=rows)

    def _partition_columns(
        self, row: dict[str, Any], now_ms: int, standing: Standing
    ) -> dict[str, Any]:
        key = TopicIdPartition(row["topic_id"], row["partition"])
        state = standing.led.get(key)
        topic = standing.metadata.topics.get(row["topic_id"])
        config = topic.config if topic else None
        return {
            "is_topic_known": key in standing.metadata.partitions,
            "is_internal": topic is not None and topic.topic in INTERNAL_TOPICS,
            "is_leader": state is not None,
            "named_leader_epoch": row["leader_epoch"],
            "leader_epoch": state.leader_epoch if state else None,
            "isr_size": len(state.isr) if state else None,
            "replica_count": len(state.replicas) if state else None,
            "min_isr": min_isr(standing.metadata, state, self._settings) if state else 1,
            "max_message_bytes": (config and config.max_message_bytes)
            or self._settings.message_max_bytes,
            "recent_bytes": self._byte_rates.recent_bytes(row["topic_id"], now_ms),
            "window_ms": self._byte_rates.window_ms,
            "byte_rate": config.producer_byte_rate if config else None,
            "file_fault": None,
        }

    def _numbered(self, fresh: list[dict[str, Any]], standing: Standing) -> list[Batch]:
        """Give offsets to what is to be appended; return the batches, one a request row."""
        if not fresh:
            return []
        for row in fresh:
            key = TopicIdPartition(row["topic_id"], row["partition"])
            row["log_end_offset"] = standing.log_end_offset(key)
        numbered = self._rules.run("assigned_offsets", batches=fresh)
        bases = {row["position"]: row["base_offset"] for row in numbered}
        return [
            Batch(
                path=row["path"],
                size_bytes=row["byte_size"],
                topic_id=row["topic_id"],
                topic=standing.metadata.topics[row["topic_id"]].topic,
                partition=row["partition"],
                leader_epoch=row["leader_epoch"],
                base_offset=bases[row["position"]],
                producer_id=row["producer_id"],
                producer_epoch=row["producer_epoch"],
                base_sequence=row["base_sequence"],
                checksum=row["checksum"],
                record_count=row["record_count"],
                last_offset_delta=row["record_count"] - 1,
                min_timestamp_ms=row["min_timestamp_ms"],
                max_timestamp_ms=row["max_timestamp_ms"],
            )
            for row in fresh
        ]

    def _results(
        self,
        rows: list[dict[str, Any]],
        errors: Mapping[int, str | None],
        appended: Mapping[int, Offsets],
        now_ms: int,
        standing: Standing,
    ) -> tuple[list[Answer], list[Operation]]:
        refused: dict[Group, str] = {}
        taken = []
        identity: dict[Group, dict[str, Any]] = defaultdict(dict)
        for row in rows:
            of = (row["request_id"], row["topic_id"], row["partition"])
            identity[of] = row
            error = errors[row["position"]]
            if error is not None:
                if row["acks"] != 0:
                    refused[of] = error
            else:
                offsets = appended[row["position"]]
                taken.append(row | offsets._asdict() | {"now_ms": now_ms})
        answers = [answer(*of, error) for of, error in refused.items()]
        operations: list[Operation] = []
        for row in self._rules.run("delayed_operations", appended=taken):
            of = (row["request_id"], row["topic_id"], row["partition"])
            if not row["is_delayed"]:
                last_offset = row["required_offset"] - 1
                answers.append(answer(*of, "NONE", row["base_offset"], last_offset))
                continue
            key = TopicIdPartition(row["topic_id"], row["partition"])
            operations.append(
                {
                    "operation_id": "/".join(map(str, of)),
                    "kind": "DelayedProduce",
                    "request_id": row["request_id"],
                    "topic_id": row["topic_id"],
                    "topic": identity[of]["topic"],
                    "partition": row["partition"],
                    "leader_epoch": standing.led[key].leader_epoch,
                    "base_offset": row["base_offset"],
                    "required_offset": row["required_offset"],
                    "min_bytes": None,
                    "deadline_ms": row["deadline_ms"],
                    "state": "pending",
                }
            )
        return answers, operations


_UPLOAD_MS = 5_000
"""How long a request waits for its file: producers upload it while they append the request."""


def _is_late(row: Mapping[str, Any]) -> bool:
    """Say whether the file of a request may still be on its way, or its store be away."""
    is_passing = isinstance(row["file_fault"], PassingFault)
    return is_passing and bool(row["waited_ms"] < _UPLOAD_MS)


def answer(
    request_id: str,
    topic_id: str,
    partition: int,
    error: str,
    base_offset: int = -1,
    last_offset: int = -1,
) -> Answer:
    """Return one answer as the journal has it."""
    return {
        "request_id": request_id,
        "topic_id": topic_id,
        "partition": partition,
        "error_code": ERROR_CODES[error].number,
        "base_offset": base_offset,
        "last_offset": last_offset,
    }
