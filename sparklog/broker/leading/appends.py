"""Produce requests: refusing them, assigning offsets to the batches of a tick, answering."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from sparklog.broker.broker_counts import BrokerCounts
from sparklog.broker.leading.inbox import Inbox, PendingRequest
from sparklog.broker.leading.producer_quotas import ProducerQuotas
from sparklog.broker.leading.sequences import BatchOffsets, Sequences
from sparklog.broker.producer_state import ProducerState
from sparklog.broker.purgatory import DelayedProduce
from sparklog.clock import Clock
from sparklog.cluster.byte_rates import ByteRates
from sparklog.cluster.dynamic_configs import DynamicConfigs
from sparklog.cluster.isr import min_isr
from sparklog.cluster.metadata import Metadata, PartitionState
from sparklog.cluster.roots import BrokerRoot
from sparklog.config import Settings
from sparklog.errors import ERROR_CODES
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.model import INTERNAL_TOPICS, Batch, TopicIdPartition
from sparklog.protocol.rules import RowTuples, Rules
from sparklog.storage.batch_files import BatchFile, MissingKey, PassingFault
from sparklog.storage.execution import Execution
from sparklog.storage.journal import ProduceAnswer
from sparklog.storage.request_files import ProduceRequest, RequestPartition

_log = get_logger(__name__)


class Standing(NamedTuple):
    """The partitions that this root leads now, and their log end offsets."""

    metadata: Metadata
    led: Mapping[TopicIdPartition, PartitionState]
    log_end_offset: Callable[[TopicIdPartition], int]


class AppendPlan(NamedTuple):
    """The outcome of a tick's requests.

    `answers` are sent with this commit, `delayed` wait for the high watermark, `batches` are
    appended, by ascending offset in each partition. `refused` are the numbers of refused batches by
    error, those with acks=0 included.
    """

    answers: list[ProduceAnswer]
    delayed: list[DelayedProduce]
    batches: list[Batch]
    refused: Mapping[str, int]
    bytes_of: Mapping[str, int] = MappingProxyType({})
    """The bytes of the batches by client id, of client ids that have a quota."""
    clients: Mapping[str, str] = MappingProxyType({})
    """The client ids of the requests, of client ids that have a quota."""
    throttle_times_ms: Mapping[str, int] = MappingProxyType({})
    """The throttle times in ms that follow, by client id."""

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
        execution: Execution,
        configs: DynamicConfigs,
        clock: Clock,
        counts: BrokerCounts,
    ) -> None:
        self._root = root
        self._counts = counts
        # The times in s at which requests that await an answer were found, for metrics.
        self._found_at: dict[RequestPartition, float] = {}
        self._execution = execution
        self._rules = rules
        self._settings = settings
        self.inbox = Inbox(root, clock)
        self._sequences = Sequences(root.log, producer_state, rules, settings)
        window_s = settings.quota_window_num * settings.quota_window_size_seconds
        self._byte_rates = ByteRates(window_s * 1000)
        self._quotas = ProducerQuotas(configs, rules, window_s * 1000)
        self._refusals = RepeatedFailures(_log)

    def load(self, now_ms: int, standing: Standing) -> AppendPlan:
        """Decide on the pending requests.

        Each is refused, appended, answered as a duplicate, or left in the inbox for up to
        `_UPLOAD_MS` while its file may arrive.

        The caller commits the outcome together with the position of `inbox`, and then calls `note`.
        """
        pending = self.inbox.load(now_ms)
        if not pending:
            return AppendPlan([], [], [], {})
        now_s = time.perf_counter()
        for one in pending:
            if one.request.acks != 0:
                found_at = now_s - one.loaded_ms / 1000
                self._found_at.setdefault(one.request.request_partition, found_at)
        first = [one for one in pending if one.repeats is None]
        remembered = self._sequences.remembered(first, now_ms)
        duplicates = self._sequences.duplicates(first, remembered)
        candidates = self._candidates(pending, duplicates, now_ms, standing)
        faults = self._file_faults(candidates)
        checked = self._rules.run(
            "request_errors",
            requests=self._checked_rows(candidates, faults),
            repeats=self._repeat_rows(pending),
        )
        errors: dict[int, str | None] = {row["position"]: row["error"] for row in checked}
        late = {
            candidate.pending.position
            for candidate, fault in zip(candidates, faults, strict=True)
            if _is_late(candidate.pending, fault)
            and errors[candidate.pending.position] == "CORRUPT_MESSAGE"
        }
        if late:
            # Requests for the same batches are left, too.
            self.inbox.leave(one for one in pending if one.origin in late)
            pending = [one for one in pending if one.origin not in late]
            first = [one for one in first if one.position not in late]
        errors |= self._sequences.refused(first, errors, duplicates, remembered)
        fresh = [
            one for one in first if errors[one.position] is None and one.position not in duplicates
        ]
        batches = self._numbered(fresh, standing)
        appended = {
            one.position: BatchOffsets(batch.base_offset, batch.next_offset - 1)
            for one, batch in zip(fresh, batches, strict=True)
        }
        answers, delayed = self._results(pending, errors, appended | duplicates, now_ms, standing)
        refused = Counter(error for one in pending if (error := errors[one.origin]) is not None)
        in_order = sorted(batches, key=lambda batch: batch.base_offset)
        clients = {
            one.request.request_id: one.request.client_id
            for one in pending
            if self._quotas.has_quota(one.request.client_id)
        }
        bytes_of: Counter[str] = Counter()
        for one in fresh:
            if one.request.request_id in clients:
                bytes_of[one.request.client_id] += one.request.byte_size
        times_ms = self._quotas.throttle_times(bytes_of, now_ms)
        return AppendPlan(answers, delayed, in_order, refused, bytes_of, clients, times_ms)

    def with_throttle_times(
        self, plan: AppendPlan, answers: Iterable[ProduceAnswer], now_ms: int
    ) -> list[ProduceAnswer]:
        """Return answers with the throttle times of clients that are over their quotas."""
        return self._quotas.with_times(answers, plan.throttle_times_ms, plan.clients, now_ms)

    def note(self, plan: AppendPlan, now_ms: int) -> None:
        """Log the refusals of a committed plan; add its batches to the byte rates of topics."""
        for error, count in plan.refused.items():
            self._refusals.warning(
                error,
                "requests refused",
                root=self._root.location.uri,
                error=error,
                requests=count,
                reason=ERROR_CODES[error].sentence,
            )
        for batch in plan.batches:
            self._byte_rates.note(batch.topic_id, batch.size_bytes, now_ms)
            self._counts.bytes_in.add(batch.topic, batch.size_bytes)
            self._counts.messages_in.add(batch.topic, batch.record_count)
        delayed = {
            one.request_id: plan.clients[one.request_id]
            for one in plan.delayed
            if one.request_id in plan.clients
        }
        self._quotas.note(plan.bytes_of, plan.throttle_times_ms, delayed, now_ms)

    def note_answered(self, answers: Iterable[ProduceAnswer]) -> None:
        """Count committed answers, with the times since this process found their requests."""
        now_s = time.perf_counter()
        for one in answers:
            self._counts.produce_answers.add(one.error)
            of = (one.request_id, one.topic_id, one.partition)
            found_at = self._found_at.pop(of, None)
            if found_at is not None:
                self._counts.produce_ms.observe((now_s - found_at) * 1000)

    def _checked_rows(
        self, candidates: Sequence[_Candidate], faults: Sequence[str | None]
    ) -> RowTuples:
        """Return the input `requests` of the rule `request_errors`."""
        rows = []
        for one, fault in zip(candidates, faults, strict=True):
            request = one.pending.request
            rows.append(
                (
                    *self._times(one.pending),
                    one.pending.position,
                    *request.request_partition,
                    request.acks,
                    request.named_leader_epoch,
                    request.byte_size,
                    one.is_duplicate,
                    one.requests_before,
                    isinstance(fault, MissingKey),
                    fault,
                    one.is_throttled,
                    *one.conditions,
                )
            )
        return RowTuples(_OF_CANDIDATE, rows)

    def _repeat_rows(self, pending: Iterable[PendingRequest]) -> RowTuples:
        """Return the input `repeats` of the rule `request_errors`."""
        rows = [(*self._times(one), one.repeats) for one in pending if one.repeats is not None]
        return RowTuples(_OF_REPEAT, rows)

    def _times(self, one: PendingRequest) -> tuple[int | None, ...]:
        """Return the values of the columns `_TIMES`."""
        skew_ms = self._settings.request_clock_skew_ms
        return one.waited_ms, one.age_ms, one.request.timeout_ms, skew_ms

    def _candidates(
        self,
        pending: Iterable[PendingRequest],
        duplicates: Container[int],
        now_ms: int,
        standing: Standing,
    ) -> list[_Candidate]:
        """Return the requests that repeat no other, each with the state that decides about it."""
        requests_before: dict[str, int] = {}
        conditions: dict[TopicIdPartition, _AppendConditions] = {}
        candidates = []
        for one in pending:
            request_id = one.request.request_id
            before = requests_before.setdefault(request_id, len(requests_before))
            if one.repeats is not None:
                continue
            key = one.request.topic_id_partition
            known = conditions.get(key)
            if known is None:
                known = conditions[key] = self._conditions(key, now_ms, standing)
            is_throttled = self._quotas.left_ms(one.request.client_id, now_ms) > 0
            is_duplicate = one.position in duplicates
            candidates.append(_Candidate(one, known, is_duplicate, before, is_throttled))
        return candidates

    def _conditions(
        self, key: TopicIdPartition, now_ms: int, standing: Standing
    ) -> _AppendConditions:
        state = standing.led.get(key)
        topic = standing.metadata.topics.get(key.topic_id)
        config = topic.config if topic else None
        return _AppendConditions(
            is_topic_known=key in standing.metadata.partitions,
            is_internal=topic is not None and topic.topic in INTERNAL_TOPICS,
            is_leader=state is not None,
            leader_epoch=state.leader_epoch if state else None,
            isr_size=len(state.isr) if state else None,
            replica_count=len(state.replicas) if state else None,
            min_isr=min_isr(standing.metadata, state, self._settings) if state else 1,
            max_message_bytes=(config and config.max_message_bytes)
            or self._settings.message_max_bytes,
            recent_bytes=self._byte_rates.recent_bytes(key.topic_id, now_ms),
            window_ms=self._byte_rates.window_ms,
            byte_rate=config.producer_byte_rate if config else None,
            needs_keys=config is not None and config.is_compacted(self._settings),
            queued_max_requests=self._settings.queued_max_requests,
        )

    def _file_faults(self, candidates: Sequence[_Candidate]) -> list[str | None]:
        """Return the fault of each candidate: of the request, of its file or of a used path (3.7).

        `None` without a fault, and for candidates whose file is not checked.
        """
        readable = [number for number, one in enumerate(candidates) if one.is_readable]
        requests = [candidates[number].pending.request for number in readable]
        files = [
            BatchFile(
                request.path,
                request.byte_size,
                request.checksum,
                request.record_count,
                request.min_timestamp_ms,
                request.max_timestamp_ms,
            )
            for request in requests
        ]
        faults: list[str | None] = [None] * len(candidates)
        keyed = {
            candidates[number].pending.request.path
            for number in readable
            if candidates[number].conditions.needs_keys
        }
        found = self._execution.check(self._root.log.location, files, frozenset(keyed))
        for number, request, fault in zip(readable, requests, found, strict=True):
            is_used = self._root.log.was_committed(request.path)
            used_fault = "its path was committed before" if is_used else None
            faults[number] = candidates[number].pending.fault or used_fault or fault
        return faults

    def _numbered(self, fresh: Sequence[PendingRequest], standing: Standing) -> list[Batch]:
        """Assign offsets to the batches to append; return the batches, one for each request."""
        if not fresh:
            return []
        rows = [
            (
                one.position,
                one.request.topic_id,
                one.request.partition,
                one.request.record_count,
                standing.log_end_offset(one.request.topic_id_partition),
            )
            for one in fresh
        ]
        numbered = self._rules.run("assigned_offsets", batches=RowTuples(_OF_BATCH, rows))
        bases = {row["position"]: row["base_offset"] for row in numbered}
        return [
            _batch(one.request, standing.led[one.request.topic_id_partition], bases[one.position])
            for one in fresh
        ]

    def _results(
        self,
        pending: Iterable[PendingRequest],
        errors: Mapping[int, str | None],
        appended: Mapping[int, BatchOffsets],
        now_ms: int,
        standing: Standing,
    ) -> tuple[list[ProduceAnswer], list[DelayedProduce]]:
        """Return the answers that are due, and the delayed operations of the others."""
        refused: dict[RequestPartition, str] = {}
        taken = []
        topics: dict[RequestPartition, str] = {}
        for one in pending:
            request = one.request
            of = request.request_partition
            topics[of] = request.topic
            error = errors[one.origin]
            if error is None:
                offsets = appended[one.origin]
                taken.append((*of, request.acks, *offsets, request.timeout_ms, now_ms))
            elif request.acks != 0:
                refused[of] = error
        answers = [ProduceAnswer(*of, error) for of, error in refused.items()]
        operations: list[DelayedProduce] = []
        if not taken:
            return answers, operations
        for row in self._rules.run("delayed_operations", appended=RowTuples(_OF_APPENDED, taken)):
            of = (row["request_id"], row["topic_id"], row["partition"])
            if not row["is_delayed"]:
                last_offset = row["required_offset"] - 1
                answers.append(ProduceAnswer(*of, "NONE", row["base_offset"], last_offset))
                continue
            key = TopicIdPartition(row["topic_id"], row["partition"])
            operations.append(
                DelayedProduce(
                    operation_id="/".join(map(str, of)),
                    request_id=row["request_id"],
                    topic_id=row["topic_id"],
                    topic=topics[of],
                    partition=row["partition"],
                    leader_epoch=standing.led[key].leader_epoch,
                    base_offset=row["base_offset"],
                    required_offset=row["required_offset"],
                    deadline_ms=row["deadline_ms"],
                )
            )
        return answers, operations


class _AppendConditions(NamedTuple):
    """The state of a partition and the limits of its topic, on which an append depends.

    `leader_epoch` and the sizes are `None` if this root does not lead the partition.
    """

    is_topic_known: bool
    is_internal: bool
    is_leader: bool
    leader_epoch: int | None
    isr_size: int | None
    replica_count: int | None
    min_isr: int
    max_message_bytes: int
    recent_bytes: int
    window_ms: int
    byte_rate: int | None
    needs_keys: bool
    queued_max_requests: int


class _Candidate(NamedTuple):
    """A request that repeats no other of its tick, and the state that decides about it.

    `is_duplicate`: the log has its batch already; `requests_before`: the number of requests that
    came before this one in the tick; `is_throttled`: its client id is over its quota.
    """

    pending: PendingRequest
    conditions: _AppendConditions
    is_duplicate: bool
    requests_before: int
    is_throttled: bool

    @property
    def is_readable(self) -> bool:
        """Whether the file of the batch is to be checked, since the batch may be appended."""
        return (
            self.conditions.is_leader
            and not self.is_duplicate
            and not (self.is_throttled and self.pending.request.acks != 0)
            and self.requests_before < self.conditions.queued_max_requests
            and self.pending.request.byte_size <= self.conditions.max_message_bytes
        )


def _batch(request: ProduceRequest, state: PartitionState, base_offset: int) -> Batch:
    """Return the batch that a request appends to a partition."""
    return Batch(
        path=request.path,
        size_bytes=request.byte_size,
        topic_id=request.topic_id,
        topic=state.topic,
        partition=request.partition,
        leader_epoch=state.leader_epoch,
        base_offset=base_offset,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        base_sequence=request.base_sequence,
        checksum=request.checksum,
        record_count=request.record_count,
        last_offset_delta=request.record_count - 1,
        min_timestamp_ms=request.min_timestamp_ms,
        max_timestamp_ms=request.max_timestamp_ms,
    )


_TIMES = "waited_ms", "age_ms", "timeout_ms", "clock_skew_ms"
"""The columns by which the rule `request_errors` decides whether a request is in time."""

_OF_REPEAT = *_TIMES, "position"
"""The columns of a repeated request's row for the rule `request_errors`."""

