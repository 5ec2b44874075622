"""`sparklog delete-records`: the file and the output of kafka-delete-records.sh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparklog.testing import LocalCluster
from tests.cli.command_line import files_in, run


def file_of(folder: Path, *entries: Any, **members: Any) -> Path:
    file = folder / "offsets.json"
    file.write_text(json.dumps({"partitions": list(entries), "version": 1} | members))
    return file


def entry(partition: int, offset: int) -> dict[str, Any]:
    return {"topic": "t", "partition": partition, "offset": offset}


def test_records_are_deleted_as_kafkas_tool_does(tmp_path: Path) -> None:
    """The brokers run between the two calls: the first one stores the request."""
    cluster = LocalCluster(tmp_path, [0, 1])
    cluster.create_topic("t", assignment={0: [0, 1], 1: [1, 0], 2: [0, 1]})
    for partition in range(2):
        cluster.produce("t", partition, [b"a", b"b", b"c"])
    cluster.tick_until_idle()
    file = file_of(tmp_path, entry(0, 2), entry(1, -1), entry(2, 0))
    arguments = ("delete-records", "--offset-json-file", file, "--timeout-ms", "0")
    waiting = run(*arguments, cluster=tmp_path / "cluster")
    of_0, of_1 = (
        f"partition: t-{number}\terror: REQUEST_TIMED_OUT: the records of t-{number} are not "
        "deleted in every live replica yet; the request is stored and will be served\n"
        for number in range(2)
    )
    head = "Executing records delete operation\nRecords delete operation completed:\n"
    assert waiting == (1, f"{head}{of_0}{of_1}partition: t-2\tlow_watermark: 0\n", "")
    cluster.tick_until_idle()
    done = run(*arguments, cluster=tmp_path / "cluster")
    assert done.printed == (
        f"{head}partition: t-0\tlow_watermark: 2\npartition: t-1\tlow_watermark: 3\n"
        "partition: t-2\tlow_watermark: 0\n"
    )
    assert [len(cluster.consume("t", number)) for number in range(3)] == [1, 0, 0]
    file = file_of(tmp_path, entry(0, 4))
    refused = run(*arguments, cluster=tmp_path / "cluster")
    assert refused.exit_code == 1
    assert "\npartition: t-0\terror: OFFSET_OUT_OF_RANGE: records of t-0" in refused.stdout
    earliest = run("get-offsets", "t", "--json", "--time", "-2", cluster=tmp_path / "cluster")
    assert [row["offset"] for row in json.loads(earliest.printed)] == [2, 3, 0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON: "),
        pytest.param("[" * 100_000, "is not JSON: it is nested too deeply", id="nesting"),
        ("[]", 'must be an object with the list "partitions"'),
        ('{"partitions": [], "version": 2}', 'and "version" 1 or none'),
        ('{"partitions": [{"topic": "t", "partition": "0", "offset": 1}]}', 'has {"topic": "t"'),
        ('{"partitions": [7]}', "has 7 for a partition"),
        (json.dumps({"partitions": [entry(0, 1)] * 2}), "has the partition t-0 twice"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str, said: str) -> None:
    LocalCluster(tmp_path, [0]).close()
    file = tmp_path / "offsets.json"
    file.write_text(text)
    before = files_in(tmp_path)
    arguments = ("delete-records", "--offset-json-file", file)
    assert said in run(*arguments, cluster=tmp_path / "cluster").refusal
    missing = ("delete-records", "--offset-json-file", tmp_path / "none")
    refusal = run(*missing, cluster=tmp_path / "cluster").refusal
    assert refusal == f"{tmp_path / 'none'} cannot be read: No such file or directory"
    assert files_in(tmp_path) == before
