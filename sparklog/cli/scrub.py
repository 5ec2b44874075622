"""`sparklog scrub` and `sparklog repair`: verifying a cluster's files, and repairing them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, reaching
from sparklog.cli.progress import progress_bars
from sparklog.errors import SparklogError

if TYPE_CHECKING:
    from sparklog.cluster.repairs import Repair
    from sparklog.maintenance.scrub import ScrubProgress
    from sparklog.storage.execution import Execution
    from sparklog.storage.progress import OnProgress

FINDINGS = 1
"""The exit code if there are findings that are not repaired."""

NOT_READ = 2
"""The exit code if a part of the cluster cannot be read."""

_COLUMNS = {
    "fault": "string",
    "broker_id": "int32",
    "root": "string",
    "table": "string",
    "topic": "string",
    "partition": "int32",
    "first_offset": "int64",
    "last_offset": "int64",
    "file": "string",
    "detail": "string",
    "source_broker_id": "int32",
    "state": "string",
    "remedy": "string",
}

_JsonOption = Annotated[
    bool, typer.Option("--json", help="Print a JSON array of the findings on standard output.")
]


def scrub(
    cluster: ClusterOption,
    bytes_per_second: Annotated[
        int | None, typer.Option(min=1, help="The rate of reading; unlimited by default.")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(min=1, help="The bytes after which this run ends.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="When this run ends: HH:MM, or YYYY-MM-DDTHH:MM."),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin a new scrub, also if one was not completed.")
    ] = False,
    on_spark: Annotated[
        bool, typer.Option("--spark", help="Read batch files in the tasks of Spark jobs.")
    ] = False,
    as_json: _JsonOption = False,
) -> None:
    """Read all files of a cluster again, verify them, and print the damage.

    Verifies the commits, checkpoints and files of all tables, the file of each
    batch against the checksum in its log, and the committed records of in-sync
    replicas whose batches differ. Brokers and clients may run. Nothing is
    repaired; findings are recorded in the table repairs.

    The position is stored: a run that is ended by --max-bytes or --until, or
    killed, is continued by the next one.

    Exits with 0 if nothing is damaged, with 1 if findings are not repaired yet,
    and with 2 if a part of the cluster cannot be read.
    """
    from sparklog.maintenance import scrub as scrubbing

    until_ms = None if until is None else _time_ms(until, datetime.now().astimezone())
    named = Cluster.of(cluster)
    with reaching(named.root), progress_bars() as on_progress:
        report = scrubbing.scrub(
            named.connect(),
            execution=_spark_execution() if on_spark else None,
            bytes_per_second=bytes_per_second,
            max_bytes=max_bytes,
            until_ms=until_ms,
            restart=restart,
            on_progress=_progress(on_progress),
        )
    _print(report.findings, as_json=as_json)
    for what, reason in report.unreadable:
        typer.echo(f"sparklog: {what} cannot be read: {' '.join(reason.split())}", err=True)
    state = "complete" if report.is_complete else f"to be continued in {report.progress.phase}"
    typer.echo(
        f"Read {report.files} files ({report.bytes} bytes); findings not repaired: "
        f"{len(report.findings)}; the scrub is {state}.",
        err=True,
    )
    if report.unreadable:
        raise typer.Exit(NOT_READ)
    if report.findings:
        raise typer.Exit(FINDINGS)


def repair(
    cluster: ClusterOption,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the findings that are not repaired yet.")
    ] = False,
    as_json: _JsonOption = False,
) -> None:
    """Repair the findings of scrubs, and print the outcomes.

    The file of a batch is restored under its name with identical bytes, from
    another replica. Where the replicas have merged their batches differently,
    the broker of the damaged replica rebuilds the file from the records of an
    in-sync replica and commits it. A replica that cannot be repaired this way
    leaves the ISR and is refilled. Brokers and clients may run; a broker that
    does not run does its part when it is started.

    Exits with 0 if all findings are repaired, with 1 if some are left to their
    brokers or to an operator, and with 2 if the cluster cannot be read.
    """
    from sparklog.maintenance import repair as repairing
    from sparklog.maintenance.table_restoration import restore_cluster_root
    from sparklog.storage.location import Location

    named = Cluster.of(cluster)
    with reaching(named.root), progress_bars() as on_progress:
        # First of all: without it nobody can connect.
        root = Location.of(named.root, named.storage_options)
        repairs = restore_cluster_root(root, is_dry_run=dry_run)
        if not (dry_run and repairs):
            connection = named.connect()
            repairs += repairing.repair(connection, dry_run=dry_run, on_progress=on_progress)
    _print(repairs, as_json=as_json)
    left = [one for one in repairs if one.is_open]
    typer.echo(f"Repaired {len(repairs) - len(left)} of {len(repairs)} findings.", err=True)
    if left:
        raise typer.Exit(FINDINGS)


def _print(repairs: Sequence[Repair], *, as_json: bool) -> None:
    from sparklog.cli import output

    if not repairs and not as_json:
        return
    rows = [
        (
            one.fault,
            one.broker_id,
            one.root,
            one.table_name,
            one.topic,
            one.partition,
            one.first_offset,
            one.last_offset,
            one.path,
            one.detail,
            one.source_broker_id,
            one.state,
            one.outcome or one.remedy,
        )
        for one in repairs
    ]
    output.print_rows(rows, _COLUMNS, as_json=as_json)


def _progress(
    on_progress: OnProgress | None,
) -> Callable[[ScrubProgress], None] | None:
    """Return a function that shows the progress of each phase of a scrub."""
    if on_progress is None:
        return None

    def show(progress: ScrubProgress) -> None:
        name = f"{progress.phase}, {progress.findings} findings"
        on_progress(name, progress.done, progress.total)

    return show


def _time_ms(text: str, now: datetime) -> int:
    """Return the time that `--until` names, in ms since 1970: HH:MM is the next one from now on."""
    match = re.fullmatch(r"(\d{1,2}):(\d{2})", text)
    try:
        if match is not None:
            at = now.replace(hour=int(match[1]), minute=int(match[2]), second=0, microsecond=0)
            at += timedelta(days=int(at <= now))
        else:
            at = datetime.fromisoformat(text).astimezone()
    except ValueError as error:
        raise SparklogError(
            f"--until is {text!r}: give a time of the day as 06:00, or a time as 2030-01-31T06:00"
        ) from error
    return int(at.timestamp() * 1000)


def _spark_execution() -> Execution:
    from sparklog.config import Settings
    from sparklog.session import spark_session
    from sparklog.storage.execution import spark_execution

    per_task = Settings().execution_spark_bytes_per_task
    session = spark_session("sparklog scrub")
    return spark_execution(session, is_always=True, min_bytes=0, bytes_per_task=per_task)
