"""Roots: created once, completed after an interruption, refused in a sentence if foreign."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from sparklog import model
from sparklog.cluster import root_format
from sparklog.cluster.root_format import check_empty, read_format
from sparklog.cluster.roots import BrokerRoot, ClusterRoot
from sparklog.errors import DamagedError, FencedError, StorageError
from sparklog.model import (
    BROKER_TABLES,
    CLEANER_OFFSET_CHECKPOINT,
    CLUSTER_TABLES,
    DELAYED_OPERATIONS,
    FORMAT,
    LOG,
    PRODUCE_REQUESTS,
    REPLICA_HISTORY,
    TRUNCATIONS,
    UNLISTED_BROKER_TABLES,
    UNLISTED_CLUSTER_TABLES,
    TableSchema,
)
from sparklog.storage import local_files
from sparklog.storage.commits import BROKER_EPOCH
from sparklog.storage.control_table import ControlTable, create_table
from sparklog.storage.delta_snapshots import open_delta_table, table_identity
from sparklog.storage.local_files import LocalFiles
from sparklog.storage.location import Location
from tests.storage import racing
from tests.storage.batches import batch
from tests.storage.broker_roots import taken_over
from tests.storage.racing import Processes


class Kind(NamedTuple):
    """A kind of root: how it is created, and its tables beside `format`."""

    create: Callable[[Location], object]
    tables: tuple[TableSchema, ...]


def create_broker(root: Location) -> None:
    BrokerRoot.create(root, "a-cluster", 7)


CLUSTER = Kind(ClusterRoot.create, CLUSTER_TABLES)
BROKER = Kind(create_broker, BROKER_TABLES)


@pytest.fixture(params=[CLUSTER, BROKER], ids=["cluster", "broker"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each kind of root."""
    given: Kind = request.param
    return given


def format_row(root: Location) -> dict[str, object]:
    [row] = ControlTable(root, FORMAT).rows().to_pylist()
    return dict(row)


