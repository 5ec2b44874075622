"""The demo: its steps with the real flight data, and failures of its checks."""

from __future__ import annotations

import re
import sys
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from jobs.demo import BROKER_IDS, CONFIG, MARKER, PAGE, flights_in_order_of_time, prepare
from jobs.demo_output import STORY, show_page
from jobs.demo_proof import answer_claim, once_claim, order_claim, replica_claims
from sparklog.cluster.connection import Connection
from sparklog.cluster.roots import ClusterRoot
from sparklog.config import ClusterConfig, load
from sparklog.errors import SparklogError
from sparklog.producer.produce_requests import ProduceResponse
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster
from tests.jobs.processes import ROOT, Process

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROLES = ("leader: check", "follower: copy")


@pytest.fixture
def run_demo(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Run the demo in a folder, to its end."""
    processes: list[Process] = []

    def run(folder: Path, *options: str) -> Process:
        output = tmp_path / f"demo-{len(processes)}"
        process = Process([sys.executable, "-m", "jobs.demo", "--folder", folder, *options], output)
        processes.append(process)
        process.popen.wait(400)
        return process

    yield run
    for process in processes:
        process.close()


# --- the story ------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--kill-process"]], ids=["one-process", "kill-process"])
def test_the_demo_proves_what_it_claims_in_the_place_of_an_earlier_one(
    run_demo: Callable[..., Process], tmp_path: Path, options: list[str]
) -> None:
    """The demo proves its claims, and replaces the cluster of an earlier demo.

    Its brokers run in one process, or each in its own, of which one ends by SIGKILL.
    """
    folder = tmp_path / "demo"
    prepare(folder)
    earlier = ClusterRoot.create(Location.of(str(folder / "cluster"))).cluster_id

    process = run_demo(folder, *options)
    told = process.stdout
    assert process.popen.returncode == 0, told + process.stderr
    assert "Traceback" not in process.stderr
    assert "336,776 of 336,776; 0 missing, 0 too many" in told
    assert "0 records out of order; 2,512 without a key" in told
    assert re.search(r"(\d+) of \1 files, read again and hashed", told)
    assert len(re.findall(r" yes *$", told, re.MULTILINE)) == 5
    assert len(re.findall(r"^Topic: flights\s+TopicId: ", told, re.MULTILINE)) == 4
    # The first broker of four partitions on three leads two of them.
    tails = re.findall(r"broker (\d) alone has offsets (\d+) to (\d+) of flights-(\d)", told)
    assert [partition for *_, partition in tails] == ["0", "3"]
    for crashed, first, last, partition in tails:
        truncation = f"flights-{partition} from {int(last) + 1} to {first}"
        assert f"broker {crashed} truncates {truncation}" in told
        assert f"broker {crashed} is in sync again, and leads 0 of the 2 partitions" in told
        assert f"flights-{partition}: leader {crashed}, leader epoch 2" in told
    for job in [f"broker {one}, {of}" for one in BROKER_IDS for of in ROLES]:
        has_jobs = re.search(rf"^ {job} +[1-9]\d* +[1-9]\d* *$", told, re.MULTILINE)
        assert bool(has_jobs) == (not options), job
    *_, last_line = told.strip().splitlines()
    # Nothing is opened: the output of this demo is no terminal.
    assert last_line.strip() == (folder / PAGE).as_uri()
    assert "<b>controller</b>" in (folder / PAGE).read_text(encoding="utf-8")
    assert f"sparklog topics describe flights --cluster {folder / CONFIG}" in told

    connection = Connection(load(ClusterConfig, folder / CONFIG).cluster_root)
    metadata = connection.metadata()
    assert connection.root.cluster_id != earlier
    assert [topic.topic for topic in metadata.topics.values()] == ["flights"]
    ended = "stopped" if options else "parked"
    assert {broker.state for broker in metadata.brokers.values()} == {ended}


def test_a_folder_of_somebody_elses_is_refused_in_one_line(
    run_demo: Callable[..., Process], tmp_path: Path
) -> None:
    """A folder with other files is refused in one line."""
    foreign = tmp_path / "home" / "thesis.tex"
    foreign.parent.mkdir()
    foreign.touch()
    process = run_demo(foreign.parent)
    assert process.popen.returncode == 2
    [line] = process.stderr.splitlines()
    assert line.startswith("sparklog: ")
    assert "'thesis.tex'" in line
    assert [entry.name for entry in foreign.parent.iterdir()] == ["thesis.tex"]


def test_every_event_of_the_story_is_one_that_brokers_log() -> None:
    """Every event in the demo's story is one that brokers log, with its fields."""
    folders = ROOT / "sparklog" / "broker", ROOT / "sparklog" / "cluster"
    source = "".join(file.read_text() for one in folders for file in one.rglob("*.py"))
    for event, sentence in STORY.items():
        assert f'"{event}"' in source or f'"{event.replace(" ", "_")}"' in source, event
        for field in re.findall(r"\{(\w+)\}", sentence):
            assert re.search(rf"\b{field}=", source), f"{event}: {field}"


@pytest.mark.parametrize(
    ("is_terminal", "variables", "is_opened"),
    [
        (True, {"DISPLAY": ":0"}, True),
        (True, {"WAYLAND_DISPLAY": "wayland-0"}, True),
        (False, {"DISPLAY": ":0"}, False),
        (True, {"DISPLAY": ""}, False),
        (True, {}, False),
    ],
)
def test_the_page_is_opened_in_a_terminal_with_a_display_only(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    is_terminal: bool,
    variables: dict[str, str],
    is_opened: bool,
) -> None:
    """Without a display a browser of the terminal would take it over. The URL is always printed."""
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    url = (tmp_path / PAGE).as_uri()
    show_page(tmp_path / PAGE)
    assert opened == ([url] if is_opened else [])
    assert url in capsys.readouterr().out


# --- the folder -----------------------------------------------------------------------------------


def test_an_earlier_demos_folder_is_emptied_and_nothing_else_is(tmp_path: Path) -> None:
    """The folder of an earlier demo is emptied, unless it has other files."""
    folder = tmp_path / "a" / "demo"
    config = prepare(folder)
    assert load(ClusterConfig, config).cluster_root == str(folder / "cluster")
    (folder / "cluster" / "topics").mkdir(parents=True)
    (folder / "broker-2").mkdir()
    assert prepare(folder) == config
    assert {entry.name for entry in folder.iterdir()} == {MARKER, CONFIG}

    (folder / "notes.txt").touch()
    (folder / "broker-2").mkdir()
    with pytest.raises(SparklogError, match=r"'notes\.txt', which no demo has made"):
        prepare(folder)
    assert (folder / "broker-2").is_dir()


def test_a_cluster_that_no_demo_has_made_is_left_alone(tmp_path: Path) -> None:
    """The folder of a cluster that no demo has made is refused."""
    for name in ("cluster", "broker-0"):
        (tmp_path / "data" / name).mkdir(parents=True)
    with pytest.raises(SparklogError, match="which no demo has made"):
        prepare(tmp_path / "data")
    assert {entry.name for entry in (tmp_path / "data").iterdir()} == {"cluster", "broker-0"}


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """A folder that cannot be created is refused."""
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(SparklogError, match="cannot be used"):
            prepare(folder)


# --- the data -------------------------------------------------------------------------------------


def test_the_flights_are_numbered_in_order_of_time_and_whole_numbers_stay_whole() -> None:
    """The flights are numbered in order of time, and integers stay integers."""
    flights = flights_in_order_of_time()
    assert flights.num_rows == 336_776
    assert flights["row"].to_pylist() == list(range(336_776))
    hours = flights["time_hour"].to_pylist()
    assert hours == sorted(hours)
    assert flights["tailnum"].null_count == 2_512
    assert flights["dep_time"].null_count == 8_255
    assert {str(field.type) for field in flights.schema} == {"int64", "string"}


# --- the proof ------------------------------------------------------------------------------------


class Sent(NamedTuple):
    key: bytes | None
    value: bytes
    partition: int
    offset: int


def values(*rows: int) -> list[bytes]:
    return [b'{"row":%d}' % row for row in rows]


RECORDS = [
    Sent(b"a", values(0)[0], 0, 0),
    Sent(b"b", values(1)[0], 1, 0),
    Sent(b"a", values(2)[0], 0, 1),
    Sent(None, values(3)[0], 1, 1),
]


def frame(spark: SparkSession, records: list[Sent]) -> DataFrame:
    return spark.createDataFrame(records, "key binary, value binary, partition int, offset bigint")


def test_a_lost_a_doubled_and_a_changed_record_are_found(spark: SparkSession) -> None:
    """A lost, a duplicated and a changed record are found."""
    sent = frame(spark, RECORDS)
    claim = once_claim(sent, sent)
    assert (claim.holds, claim.found) == (True, "4 of 4; 0 missing, 0 too many")
    changed = [*RECORDS[:3], RECORDS[3]._replace(value=b"{}")]
    for records, found in (
        (RECORDS[1:], "3 of 4; 1 missing, 0 too many"),
        ([*RECORDS, RECORDS[0]], "5 of 4; 0 missing, 1 too many"),
        ([*RECORDS[1:], RECORDS[3]], "4 of 4; 1 missing, 1 too many"),
        (changed, "4 of 4; 1 missing, 1 too many"),
    ):
        claim = once_claim(sent, frame(spark, records))
        assert (claim.holds, claim.found) == (False, found)


def test_a_key_out_of_order_or_in_two_partitions_is_found(spark: SparkSession) -> None:
    """Records of a key that are out of order, or in two partitions, are found."""
    kept = "2 keys, 0 records out of order; 1 without a key"
    claim = order_claim(frame(spark, RECORDS))
    assert (claim.holds, claim.found) == (True, kept)
    swapped = [RECORDS[0]._replace(offset=1), *RECORDS[1:2], RECORDS[2]._replace(offset=0)]
    spread = [*RECORDS[:2], RECORDS[2]._replace(partition=1, offset=2)]
    for records in (swapped, spread):
        assert not order_claim(frame(spark, records)).holds


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two brokers with two batches each in two partitions."""
    cluster = LocalCluster(tmp_path, brokers=[0, 1])
    cluster.create_topic("t", partitions=2)
    for partition in (0, 1, 0, 1):
        cluster.produce("t", partition, [b"x", b"y"])
        cluster.tick_until_idle()
    yield cluster
    cluster.close()


def test_answers_with_a_gap_an_overlap_or_a_missing_end_are_found(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Answers with a gap, an overlap or a missing end are found."""
    connection = Connection(str(tmp_path / "cluster"))
    visible = connection.visible(connection.metadata().partitions.values())

    def claim(*of_partition_0: tuple[int, int]) -> bool:
        answers = [{1: ProduceResponse("NONE", 0, 3)}]
        answers += [{0: ProduceResponse("NONE", *offsets)} for offsets in of_partition_0]
        return answer_claim(answers, visible).holds

    assert claim((0, 1), (2, 3))
    for wrong in ([(0, 1)], [(0, 1), (3, 3)], [(0, 1), (1, 3)], [(0, 1), (0, 1)], []):
        assert not claim(*wrong)


def test_a_changed_byte_and_a_missing_batch_on_one_replica_are_found(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """A changed byte and a missing batch on one replica are found."""
    roots = {broker: [Location.of(str(tmp_path / f"broker-{broker}"))] for broker in (0, 1)}
    same, intact = replica_claims(roots)
    assert (same.holds, same.found) == (True, "4 batches on each of 2 brokers")
    assert (intact.holds, intact.found) == (True, "8 of 8 files, read again and hashed")

    file = next((tmp_path / "broker-1" / "log" / "_inbox").iterdir())
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    same, intact = replica_claims(roots)
    assert (same.holds, intact.holds) == (True, False)
    assert intact.found.startswith("7 of 8 ")

    leader = cluster.partition("t", 0).leader
    assert leader is not None
    cluster.produce("t", 0, [b"z"], acks=1)
    cluster.leader_tick(leader)
    same, _ = replica_claims(roots)
    assert (same.holds, same.found) == (False, "4 or 5 batches on each of 2 brokers")
