"""An application that plays brokers: all of a cluster, or one of it.

Its brokers tick side by side, round after round; heartbeats go on beside the rounds, since a round
may copy for longer than a session lasts.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from deltalake.exceptions import DeltaError

from sparklog.broker.broker import Broker
from sparklog.broker.merger import MergeReport
from sparklog.broker.pace import SPARSE_MS, Pace, Step
from sparklog.broker.registration import await_session
from sparklog.broker.tick import TickReport
from sparklog.clock import Clock, SystemClock
from sparklog.config import BrokerConfig, BrokerEntry, ClusterConfig
from sparklog.errors import FencedError, SparklogError, StorageError
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.model import BROKERS, FORMAT
from sparklog.protocol.driver_rules import DriverRules
from sparklog.protocol.rules import Rules, SparkRules
from sparklog.storage.control_table import ControlTable
from sparklog.storage.copying import ProcessCopier, SparkCopier
from sparklog.storage.location import Location
from sparklog.storage.roots import ClusterRoot, check_distinct, check_usable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = get_logger(__name__)


_LOOK_SECONDS = 0.003
"""How often brokers that wait look for the next commit of what they follow, in folders."""

_BUSY_SECONDS = 0.3
"""How long brokers on object stores look without a pause after records or positions moved."""

_AHEAD_SECONDS = 1.0
"""How long followers look into their leaders' inboxes after records or positions moved."""

_SHARE_OF_TICK, _WAITING_SHARE_OF_TICK = 0.05, 0.2
"""The pause between such looks, as a share of tick.interval.ms: while records and positions move,
and later, while requests wait for others' commits."""

_REST_SECONDS = 0.002
"""How long the rest of a request is waited for, of which one leader's part has come."""

_REPLICA_TICKS = frozenset(tick.__name__ for tick in (Broker.leader_tick, Broker.follower_tick))
_TICKS = _REPLICA_TICKS | {Broker.controller_tick.__name__}


_FIRST_WAIT_MS, _LONGEST_WAIT_MS = 20, 1_000
"""The wait after the second failure in a row of a tick; it doubles with each further one."""


class _Trouble(NamedTuple):
    """The failures in a row of one action of a broker; times are ms of the monotonic clock.

    `error` is the newest, `since_ms` the time of the first. The next attempt is at `again_ms`.
    """

    error: Exception
    since_ms: int
    failures: int
    again_ms: int


