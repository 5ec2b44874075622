"""Changes of the cluster's control state: in-sync sets, committed offsets, an election."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import NamedTuple

from benchmarks.bench import Bench, seconds
from benchmarks.figures import Figures, Target
from benchmarks.s3_store import running_store
from benchmarks.work import Work
from sparklog.broker.broker import Broker
from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.cluster.isr import change_isr
from sparklog.cluster.metadata import LIVE, MetadataReader
from sparklog.cluster.roots import ClusterRoot
from sparklog.config import Settings, parse
from sparklog.groups.committed_offsets import CommittedOffsets, OffsetAndMetadata
from sparklog.groups.group import GroupFence
from sparklog.model import CONSUMER_OFFSETS, PARTITION_STATE, TOPICS, TopicIdPartition
from sparklog.protocol.driver_rules import DriverRules
from sparklog.storage.execution import DriverExecution
from sparklog.storage.location import Location, StorageOptions
from sparklog.storage.shard_rewrites import RowChanges
from sparklog.testing import ManualClock

FOLDER, STORE = "local folder", "object store, 30 ms a request"
FEW_PARTITIONS, MANY_PARTITIONS = "ISR change, 100 partitions", "ISR change, 4,000 partitions"
FEW_ROWS, MANY_ROWS = "offset commit, 100 rows", "offset commit, 40,000 rows"
ELECTION = "election of 5,000 partitions beside 10 foreign commits a second"

_LATENCY_MS = 30
_FEW, _PARTITIONS, _ROWS, _ELECTED = 100, 4_000, 40_000, 5_000
_CHANGES, _STORE_CHANGES = 30, 5
_BROKERS = (0, 1, 2)
_OTHERS = 16
_FOREIGN_SECONDS = 0.1
_PATIENCE_SECONDS = 60
_TOPIC_ID = "a-topic-id"


class _Place(NamedTuple):
    """The location of roots, and the number of changes that are measured there."""

    system: str
    root: str
    options: StorageOptions
    set_latency: Callable[[float], None]
    changes: int

    def location(self, name: str) -> Location:
        return Location.of(f"{self.root}/{name}", self.options)


def run(bench: Bench, figures: Figures) -> None:
    """Measure changes of small and large tables in turn, locally and on an object store."""
    for one in range(bench.runs):
        for of in (_folder, _store):
            with of(bench) as place:
                _isr_changes(bench, figures, place)
                _offset_commits(bench, figures, place)
                _election(bench, figures, place)
            found = ", ".join(
                f"{figure.what} {figure.values[-1]:.3g} {figure.unit}"
                for figure in figures
                if figure.system == place.system
            )
            bench.say(f"  run {one + 1}, {place.system}: {found}")


@contextmanager
def _folder(bench: Bench) -> Iterator[_Place]:
    with bench.temporary("control") as folder:
        yield _Place(FOLDER, str(folder), {}, lambda _: None, _CHANGES)


@contextmanager
def _store(bench: Bench) -> Iterator[_Place]:
    with bench.temporary("control") as folder, running_store(folder / "store.log") as store:
        bucket = store.bucket("control")
        yield _Place(STORE, bucket, store.options(), store.set_latency, _STORE_CHANGES)


def _isr_changes(bench: Bench, figures: Figures, place: _Place) -> None:
    counts = {
        FEW_PARTITIONS: bench.scaled(_FEW, least=8),
        MANY_PARTITIONS: bench.scaled(_PARTITIONS, least=8),
    }
    sides = {
        name: _Leaders(place.location(f"isr-{number}"), count)
        for number, (name, count) in enumerate(counts.items())
    }
    actions = {name: side.change for name, side in sides.items()}
    _in_turn(figures, place, actions, bench.scaled(place.changes, least=2))


def _offset_commits(bench: Bench, figures: Figures, place: _Place) -> None:
    counts = {
        FEW_ROWS: bench.scaled(_FEW, least=8),
        MANY_ROWS: bench.scaled(_ROWS, least=8),
    }
    sides = {
        name: _Committers(place.location(f"offsets-{number}"), count)
        for number, (name, count) in enumerate(counts.items())
    }
    actions = {name: side.commit for name, side in sides.items()}
    _in_turn(figures, place, actions, bench.scaled(place.changes, least=2))


def _in_turn(
    figures: Figures, place: _Place, actions: dict[str, Callable[[], None]], times: int
) -> None:
    """Measure each action `times` times, in turn, and add the median of each."""
    for action in actions.values():
        # The first change of a table splits its only file.
        action()
        action()
    place.set_latency(_LATENCY_MS)
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(times):
        for name, action in actions.items():
            taken[name].append(seconds(action))
    place.set_latency(0)
    for name, found in taken.items():
        figures.add(name, place.system, "ms", statistics.median(found) * 1000)


class _Leaders:
    """Two partition leaders in one cluster root, which change in-sync sets in turn."""

    def __init__(self, location: Location, partitions: int) -> None:
        created = ClusterRoot.create(location)
        topic = {"topic_id": _TOPIC_ID, "topic": "t", "partitions": partitions}
        topic |= {"replication_factor": 3, "configs": "{}", "state": LIVE, "created_at_ms": 0}
        created.topics.compare_and_set(TOPICS.rows([topic]))
        rows = PARTITION_STATE.rows(
            [_replica_row(number, broker) for number in range(partitions) for broker in _BROKERS]
        )
        keys = [(_TOPIC_ID, number) for number in range(partitions)]
        created.partition_state.change_rows(lambda _: RowChanges(rows), keys)
        self._rules = DriverRules()
        clusters = [ClusterRoot(location) for _ in range(2)]
        self._leaders = cycle([(one, MetadataReader(one, {})) for one in clusters])
        self._numbers = cycle(range(0, partitions, 7))
        self._observer = MetadataReader(ClusterRoot(location), {})

    def change(self) -> None:
        """Change the ISR of one partition by the next leader; another broker then loads it."""
        cluster, reader = next(self._leaders)
        key = TopicIdPartition(_TOPIC_ID, next(self._numbers))
        state = reader.load().partitions[key]
        isr = frozenset(_BROKERS if len(state.isr) < len(_BROKERS) else _BROKERS[:2])
        changed = change_isr(
            cluster.partition_state, self._rules, {key: state}, {key: isr}, {key: 2}
        )
        assert changed == {key}
        assert self._observer.load().partitions[key].isr == sorted(isr)


def _replica_row(partition: int, broker_id: int) -> dict[str, object]:
    return {
        "topic_id": _TOPIC_ID,
        "topic": "t",
        "partition": partition,
        "broker_id": broker_id,
        "root": 0,
        "replica_index": broker_id,
        "in_isr": True,
        "in_elr": False,
        "adding": False,
        "removing": False,
        "leader": 0,
        "leader_broker_epoch": 1,
        "leader_epoch": 1,
        "partition_epoch": 1,
        "controller_epoch": 1,
        "min_isr": 2,
    }


class _Committers:
    """Members of two groups, which commit a partition's offset in turn; 100 rows per group."""

    def __init__(self, location: Location, rows: int) -> None:
        created = ClusterRoot.create(location)
        groups = [f"group-{number}" for number in range(max(rows // _FEW, 1))]
        of_groups = CONSUMER_OFFSETS.rows(
            [
                dict.fromkeys(CONSUMER_OFFSETS.columns.names)
                | {"group_id": group, "topic_id": _TOPIC_ID, "topic": "t", "partition": number}
                | {"committed_offset": 0, "generation": 1, "group_epoch": 1}
                for group in groups
                for number in range(min(rows, _FEW))
            ]
        )
        units = [(group,) for group in groups]
        created.consumer_offsets.change_rows(lambda _: RowChanges(of_groups), units)
        self._members = cycle(
            (group, CommittedOffsets(ClusterRoot(location).consumer_offsets))
            for group in (groups[0], groups[-1])
        )
        self._numbers = cycle(range(min(rows, _FEW)))
        self._offset = 0

    def commit(self) -> None:
        """Commit the offset of one partition by the next member."""
        group, committed = next(self._members)
        key = TopicIdPartition(_TOPIC_ID, next(self._numbers))
        self._offset += 1
        offset = OffsetAndMetadata(self._offset)
        committed.commit(group, GroupFence(1, 1), {key: ("t", offset)})


def _election(bench: Bench, figures: Figures, place: _Place) -> None:
    """Measure the controller's tick after a session's end, until the election is committed."""
    partitions = bench.scaled(_ELECTED, least=20)
    clock, cluster = ManualClock(), f"{place.root}/election/cluster"
    settings = parse(Settings, {}, "the benchmark")
    brokers = [_registered(broker, place, clock, settings) for broker in _BROKERS]
    controller, _, dead = brokers
    admin = Admin(Connection(cluster, storage_options=place.options))
    # The crashed broker leads all of them. Meanwhile partitions change that it does not replicate.
    admin.create_topic("led", assignment={one: [2, 0, 1] for one in range(partitions)})
    admin.create_topic("other", assignment={one: [0, 1] for one in range(_OTHERS)})
    controller.controller_tick()
    observer = MetadataReader(ClusterRoot(Location.of(cluster, place.options)), place.options)
    assert _led_by(dead, observer) == partitions
    for _ in range(3):
        for broker in brokers[:2]:
            broker.poll()
        clock.advance(settings.broker_session_timeout_ms // 2)
        for broker in brokers[:2]:
            broker.heartbeat()
    place.set_latency(_LATENCY_MS)
    with _foreign_commits(Location.of(cluster, place.options)) as commits:
        began = time.perf_counter()
        while not controller.controller_tick().changed:
            assert time.perf_counter() - began < _PATIENCE_SECONDS, "no election has landed"
        taken = time.perf_counter() - began
        foreign = len(commits)
    assert _led_by(dead, observer) == 0
    place.set_latency(0)
    figures.add(ELECTION, place.system, "s", taken)
    figures.add("foreign commits a second", place.system, "commits", foreign / taken)


def _registered(broker_id: int, place: _Place, clock: ManualClock, settings: Settings) -> Broker:
    return Broker(
        broker_id,
        place.location("election/cluster"),
        [place.location(f"election/broker-{broker_id}")],
        rules=DriverRules(),
        execution=DriverExecution(),
        clock=clock,
        settings=settings,
        storage_options=place.options,
    )


def _led_by(broker: Broker, observer: MetadataReader) -> int:
    partitions = observer.load().partitions.values()
    return sum(one.topic == "led" and one.leader == broker.broker_id for one in partitions)


@contextmanager
def _foreign_commits(location: Location) -> Iterator[list[float]]:
    """Change the in-sync sets of topic `other` every 100 ms; yield the times of the commits."""
    cluster = ClusterRoot(location)
    reader, rules = MetadataReader(cluster, {}), DriverRules()
    keys = sorted(one.key for one in reader.load().partitions.values() if one.topic == "other")
    commits: list[float] = []
    stopping = threading.Event()

    def change() -> None:
        due = time.perf_counter()
        for key in cycle(keys):
            due += _FOREIGN_SECONDS
            if stopping.wait(max(due - time.perf_counter(), 0)):
                return
            state = reader.load().partitions[key]
            isr = frozenset({0, 1} if len(state.isr) == 1 else {0})
            if change_isr(cluster.partition_state, rules, {key: state}, {key: isr}, {key: 1}):
                commits.append(time.perf_counter())

    thread = threading.Thread(target=change, name="foreign commits")
    thread.start()
    try:
        yield commits
    finally:
        stopping.set()
        thread.join()


WORK = Work(
    "control_state",
    "Changes of control state",
    "In a local folder, synced, and on the S3 API server of the benchmarks with 30 ms a request. "
    "An ISR change: two leaders in turns load the metadata and change the in-sync set of one "
    "partition of RF 3, until a third process's handle has loaded it. An offset commit: members "
    "of two groups in turns commit the offset of one partition; each group has 100 rows. The "
    "median of 30 changes, 5 on the object store, few and many rows in turn. An election: three "
    "brokers without Spark, one of which leads 5,000 partitions and is silent for longer than its "
    "session; the controller's tick after that, which fences it and elects, while a thread of the "
    "same process changes an in-sync set of another topic every 100 ms.",
    run,
    tuple(
        target
        for system in (FOLDER, STORE)
        for target in (
            Target(MANY_PARTITIONS, system, 2, against_what=FEW_PARTITIONS),
            Target(MANY_ROWS, system, 2, against_what=FEW_ROWS),
            Target(ELECTION, system, 3),
        )
    ),
    is_plotted=False,
)
