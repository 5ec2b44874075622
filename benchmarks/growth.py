"""Growth of the work with partitions, brokers, members, producers and batches, as exponents.

`python -m benchmarks.growth [MEASURE]... --size MEASURE=N` measures each named work, by default all
of them, at sizes N, 2N and 4N and prints a table. A figure's exponent is log4 of its growth from N
to 4N: 0 is constant, 1 linear, 2 quadratic. Times are CPU times of this process.
`--profile MEASURE` prints the profile of its largest size, and `--store MS` adds elections on the
S3 API server.
"""

from __future__ import annotations

import cProfile
import gc
import math
import pstats
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

import typer

from benchmarks.counts import Watch
from benchmarks.requests import BulkProducer
from benchmarks.s3_server import KINDS
from benchmarks.s3_store import Store, running_store
from sparklog.broker.broker import Broker
from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.cluster.roots import ClusterRoot
from sparklog.config import ConsumerConfig, Settings, parse
from sparklog.groups.assignors import ASSIGNORS, MemberSubscription
from sparklog.groups.committed_offsets import CommittedOffsets, OffsetAndMetadata
from sparklog.groups.heartbeats import GroupHeartbeats
from sparklog.groups.member import GroupMember
from sparklog.model import Batch, TopicIdPartition, new_batch_path
from sparklog.protocol.driver_rules import DriverRules
from sparklog.storage.execution import DriverExecution
from sparklog.storage.journal import Step
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster, ManualClock

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

Figures: TypeAlias = "dict[str, float]"
"""Values by name; the unit is the end of the name."""

REPLICAS = 3


@contextmanager
def cpu_ms(figures: Figures, name: str) -> Iterator[None]:
    """Add the CPU time of the block in ms."""
    gc.collect()
    began = time.process_time()
    yield
    figures[f"{name}, ms"] = figures.get(f"{name}, ms", 0.0) + (time.process_time() - began) * 1000


def cluster_of(folder: Path, brokers: int, partitions: int = 0) -> LocalCluster:
    """Return a cluster of which broker 0 leads all partitions of topic t, unsynced."""
    cluster = LocalCluster(
        folder,
        brokers=range(brokers),
        config={"queued.max.requests": 1_000_000, "auto.leader.rebalance.enable": False},
        storage_options={"/": {"sync": "false"}},
    )
    if partitions:
        cluster.create_topic("t", assignment=spread_from(0, brokers, partitions))
        cluster.tick_until_idle()
    return cluster


def spread_from(leader: int, brokers: int, partitions: int) -> dict[int, list[int]]:
    """Return an assignment with one leader, whose followers are spread over the other brokers."""
    others = [one for one in range(brokers) if one != leader]
    copies = min(REPLICAS, brokers) - 1
    return {
        number: [leader, *(others[(number + step) % len(others)] for step in range(copies))]
        for number in range(partitions)
    }


def spread(brokers: int, partitions: int) -> dict[int, list[int]]:
    """Return an assignment whose leaders are spread over all brokers."""
    copies = min(REPLICAS, brokers) - 1

    def others(number: int) -> list[int]:
        first = number // brokers
        return [(number + 1 + (first + step) % (brokers - 1)) % brokers for step in range(copies)]

    return {number: [number % brokers, *others(number)] for number in range(partitions)}


def election(folder: Path, partitions: int) -> Figures:
    """Elect the leaders of all partitions of a dead broker, one of ten."""
    figures: Figures = {}
    cluster = cluster_of(folder, 10, partitions)
    cluster.crash(0)
    cluster.clock.advance(cluster.settings.broker_session_timeout_ms + 1)
    controller = next(one for one in cluster.brokers.values() if not one.is_controller)
    watch = Watch(folder)
    with cpu_ms(figures, "controller's tick"):
        for controller in cluster.brokers.values():
            if controller.controller_tick().changed:
                break
    written = watch.written()
    table = "cluster/partition_state"
    figures["commits of partition_state"] = written.commits[table]
    figures["files of partition_state"] = written.files[table] - written.commits[table]
    figures["partition_state, KiB"] = written.bytes[table] / 1024
    with cpu_ms(figures, "nine leaders' ticks"):
        for broker in cluster.brokers.values():
            broker.leader_tick()
    written = watch.written()
    figures["commits of journals"] = sum(
        count for table, count in written.commits.items() if table.endswith("/log")
    )
    with cpu_ms(figures, "nine followers' ticks"):
        for broker in cluster.brokers.values():
            broker.follower_tick()
    state = cluster.partition("t", 0)
    assert state.leader not in (None, 0)
    pending = cluster.produce("t", 0, [b"a"], acks=1)
    cluster.leader_tick(int(state.leader or 0))
    assert pending.is_done
    return figures


