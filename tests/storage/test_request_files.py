"""Add actions of requests: the partition values and statistics that may stay in the table's log."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from sparklog.model import PRODUCE_REQUESTS, REQUEST_INDEX
from sparklog.storage.batch_actions import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from sparklog.storage.commits import AddedFile, read_commit
from sparklog.storage.delta_log import DeltaLog
from sparklog.storage.delta_snapshots import open_delta_table
from sparklog.storage.location import Location
from sparklog.storage.request_commits import read_request_commit
from sparklog.storage.request_files import (
    ProduceRequest,
    are_valid_statistics,
    are_valid_values,
    live_requests,
    request_file,
    request_of,
)
from tests.storage.requests import appending, commit_file, request

TIME = "2026-01-01T00:00:00.000000Z"


def test_a_request_comes_back_from_its_action() -> None:
    """A request is read back unchanged from its add action."""
    given = request("a", client_id="", partition=7)
    file = request_file(given, 1)
    assert request_of(file) == given
    assert are_valid_values(file.partition_values)
    assert are_valid_statistics(file.statistics)
    assert file.path == f"../log/{given.path}"
    assert file.statistics["maxValues"]["offset_delta"] == given.record_count - 1


def test_the_header_is_what_the_table_is_partitioned_by() -> None:
    """The partition values of an add action are the columns by which the table is partitioned."""
    assert tuple(request_file(request("a"), 1).partition_values) == PRODUCE_REQUESTS.partition_by


def test_a_time_that_delta_cannot_name_is_refused() -> None:
    """A time out of Delta's range raises `OverflowError`."""
    for name in ("min_timestamp_ms", "max_timestamp_ms"):
        with pytest.raises(OverflowError):
            request_file(request("a", **{name: 1 << 60}), 1)


def test_a_request_has_the_columns_of_the_index_and_one_leader_epoch() -> None:
    """The fields are those of `REQUEST_INDEX`; the epoch that the client names has its own name."""
    columns = [
        "named_leader_epoch" if one == "leader_epoch" else one for one in REQUEST_INDEX.names
    ]
    assert list(ProduceRequest._fields) == [*columns, "fault"]


@pytest.mark.parametrize("name", ProduceRequest._fields)
def test_a_request_is_immutable(name: str) -> None:
    """No field of a request can be set, and none can be added."""
    made = request("a")
    with pytest.raises(AttributeError):
        setattr(made, name, 1)
    with pytest.raises(AttributeError):
        made.position = 0  # type: ignore[attr-defined]


def test_a_request_names_its_batch_its_partition_and_its_answer() -> None:
    """The identities of a request follow from its fields."""
    made = request("a", topic_id="t", partition=3, path="_inbox/abc.1.parquet")
    assert made.batch_id == "abc"
    assert made.topic_id_partition == ("t", 3)
    assert made.request_partition == ("a", "t", 3)
    assert not made.is_idempotent
    assert made._replace(producer_id=0).is_idempotent


FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("it has no request id, so it cannot be answered", {"request_id": ""}),
    ("it cannot hold 0 records", {"record_count": 0}),
    ("it cannot hold -1 records", {"record_count": -1}),
    ("it cannot hold 2147483648 records", {"record_count": 1 << 31}),
    ("its timestamps are out of range", {"min_timestamp_ms": 2_001}),
    ("its producer id, epoch or sequence is negative", {"producer_id": 0}),
    ("its producer id, epoch or sequence is negative", {"producer_epoch": 0}),
    ("its producer id, epoch or sequence is negative", {"base_sequence": -2}),
    (
        "its producer id, epoch or sequence is negative",
        {"producer_id": 5, "producer_epoch": 0, "base_sequence": -1},
    ),
]


@pytest.mark.parametrize(("fault", "values"), FAULTS)
def test_a_request_that_cannot_be_a_batch_names_its_fault(
    root: Location, fault: str, values: dict[str, Any]
) -> None:
    """The commit and the snapshot give the same fault, and a count out of range is 0."""
    given = request("a")._replace(**values)
    read = check_read_alike(root, request_file(given, 1))
    count = given.record_count if given.record_count in range(1 << 31) else 0
    assert read == given._replace(record_count=count, fault=fault)


