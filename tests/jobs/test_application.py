"""An application of brokers from the inside: its reactions to failures of its parts."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from sparklog.broker.application import Application
from sparklog.broker.broker import Broker
from sparklog.broker.merger import MergeReport
from sparklog.cli.application import run_application
from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.cluster.roots import ClusterRoot
from sparklog.config import BrokerConfig, ClusterConfig, parse
from sparklog.errors import ApplicationFailedError, FencedError, SparklogError, StorageError
from sparklog.logger import ROOT, event_of
from sparklog.model import BROKERS, CONTROLLER
from sparklog.producer.plain import Producer
from sparklog.protocol.driver_rules import DriverRules
from sparklog.storage.control_table import ControlTable
from sparklog.storage.delta_log_files import newest_version
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog
from sparklog.testing import ManualClock
from tests.jobs.processes import Client, Cluster, wait_for


@pytest.fixture
def logs() -> Iterator[list[dict[str, Any]]]:
    """The events that the library has logged."""
    logger, events = logging.getLogger(ROOT), []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            events.append(event_of(record) | {"exc_info": (record.exc_info or (None, None))[1]})

    collector, level = Collector(), logger.level
    logger.addHandler(collector)
    logger.setLevel(logging.INFO)
    yield events
    logger.setLevel(level)
    logger.removeHandler(collector)


def config(folder: Path, **changes: Any) -> ClusterConfig:
    values = {
        "cluster.root": str(folder / "cluster"),
        "brokers": [
            {"broker.id": one, "log.dirs": str(folder / f"broker-{one}")} for one in range(3)
        ],
        "broker.session.timeout.ms": 1_000,
        "broker.heartbeat.interval.ms": 100,
        "tick.interval.ms": 5,
    } | {key.replace("_", "."): value for key, value in changes.items()}
    return parse(ClusterConfig, values, "the test")


def broker_config(folder: Path, broker_id: int, **changes: Any) -> BrokerConfig:
    whole = config(folder, **changes).model_dump(by_alias=True)
    return parse(BrokerConfig, whole.pop("brokers")[broker_id] | whole, "the test")


def journal_version(folder: Path, broker: int) -> int:
    """The newest version of a broker's journal."""
    return newest_version(Location.of(str(folder / f"broker-{broker}" / "log")))


def rows(folder: Path) -> dict[int, dict[str, Any]]:
    table = ControlTable(Location.of(str(folder / "cluster")), BROKERS).rows().to_pylist()
    return {row["broker_id"]: row for row in table}


def states(folder: Path) -> list[str]:
    return [row["state"] for _, row in sorted(rows(folder).items())]


@contextmanager
def running(application: Application) -> Iterator[list[BaseException]]:
    """Run an application's rounds in a thread; yields a list for the error that ends them."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            application.run()
        except SparklogError as error:
            errors.append(error)

    application.start()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield errors
    finally:
        application.stop()
        thread.join()


# --- starting -------------------------------------------------------------------------------------


def test_a_start_that_fails_halfway_leaves_no_broker_that_seems_alive(tmp_path: Path) -> None:
    """Otherwise the next start would have to wait for their sessions."""
    first = Application(config(tmp_path))
    first.start()
    first.run_until_idle()
    # The root has its format; only the log, which cannot be rebuilt, cannot be opened.
    (tmp_path / "broker-2" / "log").rename(tmp_path / "gone")

    second = Application(config(tmp_path))
    with pytest.raises(StorageError, match="broker-2/log"):
        second.start()
    assert states(tmp_path)[:2] == ["parked", "parked"]

    (tmp_path / "gone").rename(tmp_path / "broker-2" / "log")
    third = Application(config(tmp_path))
    third.start()
    assert states(tmp_path) == ["alive"] * 3
    third.run_until_idle()


def test_an_application_that_is_stopped_while_it_starts_registers_nobody(tmp_path: Path) -> None:
    """An application that is stopped during its start registers no broker."""
    application = Application(config(tmp_path))
    application.stop()
    application.start()
    application.run()
    assert rows(tmp_path) == {}


def test_the_handlers_of_signals_are_those_of_the_host_after_a_run(tmp_path: Path) -> None:
    """A task of Databricks runs in an interpreter that goes on: a signal must reach it."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    run_application(config(tmp_path), until_idle=True, with_spark=False)
    after = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert after == before
    assert states(tmp_path) == ["parked"] * 3


