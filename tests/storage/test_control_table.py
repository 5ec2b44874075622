"""Control tables: compare-and-set, fences, and many commits."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.transaction import AddAction

from sparklog.errors import (
    CommitConflictError,
    DamagedError,
    FencedError,
    StorageError,
    TableReplacedError,
)
from sparklog.model import (
    BROKER_TABLES,
    BROKERS,
    CLUSTER_TABLES,
    CONSUMER_OFFSETS,
    CONTROLLER,
    DELAYED_OPERATIONS,
    FORMAT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG,
    PARTITION_STATE,
    PRODUCE_REQUESTS,
    TOPICS,
    TableSchema,
)
from sparklog.storage.commits import BROKER_EPOCH, CONTROLLER_EPOCH, LOG_VERSION
from sparklog.storage.control_table import ControlTable, create_table
from sparklog.storage.delta_checkpoints import await_checkpoints
from sparklog.storage.delta_log_files import commit_path
from sparklog.storage.delta_snapshots import open_delta_table, table_identity
from sparklog.storage.fence import Fence
from sparklog.storage.file_copies import copy_path
from sparklog.storage.location import Location
from tests.storage import racing
from tests.storage.racing import Processes

AfterNext = Callable[[str, Callable[[], object]], None]
BUSY_TABLES = [
    HIGH_WATERMARK_CHECKPOINT,
    PRODUCE_REQUESTS,
    DELAYED_OPERATIONS,
]
CONTROL_TABLES = [
    one
    for one in (*CLUSTER_TABLES, *BROKER_TABLES, FORMAT)
    if one is not LOG and one is not PRODUCE_REQUESTS
]


def made(root: Location, schema: TableSchema = CONTROLLER) -> ControlTable:
    create_table(root, schema)
    return ControlTable(root, schema)


def lease(sequence: int, broker_id: int = 0) -> pa.Table:
    row = {"broker_id": broker_id, "controller_epoch": 1, "lease_sequence": sequence}
    return CONTROLLER.rows([row])


def sequence(table: ControlTable) -> int:
    [row] = table.rows().to_pylist()
    return int(row["lease_sequence"])


def operations(*ids: str) -> pa.Table:
    return DELAYED_OPERATIONS.rows([{"operation_id": one} for one in ids])


def clean_up(table: ControlTable, below: int) -> None:
    """Delete the commits below a version, as delta-rs does when they are thirty days old."""
    await_checkpoints()
    for version in range(below):
        Path(table.location.uri, "_delta_log", f"{version:020}.json").unlink()


def add_file(table: ControlTable, file: Path) -> None:
    """Commit a file by delta-rs, as any engine may, and load it."""
    delta = open_delta_table(table.location)
    add = AddAction(file.name, file.stat().st_size, {}, 0, True, "{}")
    delta.create_write_transaction([add], "append", delta.schema())
    table.refresh()


def newest(root: Location, schema: TableSchema) -> int:
    return ControlTable(root, schema).version


class TestCompareAndSet:
    def test_refuses_the_second_writer_and_keeps_the_first_ones_row(self, root: Location) -> None:
        """The second of two compare-and-sets of one version is refused; the first one's row
        stays.
        """
        first, second = made(root), ControlTable(root, CONTROLLER)
        first.compare_and_set(lease(1, broker_id=1))
        with pytest.raises(CommitConflictError, match="controller moved past version 0: reload"):
            second.compare_and_set(lease(2, broker_id=2))
        assert ControlTable(root, CONTROLLER).rows().equals(lease(1, broker_id=1))
        assert (first.commits, second.commits) == (1, 0)

        assert second.refresh()
        second.compare_and_set(lease(2, broker_id=2))
        assert ControlTable(root, CONTROLLER).rows().equals(lease(2, broker_id=2))

    def test_a_refused_writer_still_shows_what_it_had_loaded(self, root: Location) -> None:
        """A refused writer keeps the rows and the version that it had loaded."""
        first, second = made(root), ControlTable(root, CONTROLLER)
        first.compare_and_set(lease(1))
        with pytest.raises(CommitConflictError):
            second.compare_and_set(lease(2))
        assert (second.version, second.rows().num_rows) == (0, 0)

    @pytest.mark.parametrize("schema", CONTROL_TABLES, ids=lambda schema: schema.name)
    def test_every_table_gives_back_what_it_was_given(
        self, root: Location, schema: TableSchema
    ) -> None:
        """Every table returns the rows that were written, with extreme values and nulls."""
        values = {
            pa.string(): "{\"é\": '\\n'}",
            pa.int32(): -(2**31),
            pa.int64(): 2**63 - 1,
            pa.bool_(): True,
        }
        full = {field.name: values[field.type] for field in schema.columns}
        rows = schema.rows([full, {}, full])
        table = made(root, schema)
        table.compare_and_set(rows)
        assert ControlTable(root, schema).rows().equals(rows)
        assert table.rows().equals(rows)

    def test_may_leave_a_table_empty(self, root: Location) -> None:
        """A compare-and-set may remove all rows."""
        table = made(root)
        table.compare_and_set(lease(1))
        table.compare_and_set(CONTROLLER.rows([]))
        assert table.rows().equals(CONTROLLER.rows([]))
        assert ControlTable(root, CONTROLLER).rows().equals(CONTROLLER.rows([]))

    def test_columns_may_come_in_any_order(self, root: Location) -> None:
        """The columns of new rows may have any order."""
        table = made(root)
        table.compare_and_set(lease(5).select(CONTROLLER.columns.names[::-1]))
        assert ControlTable(root, CONTROLLER).rows().equals(lease(5))

    def test_rows_that_do_not_fit_are_refused_unwritten(self, root: Location) -> None:
        """Rows with a missing column or a value out of range are refused without a commit."""
        table = made(root)
        with pytest.raises(KeyError):
            table.compare_and_set(lease(1).drop_columns("broker_id"))
        too_large = lease(1).set_column(0, "broker_id", pa.array([2**31]))
        with pytest.raises(pa.ArrowInvalid):
            table.compare_and_set(too_large)
        assert newest(root, CONTROLLER) == 0


class TestUpdate:
    def test_keeps_every_increment_of_four_processes(
        self, root: Location, processes: Processes
    ) -> None:
        """No increment of four processes is lost."""
        table = made(root)
        table.compare_and_set(lease(0))
        processes.run(racing.increment, root.uri, 25)
        assert table.refresh()
        assert sequence(table) == 25 * Processes.count
        assert table.version == 1 + 25 * Processes.count

    def test_decides_again_when_another_writer_was_faster(self, root: Location) -> None:
        """A decision is repeated when another writer was faster."""
        table, other = made(root), ControlTable(root, CONTROLLER)
        seen = []

        def change(rows: pa.Table) -> tuple[pa.Table, str]:
            seen.append(rows.num_rows)
            if len(seen) == 1:
                other.compare_and_set(lease(7))
            return lease(8), f"attempt {len(seen)}"

        assert table.update(change) == "attempt 2"
        assert seen == [0, 1]
        assert (sequence(table), table.commits) == (8, 1)

    def test_decides_again_when_the_table_was_loaded_within_the_decision(
        self, root: Location
    ) -> None:
        """The decision was made on the old rows; loading the new ones meanwhile must not hide
        that.
        """
        table, other = made(root), ControlTable(root, CONTROLLER)
        seen = []

        def change(rows: pa.Table) -> tuple[pa.Table, None]:
            seen.append(rows.num_rows)
            if len(seen) == 1:
                other.compare_and_set(lease(7))
                table.refresh()
            return lease(sum(rows["lease_sequence"].to_pylist()) + 1), None

        table.update(change)
        assert (seen, sequence(table)) == ([0, 1], 8)

    def test_keeps_every_increment_of_threads_that_share_a_handle(self, root: Location) -> None:
        """No increment of threads that share a handle is lost."""
        table = made(root)
        table.compare_and_set(lease(0))

        def increment(_: int) -> None:
            def change(rows: pa.Table) -> tuple[pa.Table, None]:
                found = sum(rows["lease_sequence"].to_pylist())
                table.refresh()
                return lease(found + 1), None

            table.update(change)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(increment, range(40)))
        assert sequence(ControlTable(root, CONTROLLER)) == 40

    def test_writes_nothing_where_nothing_is_to_be_changed(self, root: Location) -> None:
        """An update that changes nothing makes no commit."""
        table = made(root)
        assert table.update(lambda _: (None, "as it was")) == "as it was"
        assert (table.version, table.commits) == (0, 0)

    def test_gives_up_at_once_when_the_decision_fails(self, root: Location) -> None:
        """An error of the decision ends the update without a commit."""
        table = made(root)

        def change(_: pa.Table) -> tuple[pa.Table, None]:
            raise StorageError("decided against it")

        with pytest.raises(StorageError, match="decided against it"):
            table.update(change)
        assert newest(root, CONTROLLER) == 0


class TestFilesOfOthers:
    """Another engine may write a file whose columns differ from the table's."""

    def test_a_column_that_a_file_leaves_out_counts_as_null(self, root: Location) -> None:
        """A column that is missing in a file is read as null."""
        table = made(root, DELAYED_OPERATIONS)
        file = Path(table.location.uri, "of-another.parquet")
        pq.write_table(pa.table({"kind": ["k"], "operation_id": ["o"]}), file)
        add_file(table, file)
        expected = DELAYED_OPERATIONS.rows([{"kind": "k", "operation_id": "o"}])
        assert table.read_file(file.name).equals(expected)
        assert table.rows().equals(expected)

    def test_other_columns_and_types_that_can_be_read_are_read(self, root: Location) -> None:
        """Additional columns are ignored, and convertible types are converted."""
        table = made(root, DELAYED_OPERATIONS)
        pq.write_table(
            pa.table({"x": [1], "partition": pa.array([3], pa.int64()), "operation_id": ["o"]}),
            Path(table.location.uri, "of-another.parquet"),
        )
        expected = DELAYED_OPERATIONS.rows([{"partition": 3, "operation_id": "o"}])
        assert table.read_file("of-another.parquet").equals(expected)


