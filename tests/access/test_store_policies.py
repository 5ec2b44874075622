"""The policies of the roles on S3: each is enough for its role, and each part of it is necessary.

Each process has an access key of its own, and the server enforces the policies that `sparklog
policy` prints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from sparklog import Consumer
from sparklog.broker.broker import Broker
from sparklog.clock import SystemClock
from sparklog.cluster.access import GRANTS, Action, Role, Roots
from sparklog.config import Settings
from sparklog.errors import AccessDeniedError
from sparklog.protocol.driver_rules import DriverRules
from sparklog.storage import delta_checkpoints
from sparklog.storage.execution import DriverExecution
from sparklog.storage.location import Location
from tests.access.identities import (
    BUCKET,
    CLIENTS,
    CLUSTER,
    COMMITS,
    LOG_DIRS,
    TOPIC,
    IdentityCluster,
    entries,
    policy,
    running_identities,
    without,
)
from tests.access.policy_store import Asked, PolicyStore, allows, running_policy_store
from tests.cli.command_line import Finished, run
from tests.jobs.processes import wait_for
from tests.maintenance.releases import EARLIER, earlier_cluster_root

_LONGER_THAN_HISTORY_S = 9 * 86_400
"""Longer than any table keeps its commits and its removed files."""


# The cluster in which all roles have done their work takes a minute or two: one process makes it.
pytestmark = pytest.mark.xdist_group("store-policies")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IdentityCluster]:
    with running_identities(tmp_path_factory.mktemp("identities")) as running:
        yield running


def command(cluster: IdentityCluster, name: str, *arguments: str) -> Finished:
    """Run a command of the command line as an identity."""
    options = json.dumps(cluster.store.options(name))
    return run("--storage-options", options, *arguments, "--cluster", CLUSTER)


def succeed(cluster: IdentityCluster, name: str, *commands: str) -> None:
    for one in commands:
        finished = command(cluster, name, *one.split())
        assert finished.exit_code == 0, (one, finished)


def consume(cluster: IdentityCluster, name: str) -> None:
    cluster.consume(name)


def be_a_member(cluster: IdentityCluster, name: str) -> None:
    """Join groups as a dynamic and a static member, rebalance, and commit offsets several times."""
    often: dict[str, Any] = {"heartbeat_interval_ms": 100, "session_timeout_ms": 6_000}
    for number in range(3):
        cluster.consume(name, group_id=f"dynamic-{number}", **often)
        cluster.consume(name, group_id=f"static-{number}", group_instance_id="i", **often)
    connection = cluster.connect(name)
    with (
        Consumer(connection, group_id="shared", **often) as one,
        Consumer(connection, group_id="shared", **often) as other,
    ):
        for consumer in (one, other):
            consumer.subscribe([TOPIC])

        def is_shared() -> bool:
            for consumer in (one, other):
                consumer.poll(200)
            return bool(one.assignment() and other.assignment())

        wait_for(is_shared, "shared partitions")


def produce(cluster: IdentityCluster, name: str) -> None:
    cluster.produce(name, enable_idempotence=False)
    cluster.produce(name)
    for _ in range(COMMITS):
        cluster.produce(name, transactional_id=name)
    cluster.append_to_a_recreated_table(name)


def write_streams(cluster: IdentityCluster, name: str) -> None:
    produce(cluster, name)
    for one in range(2 * COMMITS):
        cluster.write_micro_batch(name, moves=one == 0)


def audit(cluster: IdentityCluster, name: str) -> None:
    succeed(
        cluster,
        name,
        "audit",
        "status",
        "topics describe",
        "brokers list",
        "consumer-groups list",
        f"get-offsets {TOPIC}",
        "log-dirs --describe",
    )
    tables = (
        "brokers controller topics partition_state leadership_history partition_history "
        "controller_history producer_ids stream_writes consumer_groups consumer_group_heartbeats "
        "consumer_offsets scrubs repairs configs high_watermark_checkpoint leader_epoch_checkpoint "
        "delayed_operations producer_state produce_requests cleaner_offset_checkpoint truncations "
        "replica_history refusals high_watermark_history batches leader_imbalance isr_history "
        "elections config_history group_history replica_progress lag"
    )
    counts = ", ".join(f"(select count(*) from {table})" for table in tables.split())
    assert command(cluster, name, "query", f"select {counts}").exit_code == 0


def administrate(cluster: IdentityCluster, name: str) -> None:
    group = f"{name}-group"
    new = "--partitions 1 --replication-factor 3"
    succeed(cluster, name, f"topics create other {new}")
    deleted = cluster.folder / "records.json"
    deleted.write_text(json.dumps({"partitions": [{"topic": TOPIC, "partition": 0, "offset": 1}]}))
    settings = {
        "--entity-type topics --entity-name other": "retention.ms",
        "--entity-type brokers --entity-default": "log.retention.ms",
        "--entity-type clients --entity-default": "consumer_byte_rate",
    }
    for number in range(COMMITS):
        succeed(cluster, name, f"topics create other-{number} {new}")
        changes = [
            f"configs alter {entity} --add-config {key}={(number + 1) * 10**9}"
            for entity, key in settings.items()
        ]
        reset = f"consumer-groups reset-offsets {group} --topic {TOPIC}:0 --to-offset {number}"
        succeed(cluster, name, *changes, f"{reset} --execute", f"topics delete other-{number}")
    succeed(
        cluster,
        name,
        "topics alter other --partitions 2",
        f"consumer-groups describe {group}",
        f"consumer-groups delete {group}",
        *(f"consumer-groups delete {of}-{one}" for of in ("dynamic", "static") for one in range(3)),
        f"get-offsets {TOPIC}",
        "log-dirs --describe",
        f"delete-records --offset-json-file {deleted}",
        "elect-leaders --election-type preferred --all-topic-partitions",
        "topics delete other",
    )


def operate(cluster: IdentityCluster, name: str) -> None:
    """Verify, repair and clean up a running cluster, with findings for the operator and brokers."""
    cluster.store.age(_LONGER_THAN_HISTORY_S)
    succeed(cluster, name, "maintain", "features", "upgrade")
    damaged = cluster.lose_a_file(broker_id=2), cluster.damage_a_checkpoint(broker_id=2)
    assert command(cluster, name, "scrub").exit_code == 1
    succeed(cluster, name, "repair")
    assert all(one.location.exists(one.path) for one in damaged)
    cluster.suspect_a_replica(name, broker_id=2)
    assert command(cluster, name, "repair").exit_code == 1
    wait_for(lambda: cluster.has_no_findings(name), "outcome of the broker")
    succeed(cluster, name, "scrub")


def back_up(cluster: IdentityCluster, name: str) -> None:
    target = cluster.folder / "backup"
    succeed(cluster, name, f"backup --to {target}")


OPERATIONS: dict[Role, Callable[[IdentityCluster, str], None]] = {
    Role.CONSUMER: consume,
    Role.GROUP_MEMBER: be_a_member,
    Role.PRODUCER: produce,
    Role.STREAM_WRITER: write_streams,
    Role.AUDITOR: audit,
    Role.ADMIN: administrate,
    Role.BACKUP: back_up,
    Role.OPERATOR: operate,
}


@pytest.fixture(scope="module")
def used(cluster: IdentityCluster) -> IdentityCluster:
    """The cluster after all roles have done their operations, with a failover.

    Each broker leads a partition, so that clients use all log directories.
    """
    cluster.produce(Role.PRODUCER.value)
    cluster.kill(1)
    cluster.produce(Role.PRODUCER.value)
    cluster.start(1)
    cluster.await_in_sync()
    # Consumers read quotas only after a change.
    quota = "--entity-type clients --entity-default --add-config consumer_byte_rate=1000000000"
    succeed(cluster, Role.ADMIN.value, f"configs alter {quota}")
    cluster.elect_preferred()
    for role, operation in OPERATIONS.items():
        operation(cluster, role.value)
        delta_checkpoints.await_checkpoints()
    return cluster


def is_of(asked: Asked, action: str, pattern: str) -> bool:
    """Return whether an entry of a policy allows a request."""
    if action == "s3:ListBucket":
        return asked.prefix is not None and fnmatchcase(asked.prefix, pattern)
    return asked.prefix is None and fnmatchcase(f"arn:aws:s3:::{asked.resource}", pattern)


def test_the_policies_are_enough(used: IdentityCluster) -> None:
    """No request of any role is refused, with two exceptions by design.

    Broker 2 tries to become the controller, and files of a lost compare-and-set are left to the
    controller's vacuum.
    """
    refused = [
        one
        for one in used.store.refused()
        if not one.resource.startswith("logs/cluster/controller/")
        and not (one.action == "s3:DeleteObject" and "/part-" in one.resource)
    ]
    assert refused == []


@pytest.mark.parametrize("name", [*(role.value for role in CLIENTS), "broker-0", "broker-2"])
def test_each_part_of_a_policy_is_necessary(used: IdentityCluster, name: str) -> None:
    """The path of each grant allows a request that no other part of the policy allows.

    A path below a kind of root is necessary if one of these roots needs it. Removals of old commits
    of the cluster's tables depend on time: `test_writers_of_a_table_remove_its_old_commits`.
    """
    given = used.policies[name]
    requests = used.store.allowed(name)
    is_used: dict[tuple[str, str], bool] = {}
    for number, action, pattern in entries(given):
        mine = [one for one in requests if one.action == action and is_of(one, action, pattern)]
        less = without(given, number, pattern)
        path = re.sub(r"\bbroker-\d\b", "broker-N", pattern)
        is_used.setdefault((action, path), False)
        is_used[action, path] |= any(
            not allows(less, one.action, one.resource, one.prefix) for one in mine
        )
    superfluous = [one for one, is_needed in is_used.items() if not is_needed]
    assert [one for one in superfluous if not is_clean_up(*one)] == []


def is_clean_up(action: str, pattern: str) -> bool:
    """Return whether an entry of a policy is the removal of old commits, or of their copies, in the
    cluster root.
    """
    folders = "/cluster/.*/(_delta_log|_second_copies)/"
    return action == "s3:DeleteObject" and re.search(folders, pattern) is not None


@pytest.mark.parametrize("role", Role)
def test_writers_of_a_table_remove_its_old_commits(role: Role) -> None:
    """Any commit to a table of the cluster root may be followed by a checkpoint, and a clean-up."""

    def tables(action: Action) -> set[str]:
        return {
            path.split("/")[0]
            for one in GRANTS[role]
            for path in one.paths
            if (one.action, one.roots) == (action, Roots.CLUSTER)
        }

    assert tables(Action.REMOVE) == tables(Action.WRITE)


def put(name: str, uri: str) -> Callable[[IdentityCluster], None]:
    """Return an attempt of an identity to write a file."""

    def attempt(cluster: IdentityCluster) -> None:
        Location.of(uri, cluster.store.options(name)).put_new("forged", b"forged")

    return attempt


def operation(name: str, role: Role) -> Callable[[IdentityCluster], None]:
    """Return an attempt of an identity to do the operations of another role."""
    return lambda cluster: OPERATIONS[role](cluster, name)


def read_records(name: str) -> Callable[[IdentityCluster], None]:
    """Return an attempt of an identity to read a file of records without sparklog."""

    def attempt(cluster: IdentityCluster) -> None:
        path = Location.of(LOG_DIRS[0], cluster.store.options(name)).names("log/_inbox")[0]
        Location.of(LOG_DIRS[0], cluster.store.options(name)).read_bytes(f"log/_inbox/{path}")

    return attempt


ATTEMPTS: dict[str, Callable[[IdentityCluster], None]] = {
    "a consumer sends records": operation("consumer", Role.PRODUCER),
    "a consumer joins a group": operation("consumer", Role.GROUP_MEMBER),
    "a consumer writes a batch file": put("consumer", f"{LOG_DIRS[0]}/log/_inbox"),
    "a member sends records": operation("group-member", Role.PRODUCER),
    "a member changes a topic's table": put("group-member", f"{CLUSTER}/topics/_delta_log"),
    "a producer reads records": operation("producer", Role.CONSUMER),
    "a producer reads a batch file": read_records("producer"),
    "a producer writes to a log": put("producer", f"{LOG_DIRS[0]}/log/_delta_log"),
    "a producer writes partition states": put("producer", f"{CLUSTER}/partition_state/_delta_log"),
    "a producer writes micro-batches": operation("producer", Role.STREAM_WRITER),
    "a broker writes to another broker's log": put("broker-2", f"{LOG_DIRS[0]}/log/_delta_log"),
    "a controller writes to another broker's log": put("broker-0", f"{LOG_DIRS[1]}/log/_delta_log"),
    "a broker takes the lease": put("broker-2", f"{CLUSTER}/controller/_delta_log"),
    "a broker changes topics": put("broker-2", f"{CLUSTER}/topics/_delta_log"),
    "an auditor reads records": operation("auditor", Role.CONSUMER),
    "an auditor reads a batch file": read_records("auditor"),
    "an auditor writes to the cluster root": put("auditor", f"{CLUSTER}/topics/_delta_log"),
    "an auditor writes to a log directory": put("auditor", f"{LOG_DIRS[0]}/log/_inbox"),
    "an administrator writes to a log": put("admin", f"{LOG_DIRS[0]}/log/_delta_log"),
    "an administrator reads records": read_records("admin"),
    "a backup writes": put("backup", f"{CLUSTER}/topics/_delta_log"),
}


@pytest.mark.parametrize("name", ATTEMPTS)
def test_other_operations_are_refused(used: IdentityCluster, name: str) -> None:
    """The error is one sentence that names the operation and the path."""
    with pytest.raises(AccessDeniedError) as caught:
        ATTEMPTS[name](used)
    text = str(caught.value)
    assert text.startswith("this identity may not ")
    assert f" {caught.value.uri} (AccessDenied): grant" in text
    assert "\n" not in text


def test_a_refused_command_prints_one_line(used: IdentityCluster) -> None:
    arguments = ("topics", "create", "forged", "--partitions", "1", "--replication-factor", "3")
    refusal = command(used, Role.AUDITOR.value, *arguments).refusal
    assert refusal.startswith(f"this identity may not write {CLUSTER}/topics/")


def test_a_refusal_midway_stores_nothing_partly(used: IdentityCluster) -> None:
    """Requests without batch files, and batch files without requests, are not appended."""
    before = used.consume(Role.CONSUMER.value)
    name = Role.PRODUCER.value
    given = used.policies[name]
    parts = [
        (number, pattern)
        for number, action, pattern in entries(given)
        if action == "s3:PutObject" and ("_inbox" in pattern or "produce_requests" in pattern)
    ]
    assert len(parts) == 2 * len(LOG_DIRS)
    for number, pattern in parts[:1] + parts[-1:]:
        with used.given(name, without(given, number, pattern)), pytest.raises(AccessDeniedError):
            used.produce(name, enable_idempotence=False)
    used.produce(name)
    assert command(used, Role.OPERATOR.value, "audit", "--verify-files").exit_code == 0
    assert used.consume(Role.CONSUMER.value) >= before


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[PolicyStore]:
    """Another store with the bucket, whose operator has the operator's policy."""
    with running_policy_store(tmp_path / "store.log") as store:
        store.bucket(BUCKET)
        store.set_policy(Role.OPERATOR.value, policy(Role.OPERATOR))
        yield store


