"""Sharded tables: a change commits the files of its rows, and a lost race needs no new decision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.broker.tick import StoppedError
from sparklog.errors import CommitConflictError, DamagedError, FencedError
from sparklog.model import CONSUMER_OFFSETS, PARTITION_STATE, TableSchema
from sparklog.storage import shard_rewrites
from sparklog.storage.commits import CONTROLLER_EPOCH
from sparklog.storage.control_table import ControlTable, create_table
from sparklog.storage.delta_snapshots import open_delta_table
from sparklog.storage.fence import Fence
from sparklog.storage.location import Location
from sparklog.storage.shard_rewrites import DecidedChanges, RowChanges, rewrites, rewritten
from sparklog.storage.sharded_table import ShardedTable
from sparklog.storage.shards import Key, Shard, ShardedRows, changed_units
from tests.faulty_files import Failure, FaultyFiles

SCHEMA = TableSchema(
    "sharded",
    pa.schema([("unit", pa.string()), ("number", pa.int32()), ("value", pa.string())]),
    key=("unit", "number"),
    conflict_key=("unit",),
)
Model = dict[Key, str]


def table_of(model: Model) -> pa.Table:
    return SCHEMA.rows(
        [{"unit": unit, "number": n, "value": value} for (unit, n), value in model.items()]
    )


def model_of(rows: pa.Table) -> Model:
    found = [((row["unit"], row["number"]), row["value"]) for row in rows.to_pylist()]
    assert len(found) == len(dict(found)), "a key is there twice"
    return dict(found)


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_rewrites, "ROWS_PER_FILE", 4)


@pytest.fixture
def table(root: Location, small_files: None) -> ShardedTable:
    """A table of thirty units with two rows each, two units in a file."""
    create_table(root, SCHEMA)
    made = ShardedTable(root, SCHEMA)
    made.compare_and_set(table_of({(f"u{n:02}", k): "" for n in range(30) for k in range(2)}))
    assert len(files_of(made)) == 15
    return made


def files_of(table: ControlTable) -> set[str]:
    """Return the live files as another Delta reader reads them."""
    return {Path(uri).name for uri in open_delta_table(table.location).file_uris()}


def stored_files(table: ControlTable) -> set[str]:
    return {path.name for path in Path(table.location.uri).glob("*.parquet")}


def live_rows(table: ControlTable) -> Model:
    """Return the rows as another Delta reader reads them."""
    uris = open_delta_table(table.location).file_uris()
    return model_of(pa.concat_tables([pq.read_table(uri) for uri in uris]))


class Writer:
    """A handle that appends a letter to the values of units, and counts its decisions."""

    def __init__(self, table: ControlTable) -> None:
        self.table = ShardedTable(table.root, SCHEMA)
        self.decided: list[set[str]] = []

    def append(
        self,
        letter: str,
        *units: str,
        meanwhile: Callable[[], object] = lambda: None,
        fence: Fence | None = None,
        is_unit_wise: bool = True,
    ) -> None:
        def decide(rows: pa.Table) -> RowChanges:
            self.decided.append(set(rows["unit"].to_pylist()))
            if len(self.decided) == 1:
                meanwhile()
            model = {key: value + letter for key, value in model_of(rows).items()}
            return RowChanges(table_of(model))

        wanted = [(unit,) for unit in units] if units else None
        self.table.change_rows(decide, wanted, fence, is_unit_wise=is_unit_wise)


class TestAChange:
    def test_commits_the_file_of_its_rows(self, table: ShardedTable) -> None:
        """A change of one unit replaces one file."""
        before = files_of(table)
        Writer(table).append("a", "u07")
        after = files_of(table)
        assert (len(before - after), len(after - before)) == (1, 1)
        assert {key for key, value in live_rows(table).items() if value} == {("u07", 0), ("u07", 1)}

    def test_is_read_from_its_file_alone(
        self, table: ShardedTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A reader reads only the file that a change has written."""
        reader = ShardedTable(table.root, SCHEMA)
        before = reader.sharded_rows()
        read: list[str] = []
        original = ControlTable.read_file

        def counted(of: ControlTable, path: str) -> pa.Table:
            read.append(path)
            return original(of, path)

        Writer(table).append("a", "u07")
        monkeypatch.setattr(ControlTable, "read_file", counted)
        reader.refresh()
        after = reader.sharded_rows()
        assert (len(read), changed_units(before, after)) == (1, {("u07",)})
        assert model_of(reader.rows()) == live_rows(table)

    def test_leaves_the_order_of_the_other_rows(self, table: ShardedTable) -> None:
        """A change keeps the order of the other rows."""
        order = list(model_of(table.rows()))
        Writer(table).append("a", "u07", "u21")
        table.refresh()
        assert list(model_of(table.rows())) == order
        assert list(model_of(ShardedTable(table.root, SCHEMA).rows())) == order

    def test_of_nothing_commits_nothing(self, table: ShardedTable) -> None:
        """A change that changes no row makes no commit."""
        version = table.version
        assert not table.change_rows(lambda _: None)
        table.change_rows(lambda _: RowChanges(table_of({}), frozenset({("x", 1)})))
        assert (table.version, table.commits) == (version, 1)

    def test_of_all_rows_may_leave_none(self, table: ShardedTable) -> None:
        """A change may remove all rows, and rows can be added again."""
        everything = frozenset(model_of(table.rows()))
        table.change_rows(lambda _: RowChanges(table_of({}), everything))
        assert files_of(table) == set()
        assert ShardedTable(table.root, SCHEMA).rows().num_rows == 0
        table.change_rows(lambda _: RowChanges(table_of({("x", 0): "first"})))
        assert live_rows(table) == {("x", 0): "first"}

    def test_may_grow_a_unit_beyond_a_file(self, table: ShardedTable) -> None:
        """The rows of one large group are not written with each of its commits."""
        many = {("u00", n): "" for n in range(40)}
        table.change_rows(lambda _: RowChanges(table_of(many)), [("u00",)])
        holding = [one for one in table.sharded_rows().shards.values() if ("u00",) in one.units]
        assert len(holding) > 5
        before = files_of(table)
        table.change_rows(lambda _: RowChanges(table_of({("u00", 20): "a"})), [("u00",)])
        assert len(before - files_of(table)) == 1
        assert model_of(table.rows_of([("u00",)])) == many | {("u00", 20): "a"}

    def test_is_refused_where_it_has_a_key_twice(self, table: ShardedTable) -> None:
        """A change with two rows of one key raises `ValueError`."""
        twice = pa.concat_tables([table_of({("x", 0): ""})] * 2)
        with pytest.raises(ValueError, match="two rows with one key"):
            table.change_rows(lambda _: RowChanges(twice))


