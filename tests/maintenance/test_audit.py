"""The audit finds every kind of damage in the tables, and reports nothing for a healthy cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from sparklog.cluster.connection import Connection
from sparklog.maintenance import audit_reading
from sparklog.maintenance.audit import Finding, audit
from sparklog.maintenance.audit_checks import check
from sparklog.maintenance.audit_reading import read_cluster
from sparklog.model import (
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    Batch,
    TopicIdPartition,
)
from sparklog.protocol.driver_rules import DriverRules
from sparklog.protocol.rules import SparkRules
from sparklog.testing import LocalCluster
from tests.broker.damaging import change_add
from tests.cli.command_line import files_in, run
from tests.faults.bit_flips import flip_bit
from tests.maintenance.damage import (
    Row,
    batches,
    change_rows,
    commit_row,
    copy_cluster,
    replace_batches,
    rewritten,
    values_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BEYOND_THE_LEAST = (
    "t-0 broker 1: high watermark 8; the least log end offset in sync is 6, of broker {} (rule 9.7)"
)


class Case(NamedTuple):
    """A cluster after a failover and a truncation, in `folder`; broker 1 leads partition 0.

    Partition 0 has the offsets 0 to 3 in epoch 0, in two batches, and 4 to 7 in epoch 1, in two.
    """

    folder: Path
    key: TopicIdPartition

    @classmethod
    def of(cls, folder: Path) -> Case:
        connection = Connection(str(folder / "cluster"))
        return cls(folder, connection.metadata().partition("t", 0).key)

    def audit(self, **options: Any) -> list[Finding]:
        return audit(self.connection, **options)

    @property
    def connection(self) -> Connection:
        """A new connection, without anything loaded."""
        return Connection(str(self.folder / "cluster"))

    def lines(self, **options: Any) -> list[str]:
        return [str(finding) for finding in self.audit(**options)]

    def batches(self, broker_id: int) -> list[Batch]:
        return batches(self.folder, broker_id, self.key)

    def change(self, broker_id: int, change: Callable[[Row], object]) -> None:
        """Change the row of partition 0 of topic t in a broker's high-watermark checkpoint."""

        def each(rows: list[Row]) -> None:
            for row in rows:
                if (row["topic_id"], row["partition"]) == self.key:
                    change(row)

        change_rows(self.folder, broker_id, HIGH_WATERMARK_CHECKPOINT, each)


