"""Consumers of a damaged replica read another in-sync replica, or get an error (rule 10.8)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sparklog.cluster.committed_logs import CommittedLogs
from sparklog.cluster.connection import Connection, Visible
from sparklog.cluster.sound_replicas import replicas_with_sound_files
from sparklog.consumer.consumer import Consumer
from sparklog.errors import ProtocolError
from sparklog.model import TopicPartition
from sparklog.storage.file_states import read_files
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster
from tests.broker.damaging import batch_file, change_header, cut, flip_byte

VALUES = [b"a", b"b", b"c", b"d"]

Damage = Callable[[Path], object]


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    """Four batches of one record, on three brokers without background activity."""
    made = LocalCluster(tmp_path, brokers=[0, 1, 2])
    made.create_topic("t", assignment={0: [0, 1, 2]})
    made.create_topic("u", assignment={0: [1, 2]})
    made.tick_until_idle()
    for value in VALUES:
        made.produce("t", 0, [value])
        made.produce("u", 0, [value])
        made.tick_until_idle()
    return made


def consumer_of(cluster: LocalCluster, *topics: str) -> Consumer:
    connection = Connection(str(cluster.root / "cluster"))
    consumer = Consumer(connection, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, 0) for topic in topics or ("t",)])
    return consumer


def read(consumer: Consumer, polls: int = 5) -> dict[str, list[bytes | None]]:
    found: dict[str, list[bytes | None]] = {}
    for _ in range(polls):
        for partition, records in consumer.poll(0).items():
            found.setdefault(partition.topic, []).extend(one.value for one in records)
    return found


def errors_of(consumer: Consumer, polls: int = 5) -> tuple[list[ProtocolError], list[bytes | None]]:
    """Return the errors of some polls, and the values of `t` that the other polls returned."""
    errors, found = [], []
    for _ in range(polls):
        try:
            found += read(consumer, 1).get("t", [])
        except ProtocolError as error:
            errors.append(error)
    return errors, found


def check_that_others_are_read(cluster: LocalCluster, name: str) -> None:
    """Check that the errors of `t` and the records of `u` do not hold each other back."""
    consumer = consumer_of(cluster, "t", "u")
    errors: list[str] = []
    found: list[bytes | None] = []
    for _ in range(6):
        try:
            found += [one.value for one in consumer.poll(0, 1).get(TopicPartition("u", 0), [])]
        except ProtocolError as error:
            errors.append(error.code.name)
    assert set(errors) == {name}
    assert len(errors) >= 2
    assert found == VALUES[: 6 - len(errors)]


@pytest.mark.parametrize("damage", [flip_byte, cut, Path.unlink])
class TestDamagedFile:
    def test_its_records_come_from_another_replica_in_sync(
        self, cluster: LocalCluster, damage: Damage
    ) -> None:
        """The records of a damaged file are read from another in-sync replica."""
        damage(batch_file(cluster, 0, 1))
        damage(batch_file(cluster, 1, 1))
        assert read(consumer_of(cluster))["t"] == VALUES

    def test_the_others_are_returned_and_then_an_error_names_it(
        self, cluster: LocalCluster, damage: Damage
    ) -> None:
        """If all replicas are damaged, the records before it are returned, then an error names the
        file.
        """
        for broker in range(3):
            damage(batch_file(cluster, broker, 1))
        consumer = consumer_of(cluster, "t", "u")
        errors, found = errors_of(consumer)
        assert found == [b"a"]
        assert errors
        assert {error.code.name for error in errors} == {"CORRUPT_MESSAGE"}
        assert batch_file(cluster, 0, 1).name in str(errors[0])
        assert "seek" in str(errors[0])
        consumer.seek(TopicPartition("t", 0), 2)
        assert read(consumer)["t"] == [b"c", b"d"]

    def test_other_partitions_are_read_meanwhile(
        self, cluster: LocalCluster, damage: Damage
    ) -> None:
        """Other partitions are read while one has a damaged file."""
        for broker in range(3):
            damage(batch_file(cluster, broker, 0))
        check_that_others_are_read(cluster, "CORRUPT_MESSAGE")

    def test_a_replica_out_of_sync_is_not_read(self, cluster: LocalCluster, damage: Damage) -> None:
        """A replica that is out of sync is not read in place of a damaged one."""
        for broker in (1, 2):
            cluster.crash(broker)
            cluster.fence(broker)
        damage(batch_file(cluster, 0, 1))
        errors, found = errors_of(consumer_of(cluster))
        assert errors
        assert found == [b"a"]

    def test_an_error_is_not_raised_any_more_after_a_seek_or_a_pause(
        self, cluster: LocalCluster, damage: Damage
    ) -> None:
        """After a seek or a pause the error of a damaged file is not raised again."""
        for broker in range(3):
            damage(batch_file(cluster, broker, 1))
        consumer = consumer_of(cluster)
        errors, _ = errors_of(consumer, 3)
        assert errors
        read_on = consumer_of(cluster)
        assert read(read_on, 1)["t"] == [b"a"]
        read_on.seek(TopicPartition("t", 0), 2)
        assert read(read_on)["t"] == [b"c", b"d"]
        paused = consumer_of(cluster)
        assert read(paused, 1)["t"] == [b"a"]
        paused.pause(TopicPartition("t", 0))
        assert read(paused) == {}


class TestDamagedLog:
    def test_its_records_come_from_another_replica_in_sync(self, cluster: LocalCluster) -> None:
        """The records after a damaged header are read from another in-sync replica."""
        change_header(cluster, 0, 1, "base_offset", 9)
        assert read(consumer_of(cluster))["t"] == VALUES

    def test_the_sound_prefix_is_returned_and_then_an_error_names_it(
        self, cluster: LocalCluster
    ) -> None:
        """If all replicas are damaged, the sound prefix is returned, then an error names the
        log.
        """
        for broker in range(3):
            change_header(cluster, broker, 1, "base_offset", 9)
        errors, found = errors_of(consumer_of(cluster))
        assert found == [b"a"]
        assert {error.code.name for error in errors} == {"KAFKA_STORAGE_ERROR"}
        assert "broker-0/log" in str(errors[0])

    @pytest.mark.parametrize(
        ("reset", "offset", "found"), [("earliest", 0, VALUES), ("latest", 3, [])]
    )
    def test_a_position_is_found_at_the_damage(
        self, cluster: LocalCluster, reset: str, offset: int, found: list[bytes]
    ) -> None:
        """auto.offset.reset finds its offset although the first or the last batch is damaged."""
        change_header(cluster, 0, offset, "base_offset", 9)
        consumer = Consumer(Connection(str(cluster.root / "cluster")), auto_offset_reset=reset)
        consumer.assign([TopicPartition("t", 0)])
        assert read(consumer).get("t", []) == found
        assert consumer.position(("t", 0)) == 4

    def test_a_committed_offset_behind_the_damage_is_not_taken_for_a_truncation(
        self, cluster: LocalCluster
    ) -> None:
        """A committed offset beyond the damage does not count as a truncation."""
        connection = Connection(str(cluster.root / "cluster"))
        with Consumer(connection, "g", auto_offset_reset="earliest") as first:
            first.assign([("t", 0)])
            assert read(first)["t"] == VALUES
            first.commit()
        change_header(cluster, 0, 1, "base_offset", 9)
        with Consumer(connection, "g", auto_offset_reset="none") as second:
            second.assign([("t", 0)])
            assert read(second) == {}
            assert second.position(("t", 0)) == 4

    def test_other_partitions_are_read_meanwhile(self, cluster: LocalCluster) -> None:
        """Other partitions are read while one has a damaged log."""
        for broker in range(3):
            change_header(cluster, broker, 0, "base_offset", 9)
        check_that_others_are_read(cluster, "KAFKA_STORAGE_ERROR")


class TestSparksOwnScan:
    """The replica that Spark's own scan reads: the files of its range have their checksums."""

    @staticmethod
    def chosen(cluster: LocalCluster, start: int = 0, end: int = len(VALUES)) -> Location:
        connection = Connection(str(cluster.root / "cluster"))
        logs = CommittedLogs(connection)
        key = connection.metadata().partition("t", 0).key
        seen = logs.visible([key])[key]
        assert isinstance(seen, Visible)
        [sound] = replicas_with_sound_files(logs, [(seen, start, end)], read_files)
        return sound.location

    def test_is_the_leader_where_its_files_are_sound(self, cluster: LocalCluster) -> None:
        """Only files of the range count."""
        assert self.chosen(cluster) == cluster.location(0)
        flip_byte(batch_file(cluster, 0, 3))
        assert self.chosen(cluster, end=3) == cluster.location(0)

    @pytest.mark.parametrize("damage", [flip_byte, cut, Path.unlink])
    def test_is_another_one_where_a_file_is_damaged(
        self, cluster: LocalCluster, damage: Damage
    ) -> None:
        """A flipped byte that Parquet can decode would otherwise be given to the program."""
        damage(batch_file(cluster, 0, 1))
        damage(batch_file(cluster, 1, 2))
        assert self.chosen(cluster) == cluster.location(2)

    def test_does_not_exist_where_all_are_damaged(self, cluster: LocalCluster) -> None:
        """The error names the file and the remedy."""
        for broker in range(3):
            flip_byte(batch_file(cluster, broker, 1))
        with pytest.raises(ProtocolError, match="CORRUPT_MESSAGE") as failure:
            self.chosen(cluster)
        assert batch_file(cluster, 0, 1).name in str(failure.value)
        assert "sparklog repair" in str(failure.value)


def test_a_flipped_value_that_can_be_decoded_is_never_returned(cluster: LocalCluster) -> None:
    """Parquet itself does not detect it: the file is valid and has other records."""
    file = batch_file(cluster, 0, 1)
    table = pq.read_table(file, partitioning=None)
    changed = table.set_column(3, "value", [[b"X"]])
    pq.write_table(changed.cast(table.schema), file)
    assert read(consumer_of(cluster))["t"] == VALUES