def files(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, with its content."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_a_root_has_its_tables_and_says_what_it_is(root: Location, kind: Kind) -> None:
    """A new root has all tables of its kind, and a row in `format` that describes it."""
    kind.create(root)
    assert sorted(path.name for path in Path(root.uri).iterdir()) == sorted(
        table.name for table in (*kind.tables, FORMAT)
    )
    row = format_row(root)
    assert row["schema_version"] == model.SCHEMA_VERSION
    assert str(row["created_by"]).startswith("sparklog ")
    assert row["broker_id"] == (7 if kind is BROKER else None)


def test_creating_again_changes_nothing(root: Location, kind: Kind) -> None:
    """Creating an existing root changes nothing."""
    kind.create(root)
    before = files(Path(root.uri))
    kind.create(root)
    assert read_format(root) is not None
    assert files(Path(root.uri)) == before


def test_an_interrupted_creation_is_completed(root: Location, kind: Kind) -> None:
    """The interruption comes after any of its steps: each table, the format table, and its row."""
    kind.create(root)
    order = [*(table.name for table in kind.tables), FORMAT.name]
    whole = Path(root.uri)
    for missing in range(len(order) + 1):
        cut = Location.of(str(whole.with_name(f"without-the-last-{missing}")))
        shutil.copytree(whole, cut.uri)
        ids = {name: table_identity(cut.child(name)) for name in order[: len(order) - missing]}
        for name in order[len(order) - missing :]:
            shutil.rmtree(Path(cut.uri, name))
        if missing == 0:
            Path(cut.uri, FORMAT.name, "_delta_log", f"{1:020}.json").unlink()
            Path(cut.uri, FORMAT.name, "_second_copies", f"{1:020}.json").unlink()
            ids.pop(FORMAT.name)
        kind.create(cut)
        assert {name: table_identity(cut.child(name)) for name in ids} == ids
        assert {path.name for path in Path(cut.uri).iterdir()} == set(order)
        assert format_row(cut)["broker_id"] == format_row(root)["broker_id"]


def test_a_creation_that_was_interrupted_in_the_middle_of_a_commit_is_completed(
    root: Location, kind: Kind
) -> None:
    """The interruption leaves a folder and a temporary file that is not a commit."""
    log = Path(root.uri, kind.tables[0].name, "_delta_log")
    log.mkdir(parents=True)
    (log / "_commit_0f.json.tmp").write_text("{")
    kind.create(root)
    kind.create(root)
    assert table_identity(root.child(kind.tables[0].name))[1] == 0


class TestRaces:
    def test_four_brokers_that_start_a_cluster_agree_on_one(
        self, root: Location, processes: Processes
    ) -> None:
        """Four processes that create one cluster root get the same cluster id."""
        for attempt in range(4):
            at = root.child(str(attempt))
            found = processes.run(racing.create_cluster, at.uri)
            assert len(set(found)) == 1
            assert found[0] == format_row(at)["cluster_id"]
            versions = [table_identity(at.child(table.name))[1] for table in CLUSTER_TABLES]
            assert set(versions) == {0}

    def test_of_four_brokers_that_are_given_one_folder_one_has_it(
        self, root: Location, processes: Processes
    ) -> None:
        """Of four brokers with one log directory, one gets it and the others are refused."""
        found = processes.run(racing.create_broker, root.uri, False)
        assert sorted(one == "" for one in found) == [False, False, False, True]
        owner = found.index("")
        for refusal in found:
            assert refusal == "" or f"StorageError: {root.uri} belongs to broker {owner}" in refusal

    def test_one_broker_started_four_times_has_its_folder(
        self, root: Location, processes: Processes
    ) -> None:
        """One broker that is started four times at once gets its log directory each time."""
        assert processes.run(racing.create_broker, root.uri, True) == [""] * Processes.count


class TestRefusals:
    """The error is one sentence, and nothing is created or changed."""

    @pytest.fixture(autouse=True)
    def _unchanged(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path

    def refused(self, kind: Kind, at: Location, *said: str) -> None:
        before = files(self.tmp_path)
        folders = sorted(self.tmp_path.rglob("*"))
        with pytest.raises(StorageError) as refusal:
            kind.create(at)
        sentence = str(refusal.value)
        assert all(part in sentence for part in (at.uri, *said)), sentence
        assert "\n" not in sentence
        assert files(self.tmp_path) == before
        assert sorted(self.tmp_path.rglob("*")) == folders

    def test_a_foreign_folder(
        self,
        root: Location,
        kind: Kind,
    ) -> None:
        """A folder with other files is refused."""
        folder = Path(root.uri)
        folder.mkdir()
        (folder / "letter.txt").write_text("Dear")
        self.refused(kind, root, "is not a sparklog root and holds 'letter.txt': name an empty")
        (folder / kind.tables[0].name).mkdir()
        self.refused(kind, root, "holds 'letter.txt'")
        with pytest.raises(StorageError, match=r"holds 'letter\.txt'"):
            check_empty(root)

    def test_somebody_elses_delta_table(
        self,
        root: Location,
        kind: Kind,
    ) -> None:
        """A folder with another Delta table is refused."""
        create_table(root, kind.tables[0])
        self.refused(kind, root.child(kind.tables[0].name), "holds '_delta_log'")

    def test_a_file(
        self,
        root: Location,
        kind: Kind,
    ) -> None:
        """A path to a file, or below one, is refused."""
        Path(root.uri).write_text("")
        self.refused(kind, root, "is a file: name a folder")
        self.refused(kind, root.child("below"), "Not a directory")

    def test_the_other_kind_of_root(
        self,
        root: Location,
        kind: Kind,
    ) -> None:
        """A root of the other kind is refused."""
        if kind is BROKER:
            ClusterRoot.create(root)
            self.refused(kind, root, "is a cluster root: name the broker root")
        else:
            create_broker(root)
            self.refused(kind, root, "is a broker root: name the cluster root")

    def test_the_other_kind_of_root_unfinished(
        self,
        root: Location,
        kind: Kind,
    ) -> None:
        """An incomplete root of the other kind is refused."""
        other = CLUSTER_TABLES if kind is BROKER else BROKER_TABLES
        create_table(root, other[0])
        self.refused(kind, root, f"is not a sparklog root and holds '{other[0].name}'")
        check_empty(root)

    def test_an_unknown_format(
        self,
        root: Location,
        kind: Kind,
    ) -> None:
        """A root with a newer format is refused, and one with a format that is too old."""
        kind.create(root)
        for version, said in ((4, "start the release that upgraded"), (1, "first upgrade the")):
            table = ControlTable(root, FORMAT)
            row = format_row(root) | {"schema_version": version}
            table.compare_and_set(FORMAT.rows([row]))
            self.refused(
                kind, root, f"has format {version}, and sparklog ", "knows formats 2 to 3", said
            )

    def test_a_format_table_that_cannot_be_read(
        self,
        root: Location,
        kind: Kind,
    ) -> None:
        """A root with an unreadable format table is refused."""
        kind.create(root)
        Path(root.uri, FORMAT.name, "_delta_log", f"{0:020}.json").write_text("nonsense")
        self.refused(kind, root, "format/_delta_log/", " is damaged: ", "restore it")


def test_a_broker_root_belongs_to_one_broker_of_one_cluster(root: Location) -> None:
    """A broker root is refused for another broker and for another cluster."""
    create_broker(root)
    before = files(Path(root.uri))
    with pytest.raises(
        StorageError,
        match="belongs to broker 7 of cluster a-cluster, not to broker 8 of cluster a-cluster: "
        "give every broker a log directory of its own",
    ):
        BrokerRoot.create(root, "a-cluster", 8)
    with pytest.raises(StorageError, match="not to broker 7 of cluster another"):
        BrokerRoot.create(root, "another", 7)
    assert files(Path(root.uri)) == before


def test_a_cluster_that_is_not_there_is_not_made_by_opening_it(root: Location) -> None:
    """Opening a missing root raises `StorageError` and creates nothing."""
    with pytest.raises(StorageError, match=r"there is no cluster root at .*: check the path"):
        ClusterRoot(root)
    with pytest.raises(StorageError, match="there is no table at"):
        taken_over(root, 1)
    assert not Path(root.uri).exists()


class TestOpening:
    def test_a_broker_fences_every_table_before_it_reads(self, root: Location) -> None:
        """A broker writes its epoch to every table before it reads any."""
        create_broker(root)
        opened = taken_over(root, 3)
        assert opened.commits() == len(BROKER_TABLES) - 5
        # Clients write to the request table, so an epoch there would prove nothing. The checkpoint
        # of the log cleaner and of the past are fenced when they are first opened.
        without = (PRODUCE_REQUESTS, CLEANER_OFFSET_CHECKPOINT, TRUNCATIONS, REPLICA_HISTORY)
        for table in BROKER_TABLES:
            held = open_delta_table(root.child(table.name)).transaction_version(BROKER_EPOCH)
            assert held == (None if table in without else 3)

    def test_an_older_process_of_the_broker_neither_opens_nor_writes(self, root: Location) -> None:
        """An older process of a broker can neither open its root nor write to it."""
        create_broker(root)
        # The batch below has no file that could be synced.
        root = Location.of(root.uri, {"/": {"sync": "false"}})
        old = taken_over(root, 3)
        new = taken_over(root, 4)
        with pytest.raises(FencedError):
            taken_over(root, 3)
        with pytest.raises(FencedError):
            old.log.commit([batch(0)])
        with pytest.raises(FencedError):
            old.delayed_operations.update(
                lambda _: (DELAYED_OPERATIONS.rows([{}]), None), old.fence
            )
        new.log.commit([batch(0)])

    def test_every_table_of_a_cluster_is_at_hand(self, root: Location) -> None:
        """A cluster root has an attribute for each of its tables."""
        cluster = ClusterRoot.create(root)
        for table in CLUSTER_TABLES:
            assert getattr(cluster, table.name).schema is table
        assert ClusterRoot(root).cluster_id == cluster.cluster_id


class TestReleases:
    """A later release has one additional table; its name is not in the root's `format`."""

    @pytest.fixture
    def later(self, kind: Kind) -> TableSchema:
        """Return the table that the later release adds to this kind of root."""
        return kind.tables[1]._replace(name="scrub_results")

    @pytest.fixture
    def upgrade(
        self, kind: Kind, later: TableSchema, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[[], None]:
        """Return a function that turns this process into one of the later release."""
        name = "BROKER_TABLES" if kind is BROKER else "CLUSTER_TABLES"
        return partial(monkeypatch.setattr, model, name, (*kind.tables, later))

    def test_create_the_tables_that_they_add(
        self, root: Location, kind: Kind, later: TableSchema, upgrade: Callable[[], None]
    ) -> None:
        """Opening a root with a later release creates the table that the release adds."""
        kind.create(root)
        ids = {table.name: table_identity(root.child(table.name)) for table in kind.tables}
        upgrade()
        kind.create(root)
        assert ControlTable(root, later).rows().num_rows == 0
        assert {name: table_identity(root.child(name)) for name in ids} == ids
        before = files(Path(root.uri))
        kind.create(root)
        assert files(Path(root.uri)) == before

    def test_create_no_table_in_place_of_a_lost_one(
        self, root: Location, kind: Kind, later: TableSchema, upgrade: Callable[[], None]
    ) -> None:
        """This holds also for a table that a later release has added.

        Of a broker's tables this is `log`: the broker recreates the others from it.
        """
        kind.create(root)
        upgrade()
        kind.create(root)
        for table in (*kind.tables, later) if kind is CLUSTER else (LOG,):
            moved = Path(root.uri).with_name("moved")
            shutil.move(Path(root.uri, table.name), moved)
            before = files(Path(root.uri))
            with pytest.raises(DamagedError, match=f"{table.name} is damaged: it is missing"):
                kind.create(root)
            assert files(Path(root.uri)) == before
            assert not Path(root.uri, table.name).exists()
            shutil.move(moved, Path(root.uri, table.name))
        kind.create(root)

    def test_know_the_tables_of_roots_that_do_not_list_them(
        self, root: Location, kind: Kind
    ) -> None:
        """Releases without that list created all tables except the groups' heartbeats."""
        kind.create(root)
        format_table = ControlTable(root, FORMAT)
        format_table.compare_and_set(FORMAT.rows([format_row(root) | {"tables": None}]))
        if kind is CLUSTER:
            shutil.rmtree(Path(root.uri, "consumer_group_heartbeats"))
        kind.create(root)
        unlisted = UNLISTED_CLUSTER_TABLES if kind is CLUSTER else UNLISTED_BROKER_TABLES
        listed = {table.name for table in kind.tables} | unlisted
        assert sorted(json.loads(str(format_row(root)["tables"]))) == sorted(listed)
        format_table.refresh()
        format_table.compare_and_set(FORMAT.rows([format_row(root) | {"tables": None}]))
        shutil.rmtree(Path(root.uri, kind.tables[0].name))
        with pytest.raises(DamagedError, match="it is missing"):
            kind.create(root)

    def test_add_a_table_to_one_root_at_the_same_time(
        self, root: Location, kind: Kind, later: TableSchema, upgrade: Callable[[], None]
    ) -> None:
        """Four processes of a later release add their table to one root without an error."""
        kind.create(root)
        upgrade()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: kind.create(root), range(4)))
        assert later.name in json.loads(str(format_row(root)["tables"]))
        assert table_identity(root.child(later.name))[1] == 0

    def test_leave_a_root_alone_whose_format_is_lost(self, root: Location, kind: Kind) -> None:
        """An interrupted creation leaves only empty tables; the tables here have later commits."""
        kind.create(root)
        shutil.rmtree(Path(root.uri, FORMAT.name))
        written = ControlTable(root, kind.tables[1])
        written.compare_and_set(kind.tables[1].rows([{}]))
        before = files(Path(root.uri))
        with pytest.raises(DamagedError, match="format is damaged: it is missing"):
            kind.create(root)
        assert files(Path(root.uri)) == before


class TestDurability:
    def test_a_new_roots_tables_and_the_folders_that_lead_to_it_are_synced(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise a power loss could remove a root together with everything synced in it
        later.
        """
        synced: set[str] = set()

        class Recorded(LocalFiles):
            def sync(self, path: str) -> None:
                super().sync(path)
                synced.add(path)

        monkeypatch.setattr(local_files, "FILES", Recorded())
        root = tmp_path / "new" / "root"
        ClusterRoot.create(Location.of(str(root)))
        assert {str(root), *map(str, root.parents)} <= synced
        for schema in (*CLUSTER_TABLES, FORMAT):
            table = root / schema.name
            log = table / "_delta_log"
            assert {str(table), str(log), str(log / f"{0:020}.json")} <= synced

    def test_nothing_is_synced_where_that_is_turned_off(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With `sync` = false the creation of a root syncs nothing."""

        class NoSync(LocalFiles):
            def sync(self, path: str) -> None:
                raise AssertionError(path)

        monkeypatch.setattr(local_files, "FILES", NoSync())
        folder = str(tmp_path / "root")
        ClusterRoot.create(Location.of(folder, {folder: {"sync": "false"}}))


def test_a_root_that_another_process_has_created_meanwhile_is_opened(
    root: Location, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A root that is created and written to while this process creates it is not damaged."""
    kind.create(root)
    if kind is CLUSTER:
        ClusterRoot(root).topics.update(lambda rows: (rows, None))
    else:
        taken_over(root, 1)
    before = files(Path(root.uri))
    known = read_format(root)
    assert known is not None
    found = root_format.create_root(root, kind.tables, "another", known.broker_id)
    assert found == known
    assert files(Path(root.uri)) == before
