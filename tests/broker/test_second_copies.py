"""Second copies of the files of tables in local folders: detection and repair of damage by them.

Each test is a case of `python -m tests.faults.damage` that was silent, lost something, or needed a
backup before there were copies.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sparklog.broker.checkpoints import VERIFY_INTERVAL_MS
from sparklog.broker.leading import inbox
from sparklog.cluster.connection import Connection
from sparklog.cluster.repairs import repairs_of
from sparklog.errors import DamagedError, StorageError
from sparklog.groups.committed_offsets import CommittedOffsets, OffsetAndMetadata
from sparklog.groups.group import GroupFence
from sparklog.maintenance.audit import audit
from sparklog.maintenance.repair import repair
from sparklog.maintenance.scrub import scrub
from sparklog.maintenance.table_restoration import restore_cluster_root
from sparklog.model import (
    CONSUMER_OFFSETS,
    CONTROLLER,
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_STATE,
    TOPICS,
    TableSchema,
    TopicIdPartition,
)
from sparklog.storage import request_table
from sparklog.storage.control_table import ControlTable
from sparklog.storage.delta_checkpoints import write_checkpoint
from sparklog.storage.delta_log_check import check_log
from sparklog.storage.file_copies import write_copy
from sparklog.storage.location import Location
from sparklog.storage.vacuum import Delays, vacuum_table
from sparklog.testing import LocalCluster
from tests.broker.damaging import cut, flip_byte
from tests.broker.states import check_at_rest

Start = Callable[..., LocalCluster]


def empty(file: Path) -> None:
    file.write_bytes(b"")


each_damage = pytest.mark.parametrize(
    "damage", [Path.unlink, empty, cut, flip_byte], ids=lambda one: one.__name__
)


@pytest.fixture
def three(start: Start) -> LocalCluster:
    """Three brokers in sync, and a committed record."""
    cluster = start(0, 1, 2, min_isr=2)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    return cluster


def commits(cluster: LocalCluster, table: str) -> list[Path]:
    return sorted((cluster.root / table / "_delta_log").glob("*.json"))


def live_file(cluster: LocalCluster, name: str) -> Path:
    return max((cluster.root / "cluster" / name).glob("*.parquet"), key=lambda one: one.name)


def restored(cluster: LocalCluster) -> list[str]:
    """Repair without a connection, as the command does; return the restored files."""
    return [one.path or "" for one in restore_cluster_root(cluster.location())]


@each_damage
@pytest.mark.parametrize("schema", [TOPICS, PARTITION_STATE], ids=lambda one: one.name)
@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "file"])
def test_a_table_that_every_process_needs_is_restored(
    three: LocalCluster, schema: TableSchema, damage: Callable[[Path], object], is_commit: bool
) -> None:
    """Brokers did not start and clients did not connect until a backup was restored."""
    name = schema.name
    file = commits(three, f"cluster/{name}")[-1] if is_commit else live_file(three, name)
    for broker in (0, 1, 2):
        three.crash(broker)
    damage(file)
    with pytest.raises(DamagedError) as refused:
        three.restart(0)
    assert f"cluster/{name}" in str(refused.value)
    assert "sparklog repair" in str(refused.value)
    assert restored(three) == [str(file.relative_to(three.root / "cluster" / name))]
    for broker in (0, 1, 2):
        three.restart(broker)
    three.reconnect()
    check_at_rest(three, "a")
    assert restored(three) == []


def test_a_torn_copy_of_the_cluster_root_is_written_again_and_its_finding_closed(
    three: LocalCluster,
) -> None:
    """A process had ended while it wrote the copy. `repair` called the finding unrepairable: only
    the command read the copies of the cluster root (seeds 1534 and 2453 of the simulation).
    """
    commit = commits(three, "cluster/partition_state")[-1]
    copy = three.root / "cluster" / "partition_state" / "_second_copies" / commit.name
    cut(copy)
    [found] = scrub(three.connection).findings
    assert found.fault == "damaged_copy"
    assert [one.state for one in repair(three.connection)] == ["repaired"]
    assert scrub(three.connection, restart=True).findings == []
    assert copy.read_bytes().endswith(commit.read_bytes())


def test_a_first_commit_in_the_place_of_a_later_one_is_damage(three: LocalCluster) -> None:
    """delta-rs writes no checksum into the commit that creates a table. In the place of the newest
    commit of `topics` it was taken for that one: all topics were gone, and brokers started.
    """
    first, *_, newest = commits(three, "cluster/topics")
    newest.write_bytes(first.read_bytes())
    with pytest.raises(DamagedError, match="cluster/topics"):
        Connection(str(three.root / "cluster")).metadata()
    assert len(restored(three)) == 1
    assert Connection(str(three.root / "cluster")).metadata().topic("t").topic == "t"


def test_a_commit_in_the_place_of_another_ones_is_damage(three: LocalCluster) -> None:
    """Its checksum is right, so the commit of an earlier version, or of another table, counted."""
    newest = commits(three, "cluster/partition_state")[-1]
    for other in (
        commits(three, "cluster/partition_state")[-2],
        commits(three, "cluster/brokers")[-1],
    ):
        written = newest.read_bytes()
        newest.write_bytes(other.read_bytes())
        with pytest.raises(DamagedError, match="another commit"):
            ControlTable(three.location(), PARTITION_STATE)
        newest.write_bytes(written)


def test_a_file_in_the_place_of_an_older_one_is_damage(three: LocalCluster) -> None:
    """An older state of `controller` was read as the newest one: its pages have checksums of their
    own. A file of another table was read as rows of nulls.
    """
    three.crash(0)
    three.fence(0)
    newest = live_file(three, "controller")
    others = [*(three.root / "cluster" / "controller").glob("*.parquet")]
    older = min(others, key=lambda one: one.name)
    for other in (older, live_file(three, "topics")):
        assert other != newest
        newest.write_bytes(other.read_bytes())
        with pytest.raises(DamagedError, match="the checksum in its name"):
            ControlTable(three.location(), CONTROLLER).rows()
    assert len(restored(three)) == 1
    assert ControlTable(three.location(), CONTROLLER).rows().num_rows == 1


def test_a_lost_newest_commit_does_not_set_a_group_back(three: LocalCluster) -> None:
    """Without the newest commit a table is a sound table of the version before: the offset that a
    consumer had committed was gone without a word.
    """
    key = TopicIdPartition(three.connection.metadata().topic("t").topic_id, 0)

    def offsets() -> CommittedOffsets:
        connection = Connection(str(three.root / "cluster"))
        return CommittedOffsets(connection.root.consumer_offsets, three.clock)

    for offset in (1, 2):
        committed = {key: ("t", OffsetAndMetadata(offset, "", 0))}
        offsets().commit("g", GroupFence(1, 1), committed)
    writer = offsets()
    writer.fetch("g")
    commits(three, "cluster/consumer_offsets")[-1].unlink()
    with pytest.raises(DamagedError, match="second copy is there"):
        offsets().fetch("g")
    assert [one.fault for one in scrub(three.connection).findings] == ["missing_commit"]
    assert len(restored(three)) == 1
    assert offsets().fetch("g")[key].offset == 2
    offsets().commit("g", GroupFence(1, 1), {key: ("t", OffsetAndMetadata(3, "", 0))})


def test_no_writer_takes_the_version_of_a_lost_commit(three: LocalCluster) -> None:
    """Then its copy would be replaced, and nothing would show that it had been there."""
    table = ControlTable(three.location(), CONSUMER_OFFSETS)
    rows = table.rows()
    table.compare_and_set(rows)
    opened = ControlTable(three.location(), CONSUMER_OFFSETS)
    opened.compare_and_set(rows)
    commits(three, "cluster/consumer_offsets")[-1].unlink()
    with pytest.raises(StorageError):
        table.compare_and_set(rows)
    assert len(restored(three)) == 1


@each_damage
def test_a_stopped_brokers_journal_is_restored(
    three: LocalCluster, damage: Callable[[Path], object]
) -> None:
    """The broker did not start until the commit was restored, or its root was emptied."""
    three.crash(1)
    damage(commits(three, "broker-1/log")[-2])
    assert [one.table_name for one in scrub(three.connection).findings] == ["log"]
    assert {one.state for one in repair(three.connection)} == {"repaired"}
    three.restart(1)
    assert three.partition("t", 0).isr == [0, 1, 2]
    check_at_rest(three, "a")
    assert scrub(three.connection).findings == []


@pytest.mark.parametrize("other", ["broker-1/log", "broker-1/producer_state", "broker-0/log"])
def test_a_misplaced_commit_of_a_journal_is_damage(three: LocalCluster, other: str) -> None:
    """A log accepts a commit whose headers are damaged, in order to report them. It accepted a
    sound commit in another one's place as well, and the broker's start ended with an IndexError.

    A commit of the same version in another broker's log differs by the id of its table alone.
    """
    three.crash(1)
    damaged = commits(three, "broker-1/log")[-3]
    same = three.root / other / "_delta_log" / damaged.name
    is_same_version = other == "broker-0/log"
    damaged.write_bytes((same if is_same_version else commits(three, other)[-1]).read_bytes())
    fault = "it is of the table with id" if is_same_version else "another commit"
    with pytest.raises(DamagedError, match=fault):
        three.restart(1)
    assert "log" in {one.table_name for one in scrub(three.connection).findings}
    repair(three.connection)
    three.restart(1)
    check_at_rest(three, "a")


@each_damage
def test_a_checkpoint_without_its_commits_is_restored(
    three: LocalCluster, damage: Callable[[Path], object]
) -> None:
    """After clean-up the checkpoint is all that there is."""
    write_checkpoint(three.location().child("topics"))
    for commit in commits(three, "cluster/topics")[:-1]:
        commit.unlink()
    [checkpoint] = (three.root / "cluster" / "topics" / "_delta_log").glob("*.checkpoint.parquet")
    damage(checkpoint)
    assert restored(three) == [f"_delta_log/{checkpoint.name}"]
    assert Connection(str(three.root / "cluster")).metadata().topic("t").topic == "t"


@each_damage
def test_a_damaged_copy_is_written_again(
    three: LocalCluster, damage: Callable[[Path], object]
) -> None:
    """The original is not touched. A copy that is missing is written without a finding."""
    copies = sorted((three.root / "cluster" / "topics" / "_second_copies").iterdir())
    written = copies[-1].read_bytes()
    damage(copies[-1])
    found = [one.fault for one in scrub(three.connection).findings]
    assert found == ([] if damage is Path.unlink else ["damaged_copy"])
    assert len(restored(three)) == len(found)
    assert copies[-1].read_bytes() == written
    assert scrub(three.connection, restart=True).findings == []


def test_a_copy_of_another_tables_file_restores_nothing(three: LocalCluster) -> None:
    """A copy names its table and its path, so it is not taken for that of another file."""
    topics = three.root / "cluster" / "topics"
    newest = commits(three, "cluster/topics")[-1]
    written = newest.read_bytes()
    other = three.root / "cluster" / "partition_state" / "_second_copies" / newest.name
    (topics / "_second_copies" / newest.name).write_bytes(other.read_bytes())
    assert [one.fault for one in scrub(three.connection).findings] == ["damaged_copy"]
    assert restored(three) == [f"_second_copies/{newest.name}"]
    assert newest.read_bytes() == written


def test_copies_go_with_their_originals(three: LocalCluster) -> None:
    """A table has copies of what opening it needs, and no vacuum removes these."""
    table = three.location().child("partition_state")
    folder = three.root / "cluster" / "partition_state" / "_second_copies"
    three.crash(2)
    three.fence(2)
    live = ControlTable(three.location(), PARTITION_STATE)._files
    assert {one.name for one in folder.glob("part-*")} == set(live)
    write_checkpoint(table)
    versions = {one.name[:20] for one in folder.glob("[0-9]*")}
    assert versions == {commits(three, "cluster/partition_state")[-1].name[:20]}
    before = sorted(folder.iterdir())
    vacuum_table(Location.of(table.uri), Delays(0, 0), 1 << 50)
    assert sorted(folder.iterdir()) == before


def test_a_request_table_is_opened_again_by_its_running_broker(three: LocalCluster) -> None:
    """The broker had the table in memory, so only new producers met the damage until a restart."""
    damaged, other = (
        commits(three, f"broker-0/{name}") for name in ("produce_requests", "delayed_operations")
    )
    damaged[0].write_bytes(other[0].read_bytes())
    assert [one.table_name for one in scrub(three.connection).findings] == ["produce_requests"]
    assert [one.state for one in repair(three.connection)] == ["requested"]
    three.tick_until_idle()
    assert scrub(three.connection, restart=True).findings == []
    three.reconnect()
    three.produce("t", 0, [b"b"])
    check_at_rest(three, "a", "b")


@pytest.mark.parametrize("number", [1, -1], ids=["older", "newest"])
def test_a_commit_of_another_brokers_request_table_is_mended(
    three: LocalCluster, number: int
) -> None:
    """The table could be opened, so the broker that was asked to repair it did nothing, and each
    scrub found the commit again.
    """
    for value in (b"b", b"c"):
        three.produce("t", 0, [value])
        three.tick_until_idle()
    own, others = (commits(three, f"broker-{one}/produce_requests") for one in (0, 1))
    own[number].write_bytes(others[0].read_bytes())
    [found] = scrub(three.connection).findings
    assert (found.fault, found.table_name) == ("damaged_commit", "produce_requests")
    assert [one.state for one in repair(three.connection)] == ["requested"]
    three.tick_until_idle()
    assert scrub(three.connection, restart=True).findings == []
    assert repair(three.connection) == []
    three.reconnect()
    three.produce("t", 0, [b"d"])
    check_at_rest(three, "a", "b", "c", "d")


@pytest.mark.parametrize("damage", [empty, cut, flip_byte], ids=lambda one: one.__name__)
def test_a_running_broker_opens_its_request_tables_as_new_producers_do(
    three: LocalCluster, damage: Callable[[Path], None]
) -> None:
    """The first commit of `produce_requests` was damaged, and new producers were refused until
    `sparklog repair`, though nothing else was wrong.
    """
    damage(commits(three, "broker-0/produce_requests")[0])
    three.clock.advance(VERIFY_INTERVAL_MS)
    three.tick_until_idle()
    assert scrub(three.connection).findings == []
    three.reconnect()
    three.produce("t", 0, [b"b"])
    check_at_rest(three, "a", "b")


def test_requests_in_a_recreated_request_table_do_not_count_as_taken(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The positions of the requests that were there before are of another table: it is verified,
    and recreated, before the requests of a tick are read.
    """
    monkeypatch.setattr(inbox, "VERIFY_INTERVAL_MS", 0)
    cluster = start(0, 1, 2, min_isr=2)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    waiting = [cluster.produce("t", 0, [b"%d" % number]) for number in range(5)]
    empty(commits(cluster, "broker-0/produce_requests")[0])
    cluster.tick_until_idle()
    cluster.reconnect()
    sent = cluster.produce("t", 0, [b"b"])
    cluster.tick_until_idle()
    assert sent.response is not None
    kept = [f"{number}" for number, one in enumerate(waiting) if one.response is not None]
    check_at_rest(cluster, "a", *kept, "b")


