"""The cluster that is damaged: three stopped brokers, with rows in every table that sparklog has.

It is built twice. In a young cluster each table has all of its commits. In a grown one each table
has a Delta checkpoint with two commits after it, and clean-up has removed the commits before it.
"""

from __future__ import annotations

from deltalake import DeltaTable

from sparklog.cluster.admin import Admin
from sparklog.consumer.consumer import Consumer
from sparklog.groups.committed_offsets import CommittedOffsets, OffsetAndMetadata
from sparklog.groups.group import ConsumerGroups, GroupFence, Member, assigned, joined
from sparklog.maintenance.repair import repair
from sparklog.maintenance.scrub import scrub
from sparklog.model import (
    BROKER_TABLES,
    CLUSTER_TABLES,
    CONSUMER_GROUP_HEARTBEATS,
    FORMAT,
    TopicIdPartition,
    TopicPartition,
)
from sparklog.producer.producer_ids import ProducerIds
from sparklog.producer.stream_writes import MicroBatch, SentFile, StreamWrites
from sparklog.storage.batch_files import BatchFile
from sparklog.storage.control_table import ControlTable
from sparklog.storage.delta_checkpoints import await_checkpoints, write_checkpoint
from sparklog.storage.delta_log_files import LOG_FOLDER, has_version
from sparklog.storage.file_copies import await_copies
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster
from tests.faults.damage.storage import Storage

BROKERS = (0, 1, 2)
START_MS = 1_000_000
DAMAGED_AT_MS = 100_000_000
"""The time on the brokers' clock at which files are damaged, later than all of the preparation."""

GROUP, COMMITTED_OFFSET = "readers", 3
PARTITIONS = (
    TopicPartition("plain", 0),
    TopicPartition("plain", 1),
    TopicPartition("plain", 2),
    TopicPartition("compacted", 0),
)
_ASSIGNMENT = {0: [0, 1, 2], 1: [1, 2, 0], 2: [2, 0, 1]}
_COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
SETTINGS = {"log.merger.min.batches": 2, "log.scrub.bytes.per.second": 0}
"""Runs of two batches are merged. Brokers do not scrub: `sparklog scrub` finds damaged files."""

AGES = ("young", "grown")


def tables_of(root: str) -> tuple[str, ...]:
    """Return the names of the tables that a root must have."""
    of_root = CLUSTER_TABLES if root == "cluster" else BROKER_TABLES
    return (FORMAT.name, *(one.name for one in of_root))


def build(storage: Storage, age: str) -> None:
    """Build a cluster of `age` at the place of a storage, and stop its brokers."""
    cluster = LocalCluster(
        storage.place.uri,
        BROKERS,
        config=SETTINGS,
        storage_options=storage.options,
        start_ms=START_MS,
    )
    cluster.create_topic("plain", assignment=_ASSIGNMENT, configs={"min.insync.replicas": "2"})
    cluster.create_topic("compacted", assignment={0: [1, 2, 0]}, configs=_COMPACTED)
    cluster.tick_until_idle()
    _work(cluster, 0)
    _lose_uncommitted_records(cluster)
    _repair_a_file(cluster)
    if age == "grown":
        _clean_up(storage.place)
        if not storage.place.is_local:
            # Processes on object stores rely on the ten minutes for which clean-up keeps commits.
            _restart(cluster)
    for number in (1, 2):
        _work(cluster, number)
    for broker in cluster.brokers.values():
        broker.prepare_to_stop()
    cluster.tick_until_idle()
    for broker in cluster.brokers.values():
        broker.stop()
    await_checkpoints()
    await_copies()
    cluster.close()


