"""A whole cluster in one process and one folder or bucket, tick by tick, for tests.

The tables and the code are those of production. Only the time and the order of the ticks are
controlled by the test. Without Spark the same code copies files in this process.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from deltalake.exceptions import DeltaError

from sparklog.broker.broker import Broker
from sparklog.broker.cleaner import CleanReport
from sparklog.broker.engines import execution_of, rules_of
from sparklog.broker.merger import MergeReport
from sparklog.broker.tick import StoppedError, TickReport
from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.cluster.election import ElectionType
from sparklog.cluster.metadata import PartitionState
from sparklog.cluster.observations import Observations
from sparklog.cluster.reassignment_admin import AlteredReassignment, PartitionReassignment
from sparklog.cluster.record_deletion import DeletedRecords
from sparklog.config import Settings, parse
from sparklog.errors import SparklogError, StorageError
from sparklog.model import Record, TopicIdPartition, TopicPartition, batch_id, new_batch_path
from sparklog.producer.produce_requests import (
    Acks,
    PendingProduce,
    ProduceClient,
    RequestedBatch,
    acks_number,
)
from sparklog.producer.producer_ids import ProducerIds
from sparklog.storage.batch_files import BatchFileWriter, read_records, records_table
from sparklog.storage.copying import Copy, copy_file
from sparklog.storage.location import Location, StorageOptions
from sparklog.storage.record_log import RecordLog
from sparklog.storage.vacuum import VacuumReport
from sparklog.testing.local_producer import LocalProducer
from sparklog.testing.manual_clock import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROUNDS = 1000
"""The number of rounds after which a cluster that is not idle counts as stuck."""


class ReplicaView(NamedTuple):
    """The state of a replica according to its tables.

    Attributes
    ----------
    log_start_offset : int
        The earliest offset.
    log_end_offset : int
        The offset of the next record.
    high_watermark : int
        The offset after the last record that the replica knows to be committed.
    leader_epoch : int
        The newest leader epoch in which it was leader or follower; -1 if there was none.
    role : str
        leader or follower.

    Examples
    --------
    >>> from sparklog.testing import LocalCluster
    >>> cluster = LocalCluster("replica-view", brokers=[0])
    >>> cluster.create_topic("t")
    >>> cluster.tick_until_idle()
    >>> cluster.replica(0, "t", 0)
    ReplicaView(log_start_offset=0, log_end_offset=0, ..., leader_epoch=0, role='leader')
    """

    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    leader_epoch: int
    role: str


class PartitionView(NamedTuple):
    """The published state of a partition.

    Attributes
    ----------
    leader : int or None
        The broker that leads it; `None` if the partition is offline.
    leader_epoch : int
        The number of elections.
    partition_epoch : int
        The number of changes of this state.
    replicas : list of int
        The brokers with a replica, in the order of the assignment.
    isr : list of int
        The brokers whose replica is in sync, sorted.

    Examples
    --------
    >>> from sparklog.testing import LocalCluster
    >>> cluster = LocalCluster("partition-view", brokers=[0, 1])
    >>> cluster.create_topic("t", assignment={0: [1, 0]})
    >>> cluster.partition("t", 0)
    PartitionView(leader=1, leader_epoch=0, partition_epoch=0, replicas=[1, 0], isr=[0, 1])
    """

    leader: int | None
    leader_epoch: int
    partition_epoch: int
    replicas: list[int]
    isr: list[int]


class LocalCluster:
    """A cluster in a local folder, whose brokers act only when a method is called.

    Timeouts, retention and the default timestamps of records follow `clock`. Commits have the time
    of the system clock, so `at_ms` and `since_ms` in views of the past do not follow `clock`, and
    neither do `sparklog query --as-of` and the ages in `sparklog status`. To compare the two, pass
    the present time as `start_ms`.

    Parameters
    ----------
    root : str or os.PathLike
        The local folder, which is created if it is missing, or a prefix of an object store, such as
        s3://bucket/prefix.
    brokers : sequence of int, default (0, 1, 2)
        The ids of the brokers.
    spark : SparkSession, optional
        The session whose tasks work on the records, as the key `execution` says; `None` to work in
        this process.
    config : dict of str to object, optional
        Kafka's cluster-wide keys, such as `{"min.insync.replicas": 2}`; see `Settings`.
    racks : dict of int to str, optional
        The racks of the brokers, by id.
    storage_options : dict of str to dict, optional
        Options by URI prefix, such as `{"/": {"sync": "false"}}`.
    log_dirs : dict of int to sequence of str, optional
        The names of brokers' log directories, which are folders in `root`; one, `broker-0` and so
        on, by default.
    start_ms : int, default 1000000
        The time of `clock` at the start, in ms since 1970.

    Attributes
    ----------
    root : pathlib.Path
        The local folder with all roots: `cluster`, and `broker-0` and so on. `location` also has
        the roots of a cluster on an object store.
    settings : Settings
        The cluster-wide settings.
    brokers : dict of int to Broker
        The brokers that run, paused ones among them, by their ids.
    clock : ManualClock
        The time of the cluster; `clock.advance` also makes the brokers' heartbeats.
    connection : Connection
        The connection by which the cluster's own producers and consumers read its state.
    log_dirs : dict of int to sequence of str
        The log directories of each broker at its next start.

    Raises
    ------
    ConfigError
        A key in `config` is unknown or has an unusable value; `execution` or `rules.engine` is
        spark, and there is no session or its executors cannot run this package.

    Examples
    --------
    >>> from sparklog.testing import LocalCluster
    >>> cluster = LocalCluster("my-cluster", brokers=[0, 1, 2])
    >>> cluster.create_topic("t", configs={"min.insync.replicas": 2}, assignment={0: [0, 1, 2]})
    >>> pending = cluster.produce("t", 0, [b"m0", b"m1"], acks="all")
    >>> cluster.tick_until_idle()
    >>> pending.response
    ProduceResponse(error='NONE', base_offset=0, last_offset=1)
    """

    def __init__(
        self,
        root: str | Path,
        brokers: Sequence[int] = (0, 1, 2),
        spark: SparkSession | None = None,
        config: Mapping[str, Any] | None = None,
        racks: Mapping[int, str] | None = None,
        storage_options: StorageOptions | None = None,
        log_dirs: Mapping[int, Sequence[str]] | None = None,
        start_ms: int = 1_000_000,
    ) -> None:
        self.root = Path(root)
        self._uri = str(root).rstrip("/")
        self.log_dirs: dict[int, Sequence[str]] = {
            broker_id: (f"broker-{broker_id}",) for broker_id in brokers
        } | dict(log_dirs or {})
        """The log directories of each broker at its next start: names of folders in `root`."""
        self._storage_options = storage_options
        self.settings = parse(Settings, config or {}, "LocalCluster(config=...)")
        self._rules = rules_of(self.settings, spark)
        self._execution = execution_of(self.settings, spark, storage_options)
        self._racks = dict(racks or {})
        self._observations = Observations()
        self.brokers: dict[int, Broker] = {}
        """The brokers that run, paused ones among them, by their ids."""
        self.broker_ids = tuple(brokers)
        """The ids of all brokers, including those that have crashed."""
        self.clock = ManualClock(start_ms, self._poll, self._heartbeat)
        for broker_id in self.broker_ids:
            self._start(broker_id)
        self.connection: Connection
        """The connection by which the cluster's own producers and consumers read its state."""
        self.reconnect()

    # --- actions ----------------------------------------------------------------------------------

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        assignment: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, Any] | None = None,
    ) -> None:
        """Create a topic.

        Parameters
        ----------
        topic : str
            The name.
        partitions : int, default 1
            The number of partitions, without an `assignment`.
        replication_factor : int, optional
            The number of replicas, without an `assignment`; the number of brokers by default.
        assignment : dict of int to sequence of int, optional
            The broker ids of each partition, the preferred leader first.
        configs : dict of str to object, optional
            Kafka's topic keys, as for `Admin.create_topic`.

        Raises
        ------
        ProtocolError, ConfigError
            As `Admin.create_topic` does.
        """
        admin = self._admin()
        if assignment is not None:
            admin.create_topic(topic, assignment=assignment, configs=configs)
        else:
            factor = len(self.broker_ids) if replication_factor is None else replication_factor
            admin.create_topic(topic, partitions, factor, configs=configs)

    def create_partitions(
        self,
        topic: str,
        partitions: int,
        assignment: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        """Raise the number of partitions of a topic.

        Parameters
        ----------
        topic : str
            The name.
        partitions : int
            The new number of partitions.
        assignment : dict of int to sequence of int, optional
            The broker ids of each new partition.

        Raises
        ------
        ProtocolError
            As `Admin.create_partitions` does.
        """
        self._admin().create_partitions(topic, partitions, assignment=assignment)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic; the ticks of the brokers remove its replicas.

        Parameters
        ----------
        topic : str
            The name.

        Raises
        ------
        ProtocolError
            As `Admin.delete_topic` does.
        """
        self._admin().delete_topic(topic)

    def alter_configs(
        self, topic: str, configs: Mapping[str, Any] | None = None, delete: Collection[str] = ()
    ) -> None:
        """Change settings of a topic.

        Parameters
        ----------
        topic : str
            The name.
        configs : dict of str to object, optional
            Kafka's topic keys, as for `Admin.alter_configs`.
        delete : collection of str, optional
            The keys to remove.

        Raises
        ------
        ProtocolError, ConfigError
            As `Admin.alter_configs` does.
        """
        self._admin().alter_configs(topic, configs, delete=delete)

    def produce(
        self,
        topic: str,
        partition: int,
        values: Sequence[bytes | None],
        acks: Acks = "all",
        keys: Sequence[bytes | None] | None = None,
        timeout_ms: int = 30_000,
        producer: LocalProducer | None = None,
        timestamp_ms: int | None = None,
    ) -> PendingProduce:
        """Store one batch in the leader's inbox and append a request for it.

        Parameters
        ----------
        topic : str
            The name of the topic.
        partition : int
            The number of the partition.
        values : sequence of bytes or None
            The values of the records.
        acks : {"all", -1, 1, 0}, default "all"
            Required acknowledgements: 0 none, 1 the leader, all every in-sync replica.
        keys : sequence of bytes or None, optional
            The keys of the records; null by default.
        timeout_ms : int, default 30000
            The time in ms, of the cluster's clock, that the leader may take to answer.
        producer : LocalProducer, optional
            An idempotent producer whose next batch this is.
        timestamp_ms : int, optional
            The timestamp of the records in ms since 1970; the time of `clock` by default.

        Returns
        -------
        PendingProduce
            The request; its `response` is there after the ticks of the brokers.

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUIRED_ACKS.
        """
        acks_number(acks)
        state = self.connection.metadata().partition(topic, partition)
        writer = BatchFileWriter(self._inbox(state), new_batch_path())
        created_ms = self.clock.now_ms() if timestamp_ms is None else timestamp_ms
        writer.write(records_table(values, keys, created_ms))
        batch = RequestedBatch(state, writer.close())
        if producer is not None:
            batch = producer.stamp(batch)
        return self._client.send([batch], acks, timeout_ms)

    def idempotent_producer(self, transactional_id: str | None = None) -> LocalProducer:
        """Return an idempotent producer.

        Parameters
        ----------
        transactional_id : str, optional
            A name (transactional.id) under which this producer fences the earlier one.

        Returns
        -------
        LocalProducer
            The producer, for `produce(producer=...)`.

        Examples
        --------
        >>> producer = cluster.idempotent_producer()
        >>> pending = cluster.produce("t", 0, [b"m2"], producer=producer)
        >>> again = producer.retry(pending)
        >>> cluster.tick_until_idle()
        >>> pending.response == again.response
        True
        """
        return LocalProducer(self._producer_ids.allot(transactional_id), self.retry)

    def retry(self, pending: PendingProduce, *, new_batch_id: bool = False) -> PendingProduce:
        """Send the batch of a request again, to the current leader of its partition.

        A leader recognises the batch by its id, as it does every retry of a client.

        Parameters
        ----------
        pending : PendingProduce
            The request.
        new_batch_id : bool, default False
            Whether the batch gets another id, so that a leader can recognise it only by the
            sequence number of its idempotent producer.

        Returns
        -------
        PendingProduce
            The new request.

        Raises
        ------
        SparklogError
            The batch file is missing or damaged.
        """
        [batch] = pending.batches
        state = self.connection.metadata().partitions[batch.state.key]
        source, target = self._inbox(batch.state), self._inbox(state)
        file = batch.file
        path = new_batch_path() if new_batch_id else new_batch_path(batch_id(file.path))
        fault = copy_file(Copy(source, file.path, target, path, file.size_bytes, file.checksum))
        if fault is not None:
            raise SparklogError(f"the batch cannot be sent again: {fault}")
        again = batch._replace(state=state, file=file._replace(path=path))
        return self._client.send([again], pending.acks, pending.timeout_ms)

    def reconnect(self) -> None:
        """Replace `connection` by a new one, as in clients that have just started.

        Answers to earlier requests can still be read. Idempotent producers keep their ids.
        """
        self.connection = Connection(
            self.location().uri, storage_options=self._storage_options, rules=self._rules
        )
        self._producer_ids = ProducerIds(self.connection, clock=self.clock)
        self._client = ProduceClient(self.connection, client_id="local", clock=self.clock)

    def leader_tick(self, broker_id: int, stop_after: str | None = None) -> TickReport:
        """Run a broker's leader role once.

        Parameters
        ----------
        broker_id : int
            The id of a broker that runs.
        stop_after : str, optional
            The step after which the broker crashes: log_dir_offline, producer_state or log_start
            (of a deletion of old records), epoch_entry, log_commit, removal, isr_change, checkpoint
            or responses.

        Returns
        -------
        TickReport
            The changes and the cost of the tick.

        Raises
        ------
        SparklogError
            The broker has crashed before.
        """
        return self._tick(broker_id, "leader_tick", stop_after)

    def follower_tick(self, broker_id: int, stop_after: str | None = None) -> TickReport:
        """Run a broker's follower role once.

        Parameters
        ----------
        broker_id : int
            The id of a broker that runs.
        stop_after : str, optional
            The step after which the broker crashes: log_dir_offline, truncate, copy, producer_state
            (of a deletion of old records), log_commit or checkpoint.

        Returns
        -------
        TickReport
            The changes and the cost of the tick.

        Raises
        ------
        SparklogError
            The broker has crashed before.
        """
        return self._tick(broker_id, "follower_tick", stop_after)

    def merge(self, broker_id: int, stop_after: str | None = None) -> MergeReport:
        """Merge small batches of a broker's replicas once (rule 8.4).

        Only batches that are log.merger.min.lag.ms old on the cluster's clock are merged.

        Parameters
        ----------
        broker_id : int
            The id of a broker that runs.
        stop_after : str, optional
            The step after which the broker crashes: files, producer_state, log_commit or
            checkpoint.

        Returns
        -------
        MergeReport
            The numbers of batches before and after the merge; (0, 0) if there is nothing to merge.

        Raises
        ------
        SparklogError
            The broker has crashed before.
        """
        broker = self._living(broker_id)
        try:
            return broker.merge(stop_after)
        except StoppedError:
            self.crash(broker_id)
            return MergeReport()

    def clean(self, broker_id: int, stop_after: str | None = None) -> CleanReport:
        """Clean the logs of a broker's replicas of compacted topics once (rule 8.3).

        Only batches that are log.merger.min.lag.ms old on the cluster's clock are cleaned.

        Parameters
        ----------
        broker_id : int
            The id of a broker that runs.
        stop_after : str, optional
            The step after which the broker crashes: files, producer_state, log_commit or
            cleaner_checkpoint.

        Returns
        -------
        CleanReport
            The numbers of cleaned replicas, and of their records before and after.

        Raises
        ------
        SparklogError
            The broker has crashed before.
        """
        broker = self._living(broker_id)
        try:
            return broker.clean(stop_after)
        except StoppedError:
            self.crash(broker_id)
            return CleanReport()

    def vacuum(
        self, broker_id: int, stop_after: str | None = None, after_ms: int = 0
    ) -> VacuumReport:
        """Remove files that no table of a broker's roots names any more.

        The controller's broker also vacuums the cluster root. Files and removals are dated by the
        system's clock, not by the cluster's.

        Parameters
        ----------
        broker_id : int
            The id of a broker that runs.
        stop_after : str, optional
            The step after which the broker crashes: replica_history, retention, files, history,
            past, cluster_retention or cluster_files.
        after_ms : int, default 0
            The ms by which the system's clock is set forward.

        Returns
        -------
        VacuumReport
            The numbers of files that were removed and that stay.

        Raises
        ------
        SparklogError
            The broker has crashed before.

        Examples
        --------
        >>> LocalCluster("vacuuming", brokers=[0]).vacuum(0).files
        0
        """
        broker = self._living(broker_id)
        try:
            return broker.vacuum(stop_after=stop_after, after_ms=after_ms)
        except StoppedError:
            self.crash(broker_id)
            return VacuumReport()

    def controller_tick(self, stop_after: str | None = None) -> TickReport:
        """Run the controller role of each live broker once: all observe, the lease holder acts.

        Parameters
        ----------
        stop_after : str, optional
            The step after which a broker crashes: lease, fence, election, reassignment,
            partitions_removal or offsets_removal.

        Returns
        -------
        TickReport
            The sum of the reports of all brokers.
        """
        report = TickReport()
        for broker in sorted(self._awake(), key=lambda broker: not broker.is_controller):
            report.add(self._tick(broker.broker_id, "controller_tick", stop_after))
        return report

    def tick_until_idle(self) -> None:
        """Repeat rounds of controller, leaders and followers until a round changes nothing.

        Raises
        ------
        SparklogError
            The cluster is not idle after 1,000 rounds.
        """
        for _ in range(_ROUNDS):
            if not round_of_ticks(self._awake()).changed:
                return
        raise SparklogError(
            f"the cluster is not idle after {_ROUNDS} rounds: tick its brokers singly"
        )

    def elect_leaders(
        self, election_type: ElectionType, partitions: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], str]:
        """Elect leaders on request, at once; see `Admin.elect_leaders`.

        Parameters
        ----------
        election_type : {"preferred", "unclean"}
            The kind of election.
        partitions : collection of (str, int)
            The partitions, as pairs (topic, number).

        Returns
        -------
        dict of (str, int) to str
            The name of Kafka's error for each partition.

        Raises
        ------
        ProtocolError
            As `Admin.elect_leaders` does.
        """
        admin = self._admin()
        return admin.elect_leaders(election_type, partitions)

    def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int] | None],
        *,
        throttle: int | None = None,
    ) -> dict[TopicPartition, AlteredReassignment]:
        """Move partitions to other brokers, or cancel; see `Admin.alter_partition_reassignments`.

        The brokers copy the replicas in their next ticks.

        Parameters
        ----------
        reassignments : dict of (str, int) to list of int or None
            The brokers of each partition; `None` cancels.
        throttle : int, optional
            Bytes per second for the replicas that are being added.

        Returns
        -------
        dict of (str, int) to AlteredReassignment
            The name of Kafka's error for each partition.

        Raises
        ------
        ProtocolError
            As `Admin.alter_partition_reassignments` does.

        Examples
        --------
        >>> cluster.create_topic("moved", assignment={0: [0, 1]})
        >>> altered = cluster.alter_partition_reassignments({("moved", 0): [1, 2]})
        >>> cluster.tick_until_idle()
        >>> cluster.partition("moved", 0).replicas
        [1, 2]
        """
        return self._admin().alter_partition_reassignments(reassignments, throttle=throttle)

    def list_partition_reassignments(self) -> dict[TopicPartition, PartitionReassignment]:
        """Return the reassignments in progress; see `Admin.list_partition_reassignments`.

        Returns
        -------
        dict of (str, int) to PartitionReassignment
            The replicas of each partition that is being reassigned.
        """
        return self._admin().list_partition_reassignments()

    def drain_broker(
        self, broker_id: int, *, throttle: int | None = None
    ) -> dict[TopicPartition, list[int]]:
        """Move every replica away from a broker; see `Admin.drain_broker`.

        Parameters
        ----------
        broker_id : int
            The id of the broker.
        throttle : int, optional
            As for `alter_partition_reassignments`.

        Returns
        -------
        dict of (str, int) to list of int
            The new brokers of each partition whose reassignment was started.

        Raises
        ------
        ProtocolError
            As `Admin.drain_broker` does.
        """
        return self._admin().drain_broker(broker_id, throttle=throttle)

    def delete_records(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, DeletedRecords]:
        """Request to delete records, and read the replicas once; see `Admin.delete_records`.

        The brokers serve the request in their next ticks. A second call shows the outcome.

        Parameters
        ----------
        offsets : dict of TopicPartition to int
            The new first offset of each partition; -1 stands for its high watermark.

        Returns
        -------
        dict of TopicPartition to DeletedRecords
            The low watermark or the error of each partition: REQUEST_TIMED_OUT until the ticks of
            all live replicas have served it.

        Raises
        ------
        SparklogError
            An offset or a partition is not usable.
        """
        admin = Admin(self.connection, settings=self.settings, clock=self.clock)
        return admin.delete_records(offsets, timeout_ms=0)

    def crash(self, broker_id: int) -> None:
        """Stop a broker at once; its tables stay as they are.

        The `Broker` that `brokers` had is not closed: it acts as a process that was suspended, or
        has not ended yet, if a test calls its methods after `restart`.

        Parameters
        ----------
        broker_id : int
            The id of a broker that runs.

        Raises
        ------
        SparklogError
            The broker has crashed before.

        Examples
        --------
        >>> cluster.crash(0)
        >>> cluster.fence(0)
        >>> cluster.tick_until_idle()
        >>> cluster.partition("t", 0).leader
        1
        """
        broker = self._living(broker_id)
        if self._awake() == [broker]:
            # The next process measures the silence of this one as if another broker had observed
            # it.
            with suppress(SparklogError, DeltaError, OSError):
                broker.poll()
        del self.brokers[broker_id]

    def restart(self, broker_id: int) -> None:
        """Start a crashed broker: it registers and loads its state, and does nothing else.

        Parameters
        ----------
        broker_id : int
            The id of the broker.

        Raises
        ------
        SparklogError
            The broker runs.

        Examples
        --------
        >>> cluster.restart(0)
        >>> cluster.tick_until_idle()
        >>> cluster.partition("t", 0).isr
        [0, 1, 2]
        """
        if broker_id in self.brokers:
            raise SparklogError(f"broker {broker_id} runs: crash it first")
        self._start(broker_id)

    def pause(self, broker_id: int) -> None:
        """Suspend a broker's process between loading its state and acting on it.

        Its heartbeats stop, and it takes no part in `tick_until_idle` and `controller_tick`. Its
        `leader_tick` or `follower_tick` runs with the state that it had loaded before the pause, as
        in a zombie.

        Parameters
        ----------
        broker_id : int
            The id of a broker that runs.

        Raises
        ------
        SparklogError
            The broker has crashed.
        """
        self._living(broker_id).is_paused = True

    def resume(self, broker_id: int) -> None:
        """Resume a paused broker: it sends a heartbeat, and its ticks load the current state.

        Parameters
        ----------
        broker_id : int
            The id of the broker.

        Raises
        ------
        SparklogError
            The broker is not paused, or has crashed.
        FencedError
            A newer process of the broker was started in the meantime.
        """
        broker = self._living(broker_id)
        if not broker.is_paused:
            raise SparklogError(f"broker {broker_id} is not paused: pause it first")
        broker.is_paused = False
        broker.poll()
        broker.heartbeat()

    def fence(self, broker_id: int) -> None:
        """Expire the session of a crashed or paused broker, and run the controller role.

        Parameters
        ----------
        broker_id : int
            The id of the broker.

        Raises
        ------
        SparklogError
            The broker runs.
        """
        if broker_id in self.brokers and not self.brokers[broker_id].is_paused:
            raise SparklogError(f"broker {broker_id} runs: crash or pause it first")
        self.clock.advance(self.settings.broker_session_timeout_ms + 1)
        self.controller_tick()

    def close(self) -> None:
        """Drop all brokers; the folder stays.

        Examples
        --------
        >>> cluster.close()
        """
        self.brokers.clear()

    # --- state ------------------------------------------------------------------------------------

    def location(self, broker_id: int | None = None) -> Location:
        """Return the location of a root.

        Parameters
        ----------
        broker_id : int, optional
            The id of a broker, whose first log directory is returned; by default the cluster root
            is returned.

        Returns
        -------
        Location
            The folder, or the prefix of an object store.
        """
        name = "cluster" if broker_id is None else self._log_dirs_of(broker_id)[0]
        return self._root_of(name)

    def log(self, broker_id: int, topic: str, partition: int) -> list[Record]:
        """Return all records of a replica's log, committed or not, by ascending offset.

        They may include records before the log start offset, which are no longer visible: a batch
        is deleted as a whole.

        Parameters
        ----------
        broker_id : int
            The id of the broker; it need not run.
        topic : str
            The name of the topic.
        partition : int
            The number of the partition.

        Returns
        -------
        list of Record
            The records.

        Raises
        ------
        SparklogError
            The broker has no replica of the partition.

        Examples
        --------
        >>> [record.value for record in cluster.log(2, "t", 0)]
        [b'm0', b'm1', b'm2']
        """
        location = self._location(broker_id, topic, partition)
        log = RecordLog(location)
        key = self._key(topic, partition)
        return list(read_records(log.location, log.batches(key), 0, log.log_end_offset(key)))

    def replica(self, broker_id: int, topic: str, partition: int) -> ReplicaView:
        """Return the state of a replica according to its tables.

        Parameters
        ----------
        broker_id : int
            The id of the broker; it need not run.
        topic : str
            The name of the topic.
        partition : int
            The number of the partition.

        Returns
        -------
        ReplicaView
            Its offsets, leader epoch and role.

        Raises
        ------
        SparklogError
            The broker has no replica of the partition.

        Examples
        --------
        >>> cluster.replica(2, "t", 0).log_end_offset
        3
        """
        journal = self.connection.journal(self._location(broker_id, topic, partition))
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
        """Return a replica's leader-epoch history (rule 6.1).

        Parameters
        ----------
        broker_id : int
            The id of the broker; it need not run.
        topic : str
            The name of the topic.
        partition : int
            The number of the partition.

        Returns
        -------
        list of (int, int)
            Pairs (epoch, start offset), the oldest first.

        Raises
        ------
        SparklogError
            The broker has no replica of the partition.

        Examples
        --------
        >>> cluster.leader_epochs(2, "t", 0)[0]
        (0, 0)
        """
        journal = self.connection.journal(self._location(broker_id, topic, partition))
        entries = journal.epochs.get(self._key(topic, partition), ())
        return [(entry.epoch, entry.start_offset) for entry in entries]

    def partition(self, topic: str, partition: int) -> PartitionView:
        """Return the published state of a partition.

        Parameters
        ----------
        topic : str
            The name of the topic.
        partition : int
            The number of the partition.

        Returns
        -------
        PartitionView
            Its leader, epochs, replicas and ISR.

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION.
        """
        state = self.connection.metadata().partition(topic, partition)
        replicas = [one.broker_id for one in state.replicas]
        return PartitionView(
            state.leader, state.leader_epoch, state.partition_epoch, replicas, state.isr
        )

    def consume(self, topic: str, partition: int, from_offset: int = 0) -> list[Record]:
        """Return the committed records of a partition.

        Parameters
        ----------
        topic : str
            The name of the topic.
        partition : int
            The number of the partition.
        from_offset : int, default 0
            The offset at which the records begin.

        Returns
        -------
        list of Record
            The records at or after `from_offset`, by ascending offset.

        Raises
        ------
        ProtocolError
            LEADER_NOT_AVAILABLE if the partition is offline; OFFSET_NOT_AVAILABLE if its new leader
            has not yet reached offsets that were visible before (rule 2.6).

        Examples
        --------
        >>> [record.value for record in cluster.consume("t", 0, from_offset=1)]
        [b'm1', b'm2']
        """
        state = self.connection.metadata().partition(topic, partition)
        [visible] = self.connection.visible([state])
        log = RecordLog(visible.location)
        log.refresh(visible.log_version)
        batches = log.batches(state.key, from_offset)
        start = max(from_offset, visible.log_start_offset)
        return list(read_records(log.location, batches, start, visible.high_watermark))

    # --- internals --------------------------------------------------------------------------------

    def _log_dirs_of(self, broker_id: int) -> Sequence[str]:
        # A broker that the cluster began without may be started later.
        return self.log_dirs.setdefault(broker_id, (f"broker-{broker_id}",))

    def _root_of(self, name: str) -> Location:
        return Location.of(f"{self._uri}/{name}", self._storage_options)

    def _start(self, broker_id: int) -> None:
        self.brokers[broker_id] = Broker(
            broker_id,
            self.location(),
            [self._root_of(one) for one in self._log_dirs_of(broker_id)],
            rules=self._rules,
            execution=self._execution,
            clock=self.clock,
            settings=self.settings,
            storage_options=self._storage_options,
            rack=self._racks.get(broker_id),
            observations=self._observations,
        )

    def _living(self, broker_id: int) -> Broker:
        if broker_id not in self.brokers:
            raise SparklogError(f"broker {broker_id} has crashed: restart it first")
        return self.brokers[broker_id]

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
        return [broker for broker in self.brokers.values() if not broker.is_paused]

    def _poll(self) -> None:
        for broker in self._awake():
            broker.poll()

    def _heartbeat(self) -> None:
        for broker in self._awake():
            # A session has several heartbeats, so one may fail. A broker with unwritable roots is
            # silent.
            for _ in range(2):
                with suppress(StorageError, DeltaError, OSError):
                    broker.heartbeat()
                    break
            broker.poll()

    def _admin(self) -> Admin:
        return Admin(self.connection, settings=self.settings, clock=self.clock)

    def _inbox(self, state: PartitionState) -> Location:
        """Return the log with the leader's inbox; for an offline partition, any replica's log."""
        addressed = state.replicas[0].broker_id if state.leader is None else state.leader
        return self._replica_location(state, addressed).child("log")

    def _key(self, topic: str, partition: int) -> TopicIdPartition:
        return self.connection.metadata().partition(topic, partition).key

    def _location(self, broker_id: int, topic: str, partition: int) -> Location:
        state = self.connection.metadata().partition(topic, partition)
        if state.replica(broker_id) is None:
            brokers = [one.broker_id for one in state.replicas]
            raise SparklogError(
                f"broker {broker_id} has no replica of {topic}-{partition}: name one of {brokers}"
            )
        return self._replica_location(state, broker_id)

    def _replica_location(self, state: PartitionState, broker_id: int) -> Location:
        """Return the log directory of a replica, also if it is offline."""
        replica = state.replica(broker_id)
        uri = None
        if replica is not None:
            uri = self.connection.metadata().brokers[broker_id].roots[replica.root]
        return self.location(broker_id) if uri is None else Location.of(uri, self._storage_options)


def round_of_ticks(brokers: Sequence[Broker]) -> TickReport:
    """Tick every broker once: controllers, then leaders, then followers; return the sum."""
    report = TickReport()
    for broker in sorted(brokers, key=lambda broker: not broker.is_controller):
        report.add(broker.controller_tick())
    for broker in brokers:
        report.add(broker.leader_tick())
    for broker in brokers:
        report.add(broker.follower_tick())
    return report