def story(folder: Path) -> LocalCluster:
    """Eight records in two epochs on three brokers; a record that only one broker had was
    truncated.
    """
    cluster = LocalCluster(folder, [0, 1, 2])
    cluster.create_topic("t", assignment={0: [0, 1, 2], 1: [2, 1, 0]})
    cluster.create_topic("empty", assignment={0: [0, 1]})
    for values in ([b"a", b"b"], [b"c", b"d"]):
        cluster.produce("t", 0, values)
        cluster.produce("t", 1, values)
        cluster.tick_until_idle()
    cluster.produce("t", 0, [b"lost"], acks=1)
    cluster.leader_tick(0)
    cluster.crash(0)
    cluster.fence(0)
    for values in ([b"e", b"f"], [b"g", b"h"]):
        cluster.produce("t", 0, values)
        cluster.tick_until_idle()
    cluster.restart(0)
    cluster.tick_until_idle()
    assert cluster.leader_epochs(0, "t", 0) == [(0, 0), (1, 4)]
    assert cluster.partition("t", 0).leader == 1
    assert cluster.partition("t", 0).isr == [0, 1, 2]
    return cluster


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a cluster after these events, which no test changes."""
    folder = tmp_path_factory.mktemp("told")
    story(folder).close()
    return folder


@pytest.fixture
def case(told: Path, tmp_path: Path) -> Case:
    """A copy of the cluster, to be damaged."""
    copy_cluster(told, tmp_path / "copy")
    return Case.of(tmp_path / "copy")


# --- healthy clusters
# -------------------------------------------------------------------------------


def test_a_cluster_after_a_failover_and_a_truncation_is_healthy(tmp_path: Path) -> None:
    """It stays healthy when it fails further, broker by broker, and while a log has an uncommitted
    tail.
    """
    cluster = story(tmp_path)
    case = Case.of(tmp_path)
    assert case.lines(verify_files=True) == []
    cluster.produce("t", 0, [b"tail"], acks=1)
    cluster.leader_tick(1)
    assert cluster.replica(1, "t", 0).log_end_offset == 9
    assert case.lines() == []
    for broker in (2, 1):
        cluster.crash(broker)
        assert case.lines() == []
        cluster.fence(broker)
        assert case.lines() == []


def test_nothing_is_wrong_while_a_partition_is_offline_and_after_an_unclean_election(
    tmp_path: Path,
) -> None:
    """Its old leader has records and a high watermark that the new one does not have."""
    cluster = LocalCluster(tmp_path, [0, 1])
    cluster.create_topic("t", assignment={0: [0, 1]})
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    cluster.crash(1)
    cluster.fence(1)
    cluster.produce("t", 0, [b"b", b"c"])
    cluster.tick_until_idle()
    cluster.crash(0)
    cluster.restart(1)
    cluster.fence(0)
    connection = Connection(str(tmp_path / "cluster"))
    assert cluster.partition("t", 0).leader is None
    assert audit(connection) == []
    cluster.elect_leaders("unclean", [("t", 0)])
    assert cluster.partition("t", 0).leader == 1
    cluster.tick_until_idle()
    assert audit(connection) == []
    cluster.restart(0)
    cluster.leader_tick(1)
    cluster.follower_tick(0, stop_after="truncate")
    assert cluster.replica(0, "t", 0).log_end_offset == 1
    assert audit(connection) == []


@pytest.mark.parametrize(
    ("role", "point"),
    [
        *(("leader", point) for point in ("epoch_entry", "log_commit", "isr_change", "checkpoint")),
        *(("follower", point) for point in ("truncate", "copy", "log_commit", "checkpoint")),
    ],
)
def test_what_a_crash_within_a_tick_leaves_behind_is_not_wrong(
    tmp_path: Path, role: str, point: str
) -> None:
    """The tick is the first one after a failover: it writes epochs, truncates, copies."""
    cluster = LocalCluster(tmp_path, [0, 1, 2])
    cluster.create_topic("t", assignment={0: [0, 1, 2]})
    cluster.produce("t", 0, [b"a", b"b"])
    cluster.tick_until_idle()
    cluster.produce("t", 0, [b"lost"], acks=1)
    cluster.leader_tick(0)
    cluster.crash(0)
    cluster.fence(0)
    connection = Connection(str(tmp_path / "cluster"))
    cluster.restart(0)
    if role == "leader":
        cluster.produce("t", 0, [b"c"])
        cluster.leader_tick(1, stop_after=point)
        with pytest.raises(Exception, match="has crashed"):
            cluster.leader_tick(1)
    else:
        cluster.leader_tick(1)
        cluster.produce("t", 0, [b"c"])
        cluster.leader_tick(1)
        cluster.follower_tick(0, stop_after=point)
        with pytest.raises(Exception, match="has crashed"):
            cluster.follower_tick(0)
    assert audit(connection) == []


def test_a_cluster_at_work_is_not_accused(tmp_path: Path) -> None:
    """Records arrive, and leaders fail and return, during the audits."""
    cluster = story(tmp_path)
    case = Case.of(tmp_path)
    ended = threading.Event()
    failures: list[Exception] = []

    def work() -> None:
        try:
            while not ended.is_set():
                leader = cluster.partition("t", 0).leader
                assert leader is not None
                cluster.produce("t", 0, [b"x", b"y"])
                cluster.tick_until_idle()
                cluster.produce("t", 0, [b"z"], acks=1)
                cluster.leader_tick(leader)
                cluster.crash(leader)
                cluster.fence(leader)
                cluster.produce("t", 0, [b"v"])
                cluster.tick_until_idle()
                cluster.restart(leader)
                cluster.tick_until_idle()
        except Exception as error:  # noqa: BLE001 - the test reports any error
            failures.append(error)

    epoch = cluster.partition("t", 0).leader_epoch
    worker = threading.Thread(target=work)
    worker.start()
    try:
        found = [finding for _ in range(12) for finding in case.audit(verify_files=True)]
    finally:
        ended.set()
        worker.join()
    assert failures == []
    assert found == []
    assert cluster.partition("t", 0).leader_epoch > epoch


@pytest.mark.parametrize(
    "events",
    [
        ("append", "append", "append", "append"),
        ("leave", "append", "join", "append"),
        ("append", "leave", "join", "append"),
        ("leave", "join", "append", "leave"),
        ("append", "append", "leave", "join"),
    ],
    ids="-".join,
)
def test_what_happens_between_two_steps_of_a_reading_is_not_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: tuple[str, ...]
) -> None:
    """Records arrive, a replica leaves and joins again; already the first pass finds nothing."""
    cluster = LocalCluster(tmp_path, [0, 1, 2])
    cluster.create_topic("t", assignment={0: [0, 1, 2]})
    cluster.tick_until_idle()

    def append() -> None:
        cluster.produce("t", 0, [b"x"])
        cluster.tick_until_idle()

    def leave() -> None:
        cluster.crash(2)
        cluster.fence(2)
        append()
        assert 2 not in cluster.partition("t", 0).isr

    def join() -> None:
        cluster.restart(2)
        append()
        assert cluster.partition("t", 0).isr == [0, 1, 2]

    waiting = [{"append": append, "leave": leave, "join": join}[event] for event in events]
    each = audit_reading._Roots.each

    def interposed(self: Any, states: Any, read: Any) -> Any:
        if waiting:
            waiting.pop(0)()
        return each(self, states, read)

    monkeypatch.setattr(audit_reading._Roots, "each", interposed)
    assert check(read_cluster(Case.of(tmp_path).connection), DriverRules()) == []
    assert waiting == []


def test_a_cluster_without_topics_is_healthy(tmp_path: Path) -> None:
    """A cluster without topics is healthy."""
    LocalCluster(tmp_path, [0])
    assert audit(Connection(str(tmp_path / "cluster"))) == []


def test_the_same_records_in_other_batches_are_the_same(case: Case) -> None:
    """Replicas with the same records in different batches are equal."""
    own = case.batches(2)
    merged = rewritten(case.folder, 2, own[:2], values_of(case.folder, 2, own[:2]))
    assert merged.record_count == 4
    replace_batches(case.folder, 2, own[:2], [merged])
    assert [one.checksum for one in case.batches(2)] != [one.checksum for one in own]
    assert case.lines(verify_files=True) == []


# --- damage ---------------------------------------------------------------------------------------


def test_a_leaders_high_watermark_beyond_an_in_sync_replicas_log_is_found(case: Case) -> None:
    """A leader's high watermark beyond an in-sync replica's log end is found."""
    [*_, last] = case.batches(2)
    replace_batches(case.folder, 2, [last])
    assert case.lines() == [
        BEYOND_THE_LEAST.format(2),
        "t-0 broker 2: high watermark 8; the log end offset is 6 (rule 1.2)",
        "t-0 broker 2: reported log end offset 8; the log end offset is 6 (rule 1.2)",
    ]


def test_a_high_watermark_beyond_what_a_follower_reported_is_found(case: Case) -> None:
    """Its log has the records, but its leader cannot know that."""
    case.change(0, lambda row: row.update(log_end_offset=6))
    assert case.lines() == [BEYOND_THE_LEAST.format(0)]


def test_a_checkpointed_high_watermark_beyond_the_log_is_found(case: Case) -> None:
    """A checkpointed high watermark beyond the log end is found."""
    case.change(2, lambda row: row.update(high_watermark=9))
    assert case.lines() == ["t-0 broker 2: high watermark 9; the log end offset is 8 (rule 1.2)"]


def test_a_log_start_offset_beyond_the_high_watermark_is_found(case: Case) -> None:
    """A log start offset beyond the high watermark is found."""
    case.change(2, lambda row: row.update(log_start_offset=4, high_watermark=3))
    assert case.lines() == ["t-0 broker 2: log start offset 4; the high watermark is 3 (rule 1.2)"]


def test_a_batch_missing_in_the_middle_is_found(case: Case) -> None:
    """A batch that is missing in the middle of a log is found."""
    own = case.batches(2)
    replace_batches(case.folder, 2, [own[1]])
    density, agreement = case.lines()
    assert density == (
        f"t-0 broker 2: batch {own[2].path} begins at 4; the log goes on at 2 (rule 9.5)"
    )
    assert agreement.startswith("t-0 broker 2: records from offset 2 on have digest ")
    assert agreement.endswith("(rule 9.2)")


def test_a_first_batch_missing_is_found(case: Case) -> None:
    """A missing first batch is found."""
    own = case.batches(2)
    replace_batches(case.folder, 2, [own[0]])
    assert case.lines()[0] == (
        f"t-0 broker 2: batch {own[1].path} begins at 2; the log goes on at 0 (rule 9.5)"
    )


def test_a_changed_header_is_found(case: Case) -> None:
    """A changed header of a batch is found."""
    path = case.batches(2)[1].path

    def change(add: dict[str, Any]) -> None:
        add["partitionValues"]["leader_epoch"] = "7"

    change_add(case.folder / "broker-2" / "log", path, change)
    found = [line for line in case.lines() if "header_checksum" in line]
    [line] = found
    assert line.startswith(f"t-0 broker 2: the header of {path} does not match")
    assert line.endswith("the headers of a log are sound (rule 9.5)")


def test_damage_that_a_broker_reports_is_found(case: Case) -> None:
    """Damage that a broker reports in its checkpoint is found."""
    case.change(1, lambda row: row.update(damage="x is damaged", damaged_offset=4))
    assert case.lines() == [
        "t-0 broker 1: it reports: x is damaged; replicas are sound (rule 10.8)"
    ]


def test_overlapping_batches_are_found(case: Case) -> None:
    """Overlapping batches are found."""
    own = case.batches(2)
    again = rewritten(case.folder, 2, own[1:2], [b"c", b"d"])
    replace_batches(case.folder, 2, [], [again])
    assert [one.rule for one in case.audit()] == ["9.5"]
    assert any("begins at 2; the log goes on at 4" in line for line in case.lines())


@pytest.mark.parametrize(
    ("entries", "lines"),
    [
        (
            [(0, 0), (1, 4), (2, 3)],
            ["leader epoch 2 starts at 3; epoch 1 before it starts at 4"],
        ),
        (
            [(0, 0), (0, 2), (1, 4)],
            ["leader epoch 0 starts at 2; epoch 0 before it starts at 0"],
        ),
        (
            [(0, 0), (1, 6)],
            ["the batch at offset 4 has leader epoch 1; the leader-epoch history has 0 there"],
        ),
        (
            [(1, 4)],
            [
                "the batch at offset 0 has leader epoch 0; the leader-epoch history has none there",
                "the batch at offset 2 has leader epoch 0; the leader-epoch history has none there",
            ],
        ),
    ],
)
def test_an_epoch_history_that_is_not_in_order_or_not_that_of_the_batches_is_found(
    case: Case, entries: list[tuple[int, int]], lines: list[str]
) -> None:
    """An epoch history that is out of order, or differs from the batches, is found."""

    def change(rows: list[Row]) -> None:
        rows[:] = [row for row in rows if (row["topic_id"], row["partition"]) != case.key]
        rows += [
            {**case.key._asdict(), "topic": "t", "epoch": epoch, "start_offset": start}
            for epoch, start in entries
        ]

    change_rows(case.folder, 2, LEADER_EPOCH_CHECKPOINT, change)
    found = [line for line in case.lines() if "(rule 9.6)" in line]
    for line in lines:
        assert f"t-0 broker 2: {line} (rule 9.6)" in found


def test_entries_that_a_crash_kept_from_being_written_are_not_missed(case: Case) -> None:
    """A follower writes them after the batches, and restores them from the log when it starts
    (7.0).
    """

    def change(rows: list[Row]) -> None:
        rows[:] = [row for row in rows if row["epoch"] != 1]

    change_rows(case.folder, 2, LEADER_EPOCH_CHECKPOINT, change)
    assert case.lines() == []


def test_a_current_leader_without_its_own_epoch_entry_is_found(case: Case) -> None:
    """A leader's missing entry of its own epoch is found."""

    def change(rows: list[Row]) -> None:
        rows[:] = [row for row in rows if row["epoch"] != 1]

    change_rows(case.folder, 1, LEADER_EPOCH_CHECKPOINT, change)
    assert set(case.lines()) == {
        f"t-0 broker 1: the batch at offset {offset} has leader epoch 1; "
        "the leader-epoch history has 0 there (rule 9.6)"
        for offset in (4, 6)
    }


