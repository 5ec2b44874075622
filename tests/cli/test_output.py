"""The form of what commands print: in a terminal of 80 columns, in a file, and as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from sparklog.cli.times import is_instant, read_past_time_ms, time_text
from sparklog.errors import ConfigError
from sparklog.testing import LocalCluster
from tests.cli.command_line import run
from tests.cli.terminal import run_in_terminal

EVERYTHING = "select * from high_watermark_checkpoint order by all"
NARROW = "select topic, null as nothing from topics"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a cluster with one topic of 12 partitions, which no test changes."""
    folder = tmp_path_factory.mktemp("printed")
    cluster = LocalCluster(folder, [0])
    cluster.create_topic("t", partitions=12)
    cluster.tick_until_idle()
    return folder / "cluster"


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_rows_that_are_wider_than_the_terminal_are_records(root: Path) -> None:
    """Each record has a line per column, and no line is wider than 80 columns."""
    printed = plain(run_in_terminal("query", EVERYTHING, cluster=root, PAGER="cat"))
    lines = printed.splitlines()
    assert max(map(cell_len, lines)) <= 80
    heads = [line for line in lines if line.startswith("-[ ")]
    assert len(heads) == 12
    assert heads[-1] == "-[ 12 ]---------------------------------"
    first = dict(line.split(maxsplit=1) for line in lines[1 : lines.index(heads[1])])
    assert (first["topic"], first["partition"], first["role"]) == ("t", "0", "leader")
    assert lines[-1] == "(12 rows)"
    assert "-[ 1 ]-" not in run_in_terminal("query", EVERYTHING, cluster=root, columns=400)


def test_records_are_also_there_on_request_and_a_long_value_is_folded(root: Path) -> None:
    wide = "select 1 as a, repeat('x', 100) as b"
    assert run("query", wide, "--records", cluster=root).printed.split() == [
        *("-[", "1", "]----------------------------------", "a", "1", "b", "x" * 100),
        *("(1", "row)"),
    ]
    lines = plain(run_in_terminal("query", wide, cluster=root)).split()
    assert lines[5:-2] == ["b", "x" * 77, "x" * 23]


def test_colours_are_for_terminals_without_no_color(root: Path) -> None:
    """A terminal gets NULL dimmed; no escape sequence goes to a file or with NO_COLOR."""
    assert "\x1b[2mNULL" in run_in_terminal("query", NARROW, cluster=root)
    without = run_in_terminal("query", NARROW, cluster=root, NO_COLOR="1")
    assert "NULL" in without
    assert "\x1b" not in without
    assert "\x1b" not in run_in_terminal("query", NARROW, cluster=root, TERM="dumb")
    assert "\x1b" not in run("query", NARROW, cluster=root).printed


def test_a_long_answer_is_paged_in_a_terminal(root: Path, tmp_path: Path) -> None:
    """The pager is that of PAGER; an answer that fits, or goes to a file, is not paged."""
    pager = tmp_path / "pager"
    pager.write_text('#!/bin/sh\necho "paged with $LESS"\nexec cat\n')
    pager.chmod(0o755)
    paged = run_in_terminal("query", EVERYTHING, cluster=root, PAGER=str(pager))
    assert paged.startswith("paged with FRX\n")
    assert paged.endswith("(12 rows)\n")
    for arguments in ({"lines": 1000}, {}):
        statement = EVERYTHING if arguments else NARROW
        short = run_in_terminal(
            "query",
            statement,
            cluster=root,
            PAGER=str(pager),
            **arguments,  # type: ignore[arg-type]
        )
        assert "paged with" not in short
    missing = run_in_terminal("query", EVERYTHING, cluster=root, PAGER="no-such-pager")
    assert missing.endswith("(12 rows)\n")


def test_times_are_local_or_in_utc_and_ms_in_json(root: Path) -> None:
    """A column of times is printed as times; durations and other numbers are not."""
    statement = """
        select 0::bigint as created_at_ms, 1700000000123 as timeout_ms,
            make_timestamptz(1700000000123000) as zoned"""
    local = plain(run_in_terminal("query", statement, cluster=root, columns=200))
    assert "1970-01-01 05:30:00.000+05:30" in local
    assert "2023-11-15 03:43:20.123+05:30" in local
    assert " 1700000000123 " in local
    in_utc = run("query", statement, "--utc", cluster=root).printed
    assert "1970-01-01 00:00:00.000+00:00" in in_utc
    assert "2023-11-14 22:13:20.123+00:00" in in_utc
    [row] = json.loads(run("query", statement, "--json", cluster=root).printed)
    assert row["created_at_ms"] == 0
    brokers = run("brokers", "list", "--utc", cluster=root).printed
    assert re.search(r" \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\+00:00 ", brokers)


@pytest.mark.parametrize(
    ("name", "is_time"),
    [
        ("registered_at_ms", True),
        ("since_ms", True),
        ("controller_since_ms", True),
        ("max(min_timestamp_ms)", True),
        ("deadline_ms", True),
        ("timeout_ms", False),
        ("session_timeout_ms", False),
        ("format_ms", False),
        ("partition", False),
    ],
)
def test_times_are_known_by_their_names(name: str, is_time: bool) -> None:
    assert is_instant(name) is is_time


def test_times_are_read_as_they_are_printed() -> None:
    now_ms = 1_700_000_000_123
    assert read_past_time_ms(time_text(now_ms, utc=False), "--as-of", 0, utc=True) == now_ms
    assert read_past_time_ms(time_text(now_ms, utc=True), "--as-of", 0, utc=False) == now_ms
    for text, ms in {
        "2023-11-14T22:13:20.123": now_ms,
        "2023-11-14T22:13:20.123Z": now_ms,
        "2023-11-15 03:43:20.123+05:30": now_ms,
        "1700000000123": now_ms,
        "10 minutes ago": now_ms - 600_000,
        "1 hour ago": now_ms - 3_600_000,
    }.items():
        assert read_past_time_ms(text, "--as-of", now_ms, utc=True) == ms
    for text in ("yesterday", "10 ago", "", "999999999 weeks ago"):
        with pytest.raises(ConfigError, match="is not a time: write it like"):
            read_past_time_ms(text, "--as-of", now_ms, utc=False)
    assert time_text(1 << 62, utc=True) == str(1 << 62)
