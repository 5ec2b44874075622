"""Simulated processes, of which exactly one runs at any time, and their storage and clocks."""

from __future__ import annotations

import functools
import hashlib
import random
import re
import secrets
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from sparklog.broker import unclean_start
from sparklog.broker.following import copies_ahead
from sparklog.storage import delta_log, parallel
from tests.faults.simulation.openings import Openings
from tests.faults.simulation.script import Event
from tests.faults.simulation.simulated_store import SimulatedStore
from tests.faulty_files import Failure, FaultyFiles

START_MS = 1_700_000_000_000
"""The time at which each simulation begins, in ms since 1970."""

_DEADLOCK_S = 60
"""The real time after which a process that does not reach its next operation is stuck."""

_SLEEP = time.sleep
_Failure = TypeVar("_Failure", bound=str)

_FAILURES: dict[str, Failure] = {
    "create": "full",
    "write": "torn",
    "sync": "unsynced",
    "read": "unread",
}
"""The failure of each call but `link`, which fails in the way that the script names."""

_UNANSWERED_LISTS = {"refused", "unknown", "dies"}
"""The outcomes with which a list of a store fails; with the others it is outdated."""


_CHECKSUM = re.compile(r"-[0-9a-f]{16}(?=\.parquet)")
"""The checksum in the name of a control table's file."""


class KilledError(BaseException):
    """The simulated process has ended: no code of the product may catch this."""


class DeadlockError(AssertionError):
    """A process waits for a lock that a suspended process holds."""


def _taken() -> threading.Lock:
    """Return a lock that is held; a semaphore adds a condition variable to each switch."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class ProcessClock:
    """A process's clocks: the base clock with its own rate, and an offset of the wall clock."""

    def __init__(self, scheduler: Scheduler, drift_ppm: int = 0) -> None:
        self._scheduler = scheduler
        self.drift_ppm = drift_ppm
        self.offset_ms = 0

    def monotonic_ms(self) -> int:
        """Return the monotonic time in ms."""
        passed_ms = self._scheduler.now_ms - START_MS
        return START_MS + passed_ms + passed_ms * self.drift_ppm // 1_000_000

    def now_ms(self) -> int:
        """Return the wall-clock time in ms."""
        return self.monotonic_ms() + self.offset_ms


class Process:
    """A thread that runs one action at a time, and only while it holds the baton."""

    def __init__(self, name: str, scheduler: Scheduler, drift_ppm: int, boot_id: Path) -> None:
        self.name = name
        self.boot_id = boot_id
        self.clock = ProcessClock(scheduler, drift_ppm)
        self.is_busy = False
        """Whether an action has begun and not ended: the process runs or is suspended."""
        self.is_killed = False
        self.error: BaseException | None = None
        self._action: Callable[[], None] | None = None
        self.baton = _taken()
        self._scheduler = scheduler
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def begin(self, action: Callable[[], None]) -> None:
        """Set the action that the process begins when it gets the baton."""
        self._action, self.is_busy, self.is_killed, self.error = action, True, False, None

    def end(self) -> None:
        """End the thread of an idle process."""
        self._action = None
        self.baton.release()
        self.thread.join()

    def _run(self) -> None:
        while True:
            self.baton.acquire()
            if self._action is None:
                return
            try:
                self._action()
            except BaseException as error:  # noqa: BLE001 - reported by the scheduler
                self.error = error
            self.is_busy = False
            self._scheduler.baton.release()


