"""Use a cluster on S3 from one Spark session, and store all outputs of successes and refusals.

`python spark_outputs.py FOLDER PORT [JAR ...]` takes a folder with the configuration files of a
cluster, the port of its policy store, and Spark's further JARs. It stores plans, progress, errors
and the pages of Spark's UI in FOLDER/outputs, one file each. The topic's name, a setting of Spark,
and a literal and an error of a query have the text `CONTROL`, which the outputs show.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.error import HTTPError
from urllib.request import urlopen

import sparklog
from sparklog import Admin, Application, ClusterConfig, SparkConsumer, SparklogError, SparkProducer
from sparklog.config import load
from sparklog.datasource.columns import ddl
from sparklog.session import spark_errors
from sparklog.spark_jobs import spark_job
from sparklog.storage.execution import executors_fault, spark_execution
from sparklog.storage.file_states import NamedFile
from sparklog.storage.location import Location
from tests.access.marks import CONTROL, MARK
from tests.access.policy_store import ECHO_OF_FILES, PolicyStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

TOPIC = f"t-{CONTROL}"
VIEWS = ("records", "brokers", "produce_requests")
ORDERS = "select cast(id as string) as key, 'an order' as value from range(4)"


class Outputs:
    """A folder of texts, named by the action whose output they are."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    def add(self, name: str, text: str) -> None:
        """Store a text."""
        file = re.sub(r"[^\w.-]+", "-", name)
        with (self._folder / f"{file}.txt").open("a") as output:
            output.write(f"{text}\n")

    def explain(self, name: str, frame: DataFrame) -> None:
        """Store all explanations of a plan."""
        for mode in ("extended", "formatted", "cost"):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                frame.explain(mode=mode)
            self.add(f"plan {name} {mode}", printed.getvalue())
        execution = cast(Any, frame)._jdf.queryExecution()
        self.add(f"plan {name} java", execution.toString())
        self.add(f"plan {name} json", execution.analyzed().toJSON())

    def refused(self, name: str, action: Callable[[], object]) -> None:
        """Store the error of an action, in Python and in Java; another outcome is an error."""
        expected: tuple[type[Exception], ...] = (*spark_errors(), SparklogError, OSError)
        try:
            action()
        except expected as error:
            self.add(f"error {name} python", "".join(traceback.format_exception(error)))
            self.add(f"error {name} parts", f"{error} {error!r} {vars(error)}")
        else:
            self.add("not refused", name)


class Client:
    """One configuration file of the cluster, whose secrets are given in one way."""

    def __init__(self, name: str, folder: Path, spark: SparkSession, outputs: Outputs) -> None:
        self.name, self._folder, self._spark, self._outputs = name, folder, spark, outputs
        self.file = str(folder / f"{name}.yaml")
        self.key = f"{name}{MARK}"

    def frames(self, *, is_native: bool) -> dict[str, DataFrame]:
        """Return DataFrames that are read by sparklog and, with `is_native`, by Spark itself."""
        given = {"cluster": self.file, "subscribe": TOPIC, "fetchOffset.numRetries": "0"}
        frames = {"format": self._spark.read.format("sparklog").options(**given).load()}
        if is_native:
            frames["read"] = sparklog.read(self._spark, cluster=self.file, subscribe=TOPIC)
            frames["consumer"] = SparkConsumer(self.file, self._spark).read(TOPIC)
            sparklog.create_views(self._spark, self.file)
            frames |= {name: self._spark.table(name) for name in VIEWS}
        return {f"{self.name} {name}": frame for name, frame in frames.items()}

    def write(self, *, is_native: bool) -> None:
        """Write by the sink, and with `is_native` by a producer."""
        orders = self._spark.sql(ORDERS)
        writer = orders.write.format("sparklog").mode("append").option("cluster", self.file)
        writer.option("topic", TOPIC).save()
        if not is_native:
            return
        # A projection of a range has no rows at hand, so that they are written in tasks.
        SparkProducer(self.file, self._spark).send(orders, TOPIC).result()

    def stream(self, name: str, *, is_sink: bool) -> StreamingQuery:
        """Start a stream from the topic to another one, by the sink or in foreachBatch."""
        options = {"cluster": self.file, "subscribe": TOPIC, "startingOffsets": "earliest"}
        source = self._spark.readStream.format("sparklog").options(**options).load()
        writer = source.select("key", "value").writeStream.queryName(f"{self.name}_{name}")
        checkpoint = self._folder / "checkpoints" / f"{self.name}-{name}"
        writer = writer.option("checkpointLocation", str(checkpoint))
        if is_sink:
            writer = writer.format("sparklog").option("cluster", self.file).option("topic", "u")
        else:
            producer = SparkProducer(self.file, self._spark)

            def send(frame: DataFrame, number: int) -> None:
                producer.send(frame, "u", micro_batch=(f"{self.name}-{name}", number)).result()

            writer = writer.foreachBatch(send)
        return writer.trigger(availableNow=True).start()

    def run_stream(self, name: str, *, is_sink: bool) -> None:
        """Run a stream to its end, and store its progress, plan and, if it fails, its error."""
        query = self.stream(name, is_sink=is_sink)
        of = f"stream {self.name} {name}"
        try:
            query.awaitTermination()
        finally:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                query.explain(True)
            progress = [json.dumps(one, default=str) for one in query.recentProgress]
            self._outputs.add(of, "\n".join([printed.getvalue(), str(query.status), *progress]))
            self._outputs.add(of, str(query._jsq.toString()))
            self._outputs.add(of, str(query.exception()))