def test_a_request_table_that_cannot_be_verified_is_left_alone(
    three: LocalCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The check found nothing out, so the table is as it was, and requests are answered."""

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "read failed on request")

    first = commits(three, "broker-0/produce_requests")[0]
    content = first.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(request_table, "live_requests", fail)
        three.clock.advance(VERIFY_INTERVAL_MS)
        three.produce("t", 0, [b"b"])
        three.tick_until_idle()
    assert caplog.text.count("request table not verified") == len(three.brokers)
    assert first.read_bytes() == content
    check_at_rest(three, "a", "b")


def test_tables_that_their_owner_writes_again_have_no_copies(three: LocalCluster) -> None:
    """They are written every few seconds, and rebuilt from the journal."""
    for name in ("high_watermark_checkpoint", "delayed_operations", "produce_requests"):
        assert not (three.root / "broker-0" / name / "_second_copies").exists()


def checkpoint(cluster: LocalCluster, table: str) -> Path:
    """Write Delta's checkpoint of a table, and return its file."""
    write_checkpoint(Location.of(str(cluster.root / table)))
    return max((cluster.root / table / "_delta_log").glob("*.checkpoint.parquet"))


def test_a_checkpoint_of_another_table_is_damage_of_one_log(three: LocalCluster) -> None:
    """It can be read, so a KeyError ended the ticks of the brokers that follow the log, the audit
    and the scrub.
    """
    damaged = checkpoint(three, "broker-1/log")
    damaged.write_bytes(checkpoint(three, "cluster/partition_state").read_bytes())
    three.crash(1)
    copy = three.root / "broker-1" / "log" / "_second_copies" / damaged.name
    sound = copy.read_bytes()
    copy.unlink()
    with pytest.raises(DamagedError, match=r"broker-1/log.* of the table with id"):
        three.restart(1)
    copy.write_bytes(sound)
    with pytest.raises(DamagedError, match="it differs from its second copy"):
        three.restart(1)
    three.reconnect()
    three.crash(0)
    three.restart(0)
    three.tick_until_idle()
    assert [one.rule for one in audit(three.connection)] == ["1.5"]
    assert [one.path for one in scrub(three.connection).findings] == [f"_delta_log/{damaged.name}"]
    assert {one.state for one in repair(three.connection)} == {"repaired"}
    three.restart(1)
    three.produce("t", 0, [b"b"])
    check_at_rest(three, "a", "b")


def test_a_hint_that_names_no_checkpoint_does_not_keep_repairs_from_their_table(
    three: LocalCluster,
) -> None:
    """The table `repairs` could not be opened, so its own repair was refused."""
    hint = three.root / "cluster" / "repairs" / "_delta_log" / "_last_checkpoint"
    hint.write_text('{"version": 24, "size": 1}')
    with pytest.raises(DamagedError, match="it names checkpoint 24, which is missing"):
        repairs_of(Connection(three.connection.cluster).root)
    [found] = restore_cluster_root(three.location(), is_dry_run=True)
    assert (found.table_name, found.state) == ("repairs", "found")
    [found] = repair(Connection(three.connection.cluster))
    assert (found.table_name, found.state) == ("repairs", "repaired")
    assert not hint.exists()
    assert repair(Connection(three.connection.cluster)) == []


def test_a_checkpoint_table_is_written_again_though_delta_reads_over_its_damage(
    three: LocalCluster,
) -> None:
    """The table could be opened, so the broker that was asked to write it again did nothing."""
    root = Location.of(str(three.root / "broker-1"))
    table = root.child("leader_epoch_checkpoint")
    file = checkpoint(three, "broker-1/leader_epoch_checkpoint")
    for one in file.parent.glob("*.json"):
        one.unlink()
    sound = file.read_bytes()
    for position in range(len(sound)):
        file.write_bytes(sound[:position] + bytes([sound[position] ^ 1]) + sound[position + 1 :])
        if check_log(table).damaged and is_opened(root):
            break
    found = [one.path for one in scrub(three.connection).findings]
    assert f"_delta_log/{file.name}" in found
    assert {one.state for one in repair(three.connection)} == {"requested"}
    three.tick_until_idle()
    assert scrub(three.connection, restart=True).findings == []
    three.crash(1)
    three.restart(1)
    check_at_rest(three, "a")


def test_another_brokers_commit_of_a_checkpoint_table_is_damage(three: LocalCluster) -> None:
    """It has the same table name and version, and this table has no copies. The running broker kept
    its rows, and readers of the table had those of both brokers.
    """
    damaged = commits(three, "broker-1/leader_epoch_checkpoint")[-1]
    other = three.root / "broker-0" / "leader_epoch_checkpoint" / "_delta_log" / damaged.name
    damaged.write_bytes(other.read_bytes())
    assert [one.path for one in scrub(three.connection).findings] == [f"_delta_log/{damaged.name}"]
    with pytest.raises(DamagedError, match="it is of the table with id"):
        ControlTable(Location.of(str(three.root / "broker-1")), LEADER_EPOCH_CHECKPOINT)
    three.clock.advance(VERIFY_INTERVAL_MS)
    three.tick_until_idle()
    assert scrub(three.connection, restart=True).findings == []
    check_at_rest(three, "a")


def is_opened(root: Location) -> bool:
    """Whether the checkpoint of leader epochs can be read, as its broker verifies it."""
    try:
        ControlTable(root, LEADER_EPOCH_CHECKPOINT).verify()
    except StorageError:
        return False
    return True


def replaced_checkpoint(cluster: LocalCluster, table: str, content: bytes) -> Path:
    """Write a checkpoint, remove the commits before it, and give it another content."""
    damaged = checkpoint(cluster, table)
    for commit in commits(cluster, table):
        if commit.name[:20] < damaged.name[:20]:
            commit.unlink()
    damaged.write_bytes(content)
    return damaged


def test_the_checkpoint_of_another_brokers_log_is_damage(three: LocalCluster) -> None:
    """It has the same columns, so the broker started as one with a replaced log directory. After
    the repair its log had batches of both, and copies of either.
    """
    three.crash(1)
    damaged = replaced_checkpoint(
        three, "broker-1/log", checkpoint(three, "broker-0/log").read_bytes()
    )
    with pytest.raises(DamagedError, match="it differs from its second copy") as refused:
        three.restart(1)
    assert refused.value.path == str(damaged)
    three.tick_until_idle()
    assert f"_delta_log/{damaged.name}" in {one.path for one in scrub(three.connection).findings}
    assert "repaired" in {one.state for one in repair(three.connection)}
    three.restart(1)
    three.produce("t", 0, [b"b"])
    check_at_rest(three, "a", "b")
    assert scrub(three.connection, restart=True).findings == []


def test_an_older_state_in_the_newest_checkpoint_is_damage(three: LocalCluster) -> None:
    """The topics that were created in between were gone, and no reader noticed it."""
    older = checkpoint(three, "cluster/topics").read_bytes()
    three.create_topic("later")
    damaged = replaced_checkpoint(three, "cluster/topics", older)
    with pytest.raises(DamagedError, match="it differs from its second copy"):
        Connection(str(three.root / "cluster"))
    assert restored(three) == [f"_delta_log/{damaged.name}"]
    assert Connection(str(three.root / "cluster")).metadata().topic("later").topic == "later"


def test_no_checkpoint_is_written_from_a_damaged_one(three: LocalCluster) -> None:
    """Delta makes it from the last one and the commits after that: the damage was then the table's
    state, and its copies were removed.
    """
    older = checkpoint(three, "cluster/topics").read_bytes()
    three.create_topic("later")
    damaged = replaced_checkpoint(three, "cluster/topics", older)
    three.create_topic("latest")
    with pytest.raises(DamagedError, match="it differs from its second copy"):
        write_checkpoint(three.location().child("topics"))
    assert restored(three) == [f"_delta_log/{damaged.name}"]
    assert checkpoint(three, "cluster/topics").name > damaged.name
    assert Connection(str(three.root / "cluster")).metadata().topic("later").topic == "later"


def test_a_checkpoint_that_was_written_twice_is_sound(three: LocalCluster) -> None:
    """The process that wrote it again may have ended before it wrote the copy."""
    file = checkpoint(three, "cluster/topics")
    actions = pq.read_table(file)
    pq.write_table(actions.take([*range(len(actions))][::-1]), file)
    assert Connection(str(three.root / "cluster")).metadata().topic("t").topic == "t"


def test_a_copy_of_another_tables_checkpoint_makes_no_damage(three: LocalCluster) -> None:
    """Most copies of the table have its id, and this one has another."""
    file = checkpoint(three, "cluster/topics")
    three.create_topic("later")
    copy = three.root / "cluster" / "topics" / "_second_copies" / file.name
    write_copy(
        three.location().child("topics"),
        "another table",
        f"_delta_log/{file.name}",
        checkpoint(three, "cluster/brokers").read_bytes(),
    )
    assert b"another table" in copy.read_bytes()
    assert Connection(str(three.root / "cluster")).metadata().topic("later").topic == "later"
    assert restored(three) == [f"_second_copies/{file.name}"]