def test_other_records_at_the_same_offsets_are_found(case: Case) -> None:
    """Different records at the same offsets are found."""
    own = case.batches(2)
    other = rewritten(case.folder, 2, own[2:3], [b"e", b"other"])
    replace_batches(case.folder, 2, own[2:3], [other])
    [finding] = case.audit(verify_files=True)
    assert finding[:4] == ("9.2", "t", 0, 2)
    assert finding.found.startswith("records from offset 5 on have digest ")
    assert finding.expected.startswith("those of broker 1 have ")
    assert finding.found.split()[-1] != finding.expected.split()[-1]


def test_the_same_records_in_another_epoch_are_not_the_same(case: Case) -> None:
    """Equal records with different leader epochs are a difference."""
    own = case.batches(2)
    other = rewritten(case.folder, 2, own[1:2], [b"c", b"d"])._replace(leader_epoch=1)
    replace_batches(case.folder, 2, own[1:2], [other])
    rules = [finding.rule for finding in case.audit()]
    assert sorted(set(rules)) == ["9.2", "9.6"]


def test_a_flipped_byte_in_a_batch_file_is_found_where_files_are_verified(case: Case) -> None:
    """A flipped byte in a batch file is found with --verify-files."""
    own = case.batches(2)[1]
    file = case.folder / "broker-2" / "log" / own.path
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert case.lines() == []
    [line] = case.lines(verify_files=True)
    assert line.startswith(f"t-0 broker 2: file {own.path} has checksum ")
    assert line.endswith(f"; the log has {own.checksum} (rule 3.7)")