class TestVersions:
    def test_rows_at_gives_every_earlier_version(self, root: Location) -> None:
        """`rows_at` returns the rows of every earlier version."""
        table = made(root)
        for index in range(5):
            table.compare_and_set(lease(index))
        found = [table.rows_at(version)["lease_sequence"].to_pylist() for version in range(6)]
        assert found == [[], [0], [1], [2], [3], [4]]
        assert sequence(table) == 4

    def test_rows_at_a_version_that_was_never_there_says_so(self, root: Location) -> None:
        """`rows_at` of a version that never existed reports that the root was lost or restored."""
        table = made(root)
        with pytest.raises(StorageError, match=r"no version 9 .* the root was lost or restored"):
            table.rows_at(9)

    def test_rows_at_a_version_that_was_cleaned_up_says_so(self, root: Location) -> None:
        """`rows_at` of a cleaned-up version reports the clean-up."""
        table = made(root)
        for index in range(100):
            table.compare_and_set(lease(index))
        clean_up(table, below=100)
        with pytest.raises(StorageError, match=r"no version 50 .*: it was cleaned up"):
            table.rows_at(50)
        assert table.rows_at(100).equals(lease(99))

    def test_more_commits_than_the_checkpoint_interval(self, root: Location) -> None:
        """Rows and the fence survive a checkpoint, and a reader of an old version catches up."""
        table, reader = made(root), ControlTable(root, CONTROLLER)
        fence = Fence(CONTROLLER_EPOCH, 3)
        table.take_fence(fence)
        for index in range(130):
            table.compare_and_set(lease(index), fence)
        assert table.commits == 131
        await_checkpoints()
        log = Path(table.location.uri, "_delta_log")
        assert list(log.glob("*.checkpoint.parquet"))
        clean_up(table, below=100)
        fresh = ControlTable(root, CONTROLLER)
        for one in (fresh, reader):
            assert one.refresh() is (one is reader)
            assert (one.version, sequence(one)) == (131, 129)
            with pytest.raises(FencedError, match="held by controller_epoch 3"):
                one.compare_and_set(lease(0), Fence(CONTROLLER_EPOCH, 2))

    def test_old_commits_are_cleaned_up_so_that_the_next_one_stays_fast(
        self, root: Location
    ) -> None:
        """Opening and committing list the log, so they take longer with every commit in it."""
        at_once = {
            name: "interval 0 seconds" if name.endswith("Duration") else value
            for name, value in CONTROLLER.properties.items()
        }
        table = made(root, CONTROLLER._replace(properties=at_once))
        for index in range(210):
            table.compare_and_set(lease(index))
        await_checkpoints()
        log = Path(table.location.uri, "_delta_log")
        assert len(list(log.glob("*.json"))) < 120
        assert sequence(ControlTable(root, CONTROLLER)) == 209

    @pytest.mark.parametrize(
        "schema", [BROKERS, CONTROLLER, LOG, *BUSY_TABLES], ids=lambda schema: schema.name
    )
    def test_tables_that_are_written_all_the_time_keep_no_long_history(
        self, root: Location, schema: TableSchema
    ) -> None:
        """Tables with frequent commits keep their history for 10 minutes or an hour."""
        create_table(root, schema)
        configuration = open_delta_table(root.child(schema.name)).metadata().configuration
        assert configuration == dict(schema.properties)
        kept = configuration["delta.logRetentionDuration"]
        assert kept in ("interval 10 minutes", "interval 1 hours")

    def test_refresh_says_whether_anything_is_new(self, root: Location) -> None:
        """`refresh` returns whether there is a newer version."""
        table, other = made(root), ControlTable(root, CONTROLLER)
        assert not table.refresh()
        other.compare_and_set(lease(1))
        other.compare_and_set(lease(2))
        assert table.refresh()
        assert (table.version, sequence(table)) == (2, 2)
        assert not table.refresh()

    @pytest.mark.parametrize("opened_at", [1, 2], ids=["followed", "opened"])
    def test_a_restored_commit_is_the_one_that_was_read(
        self, root: Location, opened_at: int
    ) -> None:
        """Others have committed after the repair: a running broker took the table for another one,
        and had to be restarted.
        """
        table = made(root)
        table.compare_and_set(lease(1))
        reader = ControlTable(root, CONTROLLER) if opened_at == 1 else None
        table.compare_and_set(lease(2))
        reader = reader or ControlTable(root, CONTROLLER)
        reader.refresh()
        commit = Path(reader.location.uri) / commit_path(2)
        content = commit.read_bytes()
        commit.write_bytes(b"")
        with pytest.raises(DamagedError, match="is empty"):
            reader.refresh()
        commit.write_bytes(content)
        ControlTable(root, CONTROLLER).compare_and_set(lease(3))
        assert reader.refresh()
        assert (reader.version, sequence(reader)) == (3, 3)

    def test_another_commit_in_the_place_of_the_one_that_was_read_is_another_table(
        self, root: Location
    ) -> None:
        table = made(root)
        table.compare_and_set(lease(1))
        reader = ControlTable(root, CONTROLLER)
        commit = Path(reader.location.uri) / commit_path(1)
        commit.unlink()
        (Path(reader.location.uri) / copy_path(commit_path(1))).unlink()
        other = ControlTable(root, CONTROLLER)
        other.compare_and_set(lease(7))
        other.compare_and_set(lease(8))
        with pytest.raises(TableReplacedError):
            reader.refresh()

    def test_a_table_that_was_created_again_is_another_table(self, root: Location) -> None:
        """Its commits have the id of the new table, which is no damage of theirs."""
        table = made(root)
        table.compare_and_set(lease(1))
        reader = ControlTable(root, CONTROLLER)
        shutil.rmtree(reader.location.uri)
        create_table(root, CONTROLLER)
        other = ControlTable(root, CONTROLLER)
        other.compare_and_set(lease(7))
        other.compare_and_set(lease(8))
        with pytest.raises(TableReplacedError):
            reader.refresh()