class Application:
    """Brokers in one process, over one Spark session.

    Parameters: `config`, of a cluster or of one broker; `spark`, whose tasks copy the files, or
    `None` to copy in this process. Nothing is created or registered before `start`. An
    application that has ended is not started again.
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
        self._rules: Rules = (
            SparkRules(spark)
            if spark is not None and config.rules_engine == "spark"
            else DriverRules()
        )
        self._brokers: dict[int, Broker] = {}
        self._brokers_lock = threading.Lock()
        self._round_lock = threading.Lock()
        self._merge_lock = threading.Lock()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._heartbeats = threading.Thread(target=self._beat, name="heartbeats", daemon=True)
        self._merging = threading.Thread(target=self._merge_beside, name="merger", daemon=True)
        self._traffic_at = 0.0
        roots = [config.cluster_root, *(uri for one in config.brokers for uri in one.log_dirs)]
        is_sparse = config.tick_interval_ms >= SPARSE_MS
        self._pace: Pace | None = None
        if is_sparse and not any(self._location(uri).is_local for uri in roots):
            self._pace = Pace(config.tick_interval_ms)
        # The same threads all along: rules and Spark keep a connection for each.
        self._pool = ThreadPoolExecutor(len(config.brokers), thread_name_prefix="ticks")
        self._troubles: dict[tuple[int, str], _Trouble] = {}
        self._failures = RepeatedFailures(_log)
        self._fenced: list[FencedError] = []
        self._fatal: SparklogError | None = None
        # Nobody takes a whole cluster over while it is away.
        self._farewell = Broker.park if isinstance(config, ClusterConfig) else Broker.stop

    def start(self) -> None:
        """Create what is not there, and register every broker.

        Raises `StorageError` where a root is not usable, before anything is created in any of
        them, and DUPLICATE_BROKER_REGISTRATION where a broker is alive elsewhere. Brokers that
        were registered by then end as they do in `run`.
        """
        try:
            check_roots(self.config)
            _log.debug("starting", brokers=[entry.broker_id for entry in self.config.brokers])
            roots = [root for entry in self.config.brokers for root in entry.log_dirs]
            ClusterRoot.create(
                self._location(self.config.cluster_root), [*map(self._location, roots)]
            )
            # All at once: after a crash every broker of the application has a session to wait for.
            list(self._pool.map(self._await_session, self.config.brokers))
            if self._stopping.is_set():
                return
            self._heartbeats.start()
            if self.config.log_merger_enable:
                self._merging.start()
            for entry in self.config.brokers:
                self.start_broker(entry.broker_id)
        except BaseException as error:
            self._end(self._farewell)
            if isinstance(error, (DeltaError, OSError)):
                message = f"the roots cannot be created or opened: {error}"
                raise StorageError(message) from error
            raise

    def start_broker(self, broker_id: int) -> None:
        """Start one of the application's brokers, which does not run here or elsewhere."""
        if broker_id in self._brokers:
            raise SparklogError(f"broker {broker_id} runs in this application already")
        [entry] = [one for one in self.config.brokers if one.broker_id == broker_id]
        copier = SparkCopier(self._spark) if self._spark is not None else ProcessCopier()
        self._brokers[broker_id] = Broker(
            broker_id,
            self._location(self.config.cluster_root),
            [self._location(root) for root in entry.log_dirs],
            rules=self._rules,
            copier=copier,
            clock=self._clock,
            settings=self.config,
            storage_options=self.config.storage_options,
            rack=entry.rack,
        )

    def drop_broker(self, broker_id: int) -> Broker:
        """Let go of a broker at once, as if its process had died."""
        broker = self._brokers.pop(broker_id)
        self._forget_troubles(broker_id)
        return broker

    def round(self, *, to_end: bool = False, step: Step = Step.WHOLE) -> TickReport:
        """Tick every broker once: controllers, then all leaders, then all followers.

        `to_end`: on object stores, look at all that there is, and not at some of it (`look_ahead`).
        `step`: on object stores, the part of a tick that is made.
        """
        report = TickReport()
        with self._round_lock:
            brokers = list(self._brokers.values())
            is_busy = time.monotonic() - self._traffic_at < _AHEAD_SECONDS
            for broker in brokers:
                broker.look_ahead(to_end=to_end, step=step, is_busy=is_busy)
                # Where ticks are far apart, the next one comes too late for a copy ahead.
                if step is Step.WHOLE and is_busy:
                    broker.copy_ahead()
            if step is Step.REQUESTS:
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

        Raises what made a tick of the last round fail, or a broker go: the work is not done then.
        """
        try:
            while self._is_going_on() and self.round(to_end=True).changed:
                pass
            # A run that is scheduled is over before the merger's time comes.
            while self.config.log_merger_enable and self._is_going_on() and self._merge():
                pass
        finally:
            self._end(Broker.park)
        if self._fatal or self._fenced:
            raise self._fatal or self._fenced[-1]
        for (broker_id, action), trouble in self._troubles.items():
            what = f"{action} of broker {broker_id} failed"
            raise SparklogError(f"{what}: {trouble.error}") from trouble.error

    def run(self) -> None:
        """Tick until `stop` is called; then a cluster is parked, a single broker stopped.

        Raises `FencedError` where newer processes have taken all brokers over, and
        `SparklogError` where Spark has ended.
        """
        step = Step.WHOLE
        try:
            while self._is_going_on():
                report = self.round(step=step)
                if report.has_traffic:
                    self._traffic_at = time.monotonic()
                if self._pace is not None:
                    step = self._next_step(self._pace, report)
                elif not report.changed:
                    self._wait()
            if self._farewell is Broker.stop:
                self._hand_over()
        finally:
            self._end(self._farewell)
        if self._fatal:
            raise self._fatal

    def _next_step(self, pace: Pace, report: TickReport) -> Step:
        """Wait for the next step of a tick, and return it."""
        brokers = list(self._brokers.values())
        is_waiting = not self._troubles and any(broker.awaits_news for broker in brokers)
        wait_ms, step = pace.next(
            self._clock.now_ms(), goes_on=report.follows_up, is_waiting=is_waiting
        )
        self._stopping.wait(wait_ms / 1000)
        return step

    def _wait(self) -> None:
        """Wait for tick.interval.ms, or until somebody has written what a tick looks at."""
        brokers = list(self._brokers.values())
        if not self._troubles and any(broker.is_on_store for broker in brokers):
            is_busy = time.monotonic() - self._traffic_at < _BUSY_SECONDS
            if is_busy or any(broker.awaits_news for broker in brokers):
                # Ticks that are far apart are meant to cost less.
                share = _SHARE_OF_TICK if is_busy else _WAITING_SHARE_OF_TICK
                pause = self.config.tick_interval_ms / 1000 * share
                self._stopping.wait(max(pause, _LOOK_SECONDS))
                return
        deadline = time.monotonic() + self.config.tick_interval_ms / 1000
        while (left := deadline - time.monotonic()) > 0:
            if self._stopping.wait(min(left, _LOOK_SECONDS)):
                return
            # What makes ticks fail may be the news: it would be there again at once.
            brokers = list(self._brokers.values())
            if not self._troubles and any(one.has_news() for one in brokers):
                if len(brokers) > 1:
                    self._stopping.wait(_REST_SECONDS)
                return

    def stop(self) -> None:
        """Ask the application to end after the round that it is in."""
        self._stopping.set()

    @contextmanager
    def between_rounds(self) -> Iterator[dict[int, Broker]]:
        """Hold the rounds and give the brokers, by id, to whoever has to act on one of them."""
        with self._round_lock:
            yield self._brokers

    def _hand_over(self) -> None:
        """Go on until others lead what they can; a session's length at most (rule 7.2)."""
        brokers = list(self._brokers.values())
        for broker in brokers:
            self._attempt(Broker.prepare_to_stop, broker)
        deadline_ms = self._clock.monotonic_ms() + self.config.broker_session_timeout_ms
        while self._fatal is None and any(broker.can_hand_over for broker in brokers):
            if self._clock.monotonic_ms() > deadline_ms:
                _log.warning("leadership not handed over", brokers=[*self._brokers])
                return
            if not self.round().changed:
                self._ended.wait(self.config.tick_interval_ms / 1000)

    def _is_going_on(self) -> bool:
        if self._stopping.is_set():
            return False
        if self._fenced and not self._brokers:
            self._fatal = self._fenced[-1]
        elif not self._heartbeats.is_alive():
            self._fatal = SparklogError("the heartbeats have ended: see the log, and start anew")
        elif self._spark is not None and _has_ended(self._spark):
            self._fatal = SparklogError("Spark has ended, and nothing can be copied: start anew")
        return self._fatal is None

    def _attempt(self, action: Callable[[Broker], TickReport | None], broker: Broker) -> TickReport:
        """Let a broker act; one that is fenced goes, one that fails is tried again next time.

        A failure is told once, and so is its end. Whatever fails, the other brokers go on.
        """
        of = broker.broker_id, action.__name__
        if self._is_waiting(of):
            return TickReport()
        try:
            report = action(broker)
        except FencedError as error:
            self._let_go(broker, error)
            return TickReport()
        except Exception as error:  # noqa: BLE001 - one broker's failure must not end the others
            self._note(of, error)
            return TickReport()
        trouble = self._troubles.pop(of, None)
        if trouble is not None:
            self._failures.over((*of, _kind(trouble.error)))
            _log.info("works again", broker=broker.broker_id, action=action.__name__)
        return report or TickReport()

    def _note(self, of: tuple[int, str], error: Exception) -> None:
        known = self._troubles.get(of)
        now_ms = self._clock.monotonic_ms()
        failures = known.failures + 1 if known else 1
        wait_ms = min(_FIRST_WAIT_MS << min(failures - 2, 10), _LONGEST_WAIT_MS) if known else 0
        since_ms = known.since_ms if known else now_ms
        self._troubles[of] = _Trouble(error, since_ms, failures, now_ms + wait_ms)
        is_foreseen = isinstance(error, (SparklogError, DeltaError, OSError))
        trace = None if is_foreseen else error
        broker_id, action = of
        self._failures.error(
            (*of, _kind(error)),
            "failed",
            broker=broker_id,
            action=action,
            error=str(error),
            exc_info=trace,
        )

    def _is_waiting(self, of: tuple[int, str]) -> bool:
        """Whether a tick has failed so lately that it is not tried again yet."""
        trouble = self._troubles.get(of)
        is_tick = of[1] in _TICKS
        return is_tick and trouble is not None and self._clock.monotonic_ms() < trouble.again_ms

    def _let_go(self, broker: Broker, error: FencedError) -> None:
        with self._brokers_lock:
            # The application may have started the broker anew: that one is not meant.
            if self._brokers.get(broker.broker_id) is broker:
                del self._brokers[broker.broker_id]
                self._forget_troubles(broker.broker_id)
                self._fenced.append(error)
                _log.error("broker taken over", broker=broker.broker_id, error=str(error))

    def _forget_troubles(self, broker_id: int) -> None:
        """Forget the failures of a broker that is gone: the others do not wait for it."""
        for of in [one for one in self._troubles if one[0] == broker_id]:
            self._troubles.pop(of, None)

    def _beat(self) -> None:
        def heartbeat(broker: Broker) -> None:
            # Else a controller that cannot act would keep the lease; brokers all fail alike
            # where the controller's table is damaged, and go on replicating.
            if self._is_stuck(broker, {Broker.controller_tick.__name__}):
                broker.heartbeat_without_lease()
            else:
                broker.heartbeat()

        interval = self.config.broker_heartbeat_interval_ms / 1000
        roots = [self._location(uri) for one in self.config.brokers for uri in one.log_dirs]
        if not all(root.is_local for root in roots):
            # Most of these find that no heartbeat is due.
            interval /= 2
        while not self._ended.wait(interval):
            for broker in list(self._brokers.values()):
                if not self._is_stuck(broker, _REPLICA_TICKS):
                    self._attempt(heartbeat, broker)

    def _merge_beside(self) -> None:
        interval = self.config.log_merger_backoff_ms / 1000
        while not self._ended.wait(interval):
            while not self._ended.is_set() and self._merge():
                pass

    def _merge(self) -> bool:
        """Let every broker merge small batches once; say whether there were any."""
        reports: list[MergeReport] = []

        def merge(broker: Broker) -> None:
            reports.append(broker.merge())

        with self._merge_lock:
            for broker in list(self._brokers.values()):
                self._attempt(merge, broker)
        return any(report.batches for report in reports)

    def _is_stuck(self, broker: Broker, ticks: AbstractSet[str]) -> bool:
        """Whether one of these ticks of the broker has failed for longer than a session lasts.

        A broker that can neither lead nor follow falls silent, so that the others lead instead.
        """
        now_ms = self._clock.monotonic_ms()
        return any(
            now_ms - trouble.since_ms > self.config.broker_session_timeout_ms
            for (broker_id, action), trouble in list(self._troubles.items())
            if broker_id == broker.broker_id and action in ticks
        )

    def _end(self, how: Callable[[Broker], None]) -> None:
        # Heartbeats go on until here, however long the last round has taken.
        self._ended.set()
        for thread in (self._heartbeats, self._merging):
            if thread.is_alive():
                thread.join()
        for broker in list(self._brokers.values()):
            self._attempt(how, broker)
            _log.info("broker ended", broker=broker.broker_id, by=how.__name__)
        self._pool.shutdown()

    def _await_session(self, entry: BrokerEntry) -> None:
        brokers = ControlTable(self._location(self.config.cluster_root), BROKERS)
        timeout_ms = self.config.broker_session_timeout_ms
        await_session(brokers, entry.broker_id, timeout_ms, self._clock, self._location)

    def _location(self, uri: str) -> Location:
        return Location.of(uri, self.config.storage_options)


