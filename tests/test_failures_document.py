"""docs/failures.md has an entry for each error, and its commands remedy what it describes."""

from __future__ import annotations

import inspect
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from pyarrow.parquet import read_table

from sparklog import errors
from sparklog.errors import ERROR_CODES, SparklogError, StorageError
from sparklog.testing import LocalCluster
from tests.broker.damaging import batch_file, flip_byte
from tests.cli.command_line import Finished, run
from tests.cli.test_as_of import now_ms
from tests.examples import CHECKOUT, examples

DOCUMENT = "docs/failures.md"


def section(heading: str) -> str:
    text = (CHECKOUT / DOCUMENT).read_text(encoding="utf-8")
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def cells(heading: str) -> list[list[str]]:
    """Return the rows of the table of a section, without its head."""
    rows = [line for line in section(heading).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def commands_of(text: str) -> list[list[str]]:
    lines = re.findall(r"^\$ \.venv/bin/sparklog (.*)$", text, re.MULTILINE)
    return [shlex.split(line) for line in lines]


class TestTables:
    def test_each_of_kafkas_codes_has_an_entry(self) -> None:
        rows = cells("Kafka's codes")
        expected = [
            [str(one.number), f"`{one.name}`", "yes" if one.retriable else "no", one.sentence]
            for one in ERROR_CODES.values()
        ]
        assert [row[:4] for row in rows] == expected
        for _, name, _, _, cause, remedy in rows:
            assert remedy or name == "`NONE`", name
            assert cause or name in ("`NONE`", "`ELECTION_NOT_NEEDED`"), name

    def test_each_exception_has_an_entry(self) -> None:
        classes = [
            name
            for name, kind in inspect.getmembers(errors, inspect.isclass)
            if issubclass(kind, SparklogError)
        ]
        rows = cells("Exceptions")
        assert sorted(row[0].strip("`") for row in rows) == sorted(classes)
        assert all(meaning and remedy for _, meaning, _, remedy in rows)


class TestIncidents:
    """A cluster of four brokers with two batches in a partition, and conf/cluster.yaml for it."""

    @pytest.fixture
    def cluster(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
        monkeypatch.chdir(tmp_path)
        cluster = LocalCluster(
            tmp_path / "sparklog-data",
            brokers=[0, 1, 2, 3],
            config={"log.scrub.bytes.per.second": 0},
        )
        cluster.create_topic("t", assignment={0: [0, 1, 2]}, configs={"min.insync.replicas": "2"})
        for value in (b"a", b"b"):
            cluster.produce("t", 0, [value])
        cluster.tick_until_idle()
        brokers = [
            {"broker.id": one, "log.dirs": str(cluster.root / f"broker-{one}")} for one in range(4)
        ]
        values = {"cluster.root": str(cluster.root / "cluster"), "brokers": brokers}
        Path("conf").mkdir()
        Path("conf/cluster.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
        return cluster

    @staticmethod
    def done(arguments: list[str]) -> Finished:
        # The topic of the helpers that damage a log is t.
        return run(*["t" if one == "clicks" else one for one in arguments])

    def test_the_first_commands_describe_the_cluster(self, cluster: LocalCluster) -> None:
        text = (CHECKOUT / DOCUMENT).read_text(encoding="utf-8").split("\n## ")[0]
        status, brokers, topics, directories, audit = map(self.done, commands_of(text))
        assert "nothing is wrong" in status.printed
        assert brokers.printed.count("alive") == 4
        assert "Isr: 0,1,2" in topics.printed
        assert directories.printed.count('"error": null') == 4
        assert audit.exit_code == 0
        del cluster

    def test_a_damaged_file_is_repaired(self, cluster: LocalCluster) -> None:
        flip_byte(batch_file(cluster, 1, 1))
        scrub, query, repair, again = commands_of(section("A damaged file"))
        assert self.done(scrub).exit_code == 1
        assert "damaged_file" in self.done(query).printed
        assert self.done(repair).exit_code == 0
        assert self.done(again).exit_code == 0

    def test_a_lost_broker_root_is_refilled(self, cluster: LocalCluster) -> None:
        lagging, directories, drain, unregister = commands_of(section("A lost broker root"))
        cluster.crash(2)
        shutil.rmtree(cluster.root / "broker-2")
        assert self.done(directories).exit_code == 1
        cluster.restart(2)
        assert " 2\n" in self.done(lagging).printed
        cluster.tick_until_idle()
        assert "(0 rows)" in self.done(lagging).printed
        assert [record.value for record in cluster.log(2, "t", 0)] == [b"a", b"b"]
        assert "moving away from broker 2" in self.done(drain).printed
        cluster.tick_until_idle()
        cluster.crash(2)
        cluster.fence(2)
        assert "Unregistered broker 2" in self.done(unregister).printed

    def test_a_lost_cluster_root_is_restored(self, cluster: LocalCluster) -> None:
        backup, restore = commands_of(section("A lost cluster root"))
        assert "Copied 5 roots" in self.done(backup).printed
        cluster.close()
        shutil.rmtree(cluster.root / "cluster")
        with pytest.raises(StorageError):
            LocalCluster(cluster.root, brokers=[0, 1, 2, 3])
        [example] = examples(DOCUMENT)
        scope: dict[str, object] = {}
        exec(compile(example, DOCUMENT, "exec"), scope)
        assert scope["records"].num_rows == 2  # type: ignore[attr-defined]
        self.done(restore)
        assert (Path("sparklog-restored") / "cluster").is_dir()

    def test_room_is_made_on_a_full_disk(self, cluster: LocalCluster) -> None:
        for arguments in commands_of(section("A full disk")):
            assert self.done(arguments).exit_code == 0
        assert cluster.connection.metadata().topic("t").config.retention_ms == 3_600_000

    def test_a_partition_without_replicas_in_sync_leads_again(self, cluster: LocalCluster) -> None:
        under_min, lower, reset, offline, positions, verify, elect = commands_of(
            section("A lost quorum of replicas")
        )
        cluster.crash(2)
        cluster.fence(2)
        cluster.tick_until_idle()
        cluster.produce("t", 0, [b"c"])
        cluster.tick_until_idle()
        cluster.crash(1)
        cluster.fence(1)
        cluster.tick_until_idle()
        assert "(1 row)" in self.done(under_min).printed
        refused = cluster.produce("t", 0, [b"d"])
        cluster.tick_until_idle()
        assert refused.response is not None
        assert refused.response.error == "NOT_ENOUGH_REPLICAS"
        assert self.done(lower).exit_code == 0
        cluster.tick_until_idle()
        assert "(0 rows)" in self.done(under_min).printed
        accepted = cluster.produce("t", 0, [b"d"])
        cluster.tick_until_idle()
        assert accepted.response is not None
        assert accepted.response.error == "NONE"
        assert self.done(reset).exit_code == 0
        cluster.tick_until_idle()
        cluster.crash(0)
        cluster.fence(0)
        cluster.restart(2)
        cluster.tick_until_idle()
        assert "(3 rows)" in self.done(offline).printed
        assert "damaged_offset" in self.done(positions).printed
        assert self.done(verify).exit_code == 0
        assert "Successfully completed" in self.done(elect).printed
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).leader == 2
        # The records that broker 2 lacked are lost, and their files are still there.
        cluster.produce("t", 0, [b"e"])
        cluster.tick_until_idle()
        before_ms = now_ms()
        cluster.restart(0)
        cluster.tick_until_idle()
        lost, files = commands_of(section("Lost records"))
        assert "(1 row)" in self.done(lost).printed
        at = files.index("30 seconds ago")
        as_of = ["t" if one == "clicks" else one for one in files]
        as_of[at] = str(before_ms)
        as_of = [one.replace("'clicks'", "'t'") for one in as_of]
        paths = re.findall(r"_inbox/\S+\.parquet", self.done([*as_of, "--csv"]).printed)
        in_folder = [cluster.root / "broker-0" / "log" / path for path in paths]
        values = [read_table(one)["value"].to_pylist() for one in in_folder if one.exists()]
        assert [b"d"] in values