_OF_CANDIDATE = (
    *_TIMES,
    "position",
    "request_id",
    "topic_id",
    "partition",
    "acks",
    "named_leader_epoch",
    "byte_size",
    "is_duplicate",
    "requests_before",
    "lacks_keys",
    "file_fault",
    "is_throttled",
    *_AppendConditions._fields,
)
"""The columns of a candidate's row for the rule `request_errors`."""

_OF_BATCH = "position", "topic_id", "partition", "record_count", "log_end_offset"
"""The columns of a batch's row for the rule `assigned_offsets`."""

_OF_APPENDED = (
    "request_id",
    "topic_id",
    "partition",
    "acks",
    *BatchOffsets._fields,
    "timeout_ms",
    "now_ms",
)
"""The columns of a request's row for the rule `delayed_operations`."""

_UPLOAD_MS = 5_000
"""Time in ms that a request waits for its file: producers upload it while they append the
request."""


def _is_late(pending: PendingRequest, fault: str | None) -> bool:
    """Return whether the file may still arrive, or its store be temporarily unavailable."""
    waited_ms = pending.waited_ms
    if waited_ms is None:
        waited_ms = max(pending.loaded_ms, pending.age_ms or 0)
    return isinstance(fault, PassingFault) and waited_ms < _UPLOAD_MS