def write_rows(table: ControlTable, fence: Fence) -> None:
    table.compare_and_set(operations("z"), fence)


def update_rows(table: ControlTable, fence: Fence) -> None:
    table.update(lambda _: (operations("z"), None), fence)


def set_transactions(table: ControlTable, fence: Fence) -> None:
    table.set_transactions({LOG_VERSION: 7}, fence)


def fence_again(table: ControlTable, fence: Fence) -> None:
    table.take_fence(fence)


FENCED_WRITES = [write_rows, update_rows, set_transactions]
Write = Callable[[ControlTable, Fence], None]


class TestFence:
    @pytest.fixture
    def table(self, root: Location) -> ControlTable:
        table = made(root, DELAYED_OPERATIONS)
        table.compare_and_set(operations("a"))
        table.take_fence(Fence(BROKER_EPOCH, 1))
        return table

    @pytest.mark.parametrize("is_refreshed", [True, False], ids=["refreshed", "as it was"])
    @pytest.mark.parametrize("write", [*FENCED_WRITES, fence_again])
    def test_an_older_epoch_writes_nothing(
        self, root: Location, table: ControlTable, write: Write, is_refreshed: bool
    ) -> None:
        """A writer with an older epoch writes nothing."""
        ControlTable(root, DELAYED_OPERATIONS).take_fence(Fence(BROKER_EPOCH, 2))
        version = newest(root, DELAYED_OPERATIONS)
        if is_refreshed:
            table.refresh()
        refusals = (FencedError,) if is_refreshed else (FencedError, CommitConflictError)
        with pytest.raises(refusals):
            write(table, Fence(BROKER_EPOCH, 1))
        assert newest(root, DELAYED_OPERATIONS) == version
        assert ControlTable(root, DELAYED_OPERATIONS).rows().equals(operations("a"))

    @pytest.mark.parametrize("write", FENCED_WRITES)
    def test_nobody_slips_past_a_fence_that_falls_just_after_the_check(
        self, root: Location, table: ControlTable, write: Write, after_next: AfterNext
    ) -> None:
        """A write whose fence check precedes a newer fence is refused."""
        newer = ControlTable(root, DELAYED_OPERATIONS)
        after_next(
            "sparklog.storage.control_table.check_fence",
            lambda: newer.take_fence(Fence(BROKER_EPOCH, 2)),
        )
        with pytest.raises((FencedError, CommitConflictError)):
            write(table, Fence(BROKER_EPOCH, 1))
        assert ControlTable(root, DELAYED_OPERATIONS).rows().equals(operations("a"))
        assert newest(root, DELAYED_OPERATIONS) == newer.version
        table.refresh()
        with pytest.raises(FencedError):
            write(table, Fence(BROKER_EPOCH, 1))

    @pytest.mark.parametrize("write", FENCED_WRITES)
    def test_the_epoch_that_holds_the_table_writes(self, table: ControlTable, write: Write) -> None:
        """A writer with the epoch that holds the table can write."""
        version = table.version
        write(table, Fence(BROKER_EPOCH, 1))
        assert table.version == version + 1

    @pytest.mark.parametrize("write", FENCED_WRITES)
    def test_a_table_that_was_never_fenced_is_not_written_under_a_fence(
        self, root: Location, write: Write
    ) -> None:
        """A table without a fence refuses writes under a fence."""
        table = made(root, DELAYED_OPERATIONS)
        table.compare_and_set(operations("a"))
        with pytest.raises(FencedError, match="held by broker_epoch None, this process has 1"):
            write(table, Fence(BROKER_EPOCH, 1))

    def test_taking_what_one_holds_commits_nothing(self, table: ControlTable) -> None:
        """Taking a fence that the process already holds makes no commit."""
        before = (table.version, table.commits)
        table.take_fence(Fence(BROKER_EPOCH, 1))
        assert (table.version, table.commits) == before

    def test_the_two_roles_fence_apart(self, table: ControlTable) -> None:
        """The fences of a broker and of a controller are independent."""
        table.take_fence(Fence(CONTROLLER_EPOCH, 9))
        table.compare_and_set(operations("b"), Fence(BROKER_EPOCH, 1))
        table.compare_and_set(operations("b", "c"), Fence(CONTROLLER_EPOCH, 9))
        assert table.rows().num_rows == 2

    def test_of_four_processes_the_highest_epoch_holds_the_table(
        self, root: Location, processes: Processes
    ) -> None:
        """After four processes have taken the fence, the highest epoch holds the table."""
        made(root)
        taken = processes.run(racing.fence, root.uri, BROKER_EPOCH)
        assert taken[-1] == Processes.count
        held = open_delta_table(root.child(CONTROLLER.name)).transaction_version(BROKER_EPOCH)
        assert held == Processes.count

    def test_writes_without_a_pause_do_not_keep_a_fence_away(
        self, root: Location, processes: Processes, tmp_path: Path
    ) -> None:
        """A process that takes over a role must not wait until the others stop writing."""
        made(root)
        end = str(tmp_path / "end")
        fences, *writes = processes.run(racing.update_or_fence, root.uri, end, BROKER_EPOCH)
        assert fences == 1
        assert newest(root, CONTROLLER) == sum(writes) + 1


