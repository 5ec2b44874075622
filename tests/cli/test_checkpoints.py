"""`sparklog checkpoints`: exports a broker's checkpoints to Kafka's files, and imports them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sparklog.broker.purgatory import Purgatory
from sparklog.broker.replicas import Replicas
from sparklog.cluster.connection import Connection
from sparklog.errors import FencedError
from sparklog.maintenance import checkpoints
from sparklog.maintenance.audit import audit
from sparklog.maintenance.checkpoint_files import read_offsets
from sparklog.model import BROKERS, HIGH_WATERMARK_CHECKPOINT
from sparklog.protocol.driver_rules import DriverRules
from sparklog.storage.commits import BROKER_EPOCH
from sparklog.storage.control_table import ControlTable
from sparklog.storage.fence import Fence
from sparklog.storage.journal import Journal, Step
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster, ManualClock
from tests.cli.command_line import Finished, files_in, run
from tests.maintenance.damage import change_rows, copy_cluster, root
from tests.storage.broker_roots import taken_over

SAMPLES = Path(__file__).parents[1] / "maintenance" / "kafka_samples"


class Case(NamedTuple):
    """A cluster whose broker 0 is fenced, and a folder to which its checkpoints were exported."""

    folder: Path
    exported: Path

    def run(self, *arguments: str | Path) -> Finished:
        return run("checkpoints", *arguments, cluster=self.folder / "cluster")

    def import_(self, broker: int = 0) -> Finished:
        return self.run("import", "--broker", str(broker), "--folder", self.exported)

    def write(self, name: str, *entries: str) -> None:
        text = "".join(f"{line}\n" for line in ("0", len(entries), *entries))
        (self.exported / name).parent.mkdir(exist_ok=True)
        (self.exported / name).write_text(text)

    def rows(self) -> dict[int, dict[str, Any]]:
        """The checkpointed rows of broker 0, by partition of topic `a`."""
        rows = Journal(root(self.folder, 0)).rows
        return {key.partition: dict(row) for key, row in rows.items()}

    def epochs(self) -> list[tuple[int, int, int]]:
        rows = Journal(root(self.folder, 0)).epoch_table().to_pylist()
        return sorted((row["partition"], row["epoch"], row["start_offset"]) for row in rows)

    def broker(self) -> dict[str, Any]:
        rows = ControlTable(Location.of(str(self.folder / "cluster")), BROKERS).rows().to_pylist()
        return next(row for row in rows if row["broker_id"] == 0)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a cluster of two brokers; broker 0 has died and is fenced."""
    folder = tmp_path_factory.mktemp("stopped")
    cluster = LocalCluster(folder, [0, 1])
    cluster.create_topic("a", assignment={0: [0, 1], 1: [1, 0]})
    cluster.create_topic("b", assignment={0: [1]})
    for partition in (0, 1):
        cluster.produce("a", partition, [b"x", b"y"])
    cluster.tick_until_idle()
    cluster.crash(0)
    cluster.fence(0)
    cluster.produce("a", 0, [b"z"])
    cluster.tick_until_idle()
    cluster.restart(0)
    cluster.tick_until_idle()
    cluster.produce("a", 0, [b"w"])
    cluster.tick_until_idle()
    cluster.crash(0)
    cluster.fence(0)
    return folder


@pytest.fixture
def case(stopped: Path, tmp_path: Path) -> Case:
    copy_cluster(stopped, tmp_path / "cluster")
    case = Case(tmp_path / "cluster", tmp_path / "exported")
    printed = case.run("export", "--broker", "0", "--folder", case.exported).printed
    assert printed == f"Exported the checkpoints of 2 replicas of broker 0 to {case.exported}.\n"
    return case