def brokers(folder: Path, count: int) -> Figures:
    """Tick one broker of many, idle and with a request, at 20 partitions a broker."""
    figures: Figures = {}
    cluster = cluster_of(folder, count)
    cluster.create_topic("t", assignment=spread(count, 20 * count))
    cluster.tick_until_idle()
    first = cluster.brokers[0]
    ticks = {
        "controller": first.controller_tick,
        "leader": first.leader_tick,
        "follower": first.follower_tick,
    }
    for name, tick in ticks.items():
        with cpu_ms(figures, f"idle {name}, 20 ticks"):
            for _ in range(20):
                tick()
    for broker in cluster.brokers.values():
        broker.heartbeat()
    for name, tick in ticks.items():
        with cpu_ms(figures, f"{name} after heartbeats of all"):
            tick()
    producer = BulkProducer(cluster.connection, cluster.clock)
    producer.send("t", range(0, 20 * count, 20), [b"a"])
    for broker in cluster.brokers.values():
        if broker is not first:
            broker.leader_tick()
    for name, tick in ticks.items():
        with cpu_ms(figures, f"busy {name}"):
            tick()
    return figures


def group(folder: Path, count: int) -> Figures:
    """Join the members of a group one after the other, rebalance, heartbeat and commit."""
    figures: Figures = {}
    ClusterRoot.create(Location.of(str(folder / "cluster"), {"/": {"sync": "false"}}))
    config = parse(ConsumerConfig, {}, "the benchmark")
    clock = ManualClock()
    watch = Watch(folder)
    members = []
    for _ in range(count):
        own = ClusterRoot(Location.of(str(folder / "cluster"), {"/": {"sync": "false"}}))
        members.append((own, GroupMember(own, "g", config, clock)))
    with cpu_ms(figures, "all join"):
        for _, member in members:
            member.join(["t"])
    with cpu_ms(figures, "all join again"):
        for _ in range(2):
            for _, member in members:
                if member.poll().missing:
                    member.join(["t"])
    state = members[0][1].poll()
    assert state.state == "CompletingRebalance", state.state
    partitions = 2 * count
    leader = next(one for _, one in members if one.member_id == state.leader)
    with cpu_ms(figures, "assignment"):
        topics = frozenset(["t"])
        subscribed = [MemberSubscription(one.member_id, topics, (), None) for one in state.members]
        shares = ASSIGNORS["range"]({"t": partitions}, subscribed)
        assignment = {
            of: [TopicIdPartition("id", number) for _, number in held]
            for of, held in shares.items()
        }
        leader.assign(assignment)
    with cpu_ms(figures, "all poll the assignment"):
        for _, member in members:
            assert member.poll().state == "Stable"
    written = watch.written()
    figures["commits of consumer_groups"] = written.commits["cluster/consumer_groups"]
    figures["consumer_groups, KiB"] = written.bytes["cluster/consumer_groups"] / 1024
    beats = [GroupHeartbeats(own, "g", clock) for own, _ in members]
    for one, (_, member) in zip(beats, members, strict=True):
        one.beat([member.member_id])
    watch.written()
    with cpu_ms(figures, "a heartbeat of each, a process each"):
        for one, (_, member) in zip(beats, members, strict=True):
            one.beat([member.member_id])
    table = "cluster/consumer_group_heartbeats"
    written = watch.written()
    figures["commits of heartbeats"] = written.commits[table]
    figures["heartbeats, KiB"] = written.bytes[table] / 1024
    with cpu_ms(figures, "a heartbeat of all, one process"):
        beats[0].beat([member.member_id for _, member in members])
    committed = [CommittedOffsets(own.consumer_offsets) for own, _ in members]
    committed[0].fence(
        "g", state.fence, {TopicIdPartition("id", n): "t" for n in range(partitions)}
    )

    def commit_each(offset: int) -> None:
        for number, one in enumerate(committed):
            held = {
                TopicIdPartition("id", 2 * number + place): ("t", OffsetAndMetadata(offset))
                for place in (0, 1)
            }
            one.commit("g", state.fence, held)

    commit_each(1)
    watch.written()
    with cpu_ms(figures, "an offset commit of each"):
        commit_each(2)
    figures["offsets, KiB"] = watch.written().bytes["cluster/consumer_offsets"] / 1024
    return figures


