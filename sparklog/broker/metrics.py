"""The metrics of brokers under the names that Prometheus's JMX exporter gives Kafka's.

All values are in memory already: a report makes no request to a store and waits for no tick.
docs/metrics.md has the table `METRICS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from sparklog.broker.broker import Broker, BrokerState
from sparklog.cluster.isr import min_isr
from sparklog.cluster.metadata import Metadata, PartitionState
from sparklog.counts import FAILURES, STORE_REQUESTS, HistogramState


class Metric(NamedTuple):
    """A metric: its name for Prometheus, the names of its labels, and its name in Kafka.

    `kafka` is empty for a metric that Kafka does not have.
    """

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...]
    kafka: str
    description: str


_BROKER = ("broker",)
_TOPIC = ("broker", "topic")
_MANAGER = "kafka_server_replicamanager_"
_CONTROLLER = "kafka_controller_kafkacontroller_"
_STATS = "kafka_controller_controllerstats_"
_TRAFFIC = "kafka_server_brokertopicmetrics_"
_REQUESTS = "kafka_network_requestmetrics_"

METRICS: Mapping[str, Metric] = {
    one.name: one
    for one in (
        Metric(
            f"{_MANAGER}underreplicatedpartitions",
            "gauge",
            _BROKER,
            "UnderReplicatedPartitions",
            "Partitions that the broker leads with fewer in-sync than assigned replicas.",
        ),
        Metric(
            f"{_MANAGER}underminisrpartitioncount",
            "gauge",
            _BROKER,
            "UnderMinIsrPartitionCount",
            "Partitions that the broker leads with fewer in-sync replicas than "
            "min.insync.replicas: acks=all is refused.",
        ),
        Metric(
            f"{_MANAGER}atminisrpartitioncount",
            "gauge",
            _BROKER,
            "AtMinIsrPartitionCount",
            "Partitions that the broker leads with exactly min.insync.replicas in-sync replicas.",
        ),
        Metric(
            f"{_MANAGER}leadercount",
            "gauge",
            _BROKER,
            "LeaderCount",
            "Partitions that the broker leads.",
        ),
        Metric(
            f"{_MANAGER}partitioncount",
            "gauge",
            _BROKER,
            "PartitionCount",
            "Partitions of which the broker has a replica.",
        ),
        Metric(
            f"{_MANAGER}isrshrinks_total",
            "counter",
            _BROKER,
            "IsrShrinksPerSec",
            "In-sync sets that the broker has shrunk as leader.",
        ),
        Metric(
            f"{_MANAGER}isrexpands_total",
            "counter",
            _BROKER,
            "IsrExpandsPerSec",
            "In-sync sets that the broker has expanded as leader.",
        ),
        Metric(
            f"{_MANAGER}failedisrupdates_total",
            "counter",
            _BROKER,
            "FailedIsrUpdatesPerSec",
            "Changes of in-sync sets that another change preceded; they are decided again.",
        ),
        Metric(
            "kafka_server_replicafetchermanager_maxlag",
            "gauge",
            ("broker", "clientId"),
            "MaxLag",
            "The most offsets by which a replica of the broker is behind its leader.",
        ),
        Metric(
            "kafka_server_delayedoperationpurgatory_purgatorysize",
            "gauge",
            ("broker", "delayedOperation"),
            "PurgatorySize",
            "Produce requests that wait for followers, and fetches that wait for more bytes.",
        ),
        Metric(
            "kafka_log_logmanager_offlinelogdirectorycount",
            "gauge",
            _BROKER,
            "OfflineLogDirectoryCount",
            "Log directories of the broker that are offline.",
        ),
        Metric(
            f"{_TRAFFIC}bytesin_total",
            "counter",
            _TOPIC,
            "BytesInPerSec",
            "Bytes of batch files that the broker has appended as leader.",
        ),
        Metric(
            f"{_TRAFFIC}messagesin_total",
            "counter",
            _TOPIC,
            "MessagesInPerSec",
            "Records that the broker has appended as leader.",
        ),
        Metric(
            f"{_TRAFFIC}replicationbytesin_total",
            "counter",
            _BROKER,
            "ReplicationBytesInPerSec",
            "Bytes of batch files that the broker has copied as follower.",
        ),
        Metric(
            f"{_REQUESTS}errors_total",
            "counter",
            ("broker", "request", "error"),
            "ErrorsPerSec",
            "Answers to produce requests, one for each partition, by error; NONE for success.",
        ),
        Metric(
            f"{_REQUESTS}totaltimems",
            "histogram",
            ("broker", "request"),
            "TotalTimeMs",
            "Time in ms from the poll that found a produce request to its committed answer.",
        ),
        Metric(
            f"{_CONTROLLER}activecontrollercount",
            "gauge",
            _BROKER,
            "ActiveControllerCount",
            "1 for the active controller, otherwise 0.",
        ),
        Metric(
            f"{_CONTROLLER}offlinepartitionscount",
            "gauge",
            _BROKER,
            "OfflinePartitionsCount",
            "Partitions without a leader; 0 at brokers that are not the controller.",
        ),
        Metric(
            f"{_CONTROLLER}preferredreplicaimbalancecount",
            "gauge",
            _BROKER,
            "PreferredReplicaImbalanceCount",
            "Partitions not led by their preferred replica; 0 at brokers that are not the "
            "controller.",
        ),
        Metric(
            f"{_CONTROLLER}globaltopiccount",
            "gauge",
            _BROKER,
            "GlobalTopicCount",
            "Topics; 0 at brokers that are not the controller.",
        ),
        Metric(
            f"{_CONTROLLER}globalpartitioncount",
            "gauge",
            _BROKER,
            "GlobalPartitionCount",
            "Partitions; 0 at brokers that are not the controller.",
        ),
        Metric(
            f"{_CONTROLLER}activebrokercount",
            "gauge",
            _BROKER,
            "ActiveBrokerCount",
            "Brokers that are alive, parked ones included; 0 at brokers that are not the "
            "controller.",
        ),
        Metric(
            f"{_CONTROLLER}fencedbrokercount",
            "gauge",
            _BROKER,
            "FencedBrokerCount",
            "Brokers that are fenced; 0 at brokers that are not the controller.",
        ),
        Metric(
            f"{_STATS}leaderelectionrateandtimems",
            "histogram",
            _BROKER,
            "LeaderElectionRateAndTimeMs",
            "Time in ms of the controller's steps that changed leaders, their commit included.",
        ),
        Metric(
            f"{_STATS}uncleanleaderelections_total",
            "counter",
            _BROKER,
            "UncleanLeaderElectionsPerSec",
            "Partitions for which the controller elected a replica that was neither in sync nor "
            "eligible.",
        ),
        Metric(
            "sparklog_leader_elections_total",
            "counter",
            ("broker", "kind"),
            "",
            "Partitions of which the controller changed the leader: clean, unclean, or none for "
            "those that went offline.",
        ),
        Metric(
            "sparklog_tick_seconds",
            "histogram",
            ("broker", "role"),
            "",
            "Durations of ticks by role, failed and idle ones included. Kafka's "
            "RequestHandlerAvgIdlePercent is 1 minus the rate of the sum.",
        ),
        Metric(
            "sparklog_commits_total", "counter", _BROKER, "", "Commits of ticks to Delta tables."
        ),
        Metric("sparklog_spark_jobs_total", "counter", _BROKER, "", "Spark jobs of ticks."),
        Metric(
            "sparklog_files_copied_total",
            "counter",
            _BROKER,
            "",
            "Batch files that the broker has copied as follower.",
        ),
        Metric(
            "sparklog_store_requests_total",
            "counter",
            ("kind",),
            "",
            "Requests of the process to object stores: get, head, put, put_new (conditional), "
            "delete, list, multipart. Local file systems, delta-rs's clean-up of commits and "
            "tasks of Spark's executors are not counted.",
        ),
        Metric(
            "sparklog_failures_total",
            "counter",
            ("event",),
            "",
            "Failures of the process by the event that logs them, those not logged again included.",
        ),
        Metric(
            "sparklog_last_run_timestamp_seconds",
            "gauge",
            (),
            "",
            "The time of the last write of the textfile; only there.",
        ),
        Metric(
            "sparklog_last_run_success",
            "gauge",
            (),
            "",
            "1 if the process has ended without a failure or still runs, otherwise 0; only in the "
            "textfile.",
        ),
    )
}
"""All metrics by name."""


class Sample(NamedTuple):
    """The value of one series of a metric."""

    metric: Metric
    labels: tuple[str, ...]
    value: float | HistogramState

    @property
    def series(self) -> tuple[str, tuple[str, ...]]:
        """The identity of the series."""
        return self.metric.name, self.labels


def samples(brokers: Iterable[Broker]) -> list[Sample]:
    """Return the metrics of the brokers of this process; any thread may call it."""
    found = [sample for broker in brokers for sample in _of_broker(broker)]
    for name, counts in (
        ("sparklog_store_requests_total", STORE_REQUESTS),
        ("sparklog_failures_total", FAILURES),
    ):
        found += [Sample(METRICS[name], (of,), n) for of, n in counts.totals().items()]
    return found


def _of_broker(broker: Broker) -> Iterator[Sample]:
    of = str(broker.broker_id)
    state, counts = broker.state(), broker.counts
    for name, value in _gauges(broker, state).items():
        yield Sample(METRICS[name], (of,), value)
    lag = METRICS["kafka_server_replicafetchermanager_maxlag"]
    yield Sample(lag, (of, "Replica"), state.max_lag)
    purgatory = METRICS["kafka_server_delayedoperationpurgatory_purgatorysize"]
    yield Sample(purgatory, (of, "Produce"), state.delayed_produce)
    yield Sample(purgatory, (of, "Fetch"), state.delayed_fetch)
    work, isr = Counter(counts.work.totals()), Counter(counts.isr_changes.totals())
    elections = Counter(counts.elections.totals())
    for name, total in (
        (f"{_MANAGER}isrshrinks_total", isr["isr_shrink"]),
        (f"{_MANAGER}isrexpands_total", isr["isr_expand"]),
        (f"{_MANAGER}failedisrupdates_total", isr["failed"]),
        (f"{_TRAFFIC}replicationbytesin_total", work["bytes_copied"]),
        (f"{_STATS}uncleanleaderelections_total", elections["unclean"]),
        ("sparklog_commits_total", work["commits"]),
        ("sparklog_spark_jobs_total", work["spark_jobs"]),
        ("sparklog_files_copied_total", work["files_copied"]),
    ):
        yield Sample(METRICS[name], (of,), total)
    for name, totals, before in (
        (f"{_TRAFFIC}bytesin_total", counts.bytes_in, ()),
        (f"{_TRAFFIC}messagesin_total", counts.messages_in, ()),
        (f"{_REQUESTS}errors_total", counts.produce_answers, ("Produce",)),
        ("sparklog_leader_elections_total", counts.elections, ()),
    ):
        for label, total in totals.totals().items():
            yield Sample(METRICS[name], (of, *before, label), total)
    times = METRICS["sparklog_tick_seconds"]
    for role, histogram in counts.tick_seconds.items():
        yield Sample(times, (of, role), histogram.state())
    elected = METRICS[f"{_STATS}leaderelectionrateandtimems"]
    yield Sample(elected, (of,), counts.elections_ms.state())
    answered = METRICS[f"{_REQUESTS}totaltimems"]
    yield Sample(answered, (of, "Produce"), counts.produce_ms.state())


def _gauges(broker: Broker, state: BrokerState) -> dict[str, int]:
    """Return the gauges of a broker whose only label is the broker."""
    led, partitions, total = _Led(), 0, _Total()
    if state.metadata is not None:
        for one in state.metadata.partitions.values():
            partitions += one.replica(broker.broker_id) is not None
            if one.leader == broker.broker_id:
                led = led.plus(one, min_isr(state.metadata, one, broker.settings))
        if state.is_controller:
            total = _totals(state.metadata)
    return {
        f"{_MANAGER}underreplicatedpartitions": led.under_replicated,
        f"{_MANAGER}underminisrpartitioncount": led.under_min_isr,
        f"{_MANAGER}atminisrpartitioncount": led.at_min_isr,
        f"{_MANAGER}leadercount": led.partitions,
        f"{_MANAGER}partitioncount": partitions,
        "kafka_log_logmanager_offlinelogdirectorycount": state.offline_log_dirs,
        f"{_CONTROLLER}activecontrollercount": int(state.is_controller),
        f"{_CONTROLLER}offlinepartitionscount": total.offline,
        f"{_CONTROLLER}preferredreplicaimbalancecount": total.not_preferred,
        f"{_CONTROLLER}globaltopiccount": total.topics,
        f"{_CONTROLLER}globalpartitioncount": total.partitions,
        f"{_CONTROLLER}activebrokercount": total.active_brokers,
        f"{_CONTROLLER}fencedbrokercount": total.fenced_brokers,
    }


class _Led(NamedTuple):
    """Numbers of partitions that a broker leads."""

    partitions: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    at_min_isr: int = 0

    def plus(self, state: PartitionState, least: int) -> _Led:
        """Return the numbers with one more partition, of which `least` is min.insync.replicas."""
        in_sync = len(state.isr)
        return _Led(
            self.partitions + 1,
            self.under_replicated + (in_sync < len(state.target)),
            self.under_min_isr + (in_sync < least),
            self.at_min_isr + (in_sync == least),
        )


class _Total(NamedTuple):
    """Numbers of the whole cluster, as the controller reports them."""

    topics: int = 0
    partitions: int = 0
    offline: int = 0
    not_preferred: int = 0
    active_brokers: int = 0
    fenced_brokers: int = 0


def _totals(metadata: Metadata) -> _Total:
    states = metadata.partitions.values()
    preferred = [min(one.replicas, key=lambda replica: replica.replica_index) for one in states]
    return _Total(
        len(metadata.topics),
        len(states),
        sum(one.leader is None for one in states),
        sum(one.leader != first.broker_id for one, first in zip(states, preferred, strict=True)),
        sum(one.is_alive for one in metadata.brokers.values()),
        sum(one.state == "fenced" for one in metadata.brokers.values()),
    )


def with_earlier(found: Collection[Sample], earlier: Iterable[Sample]) -> list[Sample]:
    """Return samples whose counters and histograms have the totals of earlier processes added."""
    before = {one.series: one for one in earlier if one.metric.kind != "gauge"}
    result = [_sum(one, before.pop(one.series, None)) for one in found]
    return result + list(before.values())


def _sum(one: Sample, before: Sample | None) -> Sample:
    if before is None:
        return one
    if isinstance(one.value, HistogramState) and isinstance(before.value, HistogramState):
        if before.value.bounds != one.value.bounds:
            # Of a release with other buckets: the histogram begins at 0 again.
            return one
        pairs = zip(one.value.cumulative, before.value.cumulative, strict=True)
        total = one.value.total + before.value.total
        return one._replace(
            value=HistogramState(one.value.bounds, [a + b for a, b in pairs], total)
        )
    if isinstance(one.value, HistogramState) or isinstance(before.value, HistogramState):
        return one
    return one._replace(value=one.value + before.value)
