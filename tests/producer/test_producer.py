"""The producer without Spark: delivery, errors and their reasons, and no duplicates."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from sparklog.cluster.connection import Connection
from sparklog.errors import ConfigError, ProtocolError, SparklogError, StorageError
from sparklog.producer.accumulator import RecordMetadata
from sparklog.producer.partitioner import DefaultPartitioner
from sparklog.producer.plain import Producer
from sparklog.producer.produce_requests import Responses
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster
from tests.jobs.processes import wait_for
from tests.running_cluster import RunningCluster


def values(records: list[dict[str, Any]]) -> list[bytes | None]:
    return [record["value"] for record in records]


@pytest.fixture
def producer(running_cluster: RunningCluster) -> Iterator[Producer]:
    with Producer(running_cluster.connection) as made:
        yield made


class TestDelivery:
    def test_a_record_is_where_its_metadata_says_with_all_that_it_had(
        self, running_cluster: RunningCluster, producer: Producer
    ) -> None:
        """A record is stored at the partition and offset of its metadata, with all its fields."""
        running_cluster.create_topic("all", partitions=2)
        headers = [("trace", b"\x00\x01"), ("none", None)]
        sent = producer.send("all", b"v", key=b"\xff\xfe", headers=headers, timestamp_ms=1234)
        where = sent.result(30)
        [stored] = running_cluster.committed("all")[where.partition]
        assert where == RecordMetadata("all", where.partition, stored["offset"], 1234)
        assert (stored["key"], stored["value"]) == (b"\xff\xfe", b"v")
        assert [(one["key"], one["value"]) for one in stored["headers"]] == headers
        assert stored["timestamp"].timestamp() == 1.234

    def test_tombstones_empty_and_large_values_come_back_as_they_were(
        self, running_cluster: RunningCluster
    ) -> None:
        """Tombstones, empty and large values are read back unchanged."""
        running_cluster.create_topic("sizes")
        given = [None, b"", b"x" * (3 << 20), b"small"]
        with Producer(running_cluster.connection, max_request_size=4 << 20) as producer:
            for value in given:
                producer.send("sizes", value)
        assert values(running_cluster.committed("sizes")[0]) == given

    def test_order_is_kept_in_each_partition_over_many_batches(
        self, running_cluster: RunningCluster
    ) -> None:
        """The order of records is kept in each partition over many batches."""
        running_cluster.create_topic("order", partitions=3)
        with Producer(running_cluster.connection, batch_size=2_000) as producer:
            sent = [
                producer.send("order", b"%d" % one, key=b"%d" % (one % 7)) for one in range(500)
            ]
        by_partition = running_cluster.committed("order")
        assert sum(map(len, by_partition.values())) == 500
        for number, future in enumerate(sent):
            where = future.result(0)
            assert by_partition[where.partition][where.offset]["value"] == b"%d" % number
        for records in by_partition.values():
            numbers = [int(record["value"]) for record in records]
            assert numbers == sorted(numbers)

    def test_callbacks_are_called_and_their_faults_are_their_own(
        self, running_cluster: RunningCluster, producer: Producer
    ) -> None:
        """Callbacks are called, and an exception in one does not affect other records."""
        running_cluster.create_topic("callbacks")
        told: list[Any] = []
        assert not producer.send("callbacks", b"").cancel(), "it is on its way"

        def bad(*_: object) -> None:
            raise ZeroDivisionError("a fault of the user's")

        producer.send("callbacks", b"a", on_delivery=bad)
        producer.send("callbacks", b"b", on_delivery=lambda *both: told.append(both))
        producer.flush(30_000)
        [(error, where)] = told
        assert error is None
        assert (where.partition, where.offset) == (0, 2)

    def test_requests_that_are_answered_are_forgotten(
        self, running_cluster: RunningCluster
    ) -> None:
        """Answered requests are forgotten, because each poll reads the answers of all remembered
        ones.
        """
        running_cluster.create_topic("forgotten", partitions=3)
        for acks in ("all", 1, 0):
            with Producer(running_cluster.connection, acks=acks) as producer:
                for _ in range(3):
                    sent = [producer.send("forgotten", b"", partition=one) for one in range(3)]
                    for one in sent:
                        one.result(30)
                client = producer._sender._client
                assert [one._expected for one in client._responses.values()] == [set()] * 3

    def test_without_acks_nothing_is_awaited(self, running_cluster: RunningCluster) -> None:
        """With acks=0 a record's future is done without an answer, and the record is stored."""
        running_cluster.create_topic("unasked")
        with Producer(running_cluster.connection, acks=0) as producer:
            assert producer.send("unasked", b"a").result(30).offset == -1
        found = wait_for(lambda: running_cluster.committed("unasked")[0], "record")
        assert values(found) == [b"a"]

    def test_a_failover_loses_doubles_and_reorders_nothing(self, tmp_path: Path) -> None:
        """The leaders of both partitions vanish, one after the other, while records are sent."""
        cluster = RunningCluster(tmp_path)
        try:
            cluster.create_topic("t", partitions=2, min_insync_replicas=2)
            sent: list[Future[RecordMetadata]] = []
            with Producer(cluster.connection, linger_ms=1, batch_size=400) as producer:
                for number in range(600):
                    partition = number % 2
                    sent.append(producer.send("t", b"%d" % number, partition=partition))
                    if number % 200 == 100:
                        sent[-50].result(60)
                        leader = number // 200 % 3
                        with cluster.application.between_rounds():
                            cluster.application.drop_broker(leader)
                    if number % 200 == 199:
                        sent[-1].result(60)
                        cluster.application.start_broker(number // 200 % 3)
            by_partition = cluster.committed("t")
        finally:
            cluster.stop()
        for partition in (0, 1):
            expected = [b"%d" % number for number in range(partition, 600, 2)]
            assert values(by_partition[partition]) == expected
        for number, future in enumerate(sent):
            assert future.result(0).offset == number // 2


class TestWhatIsRefused:
    def test_before_anything_is_sent(self, running_cluster: RunningCluster) -> None:
        """Unknown topics and partitions, too large records and closed producers are refused at
        once.
        """
        running_cluster.create_topic("refusals", partitions=2)
        with Producer(running_cluster.connection, max_request_size=100) as producer:
            with pytest.raises(
                ProtocolError, match="UNKNOWN_TOPIC_OR_PARTITION: there is no topic"
            ):
                producer.send("nowhere", b"")
            with pytest.raises(ProtocolError, match="has the partitions 0 to 1, not 2"):
                producer.send("refusals", b"", partition=2)
            with pytest.raises(ProtocolError, match=r"of 132 bytes .* max\.request\.size=100"):
                producer.send("refusals", b"x" * 100)
        assert running_cluster.committed("refusals") == {0: [], 1: []}
        with pytest.raises(SparklogError, match="the producer is closed"):
            producer.send("refusals", b"")

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"value": "text"}, "its value is str: serialize it"),
            ({"value": b"", "key": 7}, "its key is int"),
            ({"value": b"", "headers": [("h", "text")]}, "its header 'h' is str"),
            ({"value": b"", "headers": [("\ud800", b"")]}, "the name of its header .* is not"),
            (
                {"value": b"", "timestamp_ms": 1 << 60},
                "the timestamp 1152921504606846976 is out of",
            ),
        ],
    )
    def test_what_no_record_can_hold_and_the_next_one_goes_on(
        self, running_cluster: RunningCluster, given: dict[str, Any], said: str
    ) -> None:
        """A value that no record can have is refused, and the next record is stored."""
        topic = f"types-{len(said)}"
        running_cluster.create_topic(topic)
        with Producer(running_cluster.connection) as producer:
            with pytest.raises(SparklogError, match=said):
                producer.send(topic, **given)
            assert producer.send(topic, b"fine").result(30).offset == 0

    def test_a_partitioner_that_fails_fails_its_records_and_nothing_else(
        self, running_cluster: RunningCluster
    ) -> None:
        """An error of a partitioner fails its own records only."""
        running_cluster.create_topic("picky", partitions=2)

        class Picky(DefaultPartitioner):
            def partition(self, keys: Any, *rest: Any) -> Any:
                if b"bad" in keys.to_pylist():
                    raise ZeroDivisionError("a fault of the user's")
                return super().partition(keys, *rest)

        def none(partitions: int) -> Any:
            raise ZeroDivisionError(f"none for {partitions}")

        with (
            Producer(running_cluster.connection, partitioner=none) as producer,
            pytest.raises(SparklogError, match="the partitioner failed: none for 2"),
        ):
            producer.send("picky", b"v").result(30)
        with Producer(running_cluster.connection, partitioner=Picky) as producer:
            with pytest.raises(SparklogError, match="the partitioner failed: a fault"):
                producer.send("picky", b"v", key=b"bad").result(30)
            assert producer.send("picky", b"v", key=b"good").result(30).offset == 0

    @pytest.mark.parametrize(
        ("config", "said"),
        [
            ({"linger": 5}, r"unknown configuration key linger .* did you mean linger\.ms"),
            ({"acks": 2}, "configuration key acks .* has the value 2"),
            ({"acks": 1, "enable_idempotence": True}, r"enable\.idempotence needs acks=all"),
            ({"acks": 1, "transactional_id": "x"}, r"transactional\.id needs"),
            ({"delivery_timeout_ms": 10}, r"delivery\.timeout\.ms must be at least"),
        ],
    )
    def test_a_configuration_that_makes_no_sense(
        self, running_cluster: RunningCluster, config: dict[str, Any], said: str
    ) -> None:
        """An invalid configuration raises `ConfigError`."""
        with pytest.raises(ConfigError, match=said):
            Producer(running_cluster.connection, **config)

    def test_by_the_leader_and_what_comes_after_goes_on(
        self, running_cluster: RunningCluster
    ) -> None:
        """A refused batch leaves a gap in the sequence; the next batches begin a new sequence
        (3.6).
        """
        running_cluster.create_topic("limited", max_message_bytes=2_000)
        with Producer(running_cluster.connection, linger_ms=0) as producer:
            producer.send("limited", b"a").result(30)
            # The values are incompressible, because compressed the record would be small enough.
            noise = random.Random(0).randbytes(4_000)
            with pytest.raises(ProtocolError, match="MESSAGE_TOO_LARGE"):
                producer.send("limited", noise).result(30)
            assert producer.send("limited", b"b").result(30).offset == 1
        assert values(running_cluster.committed("limited")[0]) == [b"a", b"b"]

    def test_an_older_self_under_the_same_transactional_id(
        self, running_cluster: RunningCluster
    ) -> None:
        """A newer producer with the same transactional.id fences the older one."""
        running_cluster.create_topic("fenced")
        connection = running_cluster.connection
        with Producer(connection, transactional_id="job-1") as older:
            older.send("fenced", b"a").result(30)
            with Producer(connection, transactional_id="job-1") as newer:
                newer.send("fenced", b"b").result(30)
            for _ in range(2):
                with pytest.raises(ProtocolError, match="INVALID_PRODUCER_EPOCH"):
                    older.send("fenced", b"late").result(30)
        assert values(running_cluster.committed("fenced")[0]) == [b"a", b"b"]

    def test_a_producer_that_slept_until_its_transactional_id_was_another_ones(
        self, running_cluster: RunningCluster
    ) -> None:
        """The successor has another producer id, so no broker can distinguish the two (3.8)."""
        running_cluster.create_topic("slept")
        connection = running_cluster.connection
        with Producer(connection, transactional_id="job-2") as older:
            older.send("slept", b"a").result(30)
            self.forget_transactional_ids(connection)
            older._sender._renew_at_ms = 0
            assert older.send("slept", b"b").result(30).offset == 1
            assert self.transactional_ids(connection) == ["job-2"]
            self.forget_transactional_ids(connection)
            with Producer(connection, transactional_id="job-2") as newer:
                newer.send("slept", b"c").result(30)
            older._sender._renew_at_ms = 0
            for _ in range(2):
                with pytest.raises(ProtocolError, match="INVALID_PRODUCER_EPOCH"):
                    older.send("slept", b"late").result(30)
        assert values(running_cluster.committed("slept")[0]) == [b"a", b"b", b"c"]

    def test_nothing_is_held_up_where_a_transactional_id_cannot_be_renewed(
        self, running_cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Answers arrive, and delivery.timeout.ms passes, while the cluster root is unavailable."""
        running_cluster.create_topic("renewed")

        def fail(*_: object) -> None:
            raise StorageError("the cluster root is away")

        connection = running_cluster.connection
        with Producer(connection, transactional_id="job-3", linger_ms=0) as producer:
            producer.send("renewed", b"a").result(60)
            sender = producer._sender
            with monkeypatch.context() as patch:
                patch.setattr(sender._ids, "renew", fail)
                # Set only now: a busy machine may take longer for the other records.
                timeouts = {"delivery_timeout_ms": 600, "request_timeout_ms": 500}
                patch.setattr(sender, "_config", sender._config.model_copy(update=timeouts))
                sender._renew_at_ms = 0
                match = r"REQUEST_TIMED_OUT: .*delivery\.timeout\.ms"
                with pytest.raises(ProtocolError, match=match):
                    producer.send("renewed", b"b").result(60)
            assert producer.send("renewed", b"c").result(60).offset == 1

    @staticmethod
    def forget_transactional_ids(connection: Connection) -> None:
        """Remove them, as the controller does after transactional.id.expiration.ms."""
        connection.root.producer_ids.update(
            lambda rows: (rows.filter(pc.is_null(rows["transactional_id"])), None)
        )

    @staticmethod
    def transactional_ids(connection: Connection) -> list[str]:
        connection.root.producer_ids.refresh()
        ids = connection.root.producer_ids.rows()["transactional_id"].to_pylist()
        return [one for one in ids if one is not None]


class TestWithoutABroker:
    """No broker ticks here, so no request is ever answered."""

    @pytest.fixture
    def connection(self, tmp_path: Path) -> Connection:
        cluster = LocalCluster(tmp_path, brokers=[0])
        cluster.create_topic("t")
        return Connection(str(tmp_path / "cluster"))

    @pytest.fixture
    def hasty(self, connection: Connection) -> Callable[..., Producer]:
        def make(**config: Any) -> Producer:
            timeouts = {"delivery_timeout_ms": 300, "request_timeout_ms": 100, "linger_ms": 0}
            return Producer(connection, **(timeouts | config))

        return make

    def test_a_record_fails_when_its_time_has_passed(self, hasty: Callable[..., Producer]) -> None:
        """A record fails after delivery.timeout.ms."""
        with hasty() as producer:
            told: list[Any] = []
            sent = producer.send("t", b"a", on_delivery=lambda *both: told.append(both))
            with pytest.raises(ProtocolError, match=r"REQUEST_TIMED_OUT: .*delivery\.timeout\.ms"):
                sent.result(30)
        [(error, where)] = told
        assert (error.code.name, where) == ("REQUEST_TIMED_OUT", None)

    def test_a_request_that_fails_leaves_no_half_of_a_file(
        self, hasty: Callable[..., Producer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If the leader's journal cannot be read, no request names the file."""

        def away(of: Responses, location: Location) -> None:
            raise OSError("the journal is away")

        monkeypatch.setattr(Responses, "__init__", away)
        with hasty() as producer, pytest.raises(ProtocolError, match="REQUEST_TIMED_OUT"):
            producer.send("t", b"a").result(30)
        inbox = tmp_path / "broker-0" / "log" / "_inbox"
        assert not inbox.exists() or not list(inbox.iterdir())

    def test_a_flush_says_what_is_left(self, hasty: Callable[..., Producer]) -> None:
        """A flush that times out reports the number of undelivered records."""
        producer = hasty(delivery_timeout_ms=60_000)
        producer.send("t", b"a")
        with pytest.raises(ProtocolError, match="1 records were not delivered within 50 ms"):
            producer.flush(50)
        producer.close(0)

    def test_closing_fails_what_is_left(self, hasty: Callable[..., Producer]) -> None:
        """Closing a producer fails the records without an answer."""
        producer = hasty(delivery_timeout_ms=60_000)
        sent = [producer.send("t", b"a"), producer.send("t", b"b")]
        producer.close(50)
        for future in sent:
            with pytest.raises(ProtocolError, match="the producer was closed before its answer"):
                future.result(0)

    def test_a_full_buffer_holds_the_sender_up_and_then_refuses(
        self, hasty: Callable[..., Producer]
    ) -> None:
        """With a full buffer `send` blocks for max.block.ms, and then raises an error."""
        producer = hasty(delivery_timeout_ms=60_000, buffer_memory=1_000, max_block_ms=50)
        producer.send("t", b"x" * 800)
        with pytest.raises(ProtocolError, match=r"buffer\.memory=1000 was full for max\.block\.ms"):
            producer.send("t", b"x" * 800)
        producer.close(0)

    def test_a_full_buffer_lets_the_sender_on_when_there_is_room(
        self, hasty: Callable[..., Producer]
    ) -> None:
        """A blocked `send` goes on once the buffer has room."""
        with hasty(buffer_memory=1_000, max_block_ms=30_000) as producer:
            sent = [producer.send("t", b"x" * 800) for _ in range(3)]
        assert all(future.exception(0) is not None for future in sent)
