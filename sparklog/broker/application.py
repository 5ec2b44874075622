"""An application that plays brokers: all of a cluster, or one of it.

Its brokers tick side by side, round after round; heartbeats go on beside the rounds, since a round
may copy for longer than a session lasts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import structlog

from sparklog.broker.broker import Broker
from sparklog.broker.registration import await_session
from sparklog.broker.tick import TickReport
from sparklog.clock import Clock, SystemClock
from sparklog.config import BrokerConfig, BrokerEntry, ClusterConfig
from sparklog.errors import FencedError, StorageError
from sparklog.model import BROKERS
from sparklog.protocol.rules import DuckDBRules, Rules, SparkRules
from sparklog.storage.batch_files import ProcessCopier, SparkCopier
from sparklog.storage.control_table import ControlTable
from sparklog.storage.location import Location
from sparklog.storage.roots import ClusterRoot, check_usable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = structlog.get_logger(__name__)


class Application:
    """Brokers in one process, over one Spark session.

    Parameters: `config`, of a cluster or of one broker; `spark`, whose tasks copy the files, or
    `None` to copy in this process. Nothing is created or registered before `start`.
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
            else DuckDBRules()
        )
        self._brokers: dict[int, Broker] = {}
        self._round_lock = threading.Lock()
        self._stopping = threading.Event()
        self._heartbeats: threading.Thread | None = None
        self._failure: Exception | None = None

    def entries(self) -> list[BrokerEntry]:
        """Return the brokers that this application plays."""
        if isinstance(self.config, ClusterConfig):
            return list(self.config.brokers)
        own = {"broker.id": self.config.broker_id, "log.dirs": self.config.log_dirs}
        return [BrokerEntry.model_validate(own | {"broker.rack": self.config.rack})]

    def start(self) -> None:
        """Create what is not there, and register every broker.

        Raises `StorageError` where a root is not usable, before anything is created in any of
        them, and DUPLICATE_BROKER_REGISTRATION where a broker is alive elsewhere.
        """
        cluster_location = self._location(self.config.cluster_root)
        roots = [root for entry in self.entries() for root in entry.log_dirs]
        for location in (cluster_location, *map(self._location, roots)):
            check_usable(location)
        ClusterRoot.create(cluster_location)
        brokers = ControlTable(cluster_location, BROKERS)
        for entry in self.entries():
            timeout_ms = self.config.broker_session_timeout_ms
            await_session(brokers, entry.broker_id, timeout_ms, self._clock)
        for entry in self.entries():
            self.start_broker(entry.broker_id)
        self._heartbeats = threading.Thread(target=self._beat, name="heartbeats", daemon=True)
        self._heartbeats.start()

    def start_broker(self, broker_id: int) -> None:
        """Start one of the application's brokers, which does not run here or elsewhere."""
        [entry] = [one for one in self.entries() if one.broker_id == broker_id]
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
        return self._brokers.pop(broker_id)

    def round(self) -> TickReport:
        """Tick every broker once: controllers, then all leaders, then all followers."""
        report = TickReport()
        self._failure = None
        with self._round_lock:
            brokers = list(self._brokers.values())
            for broker in sorted(brokers, key=lambda broker: not broker.is_controller):
                report.add(self._tick(broker, broker.controller_tick))
            for tick in (Broker.leader_tick, Broker.follower_tick):
                report.add(self._side_by_side(brokers, tick))
        return report

    def run_until_idle(self) -> None:
        """Tick until a whole round changes nothing, then park the brokers.

        Raises what made a tick of the last round fail: the work is not done then.
        """
        while self.round().changed:
            pass
        self._end(Broker.park)
        if self._failure is not None:
            raise self._failure

    def run(self) -> None:
        """Tick until `stop` is called; then a cluster is parked, a single broker stopped."""
        while not self._stopping.is_set():
            changed = self.round().changed
            if self._failure is not None and not self._brokers:
                raise self._failure
            if not changed:
                self._stopping.wait(self.config.tick_interval_ms / 1000)
        is_cluster = isinstance(self.config, ClusterConfig)
        self._end(Broker.park if is_cluster else Broker.stop)

    def stop(self) -> None:
        """Ask `run` to end after the round that it is in."""
        self._stopping.set()

    @contextmanager
    def between_rounds(self) -> Iterator[dict[int, Broker]]:
        """Hold the rounds and give the brokers, by id, to whoever has to act on one of them."""
        with self._round_lock:
            yield self._brokers

    def _side_by_side(
        self, brokers: Sequence[Broker], tick: Callable[[Broker], TickReport]
    ) -> TickReport:
        report = TickReport()
        if not brokers:
            return report
        with ThreadPoolExecutor(max_workers=len(brokers)) as pool:
            ticks = [pool.submit(self._tick, broker, partial(tick, broker)) for broker in brokers]
        for one in ticks:
            report.add(one.result())
        return report

    def _tick(self, broker: Broker, tick: Callable[[], TickReport]) -> TickReport:
        """Run one tick; a broker that is fenced goes, one that fails is tried again."""
        try:
            return tick()
        except FencedError as error:
            _log.error("broker fenced by a newer process", broker=broker.broker_id)
            self._brokers.pop(broker.broker_id, None)
            self._failure = error
        except (StorageError, OSError) as error:
            _log.error("tick failed", broker=broker.broker_id, error=str(error))
            self._failure = error
        return TickReport()

    def _beat(self) -> None:
        interval = self.config.broker_heartbeat_interval_ms / 1000
        while not self._stopping.wait(interval):
            for broker in list(self._brokers.values()):
                try:
                    broker.heartbeat()
                except FencedError as error:
                    self._brokers.pop(broker.broker_id, None)
                    self._failure = error
                except (StorageError, OSError) as error:
                    _log.error("heartbeat failed", broker=broker.broker_id, error=str(error))

    def _end(self, how: Callable[[Broker], None]) -> None:
        self._stopping.set()
        if self._heartbeats is not None:
            self._heartbeats.join()
        for broker in self._brokers.values():
            how(broker)

    def _location(self, uri: str) -> Location:
        return Location.of(uri, self.config.storage_options)
