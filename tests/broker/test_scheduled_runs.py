"""Brokers that a scheduler starts every few minutes: requests between runs, and their deadlines."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from sparklog.broker.tick import StoppedError
from sparklog.logger import event_of
from sparklog.testing import LocalCluster
from tests.broker.states import check_at_rest, error, log, values

Start = Callable[..., LocalCluster]

MINUTE_MS, HOUR_MS = 60_000, 3_600_000


def park(cluster: LocalCluster, *brokers: int) -> None:
    """End running brokers as a scheduled run does."""
    for broker in brokers or [*cluster.brokers]:
        cluster.brokers[broker].park()
        cluster.crash(broker)


def run(cluster: LocalCluster, *brokers: int) -> None:
    """Run these brokers in one application until they are idle."""
    for broker in brokers:
        cluster.restart(broker)
    cluster.tick_until_idle()
    park(cluster, *brokers)


def registrations(cluster: LocalCluster) -> list[int]:
    """Return the broker epoch of each broker."""
    brokers = cluster.connection.metadata().brokers
    return [brokers[one].broker_epoch for one in sorted(brokers)]


class TestARequestThatWaitsForTheNextRun:
    @pytest.mark.parametrize("acks", [0, 1, "all"])
    def test_is_served_within_the_time_that_it_names(self, start: Start, acks: int | str) -> None:
        """The broker's last report is a minute old, and the request 25 s (3.1, 10.1).

        The age of the report used to be counted: each request of a scheduled cluster was refused.
        """
        cluster = start(0, 1)
        park(cluster)
        cluster.clock.advance(35_000)
        pending = cluster.produce("t", 0, [b"a"], acks=acks, timeout_ms=30_000)  # type: ignore[arg-type]
        cluster.clock.advance(25_000)
        run(cluster, 0, 1)
        assert error(pending) == (None if acks == 0 else "NONE")
        assert values(cluster.consume("t", 0)) == ["a"]
        assert registrations(cluster) == [1, 2]
        assert cluster.partition("t", 0).leader_epoch == 0

    def test_is_refused_once_its_producer_may_have_given_up(self, start: Start) -> None:
        """Clocks may differ by request.clock.skew.ms, so it is refused that much earlier."""
        cluster = start(0)
        park(cluster)
        in_time = cluster.produce("t", 0, [b"a"], acks=1, timeout_ms=30_001)
        late = cluster.produce("t", 0, [b"b"], acks=1, timeout_ms=30_000)
        cluster.clock.advance(29_001)
        run(cluster, 0)
        assert (error(in_time), error(late)) == ("NONE", "REQUEST_TIMED_OUT")
        assert log(cluster, 0) == ["a"]

    def test_is_served_for_any_of_its_requests_in_time(self, start: Start) -> None:
        """A producer sends a batch again every request.timeout.ms; the batch is stored once."""
        cluster = start(0)
        producer = cluster.idempotent_producer()
        park(cluster)
        first = cluster.produce("t", 0, [b"a"], timeout_ms=30_000, producer=producer)
        cluster.clock.advance(30_000)
        second = cluster.retry(first)
        cluster.clock.advance(30_000)
        third = producer.retry(first)
        run(cluster, 0)
        assert [error(one) for one in (first, second, third)] == ["NONE"] * 3
        assert log(cluster, 0) == ["a"]

    @pytest.mark.parametrize("jump_ms", [-HOUR_MS, HOUR_MS])
    def test_is_refused_if_clocks_show_no_age_of_it(self, start: Start, jump_ms: int) -> None:
        """The leader's clock is an hour off: the request seems to be from the future, or old."""
        cluster = start(0)
        park(cluster)
        pending = cluster.produce("t", 0, [b"a"], acks=1, timeout_ms=30_000)
        jump(cluster, jump_ms)
        cluster.restart(0)
        cluster.tick_until_idle()
        assert error(pending) == "REQUEST_TIMED_OUT"
        assert log(cluster, 0) == []
        # The running broker sees this one arrive, and needs no clock for its age.
        jump(cluster, -jump_ms)
        again = cluster.retry(pending)
        jump(cluster, jump_ms)
        cluster.tick_until_idle()
        assert error(again) == "NONE"
        assert log(cluster, 0) == ["a"]

    def test_with_a_long_timeout_ends_with_the_leadership(self, start: Start) -> None:
        """A request names its leader epoch: it is never appended in a later one (3.1)."""
        cluster = start(0, 1, parked_session_timeout_ms=MINUTE_MS)
        park(cluster)
        pending = cluster.produce("t", 0, [b"a"], acks=1, timeout_ms=1 << 62)
        cluster.clock.advance(MINUTE_MS + 1)
        run(cluster, 1)
        assert cluster.partition("t", 0)[:2] == (1, 1)
        run(cluster, 0)
        assert error(pending) == "NOT_LEADER_OR_FOLLOWER"
        assert log(cluster, 0) == log(cluster, 1) == []

    def test_whose_file_is_missing_is_not_left_in_the_inbox_for_ever(self, start: Start) -> None:
        """Each run may be shorter than the time that a request waits for its file."""
        cluster = start(0)
        park(cluster)
        pending = cluster.produce("t", 0, [b"a"], acks=1, timeout_ms=30_000)
        (cluster.root / "broker-0" / "log" / pending.batches[0].file.path).unlink()
        run(cluster, 0)
        assert error(pending) is None
        cluster.clock.advance(30_000)
        run(cluster, 0)
        assert error(pending) == "REQUEST_TIMED_OUT"