def test_a_broker_is_exported_as_a_log_directory_of_kafkas(case: Case) -> None:
    """An export has the files of a Kafka log directory."""
    assert files_in(case.exported) == {
        "replication-offset-checkpoint": b"0\n2\na 0 4\na 1 2\n",
        "recovery-point-offset-checkpoint": b"0\n2\na 0 4\na 1 2\n",
        "log-start-offset-checkpoint": b"0\n0\n",
        "a-0/leader-epoch-checkpoint": b"0\n2\n0 0\n1 2\n",
        "a-1/leader-epoch-checkpoint": b"0\n1\n0 0\n",
    }
    of_kafka = (SAMPLES / "broker1-log-start-offset-checkpoint.txt").read_bytes()
    assert (case.exported / "log-start-offset-checkpoint").read_bytes() == of_kafka


def test_a_running_broker_can_be_exported(case: Case, tmp_path: Path) -> None:
    """A running broker can be exported."""
    run = case.run("export", "--broker", "1", "--folder", tmp_path / "deep" / "new")
    assert "3 replicas of broker 1" in run.printed
    exported = read_offsets(tmp_path / "deep" / "new" / "replication-offset-checkpoint")
    assert exported == {("a", 0): 4, ("a", 1): 2, ("b", 0): 0}


def test_what_was_exported_can_be_imported(case: Case) -> None:
    """An exported folder can be imported, and the broker joins the ISR afterwards."""
    before, epochs, broker = case.rows(), case.epochs(), case.broker()
    printed = case.import_().printed
    assert printed == f"Imported the checkpoints of 2 replicas of broker 0 from {case.exported}.\n"
    after = case.rows()
    for partition, row in before.items():
        for name in ("log_start_offset", "log_end_offset", "high_watermark", "topic_id"):
            assert after[partition][name] == row[name]
        assert (after[partition]["leader_epoch"], after[partition]["role"]) == (-1, "follower")
    assert case.epochs() == epochs
    assert case.broker()["state"] == "stopped"
    assert case.broker()["broker_epoch"] > broker["broker_epoch"]
    assert audit(Connection(str(case.folder / "cluster"))) == []

    cluster = LocalCluster(case.folder, [0, 1])
    cluster.tick_until_idle()
    assert cluster.partition("a", 0).isr == [0, 1]
    assert [one.value for one in cluster.log(0, "a", 0)] == [b"x", b"y", b"z", b"w"]


def test_an_imported_high_watermark_is_cut_at_the_log_end_when_the_broker_starts(
    case: Case,
) -> None:
    """An imported high watermark is limited to the log end at the broker's start."""
    case.write("replication-offset-checkpoint", "a 0 99", "a 1 1")
    assert case.import_().exit_code == 0
    assert {key: row["high_watermark"] for key, row in case.rows().items()} == {0: 99, 1: 1}
    assert {key: row["log_end_offset"] for key, row in case.rows().items()} == {0: 4, 1: 2}

    started = taken_over(root(case.folder, 0), case.broker()["broker_epoch"] + 1)
    rules = DriverRules()
    replicas = Replicas(started, 0, Purgatory(started, rules), rules, ManualClock())
    topic_id = case.rows()[0]["topic_id"]
    found = {key.partition: replicas[key].high_watermark for key in started.log.partitions()}
    assert found == {0: 4, 1: 1}
    assert {key.topic_id for key in started.log.partitions()} == {topic_id}


def test_what_the_folder_does_not_name_stays_as_it_is(case: Case) -> None:
    """Partitions that are missing in the folder stay unchanged."""
    before = case.rows()[1]
    shutil.rmtree(case.exported / "a-1")
    case.write("replication-offset-checkpoint", "a 0 3")
    case.write("log-start-offset-checkpoint", "a 0 2")
    case.write("a-0/leader-epoch-checkpoint", "1 2")
    assert "1 replica of broker 0" in case.import_().printed
    assert case.rows()[1] == before
    assert case.rows()[0]["high_watermark"] == 3
    assert case.rows()[0]["log_start_offset"] == 2
    assert case.epochs() == [(0, 1, 2), (1, 0, 0)]


def test_a_log_start_offset_is_exported_where_there_is_one(case: Case, tmp_path: Path) -> None:
    """A log start offset above 0 is exported."""
    case.write("log-start-offset-checkpoint", "a 0 2")
    assert case.import_().exit_code == 0
    assert case.run("export", "--broker", "0", "--folder", tmp_path / "again").exit_code == 0
    assert (tmp_path / "again" / "log-start-offset-checkpoint").read_bytes() == b"0\n1\na 0 2\n"