def run(folder: Path, store: PolicyStore, spark: SparkSession, outputs: Outputs) -> None:
    """Use the cluster with each client."""
    inline, variable, file = (
        Client(name, folder, spark, outputs) for name in ("inline", "variable", "file")
    )
    use(inline, store, outputs, is_native=True, is_streaming=True)
    use(variable, store, outputs, is_native=False, is_streaming=True)
    use(file, store, outputs, is_native=False, is_streaming=False)
    # Hadoop keeps its client of the bucket, with the credentials of the first one.
    outputs.explain("variable read", sparklog.read(spark, cluster=variable.file, subscribe=TOPIC))
    inline.run_stream("foreach", is_sink=False)
    for name in ("inline-lost", "variable-lost", "file-lost"):
        lost = Client(name, folder, spark, outputs).frames(is_native=False)
        for frame in lost.values():
            outputs.refused(name, frame.collect)
    broker_work(inline, store, spark, outputs)
    native_refusals(folder, spark, outputs)
    option_refusals(folder, spark, outputs)
    for name in ("option-azure", "option-sse", "option-url"):
        view_refusal(name, folder, spark, outputs)
    controls(folder, spark, outputs)


def use(
    client: Client, store: PolicyStore, outputs: Outputs, *, is_native: bool, is_streaming: bool
) -> None:
    """Read and write the cluster, and be refused."""
    client.write(is_native=is_native)
    frames = client.frames(is_native=is_native)
    for name, frame in frames.items():
        outputs.explain(name, frame)
        frame.count()
    if is_streaming:
        client.run_stream("sink", is_sink=True)
    with store.refusing(client.key, ECHO_OF_FILES):
        for name in (one for one in frames if one.split()[1] in ("format", "read", "records")):
            outputs.refused(name, frames[name].toArrow)
        outputs.refused(f"{client.name} write", lambda: client.write(is_native=is_native))
        if is_streaming:
            outputs.refused(
                f"{client.name} sink", lambda: client.run_stream("refused", is_sink=True)
            )


def broker_work(client: Client, store: PolicyStore, spark: SparkSession, outputs: Outputs) -> None:
    """Read a batch file in a task as brokers do, and be refused there."""
    given = load(ClusterConfig, client.file)
    log = Location.of(given.brokers[0].log_dirs[0], given.storage_options).child("log")
    file = NamedFile(log, f"_inbox/{log.names('_inbox')[0]}", 1)
    execution = spark_execution(spark, is_always=True, min_bytes=0, bytes_per_task=1)
    outputs.add("broker work", repr(execution.read([file])))
    with store.refusing(client.key, ECHO_OF_FILES):
        outputs.add("broker work", repr(execution.read([file])))
    outputs.add("broker work", str(executors_fault(spark, given.storage_options)))


