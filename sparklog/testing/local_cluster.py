"""A whole cluster in one process and one folder, tick by tick, for tests.

The tables are real and the code is the one that runs in production; only time and the order of the
ticks are the test's. Without Spark the same code copies files in this process.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from deltalake.exceptions import DeltaError

from sparklog.broker.broker import Broker, round_of_ticks
from sparklog.broker.election import ElectionType
from sparklog.broker.merger import MergeReport
from sparklog.broker.observations import Observations
from sparklog.broker.tick import StoppedError, TickReport
from sparklog.clients.admin import Admin
from sparklog.clients.connection import Connection
from sparklog.clients.produce import (
    Acks,
    PendingProduce,
    ProduceClient,
    RequestedBatch,
    acks_number,
)
from sparklog.clients.producer_ids import ProducerIds
from sparklog.config import Settings, parse
from sparklog.errors import SparklogError, StorageError
from sparklog.model import (
    Record,
    TopicIdPartition,
    batch_id,
    new_batch_path,
)
from sparklog.protocol.driver_rules import DriverRules
from sparklog.protocol.rules import SparkRules
from sparklog.storage.batch_files import BatchFileWriter, read_records, records_table
from sparklog.storage.copying import Copy, ProcessCopier, SparkCopier, copy_file
from sparklog.storage.location import Location, StorageOptions
from sparklog.storage.metadata import PartitionState
from sparklog.storage.record_log import RecordLog
from sparklog.testing.local_producer import LocalProducer
from sparklog.testing.manual_clock import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROUNDS = 1000
"""More rounds than any scenario needs to come to rest."""


class ReplicaView(NamedTuple):
    """What a replica's tables say of it."""

    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    leader_epoch: int
    role: str


class PartitionView(NamedTuple):
    """What the controller has published of a partition; `leader` is `None` when offline."""

    leader: int | None
    leader_epoch: int
    partition_epoch: int
    replicas: list[int]
    isr: list[int]


