"""An application that plays brokers: all of a cluster, or one of it.

Its brokers tick in parallel, one round after another. Heartbeats are made in a thread of their own,
since a round that copies files may take longer than a session lasts.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

from deltalake.exceptions import DeltaError

from sparklog.broker.background import BackgroundWork, Work
from sparklog.broker.broker import Broker
from sparklog.broker.engines import execution_of, rules_of
from sparklog.broker.log_directories import faults_at_start
from sparklog.broker.metrics_export import MetricsExport, check_export
from sparklog.broker.pace import SPARSE_MS, Pace, TickStep
from sparklog.broker.peers import Peer
from sparklog.broker.registration import LastProcess, await_session
from sparklog.broker.tick import TickReport
from sparklog.broker.tracing import tracer
from sparklog.clock import Clock, SystemClock
from sparklog.cluster.observations import is_silent
from sparklog.cluster.root_format import (
    RootFormat,
    check_distinct,
    check_empty,
    check_kind,
    check_new,
    read_formats,
    unusable,
)
from sparklog.cluster.roots import ClusterRoot
from sparklog.config import BrokerConfig, BrokerEntry, ClusterConfig
from sparklog.errors import (
    ApplicationFailedError,
    FencedError,
    NewerFormatError,
    SparklogError,
    StorageError,
)
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.session import has_ended
from sparklog.storage.errors import STORE_ERRORS, UNREADABLE
from sparklog.storage.execution import Execution
from sparklog.storage.exhausted import with_remedy
from sparklog.storage.location import Location, one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = get_logger(__name__)


_POLL_SECONDS = 0.003
"""Seconds between two checks for new commits by idle brokers on local file systems."""

_BUSY_SECONDS = 0.3
"""Seconds after the last traffic in which brokers on object stores pause only `_SHARE_OF_TICK`
between rounds. Traffic: records or positions moved."""

_AHEAD_SECONDS = 1.0
"""Seconds after the last traffic in which followers read their leaders' inboxes and copy ahead."""

_SHARE_OF_TICK, _WAITING_SHARE_OF_TICK = 0.05, 0.2
"""The pause between two rounds on object stores, as a share of tick.interval.ms: within
`_BUSY_SECONDS` of traffic, and later while requests wait for commits of other brokers."""

_REST_SECONDS = 0.002
"""Extra delay before a round in seconds, so that the other leaders' parts of a multi-leader request
arrive."""

_REPLICA_TICKS = frozenset(tick.__name__ for tick in (Broker.leader_tick, Broker.follower_tick))
_TICKS = _REPLICA_TICKS | {Broker.controller_tick.__name__}


_VACUUM_CHECK_S = 60
"""Seconds between two checks whether a root is to be vacuumed."""

_FIRST_WAIT_MS, _LONGEST_WAIT_MS = 20, 1_000
"""The wait in ms after the second consecutive failure of a tick, and the longest wait. The wait
doubles with each further failure."""


_NECESSARY = _REPLICA_TICKS | {Broker.heartbeat.__name__}
"""The actions without which a broker is of no use. The controller's ticks are not among them: if
they fail, the broker gives the lease back, and leads and follows as before."""


class _Trouble(NamedTuple):
    """The consecutive failures of one action of a broker; times are ms of the monotonic clock.

    `error` is the newest failure, at `failed_ms`; `since_ms` is the time of the first one. The next
    attempt is made at `again_ms`.
    """

    error: Exception
    since_ms: int
    failures: int
    failed_ms: int
    again_ms: int


class _Step(NamedTuple):
    """An action that a thread of the application has begun, at a time in s of `time.monotonic`."""

    what: str
    since: float