class TestCreation:
    def test_four_processes_create_a_table_once(self, root: Location, processes: Processes) -> None:
        """A second creation would commit the schema again, and give the table another id."""
        for attempt in range(5):
            at = root.child(str(attempt))
            schemas = [CONTROLLER, TOPICS, BROKERS]
            assert len({tuple(ids) for ids in processes.run(racing.create, at.uri, schemas)}) == 1
            assert {table_identity(at.child(one.name))[1] for one in schemas} == {0}

    def test_a_table_that_is_there_stays_as_it_is(self, root: Location) -> None:
        """Creating an existing table changes nothing."""
        table = made(root)
        table.compare_and_set(lease(1))
        create_table(root, CONTROLLER)
        assert table_identity(table.location) == (table.table_id, 1)

    def test_what_is_missing_is_named_and_not_created(self, root: Location) -> None:
        """Opening a missing table raises `StorageError`, which names it, and creates nothing."""
        with pytest.raises(StorageError, match=r"there is no table at .*root/controller: check"):
            ControlTable(root, CONTROLLER)
        assert not Path(root.uri).exists()

    def test_what_is_no_table_is_named(self, root: Location) -> None:
        """Opening a table with an unreadable commit raises `DamagedError`, which names the file."""
        log = Path(root.uri, CONTROLLER.name, "_delta_log")
        log.mkdir(parents=True)
        (log / f"{0:020}.json").write_text("nonsense")
        with pytest.raises(
            DamagedError,
            match=r"root/controller/_delta_log/0{20}.json is damaged: .*; run sparklog repair",
        ) as refused:
            ControlTable(root, CONTROLLER)
        assert "\n" not in str(refused.value)

    def test_where_no_folder_can_be_made_none_is_made(self, tmp_path: Path) -> None:
        """A table whose folder cannot be created raises `StorageError`."""
        (tmp_path / "file").write_text("")
        with pytest.raises(StorageError, match=r"no table can be created at .*Not a directory"):
            create_table(Location.of(str(tmp_path / "file" / "root")), CONTROLLER)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads as Linux does")