class TestAnOperator:
    """Each operation is done with the operator's policy alone, and no request is refused."""

    def run(self, store: PolicyStore, *arguments: str) -> Finished:
        """Run a command, and check that it succeeds and that no request is refused."""
        options = json.dumps(store.options(Role.OPERATOR.value))
        finished = run("--storage-options", options, *arguments)
        assert finished.exit_code == 0, finished
        assert store.refused() == []
        return finished

    def test_formats_a_cluster(self, empty: PolicyStore) -> None:
        self.run(empty, "format", "--cluster", CLUSTER)

    def test_restores_a_backup_to_where_it_was(
        self, used: IdentityCluster, empty: PolicyStore
    ) -> None:
        """The backup is that of the role `backup`; its files are verified after the restoration."""
        self.run(empty, "restore", "--from", str(used.folder / "backup"))
        self.run(empty, "audit", "--verify-files", "--cluster", CLUSTER)

    def test_upgrades_a_cluster(self, empty: PolicyStore) -> None:
        """The cluster root and the root of a broker that has parked get the newest format."""
        options = empty.options("somebody")
        earlier_cluster_root(Location.of(CLUSTER, options), ["stream_writes"])
        broker = Broker(
            0,
            Location.of(CLUSTER, options),
            [Location.of(LOG_DIRS[0], options)],
            rules=DriverRules(),
            execution=DriverExecution(),
            clock=SystemClock(),
            settings=Settings(),
            storage_options=options,
            formats=EARLIER,
        )
        broker.park()
        finished = self.run(empty, "upgrade", "--cluster", CLUSTER)
        steps = finished.printed.splitlines()
        assert f"{LOG_DIRS[0]}: set the format from 2 to 3" in steps
        assert steps[-1] == "Upgraded the cluster to format 3."