def test_a_broker_that_runs_is_not_started_a_second_time(tmp_path: Path) -> None:
    """A running broker is not started a second time."""
    application = Application(config(tmp_path))
    application.start()
    epoch = rows(tmp_path)[1]["broker_epoch"]
    with pytest.raises(SparklogError, match="broker 1 runs"):
        application.start_broker(1)
    assert rows(tmp_path)[1]["broker_epoch"] == epoch
    application.run_until_idle()


def test_what_is_written_for_a_broker_is_not_kept_waiting_for_its_next_tick(
    tmp_path: Path,
) -> None:
    """tick.interval.ms applies to object stores: on a local file system, requests and reports are
    noticed.
    """
    hour = config(tmp_path, tick_interval_ms=3_600_000)
    with running(Application(hour)):
        connection = Connection(hour.cluster_root)
        Admin(connection).create_topic("t", 1, 3, configs={"min.insync.replicas": 3})
        with Producer(connection, request_timeout_ms=60_000, acks="all") as producer:
            sent = [producer.send("t", b"v").result(60) for _ in range(3)]
    assert [one.offset for one in sent] == [0, 1, 2]


# --- failing --------------------------------------------------------------------------------------


def test_a_broker_whose_ticks_fail_falls_silent_and_others_lead_until_they_work_again(
    tmp_path: Path, logs: list[dict[str, Any]]
) -> None:
    """A disk is unavailable for a while: heartbeats alone would keep a useless leader in place."""
    cluster = Cluster(tmp_path)
    disk, elsewhere = tmp_path / "broker-0" / "log", tmp_path / "log-elsewhere"
    with running(Application(config(tmp_path))):
        client = Client(cluster)
        client.create_topic(leader=0)
        client.produce(b"a")
        disk.rename(elsewhere)
        # No tick fails before there is something to write.
        client.send([b"lost"], acks=1)
        wait_for(lambda: client.leader() in (1, 2), "new leader")
        client.produce(b"b")
        assert client.committed() == [b"a", b"b"]
        told = [one for one in logs if one["event"] == "failed" and one["action"] == "leader_tick"]
        assert {one["broker"] for one in told} == {0}
        assert len(told) < 10, "a failure is told once, not at every round"

        inbox = disk / "_inbox"
        for file in inbox.iterdir() if inbox.exists() else ():
            file.rename(elsewhere / "_inbox" / file.name)
        if disk.exists():
            inbox.rmdir()
            disk.rmdir()
        elsewhere.rename(disk)
        wait_for(lambda: client.isr() == [0, 1, 2], "return to the in-sync replicas")
        client.produce(b"c")
        assert client.committed() == [b"a", b"b", b"c"]
        assert any(one["event"] == "action succeeds again" for one in logs)


Hook = Callable[[str, Mapping[str, Any]], "list[dict[str, Any]] | None"]


class HookedRules(DriverRules):
    """The rules, with a hook that may fail, or answer in place of a rule."""

    hook: Hook | None = None

    def run(self, name: str, **inputs: Any) -> list[dict[str, Any]]:
        answer = self.hook(name, inputs) if self.hook is not None else None
        return super().run(name, **inputs) if answer is None else answer


def with_hooked_rules(application: Application) -> HookedRules:
    application._rules = rules = HookedRules()
    return rules


def test_an_unforeseen_error_in_one_broker_ends_neither_the_others_nor_the_application(
    tmp_path: Path, logs: list[dict[str, Any]]
) -> None:
    """An unexpected error in one broker ends neither the other brokers nor the application."""
    application = Application(config(tmp_path, broker_session_timeout_ms=60_000))
    rules = with_hooked_rules(application)
    with running(application) as errors:
        client = Client(Cluster(tmp_path))
        client.create_topic(leader=1)
        client.produce(b"a")
        other = Client(Cluster(tmp_path), "u")
        other.create_topic(leader=0)
        poison = other.connection.metadata().topic("u").topic_id

        def fail(name: str, inputs: Mapping[str, Any]) -> None:
            if name == "assigned_offsets" and poison in {r["topic_id"] for r in inputs["batches"]}:
                raise ZeroDivisionError("a fault in a rule")

        rules.hook = fail
        other.send([b"never stored"])
        wait_for(lambda: any(one["event"] == "failed" for one in logs), "failure")
        client.produce(b"b")
        assert errors == []
    assert client.committed() == [b"a", b"b"]
    [told] = [one for one in logs if one["event"] == "failed"]
    assert (told["broker"], told["action"]) == (0, "leader_tick")
    assert isinstance(told["exc_info"], ZeroDivisionError)


