"""Programs for Spark's Kafka connector; only the format and the address differ.

Each returns its visible result as plain values: columns, rows, counts. A program's error is a
result, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.available_now import run_to_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Outcome = dict[str, Any]

BASE_MS = 1_700_000_000_000
"""The time of the first record of each partition; each record is a second later."""

STORED = {"a": {0: 40, 1: 20}, "b": {0: 5}, "empty": {0: 0}}
"""The number of initial records by topic and partition."""

TARGETS = {"out": 2, "out-1": 1, "out-2": 1, "piped": 2, "followed": 1}
"""The topics that programs write to, and their partitions."""


class StoredRecord(NamedTuple):
    """An initial record, stored before any program runs."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int


def stored_record(topic: str, partition: int, offset: int) -> StoredRecord:
    """Return a record; some have no key, no value, some headers, and bytes that are not text."""
    return StoredRecord(
        None if offset % 5 == 0 else b"k%d" % (offset % 3),
        None
        if offset % 7 == 6
        else f"{topic}-{partition}-{offset}".encode() + b"\xff" * (offset % 2),
        [("h", b"%d" % offset), ("h", None)] if offset % 4 == 1 else [],
        BASE_MS + 1000 * offset,
    )


class Side(NamedTuple):
    """One of the two systems: the format's name and the option with its address."""

    format: str
    where: tuple[str, str]


class Session:
    """The arguments of a program: Spark, one side, and a separate folder."""

    def __init__(self, spark: SparkSession, side: Side, folder: Path) -> None:
        self.spark = spark
        self.side = side
        self.folder = folder
        self.batches: dict[int, list[str]] = {}

    def load(self, **options: str) -> DataFrame:
        """Read a batch."""
        reader = self.spark.read.format(self.side.format).option(*self.side.where)
        return reader.options(**options).load()

    def stream(self, **options: str) -> DataFrame:
        """Read a stream."""
        reader = self.spark.readStream.format(self.side.format).option(*self.side.where)
        return reader.options(**options).load()

    def save(self, frame: DataFrame, mode: str | None = "append", **options: str) -> None:
        """Write a batch."""
        writer = frame.write.format(self.side.format).option(*self.side.where).options(**options)
        (writer if mode is None else writer.mode(mode)).save()

    def run(self, frame: DataFrame, name: str = "query") -> None:
        """Run a stream over the available records, and keep the offsets of each micro-batch."""

        def keep(batch: DataFrame, batch_id: int) -> None:
            rows = batch.select("topic", "partition", "offset").collect()
            self.batches[batch_id] = sorted(f"{row[0]}-{row[1]}@{row[2]}" for row in rows)

        writer = frame.writeStream.foreachBatch(keep).trigger(availableNow=True)
        run_to_end(writer.option("checkpointLocation", str(self.folder / name)).start)

    def pipe(self, frame: DataFrame, **options: str) -> None:
        """Run a stream into the sink over the available records."""
        writer = frame.writeStream.format(self.side.format).option(*self.side.where)
        writer = writer.options(**options).trigger(availableNow=True)
        run_to_end(writer.option("checkpointLocation", str(self.folder / "pipe")).start)

    def offsets(self, name: str = "query", batch: int = 0) -> Any:
        """Return the offsets of a micro-batch in a checkpoint."""
        text = (self.folder / name / "offsets" / str(batch)).read_text(encoding="utf-8")
        return json.loads(text.splitlines()[2])


def shown(frame: DataFrame) -> Outcome:
    """Return a DataFrame's columns and rows, in order of offset."""
    columns = [[one.name, one.dataType.simpleString(), one.nullable] for one in frame.schema]
    rows = frame.orderBy("topic", "partition", "offset").collect()
    return {"columns": columns, "rows": [[_plain(value) for value in row] for row in rows]}


def places(frame: DataFrame) -> Outcome:
    """Return the offsets of a DataFrame's records, as ranges by partition."""
    found: dict[str, list[int]] = {}
    for row in frame.select("topic", "partition", "offset").collect():
        found.setdefault(f"{row[0]}-{row[1]}", []).append(row[2])
    return {
        of: f"{min(offsets)}..{max(offsets)} ({len(offsets)})"
        for of, offsets in sorted(found.items())
    }


