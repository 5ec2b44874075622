"""Old records are deleted from the start of a log, in all of its replicas (rule 8.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sparklog.broker import log_starts
from sparklog.errors import SparklogError
from sparklog.maintenance.audit import audit
from sparklog.model import Batch, TopicPartition
from sparklog.storage.batch_merging import Merge
from sparklog.storage.execution import DriverExecution
from sparklog.storage.record_log import RecordLog
from sparklog.testing import LocalCluster
from tests.broker.states import report, values, versions

Start = Callable[..., LocalCluster]
HOUR_MS = 3_600_000
CHECK_MS = 300_000
T0 = TopicPartition("t", 0)


def write(cluster: LocalCluster, *texts: str, **options: Any) -> None:
    """Store each text in a batch of its own."""
    for text in texts:
        cluster.produce("t", 0, [text.encode()], **options)
    cluster.tick_until_idle()


def pass_time(cluster: LocalCluster, ms: int = HOUR_MS + 1) -> None:
    """Let time pass, and the next checks with it."""
    cluster.clock.advance(ms)
    cluster.tick_until_idle()


def starts(cluster: LocalCluster) -> list[int]:
    """Return the log start offset of each replica."""
    replicas = cluster.partition("t", 0).replicas
    return [cluster.replica(broker, "t", 0).log_start_offset for broker in replicas]


def check(cluster: LocalCluster, start: int, *texts: str) -> None:
    """Check that all replicas are in sync, start at `start`, and have just these records."""
    cluster.tick_until_idle()
    state = cluster.partition("t", 0)
    assert state.isr == sorted(state.replicas)
    assert starts(cluster) == [start] * len(state.replicas)
    for broker in state.replicas:
        found = [one for one in cluster.log(broker, "t", 0) if one.offset >= start]
        assert [one.offset for one in found] == list(range(start, start + len(texts)))
        assert values(found) == list(texts), f"replica {broker}"
        assert cluster.replica(broker, "t", 0).high_watermark == start + len(texts)
    assert values(cluster.consume("t", 0)) == list(texts)
    assert audit(cluster.connection) == []


def batch_count(cluster: LocalCluster, broker: int) -> int:
    key = cluster.connection.metadata().partition("t", 0).key
    return len(RecordLog(cluster.location(broker)).batches(key, -1))


@pytest.fixture
def cluster(start: Start) -> LocalCluster:
    """Three brokers that keep records for an hour."""
    return start(0, 1, 2, log_retention_ms=HOUR_MS)


class TestByTime:
    def test_batches_go_when_their_youngest_record_is_too_old(self, cluster: LocalCluster) -> None:
        write(cluster, "a", "b")
        pass_time(cluster, CHECK_MS)
        write(cluster, "c")
        check(cluster, 0, "a", "b", "c")
        # Exactly the limit is still kept.
        cluster.clock.advance(HOUR_MS - CHECK_MS)
        cluster.tick_until_idle()
        check(cluster, 0, "a", "b", "c")
        pass_time(cluster, CHECK_MS)
        check(cluster, 2, "c")

    def test_a_whole_log_may_go_and_continues_at_its_offset(self, cluster: LocalCluster) -> None:
        """As in Kafka, which rolls the active segment. Restarts and elections know the offset."""
        write(cluster, "a", "b")
        pass_time(cluster)
        check(cluster, 2)
        for broker in (1, 0):
            cluster.crash(broker)
            cluster.restart(broker)
            cluster.tick_until_idle()
        check(cluster, 2)
        cluster.crash(0)
        cluster.fence(0)
        write(cluster, "c")
        cluster.restart(0)
        check(cluster, 2, "c")

    def test_records_that_are_not_committed_stay(self, start: Start) -> None:
        cluster = start(0, 1, log_retention_ms=HOUR_MS, replica_lag_time_max_ms=10 * HOUR_MS)
        write(cluster, "a")
        cluster.pause(1)
        cluster.produce("t", 0, [b"b"], acks=1)
        cluster.tick_until_idle()
        pass_time(cluster)
        assert starts(cluster) == [1, 0]
        assert values(cluster.log(0, "t", 0)) == ["b"]

    def test_a_topic_has_limits_of_its_own(self, start: Start) -> None:
        cluster = start(0, log_retention_ms=HOUR_MS, log_retention_bytes=0)
        for name, limits in {
            "long": {"retention.ms": "-1", "retention.bytes": "-1"},
            "short": {"retention.ms": "1000", "retention.bytes": "-1"},
        }.items():
            cluster.create_topic(name, partitions=1, replication_factor=1, configs=limits)
            cluster.produce(name, 0, [b"a"])
        cluster.tick_until_idle()
        pass_time(cluster, CHECK_MS)
        assert [len(cluster.consume(name, 0)) for name in ("long", "short")] == [1, 0]
        pass_time(cluster, 100 * HOUR_MS)
        assert len(cluster.consume("long", 0)) == 1

    def test_a_check_is_made_once_per_interval_and_an_idle_one_writes_nothing(
        self, cluster: LocalCluster, rules_run: list[str]
    ) -> None:
        write(cluster, "a")
        pass_time(cluster, CHECK_MS)
        write(cluster, "b")
        rules_run.clear()
        cluster.clock.advance(HOUR_MS - CHECK_MS + 1)
        cluster.leader_tick(0)
        assert starts(cluster)[0] == 1
        assert rules_run.count("log_start_offset") == 1
        cluster.tick_until_idle()
        cluster.clock.advance(CHECK_MS - 1)
        for _ in range(3):
            cluster.leader_tick(0)
        # Record b is too old now, but the next check is due in 1 ms.
        assert rules_run.count("log_start_offset") == 1
        cluster.clock.advance(1)
        cluster.leader_tick(0)
        assert rules_run.count("log_start_offset") == 2
        cluster.tick_until_idle()
        cluster.clock.advance(CHECK_MS)
        before = versions(cluster, 0)
        assert cluster.leader_tick(0).commits == 0
        assert versions(cluster, 0) == before
        assert rules_run.count("log_start_offset") == 2

    def test_a_process_checks_in_its_first_tick(self, cluster: LocalCluster) -> None:
        """A scheduled run may be shorter than the interval."""
        write(cluster, "a")
        cluster.crash(0)
        cluster.clock.advance(1)
        cluster.restart(0)
        cluster.tick_until_idle()
        check(cluster, 0, "a")
        cluster.crash(0)
        cluster.crash(1)
        cluster.crash(2)
        cluster.clock.advance(HOUR_MS)
        for broker in range(3):
            cluster.restart(broker)
        check(cluster, 1)


class TestBySize:
    def test_batches_go_while_the_rest_has_retention_bytes(self, start: Start) -> None:
        cluster = start(0, 1)
        write(cluster, *"abcd")
        key = cluster.connection.metadata().partition("t", 0).key
        size = RecordLog(cluster.location(0)).batches(key)[0].size_bytes
        for name, least in {"u": 2 * size, "v": 2 * size + 1, "w": 0}.items():
            configs = {"retention.bytes": str(least)}
            cluster.create_topic(name, partitions=1, replication_factor=2, configs=configs)
            for text in "abcd":
                cluster.produce(name, 0, [text.encode()])
                cluster.tick_until_idle()
        pass_time(cluster, CHECK_MS)
        assert [values(cluster.consume(name, 0)) for name in "tuvw"] == [
            list("abcd"),
            list("cd"),
            list("bcd"),
            [],
        ]
        assert audit(cluster.connection) == []


class TestFollowers:
    def test_one_that_was_away_restarts_at_the_leaders_log_start(
        self, cluster: LocalCluster
    ) -> None:
        write(cluster, "a")
        cluster.crash(2)
        cluster.fence(2)
        write(cluster, "b")
        pass_time(cluster)
        write(cluster, "c")
        assert starts(cluster) == [2, 2, 0]
        cluster.restart(2)
        check(cluster, 2, "c")

    def test_one_that_ends_at_the_leaders_log_start_keeps_its_place(
        self, cluster: LocalCluster
    ) -> None:
        """The boundary of the leader's history shows that the logs agree, so nothing restarts."""
        write(cluster, "a", "b")
        cluster.crash(0)
        cluster.fence(0)
        cluster.tick_until_idle()
        pass_time(cluster)
        assert cluster.leader_epochs(1, "t", 0) == [(0, 0), (1, 2)]
        assert cluster.leader_epochs(2, "t", 0) == [(0, 0)]
        cluster.restart(0)
        check(cluster, 2)
        write(cluster, "c")
        check(cluster, 2, "c")

    def test_move_no_further_than_their_own_high_watermark(self, start: Start) -> None:
        cluster = start(0, 1, log_retention_ms=HOUR_MS)
        write(cluster, "a")
        cluster.produce("t", 0, [b"b"])
        cluster.leader_tick(0)
        cluster.follower_tick(1)
        cluster.leader_tick(0)
        assert cluster.replica(1, "t", 0)[:3] == (0, 2, 1)
        cluster.clock.advance(HOUR_MS + 1)
        cluster.leader_tick(0)
        assert starts(cluster) == [2, 0]
        assert audit(cluster.connection) == []
        cluster.follower_tick(1)
        assert cluster.replica(1, "t", 0)[:3] == (2, 2, 2)
        check(cluster, 2)

    def test_a_new_leader_that_has_not_heard_of_it_decides_itself(
        self, cluster: LocalCluster
    ) -> None:
        """Its log starts earlier than a follower's for a moment; no replica moves back."""
        write(cluster, "a", "b")
        cluster.clock.advance(HOUR_MS + 1)
        cluster.leader_tick(0)
        cluster.follower_tick(2)
        assert starts(cluster) == [2, 0, 2]
        cluster.crash(0)
        cluster.fence(0)
        cluster.tick_until_idle()
        assert starts(cluster) == [2, 2, 2]
        write(cluster, "c")
        cluster.restart(0)
        check(cluster, 2, "c")

    def test_histories_do_not_grow(self, cluster: LocalCluster) -> None:
        """Each history has the entry of the last deleted record, and later ones."""
        for number in range(4):
            leader = cluster.partition("t", 0).leader
            assert leader is not None
            write(cluster, f"{number}")
            cluster.crash(leader)
            cluster.fence(leader)
            cluster.tick_until_idle()
            cluster.restart(leader)
            cluster.tick_until_idle()
        write(cluster, "last")
        assert {len(cluster.leader_epochs(one, "t", 0)) for one in range(3)} == {5}
        cluster.delete_records({T0: 3})
        check(cluster, 3, "3", "last")
        histories = [cluster.leader_epochs(one, "t", 0) for one in range(3)]
        assert histories == [histories[0]] * 3
        assert [start for _, start in histories[0]] == [2, 3, 4]
        cluster.crash(1)
        cluster.restart(1)
        cluster.tick_until_idle()
        assert cluster.leader_epochs(1, "t", 0) == histories[0]

    def test_one_whose_deleted_records_were_not_the_leaders_restarts(self, start: Start) -> None:
        """After an unclean election broker 0 has no epoch in common with its leader, and has
        deleted records. It must not be in sync without the leader's records at their offsets (9.1).
        """
        cluster = start(0, 1, unclean_leader_election_enable=True)
        write(cluster, "a", "b")
        cluster.crash(1)
        cluster.fence(1)
        for text in "cd":
            cluster.crash(0)
            cluster.restart(0)
            cluster.tick_until_idle()
            write(cluster, *text * 3)
        cluster.delete_records({T0: 7})
        cluster.tick_until_idle()
        assert [start for _, start in cluster.leader_epochs(0, "t", 0)] == [5]
        cluster.crash(0)
        cluster.restart(1)
        cluster.fence(0)
        write(cluster, "x", "y")
        cluster.restart(0)
        check(cluster, 0, "a", "b", "x", "y")


