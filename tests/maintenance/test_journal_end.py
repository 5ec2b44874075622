"""The journal of a stopped broker is ended before damage for which there is no second copy.

On object stores `log` is without copies, and so is a local folder with `sync: "false"`. The broker
could not start, and `sparklog repair` left it to an operator with a bucket of versions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias
from uuid import uuid4

import pytest

from benchmarks.s3_store import Store
from sparklog.broker.checkpoints import CheckpointWriter
from sparklog.cluster.repairs import Repair
from sparklog.errors import StorageError
from sparklog.maintenance.audit import audit
from sparklog.maintenance.journal_end import SET_ASIDE
from sparklog.maintenance.repair import repair
from sparklog.maintenance.scrub import scrub
from sparklog.model import TopicPartition
from sparklog.producer.produce_requests import PendingProduce
from sparklog.storage.delta_checkpoints import await_checkpoints, write_checkpoint
from sparklog.storage.delta_log_files import LOG_FOLDER, commit_path, newest_version
from sparklog.storage.journal import Journal
from sparklog.storage.location import Location, StorageOptions
from sparklog.testing import LocalCluster

Place: TypeAlias = "tuple[str, StorageOptions]"

_TWO = {0: [0, 1], 1: [1, 0]}

DAMAGED = 1
"""The broker whose journal is damaged. It follows in one partition and leads the other one."""


@pytest.fixture(params=["folder", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path, store: Store) -> Place:
    """A place without second copies of `log`."""
    if request.param == "store":
        return store.bucket(f"ended-{uuid4().hex[:8]}"), store.options()
    return str(tmp_path), {str(tmp_path): {"sync": "false"}}


@pytest.fixture
def cluster(place: Place) -> LocalCluster:
    return started(place, {"t": _TWO})


def started(place: Place, topics: dict[str, dict[int, list[int]]]) -> LocalCluster:
    """Start two brokers with these topics, and a few records in the two partitions of `t`."""
    uri, options = place
    cluster = LocalCluster(uri, [0, 1], storage_options=options)
    for topic, assignment in topics.items():
        cluster.create_topic(topic, assignment=assignment)
    for number in range(4):
        produce(cluster, number)
    return cluster


def until(cluster: LocalCluster, fact: Callable[[], bool]) -> None:
    """Let time pass until a fact holds: on a store some work is done by threads beside ticks."""
    for _ in range(60):
        if fact():
            return
        cluster.clock.advance(1_000)
        cluster.tick_until_idle()
    raise AssertionError("the fact does not hold after a minute")


def is_answered(sent: PendingProduce) -> bool:
    return bool(sent.poll())


def produce(cluster: LocalCluster, number: int) -> None:
    for partition in (0, 1):
        store_record(cluster, "t", partition, b"%d" % number)


def store_record(cluster: LocalCluster, topic: str, partition: int, value: bytes) -> None:
    """Store a record; a broker refuses it that does not know yet that it leads."""
    errors: list[str] = []
    while not errors or errors[-1] == "NOT_LEADER_OR_FOLLOWER":
        sent = cluster.produce(topic, partition, [value])
        until(cluster, partial(is_answered, sent))
        errors += [one.error for one in sent.found().values()]
        assert len(errors) < 10
    assert errors[-1] == "NONE"


def stop(cluster: LocalCluster) -> Location:
    """Kill the broker and have it fenced; return its log."""
    cluster.crash(DAMAGED)
    cluster.fence(DAMAGED)
    cluster.tick_until_idle()
    await_checkpoints()
    return cluster.location(DAMAGED).child("log")


def repaired(cluster: LocalCluster) -> list[Repair]:
    assert scrub(cluster.connection, clock=cluster.clock, restart=True).findings != []
    return repair(cluster.connection, clock=cluster.clock)


def values(cluster: LocalCluster, topic: str, partition: int) -> list[bytes | None]:
    return [record.value for record in cluster.consume(topic, partition)]


def in_sync(cluster: LocalCluster) -> bool:
    state = cluster.connection.metadata()
    return all(sorted(state.partition("t", partition).isr) == [0, 1] for partition in (0, 1))


def check_sound(cluster: LocalCluster, records: int) -> None:
    """The broker starts, is refilled, and leads with all records."""
    cluster.restart(DAMAGED)
    until(cluster, lambda: in_sync(cluster))
    assert audit(cluster.connection) == []
    assert scrub(cluster.connection, clock=cluster.clock, restart=True).findings == []
    cluster.elect_leaders("preferred", [TopicPartition("t", 0), TopicPartition("t", 1)])
    produce(cluster, records)
    expected = [[b"%d" % one for one in range(records + 1)]] * 2
    until(cluster, lambda: [values(cluster, "t", of) for of in (0, 1)] == expected)
    until(cluster, lambda: in_sync(cluster))


def empty(log: Location, path: str) -> None:
    log.replace(path, b"")


each_damage = pytest.mark.parametrize("damage", [Location.remove, empty], ids=["gone", "empty"])


@each_damage
@pytest.mark.parametrize("where", ["first", "middle", "newest"])
def test_a_damaged_commit(
    cluster: LocalCluster, where: str, damage: Callable[[Location, str], None]
) -> None:
    """The commits before the damage stay, the rest is set aside, and the broker is refilled."""
    log = stop(cluster)
    newest = newest_version(log)
    version = {"first": 0, "middle": newest // 2, "newest": newest}[where]
    damage(log, commit_path(version))
    if (where, damage) == ("newest", Location.remove):
        # A sound, older journal: the versions that others have seen show that it is not the newest.
        check_sound(cluster, 4)
        return
    [outcome] = repaired(cluster)
    assert outcome.state == "repaired", outcome
    assert f"the journal ends before the damage, at version {version - 1}" in str(outcome.outcome)
    kept = [f"{number:020}.json" for number in range(version)]
    assert [one for one in log.names(LOG_FOLDER) if one.endswith(".json")] == (
        kept or [f"{0:020}.json"]
    )
    aside = [name.rpartition(".")[0] for name in log.names(SET_ASIDE)]
    there = list(range(version, newest + 1))
    if damage is Location.remove:
        there.remove(version)
    assert aside == [f"{number:020}.json" for number in there]
    check_sound(cluster, 4)


def end_before_described(cluster: LocalCluster, where: str) -> None:
    """Let a repair end the broker's journal before the version that its checkpoints describe."""
    root = cluster.location(DAMAGED)
    before = newest_version(root.child("log"))
    until(cluster, lambda: Journal(root).described_version >= before)
    log = stop(cluster)
    empty(log, commit_path(0 if where == "first" else before // 2))
    assert {one.state for one in repaired(cluster)} == {"repaired"}


@pytest.mark.parametrize("where", ["first", "middle"])
def test_checkpoints_that_describe_lost_commits(cluster: LocalCluster, where: str) -> None:
    """A starting broker replaces them, and the rows in them, before it does anything else.

    The broker's next commits had versions that the tables described, so readers that opened the
    journal ignored the changes in them; and until the first tick the rows named a longer log.
    """
    root = cluster.location(DAMAGED)
    end_before_described(cluster, where)
    reader = Journal(root)
    assert reader.described_version > reader.version
    cluster.restart(DAMAGED)
    reader.refresh()
    opened = Journal(root)
    assert opened.described_version < opened.version
    assert (opened.rows, opened.epochs) == (reader.rows, reader.epochs)
    for key, row in opened.rows.items():
        assert row["log_end_offset"] == opened.log_end_offset(key) < 4
        assert row["high_watermark"] <= row["log_end_offset"]
    assert audit(cluster.connection) == []
    cluster.crash(DAMAGED)
    check_sound(cluster, 4)


@pytest.mark.parametrize(
    ("of", "method"),
    [(CheckpointWriter, "_write"), (Journal, "commit_step")],
    ids=["tables", "rows"],
)
def test_a_start_that_fails_while_it_replaces_them_is_repeated(
    cluster: LocalCluster, of: type[object], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start finds the same tables, or tables of the journal's version and old rows."""
    root = cluster.location(DAMAGED)
    end_before_described(cluster, "middle")

    def fail(*_: object, **__: object) -> None:
        raise OSError("the store is away")

    with monkeypatch.context() as away:
        away.setattr(of, method, fail)
        with pytest.raises(OSError, match="the store is away"):
            cluster.restart(DAMAGED)
    opened = Journal(root)
    assert (opened.described_version > opened.version) == (of is CheckpointWriter)
    check_sound(cluster, 4)


@each_damage
def test_a_damaged_checkpoint_before_which_everything_was_cleaned_up(
    cluster: LocalCluster, damage: Callable[[Location, str], None]
) -> None:
    """The journal begins again: the broker starts as with a new disk."""
    log = stop(cluster)
    write_checkpoint(log)
    newest = newest_version(log)
    log.remove_all([commit_path(number) for number in range(newest)])
    damage(log, f"{LOG_FOLDER}/{newest:020}.checkpoint.parquet")
    outcomes = repaired(cluster)
    assert {one.state for one in outcomes} == {"repaired"}, outcomes
    assert newest_version(log) == 0
    check_sound(cluster, 4)


def test_a_partition_without_another_running_replica_in_sync_is_not_given_up(place: Place) -> None:
    """An operator may have the commit elsewhere; nothing is removed before."""
    cluster = started(place, {"t": _TWO, "alone": {0: [DAMAGED]}})
    store_record(cluster, "alone", 0, b"only here")
    log = stop(cluster)
    path = commit_path(newest_version(log) // 2)
    content = log.read_bytes(path)
    log.remove(path)
    before = log.names(LOG_FOLDER)
    [outcome] = repaired(cluster)
    assert outcome.state == "unrepairable"
    assert "may be the only one with the records of alone-0: start" in str(outcome.outcome)
    assert path in str(outcome.outcome)
    assert log.names(LOG_FOLDER) == before
    log.replace(path, content)
    check_sound(cluster, 4)
    until(cluster, lambda: values(cluster, "alone", 0) == [b"only here"])


@pytest.mark.parametrize(
    ("where", "effects"), [("first commit", 2), ("middle commit", 4), ("checkpoint", 3)]
)
def test_a_repair_that_ends_in_between_is_completed_by_the_next_one(
    cluster: LocalCluster, where: str, effects: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are removed from the newest on, so what is left is damaged at the same place."""
    log = stop(cluster)
    newest = newest_version(log)
    if where == "checkpoint":
        write_checkpoint(log)
        log.remove_all([commit_path(number) for number in range(newest - 3)])
        empty(log, f"{LOG_FOLDER}/{newest:020}.checkpoint.parquet")
    else:
        empty(log, commit_path(0 if where == "first commit" else newest // 2))
    remove, replace = Location.remove_durably, Location.replace
    done: list[str] = []

    def count(path: str) -> None:
        if len(done) == effects:
            raise OSError("the store is away")
        done.append(path)

    def remove_or_fail(location: Location, path: str) -> None:
        count(path)
        remove(location, path)

    def replace_or_fail(location: Location, path: str, content: bytes) -> None:
        count(path)
        replace(location, path, content)

    with monkeypatch.context() as failing:
        failing.setattr(Location, "remove_durably", remove_or_fail)
        failing.setattr(Location, "replace", replace_or_fail)
        assert {one.outcome for one in repaired(cluster)} >= {"not repaired: the store is away"}
    with pytest.raises(StorageError):
        cluster.restart(DAMAGED)
    assert {one.state for one in repaired(cluster)} == {"repaired"}
    check_sound(cluster, 4)


@each_damage
@pytest.mark.parametrize("where", ["first commit", "middle commit", "checkpoint"])
def test_a_running_broker_writes_a_checkpoint_from_memory(
    cluster: LocalCluster, where: str, damage: Callable[[Location, str], None]
) -> None:
    """Any damage before its newest version is covered. Without the first commit it was not."""
    log = cluster.location(DAMAGED).child("log")
    newest = newest_version(log)
    if where == "checkpoint":
        write_checkpoint(log)
        log.remove_all([commit_path(number) for number in range(newest)])
        damage(log, f"{LOG_FOLDER}/{newest:020}.checkpoint.parquet")
    else:
        damage(log, commit_path(0 if where == "first commit" else newest // 2))
    assert {one.state for one in repaired(cluster)} == {"requested"}

    def is_mended() -> bool:
        return scrub(cluster.connection, clock=cluster.clock, restart=True).findings == []

    until(cluster, is_mended)
    cluster.crash(DAMAGED)
    check_sound(cluster, 4)


@pytest.mark.parametrize("directory", [0, 1], ids=["first directory", "second directory"])
@pytest.mark.parametrize("runs", [True, False], ids=["running", "stopped"])
def test_one_of_two_log_directories_is_mended_and_the_other_one_goes_on(
    place: Place, runs: bool, directory: int
) -> None:
    """Only the journal of the damaged directory is ended, or gets a checkpoint from memory."""
    uri, options = place
    names = ["broker-1", "second-of-1"]
    cluster = LocalCluster(uri, [0, 1], storage_options=options, log_dirs={DAMAGED: names})
    cluster.create_topic("t", assignment=_TWO)
    for number in range(4):
        produce(cluster, number)
    root = Location.of(uri, options)
    log, other = (root.child(names[one]).child("log") for one in (directory, 1 - directory))
    if not runs:
        stop(cluster)
    empty(log, commit_path(newest_version(log) // 2))
    of_other = other.names(LOG_FOLDER)
    [outcome] = repaired(cluster)
    assert outcome.root == f"{uri}/{names[directory]}"
    assert outcome.state == ("requested" if runs else "repaired"), outcome

    def is_mended() -> bool:
        return scrub(cluster.connection, clock=cluster.clock, restart=True).findings == []

    if runs:
        until(cluster, is_mended)
        cluster.crash(DAMAGED)
    else:
        assert other.names(LOG_FOLDER) == of_other
    check_sound(cluster, 4)
