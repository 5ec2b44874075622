"""Writers and readers that know what the log must contain.

A partition has one writer, which sends a batch again until it is acknowledged, so the record at an
offset has that offset as its value. A lost, repeated or moved record shows at the first read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TypeAlias

from sparklog.consumer.assigned_partition import ConsumerRecord
from sparklog.consumer.consumer import Consumer
from sparklog.errors import SparklogError
from sparklog.model import TopicPartition
from sparklog.producer.produce_requests import PendingProduce
from sparklog.testing import LocalCluster
from sparklog.testing.local_producer import LocalProducer

KEYS = 100
"""Keys of a partition of a compacted topic."""

Pair: TypeAlias = "tuple[bytes | None, bytes | None]"
"""Key and value of a record."""

_TOMBSTONES = 0.1
_PATIENCE_ROUNDS = 40
_MOST_RECORDS = 5


class ViolationError(Exception):
    """A record is lost, repeated, moved or changed."""


class Written:
    """The acknowledged records of a partition: their end, and the newest of each key."""

    def __init__(self) -> None:
        self.end_offset = 0
        self.newest: dict[bytes, tuple[int, bytes | None]] = {}

    def add(self, partition: TopicPartition, offset: int, records: Sequence[Pair]) -> None:
        """Add the records of a batch that was acknowledged at `offset`.

        Raises
        ------
        ViolationError
            The batch is not where the one before ends.
        """
        if offset != self.end_offset:
            raise ViolationError(f"{partition}: acknowledged at {offset}, not {self.end_offset}")
        for key, value in records:
            if key is not None:
                self.newest[key] = (self.end_offset, value)
            self.end_offset += 1


def made_record(random: Random, offset: int, *, has_keys: bool) -> Pair:
    """Return key and value of the record at an offset; one of ten with a key is a tombstone."""
    if not has_keys:
        return None, b"%d" % offset
    key = b"key-%d" % random.randrange(KEYS)
    return key, None if random.random() < _TOMBSTONES else b"%d" % offset


class Writer:
    """The producer of one partition; another one takes its place from time to time."""

    def __init__(
        self, cluster: LocalCluster, partition: TopicPartition, seed: int, *, has_keys: bool
    ) -> None:
        self._cluster = cluster
        self._partition = partition
        self._random = Random(seed)
        self._has_keys = has_keys
        self._producer: LocalProducer | None = None
        self._pending: PendingProduce | None = None
        self._sent_at = 0
        self._records: list[Pair] = []
        self.written = Written()

    def step(self, round_number: int) -> None:
        """Send a batch if the last one is acknowledged; send that one again if it failed."""
        if self._pending is not None:
            self._take_answer(round_number)
        if self._pending is None:
            self._send(round_number)

    def change_producer(self) -> None:
        """Let another producer, with a producer id of its own, send what comes next."""
        if self._pending is None:
            self._producer = None

    @property
    def is_idle(self) -> bool:
        """Whether all that was sent is acknowledged."""
        return self._pending is None

    def take_answer(self, round_number: int) -> None:
        """Take the answer of the batch under way, or send it again; send nothing else."""
        if self._pending is not None:
            self._take_answer(round_number)

    def _send(self, round_number: int) -> None:
        if self._producer is None:
            self._producer = self._cluster.idempotent_producer()
        count = self._random.randint(1, _MOST_RECORDS)
        begin = self.written.end_offset
        self._records = [
            made_record(self._random, offset, has_keys=self._has_keys)
            for offset in range(begin, begin + count)
        ]
        keys, values = zip(*self._records, strict=True)
        topic, partition = self._partition
        self._pending = self._cluster.produce(
            topic, partition, values, keys=keys, producer=self._producer
        )
        self._sent_at = round_number

    def _take_answer(self, round_number: int) -> None:
        assert self._pending is not None
        assert self._producer is not None
        answer = self._pending.response
        if answer is not None and answer.error == "NONE":
            self.written.add(self._partition, answer.base_offset, self._records)
            self._pending = None
        elif answer is not None or round_number - self._sent_at >= _PATIENCE_ROUNDS:
            try:
                self._pending = self._producer.retry(self._pending)
            except SparklogError:
                return  # no leader: tried again in the next round
            self._sent_at = round_number


class Reader:
    """Consumers of one group that share topics without keys; members come and go."""

    def __init__(self, root: Path, topics: list[str], members: int) -> None:
        self._root = root
        self._topics = topics
        self.positions: dict[TopicPartition, int] = {}
        self._members = [self._member() for _ in range(members)]

    def _member(self) -> Consumer:
        member = Consumer(self._root, "soak", auto_offset_reset="earliest")
        member.subscribe(self._topics)
        return member

    def step(self) -> int:
        """Let each member poll once; return the number of records.

        Raises
        ------
        ViolationError
            A record was read twice, was left out, or is another one.
        """
        count = 0
        for member in self._members:
            for partition, records in member.poll(0).items():
                for record in records:
                    expected = self.positions.get(partition, 0)
                    if (record.offset, record.value) != (expected, b"%d" % expected):
                        raise ViolationError(
                            f"{partition}: read {record.value!r} at {record.offset}, where "
                            f"{expected} comes next"
                        )
                    self.positions[partition] = expected + 1
                count += len(records)
        return count

    def replace_member(self) -> None:
        """Let the oldest member leave, and another one join."""
        self._members.pop(0).close()
        self._members.append(self._member())

    def close(self) -> None:
        """Let all members leave."""
        while self._members:
            self._members.pop().close()


def retained(root: Path, partition: TopicPartition) -> tuple[int, list[ConsumerRecord]]:
    """Return the log start, and all records that a new consumer reads from there on."""
    with Consumer(root, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        found: list[ConsumerRecord] = []
        while consumer.position(partition) < end:
            for records in consumer.poll(1_000).values():
                found += records
        # Read last: retention may go on meanwhile.
        return consumer.beginning_offsets([partition])[partition], found


def check_retained(root: Path, partition: TopicPartition, written: Written) -> int:
    """Check that each retained record is there once, and return their number.

    Raises
    ------
    ViolationError
        It is not.
    """
    is_compacted = bool(written.newest)
    last, count = -1, 0
    seen: dict[bytes, tuple[int, bytes | None]] = {}
    begin, records = retained(root, partition)
    for record in records:
        offset, key, value = record.offset, record.key, record.value
        if offset <= last or (not is_compacted and last >= 0 and offset != last + 1):
            raise ViolationError(f"{partition}: offset {offset} comes after {last}")
        if value is not None and value != b"%d" % offset:
            raise ViolationError(f"{partition}: {value!r} is at offset {offset}")
        if key is not None:
            seen[key] = (offset, value)
        last, count = offset, count + 1
    if not is_compacted and last + 1 != written.end_offset:
        raise ViolationError(f"{partition}: ends at {last + 1}, not {written.end_offset}")
    for key, newest in written.newest.items():
        found = seen.get(key)
        # Tombstones are cleaned, and retention deletes what is before the log start.
        may_be_gone = newest[1] is None or newest[0] < begin
        if found != newest and not (found is None and may_be_gone):
            raise ViolationError(f"{partition}: {key!r} is {found}, not {newest}")
    return count
