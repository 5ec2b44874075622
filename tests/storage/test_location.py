"""Locations: the folder or store of a URI, its options, and files in a folder."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from sparklog.cluster.root_format import check_distinct
from sparklog.errors import StorageError
from sparklog.model import CONTROLLER
from sparklog.storage.control_table import ControlTable, create_table
from sparklog.storage.location import Location
from sparklog.storage.request_table import RequestTable
from tests.storage.requests import appending, ids_in, request


@pytest.mark.parametrize(
    ("uri", "folder"),
    [
        ("/data/x", "/data/x"),
        ("/data/x/", "/data/x"),
        ("/", "/"),
        ("file:///data/x", "/data/x"),
        ("file:/data/x", "/data/x"),
        ("file://localhost/data/x", "/data/x"),
        ("file:///data/a%20b", "/data/a b"),
        ("/data/a:b", "/data/a:b"),
    ],
)
def test_a_folder_is_an_absolute_path(uri: str, folder: str) -> None:
    """A URI or path of a local folder becomes an absolute path."""
    location = Location.of(uri)
    assert (location.uri, location.is_local) == (folder, True)


def test_a_relative_path_and_a_home_folder_are_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths and home folders become absolute paths."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Location.of("a/b").uri == str(tmp_path / "a" / "b")
    assert Location.of("~/c").uri == str(tmp_path / "c")


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("", "cannot hold tables"),
        ("file://host/data", "names a host: write file:///path"),
        ("s3://", "names no bucket: write s3://bucket/path"),
        ("s3:/bucket/x", "names no bucket: write s3://bucket/path"),
        ("dbfs:/mnt/x", "names no bucket"),
        ("/data/a%20b", "name a folder without any of"),
        ("file:///data/a%2520b", "name a folder without any of"),
        ("/data/[x]", "name a folder without any of"),
        ("/data/a|b", "name a folder without any of"),
        ("/data/a^b", "name a folder without any of"),
        ("/data/a\\b", "name a folder without any of"),
        ("/data/a\nb", "name a folder without any of"),
        # Found by hostile input: these were ValueError, RuntimeError and UnicodeEncodeError.
        ("s3://[", "is not a URI: Invalid IPv6 URL"),
        ("~nobody-has-this-name/x", "cannot be a folder"),
        ("~\0", "name a folder without any of"),
        ("/data/\ud800", "cannot be a folder"),
    ],
)
def test_what_cannot_be_a_root_is_refused_in_a_sentence(uri: str, why: str) -> None:
    """delta-rs would misread these folders, or end the process. A typing error in a store's scheme
    must not create a local folder.
    """
    with pytest.raises(StorageError, match=f"^root .*{why}"):
        Location.of(uri)


@pytest.mark.parametrize(
    "name", ["a b", "a%b", "a%", "a#b", "a?b", "ü", "a+b&c=d", "a:b", "'a'", '"a"', "a;{b},$~`<*>"]
)
def test_every_other_folder_holds_tables(tmp_path: Path, name: str) -> None:
    """A folder of any other name can contain tables."""
    root = Location.of(str(tmp_path / name))
    create_table(root, CONTROLLER)
    table = ControlTable(root, CONTROLLER)
    table.compare_and_set(CONTROLLER.rows([{"broker_id": 1}]))
    table.compare_and_set(CONTROLLER.rows([{"broker_id": 2}]))
    assert ControlTable(root, CONTROLLER).rows()["broker_id"].to_pylist() == [2]
    appending(root).append([request("a")])
    owner = RequestTable(root)
    assert ids_in(owner) == ["a"]
    owner.remove(owner.requests_after(-1).keys())
    assert ids_in(RequestTable(root)) == []
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_options_of_the_longest_prefix_count() -> None:
    """The options of the longest matching prefix apply."""
    options = {
        "s3://": {"for": "all"},
        "s3://lake": {"for": "lake"},
        "s3://lake/inner/": {"for": "inner"},
    }
    found = {
        uri: dict(Location.of(uri, options).options).get("for")
        for uri in ("s3://lake", "s3://lake/x", "s3://lake/inner/x", "s3://other/x", "gs://lake/x")
    }
    assert found == {
        "s3://lake": "lake",
        "s3://lake/x": "lake",
        "s3://lake/inner/x": "inner",
        "s3://other/x": "all",
        "gs://lake/x": None,
    }
    assert Location.of("/lake", options).options == {}


def test_one_buckets_key_is_not_shown_to_another_whose_name_begins_alike() -> None:
    """A bucket does not get the options of another bucket whose name is a prefix of its own."""
    options = {"s3://lake": {"AWS_SECRET_ACCESS_KEY": "secret"}}
    assert Location.of("s3://lake-of-somebody-else/x", options).options == {}
    assert Location.of("s3://lake/x", options).options == options["s3://lake"]


def test_secrets_are_not_printed() -> None:
    """The representation of a location contains no secrets."""
    location = Location.of("s3://lake/x", {"s3://lake": {"AWS_SECRET_ACCESS_KEY": "secret"}})
    assert "secret" not in repr(location).lower()
    assert "s3://lake/x" in repr(location)


def test_locations_are_compared_by_uri_and_travel_with_their_options() -> None:
    """Locations are equal if their URIs are; pickling keeps their options."""
    location = Location.of("s3://lake/x/", {"s3://lake": {"key": "value"}})
    assert location == Location.of("s3://lake/x")
    assert len({location, Location.of("s3://lake/x")}) == 1
    arrived = pickle.loads(pickle.dumps(location.child("log")))
    assert (arrived.uri, arrived.options) == ("s3://lake/x/log", {"key": "value"})
    assert Location.of("/").child("log").uri == "/log"


class TestFiles:
    def test_a_file_is_created_once_and_read(self, root: Location) -> None:
        """A file is created once; creating it again raises `FileExistsError`."""
        with root.create("_inbox/deep/a") as file:
            file.write(b"abc")
        assert root.read_bytes("_inbox/deep/a") == b"abc"
        with root.open("_inbox/deep/a") as file:
            assert (file.read(2), file.read()) == (b"ab", b"c")
        with pytest.raises(FileExistsError):
            root.create("_inbox/deep/a")
        assert (root.exists("_inbox/deep/a"), root.exists("_inbox/b")) == (True, False)

    def test_what_is_not_there_is_a_file_not_found(self, root: Location) -> None:
        """Reading a missing file raises `FileNotFoundError` and creates nothing."""
        with pytest.raises(FileNotFoundError):
            root.read_bytes("a")
        with pytest.raises(FileNotFoundError):
            root.open("a")
        assert not Path(root.uri).exists()

    def test_the_names_in_a_folder(self, root: Location) -> None:
        """`names` returns the sorted names in a folder, and an empty list for a missing one."""
        for path in ("a/b", "a/c/d", "e"):
            with root.create(path):
                pass
        assert root.names() == ["a", "e"]
        assert root.names("a") == ["b", "c"]
        assert root.names("f") == []


@pytest.mark.parametrize(
    ("uri", "prefix"),
    [
        ("s3a://logs/a", "s3://logs"),
        ("s3://logs/a", "s3a://"),
        ("abfs://c@a.dfs.core.windows.net/x", "abfss://c@a.dfs.core.windows.net"),
        ("azure://c/x", "az://c"),
    ],
)
def test_the_names_of_a_store_are_one_location(uri: str, prefix: str) -> None:
    """Options of a prefix apply to its other scheme, and two roots cannot differ in it alone."""
    location = Location.of(uri, {prefix: {"key": "value"}})
    assert location.options == {"key": "value"}
    other = Location.of(f"{prefix.partition('://')[0]}://{uri.partition('://')[2]}")
    assert other.identity == location.identity
    with pytest.raises(StorageError, match="are one folder"):
        check_distinct([location, other])