@pytest.mark.parametrize("failure", ["full", "torn", "refused"])
def test_a_change_that_fails_leaves_no_file(
    table: ShardedTable, tmp_path: Path, failure: Failure
) -> None:
    """The disk is full at the second of three files, or the commit is refused."""
    stored = stored_files(table)
    folder = table.location.uri + ("/_delta_log" if failure == "refused" else "")
    (tmp_path / "stash").mkdir()
    files = FaultyFiles(tmp_path / "stash")
    with files.installed():
        files.fail(folder, failure, skip=failure != "refused")
        with pytest.raises(OSError, match="failed on request"):
            Writer(table).append("a", "u01", "u15", "u28")
    assert stored_files(table) == stored
    assert set(live_rows(table).values()) == {""}
    Writer(table).append("b", "u01", "u15", "u28")
    assert sorted(live_rows(table).values())[-6:] == ["b"] * 6


class TestALostRace:
    def test_for_other_files_commits_the_same_file(self, table: ShardedTable) -> None:
        """After losing a race against a change of other files, the same file is committed."""
        stored = stored_files(table)
        writer, other = Writer(table), Writer(table)
        writer.append("a", "u01", meanwhile=lambda: other.append("b", "u28"))
        assert writer.decided == [{"u01"}]
        assert len(stored_files(table) - stored) == 2, "one for each writer"
        rows = live_rows(table)
        assert (rows["u01", 0], rows["u28", 0]) == ("a", "b")

    def test_for_other_rows_of_its_file_writes_that_again(self, table: ShardedTable) -> None:
        """After losing a race against other rows of its file, the file is written again without a
        decision.
        """
        stored = stored_files(table)
        [neighbours] = [
            [unit for (unit,) in shard.units]
            for shard in table.sharded_rows().shards.values()
            if ("u01",) in shard.units
        ]
        assert len(neighbours) > 1
        [other_unit] = set(neighbours) - {"u01"}
        writer, other = Writer(table), Writer(table)
        writer.append("a", "u01", meanwhile=lambda: other.append("b", other_unit))
        assert writer.decided == [{"u01"}]
        assert len(stored_files(table) - stored) == 2
        rows = live_rows(table)
        assert (rows["u01", 0], rows[other_unit, 0]) == ("a", "b")

    def test_for_its_rows_is_decided_again_on_these(self, table: ShardedTable) -> None:
        """After losing a race for some of its rows, the change is decided again for these rows."""
        writer, other = Writer(table), Writer(table)
        writer.append("a", "u01", "u15", "u28", meanwhile=lambda: other.append("b", "u15"))
        assert writer.decided == [{"u01", "u15", "u28"}, {"u15"}]
        rows = live_rows(table)
        assert [rows[unit, 0] for unit in ("u01", "u15", "u28")] == ["a", "ba", "a"]

    def test_is_decided_again_on_all_rows_where_it_depends_on_all(
        self, table: ShardedTable
    ) -> None:
        """A decision that depends on all rows is repeated for all rows after a lost race."""
        writer, other = Writer(table), Writer(table)
        writer.append("a", meanwhile=lambda: other.append("b", "u15"), is_unit_wise=False)
        assert [len(one) for one in writer.decided] == [30, 30]
        rows = live_rows(table)
        assert (rows["u15", 0], rows["u16", 0]) == ("ba", "a")

    def test_for_rows_that_came_is_decided_upon_these(self, table: ShardedTable) -> None:
        """Rows that another writer has added meanwhile are decided in addition."""

        def add() -> None:
            ShardedTable(table.root, SCHEMA).change_rows(
                lambda _: RowChanges(table_of({("new", 0): ""})), [("new",)]
            )

        writer = Writer(table)
        writer.append("a", meanwhile=add)
        assert [len(one) for one in writer.decided] == [30, 1]
        assert set(live_rows(table).values()) == {"a"}

    def test_to_a_fence_writes_nothing(self, table: ShardedTable) -> None:
        """A change that loses a race against a newer fence raises `FencedError` and leaves no
        file.
        """
        table.take_fence(Fence(CONTROLLER_EPOCH, 1))
        stored, writer = stored_files(table), Writer(table)
        newer = ShardedTable(table.root, SCHEMA)
        with pytest.raises(FencedError, match="held by controller_epoch 2"):
            writer.append(
                "a",
                "u01",
                meanwhile=lambda: newer.take_fence(Fence(CONTROLLER_EPOCH, 2)),
                fence=Fence(CONTROLLER_EPOCH, 1),
            )
        assert stored_files(table) == stored
        assert set(live_rows(table).values()) == {""}

    def test_to_a_thread_of_the_same_handle_is_noticed(self, table: ShardedTable) -> None:
        """A lost race against a thread that refreshed the same handle is detected."""
        writer, other = Writer(table), Writer(table)

        def meanwhile() -> None:
            other.append("b", "u01")
            writer.table.refresh()

        writer.append("a", "u01", meanwhile=meanwhile)
        assert (len(writer.decided), live_rows(table)["u01", 0]) == (2, "ba")

    def test_against_a_whole_overwrite_is_seen_by_both(self, table: ShardedTable) -> None:
        """A change lands after a complete overwrite; a second overwrite of the old version is
        refused.
        """
        writer, whole = Writer(table), ShardedTable(table.root, SCHEMA)
        writer.append("a", "u01", meanwhile=lambda: whole.compare_and_set(whole.rows()))
        assert writer.decided == [{"u01"}]
        with pytest.raises(CommitConflictError):
            whole.compare_and_set(whole.rows())
        assert live_rows(table)["u01", 0] == "a"


