"""Streams over random histories of a cluster: every committed record once, in order."""

from __future__ import annotations

import json
import random
from collections import defaultdict

import pytest

from sparklog.datasource.stream_read import StreamRead
from tests.datasource.conftest import Readable, rows

STEPS = 30


class History:
    """Produces, lets brokers fail and return, and streams the committed records meanwhile."""

    def __init__(self, readable: Readable, seed: int) -> None:
        self.readable = readable
        self.cluster = readable.cluster
        self.random = random.Random(seed)
        self.down: int | None = None
        self.produced = 0
        self.given = {
            "subscribe": "t",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(self.random.choice([1, 3, 100])),
            **self.random.choice([{}, {"replica": "nearest", "clientRack": "b"}]),
        }
        readable.create_topic("t", partitions=2, min_insync_replicas=2)
        self.stream = self.new_stream()
        self.here = self.stream.initial_offset()
        self.read: dict[int, list[tuple[int, bytes | None]]] = defaultdict(list)

    def new_stream(self) -> StreamRead:
        return self.readable.stream(**self.given)

    def produce(self) -> None:
        values = [f"{self.produced}.{one}".encode() for one in range(self.random.randint(1, 5))]
        self.produced += 1
        self.cluster.produce("t", self.random.randrange(2), values)

    def tick(self) -> None:
        broker = self.random.choice([one for one in range(3) if one != self.down])
        self.random.choice([self.cluster.leader_tick, self.cluster.follower_tick])(broker)

    def fail_or_return(self) -> None:
        if self.down is not None:
            self.cluster.restart(self.down)
            self.down = None
            self.cluster.tick_until_idle()
        else:
            self.down = self.random.randrange(3)
            self.cluster.crash(self.down)
            self.cluster.fence(self.down)

    def micro_batch(self) -> None:
        """Read one micro-batch, sometimes twice, as after a crash, and sometimes in a new
        process.
        """
        end = self.stream.latest_offset(self.here, is_limited=True)
        if self.random.random() < 0.3:
            self.stream = self.new_stream()
            self.stream.plan(json.loads(json.dumps(self.here)), json.loads(json.dumps(end)))
        self.keep(end)

    def keep(self, end: dict[str, object]) -> None:
        for _, partition, offset, value in rows(self.stream.plan(self.here, end)):
            self.read[partition].append((offset, value))
        self.here = json.loads(json.dumps(end))

    def run(self) -> None:
        steps = [self.produce] * 3 + [self.tick] * 3 + [self.micro_batch] * 3
        for _ in range(STEPS):
            self.random.choice([*steps, self.fail_or_return])()
            if self.random.random() < 0.3:
                self.cluster.tick_until_idle()

    def finish(self) -> None:
        if self.down is not None:
            self.fail_or_return()
        self.cluster.tick_until_idle()
        while (end := self.stream.latest_offset(self.here, is_limited=True)) != self.here:
            self.keep(end)


@pytest.mark.filterwarnings("ignore:.* is skipped")
@pytest.mark.parametrize("seed", range(4))
def test_a_stream_reads_every_committed_record_once_whatever_fails(
    readable: Readable, seed: int
) -> None:
    """A stream reads every committed record once, in order, over random failures."""
    history = History(readable, seed)
    history.run()
    history.finish()
    assert history.produced
    for partition in range(2):
        committed = readable.cluster.consume("t", partition)
        assert history.read[partition] == [(one.offset, one.value) for one in committed]