def controls(folder: Path, spark: SparkSession, outputs: Outputs) -> None:
    """Show the text `CONTROL` in plans, and in errors of tasks and of a stream."""
    frame = spark.sql(f"select id, '{CONTROL}' as control from range(4)")
    outputs.explain("control", frame)
    frame.collect()

    def failing(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise RuntimeError(CONTROL)

    frame = spark.range(4).mapInArrow(failing, "id bigint")
    with spark_job(spark, CONTROL):
        outputs.refused("control", frame.collect)

    def fail(_: DataFrame, number: int) -> None:
        raise RuntimeError(f"{CONTROL} {number}")

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = source.writeStream.queryName(CONTROL).foreachBatch(fail).trigger(availableNow=True)
    checkpoint = str(folder / "checkpoints" / "control")
    query = writer.option("checkpointLocation", checkpoint).start()
    outputs.refused("control stream", query.awaitTermination)


def native_refusals(folder: Path, spark: SparkSession, outputs: Outputs) -> None:
    """Refuse what Spark's own readers cannot read without showing a secret."""
    file = str(folder / "file.yaml")
    outputs.refused("file read", lambda: sparklog.read(spark, cluster=file, subscribe=TOPIC))
    outputs.refused("file views", lambda: sparklog.create_views(spark, file))


def option_refusals(folder: Path, spark: SparkSession, outputs: Outputs) -> None:
    """Give a secret that is written out as an option of a DataFrame, by each kind of query."""
    options = json.loads((folder / "option.json").read_text())
    columns = ddl(include_headers=False)
    rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    source = rates.selectExpr("cast(value as string) value")

    def reader() -> DataFrameReader:
        return spark.read.format("sparklog").options(**options, subscribe=TOPIC)

    def stream() -> DataStreamReader:
        return spark.readStream.format("sparklog").options(**options, subscribe=TOPIC)

    def write() -> None:
        writer = spark.sql(ORDERS).write.format("sparklog").mode("append").options(**options)
        writer.option("topic", TOPIC).save()

    def write_stream() -> None:
        checkpoint = str(folder / "checkpoints" / "option")
        given = {**options, "topic": TOPIC, "checkpointLocation": checkpoint}
        writer = source.writeStream.format("sparklog").options(**given)
        writer.trigger(availableNow=True).start().awaitTermination()

    outputs.refused("option read", lambda: reader().load().collect())
    outputs.refused("option read of columns", lambda: reader().schema(columns).load().collect())
    outputs.refused("option stream", lambda: run_once(stream().load()))
    outputs.refused("option stream of columns", lambda: run_once(stream().schema(columns).load()))
    outputs.refused("option write", write)
    outputs.refused("option sink", write_stream)
    view_refusal("option", folder, spark, outputs)


def view_refusal(name: str, folder: Path, spark: SparkSession, outputs: Outputs) -> None:
    """Give a secret that is written out in the statement that creates a view."""
    options = json.loads((folder / f"{name}.json").read_text())
    text = ", ".join(f"'{key}' '{value}'" for key, value in options.items())
    view = f"create temporary view given using sparklog options ({text}, 'subscribe' '{TOPIC}')"
    outputs.refused(f"{name} view", lambda: spark.sql(view))


def run_once(stream: DataFrame) -> None:
    """Run a stream to its end; its rows are not written."""
    stream.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()


def store_pages(spark: SparkSession, outputs: Outputs) -> None:
    """Store the pages of Spark's UI and the answers of its REST API."""
    base = spark.sparkContext.uiWebUrl
    assert base is not None
    rest = f"/api/v1/applications/{spark.sparkContext.applicationId}"

    def stored(path: str) -> str:
        try:
            with urlopen(f"{base}{path}", timeout=60) as answer:
                text = str(answer.read().decode())
        except HTTPError as error:
            text = f"{error} {error.read().decode()}"
        outputs.add(f"ui {path}", text)
        return text

    stored(f"{rest}/environment")
    stored(f"{rest}/allexecutors")
    queries = json.loads(stored(f"{rest}/sql?details=true&planDescription=true&length=100000"))
    jobs = json.loads(stored(f"{rest}/jobs"))
    stages = json.loads(stored(f"{rest}/stages?details=true&withSummaries=true"))
    for page in ("jobs", "stages", "storage", "environment", "executors", "SQL", "StreamingQuery"):
        stored(f"/{page}/")
    for query in queries:
        stored(f"/SQL/execution/?id={query['id']}")
    for job in jobs:
        stored(f"/jobs/job/?id={job['jobId']}")
    for stage in stages:
        stored(f"/stages/stage/?id={stage['stageId']}&attempt={stage['attemptId']}")
    for run_id in re.findall(r"statistics/?\?id=([\w-]+)", stored("/StreamingQuery/")):
        stored(f"/StreamingQuery/statistics/?id={run_id}")


def main() -> None:
    [_, folder_text, port, *jars] = sys.argv
    folder, store = Path(folder_text), PolicyStore(int(port))
    outputs = Outputs(folder / "outputs")
    (folder / "events").mkdir()
    given = json.loads((folder / "spark.json").read_text())
    config = {
        "spark.jars": ",".join(jars),
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.sql.maxPlanStringLength": str(1 << 24),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "1",
        "spark.executorEnv.CONTROL": CONTROL,
        **given,
    }
    spark = sparklog.spark_session("outputs", master="local[2]", memory="1g", config=config)
    application = Application(load(ClusterConfig, folder / "brokers.yaml"))
    application.start()
    rounds = threading.Thread(target=application.run)
    rounds.start()
    try:
        for topic in (TOPIC, "u"):
            Admin(folder / "brokers.yaml").create_topic(topic, partitions=1, replication_factor=2)
        run(folder, store, spark, outputs)
    finally:
        application.stop()
        rounds.join()
        store_pages(spark, outputs)
        for line in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                outputs.add("command lines", line.read_text(errors="replace").replace("\0", " "))
        spark.stop()


if __name__ == "__main__":
    main()
