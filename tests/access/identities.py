"""A cluster on the S3 API server whose processes have identities, each with its role's policy."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
import yaml

from sparklog import Admin, Consumer, Producer, TopicPartition, model
from sparklog.cluster.access import Role, RootUris, s3_policy
from sparklog.cluster.connection import Connection
from sparklog.cluster.repairs import finding, record, repairs_of
from sparklog.cluster.roots import ClusterRoot
from sparklog.datasource.write_commit import commit_write
from sparklog.datasource.write_options import parse_write_options
from sparklog.datasource.write_task import write_task
from sparklog.model import LOG, REQUEST_TABLES, TRUNCATIONS
from sparklog.producer.stream_writes import MicroBatch
from sparklog.storage import delta_checkpoints, request_appends
from sparklog.storage.control_table import create_table
from sparklog.storage.delta_checkpoints import write_checkpoint
from sparklog.storage.delta_log_files import LOG_FOLDER
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog
from sparklog.storage.request_appends import RequestAppends
from tests.access.policy_store import Policy, PolicyStore, running_policy_store
from tests.jobs.processes import Process, wait_for
from tests.storage.requests import request

BUCKET = "logs"
CLUSTER = f"s3://{BUCKET}/cluster"
LOG_DIRS = [f"s3://{BUCKET}/broker-{one}" for one in range(3)]
CLIENTS = [role for role in Role if role not in (Role.BROKER, Role.CONTROLLER)]
COMMITS = 3
"""The commits between two checkpoints of the tables that clients write."""

TOPIC, PARTITIONS, RECORDS = "t", 3, 6


def policy(role: Role, own: Sequence[str] = ()) -> Policy:
    """Return the policy of a role in the cluster of the tests."""
    return s3_policy(role, RootUris(CLUSTER, LOG_DIRS, own))


class DamagedFile(NamedTuple):
    """A file that was removed or changed."""

    location: Location
    path: str


class IdentityCluster:
    """Three brokers as processes; broker 2 may not be the controller."""

    def __init__(self, store: PolicyStore, folder: Path) -> None:
        self.store, self.folder = store, folder
        self.processes: dict[int, Process] = {}
        self._micro_batch = 0
        self.policies: dict[str, Policy] = {role.value: policy(role) for role in CLIENTS}
        for one in range(3):
            role = Role.BROKER if one == 2 else Role.CONTROLLER
            self.policies[f"broker-{one}"] = policy(role, [LOG_DIRS[one]])
        for name, given in self.policies.items():
            store.set_policy(name, given)

    def connect(self, name: str) -> Connection:
        """Connect as an identity."""
        return Connection(CLUSTER, storage_options=self.store.options(name))

    def admin(self) -> Admin:
        """Return an administrator's client."""
        return Admin(self.connect(Role.ADMIN.value))

    @contextmanager
    def given(self, name: str, other: Policy) -> Iterator[None]:
        """Give an identity another policy within the block."""
        self.store.set_policy(name, other)
        try:
            yield
        finally:
            self.store.set_policy(name, self.policies[name])

    # --- brokers --------------------------------------------------------------------------------

    def start(self, broker_id: int) -> None:
        """Start the process of a broker."""
        values = {
            "cluster.root": CLUSTER,
            "broker.id": broker_id,
            "log.dirs": LOG_DIRS[broker_id],
            "storage.options": self.store.options(f"broker-{broker_id}"),
            "broker.session.timeout.ms": 6_000,
            "broker.heartbeat.interval.ms": 500,
            "replica.lag.time.max.ms": 6_000,
            "log.vacuum.interval.ms": 1_000,
            "file.delete.delay.ms": 10_000,
        }
        file = self.folder / f"broker-{broker_id}.yaml"
        file.write_text(yaml.safe_dump(values), encoding="utf-8")
        command = [sys.executable, "-m", "jobs.broker", "--config", str(file), "--without-spark"]
        self.processes[broker_id] = Process(command, self.folder / f"process-{broker_id}")

    def stop(self, broker_id: int) -> None:
        """Stop the process of a broker, and wait for its end."""
        assert self.processes.pop(broker_id).end() == 0

    def kill(self, broker_id: int) -> None:
        """Kill the process of a broker."""
        self.processes.pop(broker_id).kill()

    def await_in_sync(self) -> None:
        """Wait until each partition has a leader and three in-sync replicas."""
        connection = self.connect(Role.OPERATOR.value)

        def is_in_sync() -> bool:
            metadata = connection.metadata()
            states = [metadata.partition(TOPIC, one) for one in range(PARTITIONS)]
            in_sync = [one.leader is not None and len(one.isr) == 3 for one in states]
            return bool(in_sync) and all(in_sync)

        wait_for(is_in_sync, "in-sync replicas")

    # --- operations of the roles ----------------------------------------------------------------

    def produce(self, name: str, count: int = RECORDS, **config: Any) -> None:
        """Send records to each partition, and wait for the answers."""
        with Producer(
            self.connect(name), request_timeout_ms=30_000, delivery_timeout_ms=60_000, **config
        ) as producer:
            sent = [producer.send(TOPIC, b"%d" % one, partition=one % 3) for one in range(count)]
            for one in sent:
                one.result(60)

    def consume(self, name: str, **config: Any) -> int:
        """Read a record of each partition; a member of a group commits its offsets."""
        with Consumer(self.connect(name), auto_offset_reset="earliest", **config) as consumer:
            if "group_id" in config:
                consumer.subscribe([TOPIC])
            else:
                consumer.assign([TopicPartition(TOPIC, one) for one in range(PARTITIONS)])
            seen: dict[TopicPartition, int] = {}

            def is_read() -> bool:
                for key, records in consumer.poll(500).items():
                    seen[key] = seen.get(key, 0) + len(records)
                if seen and "group_id" in config:
                    consumer.commit()
                return len(seen) == PARTITIONS

            wait_for(is_read, "records")
            return sum(seen.values())

    def write_micro_batch(self, name: str, *, moves: bool = False) -> None:
        """Write a micro-batch as a Spark stream does, in tasks and then in the driver."""
        self._micro_batch += 1
        given = {"cluster": CLUSTER, "kafka.delivery.timeout.ms": "90000"}
        options = replace(parse_write_options(given), storage_options=self.store.options(name))
        rows = [{"topic": TOPIC, "value": b"x", "partition": one} for one in range(PARTITIONS)]
        schema = pa.schema({"topic": pa.string(), "value": pa.binary(), "partition": pa.int32()})
        written = list(write_task([pa.RecordBatch.from_pylist(rows, schema)], options))
        if moves:
            self.elect_others()
        commit_write(options, written, MicroBatch("query", self._micro_batch))

    def lose_a_file(self, broker_id: int) -> DamagedFile:
        """Remove the file of the newest batch of partition 0 from a broker's log."""
        location = Location.of(LOG_DIRS[broker_id], self.store.options("nobody"))
        log = RecordLog(location)
        [key] = [one for one in log.partitions() if one.partition == 0 and log.batches(one)]
        path = log.batches(key)[-1].path
        log.location.remove(path)
        return DamagedFile(log.location, path)

    def damage_a_checkpoint(self, broker_id: int) -> DamagedFile:
        """Change the checkpoint of a table of a broker that has few commits."""
        root = Location.of(LOG_DIRS[broker_id], self.store.options("nobody"))
        table = root.child(TRUNCATIONS.name)
        write_checkpoint(table)
        [name] = [one for one in table.names(LOG_FOLDER) if one.endswith(".checkpoint.parquet")]
        path = f"{LOG_FOLDER}/{name}"
        table.remove(path)
        table.put_new(path, b"no checkpoint")
        return DamagedFile(table, path)

    def append_to_a_recreated_table(self, name: str) -> None:
        """Append requests to a table that is recreated meanwhile; it has no broker."""
        path = f"{LOG_DIRS[0]}/{REQUEST_TABLES[0].name}-{uuid.uuid4()}/{LOG_FOLDER}"
        owned = Location.of(path, self.store.options("nobody"))
        create_table(owned, REQUEST_TABLES[0])
        appends = RequestAppends(Location.of(path, self.store.options(name)))
        for one in "ab":
            appends.append([request(one)])
        for file in [*owned.files()]:
            owned.remove(file.path)
        create_table(owned, REQUEST_TABLES[0])
        appends.append([request("c")])

    def suspect_a_replica(self, name: str, broker_id: int) -> None:
        """Record a finding about a sound replica, which only its broker may examine."""
        root = self.connect(name).root
        state = self.connect(name).metadata().partition(TOPIC, 0)
        found = finding(
            "damaged_header",
            "a test",
            LOG_DIRS[broker_id],
            LOG.name,
            broker_id=broker_id,
            key=state.key,
            topic=TOPIC,
            remedy="",
            now_ms=0,
        )
        record(root.repairs, [found], {}, 0)

    def has_no_findings(self, name: str) -> bool:
        """Return whether no finding is open."""
        return not any(one.is_open for one in repairs_of(self.connect(name).root))

    def elect_others(self) -> None:
        """Let another broker lead each partition."""
        admin = self.admin()
        states = self.connect(Role.ADMIN.value).metadata().partitions.values()
        admin.alter_partition_reassignments(
            {
                TopicPartition(TOPIC, one.partition): [
                    *(r.broker_id for r in one.replicas[1:]),
                    one.replicas[0].broker_id,
                ]
                for one in states
            }
        )
        wait_for(lambda: not admin.list_partition_reassignments(), "reassigned partitions")
        self.elect_preferred()

    def elect_preferred(self) -> None:
        """Let the preferred replica lead each partition."""
        keys = [TopicPartition(TOPIC, one) for one in range(PARTITIONS)]
        self.admin().elect_leaders("preferred", keys)