POINTS = [("leader", "producer_state"), ("leader", "log_start")]
POINTS += [("follower", "producer_state"), ("follower", "log_commit"), ("follower", "checkpoint")]


class TestACrash:
    @pytest.mark.parametrize("fails_over", [False, True], ids=["restarts", "fails over"])
    @pytest.mark.parametrize(("role", "point"), POINTS)
    def test_between_two_effects_loses_nothing(
        self,
        start: Start,
        monkeypatch: pytest.MonkeyPatch,
        role: str,
        point: str,
        fails_over: bool,
    ) -> None:
        """The batches are removed in parts: the broker dies between the row and the removal."""
        monkeypatch.setattr(log_starts, "_MOST_BATCHES", 1)
        cluster = start(0, 1, 2)
        producer = cluster.idempotent_producer()
        write(cluster, *"abcd", producer=producer)
        cluster.delete_records({T0: 3})
        dying = 0
        if role == "follower":
            dying = 1
            cluster.leader_tick(0)
        getattr(cluster, f"{role}_tick")(dying, stop_after=point)
        assert dying not in cluster.brokers
        if point == "log_start":
            assert report(cluster, 0)["log_start_offset"] == 3
            assert batch_count(cluster, 0) == 3
        if fails_over:
            cluster.fence(dying)
            cluster.tick_until_idle()
        cluster.restart(dying)
        check(cluster, 3, "d")
        assert [batch_count(cluster, one) for one in range(3)] == [1, 1, 1]
        write(cluster, "e", producer=producer)
        check(cluster, 3, "d", "e")

    @pytest.mark.parametrize("table", ["log", "producer_state"])
    @pytest.mark.parametrize("broker", [0, 1], ids=["leader", "follower"])
    def test_a_write_that_fails_is_repeated(
        self, start: Start, fail_once: Callable[[str, str], None], broker: int, table: str
    ) -> None:
        cluster = start(0, 1)
        write(cluster, *"abc", producer=cluster.idempotent_producer())
        cluster.delete_records({T0: 2})
        if broker == 1:
            cluster.leader_tick(0)
        fail_once("write", f"broker-{broker}/{table}")
        with pytest.raises(OSError, match="is away"):
            (cluster.leader_tick if broker == 0 else cluster.follower_tick)(broker)
        assert starts(cluster)[broker] == 0
        check(cluster, 2, "c")