class TestOneFile:
    """A table as the previous release has written it, which goes on writing to it."""

    @pytest.mark.usefixtures("small_files")
    def test_is_read_and_split_by_the_first_change(self, root: Location) -> None:
        """The first change splits the single file of an older table."""
        create_table(root, SCHEMA)
        older = ControlTable(root, SCHEMA)
        rows = {(f"u{n:02}", 0): "" for n in range(30)}
        older.compare_and_set(table_of(rows))
        assert len(files_of(older)) == 1
        table = ShardedTable(root, SCHEMA)
        assert model_of(table.rows()) == rows
        Writer(table).append("a", "u03")
        assert len(files_of(older)) > 5
        older.refresh()
        assert model_of(older.rows()) == live_rows(table) == rows | {("u03", 0): "a"}

    def test_written_by_the_last_release_between_two_changes(self, table: ShardedTable) -> None:
        """A complete overwrite by the previous release between two changes loses no row."""
        older, writer = ControlTable(table.root, SCHEMA), Writer(table)

        def overwrite() -> None:
            rows = model_of(older.rows()) | {("u02", 0): "older"}
            older.compare_and_set(table_of(rows))

        writer.append("a", "u01", meanwhile=overwrite)
        assert writer.decided == [{"u01"}]
        rows = live_rows(table)
        assert (rows["u01", 0], rows["u02", 0], len(rows)) == ("a", "older", 60)

    @pytest.mark.usefixtures("small_files")
    def test_columns_of_a_later_release_keep_their_values(self, root: Location) -> None:
        """Columns of a later release keep their values when this release changes a row."""
        later = SCHEMA._replace(columns=SCHEMA.columns.append(pa.field("scrubbed", pa.int64())))
        create_table(root, later)
        keys = [(f"u{n:02}", 0) for n in range(20)]
        ShardedTable(root, later).compare_and_set(
            later.rows(
                [
                    {"unit": unit, "number": k, "value": "", "scrubbed": n}
                    for n, (unit, k) in enumerate(keys)
                ]
            )
        )
        Writer(ControlTable(root, SCHEMA)).append("a", "u03", "u11")
        found = ShardedTable(root, later).rows().to_pylist()
        assert [(row["unit"], row["scrubbed"]) for row in found] == [
            (unit, n) for n, (unit, _) in enumerate(keys)
        ]
        assert [row["unit"] for row in found if row["value"]] == ["u03", "u11"]