def test_the_files_of_a_real_kafka_broker_are_imported_and_exported_again(tmp_path: Path) -> None:
    """The broker has the same topics; Kafka's own metadata log is ignored."""
    source = tmp_path / "kafka"
    for sample in SAMPLES.glob("broker1-*"):
        name = sample.stem.removeprefix("broker1-")
        if name.endswith("-leader-epoch-checkpoint"):
            name = name.removesuffix("-leader-epoch-checkpoint") + "/leader-epoch-checkpoint"
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(sample, source / name)
    for folder in ("__cluster_metadata-0", "perf-100-1-0.ccdc901091bc44ae8386fbf8d863bebe-delete"):
        (source / folder).mkdir()
        (source / folder / "leader-epoch-checkpoint").write_text("0\n1\n1 0\n")
    high_watermarks = read_offsets(source / "replication-offset-checkpoint")
    counts: dict[str, int] = {}
    for topic, partition in high_watermarks:
        counts[topic] = max(counts.get(topic, 0), partition + 1)
    cluster = LocalCluster(tmp_path / "cluster", [0, 1])
    for topic, count in counts.items():
        cluster.create_topic(topic, assignment={partition: [0] for partition in range(count)})
    cluster.crash(0)
    cluster.fence(0)
    case = Case(tmp_path / "cluster", source)

    assert "Imported the checkpoints of 36 replicas of broker 0" in case.import_().printed
    again = tmp_path / "again"
    assert "36 replicas" in case.run("export", "--broker", "0", "--folder", again).printed
    assert read_offsets(again / "replication-offset-checkpoint") == high_watermarks
    for file in source.glob("[!_p]*/leader-epoch-checkpoint"):
        assert (again / file.parent.name / file.name).read_bytes() == file.read_bytes()
    log_starts = "log-start-offset-checkpoint"
    assert (again / log_starts).read_bytes() == (source / log_starts).read_bytes()


# --- bad input ------------------------------------------------------------------------------------


def refused(case: Case, *arguments: str) -> str:
    """Run an import or export that must be refused, and check that it changed nothing."""
    before = files_in(case.folder), files_in(case.exported)
    refusal = case.run(*arguments).refusal if arguments else case.import_().refusal
    assert (files_in(case.folder), files_in(case.exported)) == before
    return refusal


@pytest.mark.parametrize(
    ("name", "entries", "said"),
    [
        ("replication-offset-checkpoint", ["a 0 4", "a 1"], "line 4: expected 3 fields, found 2"),
        ("recovery-point-offset-checkpoint", ["a 0 -1"], "line 3: '-1' is not a number"),
        ("a-1/leader-epoch-checkpoint", ["1 4", "2 4"], "line 4: epochs and start offsets must"),
        ("replication-offset-checkpoint", ["a 2 4"], "names partition 2 of topic a, of which"),
        ("replication-offset-checkpoint", ["b 0 4"], "names partition 0 of topic b, of which"),
        ("log-start-offset-checkpoint", ["b 0 4"], "names partition 0 of topic b, of which"),
        ("b-0/leader-epoch-checkpoint", ["0 0"], "names partition 0 of topic b, of which"),
        ("log-start-offset-checkpoint", ["a 0 5"], "the log start offset 5 and the high watermark"),
        ("log-start-offset-checkpoint", ["a 1 3"], "the log start offset 3 and the high watermark"),
    ],
)
def test_a_folder_with_a_fault_is_one_line_and_nothing_is_imported(
    case: Case, name: str, entries: list[str], said: str
) -> None:
    """A folder with a fault is refused in one line, and nothing is imported."""
    case.write(name, *entries)
    assert said in refused(case)