def producers(folder: Path, count: int) -> Figures:
    """Take a request of each idempotent producer in one tick, for one partition and for 50."""
    figures: Figures = {}
    for partitions in (1, 50):
        cluster = cluster_of(folder / str(partitions), 3, partitions)
        ids = [cluster.idempotent_producer() for _ in range(count)]
        for name in ("first", "second"):
            pending = [
                cluster.produce("t", number % partitions, [b"a"], producer=one)
                for number, one in enumerate(ids)
            ]
            with cpu_ms(figures, f"{partitions} partitions, leader, {name}"):
                cluster.leader_tick(0)
            with cpu_ms(figures, f"{partitions} partitions, follower, {name}"):
                cluster.follower_tick(1)
            cluster.follower_tick(2)
            with cpu_ms(figures, f"{partitions} partitions, answers, {name}"):
                cluster.leader_tick(0)
            with cpu_ms(figures, f"{partitions} partitions, clients' polls, {name}"):
                assert all(one.is_done for one in pending)
    return figures


def batches(folder: Path, count: int) -> Figures:
    """Restart a broker with many live batches of 500 producers in 4 partitions."""
    figures: Figures = {}
    cluster = cluster_of(folder, 2, 4)
    topic_id = cluster.connection.metadata().partition("t", 0).topic_id
    log = cluster.brokers[0]._roots[0].log
    for start in range(0, count, 1000):
        numbers = range(start, min(start + 1000, count))
        # The files are of no importance here: a start reads the log alone.
        log.commit_step([_batch(topic_id, number) for number in numbers], (), Step(), 0)
    cluster.brokers[0].stop()
    cluster.close()
    gc.collect()
    figures |= _restarted(folder, count)
    return figures


def _batch(topic_id: str, number: int) -> Batch:
    """Return batch `number`, of one record, of one of 500 producers in one of 4 partitions."""
    return Batch(
        path=new_batch_path(),
        size_bytes=1000,
        topic_id=topic_id,
        topic="t",
        partition=number % 4,
        leader_epoch=0,
        base_offset=number // 4,
        producer_id=number % 500,
        producer_epoch=0,
        base_sequence=number // 500,
        checksum=f"{number:016x}",
        record_count=1,
        last_offset_delta=0,
        min_timestamp_ms=1_700_000_000_000 + number,
        max_timestamp_ms=1_700_000_000_000 + number,
    )


def _restarted(folder: Path, count: int) -> Figures:
    figures: Figures = {}
    settings = parse(Settings, {}, "the benchmark")

    def start() -> Broker:
        options = {"/": {"sync": "false"}}
        return Broker(
            0,
            Location.of(str(folder / "cluster"), options),
            [Location.of(str(folder / "broker-0"), options)],
            rules=DriverRules(),
            execution=DriverExecution(),
            clock=ManualClock(10_000_000),
            settings=settings,
            storage_options=options,
        )

    with cpu_ms(figures, "start"):
        broker = start()
    with cpu_ms(figures, "first leader's tick"):
        broker.leader_tick()
    with cpu_ms(figures, "idle leader's ticks, 20"):
        for _ in range(20):
            broker.leader_tick()
    del broker
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    broker = start()
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    figures["Python memory of a batch, bytes"] = held / count
    broker.leader_tick()
    return figures


def partitions(folder: Path, count: int) -> Figures:
    """Tick three brokers at rest, and start one again, with many partitions."""
    figures: Figures = {}
    cluster = cluster_of(folder, 3)
    with cpu_ms(figures, "creation of the topic"):
        cluster.create_topic("t", assignment=spread(3, count))
    cluster.tick_until_idle()
    first = cluster.brokers[0]
    ticks = {
        "controller": first.controller_tick,
        "leader": first.leader_tick,
        "follower": first.follower_tick,
    }
    for name, tick in ticks.items():
        with cpu_ms(figures, f"idle {name}, 20 ticks"):
            for _ in range(20):
                tick()
    cluster.clock.advance(1)
    producer = BulkProducer(cluster.connection, cluster.clock)
    producer.send("t", [0], [b"a"])
    with cpu_ms(figures, "round of one record"):
        cluster.tick_until_idle()
    cluster.crash(0)
    with cpu_ms(figures, "start of a broker"):
        cluster.restart(0)
    with cpu_ms(figures, "the controller's tick after it"):
        for broker in cluster.brokers.values():
            broker.controller_tick()
    with cpu_ms(figures, "ticks until idle"):
        cluster.tick_until_idle()
    return figures


