"""The verdict of a round: anomalies in the client logs, then the audit with its epoch histories."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sparklog.cluster.connection import Connection
from sparklog.consumer.consumer import Consumer
from sparklog.maintenance.audit import audit
from sparklog.testing.history import Answer, History
from sparklog.testing.history_check import check
from tests.faults.broker_processes import PARTITIONS, TOPIC
from tests.faults.client_logs import GroupLog, ProducerLog, read_group, read_producer
from tests.faults.client_processes import topic_of
from tests.faults.compaction import FinalLog, Removed, removed, value_of
from tests.faults.group_check import Anomaly, check_commits, check_polls, check_sends, check_unseen
from tests.faults.nemesis import OF_CLIENTS, Deed
from tests.faults.stream_process import ROWS


def final_log(cluster: str, topic: str = TOPIC) -> FinalLog:
    """Read every partition of a topic from its start to its end by a new consumer."""
    found: dict[int, list[tuple[int, bytes]]] = {one: [] for one in range(PARTITIONS)}
    with Consumer(cluster, auto_offset_reset="earliest") as consumer:
        partitions = [(topic, one) for one in range(PARTITIONS)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(one) < end for one, end in ends.items()):
            for (_, partition), records in consumer.poll(1_000, max_records=50_000).items():
                found[partition] += [(one.offset, one.value or b"") for one in records]
    return found


def anomalies(
    producers: Sequence[ProducerLog],
    group: GroupLog,
    log: FinalLog,
    compacted: Removed | None = None,
) -> list[Anomaly]:
    """Return the anomalies that logs of clients and the final log show.

    `compacted`, the records that compaction may have removed: they count as read, and nobody has to
    have polled them.
    """
    compacted = compacted or {}
    history = History()
    numbers: dict[tuple[str, int], int] = {}
    for producer in producers:
        for sent in producer.sent:
            for number in range(sent.first, sent.first + sent.size):
                value = value_of(producer.name, number)
                given = history.record_sent(producer.name, TOPIC, value, sent.partition)
                numbers[producer.name, number] = given
        for answer in producer.answered:
            for place in range(answer.size):
                offset = answer.offset + place if answer.error == "NONE" else -1
                number = numbers[producer.name, answer.first + place]
                history.answers.append(
                    Answer(producer.name, number, answer.error, answer.partition, offset)
                )
    for poll in group.polled:
        history.record_read(TOPIC, poll.partition, poll.records, poll.records[0][0])
    for partition, records in log.items():
        history.record_read(
            TOPIC, partition, sorted({**compacted.get(partition, {}), **dict(records)}.items())
        )
    there = {partition: [offset for offset, _ in records] for partition, records in log.items()}
    return [
        *((one.kind, one.sentence) for one in check(history)),
        *(anomaly for producer in producers for anomaly in check_sends(producer)),
        *check_polls(group, there),
        *check_unseen(producers, group, compacted),
        *check_commits(group),
    ]


def check_stream(checkpoint: Path, log: FinalLog) -> Iterator[Anomaly]:
    """Yield the rows of a stream's committed micro-batches that are not in the log, and all rows
    that are there twice.
    """
    counts = Counter(int(value) for records in log.values() for _, value in records)
    committed = len(list((checkpoint / "commits").glob("[0-9]*")))
    name = checkpoint.name
    for row in range(committed * ROWS):
        if not counts[row]:
            yield "stream lost", f"row {row} of {name}, of {committed} committed micro-batches"
    for row, count in sorted(counts.items()):
        if count > 1:
            yield "stream duplicate", f"row {row} of {name} is there {count} times"


class Verdict(NamedTuple):
    """The anomalies of a round, the logs of its producers, the number of compacted records."""

    anomalies: list[Anomaly]
    producers: list[ProducerLog]
    compacted: int


def judge(
    cluster: str,
    producer_logs: Sequence[Path],
    consumer_logs: Sequence[Path],
    checkpoints: Sequence[Path] = (),
    *,
    is_compacted: bool = False,
) -> Verdict:
    """Return the verdict on a round."""
    producers = [read_producer(file) for file in producer_logs]
    group = read_group(consumer_logs)
    log = final_log(cluster)
    compacted = removed(producers, group, log) if is_compacted else {}
    found = anomalies(producers, group, log, compacted)
    for one in checkpoints:
        found += check_stream(one, final_log(cluster, topic_of(one)))
    findings = audit(Connection(cluster), verify_files=True)
    found += [("audit", str(one)) for one in findings]
    return Verdict(found, producers, sum(map(len, compacted.values())))


class Gap(NamedTuple):
    """The longest time without an acknowledgement of a partition after the end of its leader.

    `is_single`, whether no other action on brokers or storage came in the session before the gap,
    or before its end.
    """

    ms: int
    partition: int
    at_ms: int
    is_single: bool = True


def unavailable(
    producers: Sequence[ProducerLog], deeds: Sequence[Deed], session_ms: int
) -> list[Gap]:
    """Return the longest gap between acknowledgements of each led partition, per killed leader.

    The gap ends after the kill, and begins before the next action on brokers or storage.
    """
    gaps = []
    others = [one for one in deeds if one.action not in OF_CLIENTS]
    for place, deed in enumerate(others):
        if deed.action != "kill broker":
            continue
        until = others[place + 1].at_ms if place + 1 < len(others) else None
        earlier_ms = others[place - 1].at_ms if place else -math.inf
        for partition in deed.partitions:
            times = sorted(
                one.at_ms
                for producer in producers
                for one in producer.answered
                if one.partition == partition and one.error == "NONE"
            )
            first = max(bisect_right(times, deed.at_ms) - 1, 0)
            of = [
                Gap(
                    after - before,
                    partition,
                    before,
                    earlier_ms < before - session_ms and (until is None or after < until),
                )
                for before, after in zip(times[first:], times[first + 1 :], strict=False)
                if until is None or before < until
            ]
            if of:
                gaps.append(max(of))
    return gaps