def test_a_missing_batch_file_is_found_where_files_are_verified(case: Case) -> None:
    """A missing batch file is found with --verify-files."""
    own = case.batches(0)[0]
    (case.folder / "broker-0" / "log" / own.path).unlink()
    assert case.lines() == []
    assert case.lines(verify_files=True) == [
        f"t-0 broker 0: file {own.path} is missing; the log has {own.checksum} (rule 3.7)"
    ]


@pytest.mark.parametrize("broker_id", [1, 2], ids=["leader", "follower"])
def test_a_damaged_file_that_has_to_be_compared_is_one_finding_of_its_replica(
    case: Case, broker_id: int
) -> None:
    """A damaged file whose records have to be compared is one finding, of the replica that has it.

    The other replicas were named, each of them, where the leader's merged file was damaged.
    """
    own = case.batches(broker_id)
    merged = rewritten(case.folder, broker_id, own[:2], values_of(case.folder, broker_id, own[:2]))
    replace_batches(case.folder, broker_id, own[:2], [merged])
    file = case.folder / f"broker-{broker_id}" / "log" / merged.path
    flip_bit(file, Random(0))
    [line] = case.lines()
    assert line == (
        f"t-0 broker {broker_id}: its records cannot be compared with those of other replicas; "
        f"{file} is damaged: it does not have its checksum (rule 9.2)"
    )