@pytest.mark.parametrize(
    "values",
    [
        {"record_count": 1},
        {"record_count": (1 << 31) - 1},
        {"min_timestamp_ms": MIN_TIMESTAMP_MS, "max_timestamp_ms": MAX_TIMESTAMP_MS},
        {"min_timestamp_ms": 2_000},
        {"producer_id": 0, "producer_epoch": 0, "base_sequence": 0},
        {"producer_id": (1 << 63) - 1, "producer_epoch": 1, "base_sequence": (1 << 31) - 1},
        {"topic": "", "checksum": "", "client_id": "", "byte_size": 0},
        {"partition": -5, "named_leader_epoch": -5, "acks": 7, "timeout_ms": -1},
    ],
    ids=str,
)
def test_a_request_at_the_limits_has_no_fault_of_its_own(
    root: Location, values: dict[str, Any]
) -> None:
    """Destinations, epochs, acks and timeouts are for the rule, which knows the partition."""
    given = request("a", **values)
    assert check_read_alike(root, request_file(given, 1)) == given


@pytest.mark.parametrize("name", PRODUCE_REQUESTS.partition_by)
def test_a_missing_value_has_one_that_is_refused(root: Location, name: str) -> None:
    """A field whose column is missing has the value of `_MISSING`; the other fields are kept."""
    file = request_file(request("a"), 1)
    values = {column: text for column, text in file.partition_values.items() if column != name}
    field = "named_leader_epoch" if name == "leader_epoch" else name
    fault = "it has no request id, so it cannot be answered" if name == "request_id" else None
    expected = request_of(file)._replace(**{field: MISSING[name], "fault": fault})
    assert check_read_alike(root, file._replace(partition_values=values)) == expected


MISSING: dict[str, Any] = {
    **dict.fromkeys(("request_id", "topic_id", "topic", "checksum", "client_id"), ""),
    **dict.fromkeys(("partition", "leader_epoch", "created_at_ms"), -1),
    **dict.fromkeys(("producer_id", "producer_epoch", "base_sequence"), -1),
    "acks": -99,
    "timeout_ms": 0,
}


def test_missing_statistics_are_a_fault(root: Location) -> None:
    """A request without statistics has no records and no readable timestamps."""
    file = request_file(request("a"), 1)._replace(statistics={})
    read = check_read_alike(root, file)
    assert (read.record_count, read.min_timestamp_ms, read.max_timestamp_ms) == (0, -2, -2)
    assert read.fault == "it cannot hold 0 records"


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
    """Valid partition values are read equally from the commit and by delta-rs."""
    assert are_valid_values(values)
    check_read_alike(root, AddedFile("../log/x", 1, 1, values, {"numRecords": 1}))


@pytest.mark.parametrize("values", INVALID_VALUES, ids=lambda values: repr(values)[:40])
def test_values_that_no_engine_can_read_are_not_valid(values: object) -> None:
    """Partition values that no engine can read are not valid."""
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
    """Valid statistics are read equally from the commit and by delta-rs."""
    assert are_valid_statistics(statistics)
    check_read_alike(root, AddedFile("../log/x", 1, 1, {"request_id": "a"}, statistics))


@pytest.mark.parametrize("statistics", INVALID_STATISTICS, ids=json.dumps)
def test_statistics_that_no_request_has_are_not_valid(statistics: object) -> None:
    """Statistics that differ from those of a request are not valid."""
    assert not are_valid_statistics(statistics)


@pytest.mark.parametrize("time", UNREADABLE_TIMES)
def test_a_time_that_delta_rs_cannot_read_is_not_valid(time: str) -> None:
    """The request would have another time after a restart of the broker."""
    assert not are_valid_statistics({"numRecords": 1, "minValues": {"timestamp": time}})


@pytest.mark.parametrize("statistics", INVALID_STATISTICS, ids=json.dumps)
def test_a_commit_with_such_statistics_is_mended_and_its_request_stays(
    root: Location, statistics: object
) -> None:
    """Invalid statistics are removed from their commit, and the request stays."""
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
    assert (request_of(file).request_id, file.statistics) == ("a", {})
    assert b"stats" not in commit_file(root, 1).read_bytes()
    [(_, live)] = live_requests(open_delta_table(table))
    assert live == request_of(file)


@pytest.mark.parametrize("values", INVALID_VALUES, ids=lambda values: repr(values)[:40])
def test_an_add_with_such_values_is_taken_out_of_its_commit(root: Location, values: object) -> None:
    """An add action with invalid partition values is removed from its commit."""
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


def check_read_alike(root: Location, file: AddedFile) -> ProduceRequest:
    """Check that a commit, its snapshot and one of a checkpoint describe a file equally."""
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
    """Producers without Spark use it; the import of pyspark takes a second."""
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
