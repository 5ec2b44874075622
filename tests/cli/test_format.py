"""`sparklog format`: creates a cluster, or changes nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sparklog.cluster.roots import BrokerRoot, ClusterRoot
from sparklog.model import CLUSTER_TABLES
from sparklog.storage.location import Location
from tests.cli.command_line import files_in, run


def test_it_creates_the_tables_of_a_cluster_and_says_where(tmp_path: Path) -> None:
    """`format` creates the tables of a cluster and prints their folder."""
    root = tmp_path / "a folder" / "cluster"

    assert run("format", "--cluster", root).printed == f"Created cluster <id> in {root}.\n"

    tables = {schema.name for schema in CLUSTER_TABLES}
    assert {path.name for path in root.iterdir()} == tables | {"format"}
    assert run("topics", "list", "--cluster", root).printed == ""


def test_a_second_time_it_says_so_and_changes_nothing(tmp_path: Path) -> None:
    """On an existing cluster `format` changes nothing and reports that."""
    root = tmp_path / "cluster"
    run("format", "--cluster", root)
    before = files_in(root)

    again = run("format", cluster=root)

    assert again.printed == f"{root} holds cluster <id>; nothing was changed.\n"
    assert ClusterRoot(Location.of(str(root))).cluster_id in again.stdout
    assert files_in(root) == before


def test_an_interrupted_creation_is_completed(tmp_path: Path) -> None:
    """An interrupted creation is completed."""
    root = tmp_path / "cluster"
    run("format", "--cluster", root)
    last_written = root / "format" / "_delta_log" / "00000000000000000001.json"
    last_written.unlink()
    # The copy of a commit is written after it.
    shutil.rmtree(root / "format" / "_second_copies")

    assert run("format", "--cluster", root).printed == f"Created cluster <id> in {root}.\n"


def test_a_configuration_file_names_the_root_relative_to_itself(tmp_path: Path) -> None:
    """A relative root in a configuration file is relative to the file."""
    (tmp_path / "conf").mkdir()
    file = tmp_path / "conf" / "cluster.yaml"
    file.write_text("cluster.root: ../data\nbrokers: [{broker.id: 0, log.dirs: ../broker-0}]\n")
    printed = run("format", "--cluster", file).printed

    root = (tmp_path / "conf" / ".." / "data").resolve()
    assert printed.startswith("Created cluster <id> in ")
    assert run("format", "--cluster", root).printed.endswith("; nothing was changed.\n")


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("foreign", "foreign is not a sparklog root and holds 'letter.txt': name an empty or a"),
        ("foreign/letter.txt", "letter.txt is a file: name a folder"),
        ("foreign/letter.txt/cluster", "Not a directory"),
        ("broker-0", "broker-0 is a broker root: name the cluster root"),
    ],
)
def test_a_place_that_is_something_else_is_refused_and_left_alone(
    tmp_path: Path, at: str, said: str
) -> None:
    """A path that is not a cluster root is refused and not changed."""
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "letter.txt").write_text("Dear")
    BrokerRoot.create(Location.of(str(tmp_path / "broker-0")), "another", 0)
    before = files_in(tmp_path)

    assert said in run("format", "--cluster", tmp_path / at).refusal
    assert files_in(tmp_path) == before


def test_a_store_that_cannot_be_reached_is_one_line_without_colours() -> None:
    """An unreachable store is reported in one line without colours."""
    refusal = run("format", "--cluster", "abfss://container@account/cluster").refusal
    assert refusal.startswith("abfss://container@account cannot be used: correct it or its storage")
    assert "\x1b" not in refusal
    assert "foo://bar is not in a known store" in run("format", "--cluster", "foo://bar/c").refusal