class LocalCluster:
    """A cluster in the folder `root`, whose brokers act only when they are told to.

    Parameters: `brokers`, their ids; `spark`, the session whose tasks copy files, or `None` to copy
    in this process; `config`, Kafka's cluster-wide keys; `racks`, by broker id; `storage_options`,
    by URI prefix, e.g. {"/": {"sync": "false"}}.
    """

    def __init__(
        self,
        root: str | Path,
        brokers: Sequence[int] = (0, 1, 2),
        spark: SparkSession | None = None,
        config: Mapping[str, Any] | None = None,
        racks: Mapping[int, str] | None = None,
        storage_options: StorageOptions | None = None,
    ) -> None:
        self._root = Path(root)
        self._storage_options = storage_options
        self._spark = spark
        self.settings = parse(Settings, config or {}, "LocalCluster(config=...)")
        self._rules = (
            SparkRules(spark)
            if spark is not None and self.settings.rules_engine == "spark"
            else DriverRules()
        )
        self._racks = dict(racks or {})
        self._observations = Observations()
        self._brokers: dict[int, Broker] = {}
        self._all = tuple(brokers)
        self.clock = ManualClock(before_move=self._look, after_move=self._heartbeat)
        for broker_id in self._all:
            self._start(broker_id)
        self._connection = Connection(
            str(self._root / "cluster"), storage_options=storage_options, rules=self._rules
        )
        self._producer_ids = ProducerIds(self._connection, clock=self.clock)
        self._client = ProduceClient(self._connection, client_id="local", clock=self.clock)

    # --- what happens ---------------------------------------------------------------------------

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        assignment: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, Any] | None = None,
    ) -> None:
        """Create a topic, on all brokers unless the replication factor says otherwise."""
        admin = Admin(self._connection, settings=self.settings, clock=self.clock)
        if assignment is not None:
            admin.create_topic(topic, assignment=assignment, configs=configs)
        else:
            factor = len(self._all) if replication_factor is None else replication_factor
            admin.create_topic(topic, partitions, factor, configs=configs)

    def produce(
        self,
        topic: str,
        partition: int,
        values: Sequence[bytes | None],
        acks: Acks = "all",
        keys: Sequence[bytes | None] | None = None,
        timeout_ms: int = 30_000,
        producer: LocalProducer | None = None,
    ) -> PendingProduce:
        """Put one batch into the leader's inbox and name it in a request.

        `producer` makes it a batch of an idempotent producer.
        """
        acks_number(acks)
        state = self._connection.metadata().partition(topic, partition)
        writer = BatchFileWriter(self._inbox(state), new_batch_path())
        writer.write(records_table(values, keys, self.clock.now_ms()))
        batch = RequestedBatch(state, writer.close())
        if producer is not None:
            batch = producer.stamp(batch)
        return self._client.send([batch], acks, timeout_ms)

    def idempotent_producer(self, transactional_id: str | None = None) -> LocalProducer:
        """Return an idempotent producer; a transactional id fences its older self."""
        return LocalProducer(self._producer_ids.allot(transactional_id), self._send_again)

    def leader_tick(self, broker_id: int, stop_after: str | None = None) -> TickReport:
        """Let a broker play the leader once; `stop_after` ends it there as a crash would."""
        return self._tick(broker_id, "leader_tick", stop_after)

    def follower_tick(self, broker_id: int, stop_after: str | None = None) -> TickReport:
        """Let a broker play the follower once; `stop_after` ends it there as a crash would."""
        return self._tick(broker_id, "follower_tick", stop_after)

    def merge(self, broker_id: int, stop_after: str | None = None) -> MergeReport:
        """Let a broker merge small batches of its replicas once (rule 8.4).

        Returns how many batches were merged into how many: (0, 0) where nothing is to be merged.
        Only batches are that are log.merger.min.lag.ms old on the cluster's clock.
        `stop_after`: files, producer_state, log_commit or checkpoint.
        """
        broker = self._living(broker_id)
        try:
            return broker.merge(stop_after)
        except StoppedError:
            self.crash(broker_id)
            return MergeReport()

    def controller_tick(self, stop_after: str | None = None) -> TickReport:
        """Let the living brokers watch, and the one with the lease act."""
        report = TickReport()
        for broker in sorted(self._awake(), key=lambda broker: not broker.is_controller):
            report.add(self._tick(broker.broker_id, "controller_tick", stop_after))
        return report

    def tick_until_idle(self) -> None:
        """Repeat rounds of controller, leaders, followers until one changes nothing."""
        for _ in range(_ROUNDS):
            if not round_of_ticks(self._awake()).changed:
                return
        raise SparklogError(f"the cluster did not come to rest in {_ROUNDS} rounds")

    def elect_leaders(
        self, election_type: ElectionType, partitions: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], str]:
        """Elect leaders by hand, at once; see `Admin.elect_leaders`."""
        admin = Admin(self._connection, settings=self.settings, clock=self.clock)
        return admin.elect_leaders(election_type, partitions)

    def crash(self, broker_id: int) -> None:
        """Stop a broker at once; its tables stay as they are."""
        broker = self._living(broker_id)
        if self._awake() == [broker]:
            # The next process counts the silence of this one, as if another had watched it.
            with suppress(SparklogError, DeltaError, OSError):
                broker.look()
        del self._brokers[broker_id]

    def restart(self, broker_id: int) -> None:
        """Start a crashed broker: it registers and loads its state, and does nothing more."""
        if broker_id in self._brokers:
            raise SparklogError(f"broker {broker_id} runs: crash it first")
        self._start(broker_id)

    def pause(self, broker_id: int) -> None:
        """Stop a broker's process for a while, between loading its state and acting on it.

        Its heartbeats stop, and it has no part in `tick_until_idle` and `controller_tick`. A
        `leader_tick` or `follower_tick` of it lets it wake up for that tick: it begins with what
        it had loaded before the pause, as a zombie would.
        """
        self._living(broker_id).is_paused = True

    def resume(self, broker_id: int) -> None:
        """Let a paused broker go on: it heartbeats, and its ticks load what is there by now."""
        broker = self._living(broker_id)
        if not broker.is_paused:
            raise SparklogError(f"broker {broker_id} is not paused")
        broker.is_paused = False
        broker.look()
        broker.heartbeat()

    def fence(self, broker_id: int) -> None:
        """Let the session of a crashed or paused broker expire and the controller act on it."""
        if broker_id in self._brokers and not self._brokers[broker_id].is_paused:
            raise SparklogError(f"broker {broker_id} runs: crash or pause it first")
        self.clock.advance(self.settings.broker_session_timeout_ms + 1)
        self.controller_tick()

    def close(self) -> None:
        """Let go of everything; the folder stays."""
        self._brokers.clear()

    # --- what there is --------------------------------------------------------------------------

    def log(self, broker_id: int, topic: str, partition: int) -> list[Record]:
        """Return every record of a replica's log, committed or not, in order of offset."""
        location = self._location(broker_id, topic, partition)
        log = RecordLog(location)
        key = self._key(topic, partition)
        return list(read_records(log.location, log.batches(key), 0, log.log_end_offset(key)))

    def replica(self, broker_id: int, topic: str, partition: int) -> ReplicaView:
        """Return what a replica's tables say of it."""
        journal = self._connection.journal(self._location(broker_id, topic, partition))
        key = self._key(topic, partition)
        row = journal.rows.get(key)
        if row is None:
            return ReplicaView(0, journal.log_end_offset(key), 0, -1, "follower")
        end = journal.log_end_offset(key, row["log_start_offset"])
        return ReplicaView(
            row["log_start_offset"],
            end,
            min(row["high_watermark"], end),
            row["leader_epoch"],
            row["role"],
        )

    def leader_epochs(self, broker_id: int, topic: str, partition: int) -> list[tuple[int, int]]:
        """Return a replica's leader-epoch history: (epoch, start offset), oldest first."""
        journal = self._connection.journal(self._location(broker_id, topic, partition))
        entries = journal.epochs.get(self._key(topic, partition), ())
        return [(entry.epoch, entry.start_offset) for entry in entries]

    def partition(self, topic: str, partition: int) -> PartitionView:
        """Return what the controller has published of a partition."""
        state = self._connection.metadata().partition(topic, partition)
        replicas = [one.broker_id for one in state.replicas]
        return PartitionView(
            state.leader, state.leader_epoch, state.partition_epoch, replicas, state.isr
        )

    def consume(self, topic: str, partition: int, from_offset: int = 0) -> list[Record]:
        """Return the committed records at or after `from_offset`.

        Raises Kafka's error where the partition is offline, or where its new leader has yet to
        catch up with what was shown (rule 2.6).
        """
        state = self._connection.metadata().partition(topic, partition)
        [visible] = self._connection.visible([state])
        log = RecordLog(visible.location)
        log.refresh(visible.log_version)
        batches = log.batches(state.key, from_offset)
        start = max(from_offset, visible.log_start_offset)
        return list(read_records(log.location, batches, start, visible.high_watermark))

    # --- the parts ------------------------------------------------------------------------------

    def _start(self, broker_id: int) -> None:
        copier = SparkCopier(self._spark) if self._spark is not None else ProcessCopier()
        self._brokers[broker_id] = Broker(
            broker_id,
            self._at("cluster"),
            [self._at(f"broker-{broker_id}")],
            rules=self._rules,
            copier=copier,
            clock=self.clock,
            settings=self.settings,
            storage_options=self._storage_options,
            rack=self._racks.get(broker_id),
            observations=self._observations,
        )

    def _at(self, name: str) -> Location:
        return Location.of(str(self._root / name), self._storage_options)

    def _living(self, broker_id: int) -> Broker:
        if broker_id not in self._brokers:
            raise SparklogError(f"broker {broker_id} has crashed: restart it first")
        return self._brokers[broker_id]

    def _tick(self, broker_id: int, role: str, stop_after: str | None) -> TickReport:
        broker = self._living(broker_id)
        tick = getattr(broker, role)
        try:
            report: TickReport = tick(stop_after)
        except StoppedError:
            self.crash(broker_id)
            return TickReport(changed=True)
        return report

    def _awake(self) -> list[Broker]:
        return [broker for broker in self._brokers.values() if not broker.is_paused]

    def _look(self) -> None:
        for broker in self._awake():
            broker.look()

    def _heartbeat(self) -> None:
        for broker in self._awake():
            # A session has several heartbeats. A broker whose roots cannot be written to is silent.
            for _ in range(2):
                with suppress(StorageError, DeltaError, OSError):
                    broker.heartbeat()
                    break
            broker.look()

    def _inbox(self, state: PartitionState) -> Location:
        """Return the log whose inbox the leader reads; of an offline partition, any replica's."""
        addressed = state.replicas[0].broker_id if state.leader is None else state.leader
        return self._at(f"broker-{addressed}").child("log")

    def _send_again(self, pending: PendingProduce) -> PendingProduce:
        [batch] = pending.batches
        state = self._connection.metadata().partitions[batch.state.key]
        source, target = self._inbox(batch.state), self._inbox(state)
        path = new_batch_path(batch_id(batch.file.path))
        file = batch.file
        fault = copy_file(Copy(source, file.path, target, path, file.size_bytes, file.checksum))
        if fault is not None:
            raise SparklogError(f"the batch cannot be sent again: {fault}")
        again = batch._replace(state=state, file=file._replace(path=path))
        return self._client.send([again], pending.acks, pending.timeout_ms)

    def _key(self, topic: str, partition: int) -> TopicIdPartition:
        return self._connection.metadata().partition(topic, partition).key

    def _location(self, broker_id: int, topic: str, partition: int) -> Location:
        state = self._connection.metadata().partition(topic, partition)
        if state.replica(broker_id) is None:
            raise SparklogError(f"broker {broker_id} has no replica of {topic}-{partition}")
        return self._at(f"broker-{broker_id}")