def jump(cluster: LocalCluster, ms: int) -> None:
    """Set the wall clock; no time passes."""
    cluster.clock._now_ms += ms


def test_refused_requests_are_logged_by_their_number_in_each_tick(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """One line for each error of a tick, also with acks=0, which is not answered."""
    cluster = start(0)
    park(cluster)
    for acks in (0, 1, 1):
        cluster.produce("t", 0, [b"a", b"b"], acks=acks, timeout_ms=2_000)
    cluster.clock.advance(MINUTE_MS)
    with caplog.at_level(logging.WARNING, "sparklog"):
        run(cluster, 0)
    told = [event_of(record) for record in caplog.records]
    refused = [one for one in told if one["event"] == "requests refused"]
    assert [(one["error"], one["requests"]) for one in refused] == [("REQUEST_TIMED_OUT", 3)]


class TestRunsOfSingleBrokers:
    """One job for each broker; no two of them run at the same time."""

    def test_replicate_and_answer_without_an_election(self, start: Start) -> None:
        """Sequential runs of leader, followers and leader complete acks=all."""
        cluster = start(0, 1, 2, min_isr=2)
        park(cluster)
        pending = cluster.produce("t", 0, [b"a"], timeout_ms=10 * MINUTE_MS)
        for broker in (0, 1, 2):
            cluster.clock.advance(MINUTE_MS)
            run(cluster, broker)
            assert error(pending) is None
        assert cluster.consume("t", 0) == []
        cluster.clock.advance(MINUTE_MS)
        run(cluster, 0)
        assert error(pending) == "NONE"
        assert values(cluster.consume("t", 0)) == ["a"]
        assert registrations(cluster) == [1, 2, 3]
        assert cluster.partition("t", 0)[:2] == (0, 0)

    def test_answer_that_the_producers_time_is_over(self, start: Start) -> None:
        """acks=all waits across runs for as long as the producer does; the record stays."""
        cluster = start(0, 1)
        park(cluster)
        pending = cluster.produce("t", 0, [b"a"], timeout_ms=2 * MINUTE_MS)
        for _ in range(3):
            assert error(pending) is None
            cluster.clock.advance(MINUTE_MS)
            run(cluster, 0)
        assert error(pending) == "REQUEST_TIMED_OUT"
        retry = cluster.retry(pending)
        run(cluster, 1)
        run(cluster, 0)
        assert error(retry) == "NONE"
        assert log(cluster, 0) == log(cluster, 1) == ["a"]

    def test_hand_the_controller_role_on(self, start: Start) -> None:
        """A parked controller gives its lease back: a run is shorter than a session."""
        cluster = start(0, 1, 2, parked_session_timeout_ms=5 * MINUTE_MS)
        assert cluster.brokers[0].is_controller
        park(cluster)
        for _ in range(6):
            cluster.clock.advance(MINUTE_MS)
            run(cluster, 1)
            run(cluster, 2)
        state = cluster.partition("t", 0)
        assert (state.leader, state.isr) == (1, [1, 2])
        pending = cluster.produce("t", 0, [b"a"], timeout_ms=5 * MINUTE_MS)
        for broker in (1, 2, 1):
            run(cluster, broker)
        assert error(pending) == "NONE"
        cluster.restart(0)
        cluster.restart(1)
        cluster.restart(2)
        check_at_rest(cluster, "a")

    def test_are_parked_although_the_lease_cannot_be_given_back(
        self, start: Start, fail_once: Callable[[str, str], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        """The lease lapses then, as that of a broker that has died."""
        cluster = start(0, 1)
        fail_once("write", "cluster/controller")
        with caplog.at_level(logging.WARNING, "sparklog"):
            park(cluster)
        assert [event_of(one)["event"] for one in caplog.records] == ["lease not given back"]
        run(cluster, 0, 1)
        assert registrations(cluster) == [1, 2]

    def test_survive_a_death_between_the_row_and_the_lease(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The broker is parked and holds the lease: the next run lasts until it has lapsed."""
        cluster = start(0, 1)
        monkeypatch.setattr(cluster.brokers[0]._controller, "resign", lambda: None)
        park(cluster)
        cluster.restart(1)
        cluster.tick_until_idle()
        assert cluster.brokers[1].awaits_signs({1})
        cluster.clock.advance(cluster.settings.broker_session_timeout_ms + 1)
        cluster.tick_until_idle()
        assert cluster.brokers[1].is_controller
        assert not cluster.brokers[1].awaits_signs({1})
        park(cluster, 1)
        run(cluster, 0, 1)
        assert cluster.partition("t", 0)[:2] == (0, 0)
        assert registrations(cluster) == [1, 2]

    @pytest.mark.parametrize("step", ["lags", "checkpoints"])
    def test_survive_a_death_before_the_row(
        self, start: Start, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        """The journal, or the checkpoints, are written, and the row does not say parked."""
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        broker = cluster.brokers[0]

        def die(*_: object) -> None:
            raise StoppedError

        name = "_write_checkpoints" if step == "lags" else "_change_state"
        monkeypatch.setattr(broker, name, die)
        with pytest.raises(StoppedError):
            broker.park()
        cluster.crash(0)
        cluster.fence(0)
        cluster.restart(0)
        assert registrations(cluster) == [3, 2]
        check_at_rest(cluster, "a")


class TestElections:
    def test_choose_a_running_broker_before_a_parked_one(self, start: Start) -> None:
        """A parked leader would serve nothing before its next run."""
        cluster = start(0, 1, 2)
        park(cluster, 1)
        cluster.crash(0)
        cluster.fence(0)
        assert cluster.partition("t", 0).leader == 2

    def test_choose_a_parked_broker_if_no_other_is_in_sync(self, start: Start) -> None:
        """It has the records, and leads from its next run on."""
        cluster = start(2, 0, 1, assignment={0: [0, 1]})
        park(cluster, 1)
        cluster.crash(0)
        cluster.fence(0)
        assert cluster.partition("t", 0).leader == 1

    def test_return_no_leadership_to_a_parked_broker(self, start: Start) -> None:
        """Its preferred partitions stay with the running leader (7.6)."""
        cluster = start(0, 1)
        cluster.brokers[0].stop()
        cluster.crash(0)
        cluster.tick_until_idle()
        cluster.restart(0)
        cluster.tick_until_idle()
        park(cluster, 0)
        assert cluster.elect_leaders("preferred", [("t", 0)]) != {("t", 0): "NONE"}
        assert cluster.partition("t", 0).leader == 1
