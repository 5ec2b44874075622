"""The size of a cluster at one moment of a run: its files, memory and times."""

from __future__ import annotations

import json
import os
import re
import statistics
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

_COMMIT = re.compile(r"\d{20}\.json")
_MIB = 1 << 20


@dataclass(frozen=True)
class Disk:
    """Files and bytes of a cluster's folder, by what they are.

    Attributes: `live_files`, which the newest versions of the tables name; `dead_files`, which they
    do not name any more, kept for readers of older versions; `log_files`, commits and checkpoints
    of all tables, and the temporary files beside them; `journal_commits`, of the `log` table that
    has the most.
    """

    live_files: int
    dead_files: int
    log_files: int
    live_bytes: int
    dead_bytes: int
    log_bytes: int
    journal_commits: int


@dataclass(frozen=True)
class Sample(Disk):
    """The size of a cluster after `at` ticks, or seconds.

    Attributes: `tick_ms`, processor time of a tick, or of a broker's process in a second;
    `start_ms`, processor time of a broker's start, `None` if none was started; `memory_mib`,
    resident memory of the process, or of the largest one.
    """

    at: float
    records: int
    tick_ms: float
    start_ms: float | None
    memory_mib: float


def disk(folder: Path) -> Disk:
    """Return the files below a folder. Brokers may write and remove some meanwhile."""
    live = {path for table in _tables(folder) for path in _live(table)}
    files = dict.fromkeys(("live", "dead", "log"), 0)
    sizes = dict(files)
    journal_commits = 0
    for parent, _, names in os.walk(folder):
        table_log = Path(parent)
        is_log = "_delta_log" in table_log.parts
        if is_log and table_log.parent.name == "log":
            journal_commits = max(journal_commits, sum(map(bool, map(_COMMIT.fullmatch, names))))
        for name in names:
            path = f"{parent}/{name}"
            kind = "log" if is_log else "live" if path in live else "dead"
            with suppress(FileNotFoundError):
                sizes[kind] += Path(path).stat().st_size
                files[kind] += 1
    return Disk(
        live_files=files["live"],
        dead_files=files["dead"],
        log_files=files["log"],
        live_bytes=sizes["live"],
        dead_bytes=sizes["dead"],
        log_bytes=sizes["log"],
        journal_commits=journal_commits,
    )


def _tables(folder: Path) -> Iterator[Path]:
    for parent, names, _ in os.walk(folder):
        if "_delta_log" in names:
            yield Path(parent)


def _live(table: Path) -> list[str]:
    # A table is read again if clean-up has removed a file of its log meanwhile.
    for _ in range(5):
        with suppress(DeltaError, OSError):
            return [unquote(urlsplit(uri).path) for uri in DeltaTable(str(table)).file_uris()]
    return []


def memory_mib(process_id: int | str = "self") -> float:
    """Return the resident memory of a process in MiB; 0 if it has ended."""
    with suppress(OSError):
        pages = int(Path(f"/proc/{process_id}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / _MIB
    return 0.0


def median(values: Iterable[float]) -> float | None:
    """Return the median with three digits, or `None` if there are no values."""
    found = list(values)
    return float(f"{statistics.median(found):.3g}") if found else None


def append(file: Path, sample: Sample) -> None:
    """Append a sample to a file with one JSON object a line."""
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(asdict(sample)) + "\n")


def load(file: Path) -> list[Sample]:
    """Return the samples of a file."""
    return [Sample(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