class Scheduler:
    """Runs processes in the order of a script and decides the outcome of each storage operation.

    Parameters: `root`, the folder of all tables; `has_store`, whether processes see an object store
    in it.
    """

    def __init__(self, root: Path, *, has_store: bool = False) -> None:
        self.root = root
        self.outdated_lists = 0.0
        """The share of a store's lists that lag behind."""
        self._lists = random.Random(0)
        self._store = SimulatedStore(self, root) if has_store else None
        self.now_ms = START_MS
        self.baton = _taken()
        self.files = _SimulatedFiles(self, root / "stash")
        self.current: Process | None = None
        self.counts: Counter[str] = Counter()
        self._clock = ProcessClock(self)
        self._events: dict[tuple[str, int], str] = {}
        self._operations: Counter[str] = Counter()
        self._trace = hashlib.sha256()
        self._ids = random.Random(0)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the storage, clocks, identifiers and thread pools of the product."""
        inline = _InlineExecutor()
        with ExitStack() as stack:
            stack.enter_context(self.files.installed())
            stack.enter_context(Openings(self.root).installed())
            if self._store is not None:
                stack.enter_context(self._store.installed())
                for pools, of in ((parallel, "ThreadPoolExecutor"), (copies_ahead, "_threads")):
                    stack.enter_context(mock.patch.object(pools, of, return_value=inline))
                # Clean-up by delta-rs goes by the system's clock.
                stack.enter_context(mock.patch.object(delta_log, "start_checkpoint"))
            for target, name, value in (
                (parallel, "process_threads", lambda _name, _count: inline),
                (uuid, "uuid4", lambda: uuid.UUID(int=self._ids.getrandbits(128), version=4)),
                (
                    secrets,
                    "token_hex",
                    lambda size: f"{self._ids.getrandbits(8 * size):0{2 * size}x}",
                ),
                (time, "time_ns", lambda: self._clocks().now_ms() * 1_000_000),
                (time, "time", lambda: self._clocks().now_ms() / 1000),
                (time, "monotonic", lambda: self._clocks().monotonic_ms() / 1000),
                (time, "monotonic_ns", lambda: self._clocks().monotonic_ms() * 1_000_000),
                (time, "perf_counter", lambda: self._clocks().monotonic_ms() / 1000),
                (time, "sleep", self._sleep),
                (functools.cached_property, "__get__", _cached),
            ):
                stack.enter_context(mock.patch.object(target, name, value))
            random.seed(0)
            yield

    @property
    def digest(self) -> str:
        """The checksum of the trace: all operations, in their order, with their outcomes."""
        return self._trace.hexdigest()

    def note(self, line: str) -> None:
        """Add a line to the trace."""
        self._trace.update(f"{line}\n".encode())

    def run(self, process: Process, events: Iterable[Event] = ()) -> None:
        """Let a busy process run until its action ends or it is suspended."""
        self._events = {(one.kind, one.number): one.outcome for one in events}
        self._operations.clear()
        self.current = process
        with mock.patch.object(unclean_start, "_BOOT_ID", process.boot_id):
            process.baton.release()
            if not self.baton.acquire(timeout=_DEADLOCK_S):
                raise DeadlockError(f"{process.name} waits for a lock of a suspended process")
        self.current = None

    def kill(self, process: Process) -> None:
        """End the action of a suspended process at the operation before which it is suspended."""
        process.is_killed = True
        self.run(process)

    @property
    def is_in_a_process(self) -> bool:
        """Whether the calling thread is the simulated process that runs."""
        process = self.current
        return process is not None and threading.current_thread() is process.thread

    def at_operation(self, call: str, path: str) -> Failure | None:
        """Decide what happens at a call of the file system; called by the process that makes it."""
        event = self._decided(call, path)
        if event is None or call == "remove":
            return None
        failure: Failure = event if call == "link" else _FAILURES[call]  # type: ignore[assignment]
        return self._failed(failure)

    def at_request(self, call: str, path: str) -> str | None:
        """Decide what happens at a request to an object store; called as `at_operation` is."""
        event = self._decided(call, path)
        if call == "list" and event is None and self._lists.random() < self.outdated_lists:
            event = "outdated"
        if event is None:
            return None
        if call == "read":
            return self._failed("unread")
        if call == "list":
            return self._failed("unread" if event in _UNANSWERED_LISTS else "outdated")
        return self._failed(event)

    def _failed(self, failure: _Failure) -> _Failure:
        process = self.current
        assert process is not None
        process.is_killed = failure == "died"
        self.counts[failure] += 1
        return failure

    def _decided(self, call: str, path: str) -> str | None:
        """Return what the script has for an operation, except for the end of its process."""
        process = self.current
        if process is None or not self.is_in_a_process:
            return None
        if process.is_killed:
            raise KilledError
        self.counts["operations"] += 1
        event = self._event(call, path)
        # Rows name the folder of the simulation, so the checksums of their files differ.
        shown = _CHECKSUM.sub("", path.removeprefix(f"{self.root}/"))
        self.note(f"{self.now_ms} {process.name} {call} {shown} {event}")
        if event is None:
            return None
        if event == "suspend":
            self.counts["suspended"] += 1
            self.baton.release()
            process.baton.acquire()
            if process.is_killed:
                raise KilledError
            return None
        if event == "kill" or (event == "died" and call != "link"):
            self.counts["killed"] += 1
            process.is_killed = True
            raise KilledError
        return event

    def _event(self, call: str, path: str) -> str | None:
        """Return the outcome that the script has for an operation."""
        kinds = ["any", call]
        if "/log/_delta_log/" in path:
            assert self.current is not None
            if call == "link":
                kinds.append("commit")
            elif call == "read" and f"/{self.current.name[:-1]}/" in path:
                kinds.append("own journal read")
        found = None
        for kind in kinds:
            self._operations[kind] += 1
            found = found or self._events.get((kind, self._operations[kind]))
        return found

    def _clocks(self) -> ProcessClock:
        return self._clock if self.current is None else self.current.clock

    def _sleep(self, seconds: float) -> None:
        """Advance the clock for a simulated process; other threads of this process sleep."""
        if self.current is not None and threading.current_thread() is self.current.thread:
            self.now_ms += max(1, round(seconds * 1000))
        else:
            _SLEEP(seconds)


def _cached(of: functools.cached_property[Any], instance: object, _owner: object = None) -> Any:
    """Return a cached property without the lock that all instances share before Python 3.12.

    Simulated processes are threads of one process: a suspended one would hold it for all others.
    """
    if instance is None:
        return of
    name = str(of.attrname)
    if name not in vars(instance):
        vars(instance)[name] = of.func(instance)
    return vars(instance)[name]


class _SimulatedFiles(FaultyFiles):
    """A file system that asks the scheduler for the outcome of each call."""

    def __init__(self, scheduler: Scheduler, stash: Path) -> None:
        super().__init__(stash)
        self._scheduler = scheduler

    def _take(self, call: str, path: str) -> Failure | None:
        if not self._scheduler.is_in_a_process:
            # The checker of the invariants reads, and must not meet a process's faults.
            return None
        return self._scheduler.at_operation(call, path) or super()._take(call, path)

    def _read(self, path: str) -> None:
        # Requests to a store are operations of their own.
        if "://" not in path and self._take("read", path) is not None:
            raise OSError(5, "read failed on request", path)

    def replace(self, source: str, target: str) -> None:
        self._scheduler.at_operation("remove", target)
        super().replace(source, target)


class _InlineExecutor(Executor):
    """Runs work at once in the calling thread, so that its operations have one order."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - belongs to the future
            future.set_exception(error)
        return future
