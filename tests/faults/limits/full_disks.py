"""Small disks under load that are full, without inodes or read-only for some seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.faults.limits.disks import Disk, mounted
from tests.faults.limits.load import Load, errors, running_load
from tests.jobs.processes import wait_for

Row = dict[str, Any]
Act = Callable[[Disk], None]

NAMES = ("cluster", "b0", "b1", "b2")
VICTIMS: tuple[Sequence[str], ...] = (("b0",), ("b1", "b2"), NAMES[1:], ("cluster",), NAMES)
_SECONDS = 9.0
_SIZE_BYTES, _INODES = 192 << 20, 20_000


def run(folder: Path) -> Iterator[Row]:
    """Yield the outcome of each failure on each set of disks, and then the verdict."""
    faults: dict[str, tuple[Act, Act]] = {
        "full disk": (Disk.fill, Disk.free),
        "no inodes": (Disk.fill_inodes, Disk.free),
        "read-only disk": (
            lambda disk: disk.remount(is_writable=False),
            lambda disk: disk.remount(is_writable=True),
        ),
    }
    for fault, (begin, end) in faults.items():
        with ExitStack() as stack:
            place = folder / fault.replace(" ", "-")
            disks = {
                name: stack.enter_context(mounted(Disk(place / name, _SIZE_BYTES, _INODES)))
                for name in NAMES
            }
            roots = [disk.folder / "root" for disk in disks.values()]
            load = stack.enter_context(running_load(place, roots))
            for names in VICTIMS:
                yield _fail(load, fault, names, [disks[one] for one in names], begin, end)
            yield {"limit": fault, "what": "verdict", **load.verdict()}


def _fail(
    load: Load, fault: str, names: Sequence[str], disks: Sequence[Disk], begin: Act, end: Act
) -> Row:
    before = load.acknowledged()
    for disk in disks:
        begin(disk)
    time.sleep(_SECONDS)
    acknowledged = load.acknowledged() - before
    alive = len(load.brokers.alive())
    for disk in disks:
        end(disk)
    processes = load.brokers.brokers
    ended = {one: of.popen.poll() for one, of in processes.items() if of.popen.poll() is not None}
    messages = sorted({line for of in processes.values() for line in errors(of)})[:3]
    for one in ended:
        load.brokers.start_broker(one)
    began = time.monotonic()
    load.await_progress()
    progress = time.monotonic() - began
    wait_for(load.brokers.is_in_sync, "brokers in sync", patience=120)
    return {
        "limit": fault,
        "what": f"{_SECONDS:.0f} s: {', '.join(names)}",
        "acknowledged": acknowledged,
        "alive_at_the_end": alive,
        "exit_codes_of_ended": ended,
        "back_after_s": round(progress, 1),
        "in_sync_after_s": round(time.monotonic() - began, 1),
        "messages": messages,
    }