class Application:
    """Brokers in one process, over one Spark session.

    Nothing is created or registered before `start`. An application that has ended cannot be started
    again.

    Parameters
    ----------
    config : ClusterConfig or BrokerConfig
        A whole cluster, or one broker of it.
    spark : SparkSession, optional
        The session whose tasks work on the records, as the key `execution` says; `None` to work in
        this process.
    clock : Clock, optional
        The source of time; the system's by default.

    Attributes
    ----------
    config : ClusterConfig or BrokerConfig
        The configuration, as it was given.

    Raises
    ------
    ConfigError
        `execution` or `rules.engine` is spark, and there is no session.

    Examples
    --------
    >>> from sparklog import Admin, Application, ClusterConfig
    >>> config = ClusterConfig.model_validate(
    ...     {
    ...         "cluster.root": "shop/cluster",
    ...         "brokers": [{"broker.id": 0, "log.dirs": "shop/broker-0"}],
    ...     }
    ... )
    >>> application = Application(config)
    >>> application.start()
    >>> created = Admin("shop/cluster").create_topic("orders")
    >>> application.run_until_idle()
    """

    def __init__(
        self,
        config: ClusterConfig | BrokerConfig,
        spark: SparkSession | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config = config
        self._spark = spark
        self._clock = clock or SystemClock()
        self._rules = rules_of(config, spark)
        self._brokers: dict[int, Broker] = {}
        self._brokers_lock = threading.Lock()
        self._round_lock = threading.Lock()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._steps: dict[int, _Step] = {}
        """The actions under way, by thread."""
        self._ended_brokers: set[int] = set()
        self._heartbeats = threading.Thread(target=self._beat, name="heartbeats", daemon=True)
        self._background = [
            BackgroundWork(work, self._running, self._attempt, self._ended)
            for work in self._background_work()
        ]
        self._traffic_at = 0.0
        roots = [config.cluster_root, *(uri for one in config.brokers for uri in one.log_dirs)]
        is_sparse = config.tick_interval_ms >= SPARSE_MS
        self._pace: Pace | None = None
        if is_sparse and not any(self._location(uri).is_local for uri in roots):
            self._pace = Pace(config.tick_interval_ms)
        # One pool for the whole run: rules and Spark keep a connection for each thread.
        self._pool = ThreadPoolExecutor(len(config.brokers), thread_name_prefix="ticks")
        self._troubles: dict[tuple[int, str], _Trouble] = {}
        # The brokers without a usable log directory, and the reasons.
        self._without_directory: dict[int, str] = {}
        self._failures = RepeatedFailures(_log)
        self._metrics = MetricsExport(config, self._running)
        self._last_processes: dict[int, LastProcess] = {}
        self._fenced: list[FencedError] = []
        self._fatal: SparklogError | None = None
        # A whole cluster is parked: no other broker could take it over while it is away.
        self._farewell = Broker.park if isinstance(config, ClusterConfig) else Broker.stop

    def start(self) -> None:
        """Create missing roots and tables, and register every broker.

        Brokers that were registered when an error is raised end as they do in `run`.

        Raises
        ------
        StorageError
            A root is not usable; it is raised before anything is created in any of them.
        ProtocolError
            DUPLICATE_BROKER_REGISTRATION if a broker is alive elsewhere.
        ConfigError
            `execution` is spark, and the executors cannot run this package; or metrics cannot be
            exported as the keys metrics.* say.
        ApplicationFailedError
            `execution` is spark, and the check of the executors has failed otherwise.
        """
        try:
            with self._step("the start"):
                self._start()
        except BaseException as error:
            self._end(self._farewell)
            if isinstance(error, STORE_ERRORS) and not isinstance(error, SparklogError):
                message = f"the roots cannot be created or opened: {with_remedy(str(error))}"
                raise unusable(message, error) from error
            raise

    def _start(self) -> None:
        check_start(self.config)
        self._metrics.open()
        _ = self._execution  # One that is impossible is refused before anything is created.
        _log.debug("starting", brokers=[entry.broker_id for entry in self.config.brokers])
        roots = [root for entry in self.config.brokers for root in entry.log_dirs]
        cluster = ClusterRoot.create(
            self._location(self.config.cluster_root), [*map(self._location, roots)]
        )
        # In parallel: after a crash every broker of the application has a session to wait for.
        gone = self._pool.map(partial(self._await_session, cluster), self.config.brokers)
        ids = [entry.broker_id for entry in self.config.brokers]
        self._last_processes = dict(zip(ids, gone, strict=True))
        if self._stopping.is_set():
            return
        self._heartbeats.start()
        for work in self._background:
            work.thread.start()
        self._start_brokers()

    @cached_property
    def _execution(self) -> Execution:
        """The place of the record work. The first access checks the executors by a job."""
        return execution_of(self.config, self._spark, self.config.storage_options)

    def _start_brokers(self) -> None:
        """Start all brokers; in parallel on object stores, where a start takes many requests."""
        broker_ids = [entry.broker_id for entry in self.config.brokers]
        if self._location(self.config.cluster_root).is_local:
            for broker_id in broker_ids:
                self.start_broker(broker_id)
            return
        started = [self._pool.submit(self.start_broker, broker_id) for broker_id in broker_ids]
        try:
            wait(started)
        except BaseException:
            # Whatever interrupts this, the brokers that are being started are ended with the rest.
            wait(started)
            raise
        for one in started:
            one.result()
        self._brokers = {broker_id: self._brokers[broker_id] for broker_id in broker_ids}

    def start_broker(self, broker_id: int) -> None:
        """Start one of the application's brokers, which must not run here or elsewhere.

        Parameters
        ----------
        broker_id : int
            The id of a broker in the configuration.

        Raises
        ------
        SparklogError
            The broker runs in this application already.
        ProtocolError
            DUPLICATE_BROKER_REGISTRATION if the broker is alive elsewhere.
        """
        if broker_id in self._brokers:
            raise SparklogError(
                f"broker {broker_id} runs in this application already: drop it first"
            )
        [entry] = [one for one in self.config.brokers if one.broker_id == broker_id]
        self._brokers[broker_id] = Broker(
            broker_id,
            self._location(self.config.cluster_root),
            [self._location(root) for root in entry.log_dirs],
            rules=self._rules,
            execution=self._execution,
            clock=self._clock,
            settings=self.config,
            storage_options=self.config.storage_options,
            rack=entry.rack,
            # Of the first start only: later ones follow a process of this application.
            last_process=self._last_processes.pop(broker_id, None),
            newest_version=self._newest_version,
        )

    def _newest_version(self, of: Peer) -> int | None:
        """Return the newest version of a journal if its broker runs in this application."""
        broker = self._brokers.get(of.broker_id)
        return broker.journal_version(of) if broker is not None else None

    def drop_broker(self, broker_id: int) -> Broker:
        """Drop a broker at once, as if its process had died.

        Parameters
        ----------
        broker_id : int
            The id of a broker that runs in this application.

        Returns
        -------
        Broker
            The dropped broker, which is not ticked any more.
        """
        broker = self._brokers.pop(broker_id)
        self._forget_troubles(broker_id)
        return broker

    def round(self, *, to_end: bool = False, step: TickStep = TickStep.WHOLE) -> TickReport:
        """Tick every broker once: controllers, then all leaders, then all followers.

        A failure of a broker is logged and retried in a later round; the others continue.

        Parameters
        ----------
        to_end : bool, default False
            Whether every table on an object store is read to its end, not only in part.
        step : TickStep, default TickStep.WHOLE
            The part of a tick that is made, on object stores.

        Returns
        -------
        TickReport
            The sum of the reports of all brokers.

        Examples
        --------
        >>> application = Application(
        ...     ClusterConfig.model_validate(
        ...         {
        ...             "cluster.root": "depot/cluster",
        ...             "brokers": [{"broker.id": 0, "log.dirs": "depot/broker-0"}],
        ...         }
        ...     )
        ... )
        >>> application.start()
        >>> application.round().changed
        True
        >>> application.run_until_idle()
        """
        report = TickReport()
        with self._round_lock:
            brokers = list(self._brokers.values())
            is_busy = time.monotonic() - self._traffic_at < _AHEAD_SECONDS
            for broker in brokers:
                broker.poll_ahead(to_end=to_end, step=step, is_busy=is_busy)
                # With sparse ticks (`Pace`) the next tick comes too late for a copy ahead.
                if step is TickStep.WHOLE and is_busy:
                    broker.copy_ahead()
            if step is TickStep.REQUESTS:
                for one in self._pool.map(partial(self._attempt, Broker.leader_tick), brokers):
                    report.add(one)
                return report
            for broker in sorted(brokers, key=lambda broker: not broker.is_controller):
                report.add(self._attempt(Broker.controller_tick, broker))
            for tick in (Broker.leader_tick, Broker.follower_tick):
                for one in self._pool.map(partial(self._attempt, tick), brokers):
                    report.add(one)
        return report

    def run_until_idle(self) -> None:
        """Tick until a whole round changes nothing, or `stop` is called; then park the brokers.

        If another broker seems to run, the run goes on until it has shown a sign of life, or until
        it is fenced after broker.session.timeout.ms.

        Raises
        ------
        FencedError
            A newer process has taken a broker over.
        ApplicationFailedError
            A tick of the last round has failed: the work is not done then.
        """
        try:
            while self._is_going_on():
                if not self.round(to_end=True).changed:
                    if not self._awaits_signs():
                        break
                    self._stopping.wait(min(self.config.tick_interval_ms, _LONGEST_WAIT_MS) / 1000)
            # A scheduled run ends before the intervals of this work have passed.
            for work in self._background:
                while self._is_going_on() and work.round():
                    pass
        finally:
            self._end(Broker.park)
        if self._fatal or self._fenced:
            raise self._fatal or self._fenced[-1]
        self._raise_failures()

    def _awaits_signs(self) -> bool:
        """Whether a broker elsewhere may have died without a sign that the others have seen."""
        brokers = list(self._brokers.values())
        if self._troubles or not brokers:
            return False
        observer = next((one for one in brokers if one.is_controller), brokers[0])
        return observer.awaits_signs(frozenset(one.broker_id for one in brokers))

    def run(self) -> None:
        """Tick until `stop` is called; then park a cluster, or stop a single broker.

        A single broker first hands its leadership over, for broker.session.timeout.ms or half of
        controlled.shutdown.timeout.ms at most.

        Raises
        ------
        FencedError
            Newer processes have taken all brokers over.
        ApplicationFailedError
            Spark or the heartbeats have ended, the ticks of all brokers have failed for longer than
            tick.failure.timeout.ms, or a broker cannot be stopped.

        Examples
        --------
        >>> import threading
        >>> application = Application(config)
        >>> application.start()
        >>> rounds = threading.Thread(target=application.run)
        >>> rounds.start()
        >>> application.stop()
        >>> rounds.join()
        """
        step = TickStep.WHOLE
        try:
            while self._is_going_on():
                report = self.round(step=step)
                if report.has_traffic:
                    self._traffic_at = time.monotonic()
                if self._pace is not None:
                    step = self._next_step(self._pace, report)
                elif not report.changed:
                    self._wait()
            if self._farewell is Broker.stop and self._fatal is None:
                self._hand_over()
        finally:
            self._end(self._farewell)
        if self._fatal:
            raise self._fatal
        self._raise_failures(self._farewell.__name__)

    def _raise_failures(self, *actions: str) -> None:
        """Raise the newest failure of one of these actions, by default of any, if one failed."""
        for (broker_id, action), trouble in self._troubles.items():
            if not actions or action in actions:
                what = f"{action} of broker {broker_id} failed"
                raise ApplicationFailedError(
                    f"{what}: {with_remedy(str(trouble.error))}"
                ) from trouble.error

    def _next_step(self, pace: Pace, report: TickReport) -> TickStep:
        """Wait for the next step of a tick, and return that step."""
        brokers = list(self._brokers.values())
        is_waiting = not self._troubles and any(broker.awaits_news for broker in brokers)
        wait_ms, step = pace.next(
            self._clock.now_ms(), has_more=report.has_more, is_waiting=is_waiting
        )
        self._stopping.wait(wait_ms / 1000)
        return step

    def _wait(self) -> None:
        """Wait for tick.interval.ms, or until a table that a tick reads has a new commit."""
        brokers = list(self._brokers.values())
        if not self._troubles and any(broker.is_on_store for broker in brokers):
            is_busy = time.monotonic() - self._traffic_at < _BUSY_SECONDS
            if is_busy or any(broker.awaits_news for broker in brokers):
                # The pause grows with the interval: ticks at longer intervals are meant to cost
                # less.
                share = _SHARE_OF_TICK if is_busy else _WAITING_SHARE_OF_TICK
                pause = self.config.tick_interval_ms / 1000 * share
                self._stopping.wait(max(pause, _POLL_SECONDS))
                return
        deadline = time.monotonic() + self.config.tick_interval_ms / 1000
        while (left := deadline - time.monotonic()) > 0:
            if self._stopping.wait(min(left, _POLL_SECONDS)):
                return
            # A new commit may be what makes ticks fail: it would end each wait at once.
            brokers = list(self._brokers.values())
            if not self._troubles and any(one.has_news() for one in brokers):
                if len(brokers) > 1:
                    self._stopping.wait(_REST_SECONDS)
                return

    def stop(self) -> None:
        """Ask the application to end after the current round; any thread may call it."""
        self._stopping.set()

    def await_end(self) -> None:
        """Wait until the application begins to end: stopped, failed, or idle. Any thread may."""
        self._stopping.wait()

    @property
    def failure(self) -> SparklogError | None:
        """The failure that ends the application, or `None` without one so far."""
        return self._fatal

    def unfinished(self) -> list[str]:
        """Return the work that keeps the application from ending. Any thread may call it.

        Returns
        -------
        list of str
            A clause for each action under way, with its duration, and for the brokers that have not
            ended; empty if the application has ended.
        """
        now = time.monotonic()
        steps = [
            f"{step.what} has run for {now - step.since:.1f} s"
            for step in list(self._steps.values())
        ]
        brokers = [str(one) for one in list(self._brokers) if one not in self._ended_brokers]
        done = "parked" if self._farewell is Broker.park else "stopped"
        return [*steps, *([f"not {done}: broker {', '.join(brokers)}"] if brokers else [])]

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        thread = threading.get_ident()
        outer = self._steps.get(thread)
        self._steps[thread] = _Step(what, time.monotonic())
        try:
            yield
        finally:
            self._steps.pop(thread)
            if outer is not None:
                self._steps[thread] = outer

    @contextmanager
    def between_rounds(self) -> Iterator[dict[int, Broker]]:
        """Hold the rounds, so that the caller can act on a broker.

        Yields
        ------
        dict of int to Broker
            The brokers that run, by id. The next round begins after the `with` block.
        """
        with self._round_lock:
            yield self._brokers

    def _hand_over(self) -> None:
        """Continue until other brokers lead what they can (rule 7.2).

        At most for a session, and for half of controlled.shutdown.timeout.ms: the other half is for
        the checkpoints and the broker's row.
        """
        brokers = list(self._brokers.values())
        for broker in brokers:
            self._attempt(Broker.prepare_to_stop, broker)
        timeout_ms = min(
            self.config.broker_session_timeout_ms, self.config.controlled_shutdown_timeout_ms // 2
        )
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while self._fatal is None and any(broker.can_hand_over for broker in brokers):
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms < 0:
                _log.warning("leadership not handed over", brokers=[*self._brokers])
                return
            if not self.round().changed:
                wait_ms = min(self.config.tick_interval_ms, _LONGEST_WAIT_MS, left_ms)
                self._ended.wait(wait_ms / 1000)

    def _is_going_on(self) -> bool:
        if self._stopping.is_set():
            return False
        if self._fenced and not self._brokers:
            self._fatal = self._fenced[-1]
        elif not self._heartbeats.is_alive():
            message = "the heartbeats have ended: see the log, and restart"
            self._fatal = ApplicationFailedError(message)
        elif self._spark is not None and has_ended(self._spark):
            message = "Spark has ended, so nothing can be copied: restart"
            self._fatal = ApplicationFailedError(message)
        else:
            self._fatal = self._lasting_failure()
        return self._fatal is None

    def _lasting_failure(self) -> ApplicationFailedError | None:
        """Return an error if every broker has failed for longer than tick.failure.timeout.ms.

        Returns one at once if the last log directories of all brokers have failed.

        A broker fails as long as one of its necessary actions does. As long as one broker works,
        the others are retried, and the application goes on.
        """
        timeout_ms = self.config.tick_failure_timeout_ms
        brokers = set(self._brokers)
        if not brokers:
            return None
        if brokers <= self._without_directory.keys():
            reasons = ", ".join(self._without_directory[one] for one in sorted(brokers))
            return ApplicationFailedError(
                f"no log directory can be used: {reasons}; repair or replace it, and restart"
            )
        if timeout_ms is None:
            return None
        lasting: dict[int, tuple[_Trouble, str]] = {}
        for (broker_id, action), trouble in sorted(
            self._troubles.items(), key=lambda one: -one[1].failures
        ):
            # Up to the newest failure: the time since then proves nothing.
            is_lasting = is_silent(
                trouble.failed_ms, since_ms=trouble.since_ms, timeout_ms=timeout_ms
            )
            if action in _NECESSARY and is_lasting:
                lasting.setdefault(broker_id, (trouble, action))
        if not brokers <= lasting.keys():
            return None
        first, *others = sorted(brokers)
        trouble, action = lasting[first]
        also = f" and of brokers {', '.join(map(str, others))}" if others else ""
        return ApplicationFailedError(
            f"{action} of broker {first}{also} has failed for longer than "
            f"tick.failure.timeout.ms={timeout_ms} ({trouble.failures} times): "
            f"{with_remedy(str(trouble.error))}"
        )

    def _attempt(self, action: Callable[[Broker], TickReport | None], broker: Broker) -> TickReport:
        """Run an action of a broker; drop a fenced broker, and retry a failed action next time.

        The first of equal failures is logged, and so is their end. The other brokers continue in
        any case.
        """
        of = broker.broker_id, action.__name__
        if self._is_waiting(of):
            return TickReport()
        try:
            with self._step(f"{action.__name__} of broker {broker.broker_id}"):
                report = action(broker)
        except FencedError as error:
            self._release(broker, error)
            return TickReport()
        except NewerFormatError as error:
            self._drop_all(error)
            return TickReport()
        except Exception as error:  # noqa: BLE001 - one broker's failure must not end the others
            self._note(of, error)
            if of[1] in _REPLICA_TICKS and isinstance(error, UNREADABLE):
                self._note_directories(broker)
            return TickReport()
        trouble = self._troubles.pop(of, None)
        if trouble is not None:
            self._without_directory.pop(broker.broker_id, None)
            self._failures.over((*of, _kind(trouble.error)), logs=False)
            _log.info(
                "action succeeds again",
                broker=broker.broker_id,
                action=action.__name__,
                failures=trouble.failures,
                failed_for_ms=self._clock.monotonic_ms() - trouble.since_ms,
            )
        return report or TickReport()

    def _note(self, of: tuple[int, str], error: Exception) -> None:
        known = self._troubles.get(of)
        now_ms = self._clock.monotonic_ms()
        failures = known.failures + 1 if known else 1
        wait_ms = min(_FIRST_WAIT_MS << min(failures - 2, 10), _LONGEST_WAIT_MS) if known else 0
        since_ms = known.since_ms if known else now_ms
        self._troubles[of] = _Trouble(error, since_ms, failures, now_ms, now_ms + wait_ms)
        is_foreseen = isinstance(error, (SparklogError, DeltaError, OSError))
        trace = None if is_foreseen else error
        broker_id, action = of
        self._failures.error(
            (*of, _kind(error)),
            "failed",
            broker=broker_id,
            action=action,
            error=one_line(error),
            failures=failures,
            failed_for_ms=now_ms - since_ms,
            exc_info=trace,
        )

    def _note_directories(self, broker: Broker) -> None:
        """Note whether the last log directory of a broker whose tick failed can be used."""
        reason = broker.failure_of_last_directory()
        if reason is None:
            self._without_directory.pop(broker.broker_id, None)
        else:
            self._without_directory[broker.broker_id] = reason

    def _is_waiting(self, of: tuple[int, str]) -> bool:
        """Whether a tick has failed so recently that it is not retried yet."""
        trouble = self._troubles.get(of)
        is_tick = of[1] in _TICKS
        return is_tick and trouble is not None and self._clock.monotonic_ms() < trouble.again_ms

    def _release(self, broker: Broker, error: FencedError) -> None:
        with self._brokers_lock:
            # The application may have restarted the broker; the new one is kept.
            if self._brokers.get(broker.broker_id) is broker:
                del self._brokers[broker.broker_id]
                self._forget_troubles(broker.broker_id)
                self._fenced = [error]
                _log.error("broker taken over", broker=broker.broker_id, error=str(error))

    def _drop_all(self, error: NewerFormatError) -> None:
        """End without a further write: the cluster was upgraded beyond this release.

        The next processes of the brokers take over as after a crash.
        """
        with self._brokers_lock:
            self._brokers.clear()
            self._troubles.clear()
            if self._fatal is None:
                self._fatal = error
                _log.error("cluster upgraded beyond this release", error=str(error))
        self._stopping.set()

    def _forget_troubles(self, broker_id: int) -> None:
        """Forget the failures of a dropped broker: the others do not wait for it."""
        self._without_directory.pop(broker_id, None)
        for of in [one for one in list(self._troubles) if one[0] == broker_id]:
            self._troubles.pop(of, None)

    def _beat(self) -> None:
        def heartbeat(broker: Broker) -> None:
            # Otherwise a controller that cannot act would keep the lease. If the controller's table
            # is damaged, the controller ticks of all brokers fail, and the brokers go on
            # replicating.
            if self._is_stuck(broker, {Broker.controller_tick.__name__}):
                broker.heartbeat_without_lease()
            else:
                broker.heartbeat()

        interval = self.config.broker_heartbeat_interval_ms / 1000
        roots = [self._location(uri) for one in self.config.brokers for uri in one.log_dirs]
        if not all(root.is_local for root in roots):
            # Most of these calls find that no heartbeat is due.
            interval /= 2
        while not self._ended.wait(interval):
            for broker in list(self._brokers.values()):
                if not self._is_stuck(broker, _REPLICA_TICKS):
                    self._attempt(heartbeat, broker)

    def _running(self) -> list[Broker]:
        return list(self._brokers.values())

    def _background_work(self) -> Iterator[Work]:
        """Yield the kinds of work beside the ticks that are switched on, in the order of a run."""
        config = self.config

        def merge(broker: Broker) -> bool:
            return broker.merge().batches > 0

        def clean(broker: Broker) -> bool:
            return broker.clean().partitions > 0

        def vacuum(broker: Broker) -> bool:
            broker.vacuum(self._ended.is_set)
            return False

        if config.log_merger_enable:
            yield Work("merger", lambda: config.log_merger_backoff_ms / 1000, merge)
        if config.log_cleaner_enable:
            yield Work("cleaner", self._cleaner_backoff_s, clean)
        if config.log_vacuum_enable:
            yield Work("vacuum", lambda: _VACUUM_CHECK_S, vacuum)

    def _cleaner_backoff_s(self) -> float:
        """Return log.cleaner.backoff.ms in s, which may be changed while brokers run."""
        settings = [one.settings for one in self._running()]
        given = (one.log_cleaner_backoff_ms for one in settings)
        return min(given, default=self.config.log_cleaner_backoff_ms) / 1000

    def _is_stuck(self, broker: Broker, ticks: AbstractSet[str]) -> bool:
        """Whether one of these ticks of the broker has failed for longer than a session lasts.

        Such a broker can neither lead nor follow. It makes no heartbeats, so that other brokers
        lead instead.
        """
        now_ms, timeout_ms = self._clock.monotonic_ms(), self.config.broker_session_timeout_ms
        return any(
            is_silent(now_ms, since_ms=trouble.since_ms, timeout_ms=timeout_ms)
            for (broker_id, action), trouble in list(self._troubles.items())
            if broker_id == broker.broker_id and action in ticks
        )

    def _end(self, how: Callable[[Broker], None]) -> None:
        last = self._metrics.last_samples()
        self._stopping.set()
        # Heartbeats continue until here, however long the last round has taken.
        self._ended.set()
        for thread in (self._heartbeats, *(work.thread for work in self._background)):
            if thread.is_alive():
                with self._step(f"the thread {thread.name!r}"):
                    thread.join()

        def end(broker: Broker) -> None:
            self._attempt(how, broker)
            if (broker.broker_id, how.__name__) not in self._troubles:
                self._ended_brokers.add(broker.broker_id)
                _log.info("broker ended", broker=broker.broker_id, by=how.__name__)

        brokers = list(self._brokers.values())
        is_on_store = any(broker.is_on_store for broker in brokers)
        list(self._pool.map(end, brokers) if is_on_store else map(end, brokers))
        self._pool.shutdown()
        has_failed = bool(self._troubles or self._fenced or self._fatal or sys.exc_info()[0])
        self._metrics.close(last, has_failed=has_failed)

    def _await_session(self, cluster: ClusterRoot, entry: BrokerEntry) -> LastProcess:
        timeout_ms = self.config.broker_session_timeout_ms
        return await_session(
            cluster.brokers, entry.broker_id, timeout_ms, self._clock, self._location
        )

    def _location(self, uri: str) -> Location:
        return Location.of(uri, self.config.storage_options)


def _kind(error: Exception) -> object:
    """Return the part of an error that stays the same when it repeats, without paths."""
    if isinstance(error, OSError):
        return type(error), error.errno
    return type(error), re.sub(r"[0-9a-f]{6,}", "", str(error))


def check_start(config: ClusterConfig | BrokerConfig) -> None:
    """Raise the error of a start that would be refused; nothing is created, and no Spark is needed.

    `StorageError` for the roots, `ConfigError` for metrics or traces that cannot be exported as
    the keys metrics.* and tracing.enable ask for.
    """
    _check_roots(config)
    check_export(config)
    if config.tracing_enable:
        tracer()


def _check_roots(config: ClusterConfig | BrokerConfig) -> None:
    """Raise `StorageError` for roots that cannot be those of this cluster and these brokers.

    Nothing is created. The cluster root need not exist if the brokers may create it: with
    auto.create.cluster.enable, and if their own roots do not exist either. Of several log
    directories of a broker some may have failed (`faults_at_start`).
    """
    owned = []
    for one in config.brokers:
        named = [Location.of(uri, config.storage_options) for uri in one.log_dirs]
        failed = {location.uri for location in faults_at_start(named)}
        owned += [(one.broker_id, root.uri) for root in named if root.uri not in failed]
    uris = [config.cluster_root, *(uri for _, uri in owned)]
    locations = [Location.of(uri, config.storage_options) for uri in uris]
    check_distinct(locations)
    formats = read_formats(locations)
    for location, found in zip(locations, formats, strict=True):
        if found is None:
            check_empty(location)
    [cluster, *roots] = formats
    for found in filter(None, roots):
        if found.is_cluster:
            uri = found.location.uri
            raise StorageError(f"{uri} is a cluster root: name another folder in log.dirs")
    if cluster is None:
        check_new(locations[0], locations[1:], roots)
        if not config.auto_create_cluster_enable:
            raise StorageError(
                f"there is no cluster root at {config.cluster_root}, and "
                "auto.create.cluster.enable is false: correct cluster.root, or create the cluster "
                "with `sparklog format`"
            )
        return
    cluster_id = check_kind(locations[0], cluster, is_cluster=True).cluster_id
    for (broker_id, _), root in zip(owned, roots, strict=True):
        if root is not None:
            _check_owner(root, cluster_id, broker_id)


def _check_owner(found: RootFormat, cluster_id: str, broker_id: int) -> None:
    if (found.cluster_id, found.broker_id) != (cluster_id, broker_id):
        raise StorageError(
            f"{found.location.uri} belongs to broker {found.broker_id} of cluster "
            f"{found.cluster_id}, not to broker {broker_id} of cluster {cluster_id}: correct "
            "broker.id, log.dirs or cluster.root"
        )
