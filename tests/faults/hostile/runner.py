"""Runs targets in a process of their own: a crash or a hang of it is a finding like an exception.

The process writes the number of its target and of its input to shared memory before each input. If
it ends or does not move on, the input is known, and another process goes on with the next one.
"""

from __future__ import annotations

import base64
import json
import logging
import mmap
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from tests.faults.hostile.target import Target

ALL_TARGETS = "tests.faults.hostile.targets:all_targets"

_START_S = 120.0
"""Seconds within which a process begins its first input: it imports the targets before."""

HANG_S = 30.0
"""Seconds after which an input counts as one that hangs; the machine may be shared."""

SLOW_S = 2.0
"""CPU seconds of one input from which on it is a finding. No input has more than 200 KiB."""

_MOST_MEMORY_BYTES = 4 << 30
"""The address space that a process may use beyond what it has before its first input."""

_POSITION = struct.Struct("<qq")
_SHOWN_BYTES = 1_500
CHECKOUT = Path(__file__).parents[3]


class Finding(NamedTuple):
    """An input that a parser did not withstand, and the number of inputs that failed like it."""

    target: str
    number: int
    fault: str
    place: str
    content: str
    times: int = 1


class Outcome(NamedTuple):
    """The inputs of a target, and the CPU time in s that they took."""

    target: str
    inputs: int
    cpu_s: float


class Run(NamedTuple):
    """The outcomes and findings of a run."""

    outcomes: list[Outcome]
    findings: list[Finding]


def pasted(content: bytes) -> str:
    """Return an expression with the value `content`, to be pasted in a test."""
    if len(content) <= _SHOWN_BYTES:
        return repr(content)
    packed = base64.b64encode(zlib.compress(content, 9)).decode()
    return f'zlib.decompress(base64.b64decode("{packed}"))'


