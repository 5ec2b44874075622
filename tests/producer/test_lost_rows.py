"""The rows of lost files: the rows of another run without those that are stored."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.model import RECORD_COLUMNS, TopicIdPartition, new_batch_path
from sparklog.producer.lost_rows import OtherRowsError, lost_rows, read_sent
from sparklog.producer.stream_writes import Files, SentFile
from sparklog.storage.batch_files import BatchFileWriter
from sparklog.storage.location import Location

Row = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Partition, key, value, headers."""

HEADERS = st.lists(
    st.tuples(st.sampled_from(["h", ""]), st.none() | st.just(b"x")), max_size=2
).map(tuple)
ROWS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.none() | st.sampled_from([b"", b"k"]),
        st.none() | st.sampled_from([b"", b"a", b"b"]),
        HEADERS,
    ),
    max_size=12,
)


def table(rows: list[Row]) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "timestamp": [0] * len(rows),
        "key": [key for _, key, _, _ in rows],
        "value": [value for _, _, value, _ in rows],
        "headers": [
            [{"key": name, "value": one} for name, one in headers] or None
            for _, _, _, headers in rows
        ],
    }
    fields = {name: RECORD_COLUMNS.field(name).type for name in columns}
    return pa.table({name: pa.array(column, fields[name]) for name, column in columns.items()})


def by_partition(rows: list[Row]) -> dict[TopicIdPartition, list[Row]]:
    found: dict[TopicIdPartition, list[Row]] = {}
    for row in rows:
        found.setdefault(TopicIdPartition("id", row[0]), []).append(row)
    return found


def written(log: Location, rows: list[Row]) -> Files:
    """Write rows as one file per partition."""
    files: Files = {}
    for key, members in by_partition(rows).items():
        writer = BatchFileWriter(log, new_batch_path())
        writer.write(table(members))
        files[key] = [SentFile(log, writer.close())]
    return files


def contents(files: Files) -> Counter[Any]:
    return Counter(
        (
            row["key"],
            row["value"],
            tuple((one["key"], one["value"]) for one in row["headers"] or ()),
        )
        for members in files.values()
        for sent in members
        for row in read_sent(sent.log, sent.file.path).to_pylist()
    )


@settings(deadline=None)
@given(kept=ROWS, lost=ROWS, moves=st.lists(st.integers(0, 2), min_size=24, max_size=24))
def test_are_as_many_of_each_as_are_not_stored(
    tmp_path_factory: pytest.TempPathFactory, kept: list[Row], lost: list[Row], moves: list[int]
) -> None:
    """Lost rows are found if rows are equal, and if the other run routes them to other
    partitions.
    """
    log = Location.of(str(tmp_path_factory.mktemp("log")))
    routed = [(at, *row[1:]) for at, row in zip(moves, kept + lost, strict=False)]
    stored = [(key, table(rows)) for key, rows in by_partition(kept).items()]
    found = lost_rows(written(log, routed), stored, len(lost))
    assert contents(found) == Counter(row[1:] for row in lost)


def test_stay_where_the_same_row_goes_to_several_partitions(tmp_path: Path) -> None:
    """A lost row keeps its partition if the same row goes to several partitions."""
    log = Location.of(str(tmp_path))
    rows: list[Row] = [(0, None, b"x", ()), (1, None, b"x", ()), (2, None, b"x", ())]
    stored = [(TopicIdPartition("id", one), table(rows[:1])) for one in (0, 2)]
    assert lost_rows(written(log, rows), stored, 1).keys() == {TopicIdPartition("id", 1)}


@pytest.mark.parametrize(
    ("run", "lost_count"), [([b"a", b"c"], 1), ([b"a", b"b", b"c"], 2), ([b"b"], 1)]
)
def test_are_refused_of_a_run_with_other_rows(
    tmp_path: Path, run: list[bytes], lost_count: int
) -> None:
    """A run with other rows raises `OtherRowsError`."""
    log = Location.of(str(tmp_path))
    rows: list[Row] = [(0, None, value, ()) for value in run]
    stored = [(TopicIdPartition("id", 0), table([(0, None, b"a", ()), (0, None, b"b", ())]))]
    with pytest.raises(OtherRowsError, match="rows were lost"):
        lost_rows(written(log, rows), stored, lost_count)
