"""The accumulator gathers a plain producer's records into batches."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pyarrow as pa

from sparklog.model import TopicIdPartition
from sparklog.producer.accumulator import Accumulator, ProducerRecord
from sparklog.producer.partitioner import DefaultPartitioner, keyed_partitions

P0, P1 = TopicIdPartition("id", 0), TopicIdPartition("id", 1)


def record(value: bytes, partition: int | None = 0, at_ms: int = 0, **changes: Any) -> Any:
    given = ProducerRecord(
        "t", value, None, None, partition, 5, len(value), at_ms, Future(), on_delivery=None
    )
    return given._replace(**changes)


def add(accumulator: Accumulator, *records: ProducerRecord) -> None:
    accumulator.add("id", records, DefaultPartitioner(2))


def values(batches: list[Any]) -> list[list[bytes]]:
    return [[one.value for one in batch.records] for batch in batches]


def test_a_batch_is_due_when_it_has_lingered_is_full_or_is_flushed() -> None:
    """A batch is due after linger.ms, when it is full, or at a flush."""
    accumulator = Accumulator(batch_size=10, linger_ms=5)
    add(accumulator, record(b"a", at_ms=100), record(b"b" * 10, 1, at_ms=100))
    assert accumulator.next_due_ms() == 105
    assert values(accumulator.due(104, is_flushing=False)) == [[b"b" * 10]]
    assert values(accumulator.due(105, is_flushing=False)) == [[b"a"]]
    add(accumulator, record(b"c", at_ms=200))
    accumulator.done(accumulator.in_flight[P0])
    assert values(accumulator.due(200, is_flushing=True)) == [[b"c"]]


def test_a_batch_ends_before_the_record_that_would_make_it_too_large() -> None:
    """A batch ends before the record that would exceed batch.size; a larger record has its own
    batch.
    """
    accumulator = Accumulator(batch_size=5, linger_ms=0)
    add(accumulator, *(record(one) for one in (b"aa", b"bb", b"cc", b"d" * 9, b"e")))
    sent = []
    while due := accumulator.due(0, is_flushing=False):
        sent += values(due)
        accumulator.done(due[0])
    assert sent == [[b"aa", b"bb"], [b"cc"], [b"d" * 9], [b"e"]]


def test_of_each_partition_one_batch_is_on_its_way() -> None:
    """At most one batch per partition is in flight, so no batch overtakes a retry."""
    accumulator = Accumulator(batch_size=1, linger_ms=0)
    add(accumulator, record(b"a"), record(b"b"), record(b"x", 1))
    first, other = accumulator.due(0, is_flushing=False)
    assert values([first, other]) == [[b"a"], [b"x"]]
    assert accumulator.due(9, is_flushing=True) == []
    accumulator.again(first, not_before_ms=50)
    assert accumulator.next_due_ms() == 50
    assert accumulator.due(49, is_flushing=True) == []
    assert accumulator.due(50, is_flushing=False) == [first]
    assert first.attempts == 2
    accumulator.done(first)
    assert values(accumulator.due(50, is_flushing=False)) == [[b"b"]]


def test_a_batch_that_was_sent_once_takes_no_more_records() -> None:
    """A batch that was sent takes no more records: a changed retry would not be recognised
    (3.6).
    """
    accumulator = Accumulator(batch_size=100, linger_ms=0)
    add(accumulator, record(b"a"))
    [batch] = accumulator.due(0, is_flushing=False)
    add(accumulator, record(b"b"))
    accumulator.again(batch, 0)
    add(accumulator, record(b"c"))
    assert values([batch]) == [[b"a"]]
    assert values(accumulator.waiting()) == [[b"a"], [b"b", b"c"]]


def test_one_that_fails_behind_another_leaves_the_other_alone() -> None:
    """A waiting batch that is done early does not remove the batch in flight before it."""
    accumulator = Accumulator(batch_size=1, linger_ms=0)
    add(accumulator, record(b"a"), record(b"b"))
    [first] = accumulator.due(0, is_flushing=False)
    [second] = accumulator.waiting()
    accumulator.done(second)
    assert accumulator.in_flight == {P0: first}
    accumulator.done(first)
    assert not accumulator


def test_keys_go_to_their_partitions_and_explicit_ones_where_they_say() -> None:
    """Keyed records go to their keys' partitions, and records with a partition to that
    partition.
    """
    accumulator = Accumulator(batch_size=1 << 20, linger_ms=0)
    keys = [b"%d" % number for number in range(50)]
    by_key = [record(b"v", None, key=key) for key in keys]
    add(accumulator, *by_key, record(b"x", 0), record(b"y", 1))
    expected = keyed_partitions(pa.array(keys, pa.binary()), 2)
    for batch in accumulator.due(0, is_flushing=False):
        *keyed, explicit = batch.records
        number = batch.key.partition
        assert [one.key for one in keyed] == [
            key for key, partition in zip(keys, expected, strict=True) if partition == number
        ]
        assert explicit.value == {0: b"x", 1: b"y"}[number]


def test_a_batch_keeps_what_its_records_have() -> None:
    """A batch has its records' keys, values, headers and times."""
    accumulator = Accumulator(batch_size=100, linger_ms=0)
    headers = [("a", b"1"), ("b", None)]
    add(accumulator, record(b"v", key=b"\xff", headers=headers), record(b"", headers=[]))
    [batch] = accumulator.due(0, is_flushing=False)
    first, second = batch.table().to_pylist()
    assert (first["key"], first["value"]) == (b"\xff", b"v")
    assert first["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    assert (second["key"], second["value"], second["headers"]) == (None, b"", [])
    assert first["timestamp"].timestamp() == 0.005
