"""Add actions of requests: which partition values and statistics may stay in the table's log."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from sparklog.model import PRODUCE_REQUESTS, REQUEST_INDEX
from sparklog.storage.delta_log import AddedFile, DeltaLog, open_delta_table, read_commit
from sparklog.storage.location import Location
from sparklog.storage.request_commits import read_request_commit
from sparklog.storage.request_files import (
    Request,
    are_valid_statistics,
    are_valid_values,
    live_requests,
    request_file,
    request_of,
)
from tests.storage.requests import appending, commit_file, request

TIME = "2026-01-01T00:00:00.000000Z"


def test_a_request_comes_back_from_its_action() -> None:
    given = request("a", client_id=None, partition=7)
    file = request_file(given, 1)
    assert request_of(file) == given
    assert request_of(file).keys() == set(REQUEST_INDEX.names)
    assert are_valid_values(file.partition_values)
    assert are_valid_statistics(file.statistics)
    assert file.path == f"../log/{given['path']}"
    assert file.statistics["maxValues"]["offset_delta"] == given["record_count"] - 1


def test_the_header_is_what_the_table_is_partitioned_by() -> None:
    assert tuple(request_file(request("a"), 1).partition_values) == PRODUCE_REQUESTS.partition_by


def test_a_time_that_delta_cannot_name_is_refused() -> None:
    for name in ("min_timestamp_ms", "max_timestamp_ms"):
        with pytest.raises(OverflowError):
            request_file(request("a", **{name: 1 << 60}), 1)


VALID_VALUES: list[dict[str, Any]] = [
    {},
    {"request_id": "a", "topic": None, "partition": None},
    {"partition": "0"},
    {"partition": ""},
    {"partition": "-1", "acks": "007", "producer_epoch": "-0"},
    {"partition": str((1 << 31) - 1), "acks": str(-(1 << 31))},
    {"producer_id": str((1 << 63) - 1), "timeout_ms": str(-(1 << 63))},
    {"topic": "", "client_id": "any \0 text / = é"},
]

INVALID_VALUES: list[object] = [
    None,
    [],
    "partition",
    {"other": "a"},
    {"path": "a"},
    {"request_id": 1},
    {"request_id": ["a"]},
    {"partition": 0},
    {"partition": True},
    {"partition": "all"},
    {"partition": "+1"},
    {"partition": "1.0"},
    {"partition": " 1"},
    {"partition": "1\n"},
    {"partition": "1_000"},
    {"partition": "0x1"},
    {"partition": "\u0663"},
    {"partition": str(1 << 31)},
    {"partition": str(-(1 << 31) - 1)},
    {"producer_id": str(1 << 63)},
    {"producer_id": "9" * 5000},
]


@pytest.mark.parametrize("values", VALID_VALUES, ids=json.dumps)
def test_valid_values_are_read_alike_from_the_commit_and_by_delta_rs(
    root: Location, values: dict[str, Any]
) -> None:
    assert are_valid_values(values)
    check_read_alike(root, AddedFile("../log/x", 1, 1, values, {"numRecords": 1}))


@pytest.mark.parametrize("values", INVALID_VALUES, ids=lambda values: repr(values)[:40])
def test_values_that_no_engine_can_read_are_not_valid(values: object) -> None:
    assert not are_valid_values(values)


VALID_STATISTICS: list[dict[str, Any]] = [
    {},
    {"numRecords": 0},
    {"numRecords": (1 << 63) - 1},
    {"numRecords": 1, "minValues": {}, "maxValues": {}, "nullCount": {}},
    {"numRecords": 1, "minValues": {"offset_delta": 0, "timestamp": TIME}},
    {"maxValues": {"offset_delta": (1 << 31) - 1, "timestamp": TIME}},
    {"nullCount": {"offset_delta": 0, "timestamp": 1 << 40}},
    {"minValues": {"timestamp": "2026-01-01T00:00:00.001Z"}},
    {"minValues": {"timestamp": "2026-01-01T00:00:00Z"}},
    {"minValues": {"timestamp": "2026-01-01T00:00:00+05:00"}},
    {"minValues": {"timestamp": "0001-01-01T00:00:00Z"}},
    {"maxValues": {"timestamp": "9999-12-31T23:59:59.999999Z"}},
]

INVALID_STATISTICS: list[object] = [
    None,
    [],
    7,
    {"other": 1},
    {"numRecords": None},
    {"numRecords": "1"},
    {"numRecords": True},
    {"numRecords": 1.5},
    {"numRecords": 1 << 63},
    {"minValues": None},
    {"minValues": []},
    {"minValues": {"value": "a"}},
    {"minValues": {"partition": 0}},
    {"minValues": {"offset_delta": "0"}},
    {"minValues": {"offset_delta": 1 << 31}},
    {"minValues": {"timestamp": 0}},
    {"minValues": {"timestamp": None}},
    {"minValues": {"timestamp": "long ago"}},
    {"minValues": {"timestamp": "2026-01-01"}},
    {"minValues": {"timestamp": "2026-01-01T00:00:00"}},
    {"maxValues": {"timestamp": "10000-01-01T00:00:00Z"}},
    {"nullCount": {"timestamp": "0"}},
    {"nullCount": {"value": 0}},
]

UNREADABLE_TIMES = [
    "20260101T000000Z",
    "2026-W01-1T00:00:00Z",
    "2026-01-01T00Z",
    "2026-01-01T00:00Z",
    "2026-01-01T00:00:00,5Z",
    "2026-01-01x00:00:00Z",
    "2026-01-01T00:00:00+00:00:30",
]
"""Forms of ISO 8601 that Python reads and delta-rs does not."""


@pytest.mark.parametrize("statistics", VALID_STATISTICS, ids=json.dumps)
def test_valid_statistics_are_read_alike_from_the_commit_and_by_delta_rs(
    root: Location, statistics: dict[str, Any]
) -> None:
    assert are_valid_statistics(statistics)
    check_read_alike(root, AddedFile("../log/x", 1, 1, {"request_id": "a"}, statistics))


@pytest.mark.parametrize("statistics", INVALID_STATISTICS, ids=json.dumps)
def test_statistics_that_no_request_has_are_not_valid(statistics: object) -> None:
    assert not are_valid_statistics(statistics)


@pytest.mark.parametrize("time", UNREADABLE_TIMES)
def test_a_time_that_delta_rs_cannot_read_is_not_valid(time: str) -> None:
    """The request would have another time after the broker has started again."""
    assert not are_valid_statistics({"numRecords": 1, "minValues": {"timestamp": time}})


@pytest.mark.parametrize("statistics", INVALID_STATISTICS, ids=json.dumps)
def test_a_commit_with_such_statistics_is_mended_and_its_request_stays(
    root: Location, statistics: object
) -> None:
    appending(root)
    table = root.child(PRODUCE_REQUESTS.name)
    action = {
        "path": "../log/x",
        "partitionValues": {"request_id": "a"},
        "size": 1,
        "modificationTime": 1,
        "dataChange": True,
        "stats": json.dumps(statistics),
    }
    commit_file(root, 1).write_text(json.dumps({"add": action}))
    found = read_request_commit(table, 1)
    assert found is not None
    [file] = found.added
    assert (request_of(file)["request_id"], file.statistics) == ("a", {})
    assert b"stats" not in commit_file(root, 1).read_bytes()
    [(_, live)] = live_requests(open_delta_table(table))
    assert live == request_of(file)


@pytest.mark.parametrize("values", INVALID_VALUES, ids=lambda values: repr(values)[:40])
def test_an_add_with_such_values_is_taken_out_of_its_commit(root: Location, values: object) -> None:
    appending(root)
    table = root.child(PRODUCE_REQUESTS.name)
    lines = []
    for path, given in (("x", values), ("y", {"request_id": "a"})):
        action = {"path": path, "partitionValues": given, "size": 1, "modificationTime": 1}
        lines.append(json.dumps({"add": action | {"dataChange": True}}))
    commit_file(root, 1).write_text("\n".join(lines))
    found = read_request_commit(table, 1)
    assert found is not None
    assert [file.path for file in found.added] == ["y"]
    assert [file.path for file, _ in live_requests(open_delta_table(table))] == ["y"]


def check_read_alike(root: Location, file: AddedFile) -> Request:
    """Check that a commit, a snapshot of it and one of a checkpoint say the same of a file."""
    appending(root)
    log = DeltaLog(root.child(PRODUCE_REQUESTS.name))
    assert log.commit("WRITE", [file], syncs_files=False)
    sound = commit_file(root, 1).read_bytes()
    commit = read_request_commit(log.location, 1)
    assert commit is not None
    assert commit.added == [file]
    assert commit_file(root, 1).read_bytes() == sound
    assert read_commit(log.location, 1) == commit
    given = request_of(file)
    [(_, live)] = live_requests(open_delta_table(log.location))
    assert live == given
    open_delta_table(log.location).create_checkpoint()
    commit_file(root, 0).unlink()
    [(of_checkpoint, live)] = live_requests(open_delta_table(log.location))
    assert live == given
    assert (of_checkpoint.path, of_checkpoint.size_bytes) == (file.path, file.size_bytes)
    return given


def test_requests_are_appended_and_read_without_spark(root: Location) -> None:
    """Producers that use no Spark append by this; the import of pyspark takes a second."""
    code = """
import sys
from sparklog.storage.location import Location
from sparklog.storage.request_table import RequestTable
from tests.storage.requests import appending, ids_in, request
root = Location.of(sys.argv[1])
appending(root).append([request("a")])
print(ids_in(RequestTable(root)), "pyspark" in sys.modules)
"""
    answer = subprocess.run(
        [sys.executable, "-c", code, root.uri], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "['a'] False\n"