class TestIdempotentProducers:
    @pytest.mark.parametrize("fails_over", [False, True], ids=["same leader", "fails over"])
    def test_go_on_after_their_batches_were_deleted(self, start: Start, fails_over: bool) -> None:
        """A retry of a deleted batch is recognised by its sequence (3.6)."""
        cluster = start(0, 1)
        producer = cluster.idempotent_producer()
        pending = [cluster.produce("t", 0, [b"%d" % one], producer=producer) for one in range(3)]
        cluster.tick_until_idle()
        cluster.delete_records({T0: -1})
        check(cluster, 3)
        if fails_over:
            cluster.crash(0)
            cluster.fence(0)
            cluster.tick_until_idle()
        again = cluster.retry(pending[1], new_batch_id=True)
        cluster.tick_until_idle()
        assert again.response is not None
        assert (again.response.error, again.response.base_offset) == ("NONE", 1)
        write(cluster, "next", producer=producer)
        assert values(cluster.consume("t", 0)) == ["next"]
        if fails_over:
            cluster.restart(0)
        check(cluster, 3, "next")

    def test_a_follower_that_restarts_takes_their_state_over(self, start: Start) -> None:
        cluster = start(0, 1)
        producer = cluster.idempotent_producer()
        write(cluster, "a", producer=producer)
        cluster.crash(1)
        cluster.fence(1)
        pending = cluster.produce("t", 0, [b"b"], producer=producer)
        cluster.tick_until_idle()
        cluster.delete_records({T0: -1})
        cluster.tick_until_idle()
        cluster.restart(1)
        check(cluster, 2)
        cluster.crash(0)
        cluster.fence(0)
        cluster.tick_until_idle()
        again = cluster.retry(pending, new_batch_id=True)
        cluster.tick_until_idle()
        assert again.response is not None
        assert (again.response.error, again.response.base_offset) == ("NONE", 1)
        cluster.restart(0)
        check(cluster, 2)


