"""docs/command-line.md: it has every option of Kafka's tools, and names what sparklog has."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from sparklog.cli import app
from sparklog.config import ProducerConfig
from tests.examples import CHECKOUT

TEXT = (CHECKOUT / "docs" / "command-line.md").read_text(encoding="utf-8")

RECORDED = json.loads(Path(__file__).with_name("kafka_tools.json").read_text(encoding="utf-8"))
"""The options of Kafka's tools, written by record_kafka_tools.py."""

ALL_TOOLS = "Options of all tools"
"""The section with the options that every tool of Kafka's has."""


def commands_of(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, set[str]]]:
    """Yield the commands below `command`, and itself, with their options; not the hidden ones."""
    yield " ".join(path), {name for one in command.params for name in one.opts} | {"--help"}
    for name, one in getattr(command, "commands", {}).items():
        if not one.hidden:
            yield from commands_of(one, (*path, name))


COMMANDS = dict(commands_of(typer.main.get_command(app)))
"""The options of sparklog's commands by their names; those of `sparklog` itself are of ""."""

GROUPS = {name.split()[0] for name in COMMANDS if " " in name} | {""}
"""The names that stand for several commands."""


def section(title: str) -> str:
    return TEXT.split(f"## {title}\n")[1].split("\n## ")[0]


def rows(title: str) -> list[tuple[str, str]]:
    """Return the two cells of each row of a section's table, without its head."""
    found = re.findall(r"^\| (.*?) \| (.*?) ?\|$", section(title), re.MULTILINE)
    assert len(found) > 1, title
    return found[1:]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def command_of(text: str) -> str:
    """Return the longest name of a command with which the words of `text` begin."""
    words = text.split()
    names = [" ".join(words[:count]) for count in (2, 1, 0)]
    return next(name for name in names if name in COMMANDS)


def fault(text: str, of_section: str) -> str | None:
    """Return how the code of a cell differs from sparklog's commands, or `None`.

    An option without a command is one of the commands that the table's head names, which may be a
    group. Code that begins with neither is a value or a name of something else.
    """
    if text.startswith("--"):
        text = f"sparklog {of_section} {text}"
    if not text.startswith("sparklog"):
        return None
    words = shlex.split(text)[1:]
    name = command_of(" ".join(words))
    rest = words[len(name.split()) :]
    options = {one for one in rest if one.startswith("--")}
    if not options and (name in GROUPS or (rest and re.fullmatch(r"[a-z-]+", rest[0]))):
        return f"{text}: {name!r} is not a command"
    known = set(COMMANDS[name])
    if name in GROUPS:
        # Every command of the group has the option, except those of its own actions.
        members = [of for one, of in COMMANDS.items() if one.startswith(f"{name} ".lstrip())]
        known |= {one for of in members for one in of}
    return f"{text}: no {sorted(options - known)}" if options - known else None


TOOLS = sorted(RECORDED["tools"])


@pytest.mark.parametrize("tool", TOOLS)
def test_every_option_of_the_tool_is_in_its_table(tool: str) -> None:
    """Deprecated options of Kafka's are left out, and others that Kafka's tool does not have."""
    common = {name for cell, _ in rows(ALL_TOOLS) for name in code(cell)}
    named = [name for cell, _ in rows(tool) for name in code(cell)]
    known = RECORDED["tools"][tool]
    assert [name for name in known["options"] if name not in {*named, *common}] == []
    assert [name for name in named if name not in known["options"]] == []
    assert len(named) == len(set(named))


@pytest.mark.parametrize("title", [ALL_TOOLS, *TOOLS])
def test_every_row_has_a_counterpart_or_the_reason_why_not(title: str) -> None:
    for option, cell in rows(title):
        is_none = cell.startswith("none: ")
        assert is_none or cell.startswith("the ") or code(cell), (option, cell)
        assert not is_none or len(cell) > len("none: ") + 10, (option, cell)


def test_the_commands_and_options_of_sparklog_exist() -> None:
    titles = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    found, count = [], 0
    for title in titles:
        head = re.search(r"^\| .* \| sparklog ?([a-z -]*)", section(title), re.MULTILINE)
        of_section = head[1].strip() if head else ""
        cells = [cell for row in rows(title) for cell in row[title.startswith("Commands") ^ 1 :]]
        for text in [one for cell in cells for one in code(cell)]:
            count += 1
            found.append(fault(text, of_section))
    outside = re.sub(r"^\|.*$", "", TEXT, flags=re.MULTILINE)
    found += [fault(text, "") for text in code(outside)]
    assert count > 150
    assert [one for one in found if one is not None] == []


def test_every_command_of_sparklog_is_on_the_page() -> None:
    named = {command_of(text[9:]) for text in code(TEXT) if text.startswith("sparklog ")}
    heads = set(
        re.findall(r"^\| kafka-\S+ \| sparklog ([a-z -]+?) (?:TOPIC )?\|$", TEXT, re.MULTILINE)
    )
    assert COMMANDS.keys() - GROUPS - named - heads == set()


def test_the_keys_of_producers_exist() -> None:
    """The values of --command-property are keys of a producer."""
    keys = {field.alias or name for name, field in ProducerConfig.model_fields.items()}
    found = re.findall(r"--command-property ([a-z.]+)=", TEXT)
    assert len(found) == TEXT.count("--command-property ") > 5
    assert set(found) <= keys


def test_the_page_names_the_recorded_release() -> None:
    assert f"Kafka {RECORDED['version']}" in TEXT


@pytest.mark.parametrize(
    ("text", "of_section"),
    [
        ("sparklog topic list", ""),
        ("sparklog topics", ""),
        ("sparklog topics lists", ""),
        ("sparklog topics list --partitions", ""),
        ("--partition", "topics"),
        ("--absent", ""),
    ],
)
def test_a_wrong_name_is_found(text: str, of_section: str) -> None:
    assert fault(text, of_section) is not None


def test_options_are_read_from_both_forms_of_help() -> None:
    """Tools of Kafka print their help by joptsimple or by argparse4j."""
    from tests.cli.record_kafka_tools import options

    simple = (
        "Option  Description\n------  -----------\n--a-b <String>  (DEPRECATED)\n         --c.\n"
    )
    assert options(simple + "* --d  D\n") == {"--a-b": "<String> (DEPRECATED) --c.", "--d": "D"}
    assert options("usage: x\n\noptional:\n  -h, --help   show\n  --e E\n       F\n") == {
        "--help": "show",
        "--e": "E F",
    }