@pytest.mark.parametrize("schema", [PARTITION_STATE, CONSUMER_OFFSETS], ids=lambda one: one.name)
def test_a_change_of_one_row_costs_the_same_files_in_a_large_table(
    root: Location, schema: TableSchema
) -> None:
    """The limit is one file of at most two shares, for any number of rows."""
    create_table(root, schema)
    table = ShardedTable(root, schema)

    def rows(count: int) -> pa.Table:
        nothing = dict.fromkeys(schema.columns.names)
        of = [name for name in schema.key if name != "partition"]
        return schema.rows(
            [
                nothing | {"partition": n} | {name: _value(schema, name, n) for name in of}
                for n in range(count)
            ]
        )

    sizes = {}
    for count in (100, 12_000):
        table.compare_and_set(rows(count))
        before = files_of(table)
        one = table.rows().slice(50, 1)
        key = tuple(one[name][0].as_py() for name in schema.conflict_key)
        table.change_rows(lambda rows: RowChanges(rows.slice(0, 1)), [key])
        [new] = files_of(table) - before
        sizes[count] = pq.read_metadata(Path(table.location.uri, new)).num_rows
    assert sizes == {100: 100, 12_000: pytest.approx(512, abs=256)}


def _value(schema: TableSchema, name: str, number: int) -> object:
    return f"{number // 100:05}" if schema.columns.field(name).type == pa.string() else number % 3


class Change(NamedTuple):
    """A change of some units, as a function of the rows of each unit."""

    kind: str
    units: frozenset[str] | None
    letter: str

    def of(self, rows: Model) -> tuple[Model, set[Key]]:
        """Return the rows to write and the keys to remove, for each unit."""
        put: Model = {}
        removed: set[Key] = set()
        for unit in {unit for unit, _ in rows}:
            numbers = sorted(n for of, n in rows if of == unit)
            if self.kind == "append":
                put |= {(unit, n): rows[unit, n] + self.letter for n in numbers}
            elif self.kind == "one":
                put[unit, numbers[0]] = rows[unit, numbers[0]] + self.letter
            elif self.kind == "grow":
                last = rows[unit, numbers[-1]]
                put |= {(unit, numbers[-1] + k): last + self.letter for k in (1, 2, 3)}
            elif self.kind == "shrink" and len(numbers) > 1:
                removed.add((unit, numbers[-1]))
            elif self.kind == "replace":
                removed |= {(unit, n) for n in numbers}
                put[unit, 0] = "".join(rows[unit, n] for n in numbers)[-20:] + self.letter
        return put, removed

    def serially(self, model: Model) -> Model:
        put, removed = self.of(
            {key: v for key, v in model.items() if self.units is None or key[0] in self.units}
        )
        return {key: v for key, v in model.items() if key not in removed} | put

    def decide(self, rows: pa.Table) -> RowChanges:
        put, removed = self.of(model_of(rows))
        return RowChanges(table_of(put), frozenset(removed))


UNITS = [f"u{n}" for n in range(8)]
CHANGES = st.builds(
    Change,
    st.sampled_from(["append", "one", "grow", "shrink", "replace"]),
    st.one_of(st.none(), st.frozensets(st.sampled_from(UNITS), min_size=1, max_size=3)),
    st.sampled_from("abcdefgh"),
)
FAILURES: list[Failure] = ["refused", "landed", "repeated", "unknown", "dies", "died"]


