"""A checkpoint from memory: it has the whole state of the table, and no file of its log is read."""

from __future__ import annotations

from sparklog.model import PRODUCER_IDS
from sparklog.storage.commits import AddedFile
from sparklog.storage.control_table import create_table
from sparklog.storage.delta_log_files import commit_path
from sparklog.storage.delta_snapshots import open_delta_table
from sparklog.storage.location import Location
from sparklog.storage.recovered_checkpoint import write_recovered_checkpoint
from sparklog.storage.vacuum import read_table_files


def test_files_that_were_removed_lately_are_named(root: Location) -> None:
    """A vacuum would have removed them at once, since their log had forgotten when they left it."""
    create_table(root, PRODUCER_IDS)
    table = root.child(PRODUCER_IDS.name)
    described = open_delta_table(table)
    live = {"live.parquet": AddedFile("live.parquet", 10, 1, {}, {"numRecords": 1})}
    write_recovered_checkpoint(table, described, 7, live, {"epoch": 3}, 1, ["gone.parquet"])
    table.remove(commit_path(0))
    files = read_table_files(table)
    assert set(files.live) == {"live.parquet"}
    assert [*files.removed_at_ms] == ["gone.parquet"]
    opened = open_delta_table(table)
    assert (opened.version(), opened.transaction_version("epoch")) == (7, 3)
    assert opened.metadata().id == described.metadata().id