def test_reading_starts_no_threads_that_could_abort_a_short_process(root: Location) -> None:
    """Arrow's threads still ran when a process of one second ended: one in fifteen was aborted."""
    made(root).compare_and_set(lease(7))
    code = """
import os, sys
from sparklog.model import CONTROLLER
from sparklog.storage.control_table import ControlTable
from sparklog.storage.location import Location
table = ControlTable(Location.of(sys.argv[1]), CONTROLLER)
before = len(os.listdir("/proc/self/task"))
assert table.rows().num_rows == 1
print(len(os.listdir("/proc/self/task")) - before)
"""
    answer = subprocess.run(
        [sys.executable, "-c", code, root.uri], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "0\n"


class TestColumnsOfALaterRelease:
    """A column unknown to this release, in a table that this release overwrites completely."""

    @pytest.fixture(params=[PARTITION_STATE, CONSUMER_OFFSETS], ids=lambda schema: schema.name)
    def schema(self, request: pytest.FixtureRequest) -> TableSchema:
        given: TableSchema = request.param
        return given

    @staticmethod
    def later(schema: TableSchema) -> TableSchema:
        columns = schema.columns.append(pa.field("scrubbed", pa.int64()))
        return schema._replace(columns=columns, added=frozenset({"scrubbed"}))

    def test_keeps_its_values_when_an_earlier_release_writes(
        self, root: Location, schema: TableSchema
    ) -> None:
        """An unknown column keeps its values in all rows, also in the changed one: rows are
        identified by keys.
        """
        older, newer = made(root, schema), ControlTable(root, self.later(schema))
        older.compare_and_set(schema.rows([{"topic_id": "a", "partition": 1}]))
        rows = [
            {"topic_id": name, "partition": 1, "leader_epoch": 1, "scrubbed": index}
            for index, name in enumerate("abc")
        ]
        newer.update(lambda _: (self.later(schema).rows(rows), None))

        def change(loaded: pa.Table) -> tuple[pa.Table, None]:
            first, second, _ = loaded.to_pylist()
            new = {"topic_id": "d", "partition": 1}
            return schema.rows([new, second | {"leader_epoch": 2}, first]), None

        older.update(change)
        older.compare_and_set(older.rows())
        newer.refresh()
        assert [
            (row["topic_id"], row["leader_epoch"], row["scrubbed"])
            for row in newer.rows().to_pylist()
        ] == [("d", None, None), ("b", 2, 1), ("a", 1, 0)]
        assert older.rows().schema.equals(schema.columns)

    def test_is_not_made_of_what_another_put_into_a_file(self, root: Location) -> None:
        """Columns that another engine puts into a file are dropped unless the table declares
        them.
        """
        table = made(root, DELAYED_OPERATIONS)
        file = Path(table.location.uri, "of-another.parquet")
        pq.write_table(pa.table({"operation_id": ["o"], "x": [1]}), file)
        add_file(table, file)
        table.compare_and_set(table.rows())
        [path] = open_delta_table(table.location).file_uris()
        assert Path(path).name != file.name
        assert pq.read_schema(path).names == DELAYED_OPERATIONS.columns.names