class TestBesideMerging:
    @pytest.fixture
    def cluster(self, start: Start) -> LocalCluster:
        return start(0, 1, log_merger_min_batches=2, log_merger_min_lag_ms=0)

    @pytest.mark.parametrize("offset", [1, 2, 4])
    def test_what_was_deleted_meanwhile_is_not_merged(
        self, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, offset: int
    ) -> None:
        for text in "abcd":
            cluster.produce("t", 0, [text.encode()] * 2)
        cluster.tick_until_idle()
        merge = DriverExecution.merge

        def deleting(of: DriverExecution, merges: Sequence[Merge]) -> list[Batch | str]:
            found = merge(of, merges)
            if starts(cluster) == [0, 0]:
                cluster.delete_records({T0: offset})
                cluster.tick_until_idle()
            return found

        monkeypatch.setattr(DriverExecution, "merge", deleting)
        assert cluster.merge(0) == (0, 0)
        check(cluster, offset, *"aabbccdd"[offset:])
        # Batches that begin before the log start offset are not merged with others.
        whole = 4 - (offset + 1) // 2
        assert cluster.merge(0) == ((whole, 1) if whole > 1 else (0, 0))
        check(cluster, offset, *"aabbccdd"[offset:])

    def test_a_merged_batch_goes_as_a_whole(self, cluster: LocalCluster) -> None:
        producer = cluster.idempotent_producer()
        write(cluster, *"abcd", producer=producer)
        assert cluster.merge(0) == (4, 1)
        cluster.delete_records({T0: 2})
        check(cluster, 2, "c", "d")
        assert [batch_count(cluster, one) for one in range(2)] == [1, 2]
        cluster.delete_records({T0: 4})
        check(cluster, 4)
        assert [batch_count(cluster, one) for one in range(2)] == [0, 0]
        write(cluster, "e", producer=producer)
        check(cluster, 4, "e")


