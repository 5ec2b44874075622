"""Random stories of brokers with two log directories each, which fail, come back, or are replaced.

Acknowledged records stay, and all replicas are in sync with sound logs in the end.
"""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from sparklog.errors import SparklogError
from sparklog.maintenance.audit import audit
from sparklog.producer.produce_requests import PendingProduce
from sparklog.testing import LocalCluster
from tests.broker.failing_disk import FailingDisk
from tests.broker.states import error

BROKERS, PARTITIONS, STEPS = (0, 1, 2), (0, 1), 15


class Story:
    """One cluster, and what was acknowledged in it."""

    def __init__(self, folder: Path, disk: FailingDisk, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = disk
        self.cluster = LocalCluster(
            folder / "cluster",
            brokers=BROKERS,
            log_dirs={one: (f"{one}a", f"{one}b") for one in BROKERS},
            storage_options={str(folder): {"sync": "false"}},
        )
        assignment = {one: [(one + at) % 3 for at in range(3)] for one in PARTITIONS}
        self.cluster.create_topic("t", assignment=assignment, configs={"min.insync.replicas": "2"})
        self.cluster.tick_until_idle()
        self.sent: list[tuple[int, bytes, PendingProduce]] = []
        self.done: list[str] = []

    def act(self) -> None:
        """Take a random action, then let some time pass."""
        action = self.random.choice(
            [self.produce, self.produce, self.produce, self.fail, self.restart, self.empty]
        )
        self.done.append(action.__name__)
        action()
        for _ in range(self.random.randint(0, 3)):
            self.cluster.clock.advance(2_000)
        self.tick()

    def tick(self) -> None:
        # Ticks of a broker without a sound directory fail.
        for _ in range(4):
            with suppress(OSError, SparklogError):
                self.cluster.tick_until_idle()
                return
            self.cluster.clock.advance(2_000)

    def produce(self) -> None:
        partition, value = self.random.choice(PARTITIONS), b"%d" % len(self.sent)
        with suppress(OSError, SparklogError):
            pending = self.cluster.produce("t", partition, [value])
            self.sent.append((partition, value, pending))

    def fail(self) -> None:
        """Fail a directory, of one broker at a time: a second one would stop all partitions."""
        broken = {name[0] for name in self.disk.names()}
        broker = self.random.choice(BROKERS)
        if not broken - {str(broker)}:
            self.disk.fail(self.cluster.root / f"{broker}{self.random.choice('ab')}")

    def restart(self) -> None:
        """Restart a broker, after a clean stop or a crash, with or without repaired disks."""
        broker = self.random.choice(BROKERS)
        if self.random.random() < 0.5:
            self.disk.mend()
        if broker in self.cluster.brokers:
            if self.random.random() < 0.5:
                with suppress(OSError, SparklogError):
                    self.cluster.brokers[broker].stop()
            self.cluster.crash(broker)
        if self.random.random() < 0.3:
            self.cluster.fence(broker)
        with suppress(OSError, SparklogError):
            self.cluster.restart(broker)

    def empty(self) -> None:
        """Replace a directory by an empty one, if no partition depends on its replicas."""
        broker, number = self.random.choice(BROKERS), self.random.choice((0, 1))
        for partition in PARTITIONS:
            state = self.cluster.connection.metadata().partition("t", partition)
            replica = state.replica(broker)
            assert replica is not None
            if replica.root == number and len(set(state.isr) - {broker}) < 2:
                return
        if broker in self.cluster.brokers:
            self.cluster.crash(broker)
        name = f"{broker}{'ab'[number]}"
        if name not in self.disk.names():
            # It may be empty already, if the broker could not be started since.
            shutil.rmtree(self.cluster.root / name, ignore_errors=True)
        with suppress(OSError, SparklogError):
            self.cluster.restart(broker)

    def end(self) -> None:
        """Repair everything, restart all brokers, and check the cluster."""
        self.disk.mend()
        for broker in BROKERS:
            if broker in self.cluster.brokers:
                self.cluster.crash(broker)
            self.cluster.restart(broker)
        for _ in range(3):
            self.cluster.clock.advance(5_000)
            self.cluster.tick_until_idle()
        self.cluster.reconnect()
        for partition in PARTITIONS:
            assert self.cluster.partition("t", partition).isr == list(BROKERS), self.done
            stored = [record.value for record in self.cluster.consume("t", partition)]
            acknowledged = [
                value
                for of, value, pending in self.sent
                if of == partition and error(pending) == "NONE"
            ]
            assert set(acknowledged) <= set(stored), self.done
            assert len(set(stored)) == len(stored), self.done
        assert audit(self.cluster.connection) == [], self.done


@pytest.mark.parametrize("seed", range(2))
def test_no_acknowledged_record_is_lost(tmp_path: Path, disk: FailingDisk, seed: int) -> None:
    story = Story(tmp_path, disk, seed)
    for _ in range(STEPS):
        story.act()
    assert sum(error(pending) == "NONE" for _, _, pending in story.sent) > 1
    story.end()