def test_two_brokers_that_claim_one_leader_epoch_are_found(case: Case) -> None:
    """Two brokers that claim one leader epoch are found."""
    case.change(2, lambda row: row.update(role="leader", leader_epoch=1))
    [line] = [line for line in case.lines() if "(rule 9.4)" in line]
    assert line == "t-0 broker 1: it claims leader epoch 1; broker 2 claims the same (rule 9.4)"


def test_a_claim_to_an_epoch_that_was_never_given_is_found(case: Case) -> None:
    """A claim to an epoch that no election has given is found."""
    case.change(1, lambda row: row.update(leader_epoch=7))
    [line] = case.lines()
    assert line == (
        "t-0 broker 1: it claims leader epoch 7; the latest that was given is 1, and not to it "
        "(rule 9.4)"
    )


def test_an_in_sync_replica_that_holds_nothing_is_found(case: Case) -> None:
    """It has neither batches nor a row, as if it had never existed."""
    replace_batches(case.folder, 2, case.batches(2))
    for schema in (HIGH_WATERMARK_CHECKPOINT, LEADER_EPOCH_CHECKPOINT):
        change_rows(case.folder, 2, schema, lambda rows: rows.clear())
    [finding] = [finding for finding in case.audit() if finding.partition == 0]
    assert str(finding) == (
        "t-0 broker 1: high watermark 8; the least log end offset in sync is 0, of broker 2 "
        "(rule 9.7)"
    )


