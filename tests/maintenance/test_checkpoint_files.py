"""Kafka's four checkpoint files: files of real brokers are read, and written with the same
bytes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.errors import StorageError
from sparklog.maintenance.checkpoint_files import (
    format_epochs,
    format_offsets,
    parse_epochs,
    parse_offsets,
    read_epochs,
    read_offsets,
)
from sparklog.model import EpochEntry

SAMPLES = sorted(Path(__file__).with_name("kafka_samples").glob("*.txt"))
"""Checkpoint files of three Kafka 4.3.1 brokers, as they were on disk."""

OF_OFFSETS = [sample for sample in SAMPLES if "offset-checkpoint" in sample.name]
OF_EPOCHS = [sample for sample in SAMPLES if "leader-epoch-checkpoint" in sample.name]


def test_there_are_samples_of_all_four_kinds() -> None:
    """There are samples of all four kinds of files."""
    assert len(OF_OFFSETS) == 9
    assert len(OF_EPOCHS) == 15
    kinds = {sample.name.split("-", 1)[1].split("-offset-")[0] for sample in OF_OFFSETS}
    assert kinds == {"replication", "recovery-point", "log-start"}


@pytest.mark.parametrize("sample", OF_OFFSETS, ids=lambda sample: sample.stem)
def test_an_offset_checkpoint_of_kafkas_is_written_again_byte_for_byte(sample: Path) -> None:
    """An offset checkpoint of Kafka is written again with the same bytes."""
    assert format_offsets(read_offsets(sample)).encode() == sample.read_bytes()


@pytest.mark.parametrize("sample", OF_EPOCHS, ids=lambda sample: sample.stem)
def test_a_leader_epoch_checkpoint_of_kafkas_is_written_again_byte_for_byte(sample: Path) -> None:
    """A leader-epoch checkpoint of Kafka is written again with the same bytes."""
    assert format_epochs(read_epochs(sample)).encode() == sample.read_bytes()


def test_what_kafka_wrote_is_understood() -> None:
    """The offsets and epochs in Kafka's files are read correctly."""
    [high_watermarks] = [one for one in OF_OFFSETS if "broker1-replication" in one.name]
    found = read_offsets(high_watermarks)
    assert len(found) == 36
    assert found["orders", 0] == 249
    assert found["failover-kill9-383fbe", 0] == 14000
    assert found["__consumer_offsets", 7] == 23
    [epochs] = [one for one in OF_EPOCHS if "broker1-failover-kill9-b57ce4" in one.name]
    assert read_epochs(epochs) == [EpochEntry(0, 0), EpochEntry(1, 4005), EpochEntry(4, 14000)]


def test_lines_may_end_as_java_lets_them_end() -> None:
    """Lines may end with LF, CRLF or CR."""
    for end in ("\n", "\r\n", "\r"):
        assert parse_offsets(end.join(["0", "1", "t  0\t7"]), "f") == {("t", 0): 7}


def test_the_largest_numbers_that_kafka_knows_are_kept() -> None:
    """Kafka's largest partition number and offset are kept."""
    offsets = {("t", 2**31 - 1): 2**63 - 1}
    assert parse_offsets(format_offsets(offsets), "f") == offsets


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: the version must be 0, found an empty file"),
        ("\n", "line 1: the version must be 0, found ''"),
        ("1\n0\n", "line 1: the version must be 0, found '1'"),
        ("0", "line 2: the number of entries is missing or no number"),
        ("0\nmany\n", "line 2: the number of entries is missing or no number"),
        ("0\n-1\n", "line 2: the number of entries is missing or no number"),
        ("0\n" + "9" * 5000 + "\n", "line 2: the number of entries is missing or no number"),
        ("0\n2\nt 0 7\n", "line 2: 2 entries are announced, 1 follow"),
        ("0\n0\nt 0 7\n", "line 2: 0 entries are announced, 1 follow"),
        ("0\n1\nt 0\n", "line 3: expected 3 fields, found 2"),
        ("0\n1\nt 0 7 8\n", "line 3: expected 3 fields, found 4"),
        ("0\n1\nt 0 7\n\n", "line 4: expected 3 fields, found 0"),
        ("0\n2\nt 0 7\nt x 7\n", "line 4: 'x' is not a number from 0 to 2147483647"),
        ("0\n1\nt 2147483648 7\n", "line 3: '2147483648' is not a number from 0 to 2147483647"),
        ("0\n1\nt 0 -7\n", "line 3: '-7' is not a number from 0 to 9223372036854775807"),
        ("0\n1\nt 0 9223372036854775808\n", "line 3: '9223372036854775808' is not a number"),
        ("0\n1\nt 0 \u0667\n", "line 3: '\u0667' is not a number"),
        ("0\n1\na/b 0 7\n", "line 3: INVALID_TOPIC_EXCEPTION: topic name 'a/b' is not valid"),
        ("0\n2\nt 0 7\nt 0 7\n", "line 4: partition 0 of topic t is there twice"),
    ],
)
def test_a_malformed_offset_checkpoint_is_refused_with_its_line(text: str, said: str) -> None:
    """The error for a malformed offset checkpoint has the line number."""
    with pytest.raises(StorageError) as refused:
        parse_offsets(text, "some-file")
    assert str(refused.value).startswith(f"some-file, {said}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0\n2\n1 0\n1 5\n", "line 4: epochs and start offsets must grow from line to line"),
        ("0\n2\n1 5\n2 5\n", "line 4: epochs and start offsets must grow from line to line"),
        ("0\n2\n1 5\n0 7\n", "line 4: epochs and start offsets must grow from line to line"),
        ("0\n2\n1 5\n2 4\n", "line 4: epochs and start offsets must grow from line to line"),
        ("0\n1\nt 0 7\n", "line 3: expected 2 fields, found 3"),
        ("0\n1\n-1 7\n", "line 3: '-1' is not a number from 0 to 2147483647"),
    ],
)
def test_a_malformed_leader_epoch_checkpoint_is_refused_with_its_line(text: str, said: str) -> None:
    """The error for a malformed leader-epoch checkpoint has the line number."""
    with pytest.raises(StorageError) as refused:
        parse_epochs(text, "some-file")
    assert str(refused.value) == f"some-file, {said}"


def test_a_file_that_is_no_text_is_refused_with_its_line(tmp_path: Path) -> None:
    """The error for a file that is not UTF-8 has the line number."""
    file = tmp_path / "replication-offset-checkpoint"
    file.write_bytes(b"0\n1\nt\xff 0 7\n")
    with pytest.raises(StorageError, match=r"line 3: it is no UTF-8 text"):
        read_offsets(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A missing file raises `StorageError`."""
    with pytest.raises(StorageError, match="cannot be read"):
        read_offsets(tmp_path / "replication-offset-checkpoint")