class Failing:
    """Actions of `Broker` that fail for some brokers, until these are removed from `brokers`."""

    def __init__(self, patch: pytest.MonkeyPatch, brokers: set[int], *actions: str) -> None:
        self.brokers = brokers
        for action in actions:
            patch.setattr(Broker, action, self._failing(action, getattr(Broker, action)))

    def _failing(self, name: str, action: Callable[..., Any]) -> Callable[..., Any]:
        def call(broker: Broker, *arguments: Any, **named: Any) -> Any:
            if broker.broker_id in self.brokers:
                raise OSError("the disk is away")
            return action(broker, *arguments, **named)

        call.__name__ = name
        return call


def test_a_run_until_idle_in_which_a_tick_fails_parks_and_says_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run until idle in which a tick fails parks its brokers and reports the failure."""
    Failing(monkeypatch, {0}, "controller_tick")
    application = Application(config(tmp_path))
    application.start()
    with pytest.raises(SparklogError, match="controller_tick of broker 0 failed: the disk is away"):
        application.run_until_idle()
    assert states(tmp_path) == ["parked"] * 3


class TestLastingFailures:
    """Time passes by a manual clock; the rounds are the test's."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def started(self, tmp_path: Path, clock: ManualClock) -> Iterator[Callable[..., Application]]:
        """Start applications that are parked after the test."""
        made: list[Application] = []

        def start(**changes: Any) -> Application:
            settings = {"broker_session_timeout_ms": 90_000, "tick_failure_timeout_ms": 5_000}
            made.append(Application(config(tmp_path, **settings | changes), clock=clock))
            made[-1].start()
            made[-1].round()
            return made[-1]

        yield start
        for application in made:
            with suppress(SparklogError):
                application.stop()
                application.run()

    @pytest.mark.parametrize("action", ["leader_tick", "follower_tick", "heartbeat"])
    def test_of_all_brokers_end_the_application_at_the_first_failure_after_their_bound(
        self,
        started: Callable[..., Application],
        clock: ManualClock,
        monkeypatch: pytest.MonkeyPatch,
        action: str,
    ) -> None:
        """Neither the time alone nor a failure at the bound ends it."""
        application = started()
        Failing(monkeypatch, {0, 1, 2}, action)

        def fail() -> bool:
            for broker in application._brokers.values():
                application._attempt(getattr(Broker, action), broker)
            return application._is_going_on()

        assert fail()
        clock.advance(5_000)
        assert fail()
        clock.advance(60_000)
        assert application._is_going_on()
        assert not fail()
        assert str(application.failure) == (
            f"{action} of broker 0 and of brokers 1, 2 has failed for longer than "
            "tick.failure.timeout.ms=5000 (3 times): the disk is away"
        )
        with pytest.raises(ApplicationFailedError, match="the disk is away"):
            application.run()

    def test_of_one_broker_end_neither_the_others_nor_the_application(
        self,
        started: Callable[..., Application],
        clock: ManualClock,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        logs: list[dict[str, Any]],
    ) -> None:
        """The broker is retried, and goes on when the cause is gone."""
        application = started()
        failing = Failing(monkeypatch, {1}, "leader_tick", "follower_tick")
        for _ in range(20):
            application.round()
            clock.advance(5_001)
            assert application._is_going_on()
        failing.brokers.clear()
        application.round()
        assert application._troubles == {}
        told = [one for one in logs if one["event"] == "action succeeds again"]
        assert {(one["broker"], one["failures"]) for one in told} == {(1, 20)}
        application.stop()
        application.run()
        assert states(tmp_path) == ["parked"] * 3

    def test_of_all_but_a_broker_that_was_taken_over_end_the_application(
        self,
        started: Callable[..., Application],
        clock: ManualClock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A broker that runs elsewhere is no longer a broker of the application."""
        application = started()
        Failing(monkeypatch, {0, 1}, "leader_tick")
        application.drop_broker(2)
        application.round()
        clock.advance(5_001)
        application.round()
        assert not application._is_going_on()

    def test_that_are_interrupted_by_a_success_begin_again(
        self,
        started: Callable[..., Application],
        clock: ManualClock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The bound is for failures without a success in between."""
        application = started()
        failing = Failing(monkeypatch, set(), "leader_tick")
        for brokers in ({0, 1, 2}, set(), {0, 1, 2}):
            failing.brokers = brokers
            application.round()
            clock.advance(4_000)
        application.round()
        assert application._is_going_on()

    def test_never_end_it_without_a_bound(
        self,
        started: Callable[..., Application],
        clock: ManualClock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """With tick.failure.timeout.ms: null the brokers are retried for ever."""
        application = started(tick_failure_timeout_ms=None)
        Failing(monkeypatch, {0, 1, 2}, "leader_tick")
        for _ in range(3):
            application.round()
            clock.advance(86_400_000)
        assert application._is_going_on()

    def test_of_the_controller_alone_do_not_end_brokers_that_lead_and_follow(
        self,
        started: Callable[..., Application],
        clock: ManualClock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A damaged table `controller` prevents elections; replication goes on without."""
        application = started()
        Failing(monkeypatch, {0, 1, 2}, "controller_tick")
        for _ in range(3):
            application.round()
            clock.advance(60_000)
        assert application._is_going_on()


@pytest.mark.parametrize("farewell", ["park", "stop"])
def test_a_broker_that_cannot_be_stopped_makes_the_stop_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, farewell: str, logs: list[dict[str, Any]]
) -> None:
    """Its next start waits for its session: the stop was not clean, and the others' were."""
    is_cluster = farewell == "park"
    application = Application(config(tmp_path) if is_cluster else broker_config(tmp_path, 0))
    Failing(monkeypatch, {0}, farewell)
    # The application has chosen its way to stop a broker before.
    application._farewell = getattr(Broker, farewell)
    with running(application) as errors:
        pass
    [error] = errors
    assert isinstance(error, ApplicationFailedError)
    assert str(error) == f"{farewell} of broker 0 failed: the disk is away"
    assert states(tmp_path) == (["alive", "parked", "parked"] if is_cluster else ["stopping"])
    ended = [one["broker"] for one in logs if one["event"] == "broker ended"]
    assert ended == ([1, 2] if is_cluster else [])
    done = "parked" if is_cluster else "stopped"
    assert application.unfinished() == [f"not {done}: broker 0"]


# --- being taken over -----------------------------------------------------------------------------


def take_over(folder: Path, broker_id: int) -> None:
    """Register as a broker without checking whether it is alive, as a newer process may."""
    [entry] = [one for one in config(folder).brokers if one.broker_id == broker_id]
    Broker(
        broker_id,
        Location.of(str(folder / "cluster")),
        [Location.of(root) for root in entry.log_dirs],
        rules=DriverRules(),
        execution=_NoExecution(),
        clock=ManualClock(),
        settings=config(folder),
    )


class _NoExecution:
    """There is no work for a broker that does not tick."""

    def check(self, log: Location, files: Sequence[Any], keyed: Collection[str] = ()) -> list[Any]:
        raise AssertionError(f"nothing in {log.uri} is to be checked, not {files} or {keyed}")

    def copy(self, copies: Sequence[Any]) -> list[Any]:
        raise AssertionError(f"nothing is to be copied, not {copies}")

    def cut(self, slices: Sequence[Any]) -> list[Any]:
        raise AssertionError(f"nothing is to be cut, not {slices}")

    def merge(self, merges: Sequence[Any]) -> list[Any]:
        raise AssertionError(f"nothing is to be merged, not {merges}")

    def compact(self, compactions: Sequence[Any]) -> list[Any]:
        raise AssertionError(f"nothing is to be compacted, not {compactions}")

    def read(self, files: Sequence[Any]) -> list[Any]:
        raise AssertionError(f"nothing is to be read, not {files}")


def test_a_single_broker_that_was_taken_over_ends_with_that_error(tmp_path: Path) -> None:
    """A single broker that was replaced by another process ends with `FencedError`."""
    ClusterRoot.create(Location.of(str(tmp_path / "cluster")))
    application = Application(broker_config(tmp_path, 0))
    with running(application) as errors:
        take_over(tmp_path, 0)
        wait_for(lambda: errors, "end")
    [error] = errors
    assert isinstance(error, FencedError)
    assert rows(tmp_path)[0]["state"] == "alive", "it is the newer process's row now"


def test_the_other_brokers_of_an_application_go_on_when_one_is_taken_over(tmp_path: Path) -> None:
    """If one broker is replaced by another process, the application's other brokers go on."""
    application = Application(config(tmp_path))
    with running(application) as errors:
        take_over(tmp_path, 1)
        with application.between_rounds() as brokers:
            pass
        wait_for(lambda: sorted(brokers) == [0, 2], "end of broker 1")
    assert errors == []
    assert states(tmp_path) == ["parked", "alive", "parked"]


def test_a_heartbeat_of_a_broker_that_was_restarted_does_not_remove_the_new_one(
    tmp_path: Path,
) -> None:
    """The heartbeats' thread may still hold the old broker when it finds that it is fenced."""
    application = Application(config(tmp_path))
    application.start()
    old = application.drop_broker(1)
    application.start_broker(1)
    application._attempt(Broker.heartbeat, old)
    with application.between_rounds() as brokers:
        assert sorted(brokers) == [0, 1, 2]
        assert brokers[1] is not old
    application.run_until_idle()


def test_a_controller_that_is_replaced_in_the_middle_of_a_tick_goes_on_as_a_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that is replaced in the middle of a tick goes on as a broker."""
    # No heartbeat comes in between, so the lease lapses when the rival's clock is advanced.
    application = Application(
        config(tmp_path, broker_session_timeout_ms=90_000, broker_heartbeat_interval_ms=80_000)
    )
    rules = with_hooked_rules(application)
    application.start()
    application.round()
    clock = ManualClock()
    rival = Broker(
        7,
        Location.of(str(tmp_path / "cluster")),
        [Location.of(str(tmp_path / "broker-7"))],
        rules=DriverRules(),
        execution=_NoExecution(),
        clock=clock,
        settings=config(tmp_path),
    )

    def replace(name: str, inputs: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """Act just before the rule that reports all brokers as silent."""
        if name != "silent_brokers":
            return None
        rules.hook = None
        rival.controller_tick()
        clock.advance(10_000)
        rival.controller_tick()
        assert rival.is_controller
        return [{"broker_id": row["broker_id"]} for row in inputs["brokers"]]

    rules.hook = replace
    # Otherwise the rule does not run, since nobody is silent.
    monkeypatch.setattr("sparklog.broker.controller.may_be_silent", lambda *_: True)
    application.round()
    assert rival.is_controller
    application.round()
    with application.between_rounds() as brokers:
        assert sorted(brokers) == [0, 1, 2]
        assert not any(broker.is_controller for broker in brokers.values())
    [lease] = ControlTable(Location.of(str(tmp_path / "cluster")), CONTROLLER).rows().to_pylist()
    assert lease["broker_id"] == 7
    application._ended.set()


# --- heartbeats -----------------------------------------------------------------------------------


def test_heartbeats_and_rounds_never_get_into_each_others_way(
    tmp_path: Path, logs: list[dict[str, Any]]
) -> None:
    """A heartbeat every ms, in parallel with rounds without a pause: no error, and no new
    controller.
    """
    settings = config(tmp_path, broker_heartbeat_interval_ms=1, tick_interval_ms=0)
    application = Application(settings)
    with running(application) as errors:
        client = Client(Cluster(tmp_path))
        client.create_topic()
        values = [b"%d" % number for number in range(8)]
        for value in values:
            client.produce(value)
        assert client.committed() == values
        assert errors == []
        assert application._troubles == {}
    assert [one for one in logs if one["event"] in ("failed", "lease lost", "broker fenced")] == []
    [lease] = ControlTable(Location.of(str(tmp_path / "cluster")), CONTROLLER).rows().to_pylist()
    assert lease["controller_epoch"] == 1
    assert min(journal_version(tmp_path, one) for one in range(3)) > 20


class Once:
    """Ends a loop after its first round, as `Application._ended` does at the end."""

    def __init__(self) -> None:
        self._rounds = 0

    def wait(self, _seconds: float) -> bool:
        self._rounds += 1
        return self._rounds > 1


def test_a_heartbeat_without_lease_that_failed_is_over_with_the_next_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is another method: its failure stayed, and rounds waited for tick.interval.ms forever."""
    clock = ManualClock()
    application = Application(config(tmp_path), clock=clock)
    application.start_broker(0)

    def beat() -> None:
        application._ended = Once()  # type: ignore[assignment]
        application._beat()

    def controller_tick(_: Broker) -> None:
        raise OSError("the cluster root is away")

    def heartbeat_without_lease(_: Broker) -> None:
        raise OSError("the cluster root is away")

    with monkeypatch.context() as patch:
        for failing in (controller_tick, heartbeat_without_lease):
            patch.setattr(Broker, failing.__name__, failing)
        application.round()
        clock.advance(application.config.broker_session_timeout_ms + 1)
        beat()
    assert len(application._troubles) == 2
    application.round()
    beat()
    assert application._troubles == {}
    application._pool.shutdown()


def test_heartbeats_go_on_until_the_last_round_has_ended(tmp_path: Path) -> None:
    """A round may copy for longer than a session, including the last one after a stop."""
    application = Application(config(tmp_path, tick_interval_ms=0))

    def await_heartbeats() -> None:
        before = journal_version(tmp_path, 0)
        wait_for(lambda: journal_version(tmp_path, 0) > before + 3, "heartbeat")

    # While the rounds are held, the one that has begun meanwhile cannot end.
    with running(application), application.between_rounds():
        await_heartbeats()
        application.stop()
        await_heartbeats()
    assert states(tmp_path) == ["parked"] * 3


def test_rounds_end_when_the_heartbeats_have(tmp_path: Path) -> None:
    """A process that cannot send heartbeats must not go on as if it were alive."""
    application = Application(config(tmp_path))
    with running(application) as errors:
        application._ended.set()
        wait_for(lambda: errors, "end")
    assert "heartbeats have ended" in str(errors[0])
    assert states(tmp_path) == ["parked"] * 3


# --- merging --------------------------------------------------------------------------------------

MERGING = {
    "log_merger_backoff_ms": 1,
    "log_merger_min_lag_ms": 0,
    "log_merger_min_batches": 2,
}


def live_batches(folder: Path) -> list[int]:
    """Return the number of live batches in each broker's log."""
    logs = [RecordLog(Location.of(str(folder / f"broker-{one}"))) for one in range(3)]
    return [sum(len(log.batches(key)) for key in log.partitions()) for log in logs]


def test_every_broker_merges_beside_the_rounds(tmp_path: Path) -> None:
    """Merges and rounds run in parallel without a pause, and do not disturb each other."""
    application = Application(config(tmp_path, tick_interval_ms=0, **MERGING))
    with running(application) as errors:
        client = Client(Cluster(tmp_path))
        client.create_topic()
        values = [b"%d" % number for number in range(20)]
        for value in values:
            client.produce(value)
        assert client.committed() == values
        wait_for(lambda: max(live_batches(tmp_path)) <= 2, "merging")
        assert client.committed() == values
        assert errors == []
        assert application._troubles == {}
        assert len(application._brokers) == 3


def test_merging_can_be_switched_off(tmp_path: Path) -> None:
    """With log.merger.enable=false nothing is merged."""
    application = Application(config(tmp_path, log_merger_enable=False, **MERGING))
    with running(application):
        client = Client(Cluster(tmp_path))
        client.create_topic()
        for number in range(4):
            client.produce(b"%d" % number)
    assert live_batches(tmp_path) == [4, 4, 4]


def test_a_scheduled_run_merges_before_it_ends(tmp_path: Path) -> None:
    """The run may end before the merger's first interval."""
    never = MERGING | {"log_merger_backoff_ms": 3_600_000}
    first = Application(config(tmp_path, log_merger_enable=False))
    with running(first):
        client = Client(Cluster(tmp_path))
        client.create_topic()
        values = [b"%d" % number for number in range(4)]
        for value in values:
            client.produce(value)
    second = Application(config(tmp_path, **never))
    second.start()
    second.run_until_idle()
    assert live_batches(tmp_path) == [1, 1, 1]
    assert client.committed() == values


def test_a_broker_that_cannot_merge_goes_on_with_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: list[dict[str, Any]]
) -> None:
    """It logs the failure once, and its heartbeats go on."""

    def away(_: Broker) -> MergeReport:
        raise OSError("the table is away")

    monkeypatch.setattr(Broker, "merge", away)
    application = Application(config(tmp_path, broker_session_timeout_ms=300, **MERGING))
    with running(application) as errors:
        wait_for(lambda: len(application._troubles) == 3, "trouble")
        before = journal_version(tmp_path, 0)
        wait_for(lambda: journal_version(tmp_path, 0) > before + 6, "heartbeats")
        assert errors == []
    told = [(one["broker"], one["action"]) for one in logs if one["event"] == "failed"]
    assert sorted(told) == [(0, "merge"), (1, "merge"), (2, "merge")]