def _plain(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return value.decode("latin-1")
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value.isoformat() if hasattr(value, "isoformat") else value


def outcome_of(program: Program, session: Session) -> Outcome:
    """Run a program; its error is represented by the first sentence."""
    try:
        return program.run(session)
    except Exception as error:  # noqa: BLE001 - any refusal is an outcome
        return {"refused": sentence_of(error)}


_NOISE = re.compile(
    r"(?:[\w.$]+(?:Exception|Error|Fault)|\[[A-Z_.0-9]+\]"
    r"|Query \[id = [^]]*\] terminated with exception)"
    r"(?:: |:|\s)"
)


def sentence_of(error: Exception) -> str:
    """Return the sentence at the end of Spark's report of an error, which a user reads."""
    of_java = getattr(error, "java_exception", None)
    text = str(error) if of_java is None else str(of_java.getMessage())
    lines = [line.strip() for line in text.splitlines()]
    told = [line for line in lines if line and not line.startswith(("at ", "File ", "JVM", "=="))]
    named = [line for line in told if _NOISE.match(line)]
    sentence = (named or told or [type(error).__name__])[-1 if named else 0]
    while match := _NOISE.match(sentence):
        sentence = sentence[match.end() :].strip()
    return sentence[:300]


@dataclass(frozen=True)
class Program:
    """One program: its purpose, its options, and the reason if the two sides differ."""

    name: str
    options: str
    run: Callable[[Session], Outcome]
    differs: str | None = None


PROGRAMS: list[Program] = []


def program(
    options: str, differs: str | None = None
) -> Callable[[Callable[[Session], Outcome]], Callable[[Session], Outcome]]:
    """Register a function as a program; its docstring is the program's name."""

    def add(run: Callable[[Session], Outcome]) -> Callable[[Session], Outcome]:
        PROGRAMS.append(Program((run.__doc__ or "").strip(" ."), options, run, differs))
        return run

    return add


# --- reading batches ------------------------------------------------------------------------------


@program("subscribe")
def _(session: Session) -> Outcome:
    """All records of a topic: columns, types, rows."""
    return shown(session.load(subscribe="a"))


@program("subscribe")
def _(session: Session) -> Outcome:
    """Two topics."""
    return places(session.load(subscribe="a,b"))


@program("subscribe")
def _(session: Session) -> Outcome:
    """A topic without records."""
    return shown(session.load(subscribe="empty"))


@program("subscribe")
def _(session: Session) -> Outcome:
    """A topic that is not there."""
    return places(session.load(subscribe="nowhere"))


@program("subscribePattern")
def _(session: Session) -> Outcome:
    """Topics by a pattern, which has to match the whole name."""
    return places(session.load(subscribePattern="[ab]|emp"))


@program("assign")
def _(session: Session) -> Outcome:
    """Single partitions."""
    return places(session.load(assign='{"a":[1],"b":[0]}'))


@program("assign", differs="it is refused; Kafka's connector reads nothing, without a word")
def _(session: Session) -> Outcome:
    """A partition that is not there."""
    return places(session.load(assign='{"b":[7]}'))


@program("assign, subscribe")
def _(session: Session) -> Outcome:
    """Two ways to name topics at once."""
    return places(session.load(assign='{"a":[1]}', subscribe="a"))


@program("subscribe")
def _(session: Session) -> Outcome:
    """No way to name topics."""
    return places(session.load())


@program("includeHeaders")
def _(session: Session) -> Outcome:
    """Headers, some without a value."""
    frame = session.load(subscribe="a", includeHeaders="true")
    return shown(frame.where("offset < 6"))


@program("startingOffsets, endingOffsets")
def _(session: Session) -> Outcome:
    """From offsets to offsets, by JSON, with -2 and -1 for earliest and latest."""
    return places(
        session.load(
            subscribe="a",
            startingOffsets='{"a":{"0":35,"1":-2}}',
            endingOffsets='{"a":{"0":-1,"1":3}}',
        )
    )


@program("startingOffsets")
def _(session: Session) -> Outcome:
    """JSON that leaves a partition out."""
    return places(session.load(subscribe="a", startingOffsets='{"a":{"0":35}}'))


@program("startingOffsets")
def _(session: Session) -> Outcome:
    """JSON that names a topic which is not read."""
    return places(session.load(subscribe="b", startingOffsets='{"b":{"0":1},"a":{"0":0,"1":0}}'))


@program("startingOffsets")
def _(session: Session) -> Outcome:
    """Latest, in a batch."""
    return places(session.load(subscribe="a", startingOffsets="latest"))


@program("startingOffsets")
def _(session: Session) -> Outcome:
    """-1, in a batch."""
    return places(session.load(subscribe="b", startingOffsets='{"b":{"0":-1}}'))


@program("endingOffsets")
def _(session: Session) -> Outcome:
    """Earliest, as an end."""
    return places(session.load(subscribe="a", endingOffsets="earliest"))


@program("startingOffsets")
def _(session: Session) -> Outcome:
    """Text that is no JSON."""
    return places(session.load(subscribe="a", startingOffsets="first"))


@program("endingOffsets, failOnDataLoss")
def _(session: Session) -> Outcome:
    """An end beyond the last record."""
    options = _SHORT_POLL.get(session.side.format, {})
    return places(session.load(subscribe="b", endingOffsets='{"b":{"0":9}}', **options))


@program("endingOffsets, failOnDataLoss")
def _(session: Session) -> Outcome:
    """An end beyond the last record, where losses are no failure."""
    frame = session.load(
        subscribe="b",
        endingOffsets='{"b":{"0":9}}',
        failOnDataLoss="false",
        **_SHORT_POLL.get(session.side.format, {}),
    )
    return places(frame)


_SHORT_POLL = {"kafka": {"kafkaConsumer.pollTimeoutMs": "2000"}}
"""The poll timeout of Kafka's consumer, for offsets that never arrive."""


@program("startingTimestamp, endingTimestamp")
def _(session: Session) -> Outcome:
    """From a time to a time, of all partitions."""
    start, end = str(BASE_MS + 9_500), str(BASE_MS + 12_000)
    return places(session.load(subscribe="a", startingTimestamp=start, endingTimestamp=end))


@program("startingOffsetsByTimestamp, endingOffsetsByTimestamp")
def _(session: Session) -> Outcome:
    """From times to times, by partition; an end after the last record is the last."""
    start = json.dumps({"a": {"0": BASE_MS + 30_000, "1": BASE_MS + 5_001}})
    end = json.dumps({"a": {"0": BASE_MS + 99_000, "1": BASE_MS + 8_000}})
    return places(
        session.load(subscribe="a", startingOffsetsByTimestamp=start, endingOffsetsByTimestamp=end)
    )


@program("startingTimestamp")
def _(session: Session) -> Outcome:
    """A start after the last record."""
    return places(session.load(subscribe="b", startingTimestamp=str(BASE_MS + 99_000)))


@program("startingOffsetsByTimestampStrategy")
def _(session: Session) -> Outcome:
    """A start after the last record, where that means latest."""
    return places(
        session.load(
            subscribe="b",
            startingTimestamp=str(BASE_MS + 99_000),
            startingOffsetsByTimestampStrategy="latest",
        )
    )


@program("startingTimestamp, startingOffsets")
def _(session: Session) -> Outcome:
    """A time and offsets: the time wins."""
    return places(
        session.load(
            subscribe="b", startingTimestamp=str(BASE_MS + 2_000), startingOffsets="earliest"
        )
    )


@program("minPartitions")
def _(session: Session) -> Outcome:
    """At least so many Spark partitions."""
    frame = session.load(subscribe="a", minPartitions="6")
    return {"at least": frame.rdd.getNumPartitions() >= 6, "places": places(frame)}


@program(
    "maxRecordsPerPartition",
    differs="it is honoured; Kafka's connector of Spark 4.2 passes over it in a batch",
)
def _(session: Session) -> Outcome:
    """At most so many records in a Spark partition."""
    frame = session.load(subscribe="a", maxRecordsPerPartition="9")
    sizes = frame.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect()
    return {"most": max(sizes) <= 9, "places": places(frame)}


@program("minPartitions")
def _(session: Session) -> Outcome:
    """A value that is not a number."""
    return places(session.load(subscribe="a", minPartitions="some"))


@program("schema")
def _(session: Session) -> Outcome:
    """A schema of the user's own."""
    reader = session.spark.read.format(session.side.format).option(*session.side.where)
    return places(reader.option("subscribe", "a").schema("value string").load())


# --- streams --------------------------------------------------------------------------------------


@program("maxOffsetsPerTrigger, Trigger.AvailableNow")
def _(session: Session) -> Outcome:
    """Micro-batches of at most so many records, shared out among the partitions."""
    session.run(
        session.stream(subscribe="a", startingOffsets="earliest", maxOffsetsPerTrigger="30")
    )
    return {str(batch): found for batch, found in session.batches.items()}


@program("startingOffsets")
def _(session: Session) -> Outcome:
    """A stream from given offsets, and what its checkpoint says."""
    session.run(session.stream(subscribe="a", startingOffsets='{"a":{"0":38,"1":-2}}'))
    return {"read": session.batches, "checkpoint": session.offsets()["a"]}


@program(
    "startingOffsets",
)
def _(session: Session) -> Outcome:
    """A new stream begins at latest by itself, and finds nothing new."""
    session.run(session.stream(subscribe="a"))
    return {"read": [place for batch in session.batches.values() for place in batch]}


@program("startingOffsets, checkpointLocation")
def _(session: Session) -> Outcome:
    """A stream goes on from its checkpoint, whatever its options say by then."""
    session.save(session.spark.sql("select 'one' value"), topic="followed")
    session.run(session.stream(subscribe="followed", startingOffsets="earliest"))
    session.save(session.spark.sql("select 'two' value"), topic="followed")
    session.run(session.stream(subscribe="followed", startingOffsets="latest"))
    return {str(batch): found for batch, found in session.batches.items()}


@program("endingOffsets")
def _(session: Session) -> Outcome:
    """An end, for a stream."""
    session.run(session.stream(subscribe="a", endingOffsets="latest"))
    return {}


@program("subscribe")
def _(session: Session) -> Outcome:
    """A stream of a topic that is not there."""
    session.run(session.stream(subscribe="nowhere", startingOffsets="earliest"))
    return {}


# --- sinks ----------------------------------------------------------------------------------------


def _written(session: Session, *topics: str) -> Outcome:
    frame = session.load(subscribe=",".join(topics), includeHeaders="true")
    rows = frame.select("topic", "partition", "key", "value", "headers").collect()
    return {"rows": sorted([_plain(value) for value in row] for row in rows)}


@program("topic, kafka.acks")
def _(session: Session) -> Outcome:
    """Keys, headers and explicit partitions; columns that are no record's are left alone."""
    frame = session.spark.sql(
        """
        select concat('k', id) key, concat('v', id) value, cast(id % 2 as int) partition,
            array(named_struct('key', 'h', 'value', cast('x' as binary))) headers, id as offset
        from range(10)
        """
    )
    session.save(frame, topic="out", **{"kafka.acks": "all"})
    return _written(session, "out")


@program("topic")
def _(session: Session) -> Outcome:
    """Keys go where Kafka's partitioner puts them."""
    frame = session.spark.sql("select concat('key', id) key, 'p' value from range(30)")
    session.save(frame, topic="out")
    rows = session.load(subscribe="out").where("value = 'p'").select("key", "partition").collect()
    return {row[0].decode(): row[1] for row in sorted(rows)}


@program("topic column")
def _(session: Session) -> Outcome:
    """A topic for each row."""
    frame = session.spark.sql("select 'a' value, concat('out-', id + 1) topic from range(2)")
    session.save(frame)
    return _written(session, "out-1", "out-2")


@program("topic, topic column")
def _(session: Session) -> Outcome:
    """The option wins over the column."""
    frame = session.spark.sql("select 'option' value, 'out-1' topic")
    session.save(frame, topic="out-2")
    rows = session.load(subscribe="out-1,out-2").where("value = 'option'").collect()
    return {"topics": [row.topic for row in rows]}


@program("topic")
def _(session: Session) -> Outcome:
    """Neither a topic nor a column of it."""
    session.save(session.spark.sql("select 'a' value"))
    return {}


@program("topic column")
def _(session: Session) -> Outcome:
    """A row without a topic."""
    session.save(session.spark.sql("select 'a' value, cast(null as string) topic"))
    return {}


@program("value column")
def _(session: Session) -> Outcome:
    """No value column."""
    session.save(session.spark.sql("select 'a' key"), topic="out")
    return {}


@program("value column")
def _(session: Session) -> Outcome:
    """A value that is neither text nor bytes."""
    session.save(session.spark.sql("select 1 value"), topic="out")
    return {}


@program("value column")
def _(session: Session) -> Outcome:
    """A null value: a tombstone."""
    session.save(session.spark.sql("select 'gone' key, cast(null as string) value"), topic="out")
    rows = session.load(subscribe="out").where("key = 'gone'").collect()
    return {"values": [row.value for row in rows]}


@program("mode")
def _(session: Session) -> Outcome:
    """Overwriting."""
    session.save(session.spark.sql("select 'a' value"), mode="overwrite", topic="out")
    return {}


@program(
    "mode",
    differs="Spark lets a Python data source be written with mode append (or overwrite, refused) "
    "only: say .mode('append')",
)
def _(session: Session) -> Outcome:
    """No mode given."""
    session.save(session.spark.sql("select 'a' value"), mode=None, topic="out-1")
    return {}


@program("subscribe, topic, checkpointLocation")
def _(session: Session) -> Outcome:
    """A stream from topic to topic."""
    frame = session.stream(subscribe="a", startingOffsets="earliest").drop("topic", "partition")
    session.pipe(frame, topic="piped")
    rows = session.load(subscribe="piped").select("key", "value").collect()
    return {"rows": sorted([str(_plain(value)) for value in row] for row in rows)}
