"""Log start offsets: log_start_offset, follower_log_start_offset (8.3).

The model deletes batch by batch, as Kafka deletes segment by segment. Many logs go through the rule
in one query, a log being a partition.
"""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Any, NamedTuple

from sparklog.protocol.replication.log_start_offset import may_be_deleted, may_be_requested
from sparklog.protocol.rules import Rules

LOGS = 3_000
NOW_MS = 100


class Batch(NamedTuple):
    """A batch of a log."""

    base_offset: int
    records: int
    size_bytes: int
    max_timestamp_ms: int
    appended_at_ms: int
    leader_epoch: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.records


class Log(NamedTuple):
    """A log with its limits, and a request to delete records."""

    batches: list[Batch]
    log_start_offset: int
    high_watermark: int
    retention_ms: int
    retention_bytes: int
    requested: tuple[int, int] | None

    @property
    def size_bytes(self) -> int:
        return sum(batch.size_bytes for batch in self.batches)

    def epoch_before(self, offset: int) -> int | None:
        return next(
            (
                one.leader_epoch
                for one in self.batches
                if one.base_offset < offset <= one.next_offset
            ),
            None,
        )

    def row(self, partition: int) -> dict[str, Any]:
        offset, epoch = self.requested or (None, None)
        return {
            "topic_id": "t",
            "partition": partition,
            "log_start_offset": self.log_start_offset,
            "high_watermark": self.high_watermark,
            "log_size_bytes": self.size_bytes,
            "retention_ms": self.retention_ms,
            "retention_bytes": self.retention_bytes,
            "delete_records_offset": offset,
            "delete_records_epoch": epoch,
            "last_deleted_epoch": None if offset is None else self.epoch_before(offset),
            "now_ms": NOW_MS,
        }

    def oldest(self) -> list[Batch]:
        """Return the first batches up to the first that is kept, by the necessary condition."""
        found: list[Batch] = []
        left = self.size_bytes
        for batch in self.batches:
            found.append(batch)
            left -= batch.size_bytes
            times = batch.max_timestamp_ms, batch.appended_at_ms
            limits = NOW_MS, self.retention_ms
            if not may_be_deleted(*times, *limits, left, self.retention_bytes):
                break
        return found


def row_of(partition: int, batch: Batch) -> dict[str, Any]:
    row = batch._asdict() | {"topic_id": "t", "partition": partition}
    return row | {"last_offset_delta": batch.records - 1}


def generated(seed: int) -> Log:
    """Return a random log, whose first batch may begin before the log start offset."""
    dice = random.Random(seed)
    first = dice.choice([0, 0, 7, 2**53 + 1])
    records = [dice.randint(1, 3) for _ in range(dice.randint(0, 6))]
    epochs = accumulate(dice.choice([0, 0, 1]) for _ in records)
    batches = [
        Batch(
            base_offset,
            count,
            dice.randint(1, 9),
            dice.choice([-1, *[dice.randint(80, 105)] * 4]),
            dice.randint(80, 100),
            epoch,
        )
        for base_offset, count, epoch in zip(
            accumulate(records, initial=first), records, epochs, strict=False
        )
    ]
    start = first + (dice.randrange(records[0]) if records else 0)
    end = batches[-1].next_offset if batches else start
    requested = dice.choice([None, (dice.randint(start, end + 2), dice.randint(0, 1))])
    return Log(
        batches,
        start,
        dice.randint(start, end),
        dice.choice([-1, 0, dice.randint(1, 15)]),
        dice.choice([-1, 0, dice.randint(1, 30)]),
        requested,
    )


def kept_from(log: Log) -> int:
    """Return the log start offset as Kafka moves it: by time, then by size, then by request."""
    left = list(log.batches)

    def drop() -> None:
        left.pop(0)

    def is_committed() -> bool:
        return bool(left) and left[0].next_offset <= log.high_watermark

    def age_ms() -> int:
        first = left[0]
        at_ms = first.max_timestamp_ms if first.max_timestamp_ms >= 0 else first.appended_at_ms
        return NOW_MS - at_ms

    while is_committed() and 0 <= log.retention_ms < age_ms():
        drop()
    while is_committed() and log.retention_bytes >= 0:
        if sum(batch.size_bytes for batch in left[1:]) < log.retention_bytes:
            break
        drop()
    start = log.log_start_offset
    if log.batches:
        start = max(start, left[0].base_offset if left else log.batches[-1].next_offset)
    if log.requested is not None:
        offset, epoch = log.requested
        if offset <= log.high_watermark and log.epoch_before(offset) == epoch:
            start = max(start, offset)
    return start


def test_the_rule_deletes_what_the_model_deletes(rules: Rules) -> None:
    """It gives just the logs whose start moves; the batches after the first kept one do not
    count.
    """
    logs = {seed: generated(seed) for seed in range(LOGS)}
    expected = {seed: kept_from(log) for seed, log in logs.items()}
    moved = {seed: at for seed, at in expected.items() if at > logs[seed].log_start_offset}
    assert len(moved) > LOGS / 10
    for given in (lambda log: log.batches, Log.oldest):
        found = rules.run(
            "log_start_offset",
            replicas=[log.row(seed) for seed, log in logs.items()],
            batches=[row_of(seed, one) for seed, log in logs.items() for one in given(log)],
        )
        assert {row["partition"]: row["log_start_offset"] for row in found} == moved


def test_a_request_that_may_not_be_served_moves_nothing(rules: Rules) -> None:
    """`may_be_requested` is a necessary condition of the rule, without limits."""
    logs = {
        seed: generated(seed)._replace(retention_ms=-1, retention_bytes=-1) for seed in range(LOGS)
    }
    refused = {
        seed: log
        for seed, log in logs.items()
        if not may_be_requested(
            log.requested[0] if log.requested else None, log.log_start_offset, log.high_watermark
        )
    }
    assert LOGS / 3 < len(refused) < LOGS
    replicas = [log.row(seed) for seed, log in refused.items()]
    assert rules.run("log_start_offset", replicas=replicas, batches=[]) == []


def test_the_first_batch_that_is_kept_by_time_keeps_those_after_it(rules: Rules) -> None:
    """A timestamp in the future keeps a log, as in Kafka, until size or a request deletes it."""
    ages = [Batch(0, 1, 5, 10, 0, 0), Batch(1, 1, 5, 10**15, 0, 0), Batch(2, 1, 5, 10, 0, 0)]
    log = Log(ages, 0, 3, 50, -1, None)
    logs = [log, log._replace(retention_bytes=0), log._replace(requested=(3, 0))]
    found = rules.run(
        "log_start_offset",
        replicas=[one.row(number) for number, one in enumerate(logs)],
        batches=[row_of(number, one) for number in range(3) for one in ages],
    )
    assert [row["log_start_offset"] for row in sorted(found, key=lambda row: row["partition"])] == [
        1,
        3,
        3,
    ]


def test_a_follower_moves_as_far_as_its_own_high_watermark(rules: Rules) -> None:
    """It never moves back: its leader may have been elected before it heard of the log start."""
    followed = [
        {
            "topic_id": "t",
            "partition": number,
            "log_start_offset": own,
            "leader_log_start_offset": leader,
            "high_watermark": high_watermark,
        }
        for number, (own, leader, high_watermark) in enumerate([(0, 5, 9), (0, 5, 3), (6, 5, 9)])
    ]
    found = rules.run("follower_log_start_offset", followed=followed)
    assert [row["log_start_offset"] for row in found] == [5, 3, 6]
