"""The demo's output: its steps, the brokers' events, its claims and its queries."""

from __future__ import annotations

import logging
import os
import sys
import time
import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from jobs.demo_proof import Claim
from jobs.spark_status import JobCount
from sparklog.cluster.admin import TopicDescription
from sparklog.logger import event_of

STORY = {
    "became controller": "broker {broker} is the controller (controller epoch {controller_epoch})",
    "broker fenced": "broker {broker} is fenced: no heartbeat for broker.session.timeout.ms",
    "partition changed": (
        "{topic}-{partition}: leader {leader}, leader epoch {leader_epoch}, in sync {isr}"
    ),
    "truncated": "broker {broker} truncates {topic}-{partition} from {from_offset} to {to_offset}",
    "isr shrink": "{topic}-{partition}: in sync {isr}",
    "isr expand": "{topic}-{partition}: in sync {isr}",
    "batch not copied": "a batch was not copied: {fault}",
    "failed": "{action} of broker {broker} failed: {error}",
}
"""The format of each of the brokers' log events that the demo prints."""

_OTHER_JOBS = "others: producer, consumer, queries, and one check of the executors"

_WIDE = 200
"""The width in columns of output that does not go to a terminal."""

console = Console(highlight=False, soft_wrap=True)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Print a step, and its duration when it ends."""
    since = time.monotonic()
    with console.status(f"[bold]{escape(what)}[/bold]"):
        yield
    console.print(f"[green]✓[/green] {escape(what)} [dim]{time.monotonic() - since:.1f} s[/dim]")


def title(text: str) -> None:
    """Print the title of the following output."""
    console.print(f"\n[bold]{escape(text)}[/bold]")


def happened(sentence: str) -> None:
    """Print an event of a broker."""
    console.print(f"  [yellow]{escape(sentence)}[/yellow]")


class Story(logging.Handler):
    """Prints the events of `STORY`."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the event of `record`."""
        print_event(event_of(record))


def print_event(event: Mapping[str, Any]) -> None:
    """Print an event of a broker if it is part of `STORY`."""
    if event.get("event") in STORY:
        happened(STORY[event["event"]].format_map(event))


def print_description(description: TopicDescription) -> None:
    """Print a topic in the format of Kafka's tool."""
    for line in str(description).splitlines():
        console.print(escape(line.expandtabs(4).rstrip()))
    console.print()


def print_jobs(counts: Sequence[JobCount]) -> None:
    """Print the numbers of the brokers' Spark jobs and tasks by name, and those of all others."""
    table = Table(
        "Spark jobs", Column("jobs", justify="right"), Column("tasks", justify="right"),
        box=SIMPLE_HEAD, pad_edge=False,
    )  # fmt: skip
    of_brokers = [one for one in counts if one.name.startswith("broker ")]
    others = [one for one in counts if one not in of_brokers]
    jobs, tasks = sum(one.jobs for one in others), sum(one.tasks for one in others)
    for count in [*of_brokers, JobCount(_OTHER_JOBS, jobs, tasks)]:
        table.add_row(escape(count.name), f"{count.jobs:,}", f"{count.tasks:,}")
    _print_table(table)


def print_claims(claims: Sequence[Claim]) -> None:
    """Print the claims and their checks as a table."""
    table = Table("claim", "found", "holds", box=SIMPLE_HEAD, pad_edge=False)
    for claim in claims:
        holds = "[green]yes[/green]" if claim.holds else "[bold red]NO[/bold red]"
        table.add_row(escape(claim.text), escape(claim.found), holds)
    _print_table(table)


def _print_table(table: Table) -> None:
    (console if console.is_terminal else Console(width=_WIDE, highlight=False)).print(table)


def print_how_to_look(topic: str, config: Path) -> None:
    """Print commands that query the demo's tables."""
    here = Path.cwd()
    command = os.path.relpath(Path(sys.executable).with_name("sparklog"), here)
    shown = config.relative_to(here) if config.is_relative_to(here) else config
    console.print(f"The tables are left in {escape(str(shown.parent))}. To query them:")
    for arguments in (
        f"topics describe {topic}",
        "query 'select * from partition_state'",
        "query 'select broker_id, path, record_count from batches order by base_offset'",
        "status",
    ):
        console.print(f"  [bold]{escape(f'{command} {arguments} --cluster {shown}')}[/bold]")


def show_page(page: Path) -> None:
    """Print the URL of a page, and open it in a browser if there is a terminal with a display."""
    console.print("The status of the cluster as a page:")
    console.print(f"  [bold]{escape(page.as_uri())}[/bold]")
    if sys.stdout.isatty() and has_display():
        webbrowser.open(page.as_uri())


def has_display() -> bool:
    """Return whether a browser of this process has a window to open."""
    if sys.platform in ("darwin", "win32"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