class Interrupted(ShardedTable):
    """Another writer makes the next of these changes before each commit."""

    meanwhile: Iterator[Callable[[], object]] = iter(())

    def _commit_shards(self, *arguments: Any) -> None:
        next(self.meanwhile, lambda: None)()
        super()._commit_shards(*arguments)


ROUNDS = st.lists(
    st.tuples(
        CHANGES,
        st.lists(CHANGES, max_size=3),
        st.tuples(st.sampled_from([None, *FAILURES]), st.integers(0, 6)),
    ),
    min_size=1,
    max_size=5,
)


@settings(deadline=None, max_examples=60)
@given(rounds=ROUNDS)
def test_two_writers_give_the_serial_result(
    rounds: list[tuple[Change, list[Change], tuple[Failure | None, int]]],
) -> None:
    """Two writers give the result of a serial order, also if the outcome of a commit is unknown.

    The changes are made one after another in the order of their versions; each version is compared.
    """
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_rewrites, "ROWS_PER_FILE", 3)
        root = Location.of(f"{folder}/root", {folder: {"sync": "false"}})
        stash = Path(folder, "stash")
        stash.mkdir()
        create_table(root, SCHEMA)
        first, other = Interrupted(root, SCHEMA), ShardedTable(root, SCHEMA)
        start = {(unit, k): "" for unit in UNITS for k in range(2)}
        first.compare_and_set(table_of(start))
        made: dict[int, Change | None] = {1: None}

        def make(table: ShardedTable, change: Change) -> None:
            commits = table.commits
            units = None if change.units is None else [(unit,) for unit in change.units]
            try:
                table.change_rows(change.decide, units)
            except (OSError, StoppedError, DamagedError):
                files.calm()
                version = ControlTable(root, SCHEMA).version
                if version not in made:
                    made[version] = change
                raise
            if table.commits > commits:
                assert table.version not in made
                made[table.version] = change

        with FaultyFiles(stash).installed() as files:
            for change, meanwhile, (failure, skip) in rounds:
                first.meanwhile = iter([partial(make, other, one) for one in meanwhile])
                if failure is not None:
                    files.fail(f"{root.uri}/sharded/_delta_log", failure, skip)
                try:
                    make(first, change)
                except (OSError, StoppedError, DamagedError):
                    first, other = Interrupted(root, SCHEMA), ShardedTable(root, SCHEMA)
                files.calm()
        newest = ShardedTable(root, SCHEMA)
        assert sorted(made) == list(range(1, newest.version + 1))
        expected = start
        for version, change_made in sorted(made.items()):
            expected = change_made.serially(expected) if change_made else expected
            assert model_of(newest.rows_at(version)) == expected
        first.refresh()
        other.refresh()
        assert model_of(first.rows()) == model_of(other.rows()) == expected


KEYS: st.SearchStrategy[Key] = st.tuples(st.sampled_from(UNITS), st.integers(0, 30))
ROWS = st.dictionaries(KEYS, st.text("xy", max_size=2), max_size=60)


@settings(deadline=None)
@given(
    steps=st.lists(st.tuples(ROWS, st.sets(st.tuples(st.sampled_from(UNITS), st.integers(0, 30)))))
)
def test_rewrites_make_the_changes_in_files_of_bounded_number_and_size(
    steps: list[tuple[Model, set[Key]]],
) -> None:
    """Rewrites give the changed rows in files of at most 12 rows, and report the changed units."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_rewrites, "ROWS_PER_FILE", 4)
        live, expected, count = ShardedRows({}, SCHEMA), Model(), 0
        for put, removed in steps:
            before = live
            changes = DecidedChanges(SCHEMA)
            changes.replace(RowChanges(table_of(put), frozenset(removed)), None)
            shards = dict(live.shards)
            for rewrite in rewrites(live, changes):
                for path in rewrite.sources:
                    del shards[path]
                for rows in rewritten(live, changes, rewrite):
                    assert 0 < rows.num_rows <= 12
                    count += 1
                    shards[f"{count:05}"] = Shard(rows, SCHEMA)
            live = ShardedRows(shards, SCHEMA)
            former = expected
            expected = {key: v for key, v in expected.items() if key not in removed} | put
            assert model_of(live.rows) == expected
            keys = former.keys() | expected.keys()
            changed = {key[:1] for key in keys if former.get(key) != expected.get(key)}
            assert changed_units(before, live) == changed
            assert live.rows_of([(unit,) for unit in UNITS]).num_rows == len(expected)