def test_a_high_watermark_below_the_log_start_is_refused(case: Case) -> None:
    """A high watermark below the log start offset is refused."""

    def change(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row["log_start_offset"] = 2

    change_rows(case.folder, 0, HIGH_WATERMARK_CHECKPOINT, change)
    case.write("replication-offset-checkpoint", "a 0 1")
    assert "the log start offset 2 and the high watermark 1" in refused(case)


def test_a_broker_that_is_alive_by_its_row_is_not_imported_into(case: Case) -> None:
    """An import into a broker that is alive is refused."""
    refusal = refused(case, "import", "--broker", "1", "--folder", str(case.exported))
    assert refusal.startswith("broker 1 is alive: stop it")


def test_a_folder_that_is_no_log_directory_is_refused(case: Case) -> None:
    """A folder that is not a log directory is refused."""
    (case.exported / "replication-offset-checkpoint").unlink()
    assert "holds no replication-offset-checkpoint" in refused(case)


@pytest.mark.parametrize("command", ["export", "import"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--broker", "7"],
            "BROKER_ID_NOT_REGISTERED: there is no broker 7: name one of the registered",
        ),
        (["--broker", "0", "--log-dir", "1"], "broker 0 has no log directory number 1"),
        (["--broker", "0", "--log-dir", "-1"], "broker 0 has no log directory number -1"),
    ],
)
def test_a_broker_or_log_directory_that_is_not_there_is_one_line(
    case: Case, tmp_path: Path, command: str, arguments: list[str], said: str
) -> None:
    """An unknown broker or log directory is refused in one line."""
    assert said in refused(case, command, *arguments, "--folder", str(tmp_path / "new"))


def test_one_of_several_log_directories_has_to_be_named(case: Case, tmp_path: Path) -> None:
    """One of several log directories has to be named."""

    def two_roots(table: Any) -> tuple[Any, None]:
        rows = table.to_pylist()
        for row in rows:
            row["roots"] = row["roots"].replace("]", ', "elsewhere"]')
        return BROKERS.rows(rows), None

    ControlTable(Location.of(str(case.folder / "cluster")), BROKERS).update(two_roots)
    arguments = ("export", "--broker", "0", "--folder", str(tmp_path / "new"))
    assert "broker 0 has 2 log directories: name one" in refused(case, *arguments)
    assert "has no replica in elsewhere" in refused(case, *arguments, "--log-dir", "1")
    assert case.run(*arguments, "--log-dir", "0").exit_code == 0


@pytest.mark.parametrize("kind", ["file", "full"])
def test_an_export_overwrites_nothing(case: Case, tmp_path: Path, kind: str) -> None:
    """An export to an existing file or a folder with files is refused."""
    target = tmp_path / "target"
    if kind == "full":
        target.mkdir()
    (target if kind == "file" else target / "mine").write_text("mine")
    refusal = refused(case, "export", "--broker", "0", "--folder", str(target))
    assert refusal == f"{target} is there already: name a new or an empty folder"


def test_a_broker_that_starts_during_an_import_keeps_its_tables(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fences the import, which reports that."""
    imported_rows = checkpoints._imported_rows
    expected: list[Any] = []

    def interposed(journal: Journal, *arguments: Any) -> Any:
        if journal.fence is not None:
            taken_over(root(case.folder, 0), 99)
            expected.extend((case.rows(), case.epochs()))
        return imported_rows(journal, *arguments)

    monkeypatch.setattr(checkpoints, "_imported_rows", interposed)
    case.write("replication-offset-checkpoint", "a 0 1")
    assert "broker 0 was started while its checkpoints were" in case.import_().refusal
    assert [case.rows(), case.epochs()] == expected


def test_a_process_that_was_only_asleep_cannot_write_over_an_import(case: Case) -> None:
    """A process that was suspended during an import cannot write over it."""
    asleep = Fence(BROKER_EPOCH, case.broker()["broker_epoch"])
    journal = Journal(root(case.folder, 0), asleep)
    rows = list(journal.rows.values())
    journal.commit_step([], [], Step(rows), 0)
    assert case.import_().exit_code == 0
    with pytest.raises(FencedError):
        journal.commit_step([], [], Step(rows), 0)