def share(targets: Sequence[Target], inputs: int, least: int) -> dict[str, int]:
    """Return the number of inputs of each target: by weight, and at least `least`."""
    total = sum(target.weight for target in targets)
    return {one.name: max(least, inputs * one.weight // total) for one in targets}


# --- the process that runs them -----------------------------------------------------------------


def fault_of(target: Target, content: bytes) -> tuple[str, str] | None:
    """Run an input; return its fault and its place, or `None`."""
    began = time.process_time()
    try:
        target.run(content)
    except target.permitted:
        pass
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a panic of Rust is no Exception
        return f"{type(error).__name__}: {str(error)[:300]}", _place_of(error)
    taken = time.process_time() - began
    return (f"took {taken:.1f} s", "slow") if taken > SLOW_S else None


def _place_of(error: BaseException) -> str:
    """Return the innermost line of the product, by which equal findings are counted together."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if f"{os.sep}sparklog{os.sep}" in one.filename]
    last = (own or frames)[-1]
    name = Path(last.filename)
    if name.is_relative_to(CHECKOUT):
        name = name.relative_to(CHECKOUT)
    return f"{name}:{last.lineno} {type(error).__name__}"


def smaller(target: Target, content: bytes, place: str, attempts: int = 300) -> bytes:
    """Return a shorter input with the same finding, found by leaving out parts."""
    size = len(content) // 2
    while size and attempts > 0:
        at = 0
        while at < len(content) and attempts > 0:
            attempts -= 1
            shorter = content[:at] + content[at + size :]
            found = fault_of(target, shorter)
            if found is not None and found[1] == place:
                content = shorter
            else:
                at += size
        size //= 2
    return content


def work(arguments: Sequence[str]) -> None:
    """Run inputs of targets, beginning at an input of one; print the findings as JSON lines."""
    factory, path, seed, first_target, first_input, counts = arguments
    module, _, name = factory.partition(":")
    make: Callable[[Path], list[Target]] = getattr(import_module(module), name)
    logging.disable()
    by_number = json.loads(counts)
    with tempfile.TemporaryDirectory(prefix="sparklog-hostile-", dir=_memory()) as folder:
        targets = make(Path(folder))
        _limit_memory()
        with Path(path).open("r+b") as file:
            position = mmap.mmap(file.fileno(), _POSITION.size)
        for number in range(int(first_target), len(targets)):
            begin = int(first_input) if number == int(first_target) else 0
            _run(targets[number], number, range(begin, by_number[number]), int(seed), position)
    # Left without the destructors of native libraries, which hostile input may have confused.
    sys.stdout.flush()
    os._exit(0)


def _run(target: Target, number: int, inputs: range, seed: int, position: mmap.mmap) -> None:
    began = time.process_time()
    known: dict[str, int] = {}
    for at in inputs:
        position[:] = _POSITION.pack(number, at)
        content = target.input(seed, at)
        found = fault_of(target, content)
        if found is None:
            continue
        fault, place = found
        known[place] = known.get(place, 0) + 1
        if known[place] == 1:
            shown = smaller(target, content, place) if place != "slow" else content
            _print("finding", Finding(target.name, at, fault, place, pasted(shown)))
    for place, count in known.items():
        _print("count", (target.name, place, count))
    _print("outcome", Outcome(target.name, len(inputs), time.process_time() - began))


def _print(kind: str, value: object) -> None:
    print(json.dumps([kind, value]), flush=True)


def _memory() -> str | None:
    """Return the folder of a file system in memory, if there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if _has_proc() else 0
    limit = pages * resource.getpagesize() + _MOST_MEMORY_BYTES
    if pages:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _has_proc() -> bool:
    return Path("/proc/self/statm").exists()


# --- the process that watches -------------------------------------------------------------------


def run(
    targets: Sequence[str],
    counts: Sequence[int],
    seed: int,
    factory: str = ALL_TARGETS,
    hang_s: float = HANG_S,
) -> Iterator[Outcome | Finding]:
    """Run the numbers of inputs of all targets; yield outcomes and findings as they come.

    Parameters: `factory`, module and name of the function that makes the targets; `targets`, their
    names in its order; `counts`, one number for each.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "position")
        path.write_bytes(_POSITION.pack(0, 0))
        first = (0, 0)
        while first[0] < len(targets):
            arguments = [factory, str(path), str(seed), *map(str, first), json.dumps(list(counts))]
            ended = yield from _watched(path, folder, arguments, hang_s)
            if ended is None:
                return
            number, at = _POSITION.unpack(path.read_bytes())
            done = at + 1 - (first[1] if number == first[0] else 0)
            yield Outcome(targets[number], done, 0.0)
            yield Finding(targets[number], at, ended, ended, f"input {at} of seed {seed}")
            first = (number, at + 1)
            path.write_bytes(_POSITION.pack(*first))


def _watched(
    path: Path, folder: str, arguments: Sequence[str], hang_s: float
) -> Generator[Outcome | Finding, None, str | None]:
    """Run one process; the generator returns its fault, or `None` if it has done everything."""
    with (
        Path(folder, "out").open("w+b") as out,
        Path(folder, "err").open("w+b") as err,
        subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments], stdout=out, stderr=err, cwd=CHECKOUT
        ) as process,
    ):
        read = 0
        # The input of an earlier process is there until this one begins its first.
        before, since = path.read_bytes(), time.monotonic()
        limit_s = _START_S
        is_hanging = False
        while True:
            is_running = process.poll() is None
            lines = Path(out.name).read_bytes()
            end = lines.rfind(b"\n") + 1
            yield from _results(lines[read:end])
            read = end
            if not is_running:
                break
            now = path.read_bytes()
            if now != before:
                before, since, limit_s = now, time.monotonic(), hang_s
            elif time.monotonic() - since > limit_s:
                is_hanging = True
                process.kill()
            time.sleep(0.05)
        if process.returncode == 0:
            return None
        if is_hanging:
            return f"hangs for {hang_s:.0f} s"
        text = Path(err.name).read_text(errors="replace")[-2_000:]
        if process.returncode > 0:
            raise RuntimeError(f"the process of the targets has failed: {text}")
        return f"ends the process: {signal.Signals(-process.returncode).name}"


def _results(lines: bytes) -> Iterator[Outcome | Finding]:
    for line in lines.splitlines():
        kind, value = json.loads(line)
        if kind == "outcome":
            yield Outcome(*value)
        elif kind == "finding":
            yield Finding(*value)
        else:
            target, place, count = value
            yield Finding(target, -1, "", place, "", count)


_PROGRAM = "import sys; from tests.faults.hostile.runner import work; work(sys.argv[1:])"


def run_all(
    targets: Sequence[str],
    counts: Sequence[int],
    seed: int,
    factory: str = ALL_TARGETS,
    hang_s: float = HANG_S,
) -> Run:
    """Run all inputs, and return the outcomes and findings, equal ones together."""
    outcomes: dict[str, Outcome] = {}
    findings: dict[tuple[str, str], Finding] = {}
    for one in run(targets, counts, seed, factory, hang_s):
        if isinstance(one, Outcome):
            before = outcomes.get(one.target, Outcome(one.target, 0, 0.0))
            outcomes[one.target] = Outcome(
                one.target, before.inputs + one.inputs, before.cpu_s + one.cpu_s
            )
            continue
        key = one.target, one.place
        if one.number < 0:
            findings[key] = findings[key]._replace(times=one.times)
        elif key in findings:
            findings[key] = findings[key]._replace(times=findings[key].times + 1)
        else:
            findings[key] = one
    return Run(list(outcomes.values()), list(findings.values()))