def store_election(partitions: int, store: Store, latency_ms: float) -> Figures:
    """Elect the leaders of all partitions of a dead broker on the S3 API server."""
    figures: Figures = {}
    place = store.bucket(f"election-{partitions}")
    options = store.options()
    clock, settings = ManualClock(), parse(Settings, {}, "the benchmark")
    running = [
        Broker(
            number,
            Location.of(f"{place}/cluster", options),
            [Location.of(f"{place}/broker-{number}", options)],
            rules=DriverRules(),
            execution=DriverExecution(),
            clock=clock,
            settings=settings,
            storage_options=options,
        )
        for number in range(4)
    ]
    admin = Admin(Connection(f"{place}/cluster", storage_options=options))
    admin.create_topic("t", assignment=spread_from(3, 4, partitions))

    def each(act: Callable[[Broker], object], of: list[Broker]) -> None:
        for broker in of:
            broker.poll_ahead(to_end=True)
            act(broker)

    for _ in range(3):
        for act in (Broker.controller_tick, Broker.leader_tick, Broker.follower_tick):
            each(act, running)
    living = running[:3]
    for _ in range(3):
        each(Broker.poll, living)
        clock.advance(settings.broker_session_timeout_ms // 2)
        each(Broker.heartbeat, living)
    store.set_latency(latency_ms)
    controller = next(one for one in living if one.is_controller)
    for name, act, of in (
        ("controller's tick", Broker.controller_tick, [controller]),
        ("a leader's tick", Broker.leader_tick, living[:1]),
    ):
        before, began, cpu_began = store.counts(), time.perf_counter(), time.process_time()
        for one in of:
            one.poll_ahead(to_end=True)
            act(one)
        figures[f"{name}, s"] = time.perf_counter() - began
        figures[f"{name}, CPU s"] = time.process_time() - cpu_began
        counts = store.counts() - before
        figures[f"{name}, requests"] = sum(counts[kind] for kind in KINDS)
        figures[f"{name}, PUT"] = counts["PUT"]
    store.set_latency(0)
    led = Connection(f"{place}/cluster", storage_options=options).metadata().partitions.values()
    assert all(one.leader not in (None, 3) for one in led)
    return figures


class Measure(NamedTuple):
    """A work, and the smallest of its three sizes."""

    run: Callable[[Path, int], Figures]
    size: int


MEASURES = {
    "election": Measure(election, 1250),
    "brokers": Measure(brokers, 12),
    "group": Measure(group, 25),
    "producers": Measure(producers, 125),
    "batches": Measure(batches, 15_000),
    "partitions": Measure(partitions, 1250),
}


@app.command()
def main(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MEASURE]...", help=f"{', '.join(MEASURES)}."),
    ] = None,
    size: Annotated[
        list[str] | None, typer.Option(metavar="MEASURE=N", help="The smallest size of a measure.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Print the CPU profile of the largest size of a measure.")
    ] = None,
    store: Annotated[
        float | None, typer.Option(metavar="MS", help="Measure elections at this latency, too.")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="Where data is written.")] = None,
) -> None:
    """Measure growth and print a table for each measure."""
    sizes = {name: measure.size for name, measure in MEASURES.items()}
    for one in size or ():
        name, _, number = one.partition("=")
        if name not in sizes or not number.isdigit():
            raise typer.BadParameter(f"{one}: name a measure and its size, as election=1250")
        sizes[name] = int(number)
    unknown = [
        name for name in [*(names or ()), *([profile] if profile else ())] if name not in sizes
    ]
    if unknown:
        raise typer.BadParameter(f"there is no measure {unknown[0]!r}: name {', '.join(sizes)}")
    with tempfile.TemporaryDirectory(dir=folder) as own:
        if profile:
            _profile(MEASURES[profile], Path(own) / profile, 4 * sizes[profile])
            return
        for name in names or MEASURES:
            found = {}
            for count in (sizes[name], 2 * sizes[name], 4 * sizes[name]):
                place = Path(own) / f"{name}-{count}"
                place.mkdir()
                found[count] = MEASURES[name].run(place, count)
            _print(name, found)
        if store is not None:
            with running_store(Path(own) / "server.log") as server:
                counts = sizes["election"], 2 * sizes["election"], 4 * sizes["election"]
                found = {one: store_election(one, server, store) for one in counts}
            _print(f"election at {store:g} ms a request", found)


def _profile(measure: Measure, folder: Path, count: int) -> None:
    folder.mkdir()
    profiler = cProfile.Profile()
    profiler.runcall(measure.run, folder, count)
    pstats.Stats(profiler).sort_stats("cumulative").print_stats(45)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(30)


def _print(name: str, found: dict[int, Figures]) -> None:
    """Print the figures of three sizes as a Markdown table."""
    least, *_, most = found
    print(f"| {name} | {' | '.join(f'{count:,}' for count in found)} | exponent |")
    print(f"|---|{'---:|' * (len(found) + 1)}")
    for figure in found[least]:
        values = [found[count][figure] for count in found]
        cells = [f"{value:,.1f}" if value < 100 else f"{value:,.0f}" for value in values]
        is_positive = values[0] > 0 and values[-1] > 0
        exponent = math.log(values[-1] / values[0], most / least) if is_positive else math.nan
        print(f"| {figure} | {' | '.join(cells)} | {exponent:.1f} |")
    print(flush=True)


if __name__ == "__main__":
    app()