def test_a_root_that_cannot_be_read_is_named_and_the_others_are_audited(case: Case) -> None:
    """An unreadable root is reported, and the others are audited."""
    (case.folder / "broker-0").rename(case.folder / "away")
    case.change(2, lambda row: row.update(high_watermark=9))
    root, watermark = case.audit()
    assert root[:4] == ("1.5", None, None, 0)
    assert root.found == f"its root {case.folder / 'broker-0'} cannot be read"
    assert (watermark.rule, watermark.broker_id) == ("1.2", 2)


# --- the command ----------------------------------------------------------------------------------


def test_the_command_exits_with_0_where_nothing_disagrees(case: Case) -> None:
    """The command exits with 0 if there is no finding."""
    before = files_in(case.folder)
    printed = run("audit", "--verify-files", cluster=case.folder / "cluster").printed
    assert printed == "No inconsistencies found: 3 partitions.\n"
    assert files_in(case.folder) == before


def test_the_command_prints_one_line_for_what_disagrees_and_exits_with_1(case: Case) -> None:
    """The command prints one line per finding and exits with 1."""
    case.change(2, lambda row: row.update(high_watermark=9))
    case.change(0, lambda row: row.update(high_watermark=11))
    ended = run("audit", cluster=case.folder / "cluster")
    assert (ended.exit_code, ended.stderr) == (1, "")
    assert ended.stdout == (
        "t-0 broker 0: high watermark 11; the log end offset is 8 (rule 1.2)\n"
        "t-0 broker 2: high watermark 9; the log end offset is 8 (rule 1.2)\n"
    )


def test_the_command_exits_with_2_and_one_line_where_there_is_no_cluster(tmp_path: Path) -> None:
    """The command exits with 2 and one line if there is no cluster."""
    assert "there is no cluster root at" in run("audit", "--cluster", tmp_path / "none").refusal
    assert run("audit", "--engine", "flink", "--cluster", tmp_path).exit_code == 2


# --- repeated reads and engines
# ----------------------------------------------------------------------


def test_what_was_only_moving_is_not_reported(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is correct in the second pass is not a finding."""
    case.change(2, lambda row: row.update(high_watermark=9))
    runs: list[int] = []
    run_rule = DriverRules.run

    def interposed(self: DriverRules, name: str, **inputs: Any) -> list[Row]:
        result = run_rule(self, name, **inputs)
        if name == "audit_checkpoints":
            if not runs:
                commit_row(case.folder, 2, case.key, high_watermark=8)
            runs.append(len(result))
        return result

    monkeypatch.setattr(DriverRules, "run", interposed)
    assert case.lines() == []
    assert runs == [1, 0]


@pytest.fixture
def spark_queries(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the rules that Spark has run since."""
    run_rule = SparkRules.run
    names: list[str] = []

    def noted(self: SparkRules, name: str, **inputs: Any) -> list[Row]:
        names.append(name)
        return run_rule(self, name, **inputs)

    monkeypatch.setattr(SparkRules, "run", noted)
    return names


def test_high_watermarks_are_computed_again_by_a_spark_query(
    case: Case, spark: SparkSession, spark_queries: list[str]
) -> None:
    """With --engine spark the rules run as Spark queries, with the same findings."""
    by_spark = run("audit", "--engine", "spark", cluster=case.folder / "cluster")
    assert (by_spark.exit_code, by_spark.stdout) == (0, "No inconsistencies found: 3 partitions.\n")
    assert "audit_high_watermarks" in spark_queries
    replace_batches(case.folder, 2, case.batches(2)[-1:])
    found = check(read_cluster(case.connection), SparkRules(spark))
    assert found == check(read_cluster(case.connection), DriverRules())
    assert [finding.rule for finding in found] == ["9.7", "1.2", "1.2"]