def _work(cluster: LocalCluster, number: int) -> None:
    """Write to every table: clients first, then the brokers' background work."""
    connection, clock = cluster.connection, cluster.clock
    producer = cluster.idempotent_producer(f"transactional-{number}")
    for one in range(3):
        for topic, partition in PARTITIONS:
            values = [b"%d.%d" % (number, one)]
            keys = [b"%d" % (one % 2)] if topic == "compacted" else None
            by = producer if (topic, partition) == PARTITIONS[0] else None
            cluster.produce(topic, partition, values, keys=keys, producer=by)
        cluster.tick_until_idle()
    plain = connection.metadata().topic("plain").topic_id
    key = TopicIdPartition(plain, 0)

    groups = ConsumerGroups(connection.root.consumer_groups)
    member = Member("member-0", None, "client", 0, ("plain",), ("range",), (), 45_000, 300_000)
    groups.change(GROUP, lambda group: joined(group, member))
    groups.change(GROUP, lambda group: assigned(group, {"member-0": [key]}))
    beats = {"group_id": GROUP, "member_id": "member-0", "heartbeat": number}
    heartbeats = ControlTable(cluster.location(), CONSUMER_GROUP_HEARTBEATS)
    heartbeats.compare_and_set(CONSUMER_GROUP_HEARTBEATS.rows([beats]))
    committed = OffsetAndMetadata(COMMITTED_OFFSET, "", 0)
    fence = groups.find(GROUP).fence
    offsets = CommittedOffsets(connection.root.consumer_offsets, clock)
    offsets.commit(GROUP, GroupFence(*fence), {key: ("plain", committed)})

    ProducerIds(connection).allot("idle")
    once = MicroBatch(f"query-{number}", 0, plain)
    file = BatchFile(f"_inbox/{number:032x}.{number:012x}.parquet", 500, "0" * 16, 1, 0, 0)
    sent = SentFile(cluster.location(0).child("log"), file)
    StreamWrites(connection).begin(once, {key: [sent]})
    StreamWrites(connection).finish(once)
    admin = Admin(connection, settings=cluster.settings, clock=clock)
    admin.alter_client_quotas("client", {"producer_byte_rate": 10_000_000 + number})

    clock.advance(60_000)
    cluster.tick_until_idle()
    for broker in BROKERS:
        cluster.merge(broker)
        cluster.clean(broker)
    clock.advance(60_000)
    cluster.tick_until_idle()
    for broker in BROKERS:
        cluster.vacuum(broker)
    cluster.tick_until_idle()
    scrub(connection, clock=clock)


def _lose_uncommitted_records(cluster: LocalCluster) -> None:
    """Have broker 0 truncate records that no other replica has, which `truncations` then names."""
    cluster.produce("plain", 0, [b"of acks=1, and lost"], acks=1)
    cluster.leader_tick(0)
    cluster.crash(0)
    cluster.fence(0)
    cluster.tick_until_idle()
    cluster.produce("plain", 0, [b"of the next leader"])
    cluster.tick_until_idle()
    cluster.restart(0)
    cluster.tick_until_idle()
    cluster.elect_leaders("preferred", PARTITIONS)
    cluster.tick_until_idle()


def _repair_a_file(cluster: LocalCluster) -> None:
    """Damage a batch file and have it repaired, so that `repairs` has a row."""
    log = cluster.location(2).child("log")
    name = next(one for one in log.names("_inbox") if one.endswith(".parquet"))
    log.replace(f"_inbox/{name}", b"")
    scrub(cluster.connection, clock=cluster.clock)
    repair(cluster.connection, clock=cluster.clock)


def _restart(cluster: LocalCluster) -> None:
    for broker in BROKERS:
        cluster.crash(broker)
        cluster.restart(broker)
    cluster.reconnect()
    cluster.tick_until_idle()


def _clean_up(place: Location) -> None:
    """Write the checkpoint of each table, and remove the commits before it, as clean-up does.

    The table `format` has two commits in its life, and never a checkpoint.
    """
    await_checkpoints()
    roots = [place.child(name) for name in place.names()]
    for table in [root.child(name) for root in roots for name in root.names()]:
        if table.uri.endswith(f"/{FORMAT.name}"):
            continue
        write_checkpoint(table)
        version = DeltaTable(table.uri, storage_options=table.store_options).version()
        table.remove_all(
            [
                f"{LOG_FOLDER}/{name}"
                for name in table.names(LOG_FOLDER)
                if name.endswith(".json") and has_version(name) and int(name[:20]) < version
            ]
        )


class Place:
    """The place of a storage at which copies of both sound clusters are damaged."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._values: dict[str, dict[TopicPartition, list[bytes | None]]] = {}
        for age in AGES:
            build(storage, age)
            storage.save(age)

    @property
    def trees(self) -> dict[str, Location]:
        """The locations of the sound clusters by age."""
        return {age: self.storage.saved(age) for age in AGES}

    def values(self, age: str) -> dict[TopicPartition, list[bytes | None]]:
        """Return the committed values of a sound cluster by partition, in the order of offsets."""
        if age not in self._values:
            root = self.restore(age).child("cluster")
            with Consumer(
                root.uri, storage_options=self.storage.options, auto_offset_reset="earliest"
            ) as consumer:
                consumer.assign(list(PARTITIONS))
                found: dict[TopicPartition, list[bytes | None]] = {}
                while polled := consumer.poll(timeout_ms=0):
                    for of, records in polled.items():
                        found.setdefault(of, []).extend(one.value for one in records)
            self._values[age] = found
        return self._values[age]

    def restore(self, age: str) -> Location:
        """Put a copy of a sound cluster in place; return its location."""
        self.storage.restore(age)
        return self.storage.place