def without(given: Policy, statement: int, resource: str) -> Policy:
    """Return a policy without one resource, or one prefix, of a statement."""
    statements = [dict(one) for one in given["Statement"]]
    one = statements[statement]
    if "Condition" in one:
        listed = [p for p in one["Condition"]["StringLike"]["s3:prefix"] if p != resource]
        one["Condition"] = {"StringLike": {"s3:prefix": listed}}
    else:
        one["Resource"] = [other for other in one["Resource"] if other != resource]
    return {**given, "Statement": statements}


def entries(given: Policy) -> list[tuple[int, str, str]]:
    """Return the number of the statement, the action and each resource or prefix of a policy."""
    found = []
    for number, one in enumerate(given["Statement"]):
        condition = one.get("Condition", {}).get("StringLike", {})
        listed = condition.get("s3:prefix", one["Resource"])
        found += [(number, one["Action"], resource) for resource in listed]
    return found


@contextmanager
def running_identities(folder: Path) -> Iterator[IdentityCluster]:
    """Run the cluster; tables that clients write get a checkpoint after `COMMITS` commits."""
    properties = {
        "delta.checkpointInterval": str(COMMITS),
    }
    with running_policy_store(folder / "store.log") as store, pytest.MonkeyPatch.context() as patch:
        often = tuple(
            one
            if one is model.REPAIRS  # its readers poll it only at a request
            else one._replace(properties={**one.properties, **properties})
            for one in model.CLUSTER_TABLES
        )
        patch.setattr(model, "CLUSTER_TABLES", often)
        patch.setattr(request_appends, "DEFAULT_CHECKPOINT_INTERVAL", COMMITS)
        patch.setattr(request_appends, "_CHECK_SECONDS", 0)
        store.bucket(BUCKET)
        cluster = IdentityCluster(store, folder)
        ClusterRoot.create(Location.of(CLUSTER, store.options(Role.OPERATOR.value)))
        try:
            for one in (2, 0, 1):
                cluster.start(one)
            admin = cluster.admin()
            wait_for(lambda: len(admin.list_brokers()) == 3, "three brokers")
            assignment = {one: [(one + after) % 3 for after in range(3)] for one in range(3)}
            admin.create_topic(TOPIC, assignment=assignment, configs={"min.insync.replicas": "2"})
            cluster.await_in_sync()
            yield cluster
        finally:
            for process in cluster.processes.values():
                process.close()
            delta_checkpoints.await_checkpoints()