class TestRequests:
    def test_take_effect_up_to_their_offset_within_a_batch(self, start: Start) -> None:
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"a", b"b", b"c"])
        cluster.tick_until_idle()
        assert cluster.delete_records({T0: 2})[T0].error == "REQUEST_TIMED_OUT"
        cluster.tick_until_idle()
        assert cluster.delete_records({T0: 2}) == {T0: (2, "NONE", "")}
        check(cluster, 2, "c")
        assert batch_count(cluster, 0) == 1
        # A smaller offset is done already, and moves nothing back.
        assert cluster.delete_records({T0: 1})[T0].low_watermark == 2
        check(cluster, 2, "c")

    def test_are_refused_outside_the_committed_records(self, start: Start) -> None:
        cluster = start(0, 1)
        write(cluster, "a")
        names = [T0, TopicPartition("t", 1), TopicPartition("none", 0)]
        found = cluster.delete_records({names[0]: 2, names[1]: 0, names[2]: 0})
        errors = [found[name].error for name in names]
        unknown = "UNKNOWN_TOPIC_OR_PARTITION"
        assert errors == ["OFFSET_OUT_OF_RANGE", unknown, unknown]
        assert cluster.delete_records({T0: -2})[T0].error == "OFFSET_OUT_OF_RANGE"
        with pytest.raises(SparklogError, match="whole number"):
            cluster.delete_records({T0: "1"})  # type: ignore[dict-item]
        check(cluster, 0, "a")

    def test_survive_their_leader(self, cluster: LocalCluster) -> None:
        write(cluster, *"abc")
        cluster.delete_records({T0: 2})
        cluster.crash(0)
        cluster.fence(0)
        cluster.tick_until_idle()
        assert starts(cluster) == [0, 2, 2]
        # Replicas of dead brokers are not awaited.
        assert cluster.delete_records({T0: 2})[T0].low_watermark == 2
        cluster.restart(0)
        check(cluster, 2, "c")

    def test_wait_for_the_high_watermark_of_a_new_leader(self, start: Start) -> None:
        """It does not know yet that the records are committed."""
        cluster = start(0, 1, 2)
        cluster.produce("t", 0, [b"a", b"b"])
        cluster.leader_tick(0)
        cluster.follower_tick(1)
        cluster.follower_tick(2)
        cluster.leader_tick(0)
        assert [cluster.replica(one, "t", 0).high_watermark for one in range(3)] == [2, 0, 0]
        cluster.delete_records({T0: 2})
        cluster.crash(0)
        cluster.fence(0)
        cluster.leader_tick(1)
        assert starts(cluster) == [0, 0, 0]
        cluster.tick_until_idle()
        assert starts(cluster) == [0, 2, 2]

    def test_are_void_for_records_that_replaced_theirs(self, start: Start) -> None:
        """An unclean election replaces the records before the leader has served the request."""
        cluster = start(0, 1, unclean_leader_election_enable=True)
        write(cluster, "a")
        cluster.crash(1)
        cluster.fence(1)
        write(cluster, "b", "c")
        cluster.delete_records({T0: 2})
        cluster.crash(0)
        cluster.restart(1)
        cluster.fence(0)
        write(cluster, *"xyz")
        cluster.restart(0)
        check(cluster, 0, "a", "x", "y", "z")
        # The void request does not outlive a new one with a smaller offset.
        cluster.delete_records({T0: 1})
        check(cluster, 1, "x", "y", "z")

    def test_the_one_that_goes_furthest_counts(self, start: Start) -> None:
        cluster = start(0, 1)
        write(cluster, *"abcd")
        cluster.delete_records({T0: 3})
        cluster.delete_records({T0: 1})
        check(cluster, 3, "d")

    def test_wait_for_parked_brokers_and_are_served_in_their_next_run(self, start: Start) -> None:
        cluster = start(0, 1)
        write(cluster, "a", "b")
        for broker in (0, 1):
            cluster.brokers[broker].park()
            cluster.crash(broker)
        assert cluster.delete_records({T0: 1})[T0].error == "REQUEST_TIMED_OUT"
        for broker in (0, 1):
            cluster.restart(broker)
        check(cluster, 1, "b")


def test_a_damaged_batch_that_is_deleted_is_no_damage_any_more(start: Start) -> None:
    """The only replica cannot be repaired; deleting the batch is the remedy."""
    cluster = start(0, log_scrub_bytes_per_second=1 << 20)
    write(cluster, "a", "b")
    key = cluster.connection.metadata().partition("t", 0).key
    batch = RecordLog(cluster.location(0)).batches(key)[0]
    (cluster.root / "broker-0" / "log" / batch.path).write_bytes(b"damaged")
    pass_time(cluster, 10_000)
    assert report(cluster, 0)["damaged_offset"] == 0
    cluster.delete_records({T0: 1})
    cluster.tick_until_idle()
    assert report(cluster, 0)["damaged_offset"] is None
    check(cluster, 1, "b")