def _kind(error: Exception) -> object:
    """Return what stays the same when a failure repeats: paths in its text may be new each time."""
    if isinstance(error, OSError):
        return type(error), error.errno
    return type(error), re.sub(r"[0-9a-f]{6,}", "", str(error))


def check_roots(config: ClusterConfig | BrokerConfig) -> None:
    """Refuse roots that cannot be those of this cluster and these brokers: `StorageError`.

    Nothing is created. A single broker's cluster must be there; a cluster's need not be.
    """
    location = Location.of(config.cluster_root, config.storage_options)
    log_dirs = [uri for entry in config.brokers for uri in entry.log_dirs]
    check_distinct([location, *(Location.of(uri, config.storage_options) for uri in log_dirs)])
    check_usable(location)
    cluster_id = None
    if isinstance(config, BrokerConfig) or _format(location) is not None:
        cluster_id = ClusterRoot(location).cluster_id
    for entry in config.brokers:
        for uri in entry.log_dirs:
            root = Location.of(uri, config.storage_options)
            check_usable(root)
            _check_owner(root, cluster_id, entry.broker_id)


def _check_owner(root: Location, cluster_id: str | None, broker_id: int) -> None:
    found = _format(root)
    if found is None or (found["cluster_id"], found["broker_id"]) == (cluster_id, broker_id):
        return
    if found["broker_id"] is None:
        raise StorageError(f"{root.uri} is a cluster root: name another folder in log.dirs")
    wanted = (
        "a new cluster: restore the cluster root, or"
        if cluster_id is None
        else f"cluster {cluster_id}:"
    )
    raise StorageError(
        f"{root.uri} belongs to broker {found['broker_id']} of cluster {found['cluster_id']}, "
        f"not to broker {broker_id} of {wanted} correct broker.id, log.dirs or cluster.root"
    )


def _format(root: Location) -> dict[str, Any] | None:
    """Return what a root says of itself, or `None` where there is no root, or an unfinished one."""
    try:
        rows = ControlTable(root, FORMAT).rows().to_pylist()
    except StorageError:
        return None
    return next(iter(rows), None)


def _has_ended(spark: SparkSession) -> bool:
    """Whether Spark was stopped, or its JVM is gone (as when spark-submit was killed)."""
    from py4j.protocol import Py4JError

    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except (AttributeError, Py4JError, OSError):
        return True
